"""Seconds that the host needs to issue what the card runs: one kernel after another, from Python.

A step takes the longer of both, phase by phase. Short micro-steps, adapters and DeepSpeed's hooks are the host's.
Sources: kernels counted on transformers 5.23, PEFT 0.21 (tuners/lora/layer.py: Linear.forward), bitsandbytes 0.50
(autograd/_functions.py: MatMul4Bit), auto-gptq 0.7 (nn_modules/qlinear_cuda.py), DeepSpeed 0.19 (runtime/zero/
parameter_offload.py, stage_1_and_2.py), torch 2.13 (utils/checkpoint.py, optim/adamw.py), Megatron-LM@d98e8a6
(core/transformer/moe: moe_layer.py, router.py, token_dispatcher.py, experts.py)."""

from functools import lru_cache
from typing import NamedTuple

from memplan.cost.machines import NO_CHIP, SERVER, Chip
from memplan.cost.rates import EXPECTED, Rates
from memplan.cost.work import EXPERT_KERNELS, Work

BACKWARD_KERNELS = 1.0
"""Time to issue a backward's kernels against a forward's: twice as many, from C++ and not from Python."""
ADAPTER_KERNELS = 8
"""Of one adapter: dropout, a cast of what goes in, two products with a cast of each matrix, the scale, the sum."""
OWN_ADAPTER_KERNELS, OWN_UNPACKED, OWN_BACKWARD = 4, 3, 2.0
"""The same of Unsloth's: two products, the second of which adds, with a cast of each matrix; of one linear in 4 bits,
its scales dequantised and shifted first; and a backward's kernels against a forward's but for these, from Python too,
as a layer is functions of its own (unsloth 2026.8 kernels/utils.py: matmul_lora, fast_dequantize; kernels/fast_lora.py:
LoRA_MLP, LoRA_QKV, LoRA_W)."""
OWN_LAUNCH = 31.8e-6
"""Seconds of one of its kernels on the host of a B200: some 20,000 in a step of four micro-steps of 815 ms, of which
the card is busy 270, but for 180 that its linear attention's launcher takes (unslothai/unsloth#10806, #11238)."""
WALK, ADAPTER_MODULES = 4.45e-6, 10
"""Seconds for each module of ``model.train()``, which transformers' Trainer calls before every micro-step, on the same
host: four walks over 2,000 modules are the half of 71.6 ms that is not its launcher's 36 (unslothai/unsloth#11238); and
modules of a linear's adapter: itself, dropout, two matrices, each in a container, and four empty ones (PEFT 0.21)."""
FSDP_FORWARD, FSDP_BACKWARD = 0.35e-3, 0.41e-3
"""Seconds of FSDP's hooks around one of its units, timed on torch 2.13 with collectives that do nothing, both versions
within a tenth: gathering, copying and freeing what it holds, and its gradient."""
QUANTISED_KERNELS: dict[str, int] = {"gptq": 14, "awq": 4, "nf4": 4, "fp4": 4, "int8": 8, "hqq": 6}
"""Of one quantised linear beside its product: dequantising, and the autograd function around it. GPTQ's are unpacked by
operations of PyTorch: shifts and masks of weights and of zeros, their difference, the scale, a copy."""
EAGER_KERNELS = 5
"""Of eager attention beside the one of a fused kernel (counted on transformers 5.24's Llama)."""
CHECKPOINT = 100e-6
"""Seconds of one checkpointed unit: generator states kept and set again, the graph walked, in Python."""
PACKED, PACKED_ADAPTER = 0.65, 26 / 7
"""``Rates.launch`` of a hook in Python around one saved tensor, which a checkpoint that is not reentrant calls in the
forward, in what is made again and in the backward (torch 2.13 utils/checkpoint.py: _checkpoint_hook,
_recomputation_hook); such tensors by kernels of a plain layer, and by adapters (38 and 64 of transformers' Llama,
timed with and without: 0.35 and 0.97 ms of a forward become 0.70 and 1.33, of both 1.7 and 4.0 ms; reentrant 1.7 less).
"""
MODULES = 7
"""Modules of a layer beside its linears: itself, mixer, feed-forward, norms, activation, rotation."""


RING_KERNELS = 8
"""Of a further step of a ring's attention: its keys sent on, halves of queries and keys copied, lengths halved, the
kernel, its scales and its output corrected (TransformerEngine@d0067d0 attention/dot_product_attention/
context_parallel.py: AttnFuncWithCPAndKVP2P.forward)."""
ENGINE_LINEAR = 115 / 74
"""Modules of Megatron's own that one linear of Transformer Engine takes as long as (``Rates.module``)."""
MIXTURE_MODULES = 16
"""Of Megatron's mixtures beside their linears: the layer, router, choice of experts, losses of balance; of the
dispatcher tokens and weights sent and joined, each sorted, and counts fetched; experts, their two grouped linears and
the activation between."""
ROUTER_MODULES = 5
"""Of these, what graphs of the router and of preprocessing take: router, choice, losses, counts and their sort."""


EXPERT_LINEARS = 3
"""Of an expert that is a module of its own (transformers 4.51 modeling_qwen3_moe.py: Qwen3MoeMLP)."""


class Issued(NamedTuple):
    """What the host issues for one layer, in numbers."""

    fused: bool
    experts: float
    """Kernels for routed experts, one by one."""
    adapted: int
    """Linears with an adapter."""
    quantised: str
    """Scheme of a quantised base; empty without."""
    gathers: bool
    """DeepSpeed's stage 3 fetches and releases the parameters of each module around each of its passes."""
    reduces: bool
    """DeepSpeed's stages 1 and 2 take each parameter's gradient in a hook."""
    ring: int
    """Steps of attention's ring; 1 without."""
    linears: int
    """Products that the host calls."""
    megatron: bool
    """Modules are Megatron's, over Transformer Engine's."""
    looped: float
    """Experts that are modules of their own."""
    eager: bool
    """Attention is."""
    packed: float
    """Share of such layers whose saved tensors go through hooks."""
    own: bool
    """Layers and adapters are functions of Unsloth's."""
    units: float
    """FSDP's."""
    walked: bool
    """All modules are, before each micro-step."""
    graphed: tuple[str, ...] = ()
    """What CUDA graphs take of a layer (``Megatron.cuda_graph_scope``)."""


class Host(NamedTuple):
    """Seconds of one layer."""

    forward: float
    backward: float
    again: float
    """Of a forward that full checkpointing repeats."""


def host_of(each: Work, of: Issued, rates: Rates) -> Host:
    """One layer's."""
    if "full_iteration" in of.graphed:
        return Host(0.0, 0.0, 0.0)
    left, routing = _left(of.graphed, each.routed > 0)
    linears = of.linears
    routed = EXPERT_KERNELS if each.routed else 0
    kernels = left * (each.kernels[of.fused] - routed) + routed
    kernels += (OWN_ADAPTER_KERNELS if of.own else ADAPTER_KERNELS) * of.adapted
    kernels += RING_KERNELS * (of.ring - 1) + (EAGER_KERNELS if of.eager else 0)
    launch = OWN_LAUNCH / SERVER * rates.launch / EXPECTED.launch if of.own else rates.launch
    unpacked = QUANTISED_KERNELS.get(of.quantised.split("-")[0], 0) * linears * launch
    if of.own and unpacked:
        unpacked = OWN_UNPACKED * linears * launch
    issued = kernels * launch + of.experts * (rates.looped if of.megatron else launch)
    if of.megatron:
        issued += (left * (MODULES + ENGINE_LINEAR * linears) + routing) * rates.module
    own = of.looped * (1 + EXPERT_LINEARS)
    saved = PACKED * rates.launch * of.packed * (each.kernels[0] + PACKED_ADAPTER * of.adapted)
    hooked = (MODULES + linears + own + 3 * of.adapted) * rates.hook if of.gathers else 0.0
    reduced = (linears + of.looped * EXPERT_LINEARS) * rates.hook if of.reduces else 0.0
    speed = rates.launch / EXPECTED.launch
    once, walked = of.units * speed, of.walked * (MODULES + linears + ADAPTER_MODULES * of.adapted) * speed / SERVER
    forward = issued + unpacked + hooked + saved
    behind = OWN_BACKWARD if of.own else BACKWARD_KERNELS
    backward = issued * behind + unpacked + hooked + reduced + saved + once * FSDP_BACKWARD
    return Host(forward + once * FSDP_FORWARD + walked * WALK, backward, forward + CHECKPOINT)


def _left(graphed: tuple[str, ...], routed: bool) -> tuple[float, int]:
    """(share of a layer's own operations, modules of its mixture) that graphs leave to the host: attention and a dense
    feed-forward are halves of a layer; of a mixture's, beside attention, router and preprocessing alone have one size
    for all tokens (megatron-core 0.16 transformer/transformer_layer.py)."""
    mixture = MIXTURE_MODULES - (ROUTER_MODULES if "moe_router" in graphed else 0) if routed else 0
    taken = ("attn" in graphed or "mamba" in graphed) + (routed or "mlp" in graphed)
    return (1 - taken / 2 if taken > routed else 1.0), mixture


@lru_cache(maxsize=64)
def on_host(rates: Rates, host: float, chip: Chip = NO_CHIP) -> Rates:
    """Rates whose host takes so many times as long; the same object for the same."""
    if host == 1.0 and chip == NO_CHIP:
        return rates
    python = host * chip.python
    return rates._replace(
        launch=rates.launch * python,
        hook=rates.hook * python,
        module=rates.module * host * chip.engine,
        looped=rates.looped * host,
    )
