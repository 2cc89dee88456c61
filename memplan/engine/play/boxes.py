"""FSDP's hooks, played over layers that are black boxes: of a layer only its units are known, and whether a gradient
goes through it. What the hooks hold depends on no token, so that a play is remembered over all batches.

What is alive while a box runs is ``inside``; what hooks make before and after it is looked for in between."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.parallel.fsdp2.rules import Rules
from memplan.engine.play.fsdp1 import Fsdp1
from memplan.engine.play.fsdp2 import Fsdp2
from memplan.engine.play.moments import WEIGHTS, Key, Moment, moments
from memplan.engine.play.notes import InTower
from memplan.engine.play.sharding import Groups, Sharding, Sizes
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.weights import OUTSIDE
from memplan.engine.tape.graph import Accumulate, Node, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.uncollected import uncollected

NOTHING = Dim("n", 0)


class Half(NamedTuple):
    """Of a pass: its forward, its backward, or the loss where that waits for others."""

    name: str
    point: str
    owner: str
    """Whose units: the policy's, those of its reference, of a critic with a step of its own, or nobody's."""
    graph: bool = False
    back: tuple[bool, ...] = ()
    """Through which layers a gradient goes."""
    embedded: bool = False
    """A gradient comes to the embedding's output."""
    tower: tuple[bool, ...] = ()
    """Through which places of a tower one goes; none where no image is seen."""
    reads: int = 0
    """The block of the tower that is read."""
    calls_head: bool = True
    joined: bool = False
    """Its backward waits for another's."""
    nested: tuple[bool, ...] = ()
    """Which layers have a backward of their own, whose gradients wait for no other pass's."""


class Question(NamedTuple):
    """What a play depends on."""

    rules: Rules
    policy: Groups
    reference: Groups | None
    halves: tuple[Half, ...]
    micro_steps: int
    before: tuple[Half, ...]
    """What has run before that leaves something: a step's micro-step, the reference's forward before an evaluation."""

    @property
    def fullest(self) -> range:
        """Micro-steps of which one holds the most: the first only where the next does not do the same beside more."""
        again = self.halves[-1].point == "backward" and self.micro_steps > 1 + self.rules.late
        return range(int(again), self.micro_steps)


class BoxTape(PlayTape):
    """A tape with notes."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[int, Key]] = []
        self.micro_step = 0
        self.in_place = True
        self.awaits: dict[Node, int] = {}
        """Gradients that are to come to a parameter in one backward, or in one of each of two forwards."""
        self.waits: set[Node] = set()

    def is_new(self, param: Param) -> bool:
        """Whether a gradient stands beside what is there: another is added in place, one tensor after another."""
        node = param.node
        assert node is not None
        self.awaits[node] -= 1
        first = node not in self.waits
        self.waits.add(node)
        if not self.awaits[node]:
            self.waits.discard(node)
            return first and param not in self.stored
        return first

    def note(self, name: str, what: str, place: int = 0) -> None:
        """Something begins."""
        self.notes.append((len(self.events), Key(self.micro_step, name, what, place)))


class Boxes:
    """A model of them: parameters by unit, each as one tensor and the last of its tensors, which reductions hold."""

    def __init__(self, tape: BoxTape, hooks: Sharding, groups: Groups | None, rules: Rules) -> None:
        self.tape, self.hooks, self.rules = tape, hooks, rules
        self.root, self.first, self.last = (list[Param](), list[Param](), list[Param]())
        self.layers: list[list[Param]] = []
        self.tower: dict[object, list[Param]] = {}
        if groups is None:
            return
        self.root, self.first, self.last = (self._of(each, OUTSIDE) for each in groups.ends)
        self.layers = [self._of(each, i) for i, each in enumerate(groups.layers)]
        self.tower = {place: self._of(each, place) for place, each in groups.tower}

    def _of(self, sizes: Sizes, scope: object) -> list[Param]:
        unit, found, used, reduced = sizes.unit, list[tuple[str, int]](), self.rules.used, self.rules.reduced
        if unit.waiting and reduced != used:
            used = max(1, unit.gradients * reduced // unit.waiting)
        if unit.gradients:
            last = unit.last // used if len(sizes.names) > 1 else 0
            found.append((sizes.names[0], (unit.gradients - unit.zeros) // used - last))
            found += [(sizes.names[-1], last)] if last else []
        params = [Param(self.tape, name, size, used, trained=True) for name, size in (*found, *sizes.alone)]
        self.tape.scopes |= dict.fromkeys(params, scope)
        return params


class BoxRun:
    """One pass through a model of boxes."""

    def __init__(self, tape: BoxTape, boxes: Boxes, half: Half, layers: int) -> None:
        self.tape, self.boxes, self.half, self.hooks = tape, boxes, half, boxes.hooks
        self.count = layers
        self.loss: Node | None = None

    def forward(self) -> None:
        """Notes come where a box runs, and where its hooks begin."""
        half, hooks, boxes, note = self.half, self.hooks, self.boxes, self._note
        self.tape.grad_enabled = half.graph
        note("begin")
        hooks.name = half.name
        hooks.begin()
        note("embedding")
        tied = boxes.last if hooks.opens and half.embedded else []  # both gradients are there when the embedding's is
        ends = [*boxes.first, *tied]
        x = hooks.embedded(self._box(self._nothing(), "embedding-backward", 0, ends, half.embedded))
        x = self._through_tower(x) if half.tower else x
        for i in range(self.count):
            note("opens", i)
            x = hooks.before(i, x)
            if boxes.rules.forward_prefetch and boxes.rules.apart:
                note("ahead", i)
                hooks.gathers_ahead(i)
            note("forward", i)
            params = boxes.layers[i] if boxes.layers else []
            for param in params:
                hooks.uses(param)
            nested = bool(half.nested) and half.nested[i]
            for param in params if nested else ():
                param.node = None
            x = self._box(x, "late-backward", i, [], x.needs_grad) if boxes.rules.apart else x
            x = hooks.after(i, self._box(x, "backward", i, params, not half.back or half.back[i]))
            for group in hooks.layers[i : i + 1] if nested and boxes.rules.wrapped_within else ():
                group.hooked = False  # it ran without a graph
            x = self._box(x, "opens-backward", i, [], x.needs_grad)
        note("ends")
        x = hooks.tail(x, normed=boxes.rules.head_alone)
        note("tail")
        x = self._box(x, "head-backward", 0, [*boxes.root, *([] if tied else boxes.last)], half.graph)
        x = hooks.logits(x) if half.calls_head else x
        note("loss")
        self.loss = self._box(x, "loss-backward", 0, [], half.graph).node
        hooks.end()
        note("returned")
        self.tape.grad_enabled = True

    def _note(self, what: str, place: int = 0) -> None:
        self.tape.note(self.half.name, what, place)

    def _nothing(self) -> Tensor:
        return self.tape.new(NOTHING, 1, "")

    def _through_tower(self, x: Tensor) -> Tensor:
        """Its ends and blocks; what it gives is put into the embedded sequence."""
        y = read = self._nothing()
        for number, back in enumerate(self.half.tower):
            place, y = InTower(number), read if number + 1 == len(self.half.tower) else y
            self._note("tower-opens", number)
            y = self.hooks.before_block(place, y) or y
            self._note("tower", number)
            params = self.boxes.tower.get(place, [])
            for param in params:
                self.hooks.uses(param)
            y = self.hooks.after_block(place, self._box(y, "tower-backward", number, params, back))
            read = y if number == self.half.reads else read
        return self._box(x, "joined", 0, [], x.needs_grad or y.needs_grad, [y])

    def _box(
        self, x: Tensor, what: str, place: int, params: list[Param], back: bool, others: list[Tensor] | None = None
    ) -> Tensor:
        """Its output; in backward it says that it runs, and leaves the gradients of its parameters."""
        y = self._nothing()
        if not (self.tape.grad_enabled and back):
            return y
        for param in params:
            param.node = param.node or Accumulate(self.tape, param)
            self.tape.awaits[param.node] = self.tape.awaits.get(param.node, 0) + 1
        inputs = [x, *(others or [])]

        def backward(tape: Tape, grads: list[Tensor | None]) -> list[Tensor | None]:
            self._note(what, place)
            label = "whole gradients of the tower's blocks" if what.startswith("tower") else "whole gradients of layers"
            label = WEIGHTS[1] if what.startswith(("head", "embedding")) else label
            sizes = [(param.dim if self.tape.is_new(param) else NOTHING, param.itemsize) for param in params]
            made = [tape.new(*size, label, category="gradients") for size in sizes]
            return [*grads * len(inputs), *made]

        y.node = Node(self.tape, [each.edge for each in (*inputs, *params)], (), backward)
        y.needs_grad = True
        return y


def _back(tape: BoxTape, runs: list[BoxRun]) -> None:
    """``loss.backward()`` of a loss that is made of these passes, the last of them first."""
    starts = [run.loss for run in runs if run.loss is not None]
    for run in runs:
        run.loss = None
    node = Node(tape, [(start, 0) for start in starts], (), lambda t, grads: [grads[0]] * len(starts))
    starts.clear()
    name = runs[0].half.name
    for run in reversed(runs):
        tape.note(run.half.name, "begins-backward")
    runs[-1].hooks.backward_begins()
    tape.backward(node, [tape.gradient((NOTHING, 1), "")])
    tape.note(name, "reduce")
    runs[-1].hooks.backward_ends()
    tape.note(name, "done")


@lru_cache(maxsize=512)
@uncollected()
def played(question: Question) -> dict[Key, Moment]:
    """The moments of a step of these passes."""
    tape, rules = BoxTape(), question.rules
    kind = Fsdp1 if rules.flat else Fsdp2
    models = {"": Boxes(tape, Sharding(), None, rules)}
    critic = question.policy if any(half.owner == CRITIC for half in question.halves) else None
    for name, groups in (("policy", question.policy), ("reference", question.reference), (CRITIC, critic)):
        if groups is not None:
            models[name] = Boxes(tape, kind(rules, tape, groups), groups, rules)
    if question.before:
        _micro_step(tape, question.before, rules.late, models, last=True)
        _zero_grad(tape, models)
        tape.note("before", "ended")
    start = len(tape.events)
    for engine in _engines(question.halves):
        for number in range(question.micro_steps):
            tape.micro_step = number
            _micro_step(tape, engine, rules.late, models, last=number + 1 == question.micro_steps)
        tape.note("step" if engine[-1].owner != CRITIC else CRITIC, "optimizer")
        if engine[-1].owner == CRITIC:
            _zero_grad(tape, models)
            tape.note(CRITIC, "ended")
    found = moments(tape, tape.notes, start)
    tape.close()
    return found


def _engines(halves: tuple[Half, ...]) -> list[tuple[Half, ...]]:
    """What steps by itself: a critic's engine, all of whose micro-steps come before the policy's."""
    end = 1 + max((i for i, half in enumerate(halves) if half.owner == CRITIC), default=-1)
    return [engine for engine in (halves[:end], halves[end:]) if engine]


def _zero_grad(tape: BoxTape, models: dict[str, Boxes]) -> None:
    tape.stored.clear()
    for model in models.values():
        model.hooks.zero_grad()


def _micro_step(tape: BoxTape, halves: tuple[Half, ...], late: bool, models: dict[str, Boxes], *, last: bool) -> None:
    runs, waiting = dict[str, BoxRun](), list[BoxRun]()
    for position, half in enumerate(halves):
        if half.point == "forward":
            layers = len(half.back)
            runs[half.name] = BoxRun(tape, models[half.owner], half, layers)
            runs[half.name].forward()
        elif half.point == "backward":
            waiting.append(runs.pop(half.name))
            if half.joined:
                continue
            tape.sharding = models[half.owner].hooks
            tape.sharding.reduces = not late or (last and position + 1 == len(halves))
            _back(tape, waiting[::-1])
            waiting.clear()
