"""FSDP2's hooks on the play: units are gathered before they run, freed behind them, and their gradients reduced.

torch 2.13 distributed/fsdp/_fully_shard: ``_fsdp_param_group.py`` (unshard, wait_for_unshard, post_backward),
``_fsdp_collectives.py`` (what is allocated on which stream), ``_fsdp_state.py`` (the root, and the end of backward)."""

from collections.abc import Callable

from memplan.engine.parallel.fsdp2.rules import Rules
from memplan.engine.play.sharding import Group, Groups, Sharding
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.weights import OUTSIDE
from memplan.engine.tape.graph import Node, Param, Tensor
from memplan.engine.tape.tags import Dim

GATHERING, REDUCING, STREAMS = 1, 2, 8
"""Streams of each root (``FSDPCommContext``; FSDP1: ``_init_streams``): of all-gathers' outputs, and of reductions'."""
ADDED, UPDATE = "reduced gradients, added to those that are there,", "copies of a gradient's update in backward"


class Fsdp2(Sharding):
    """The units of one model."""

    def __init__(self, rules: Rules, tape: PlayTape, groups: Groups) -> None:
        self.rules, self.tape, self.base = rules, tape, STREAMS * tape.roots
        tape.roots += 1
        self.root, self.first, self.last = (Group(sizes) for sizes in (groups.root, groups.first, groups.last))
        self.opens = groups.opens
        self.layers = [Group(sizes) for sizes in groups.layers]
        self.tower = {place: Group(sizes) for place, sizes in groups.tower}
        self.outside = {name: group for group in (self.root, self.first, self.last) for name in group.place}
        self.reshards = rules.resharding is True
        self.parts = max(1, int(rules.resharding))
        self.single = rules.ranks == 1
        """Nothing is gathered, but copied when a unit begins; the loop whose variable keeps a gradient is not run."""
        self.nothing = tape.new(Dim("n", 0), 1, "")
        self.within = rules.within
        self.late, self.reduces = rules.late, True
        self.wrapped_within = rules.wrapped_within
        self.order: list[Group] = []
        self.begun = False
        """The root has gathered ahead in this backward: it does so once, before the first of two uses."""
        self.gathered_before: Tensor | None = None
        self.reduced_before: Tensor | None = None

    def _new(self, size: int, label: str, category: str, stream: int = 0) -> Tensor:
        return self.tape.on(stream, Dim("n", size), label, category)

    # -- forward ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The root's ``pre_forward``, then the embedding's."""
        self._enter(self.root)
        if self.opens:
            self._enter(self.last)
        self._enter(self.first)

    def embedded(self, x: Tensor) -> Tensor:
        """The embedding's ``post_forward``, where it is a unit."""
        return self._leave(self.first, x) if self.first.sizes else x

    def before_block(self, place: object, x: Tensor | None = None) -> Tensor | None:
        """The same of a tower's block; of its patch embedding, whose input needs no gradient."""
        group = self.tower.get(place)
        if group is None:
            return x
        self._enter(group)
        return x and self._then(x, group, self._post_backward)

    def after_block(self, place: object, y: Tensor) -> Tensor:
        """It has run."""
        return self._leave(self.tower[place], y) if place in self.tower else y

    def before(self, layer: int, x: Tensor) -> Tensor:
        """``pre_forward``, which puts ``RegisterPostBackwardFunction`` before the layer."""
        if self.rules.mixers_apart:
            self.gathered_before = None  # for the norm's, which is as good as nothing
        self._enter(self.layers[layer])
        if self.rules.tells_ahead and layer + 1 < len(self.layers):  # set_modules_to_forward_prefetch
            self._unshard(self.layers[layer + 1])
        return self._then(x, self.layers[layer], self._post_backward)

    def after(self, layer: int, y: Tensor, *, again: bool = False) -> Tensor:
        """``post_forward``, which hooks the gradient of the output."""
        return self._leave(self.layers[layer], y, again)

    def tail(self, x: Tensor, *, normed: bool = False) -> Tensor:
        """Norm and head, or the head alone, where they are a unit."""
        if self.opens or not self.last.sizes or normed != self.rules.head_alone:
            return x
        self._enter(self.last)
        return self._then(x, self.last, self._post_backward)

    def logits(self, x: Tensor) -> Tensor:
        """The head has run, and the model's forward with it where the loss is not within."""
        if self.last.sizes:
            self._record(self.last)
            x = self._then(x, self.last, self._pre_backward)
        if not self.within:
            self._record(self.root)
            x = self._then(x, self.root, self._pre_backward)
            self.returned()
        return x

    def end(self) -> None:
        """The root's ``post_forward``."""
        if self.within:
            self._record(self.root)
        self.returned()

    def returned(self) -> None:
        """The last all-gather's output is let go."""
        self.gathered_before = None
        if self.rules.root_reshards:
            self.root.whole.clear()

    def _enter(self, group: Group) -> None:
        self._unshard(group)
        self._wait(group, forward=True)

    def _leave(self, group: Group, y: Tensor, again: bool = False) -> Tensor:
        if self.parts > 1:
            self._part(group)
        elif self.reshards:
            group.whole.clear()
        if not again:
            self._record(group)
        return self._then(y, group, self._pre_backward)

    def _part(self, group: Group) -> None:
        """``to_sharded_post_forward``: a part of each is cloned, and the whole freed."""
        for i, size in enumerate(group.sizes):
            label = group.named("parts of gathered weights")
            group.parts.append(self._new(size // self.parts, label, "gathered_parameters"))
            group.whole[i] = self.nothing
        group.whole = []

    def _record(self, group: Group) -> None:
        group.forwards.append(len(self.order))
        self.order.append(group)

    def _then(self, x: Tensor, group: Group, hook: Callable[[Group], None]) -> Tensor:
        """The same tensor, whose gradient passes a hook."""
        if not (self.tape.grad_enabled and x.needs_grad):
            return x

        def backward(tape: PlayTape, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
            hook(group)
            return (grads[0],)

        return Tensor(x.dim, x.itemsize, x.storage, Node(self.tape, [x.edge], (), backward))  # type: ignore[arg-type]

    def _unshard(self, group: Group) -> None:
        """The all-gather's output, and what its input is copied or cast to."""
        if group.is_whole or group.output is not None or not group.sizes:
            return
        if self.single:
            group.output = self.nothing
            return
        copied = self._inputs(group)
        label = group.named("all-gather output")
        group.output = self._new(group.unit.gathered, label, "gathered_parameters", GATHERING)
        del copied

    def _inputs(self, group: Group) -> list[Tensor]:
        """``all_gather_inputs``: copies in the gathered dtype; shards on the host come first, one after another."""
        ranks = self.rules.ranks
        if not self.rules.cpu_offload:
            size = group.unit.cast if group.parts or self.parts == 1 else group.cast
            return [self._new(size, group.named("all-gather input"), "buffers", GATHERING)]
        made, wide = list[Tensor](), self.rules.stored
        for size in group.sizes:
            elements = size // self.rules.used // ranks
            from_host = self._new(elements * wide, group.named("shard from the host"), "buffers", GATHERING)
            if elements * wide != size // ranks:
                from_host = self._new(size // ranks, group.named("all-gather input"), "buffers", GATHERING)
            made.append(from_host)
            del from_host
        return made

    def _wait(self, group: Group, *, forward: bool) -> None:
        """Weights are copied out; in forward the output waits for the next copy-out (``AllGatherState``)."""
        if group.output is None:
            return
        before = self.gathered_before if forward else None
        if forward:
            self.gathered_before = None
        group.whole = group.copied_out(self._new, self.single)
        if forward:
            self.gathered_before = group.output
        group.output = None
        group.parts.clear()
        del before

    # -- backward -----------------------------------------------------------------------------------------------------

    def backward_begins(self) -> None:
        """The root's hook is on the loss where the model's forward makes it."""
        if self.within:
            self._pre_backward(self.root)

    def took(self, param: Param, scope: object, *, is_new: bool) -> None:
        """A gradient of a unit has come; of one that no hook gathers (a head taken whole by ``full_tensor``) the
        rank's part is cut from it at once."""
        group = self._unit_of(param, scope)
        if not group.sizes and param.name in group.place:
            grad = self.tape.stored.pop(param)
            shard = group.named("shards of gradients")
            group.shard = group.shard or self._new(group.unit.shard, shard, "gradients")
            del grad
        elif is_new:
            group.arrived.append(param)

    def _unit_of(self, param: Param, scope: object) -> Group:
        if isinstance(scope, int):
            return self.layers[scope]
        if scope in (OUTSIDE, None):
            return self.outside.get(param.name, self.root)
        group = self.tower.get(scope)
        return group if group is not None and param.name in group.place else self.root

    def _pre_backward(self, group: Group) -> None:
        """Gathered, unless it is, and the unit before it in forward gathered ahead."""
        self._unshard(group)
        self._wait(group, forward=False)
        if group.forwards:
            ahead = group.forwards.pop() - 1
            if ahead >= 0 and not self.rules.mixers_apart and not (group is self.root and self.begun):
                self._unshard(self.order[ahead])
        self.begun = self.begun or group is self.root

    def _post_backward(self, group: Group) -> None:
        """Gradients that wait are added to; or all of the unit's are put together, reduced and let go of."""
        if not self.reduces:
            self._keep(group)
            group.whole.clear()
            return
        grads = self._gradients(group)
        group.whole.clear()
        if not grads:
            return
        unit = group.unit
        self.reduced_before = None
        copied = self._new(unit.reduced, group.named("reduce-scatter input"), "buffers")
        del grads[: None if self.single else -1]
        label = group.named("reduced gradients" if group.shard is None else ADDED)
        shard = self._new(unit.reduced // self.rules.ranks, label, "gradients", REDUCING)
        group.replicated = shard if self.rules.replicates else None
        if unit.shard != shard.dim.elements:
            shard = self._new(unit.shard, group.named("shards of gradients"), "gradients", REDUCING)
        if self.rules.steps:
            buffers = [self._new(unit.largest, UPDATE, "optimizer_temporaries", REDUCING)] * self.rules.copies
            del buffers
        elif group.shard is None and not self.rules.cpu_offload:
            group.shard = shard
        if not (self.rules.mixers_apart and group in self.layers):  # the norm is reduced behind the mixer
            self.reduced_before = copied

    def _keep(self, group: Group) -> None:
        """``to_accumulated_grad_if_needed``: in the reduction's dtype, where that is another than autograd's."""
        wide, stored, first = self.rules.reduced, self.tape.stored, not group.waiting
        there = [param for param in group.arrived if stored[param].itemsize == wide]
        for param in group.in_order():
            if param in there:
                continue
            grad = stored.pop(param)
            if first:
                label = group.named("gradients that wait")
                group.waiting.append(self.tape.new(grad.dim, wide, label, category="gradients"))
            del grad
        group.arrived = there

    def _gradients(self, group: Group) -> list[Tensor]:
        """All of a unit, added to those that waited."""
        grads = [self.tape.stored.pop(param) for param in group.in_order()]
        waiting, group.waiting = group.waiting, []
        own = [grad for grad in grads if grad.itemsize == self.rules.reduced]
        return [*waiting, *own] if waiting else grads

    def backward_ends(self) -> None:
        """``_root_post_backward_final_callback``: what no input's gradient has reduced is now."""
        for group in (self.root, self.first, *self.tower.values()):
            self._finish(group)
        for i, group in enumerate(self.layers):
            self.tape.enter(i)
            self._finish(group)
        self.tape.enter(-1)
        self._finish(self.last)
        self.order.clear()
        self.reduced_before, self.begun = None, False

    def _finish(self, group: Group) -> None:
        if group.is_whole or group.arrived or group.output is not None:
            self._post_backward(group)
        group.output = group.replicated = None
        group.forwards.clear()

    def zero_grad(self) -> None:
        """The optimizer has stepped."""
        for group in (self.root, self.first, *self.tower.values(), *self.layers, self.last):
            group.shard = None
