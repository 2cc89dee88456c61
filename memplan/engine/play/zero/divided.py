"""Stage 3: gradients that are reduced and scattered bucket by bucket, whole weights while they are used, and the step
on sub-groups of the rank's parts.

deepspeed 0.19 runtime/zero/stage3.py: ``__add_grad_to_ipg_bucket``, ``__reduce_and_partition_ipg_grads``,
``partition_grads``, ``step``; runtime/comm/coalesced_collectives.py: ``reduce_scatter_coalesced``."""

from collections import deque

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.optimizer.states import flat
from memplan.engine.parallel.fsdp2.units import reads_head
from memplan.engine.parallel.zero.flat_groups import Group, groups_of
from memplan.engine.parallel.zero.stage3 import FP64, NORM_PIECE, limits
from memplan.engine.play.notes import BEGUN, DONE, POLICY, RESUMED, TAKEN, Note
from memplan.engine.play.optimizer import TEMPORARIES, Optimizer
from memplan.engine.play.zero.engine import Engine, Gradient, Handed, joined, notes_of
from memplan.engine.play.zero.gathering import GATHERED, Whole
from memplan.engine.play.zero.partitions import Partitions
from memplan.engine.play.zero.places import Place, Places
from memplan.engine.play.zero.sub_groups import SubGroup, sub_groups_of
from memplan.engine.play.zero.visits import USES, Modules, passes_of, placed, visits_of
from memplan.engine.tape.graph import Tensor
from memplan.engine.tensors import model_weights
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

COMPUTING, GATHERING, REDUCING = 0, 1, 2
"""The stream of modules, and with ``overlap_comm`` those of all-gathers and reductions."""
IN_FLIGHT = 2
"""Reductions that the host does not wait for yet (``max_param_reduce_events``)."""
FP32 = 4


class Divided(Engine):
    """The engine of one rank: all hold the same."""

    def __init__(
        self,
        played: StepEvents,
        recipe: Recipe,
        models: dict[str, Modules],
        groups: list[SubGroup],
        small: list[int],
        ranks: int = 0,
    ) -> None:
        """``ranks``: others than the recipe's."""
        super().__init__(played)
        self.zero, self.ranks, self.recipe = recipe.sharding.deepspeed, ranks or recipe.sharding.ranks, recipe
        self.itemsize, self.groups, self.small = recipe.numerics.itemsize, groups, small
        overlaps = self.zero.overlap_comm
        self.gathering, self.reducing = (GATHERING, REDUCING) if overlaps else (COMPUTING, COMPUTING)
        self.optimizers = [Optimizer(recipe, self.tape, [flat(group.elements, FP32)]) for group in groups]
        self.models = models
        self.passes = deque(passes_of(notes_of(played)))
        self.wholes: dict[str, Whole] = {}
        self.current: Whole | None = None
        self.filled = 0
        self.waiting: list[tuple[int, Handed | None]] = []
        """Elements of each gradient in the bucket, and the gradient where it is not copied there."""
        self.events: deque[dict[int, int]] = deque()
        self.persistent: list[Tensor] = []

    def noted(self, note: Note, grad: Handed | None) -> None:
        """A forward begins, a module runs or has run, or a gradient is there."""
        if note.what == BEGUN:
            self._begin(note.name)
        elif note.what == RESUMED:
            self.current = self.wholes.get(note.name)
        elif note.what in USES and self.current is not None:
            self.current.used()
        elif note.what == DONE and self.current is not None:
            self.current.done()
        elif note.what == TAKEN:
            self._take(note.elements, grad)

    def put(self, place: Place, grad: Handed | None) -> None:
        """A gradient comes."""
        self._take(place.elements, grad)

    # -- whole weights ------------------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        """``reset_step``."""
        started, uses = self.passes.popleft()
        assert started == name
        self.current = None
        if name not in self.models or not (self.recipe.several or self.zero.parameters):
            return
        if name not in self.wholes:
            self.wholes[name] = Whole(self.tape, limits(self.recipe), self.itemsize, self.gathering)
            self.wholes[name].from_host = bool(self.zero.parameters) and self.recipe.several
        self.current = self.wholes[name]
        self.current.begins(visits_of(self.models[name], uses))
        if not self.persistent:
            self._gather_persistent()

    def _gather_persistent(self) -> None:
        self.persistent = [self.new(size * self.itemsize, "persistent parameters", GATHERED) for size in self.small]

    # -- reductions ---------------------------------------------------------------------------------------------------

    def _take(self, elements: int, grad: Handed | None) -> None:
        """A gradient goes into the bucket, or waits beside it."""
        if self.filled and self.filled + elements > self.zero.reduce_bucket_size:
            self._reduce()
        if isinstance(grad, Gradient) and self.reducing:
            grad.record(self.reducing)
        copied = self.zero.contiguous_gradients and self.filled + elements <= self.zero.reduce_bucket_size
        self.filled += elements
        self.waiting.append((elements, None if copied else grad))

    def _reduce(self) -> None:
        """Copies for the reduction, and what each part needs on its way to its place."""
        if not self.waiting:
            return
        if len(self.events) > IN_FLIGHT:
            self.tape.reached(self.events.popleft())
        sizes = [elements for elements, _ in self.waiting]
        fits = self.zero.contiguous_gradients and self.filled <= self.zero.reduce_bucket_size
        made = self._contiguous() if fits and not self.zero.reduce_scatter else self._scattered(sizes)
        for size in sizes:
            self._settle(ceil_div(size, self.ranks))
        del made
        self.waiting.clear()
        self.filled = 0
        if self.reducing:
            self.events.append(dict(self.tape.waiting_for))

    def _contiguous(self) -> list[Tensor]:
        """``__avg_scatter_contiguous_grads``: the bucket itself is reduced."""
        wide = self.zero.communication, self.zero.accumulation
        sizes = [size for size, before in zip(wide, (self.zero.communication, wide[0]), strict=True) if size != before]
        return [self._buffer(self.filled * size, "cast bucket") for size in sizes]

    def _scattered(self, sizes: list[int]) -> list[Tensor]:
        """``__avg_scatter_grads``: casts, the interleaved copy, and the rank's parts in the dtype of accumulation."""
        own, made = self.zero.communication, list[Tensor]()
        if own != self.itemsize:
            made += [self._buffer(size * own, "cast gradients") for size in sizes]
        if len(sizes) > 1 or sizes[0] % self.ranks:
            padded = sum(ceil_div(size, self.ranks) for size in sizes) * self.ranks
            made.append(self._buffer(padded * own, "interleaved gradients"))
        if own != self.zero.accumulation:
            parts = [ceil_div(size, self.ranks) for size in sizes]
            made += [self._buffer(part * self.zero.accumulation, "cast parts") for part in parts]
        return made

    def _settle(self, part: int) -> None:
        """``partition_grads``: into the flat buffer, or to the host by way of a copy here."""
        if not self.zero.optimizer:
            return
        here = self._buffer(part * self.zero.accumulation, "part on its way to the host")
        for piece in (NORM_PIECE,) * (part // NORM_PIECE) + (part % NORM_PIECE,):
            norm = self._buffer(piece * FP64, "part in double precision")
            del norm
        wide = self._buffer(part * FP32 * (self.zero.accumulation != FP32), "part in fp32")
        del here, wide

    def _buffer(self, size: int, label: str) -> Tensor:
        return self.new(size, label, "buffers", self.reducing)

    def backward_ended(self, *, last: bool) -> None:
        """The epilogue: the last bucket, and the host waits for all of it."""
        if self.current is not None:
            self.current.ran_back()
        self._reduce()
        self.tape.synchronise()
        self.events.clear()

    # -- the step -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Nothing is gathered meanwhile; sub-group by sub-group; then small parameters are gathered again."""
        for whole in self.wholes.values():
            whole.end()
        self.current = None
        gathered = bool(self.persistent)
        self.persistent.clear()
        for group in self.groups:
            for part in () if self.zero.optimizer else dict.fromkeys(group.parts):
                norm = self.new(part * FP64, "part in double precision", TEMPORARIES)
                del norm
        for group, optimizer in zip(self.groups, self.optimizers, strict=True):
            if not group.away:
                self._step(group, optimizer)
        if gathered:
            self._gather_persistent()
        self.tape.synchronise()

    def _step(self, group: SubGroup, optimizer: Optimizer) -> None:
        """Its gradients end to end, in fp32."""
        wide, made = self.zero.accumulation, list[Tensor]()
        if not self.zero.optimizer:
            if len(group.parts) > 1 or wide == FP32:
                made.append(self.new(group.elements * wide, "flat gradients", "gradients"))
            if wide != FP32:
                made.append(self.new(group.elements * FP32, "fp32 gradients", "gradients"))
                del made[:-1]
        optimizer.step()
        del made


def with_engine(played: StepEvents, recipe: Recipe, rank: int | None = None) -> StepEvents:
    """A play whose hooks left notes, with what DeepSpeed does there; on the rank that keeps most, or another."""
    adapter = recipe.adapter
    groups = groups_of(recipe, model_weights(recipe.model, adapter is None, adapter))
    if recipe.zero_stage == 3:
        return joined(played, _divided(played, recipe, groups))
    places = Places(groups, placed(recipe.model, adapter), recipe.sharding.ranks, rank)
    return joined(played, Partitions(played, recipe, places))


def _divided(played: StepEvents, recipe: Recipe, groups: list[Group]) -> Divided:
    zero, models = recipe.sharding.deepspeed, {}
    weights = placed(recipe.model, recipe.adapter, frozen=True)
    reads = recipe.model.head.name * reads_head(recipe)
    models[POLICY] = Modules(weights, recipe.model.hidden_size, reads=reads)
    for model in recipe.others.residents:
        if model.role != "reward" and model.sharded:
            models[model.role] = Modules(placed(model.spec, None, frozen=True), model.spec.hidden_size)
    small = [w.elements for _, w in weights if w.elements <= zero.param_persistence_threshold]
    return Divided(played, recipe, models, sub_groups_of(recipe, groups), small)
