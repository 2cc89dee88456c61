"""Weights of one engine rank: what tensor parallelism divides, what every rank has whole, rows of the vocabulary,
quantised matrices with their scales. Its tensors in the order in which they are made, so that PyTorch's allocator can
be played over them (``loading.py``)."""

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import chain, repeat, zip_longest
from math import prod
from typing import Any

from memplan.engine.generation.cells import drafting_layer
from memplan.engine.generation.formats import kernels_of, quantises, served, set_apart
from memplan.engine.generation.loading import Loads, copied_bytes, loaded_bytes
from memplan.engine.generation.rank import UNGATED, Rank, Tensors, of_eagle3, of_mxfp4, products, stages_of
from memplan.spec.generation import Draft, Generator
from memplan.spec.gpu import Gpu
from memplan.spec.layer import Layer
from memplan.spec.parts import Experts, FeedForward, Linear, Part
from memplan.tables.engines import BEFORE_HOPPER, HOPPER, ROCM, era_of, version_of
from memplan.tables.families import ENDS_ON_EACH_STAGE, FP32_GATES, FP32_ROUTERS, UNSCALED
from memplan.tables.quantizations import DRAFT, LEFT_AT_MOST, PLAIN_IN_NVFP4, USUAL, Stored
from memplan.units import round_up

VOCABULARY_PADDING = 64
"""Rows of embedding and head are padded to a multiple of it (vllm 0.11 layers/vocab_parallel_embedding.py:23)."""
TOGETHER = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "qkv_a"),
    **dict.fromkeys(("wk", "weights_proj"), "wk_weights"),
    **dict.fromkeys(("in_proj_qkv", "in_proj_z"), "in_proj_qkvz"),
}
"""Linears that are one tensor (QKVParallelLinear, MergedColumnParallelLinear; vllm 0.20 deepseek_v2.py, qwen3_5.py)."""
NEVER_QUANTISED = ("wk", "weights_proj")
"""Of an indexer: they are one tensor in 16 bits, whatever the checkpoint has (vllm 0.20 deepseek_v2.py: Indexer)."""

STACKED = {"gptq": "awq", "fp8-apart": "fp8"}
"""Of experts: their g_idx are emptied where no order is asked for (vllm 0.11 gptq_marlin.py: GPTQMarlinMoEMethod), and
nobody sets their rows apart."""
WORKSPACE = 0, 19, 0
"""Of sparse attention; older versions' were not read."""
READ_ALONE = 0, 30, 0
"""vLLM's layers that read others' keys and values have queries alone since (0.19 gemma4.py: QKVParallelLinear in each,
as sglang gemma4_causal.py has it still)."""
PER_LAYER = "embed_tokens_per_layer"
"""Of its rows, those of a forward have a buffer, with a tower or without (vllm 0.28 gemma4_mm.py:
per_layer_embeddings; a Gemma 4 E2B of text alone took 8.89 GiB under 0.21)."""


def together(matrices: Iterable[Tensors]) -> Tensors:
    """Matrices that are one: their weights one tensor, and so their scales and biases."""
    return tuple(sum(sizes) for sizes in zip_longest(*matrices, fillvalue=0))


def weights_bytes(of: Generator, gpu: Gpu | None = None) -> int:
    """Of one rank, of the fullest pipeline stage, on this card; with room for an adapter where it serves one."""
    return _loaded(of._replace(share=0), gpu)[0]


@lru_cache(maxsize=512)
def _loaded(of: Generator, gpu: Gpu | None) -> tuple[int, int]:
    """On the card, and of a copy on the host: kept, since a search asks again for each share of the card."""
    tensors = _loading(of, gpu)
    return loaded_bytes(*tensors), copied_bytes(*tensors)


def least_bytes(of: Generator, gpu: Gpu | None = None) -> int:
    """The same, where a format that a job names alone leaves nothing in 16 bits."""
    return _in_nvfp4(of, gpu, frozenset()) if USUAL in served(of).plain else weights_bytes(of, gpu)


def most_bytes(of: Generator, gpu: Gpu | None = None) -> int:
    """The same, where it leaves all but the widest parts."""
    return _in_nvfp4(of, gpu, LEFT_AT_MOST) if USUAL in served(of).plain else weights_bytes(of, gpu)


def _in_nvfp4(of: Generator, gpu: Gpu | None, plain: frozenset[str]) -> int:
    model = of.model.but(quantization=Stored("modelopt nvfp4", plain=plain))
    return weights_bytes(of._replace(quantization="none", model=model), gpu)


def copy_bytes(of: Generator, gpu: Gpu | None = None) -> int:
    """Of the host, for the copy that this rank makes when it sleeps at level 1."""
    return _loaded(of._replace(share=0), gpu)[1]


def _loading(of: Generator, gpu: Gpu | None) -> tuple[Tensors, Loads]:
    """Its tensors, and how they are loaded."""
    on_rocm = gpu is not None and gpu.vendor == "amd"  # its log has the fall of free memory
    tensors = tuple(_tensors(of, gpu.architecture if gpu else ""))
    if on_rocm or of.expandable:
        return tensors, "segments" if on_rocm else "grown"
    return tensors, era_of(of.engine, of.version).loads


def _tensors(of: Generator, architecture: str) -> Iterator[int]:
    """Embedding, tower, layers, what drafts, the rest and the head; of several pipeline stages the fullest's."""
    spec, tensor = of.model, of.tensor_parallel
    form = served(of)
    rank = Rank(tensor, max(of.expert_parallel, tensor), of.itemsize, form.format, form.group, plain=form.plain)
    rank = rank._replace(tensor_of_experts=1 if of.expert_parallel > 1 else tensor, absorbs=of.engine == "sglang")
    latent = of.engine == "vllm" and form.format.startswith(("none", "fp8"))
    unread = of.engine == "sglang" or version_of(of.version) < READ_ALONE
    rank = rank._replace(products=latent and era_of("vllm", of.version).absorbs, unread=unread)
    routers = dict.fromkeys(FP32_ROUTERS, of.itemsize) | FP32_GATES  # those of transformers alone
    rank = rank._replace(router_itemsize=routers.get(spec.family, 0))
    if rank.format == "mxfp4" and (of.engine == "vllm" or architecture not in (*BEFORE_HOPPER, *ROCM)):
        rank = rank._replace(padding=of_mxfp4(of.engine, of.version, architecture))
    if rank.format == "nvfp4" and architecture not in (*BEFORE_HOPPER, HOPPER):
        rank = rank._replace(ungated=UNGATED)
    apart = of.engine == "vllm" and architecture in ROCM and era_of("vllm", of.version).sets_apart
    rank, kernels = rank._replace(sets_apart=apart), kernels_of(of, architecture)
    rank = rank._replace(format=kernels.get(rank.format, rank.format))
    table = padded_vocabulary(of) * of.itemsize // of.tensor_parallel
    first, last = table * (spec.embedding_width or spec.hidden_size), table * spec.head.inputs
    whole = *_of_no_layer(of, rank), *_of_chosen(of, architecture)
    each = chain.from_iterable(repeat(run.layer, run.count) for run in (*spec.runs, *spec.resting))
    plain, others, nothing = dict(form.layers), dict(form.others), frozenset[Any]()

    @cache
    def held(layer: Layer, left: frozenset[str], apart: frozenset[tuple[str, str]]) -> Tensors:
        forms = frozenset((name, kernels.get(form, form)) for name, form in apart)
        return _layer(layer, rank._replace(plain=rank.plain | left, others=forms))

    layers = [held(layer, plain.get(at, nothing), others.get(at, nothing)) for at, layer in enumerate(each)]
    stages, before = of.pipeline_parallel, (first, *whole)
    parts = [tuple(chain.from_iterable(layers[part])) for part in stages_of(spec.num_layers, stages)]
    alone = stages == 1 or (of.engine == "vllm" and of.model.family in ENDS_ON_EACH_STAGE)
    ends = {0: 0 if alone else sum(before), stages - 1: 0 if alone else last}
    at = max(range(stages), key=lambda number: sum(parts[number]) + ends.get(number, 0))
    yield from before if alone or not at else ()
    yield from parts[at]
    yield from filter(None, (_adapters(of) // stages,))
    yield from _draft(of, rank)
    if not spec.head_is_tied if alone else at == stages - 1:
        yield last


def _of_no_layer(of: Generator, rank: Rank) -> Iterator[int]:
    """What stands outside of the layers, on one rank: the tower, tables, norms, projections."""
    spec = of.model
    if spec.tower:
        plain = rank._replace(format="none")
        apart = (spec.tower.after, spec.tower.unused)  # they are loaded; blocks behind the last that is read are not
        for each in spec.tower.parts:
            if each.is_read or each.part in apart:
                yield from _part(each.part, plain) * each.copies
        if spec.tower.taps and not spec.tower.crossed:  # deepstack's buffers (qwen3_vl.py)
            yield from repeat(of.max_num_batched_tokens * spec.hidden_size * of.itemsize, len(spec.tower.taps))
    tables = (bare.shape[-1] for part in spec.extra for bare in part.tensors if bare.name == PER_LAYER)
    yield from (of.max_num_batched_tokens * width * of.itemsize for width in tables if of.engine == "vllm")
    for part in (*spec.extra, *spec.head_parts):
        yield from _part(part, rank._replace(format="none"), spread=False)
    yield from rank._replace(format="none").matrix(spec.project_out, 1) if spec.project_out else ()
    yield spec.final_norm.parameters * of.itemsize if spec.final_norm else 0
    yield rotary_bytes(of)


def _of_chosen(of: Generator, architecture: str) -> Iterator[int]:
    """Of all layers together, where an indexer chooses tokens: which (vllm deepseek_v2.py: topk_indices_buffer); on
    Hopper the workspace that its kernel has from the start, for queries and, of a cache in fp8, prompts in 16 bits
    (vllm 0.20 v1/attention/backends/mla/flashmla_sparse.py: FlashMLASparseImpl)."""
    tokens = of.max_num_batched_tokens
    latent: list[Any] = [each for each in of.model.mixers if getattr(each, "kind", "") == "latent"]
    mixer = next((each for each in latent if each.indexed), None)
    if of.engine != "vllm" or not mixer:
        return
    yield tokens * mixer.topk * 4
    if architecture == HOPPER and version_of(of.version) >= WORKSPACE:
        rows = tokens * of.model.num_heads // of.tensor_parallel + (of.kv_itemsize == 1) * 5 * of.max_model_len
        yield rows * (mixer.latent + mixer.rope) * 2


def _draft(of: Generator, rank: Rank) -> Tensors:
    """What drafts: a model of its own, or layers behind a projection of two hidden states, with a norm of each."""
    draft, hidden = of.draft or Draft(), of.model.hidden_size
    if draft.model is not None:
        alone = of._replace(model=draft.model, draft=None, quantization="none")
        return tuple(_tensors(alone._replace(adapter_rank=0, pipeline_parallel=1), ""))
    if not draft.layers:
        return ()
    rank = rank._replace(format="none") if {DRAFT, USUAL} & rank.plain else rank
    layer = drafting_layer(of)
    if draft.rows:
        return *_layer(layer, rank), *of_eagle3(layer, hidden, padded_vocabulary(of), draft.rows, rank)
    sides = (2 * hidden * hidden * rank.itemsize, *repeat(hidden * rank.itemsize, 3))
    return (*_layer(layer, rank), *sides) * draft.layers


def padded_vocabulary(of: Generator) -> int:
    """Rows of the embedding, padded."""
    return round_up(of.model.vocab_size, VOCABULARY_PADDING)


def rotary_bytes(of: Generator) -> int:
    """Tables of cos and sin for every position of the config, that of whole attention longer where it is scaled. vLLM's
    are four times as many where images have positions of their own (layers/rotary_embedding/base.py, mrope.py);
    SGLang's are in fp32 (layers/rotary_embedding.py: RotaryEmbedding, MRotaryEmbedding)."""
    spec = of.model
    plain, longest = spec.max_positions or 0, spec.rotary_positions or spec.max_positions or 0
    if of.engine == "sglang" and spec.family in UNSCALED:
        longest = plain = plain if version_of(of.version) >= UNSCALED[spec.family] else 0
    elements = plain * spec.rotary_width + (longest - plain) * spec.rotary_width // spec.rotary_sets
    return elements * (4 if of.engine == "sglang" else of.itemsize * (4 if spec.rotary_by_row else 1))


def _layer(layer: Layer, rank: Rank) -> Tensors:
    """Of one layer; nothing twice where layers share weights."""
    norms = () if layer.repeats else (norm.parameters * rank.itemsize for norm in layer.norms)
    return *chain.from_iterable(_part(part, rank) for part in layer.own_parts), *norms


def _part(part: Part, rank: Rank, spread: bool = True) -> Tensors:
    """Of one part: its linears, bare tensors and norms, shared experts, routed experts and their router."""
    usual = USUAL in rank.plain and getattr(part, "kind", "") in PLAIN_IN_NVFP4
    if rank.format == "nvfp4" and (part.chooses or usual):
        rank = rank._replace(format="none")
    heads = getattr(part, "num_kv_heads", 0) or 0
    ranks = rank.tensor if spread else 1
    found: list[int] = []
    module = rank.of_module(part)
    for linears in joined(rank.linears_of(part)):
        here = rank.of(module, (linear.name for linear in linears))
        found += together(_linear(linear, part, here, heads, ranks) for linear in linears)
    found += (bare.parameters * (bare.itemsize or rank.itemsize) // ranks for bare in part.tensors)
    found += (norm.parameters * (norm.itemsize or rank.itemsize) for norm in part.norms)
    # attention multiplies by the latent's matrix in 16 bits, whatever it came in
    latent = [linear for linear in part.linears if linear.name.endswith("kv_b_proj")]
    copied = (each for each in latent if rank.absorbs or quantises(rank.form_of(module, each.name)))
    found += (linear.parameters * rank.itemsize // ranks for linear in copied)
    found += products(part, rank, ranks) if latent and rank.products else ()
    if isinstance(part, FeedForward):
        for linears in joined(part.shared):
            here = rank.of("mlp.shared_expert", (linear.name for linear in linears))
            found += together(_linear(linear, part, here, 0, ranks) for linear in linears)
        form = rank.form_of("mlp.experts", "down_proj")
        found += _experts(part.experts, rank._replace(format=STACKED.get(form, form))) if part.experts else ()
    return tuple(found)


def joined(linears: Iterable[Linear]) -> list[list[Linear]]:
    """Linears by the tensor that they are, in the order in which these are made."""
    found: dict[str, list[Linear]] = {}
    for linear in linears:
        found.setdefault(TOGETHER.get(linear.name, linear.name), []).append(linear)
    return list(found.values())


def _linear(linear: Linear, part: Part, rank: Rank, heads: int, ranks: int) -> Tensors:
    """One matrix: whole on each rank where its output is a latent or one number; of keys or values at least a head."""
    whole = linear.outputs == 1 or linear.name.endswith(("_a_proj", "_a_proj_with_mqa", "gate"))
    if part.chooses and linear.name in NEVER_QUANTISED:
        rank = rank._replace(format="none")
    if whole or part.chooses:  # vllm deepseek_v2.py: ReplicatedLinear
        return rank.matrix(linear, 1)
    if heads and ranks > heads:
        return rank.matrix(linear, ranks, _rows_of_heads(linear, part, heads, ranks))
    return rank.matrix(linear, ranks)


def _rows_of_heads(linear: Linear, part: Part, heads: int, ranks: int) -> int:
    """Rows of q, k, v or all of them on a rank, where ranks are more than heads of keys and values."""
    one: int = getattr(part, "head_dim", 0)
    if linear.outputs == heads * one:
        return one
    if getattr(part, "fused_qkv", False) and linear is part.linears[0]:
        return (linear.outputs - 2 * heads * one) // ranks + 2 * one
    return 0


def _experts(experts: Experts, rank: Rank) -> Iterator[int]:
    """Routed experts and their router, which is whole and never quantised."""
    yield experts.router.parameters * (rank.router_itemsize or experts.routing.stored_itemsize or rank.itemsize)
    yield experts.count * 4 if experts.routing.corrected else 0
    hidden, inner, rows_of_scales, values = rank.padding if experts.gated else rank.ungated
    count = experts.count * rank.tensor_of_experts // rank.experts
    for bare in experts.stacked:
        down, (_, outputs, *inputs) = "down" in bare.name, bare.shape
        width = round_up(experts.intermediate // rank.tensor_of_experts, inner)
        rows = round_up(outputs, hidden) if down else outputs // experts.intermediate * width
        if not inputs or rank.format == "none":
            size = prod(width if down else each for each in inputs) * rank.itemsize
            yield count * rows * (set_apart(size) if inputs and rank.sets_apart else size)
            continue
        columns = width if down else round_up(inputs[0], hidden)
        weights, *scales = rank.packed(rows, columns)
        yield count * weights * round_up(columns, values) // columns
        yield from (count * size * round_up(rows, rows_of_scales) // rows for size in scales)


def _adapters(of: Generator) -> int:
    """Room for one adapter over every linear of the layers (punica's stacked tensors)."""
    if not of.adapter_rank:
        return 0
    linears = ((run.count, linear) for run in of.model.runs for linear in run.layer.linears)
    sums = sum(count * (linear.inputs + linear.outputs // of.tensor_parallel) for count, linear in linears)
    return of.adapter_rank * sums * of.itemsize
