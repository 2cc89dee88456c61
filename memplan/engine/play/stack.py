"""The layers of a pass on one tape, where they share more than the residual stream: an encoder's output, keys and
values, tables, inputs of every layer's own, weights.

What a layer makes and lets go of itself is in its ``LayerTrace``, as where layers are traced one by one. All else lives
from one moment of the pass to another, and is a row of its own: the tags that are alive."""

from typing import NamedTuple

from memplan.engine.layers.shared_inputs import CROSS_MASK, MEMORY
from memplan.engine.pass_plan import PassPlan, keys_of_images
from memplan.engine.play.model import PassRun
from memplan.engine.play.pieces import FoldedTape
from memplan.engine.play.sharding import Sharding
from memplan.engine.play.tape import PlayedStorage
from memplan.engine.play.weights import Weights
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Node, Param, Storage, Tensor
from memplan.engine.tape.tags import Dim, Tag
from memplan.engine.tape.tape import Tape


class StackStorage(PlayedStorage):
    """A storage that is seen at the peaks of the piece of the pass in which it is made."""

    __slots__ = ()

    def __init__(self, tape: "StackTape", size: int, tag: Tag) -> None:
        PlayedStorage.__init__(self, tape, size, tag)
        key = tape.piece, tape.place
        most = tape.highest.get(key)
        if most is None or tape.live > most[0]:
            tape.highest[key] = tape.live, len(tape.events)


class StackTape(FoldedTape):
    """A tape of one pass, with what it takes to tell its layers apart."""

    storage_type: type[Storage] = StackStorage
    plays_all = False

    def __init__(self, plan: PassPlan) -> None:
        self.highest: dict[tuple[int, tuple[str, str]], tuple[int, int]] = {}
        """The most by piece, phase and point, and the events until then."""
        self.kept: dict[int, int] = {}
        """The layer in whose backward a gradient that stays has come to its weight."""
        self.plan = plan
        super().__init__()
        self.autocast, self.in_place = plan.mode.numerics.autocast, plan.mode.in_place
        self.shared_casts, self.gradient_mode = plan.mode.shared_casts, plan.gradients

    def backward(
        self, start: Node, grads: list[Tensor | None], before: dict[Node, list[Tensor | None]] | None = None
    ) -> None:
        """That of a reentrant checkpoint may leave gradients in its own way."""
        mode = self.gradient_mode
        self.gradient_mode = self.plan.nested if self.made and self.plan.nested else mode
        super().backward(start, grads, before)
        self.gradient_mode = mode

    def reaches(self, node: Node) -> None:
        """Its layer is made again before it runs back."""
        self.runs(node)

    def _accumulate(self, param: Param, grads: list[Tensor | None]) -> None:
        count = len(self.gradients)
        if param in self.stored:  # by a reentrant checkpoint of a layer above, which applies it too
            grads.pop()
            return
        Tape._accumulate(self, param, grads)
        for grad in self.gradients[count:]:
            self.stored[param] = grad
            if isinstance(grad.storage, PlayedStorage):
                self.kept[grad.storage.number] = self.pieces[-1].layer


class Inputs(Sharding):
    """Hears what goes into each layer, and what it sends to the host."""

    def __init__(self, tape: StackTape) -> None:
        self.tape = tape
        self.numbers: dict[int, int] = {}
        self.sizes: list[int] = []
        self.host: list[int] = []

    def before(self, layer: int, x: Tensor) -> Tensor:
        """Where a wrapper's hooks would run."""
        assert isinstance(x.storage, PlayedStorage)
        self.numbers[x.storage.number] = layer
        self.sizes.append(x.storage.size)
        self.host.append(x.storage.size if self.tape.plan.sends(layer) else -self._sent())
        return x

    def after(self, layer: int, y: Tensor, *, again: bool = False) -> Tensor:
        """The layer is through."""
        if self.tape.offload is not None:
            self.tape.offload.settle()
            self.host[layer] += 0 if self.tape.plan.sends(layer) else self._sent()
        return y

    def _sent(self) -> int:
        return self.tape.offload.host_bytes if self.tape.offload is not None else 0


class Reached(NamedTuple):
    """What a gradient comes to."""

    embedding: bool
    """The embedding's output."""
    images: bool = False
    """States of images that layers attend to."""


class StackRun(PassRun):
    """The layers of a pass, and what stands before them beside the embedding."""

    def __init__(self, tape: StackTape, weights: Weights, reached: Reached) -> None:
        self.needs_grad, self.inputs = reached.embedding, Inputs(tape)
        self.sees = reached.images
        self.upward: list[Storage | None] = []
        """Gradients that wait for what stands before the embedding."""
        self.waits: dict[Node, list[Tensor | None]] = {}
        """Gradients that wait elsewhere when backward comes."""
        super().__init__(weights, tape.plan, (0, 0, False), self.inputs)
        self.places = len(self.layers)

    def _embedded(self, held: list[Tensor]) -> Tensor:
        spec, mode, tape = self.plan.spec, self.plan.mode, self.tape
        itemsize = mode.residual_itemsize if spec.front else mode.numerics.itemsize
        itemsize = (mode.numerics.autocast or itemsize) if self.layers[0].projected_input else itemsize
        x = tape.new(self.p.stream(spec.hidden_size), itemsize, "embedding output")
        if self.needs_grad and tape.grad_enabled:
            x = self._leaf(x)
        if spec.scaled_outside:
            x = ops.scale(tape, x, "residual stream")
        if not spec.front or spec.front[-1] == "return":  # else the model's forward names what the front was given
            held.append(x)
        return x

    def _read_images(self) -> None:
        """States of the images, and the mask of texts against them, which a checkpoint of any layer is given."""
        tape, mode, p, keys = self.tape, self.plan.mode, self.p, keys_of_images(self.plan)
        size, tower = mode.numerics.autocast or mode.numerics.itemsize, self.plan.tower
        if tower is not None and tower.keeps_widths:
            size = tower.vision_mode.residual_itemsize
        states = tape.new(Dim("T·h", p.rows * keys * self.plan.spec.hidden_size), size, MEMORY)
        if self.sees and tape.grad_enabled:
            states = Tensor(states.dim, size, states.storage, Node(tape, [], (), self._wait))
        mask = tape.new(Dim("T·s", p.tokens * keys), mode.numerics.itemsize, CROSS_MASK, category="batch")
        p.memory, p.shared = keys, {MEMORY: states, CROSS_MASK: mask}

    def _wait(self, _: Tape, grads: list[Tensor | None]) -> tuple[()]:
        self.upward += [grad.storage for grad in grads if grad is not None]
        return ()

    def _leaf(self, x: Tensor) -> Tensor:
        """The embedding's output, where backward ends."""
        mode, tape = self.plan.mode, self.tape
        node = Node(tape, [], (), lambda t, grads: ())
        if self.plan.embedding_trained and mode.embedding_rests:
            front = bool(self.plan.spec.front)  # stands between the leaf, which holds its gradient, and x
            held = node.places = [] if front else [x.storage]

            def arrive(_: Tape, grads: list[Tensor | None]) -> tuple[()]:
                held.extend(grad.storage for grad in grads if grad is not None)
                if front:
                    held.append(tape.new(x.dim, x.itemsize, "embedding output").storage)
                return ()

            node.backward = arrive
        return Tensor(x.dim, x.itemsize, x.storage, node)

    def _rotary_tables(self) -> list[Tensor]:
        return []
