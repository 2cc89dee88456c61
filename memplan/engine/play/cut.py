"""What of a stack that was played is a layer's own, and what it shares with others.

A layer's own is what it makes and lets go of within its forward or its backward, what goes from one to the next, what
is saved from its forward to its backward, and its weights' gradients. All else is shared."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import inf

from memplan.engine.play.stack import StackRun, StackTape
from memplan.engine.play.tape import PlayedStorage
from memplan.engine.tape.graph import Tensor, dissolve
from memplan.engine.tape.offloading import OFFLOADS
from memplan.engine.tape.tags import Tag
from memplan.engine.tape.tape import OTHER_GRAPH
from memplan.engine.traces import (
    AFTER,
    BACKWARD,
    END,
    FORWARD,
    NOTHING,
    OUTSIDE,
    REDUCED,
    TAIL,
    TURN,
    Alive,
    LayerTrace,
    Moment,
    Shared,
    Stack,
    Tags,
)


class Played:
    """A stack that has been played: where on the tape its moments are."""

    def __init__(self, tape: StackTape, run: StackRun, *, back: bool = True) -> None:
        self.tape, self.run, plan = tape, run, tape.plan
        self.begins, self.first_piece = len(tape.events), len(tape.pieces)
        tape.kept.clear()
        tape.phase, tape.place, tape.shared_casts = "forward", ("forward", ""), plan.mode.shared_casts
        tape.grad_enabled = plan.style != "no-grad"
        tape.offload = OFFLOADS[plan.mode.offload]() if plan.mode.offload and plan.style == "plain" else None
        y = run._hidden_states()
        self.layers_end = len(tape.events)
        self.context = {each.number for each in tape.context if isinstance(each, PlayedStorage)}
        self.reached, node, like = y.needs_grad, y.node, (y.dim, plan.mode.residual_itemsize)
        del y
        tape.leave_autocast()
        before = tape.live
        run.forward_locals.clear()
        self.lasting = before - tape.live
        self.tail, self.tail_piece = len(tape.events), len(tape.pieces) - 1
        if not plan.head.loss.keeps_outputs:
            run.outputs.clear()
        self.turn, self.kept = len(tape.events), tape.live
        if not back:
            if node is not None:
                dissolve(node)
            return
        tape.shared_casts, tape.grad_enabled = "", True
        if node is not None:
            tape.await_others()
            start: list[Tensor | None] = [tape.gradient(like, "gradient of the residual stream")]
            start += [None] * (node.outputs - 1)
            tape.backward(node, start, run.waits)
            del node
        tape.running = None
        run.upward.clear()
        if plan.gradients not in ("keep", "join"):
            tape.gradients.clear()  # whose rows are those of the sharding
        self.end = len(tape.events)
        run.outputs.clear()
        run.contexts.clear()
        tape.stored.clear()
        tape.context.clear()
        tape.leaf_nodes.clear()
        tape.gradients.clear()
        tape.waiting.clear()


INPUT = "checkpoints: the layer's input"


class Cut:
    """Gives each storage its place."""

    def __init__(self, played: Played) -> None:
        self.played, self.tape, self.plan = played, played.tape, played.tape.plan
        self.count = played.run.places
        self.starts = [piece.first_event for piece in self.tape.pieces]
        self.at: list[int] = []
        self.moments: list[Moment] = []
        self._find_moments()
        self.places = {moment: place for place, moment in enumerate(self.moments)}
        self.back = self._back()
        self.alive: list[Tags] = [{} for _ in self.moments]
        self.saved: list[Tags] = [{} for _ in range(self.count)]
        self.casts, self.lingering = [0] * self.count, [0] * self.count
        self.gradients = [0] * (self.count + 1)
        self.keeps_input = [False] * self.count
        self.shared: dict[tuple[Tag, int, int], int] = {}

    # -- moments ------------------------------------------------------------------------------------------------------

    def _find_moments(self) -> None:
        forward, backward = self._peaks()
        found: list[tuple[int, Moment]] = [(forward[i], (FORWARD, i, "")) for i in range(self.count)]
        found += [(self.played.tail, (TAIL, self.count, "")), (self.played.turn, (TURN, self.count, ""))]
        for i, end in sorted(self._ends().items(), reverse=True):
            peaks = backward.get(i, {}).items()
            if i >= 0:
                found += [(at, (BACKWARD, i, point)) for point, (_, at) in sorted(peaks, key=lambda peak: peak[1][1])]
            elif peaks:
                found.append((max(backward[i].values())[1], (AFTER, i, "")))
            found.append((end, (REDUCED if i >= 0 else END, i, "")))
        for at, moment in found:
            self.at.append(at)
            self.moments.append(moment)

    def _peaks(self) -> tuple[dict[int, int], dict[int, dict[str, tuple[int, int]]]]:
        """Where each layer's forward peaks; where its backward does at each point, and how high."""
        tape, played = self.tape, self.played
        forward: dict[int, tuple[int, int]] = {}
        backward: dict[int, dict[str, tuple[int, int]]] = {}
        for (piece, (phase, point)), found in tape.highest.items():
            layer = tape.pieces[piece].layer
            if piece < played.first_piece or not phase or (layer >= 0 and not point):
                continue
            if piece <= played.tail_piece:
                forward[layer] = max(forward.get(layer, (0, 0)), found)
                continue
            part = "attention" if point == "projections" else point if phase == BACKWARD else "feed-forward"
            peaks = backward.setdefault(layer, {})
            peaks[part] = max(peaks.get(part, (0, 0)), found)
        return {layer: at for layer, (_, at) in forward.items()}, backward

    def _ends(self) -> dict[int, int]:
        """Where each layer has run back; and all of it."""
        first = self.played.tail_piece + 1
        ends = [*self.starts[first + 1 :], self.played.end]
        pieces = self.tape.pieces[first:]
        found = {piece.layer: end for piece, end in zip(pieces, ends, strict=False) if piece.layer >= 0}
        return found | {OUTSIDE: self.played.end}

    def _back(self) -> dict[int, range]:
        """The places of each layer's backward; outside the layers, of what runs back after them."""
        found: dict[int, range] = {}
        for place, (kind, layer, _) in enumerate(self.moments):
            if kind in (BACKWARD, REDUCED, AFTER):
                found[layer] = range(found[layer].start if layer in found else place, place + 1)
        return {OUTSIDE: range(len(self.at) - 1, len(self.at) - 1)} | found

    def _layer_at(self, event: int) -> int:
        return self.tape.pieces[bisect_right(self.starts, event) - 1].layer

    # -- storages -----------------------------------------------------------------------------------------------------

    def _lives(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Of what is alive in the last pass at some moment, and of autocast's copies: number, bytes, the events of
        birth and death, the first and the last moment."""
        born: dict[int, tuple[int, int, int]] = {}
        tags, begins, passed, following = self.tape.tags, self.played.begins, 0, [*self.at, inf]
        for position, (number, size) in enumerate(self.tape.events):
            while following[passed] <= position:
                passed += 1
            if size > 0:
                born[number] = position, size, passed
                continue
            begun, full, first = born.pop(number)
            seen = first < passed or begun < begins or tags[number].category == "autocast_weights"
            if seen and position >= begins:
                yield number, full, begun, position, first, passed - 1
        end = len(self.tape.events)
        for number, (begun, full, first) in born.items():
            yield number, full, begun, end, first, bisect_right(self.at, end) - 1

    def stack(self) -> Stack:
        """All of it, told apart."""
        for life in self._lives():
            self._give(*life)
        shared = tuple(Shared(tag, size, first, last) for (tag, first, last), size in self.shared.items())
        after = self._alive((AFTER, OUTSIDE, ""))
        layers, alike = list[LayerTrace](), dict[object, LayerTrace]()
        for i in range(self.count):
            trace = self._trace(i)
            layers.append(alike.setdefault(_figures(trace), trace))
        return Stack(
            layers,
            self.played.reached,
            shared,
            self.places,
            after,
            self.gradients[OUTSIDE],
            self.played.lasting,
            list(accumulate(self._changes())),
        )

    def _changes(self) -> list[int]:
        """By how much more is shared at each moment than at the one before."""
        changes = [0] * (len(self.at) + 2)
        for (_, first, last), size in self.shared.items():
            changes[max(first, 0)] += size
            changes[last + 1] -= size
        return changes

    def _give(self, number: int, size: int, born: int, died: int, first: int, last: int) -> None:
        """A storage to a layer, or to what is shared."""
        tag, played, turn = self.tape.tags[number], self.played, self.count + 1
        layer, reader = self._layer_at(born), played.run.inputs.numbers.get(number, OUTSIDE)
        cast = tag.category == "autocast_weights" and played.begins <= born < played.layers_end <= died and layer >= 0
        if cast and (self.plan.mode.offload or self.plan.style_of(layer) != "plain"):
            self.casts[layer] += size
            last = self.places[FORWARD, layer, ""] if last < turn else last
        lasts = last if died < len(self.tape.events) else len(self.at)
        if born < played.begins:
            self._share(tag, size, -1, lasts)
        if first > last or born < played.begins:
            return
        if number in self.tape.kept:
            self._gradient(tag, size, first, self.tape.kept[number])
        elif tag.label == OTHER_GRAPH:
            self._own(tag, size, last, last)
        elif first <= turn <= last:
            ends = layer if number in played.context else self._layer_at(died) if died < played.end else OUTSIDE
            self.keeps_input[reader] |= reader >= 0
            if ends < 0 or ends not in (layer, reader):
                self._share(tag, size, first, lasts)
                return
            if ends == reader and self.plan.style_of(ends) != "plain":
                tag = tag._replace(category="activations", label=INPUT)
            self._own(tag, size, first, self.places[FORWARD, ends, ""])
            self._own(tag, size, self.back[ends].start, min(last, self.back[ends].stop - 1))
            self.saved[ends][tag] = self.saved[ends].get(tag, 0) + size
            self.lingering[ends] += size * (number in played.context)
        elif self._passes(tag, first, last, size):
            self._own(tag, size, first, last)
        else:
            self._share(tag, size, first, lasts)

    def _passes(self, tag: Tag, first: int, last: int, size: int) -> bool:
        """Whether it is of one layer, or goes on to the next: backward, the residual stream's gradient alone."""
        (_, begun, _), (after, ended, _) = self.moments[first], self.moments[last]
        if after == END or abs(begun - ended) > 1 or first <= self.count <= last:
            return False
        between = any(self.moments[place][0] == REDUCED for place in range(first, last + 1))
        return not between or (tag.category != "gradients" and size == self.played.run.inputs.sizes[begun])

    def _gradient(self, tag: Tag, size: int, first: int, layer: int) -> None:
        """One that stays: where layers above have begun it, it is shared until it is whole."""
        self.gradients[layer] += size
        back = self.back[layer]
        if first < back.start:
            self._share(tag, size, first, back.start - 1)
        self._own(tag, size, max(first, back.start), back.stop - 1)

    def _own(self, tag: Tag, size: int, first: int, last: int) -> None:
        """Alive at the moments from one to another."""
        for place in range(first, last + 1):
            self.alive[place][tag] = self.alive[place].get(tag, 0) + size

    def _share(self, tag: Tag, size: int, first: int, last: int) -> None:
        key = tag, first, last
        self.shared[key] = self.shared.get(key, 0) + size

    # -- layers -------------------------------------------------------------------------------------------------------

    def _alive(self, moment: Moment) -> Alive:
        return _of(self.alive[self.places[moment]]) if moment in self.places else NOTHING

    def _trace(self, i: int) -> LayerTrace:
        own = [(point, place) for (kind, of, point), place in self.places.items() if kind == BACKWARD and of == i]
        return LayerTrace(
            self.played.run.inputs.sizes[i],
            self.keeps_input[i],
            _of(self.saved[i]) if self.plan.style != "no-grad" else NOTHING,
            self.casts[i],
            self._alive((FORWARD, i, "")),
            {point: _of(self.alive[place]) for point, place in own},
            self.gradients[i],
            self.lingering[i],
            self.played.run.inputs.host[i],
        )


def _of(tags: Tags) -> Alive:
    return Alive(sum(tags.values()), tags=tags)


def _figures(trace: LayerTrace) -> object:
    """What layers are alike in."""
    back = tuple((point, tuple(alive.tags.items())) for point, alive in trace.backward.items())
    own = tuple(trace.saved.tags.items()), tuple(trace.forward.tags.items()), back
    return own, trace.boundary, trace.keeps_input, trace.casts, trace.gradients, trace.lingering, trace.host
