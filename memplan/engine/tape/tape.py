"""A tape of sizes: autograd that moves no numbers, only the birth and death of tensors.

The modules of a model are written once, in the words of the framework's own code (``layers.py``, ``heads.py``), over
tensors that have a size and no contents. Liveness is Python's own reference counting, as it is in PyTorch: a tensor's
storage dies when the last variable, graph node or gradient buffer that holds it lets go. Nodes keep what
``derivatives.yaml`` (torch 2.13) says that they save, and the backward below runs them in autograd's order. So the
bytes that a layer saves, the transients inside it and the instant of its peak all follow from one description.

Sizes are rounded up to 512 bytes, as the CUDA caching allocator does. What a kernel allocates is not seen."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from memplan.engine.tape import graph
from memplan.engine.tape.graph import Accumulate, Backward, Edge, Frame, Leaf, Node, Param, Storage, Tensor
from memplan.engine.tape.offloading import Offload
from memplan.engine.tape.selective_checkpointing import Policy
from memplan.engine.tape.tags import Dim, Log, Tag
from memplan.tables.styles import Bucket, Fused, GradientMode, SavedBy, SharedCasts

if TYPE_CHECKING:
    from memplan.engine.tape.watched import Uses


_made = tuple.__new__  # of what ten thousand are made of: twice as fast as by its class
OTHER_GRAPH = "weight gradients of the other graph"


class Tape:
    """One recording: tensors come and go, and ``peaks`` remembers the most that was alive at each named place."""

    storage_type: type[Storage] = Storage
    plays_all = False
    watches = using = False
    """Every use of a parameter is noted, and where it ends (``play/notes.py``): modules are gathered one by one."""

    def __init__(
        self, autocast: int = 0, gradients: GradientMode = "keep", category: str = "activations", in_place: bool = False
    ) -> None:
        self.log = Log()
        self.live = 0
        self.peaks: dict[tuple[str, str], tuple[int, int]] = {}
        self.sequence = 0
        self.grad_enabled = True
        self.autocast = autocast
        self.in_place = in_place
        self.shared_casts: SharedCasts = ""
        self.half_to_float = False
        self.gradient_mode = gradients
        self.category = category
        self.phase, self.point, self.place = "forward", "", ("forward", "")
        self.quiet = 0
        self.gradients: list[Tensor] = []
        self.policy: Policy | None = None
        self.offload: Offload | None = None
        self.frame: Frame | None = None
        self.refilling: list[Node] | None = None
        self.running: Node | None = None
        self.cached: list[Param | Leaf] = []
        self.context: list[Storage] = []
        self.closures: list[Storage] = []
        self.leaves: list[Param] = []
        self.leaf_nodes: list[Node] = []
        self.awaited: dict[Param, int] = {}
        self.waiting: dict[Param, Tensor] = {}

    def close(self, waits: Node | None = None) -> None:
        """Let go of circles, which the collector of cycles alone would find, if it is on: a weight and the node where
        its gradient arrives, the tape and storages that it holds, a graph that ``waits`` to run back from a node."""
        if waits is not None:
            graph.dissolve(waits)
        for param in self.leaves:
            param.node = None
        for held in (self.leaves, self.gradients, self.leaf_nodes, self.context, self.closures, self.waiting):
            held.clear()

    # -- recording ------------------------------------------------------------------------------------------------

    @contextmanager
    def at(self, point: str) -> Iterator[None]:
        """Name the place of what is recorded inside."""
        before, place = self.point, self.place
        self.point, self.place = point, (self.phase, point)
        try:
            yield
        finally:
            self.point, self.place = before, place

    def new(self, dim: Dim, itemsize: int, label: str, node: Node | None = None, category: str = "") -> Tensor:
        """Allocate: ``dim.elements`` of ``itemsize`` bytes, rounded up to 512, for each turn meant (``turns``)."""
        symbol, elements = dim
        category = category or ("logits" if "V" in symbol else self.category)
        tag = _made(Tag, (category, label, symbol, itemsize, elements))
        size = -(-elements * itemsize // 512) * 512
        if self.quiet:
            size *= self.quiet
        return Tensor(dim, itemsize, self.storage_type(self, size, tag), node)

    def result(self, operation: str, dim: Dim, itemsize: int, label: str, node: Node | None = None) -> Tensor:
        """Allocate the result of an operation that a selective policy may keep; take the kept one in recomputation."""
        policy = self.policy
        if policy is None or not policy.saves(operation):
            result = self.new(dim, itemsize, label, node)
        elif self.refilling is not None:
            result = Tensor(dim, itemsize, policy.kept.pop(), node)
        else:
            result = self.new(dim, itemsize, label, node)
            if self.frame is not None and result.storage is not None:
                policy.kept.append(result.storage)
        if self.using:
            self.used()
        return result

    def use(self, param: Param, how: str = "") -> None:
        """Note that the module of a parameter runs."""

    def uses(self) -> Uses | None:
        """When modules have run since it was asked last, if that is watched."""
        return None

    def reaches(self, node: Node) -> None:
        """Backward has come to a node whose checkpoint is made again before it runs."""

    def used(self) -> None:
        """Note that the module of the parameter that was used last has run."""

    def reads(self, node: Node, inputs: Sequence[Tensor]) -> None:
        """Note the parameters that a node reads."""

    def node(self, inputs: Sequence[Tensor], saved: Sequence[Tensor | None], backward: Backward) -> Node | None:
        """Record a step, or nothing when no input needs a gradient."""
        if not self.grad_enabled:
            return None
        for tensor in inputs:
            if tensor.needs_grad:
                break
        else:
            return None
        storages = [tensor.storage for tensor in saved if tensor is not None]
        edges: list[Edge] = [(tensor.node, tensor.slot) if tensor.node is not None else None for tensor in inputs]
        if self.refilling is not None:
            node = self._refill(edges, storages)
        elif self.frame is None and (self.offload is None or self.point in self.offload.skips):
            node = Node(self, edges, storages, backward)
        else:
            node = Node(self, edges, (), backward)
            if storages:
                node.packed = True
                if self.frame is not None:
                    self.frame.append(node)
                    node.frame = self.frame
                elif self.offload is not None:
                    node.places = self.offload.pack(saved, self.quiet or 1)
        if self.watches:
            self.reads(node, inputs)
        return node

    # -- non-reentrant checkpointing: nodes hold nothing until the first of them runs ---------------------------------

    def start_hollow(self, policy: SavedBy = "") -> Frame:
        """From here to ``end_hollow`` nodes keep nothing: torch.utils.checkpoint's pack hooks hold places in a frame,
        not tensors. What a ``policy`` of that name saves is kept."""
        self.frame = frame = Frame(Policy(policy) if policy else None)
        self.policy = frame.policy
        return frame

    def end_hollow(self, compiled: bool = False) -> None:
        """What is checkpointed has run. Of a compiled graph no result outlives forward that its backward does not read,
        whatever a policy says (torch 2.13 _functorch/partitioners.py: solve_min_cut saves what reaches backward)."""
        if compiled and self.policy is not None:
            self.policy.drop_unread()
        self.frame = self.policy = None

    def refill(self, frame: Frame, forward: Callable[[], object]) -> None:
        """Run the forward again: each node of a frame gets what it saves; the last ends it (early stop)."""
        self.refilling, frame.nodes = frame.nodes[::-1], []
        phase, place = self.phase, self.place
        self.phase, self.policy = "recompute", frame.policy
        if self.policy is not None:
            self.policy.rewind()
        with suppress(_AllRecomputed):
            forward()
        self.refilling, self.phase, self.place, self.policy = None, phase, place, None

    def _refill(self, edges: list[Edge], storages: Sequence[Storage | None]) -> Node:
        """A node of the second graph, which holds the same tensors until the recomputation is left."""
        assert self.refilling is not None
        if storages:
            self.refilling.pop().saved = storages
            if not self.refilling:
                raise _AllRecomputed
        return Node(self, edges, storages, lambda tape, grads: ())

    def gradient(self, like: Tensor | tuple[Dim, int], label: str = "gradients in flight") -> Tensor:
        """Allocate a gradient of the same size."""
        dim, itemsize = (like.dim, like.itemsize) if isinstance(like, Tensor) else like
        return self.new(dim, itemsize, label, category="logits" if "V" in dim.symbol else "temporaries")

    def drop_unpacked(self) -> None:
        """What a checkpoint's hooks gave back to the running node is gone when its function returns."""
        if self.running is not None and self.running.packed:
            self.running.saved = ()

    def await_others(self) -> None:
        """The gradients that another graph of the same backward left, which ran back before, wait for this one's: those
        of casts that both share and of what is used uncast, or of all weights."""
        if self.gradient_mode in ("meet", "join") or self.awaited:
            self.awaited = {weight: weight.itemsize for weight in self.leaves} | self.awaited
        for weight, itemsize in self.awaited.items():
            self.waiting[weight] = self.gradient((weight.dim, itemsize), OTHER_GRAPH)

    def met(self, weight: Param, itemsize: int, grads: list[Tensor | None]) -> Tensor:
        """A weight's gradient out of its cast's, or of the sum with the one that waits, when neither is left."""
        other, total = self.waiting.pop(weight, None), None
        if other is not None:
            size, label = (weight.dim, itemsize), "sum of both graphs' weight gradients"
            total = other if self.in_place else self.gradient(size, label)
            grads.clear()
            del other  # ``InputBuffer::accumulate`` has added it up (torch/csrc/autograd/input_buffer.cpp)
        result = self.gradient((weight.dim, weight.itemsize), "weight gradients")
        del total  # ``ToCopyBackward0`` has cast it to the weight's dtype
        return result

    # -- playing backward -----------------------------------------------------------------------------------------

    def leave_autocast(self) -> None:
        """Autocast's cache is cleared; copies that nodes saved live on."""
        for param in self.cached:
            param.cached_cast = None
        self.cached.clear()

    def backward(
        self, start: Node, grads: list[Tensor | None], before: dict[Node, list[Tensor | None]] | None = None
    ) -> None:
        """Run the graph behind ``start``: highest sequence first among the ready, gradients summed where they meet.

        Takes the gradients of ``start``'s outputs out of the list, so that nobody else holds them, and those out of
        ``before`` that wait already, from what ran back earlier."""
        waiting = graph.dependencies(start)
        buffers = {} if before is None else before
        buffers[start] = list(grads)
        grads.clear()
        grads = []
        ready = [(-start.sequence, start)]
        self.phase = "backward"
        while ready:
            _, node = heapq.heappop(ready)
            grads = buffers.pop(node)
            self.point, self.quiet = node.point, node.quiet
            self.place = ("" if node.quiet else "backward", node.point)
            if isinstance(node, Accumulate):
                self._accumulate(node.param, grads)
                continue
            if node.frame is not None:
                node.frame.recompute()
                node.frame = None  # each unpack hook holds the frame until its node has run
            if node.places and self.offload is not None:
                self.offload.unpack(self, node)
            self.running = node
            run, node.backward = node.backward, None
            assert run is not None
            results = list(run(self, grads))
            del grads, run  # ``call_function`` was given its inputs by move (torch/csrc/autograd/engine.cpp)
            node.saved = ()  # ``fn.release_variables()``, where no graph is kept (engine.cpp: evaluate_function)
            self.quiet = node.quiet  # a graph within may have run back
            graph.deliver(self, node.edges, results, buffers, waiting, ready)

    def _accumulate(self, param: Param, grads: list[Tensor | None]) -> None:
        """Take a weight's gradient out of the list, and do with it as its ``GradientMode`` says."""
        grad = grads.pop()
        if grad is None:
            return
        mode = self.gradient_mode
        waits = self.waiting.pop(param, None)
        if mode == "keep" and waits is None:
            self.gradients.append(grad)
        elif mode in ("sum", "meet", "join") or waits is not None:
            if not self.in_place:
                grad = self.new(grad.dim, grad.itemsize, "sum of weight gradients", category="gradients")
            del waits  # the engine's buffer holds the sum from now on
            if mode in ("keep", "join"):
                self.gradients.append(grad)
        elif isinstance(mode, Fused):
            taken = self.gradients if mode.waits else [grad]
            sizes, self.gradients = [(held.dim, held.itemsize) for held in taken], [grad] if mode.waits else []
            del taken
            for dim, itemsize in sizes:
                self.new(
                    dim, mode.single if itemsize == 4 else mode.half, "fused update", category="optimizer_temporaries"
                )
        elif isinstance(mode, Bucket):
            self.gradients = [grad] if grad.dim.elements > mode.most else []


class _AllRecomputed(Exception):
    """Raised inside a recomputation when no node of the frame is left."""
