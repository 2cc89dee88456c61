"""One row per optimizer and library: the states it keeps, what its step holds for a moment, and where it cannot run.

Read in and run on CPU (tests/test_optimizers.py keeps what was counted): torch 2.13 ``torch/optim``, transformers 5.23,
bitsandbytes 0.50.2, torchao 0.18.0, galore-torch 1.0, apollo-torch 1.0.3, lomo-optim 0.1.1, schedulefree 1.4.1,
adam-mini 1.1.1, pytorch_optimizer 4.1.0."""

from typing import Any

from memplan.tables.styles import Blocks, Fused, Optimizer

WHOLE = ("none", "ddp")
"""Every rank steps on whole tensors."""
HF_TRAINERS = ("transformers", "trl", "llamafactory", "simpo-repo", "swift")
"""Trainers built on Hugging Face's Trainer, which picks the optimizer's class (trainer_optimizer.py)."""
_PIECES = "FSDP1 hands the optimizer flat pieces (torch 2.13 distributed/fsdp/_flat_param.py: _use_sharded_views)"
_NO_MATRIX = {
    "zero": "DeepSpeed hands the optimizer flat partitions, which have no rows and columns",
    "fsdp": f"{_PIECES}, which have no rows and columns",
    "distributed-optimizer": "its flat shards have no rows and columns",
}
_MEGATRONS = {
    "distributed-optimizer": "Megatron has optimizers of its own: adam, lion, sgd, muon (core/optimizer/__init__.py)"
}
IN_BACKWARD = "it updates weights inside backward, before gradients are reduced"
"""Why an optimizer that steps in backward does not run on several GPUs here."""

_KERNEL: dict[str, Any] = {"implementations": ("fused",), "default_implementation": "fused"}
_LOOP: dict[str, Any] = {"implementations": ("loop",), "default_implementation": "loop"}
_BNB8 = Blocks(8, 256, wide=4, shared_table=1024)
_BNB = "bitsandbytes 0.50 optim/optimizer.py: block of 256, one fp32 absmax for each block and state"
_BNB_ROWS: dict[str, Any] = {
    "library": "bitsandbytes",
    "blocks": _BNB8,
    "skips_embeddings": True,
    "arguments": ("min_8bit_size",),
    "shardings": (*WHOLE, "zero", "fsdp"),
    "refusals": {
        "fsdp2": "bitsandbytes 0.50 hands DTensors to its kernels, which fail or write past the shard",
        **_MEGATRONS,
    },
    "source": _BNB,
    **_KERNEL,
}
_BNB32: dict[str, Any] = {
    **_BNB_ROWS,
    "blocks": None,
    "state_itemsize": 4,
    "skips_embeddings": False,
    "arguments": (),
    "source": "bitsandbytes 0.50 optim/optimizer.py init_state: at 32 bits states are fp32, whatever the weight is",
}
_AO_ROWS: dict[str, Any] = {
    "library": "torchao",
    "per_element": 2,
    "trainer_block": 256,
    "arguments": ("block_size",),
    "band": True,
    "shardings": (*WHOLE, "zero", "fsdp", "fsdp2"),
    "refusals": _MEGATRONS,
    "notes": ("the step is compiled by torch.compile",),
    **_LOOP,
}
_AO = "torchao 0.18 optim/adam.py _new_buffer"
_NO_DTENSOR = "torch 2.13: its step on DTensors mixes them with tensors and fails"
_LOMO = {
    "zero": "its ZeRO-3 form gathers whole gradients, which is not modelled",
    **dict.fromkeys(("ddp", "fsdp", "fsdp2"), IN_BACKWARD),
    **_MEGATRONS,
    "accumulation": "it updates weights in every micro-step",
    "passes": "it updates weights in every backward, and the second would see them changed",
}
_OF_FULL = {**_NO_MATRIX, "lora": "it projects the gradients of full weights, and LoRA trains none"}
_LOW_RANK: dict[str, Any] = {"per_element": 2, "rank": 128, "arguments": ("rank", "update_proj_gap", "targets"),
                             "shardings": WHOLE, **_LOOP}  # fmt: skip
_ROWS = (
    Optimizer("adamw", "AdamW", per_element=2, foreach_copies=1, step="adamw",
        source="torch/optim/adam.py: _foreach_sqrt(exp_avg_sq)"),
    Optimizer("sgd", "SGD", source="torch/optim/sgd.py"),
    Optimizer("sgd-momentum", "SGD with momentum", per_element=1, source="torch/optim/sgd.py"),
    Optimizer("rmsprop", "RMSprop", per_element=1, implementations=("foreach", "loop"), foreach_copies=1,
        step="rmsprop", source="torch/optim/rmsprop.py: square_avg, _foreach_sqrt(square_avg); without momentum"),
    Optimizer("adafactor", "Adafactor, factored second moment", rule="factored", per_element=1,
        implementations=("foreach", "loop"), default_implementation="loop", foreach_copies=1, step="adafactor",
        shardings=(*WHOLE, "zero"), refusals={"fsdp": _NO_MATRIX["fsdp"], **_MEGATRONS,
            "fsdp2": "torch 2.13's Adafactor fails on DTensors: the norm of a sharded gradient is partial"},
        source="torch/optim/_adafactor.py"),
    Optimizer("adafactor", "Adafactor, factored second moment", library="transformers", under_trainers=True,
        rule="factored", per_element=1, state_itemsize=4, step="adafactor-transformers", shardings=(*WHOLE, "zero"),
        refusals={"fsdp": _NO_MATRIX["fsdp"], "fsdp2": _NO_DTENSOR, **_MEGATRONS},
        source="transformers 5.23 optimization.py: Adafactor, fp32 copies of weight and gradient", **_LOOP),
    Optimizer("lion", "Lion", library="pytorch-optimizer", per_element=1, implementations=("foreach", "loop"),
        foreach_copies=1, step="lion", source="pytorch_optimizer 4.1 optimizer/lion.py"),
    Optimizer("lion", "Lion, fp32 state", under_trainers=True, per_element=1, **_BNB32),
    Optimizer("adamw", "AdamW, fp32 states", per_element=2, **_BNB32),
    Optimizer("paged-adamw", "AdamW, fp32 states in paged memory", per_element=2, paged=True, **_BNB32),
    Optimizer("paged-lion", "Lion, fp32 state in paged memory", per_element=1, paged=True, **_BNB32),
    Optimizer("adamw-8bit", "AdamW, 8-bit block-wise states", per_element=2, **_BNB_ROWS),
    Optimizer("adamw-8bit", "AdamW, 8-bit block-wise states", blocks=Blocks(8, 256, whole=True, table=1024),
        step="quantise-8bit", source=f"{_AO}, subclass_8bit.py", **_AO_ROWS),
    Optimizer("paged-adamw-8bit", "AdamW, 8-bit states in paged memory", per_element=2, paged=True, **_BNB_ROWS),
    Optimizer("paged-lion-8bit", "Lion, 8-bit state in paged memory", per_element=1, paged=True, **_BNB_ROWS),
    Optimizer("lion-8bit", "Lion, 8-bit block-wise state", per_element=1, **_BNB_ROWS),
    Optimizer("adamw-4bit", "AdamW, 4-bit block-wise states", blocks=Blocks(4, 128, whole=True, table=64),
        step="quantise-4bit", source=f"{_AO}, subclass_4bit.py", **_AO_ROWS),
    Optimizer("adamw-fp8", "AdamW, fp8 block-wise states", blocks=Blocks(8, 256, whole=True),
        source=f"{_AO}, subclass_fp8.py", **_AO_ROWS),
    Optimizer("muon", "Muon on hidden matrices, AdamW on the rest", rule="muon", per_element=2, foreach_copies=1,
        step="muon", gathers=True, shardings=(*WHOLE, "fsdp2"), refusals=_NO_MATRIX,
        source="torch 2.13 optim/_muon.py: 2-D parameters; embeddings, head and vectors by AdamW (foreach)", **_LOOP),
    Optimizer("galore", "GaLore AdamW, low-rank states", library="galore-torch", rule="galore", step="galore",
        refusals={**_OF_FULL, "fsdp2": "each rank would gather whole gradients for the SVD, which is not modelled"},
        source="galore-torch 1.0 adamw.py, galore_projector.py", **_LOW_RANK),
    Optimizer("apollo", "APOLLO AdamW, low-rank states", library="apollo-torch", rule="apollo", step="apollo",
        refusals={**_OF_FULL, "fsdp2": _NO_DTENSOR},
        source="apollo-torch 1.0.3 apollo.py, random_projector.py", **_LOW_RANK),
    Optimizer("adam-mini", "Adam-mini, one second moment a block", library="adam-mini", rule="adam-mini", per_element=1,
        step="adam-mini", shardings=(*WHOLE, "fsdp", "fsdp2"),
        refusals={**{way: _NO_MATRIX[way] for way in ("zero", "distributed-optimizer")},
            "lora": "its blocks are heads and rows of full weights",
            "experts": "it takes a tensor's second dimension for its row, which stacked experts do not have"},
        source="adam-mini 1.1.1 adam_mini.py: step", **_LOOP),
    Optimizer("lomo", "LOMO, no states and no gradients", library="lomo-optim", fused_backward=Fused(8, 4),
        shardings=("none",), refusals=_LOMO, source="lomo-optim 0.1.1 lomo.py: fuse_update", **_LOOP),
    Optimizer("adalomo", "AdaLOMO, factored states and no gradients", library="lomo-optim", rule="factored",
        per_element=1, state_itemsize=4, states_of_frozen=True, fused_backward=Fused(12, 12), shardings=("none",),
        refusals={**_LOMO, "experts": "its column statistics do not fit stacked experts"},
        source="lomo-optim 0.1.1 adalomo.py: fuse_update", **_LOOP),
    Optimizer("schedule-free", "schedule-free AdamW", library="schedulefree", per_element=2,
        implementations=("foreach", "loop"), foreach_copies=1, step="schedule-free",
        shardings=(*WHOLE, "zero", "fsdp", "fsdp2"), refusals=_MEGATRONS,
        source="schedulefree 1.4.1 adamw_schedulefree.py: z and exp_avg_sq"),
    Optimizer("adamw-kahan", "AdamW, bf16 states and Kahan's compensation", library="verl", per_element=3,
        state_itemsize=2, step="adamw-kahan", shardings=(*WHOLE, "zero", "fsdp", "fsdp2"),
        refusals=_MEGATRONS, source="EasyR1 0.3 verl/utils/torch_functional.py: AnyPrecisionAdamW", **_LOOP),
    Optimizer("soap", "SOAP, Adam in Shampoo's eigenbasis", library="pytorch-optimizer", rule="soap", per_element=2,
        step="soap", arguments=("max_precondition_dim",), shardings=WHOLE,
        refusals={**_NO_MATRIX, "fsdp2": _NO_DTENSOR}, source="pytorch_optimizer 4.1 optimizer/soap.py", **_LOOP),
)  # fmt: skip


def _by_name() -> dict[str, tuple[Optimizer, ...]]:
    rows: dict[str, tuple[Optimizer, ...]] = {}
    for row in _ROWS:
        rows[row.name] = (*rows.get(row.name, ()), row)
    return rows


VARIANTS = _by_name()
"""Every row of a name, the bare loop's first."""
OPTIMIZERS = {name: rows[0] for name, rows in VARIANTS.items()}
LIBRARIES = tuple(sorted({row.library for row in _ROWS}))


def find_optimizer(name: str, trainer: str, library: str = "") -> Optimizer | None:
    """The row of a name: of the library, else what Hugging Face's Trainer takes, else the bare loop's; or None."""
    rows = VARIANTS[name]
    if library:
        return next((row for row in rows if row.library == library), None)
    return next((row for row in rows if row.under_trainers and trainer in HF_TRAINERS), rows[0])
