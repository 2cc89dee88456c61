"""Storages of a rank's play as they come and go, and layers that do again what alike ones did."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from memplan.engine.megatron.stages import Chunk
from memplan.engine.megatron.steps import Held, Step
from memplan.engine.tape.tags import Tag


class Layer:
    """What a layer of one micro-batch keeps, by step."""

    def __init__(self, chunk: Chunk, steps: Sequence[Step], is_checkpoint: bool) -> None:
        self.chunk, self.steps, self.is_checkpoint = chunk, steps, is_checkpoint
        self.kept: dict[tuple[str, int], int] = {}


class Done(NamedTuple):
    """What layers did. A number below 0 is of a storage that was there, others are of those that are taken."""

    events: list[tuple[int, int]]
    tags: list[Tag]
    sizes: list[int]
    beside: list[int]
    """On the other stream."""
    kept: list[dict[tuple[str, int], int]]
    """By each layer, afterwards."""
    moment: list[tuple[Held, int]]
    """Alive for a moment, afterwards."""


class Storages:
    """The events so far, and what of them lives."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self.tags: list[Tag] = []
        self.sizes: list[int] = []
        self.moment: list[tuple[Held, int]] = []
        """What is alive for a moment."""
        self.side = False
        self.beside: list[int] = []
        """Whether the step at hand runs on the shared experts' stream, and the storages that were taken there."""
        self.done: dict[Hashable, Done] = {}
        """By the work, the layers' kinds, and what was there."""

    def take(self, label: str, category: str, size: int) -> int:
        """A new storage."""
        number = len(self.tags)
        self.tags.append(Tag(category, label, "bytes", 1, size))
        self.sizes.append(size)
        if self.side:
            self.beside.append(number)
        if size:
            self.events.append((number, size))
        return number

    def free(self, numbers: Iterable[int]) -> None:
        """The end of some."""
        self.events += [(number, -self.sizes[number]) for number in numbers if self.sizes[number]]

    def hold(self, wanted: Sequence[Held]) -> None:
        """For a moment these, and nothing else: what was there already stays."""
        missing, staying, going = list(wanted), [], []
        for held, number in self.moment:
            if held in missing:
                missing.remove(held)
                staying.append((held, number))
            else:
                going.append(number)
        self.free(going)
        self.moment = staying + [(held, self.take(held.name, "activations", held.bytes)) for held in missing]

    def alike(self, work: Callable[[Sequence[Layer]], None], layers: Sequence[Layer]) -> None:
        """The work over layers; where such layers did it before, beside such storages, the same with those of now."""
        there = [number for layer in layers for number in layer.kept.values()] + [number for _, number in self.moment]
        kinds = tuple((id(layer.chunk), layer.is_checkpoint, tuple(layer.kept)) for layer in layers)
        same = tuple(map(there.index, there))
        key, first = (work.__name__, kinds, same, tuple(held for held, _ in self.moment)), len(self.tags)
        done = self.done.get(key)
        if done is None:
            at, beside = len(self.events), len(self.beside)
            work(layers)
            of = {number: ~i for i, number in enumerate(there)} | {n: n - first for n in range(first, len(self.tags))}
            self.done[key] = Done(
                [(of[number], size) for number, size in self.events[at:]],
                self.tags[first:],
                self.sizes[first:],
                [of[number] for number in self.beside[beside:]],
                [{name: of[number] for name, number in layer.kept.items()} for layer in layers],
                [(held, of[number]) for held, number in self.moment],
            )
            return
        now = [*range(first, first + len(done.tags)), *reversed(there)]
        self.events += [(now[number], size) for number, size in done.events]
        self.tags += done.tags
        self.sizes += done.sizes
        self.beside += [now[number] for number in done.beside]
        for layer, kept in zip(layers, done.kept, strict=True):
            layer.kept = {name: now[number] for name, number in kept.items()}
        self.moment = [(held, now[number]) for held, number in done.moment]
