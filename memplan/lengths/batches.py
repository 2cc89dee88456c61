"""What a trainer makes of sequences: the fullest micro-batch of a step, on the worst of its ranks.

Peaks grow with the length of a micro-batch (a test holds it), so of all the micro-batches of a step the longest alone
decides. Where rows are padded to the longest, that is the longest of the step, whichever rank has it."""

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
MOST_GROUPED = 1_000_000
"""Examples of a megabatch, or of a few steps, up to which grouping is followed."""
BUDGETED, MOST_BUDGETED = 4000, 500
"""Sequences that are divided by a token budget in all, and in one step: more fill their rows no less."""
LEAST_BATCHES = 8
"""That are made of the packs at hand; where there are fewer, nothing is drawn of them."""
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
    sequences, paired = sequences_of(lengths)
    rows = recipe.rows // 2 if paired and recipe.method.pairs else recipe.rows
    collator = COLLATORS.get(recipe.trainer.name, Collator())
    budget = int(recipe.provenance.job.get("token_budget") or 0)
    fit = _fitting(recipe, lengths.pad_to_multiple_of or collator.multiple)
    if lengths.packing != "none":
        return _of_packed(recipe, sequences, lengths, budget)
    if budget:
        return _of_budget(recipe, sequences, budget)
    two_stacks = recipe.model.task == "seq2seq"
    if two_stacks or not pads(recipe):
        longest = recipe.batch.sequence_length
        what = "how long the decoder's rows are" if two_stacks else f"how {recipe.trainer.title} makes micro-batches"
        note = f"{what} is not drawn: every row is {longest:,} tokens long"
        return _full(sequences, longest, "rows of one length", note)
    masked = can_mask and collator.masks and recipe.rows > 1
    words = (
        f"{recipe.rows} row{'s' if recipe.rows > 1 else ''} padded to the longest{', with a mask' if masked else ''}"
    )
    note = APART if recipe.method.online else ""
    change = _padded_to(recipe, masked)
    found = Batches(sequences, sequences, rows * _a_step(recipe), fit, change, words, note=note)
    return _grouped(found, recipe, rows) if lengths.group_by_length else found


def sequences_of(lengths: Lengths) -> tuple[Distribution, bool]:
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


def _fitting(recipe: Recipe, multiple: int, most: int = 0) -> Callable[[int], int]:
    """Cut at the most, the job's length, no shorter than its images, padded to a multiple, divisible among ranks."""
    images = recipe.batch.images
    most = most or recipe.batch.sequence_length
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


def _in_one_row(recipe: Recipe, budget: int) -> Callable[[int], dict[str, Any]]:
    """All tokens of a micro-batch in a row without padding. Flash attention knows where its sequences end, so that
    rows of the same number of tokens in all are the same to it; elsewhere a mask is as wide as the whole row."""
    if budget:
        halves, longest = 2 if recipe.method.pairs else 1, int(recipe.provenance.job["sequence_length"])
        return lambda tokens: {"token_budget": tokens, "sequence_length": min(longest, max(1, tokens // halves))}
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
    if max(mega, 4 * a_step) > MOST_GROUPED:
        return found._replace(note=f"group_by_length is not followed over {mega:,} examples: batches are drawn without")
    lengths = [found.sequences.quantile(rng.random()) for _ in range(max(POOL, 4 * a_step) // mega * mega or mega)]
    by_length = [each for at in range(0, len(lengths), mega) for each in sorted(lengths[at : at + mega], reverse=True)]
    longest = sorted(max(by_length[at : at + a_step]) for at in range(0, len(by_length), a_step))
    words = f"{found.words}, grouped by length"
    return found._replace(micro_batches=Sample(longest), draws=1, words=words)


def _full(sequences: Distribution, length: int, words: str, note: str = "") -> Batches:
    """Rows that are all as long as the job allows: the estimate as it is."""
    return Batches(sequences, Sample((length,)), 1, lambda _: length, lambda _: {}, words, False, note)


def _of_packed(recipe: Recipe, sequences: Distribution, lengths: Lengths, budget: int) -> Batches:
    """Rows packed before the batch is made; those without padding between them then become one row."""
    how, size, longest = lengths.packing, recipe.batch.size, recipe.batch.sequence_length
    if recipe.method.name != "sft":
        raise InvalidJob(f"lengths.packing: {recipe.method.name} packs no sequences", "leave lengths.packing out")
    if how in ("wrapped", "knapsack"):
        return _full(sequences, longest, f"{size} rows of {longest:,} tokens, packed ({how})")
    rng, room = Random(0), budget or (longest * size if how == "multipack" else longest)
    bins = packed(how, [sequences.quantile(rng.random()) for _ in range(POOL)], room)
    if not bins:
        raise InvalidJob(f"lengths: every sequence is longer than {room:,} tokens", "give a longer sequence_length")
    take = 1 if how == "multipack" else size
    if take * LEAST_BATCHES > len(bins):
        return _full(
            sequences, longest, f"{size} rows of {longest:,} tokens", "so many packs in a batch are taken as full"
        )
    rng.shuffle(bins)
    tokens = sorted(sum(bins[at : at + take]) for at in range(0, max(1, len(bins) - take + 1), take))
    words = f"one row of {'a' if take == 1 else take} pack{'s' if take > 1 else ''} ({how}), without padding between"
    fit = _fitting(recipe, lengths.pad_to_multiple_of or 1, most=room * take)
    return Batches(sequences, Sample(tokens), _a_step(recipe), fit, _in_one_row(recipe, budget), words, False)


def _of_budget(recipe: Recipe, sequences: Distribution, budget: int) -> Batches:
    """A rank's sequences of a step in micro-batches of so many tokens (verl's ``use_dynamic_bsz``)."""
    job, ranks = recipe.provenance.job, recipe.parallel.data
    examples = (job.get("global_batch_size") or 0) * (2 if recipe.method.pairs else recipe.batch.group) // ranks
    words = f"one row of the sequences that {budget:,} tokens hold"
    if recipe.trainer.name != "verl" or not examples:
        note = "how full rows are is not drawn (of verl's it is, where global_batch_size is given): every one is full"
        return _full(sequences, recipe.batch.sequence_length, words, note)
    rng, longest, examples = Random(0), int(job["sequence_length"]), min(examples, MOST_BUDGETED)
    steps = range(BUDGETED // examples)
    draws = ([min(sequences.quantile(rng.random()), longest) for _ in range(examples)] for _ in steps)
    tokens = sorted(max(map(sum, token_budget(lengths, budget))) for lengths in draws)
    fit = _fitting(recipe, 1, most=max(tokens))
    return Batches(sequences, Sample(tokens), ranks, fit, _in_one_row(recipe, budget), words, False)
