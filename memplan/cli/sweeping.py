"""memplan compare --grid: thousands of jobs, their rows streamed to a file that can be taken up again."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan.cli import options, output
from memplan.cli.edge import note
from memplan.errors import EXIT_DONE, UsageError, did_you_mean
from memplan.render.progress import Bar, on_terminal
from memplan.spec.reading import understood

if TYPE_CHECKING:
    from memplan.comparison import Axis
    from memplan.comparison.sweep import Grid

TOLD_EVERY_S = 30.0
"""Where standard error is no terminal, how often a line says how far the sweep is."""
MOST_PROCESSES = 1024


class Place(NamedTuple):
    """Where rows go, and in which form."""

    path: str | None
    form: str
    force: bool


def sweep(values: Mapping[str, Any], axes: Sequence["Axis"]) -> int:
    """Price every row that is not there already. Raises UsageError where not one of them is a job, or options vary."""
    from pathlib import Path

    from memplan.comparison.sweep import read_grid
    from memplan.comparison.workers import cores

    place = place_of(values)
    parts, processes = _part(values.get("part")), _processes(values.get("processes")) or cores()
    grid = read_grid(Path(values["grid"]), _over(values, axes))
    numbers = grid.part(*parts)
    begun = time.monotonic()
    with _opened(place, grid) as (write, done):
        left, repeated = _left(grid, numbers, done)
        there = len(numbers) - len(left) - repeated
        rows, errors, first = _write_all(grid, left, processes, write, place.form)
    words = f"{rows:,} rows" + (f" in {place.path}" if place.path else "")
    words += f", {errors:,} of them errors" if errors else ""
    words += f"; {there:,} were there already" if there else ""
    words += f"; {repeated:,} left out: the same job again" if repeated else ""
    note(f"{words}; {_duration(time.monotonic() - begun)}")
    if rows and errors == rows:
        raise UsageError(f"not one row is a job; the first: {first.get('error')}", first.get("hint") or "")
    return EXIT_DONE


def _over(values: Mapping[str, Any], axes: Sequence["Axis"]) -> dict[str, Any]:
    """What MODEL and the options say, over the grid's base."""
    targets = values.get("targets") or []
    if axes or len(targets) > 1:
        raise UsageError(
            "a sweep takes one MODEL and one value for each option", "put what varies into the grid's file"
        )
    given = understood(options.read_given({**values, "target": targets[0] if targets else None}), "every row")
    return given.job.model_dump(exclude_unset=True)


def place_of(values: Mapping[str, Any]) -> Place:
    """Where rows go: the form by --format, else by the file's ending, else CSV."""
    from memplan.render.data import FORMS

    path, form = values.get("output"), values.get("format_")
    if form is None and values.get("json"):
        form = "jsonl"
    if form is None and path is not None:
        form = os.path.splitext(path)[1].lower().removeprefix(".")
        if form not in FORMS:
            raise UsageError(f"--output {path}: rows are CSV or JSON lines", "name a file ending in .csv or .jsonl")
    form = (form or "csv").lower()
    if form not in FORMS:
        raise UsageError(f"--format: rows of a sweep have no form {form!r}", did_you_mean(form, FORMS))
    if path is not None:
        output.check_place(path, True)
    return Place(path, FORMS[form], bool(values.get("force")))


def _part(text: str | None) -> tuple[int, int]:
    """'3/8' -> (3, 8); one part of one without it."""
    if text is None:
        return 1, 1
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise UsageError(f"--part: {text[:40]!r} is no part", "write it as 3/8: the third of eight")
    return int(number), int(parts)


def _processes(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PROCESSES:
        raise UsageError(
            f"--processes: {text[:40]!r} is no number of processes", f"write 1 to {MOST_PROCESSES}, or auto"
        )
    return int(text)


@contextmanager
def _opened(place: Place, grid: "Grid") -> Iterator[tuple[Callable[[str], object], set[str]]]:
    """What writes a line, and the ids of the rows that are there; a file keeps its whole lines, unless forced."""
    from memplan.render.data import first_line, ids_in

    header = first_line(place.form, grid.columns)
    if place.path is None:
        if header:
            output.print_text(header, False)
        yield lambda line: output.print_text(line, False), set()
        return
    keep = os.path.exists(place.path) and not place.force
    done, end = ids_in(place.path, place.form, grid.columns) if keep else (set(), 0)
    try:
        with open(place.path, "r+" if keep else "w", encoding="utf-8", newline="\n", buffering=1) as file:
            file.seek(end)
            file.truncate()
            if not end:
                file.write(header)
            yield file.write, done
    except OSError as error:
        raise UsageError(f"cannot write {place.path}: {error.strerror}", "name a file that can be written") from None


def _left(grid: "Grid", numbers: Iterable[int], done: set[str]) -> tuple[Sequence[int], int]:
    """The rows to price, each job once; and how many jobs came again."""
    from memplan.comparison.sweep import row_id

    seen: set[str] = set()
    left = []
    repeated = 0
    for number in numbers:
        found = row_id(grid, number)
        if found in seen:
            repeated += 1
        elif found not in done:
            left.append(number)
        seen.add(found)
    return left, repeated


def _write_all(
    grid: "Grid", numbers: Sequence[int], processes: int, write: Callable[[str], object], form: str
) -> tuple[int, int, Mapping[str, Any]]:
    """Rows written, how many of them are errors, and the first of these."""
    from memplan.comparison.workers import swept
    from memplan.render.data import line_of

    errors, rows = 0, 0
    first: Mapping[str, Any] = {}
    columns = grid.columns
    with Telling(len(numbers)) as telling:
        for row in swept(grid, numbers, processes):
            write(line_of(form, columns, row))
            rows += 1
            if row.get("error"):
                first = first or row
                errors += 1
            telling.tell(rows, errors)
    return rows, errors, first


class Telling:
    """How far a sweep is: a bar on a terminal, a line now and then where standard error is none."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self._bar = Bar()
        self._begun = self._told = time.monotonic()
        self._on_terminal = on_terminal()

    def __enter__(self) -> "Telling":
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.__exit__(*raised)

    def tell(self, rows: int, errors: int) -> None:
        """Say how far it is, where it is time to."""
        if self._on_terminal:
            self._bar(f"pricing jobs{f', {errors:,} errors' if errors else ''}", rows, self._whole)
            return
        now = time.monotonic()
        if now - self._told >= TOLD_EVERY_S:
            self._told = now
            left = (now - self._begun) / rows * (self._whole - rows)
            note(f"{rows:,} of {self._whole:,} rows, {errors:,} errors, about {_duration(left)} to go")


def _duration(seconds: float) -> str:
    """'2.4 s', '3 min', '1.5 h'."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
