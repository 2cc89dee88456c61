"""The events of a whole step from a play of a few of its layers: the repeats that were left out are put back.

The play is cut into pieces: one for each layer in each loop over the layers, and what lies between loops. The pieces of
the repeat that stands for others are written once for each of them, with the numbers that their storages have in the
whole play. What ends a storage of a layer's is as far from it as it was; where what lies between loops lets go of
storages layer by layer, that stretch is repeated.

It is exact where layers are alike, and that is looked at event by event: the template and the repeat behind it must
make the same, let go of the same, as far away. Everything else is an ``Unlike``, and the whole model is played."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import groupby
from typing import NamedTuple

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.critic_engine import has_critic_engine, parted
from memplan.engine.micro_step import stages
from memplan.engine.play.folding import FOLDED, Fold, FoldedPlayer, fold_of, repeated
from memplan.engine.play.notes import SIGN, moved
from memplan.engine.play.pieces import FoldedTape, Piece
from memplan.engine.play.step import Player, played_evaluation
from memplan.engine.play.trainings import trained_together
from memplan.engine.tape.tags import Tag
from memplan.engine.uncollected import uncollected
from memplan.spec.recipe import Recipe

START = ""
"""The mark where the last step starts."""
TEMPLATE, NEXT = 1, 2
"""Whose storage is let go of: of the repeat that stands for others, of the one behind it."""


class Unlike(Exception):
    """Layers that look alike are not, or something reaches over them."""


@uncollected()
def played(recipe: Recipe, steps: int = 2, folds: bool = True, rank: int | None = None) -> StepEvents:
    """So many steps, of which the last begins at ``start``, on the rank that holds most, or under ZeRO on another."""
    if has_critic_engine(recipe):
        critic, policy = parted(recipe)
        critic = critic._replace(batch=critic.batch._replace(eval_size=0))
        return trained_together(policy, [played(each, steps, folds, rank) for each in (critic, policy)], steps)
    found = _of_hooks(recipe, steps, folds)
    if recipe.zero_stage < 0 or recipe.sharding.deepspeed.whole_gradients:
        return found
    from memplan.engine.play.zero.divided import with_engine

    return with_engine(found, recipe, rank)


def _of_hooks(recipe: Recipe, steps: int, folds: bool) -> StepEvents:
    """As the hooks of the sharding have it; those of ZeRO leave notes (``notes.py``). ``folds``: neither every layer
    nor every step is played, where some say what the others are."""
    evaluation = played_evaluation(recipe)
    passes = [*stages(recipe), *(stages(evaluation) if evaluation else ())]
    fold = fold_of([traced.plan for traced, _ in passes]) if folds else None
    if fold is not None:
        player = FoldedPlayer(recipe, fold)
        with suppress(Unlike), closing(player.tape):
            return _steps(player, steps, partial(_unfolded, player, fold))
    whole = Player(recipe)
    if folds:
        return _steps(whole, steps, partial(_as_played, whole))
    return _as_played(whole, whole.steps(steps))


def _steps(player: Player, steps: int, written: Callable[[int], StepEvents]) -> StepEvents:
    """The first step, and the others out of it; played too where they do not follow, or an evaluation is behind."""
    if played_evaluation(player.recipe) is not None:
        return written(player.steps(steps))
    first = player.steps(1)
    found = None if player.sharding.remembers else repeated(written(first), steps)
    return found or written(player.steps(steps - 1) if steps > 1 else first)


def _as_played(player: Player, start: int) -> StepEvents:
    tape = player.tape
    return StepEvents(tuple(tape.events), start, tape.streams, tape.recorded, tuple(tape.marks), tape.tags)


def _unfolded(player: FoldedPlayer, fold: Fold, start: int) -> StepEvents:
    """With the layers that were left out. Raises Unlike."""
    if not all(type(each) in FOLDED for each in (player.sharding, *player.beside.values())):
        raise Unlike("hooks that know how many layers there are")
    return Unfolded(player.tape, fold).whole(start)


class Part(NamedTuple):
    """A stretch of the whole stream: events of the folded one, and how many layers further on what they name is."""

    first: int
    end: int
    piece: int
    shift: int
    """Of the layer of the piece; between loops, of the template's layers."""


class Unfolded:
    """The whole stream of a folded play."""

    def __init__(self, tape: FoldedTape, fold: Fold) -> None:
        self.tape, self.fold, self.pieces = tape, fold, tape.pieces
        end = Piece(0, -1, len(tape.events), len(tape.tags))
        self.ends = [(piece.first_event, piece.first_number) for piece in (*tape.pieces[1:], end)]
        self.owner = [
            i
            for i, (piece, (_, number)) in enumerate(zip(self.pieces, self.ends, strict=True))
            for _ in range(piece.first_number, number)
        ]
        """The piece that each storage is made in, by its number."""
        self.places: dict[tuple[int, int], int] = {}
        """The first number of each piece in the whole stream: by its loop and layer, or (-1) by its position."""
        self.events: list[tuple[int, int]] = []
        self.tags: list[Tag] = []
        self.streams: dict[int, int] = {}
        self.recorded: dict[int, tuple[int, ...]] = {}
        self.marks: list[tuple[int, str]] = []
        self.of_streams: dict[int, list[int]] = {}
        """Storages of other streams, or that others use, by the piece that makes them."""
        for number in sorted(tape.streams.keys() | tape.recorded.keys()):
            self.of_streams.setdefault(self.owner[number], []).append(number)

    def whole(self, start: int) -> StepEvents:
        """Write it all; the last step starts where it did."""
        noted = sorted([*self.tape.marks, (start, START)], key=lambda mark: mark[0])
        self.noted, self.positions = noted, [position for position, _ in noted]
        last = -1
        for part in self._parts():
            if part.piece != last or self.pieces[part.piece].layer >= 0:
                self._make(part)
            last = part.piece
            self._write(part)
        self._mark(len(self.tape.events), len(self.tape.events) + 1)
        (begins,) = (position for position, name in self.marks if name == START)
        marks = tuple(mark for mark in self.marks if mark[1] != START)
        return StepEvents(tuple(self.events), begins, self.streams, self.recorded, marks, self.tags)

    # -- the order --------------------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[Part]:
        """Every stretch, in the order of the whole stream."""
        for layer_of, group in groupby(enumerate(self.pieces), key=lambda found: found[1].layer >= 0):
            for _, of_loop in groupby(group, key=lambda found: found[1].loop):
                loop = [i for i, _ in of_loop]
                if layer_of:
                    yield from self._loop(loop)
                else:
                    for i in loop:
                        yield from self._between(i)

    def _loop(self, loop: list[int]) -> Iterator[Part]:
        """Layers from first to last, or from last to first, with those that were left out."""
        layers, fold = [self.pieces[i].layer for i in loop], self.fold
        step = 1 if layers[0] < layers[-1] else -1
        if layers != list(range(layers[0], layers[-1] + step, step)):
            raise Unlike("a loop over the layers that leaves some out")
        ranges = [range(first, first + fold.period) for first in (fold.template, fold.behind)]
        own, other = ([i for i in loop if self.pieces[i].layer in one] for one in ranges)
        if len(own) != len(other) or 0 < len(own) < fold.period:
            raise Unlike("a loop over some of the layers")
        for one, same in zip(own, other, strict=True):
            self._compare(one, same)
        for i in loop:
            if i not in own:
                yield self._part(i, fold.skipped if self.pieces[i].layer >= fold.behind else 0)
            elif i == own[0]:
                for shift in self._shifts(step):
                    yield from (self._part(each, shift) for each in own)

    def _shifts(self, step: int) -> range:
        """Of the template where it stands for itself and all that are left out, in this direction."""
        return range(0, self.fold.skipped + 1, self.fold.period)[::step]

    def _part(self, i: int, shift: int) -> Part:
        return Part(self.pieces[i].first_event, self.ends[i][0], i, shift)

    def _between(self, i: int) -> Iterator[Part]:
        """What lies between loops; where it lets go of what layers made, layer after layer, of all layers'."""
        first, end = self.pieces[i].first_event, self.ends[i][0]
        sides = [self._side(number) for number, _ in self.tape.events[first:end]]
        at = first
        for side, found in groupby(sides):
            count = len(list(found))
            if side == TEMPLATE:
                step = self._direction(at, count)
                yield Part(first, at, i, 0)
                for shift in self._shifts(step):
                    yield Part(at, at + count, i, shift)
                first = at + count
            at += count
        if sides.count(TEMPLATE) != sides.count(NEXT):
            raise Unlike("what is let go of is not the same of all layers")
        yield Part(first, end, i, 0)

    def _side(self, number: int) -> int:
        layer = self.pieces[self.owner[number]].layer - self.fold.template
        return 0 if not 0 <= layer < 2 * self.fold.period else NEXT if layer >= self.fold.period else TEMPLATE

    def _direction(self, at: int, count: int) -> int:
        """1 where the layer behind comes next, -1 where it came before."""
        for step, other in ((1, at + count), (-1, at - count)):
            if other >= 0 and self._same(at, other, count):
                return step
        raise Unlike("what is let go of does not go layer by layer")

    # -- whether layers are alike -----------------------------------------------------------------------------------

    def _compare(self, one: int, other: int) -> None:
        """The pieces of a layer and of the one a repeat behind it."""
        first, second = self.pieces[one], self.pieces[other]
        count = self.ends[one][0] - first.first_event
        if (
            count != self.ends[other][0] - second.first_event
            or self._made(one) != self._made(other)
            or self._beside(one) != self._beside(other)
            or not self._same(first.first_event, second.first_event, count)
        ):
            raise Unlike("layers that are alike do not play alike")

    def _made(self, i: int) -> list[Tag]:
        return self.tape.tags[self.pieces[i].first_number : self.ends[i][1]]

    def _beside(self, i: int) -> tuple[list[tuple[int, ...]], list[tuple[int, str]]]:
        """Streams and marks of a piece, counted from its start."""
        piece, (end, _), own, others = self.pieces[i], self.ends[i], self.tape.streams, self.tape.recorded
        streams: list[tuple[int, ...]] = [
            (number - piece.first_number, own.get(number, 0), *others.get(number, ()))
            for number in self.of_streams.get(i, ())
        ]
        return streams, [(at - piece.first_event, name) for at, name in self._marks(piece.first_event, end)]

    def _same(self, one: int, other: int, count: int) -> bool:
        """Whether so many events are of storages as far away as those of the other stretch."""
        events, pieces, owner = self.tape.events, self.pieces, self.owner
        for (n, x), (m, y) in zip(events[one : one + count], events[other : other + count], strict=False):
            a, b = pieces[owner[n]], pieces[owner[m]]
            if x != y or (n != m and (a.loop != b.loop or b.layer - a.layer != self.fold.period)):
                return False
            if n - a.first_number != m - b.first_number or (n == m and a.layer >= 0):
                return False
        return other + count <= len(events)

    # -- writing ----------------------------------------------------------------------------------------------------

    def _make(self, part: Part) -> None:
        """The storages of a piece."""
        piece, new = self.pieces[part.piece], len(self.tags)
        self.places[(piece.loop, piece.layer + part.shift) if piece.layer >= 0 else (-1, part.piece)] = new
        self.tags += self._made(part.piece)
        for number in self.of_streams.get(part.piece, ()):
            moved = number + new - piece.first_number
            if number in self.tape.streams:
                self.streams[moved] = self.tape.streams[number]
            if number in self.tape.recorded:
                self.recorded[moved] = self.tape.recorded[number]

    def _write(self, part: Part) -> None:
        """The events of a stretch."""
        self._mark(part.first, part.end, max(self.pieces[part.piece].layer + part.shift, 0))
        events, owner = self.tape.events[part.first : part.end], self.owner
        owners = [owner[number] for number, _ in events]
        moved = {i: self._place(i, part) - self.pieces[i].first_number for i in set(owners)}
        self.events += [(number + moved[i], size) for (number, size), i in zip(events, owners, strict=True)]

    def _place(self, i: int, part: Part) -> int:
        """The first number of the piece that something in a stretch belongs to."""
        piece, reader, fold = self.pieces[i], self.pieces[part.piece], self.fold
        if piece.layer < 0:
            return self.places[-1, i]
        shift, behind = part.shift, piece.layer >= fold.behind
        if reader.layer < 0:
            shift = fold.skipped if behind else 0 if piece.layer < fold.template else shift
        elif (behind and reader.layer < fold.template) or (piece.layer < fold.template and reader.layer >= fold.behind):
            raise Unlike("a layer reaches over those that are left out")
        return self.places[piece.loop, piece.layer + shift]

    def _marks(self, first: int, end: int) -> list[tuple[int, str]]:
        return self.noted[bisect_left(self.positions, first) : bisect_left(self.positions, end)]

    def _mark(self, first: int, end: int, by: int = 0) -> None:
        """The marks of a stretch that is about to be written; ``by``: the layer that notes are of."""
        found = [(at - first + len(self.events), name) for at, name in self._marks(first, end)]
        self.marks += [(at, moved(name, by) if by and name.startswith(SIGN) else name) for at, name in found]
