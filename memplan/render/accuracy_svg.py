"""Estimates against truth as a picture: a dot for each measured peak, a panel for each meter, what a row is under the
mouse. Across is what was measured, by powers of ten; up is how far the estimate is off, in percent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from memplan.render import svg
from memplan.render.svg import LEFT, WIDTH
from memplan.units import GiB, format_bytes

if TYPE_CHECKING:
    from memplan.accuracy import Accuracy, Figure

METERS = ("allocated", "reserved", "device")
KINDS = {"traced": "#3b5b92", "measured": "#2a9d8f", "published": "#d1603d"}
"""Colours by who measured."""
HEAD, PANEL, GAP, FOOT = 84, 210, 60, 46
WIDEST = 30.0
"""Percent: a dot that is further off stands at the edge, as a triangle."""


class Plane(NamedTuple):
    """From bytes and percent to pixels, of one panel."""

    first: float
    """Powers of ten of a GiB at the left edge and at the right one."""
    last: float
    most: float
    """Percent at the upper edge; as much below."""
    top: int

    def x(self, size: int) -> float:
        """The pixel of so many bytes."""
        share = (log10(size / GiB) - self.first) / (self.last - self.first)
        return round(LEFT + (WIDTH - 30 - LEFT) * share, 1)

    def y(self, percent: float) -> float:
        """The pixel of an error."""
        return round(self.top + PANEL / 2 - PANEL / 2 * max(-1.0, min(1.0, percent / self.most)), 1)


def accuracy_svg(found: Accuracy) -> str:
    """The picture."""
    peaks = [figure for figure in found.figures if figure.phase == "peak"]
    shown = [(meter, [figure for figure in peaks if figure.meter == meter]) for meter in METERS]
    shown = [(meter, figures) for meter, figures in shown if figures]
    title = "Estimated against measured, by meter"
    parts = [svg.text(LEFT, 30, title, "ink title"), *_kinds({figure.kind for figure in peaks})]
    top = HEAD
    for meter, figures in shown:
        parts += _panel(meter, figures, top)
        top += PANEL + GAP
    return svg.document(title, top + FOOT - GAP, parts)


def _kinds(there: set[str]) -> Iterator[str]:
    """Whose figure a colour is."""
    x = float(LEFT)
    for kind, colour in KINDS.items():
        if kind in there:
            yield f'<circle cx="{x + 6}" cy="48" r="5" fill="{colour}"/>'
            yield svg.text(x + 18, 52, kind, "ink small")
            x += 110


def _panel(meter: str, figures: Sequence[Figure], top: int) -> Iterator[str]:
    """The dots of one meter, its axes, and in its title how many they are and the median error."""
    sizes = [log10(figure.measured_bytes / GiB) for figure in figures]
    errors = [abs(100 * figure.error) for figure in figures]
    most = min(WIDEST, max(1.0, ceil(max(errors))))
    first, last = floor(min(sizes)), max(ceil(max(sizes)), floor(min(sizes)) + 1)
    plane = Plane(first, last, most, top)
    words = f"{meter}: {len(errors)} rows, median error {median(errors):.3g} %"
    yield svg.text(LEFT, top - 12, words, "ink small bold")
    for percent in (-most, -most / 2, 0, most / 2, most):
        y = plane.y(percent)
        yield f'<line class="{"grid" if percent else "axis"}" x1="{LEFT}" x2="{WIDTH - 30}" y1="{y}" y2="{y}"/>'
        yield svg.text(LEFT - 8, y + 4, f"{percent:+g} %" if percent else "0", "faint small", "end")
    for power in range(first, last + 1):
        x = plane.x(int(GiB * 10.0**power))
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{top + PANEL}"/>'
        yield svg.text(x, top + PANEL + 18, f"{10.0**power:g} GiB", "faint small", "middle")
    for figure in figures:
        yield _dot(figure, plane)


def _dot(figure: Figure, plane: Plane) -> str:
    """One row; its name and figures under the mouse."""
    percent, x = 100 * figure.error, plane.x(figure.measured_bytes)
    y, colour = plane.y(percent), KINDS.get(figure.kind, "#888888")
    sizes = f"measured {format_bytes(figure.measured_bytes)}, estimated {format_bytes(figure.estimated_bytes)}"
    where = f"{figure.method}, {figure.sharding}, {figure.trainer}"
    title = svg.safe(f"{figure.id}: {sizes} ({percent:+.2f} %); {where}; {figure.kind}")
    if abs(percent) <= plane.most:
        shape = f'<circle cx="{x}" cy="{y}" r="3.5" '
    else:
        side = 7 if percent < 0 else -7
        shape = f'<polygon points="{x - 5},{y - side} {x + 5},{y - side} {x},{y}" '
    end = "circle" if shape.startswith("<circle") else "polygon"
    return f'{shape}fill="{colour}" fill-opacity=".7"><title>{title}</title></{end}>'
