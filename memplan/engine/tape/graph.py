"""The graph that a tape records: storages, nodes, tensors, parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappush
from sys import getrefcount
from typing import TYPE_CHECKING

from memplan.engine.tape.offloading import Place
from memplan.engine.tape.selective_checkpointing import Policy
from memplan.engine.tape.tags import Dim, Tag

if TYPE_CHECKING:
    from memplan.engine.tape.tape import Tape


class Storage:
    """Bytes that are alive as long as something refers to them."""

    __slots__ = ("__weakref__", "size", "tag", "tape")

    def __init__(self, tape: Tape, size: int, tag: Tag) -> None:
        self.tape, self.size, self.tag = tape, size, tag
        tape.log.append((size, tag))
        tape.live = live = tape.live + size
        key = tape.place
        peak = tape.peaks.get(key)
        if peak is None or live > peak[0]:
            tape.peaks[key] = (live, len(tape.log))

    def __del__(self) -> None:
        tape = self.tape
        tape.live -= self.size
        tape.log.append((-self.size, self.tag))


class Frame:
    """One checkpoint without reentrant autograd: what of its nodes is made again when the first of them runs back."""

    __slots__ = ("given", "held", "nodes", "policy", "run")

    def __init__(self, policy: Policy | None) -> None:
        self.policy = policy
        self.nodes: list[Node] = []
        self.run: Callable[[Frame], None] | None = None
        self.held: list[Tensor] = []
        """What the function was called with: alive as long as one of its nodes has not run."""
        self.given: object = None
        """The dict that was handed to it, whatever others put into it."""

    def append(self, node: Node) -> None:
        """One more that saves something: all that is kept so far may be read for it."""
        self.nodes.append(node)
        if self.policy is not None:
            self.policy.read = len(self.policy.kept)

    def recompute(self) -> None:
        """Run the function again, once."""
        run, self.run = self.run, None
        if run is not None:
            run(self)


class Node:
    """A step of the graph: what it saved, where its input gradients go, and how it makes them."""

    __slots__ = ("backward", "edges", "frame", "outputs", "packed", "places", "point", "quiet", "saved", "sequence")

    def __init__(self, tape: Tape, edges: list[Edge], saved: Sequence[Storage | None], backward: Backward) -> None:
        tape.sequence += 1
        self.sequence = tape.sequence
        self.point, self.quiet = tape.point, tape.quiet
        self.edges = edges
        self.saved: Sequence[Storage | None] = saved
        self.backward: Backward | None = backward
        self.outputs = 1
        self.packed = False
        self.frame: Frame | None = None
        self.places: Sequence[Storage | Place | None] = ()


class Accumulate(Node):
    """Where a parameter's gradient arrives. Runs as soon as it is ready, as autograd's AccumulateGrad does."""

    __slots__ = ("param",)

    def __init__(self, tape: Tape, param: Param) -> None:
        super().__init__(tape, [], (), lambda tape, grads: ())
        self.sequence += 1 << 60
        self.param = param


ITS_PLACE_AND_THE_COUNT = 2
"""References to what one list or attribute holds while ``getrefcount`` looks at it."""
Edge = tuple[Node, int] | None
Grads = Sequence["Tensor | None"]
Backward = Callable[["Tape", "list[Tensor | None]"], Grads]


def in_turn(*made: tuple[Dim, int] | tuple[Dim, int, str]) -> Backward:
    """A backward that makes these (dim, itemsize, label) one after another, each while the one before is there; the
    last is the gradient."""

    def backward(t: Tape, grads: list[Tensor | None]) -> Grads:
        result = None
        for each in made:
            result = t.gradient(each[:2], *each[2:])
        return (result,)

    return backward


class Tensor:
    """A view of a storage, with its place in the graph."""

    __slots__ = ("dim", "itemsize", "needs_grad", "node", "slot", "storage")

    def __init__(
        self, dim: Dim, itemsize: int, storage: Storage | None, node: Node | None = None, slot: int = 0
    ) -> None:
        self.dim, self.itemsize, self.storage = dim, itemsize, storage
        self.node, self.slot = node, slot
        self.needs_grad = node is not None

    @property
    def edge(self) -> Edge:
        """Where this tensor's gradient goes."""
        return (self.node, self.slot) if self.node is not None else None


class Param(Tensor):
    """A weight. Its bytes are counted elsewhere; here it only gathers a gradient and may be cast."""

    __slots__ = ("cached_cast", "name")

    def __init__(self, tape: Tape, name: str, elements: int, itemsize: int, trained: bool) -> None:
        super().__init__(Dim(name, elements), itemsize, None)
        self.name = name
        self.node = Accumulate(tape, self) if trained and tape.grad_enabled else None
        if self.node is not None:
            tape.leaves.append(self)
        self.needs_grad = trained
        self.cached_cast: Tensor | None = None


class Leaf(Tensor):
    """The embedding's output beside frozen weights: of a leaf that needs a gradient autocast keeps its copy until it is
    left (torch 2.13 aten/src/ATen/autocast_mode.cpp: cached_cast)."""

    __slots__ = ("cached_cast",)

    def __init__(self, x: Tensor) -> None:
        super().__init__(x.dim, x.itemsize, x.storage, x.node, x.slot)
        self.cached_cast: Tensor | None = None

    def cast(self, tape: Tape) -> Tensor:
        """The copy that all products read."""
        size = self.dim, self.itemsize
        if self.cached_cast is None:
            node = tape.node((self,), (), lambda t, g: (t.gradient(size),))
            label = "autocast copies of inputs"
            self.cached_cast = tape.new(self.dim, tape.autocast, label, node, category="autocast_weights")
            tape.cached.append(self)
        return self.cached_cast


def leaf(tape: Tape, x: Tensor) -> Tensor:
    """The same tensor as a leaf of the graph, where there is one: it and its gradient are there as long as that."""
    if not tape.grad_enabled:
        return x
    held = [x.storage]

    def arrive(_: Tape, grads: list[Tensor | None]) -> tuple[()]:
        held.extend(grad.storage for grad in grads if grad is not None)
        return ()

    node = Node(tape, [], (), arrive)
    node.places = held
    if tape.refilling is None:
        tape.leaf_nodes.append(node)
    return Tensor(x.dim, x.itemsize, x.storage, node)


def is_own(held: list[Tensor | None], slot: int) -> bool:
    """Whether nothing but a list's slot holds a dense gradient.

    Both are counted where no variable names them: to lend its reference or make one is the interpreter's choice."""
    if getrefcount(held[slot]) > ITS_PLACE_AND_THE_COUNT:
        return False
    tensor = held[slot]
    if tensor is None or tensor.storage is None or getrefcount(tensor.storage) > ITS_PLACE_AND_THE_COUNT:
        return False
    return tensor.storage.size >= tensor.dim.elements * tensor.itemsize


def dependencies(start: Node) -> dict[Node, int]:
    """How many gradients each node waits for."""
    waiting: dict[Node, int] = {start: 0}
    stack = [start]
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            node = edge[0]
            if node in waiting:
                waiting[node] += 1
            else:
                waiting[node] = 1
                stack.append(node)
    return waiting


def deliver(
    tape: Tape,
    edges: list[Edge],
    results: list[Tensor | None],
    buffers: dict[Node, list[Tensor | None]],
    waiting: dict[Node, int],
    ready: list[tuple[int, Node]],
) -> None:
    """Hand each result to its consumer; a second gradient for one tensor is added out of place, or, on a real device,
    into the one that came first, if nobody else holds that (torch/csrc/autograd/input_buffer.cpp)."""
    if len(results) < len(edges):
        results += [None] * (len(edges) - len(results))
    results.reverse()
    for edge in edges:
        if edge is None:
            results.pop()
            continue
        node, slot = edge
        buffer = buffers.get(node)
        if buffer is None:
            buffer = buffers[node] = [None] * node.outputs
        if results[-1] is not None:
            if buffer[slot] is None:
                buffer[slot] = results[-1]
            elif not (tape.in_place and is_own(buffer, slot)):
                buffer[slot] = tape.gradient(results[-1], "sum of gradients")
        results.pop()
        waiting[node] = left = waiting[node] - 1
        if not left:
            heappush(ready, (-node.sequence, node))


def dissolve(start: Node, until: Node | None = None) -> None:
    """Let go of a graph that does not run back, whose nodes and frames name one another. ``until``: what is below."""
    stack = [start]
    while stack:
        node = stack.pop()
        if node is until:
            continue
        edges, node.edges = node.edges, []
        node.frame = node.backward = None
        node.saved = node.places = ()
        stack += [edge[0] for edge in edges if edge is not None]
