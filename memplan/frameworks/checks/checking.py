"""Whether the job of each file fits its card: one answer a file, whatever is wrong with the others."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from memplan import errors
from memplan.engine.allocator.reserved import BY_BOUND, Play
from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.asking import MODEL, as_without, model_hint, one_hint, with_experts, within_positions
from memplan.frameworks.checks.assumed import assumed
from memplan.frameworks.checks.folders import is_training, launcher_alone
from memplan.frameworks.checks.larger import on_its_own, spread, unshared
from memplan.frameworks.common.local_models import question
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import Document
from memplan.frameworks.reading import as_started, documents_of, framework_of, read_opened
from memplan.gpus import find_gpu
from memplan.local_gpu import has_local
from memplan.report import Report
from memplan.spec.reading import LEFT_OUT, JobInput, with_changes, without
from memplan.units import format_bytes

_PLACE = re.compile(r"^(?P<path>.+?), line (?P<line>\d+): (?P<text>.*)$", re.DOTALL)
WORDS = {"yes": "fits", "tight": "fits tightly", "no": "does not fit"}
NO_CONFIG = "no training config that memplan knows"
EXIT_CODES = {"no": errors.EXIT_DOES_NOT_FIT, "unclear": errors.EXIT_USAGE}


@dataclass(frozen=True)
class Checked:
    """What was found of one file."""

    file: str
    fits: str
    """yes, tight, no; unclear where a key that decides memory is not understood; error where it cannot be read; skipped
    where it is no training of its own."""
    text: str
    """One sentence."""
    line: int = 1
    """The line that the sentence is about."""
    framework: str = ""
    """Whose file it is, with the version whose defaults are taken."""
    gpu: str = ""
    cards: str = ""
    """With their number: 8 × h100-80gb."""
    device_bytes: int = 0
    """What nvidia-smi is expected to show, of what was understood."""
    usable_bytes: int = 0
    headroom_bytes: int = 0
    """Usable bytes less what is needed of them; at least so much where that is a bound (``at_most``)."""
    missing_bytes: int = 0
    """By how much it is short: what must go before the high figure fits with the margin."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """As understood, in memplan's keys."""
    assumed: tuple[str, ...] = ()
    """What decides memory and the file does not say, with whose default is taken."""
    unread: tuple[Mapping[str, str], ...] = ()
    """Keys that are not understood: key, where, why, and what of memory they decide."""
    warnings: tuple[str, ...] = ()
    hint: str = ""
    exit_code: int = errors.EXIT_DONE
    remedy: str = ""
    """Where it does not fit, the first change with which it does."""
    write: tuple[str, ...] = ()
    """What to write for it, in the file's own words."""
    played: bool = False
    """Its step went through the allocator's rules, request by request; else the figures are of a band."""
    at_most: bool = False
    """What it needs, in the sentence and in headroom_bytes, is a bound: of a key counted from above, or, in a call of
    many files, of a job whose bound surely fits, so that its step is not played (--play does)."""
    name: str = ""
    """``train.sh:40`` of a script with several trainings; not in JSON, where ``line`` says it."""

    def to_dict(self) -> dict[str, Any]:
        """Names and values of JSON."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


def check_file(path: str, options: Mapping[str, Any], beside: Sequence[str] = (), framework: str = "") -> Checked:
    """The answer of one file; the first of a script with several trainings."""
    return check_all(path, options, beside, framework)[0]


def check_all(
    path: str,
    options: Mapping[str, Any],
    beside: Sequence[str] = (),
    framework: str = "",
    others: bool = True,
    advise: bool = True,
    play: Play = None,
    fresh: bool = True,
) -> list[Checked]:
    """One file under the options: an answer for each training in it, one at least. ``others``: a file that is no
    training config is an error, in place of being skipped. ``advise``: a remedy is looked for, which takes a second or
    more a file that does not fit. ``play``: of ``build_report``; ``fresh``: of ``documents_of``. Raises UsageError with
    no card named; what is wrong with a file is returned."""
    found = _guarded(path, lambda: list(documents_of(path, fresh)))
    document = None if isinstance(found, Checked) else found[0]
    if not others and os.path.isfile(path) and not is_training(path, document):
        return [Checked(path, "skipped", NO_CONFIG)]
    if isinstance(found, Checked):
        return [found]
    named = len(found) > 1 or found[0].path != path
    return [_check(document, named, options, beside, framework, advise, play) for document in found]


def _check(
    document: Document,
    named: bool,
    options: Mapping[str, Any],
    beside: Sequence[str],
    framework: str,
    advise: bool,
    play: Play,
) -> Checked:
    """One training."""
    path = document.path

    def work() -> Checked:
        from memplan.lengths.longest import at_longest, with_lengths
        from memplan.reporting import build_report
        from memplan.resolve import resolve

        def answer(given: JobInput) -> Checked:
            given = at_longest(given)
            seek = None if play == "unsure" and given.job.lengths is not None else play  # whose runs are about the need
            report = with_lengths(given, build_report(resolve(given), seek))
            if report.verdict is None:
                raise _NoCard
            return _answer(path, given, report, advise)

        try:
            row = framework_of(document) if not framework else None
        except InvalidJob:
            bare = {key: value for key, value in options.items() if key != "without"}
            if (started := as_started(document, bare, beside)) is None:  # a config of a program's own
                raise
            return answer(_on_this_machine(without(started, options.get("without", ()))))
        if row is not None and row.launches and "model" not in options:
            return Checked(path, "skipped", launcher_alone(row.title, document))

        def read(under: Mapping[str, Any]) -> JobInput:
            return _on_this_machine(read_opened(document, under, beside, framework))

        given = read(options)
        try:
            found = answer(given)
            return spread(found, given, answer) if found.fits == "unclear" else found
        except errors.ModelNotFound as error:  # with what else is asked for
            targets = given.job.lora and given.job.lora.targets
            like = question(given.job.model, targets, given.unread, options, given.job.images)
            blind = given.job.images or "images." in like  # the preset of its name's rest sees nothing
            others = _PRESET.sub("", error.hint) if blind else error.hint
            raise errors.ModelNotFound(error.message, f"{others}; or {_shared(like, given)}") from None
        except InvalidJob as error:
            try:
                larger = on_its_own(error, options, read, answer) or unshared(error, path, given, answer)
            except InvalidJob as deeper:  # on as many GPUs as it takes there would be none either
                error, larger = deeper, None
            if larger is None:  # what was not understood may be why
                raise _in_doubt(given, error) from None
            return larger

    found = _guarded(path, work)
    return replace(found, line=document.place, name=document.name) if named else found


_PRESET = re.compile(r"; or use the preset \S+")


def _in_doubt(given: JobInput, error: InvalidJob) -> InvalidJob:
    """Why there is no estimate: a question first, then what was not understood, else the error itself."""
    unnamed = given.job.model is None and given.job.total_params is None
    doubts = sorted((each for each in given.unread if each.decides), key=lambda each: not each.asks)
    why = (each for each in doubts if each.asks or not each.above)  # a bound is no cause
    first = next((each for each in why if each.asks == "model" or not unnamed), None)
    if first:
        text = first.text if unnamed else f"{first.text}; without that {error.message}"
        return NotKnown(text, _shared(one_hint(doubts) or error.hint, given))
    return NotKnown(error.message, _shared(model_hint(doubts), given)) if unnamed else error


def _shared(hint: str, given: JobInput) -> str:
    return with_experts(hint, given.job.expert_parallel, given.job.tensor_parallel)


def _on_this_machine(given: JobInput) -> JobInput:
    """With the card of this machine, where neither an option nor a file names one and there is one."""
    if given.job.gpu is not None or given.job.cluster is not None or not has_local():
        return given
    try:
        found = find_gpu("local")
    except InvalidJob:
        return given
    local = with_changes(given, {"gpu": "local"})
    return local._replace(sources=given.sources, origins={**given.origins, "gpu": found.source})


class _NoCard(Exception):
    """No option and no file names a card."""


Found = TypeVar("Found")


def _guarded(path: str, work: Callable[[], Found]) -> Found | Checked:
    """What the work finds, or what is wrong with the file: an error of its own, or one of memplan's."""
    try:
        return work()
    except _NoCard:
        raise errors.UsageError("check needs a card to fit", "add --gpu, such as --gpu h100-80gb") from None
    except NotKnown as error:
        line, text = placed(error.message, path)
        return Checked(path, "unclear", f"unclear: {text}", line, hint=error.hint, exit_code=errors.EXIT_USAGE)
    except errors.NoTraining as error:
        return Checked(path, "skipped", placed(error.message, path)[1], hint=error.hint)
    except MemplanError as error:
        from memplan.frameworks.own_words.words import own_hint

        line, text = placed(error.message, path)
        like = f"; or {MODEL}" if isinstance(error, errors.ModelNotFound) and "add --model" not in error.hint else ""
        return Checked(path, "error", text, line, hint=own_hint(error) + like, exit_code=error.exit_code)
    except Exception as error:
        text = f"internal error: {type(error).__name__}: {error}"
        return Checked(path, "error", text, hint="report it with the file", exit_code=errors.EXIT_BUG)


def _answer(path: str, given: JobInput, report: Report, advise: bool) -> Checked:
    """What is said of a file that was read."""
    assert report.verdict is not None
    verdict, device = report.verdict, report.per_gpu.device_bytes
    bound = report.per_gpu.reserved_bytes.why_not_played == BY_BOUND
    room = verdict.usable_bytes - verdict.high_bytes if bound else verdict.headroom_bytes
    gpus = int(report.job.get("num_gpus") or 1)
    short = f"short by {format_bytes(verdict.missing_bytes)}" if verdict.missing_bytes else "short of memory elsewhere"
    worse = verdict.missing_bytes and verdict.high_bytes > verdict.usable_bytes - room
    more = f", up to {format_bytes(verdict.high_bytes)} at the worst" if worse else ""
    left = short if verdict.fits == "no" else f"{format_bytes(room)} free{more}"
    cards = f"{f'{gpus} × ' if gpus > 1 else ''}{verdict.gpu}"
    above = [each for each in given.unread if each.above and (each.decides or each.why == LEFT_OUT)]
    at_most = bound or (verdict.fits != "no" and bool(above))
    needed = verdict.usable_bytes - room  # of what is held on a full card a cache is given back
    if worse and at_most and report.unclear:  # which says nothing else of the worst
        worse, needed = 0, verdict.high_bytes
    most = "at most " if at_most and not worse else ""
    needs = f"{most}{format_bytes(needed)} of {format_bytes(verdict.usable_bytes)} usable"
    hint, where = "", given.origins.get("batch_size", "")
    engine, stays = report.engine, "may not" if verdict.fits == "tight" else "does not"
    why = engine.why if engine and not engine.starts else report.engine_doubt
    if report.unclear:
        needs = f"the engine does not start: {why}" if engine and not engine.starts else f"{needs} on {cards}"
        text = f"unclear: {report.unclear}; without that {needs}"
        deciding = [each for each in given.unread if each.decides]
        hint = within_positions(one_hint(deciding), report.warnings)
        where = f"{deciding[0].where}: " if deciding else where
    else:
        reason = f"the engine {stays} start: {why}" if why else f"{needs}, {left}"
        hint = engine.hint if engine and not engine.starts else ""
        if verdict.fits == "no" and report.host.fits is False and (engine is None or engine.starts):
            there = report.host.memory_bytes or 0
            lacks = format_bytes(report.host.fullest[1] - there)
            reason = f"a node's memory of {format_bytes(there)} is short by {lacks}; {needs}"
        text = f"{WORDS[verdict.fits]} {cards}: {reason}{f'; {report.lengths.words}' if report.lengths else ''}"
    remedy, write = "", tuple[str, ...]()
    if advise and (not hint if report.unclear else verdict.fits == "no" or report.engine_doubt):
        from memplan.frameworks.own_words.words import first_remedy  # which files that fit never load

        remedy, write = first_remedy(given, report)
        hint = hint if report.unclear or not remedy else ""  # an engine that starts is not a job that fits
    hint = hint or (as_without(each for each in given.unread if each.decides) if report.unclear else "")
    told = tuple({name: getattr(each, name) for name in ("key", "where", "why", "decides")} for each in given.unread)
    return Checked(
        path, verdict.fits, text, placed(where, path)[0], given.framework, verdict.gpu, cards, device.expected,
        verdict.usable_bytes, room, verdict.missing_bytes, report.job, tuple(assumed(given, report)), told,
        report.warnings, hint, EXIT_CODES.get(verdict.fits, errors.EXIT_DONE), remedy=remedy, write=write,
        played=report.per_gpu.reserved_bytes.played, at_most=at_most,
    )  # fmt: skip


def placed(text: str, path: str) -> tuple[int, str]:
    """(line, rest) of a sentence that begins with this file and a line."""
    found = _PLACE.match(text)
    if found and found["path"] == path:
        return int(found["line"]), found["text"]
    return 1, text.removeprefix(f"{path}: ").removeprefix(f"{path} ")


def worst(found: Sequence[Checked]) -> int:
    """The exit code of all: a file that cannot be read is worse than one that does not fit."""
    codes = [each.exit_code for each in found]
    return next((code for code in codes if code > errors.EXIT_DOES_NOT_FIT), max(codes, default=errors.EXIT_DONE))
