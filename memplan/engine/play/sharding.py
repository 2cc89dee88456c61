"""What divides the model states does within a step: hooks on the play, which do nothing on one GPU; and what FSDP
gathers and reduces together."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from memplan.engine.parallel.fsdp2.frame import Unit
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tensors import Weight

LAUNCHES = 1024
"""That wait in a stream before the host has to (forums.developer.nvidia.com, thread 68937: about 1,000)."""


class Sharding:
    """Hooks at the places where wrappers have theirs."""

    remembers = False
    """What they do in a step depends on the step before."""
    late = False
    """Some backward of the step reduces nothing."""
    reduces = True
    """This one does."""
    base = 0
    """By how much its streams are numbered higher than those of the first model on the tape."""
    layers: "Sequence[Group]" = ()
    """Units of the layers."""
    opens = False
    """The head is gathered with the embedding, to which it is tied."""
    wrapped_within = False
    """A reentrant checkpoint calls the wrapped layer: hooks run in its recomputation, and only there with a graph."""

    name = ""
    """Of the pass that runs forward."""

    def begin(self) -> None:
        """The forward of the whole model begins."""

    def embedded(self, x: Tensor) -> Tensor:
        """The embedding has run."""
        return x

    def before(self, layer: int, x: Tensor) -> Tensor:
        """A layer is about to run forward."""
        return x

    def after(self, layer: int, y: Tensor, *, again: bool = False) -> Tensor:
        """It has; ``again``: in a recomputation."""
        return y

    def before_block(self, place: object, x: Tensor | None = None) -> Tensor | None:
        """A block or an end of a vision tower is about to run; without ``x``, its patch embedding."""
        return x

    def after_block(self, place: object, y: Tensor) -> Tensor:
        """It has."""
        return y

    def gathers_ahead(self, layer: int) -> "Sequence[Group]":
        """The last adapter of a layer is about to run: the next layer, where that is gathered then."""
        return ()

    def held(self, scope: object, leaf: Tensor, grads: list[Tensor | None]) -> None:
        """A reentrant checkpoint of a layer has run back: its input, and the gradients of that."""

    def uses(self, param: Param) -> None:
        """The module of a parameter is about to run."""

    def tail(self, x: Tensor, *, normed: bool = False) -> Tensor:
        """Norm and head are about to run; ``normed``: the head alone, the norm has."""
        return x

    def logits(self, x: Tensor) -> Tensor:
        """The head has run."""
        return x

    def end(self) -> None:
        """The forward of the whole model has returned, the loss too where it is within."""

    def returned(self) -> None:
        """The same, before the trainer copies logits for its log."""

    def backward_begins(self) -> None:
        """``loss.backward()`` is called."""

    def backward_ends(self) -> None:
        """What autograd calls back when all has run."""

    def took(self, param: Param, scope: object, *, is_new: bool) -> None:
        """A gradient is in its place, or added to the one that was there; ``scope``: the layer of its parameter."""

    def step(self, steps: Callable[[], None]) -> None:
        """The optimizer is about to step."""
        steps()

    def zero_grad(self) -> None:
        """The optimizer has stepped, and gradients go."""


Measure = Callable[[list[Weight]], Unit]
"""The bytes of a unit of these weights."""


class Sizes(NamedTuple):
    """What of a unit its hooks are told."""

    unit: Unit
    each: tuple[int, ...] = ()
    """Gathered bytes of its tensors."""
    casts: tuple[int, ...] = ()
    """What each is copied to before it is used, where one rank is alone."""
    names: tuple[str, ...] = ()
    cast: int = 0
    """What the input of its all-gather is copied to in forward, where that is not as in backward."""
    title: str = ""
    """How it is called beside what is held of it; nothing where nobody asks."""
    alone: tuple[tuple[str, int], ...] = ()
    """Names and elements of adapters of its modules that are units of their own."""


def sizes_of(weights: list[Weight], measure: Measure) -> Sizes:
    """Those of a unit of these weights, tensor by tensor."""
    each = [(measure([weight._replace(copies=1)]), weight.copies) for weight in weights]
    return Sizes(
        measure(weights),
        tuple(unit.gathered for unit, copies in each for _ in range(copies)),
        tuple(unit.cast for unit, copies in each for _ in range(copies)),
        tuple(weight.name for weight in weights),
    )


class Groups(NamedTuple):
    """All units of a model."""

    layers: tuple[Sizes, ...]
    root: Sizes
    first: Sizes
    last: Sizes
    opens: bool
    """See ``Parts.opens``."""
    tower: tuple[tuple[object, Sizes], ...] = ()
    """By their places in a tower's pass."""

    @property
    def ends(self) -> tuple[Sizes, Sizes, Sizes]:
        """Those outside the layers."""
        return self.root, self.first, self.last

    @property
    def every(self) -> tuple[Sizes, ...]:
        """All of them."""
        return (*self.layers, *self.ends, *(sizes for _, sizes in self.tower))


class Group:
    """What is gathered and reduced together (``FSDPParamGroup``)."""

    def __init__(self, sizes: Sizes) -> None:
        self.unit, self.sizes, self.casts, names, self.cast, self.title, _ = sizes
        self.place = {name: i for i, name in enumerate(names)}
        self.whole: list[Tensor] = []
        self.parts: list[Tensor] = []
        """What is left of it between forward and backward, where that is resharded to a number of ranks."""
        self.replicated: Tensor | None = None
        """What hybrid sharding all-reduces, held until backward is done."""
        self.output: Tensor | None = None
        self.arrived: list[Param] = []
        self.waiting: list[Tensor] = []
        self.shard: Tensor | None = None
        self.forwards: list[int] = []
        self.hooked = False
        """A gradient comes to what its last forward gave, and has not yet."""

    def named(self, label: str) -> str:
        """What is held of it."""
        return f"{label} of {self.title}" if self.title else label

    @property
    def is_whole(self) -> bool:
        """Its weights are gathered and copied out."""
        return bool(self.whole)

    def copied_out(self, new: Callable[[int, str, str], Tensor], single: bool) -> list[Tensor]:
        """``wait_for_unshard``: out of the all-gather's output; of one rank, weights cast, or from the host."""
        whole = list[Tensor]()
        for size, cast in zip(self.sizes, self.casts, strict=True):
            taken = new(cast, self.named("weights in the dtype of their use"), "buffers") if single else None
            whole.append(new(size, self.named("gathered weights"), "gathered_parameters"))
            del taken
        return whole

    def in_order(self) -> list[Param]:
        """What has arrived, as the module names its weights; it waits no more."""
        arrived, self.arrived = self.arrived, []
        return sorted(arrived, key=lambda param: self.place.get(param.name, 0))
