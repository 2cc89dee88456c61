"""A snapshot as a picture: the measured timeline, and the played step of the job below it, in the same colours."""

from collections import Counter
from dataclasses import dataclass, field

from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.recorded import ALLOC, FREE, RELEASE, SEGMENT, Recording
from memplan.render import svg
from memplan.render.svg import LEFT
from memplan.render.timeline_svg import GAP, HEAD, PANEL, PHASES, panel
from memplan.snapshot.explaining import Explained, of_play
from memplan.timeline import FINEST, MEASURED, PLAYED, Curve, Point, Timeline, timeline


def snapshot_svg(found: Explained) -> str:
    """The picture."""
    title = f"snapshot of device {found.snapshot.device}: {found.events:,} events"
    curves = [measured(found)]
    beside = timeline(found.report) if found.report is not None else Timeline((), None, None, None, ())
    curves += beside.of(PLAYED)
    parts, height = [svg.text(LEFT, 30, title, "ink title")], HEAD
    for curve in curves:
        height += GAP
        parts += panel(curve, beside, height)
        height += PANEL + PHASES
    return svg.document(title, height + 10, parts)


UNACCOUNTED, ALL = "nobody_accounts_for", "allocated"


def measured(found: Explained) -> Curve:
    """As many storages of a size as the play has at its peak are of its categories, in order; the rest of nobody's."""
    report, recording = found.report, found.snapshot.recording
    recorded = step_events(report.recipe) if report is not None and report.recipe is not None else None
    live = _Live({}, ALL)
    if recorded is not None:
        live.other = UNACCOUNTED
        for size, category in reversed(of_play(recorded)):
            live.known.setdefault(size, []).append(category)
    points = _points(recording, live)
    peak = max(points, key=lambda point: point.bytes)
    return Curve(MEASURED, "", "allocated", 1, "", peak.bytes, tuple(points))


@dataclass
class _Live:
    """What is alive, by category."""

    known: dict[int, list[str]]
    """Categories that storages of a size may still be of."""
    other: str
    sizes: Counter[str] = field(default_factory=Counter)
    blocks: dict[int, tuple[int, str]] = field(default_factory=dict)

    def add(self, number: int, size: int) -> None:
        """A storage is made."""
        free = self.known.get(size)
        category = free.pop() if free else self.other
        self.blocks[number] = size, category
        self.sizes[category] += size

    def remove(self, number: int) -> None:
        """It is gone."""
        size, category = self.blocks.pop(number)
        self.sizes[category] -= size
        if category != self.other:
            self.known[size].append(category)

    def point(self, at: int) -> Point:
        """All of it."""
        return Point("", "", self.sizes.total(), {name: size for name, size in self.sizes.items() if size}, None, at)


def _points(recording: Recording, live: _Live) -> list[Point]:
    """About ``FINEST`` of them, each the fullest since the one before."""
    round_size = recording.settings.round_size
    for used in (used for segment in recording.segments for used in segment.used):
        live.add(used.number, round_size(used.requested))
    held = most = sum(segment.size for segment in recording.segments)
    every, points, best = max(1, len(recording.actions) // FINEST), list[Point](), live.point(0)
    for at, (kind, size, number, _) in enumerate(recording.actions, 1):
        if kind == ALLOC:
            live.add(number, round_size(size))
        elif kind == FREE:
            live.remove(number)
        held += size if kind == SEGMENT else -size if kind == RELEASE else 0
        most = max(most, held)
        if live.sizes.total() > best.bytes or not best.event:
            best = live.point(at)
        if at % every == 0 or at == len(recording.actions):
            best.reserved_bytes, most = most, held
            points.append(best)
            best = live.point(0)
    return points
