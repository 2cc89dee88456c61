"""What an optimizer's step allocates, tensor by tensor: programs of assignments.

A program says which variable of the optimizer's own ``step`` takes a new tensor of which size, in the code's order. A
new tensor is made before the one that the variable held is let go, and variables live on into the next tensor's turn,
as in Python: so the peak often lies where two large tensors are neighbours. ``(name, 0)`` lets go. Vectors of a few
kilobytes are left out where they change nothing. Traced on the real optimizers in tests/test_optimizers.py."""

from collections.abc import Callable, Iterable, Iterator

from memplan.engine.optimizer.states import FP32, Stepped, mini_blocks, orthogonalised, preconditioned
from memplan.spec.groups import OptimizerSettings

Assignments = Iterator[tuple[str, int]]
Program = Callable[[Stepped, OptimizerSettings], Assignments]
HALF = 2


def peak_bytes(assignments: Iterable[tuple[str, int]]) -> int:
    """The most that the variables hold at once."""
    held: dict[str, int] = {}
    live = peak = 0
    for name, size in assignments:
        live += size
        peak = max(peak, live)
        live -= held.pop(name, 0)
        if size:
            held[name] = size
    return peak


def in_place(t: Stepped, s: OptimizerSettings) -> Assignments:
    """Kernels and in-place operations: nothing."""
    return iter(())


def adamw(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``denom = (exp_avg_sq.sqrt() / correction).add_(eps)`` (torch/optim/adam.py)."""
    size = t.elements * t.itemsize
    yield from (("root", size), ("denom", size), ("root", 0))


def adamw_kahan(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``centered_variance = (exp_avg_sq.sqrt() / correction).add_(eps)``, ``temp_buffer = p.detach().clone()`` (EasyR1
    0.3 verl/utils/torch_functional.py: AnyPrecisionAdamW)."""
    size = t.elements * HALF
    yield from (("root", size), ("centered", size), ("root", 0), ("temp", t.elements * t.itemsize))


def adafactor(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``var_estimate = row_var @ col_var``, which becomes the update (torch/optim/_adafactor.py)."""
    size = t.elements * t.itemsize
    if t.is_vector:
        yield "grad_squared", size
    else:
        yield "row_mean", t.stacked * t.rows * t.itemsize
        yield "col_mean", t.stacked * t.columns * t.itemsize
    yield "var_estimate", size


def adafactor_transformers(t: Stepped, s: OptimizerSettings) -> Assignments:
    """All in fp32: half-precision gradient and weight are copied; ``(grad**2) + eps``, then the factored update in its
    place, and ``-update`` (transformers 5.23 optimization.py)."""
    size, copy = t.elements * FP32, t.elements * FP32 if t.itemsize != FP32 else 0
    yield from (("grad", 0), ("grad", copy), ("p_data_fp32", 0), ("p_data_fp32", copy))
    yield from (("square", size), ("update", size), ("square", 0))
    factors = 0 if t.is_vector else t.stacked * (t.rows + t.columns) * FP32
    yield from (("factors", factors), ("update", size), ("factors", 0), ("negative", size), ("negative", 0))


def lion(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``update = exp_avg.lerp(grad).sign_()`` (pytorch_optimizer 4.1 lion.py)."""
    yield "update", t.elements * t.itemsize


def rmsprop(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``avg = square_avg.sqrt()`` (torch/optim/rmsprop.py)."""
    yield "avg", t.elements * t.itemsize


def schedule_free(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``denom = exp_avg_sq.div(correction)``; the gradient is divided in place (schedulefree 1.4.1)."""
    yield "denom", t.elements * t.itemsize


def muon(t: Stepped, s: OptimizerSettings) -> Assignments:
    """Newton–Schulz in bf16 on one matrix at a time: the matrix twice, and two Gram matrices of its shorter side with a
    third for a moment (torch 2.13 _muon.py). The rest is AdamW's, another optimizer."""
    if not orthogonalised(t):
        return
    matrix, gram = t.elements * HALF, min(t.rows, t.columns) ** 2 * HALF
    yield "update", t.elements * t.itemsize
    yield "ortho_grad", matrix if t.itemsize != HALF else 0
    for _ in range(2):
        yield from (("gram_matrix", gram), ("gram_update", gram), ("ortho_grad", matrix))
    yield from (("gram_matrix", 0), ("gram_update", 0), ("ortho_grad", 0), ("update", 0), ("update", matrix))


def galore(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``denom`` and ``norm_grad``, of low rank if projected, then back and scaled (galore-torch 1.0)."""
    size = t.elements * t.itemsize
    low = min(s.rank, t.rows, t.columns) * max(t.rows, t.columns) * t.itemsize if t.projected else 0
    yield from (("grad", 0), ("grad", low), ("denom", low or size), ("norm_grad", low or size))
    if t.projected:
        yield from (("back", size), ("norm_grad", size), ("back", 0))


def apollo(t: Stepped, s: OptimizerSettings) -> Assignments:
    """As GaLore's, but the whole gradient is scaled, and once more by the limiter (apollo-torch 1.0.3 apollo.py)."""
    size = t.elements * t.itemsize
    low = s.rank * max(t.rows, t.columns) * t.itemsize if t.projected else 0
    yield from (("grad", 0), ("grad", low), ("denom", low or size), ("norm_grad", low or size))
    if t.projected:
        yield from (("scaled_grad", size), ("scaled_grad", size), ("norm_grad", 0))


def adam_mini(t: Stepped, s: OptimizerSettings) -> Assignments:
    """``grad * grad`` for the mean, ``update = m * stepsize``, ``-update`` (adam-mini 1.1.1)."""
    size, blocks = t.elements * t.itemsize, mini_blocks(t, s) * t.itemsize
    if t.name.endswith("bias"):
        yield "h", size
        return
    yield from (("square", size), ("tmp_lr", blocks), ("square", 0), ("h", blocks), ("stepsize", blocks))
    yield from (("update", size), ("negative", size), ("negative", 0))


def soap(t: Stepped, s: OptimizerSettings) -> Assignments:
    """The gradient and the momentum in the eigenbasis, their ratio turned back, then each dimension's statistic
    (pytorch_optimizer 4.1 soap.py). The QR of every tenth step is not in it."""
    size, sides = t.elements * t.itemsize, preconditioned(t, s)
    turned = size if sides else 0
    turning = [("rotated", size) for _ in sides] + [("rotated", 0)]
    yield from (*turning, ("grad_projected", turned), ("square", size), ("square", 0), ("de_nom", size))
    yield from (*turning, ("exp_avg_projected", turned), ("ratio", size))
    yield from (*turning[:1], ("ratio", 0), *turning[1:]) if sides else (("ratio", 0),)
    yield "norm_grad", size
    for side in sides:
        yield "outer_product", side * side * t.itemsize
    yield "outer_product", 0


def quantise_8bit(t: Stepped, s: OptimizerSettings) -> Assignments:
    """Both new states in fp32 before they are quantised (torchao 0.18, as inductor compiles it on CPU)."""
    yield from (("scaled_1", t.elements * FP32), ("scaled_2", t.elements * FP32), ("scaled_1", 0), ("scaled_2", 0))


def quantise_4bit(t: Stepped, s: OptimizerSettings) -> Assignments:
    """As for 8 bits, with the codes unpacked to a byte each and the new ones as int64 indices."""
    for name, itemsize in (("codes", 1), ("scaled", FP32), ("index", 8)):
        yield from ((f"{name}_1", t.elements * itemsize), (f"{name}_2", t.elements * itemsize))
    for name in ("codes", "scaled", "index"):
        yield from ((f"{name}_1", 0), (f"{name}_2", 0))


def refresh_galore(t: Stepped, s: OptimizerSettings) -> Assignments:
    """The SVD of a gradient in fp32: a copy, the solver's own, both factors, and their product with the singular values
    (galore_projector.py: get_orthogonal_matrix)."""
    if not t.projected:
        return
    longer, shorter = max(t.rows, t.columns), min(t.rows, t.columns)
    yield "matrix", t.elements * FP32 if t.itemsize != FP32 else 0
    yield from (("solver", t.elements * FP32), ("u", t.elements * FP32), ("v", shorter * shorter * FP32))
    yield from (("solver", 0), ("scaled", min(s.rank, shorter) * longer * FP32), ("matrix", 0), ("u", 0), ("v", 0))
    yield "scaled", 0


def refresh_apollo(t: Stepped, s: OptimizerSettings) -> Assignments:
    """A half-precision gradient is cast to fp32, and a random basis drawn in fp32 (random_projector.py)."""
    if t.projected and t.itemsize != FP32:
        yield from (("matrix", t.elements * FP32), ("basis", s.rank * min(t.rows, t.columns) * FP32))
        yield from (("matrix", 0), ("basis", 0))


def refresh_soap(t: Stepped, s: OptimizerSettings) -> Assignments:
    """The QR of each statistic in fp32, beside the second moment in its new order and what the step still holds
    (soap.py: get_orthogonal_matrix_qr)."""
    size, sides = t.elements * t.itemsize, preconditioned(t, s)
    yield from ((name, size) for name in ("grad_projected", "de_nom", "exp_avg_projected", "norm_grad"))
    for side in sides:
        own, wide = side * side * t.itemsize, side * side * FP32
        yield from (("matrix_product", own), ("power_iter", own), ("exp_avg_sq", size))
        yield from (("wide", wide if t.itemsize != FP32 else 0), ("solver", wide), ("q", wide), ("r", wide))
        yield from (("wide", 0), ("solver", 0), ("r", 0), (f"kept_{side}", own), ("q", 0))
    for name in ("matrix_product", "power_iter", "exp_avg_sq", *(f"kept_{side}" for side in sides)):
        yield name, 0


REFRESHES: dict[str, Program] = {"galore": refresh_galore, "apollo": refresh_apollo, "soap": refresh_soap}
"""What a step holds when it also renews projections or eigenbases, every so many steps, by the program's name."""
PROGRAMS: dict[str, Program] = {
    "in-place": in_place,
    "adamw": adamw,
    "adamw-kahan": adamw_kahan,
    "adafactor": adafactor,
    "adafactor-transformers": adafactor_transformers,
    "lion": lion,
    "rmsprop": rmsprop,
    "schedule-free": schedule_free,
    "muon": muon,
    "galore": galore,
    "apollo": apollo,
    "adam-mini": adam_mini,
    "soap": soap,
    "quantise-8bit": quantise_8bit,
    "quantise-4bit": quantise_4bit,
}
"""Programs by the name that a row of the table gives."""
