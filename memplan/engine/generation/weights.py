"""Weights of one engine rank: what tensor parallelism divides, what every rank has whole, rows of the vocabulary,
quantised matrices with their scales; each tensor as large as the block that PyTorch's allocator gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from memplan.engine.allocator.settings import OWN_SEGMENT_BYTES, SMALL_BYTES, SMALL_SEGMENT_BYTES
from memplan.engine.generation.cells import drafting_layer
from memplan.errors import InvalidJob
from memplan.spec.generation import Draft, Generator
from memplan.spec.layer import Layer
from memplan.spec.parts import Experts, FeedForward, Linear, Part
from memplan.tables.engines import NEVER, era_of
from memplan.tables.families import FP32_ROUTERS
from memplan.tables.quantizations import QUANTIZATIONS
from memplan.units import ceil_div, round_up

VOCABULARY_PADDING = 64
"""Rows of embedding and head are padded to a multiple of it (vllm 0.11 layers/vocab_parallel_embedding.py:23)."""
FP8_BLOCK = 128
"""Side of the block that shares an fp32 scale."""
MXFP4_GROUP = 32
MARLIN_HIDDEN, MARLIN_INNER = 256, 128
"""Multiples that both sides of an expert are padded to (vllm 0.10 layers/quantization/mxfp4.py: create_weights)."""
OWN_FORMATS = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "awq": "awq",
    "gptq": "int4-groups",  # Marlin's kernel, where nobody asks for another: neither zeros nor g_idx
    "bitsandbytes": "nf4",
    "mxfp4": "mxfp4",
    "compressed-tensors fp8": "fp8",
    "compressed-tensors int8": "int8-channels",
    "compressed-tensors int4": "int4-groups",
    "compressed-tensors nvfp4": "nvfp4",
    "modelopt nvfp4": "nvfp4",
}
"""Formats of checkpoints that are served as they are, by ``quant_method``, with the scheme where it has several."""


def _mxfp4(rows: int, columns: int) -> int:
    return rows * columns // 2 + rows * ceil_div(columns, MXFP4_GROUP)


def _nvfp4(rows: int, columns: int) -> int:
    """An fp8 scale for 16 weights, and one in fp32."""
    return rows * columns // 2 + rows * ceil_div(columns, 16) + 4


def _int4(rows: int, columns: int) -> int:
    """As Marlin has symmetric groups of 128: a 16-bit scale for each."""
    return rows * columns // 2 + rows * ceil_div(columns, 128) * 2


def _packed(name: str) -> Callable[[int, int], int]:
    scheme = QUANTIZATIONS[name]
    return lambda rows, columns: sum(scheme.tensors(rows, columns).values())


FORMATS: dict[str, Callable[[int, int], int]] = {
    "mxfp4": _mxfp4,
    "awq": _packed("awq-4bit"),
    "gptq": _packed("gptq-4bit"),
    "nf4": _packed("nf4-double"),
    "int8": _packed("int8"),
    "int4-groups": _int4,
    "nvfp4": _nvfp4,
}
"""Bytes of a packed matrix of so many rows and columns."""
SCALES: dict[str, Callable[[int, int], int]] = {
    "fp8": lambda rows, columns: ceil_div(rows, FP8_BLOCK) * ceil_div(columns, FP8_BLOCK) * 4,
    "int8-channels": lambda rows, columns: rows * 4,
}
"""Formats with a byte for each weight, all in one tensor: bytes of the scales beside it."""
TOGETHER = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
"""Linears that are one tensor (QKVParallelLinear, MergedColumnParallelLinear)."""
EXPERTS_ALONE = frozenset({"mxfp4"})
"""Formats of routed experts, beside which all else is in 16 bits (gpt-oss)."""


def quantises(name: str) -> bool:
    """Whether a format is that of every linear."""
    return name in SCALES or (name in FORMATS and name not in EXPERTS_ALONE)


def block_bytes(size: int, unsplit_from: int = NEVER) -> int:
    """Bytes of a tensor's block. From 10 MiB on it has a segment of its own, in steps of 2 MiB; what is left of it, up
    to 1 MiB, is not split off and counts as allocated (c10/cuda/CUDACachingAllocator.cpp: should_split); from
    ``unsplit_from`` on nothing is."""
    if size < OWN_SEGMENT_BYTES:
        return size
    segment = round_up(size, SMALL_SEGMENT_BYTES)
    return segment if size >= unsplit_from or segment - size <= SMALL_BYTES else size


class Held(NamedTuple):
    """Bytes of a matrix."""

    tensor: int
    """That may be a segment of its own."""
    beside: int
    """Scales, a bias, parts."""


class Rank(NamedTuple):
    """How a rank holds matrices."""

    tensor: int
    experts: int
    """Ranks that the experts are divided over."""
    itemsize: int
    format: str
    unsplit_from: int
    """Bytes of a block from which on nothing is split off."""
    padded_hidden: float = 0.0
    """Marlin's kernels of MXFP4: the hidden size rounded up, over itself; 0: others, which round nothing up."""
    tensor_of_experts: int = 1
    """Ranks that divide each expert's inner features."""
    router_itemsize: int = 0
    """Of routers' weights; 0: as the model's class stores them."""

    def block(self, held: Sequence[Held]) -> int:
        """Of matrices that are one tensor."""
        size = block_bytes(sum(each.tensor for each in held), self.unsplit_from)
        return size + sum(each.beside for each in held)

    def matrix(self, linear: Linear, ranks: int, rows: int = 0, quantised: bool = True) -> Held:
        """Of a linear of which ``ranks`` ranks hold a part each; ``rows`` of them here, where given."""
        rows = rows or linear.outputs // ranks or 1
        bias = rows * self.itemsize if linear.bias else 0
        found = self.quantised(rows, linear.inputs) if quantised and quantises(self.format) else None
        tensor, beside = found or (rows * linear.inputs * self.itemsize, 0)
        return Held(tensor, beside + bias)

    def quantised(self, rows: int, columns: int) -> Held:
        """Of a matrix in the format: its weights, and scales beside them."""
        if self.format in SCALES:
            return Held(rows * columns, SCALES[self.format](rows, columns))
        packed = rows * columns // (1 if self.format == "int8" else 2)
        return Held(packed, FORMATS[self.format](rows, columns) - packed)


def format_of(of: Generator) -> str:
    """The format that its weights are served in. Raises InvalidJob for a checkpoint's that is not modelled."""
    if of.quantization != "none" or of.model.quantization is None:
        return of.quantization
    found = OWN_FORMATS.get(of.model.quantization)
    if found is None:
        raise InvalidJob(
            f"rollout.quantization: the checkpoint's own, {of.model.quantization[:40]}, is not modelled",
            "give rollout.quantization fp8, awq, gptq or nf4 where it is one of these",
        )
    return found


def weights_bytes(of: Generator, marlin: bool = False) -> int:
    """Of one rank, of the fullest pipeline stage; with room for an adapter where it serves one. ``marlin``: its card
    has experts in MXFP4 multiplied by Marlin's kernels."""
    spec, shares = of.model, max(of.expert_parallel, of.tensor_parallel)
    rank = Rank(of.tensor_parallel, shares, of.itemsize, format_of(of), era_of(of.engine, of.version).unsplit_from)
    if of.model.family in FP32_ROUTERS:  # of transformers alone
        rank = rank._replace(router_itemsize=of.itemsize)
    if marlin and rank.format == "mxfp4" and of.engine == "vllm":
        padded = round_up(spec.hidden_size, MARLIN_HIDDEN) / spec.hidden_size
        inner = 1 if of.expert_parallel > 1 else of.tensor_parallel
        rank = rank._replace(padded_hidden=padded, tensor_of_experts=inner)
    table = padded_vocabulary(of) * of.itemsize // of.tensor_parallel
    widths = (spec.embedding_width or spec.hidden_size, spec.head.inputs)
    ends = [block_bytes(table * width, rank.unsplit_from) for width in widths]
    whole = sum(_part(part, rank, spread=False) for part in (*spec.extra, *spec.head_parts))
    whole += sum(rank.matrix(spec.project_out, 1, quantised=False)) if spec.project_out else 0
    whole += spec.final_norm.parameters * of.itemsize if spec.final_norm else 0
    if spec.tower:
        plain = rank._replace(format="none")
        apart = (spec.tower.after, spec.tower.unused)  # they are loaded; blocks behind the last that is read are not
        kept = (each for each in spec.tower.parts if each.is_read or each.part in apart)
        whole += sum(each.copies * _part(each.part, plain) for each in kept)
        taps = len(spec.tower.taps) if not spec.tower.crossed else 0
        whole += taps * of.max_num_batched_tokens * spec.hidden_size * of.itemsize  # deepstack's buffers (qwen3_vl.py)
    whole += rotary_bytes(of)
    layers = sum(run.count * _layer(run.layer, rank) for run in (*spec.runs, *spec.resting))
    layers += _adapters(of)
    whole += _draft(of, rank)
    if of.pipeline_parallel > 1:
        stage = ceil_div(spec.num_layers, of.pipeline_parallel)
        return layers * stage // spec.num_layers + max(ends[0] + whole, ends[1])
    return layers + whole + (ends[0] if spec.head_is_tied else sum(ends))


def _draft(of: Generator, rank: Rank) -> int:
    """What drafts: a model of its own, or layers behind a projection of two hidden states, with a norm of each."""
    draft, hidden = of.draft or Draft(), of.model.hidden_size
    if draft.model is not None:
        alone = of._replace(model=draft.model, draft=None, quantization="none")
        return weights_bytes(alone._replace(adapter_rank=0, pipeline_parallel=1))
    if not draft.layers:
        return 0
    return draft.layers * (_layer(drafting_layer(of), rank) + (2 * hidden + 3) * hidden * rank.itemsize)


def padded_vocabulary(of: Generator) -> int:
    """Rows of the embedding, padded."""
    return round_up(of.model.vocab_size, VOCABULARY_PADDING)


def rotary_bytes(of: Generator) -> int:
    """Tables of cos and sin for every position of the config, four times as many where images have positions of their
    own (vllm layers/rotary_embedding/base.py, mrope.py)."""
    spec = of.model
    positions = (spec.max_positions or 0) * (4 if spec.rotary_by_row else 1)
    return positions * spec.rotary_width * of.itemsize


def _layer(layer: Layer, rank: Rank) -> int:
    """Of one layer; nothing twice where layers share weights."""
    norms = 0 if layer.repeats else sum(norm.parameters for norm in layer.norms) * rank.itemsize
    return norms + sum(_part(part, rank) for part in layer.own_parts)


def _part(part: Part, rank: Rank, spread: bool = True) -> int:
    """Of one part: its linears, bare tensors and norms, shared experts, routed experts and their router."""
    heads = getattr(part, "num_kv_heads", 0) or 0
    ranks = rank.tensor if spread else 1
    found = sum(norm.parameters * (norm.itemsize or rank.itemsize) for norm in part.norms)
    found += sum(bare.parameters * (bare.itemsize or rank.itemsize) for bare in part.tensors) // ranks
    for _, linears in groupby(part.linears, lambda linear: TOGETHER.get(linear.name, linear.name)):
        found += rank.block([_linear(linear, part, rank, heads, ranks, spread) for linear in linears])
    if quantises(rank.format):  # attention multiplies by the latent's matrix in 16 bits, whatever it came in
        latent = (linear for linear in part.linears if linear.name.endswith("kv_b_proj"))
        found += sum(linear.parameters * rank.itemsize for linear in latent) // ranks
    if isinstance(part, FeedForward):
        found += sum(sum(_linear(linear, part, rank, 0, ranks, spread)) for linear in part.shared)
        found += _experts(part.experts, rank) if part.experts else 0
    return found


def _linear(linear: Linear, part: Part, rank: Rank, heads: int, ranks: int, quantised: bool) -> Held:
    """One matrix: whole on each rank where its output is a latent or one number, and a head of keys or values at least
    on each."""
    whole = linear.outputs == 1 or linear.name.endswith(("_a_proj", "_a_proj_with_mqa", "gate")) or part_is_whole(part)
    if whole:
        return rank.matrix(linear, 1, quantised=quantised)
    if heads and ranks > heads:
        return rank.matrix(linear, ranks, _rows_of_heads(linear, part, heads, ranks), quantised)
    return rank.matrix(linear, ranks, quantised=quantised)


def part_is_whole(part: Part) -> bool:
    """An indexer's matrices are not divided (vllm deepseek_v2.py: ReplicatedLinear)."""
    return hasattr(part, "topk") and not hasattr(part, "kind")


def _rows_of_heads(linear: Linear, part: Part, heads: int, ranks: int) -> int:
    """Rows of q, k, v or all of them on a rank, where ranks are more than heads of keys and values."""
    one: int = getattr(part, "head_dim", 0)
    if linear.outputs == heads * one:
        return one
    if getattr(part, "fused_qkv", False) and linear is part.linears[0]:
        return (linear.outputs - 2 * heads * one) // ranks + 2 * one
    return 0


def _experts(experts: Experts, rank: Rank) -> int:
    """Routed experts and their router, which is whole and never quantised."""
    stacks = (_stack(bare.shape, rank) for bare in experts.stacked)
    held = sum(rank.block([Held(*(size // rank.experts for size in each))]) for each in stacks)
    if rank.padded_hidden:
        inner = experts.intermediate / rank.tensor_of_experts
        held = int(held * rank.padded_hidden * round_up(int(inner), MARLIN_INNER) / inner)
    router = experts.router.parameters * (rank.router_itemsize or experts.routing.stored_itemsize or rank.itemsize)
    corrected = experts.count * 4 if experts.routing.corrected else 0
    return held + router + corrected


def _stack(shape: Iterable[int], rank: Rank) -> Held:
    """All experts' matrices, or their biases."""
    count, *rest = shape
    if len(rest) == 2 and rank.format != "none":
        return Held(*(count * size for size in rank.quantised(*rest)))
    return Held(count * prod(rest) * rank.itemsize, 0)


def _adapters(of: Generator) -> int:
    """Room for one adapter over every linear of the layers (punica's stacked tensors)."""
    if not of.adapter_rank:
        return 0
    linears = ((run.count, linear) for run in of.model.runs for linear in run.layer.linears)
    sums = sum(count * (linear.inputs + linear.outputs // of.tensor_parallel) for count, linear in linears)
    return of.adapter_rank * sums * of.itemsize
