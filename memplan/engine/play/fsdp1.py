"""FSDP1's hooks on the play: one flat parameter for each unit, gathered whole, and a flat gradient that is reduced.

torch 2.13 distributed/fsdp/_runtime_utils.py (``_pre_forward``, ``_pre_backward_hook``, ``_post_backward_hook``,
``_reduce_grad``) and _flat_param.py (``_alloc_padded_unsharded_flat_param``)."""

from collections import deque
from collections.abc import Callable, Sequence

from memplan.engine.play.fsdp2 import GATHERING, REDUCING, Fsdp2
from memplan.engine.play.sharding import LAUNCHES, Group
from memplan.engine.tape.graph import Param, Tensor
from memplan.units import ceil_div

COMPUTING, PREPARING = 0, 3
"""The stream of modules and of autograd, and that on which shards are cast (``_pre_unshard_stream``)."""
IN_FLIGHT = 2
"""Freed units for which the host does not wait yet (_limiter_utils.py: ``_max_num_inflight_all_gathers``)."""


class Fsdp1(Fsdp2):
    """Units whose weights are views of one tensor, so that their gradients wait for one another.

    The host runs ahead of the device until it waits for an event (``limit_all_gathers``). What it frees while another
    stream uses it (``record_stream``) is not free before that. An event behind a unit's backward also means that the
    reduction of the unit before has ended: it began when that one's backward ended."""

    remembers = True  # the events of units that were freed
    freed: deque[tuple[int, dict[int, int]]] | None = None
    """Events of units that were freed (``_FreeEventQueue``): what was waiting for each stream by then, and how many
    tensors were made. A host that waits for no event runs ahead by what a stream takes, a tensor a launch at most."""
    alone: dict[Param, Tensor] | None = None
    gathered: dict[Param, Tensor] | None = None
    """Of adapters that are units: reduced gradients; what stays whole from forward to backward (SHARD_GRAD_OP)."""
    behind: Group | None = None
    """A frozen unit that has run back. The hook that reshards it hangs on its input, behind the one that gathers the
    unit before (``_register_post_backward_reshard_only_hook``, ``_register_pre_backward_hooks``)."""
    inputs: list[Tensor | None] | None = None
    """Of checkpoints of frozen units, and their gradients."""
    scoped: tuple[int, dict[object, list[Param]]] | None = None
    """How many parameters have a scope, and those of each."""
    ends: dict[Param, int] | None = None
    """The adapters that run last, and their layers."""
    entered = -1
    """The last layer whose forward has begun; those before it run in recomputations alone."""
    rested = False
    """The base has run without its adapters, whose gradients go when the root begins next (``Rules.forgets``)."""
    passes = 0
    """Forwards with a graph that one backward runs through, the last of them first."""
    sums: dict[Group, list[Tensor | None]] | None = None
    """Units through which some of them have run back, with what came of each: the sum waits in autograd's input buffer
    of the flat parameter, which stays whole until all have (``_use_unsharded_views`` makes views in each forward)."""

    def begin(self) -> None:
        """Views of its own, to which gradients come that no other forward's are added to."""
        if self.rested:
            self.zero_grad()
        self.rested = self.rules.forgets and self.name == "reference"
        if self.tape.grad_enabled:
            self.passes += 1
            for param in self.tape.scopes:
                param.node = None
        self.entered = -1
        super().begin()

    def before(self, layer: int, x: Tensor) -> Tensor:
        """``_pre_forward``; with forward_prefetch the next unit is gathered too, if it has not run since the root began
        (``_needs_pre_forward_unshard``). Autograd then puts its flat gradient together when this one has run back."""
        if not self.rules.forward_prefetch or self.rules.apart:
            return super().before(layer, x)
        self._enter(self.layers[layer])
        ahead = self.gathers_ahead(layer)
        own = ahead if self.rules.waits_for_layer_before else self.layers[layer : layer + 1]
        back = self._first_two_back if own is ahead and layer == 0 else self._post_backward
        return self._then(x, own[0], back) if own else x

    def _first_two_back(self, group: Group) -> None:
        """The first unit's views are older than what runs before it: its flat gradient comes last of a graph's, that of
        the last graph when backward ends."""
        self._post_backward(group)
        first = self.layers[0]
        if self.passes > 1 and len((self.sums or {}).get(first, ())) < self.passes - 1 and first.arrived:
            self._post_backward(first)

    def after(self, layer: int, y: Tensor, *, again: bool = False) -> Tensor:
        """The order in which units have run is known from now on."""
        if self.rules.forward_prefetch and self.rules.apart and not again:
            self.ends = (self.ends or {}) | dict.fromkeys(self._adapted(self.layers[layer])[-1:], layer)
        return super().after(layer, y, again=again)

    def uses(self, param: Param) -> None:
        """The next layer is gathered beside the last adapter of a layer that is a unit; and an adapter, to stay."""
        if self.ends and param in self.ends:
            self.gathers_ahead(self.ends[param])
        there = self.gathered = self.gathered or {}
        stays = self.rules.keeps_adapters and param.needs_grad and self.name != "reference"
        if stays and param not in there and param.name not in self._unit_of(param, self.tape.scopes.get(param)).place:
            size = ceil_div(param.dim.elements, self.rules.ranks) * self.rules.ranks * param.itemsize
            there[param] = self._new(size, "gathered flat parameter of an adapter", "gathered_parameters", GATHERING)
            self.tape.record(there[param], COMPUTING)

    def gathers_ahead(self, layer: int) -> Sequence[Group]:
        """The next layer, but in a recomputation."""
        ahead = self.layers[layer + 1 : layer + 2] if layer > self.entered else []
        self.entered = max(self.entered, layer)
        for group in ahead:
            self._unshard(group)
        return ahead

    def _unshard(self, group: Group) -> None:
        """The shard in low precision, while the gather into the flat parameter runs."""
        if group.is_whole or not group.sizes:
            return
        copied = self._new(group.unit.cast, group.named("shard in low precision"), "buffers", PREPARING)
        if self.rules.limit_all_gathers and self.freed is not None and len(self.freed) >= IN_FLIGHT:
            self.tape.reached(self.freed.popleft()[1])
        group.whole = [
            self._new(group.unit.gathered, group.named("gathered flat parameter"), "gathered_parameters", GATHERING)
        ]
        self.tape.record(copied, GATHERING)
        del copied

    def _reshard(self, group: Group) -> None:
        """The unit is let go of while kernels that were given it may still run."""
        for flat in group.whole:
            self.tape.record(flat, COMPUTING)
        group.whole.clear()
        self.freed = self.freed or deque()
        self.freed.append((len(self.tape.tags), dict(self.tape.waiting_for)))
        while not self.rules.limit_all_gathers and len(self.tape.tags) - self.freed[0][0] > LAUNCHES:
            self.tape.reached(self.freed.popleft()[1])

    def _wait(self, group: Group, *, forward: bool) -> None:
        """It is gathered straight into place."""

    def _leave(self, group: Group, y: Tensor, again: bool = False) -> Tensor:
        if not self.rules.keeps:
            self._reshard(group)
        if not again:
            self._record(group)
        if self.tape.grad_enabled:  # else ``_register_pre_backward_hooks`` returns before it says anything
            group.hooked = y.needs_grad
        return self._then(y, group, self._pre_backward)

    def _record(self, group: Group) -> None:
        """``record_post_forward`` knows each handle once."""
        if not group.forwards:
            super()._record(group)

    def _pre_backward(self, group: Group) -> None:
        if self.rested:
            self.zero_grad()
        for other in (self.root, self.first) if group is self.root else ():
            if other.arrived:
                self._post_backward(other)
        self._unshard(group)
        group.hooked = False
        if self.rules.backward_prefetch == "BACKWARD_PRE" and not self._adapted(group):
            self._prefetch(group)
        behind, self.behind = self.behind, None
        if behind is not None and (self.reduces or not self.rules.keeps):
            self._reshard(behind)

    def _adapted(self, group: Group) -> list[Param]:
        """The adapters within a layer that are units of their own, in forward's order."""
        if not self.rules.apart or group not in self.layers:
            return []
        if self.scoped is None or self.scoped[0] != len(self.tape.scopes):
            self.scoped = len(self.tape.scopes), {}
            for param, scope in self.tape.scopes.items():
                self.scoped[1].setdefault(scope, []).append(param)
        return [param for param in self.scoped[1].get(self.layers.index(group), ()) if param.node is not None]

    def logits(self, x: Tensor) -> Tensor:
        """A trained copy of the head that is a unit (``modules_to_save``) is let go of as layers are."""
        x = self._leave(self.last, x) if self.last.sizes else x
        if not self.within:
            self._record(self.root)
            x = self._then(x, self.root, self._pre_backward)
        return x

    def took(self, param: Param, scope: object, *, is_new: bool) -> None:
        """An adapter that is a unit is reduced alone. Before the first of a layer runs back (BACKWARD_POST: after it)
        its hook gathers the layer before."""
        own = self._unit_of(param, scope)
        if not self.rules.apart or param.name in own.place:
            super().took(param, scope, is_new=is_new)
            if self.rules.apart and own is self.first:  # token ids have no gradient to wait for
                self._post_backward(self.first)
            return
        if self.reduces:
            (self.gathered or {}).pop(param, None)
            self._reduce_alone(param)
        if isinstance(scope, int):
            adapted = self._adapted(self.layers[scope])
            how = {adapted[0]: "BACKWARD_POST"} | {adapted[:2][-1]: "BACKWARD_PRE"}
            if how.get(param) == self.rules.backward_prefetch:
                self._prefetch(self.layers[scope])

    def _reduce_alone(self, param: Param) -> None:
        self.alone = {} if self.alone is None else self.alone
        grad = self.tape.stored.pop(param)
        flat = self._new(grad.dim.elements * grad.itemsize, "flat gradient of an adapter", "gradients")
        elements, used = grad.dim.elements, grad.itemsize
        del grad
        self.tape.record(flat, REDUCING)
        stored = self.rules.magnitude if param.name.endswith(".magnitude") else self.rules.adapter
        size, part = elements * self.rules.reduced, ceil_div(elements, self.rules.ranks)
        shard = self._scattered(size, part * self.rules.reduced, part * stored, used, "{} of adapters".format)
        if not self.rules.cpu_offload:
            self.alone.setdefault(param, shard)

    def _scattered(self, size: int, part: int, stored: int, used: int, named: Callable[[str], str]) -> Tensor:
        """``_reduce_grad``: a cast beside the flat gradient, a copy that ranks share evenly where they do not that
        (``_get_reduce_scatter_tensors``), the part, its cast to what is stored (``_cast_grad_to_param_dtype``)."""
        reduce, ranks = self.rules.reduced, self.rules.ranks
        uneven = not self.rules.aligned and size // reduce % ranks > 0
        made = [self._new(size * (reduce != used), named("cast"), "buffers", REDUCING)]
        made += [self._new(size * uneven, named("padded copy"), "buffers", REDUCING)]
        shard = self._new(part, named("reduced gradients"), "gradients", REDUCING)
        if round(reduce * stored / max(1, part)) != reduce:  # but for padding, of another dtype
            shard = self._new(stored, named("shards of gradients"), "gradients", REDUCING)
        return shard

    def held(self, scope: object, leaf: Tensor, grads: list[Tensor | None]) -> None:
        """The hook that reshards a frozen unit holds what its checkpoint was given, and the gradient of that, to the
        end of backward (``_register_post_backward_reshard_only_hook``)."""
        frozen = isinstance(scope, int) and not self.layers[scope].unit.gradients
        if frozen and self.rules.apart and self.wrapped_within:
            self.inputs = [*(self.inputs or ()), Tensor(leaf.dim, leaf.itemsize, leaf.storage), *grads]

    def backward_ends(self) -> None:
        """Hooks of frozen units are taken off (``_finalize_params``)."""
        self.passes = 0
        if self.layers and self.layers[0].arrived:
            self._post_backward(self.layers[0])
        super().backward_ends()
        self.inputs, self.sums, self.gathered = None, None, None if self.reduces else self.gathered

    def zero_grad(self) -> None:
        """Adapters' gradients go too."""
        super().zero_grad()
        self.alone, self.rested = None, False

    def _prefetch(self, group: Group) -> None:
        """The unit before it in forward, if a gradient comes to what it gave (``_needs_pre_backward_unshard``)."""
        ahead = group.forwards.pop() - 1 if group.forwards else -1
        if ahead >= 0 and self.order[ahead].hooked:
            self._unshard(self.order[ahead])

    def _post_backward(self, group: Group) -> None:
        """The gradients of all views are put together; the unit is freed; then what is whole is cast and scattered."""
        flat = self._flat(group)
        if self.passes > 1 or self.sums:
            self.sums = self.sums or {}
            came = self.sums.setdefault(group, [])
            came.append(flat)
            del flat
            if len(came) < self.passes:
                # Data that went to its shard's dtype and back has another AccumulateGrad (variable.cpp: set_data).
                if came[-1] is not None and self.rules.used != self.rules.stored:
                    group.waiting = group.waiting or [came[-1]]
                    came[-1] = None
                return
            flat = self._summed(came)
        if self.rules.leaves_behind and group in self.layers[1:] and not group.unit.gradients:
            self.behind = group  # it is frozen, and its input another's output
            return
        if self.reduces or not self.rules.keeps:
            self._reshard(group)
        if self.rules.backward_prefetch == "BACKWARD_POST" and not self._adapted(group):
            self._prefetch(group)
        if flat is None:
            return
        self.tape.record(flat, REDUCING)
        waiting = group.waiting.pop() if group.waiting else None
        if not self.reduces:
            group.waiting = [waiting or flat]
            return
        unit, part = group.unit, group.unit.reduced // self.rules.ranks
        shard = self._scattered(unit.reduced, part, unit.shard, self.rules.used, group.named)
        if group.shard is None and not self.rules.cpu_offload:
            group.shard = shard
        del flat, waiting  # what autograd added to the one that waited lives until the hook returns

    def _summed(self, came: list[Tensor | None]) -> Tensor | None:
        """The first, to which the others are added in place, as on a card; under a dispatch mode they are not."""
        flats, came[:] = [each for each in came if each is not None], ()
        if len(flats) > 1 and not self.tape.in_place:
            flats[0] = self._new(flats[0].dim.elements, "sum of flat gradients", "gradients")
        return flats[0] if flats else None

    def _flat(self, group: Group) -> Tensor | None:
        """``SplitWithSizesBackward0``: one gradient of all views; None where nothing has come."""
        grads = [self.tape.stored.pop(param) for param in group.in_order()]
        if not grads:
            return None
        zeros = self._new(group.unit.zeros, group.named("zeros of unused views"), "gradients")
        flat = self._new(group.unit.gradients, group.named("flat gradient"), "gradients")
        del grads[:], zeros
        return flat
