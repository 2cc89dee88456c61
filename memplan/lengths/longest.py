"""What the lengths of the data make of an estimate: rows no longer than the longest that comes, and a verdict that
knows of the runs that were drawn."""

from dataclasses import replace

from memplan.drawn import Lengths as Drawn
from memplan.errors import InvalidJob
from memplan.report import Report, Verdict
from memplan.resolve import resolve
from memplan.spec.lengths import Lengths
from memplan.spec.reading import JobInput, with_changes


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
    """The verdict on the longest row, which none is milder than; padding or changing lengths may make it worse."""
    verdict, died = report.verdict, found.played is not None and found.played.died
    if verdict is None or verdict.fits not in ("yes", "tight") or not (found.p_oom or died):
        return verdict
    spare = verdict.usable_bytes - found.worst.device_bytes
    short = int(verdict.usable_bytes * report.job.get("margin", 0)) - spare
    fits = "no" if found.p_oom else "tight"
    missing = max(verdict.missing_bytes, short, 1)
    return replace(verdict, fits=fits, headroom_bytes=min(spare, verdict.headroom_bytes), missing_bytes=missing)
