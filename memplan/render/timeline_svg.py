"""A report as an SVG for a paper or a pull request: the card as a bar, and the step's curves below it.

The step's instants stand side by side, each as wide as the others and with its name; trainer and engine likewise; what
is played is drawn over its requests and frees. What each holds is said under the mouse."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from memplan.render import svg, words
from memplan.render.estimate_view import answer_blocks
from memplan.render.svg import LEFT, RIGHT, WIDTH, Column, Scale
from memplan.report import Report, Verdict
from memplan.tables.categories import stacked
from memplan.timeline import BY_EVENT, MEASURED, PLAYED, STEP, TOGETHER, TRACED, Curve, Point, Timeline
from memplan.units import GiB, format_bytes

HEAD, BAR, PANEL, NAMES, PHASES = 66, 62, 270, 136, 34
"""Pixels in height: title and verdict, the card's bar, a curve, the names of instants below it, those of phases."""
MOST = 200
"""Points of a played curve."""
GAP = 44
"""Above each curve, for its title."""
TITLES = {
    STEP: "allocated at each instant of the step, {name}",
    TOGETHER: "trainer and engine on one card, at each instant of a step",
    MEASURED: "allocated as it was measured, request by request; the line is what the allocator held",
    TRACED: "allocated over two traced steps, request by request; the first makes the optimizer's states",
    PLAYED: "allocated as the step is played, request by request; the line is what the allocator holds",
}
ANGLE = 38
"""Degrees by which names are turned."""


def report_svg(report: Report, found: Timeline) -> str:
    """The picture of a report."""
    title = f"{report.model.name}: {report.job['method']}, {words.gpu_words(report).partition(';')[0]}"
    parts = [svg.text(LEFT, 30, title, "ink title"), svg.text(LEFT, 50, _answer(report), "faint small")]
    height = HEAD
    if report.verdict is not None:
        parts += _card(report.verdict, report, height)
        height += BAR
    for curve in [*found.of(STEP)[:1], *found.of(TOGETHER)[-1:], *found.of(PLAYED)]:
        height += GAP
        parts += panel(curve, found, height)
        height += PANEL + (PHASES if curve.kind in BY_EVENT else NAMES)
    return svg.document(title, height + 10, parts)


def _answer(report: Report) -> str:
    """The verdict's line, or the peak's."""
    [block] = answer_blocks(report, WIDTH)
    return getattr(block, "text", "")


def _card(verdict: Verdict, report: Report, top: int) -> Iterator[str]:
    """The card as a bar: what is needed of it as expected, and at worst, the margin, what is over."""
    usable, needed = verdict.usable_bytes, verdict.usable_bytes - verdict.headroom_bytes
    allowed = int(usable * (1 - report.job.get("margin", 0)))
    high = max(needed, allowed + verdict.missing_bytes) if verdict.missing_bytes else needed
    most, wide = max(usable, high), WIDTH - 14 - LEFT

    def to(size: int) -> float:
        return LEFT + wide * size / most

    yield svg.rectangle(LEFT, top, to(usable) - LEFT, 22, "room", f"{verdict.gpu}: {format_bytes(usable)} usable")
    yield svg.rectangle(LEFT, top, to(needed) - LEFT, 22, "", f"needed as expected: {format_bytes(needed)}", "#2a9d8f")
    if high > needed:
        yield svg.rectangle(to(needed), top, to(high) - to(needed), 22, "", f"high: {format_bytes(high)}", "#e9b949")
    if max(needed, high) > usable:
        over = f"over by {format_bytes(max(needed, high) - usable)}"
        yield svg.rectangle(to(usable), top + 15, to(max(needed, high)) - to(usable), 7, "over", over)
    for size, style in ((allowed, "axis"), (usable, "limit")):
        x = f"{to(size):.1f}"
        yield f'<line class="{style}" stroke-width="2" x1="{x}" x2="{x}" y1="{top - 4}" y2="{top + 26}"/>'
    say = f"needs {format_bytes(needed)}" + (f", up to {format_bytes(high)}" if high > needed else "")
    yield svg.text(LEFT, top + 42, say, "ink small")
    card = f"{format_bytes(allowed)} less the margin, {format_bytes(usable)} usable on {verdict.gpu}"
    yield svg.text(WIDTH - 14, top + 42, card, "faint small", "end")


def panel(curve: Curve, found: Timeline, top: int) -> Iterator[str]:
    """One curve with its axis, its limits, its legend and its peak."""
    held, usable = _held(curve), found.usable_bytes
    most = max(curve.peak_bytes, held or 0, *(point.reserved_bytes or 0 for point in curve.points))
    limit = usable if usable is not None and usable <= 2 * most else None
    ticks = svg.gib_ticks(max(most, limit or 0))
    kinds = stacked({name for point in curve.points for name in point.by_category})
    points = _thinned(curve)
    columns = list(_columns(curve.kind, points))
    scale = Scale(columns[-1][0], ticks[-1] * GiB, top, top + PANEL)
    yield svg.text(LEFT, top - 14, TITLES[curve.kind].format(name=curve.name), "ink small bold")
    yield from svg.grid(ticks, scale)
    seen = [kind for kind in kinds if max(sizes.get(kind, 0) for _, sizes in columns) > scale.top / PANEL / 2]
    yield from svg.areas(columns, seen, scale)
    yield svg.axis(scale)
    if curve.kind in BY_EVENT:
        if curve.kind != TRACED:  # without an allocator
            yield _outline([(point.event or 0, point.reserved_bytes or 0) for point in curve.points], scale)
        yield from _phases(curve.points, scale)
    else:
        yield from _names(curve.points, scale)
    for size, label, style in ((limit, f"{found.gpu}: ", "limit"), (held, "on the card: ", "held")):
        if size is not None:
            y = scale.y(size)
            yield f'<line class="{style}" stroke-dasharray="6 4" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            yield svg.text(WIDTH - RIGHT - 6, y - 5, label + format_bytes(size), "faint small", "end")
    peak = max(curve.points, key=lambda point: point.bytes)
    yield from svg.legend(kinds, peak.by_category, top)
    at = (peak.event or 0) if curve.kind in BY_EVENT else curve.points.index(peak) + 0.5
    lines = (f"peak {format_bytes(peak.bytes)}", peak.instant or curve.name)
    yield from svg.peak(scale.x(at), scale.y(peak.bytes), lines, top)


def _held(curve: Curve) -> int | None:
    """What the card holds over the step beside what is allocated; a line of its own where nothing else says it."""
    return curve.device_bytes if curve.kind == STEP else None


def _thinned(curve: Curve) -> Sequence[Point]:
    """Of a played curve one point of each few, the fullest: more than a pixel or two tells."""
    few = -(-len(curve.points) // MOST) if curve.kind in BY_EVENT else 1
    groups = (curve.points[at : at + few] for at in range(0, len(curve.points), few))
    return [max(group, key=lambda point: point.bytes) for group in groups]


def _columns(kind: str, points: Sequence[Point]) -> Iterator[Column]:
    """Places and bytes: an instant is flat over its own place."""
    for place, point in enumerate(points):
        if kind in BY_EVENT:
            yield point.event or 0, point.by_category
        else:
            yield place, point.by_category
            yield place + 1, point.by_category


def _outline(places: Sequence[tuple[int, int]], scale: Scale) -> str:
    """A line through what segments hold: its corners, where that changes, and both ends."""
    beside = zip(places, [(-1, -1), *places], [*places[1:], (-1, -1)], strict=False)
    turns = [(at, size) for (at, size), before, after in beside if not before[1] == size == after[1]]
    corners = " ".join(f"{scale.x(at)},{scale.y(size)}" for at, size in turns)
    return f'<polyline class="held" stroke-width="1.5" points="{corners}"><title>reserved</title></polyline>'


def _phases(points: Sequence[Point], scale: Scale) -> Iterator[str]:
    """The names of phases under the axis."""
    runs = [(phase, list(group)) for phase, group in groupby(points, key=lambda point: point.phase)]
    for number, (phase, group) in enumerate(runs):
        start = group[0].event or 0
        end = runs[number + 1][1][0].event or 0 if number + 1 < len(runs) else scale.events
        left, right = scale.x(start), scale.x(end)
        if number:
            yield f'<line class="axis" x1="{left}" x2="{left}" y1="{scale.upper}" y2="{scale.lower}"/>'
        if right - left > 7 * len(phase):
            yield svg.text((left + right) / 2, scale.lower + 18, phase, "faint small", "middle")


def _names(points: Sequence[Point], scale: Scale) -> Iterator[str]:
    """The instants' names, turned, and under the mouse what each holds."""
    wide = scale.x(1) - scale.x(0)
    for place, point in enumerate(points):
        x, y = scale.x(place + 0.5), scale.lower + 14
        name = svg.text(0, 0, point.instant, "faint small")
        yield f'<g transform="translate({x} {y}) rotate({ANGLE})">{name}</g>'
        yield svg.rectangle(scale.x(place), scale.upper, wide, scale.lower - scale.upper, "tip", _holds(point))


def _holds(point: Point) -> str:
    """Lines of what an instant holds, the largest first."""
    rows: Mapping[str, int] = dict(sorted(point.by_category.items(), key=lambda item: -item[1]))
    listed = [f"{format_bytes(size)} {words.category_title(name)}" for name, size in rows.items()]
    return "; ".join([f"{point.instant}: {format_bytes(point.bytes)}", *listed])
