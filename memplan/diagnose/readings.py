"""What a tensor of a printed size can be: rows of the job's ledger, its weights and their parts, activations by tokens.

A block is compared by its bucket: a multiple of 2 MiB from 10 MiB up. Every reading is given, the likelier first: one
that is exact in the job as it is, before one that needs another number of tokens or ranks."""

import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple

from memplan.diagnose.messages import LARGE, TYPES, Printed, tensor_of
from memplan.engine.tensors import Weight, model_weights
from memplan.report import LedgerRow, Report
from memplan.spec.groups import Quantised
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.units import MiB

ITEMSIZES = ((4, "fp32"), (2, "16 bit"))
FP32 = 4
OF_LOGITS = ("loss", "backward", "evaluate", "rollout")
"""Moments at which there are logits."""
LARGEST_POOLED = 10 * MiB
"""Below it a tensor's block is 2 or 20 MiB whatever it holds."""
MOST = 12
"""Readings that are given."""
SUB_GROUP = 10**9
ELSEWHERE, WEAK = 3, 4
"""What a reading loses where its tensors are made at another moment; and the last rank that is given beside better."""
RANKS = (2, 4, 8, 16, 32, 64)
"""Ranks that a shard may be of, where the job's own number explains nothing."""


class Match(NamedTuple):
    """One reading of a size."""

    name: str
    bytes: int
    shape: str
    tokens: int | None
    why: str
    rank: int = 0
    """Of its kind among others: the smaller the likelier."""
    phases: tuple[str, ...] = ()
    """Moments at which such a tensor is made; empty for any."""
    born: str = ""
    """The instant at which a row of the ledger comes."""

    def to_dict(self) -> dict[str, object]:
        """The JSON."""
        return {"name": self.name, "bytes": self.bytes, "shape": self.shape, "tokens": self.tokens, "why": self.why}


_WRITTEN = re.compile(
    r"\bempty(?:_strided)?(?:_[a-z]+)?\(\(([\d, ]+)\)[^\n]{0,80}?torch\.(\w+)|shape\[([\d,]+)\] and type (\w+)"
)
ABOVE = 500
"""Characters above a message in which the line is that asked."""
LAST = Match("", 0, "", None, "", 99)


class Bucket(NamedTuple):
    """The bytes that a tensor may have."""

    low: int
    high: int

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.low <= size <= self.high

    def units(self, one: int) -> tuple[int, int] | None:
        """The least and the most whole units of so many bytes that lie in it; None where none does."""
        least, most = -(-self.low // one), self.high // one
        return (least, most) if 0 < least <= most else None


def bucket_of(requested: Printed) -> Bucket:
    """Of a block's printed size."""
    return Bucket(*tensor_of(requested))


def readings(requested: Printed, report: Report, phase: str) -> list[Match]:
    """What the size is in this job, likelier first; none for sizes that every small tensor has."""
    bucket, recipe = bucket_of(requested), report.recipe
    if recipe is None or is_anything(requested):
        return []
    found = [
        *_rows(bucket, report),
        *_weights(bucket, recipe),
        *_of_tokens(bucket, recipe.model, recipe.rows * recipe.batch.sequence_length),
        *_scores(bucket, recipe),
    ]
    return _best(found, phase)


def is_anything(requested: Printed) -> bool:
    """Whether the block is one of those that any tensor below 10 MiB gets, so that its size names nothing."""
    return requested.high < LARGEST_POOLED or requested.low <= LARGE <= requested.high


def written(requested: Printed, before: str) -> Iterator[Match]:
    """The tensor whose shape the line that asked for it says, as a compiled graph's buffers and TensorFlow do."""
    for match in _WRITTEN.finditer(before[-ABOVE:]):
        sizes = [int(size) for size in re.findall(r"\d+", match[1] or match[3])]
        dtype = match[2] or match[4]
        itemsize = TYPES.get(dtype, 0)
        size = prod(sizes) * itemsize
        if size in bucket_of(requested):
            shape = " × ".join(f"{each:,}" for each in sizes) + f" × {itemsize} B"
            yield Match(f"a buffer of {dtype}", size, shape, None, "as the line says that asked for it", -1)


def readings_of_model(requested: Printed, spec: ModelSpec) -> list[Match]:
    """The same of a model alone, the job unknown."""
    bucket = bucket_of(requested)
    if is_anything(requested):
        return []
    return _best([*_of_weights(bucket, model_weights(spec)), *_of_tokens(bucket, spec, 0)], "unknown")


def _best(found: Iterable[Match], phase: str) -> list[Match]:
    """One of each name and size, those that fit the moment first."""
    once: dict[tuple[str, int], Match] = {}
    for match in found:
        away = bool(match.phases) and phase not in ("unknown", *match.phases)
        ranked = match._replace(rank=match.rank + ELSEWHERE * away)
        if ranked.rank < once.get((match.name, match.bytes), LAST).rank:
            once[match.name, match.bytes] = ranked
    ordered = sorted(once.values(), key=lambda each: each.rank)
    return [match for match in ordered if match.rank <= max(WEAK, ordered[0].rank)][:MOST]


def _rows(bucket: Bucket, report: Report) -> Iterator[Match]:
    """Rows of the ledger, wherever they live; what is there all the time was made at the start."""
    first, last = report.per_gpu.instants[0].name, report.per_gpu.instants[-1].name
    for row in report.per_gpu.ledger:
        size, shape = _one_of(row)
        if size in bucket and row.place == "gpu" and row.meter == "allocated":
            why = f"a row of this job's ledger: {row.why}"
            always = row.born == first and row.dies == last
            phases, born = (("start",), "") if always else (_moment(row.born, row.category == "logits"), row.born)
            yield Match(row.name, size, shape, None, why, 1, phases, born)


def _one_of(row: LedgerRow) -> tuple[int, str]:
    """Bytes and shape of one of a row's tensors: a request is for one."""
    names, _, numbers = row.formula.partition(" = ")
    *kind, symbol = names.split(" × ")
    if kind != ["layers", "tensors", "bytes"]:
        return row.bytes, row.formula
    layers, tensors, itemsize, elements = numbers.split(" × ")
    return row.bytes // (int(layers) * int(tensors)), f"{symbol} = {elements} × {itemsize} B"


def _moment(instant: str, logits: bool) -> tuple[str, ...]:
    """As a message's frames would have it: the head's logits are of the loss."""
    point = instant.partition(".")[2]
    if instant.startswith("step.") or point == "optimizer":
        return ("optimizer", "start")
    if point == "loss" or (logits and "backward" not in point):
        return ("loss", "evaluate")
    return ("backward", "reduce") if "backward" in point or point == "reduce" else ("forward", "loss")


def _weights(bucket: Bucket, recipe: Recipe) -> Iterator[Match]:
    """Weights, the parts of them that a rank holds, and what an optimizer's step takes at once."""
    weights = model_weights(recipe.model, recipe.adapter is None, recipe.adapter)
    yield from _of_weights(bucket, weights)
    yield from _packed(bucket, weights, recipe.quantised)
    total = sum(weight.elements * weight.copies for weight in weights)
    trained = sum(weight.elements * weight.copies for weight in weights if weight.trained)
    ranks = recipe.sharding.ranks
    for number, elements in (("trained parameters", trained), ("parameters", total)):
        yield from _parts(bucket, elements, number, ranks, ("start", "optimizer", "reduce"))
    largest = max(weight.elements for weight in weights) // ranks
    if recipe.zero_stage == 3 and trained // ranks >= SUB_GROUP - largest - SUB_GROUP // 10:
        yield from sub_groups(bucket, largest)
    for run in recipe.model.runs:
        yield from _parts(bucket, run.layer.parameters, "one layer, flat", ranks, ())


def sub_groups(bucket: Bucket, largest: int = SUB_GROUP // 10) -> Iterator[Match]:
    """Tensors of a rank's part, taken until sub_group_size is passed: within one tensor of it (deepspeed 0.19
    runtime/zero/stage3.py: _create_fp16_sub_groups)."""
    least, most = SUB_GROUP - largest - SUB_GROUP // 10, SUB_GROUP + largest
    elements = SUB_GROUP if SUB_GROUP * FP32 in bucket else bucket.low // FP32
    if least <= elements <= most:
        why = "sub_group_size, 1e9 elements, as near as whole tensors come to it"
        yield Match(
            "a ZeRO-3 sub-group in fp32", elements * FP32, f"{elements:,} × 4 B", None, why, 2, ("start", "optimizer")
        )


def _parts(
    bucket: Bucket, elements: int, what: str, ranks: int, phases: tuple[str, ...], rank: int = 2
) -> Iterator[Match]:
    """So many elements on one card, or a rank's share of them; of another number of ranks where that fits alone."""
    for each, unusual in ((ranks, 0), *((other, 3) for other in (1, *RANKS) if other != ranks)):
        for itemsize, dtype in ITEMSIZES:
            size = -(-elements // each) * itemsize
            if size in bucket:
                of = f" / {each} ranks" if each > 1 else ""
                why = f"so {each} ranks, where the job has {ranks}" if unusual else "a flat buffer of a sharded engine"
                yield Match(
                    f"{what} in {dtype}" + (", a rank's part" if each > 1 else ""),
                    size, f"{elements:,}{of} × {itemsize} B", None, why, rank + unusual, phases,
                )  # fmt: skip


def _of_weights(bucket: Bucket, weights: Iterable[Weight]) -> Iterator[Match]:
    seen = set()
    for weight in weights:
        for itemsize, dtype in ITEMSIZES:
            size = weight.elements * itemsize
            key = (weight.name.rsplit(".", 1)[-1], size)
            if size in bucket and key not in seen:
                seen.add(key)
                stacked = f"{weight.stacked:,} × " if weight.stacked > 1 else ""
                shape = f"{stacked}{weight.rows:,} × {weight.columns:,} × {itemsize} B"
                why = "a tensor of the model: the weight, its gradient, a state of it, or the weight dequantised"
                yield Match(f"{weight.name} in {dtype}", size, shape, None, why, 2)


def _packed(bucket: Bucket, weights: Iterable[Weight], base: Quantised | None) -> Iterator[Match]:
    """Weights as the quantised base holds them: what loading and saving ask for."""
    for weight in weights:
        size = weight.packed(base, 1).rows
        if base is not None and size in bucket and weight.quantised_by(base) and not weight.trained:
            shape = f"{weight.rows * weight.stacked:,} × {weight.columns:,} in {base.scheme.bits} bits"
            yield Match(f"{weight.name}, packed", size, shape, None, f"a weight as {base.scheme.title} holds it", 1)


def _of_tokens(bucket: Bucket, spec: ModelSpec, expected: int) -> Iterator[Match]:
    """Tensors of tokens × a width: logits, the feed-forward's, the residual stream's."""
    inner = max((run.layer.feed_forward.intermediate for run in spec.runs if run.layer.feed_forward), default=0)
    vocabulary = spec.head.outputs if spec.head.outputs > 1 else spec.vocab_size
    widths = (
        ("logits", "vocabulary", vocabulary, OF_LOGITS, 1),
        ("a feed-forward's activation", "intermediate size", inner, ("forward", "backward"), 3),
        ("a hidden state", "hidden size", spec.hidden_size, ("forward", "backward"), 4),
    )
    for name, what, width, phases, rank in widths:
        for itemsize, dtype in ITEMSIZES:
            found = bucket.units(width * itemsize) if width else None
            if found is None:
                continue
            tokens, exact = _likely(found, expected)
            spread = found[1] - found[0]
            why = _why(tokens, expected, exact, spread)
            shape = f"{tokens:,} tokens × {width:,} ({what}) × {itemsize} B"
            known = rank if exact else rank + 2 + (not _round(tokens))
            yield Match(f"{name} in {dtype}", tokens * width * itemsize, shape, tokens, why, known, phases)


def _likely(found: tuple[int, int], expected: int) -> tuple[int, bool]:
    """Of the tokens that fit, those of the job, else the roundest; and whether they are the job's."""
    least, most = found
    if expected and (least <= expected <= most):
        return expected, True
    for power in (4096, 2048, 1024, 512, 256):
        rounded = -(-least // power) * power
        if rounded <= most and most - least < power // 4:
            return rounded, False
    return (least + most) // 2, False


def _round(tokens: int) -> bool:
    return tokens % 256 == 0


def _why(tokens: int, expected: int, exact: bool, spread: int) -> str:
    if exact:
        return "rows × length of the job's micro-batch"
    about = "about " if spread else ""
    if expected:
        return f"so the micro-batch had {about}{tokens:,} tokens, where the job says {expected:,}"
    return f"{about}{tokens:,} tokens" + (": a round number" if _round(tokens) else "")


def _scores(bucket: Bucket, recipe: Recipe) -> Iterator[Match]:
    """Attention scores of an implementation that makes them whole."""
    rows, heads = recipe.rows, recipe.model.num_heads
    length, longest = recipe.batch.sequence_length, recipe.model.max_positions
    whys = {length: "attention that makes them whole"}
    if longest and longest != length:
        whys[longest] = "so sequences were padded to the model's longest, not to the job's length"
    for itemsize, dtype in ITEMSIZES if heads else ():
        for each, why in whys.items():
            size = rows * heads * each * each * itemsize
            shape = f"{rows} rows × {heads} heads × {each:,}² × {itemsize} B"
            if size in bucket:
                name, phases = f"attention scores in {dtype}", ("forward", "backward")
                yield Match(name, size, shape, rows * each, why, 1, phases)
