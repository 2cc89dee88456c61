"""What a forward does, from the model's parts: FLOP of matmuls and of attention, bytes that pointwise chains
move, kernels that are launched. One ``Work`` is of one token of one layer; a multiply and an add are two FLOP."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memplan.spec.layer import AnyMixer, Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Norm


class Product(NamedTuple):
    """One matrix that tokens pass through."""

    inputs: int
    outputs: int
    by_rows: bool
    """Row-parallel: the last of its part, whose inputs tensor parallelism divides; else its outputs."""
    part: int
    """Of the layer, by number."""


class Work(NamedTuple):
    """Of one layer."""

    products: tuple[Product, ...]
    """Of all that every token visits."""
    weights: float
    """Elements of matrices that a token passes through; 2 FLOP each in forward."""
    stored: float
    """Elements of matrices that stand there, experts included, whoever visits them."""
    per_pair: float
    """FLOP of attention for each pair of positions that attend to each other."""
    between: tuple[float, float]
    """Bytes per token that norms and sums between the products move in half precision: single operations, and fused."""
    activated: tuple[float, float]
    """The same of activations, which tensor parallelism divides."""
    flow: float
    """Elements per token that go into and come out of matmuls."""
    kernels: tuple[int, int]
    """Operations that the host issues for a forward in eager mode: single operations, and fused."""
    width: int
    """Elements per token between layers."""
    keys: int
    """Elements per token of keys and values."""
    heads: int
    grouped: tuple[Product, ...] = ()
    """Of one routed expert."""
    experts: int = 0
    """Routed experts."""
    expert: float = 0.0
    """Those of ``weights`` that are experts'."""
    expert_stored: float = 0.0
    window: int = 0
    """Positions that one attends to at most; 0 for all of them."""
    causal: bool = False
    recurrent: float = 0.0
    """FLOP per token of a dual state space, a delta rule or linear attention beside its linears."""
    scanned: float = 0.0
    """States per token that a selective scan goes through, channel by channel."""
    turned: tuple[float, float] = (0.0, 0.0)
    """Of rotations."""
    dispatched: float = 0.0
    """Of routing."""
    left: float = 0.0
    """Of experts' clamps and biases that Megatron leaves to single operations."""
    routed: int = 0
    """Experts that each token is sent to; 0 without."""
    kept: float = 0.0
    """Share of the groups of experts that a token's are chosen from; 0 where they are not grouped."""
    capped: bool = False
    """Attention's scores are."""
    dropped: bool = False
    """Attention's probabilities pass through dropout."""


RMS, LAYER_NORM, NORM_FUSED = 36.0, 4.0, 4.0
"""Bytes that a norm moves for each element in half precision: RMS norms are single operations in fp32 (transformers
5.23 LlamaRMSNorm: to fp32 2 + 4, square 4 + 4, mean 4, product 4 + 4, cast 4 + 2, weight 2 + 2); nn.LayerNorm is one
kernel."""
SUM, SUM_FUSED = 6.0, 4.0
"""Of a residual sum: two read, one written; one of them is there already in a fused kernel."""
DROPPED, DROPPED_FUSED = 5.0, 1.0
"""Of a branch that passes through dropout: read (2), written (2), its mask (1)."""
TURN, TURN_FUSED = 18.0, 4.0
"""Of queries and keys that turn: two products with tables, a half turned round, a sum."""
ACTIVATION, ACTIVATION_FUSED = 5.0, 3.0
"""Of each element between the feed-forward's products: of gate and up, an activation 2 + 2 on one half, then a product
2 + 2 + 2."""
ACTIVE = 3 / ACTIVATION
"""Of all that these operations move, what one reads and writes."""
CLAMPED = 16.0
"""The same where gate and up are clamped and the gate goes by its sigmoid (transformers 5.23 GptOssExperts._apply_gate:
two clamps, a scale, a sigmoid, a sum, two products)."""
CLAMP, BIAS = 8.0, 12.0
"""Of each element of gate and up that Megatron clamps before its fused activation: clamped, and joined again; and of
each of a routed token's output: weighted bias, sum, joined again (Megatron-LM@d98e8a6 core/fusions/fused_bias_geglu.py:
weighted_bias_quick_geglu_impl; transformer/moe/experts.py: _apply_bias)."""
ROUTE = 12.0
"""Of each element of a routed token: gathered, weighted, summed."""
RMS_KERNELS, TURN_KERNELS, LAYER_KERNELS = 8, 10, 5
"""Of an RMS norm's single operations, of rotations, and of the rest of a layer beside one for each linear: two sums,
activation, product, attention (transformers 5.23's Llama, Qwen3 and GPT-NeoX in a trace: 38, 54 and 23 but for copies;
backward 71, 103 and 40). Fused, each norm and the rotations are one, and the activation with its product."""
EXPERT_KERNELS = 20
"""Of routing: top-k, sort, gather, scatter."""


def work(layer: Layer, bidirectional: bool) -> Work:
    """The work of one layer on one token."""
    mixer, experts = layer.mixer, layer.experts
    dense = sum(linear.inputs * linear.outputs for linear in layer.linears)
    flow = sum(linear.inputs + linear.outputs for linear in layer.linears)
    inner = _inner(layer)
    visited = stored = clamped = left = 0.0
    if experts:
        stored = sum(bare.parameters for bare in experts.stacked)
        visited = stored / experts.count * experts.active
        routed = experts.active * experts.intermediate * (2 if experts.gated else 1)
        inner += routed
        clamped = routed if experts.clamped else 0.0
        left = clamped * CLAMP + (experts.active * layer.width * BIAS if len(experts.stacked) > 2 else 0.0)
        flow += experts.active * (2 * layer.width + 3 * experts.intermediate)
    norms = [*layer.norms, *(norm for part in layer.parts for norm in part.norms)]
    pairs, window, keys, heads, turned = _attention(mixer)
    if layer.cross is not None:
        pairs += 4 * layer.cross.num_heads * layer.cross.head_dim
    return Work(
        products=tuple(_products(layer)),
        grouped=_expert(layer),
        experts=experts.count if experts else 0,
        weights=dense + visited,
        stored=dense + stored,
        expert=visited,
        expert_stored=stored,
        per_pair=pairs,
        window=window,
        causal=not bidirectional,
        recurrent=_recurrent(mixer),
        scanned=float(mixer.inner * mixer.state) if mixer is not None and mixer.kind == "state-space" else 0.0,
        between=norm_bytes(norms, layer.width, len(layer.dropout)),
        activated=(inner * ACTIVATION + clamped * (CLAMPED - ACTIVATION), inner * ACTIVATION_FUSED),
        turned=(turned * TURN, turned * TURN_FUSED),
        dispatched=experts.active * layer.width * ROUTE if experts else 0.0,
        left=left,
        flow=flow,
        kernels=kernels(norms, len(layer.linears) + (EXPERT_KERNELS if experts else 0), turned > 0),
        width=layer.width,
        keys=keys,
        heads=heads,
        routed=experts.active if experts else 0,
        kept=experts.routing.kept_groups / experts.routing.groups if experts and experts.routing.groups else 0.0,
        capped=isinstance(mixer, Attention) and mixer.softcap is not None,
        dropped=isinstance(mixer, Attention) and mixer.dropout,
    )


def norm_bytes(norms: Sequence[Norm], width: int, dropped: int = 0) -> tuple[float, float]:
    """(single operations, fused) of a layer's norms, its two sums and so many dropouts of what is added."""
    normed = sum(norm.width * (RMS if _is_wide(norm) else LAYER_NORM) for norm in norms)
    fused = sum(norm.width for norm in norms) * NORM_FUSED + width * (2 * SUM_FUSED + dropped * DROPPED_FUSED)
    return normed + width * (2 * SUM + dropped * DROPPED), fused


def kernels(norms: Sequence[Norm], others: int, turned: bool) -> tuple[int, int]:
    """(single operations, fused) of a layer, with so many ``others``."""
    single = sum(RMS_KERNELS if _is_wide(norm) else 1 for norm in norms) + turned * TURN_KERNELS
    return single + others + LAYER_KERNELS, len(norms) + turned + others + LAYER_KERNELS - 1


def _is_wide(norm: Norm) -> bool:
    """Single operations in fp32."""
    return norm.kind.startswith("rms") or "wide" in norm.kind


def _products(layer: Layer) -> Iterator[Product]:
    """Every linear, part by part; the last of several, and of shared experts, is row-parallel."""
    sets = [part.linears for part in layer.parts]
    if layer.feed_forward is not None:
        sets.append(layer.feed_forward.shared)
        sets += [(layer.feed_forward.experts.router,)] if layer.feed_forward.experts else []
    for part, linears in enumerate(sets):
        for place, linear in enumerate(linears):
            yield Product(linear.inputs, linear.outputs, 0 < place == len(linears) - 1, part)


def _expert(layer: Layer) -> tuple[Product, ...]:
    """What a routed token passes through in each of its experts."""
    experts = layer.experts
    if experts is None:
        return ()
    inner = (2 if experts.gated else 1) * experts.intermediate
    return Product(layer.width, inner, False, 0), Product(experts.intermediate, layer.width, True, 0)


def _inner(layer: Layer) -> float:
    """Elements per token between the products of the dense feed-forward and of shared experts."""
    forward = layer.feed_forward
    if forward is None:
        return 0
    outputs = [linear.outputs for linear in (*forward.linears[:-1], *forward.shared) if linear.outputs != layer.width]
    return float(sum(outputs))


def _attention(mixer: AnyMixer | None) -> tuple[float, int, int, int, float]:
    """(FLOP per pair of positions, window, key and value elements per token, heads, elements that turn)."""
    if mixer is None:
        return 0.0, 0, 0, 0, 0
    if mixer.kind == "both":
        return _attention(mixer.attention)
    if mixer.kind == "latent":
        width = mixer.nope + mixer.rope + mixer.value
        window = mixer.topk if mixer.indexed else mixer.window or 0
        return (
            2.0 * mixer.num_heads * width,
            window,
            mixer.num_heads * width,
            mixer.num_heads,
            mixer.num_heads * mixer.rope,
        )
    if mixer.kind == "compressed":
        return 4.0 * mixer.num_heads * mixer.head_dim, mixer.window or 0, 2 * mixer.head_dim, mixer.num_heads, 0
    if mixer.kind == "disentangled":
        scores = 1 + mixer.to_position + mixer.from_position
        width = mixer.num_heads * mixer.head_dim
        return 2.0 * width * (1 + scores), 0, 2 * width, mixer.num_heads, 0
    if isinstance(mixer, Attention):
        queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
        turned = queries + keys if mixer.rotary != "none" else 0
        return 4.0 * queries, mixer.window or 0, 2 * keys, mixer.num_heads, turned
    return 0.0, 0, 0, mixer.num_heads, 0


def _recurrent(mixer: AnyMixer | None) -> float:
    """FLOP per token: a chunk attends within itself and to the state before it."""
    if mixer is None:
        return 0.0
    if mixer.kind == "both":
        return _recurrent(mixer.state_space)
    if mixer.kind == "state-space-dual":
        return 2.0 * mixer.inner * (mixer.chunk + 2 * mixer.state)
    if mixer.kind == "gated-delta":
        return 4.0 * mixer.values * (mixer.chunk + mixer.key_dim)
    if mixer.kind == "lightning":
        return 4.0 * mixer.heads * mixer.head_dim * (mixer.block / 2 + mixer.head_dim)
    return 0.0


class ModelWork(NamedTuple):
    """Of a whole model."""

    layers: tuple[tuple[int, Work], ...]
    """(how many, of each)."""
    head: float
    """Elements of the head's matrix."""
    vocabulary: int
    outside: float
    """Elements of other matrices outside the layers that tokens pass through."""
    trained_share: float
    """Share of the layers' matrices that get a gradient of their own."""
    elements: float
    """All parameters."""


_KNOWN: dict[int, tuple[ModelSpec, ModelWork]] = {}
MOST = 64
"""Models that are remembered."""


def model_work(spec: ModelSpec) -> ModelWork:
    """The work of a model, remembered while the same object asks."""
    known = _KNOWN.get(id(spec))
    if known is not None and known[0] is spec:
        return known[1]
    if len(_KNOWN) >= MOST:
        _KNOWN.clear()
    made = _model_work(spec)
    _KNOWN[id(spec)] = spec, made
    return made


def _model_work(spec: ModelSpec) -> ModelWork:
    layers = tuple((run.count, work(run.layer, spec.bidirectional)) for run in spec.runs)
    frozen = whole = 0
    for run in spec.runs:
        for linear in run.layer.linears:
            whole += run.count * linear.inputs * linear.outputs
            held = linear.name in run.layer.frozen
            frozen += run.count * linear.inputs * linear.outputs if held else 0
    return ModelWork(
        layers=layers,
        head=spec.head.inputs * spec.head.outputs,
        vocabulary=spec.head.outputs,
        outside=sum(linear.inputs * linear.outputs for linear in spec.outer_linears),
        trained_share=1 - frozen / whole if whole else 1.0,
        elements=spec.params.total,
    )
