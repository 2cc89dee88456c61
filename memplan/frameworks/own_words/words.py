"""A change of a job in the words of the file that it came from: the reader's own table, asked backwards.

Which key of a file says a key of the job only its reader knows. So each key that the reader asks for, and whose name
speaks of the change, is tried with each value that may say it; the file is read again, and the one is taken with which
the reader makes the job that is wanted. Nothing is known here of any framework. What is shown was read, estimated, and
fits; what no key of the file says is said by memplan's own option, or the environment."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks.files.quoting import shell_word
from memplan.frameworks.own_words.asking import Asked
from memplan.report import Found, Remedy, Report
from memplan.spec.option_words import option_words
from memplan.spec.reading import JobInput, with_changes


def in_own_words(given: JobInput, report: Report) -> Report:
    """The report with each remedy in the words of the job's file, found when they are looked at."""
    if given.source is None:
        return report
    remedies = report.remedies
    return replace(report, remedies=Found(lambda: tuple(worded(given, remedies))))


def worded(given: JobInput, remedies: Iterable[Remedy]) -> Iterator[Remedy]:
    """Remedies with the lines to write, the first with the command that writes them."""
    found = _written(given, remedies)
    for first in islice(found, 1):
        command = emit_command(given, first.changes) if given.source is not None else ""
        yield replace(first, write=(*first.write, f"or: {command}")) if command else first
    yield from found


def _written(given: JobInput, remedies: Iterable[Remedy]) -> Iterator[Remedy]:
    """With their lines, which take many readings: those that are said whole as they come, then the others."""
    later: list[Remedy] = []
    for remedy in remedies:
        written = replace(remedy, write=own_lines(given, remedy.changes))
        if _is_said(written.write):
            yield written
        else:
            later.append(written)
    yield from later


def _is_said(lines: Iterable[str]) -> bool:
    """Whether words of the file, its launcher or its environment say all of it: how many GPUs is nobody's key."""
    more = [line for line in lines if line.startswith("options: ")]
    return not any(set(re.findall(r"--[a-z][\w-]*", line)) - {"--num-gpus", "--nodes"} for line in more)


def emit_command(given: JobInput, changes: Mapping[str, Any]) -> str:
    """``memplan emit TRAINER FILE … --onto FILE`` where that writes the changes; empty where it does not."""
    from memplan.frameworks.emit.onto import check_changeable
    from memplan.frameworks.emit.writing import emit

    (document, row), *_ = given.source[0]
    if row.write is None or document.form not in ("yaml", "json") or document.place:
        return ""
    wanted = with_changes(given, changes)
    try:
        check_changeable(document.path, emit(wanted, row), wanted.job)
    except (MemplanError, OSError):  # what is emitted is read back from files: there may be no place for them
        return ""
    path, options = shell_word(document.path), option_words({**given.source[1], **changes})
    return f"memplan emit {row.name} {path} {options} --onto {path}"


def own_hint(error: MemplanError) -> str:
    """The hint of an error in the words of the job's file, where they say it, whether or not it then fits."""
    changes, given = getattr(error, "changes", {}), getattr(error, "given", None)
    if not changes or given is None or given.source is None:
        return error.hint
    try:
        asked = Asked(given, changes)
        lines = [line for key, value in changes.items() for line in asked.shown(asked.said({}, key, value, {}))]
    except MemplanError:
        return error.hint
    return f"write {'; '.join(lines)}" if lines and not changes.keys() & asked.options.keys() else error.hint


def own_lines(given: JobInput, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """What to write where, for some changes of the job; memplan's options where no words of the file make it fit."""
    if given.source is None:
        return ()
    try:
        return Asked(given, changes).lines()
    except MemplanError:
        return (f"options: {option_words(changes)}",)


def first_remedy(given: JobInput, report: Report) -> tuple[str, tuple[str, ...]]:
    """The first change with which it fits, of those that the file's own words say where any are, and the lines to
    write; nothing where nothing does."""
    from memplan.remedies import remedies

    for first in worded(given, (each for each in remedies(given, report) if each.fits == "yes")):
        return first.title, first.write or (option_words(first.changes),)
    return "", ()
