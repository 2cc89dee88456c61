"""Stages 1 and 2: buckets of gradients, what a rank keeps of them, and the step on its part of each group.

deepspeed 0.19 runtime/zero/stage_1_and_2.py: ``setup_buckets``, ``reduce_independent_p_g_buckets_and_remove_grads``,
``average_tensor``, ``copy_grads_in_partition``, ``independent_gradient_partition_epilogue``, ``step``."""

from itertools import groupby

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.optimizer.states import flat
from memplan.engine.parallel.zero.states import adds_in_fp32, weight_itemsize
from memplan.engine.play.notes import FIRST, Note
from memplan.engine.play.optimizer import Optimizer
from memplan.engine.play.zero.engine import Engine, Handed
from memplan.engine.play.zero.places import Place, Places
from memplan.engine.tape.graph import Tensor
from memplan.spec.recipe import Recipe

REDUCING = 2
"""``reduction_stream``, where ``overlap_comm``."""
FP32, FP64 = 4, 8
TEMPORARIES = "optimizer_temporaries"


class Partitions(Engine):
    """The engine of one rank."""

    def __init__(self, played: StepEvents, recipe: Recipe, places: Places) -> None:
        super().__init__(played)
        self.zero, self.places, self.stage = recipe.sharding.deepspeed, places, recipe.zero_stage
        self.itemsize = weight_itemsize(recipe, places.groups[0])
        self.stream = REDUCING if self.zero.overlap_comm else 0
        self.accumulates = recipe.accumulates
        self.optimizers = [
            Optimizer(recipe, self.tape, [flat(group.partition, FP32)])
            for group in places.groups
            if not self.zero.optimizer
        ]
        self.buckets: list[Tensor] = []
        """Buffers for gradients (``ipg_buckets``)."""
        self.filled = 0
        """Elements in the one that is being filled."""
        self.waiting: list[tuple[Place, Handed | None]] = []
        """What is in it; a gradient of more elements than a bucket has stays what it is."""
        self.reduced: list[Handed] = []
        """Of other ranks, until the next reduction has begun."""
        self.own: list[Handed] = []
        """Gradients that this rank keeps: without a bucket, each by itself."""
        self.others: list[Handed] = []
        """Those of other ranks, which stage 1 keeps to the epilogue."""
        self.kept = 0
        """Elements of ``grads_in_partition``."""
        self.accumulated: list[Handed] = []
        self.in_fp32 = adds_in_fp32(recipe)
        self.wide = dict[int, Tensor]()
        """By group, this rank's part of it in fp32, where gradients are added to that."""

    def noted(self, note: Note, grad: Handed | None) -> None:
        """The first gradient of a backward makes the buckets; each is put into one."""
        if note.what == FIRST:
            self.begin()
        else:
            self.put(self.places.find(note), grad)

    def put(self, place: Place, grad: Handed | None) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``."""
        if self.filled + place.elements > self.zero.reduce_bucket_size:
            self._reduce()
        fits = self.zero.contiguous_gradients and place.elements <= self.zero.reduce_bucket_size
        self.filled += place.elements
        self.waiting.append((place, None if fits else grad))

    def accumulated_before(self) -> None:
        """The rank's gradients, where they are added up."""
        for group in range(len(self.places.groups)) if self.in_fp32 else ():
            self.part(group)
        kept = max(self.places.touched.values())[0] * self.itemsize
        self.accumulated += [] if self.in_fp32 else [self.new(kept, "gradients in partition", "gradients")]

    def begin(self) -> None:
        """``setup_buckets``."""
        if self.zero.contiguous_gradients and not self.buckets:
            for _ in range(1 + self.zero.overlap_comm):
                size = self.zero.reduce_bucket_size * self.itemsize
                self.buckets.append(self.new(size, "reduction bucket", "buffers"))
                if self.stream:
                    self.tape.record(self.buckets[-1], self.stream)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        """``reduce_ipg_grads``: what is flattened for it, then what becomes of each gradient."""
        if self.stream and not self.zero.contiguous_gradients:
            self.tape.synchronise()
        self.reduced.clear()
        for sizes in self._flattened():
            total = sum(sizes) * self.itemsize
            whole = self.new(total, "flattened bucket", "buffers", self.stream) if len(sizes) > 1 else None
            cast = self.zero.communication if self.zero.communication != self.itemsize else 0
            other = self.new(sum(sizes) * cast, "cast bucket", "buffers", self.stream)
            del whole, other
        waiting, self.waiting, self.filled = self.waiting, [], 0
        while waiting:
            self._settle(*waiting.pop(0))

    def _flattened(self) -> list[list[int]]:
        """Elements of the slices that are reduced together."""
        if not self.zero.contiguous_gradients:
            return [[place.elements for place, _ in self.waiting]] if self.waiting else []
        if not self.waiting:
            return []
        if not self.zero.reduce_scatter:
            return [[self.filled]]
        slices = [each for place, _ in self.waiting for each in self.places.slices[place]]
        found: list[list[int]] = [[]]
        for _, same in groupby(slices, key=lambda each: each[0]):
            if sum(found[-1]) > self.zero.reduce_bucket_size:
                found.append([])
            found[-1].append(sum(size for _, size in same))
        if len(self.waiting) > 1 and not self.places.mixed.isdisjoint(place for place, _ in self.waiting):
            found = [each if len(each) > 1 else [*each, 0] for each in found]
        return found

    def _settle(self, place: Place, grad: Handed | None) -> None:
        """A reduced gradient is copied to where this rank's are, dropped, or stays."""
        own, in_bucket = self.places.owns(place), self.zero.contiguous_gradients
        if self.zero.optimizer:
            self._to_host(self.places.piece(place))
            return
        if self.in_fp32 and own:
            self.part(place.group)
            cast = self.new(self.places.piece(place) * FP32, "slice in fp32", "gradients", self.stream)
            del cast
            self.own += [] if grad is None else [grad]
            return
        if in_bucket and not self.in_fp32 and (kept := self.places.keeps(place)) > self.kept:
            self.kept, self.own = kept, []
            self.own.append(self.new(kept * self.itemsize, "gradients in partition", "gradients", self.stream))
        if grad is not None and own and not in_bucket:
            self.own.append(grad)
        elif grad is not None and not own and self.stage == 1:
            self.others.append(grad)
        elif grad is not None and self.stream and not in_bucket:
            self.reduced.append(grad)

    def part(self, group: int) -> None:
        """``_build_compact_grad_partition_buffer``: it stays to the step."""
        if group not in self.wide:
            size = self.places.groups[group].partition * FP32
            self.wide[group] = self.new(size, "gradients in partition", "gradients", self.stream)

    def _to_host(self, own: int) -> None:
        """``set_norm_for_param_grad_in_gpu``, ``async_inplace_copy_grad_to_fp32_buffer_from_gpu``. What looks for NaN
        copies nothing (from 0.19.6 on, and in bf16 it was off before 0.19.3)."""
        self._norm(own)
        copied = self.new(own * FP32, "gradients on their way to the host", TEMPORARIES, self.stream)
        del copied

    def _norm(self, elements: int) -> None:
        size = elements * FP64
        norm = self.new(size, "gradient in double precision", TEMPORARIES)
        del norm

    def backward_ended(self, *, last: bool) -> None:
        """``independent_gradient_partition_epilogue``: gradients are added to those of earlier micro-steps."""
        self._reduce()
        self.reduced.clear()
        if self.stream:
            self.tape.synchronise()
        self.accumulated = self.accumulated or ([] if self.in_fp32 else self.own[:])
        self.kept = 0
        self.own.clear()
        self.others.clear()
        self.buckets.clear()
        if self.stream:
            self.tape.synchronise()

    # -- the step -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Group by group: flattened, cast to fp32, stepped on."""
        if self.zero.optimizer:
            return
        parts = [self.places.parts(i) for i in range(len(self.places.groups))]
        for part in parts:
            for size in dict.fromkeys(part):
                self._norm(size)
        for i, group in enumerate(self.places.groups):
            if self.in_fp32:
                self.optimizers[i].step()
                self.wide.pop(i, None)
                continue
            several = len(parts[i]) > 1
            size = group.partition * self.itemsize if several or self.itemsize == FP32 else 0
            whole = self.new(size, "flat gradients", "gradients")
            cast = None
            if self.itemsize != FP32:
                cast = self.new(group.partition * FP32, "fp32 gradients", "gradients")
                whole = cast
            if i + 1 == len(parts):
                self.accumulated.clear()
            self.optimizers[i].step()
            del whole, cast
