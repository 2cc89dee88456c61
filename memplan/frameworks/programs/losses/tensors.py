"""Tensors of a walked loss: how large by kind, with their place in the graph of the engine's own tape.

Three kinds are told apart: V, as large as logits [rows, length, words]; h, as hidden states [rows, length, width]; and
small, a few numbers for each token, row or pair of rows, which beside the others are nothing. A dimension that a
reduction leaves counts as whole, so that no tensor is larger than it is taken for."""

from typing import NamedTuple

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Backward, Node, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape

UNIT = 1 << 20
"""Elements that stand for the logits, or the hidden states, of one sequence."""
LOGITS, HIDDEN, SMALL = "V", "h", "n"
SIZES = {SMALL: 0, HIDDEN: 1, LOGITS: 2}
FP32, INT64 = 4, 8


class NotBounded(Exception):
    """What a loss does that nobody knows the memory of."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Held(NamedTuple):
    """A tensor, or a number."""

    tensor: Tensor
    kind: str = SMALL
    rows: int = 1
    """Sequences of each example; 0: nobody knows."""
    cut: bool = False
    """It is a slice, which a new layout copies."""
    spread: bool = False
    """It has one more dimension, over which two small ones may be laid."""

    @property
    def big(self) -> bool:
        """Whether it is as large as logits or hidden states."""
        return self.kind != SMALL

    def plain(self) -> "Held":
        """The same without a graph."""
        return self._replace(tensor=Tensor(self.tensor.dim, self.tensor.itemsize, self.tensor.storage))


def dim_of(kind: str, rows: int) -> Dim:
    """The extent of so many sequences."""
    return Dim(kind, UNIT * rows if kind != SMALL else 1)


class Maker:
    """Makes tensors on one tape."""

    def __init__(self, itemsize: int, autocast: int) -> None:
        self.tape = Tape(autocast=autocast)
        self.named = False
        """A loop's names hold a model's logits until its next turn, beside those of that."""
        self.itemsize = itemsize
        """Bytes of an element as a model gives it."""
        self.number = Held(Tensor(dim_of(SMALL, 1), FP32, None))
        self.given = Held(Tensor(dim_of(SMALL, 1), FP32, None))
        """What every batch has."""

    def new(self, kind: str, rows: int, itemsize: int = FP32) -> Held:
        """One without a graph."""
        return Held(self.tape.new(dim_of(kind, rows), itemsize, kind), kind, rows)

    def output(self, kind: str, rows: int, graph: bool) -> Held:
        """What a model gives: of the trained one the tensor itself is counted with the model, and so is its gradient
        once it has come."""
        dim = dim_of(kind, rows)
        if not graph:
            return self.new(kind, rows, self.itemsize)
        counted = kind == LOGITS and not self.named
        storage = None if counted else self.tape.new(dim, self.itemsize, kind).storage
        return Held(Tensor(dim, self.itemsize, storage, Node(self.tape, [], (), lambda tape, grads: ())), kind, rows)

    def small(self, *of: Held, backward: Backward | None = None, saved: tuple[Held, ...] = ()) -> Held:
        """Numbers made of others: each of these gets a gradient of its own size."""
        tensors = [each.tensor for each in of]
        node = self.tape.node(tensors, [each.tensor for each in saved], backward or ops.of_each(*tensors))
        return Held(self.tape.new(dim_of(SMALL, 1), FP32, SMALL, node))

    def made(self, x: Held, *of: Held, saved: tuple[Held, ...] = (), itemsize: int = 0, temporaries: int = 0) -> Held:
        """A tensor of x's size made of x and others, with so many more tensors in backward beside each gradient."""
        tensors = [x.tensor, *(each.tensor for each in of)]
        sizes = [(each.dim, each.itemsize, each.needs_grad) for each in tensors]
        wide = (x.tensor.dim, max(x.tensor.itemsize, itemsize))

        def backward(tape: Tape, grads: object) -> list[Tensor | None]:
            found: list[Tensor | None] = []
            for dim, size, needs in sizes:
                beside = [tape.gradient(wide) for _ in range(temporaries if needs else 0)]
                found.append(tape.gradient((dim, size)) if needs else None)
                del beside  # temporaries of one expression of the operation's formula (derivatives.yaml)
            return found

        node = self.tape.node(tensors, [each.tensor for each in saved], backward)
        made = self.tape.new(x.tensor.dim, itemsize or x.tensor.itemsize, x.kind, node)
        return Held(made, x.kind, x.rows)

    def peaks(self) -> dict[str, int]:
        """The most bytes at once of each kind for one element of one sequence's."""
        live, most = dict.fromkeys(SIZES, 0), dict.fromkeys(SIZES, 0)
        for delta, tag in self.tape.log:
            live[tag.symbol] = now = live[tag.symbol] + delta
            most[tag.symbol] = max(most[tag.symbol], now)
        return {kind: -(-size // UNIT) for kind, size in most.items()}


def largest(*values: object) -> Held | None:
    """Of several the largest tensor, the first of equals."""
    tensors = [each for each in values if isinstance(each, Held)]
    return max(tensors, key=lambda each: (SIZES[each.kind], each.rows), default=None)
