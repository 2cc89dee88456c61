"""The operations that models are made of: what each allocates, saves, and makes on the way back.

Each function stands for one ATen operation (or one fused kernel) of torch 2.13, and follows ``derivatives.yaml`` and
the C++ of its backward: which inputs or outputs are saved and under which condition, and which temporaries live
together. Autocast follows CUDA's lists: matmuls in the low precision; pow, rsqrt, softmax's kin in fp32."""

from collections.abc import Sequence

from memplan.engine.tape.graph import Backward, Grads, Leaf, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape

FP32 = 4


def own(x: Tensor) -> Backward:
    """A backward that makes a gradient of x's size."""
    size = x.dim, x.itemsize
    return lambda t, g: (t.gradient(size),)


def of_each(*inputs: Tensor) -> Backward:
    """A backward that makes a gradient for each of these that asks for one."""
    sizes = [(x.dim, x.itemsize, x.needs_grad) for x in inputs]
    return lambda t, g: [t.gradient((dim, size)) if needs else None for dim, size, needs in sizes]


def dense(table: Tensor, itemsize: int, label: str = "position gradients") -> Backward:
    """A backward that makes the gradient of a whole table."""
    size = table.dim
    return lambda t, g: (t.new(size, itemsize, label, category="gradients"),)


def of_weights(*weights: Tensor | None) -> Backward:
    """A backward that makes gradients of the trained ones among these."""
    sizes = [(each.dim, each.itemsize) if each is not None and each.needs_grad else None for each in weights]
    return lambda t, g: [t.new(*size, "weight gradients", category="gradients") if size else None for size in sizes]


def in_turn(*parts: Backward) -> Backward:
    """Gradients of some inputs, then of others."""
    return lambda t, g: [grad for part in parts for grad in part(t, g)]


def in_three(x: Tensor) -> Backward:
    """A backward of three tensors of x's size: temporaries of one expression, and the gradient."""
    size = x.dim, x.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        first, second = t.gradient(size), t.gradient(size)
        result = t.gradient(size)
        del first, second
        return (result,)

    return backward


def cast(tape: Tape, x: Tensor, itemsize: int, label: str = "dtype copies") -> Tensor:
    """``x.to(dtype)``: nothing when it has that dtype already. Saves nothing; its gradient is cast back."""
    if x.itemsize == itemsize:
        return x
    return tape.new(x.dim, itemsize, label, tape.node((x,), (), own(x)))


def autocast_input(tape: Tape, x: Tensor) -> Tensor:
    """x in the precision that autocast gives to matmuls and attention."""
    if isinstance(x, Leaf) and tape.autocast not in (0, x.itemsize):
        return x.cast(tape)
    return cast(tape, x, tape.autocast, "autocast copies of inputs") if tape.autocast else x


def _autocast_weight(tape: Tape, weight: Param) -> Tensor:
    """The weight as the product sees it. Autocast keeps the copy of a trainable fp32 weight until it is left."""
    if not tape.autocast or weight.itemsize == tape.autocast:
        return weight
    if weight.cached_cast is not None:
        return weight.cached_cast
    dim, low = weight.dim, tape.autocast
    order = tape.shared_casts if weight.needs_grad else ""
    if order == "second":
        return Param(tape, weight.name, dim.elements, low, trained=True)
    if order == "first":
        tape.awaited[weight] = low
    node = tape.node((weight,), (), lambda t, g: (t.met(weight, low, g),))
    copy = tape.new(dim, tape.autocast, "autocast copies of weights", node, category="autocast_weights")
    if weight.needs_grad:
        weight.cached_cast = copy
        tape.cached.append(weight)
    return copy


def linear(
    tape: Tape,
    x: Tensor,
    weight: Param,
    out: Dim,
    label: str,
    bias: Param | None = None,
    op: str = "",
    *,
    keeps: bool = False,
    both: bool = False,
) -> Tensor:
    """``F.linear``, or another product. Saves x when the weight is trained (``keeps``: always), and the (cast) weight
    when x needs a gradient; a convolution saves ``both`` for either (torch 2.13 derivatives.yaml: convolution)."""
    source = autocast_input(tape, x)
    matrix = _autocast_weight(tape, weight)
    offset = _autocast_weight(tape, bias) if bias is not None else None
    want_x, want_w, want_b = source.needs_grad, matrix.needs_grad, offset is not None and offset.needs_grad
    x_dim, w_dim, itemsize = source.dim, matrix.dim, source.itemsize
    b_dim, input_first = bias.dim if bias is not None else w_dim, bias is not None

    def backward(t: Tape, grads: Grads) -> Grads:
        # Formulas are in the alphabetical order of their arguments (torchgen load_derivatives.py: ``sorted(defn)``):
        # mm's mat2 before self, addmm's mat1 before mat2.
        dx = t.gradient((x_dim, itemsize)) if want_x and input_first else None
        dw = t.new(w_dim, itemsize, "weight gradients", category="gradients") if want_w else None
        if want_x and dx is None:
            dx = t.gradient((x_dim, itemsize))
        db = t.new(b_dim, itemsize, "bias gradients", category="gradients") if want_b else None
        return (dx, dw, db)

    inputs = (source, matrix) if offset is None else (source, matrix, offset)
    saved = (source if want_w or keeps or both else None, matrix if want_x or both else None)
    node = tape.node(inputs, saved, backward)
    return tape.result(op or ("mm" if offset is None else "addmm"), out, itemsize, label, node)


def add(tape: Tape, a: Tensor, b: Tensor, label: str, least: int = 0) -> Tensor:
    """``a + b``: saves nothing; both receive the same gradient, cast where dtypes were mixed."""
    itemsize = max(a.itemsize, b.itemsize, least)
    sides = ((a.dim, a.itemsize, a.needs_grad), (b.dim, b.itemsize, b.needs_grad))

    def backward(t: Tape, grads: Grads) -> Grads:
        grad = grads[0]
        return [
            (grad if size == itemsize else t.gradient((dim, size))) if needs else None for dim, size, needs in sides
        ]

    return tape.new(a.dim, itemsize, label, tape.node((a, b), (), backward))


def mul(tape: Tape, a: Tensor, b: Tensor, label: str) -> Tensor:
    """``a * b``, b possibly broadcast: each side is saved for the other's gradient.

    Both gradients have the full size and the wider dtype until the engine narrows and sums them (``validate_outputs``),
    when what was saved is still there, but not what a checkpoint gave back."""
    itemsize = max(a.itemsize, b.itemsize)
    dim, b_dim, want_a, want_b = a.dim, b.dim, a.needs_grad, b.needs_grad
    a_size, b_size = a.itemsize, b.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        da = t.gradient((dim, itemsize)) if want_a else None
        db = t.gradient((dim, itemsize)) if want_b else None
        t.drop_unpacked()
        if da is not None and a_size != itemsize:
            da = t.gradient((dim, a_size))
        if db is not None and (b_dim.elements != dim.elements or b_size != itemsize):
            db = t.gradient((b_dim, b_size))
        return (da, db)

    node = tape.node((a, b), (a if want_b else None, b if want_a else None), backward)
    return tape.new(dim, itemsize, label, node)


def scale(tape: Tape, x: Tensor, label: str, shares_gradient: bool = False) -> Tensor:
    """``x * number`` (or / number, or + constant): saves nothing; adding hands the same gradient on."""
    backward: Backward = _same if shares_gradient else own(x)
    return tape.new(x.dim, x.itemsize, label, tape.node((x,), (), backward))


def _same(tape: Tape, grads: Grads) -> Grads:
    return (grads[0],)


def with_constant(tape: Tape, x: Tensor, itemsize: int, label: str, constant: Tensor | None = None) -> Tensor:
    """``x * constant tensor`` (cos, sin) of ``itemsize``: saved, if the layer's own; else shared and counted once.

    The product has the wider dtype of the two; x's gradient is narrowed where it was the narrower."""
    dim, before, wide = x.dim, x.itemsize, max(x.itemsize, itemsize)

    def backward(t: Tape, grads: Grads) -> Grads:
        grad = t.gradient((dim, wide))
        return (grad if wide == before else t.gradient((dim, before)),)

    return tape.new(dim, wide, label, tape.node((x,), (constant,), backward))


def unary(tape: Tape, x: Tensor, label: str, saves: str = "input") -> Tensor:
    """A fused pointwise function that saves its input (silu, gelu) or its result (tanh, relu)."""
    out = tape.new(x.dim, x.itemsize, label)
    return Tensor(x.dim, x.itemsize, out.storage, tape.node((x,), (x if saves == "input" else out,), own(x)))


def normalise(tape: Tape, x: Tensor, per_row: Dim, label: str) -> Tensor:
    """``x * rsqrt(x.pow(2).mean(-1) + eps)`` on fp32 x: saves x once and one fp32 per row.

    Backward holds x, the two products of the multiplication, then pow's: the power, its scaling and the result."""
    dim = x.dim
    squares = power(tape, x)
    variance = mean(tape, squares, per_row)
    del squares  # a temporary of ``pow(2).mean(-1)`` (LlamaRMSNorm.forward)
    shifted = scale(tape, variance, "norm statistics")
    del variance
    inverse = unary(tape, shifted, "norm statistics", saves="result")
    del shifted  # a temporary of ``rsqrt(variance + eps)``
    return mul(tape, Tensor(dim, FP32, x.storage, x.node, x.slot), inverse, label)


def power(tape: Tape, x: Tensor, label: str = "norm squares") -> Tensor:
    """``x.pow(number)``, which saves x; backward is ``grad * (exponent * self.pow(exponent - 1))``
    (FunctionsManual.cpp: pow_backward)."""
    return tape.new(x.dim, x.itemsize, label, tape.node((x,), (x,), in_three(x)))


def mean(tape: Tape, x: Tensor, per_row: Dim) -> Tensor:
    """``x.mean(-1)`` of fp32 x."""
    return tape.new(per_row, FP32, "norm statistics", tape.node((x,), (), own(x)))


def copy(tape: Tape, x: Tensor, label: str, dim: Dim | None = None) -> Tensor:
    """``contiguous()`` of another layout, or ``expand().reshape()``: a new tensor that saves nothing.

    An expanded copy's gradient is summed back to the original size; a plain copy hands its gradient on."""
    if dim is None or dim.elements == x.dim.elements:
        return tape.new(x.dim, x.itemsize, label, tape.node((x,), (), lambda t, g: (g[0],)))
    return tape.new(dim, x.itemsize, label, tape.node((x,), (), own(x)))


def expand(tape: Tape, x: Tensor, dim: Dim) -> Tensor:
    """``x.expand(…)``: the same storage seen as larger; its gradient is summed back."""
    return Tensor(dim, x.itemsize, x.storage, tape.node((x,), (), own(x)))


def view(tape: Tape, x: Tensor, dim: Dim, whole: bool = True) -> Tensor:
    """A view. A slice's gradient (``whole`` false) is scattered into zeros of the original's size."""
    return Tensor(dim, x.itemsize, x.storage, x.node, x.slot) if whole else expand(tape, x, dim)


def concatenate(tape: Tape, parts: Sequence[Tensor], dim: Dim, label: str) -> Tensor:
    """``torch.cat``: saves nothing; its gradient is handed back in views."""
    itemsize = max(part.itemsize for part in parts)
    count = len(parts)
    return tape.new(dim, itemsize, label, tape.node(parts, (), lambda t, g: [g[0]] * count))


def softmax(tape: Tape, x: Tensor, label: str, to_fp32: bool = True, half_to_float: bool = False) -> Tensor:
    """``softmax(x, dtype=float32)``: converts first, then saves its fp32 result. CUDA's kernel reads fp16 as it is and
    writes fp32 (``half_to_float``), and its gradient is fp16."""
    if to_fp32 and half_to_float:
        return softmax_of_half(tape, x, label)
    source = cast(tape, x, FP32, label) if to_fp32 else x
    return unary(tape, source, label, saves="result")


def softmax_of_half(tape: Tape, x: Tensor, label: str) -> Tensor:
    """A softmax or its logarithm that reads x as it is, and writes and saves fp32; its gradient has x's dtype."""
    out = tape.new(x.dim, FP32, label)
    return Tensor(x.dim, FP32, out.storage, tape.node((x,), (out,), own(x)))


def matmul(tape: Tape, a: Tensor, b: Tensor, out: Dim, label: str) -> Tensor:
    """A batched matmul of two activations: each is saved for the other's gradient."""
    left, right = autocast_input(tape, a), autocast_input(tape, b)
    saved = (left if right.needs_grad else None, right if left.needs_grad else None)
    return tape.result("bmm", out, left.itemsize, label, tape.node((left, right), saved, of_each(left, right)))


def embedding(tape: Tape, table: Tensor, out: Dim, itemsize: int, index: Tensor | None = None) -> Tensor:
    """A row of the table for each position; its gradient is dense. An ``index`` of its own is saved."""
    return tape.new(out, itemsize, "positions", tape.node((table,), (index,), dense(table, itemsize)))


def dropout(tape: Tape, x: Tensor, label: str = "dropped-out inputs") -> Tensor:
    """``native_dropout``: saves a mask of one byte per element, which is there first (aten/native/cuda/Dropout.cu)."""
    dim, itemsize = x.dim, x.itemsize
    mask = tape.new(dim, 1, "dropout masks")
    out = tape.new(dim, itemsize, label)
    return Tensor(dim, itemsize, out.storage, tape.node((x,), (mask,), own(x)))


def average_pool(tape: Tape, x: Tensor, dim: Dim, label: str) -> Tensor:
    """``avg_pool2d``: keeps its input."""
    return tape.new(dim, x.itemsize, label, tape.node((x,), (x,), own(x)))


def split(tape: Tape, x: Tensor, parts: int, dim: Dim) -> list[Tensor]:
    """``unbind`` or ``chunk``: views, whose gradients are joined in one new tensor."""
    return cut(tape, x, [dim] * parts)


def cut(tape: Tape, x: Tensor, dims: Sequence[Dim]) -> list[Tensor]:
    """``split`` into views of these sizes."""
    before, itemsize = x.dim, x.itemsize
    node = tape.node((x,), (), lambda t, g: (t.gradient((before, itemsize), "joined gradients"),))
    if node is not None:
        node.outputs = len(dims)
    return [Tensor(dim, itemsize, x.storage, node, slot) for slot, dim in enumerate(dims)]
