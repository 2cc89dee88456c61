"""A critic that has a training of its own, and the policy's behind it: the events of both, step by step, on one card
(``critic_engine.py``).

verl 0.3 to 0.9 workers/fsdp_workers.py, engine/base.py, utils/fsdp_utils.py: roles give nothing back, but where their
parameters go to the host (``offload_fsdp_model_to_cpu``); states, which go behind them, leave their blocks cached."""

from collections.abc import Collection, Sequence

from memplan.engine.allocator.replay import DONE, EMPTY_CACHE, StepEvents
from memplan.engine.critic import NAME
from memplan.engine.held_states import KINDS
from memplan.engine.micro_step import stages
from memplan.engine.play.notes import STEP
from memplan.engine.tape.tags import Tag
from memplan.spec.generation import Away
from memplan.spec.recipe import Recipe


class Both:
    """The events of both, as they come."""

    def __init__(self) -> None:
        self.events, self.marks = list[tuple[int, int]](), list[tuple[int, str]]()
        self.tags = list[Tag]()
        self.streams, self.recorded = dict[int, int](), dict[int, tuple[int, ...]]()
        self.workspaces = False
        """A process has them once."""
        self.streams_before = 0
        """Streams of the first; those of the second are numbered behind them."""

    def mark(self, name: str) -> None:
        """What comes now."""
        self.marks.append((len(self.events), name))

    def comes(self, tag: Tag, size: int) -> int:
        """The number of a new storage."""
        self.tags.append(tag)
        self.events.append((len(self.tags) - 1, size))
        return len(self.tags) - 1


class Training:
    """One of them, written among the other's. ``scores``: the passes without a graph, which find no states on the card
    (``at_hand.py``)."""

    def __init__(self, of: StepEvents, both: Both, away: Away, name: str = "", scores: Collection[str] = ()) -> None:
        self.of, self.both, self.away, self.name = of, both, away, name
        self.scores = {f"{each}.forward" for each in scores}
        self.base, self.has_workspaces = both.streams_before, both.workspaces
        self.numbers = dict[int, int]()
        self.there, self.on_host = dict[int, int](), dict[int, int]()
        """Bytes of what lasts from step to step, by number: on the card, and elsewhere."""
        self.at = self.marked = 0
        self.part()
        both.workspaces = True
        both.streams_before += max(of.streams.values(), default=0)
        self.send("parameters")

    def part(self) -> None:
        """What comes before the first step; then a step; at last what is behind all."""
        for at, name in self.of.marks[self.marked :]:
            self._write(at)
            self.marked += 1
            if name == STEP:
                return
            self.both.mark(self._named(name))
            if name in self.scores:
                self.send("optimizer")
            elif name.endswith(".forward"):
                self.fetch("optimizer")
        self._write(len(self.of.events))

    def _write(self, end: int) -> None:
        of, both, numbers = self.of, self.both, self.numbers
        for number, size in of.events[self.at : end]:
            if size < 0:
                if number in numbers:
                    both.events.append((numbers[number], size))
                    self.there.pop(number, None)
                continue
            tag = of.tags[number]
            if self.has_workspaces and tag.category == "workspaces":
                continue
            numbers[number] = new = both.comes(tag, size)
            if tag.category in KINDS:
                self.there[number] = size
            if number in of.streams:
                both.streams[new] = self._moved(of.streams[number])
            if number in of.recorded:
                both.recorded[new] = tuple(map(self._moved, of.recorded[number]))
        self.at = end

    def _moved(self, stream: int) -> int:
        return stream and stream + self.base

    def _named(self, name: str) -> str:
        """A mark, where streams have other numbers and the critic's instants its name."""
        before, done, rest = name.rpartition(DONE)
        if done:
            stream, _, behind = rest.partition(" ")
            return f"{before}{done}{self._moved(int(stream))} {behind or 0}"
        return f"{self.name}.{name.partition('.')[2]}" if self.name and "." in name else name

    def send(self, *kinds: str) -> None:
        """What waits on the host goes there; where parameters do, the cache is given back."""
        for kind in kinds:
            for number in self._of(self.there, kind) if getattr(self.away, kind) else ():
                self.on_host[number] = self.there.pop(number)
                self.both.events.append((self.numbers[number], -self.on_host[number]))
            if kind == "parameters" and self.away.parameters:
                self.both.mark(EMPTY_CACHE)

    def fetch(self, *kinds: str) -> None:
        """It comes back, into other blocks."""
        for number in [each for kind in kinds for each in self._of(self.on_host, kind)]:
            self.there[number] = size = self.on_host.pop(number)
            self.numbers[number] = self.both.comes(self.of.tags[number], size)

    def _of(self, numbers: Collection[int], kind: str) -> list[int]:
        return [number for number in numbers if KINDS[self.of.tags[number].category] == kind]


def trained_together(recipe: Recipe, plays: Sequence[StepEvents], steps: int) -> StepEvents:
    """Of the plays of both, the critic's first: in each step all its micro-steps and its optimizer's step, then the
    policy's. Before it generates, an engine on the same card is made room for."""
    both, of, start = Both(), recipe.generator, 0
    away = of.away if of else Away()
    scores = [traced.plan.name for traced, _ in stages(recipe) if traced.plan.style == "no-grad"]
    critic, policy = Training(plays[0], both, away, NAME), Training(plays[1], both, away, scores=scores)
    for _ in range(steps):
        start = len(both.events)
        critic.fetch("parameters", "optimizer")
        critic.part()
        critic.send("parameters", "optimizer")
        policy.fetch("parameters")
        policy.part()
        policy.send("parameters", "optimizer")
        if of is not None and not of.separate:
            both.mark(EMPTY_CACHE)
    policy.part()
    return StepEvents(tuple(both.events), start, both.streams, both.recorded, tuple(both.marks), both.tags)
