"""Proves what each operation allocates, saves and makes on the way back: one row each, in units of 512 bytes.

In order: the most while it runs, its inputs among it; what is alive when nobody but it holds the inputs, the result
among it; the most while it runs back from a gradient of the result's size; the gradients of weights that it leaves.
"""

from collections.abc import Callable

import pytest

from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.losses.scored import checkpointed
from memplan.engine.tape import chunked_ops, loss_ops, ops, routing_ops
from memplan.engine.tape.graph import Leaf, Node, Param, Tensor
from memplan.engine.tape.offloading import Checkpoints, Offload, Place, StreamedOffload
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.groups import Numerics, Operators

UNIT = 512
X = Dim("x", 1024)
"""Four units in half precision, eight in fp32; of other extents so many units in half precision."""
ROW, HALF, WIDE = Dim("row", 256), Dim("half", 512), Dim("wide", 2048)
LABEL = "label"

Found = tuple[int, int, int, int]


def leaf(tape: Tape, dim: Dim = X, itemsize: int = 2, needs_grad: bool = True) -> Tensor:
    x = tape.new(dim, itemsize, "input")
    return Tensor(dim, itemsize, x.storage, Node(tape, [], (), lambda t, grads: ()) if needs_grad else None)


def param(tape: Tape, dim: Dim = HALF, itemsize: int = 2, trained: bool = True) -> Param:
    return Param(tape, "weight", dim.elements, itemsize, trained)


def passing(tape: Tape, rows: int = 2, length: int = 128) -> Pass:
    return Pass(tape, Mode(Numerics(2), Operators("sdpa")), rows, length)


def run(operation: Callable[[Tape], Tensor], tape: Tape) -> Found:
    out = operation(tape)
    ran = max(live for live, _ in tape.peaks.values())
    tape.leave_autocast()
    kept, node, size = tape.live, out.node, (out.dim, out.itemsize)
    del out
    if node is None:
        return ran // UNIT, kept // UNIT, 0, 0
    tape.peaks.clear()
    grads: list[Tensor | None] = [tape.gradient(size), *[None] * (node.outputs - 1)]
    tape.backward(node, grads)
    del node
    most = max(live for live, _ in tape.peaks.values())
    left = sum(grad.storage.size for grad in tape.gradients if grad.storage)
    assert tape.live == left, "nothing but gradients is left"
    return ran // UNIT, kept // UNIT, most // UNIT, left // UNIT


OPERATIONS: dict[str, Callable[[Tape], Tensor]] = {
    "cast up": lambda t: ops.cast(t, leaf(t), 4),
    "cast to what it is": lambda t: ops.cast(t, leaf(t), 2),
    "linear": lambda t: ops.linear(t, leaf(t), param(t), WIDE, LABEL),
    "linear of a frozen weight": lambda t: ops.linear(t, leaf(t), param(t, trained=False), WIDE, LABEL),
    "linear of an input without gradient": lambda t: ops.linear(t, leaf(t, needs_grad=False), param(t), WIDE, LABEL),
    "linear with a bias": lambda t: ops.linear(t, leaf(t), param(t), WIDE, LABEL, param(t, ROW)),
    "linear with a frozen bias": lambda t: ops.linear(t, leaf(t), param(t), WIDE, LABEL, param(t, ROW, trained=False)),
    "linear of fp32 weights": lambda t: ops.linear(t, leaf(t, itemsize=4), param(t, itemsize=4), WIDE, LABEL),
    "add": lambda t: ops.add(t, leaf(t), leaf(t), LABEL),
    "add to fp32": lambda t: ops.add(t, leaf(t), leaf(t, itemsize=4), LABEL),
    "add a constant tensor in fp32": lambda t: ops.add(t, leaf(t), leaf(t, itemsize=4, needs_grad=False), LABEL),
    "multiply": lambda t: ops.mul(t, leaf(t), leaf(t), LABEL),
    "multiply by a broadcast row": lambda t: ops.mul(t, leaf(t), leaf(t, ROW), LABEL),
    "multiply by a row in fp32": lambda t: ops.mul(t, leaf(t), leaf(t, ROW, 4), LABEL),
    "multiply by what has no gradient": lambda t: ops.mul(t, leaf(t), leaf(t, needs_grad=False), LABEL),
    "multiply what has no gradient": lambda t: ops.mul(t, leaf(t, needs_grad=False), leaf(t), LABEL),
    "scale": lambda t: ops.scale(t, leaf(t), LABEL),
    "add a number": lambda t: ops.scale(t, leaf(t), LABEL, shares_gradient=True),
    "times a shared constant": lambda t: ops.with_constant(t, leaf(t), 2, LABEL),
    "times a wider constant of its own": lambda t: ops.with_constant(t, leaf(t), 4, LABEL, leaf(t, ROW, 4, False)),
    "silu": lambda t: ops.unary(t, leaf(t), LABEL),
    "relu": lambda t: ops.unary(t, leaf(t), LABEL, saves="result"),
    "rms norm": lambda t: ops.normalise(t, leaf(t, itemsize=4), ROW, LABEL),
    "power": lambda t: ops.power(t, leaf(t, itemsize=4)),
    "mean": lambda t: ops.mean(t, leaf(t, itemsize=4), ROW),
    "contiguous": lambda t: ops.copy(t, leaf(t), LABEL),
    "expanded copy": lambda t: ops.copy(t, leaf(t), LABEL, WIDE),
    "expand": lambda t: ops.expand(t, leaf(t), WIDE),
    "view": lambda t: ops.view(t, leaf(t), WIDE),
    "slice": lambda t: ops.view(t, leaf(t), HALF, whole=False),
    "concatenate": lambda t: ops.concatenate(t, [leaf(t), leaf(t, itemsize=4)], WIDE, LABEL),
    "softmax": lambda t: ops.softmax(t, leaf(t), LABEL),
    "softmax in half precision": lambda t: ops.softmax(t, leaf(t), LABEL, to_fp32=False),
    "softmax that reads half precision": lambda t: ops.softmax(t, leaf(t), LABEL, half_to_float=True),
    "matmul": lambda t: ops.matmul(t, leaf(t), leaf(t, HALF), WIDE, LABEL),
    "matmul of what has no gradient": lambda t: ops.matmul(t, leaf(t, needs_grad=False), leaf(t, HALF), WIDE, LABEL),
    "matmul by what has no gradient": lambda t: ops.matmul(t, leaf(t), leaf(t, HALF, needs_grad=False), WIDE, LABEL),
    "embedding": lambda t: ops.embedding(t, param(t, WIDE), X, 2),
    "embedding with an index": lambda t: ops.embedding(t, param(t, WIDE), X, 2, leaf(t, ROW, 8, False)),
    "dropout": lambda t: ops.dropout(t, leaf(t)),
    "pool": lambda t: ops.average_pool(t, leaf(t), ROW, LABEL),
    "split": lambda t: ops.split(t, leaf(t), 2, HALF)[0],
    "cut": lambda t: ops.cut(t, leaf(t), [ROW, HALF, ROW])[0],
    "log-softmax": lambda t: loss_ops.log_softmax(t, leaf(t), LABEL),
    "gather labels": lambda t: loss_ops.gather(t, leaf(t), ROW, LABEL),
    "nll": lambda t: loss_ops.nll(t, leaf(t, itemsize=4), ROW),
    "logsumexp": lambda t: loss_ops.logsumexp(t, leaf(t), ROW),
    "T5's loss": lambda t: loss_ops.plain_cross_entropy(passing(t), leaf(t), 2),
    "shifted loss of rows": lambda t: loss_ops.shifted_cross_entropy(passing(t, 2, 2), leaf(t, WIDE), 2),
    "shifted loss of one row": lambda t: loss_ops.shifted_cross_entropy(passing(t, 1), leaf(t, WIDE), 1),
    "loss twice": lambda t: loss_ops.repeated_cross_entropy(passing(t, 2, 2), leaf(t, WIDE), 2),
    "loss in chunks": lambda t: loss_ops.chunked_cross_entropy(passing(t), leaf(t, WIDE), 2),
    "loss in one chunk": lambda t: loss_ops.chunked_cross_entropy(passing(t, 1, 64), leaf(t, WIDE), 1),
    "loss in many chunks": lambda t: loss_ops.chunked_cross_entropy(passing(t, 1, 8192), leaf(t, Dim("y", 65536)), 1),
    "experts' linear": lambda t: routing_ops.grouped_linear(t, leaf(t), param(t), WIDE, LABEL),
    "rows of experts": lambda t: routing_ops.gather_rows(t, leaf(t), WIDE, LABEL, leaf(t, ROW, 8, False)),
    "sum": lambda t: routing_ops.reduce(t, leaf(t), ROW, LABEL),
    "sum of groups": lambda t: routing_ops.sum_groups(t, leaf(t), ROW, LABEL),
    "top k": lambda t: routing_ops.top_k(t, leaf(t), ROW)[0],
    "indices of top k": lambda t: routing_ops.top_k(t, leaf(t), ROW)[1],
    "gather": lambda t: routing_ops.gather(t, leaf(t), leaf(t, ROW, 8, False), ROW),
    "masked fill": lambda t: routing_ops.masked_fill(t, leaf(t), leaf(t, X, 1, False), LABEL),
    "divide": lambda t: routing_ops.divide(t, leaf(t), leaf(t, ROW), in_place=False),
    "divide by fp32": lambda t: routing_ops.divide(t, leaf(t), leaf(t, ROW, 4), in_place=False),
    "divide in place": lambda t: routing_ops.divide(t, leaf(t), leaf(t, ROW, 4, False), in_place=True),
    "add in place": lambda t: routing_ops.add_in_place(t, leaf(t), leaf(t)),
    "noise": lambda t: routing_ops.noise_in_place(t, leaf(t)),
    "einsum": lambda t: chunked_ops.contract(t, leaf(t), leaf(t, HALF), WIDE, LABEL),
    "einsum with copies": lambda t: chunked_ops.contract(t, leaf(t), leaf(t, HALF), WIDE, LABEL, (True, True), True),
    "running sum": lambda t: chunked_ops.running_sum(t, leaf(t), LABEL),
    "segment sum": lambda t: chunked_ops.segment_sum(t, leaf(t, ROW), 4, LABEL),
    "pad": lambda t: chunked_ops.pad(t, leaf(t), WIDE, LABEL),
    "exp": lambda t: chunked_ops.exponential(t, leaf(t), LABEL),
}
EXPECTED: dict[str, Found] = {
    "cast up": (12, 8, 12, 0), "cast to what it is": (4, 4, 4, 0), "linear": (12, 12, 18, 2),
    "linear of a frozen weight": (12, 8, 12, 0), "linear of an input without gradient": (12, 12, 14, 2),
    "linear with a bias": (12, 12, 19, 3), "linear with a frozen bias": (12, 12, 18, 2),
    "linear of fp32 weights": (24, 24, 36, 4), "add": (12, 4, 4, 0), "add to fp32": (20, 8, 12, 0),
    "add a constant tensor in fp32": (20, 8, 12, 0), "multiply": (12, 12, 20, 0),
    "multiply by a broadcast row": (9, 9, 18, 0), "multiply by a row in fp32": (14, 14, 34, 0),
    "multiply by what has no gradient": (12, 8, 12, 0), "multiply what has no gradient": (12, 8, 12, 0),
    "scale": (8, 4, 8, 0), "add a number": (8, 4, 4, 0), "times a shared constant": (8, 4, 8, 0),
    "times a wider constant of its own": (14, 10, 22, 0), "silu": (8, 8, 12, 0), "relu": (8, 4, 12, 0),
    "rms norm": (18, 18, 48, 0), "power": (16, 16, 40, 0), "mean": (10, 2, 10, 0), "contiguous": (8, 4, 4, 0),
    "expanded copy": (12, 8, 12, 0), "expand": (4, 4, 12, 0), "view": (4, 4, 8, 0), "slice": (4, 4, 6, 0),
    "concatenate": (28, 16, 16, 0), "softmax": (20, 8, 24, 0), "softmax in half precision": (8, 4, 12, 0),
    "softmax that reads half precision": (12, 8, 20, 0), "matmul": (14, 14, 20, 0),
    "matmul of what has no gradient": (14, 12, 14, 0), "matmul by what has no gradient": (14, 10, 14, 0),
    "embedding": (4, 4, 12, 8), "embedding with an index": (8, 8, 16, 8), "dropout": (10, 6, 10, 0),
    "pool": (5, 5, 9, 0), "split": (4, 4, 6, 0), "cut": (4, 4, 5, 0), "log-softmax": (8, 4, 12, 0),
    "gather labels": (9, 9, 17, 0), "nll": (10, 10, 18, 0),
    "logsumexp": (5, 5, 18, 0), "T5's loss": (9, 5, 12, 0), "shifted loss of rows": (41, 9, 24, 0),
    "shifted loss of one row": (41, 17, 48, 0), "loss twice": (58, 9, 24, 0), "loss in chunks": (28, 10, 18, 0),
    "loss in one chunk": (18, 9, 24, 0), "loss in many chunks": (640, 320, 512, 0),
    "experts' linear": (12, 12, 18, 2), "rows of experts": (16, 12, 20, 0), "sum": (5, 1, 1, 0),
    "sum of groups": (5, 1, 5, 0), "top k": (9, 5, 13, 0), "indices of top k": (9, 4, 0, 0), "gather": (9, 9, 17, 0),
    "masked fill": (10, 6, 10, 0), "divide": (9, 9, 14, 0), "divide by fp32": (14, 14, 26, 0),
    "divide in place": (10, 10, 14, 0), "add in place": (8, 4, 4, 0), "noise": (8, 8, 12, 0),
    "einsum": (14, 14, 20, 0), "einsum with copies": (20, 14, 22, 0), "running sum": (8, 4, 16, 0),
    "segment sum": (16, 6, 17, 0), "pad": (12, 8, 12, 0), "exp": (8, 4, 12, 0),
}  # fmt: skip
AUTOCAST: dict[str, Found] = {
    "linear of fp32 weights": (22, 14, 20, 4), "log-softmax": (20, 8, 24, 0), "T5's loss": (17, 13, 21, 0),
    "loss in chunks": (41, 18, 34, 0), "loss in one chunk": (40, 17, 48, 0),
    "loss in many chunks": (896, 576, 608, 0), "sum": (6, 2, 6, 0), "sum of groups": (6, 2, 6, 0),
    "exp": (20, 8, 24, 0),
}  # fmt: skip
"""Of operations that autocast runs in another precision."""
IN_PLACE: dict[str, Found] = {
    "gather labels": (9, 9, 13, 0), "rows of experts": (16, 12, 16, 0), "top k": (9, 5, 9, 0),
    "gather": (9, 9, 13, 0),
}  # fmt: skip
"""Of those that scatter into zeros, on a real device."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_holds_what_torch_does(name: str) -> None:
    assert run(OPERATIONS[name], Tape()) == EXPECTED[name]
    assert run(OPERATIONS[name], Tape(autocast=2)) == AUTOCAST.get(name, EXPECTED[name])
    assert run(OPERATIONS[name], Tape(in_place=True)) == IN_PLACE.get(name, EXPECTED[name])


# -- saved tensors on the host -----------------------------------------------------------------------------------------


def test_save_on_cpu_copies_whatever_is_saved() -> None:
    tape, away = Tape(), Offload()
    x = leaf(tape)
    assert away.pack([x, None, param(tape)]) == [Place(X, 2), None, Place(Dim("weight", 512), 2)]
    assert away.host_bytes == 2048 + 1024
    away.pack([x], times=3)
    assert away.host_bytes == 2048 + 1024 + 3 * 2048
    node = Node(tape, [], (), lambda t, grads: ())
    node.places = [Place(X, 2), None]
    before = tape.live
    away.unpack(tape, node)
    assert tape.live - before == 2048
    assert not node.places
    node.saved = ()
    assert tape.live == before


def test_trls_stream_leaves_weights_small_tensors_and_what_is_being_copied() -> None:
    tape, away = Tape(), StreamedOffload()
    x = leaf(tape)
    small, least = leaf(tape, Dim("s", 511)), leaf(tape, Dim("s", 512))
    assert away.pack([param(tape), small, least, x]) == [None, small.storage, Place(Dim("s", 512), 2), Place(X, 2)]
    assert away.host_bytes == 1024 + 2048
    assert away.pack([x]) == [x.storage], "saved again while it is among the last five"
    once = leaf(tape)
    away.pack([once])
    away.pack([leaf(tape) for _ in range(5)])
    assert away.pack([once]) == [Place(X, 2)], "its copy is done"
    assert away.pack([x]) == [x.storage], "for good"
    broadcast = Tensor(WIDE, 2, leaf(tape, HALF).storage)
    assert away.pack([broadcast]) == [Place(Dim("wide", 512), 2)], "what is behind a broadcast view"


def test_trls_stash_holds_five_copied_tensors_until_the_layer_settles() -> None:
    tape, away = Tape(), StreamedOffload()
    for _ in range(8):
        away.pack([leaf(tape)])
    assert tape.live == 5 * 2048
    away.settle()
    assert tape.live == 0
    node, second = (Node(tape, [], (), lambda t, grads: ()) for _ in range(2))
    node.places, second.places = [Place(X, 2)], [Place(ROW, 2)]
    away.unpack(tape, node)
    node.saved = ()
    assert tape.live == 2048, "the copies of a node stay until the next one's are there"
    away.unpack(tape, second)
    second.saved = ()
    assert tape.live == 512


def test_what_is_offloaded_nowhere() -> None:
    assert (Offload.skips, StreamedOffload.skips) == (frozenset(), frozenset(["head"]))
    assert Checkpoints.skips >= {"final-norm", "head", "loss"}


def test_each_backward_of_a_checkpoint_makes_its_own_copies_of_weights() -> None:
    tape = Tape(autocast=2)
    weight = param(tape, itemsize=4)
    for _ in range(2):
        out = checkpointed(tape, lambda inputs: ops.linear(tape, inputs[0], weight, ROW, LABEL), (leaf(tape),))
        tape.leave_autocast()
        node = out.node
        assert node is not None
        del out
        tape.backward(node, [tape.gradient((ROW, 2))])
        assert weight.cached_cast is None
    assert [gradient.dim.elements for gradient in tape.gradients] == [HALF.elements] * 2


def test_autocast_keeps_its_copy_of_a_leaf_until_it_is_left() -> None:
    tape = Tape(autocast=2)
    x = Leaf(tape.new(X, 4, LABEL))
    first, second = ops.autocast_input(tape, x), ops.autocast_input(tape, x)
    assert first is second
    del first, second
    assert tape.live == 12 * UNIT
    tape.leave_autocast()
    assert tape.live == 8 * UNIT
