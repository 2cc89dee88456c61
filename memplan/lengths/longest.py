"""What the lengths of the data make of an estimate: rows no longer than the longest that comes, padded as the trainer
pads them, and a verdict that knows of the runs that were drawn."""

from dataclasses import replace
from typing import NamedTuple

from memplan.drawn import Lengths as Drawn
from memplan.errors import InvalidJob
from memplan.report import Report, Verdict
from memplan.resolve import resolve
from memplan.spec.lengths import Lengths
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe


def at_longest(given: JobInput) -> JobInput:
    """The job at the longest row that comes, where that is shorter than it allows and rows are padded to the longest
    of them; as it is where the trainer fills its rows, or its completions are not those of the data."""
    lengths = given.job.lengths
    if not isinstance(lengths, Lengths):
        return given
    from memplan.lengths.batches import batches, sequences_of  # which a job without lengths never loads

    try:
        recipe = resolve(given)
    except InvalidJob:  # which a strategy may mend
        return given
    if recipe.method.generates or recipe.method.online:
        return given
    made, most = batches(recipe, lengths, False), recipe.batch.sequence_length
    longest = made.fit(round(lengths.max or sequences_of(lengths)[0].quantile(1)))
    if not made.by_sequence or longest >= most:
        return given
    found, key = with_changes(given, made.changes(longest)), "sequence_length"
    origins = {**given.origins, key: f"the longest that comes, of {most:,} allowed"}
    return found._replace(sources={**given.sources, key: "lengths"}, origins=origins)


def with_lengths(given: JobInput, report: Report, run: bool = False) -> Report:
    """The report with what batches of the job's lengths need. ``run``: one run is played through the allocator."""
    if given.job.lengths is None or report.recipe is None or report.recipe.method.generates:
        return report
    from memplan.lengths.runs import drawn_lengths

    found = drawn_lengths(given, report.recipe, run)
    return report if found is None else replace(report, lengths=found, verdict=judged(report, found))


def judged(report: Report, found: Drawn) -> Verdict | None:
    """The verdict on the longest row, which none is milder than; a mask of what is padded, or what changing lengths
    leave behind, may make it worse."""
    verdict, died = report.verdict, found.played is not None and found.played.died
    if verdict is None or verdict.fits not in ("yes", "tight") or not (found.p_oom or died):
        return verdict
    spare = verdict.usable_bytes - found.worst.device_bytes
    short = int(verdict.usable_bytes * report.job.get("margin", 0)) - spare
    fits = "no" if found.p_oom else "tight"
    missing = max(verdict.missing_bytes, short, 1)
    return replace(verdict, fits=fits, headroom_bytes=min(spare, verdict.headroom_bytes), missing_bytes=missing)


class Collator(NamedTuple):
    """How a trainer pads to the longest row of a micro-batch."""

    masks: bool = False
    """The model is given the mask of what is padded."""
    multiple: int = 1
    source: str = ""


COLLATORS = {
    "pytorch": Collator(source="a loop that pads to the longest row is assumed"),
    "transformers": Collator(True, source="transformers 5.0, data/data_collator.py: padding=True"),
    "trl": Collator(True, source="trl 1.16, DataCollatorForLanguageModeling, DataCollatorForPreference"),
    "simpo-repo": Collator(True, source="trl 0.9, DPODataCollatorWithPadding"),
    "llamafactory": Collator(True, 8, "LLaMA-Factory 0.9.5, train/*/workflow.py: pad_to_multiple_of=8"),
    "swift": Collator(True, source="ms-swift 4, template/base.py: data_collator"),
    "openrlhf": Collator(True, source="OpenRLHF 0.11, datasets/*_dataset.py: zero_pad_sequences"),
    "litgpt": Collator(source="litgpt 0.5, data/base.py: get_sft_collate_fn"),
    "torchtune": Collator(source="torchtune 0.6, data/_collate.py: padded_collate_sft"),
}
"""By trainer; those without a row make rows of one length, or nobody has read how they make them."""


def pads(recipe: Recipe) -> bool:
    """Whether rows are padded to the longest of them."""
    return recipe.trainer.name in COLLATORS and not recipe.in_megatron


def longest_assumed(given: JobInput, recipe: Recipe) -> tuple[str, ...]:
    """What an estimate says that knows nothing of lengths, where the trainer pads no further than it must."""
    if given.job.lengths is not None or not pads(recipe):
        return ()
    said = f"every sequence is taken as the longest allowed, {recipe.batch.sequence_length:,} tokens"
    return (f"lengths: {said}; --lengths draws real ones",)
