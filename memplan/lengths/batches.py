"""What a trainer makes of sequences: the fullest micro-batch of a step, on the worst of its ranks.

Peaks grow with the length of a micro-batch (a test holds it), so of all the micro-batches of a step the longest alone
decides. Where rows are padded to the longest of them, that is the longest of all sequences of the step, whichever rank
has it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.lengths.collators import COLLATORS, Collator, pads
from memplan.lengths.distribution import Distribution, Sample, distribution
from memplan.lengths.files import read_lengths
from memplan.lengths.packing import packed, token_budget
from memplan.spec.lengths import Lengths
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div, round_up

APART = (
    "lengths are taken of prompt and completion together; a trainer that pads each apart (TRL's GRPO and RLOO) makes "
    "rows as long as the longest prompt and the longest completion"
)
POOL = 20_000
"""Examples that are packed or grouped to see what comes of it."""
MEGABATCH = 50
"""``mega_batch_mult`` of transformers' LengthGroupedSampler (trainer_pt_utils.py: get_length_grouped_indices)."""


class Batches(NamedTuple):
    """The lengths of micro-batches, and what they change in the job."""

    sequences: Distribution
    micro_batches: Distribution
    draws: int
    """Independent draws of ``micro_batches`` whose longest is the fullest of a step."""
    fit: Callable[[int], int]
    """From a drawn length to that of the rows: cut and padded."""
    changes: Callable[[int], dict[str, Any]]
    """What a micro-batch of this length changes in the job."""
    words: str
    by_sequence: bool = True
    """Whether the longest sequence alone decides the length of a micro-batch."""
    note: str = ""


def batches(recipe: Recipe, lengths: Lengths, can_mask: bool) -> Batches:
    """How the job's trainer makes micro-batches of sequences of such lengths."""
    sequences, paired = _sequences(lengths)
    rows = recipe.rows // 2 if paired and recipe.method.pairs else recipe.rows
    collator = COLLATORS.get(recipe.trainer.name, Collator())
    budget = recipe.provenance.job.get("token_budget")
    fit = _fitting(recipe, lengths.pad_to_multiple_of or collator.multiple)
    if budget:
        return _of_budget(recipe, sequences, int(budget))
    if lengths.packing != "none":
        return _of_packed(recipe, sequences, lengths)
    two_stacks = recipe.model.task == "seq2seq"
    if two_stacks or not pads(recipe):
        longest = recipe.batch.sequence_length
        what = "how long the decoder's rows are" if two_stacks else f"how {recipe.trainer.title} makes micro-batches"
        note = f"{what} is not drawn: every row is {longest:,} tokens long"
        whole = Sample((longest,))
        return Batches(sequences, whole, 1, lambda _: longest, lambda _: {}, "rows of one length", False, note)
    masked = can_mask and collator.masks and recipe.rows > 1
    words = (
        f"{recipe.rows} row{'s' if recipe.rows > 1 else ''} padded to the longest{', with a mask' if masked else ''}"
    )
    note = APART if recipe.method.online else ""
    change = _padded_to(recipe, masked)
    found = Batches(sequences, sequences, rows * _a_step(recipe), fit, change, words, note=note)
    return _grouped(found, recipe, rows) if lengths.group_by_length else found


def _sequences(lengths: Lengths) -> tuple[Distribution, bool]:
    """The lengths of sequences, and whether each stands for both of a pair."""
    if lengths.file is None:
        return distribution(lengths), False
    counted = read_lengths(lengths.file)
    found = sorted(counted.sequences)
    return Sample(
        found, f"{len(found):,} {'pairs' if counted.paired else 'sequences'} of {lengths.file}"
    ), counted.paired


def _a_step(recipe: Recipe) -> int:
    """Micro-batches of an optimizer step over all ranks that see other examples."""
    return recipe.batch.accumulation * recipe.parallel.data


def _fitting(recipe: Recipe, multiple: int) -> Callable[[int], int]:
    """Cut at the job's length, no shorter than its images, padded to a multiple, and divisible among ranks."""
    most, images = recipe.batch.sequence_length, recipe.batch.images
    least = (images.tokens + images.breaks) * images.per_example if images else 1
    degrees = recipe.parallel
    parts = 2 * degrees.context * degrees.tensor if degrees.context * degrees.tensor > 1 else 1

    def fit(length: int) -> int:
        rows = round_up(max(min(length, most), least), multiple)
        return rows if parts == 1 else min(round_up(rows, parts), max(most, rows))

    return fit


def _padded_to(recipe: Recipe, masked: bool) -> Callable[[int], dict[str, Any]]:
    """The job's rows at another length. A completion is no longer than its sequence."""
    completion, rollout = recipe.batch.completion_length, recipe.provenance.job.get("rollout") or {}
    mask: dict[str, Any] = {"padded": True} if masked else {}

    def changes(length: int) -> dict[str, Any]:
        scored = min(completion, length)
        if rollout.get("prompt_length"):
            scored = max(1, min(completion, length - 1))
            parts = {"prompt_length": max(1, length - scored), "completion_length": scored}
            whole = sum(parts.values())
            return {"rollout": rollout | parts, "sequence_length": whole, "completion_length": scored, **mask}
        return {"sequence_length": length, "completion_length": scored, **mask}

    return changes


def _in_one_row(recipe: Recipe) -> Callable[[int], dict[str, Any]]:
    """All tokens of a micro-batch in a row without padding. Flash attention knows where its sequences end, so that
    rows of the same number of tokens in all are the same to it; elsewhere a mask is as wide as the whole row.
    """
    size = recipe.rows if recipe.operators.attention == "flash" else 1

    def changes(tokens: int) -> dict[str, Any]:
        length = max(1, ceil_div(tokens, size))
        whole = {"global_batch_size": None, "gradient_accumulation_steps": recipe.batch.accumulation}
        return {"batch_size": size, "sequence_length": length, "completion_length": None, **whole}

    return changes


def _grouped(found: Batches, recipe: Recipe, rows: int) -> Batches:
    """Megabatches sorted by length, of which the ranks take consecutive micro-batches in turn: one draw is a step."""
    rng, a_step = Random(0), rows * _a_step(recipe)
    mega = MEGABATCH * rows * recipe.batch.accumulation
    lengths = [found.sequences.quantile(rng.random()) for _ in range(max(POOL, 4 * a_step) // mega * mega or mega)]
    by_length = [each for at in range(0, len(lengths), mega) for each in sorted(lengths[at : at + mega], reverse=True)]
    longest = sorted(max(by_length[at : at + a_step]) for at in range(0, len(by_length), a_step))
    words = f"{found.words}, grouped by length"
    return found._replace(micro_batches=Sample(longest), draws=1, words=words)


def _of_packed(recipe: Recipe, sequences: Distribution, lengths: Lengths) -> Batches:
    """Rows packed before the batch is made; those without padding between them then become one row."""
    how, size, longest = lengths.packing, recipe.batch.size, recipe.batch.sequence_length
    if recipe.method.name != "sft":
        raise InvalidJob(f"lengths.packing: {recipe.method.name} packs no sequences", "leave lengths.packing out")
    rng, multiple = Random(0), lengths.pad_to_multiple_of or 1
    drawn = [sequences.quantile(rng.random()) for _ in range(POOL)]
    if how in ("wrapped", "knapsack"):
        whole, words = Sample((longest,)), f"{size} rows of {longest:,} tokens, packed ({how})"
        return Batches(sequences, whole, 1, lambda _: longest, lambda _: {}, words, False)
    bins, take = packed(how, drawn, longest * (size if how == "multipack" else 1)), 1 if how == "multipack" else size
    if not bins:
        raise InvalidJob(f"lengths: every sequence is longer than {longest:,} tokens", "give a longer sequence_length")
    rng.shuffle(bins)
    tokens = sorted(sum(bins[at : at + take]) for at in range(0, max(1, len(bins) - take + 1), take))
    words = f"one row of {'a' if take == 1 else take} pack{'s' if take > 1 else ''} ({how}), without padding between"
    fit = lambda length: round_up(length, multiple)  # noqa: E731
    return Batches(sequences, Sample(tokens), _a_step(recipe), fit, _in_one_row(recipe), words, False)


def _of_budget(recipe: Recipe, sequences: Distribution, budget: int) -> Batches:
    """A rank's examples of a step in micro-batches of so many tokens (verl's ``use_dynamic_bsz``)."""
    rng, examples = Random(0), recipe.rows * recipe.batch.accumulation
    longest = min(recipe.batch.sequence_length, budget)
    steps = range(max(1, min(200, POOL // examples)))
    draws = [[min(sequences.quantile(rng.random()), longest) for _ in range(examples)] for _ in steps]
    tokens = sorted(max(map(sum, token_budget(lengths, budget))) for lengths in draws)
    words = f"one row of the sequences that {budget:,} tokens hold"
    return Batches(
        sequences, Sample(tokens), recipe.parallel.data, lambda length: length, _in_one_row(recipe), words, False
    )
