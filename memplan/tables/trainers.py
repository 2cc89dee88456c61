"""One row per trainer and era: what it fills in where the job is silent, and how it computes log-probabilities.

Sources: trl wheels 0.9 to 1.16, transformers 4.44 to 5.23, llamafactory 0.9.5, princeton-nlp/SimPO@1b3e8f3.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Trainer(NamedTuple):
    """The defaults of one trainer for a range of its versions, ``since`` included."""

    name: str
    title: str
    since: str = ""
    """First version of the era; empty for the first era, and for trainers with one."""
    loads_fp32: bool = False
    """Weights are loaded in fp32 and trained under autocast when the job names no precision."""
    upcasts_trained: bool = False
    """Trained weights are cast to fp32, frozen ones stay in the checkpoint's dtype."""
    autocast: bool = False
    """Forward and loss run under autocast (bf16=True), whatever dtype the weights have."""
    optimizer_impl: str = "auto"
    gradient_checkpointing: bool = False
    keeps_outputs: bool = False
    """The caller holds the model's outputs, so the logits, until backward is done (``Trainer.compute_loss``)."""
    fp32_outputs: bool = False
    """accelerate's ``convert_outputs_to_fp32`` wraps the forward under native AMP: logits come out in fp32."""
    fp32_logits: tuple[str, ...] = ()
    """Methods for which the trainer itself calls ``logits.float()``."""
    heads: Mapping[str, str] = MappingProxyType({})
    """Loss head by method; ``*`` stands for every method that is not named."""
    sft_term: tuple[str, ...] = ()
    """Methods whose default loss adds a cross-entropy over the chosen half in a pass of its own over the logits."""
    reference_with_lora: str = "adapter"
    """Where reference log-probabilities come from when LoRA trains: the base with adapters off, or a second model."""
    reference_is_frozen: bool = True
    """False where the reference's weights keep requires_grad, so that autocast caches casts of them."""
    syncs_each_batch: bool = True
    """Gradients are reduced at every micro-step; False where all but the last run under ``no_sync``."""
    reference_first: bool = False
    """The reference scores the batch before the policy's forward, so that nothing of the policy is alive then."""
    reference_follows_policy: bool = False
    """The reference is loaded in the dtype that the policy is stored in; elsewhere in the compute dtype."""
    kbit_upcast: Mapping[str, str] = MappingProxyType({})
    """What is left in fp32 beside a quantised base, by method: all, norms (4 bits) or none; ``*`` for the rest."""
    quantised_adapters: str = ""
    """Dtype that adapters over a quantised base are cast to, where the preparation above is not made."""
    prepares_checkpointing: bool = False
    """Preparing a quantised model turns checkpointing on."""
    source: str = ""


_TRL: dict[str, Any] = {
    "optimizer_impl": "fused",
    "autocast": True,
    "loads_fp32": True,
    "fp32_outputs": True,
    "reference_is_frozen": False,
    "reference_follows_policy": True,
    "syncs_each_batch": False,
}
_TRL_NEW = _TRL | {
    "gradient_checkpointing": True,
    "kbit_upcast": MappingProxyType({"cpo": "norms", "orpo": "norms", "simpo": "norms"}),
    "quantised_adapters": "bf16",
}
_TRL["kbit_upcast"] = MappingProxyType({"*": "norms"})
"""Before 0.29 (models/utils.py: prepare_peft_model, peft_module_casting_to_bf16); since then CPO alone (TRL 1.16)."""
_ROWS = (
    Trainer(
        "pytorch",
        "a bare training loop",
        heads={"sft": "cross-entropy", "*": "selective"},
        reference_first=True,
        source="model(**batch), loss, backward, step, with outputs dropped after the loss",
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="4.0",
        syncs_each_batch=False,
        autocast=True,
        loads_fp32=True,
        keeps_outputs=True,
        fp32_outputs=True,
        heads={"*": "cross-entropy"},
        kbit_upcast=MappingProxyType({"*": "all"}),
        prepares_checkpointing=True,
        source="transformers 4.48 trainer.py: adamw_torch, from_pretrained loads fp32",
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="5.0",
        syncs_each_batch=False,
        autocast=True,
        optimizer_impl="fused",
        keeps_outputs=True,
        fp32_outputs=True,
        heads={"*": "cross-entropy"},
        kbit_upcast=MappingProxyType({"*": "all"}),
        prepares_checkpointing=True,
        source="transformers 5.23 trainer.py: adamw_torch_fused, from_pretrained dtype='auto'",
    ),
    Trainer(
        "trl",
        "TRL",
        since="0.7",
        heads={"sft": "cross-entropy", "*": "log-softmax"},
        sft_term=("cpo", "orpo"),
        keeps_outputs=True,
        source="trl 0.14 dpo_trainer.py: logits.log_softmax(-1) and gather",
        **_TRL,
    ),
    Trainer(
        "trl",
        "TRL",
        since="0.16",
        heads={"sft": "cross-entropy", "*": "selective"},
        sft_term=("cpo", "orpo"),
        keeps_outputs=True,
        source="trl 0.24 trainer/utils.py: selective_log_softmax",
        **_TRL,
    ),
    Trainer(
        "trl",
        "TRL",
        since="0.29",
        heads={"sft": "cross-entropy", "*": "selective"},
        sft_term=("cpo", "orpo"),
        keeps_outputs=True,
        source="trl 1.9 dpo_trainer.py",
        **_TRL_NEW,
    ),
    Trainer(
        "trl",
        "TRL",
        since="1.14",
        heads={"sft": "cross-entropy", "*": "selective-kernel"},
        sft_term=("cpo", "orpo"),
        keeps_outputs=True,
        source="trl 1.14 kernels/logprob_entropy.py",
        **_TRL_NEW,
    ),
    Trainer(
        "trl",
        "TRL",
        since="1.15",
        heads={"sft": "fused", "dpo": "fused", "ipo": "fused", "kto": "fused", "*": "selective-kernel"},
        sft_term=("cpo", "orpo"),
        keeps_outputs=True,
        source="trl 1.16 trainer/utils.py, kernels/chunked_logprob.py",
        **_TRL_NEW,
    ),
    Trainer(
        "llamafactory",
        "LLaMA-Factory",
        syncs_each_batch=False,
        autocast=True,
        upcasts_trained=True,
        optimizer_impl="fused",
        gradient_checkpointing=True,
        keeps_outputs=True,
        fp32_outputs=True,
        fp32_logits=("dpo", "ipo", "kto", "orpo", "cpo", "simpo"),
        heads={"sft": "cross-entropy", "*": "log-softmax"},
        source="llamafactory 0.9.5 train/dpo/trainer.py: all_logits.to(torch.float32), get_batch_logps",
    ),
    Trainer(
        "simpo-repo",
        "princeton-nlp/SimPO",
        syncs_each_batch=False,
        autocast=True,
        loads_fp32=True,
        gradient_checkpointing=True,
        keeps_outputs=True,
        fp32_logits=("sft", "dpo", "simpo"),
        heads={"sft": "cross-entropy", "*": "log-softmax"},
        kbit_upcast=MappingProxyType({"*": "norms"}),
        source="princeton-nlp/SimPO scripts/simpo_trainer.py with transformers 4.44 (logits.float() in the model)",
    ),
)
TRAINERS: dict[str, tuple[Trainer, ...]] = {}
for _row in _ROWS:
    TRAINERS[_row.name] = (*TRAINERS.get(_row.name, ()), _row)
LATER_TRAINERS = ("openrlhf", "verl", "slime", "nemo-aligner", "mindspeed", "megatron", "litgpt")
"""Trainers of the contract that are not modelled yet: refused by name."""


def version_key(text: str) -> tuple[int, ...]:
    """'1.16.0' -> (1, 16, 0), for comparing eras; what is not a number ends the key."""
    parts = []
    for part in text.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def find_trainer(name: str, version: str = "") -> Trainer:
    """The era of a trainer that a version falls in; the newest without a version, the first for older ones."""
    eras = TRAINERS[name]
    if not version:
        return eras[-1]
    fitting = [era for era in eras if version_key(era.since) <= version_key(version)]
    return fitting[-1] if fitting else eras[0]
