"""What FSDP's hooks hold at the instants of a pass: at its peak while a box runs, or before and after it, where less of
the box itself is alive. Bytes beside the rows of the passes."""

import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.parallel.fsdp2.frame import Unit
from memplan.engine.passes import TracedPass
from memplan.engine.play.folded_boxes import Moments
from memplan.engine.play.moments import NO_THINGS, WEIGHTS, Key, Moment, Things

if TYPE_CHECKING:
    from memplan.engine.layers.vision.tower_trace import Stretch

NO_MOMENT = Moment()
GRADIENTS, FLAT = ("gradients", "whole gradients of layers"), ("gradients", "flat gradient of layers")


class Held(NamedTuple):
    """At one instant, beside gradients that the rows of the pass count."""

    total: int
    things: Things
    """What is there, these gradients too; what is beyond is there for a moment."""
    counted: Things = NO_THINGS


class Halves:
    """The moments of a pass in one micro-step."""

    def __init__(
        self, moments: Moments, traced: TracedPass, micro_step: int, units: Sequence[Unit], back: bool, normed: bool
    ) -> None:
        self.moments, self.traced, self.micro_step, self.units = moments, traced, micro_step, units
        self.before_tail = traced.tail.normed if normed else traced.tail.input_gradient
        self.name, self.layers, self.saved = traced.plan.name, traced.layers, traced.saved_before
        self.embedded = traced.layers[0].boundary
        """The embedding's output, while the first layer is gathered; nothing where more is there before."""
        begins = moments.get(Key(micro_step, self.name, "begins-backward")) or NO_MOMENT
        self.there = begins.made if back else sys.maxsize
        """Gradients of weights outside the layers that no row of the pass counts: they have waited."""

    def comes(self, what: str, place: int = 0) -> bool:
        """Whether it comes to a moment."""
        return self.moments.get(Key(self.micro_step, self.name, what, place)) is not None

    def at(self, what: str, place: int = 0) -> Moment:
        """A moment; nothing where it does not come."""
        found = self.moments.get(Key(self.micro_step, self.name, what, place)) or NO_MOMENT
        if found.most_made <= self.there:
            return found
        made, most_made = max(0, found.made - self.there), found.most_made - self.there
        return found._replace(inside=found.inside - made, most=found.most - most_made)

    def _held(self, total: int, things: Things, met: int = 0) -> Held:
        """``met``: of another graph's gradients that wait, those that rows of the layer count."""
        counted = {WEIGHTS: max(0, things.get(WEIGHTS, 0) - self.there)}
        return Held(total, things, counted | dict.fromkeys((GRADIENTS, FLAT), met) if met else counted)

    # -- forward ------------------------------------------------------------------------------------------------------

    def forward(self) -> Iterator[tuple[str, Held]]:
        """By instant."""
        yield "gather", self._gather()
        yield "vision-forward", self._tower_forward()
        yield "layer-forward", self._layer_forward()
        tail = self.traced.tail.forward
        ends = max((tail[point].size for point in ("final-norm", "head") if point in tail), default=0)
        loss = tail["loss"].size if "loss" in tail else 0
        opens, within, after = self.at("ends"), self.at("tail"), self.at("loss")
        most = max(opens.most + self.before_tail, within.most + ends)
        if self.traced.plan.style == "no-grad":
            most = max(most, after.most + loss)
            yield "forward", self._held(most - max(ends, loss), (after if loss > ends else within).things)
            return
        yield "forward", self._held(most - ends, within.things)
        own, most, returned = tail.get("own-loss"), after.most, self.at("returned")
        if own and returned.inside + loss > most + own.size:  # for the log, when the root's forward has returned
            most, after = returned.inside, returned
        elif own:
            most -= loss - own.size
        yield "loss", self._held(most, after.things)

    def _gather(self) -> Held:
        """Until the embedding has run."""
        begins, embeds, spec = self.at("begin"), self.at("embedding"), self.traced.plan.spec
        scaled = bool(spec.embedding_multiplier and not spec.scaled_outside)
        most = embeds.most + self.embedded * (1 + scaled)
        if begins.most >= most:
            self.embedded = 0
            return self._held(begins.most, begins.most_things)
        return self._held(most - self.embedded, embeds.most_things)

    def _layer_forward(self) -> Held:
        """Of the layer that is fullest with it: of equal ones in a row the last, before which most is saved."""
        traced, layers, saved, most = self.traced, self.layers, self.saved, 0
        front = traced.plan.spec.front  # else a row of the pass is the first layer's input
        embeds = not (traced.stack or layers[0].keeps_input or (front and front[-1] != "return"))
        active, middle = traced.forward_layer, self.moments.middle
        last = {id(layers[i]): i for i in middle}
        for i in (*range(middle.start), *last.values(), *range(middle.stop, len(layers))):
            opens, runs, beside = self.at("opens", i), self.at("forward", i), saved[i] + traced.beside("forward", i)
            x, ahead = layers[i].boundary, self.at("ahead", i)  # within the layer: beside all of it, to be sure
            most = max(most, ahead.most and ahead.most + beside + layers[i].forward.size)
            most = max(most, runs.inside + beside + layers[i].forward.size, runs.most + saved[i + 1] + x)
            most = max(most, opens.most + beside + x * (i > 0 or not embeds))
        base = saved[active] + traced.beside("forward", active) + layers[active].forward.size
        return self._held(most - base, self.at("forward", active).things)

    # -- backward -----------------------------------------------------------------------------------------------------

    def backward(self) -> Iterator[tuple[str, Held]]:
        """By instant."""
        traced, tail = self.traced, self.traced.tail.backward
        begins, loss, head = self.at("begins-backward"), self.at("loss-backward"), self.at("head-backward")
        loses, size = (tail[point].size if point in tail else 0 for point in ("loss", "head"))
        before, after = begins.most + min(loses, traced.tail.saved.size), loss.most + size - _beyond_logits(traced)
        yield "loss-backward", self._held(max(before, loss.inside + loses, after) - loses, loss.things)
        yield "head-backward", self._held(max(after, head.inside + size) - size, head.things)
        yield "final-norm-backward", self._held(head.inside, head.things)
        yield "tail-reduce", self._held(head.most, head.most_things)
        for i in traced.backward_layers:
            if self.comes("backward", i):
                yield from self._layer(i)
        last = self.at("embedding-backward" if self.comes("embedding-backward") else "reduce")
        yield "inputs-backward", self._held(last.inside, last.things)
        yield "vision-backward", self._tower_backward(last)
        yield "embedding-backward", self._held(last.inside, last.things)
        reduces = max(self.at("embedding-backward"), self.at("reduce"), key=lambda moment: moment.most)
        yield "reduce", self._held(reduces.most, reduces.most_things)
        steps = self.at("optimizer")  # of a critic, by itself
        yield "optimizer", self._held(steps.inside, steps.things)

    def _layer(self, i: int) -> Iterator[tuple[str, Held]]:
        """When it runs back, and when its gradients are reduced, until the one below has its weights."""
        plan, layer = self.traced.plan, self.layers[i]
        runs, opens, below = self.at("backward", i), self.at("opens-backward", i), self.at("opens-backward", i - 1)
        meets = plan.gradients_of(plan.style_of(i)) in ("join", "meet")  # another graph's wait: the layer's own rows
        waiting = self.units[i].gradients if meets else 0
        for position, (instant, alive) in enumerate(self.traced.layer_instants(i)):
            most = max(size + moment.inside for moment, size in self._points(i, instant, alive.size)) - waiting
            if position == 0:
                most = max(most, opens.most + layer.saved.size + layer.boundary)
            held = self._held(most - alive.size, runs.things, waiting)
            yield instant.removeprefix(f"{self.name}."), held
        fuller = max(runs, self.at("late-backward", i), below, key=lambda moment: moment.most)
        yield self.traced.end_of(i).removeprefix(f"{self.name}."), self._held(fuller.most, fuller.most_things)

    def _points(self, i: int, instant: str, size: int) -> list[tuple[Moment, int]]:
        """What of a layer's backward is alive when. Its first adapters run back last; where they are units, their hook
        gathers the layer below."""
        runs, late = self.at("backward", i), self.at("late-backward", i)
        if late is NO_MOMENT or instant.endswith("last-layer-backward"):
            return [(runs, size)]
        ended = "feed-forward" if instant.endswith("attention-backward") else ""
        sizes = {point: alive.size for point, alive in self.layers[i].backward.items() if point != ended}
        first = "projections" if "projections" in sizes else "attention"
        return [(late, sizes.pop(first, 0)), *((runs, each) for each in sizes.values())]

    # -- a tower ------------------------------------------------------------------------------------------------------

    def _tower_forward(self) -> Held:
        """Its blocks are units, gathered one after another before the layers."""
        got, vision = tower_of(self.traced), self.traced.vision
        if got is None:
            found = [(vision.forward, self.at("embedding"))]
            for place, begun, most in vision.places:
                opens, runs = self.at("tower-opens", place), self.at("tower", place)
                found += [(begun + opens.most, opens), (most + runs.inside, runs)]
            most, moment = max(found, key=itemgetter(0))
            return self._held(most - vision.forward, _within(most - vision.forward, moment.things))
        first, ends = self.at("tower"), self.at("tower", got.plan.tower.num_layers + 1)
        found = [(got.first.forward + first.inside, first), (got.end + ends.inside, ends)]
        for i, layer in enumerate(got.layers):
            runs, beside = self.at("tower", i + 1), got.before[i] + got.beside
            found.append((beside + layer.forward.size + runs.inside, runs))
            found.append((beside + layer.boundary + self.at("tower-opens", i + 1).most, runs))
        most, moment = max(found, key=itemgetter(0))
        return self._held(most + got.shared - self.traced.vision.forward, moment.things)

    def _tower_backward(self, last: Moment) -> Held:
        """They are reduced one after another behind the layers. Gradients of what is no unit wait whole for the root's
        reduction; no ledger has rows for them."""
        got, alone = tower_of(self.traced), self.traced.vision.alone or self.traced.vision.backward
        if got is None or not self.traced.vision.backward:
            return self._fullest_place(last)
        plan, keep = got.plan, got.plan.gradients == "keep"
        used, joint = plan.tower.used_blocks, self.at("tower-backward", plan.tower.num_layers + 1)
        whole = got.last.gradients * keep * ("projector" not in plan.tower.units)
        waits = got.embedded + got.leaf
        found = [(got.saved + got.last.backward + joint.inside + got.leaf, joint)]
        for i in reversed(range(used)):
            if not self.comes("tower-backward", i + 1):
                break
            layer, runs = got.layers[i], self.at("tower-backward", i + 1)
            base = got.before[i] + waits + whole
            found.append((base + max(alive.size for alive in layer.backward.values()) + runs.inside, runs))
            found.append((base + layer.boundary + runs.most, runs))
        first = self.at("tower-backward")
        found.append((got.first.backward + waits + whole + first.inside, first))
        most, moment = max(found, key=itemgetter(0))
        return self._held(most + got.kept - alone, _within(most + got.kept - alone, moment.things))

    def _fullest_place(self, otherwise: Moment) -> Held:
        """Of a tower that is not traced block by block (Llama 3.2 Vision): most beside all of it."""
        tower = self.traced.plan.tower
        places = range(tower.tower.num_layers + 2 if tower else 0)
        moments = [self.at("tower-backward", place) for place in places if self.comes("tower-backward", place)]
        moment = max(moments, key=lambda each: each.inside, default=otherwise)
        return self._held(moment.inside, moment.things)


def _within(total: int, things: Things) -> Things:
    """What is there, no more than in all: where it is most the tower itself holds less than its own row says, which is
    of the moment at which that is most. The largest gives way."""
    over, kept = sum(things.values()) - max(total, 0), dict(things)
    for label in sorted(kept, key=lambda each: -kept[each]):
        less = min(max(over, 0), kept[label])
        kept[label], over = kept[label] - less, over - less
    return kept


def tower_of(traced: TracedPass) -> "Stretch | None":
    """The pass of a tower whose blocks are traced one by one; None without images."""
    plan = traced.plan.tower
    if plan is None or plan.tower.crossed:
        return None
    from memplan.engine.layers.vision.tower_trace import stretch_of

    return stretch_of(plan)


def _beyond_logits(traced: TracedPass) -> int:
    """What the head's backward makes beside the logits' gradient, where the gather ahead begins: nothing saved. A loss
    that writes that gradient over what it has saved makes none."""
    plan, tail = traced.plan, traced.tail
    saved, head, loss = tail.saved, tail.backward.get("head"), tail.backward.get("loss")
    tags = head.tags.items() if head else ()
    made = sum(max(0, size - saved.tags.get(tag, 0)) for tag, size in tags if tag.category != "activations")
    itemsize = 4 if plan.spec.logits_fp32 else plan.mode.numerics.autocast or plan.mode.numerics.itemsize
    gradient = plan.rows * plan.length * plan.spec.head.outputs * itemsize
    return max(0, made - (min(gradient, max(0, loss.size - saved.size)) if loss else gradient))
