"""Products of frozen quantised linears: what each library's autograd function allocates and keeps.

None has a gradient for its weight. bitsandbytes' 4-bit function keeps nothing but the packed weight; its 8-bit one, and
until 0.43.2 the other too, keeps the input on the context, unseen by checkpointing's hooks, until the graph is let go
of; HQQ saves the input; GPTQ's training kernel multiplies by a dequantised matrix that autograd saves."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.groups import Quantised
from memplan.spec.parts import Linear

if TYPE_CHECKING:
    from memplan.spec.layer import Layer
    from memplan.spec.vision import Block

Product = Callable[[Tape, Tensor, Linear, Quantised, Dim, str], Tensor]

BUFFER = "dequantised weights"


def product_itemsize(base: Quantised | None, autocast: int, layers: "Iterable[Layer | Block]") -> int:
    """Element size of what bitsandbytes' linears add to the residual stream: that of their input, which is fp32 where
    autocast runs the LayerNorm before them (bitsandbytes 0.50 nn/modules.py: ``.to(inp_dtype)``); 0 as without."""
    if base is None or not autocast or not base.scheme.product.startswith("bnb"):
        return 0
    before = (layer for layer in layers if layer.form in ("pre", "parallel", "parallel-branches", "vit"))
    return ops.FP32 if any(norm.kind in ("layer", "layer-plain") for layer in before for norm in layer.norms) else 0


def quantised_linear(tape: Tape, x: Tensor, linear: Linear, base: Quantised, out: Dim, label: str) -> Tensor:
    """``base_layer(x)`` of a quantised linear; its bias is added in the product's kernel."""
    return PRODUCTS[base.scheme.product](tape, x, linear, base, out, label)


def _matrix(linear: Linear) -> Dim:
    return Dim("in·out", linear.inputs * linear.outputs)


def dequantise(tape: Tape, linear: Linear, base: Quantised, itemsize: int) -> Tensor:
    """The whole matrix in ``itemsize``, with the temporaries of its making."""
    return _MAKERS[base.scheme.product](tape, linear, base, itemsize)


def _scales(tape: Tape, linear: Linear, base: Quantised, tensors: int) -> list[Tensor]:
    """Nested scales of a 4-bit matrix in fp32."""
    blocks = Dim("in·out/64", -(-linear.inputs * linear.outputs // base.scheme.group))
    return [tape.gradient((blocks, ops.FP32), "absmax in fp32") for _ in range(tensors if base.scheme.nested else 0)]


def _from_four_bits(tape: Tape, linear: Linear, base: Quantised, itemsize: int) -> Tensor:
    """``dequantize_4bit``: nested scales become fp32 first, and their offset is added in place."""
    scales = _scales(tape, linear, base, 1)
    matrix = tape.gradient((_matrix(linear), itemsize), BUFFER)
    del scales
    return matrix


def _multiplied_by(tape: Tape, linear: Linear, base: Quantised, itemsize: int) -> list[Tensor]:
    """What a forward matmul holds: the matrix; of four bits the scales too, without and with their offset
    (bitsandbytes 0.50 backends/cuda/ops.py: ``_dequant_linear_fallback``)."""
    if base.scheme.product != "bnb-4bit":
        return [dequantise(tape, linear, base, itemsize)]
    scales = _scales(tape, linear, base, 2)
    return [tape.gradient((_matrix(linear), itemsize), BUFFER), *scales]


def _from_int8(tape: Tape, linear: Linear, base: Quantised, itemsize: int) -> Tensor:
    """``CB.to(dtype).mul_(scales)``."""
    return tape.gradient((_matrix(linear), itemsize), BUFFER)


def _from_words(tape: Tape, linear: Linear, base: Quantised, itemsize: int) -> Tensor:
    """Unpacked to int32, then scales and shifted weights gathered to full size, then their product."""
    dim = _matrix(linear)
    words = tape.gradient((dim, 4), "unpacked weights")
    shifted = tape.gradient((dim, itemsize), "shifted weights")
    scales = tape.gradient((dim, itemsize), "scales of every weight")
    matrix = tape.gradient((dim, itemsize), BUFFER)
    del words, shifted, scales
    return matrix


def _from_hqq(tape: Tape, linear: Linear, base: Quantised, itemsize: int) -> Tensor:
    """``((unpacked - zero) * scale)``: three matrices at once."""
    dim = _matrix(linear)
    unpacked = tape.gradient((dim, itemsize), "unpacked weights")
    shifted = tape.gradient((dim, itemsize), "shifted weights")
    matrix = tape.gradient((dim, itemsize), BUFFER)
    del unpacked, shifted  # both temporaries of ``(unpacked - zero) * scale``
    return matrix


def _from_nf4_tensor(tape: Tape, linear: Linear, base: Quantised, itemsize: int) -> Tensor:
    """``NF4Tensor.get_original_weight``: int64 indices of each half, looked up and scaled by half, then stacked."""
    half = Dim("in·out/2", linear.inputs * linear.outputs // 2)
    indices = [tape.gradient((half, 8), "int64 indices of weights") for _ in range(2)]
    looked_up = [tape.gradient((half, itemsize), "looked-up weights") for _ in range(2)]
    scaled = []
    for _ in range(2):
        repeated = tape.gradient((half, itemsize), "scalers of every weight")
        scaled.append(tape.gradient((half, itemsize), "scaled weights"))
        del repeated
    matrix = tape.gradient((_matrix(linear), itemsize), BUFFER)
    del indices, looked_up, scaled  # locals of ``get_original_weight``
    return matrix


_MAKERS = {
    "bnb-4bit": _from_four_bits,
    "torchao-nf4": _from_nf4_tensor,
    "bnb-int8": _from_int8,
    "gptq": _from_words,
    "awq": _from_int8,
    "hqq": _from_hqq,
}


def _transient(
    tape: Tape, x: Tensor, linear: Linear, base: Quantised, out: Dim, label: str, saves: bool = False
) -> Tensor:
    """A product with a matrix that is dequantised forward, and again backward, and freed each time. ``saves``: HQQ's
    function saves its input, though no weight needs a gradient.

    ``Linear4bit.forward`` casts x to the compute dtype and the result back. bitsandbytes' 4-bit backward dequantises to
    the dtype that the weights had before, then casts to the gradient's."""
    before, itemsize = x.itemsize, base.compute_itemsize
    source = ops.cast(tape, x, itemsize, "inputs in the compute dtype")
    dim = source.dim
    original = base.original_itemsize if base.scheme.product == "bnb-4bit" else itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        wide = dequantise(t, linear, base, original)
        matrix = wide if original == itemsize else t.gradient((wide.dim, itemsize), BUFFER)
        del wide
        result = t.gradient((dim, itemsize))
        del matrix
        return (result,)

    held = _multiplied_by(tape, linear, base, itemsize)
    node = tape.node((source,), (x if saves else None,), backward)
    result = tape.new(out, itemsize, label, node)
    if base.keeps_inputs and node is not None:  # ctx.tensors = (A, B)
        _keep_on_context(tape, source)
    del held, source  # MatMul4Bit.forward returns; backward dequantises again
    return ops.cast(tape, result, before, label)


def _int8(tape: Tape, x: Tensor, linear: Linear, base: Quantised, out: Dim, label: str) -> Tensor:
    """``MatMul8bitLt``: rows quantised from an fp16 copy, an int32 matmul, fp16, then x's dtype.

    ``ctx.tensors = (CAt, subA, A)`` keeps x itself, and before 0.45 its columns in int8 too; there backward quantises
    its gradient, and orders the weight by rows. Columns of outliers depend on the data: not counted."""
    dim, itemsize, old = x.dim, x.itemsize, base.keeps_inputs
    same = base.fp16 and itemsize == 2

    def backward(t: Tape, grads: Grads) -> Grads:
        sides = [t.gradient((each, 1), "int8 copies") for each in (out, out, _matrix(linear))] if old else []
        matrix = _from_int8(t, linear, base, itemsize)
        result = t.gradient((dim, itemsize))
        del matrix, sides
        return (result,)

    half = x if same else tape.gradient((dim, 2), "fp16 copies of inputs")
    rows = tape.gradient((dim, 1), "int8 copies of inputs")
    kept = (x, tape.new(dim, 1, "columns of inputs in int8")) if old else (x,)
    mask = None if old else tape.gradient((dim, 1), "mask of outliers")
    del half, mask
    ordered = tape.gradient((dim, 1), "int8 copies of inputs") if old else None
    whole = tape.gradient((out, 4), "int32 matmuls")
    narrow = tape.new(out, 2, label)
    result = narrow if same else tape.new(out, itemsize, label)
    if old:  # torch.clone(output)
        narrow = result
        result = tape.new(out, itemsize, label)
    del whole, narrow, rows, ordered  # MatMul8bitLt.forward returns: products in int32 and fp16, rows in int8
    node = tape.node((x,), (), backward)
    if node is not None:
        _keep_on_context(tape, *kept)
    return Tensor(out, itemsize, result.storage, node)


def _keep_on_context(tape: Tape, *tensors: Tensor) -> None:
    """What a function keeps as an attribute: no hook of checkpointing packs it, and it lives as long as the graph."""
    for x in tensors if tape.refilling is None else ():
        if x.storage is not None and all(x.storage is not kept for kept in tape.context):
            tape.context.append(x.storage)


def _gptq(tape: Tape, x: Tensor, linear: Linear, base: Quantised, out: Dim, label: str) -> Tensor:
    """``torch.matmul(x, dequantize_weight())``: an ordinary matmul, which saves its dequantised matrix."""
    source = ops.autocast_input(tape, x)
    matrix = dequantise(tape, linear, base, source.itemsize)
    kept = tape.new(matrix.dim, source.itemsize, "dequantised weights, saved")
    del matrix  # ``matmul`` saves the matrix as autocast or transposition left it
    return tape.new(out, source.itemsize, label, tape.node((source,), (kept,), ops.own(source)))


def unpacked(tape: Tape, linear: Linear, base: Quantised, label: str) -> Param:
    """A 4-bit parameter as its module reads it, whole: a weight that stays as long as the module's forward and, where
    its product saves it, until backward (bitsandbytes 0.50 nn/parametrize.py: Bnb4bitParametrization)."""
    scales = _scales(tape, linear, base, 1)
    whole = tape.new(_matrix(linear), base.original_itemsize, label)
    del scales
    read = Param(tape, linear.name, whole.dim.elements, whole.itemsize, trained=False)
    read.storage = whole.storage
    return read


PRODUCTS: dict[str, Product] = {
    "bnb-4bit": _transient,
    "torchao-nf4": _transient,
    "bnb-int8": _int8,
    "gptq": _gptq,
    "awq": _transient,
    "hqq": partial(_transient, saves=True),
}
