"""The parameters of one rank: what tensor, expert and pipeline parallelism leave of each.

Column- and row-parallel products are divided over the tensor-parallel ranks, the vocabulary (padded) too; norms, the
router, the down-projections of latent attention and biases of row-parallel products are on each of them whole. Experts
are divided over the expert-parallel ranks, each over its expert-tensor-parallel ones."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.megatron.stages import Chunk, chunks_of
from memplan.engine.megatron.steps import matrices, product
from memplan.engine.tensors import tower_weights
from memplan.spec.layer import Layer
from memplan.spec.lora import EMBEDDING, Adapter
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.spec.parts import Attention, Experts, Linear, Norm
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div, round_up

if TYPE_CHECKING:
    from memplan.spec.state_space import GatedDelta

DUPLICATED = ("q_a_proj", "kv_a_proj")
"""Latent attention's down-projections (megatron-core 0.14 multi_latent_attention.py: parallel_mode 'duplicated')."""
BETWEEN = 64
"""Each parameter begins at a multiple of so many elements of the buffer, with the distributed optimizer."""
WIDE = ("word embedding", "output matmul", "vision ")  # how names begin of what stays in half precision beside FP8


class Share(NamedTuple):
    """``copies`` tensors of rows × columns elements that this rank holds."""

    name: str
    rows: int
    columns: int
    copies: int
    expert: bool = False
    product: bool = True
    """Its gradient is made by a matmul (else by a norm, or a bias)."""
    replicated: bool = False
    """On every tensor-parallel rank whole."""
    linears: tuple[str, ...] = ()
    """The model's linears that it stands for, where an adapter can stand beside it."""
    mode: str = "column"
    """What of such a product the tensor-parallel ranks share out: column, row, or nothing (whole)."""
    trained: bool = True
    local: int = 1
    """Experts of this rank, each with a copy in every layer."""

    @property
    def in_fp8(self) -> bool:
        """Whether its product runs in FP8 where products do."""
        return self.product and self.columns > 1 and not self.name.startswith(WIDE)

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return self.rows * self.columns * self.copies

    @property
    def padded(self) -> int:
        """The same, each copy rounded up to the buffer's steps."""
        return round_up(self.rows * self.columns, BETWEEN) * self.copies


def padded_vocabulary(spec: ModelSpec, degrees: Parallel, settings: Megatron) -> int:
    """The vocabulary, rounded up to a multiple of make_vocab_size_divisible_by × tensor parallel."""
    return round_up(spec.vocab_size, settings.make_vocab_size_divisible_by * degrees.tensor)


def rank_shares(spec: ModelSpec, degrees: Parallel, settings: Megatron, chunks: Iterable[Chunk]) -> list[Share]:
    """Everything that the rank's stage holds, in order."""
    layers = (share for chunk in chunks for share in layer_shares(chunk.layer, degrees, chunk.layers))
    return [*before_layers(spec, degrees, settings), *layers, *behind_layers(spec, degrees, settings)]


def with_adapters(shares: Iterable[Share], adapter: Adapter | None, way: str, degrees: Parallel) -> tuple[Share, ...]:
    """The same under LoRA: frozen, each product with its two matrices behind it, and a trained copy of what
    ``modules_to_save`` names. Megatron-Bridge's experts share an adapter; ms-swift's have one each."""
    if adapter is None:
        return tuple(shares)
    tensors = degrees.tensor, degrees.expert_tensor
    return tuple(each for share in shares for each in _adapted(share, adapter, way, tensors[share.expert]))


@lru_cache(maxsize=2048)
def _adapted(share: Share, adapter: Adapter, way: str, tensor: int) -> tuple[Share, ...]:
    frozen = share._replace(trained=False)
    if set(share.linears) & adapter.saved:
        return frozen, share._replace(name=f"{share.name}, trained copy")
    p = product(adapter, share.linears, way, share.expert)
    if not p.rank:
        return (frozen,)
    own = share._replace(copies=share.copies // max(1, share.local) if p.divided else share.copies, linears=())
    pair = zip("AB", matrices(p, share.rows, share.columns, share.mode, tensor), strict=True)
    return frozen, *(own._replace(name=f"{share.name}.lora_{at}", rows=r, columns=c) for at, (r, c) in pair)


def before_layers(spec: ModelSpec, degrees: Parallel, settings: Megatron) -> list[Share]:
    """What the first stage has before its layers."""
    if not degrees.first:
        return []
    vocabulary = padded_vocabulary(spec, degrees, settings) // degrees.tensor
    width = spec.embedding_width or spec.hidden_size
    return [*_tower(spec), Share("word embedding", vocabulary, width, 1, linears=(EMBEDDING,)), *_outside(spec)]


def behind_layers(spec: ModelSpec, degrees: Parallel, settings: Megatron) -> list[Share]:
    """What the last stage has behind its layers."""
    if not degrees.last:
        return []
    norm = _norm(spec.final_norm, 1) if spec.final_norm is not None else ()
    vocabulary = padded_vocabulary(spec, degrees, settings) // degrees.tensor
    return [*_mtp(spec, degrees, settings), *norm, *_head(spec, degrees, vocabulary)]


def _head(spec: ModelSpec, degrees: Parallel, vocabulary: int) -> Iterator[Share]:
    """The output matmul; of a tied one, a copy of the embedding stands on the last stage."""
    if spec.head.outputs != spec.vocab_size:
        yield Share(spec.head.name, spec.head.outputs, spec.head.inputs, 1, replicated=True)
    elif not spec.head_is_tied:
        yield Share("output matmul", vocabulary, spec.head.inputs, 1, linears=(spec.head.name,))
        if spec.head.bias:
            yield Share("output matmul.bias", vocabulary, 1, 1, product=False)
    elif not degrees.first:
        yield Share("word embedding, copy for the output", vocabulary, spec.head.inputs, 1)


def _outside(spec: ModelSpec) -> Iterator[Share]:
    """Tables of positions and what else stands before the layers."""
    for part in spec.extra:
        for bare in part.tensors:
            yield Share(bare.name, bare.parameters, 1, 1, replicated=True)
        for linear in part.linears:
            yield Share(linear.name, linear.parameters, 1, 1, replicated=True)
        for norm in part.norms:
            yield from _norm(norm, 1)


def _tower(spec: ModelSpec) -> Iterator[Share]:
    """Every parameter of a vision tower and its projector, whole on every rank. Megatron's buffers hold what asks for a
    gradient, whether or not an image gives it one."""
    if spec.tower is None:
        return
    for weight in tower_weights(spec, spec.tower, True, None):
        asks = weight.trained or weight.idle
        yield Share(
            f"vision tower, {weight.name}",
            weight.rows * weight.stacked,
            weight.columns,
            weight.copies,
            product=weight.columns > 1,
            replicated=True,
            trained=asks,
        )


def _mtp(spec: ModelSpec, degrees: Parallel, settings: Megatron) -> Iterator[Share]:
    """Of multi-token prediction, beside layers like the last: three norms, a product of [2·h, h], and behind a first
    stage the embedding (megatron-core 0.14 transformer/multi_token_prediction.py)."""
    count, hidden = settings.mtp_num_layers, spec.hidden_size
    if not count:
        return
    norm = spec.final_norm
    for _ in range(3 if norm is not None else 0):
        yield from _norm(norm, count)  # type: ignore[arg-type]
    yield Share("eh_proj", hidden // degrees.tensor, 2 * hidden, count)
    if not degrees.first and not spec.head_is_tied:
        vocabulary = padded_vocabulary(spec, degrees, settings) // degrees.tensor
        yield Share("word embedding, copy for MTP", vocabulary, spec.embedding_width or hidden, 1, linears=(EMBEDDING,))


def layer_shares(layer: Layer, degrees: Parallel, count: int) -> tuple[Share, ...]:
    """Everything of ``count`` equal layers."""
    divided = Parallel(tensor=degrees.tensor, expert=degrees.expert, expert_tensor=degrees.expert_tensor)
    return _of_equal(layer, divided, count)


@lru_cache(maxsize=4096)
def _of_equal(layer: Layer, degrees: Parallel, count: int) -> tuple[Share, ...]:
    return tuple(_of_layers(layer, degrees, count))


def _of_layers(layer: Layer, degrees: Parallel, count: int) -> Iterator[Share]:
    mixer, part, tensor = layer.mixer, layer.feed_forward, degrees.tensor
    if isinstance(mixer, Attention):
        yield from _self_attention(mixer, tensor, count)
    elif mixer is not None and mixer.kind == "gated-delta":
        yield from _gated_delta(mixer, tensor, count)
    elif mixer is not None and mixer.kind == "latent":
        yield from _products(mixer.linears, tensor, count)
    if part is not None:
        yield from _feed_forward(part.linears, tensor, count, "")
        yield from _feed_forward(part.shared, tensor, count, "shared ")
        if part.experts is not None:
            yield from _experts(part.experts, degrees, count)
    parts = [part for part in (mixer, part) if part is not None]
    for norm in (*layer.norms, *(norm for each in parts for norm in each.norms)):
        yield from _norm(norm, count)


def names(linears: Iterable[Linear]) -> tuple[str, ...]:
    """Of linears."""
    return tuple(linear.name for linear in linears)


def _norm(norm: Norm, count: int) -> Iterator[Share]:
    if norm.parameters:
        yield Share(norm.name, norm.parameters, 1, count, product=False, replicated=True)


def _self_attention(mixer: Attention, tensor: int, count: int) -> Iterator[Share]:
    """One fused matmul of q (with any gate), k, v. Key/value heads not shared out are on each rank."""
    *inputs, output = mixer.linears
    rows = inputs[0].outputs // tensor + 2 * max(1, mixer.num_kv_heads // tensor) * mixer.head_dim
    yield Share("linear_qkv", rows, inputs[0].inputs, count, linears=names(inputs))
    if any(linear.bias for linear in inputs):
        yield Share("linear_qkv.bias", rows, 1, count, product=False)
    yield Share("linear_proj", output.outputs, output.inputs // tensor, count, linears=names([output]), mode="row")
    if output.bias:
        yield Share("linear_proj.bias", output.outputs, 1, count, product=False, replicated=True)
    for bare in mixer.tensors:
        yield Share(bare.name, ceil_div(bare.parameters, tensor), 1, count, product=False)


def _gated_delta(mixer: "GatedDelta", tensor: int, count: int) -> Iterator[Share]:
    """One fused product by column, the output by row; convolution and numbers of each head are shared out too."""
    *inputs, output = mixer.linears
    rows = sum(linear.outputs for linear in inputs) // tensor
    yield Share("in_proj", rows, inputs[0].inputs, count, linears=names(inputs))
    yield Share("out_proj", output.outputs, output.inputs // tensor, count, linears=names([output]), mode="row")
    for bare in mixer.tensors:
        yield Share(bare.name, ceil_div(bare.parameters, tensor), 1, count, product=False)


def _products(linears: Iterable[Linear], tensor: int, count: int) -> Iterator[Share]:
    """Of latent attention: down-projections whole, up-projections by column, the output by row."""
    for linear in linears:
        whole = linear.name.startswith(DUPLICATED)
        row = linear.name == "o_proj"
        rows = linear.outputs if whole or row else linear.outputs // tensor
        mode = "whole" if whole else "row" if row else "column"
        columns = linear.inputs // (tensor if row else 1)
        yield Share(linear.name, rows, columns, count, replicated=whole, linears=(linear.name,), mode=mode)


def _feed_forward(linears: Iterable[Linear], tensor: int, count: int, label: str) -> Iterator[Share]:
    """Gate and up as one column-parallel product, down as a row-parallel one; a shared expert's gate whole."""
    given = tuple(linears)
    gates = [linear for linear in given if linear.outputs == 1]
    rest = [linear for linear in given if linear.outputs != 1]
    if not rest:
        return
    *first, down = rest
    rows = sum(linear.outputs for linear in first) // tensor
    yield Share(f"{label}linear_fc1", rows, first[0].inputs, count, linears=names(first))
    yield Share(f"{label}linear_fc2", down.outputs, down.inputs // tensor, count, linears=names([down]), mode="row")
    if first[0].bias:
        yield Share(f"{label}linear_fc1.bias", rows, 1, count, product=False)
    if down.bias:
        yield Share(f"{label}linear_fc2.bias", down.outputs, 1, count, product=False, replicated=True)
    for gate in gates:
        yield Share(f"{label}gate", 1, gate.inputs, count, product=False, replicated=True)


def _experts(experts: Experts, degrees: Parallel, count: int) -> Iterator[Share]:
    """The router whole; of the experts, those of this rank, each by column and by row."""
    router = experts.router
    yield Share("router", router.outputs, router.inputs, count, product=False, replicated=True)
    if router.bias:
        yield Share("router.bias", router.outputs, 1, count, product=False, replicated=True)
    local = experts.count // degrees.expert
    for number, bare in enumerate(experts.stacked):
        *_, rows, columns = bare.shape if len(bare.shape) == 3 else (*bare.shape, 1)
        first = number < len(experts.stacked) / 2
        rows = rows // degrees.expert_tensor if first else rows
        columns = columns // degrees.expert_tensor if not first and columns > 1 else columns
        linears = (bare.name,) if columns > 1 else ()
        yield Share(
            bare.name,
            rows,
            columns,
            count * local,
            expert=True,
            product=columns > 1,
            linears=linears,
            mode="column" if first else "row",
            local=local,
        )


def adapted_elements(recipe: Recipe) -> int:
    """Trained elements of the whole model under LoRA, of every rank's experts."""
    spec, alone = recipe.model, Parallel(1, expert=recipe.parallel.expert)
    shares = rank_shares(spec, alone, recipe.megatron, chunks_of(spec, alone, recipe.megatron, 1, False))
    found = with_adapters(shares, recipe.adapter, recipe.trainer.adapters.on_megatron, alone)
    return sum(share.elements * (alone.expert if share.expert else 1) for share in found if share.trained)
