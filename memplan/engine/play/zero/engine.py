"""DeepSpeed's engine, put into a play: it follows the notes that hooks have left (``hooks.py``).

The played events are copied from one note to the next; what the engine allocates and frees meanwhile comes in between,
on a tape that goes on numbering where the play ended."""

from bisect import bisect_left
from collections.abc import Callable

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.play.moments import Key, Moment, moments
from memplan.engine.play.notes import ENDED, OPTIMIZER, TAKEN, Note, read
from memplan.engine.play.optimizer import Optimizer
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim

START = ""
"""The mark where the last step starts."""


class Gradient:
    """A gradient that the engine was handed, until it lets go of it."""

    __slots__ = ("event", "tape")

    def __init__(self, tape: PlayTape, event: tuple[int, int]) -> None:
        self.tape, self.event = tape, event

    def record(self, stream: int) -> None:
        """Another stream uses it."""
        self.tape.recorded[self.event[0]] = (stream,)

    def __del__(self) -> None:
        self.tape.events.append(self.event)
        for stream in self.tape.recorded.get(self.event[0], ()):
            self.tape.waiting_for[stream] += 1


Handed = Gradient | Tensor
"""Of a play without a step around it, a tensor."""


class Engine:
    """What an engine of any stage is told; the stages say what they do then."""

    def __init__(self, played: StepEvents) -> None:
        self.tape, self.optimizers = PlayTape(), list[Optimizer]()
        self.tape.tags = list(played.tags)
        self.tape.streams, self.tape.recorded = dict(played.streams), dict(played.recorded)

    def new(self, size: int, label: str, category: str, stream: int = 0) -> Tensor:
        """Bytes on a stream."""
        return self.tape.on(stream, Dim("n", size), label, category)

    def noted(self, note: Note, grad: Handed | None) -> None:
        """A hook runs. ``grad``: what it was handed."""

    def accumulated_before(self) -> None:
        """Earlier micro-steps have left what they leave."""

    def begin(self) -> None:
        """A backward has its first gradient."""

    def backward_ended(self, *, last: bool) -> None:
        """The epilogue; ``last``: the optimizer steps next."""

    def step(self) -> None:
        """``optimizer.step``."""


def step_of(engine: Engine) -> Moment:
    """The step of an engine, when its optimizers have their states."""
    for optimizer in engine.optimizers:
        optimizer.make_states()
    return during(engine, engine.step)


def during(engine: Engine, runs: Callable[[], None]) -> Moment:
    """What is there when something of an engine's begins, and the most until it has run: the last that it does."""
    notes = [(len(engine.tape.events), Key(0, "", ""))]
    runs()
    (found,) = moments(engine.tape, notes, 0).values()
    engine.tape.close()
    return found


def joined(played: StepEvents, engine: Engine) -> StepEvents:
    """The play with its engine."""
    tape, events, done = engine.tape, played.events, 0
    stops = _stops(played)
    ends = [read(name) is not None and read(name).what == ENDED for _, name in stops]  # type: ignore[union-attr]
    begins = 0
    for i, (at, name) in enumerate(stops):
        if at > done:
            tape.events += events[done:at]
            done = at
        note = read(name)
        if note is None:
            if name == START:
                begins = len(tape.events)
                continue
            tape.mark(name)
            if name == OPTIMIZER:
                engine.step()
        elif ends[i]:
            engine.backward_ended(last=_steps_next(stops, ends, i))
        else:
            handed = None
            if note.what == TAKEN and not note.shared:
                handed, done = Gradient(tape, events[done]), done + 1
            engine.noted(note, handed)
            del handed
    tape.events += events[done:]
    return StepEvents(tuple(tape.events), begins, tape.streams, tape.recorded, tuple(tape.marks), tape.tags)


def notes_of(played: StepEvents) -> list[Note]:
    """All that hooks have left."""
    return [note for note in (read(name) for _, name in played.marks) if note is not None]


def _stops(played: StepEvents) -> list[tuple[int, str]]:
    """All marks, and the start of the last step: behind an optimizer's step at the same place."""
    marks = list(played.marks)
    at = bisect_left(marks, played.start, key=lambda mark: mark[0])
    for i in range(at, len(marks)):
        if marks[i] == (played.start, OPTIMIZER):
            at = i + 1
    return [*marks[:at], (played.start, START), *marks[at:]]


def _steps_next(stops: list[tuple[int, str]], ends: list[bool], i: int) -> bool:
    """Whether no other backward comes before the optimizer steps."""
    for j in range(i + 1, len(stops)):
        if ends[j]:
            return False
        if stops[j][1] == OPTIMIZER:
            return True
    return True
