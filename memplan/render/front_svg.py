"""Plans or jobs side by side as a picture: memory of a GPU across, speed up, a dot for each, and the front, than which
nothing is both smaller and faster. What a dot is stands beside it by its number, and under the mouse."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memplan.errors import UsageError
from memplan.lang import said
from memplan.lang.width import cells
from memplan.render import svg
from memplan.render.svg import LEFT, WIDTH, gib_ticks, round_ticks
from memplan.units import GiB, format_bytes

if TYPE_CHECKING:
    from memplan.comparison import Comparison
    from memplan.planner import Plans

EDGE = 430
"""Pixels on the right, for names."""
HEAD, HIGH, FOOT, LINE = 84, 400, 70, 19
LONGEST = 54
"""Letters of a name beside the picture."""
COLOURS = {"yes": "#2f9e63", "tight": "#d9962b", "no": "#d24a3c"}


class Dot(NamedTuple):
    """One plan."""

    name: str
    memory: int
    """Bytes of the device, as expected."""
    speed: float
    fits: str
    words: str
    """Its speed as it is said."""


def compare_svg(found: "Comparison") -> str:
    """The rows of a comparison."""
    dots = [
        Dot(row.title or row.name, row.report.per_gpu.device_bytes.expected, row.tokens_per_second,
            row.fits or "", f"{row.tokens_per_second:,.0f} tokens/s")
        if row.tokens_per_second
        else Dot(row.title or row.name, row.report.per_gpu.device_bytes.expected, row.relative_speed or 0.0,
                 row.fits or "", f"{row.relative_speed or 0:.3g} ×")
        for row in found.rows
    ]  # fmt: skip
    return front_svg("Memory against speed", dots, [row.report.verdict for row in found.rows])


def plan_svg(found: "Plans") -> str:
    """The plans that fit. Raises UsageError where none does."""
    dots = []
    for plan in found.plans:
        verdict, speed = plan.report.verdict, plan.speed.tokens_per_second
        size = plan.report.per_gpu.device_bytes.expected
        dots.append(Dot(plan.name, size, speed, verdict.fits if verdict else "", f"{speed:,.0f} tokens/s"))
    return front_svg("Plans that fit: memory against speed", dots, [plan.report.verdict for plan in found.plans])


def front(dots: Sequence[Dot]) -> list[Dot]:
    """Those that no other beats in both, the smallest first."""
    found: list[Dot] = []
    for dot in sorted(dots, key=lambda each: (each.memory, -each.speed)):
        if not found or dot.speed > found[-1].speed:
            found.append(dot)
    return found


def front_svg(title: str, dots: Sequence[Dot], verdicts: Sequence[object]) -> str:
    """The picture. Raises UsageError where there is nothing to draw."""
    dots = [dot for dot in dots if dot.speed > 0]
    if not dots:
        raise UsageError("nothing is there to draw", "leave --output out to see why")
    usable = {getattr(verdict, "usable_bytes", 0) for verdict in verdicts}
    card = usable.pop() if len(usable) == 1 else 0
    sizes = [dot.memory for dot in dots]
    limit = card if card < 1.6 * max(sizes) else 0
    across, up = gib_ticks(max(*sizes, limit)), round_ticks(max(dot.speed for dot in dots))
    right = WIDTH - EDGE

    def x(size: float) -> float:
        return round(LEFT + (right - LEFT) * size / (across[-1] * GiB), 1)

    def y(speed: float) -> float:
        return round(HEAD + HIGH * (1 - speed / up[-1]), 1)

    unit = "tokens a second" if dots[0].words.endswith("tokens/s") else "that of the baseline"
    parts = [svg.text(LEFT, 30, title, "ink title")]
    parts.append(svg.text(LEFT, 52, f"speed in {unit}, a rough estimate, good for ranking", "faint small"))
    for level in up:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(level)}" y2="{y(level)}"/>')
        told = f"{level:,.0f}" if up[-1] >= 1000 else f"{level:.3g}"
        parts.append(svg.text(LEFT - 8, y(level) + 4, told, "faint small", "end"))
    parts += [svg.text(x(size * GiB), HEAD + HIGH + 20, f"{size:g}", "faint small", "middle") for size in across]
    middle = (LEFT + right) / 2
    parts.append(svg.text(middle, HEAD + HIGH + 42, "device memory of a GPU, GiB", "faint", "middle"))
    if limit:
        parts.append(f'<line class="limit" x1="{x(limit)}" x2="{x(limit)}" y1="{HEAD}" y2="{HEAD + HIGH}"/>')
        parts.append(svg.text(x(limit), HEAD - 8, f"usable {format_bytes(limit)}", "faint small", "end"))
    line = " ".join(f"{x(dot.memory)},{y(dot.speed)}" for dot in front(dots))
    parts.append(f'<polyline class="held" stroke-dasharray="5 3" points="{line}"/>')
    for number, dot in enumerate(dots, 1):
        parts += _dot(number, dot, x(dot.memory), y(dot.speed))
    parts += _names(dots, right + 24)
    return svg.document(title, max(HEAD + HIGH + FOOT, HEAD + LINE * len(dots) + 20), parts)


def _dot(number: int, dot: Dot, x: float, y: float) -> Iterator[str]:
    """A dot with its number."""
    told = svg.safe(
        f"{number}. {dot.name}: {format_bytes(dot.memory)}, {dot.words}{f', fits: {dot.fits}' if dot.fits else ''}"
    )
    yield f'<circle cx="{x}" cy="{y}" r="6" fill="{COLOURS.get(dot.fits, "#7b8794")}"><title>{told}</title></circle>'
    yield svg.text(x + 9, y - 7, str(number), "ink small")


def _names(dots: Sequence[Dot], left: int) -> Iterator[str]:
    """What each number is."""
    for number, dot in enumerate(dots, 1):
        whole = said(dot.name)
        name = whole if cells(whole) <= LONGEST else f"{whole[: LONGEST * len(whole) // cells(whole) - 1]}…"
        yield svg.text(
            left,
            HEAD + LINE * (number - 1) + 10,
            f"{number}. {name}{f' (fits: {dot.fits})' if dot.fits else ''}",
            "ink small",
        )
