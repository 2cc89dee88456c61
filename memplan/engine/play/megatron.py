"""A rank's steps under Megatron-LM as allocations and frees: construction, the pipeline's order, the optimizer.

The layers are those of ``engine/megatron``: steps of which each says what it keeps for backward and what it holds for a
moment. What construction leaves decides what is held later: every weight is made by itself, copied into one buffer, and
freed behind it (distributed/param_and_grad_buffer.py of megatron-core 0.14), and a main weight is made of a copy of its
part (optimizer/distrib_optimizer.py)."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from memplan.engine.allocator.replay import CONSTRUCTED, StepEvents
from memplan.engine.megatron import head, states
from memplan.engine.megatron.activations import chunk_length, moments, steps_of
from memplan.engine.megatron.build import MegatronParts, megatron_ledger
from memplan.engine.megatron.head import mtp_table
from memplan.engine.megatron.scores import instants_of_scores
from memplan.engine.megatron.stages import own_layers, schedule
from memplan.engine.megatron.steps import SUM, Step, fullest_forward
from memplan.engine.megatron.weights import Share, before_layers, behind_layers, layer_shares, with_adapters
from memplan.engine.play.alike import Layer, Storages
from memplan.spec.recipe import Recipe

LASTING = ("buffers", "batch", "workspaces")
"""Rows that come with the first pass, and stay."""
SHARED_STREAM = 1
"""Where overlapped shared experts work (transformer/moe/shared_experts.py: ``stream``): blocks of their own."""
DUMMIES = "empty weight gradients"


def megatron_events(recipe: Recipe, steps: int) -> StepEvents:
    """So many steps, of which the last begins at ``start``."""
    play = _Play(recipe)
    play.construct()
    start, marks = 0, ((len(play.events), CONSTRUCTED),)
    for number in range(steps):
        start = len(play.events)
        play.step(first=number == 0)
    return StepEvents(tuple(play.events), start, dict.fromkeys(play.beside, SHARED_STREAM), marks=marks, tags=play.tags)


class _Play(Storages):
    """A rank's."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe, self.parts = recipe, MegatronParts(recipe)
        every = [(chunk, number) for chunk in self.parts.chunks for number in range(chunk.layers)]
        ends = (0, *own_layers(recipe.model.num_layers, recipe.parallel, recipe.megatron)[:-1], len(every))
        self.chunks = [every[first:end] for first, end in pairwise(ends)]
        """Of each virtual stage, its layers by kind."""
        self.waiting: list[list[list[Layer]]] = [[] for _ in self.chunks]
        """Micro-batches that went forward through each, and not back."""

    # -- construction -------------------------------------------------------------------------------------------------

    def weights(self) -> Iterator[Share]:
        """Every parameter by itself, in the order in which the model makes them."""
        of = self.recipe.model, self.recipe.parallel, self.recipe.megatron
        layers = (
            share
            for chunk in self.parts.chunks
            for _ in range(chunk.layers)
            for share in layer_shares(chunk.layer, self.recipe.parallel, 1)
        )
        whole = (*before_layers(*of), *layers, *behind_layers(*of))
        way = self.recipe.trainer.adapters.on_megatron
        for share in with_adapters(whole, self.recipe.adapter, way, self.recipe.parallel):
            yield from [share._replace(copies=1)] * share.copies

    def construct(self) -> None:
        """The model, its buffers, and what the optimizer makes at once."""
        recipe = self.recipe
        e, shares = recipe.storage.precision.weights, list(self.weights())
        made = [(share, self.take(share.name, "parameters", share.elements * e)) for share in shares]
        self.pieces: list[int] = []
        for buffer in states.buffers(recipe, self.parts.shares):
            mine = [(share, number) for share, number in made if buffer.holds(share, recipe.parallel)]
            divided = recipe.sharding.name == "distributed-optimizer"
            if divided:
                self.take(f"weights{buffer.label}", "parameters", buffer.elements * e)
            self.take(f"gradient buffer{buffer.label}", "gradients", buffer.elements * states.gradient_itemsize(recipe))
            backwards = [share for share, _ in reversed(mine)]
            if divided:
                self.free(number for _, number in reversed(mine))
            self.pieces += states.pieces_of(backwards, buffer.shards, recipe.megatron)
        self.main, self.moments = states.state_itemsizes(recipe)
        if not recipe.megatron.use_precision_aware_optimizer:
            self._main_weights()

    def _main_weights(self) -> None:
        """``clone().float()`` of each piece."""
        for elements in self.pieces if self.main else ():
            copy = self.take("copy of a piece", "parameters", elements * self.recipe.storage.precision.weights)
            self.take("main weights", "master_weights", int(elements * self.main))
            self.free([copy])

    # -- a step -------------------------------------------------------------------------------------------------------

    def step(self, first: bool) -> None:
        """Micro-batches in the order of the pipeline (1F1B, interleaved where a rank has several chunks: schedules.py,
        get_schedule_table), and the optimizer."""
        warm, order = schedule(self.recipe.parallel, self.recipe.batch.accumulation)
        if first:
            self._lasting()
        self._scores()
        for virtual in order[:warm]:
            self.forward(virtual)
        for number, virtual in enumerate(order):
            for following in order[warm + number : warm + number + 1]:
                self.forward(following)
            self.backward(len(self.chunks) - 1 - virtual, first and number == 0)
        self._optimizer(first)

    def _lasting(self) -> None:
        for row in megatron_ledger(self.recipe).rows:
            if row.category in LASTING and row.place == "gpu" and row.meter == "allocated" and row.name != DUMMIES:
                self.take(row.name, row.category, row.bytes)

    def _optimizer(self, first: bool) -> None:
        if first:
            if self.recipe.megatron.use_precision_aware_optimizer:
                self._main_weights()
            for elements in self.pieces:
                for name, itemsize in self.moments:
                    self.take(name, "optimizer_states", int(elements * itemsize))
        rows = [row for row in megatron_ledger(self.recipe).rows if row.category == "optimizer_temporaries"]
        total = sum(self.pieces)
        taken = [
            self.take(row.name, row.category, row.bytes * elements // total) for row in rows for elements in self.pieces
        ]
        self.free(taken)

    def _scores(self) -> None:
        """A micro-batch of each pass that scores, of which nothing stays."""
        ledger, instants = megatron_ledger(self.recipe), instants_of_scores(self.recipe)
        for at in range(len(instants)):
            rows = [row for row in ledger.rows if row.born <= at <= row.dies < len(instants) and row.place == "gpu"]
            self.free([self.take(row.name, row.category, row.bytes) for row in rows])

    # -- forward ------------------------------------------------------------------------------------------------------

    def forward(self, virtual: int) -> None:
        """One micro-batch through a chunk of the stage, the last up to its loss."""
        shape = self.parts.shape
        layers = [
            Layer(chunk, steps_of(shape, chunk), number % chunk_length(shape, chunk) == 0)
            for chunk, number in self.chunks[virtual]
        ]
        for layer in layers:
            self.alike(self._layer_forward, [layer])
        self.waiting[virtual].append(layers)
        if self.parts.tail is not None and virtual == len(self.chunks) - 1:
            self.norm = [
                self.take(held.name, "activations", held.bytes)
                for held in head.norm_kept(self.recipe, self.parts.shape)
            ]
            self.hold(self.parts.tail.at[0][1])

    def _layer_forward(self, layers: Sequence[Layer]) -> None:
        """What is dropped again goes at the layer's end; where all is made again, as soon as the next step is done."""
        (layer,), before = layers, list[int]()
        for step in layer.steps:
            dropped = []
            self._on(step)
            self._summed()
            for number, held in enumerate(step.kept):
                if not held.again and (layer.is_checkpoint or not layer.chunk.recomputed):
                    layer.kept[step.name, number] = self.take(held.name, "activations", held.bytes)
                else:
                    dropped.append(self.take(held.name, "activations", held.bytes))
            self.hold(step.forward)
            if layer.chunk.recomputed:
                self.free(before)
                before = dropped
            else:
                before += dropped
        self.hold(())
        self.free(before)

    # -- backward -----------------------------------------------------------------------------------------------------

    def backward(self, virtual: int, first: bool) -> None:
        """The oldest micro-batch that waits; with the first come the empty weight gradients."""
        layers = self.waiting[virtual].pop(0)
        if self.parts.tail is not None and virtual == len(self.chunks) - 1:
            for _, alive in self.parts.tail.at[1:]:
                self.hold(alive)
            self.hold(())
            self.free(self.norm)
        if first:
            for elements in states.dummy_shapes(self.recipe, self.parts.shares):
                self.take(DUMMIES, "buffers", elements * self.parts.shape.itemsize)
        waits: list[int] = []
        while layers:
            together = [layers.pop()]
            while not together[-1].is_checkpoint and layers:
                together.append(layers.pop())
            self.alike(self._back, together)
            if together[0].chunk.mtp and self.parts.trains_embedding and not waits:
                waits = [self.take("gradient of MTP's lookup", "gradients", mtp_table(self.parts.shape).bytes)]
        if self.parts.trains_embedding and not virtual:
            self.hold(head.embedding_backward(self.parts.shape, self.parts.vocabulary))
        self.hold(())
        self.free(waits)

    def _back(self, together: Sequence[Layer]) -> None:
        """Layers that are made again at once, the last first; or one."""
        if together[0].chunk.recomputed:
            for layer in reversed(together):
                for step in layer.steps:
                    self._on(step)
                    self._summed()
                    self._make_again(layer, step, layer.steps[-1].name)
                    self.hold((*step.backward[:1], *step.forward))
        for layer in together:
            steps, fullest = tuple(layer.steps), fullest_forward(tuple(layer.steps))
            for step in reversed(steps):
                self._on(step)
                if not layer.chunk.recomputed:
                    for each in steps:
                        self._make_again(layer, each, step.name)
                self.hold(step.backward if layer.chunk.recomputed else moments(steps, step, fullest))
                for number in range(len(step.kept)):
                    if (step.name, number) in layer.kept:
                        self.free([layer.kept.pop((step.name, number))])

    def _on(self, step: Step) -> None:
        """The step that works from here on; the last of a layer, either way, is none of the shared experts'."""
        self.side = self.recipe.megatron.moe_shared_expert_overlap and step.name.startswith("shared")

    def _summed(self) -> None:
        """Of an adapter's products the sum is what the next step keeps."""
        if any(held.name == SUM for held, _ in self.moment):
            self.hold([held for held, _ in self.moment if held.name != SUM])

    def _make_again(self, layer: Layer, step: Step, at: str) -> None:
        """What was dropped after forward, where the step ``at`` needs it; of a layer behind a checkpoint, all."""
        for number, held in enumerate(step.kept):
            needed = held.again == at or (layer.chunk.recomputed and not layer.is_checkpoint)
            if needed and (step.name, number) not in layer.kept:
                layer.kept[step.name, number] = self.take(held.name, "recomputation", held.bytes)
