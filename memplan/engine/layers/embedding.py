"""Between the embedding and the first layer: learned positions, projections, norms and dropout, as one tape.

Most decoders have nothing here. What the model's forward holds in locals (the embedding's output, the positions) is
alive until it returns, whoever else needs it."""

from collections.abc import Callable
from functools import lru_cache

from memplan.engine.layers.hyper_connections import opened
from memplan.engine.layers.lora import adapted_embedding, merged_rows
from memplan.engine.layers.modules import Mode, Pass, norm, project
from memplan.engine.pass_plan import FrontTrace
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Node, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.lora import EMBEDDING
from memplan.spec.model import ModelSpec


def _positions(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor], rows: int) -> Tensor:
    bare = next(bare for part in spec.extra for bare in part.tensors if len(bare.shape) == 2)
    table = p.param(bare.name, bare.parameters)
    out = Dim("T·h" if rows == p.rows else "s·h", rows * p.length * bare.shape[1])
    found = ops.embedding(p.tape, table, out, table.itemsize)
    held.append(found)
    return ops.add(p.tape, x, found, "residual stream")


def positions(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """One set of positions for all rows (GPT-2)."""
    return _positions(p, spec, x, held, 1)


def row_positions(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """Positions of each row (OPT)."""
    return _positions(p, spec, x, held, p.rows)


def projected(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """``project_in``, whose output takes the embedding's name (opt-350m)."""
    held.clear()
    out = project(p, x, spec.outer_linears[0], "h", "projected embeddings", quantised=False)
    held.append(out)
    return out


def mapped(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """A linear of the layers' loop, while the model's forward holds what went in (ALBERT)."""
    held[:] = [x]
    return project(p, x, spec.outer_linears[0], "h", "projected embeddings", quantised=False)


def scaled(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """A product with a number, while the model's forward holds what went in (RecurrentGemma)."""
    return ops.scale(p.tape, x, "residual stream")


def normalised(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """A norm of the embeddings (Bloom)."""
    found = next(norm for part in spec.extra for norm in part.norms)
    return norm(p, found, x, "h")


def dropped(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """Dropout."""
    return ops.dropout(p.tape, x, "residual stream")


def token_types(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """One of two vectors for each token (BERT)."""
    bare = next(bare for part in spec.extra for bare in part.tensors if bare.name == "token_type_embeddings")
    table = p.param(bare.name, bare.parameters)
    found = ops.embedding(p.tape, table, x.dim, table.itemsize)
    held.append(found)
    return ops.add(p.tape, x, found, "residual stream")


def masked(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """A product with the padding mask in x's dtype, which is kept (DeBERTa)."""
    mask = p.tape.new(p.dim("1", 1), x.itemsize, "padding mask")
    return ops.with_constant(p.tape, x, x.itemsize, "residual stream", mask)


def returned(p: Pass, spec: ModelSpec, x: Tensor, held: list[Tensor]) -> Tensor:
    """All but the result was local to the embeddings' own forward."""
    held.clear()
    return x


STEPS: dict[str, Callable[[Pass, ModelSpec, Tensor, list[Tensor]], Tensor]] = {
    "project": projected,
    "map": mapped,
    "scale": scaled,
    "positions": positions,
    "row-positions": row_positions,
    "token-types": token_types,
    "norm": normalised,
    "mask": masked,
    "return": returned,
    "dropout": dropped,
    "streams": opened,
}
"""A program for each step of ``ModelSpec.front``; ``held``: locals of the model's forward."""


def adapted_output(p: Pass, spec: ModelSpec, x: Tensor) -> Tensor:
    """The embedding's output with its adapters, or with the rows that are trained."""
    adapter, scaled = p.mode.adapter, spec.embedding_multiplier and not spec.scaled_outside
    assert adapter is not None
    if EMBEDDING in adapter.targets:
        return adapted_embedding(p, x, spec.vocab_size, scaled)
    width = x.dim.elements // p.tokens
    tied = spec.head_is_tied and adapter.tokens_of(spec.head.name) > 0
    table = merged_rows(p, EMBEDDING, spec.vocab_size * width, width, again=tied)
    x = ops.embedding(p.tape, table, x.dim, x.itemsize)
    return ops.scale(p.tape, x, "embedding output") if scaled else x


@lru_cache(maxsize=256)
def trace_front(spec: ModelSpec, mode: Mode, rows: int, length: int, grad: bool, needs_grad: bool) -> FrontTrace:
    """The steps of a model, forward and (with ``grad``) backward.

    ``needs_grad``: the embedding's output needs a gradient."""
    tape = Tape(mode.numerics.autocast, in_place=mode.in_place)
    tape.grad_enabled = grad
    p = Pass(tape, mode, rows, length)
    x = tape.new(p.dim("h", spec.embedding_width or spec.hidden_size), mode.numerics.itemsize, "embedding output")
    if mode.adapts_embedding:
        x = adapted_output(p, spec, x)
    elif grad and needs_grad:
        # Beside frozen weights it is a leaf, which autograd holds for its gradient's sake.
        leaf = (x.storage,) if mode.embedding_rests else ()
        x = Tensor(x.dim, x.itemsize, x.storage, Node(tape, [], leaf, lambda t, grads: ()))
    held = [x]
    for step in spec.front:
        x = STEPS[step](p, spec, x, held)
    tape.leave_autocast()
    own = x.storage.size if x.storage else 0
    everything, node, dim, itemsize = tape.live - own, x.node, x.dim, x.itemsize
    del x
    held.clear()
    saved = tape.live
    if node is None:
        return FrontTrace(saved, everything - saved, 0, 0)
    tape.peaks.clear()
    tape.backward(node, [tape.gradient((dim, itemsize))] + [None] * (node.outputs - 1))
    peak = max((size for size, _ in tape.peaks.values()), default=0)
    left = sum(gradient.storage.size for gradient in tape.gradients if gradient.storage)
    return FrontTrace(saved, everything - saved, peak, left)
