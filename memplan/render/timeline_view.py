"""A step in a terminal: a bar for each instant, stacked by category, the card as a line through all of them.

With colours a category is a run of blocks, without them a run of its letter; the legend says which is which. A bar's
cell shows the category at the cell's middle, so that a bar is as long as its sum to half a cell."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from memplan.render.blocks import Block, Drawing, Heading, Prose, Span, Table, columns_of
from memplan.render.layout import broken
from memplan.render.svg import ink
from memplan.render.words import category_title
from memplan.timeline import BESIDE, PLAYED, STEP, TOGETHER, Curve, Point, Timeline
from memplan.units import GiB, format_bytes

INDENT, LEAST_BAR = 2, 28
"""Columns: before every line; and below which a bar has a line of its own."""
HELD, CARD, PEAK = "·", "│", "◀"
HEIGHT = 14
"""Lines of the played curve."""
NARROWEST_PLAYED = 60


class Bar(NamedTuple):
    """One line of a drawing."""

    name: str
    point: Point
    held: int
    """What the card holds then, beyond what is allocated too; 0 where nobody knows."""
    is_peak: bool = False


class Frame(NamedTuple):
    """What all drawings of a view have in common."""

    width: int
    """Columns of the screen."""
    most: int
    """Bytes at the right edge of a bar."""
    card: int | None
    """Usable bytes."""


def timeline_blocks(found: Timeline, width: int) -> Iterator[Block]:
    """The fullest class's step as played and by instants, the other classes and phases at their peaks, the legend."""
    steps = found.of(STEP)
    held = max(curve.device_bytes or 0 for curve in found.curves)
    most = max(held, found.usable_bytes or 0, *(curve.peak_bytes for curve in found.curves))
    frame = Frame(width, most, found.usable_bytes)
    yield Heading(f"The step of {steps[0].name}, instant by instant")
    yield Drawing(tuple(_instants(steps[0], frame)))
    if steps[1:]:
        yield Heading("The other classes of ranks at their peaks")
        yield Drawing(tuple(_bars([_at_peak(each) for each in steps[1:]], frame)))
    if beside := found.of(BESIDE):
        yield Heading("The phases beside the step at their peaks")
        yield Drawing(tuple(_bars([_at_peak(each) for each in beside], frame)))
    for curve in found.of(TOGETHER)[-1:]:
        yield Heading("Trainer and engine on one card, over a step")
        yield Drawing(tuple(_bars(_bars_of(curve), frame)))
    for curve in found.of(PLAYED) if width >= NARROWEST_PLAYED else ():
        yield Heading("The same step as it is played, request by request")
        yield Drawing(tuple(_area(curve, _closer(frame, curve))))
    yield from _legend(found, steps[0])


def _closer(frame: Frame, curve: Curve) -> Frame:
    """The frame of a curve by itself, without the card where that is more than twice as high."""
    most = max(curve.reserved_bytes or 0, curve.peak_bytes)
    return frame if 2 * most >= frame.most else frame._replace(most=most * (HEIGHT + 1) // HEIGHT, card=None)


def _bars_of(curve: Curve) -> list[Bar]:
    held = curve.device_bytes or 0
    return [Bar(at.instant, at, held, at.instant == curve.peak_instant) for at in curve.points]


def _at_peak(curve: Curve) -> Bar:
    peak = next(point for point in curve.points if point.instant == curve.peak_instant)
    return Bar(curve.name, peak, curve.device_bytes or 0)


def _instants(curve: Curve, frame: Frame) -> Iterator[tuple[Span, ...]]:
    """Bars under the names of their phases."""
    bars = _bars_of(curve)
    room = max(len(bar.name) for bar in bars)
    for phase, group in groupby(bars, key=lambda bar: bar.point.phase):
        yield (Span(" " * INDENT), Span(phase, "dim"))
        yield from _bars(list(group), frame, room)


def _bars(bars: Sequence[Bar], frame: Frame, room: int = 0) -> Iterator[tuple[Span, ...]]:
    """A line each: name, bar, bytes; the name above where the screen is narrow."""
    room = room or max(len(bar.name) for bar in bars)
    margin, right = " " * 2 * INDENT, len("1000.00 GiB ") + len(PEAK)
    left = frame.width - len(margin) - room - len("  ") - right
    for bar in bars:
        size, mark = f"{format_bytes(bar.point.bytes):>11}", f" {PEAK}" if bar.is_peak else ""
        end = Span(size + mark, "strong" if bar.is_peak else "")
        if left >= LEAST_BAR:
            yield (Span(f"{margin}{bar.name:<{room}}  "), *_cells(bar, frame, left), end)
        else:
            yield from ((Span(margin + part),) for part in broken(bar.name, frame.width - len(margin)))
            yield (Span(margin), *_cells(bar, frame, frame.width - len(margin) - right), end)


def _cells(bar: Bar, frame: Frame, columns: int) -> list[Span]:
    """The bar: categories, what is held beyond them, the card's line."""
    kinds = stack(bar.point.by_category, columns, frame.most)
    held = _cell_of(bar.held, columns, frame.most)
    line = min(columns - 1, _cell_of(frame.card, columns, frame.most)) if frame.card else -1
    parts = [
        Span(CARD, "warn") if at == line else _cell(kind, at < held)
        for at, kind in enumerate([*kinds, *[""] * columns])
    ]
    return _joined(parts[:columns])


def stack(by_category: dict[str, int], cells: int, most: int) -> list[str]:
    """The category of each cell of a bar, as far as the bar goes."""
    found: list[str] = []
    total = 0
    for name, size in by_category.items():
        total += size
        found += [name] * (_cell_of(total, cells, most) - len(found))
    return found[:cells]


def _cell_of(size: int, cells: int, most: int) -> int:
    """Whole cells for so many bytes, to the nearest."""
    return (2 * size * cells + most) // (2 * most)


def _cell(kind: str, is_held: bool) -> Span:
    if kind:
        return Span(ink(kind).letter, ink(kind).colour)
    return Span(HELD if is_held else " ", "dim")


def _joined(parts: Iterable[Span]) -> list[Span]:
    """Runs of one style as one span."""
    runs = groupby(parts, key=lambda part: (part.style, part.text == CARD))
    return [Span("".join(part.text for part in run), style) for (style, _), run in runs]


def _area(curve: Curve, frame: Frame) -> Iterator[tuple[Span, ...]]:
    """The curve with time from left to right: what segments hold as points above what is allocated."""
    margin = 2 * INDENT + len("1000.0 ")
    columns = min(frame.width - margin - 1, len(curve.points))
    picked = [_fullest(curve.points, at, columns) for at in range(columns)]
    stacks = [stack(point.by_category, HEIGHT, frame.most) for point in picked]
    held = [_cell_of(point.reserved_bytes or 0, HEIGHT, frame.most) for point in picked]
    line = min(HEIGHT - 1, _cell_of(frame.card, HEIGHT, frame.most)) if frame.card else -1
    for level in reversed(range(HEIGHT)):
        cells = [
            _cell(kinds[level] if level < len(kinds) else "", level < top)
            for kinds, top in zip(stacks, held, strict=True)
        ]
        if level == line:
            cells = [Span("─", "warn")] * columns
        label = f"{frame.most * (level + 1) / HEIGHT / GiB:.1f}" if level % 3 == 1 else ""
        yield (Span(f"{label:>{margin - 1}} ", "dim"), *_joined(cells))
    yield (Span(" " * margin), Span(_phases(picked), "dim"))


def _fullest(points: Sequence[Point], at: int, columns: int) -> Point:
    """Of the stretch that a column stands for, the point with the most."""
    start, end = (place * len(points) // columns for place in (at, at + 1))
    return max(points[start:end], key=lambda point: point.bytes)


def _phases(picked: Sequence[Point]) -> str:
    """The names of phases below where each begins, as far as they have room."""
    text, at = "", 0
    for phase, group in groupby(picked, key=lambda point: point.phase):
        count = len(list(group))
        if count > len(phase) + 1 and len(text) <= at:
            text = f"{text:<{at}}{'└' + phase if phase else ''}"
        at += count
    return text


def _legend(found: Timeline, step: Curve) -> Iterator[Block]:
    """What each colour or letter is, with its bytes at the step's peak."""
    peak = next(point for point in step.points if point.instant == step.peak_instant).by_category
    rows = [
        (
            Span(ink(name).letter * 2, ink(name).colour),
            category_title(name),
            format_bytes(peak[name]) if name in peak else "",
        )
        for name in found.categories
    ]
    yield Heading("What is drawn")
    yield Table(columns_of(" | category | at the peak >"), tuple(rows))
    words = f"{HELD} is held on the card beside what is allocated: the allocator's cache, the CUDA context"
    card = f"; {CARD} is what the card has, {format_bytes(found.usable_bytes)}" if found.usable_bytes else ""
    yield Prose(f"{words}{card}; {PEAK} is the peak.", "dim")
