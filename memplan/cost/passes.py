"""Seconds of a micro-step's passes on one GPU: matmuls, attention, pointwise chains, head and loss.

Products are bound by FLOP or by bytes, whichever takes longer (the roofline); pointwise chains by bytes; and the whole
of a layer by the host, which issues its kernels one after another. Pure functions of a recipe, its model's work, and
rates; what a pass costs depends on nothing else, so that passes of equal shape are remembered."""

from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

import memplan.cost.attention as kernels
from memplan.cost.again import Forward, again
from memplan.cost.host import Issued, host_of
from memplan.cost.products import Layout, merged, product_seconds, products
from memplan.cost.rates import Device, Rates, flash_seconds, products_rate
from memplan.cost.shape import FP32, HALF, Shape
from memplan.cost.work import ACTIVE, DROPPED, ModelWork, Work
from memplan.engine.losses.liger import liger_chunk
from memplan.spec.recipe import Recipe
from memplan.tables.texts import texts_by_name

BACKWARD_MOVES = 1.6
"""Pointwise bytes of a backward against its forward: gradients come in, and saved tensors with them."""
NORMS_BACKWARD, WEIGHED_BACKWARD, ACTIVATED_BACKWARD = 198 / 84, 16 / 84, 18 / 10
"""The same of norms and sums of single operations, of the norms' own weights, and of activations (bytes of each element
by a trace of transformers 5.24's Llama, sums of gradients from several products among them)."""
UNPACKED: dict[str, float] = {"gptq": 16.0}
"""Bytes for each weight beyond its bits and its dequantised self, where PyTorch's operations unpack it: shifted (2),
and masked (4), the zero taken off (4), scaled (4), copied (2)."""
FLASH_BACKWARD, EAGER_BACKWARD = 2.5 * 73 / 63, 2.0
"""Attention's backward against its forward: five products, the scores made again, against two (arXiv:2205.14135,
algorithm 4), at 63 % of the peak at best where the forward reaches 73 % (arXiv:2307.08691, section 4.1); eager keeps
them, and has four."""
BLOCK = 128
"""Positions of a tile of a causal kernel: those on the diagonal, and at a window's far end, are computed whole."""
EAGER_BYTES, EAGER_FUSED, CAPPED_BYTES = 24.0, 12.0, 12.0
"""Bytes that eager attention moves for each score: written (2), scaled (4), masked (4), softmax in fp32 (6), cast (6),
read (2) (transformers 5.23 modeling_llama.py: eager_attention_forward); where mask and softmax are one kernel
(Megatron's), without those between; a cap's division, tanh and product more (modeling_gemma2.py)."""
CAPPED_LOGITS = 26.0
"""The same of a head's logits, forward (12) and backward (4 + 6 + 4), where no kernel does all."""
RESTARTED, RING_BYTES = 0.75, 6.0
"""Of a ring's further steps: share of the queries that start anew (all, or the later half where keys are a later
rank's), and bytes for each element of the output that is weighted and added (TransformerEngine 2
attention/dot_product_attention/context_parallel.py: flash_attn_fwd_out_correction)."""
HEAD_BYTES = {name: float(size) for name, size in texts_by_name(__file__).items()}
"""Bytes that a head's program moves for each logit, forward and backward: the passes over bf16 and fp32 copies that
tables/loss_heads.txt describes."""
OTHER_HEAD_BYTES = 20.0
UNALIGNED, ALIGNED = 1.8, 8
"""Times that a head's product takes tensor cores where its logits are no multiple of so many, 16 bytes: GPT-2's step is
25 to 30 % longer with 50,257 tokens than with 50,304, and a third of its products are its head's (zzhhjjj/LLaMA
notes/README.md; rasbt/LLMs-from-scratch ch05/10_llm-training-speed: 14 % of a compiled one)."""
AGAIN = frozenset({"fused", "chunked", "chunked-log-probs", "chunked-nll", "cut-cross-entropy"})
"""Heads whose product is made again in backward (tables/loss_heads.txt)."""
NLL, NLL_CHUNK = "chunked-nll", 256
NLL_BYTES: dict[bool, tuple[float, float]] = {True: (12.0, 18.0), False: (6.0, 16.0)}
"""TRL's ``chunked_nll`` (1.7 to 1.14) widens the whole head for each chunk of so many tokens: bytes of an element in a
forward and in a trained backward, under autocast, which narrows it again for the product, and without, where the
product is in fp32 (trl 1.9 trainer/sft_trainer.py: _chunked_cross_entropy_loss)."""


class Pass(NamedTuple):
    """Seconds of all layers over one micro-batch on one GPU, as if it held every layer."""

    products: float
    attention: float
    moves: float
    forward: float
    """Of the forward: the sum of the three, or the host's time where that is longer."""
    backward: float
    again: float
    """What checkpointing repeats of the forward."""
    attended: float
    """Of the backward, attention's."""


Known = dict[tuple[int, int, float], tuple[Pass, Forward]]
"""Of one layer, with nothing made again: by its kind, rows, and share of such layers whose saved tensors go through
hooks."""


def layers_pass(work: ModelWork, shape: Shape, device: Device, rates: Rates, known: Known | None = None) -> Pass:
    """The pass over all layers. ``known``: of the same objects and shape, whatever is made again."""
    total, known = [0.0] * len(Pass._fields), {} if known is None else known
    for kind, (count, each) in enumerate(work.layers):
        packed = sum(one.shares[kind] for one in shape.again if one.what == "full") if shape.packs else 0.0
        key = kind, shape.rows, packed
        if key not in known:
            known[key] = _layer(each, packed, shape, device, rates)
        made, parts = known[key]
        more = sum(one.shares[kind] * again(each, one.what, parts) for one in shape.again)
        for position, seconds in enumerate(made._replace(again=more)):
            total[position] += count * seconds
    return Pass(*total)


class Passes(dict[int, Pass]):
    """``layers_pass`` by its rows, each made when it is first asked for."""

    def __init__(self, work: ModelWork, shape: Shape, device: Device, rates: Rates, known: Known) -> None:
        super().__init__()
        self.of, self.known = (work, shape, device, rates), known

    def __missing__(self, rows: int) -> Pass:
        work, shape, device, rates = self.of
        made = self[rows] = layers_pass(work, shape._replace(rows=rows), device, rates, self.known)
        return made


_PASSES: dict[tuple[int, Shape, int, int], Passes] = {}
_LAYERS: dict[tuple[int, Shape, int, int], Known] = {}
MOST = 5_000


def passes_of(work: ModelWork, shape: Shape, device: Device, rates: Rates) -> Passes:
    """The same for equal shapes, whatever rows, of the same objects, kept so that their ``id`` stays theirs."""
    key = id(work), shape._replace(rows=0), id(device), id(rates)
    known = _PASSES.get(key)
    if known is None:
        if len(_PASSES) >= MOST:
            _PASSES.clear()
            _LAYERS.clear()
        layers = _LAYERS.setdefault((id(work), shape._replace(rows=0, again=()), id(device), id(rates)), {})
        known = _PASSES[key] = Passes(work, shape, device, rates, layers)
    return known


def _layer(each: Work, packed: float, shape: Shape, device: Device, rates: Rates) -> tuple[Pass, Forward]:
    """With nothing made again, and what that would be made of."""
    tokens = shape.rows * shape.length / shape.context
    memory = device.memory * rates.memory
    cut = shape.tensor, shape.expert, shape.expert_tensor
    layout = Layout(tokens, *cut, shape.itemsize, shape.merged, shape.imbalance, shape.eight)
    made = products(each, layout, device, rates)
    cast = shape.eight.cast if shape.eight else 0.0
    cast_in, cast_out = (cast * moved / memory for moved in made.elements)
    adapters = _adapters(shape, tokens, device, rates)
    unpacked = 0.0
    if shape.quantised:
        moved = shape.bits / 8 + shape.itemsize + UNPACKED.get(shape.quantised.split("-")[0], 0.0)
        stored = (each.stored - each.expert_stored) / shape.tensor
        unpacked = (stored + each.expert_stored / shape.expert / shape.expert_tensor) * moved / memory
    attention, attended, scores = _attention(each, shape, tokens, device, rates)
    if each.scanned:
        lane = 2 * tokens * each.scanned / shape.tensor / device.wide_products
        attention, attended = attention + kernels.SCAN * lane, attended + kernels.SCAN_BACKWARD * lane
    outside = device.cache.moved(each.between, shape.normed, 2 * FP32 * tokens * each.width, memory) / (
        shape.tensor if shape.sequence else 1
    )
    narrow = ACTIVE * tokens * each.activated[0] / shape.tensor
    activated = device.cache.moved(each.activated, shape.activated, narrow, memory)
    chains = (
        activated
        + device.cache.moved(each.turned, shape.turned, 2 * FP32 * tokens * each.width, memory)
        + each.dispatched * shape.expert_tensor
    )
    chains += each.left if shape.merged else 0.0
    ring = RING_BYTES * shape.ring * each.per_pair / 4 if shape.ring > 1 else 0.0
    inside = (chains + shape.adapted_moves + ring) / shape.tensor
    single = 0.0 if shape.normed else outside * (NORMS_BACKWARD + shape.trained * WEIGHED_BACKWARD - BACKWARD_MOVES)
    single += 0.0 if shape.activated else activated / shape.tensor * (ACTIVATED_BACKWARD - BACKWARD_MOVES)
    between, within, single = (tokens * of * shape.itemsize / HALF / memory for of in (outside, inside, single))
    moves = between + within + scores
    product = made.forward + unpacked
    held = max(1.0, each.experts / shape.expert) if each.routed else 0.0
    issued = Issued(
        shape.fused,
        shape.launched * held,
        shape.adapted,
        shape.quantised,
        shape.hooks == "gathers",
        shape.hooks in ("reduces", "gathers"),
        shape.ring,
        sum(1 for _ in merged(each.products)) if shape.merged else len(each.products),
        shape.merged,
        held if shape.looped else 0.0,
        shape.attention == "eager" and each.per_pair > 0,
        packed,
        shape.own,
        shape.units,
        shape.walked,
        shape.graphed,
    )
    host = host_of(each, issued, rates)
    weighed = shape.weighed / shape.tensor / memory
    forward = product + adapters + attention + moves + cast_in + weighed
    trained = max(shape.trained, each.expert / each.weights if shape.stacks and each.weights else 0.0)
    behind = made.inputs + unpacked + trained * made.weights + 2 * adapters
    behind += attended + moves * BACKWARD_MOVES + single + cast_out
    backward = max(behind, host.backward)
    parts = Forward(product + adapters, attention, between, within + scores + cast_in, max(forward, host.again))
    return Pass(product + adapters, attention, moves, max(forward, host.forward), backward, 0.0, attended), parts


def _adapters(shape: Shape, tokens: float, device: Device, rates: Rates) -> float:
    """Seconds of a forward's products with adapters, as if all were of one rank; the moves around them are apart."""
    speed = products_rate(device, rates, shape.adapter_itemsize)
    return 2 * tokens * shape.adapter / shape.tensor / speed


def _attention(each: Work, shape: Shape, tokens: float, device: Device, rates: Rates) -> tuple[float, float, float]:
    """(seconds of a forward's products, of its backward's, of the forward's scores through memory). A causal kernel
    skips half of the pairs, unless it is eager or a mask is given to it, as PyTorch's is for a window, whose kernel is
    another then; a window is met by whole tiles. A recurrent mixer does what one of PyTorch's operations or one kernel
    does at attention's rate."""
    own = shape.native and not shape.wide and device.native_limit > 0
    near = 0 < each.window < shape.length
    masked = shape.attention == "sdpa" and (shape.padded or near)
    fused = shape.attention == "sdpa" and each.per_pair > 0
    slow = fused and (shape.wide or masked) and not own
    speed = device.native_attention if own else device.attention
    behind = EAGER_BACKWARD if shape.attention == "eager" else kernels.MASKED_BACKWARD if slow else FLASH_BACKWARD
    if shape.wide and not slow:
        speed = device.wide_products
    skips = each.causal and shape.attention != "eager" and not masked
    pairs = (shape.length + BLOCK) / 2 if skips and shape.attention == "flash" else shape.length / (1 + skips)
    if shape.attention == "eager":
        pairs = max(pairs, float(BLOCK))
    if near and shape.attention == "flash":
        pairs = min(pairs, float(each.window + BLOCK))
    if shape.attention != "eager" or shape.merged:
        pairs += rates.prologue * (kernels.NATIVE_PROLOGUE if own else 1.0) * (1 + RESTARTED * (shape.ring - 1))
    scores = tokens * pairs * each.heads / shape.tensor if each.per_pair else 0.0
    flop = tokens * (pairs * each.per_pair + each.recurrent) / shape.tensor
    seconds = flash_seconds(flop, scores, speed, device, rates)
    if own:
        seconds = max(seconds, flash_seconds(flop, 0.0, device.native_limit, device, rates))
    if slow:
        seconds *= (kernels.MASKED_BROAD if each.per_pair > 4 * kernels.WIDTH * each.heads else 1.0) / device.masked
        if shape.wide:
            seconds, behind = seconds * kernels.MASKED_WIDE, behind * kernels.MASKED_WIDE_BACKWARD / kernels.MASKED_WIDE
    if shape.attention != "eager" or not each.per_pair:
        return seconds, seconds * behind, 0.0
    each_score = EAGER_FUSED if shape.merged else EAGER_BYTES + each.capped * CAPPED_BYTES + each.dropped * DROPPED
    moved = tokens * shape.length * each.heads / shape.tensor * each_score
    return seconds, seconds * behind, moved / (device.memory * rates.memory)


class Head(NamedTuple):
    """Seconds of the head and the loss over one micro-batch on one GPU."""

    forward: float
    backward: float


_ASKED = attrgetter(
    *("rows", "batch.sequence_length", "batch.completion_length", "parallel.context", "parallel.tensor", "loss.head"),
    *("loss.code.projects_completions", "numerics.autocast", "numerics.itemsize", "trainer.megatron"),
    "model.logits_softcap",
)
_HEADS: dict[tuple[Any, ...], tuple[ModelWork, Device, Rates, Head]] = {}


def head_pass(recipe: Recipe, work: ModelWork, device: Device, rates: Rates) -> Head:
    """The head's product and its loss, with what stands outside the layers; remembered while the same objects ask."""
    widens = recipe.loss.head == NLL and NLL in recipe.trainer.loss.heads.values()  # not where it stands in for others
    key = id(work), id(device), id(rates), widens, recipe.adapter is None, *_ASKED(recipe)
    known = _HEADS.get(key)
    if known is None:
        if len(_HEADS) >= MOST:
            _HEADS.clear()
        known = _HEADS[key] = work, device, rates, _head(recipe, work, device, rates, widens)
    return known[3]


def _head(recipe: Recipe, work: ModelWork, device: Device, rates: Rates, widens: bool) -> Head:
    degrees, code = recipe.parallel, recipe.loss.code
    length = recipe.batch.completion_length if code.projects_completions else recipe.batch.sequence_length
    whole = recipe.rows * recipe.batch.sequence_length / degrees.context
    tokens = recipe.rows * length / degrees.context
    itemsize = recipe.numerics.autocast or recipe.numerics.itemsize
    speed = products_rate(device, rates, itemsize)
    memory = device.memory * rates.memory
    width = work.head / work.vocabulary if work.vocabulary else 0.0
    trained = 0.0 if recipe.adapter else 1.0
    before, behind = 0.0, 0.0
    if widens:
        each, back = NLL_BYTES[bool(recipe.numerics.autocast)]
        widened = ceil(tokens / NLL_CHUNK) * work.head / degrees.tensor / memory
        before, behind = each * widened, (each + trained * back) * widened
        itemsize = recipe.numerics.autocast or FP32
    columns, chunk = work.vocabulary / degrees.tensor, tokens
    if recipe.loss.head == "liger" and width:
        chunk = liger_chunk(ceil(tokens), ceil(width), ceil(columns))
    parts = ceil(tokens / chunk) if tokens else 1
    product = parts * product_seconds(chunk, columns, width, 1.0, itemsize, device, rates)
    if parts > 1:  # each reads the head, and adds to its gradient
        behind += trained * (parts * product_seconds(columns, width, chunk, 1.0, itemsize, device, rates) - product)
    if work.vocabulary > 1 and work.vocabulary % ALIGNED and itemsize < FP32 and not recipe.trainer.megatron:
        product *= UNALIGNED
    product += 2 * whole * work.outside / speed
    loss = 0.0
    if work.vocabulary > 1:
        moved = HEAD_BYTES.get(recipe.loss.head, OTHER_HEAD_BYTES)
        moved += CAPPED_LOGITS if recipe.model.logits_softcap and recipe.loss.head not in AGAIN else 0.0
        moved *= 1 if itemsize == 2 else 1.5
        loss = tokens * work.vocabulary / degrees.tensor * moved / memory
    again = product if recipe.loss.head in AGAIN else 0.0
    return Head(product + loss / 2 + before, product * (1 + trained) + again + loss / 2 + behind)
