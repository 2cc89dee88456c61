"""Parts of a picture as SVG: a scale of bytes, stacked areas, a grid, a legend, the peak.

A picture stands by itself: no script, no font to load, readable on light and on dark ground, and in grey by its order.

What a kind of memory looks like: its colour in every picture, and its letter where there are no colours."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from memplan.errors import printable
from memplan.lang import said
from memplan.lang.width import cells
from memplan.tables.texts import texts_by_name
from memplan.units import GiB, format_bytes


class Ink(NamedTuple):
    """How one category is drawn."""

    colour: str
    letter: str


PALETTE = {category: Ink(*drawn.split()) for category, drawn in texts_by_name(__file__).items()}
"""By category."""
OTHER = Ink("#888888", "?")


def ink(category: str) -> Ink:
    """Of a category, one that no table knows too."""
    return PALETTE.get(category, OTHER)


WIDTH, LEFT, RIGHT = 1100, 68, 258
LETTER = 6.6
"""Pixels of a letter of the small text, about."""
STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")

Column = tuple[float, Mapping[str, int]]
"""A place from left to right, in the scale's own count, and bytes by category there."""


class Scale(NamedTuple):
    """From places and bytes to pixels."""

    events: float
    """Places from the left edge to the right one."""
    top: float
    """Bytes at the upper edge."""
    upper: int
    lower: int

    def x(self, event: float) -> float:
        """The pixel of a place."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * event / max(self.events, 1), 1)

    def y(self, size: float) -> float:
        """The pixel of so many bytes."""
        return round(self.lower - (self.lower - self.upper) * size / self.top, 1)


def document(title: str, height: int, parts: Iterable[str]) -> str:
    """The whole picture."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' width="{WIDTH}" height="{height}">',
        f"<title>{safe(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
    )
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def safe(words: str) -> str:
    """Text in the language that is spoken, that is text, and no markup."""
    return escape(said(printable(words)))


def text(x: float, y: float, words: str, style: str, anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{safe(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, style: str, title: str = "", fill: str = "") -> str:
    """A rectangle in a style or a colour, with what it says under the mouse."""
    paint = f'fill="{fill}"' if fill else f'class="{style}"'
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
    return f"<rect {paint} {place}>{f'<title>{safe(title)}</title>' if title else ''}</rect>"


def gib_ticks(largest: int) -> list[float]:
    """GiB from nothing to beyond the largest."""
    return round_ticks(largest / GiB)


def round_ticks(size: float) -> list[float]:
    """From nothing to beyond a size, four to eight of them, in steps of 1, 2 or 5."""
    unit = 1.0
    while size / unit < 4:
        unit /= 10
    step = next(unit * 10**power * factor for power in range(9) for factor in (1, 2, 5)
                if size / (unit * 10**power * factor) <= 8)  # fmt: skip
    return [index * step for index in range(int(size / step) + 2)]


def grid(ticks: Sequence[float], scale: Scale) -> list[str]:
    """Lines and labels of bytes."""
    parts = []
    for tick in ticks:
        y = scale.y(tick * GiB)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(text(LEFT - 8, y + 4, f"{tick:g}", "faint small", "end"))
    middle = (scale.upper + scale.lower) / 2
    turned = f'<text transform="translate(20 {middle}) rotate(-90)" class="faint" text-anchor="middle">GiB</text>'
    return [*parts, turned]


def axis(scale: Scale) -> str:
    """The line of nothing."""
    return f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{scale.y(0)}" y2="{scale.y(0)}"/>'


def areas(columns: Sequence[Column], kinds: Iterable[str], scale: Scale) -> list[str]:
    """One area for each category, on top of those before it."""
    below, parts = [0] * len(columns), []
    for kind in kinds:
        above = [size + sizes.get(kind, 0) for size, (_, sizes) in zip(below, columns, strict=True)]
        upper = [f"{scale.x(at)},{scale.y(size)}" for (at, _), size in zip(columns, above, strict=True)]
        lower = [f"{scale.x(at)},{scale.y(size)}" for (at, _), size in zip(columns, below, strict=True)]
        corners = " ".join([*upper, *reversed(lower)])
        parts.append(f'<polygon fill="{ink(kind).colour}" points="{corners}"><title>{words(kind)}</title></polygon>')
        below = above
    return parts


def words(kind: str) -> str:
    """A category as a legend has it."""
    return safe(kind.replace("_", " "))


def legend(kinds: Sequence[str], held: Mapping[str, int], top: int) -> list[str]:
    """Categories in the order of the stack, with their bytes at the peak."""
    x, y = WIDTH - RIGHT + 22, top + 10
    parts = [text(x, y, "at the peak", "faint small")]
    for kind in reversed(kinds):
        y += 24 if len(kinds) < 16 else 19
        parts.append(f'<rect x="{x}" y="{y - 11}" width="13" height="13" rx="2" fill="{ink(kind).colour}"/>')
        parts.append(f'<text x="{x + 21}" y="{y}" class="ink small" text-anchor="start">{words(kind)}</text>')
        parts.append(text(WIDTH - 14, y, format_bytes(held[kind]) if held.get(kind) else "-", "faint small", "end"))
    return parts


def peak(x: float, y: float, lines: Sequence[str], upper: int) -> list[str]:
    """A ring on the largest moment, and two lines of words on a plate beside it."""
    anchor = "end" if x > (LEFT + WIDTH - RIGHT) / 2 else "start"
    shift = -12 if anchor == "end" else 12
    level = max(y - 24, upper + 14)
    width = LETTER * max(cells(said(line)) for line in lines) + 14
    left = x + shift - (width - 7 if anchor == "end" else 7)
    return [
        f'<rect class="plate" x="{left:.1f}" y="{level - 15:.1f}" width="{width:.1f}" height="38" rx="4"/>',
        f'<circle class="mark" cx="{x}" cy="{y}" r="5" stroke-width="2"/>',
        text(x + shift, level, lines[0], "ink bold", anchor),
        text(x + shift, level + 16, lines[1], "ink small", anchor),
    ]
