"""The whole of it: message, moment, tensor, causes, changes; alone, or beside the job's own estimate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from memplan.api import estimate
from memplan.diagnose.causes import Advice, advice, causes, is_fragmented, others
from memplan.diagnose.guesses import guesses
from memplan.diagnose.messages import Message, messages
from memplan.diagnose.phases import Frame, Place, frames_of, place_in_log, place_of, plain_lines, was_resumed
from memplan.diagnose.readings import Match, readings, written
from memplan.errors import UsageError
from memplan.meters import needed_of
from memplan.moments import phase_of
from memplan.report import Remedy, Report
from memplan.spec.reading import JobInput, with_changes
from memplan.units import GiB, MiB, ceil_div, format_bytes

LONGEST = 4_000_000
"""Characters of a log that are read: its end, where the error is."""
LINE = 120
"""Characters of a message in which it may name the shape itself."""
LIKELY = 2
"""The last rank of readings that say something of the moment by themselves."""
OF_PHASE = {"forward": "forward", "loss": "forward", "backward": "backward", "reduce": "backward", "optimizer": "step",
            "evaluate": "evaluate", "load": "load", "resume": "resume", "save": "save", "merge": "merge",
            "sync": "sync"}  # fmt: skip
"""A report's phase of each moment."""


class Diagnosis(NamedTuple):
    """What an out-of-memory text says, and what follows from it."""

    message: Message
    place: Place
    errors: int
    """Errors in the text: of ranks, or again and again."""
    matches: tuple[Match, ...] = ()
    causes: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    remedies: Sequence[Remedy] = ()
    report: Report | None = None
    instant: str = ""
    solved: str = ""
    """What the job needs with the batch that the size tells of, in words."""

    @property
    def at_least(self) -> int | None:
        """Bytes of tensors at the moment of the error: a lower bound of the peak."""
        allocated, asked = self.message.allocated, self.message.requested
        return None if allocated is None or asked is None else allocated.bytes + asked.low

    @property
    def tokens(self) -> int | None:
        """Of the micro-batch, where the likeliest reading tells."""
        return next((match.tokens for match in self.matches if match.tokens), None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON; null where the text does not say."""
        message = self.message
        sizes = {
            "requested_bytes": message.requested,
            "allocated_bytes": message.allocated,
            "capacity_bytes": message.capacity,
            "free_bytes": message.free,
        }
        reserved = message.reserved.bytes if message.reserved else None
        if reserved is None and message.allocated is not None and message.unallocated is not None:
            reserved = message.allocated.bytes + message.unallocated.bytes
        return {
            "form": message.form,
            **{name: size.bytes if size else None for name, size in sizes.items()},
            "reserved_bytes": reserved,
            "other_bytes": others(message),
            "rank": message.rank,
            "phase": self.place.phase,
            "instant": self.instant or None,
            "fragmented": is_fragmented(message),
            "matches": [match.to_dict() for match in self.matches],
            "causes": list(self.causes),
            "remedies": [_remedy(remedy) for remedy in self.remedies] or [each.to_dict() for each in self.advice],
            "place": message.place,
            "errors": self.errors,
            "phase_from": self.place.because or None,
            "at_least_bytes": self.at_least,
            "estimated": None if self.report is None else _estimated(self.report),
            "solved": self.solved or None,
        }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {name: getattr(remedy, name) for name in ("title", "changes", "cost", "device_bytes", "fits")}


def _estimated(report: Report) -> dict[str, Any]:
    gpu, verdict = report.per_gpu, report.verdict
    return {
        "allocated_bytes": gpu.allocated_bytes,
        "device_bytes": gpu.device_bytes.expected,
        "peak_instant": gpu.peak_instant,
        "fits": verdict.fits if verdict else None,
    }


def diagnose(text: str, report: Report | None = None) -> Diagnosis:
    """What an out-of-memory text says. ``report``: the estimate of the job that wrote it.

    Raises UsageError for a text that speaks of no memory."""
    text = text[-LONGEST:]
    found = messages(text)
    if not found:
        raise UsageError(
            "no out-of-memory error in this text",
            "give the whole message, such as: CUDA out of memory. Tried to allocate …",
        )
    message = found[0]
    place = _place(text, message)
    matches = _matches(text, message, place, report)
    instant = _instant(report, message, place, matches)
    if place.phase == "unknown" and report is not None and matches:
        place = _by_size(matches, instant)
    return Diagnosis(
        message, place, len(found), tuple(matches), tuple(causes(message, place)), tuple(advice(message, place)),
        report.remedies if report is not None else (), report, instant,
    )  # fmt: skip


def diagnose_job(text: str, given: JobInput) -> Diagnosis:
    """The same with the job behind it; where the size tells of a longer batch than the job says, the changes are those
    for that batch. A job that names no card had the one of which the message says the total. Raises InvalidJob or
    ModelError as an estimate does."""
    report = estimate(given)
    found = diagnose(text, report)
    total = found.message.capacity if found.message.place == "card" else None
    if report.verdict is None and total is not None and total.bytes >= GiB:
        return diagnose_job(text, with_changes(given, {"gpu": f"{total.bytes / GiB:.2f}GiB"}))
    longer = _longer(found, report)
    if not longer:
        remedies, words = job_remedies(given, report, found.message, found.place.phase)
        return found._replace(remedies=remedies, solved=words)
    again = estimate(with_changes(given, longer))
    verdict = again.verdict
    device = needed_of(verdict) if verdict else again.per_gpu.device_bytes.expected
    fits = f" ({verdict.fits} on {verdict.gpu})" if verdict else ""
    what = ", ".join(f"{key} {value:,}" for key, value in longer.items())
    solved = f"With {what}, as the size tells, the job needs {format_bytes(device)} of the device{fits}."
    return found._replace(solved=solved, remedies=first_of(as_said(report, longer, device), again.remedies))


def _longer(found: Diagnosis, report: Report) -> dict[str, int]:
    """What of the job makes the batch that the likeliest reading tells of, where it is more than the job's: more rows
    of the job's length, or longer ones; empty elsewhere."""
    recipe = report.recipe
    if recipe is None or not found.matches or found.matches[0].tokens is None or found.place.phase == "evaluate":
        return {}
    tokens, length = found.matches[0].tokens, recipe.batch.sequence_length
    an_example = recipe.rows // recipe.batch.size * length
    if tokens <= recipe.rows * length:
        return {}
    if tokens % an_example == 0:
        return {"batch_size": tokens // an_example}
    longer = ceil_div(tokens, recipe.rows)
    return {"sequence_length": longer} if longer <= (recipe.model.max_positions or longer) else {}


def _by_size(matches: Sequence[Match], instant: str) -> Place:
    """Of what the size is: where the row comes, or the one moment at which such tensors are made."""
    best = [match for match in matches if match.rank == matches[0].rank]
    at = next((match for match in best if match.born and match.born == instant), best[0])
    telling = (best[0].rank <= LIKELY or best[0].name.startswith("logits")) and (
        at.born or len({match.phases[:1] for match in best}) == 1
    )
    return Place(at.phases[0], at.name, "size") if telling and at.phases else Place("unknown")


def _place(text: str, message: Message) -> Place:
    """By frames, else by the log before the error, else by the words around it."""
    before = text[: message.at]
    place = place_of(frames_of(before) or frames_of(text) or [Frame("", "", _line_above(before))])
    if place.phase != "unknown":
        return place._replace(resumed=was_resumed(text, message.at) and place.phase != "resume")
    if message.place == "engine":
        return Place("rollout", "the engine's start", "form")
    if message.form == "nccl":
        return Place("start", "the first collective", "form")
    return place_in_log(text, message.at)


def _line_above(text: str) -> str:
    """The line of code over a message whose frames were cut away."""
    return next((line for line in reversed(plain_lines(text)[:-1]) if line.strip()), "")


def _matches(text: str, message: Message, place: Place, report: Report | None) -> list[Match]:
    if message.requested is None or message.place != "card":
        return []
    named = list(written(message.requested, text[: message.at + LINE]))
    if report is None:
        return named or guesses(message.requested, text, place)
    return [*named, *readings(message.requested, report, place.phase)]


def _instant(report: Report | None, message: Message, place: Place, matches: Sequence[Match]) -> str:
    """The fullest instant of the job's in this moment; where it is not known, the one of a row of this size whose total
    is nearest to what the message adds up to."""
    if report is None:
        return ""
    totals = {at.name: at.allocated_bytes for at in report.per_gpu.instants}
    points = {"loss": ("loss",), "optimizer": ("optimizer",), "reduce": ("reduce",)}.get(place.phase)
    phase = OF_PHASE.get(place.phase)
    inside = [
        name
        for name in totals
        if (name.partition(".")[2] in points if points else phase is not None and phase_of(name) == phase)
    ]
    if inside:
        return max(inside, key=totals.__getitem__)
    born = [match.born for match in matches if match.rank <= LIKELY and match.born in totals]
    least = message.allocated.bytes + message.requested.low if message.allocated and message.requested else None
    return min(born, key=lambda name: abs(totals[name] - least) if least else 0, default="")


def differs(found: Diagnosis) -> str:
    """What must be otherwise in the job where the error's own numbers exceed the estimate; empty where they do not."""
    report, least = found.report, found.at_least
    if report is None or least is None or least <= report.per_gpu.allocated_range.high:
        return ""
    more = format_bytes(least - report.per_gpu.allocated_range.high)
    job = report.job
    suspects = [
        text
        for key, value, text in (
            ("gradient_checkpointing", "full", "checkpointing was off"),
            ("attention", "flash", "attention was eager"),
            ("loss_head", "fused", "the loss made whole logits"),
        )
        if job.get(key) == value
    ]
    suspects += ["weights were loaded in fp32"] if job.get("precision") not in ("fp32",) else []
    if found.tokens:
        suspects.insert(0, f"the batch had {found.tokens:,} tokens")
    return f"The run held {more} more than this job's estimate at its most: perhaps {', or '.join(suspects)}."


OF_THE_STEP = ("forward", "loss", "backward", "reduce", "optimizer", "start", "load", "unknown")
"""Moments that a job's own settings decide; elsewhere the change is one of saving, of evaluation, of the engine."""
LARGEST_MARGIN = 0.9


def job_remedies(given: JobInput, report: Report, message: Message, phase: str) -> tuple[Sequence[Remedy], str]:
    """The changes, and in words what they are held against where that is more than the estimate."""
    verdict = report.verdict
    if verdict is None or verdict.fits != "yes":
        return report.remedies, ""
    elsewhere = others(message) or 0
    if message.place != "card" or phase not in OF_THE_STEP or elsewhere > max(256 * MiB, verdict.headroom_bytes):
        return (), ""
    least = message.allocated.bytes + message.requested.low if message.allocated and message.requested else 0
    beyond = max(0, verdict.headroom_bytes, least - report.per_gpu.allocated_range.high)
    margin = min(LARGEST_MARGIN, given.job.margin + beyond / verdict.usable_bytes)
    again = estimate(with_changes(given, {"margin": margin}))
    words = (
        f"The estimate fits, and the run did not: it held {format_bytes(beyond)} more at least, "
        "which these changes free beside the margin."
    )
    return again.remedies, words if again.remedies else ""


def as_said(report: Report, longer: dict[str, int], needed: int) -> tuple[Remedy, ...]:
    """The batch that the job says, where the size tells of a longer one and the job's own fits. ``needed``: bytes of
    the device with the longer one."""
    if report.verdict is None or report.verdict.fits != "yes":
        return ()
    changes = {key: report.job[key] for key in longer}
    gpu = report.per_gpu
    length = changes.get("sequence_length")
    title = f"samples cut at the job's {length:,} tokens" if length else f"batch size {changes['batch_size']}, as told"
    cost = "data" if length else "nothing"
    return (
        Remedy(
            title, changes, cost, needed - needed_of(report.verdict), needed_of(report.verdict),
            gpu.allocated_bytes, report.verdict.fits, host_bytes_per_node=report.host.bytes_per_node,
        ),
    )  # fmt: skip


def first_of(own: Sequence[Remedy], more: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Both lists as one, no set of changes twice."""
    return (*own, *(replace(each) for each in more if all(each.changes != other.changes for other in own)))
