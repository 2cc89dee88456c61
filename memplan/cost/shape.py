"""What decides how long a pass over layers takes: batch, parallelism, kernels, adapters, what is made again."""

from functools import lru_cache
from typing import NamedTuple

from memplan.cost.again import Repeated, repeated
from memplan.cost.products import Eight, eight_of
from memplan.cost.traffic import expert_parts, rings
from memplan.cost.work import ModelWork
from memplan.engine.tensors import expert_ranks
from memplan.spec.groups import Quantised
from memplan.spec.lora import Adapter
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.tables.families import LOOPING
from memplan.tables.kernels import Kernels

HALF, FP32 = 2, 4
ADAPTED_IN, ADAPTED_OUT = 2.0, 12.0
"""Bytes that an adapter's operations move for each element that goes into its linear, and comes out, in half precision:
the first product reads it; the second writes the output (2), which is scaled (4) and added (6). PEFT 0.21
tuners/lora/layer.py: Linear.forward."""
FUSED_OUT: dict[str, float] = {"foak": 8.0, "fused": 4.0}
"""The same of what comes out where the scale is the adapter's: written and added (foak), or added by the product itself
(unsloth 2026.8 kernels/utils.py: matmul_lora)."""
COMPILED_OUT: dict[int, float] = {2: 8.0, 4: 12.0}
"""The same where torch.compile makes one pass of scale and sum, by the size of what adapters compute in."""
WIDENED = 12.0
"""Of what goes in, where adapters are fp32: cast to it and, by autocast, back."""
WIDE_IN, WIDE_OUT = 10.0, 24.0
"""Of both where they compute in fp32, without autocast: cast (6) and read (4); written (4), scaled (8), added to the
linear's (10), which is cast back (6)."""
MASK = 1.0
"""Of dropout's mask, where it stands before them and reads and writes what goes in."""
DORA_WEIGHT: dict[int, float] = {2: 14.0, 4: 34.0}
"""Of each element of a linear under DoRA, in a forward, whatever its tokens, by the size of what its adapter computes
in: cast (where fp32: 2 + 4), the adapter's matrices multiplied out (written), scaled, added, their norm (PEFT 0.21
tuners/lora/dora.py: forward, get_weight_norm)."""
DORA_OUT = 5.0
"""Passes over its output: the linear's by its magnitude, the adapter's twice, the sum."""
STACKED: dict[int, float] = {2: 12.0, 4: 20.0}
"""Of each element of stacked experts that PEFT adapts: the adapters' matrices multiplied out for all of them, scaled,
and added to the stack, whose own gradient is then made (PEFT 0.21 tuners/lora/layer.py: ParamWrapper)."""
HOOKS = {"zero1": "reduces", "zero2": "reduces", "zero3": "gathers"}
LOOP, EACH = 11.0, 2.0
EACH_EIGHT: dict[str, float] = {"delayed": 4.0, "tensorwise": 8.0, "blockwise": 4.0, "mxfp8": 8.0, "nvfp4": 8.0}
"""Kernels of a forward for each expert: transformers 4's loop (4.48 modeling_mixtral.py: MixtralSparseMoeBlock.forward:
where, two gathers, three linears, activation, product, weight, cast, index_add); Transformer Engine's two grouped
linears, a product each (common/gemm/cublaslt_gemm.cu: multi_stream_cublas_gemm), in FP8 with a cast (split_quantize),
whose scale takes two more (tensorwise) or whose scales are laid anew for either operand (mxfp8, nvfp4: swizzle.cu)."""


class Shape(NamedTuple):
    """What decides how long a pass over layers takes."""

    rows: int
    length: int
    tensor: int
    context: int
    ring: int
    """Steps of attention, to each of which one rank's keys come; 1 where they are gathered, or heads exchanged."""
    expert: int
    expert_tensor: int
    sequence: bool
    itemsize: int
    wide: bool
    """Products run in fp32."""
    eight: Eight | None
    """Those of layers run in FP8."""
    fused: bool
    normed: bool
    """Norms and sums between the products are fused too."""
    activated: bool
    turned: bool
    attention: str
    padded: bool
    native: bool
    """Attention's kernels are made for the card's architecture: Transformer Engine's, FlashAttention's from 3 on, and
    cuDNN's, which SDPA prefers on Hopper and Blackwell from torch 2.11 on, whose cuDNN is beyond 9.15
    (pytorch@001f694 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: check_prefer_cudnn_attention)."""
    merged: bool
    """Products of one input are one."""
    imbalance: float
    """Tokens of the fullest rank's experts, as a multiple of the mean."""
    trained: float
    """Share of the products that also have a gradient of their weights."""
    adapter: float
    """Elements per layer of adapters."""
    adapter_itemsize: int
    """Of what they compute in."""
    adapted: int
    """Linears per layer with an adapter."""
    weighed: float
    """Bytes of a forward that adapters move for whole matrices, whatever the tokens."""
    stacks: bool
    """Experts' stacks get gradients for their adapters' sake."""
    adapted_moves: float
    """Bytes per token and layer that their operations move in half precision."""
    quantised: str
    """Scheme of a quantised base; empty without."""
    bits: float
    """Of one of its weights."""
    launched: float
    """Kernels of a forward that the host issues for each routed expert of a rank."""
    looped: bool
    """Each expert is a module, which runs by itself."""
    hooks: str
    """DeepSpeed's: none, of gradients (``reduces``), or around every module too (``gathers``)."""
    again: tuple[Repeated, ...]
    """What checkpointing makes again of each kind of layer."""
    packs: bool
    """By hooks around each tensor that is saved."""
    own: bool
    """Layers and adapters are functions of Unsloth's."""
    units: float
    """FSDP's, of a layer."""
    walked: bool
    """All modules are, before each micro-step (transformers' Trainer: ``model.train()``)."""
    graphed: tuple[str, ...]
    """What CUDA graphs take of a layer."""


def shape_of(recipe: Recipe, work: ModelWork) -> Shape:
    """The shape of the policy's trained pass."""
    degrees, adapter, attention = recipe.parallel, recipe.adapter, recipe.operators.attention
    layers = sum(count for count, _ in work.layers) or 1
    kernels = recipe.operators.kernels
    adapted, elements, moved, weighed = 0, 0.0, 0.0, 0.0
    if adapter is not None:
        of = recipe.operators.kernels, _adapter_itemsize(recipe, adapter), recipe.trainer.megatron
        adapted, elements, moved, weighed = _adapted(recipe.model, adapter, *of)
    batch = recipe.batch
    several = max(1, batch.sequence_length // batch.longest) if batch.longest else 1  # each attends within itself
    megatron, settings = recipe.trainer.megatron, recipe.megatron
    fused = megatron or kernels.compiled or bool(kernels.norm)
    itemsize = recipe.numerics.autocast or recipe.numerics.itemsize
    return Shape(
        rows=recipe.rows * several,
        length=batch.sequence_length // several,
        tensor=degrees.tensor,
        context=degrees.context,
        ring=degrees.context if rings(recipe) else 1,
        expert=degrees.expert,
        expert_tensor=expert_parts(recipe),
        sequence=degrees.sequence,
        itemsize=itemsize,
        wide=itemsize == 4,
        eight=eight_of(recipe),
        native=megatron or recipe.operators.flash_version > 2 or (attention == "sdpa" and not batch.padded),
        merged=megatron,
        imbalance=settings.moe_expert_imbalance if megatron else 1.0,
        fused=fused,
        normed=fused and (not megatron or settings.norm_fusion),
        activated=fused and (not megatron or settings.bias_swiglu_fusion),
        turned=fused and (not megatron or settings.apply_rope_fusion),
        attention="flash" if megatron and attention == "sdpa" else attention,
        padded=recipe.batch.padded,
        trained=0.0 if adapter else work.trained_share,
        adapter=elements / layers,
        adapter_itemsize=_adapter_itemsize(recipe, adapter) if adapter else itemsize,
        adapted=adapted // layers,
        weighed=weighed / layers,
        stacks=bool(adapter and adapter.experts and not megatron),
        adapted_moves=moved / layers,
        quantised=recipe.quantised.scheme.name if recipe.quantised else "",
        bits=recipe.quantised.scheme.bits if recipe.quantised else 0.0,
        launched=_launched(recipe),
        looped=looped(recipe),
        hooks=HOOKS.get(recipe.sharding.name, ""),
        again=repeated(recipe, work),
        packs=not (megatron or kernels.compiled or recipe.checkpointing.reentrant or kernels.adapters == "fused"),
        own=kernels.adapters == "fused",
        units=units_of_layer(recipe, adapted / layers),
        walked=recipe.trainer.runs_on == "accelerate",
        graphed=graphed(settings) if megatron else (),
    )


def graphed(settings: Megatron) -> tuple[str, ...]:
    """Scopes of CUDA graphs; a whole layer's are attention's and the feed-forward's."""
    if settings.cuda_graph_impl == "none":
        return ()
    if settings.cuda_graph_impl == "full_iteration":
        return ("full_iteration",)
    return settings.cuda_graph_scope or ("attn", "mlp", "moe_router", "moe_preprocess")


def units_of_layer(recipe: Recipe, adapted: float) -> float:
    """What FSDP gathers by itself: each layer, and where PEFT says what to wrap, both matrices of each adapter
    (peft 0.21 utils/other.py: fsdp_auto_wrap_policy)."""
    if recipe.sharding.name not in ("fsdp", "fsdp2") or recipe.sharding.ranks <= 1:
        return 0.0
    alone = recipe.sharding.name == "fsdp" and recipe.sharding.fsdp.wraps_adapters
    return 1 + (2 * adapted if alone else 0.0)


def _launched(recipe: Recipe) -> float:
    if recipe.trainer.megatron:
        return EACH_EIGHT[recipe.megatron.narrow] if recipe.megatron.narrow else EACH
    return LOOP if looped(recipe) else 0.0


def looped(recipe: Recipe) -> bool:
    """Whether each expert is a module, which runs by itself."""
    return recipe.trainer.models.transformers_4 and recipe.model.family in LOOPING


def without_training(shape: Shape, quantised: Quantised | None = None) -> Shape:
    """The shape of a forward without a graph and without adapters, of a model that is stored so."""
    plain = shape._replace(adapter=0.0, adapted=0, weighed=0.0, stacks=False, adapted_moves=0.0, again=())
    name, bits = (quantised.scheme.name, quantised.scheme.bits) if quantised else ("", 0.0)
    return plain._replace(quantised=name, bits=bits, walked=False)


def _adapter_itemsize(recipe: Recipe, adapter: Adapter) -> int:
    """Of what adapters compute in; kernels that have their own cast their matrices to what comes in (unsloth 2026.8
    kernels/utils.py: matmul_lora)."""
    plain = adapter.itemsize == FP32 and not recipe.numerics.autocast
    return FP32 if plain and recipe.operators.kernels.adapters not in FUSED_OUT else HALF


@lru_cache(maxsize=256)
def _adapted(
    spec: ModelSpec, adapter: Adapter, kernels: Kernels, wide: int, megatron: bool
) -> tuple[int, float, float, float]:
    """(linears with an adapter, elements of all adapters, bytes that these move for a token, and for weights).
    ``wide``: as of ``_adapter_itemsize``."""
    linears, elements, moved, weighed, own = 0, 0.0, 0.0, 0.0, kernels.adapters
    plain = WIDE_OUT if wide > HALF else ADAPTED_OUT
    after = FUSED_OUT.get(own, COMPILED_OUT[wide] if kernels.compiled else plain)
    after += DORA_OUT * wide if adapter.dora else 0.0
    before = (
        WIDE_IN if wide > HALF else ADAPTED_IN + (WIDENED if adapter.itemsize > HALF and own not in FUSED_OUT else 0.0)
    )
    before += 2 * adapter.itemsize + MASK if adapter.dropout else 0.0
    for run in spec.runs:
        for linear in () if run.layer.unadapted else run.layer.linears:
            if linear.name in adapter.targets:
                linears += run.count
                moved += run.count * (before * linear.inputs + after * linear.outputs)
                weighed += run.count * DORA_WEIGHT[wide] * linear.inputs * linear.outputs if adapter.dora else 0.0
                elements += run.count * adapter.rank_of(linear.name) * (linear.inputs + linear.outputs)
        experts = run.layer.experts
        if experts is None:
            continue
        for bare, rank in expert_ranks(adapter, experts):
            *_, outputs, inputs = bare.shape
            if not megatron:
                weighed += run.count * STACKED[wide] * bare.parameters
                continue
            linears += run.count
            moved += run.count * experts.active * (before * inputs + after * outputs)
            elements += run.count * experts.active * rank * (inputs + outputs)
    return linears, elements, moved, weighed
