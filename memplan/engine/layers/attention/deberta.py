"""DeBERTa's attention as a program on the tape: scores of contents, of content to position and of position to content.

transformers 5.23 ``models/deberta_v2/modeling_deberta_v2.py``, eager alone. Symbols: R rows of relative positions."""

from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.shared_inputs import RELATIVE
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.routing_ops import add_in_place, into_zeros
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.encoders import DisentangledAttention
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Linear

PROBABILITIES, SCORES, QKV = "attention probabilities", "attention scores", "queries, keys, values"
POSITIONS, INDICES = "projected positions", "indices of relative positions"
INT64 = 8


def disentangled(p: Pass, mixer: DisentangledAttention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``DisentangledSelfAttention`` and the dense layer of its output."""
    tape, q_dim, p.params = p.tape, p.dim("q", mixer.num_heads * mixer.head_dim), {}
    q, k, v = (ops.copy(p.tape, project(p, x, linear, "q", QKV), QKV) for linear in mixer.linears[:3])
    scores_dim = Dim("T·H·s", p.tokens * p.length * mixer.num_heads)
    scores = ops.matmul(tape, q, ops.scale(tape, k, "scaled keys"), scores_dim, SCORES)
    relative = position_scores(p, mixer, q, k, scores_dim) if mixer.rows else []
    p.params = None
    if relative and isinstance(relative[0], Tensor):
        scores = ops.add(tape, scores, relative[0], SCORES)
    allowed = tape.new(Dim("T·s", p.tokens * p.length), 1, "attention masks of the layer")
    scores = masked_fill(p, scores)
    weights = ops.softmax(tape, scores, PROBABILITIES, tape.autocast > 0, half_to_float=p.mode.numerics.half_to_float)
    if mixer.dropout:
        weights = ops.dropout(tape, weights, PROBABILITIES)
    out = ops.matmul(tape, weights, v, q_dim, "attention output")
    out = ops.copy(tape, out, "attention output")
    del scores, relative, allowed, weights, q, k, v  # locals of DisentangledSelfAttention.forward
    if p.held is not None:
        p.held.append(out)
    return project(p, out, mixer.linears[-1], "h", "attention projection"), None


def masked_fill(p: Pass, scores: Tensor) -> Tensor:
    """``scores.masked_fill(~mask, min)``, which keeps the mask, one byte for each pair of positions."""
    tape, size = p.tape, (scores.dim, scores.itemsize)
    mask = tape.new(Dim("T·s", p.tokens * p.length), 1, "attention masks of the layer")
    return tape.new(*size, "masked scores", tape.node((scores,), (mask,), lambda t, g: (t.gradient(size),)))


def position_scores(p: Pass, mixer: DisentangledAttention, q: Tensor, k: Tensor, dim: Dim) -> list[Tensor]:
    """``disentangled_attention_bias``; what the module's forward holds of it: the sum of both scores, and the table."""
    tape, table = p.tape, relative_table(p, mixer)
    if mixer.position_dropout:
        table = ops.dropout(tape, table, "relative positions")
    keys: Tensor | None
    queries: Tensor | None
    if mixer.shared:
        queries, keys = (positions_by_heads(p, mixer, table, linear) for linear in mixer.linears[:2])
    else:
        own = list(mixer.linears[3:-1])
        keys = positions_by_heads(p, mixer, table, own.pop(0)) if mixer.to_position else None
        queries = positions_by_heads(p, mixer, table, own.pop(0)) if mixer.from_position else None
    total, held = None, []
    if mixer.to_position:
        assert keys is not None
        found, index = gathered(p, mixer, q, keys, dim, temporaries=1)
        held += [found, index]
        total = ops.scale(tape, ops.scale(tape, found, SCORES), SCORES, shares_gradient=True)
    if mixer.from_position:
        assert queries is not None
        found, index = gathered(p, mixer, k, queries, dim, temporaries=2)
        held += [found, index]
        share = ops.scale(tape, found, SCORES)
        total = add_in_place(tape, total, share) if total else ops.scale(tape, share, SCORES, shares_gradient=True)
    return [total, table] if total else []


def relative_table(p: Pass, mixer: DisentangledAttention) -> Tensor:
    """The table of all layers."""
    if RELATIVE not in p.shared:
        hidden = mixer.linears[0].inputs
        p.shared[RELATIVE] = Tensor(Dim("R·h", mixer.rows * hidden), p.mode.numerics.itemsize, None)
    return p.shared[RELATIVE]


def for_all_layers(p: Pass, spec: ModelSpec) -> dict[str, Tensor]:
    """What the encoder's forward makes once: the table, through its norm, and int64 indices of pairs."""
    mixer = spec.runs[0].layer.mixer
    if not isinstance(mixer, DisentangledAttention) or not mixer.rows:
        return {}
    part = next(part for part in spec.extra if any(bare.name == "rel_embeddings" for bare in part.tensors))
    found = {INDICES: p.tape.new(Dim("s·s", p.length * p.length), INT64, INDICES, category="batch")}
    table: Tensor = p.param("rel_embeddings", part.tensors[0].parameters)
    for of in part.norms:
        table = norm(p.part(1, mixer.rows), of, table, "h")
    return {RELATIVE: table, **found}


def positions_by_heads(p: Pass, mixer: DisentangledAttention, table: Tensor, linear: Linear) -> Tensor:
    """A projection of the table, gathered by heads and repeated for every row."""
    of_table = p.part(1, mixer.rows)
    of_table.params = p.params
    made = ops.copy(p.tape, project(of_table, table, linear, "q", POSITIONS), POSITIONS)
    return ops.copy(p.tape, made, POSITIONS, Dim("B·R·h", made.dim.elements * p.rows))  # ``repeat(…)``, even once


def gathered(
    p: Pass, mixer: DisentangledAttention, contents: Tensor, positions: Tensor, dim: Dim, temporaries: int
) -> tuple[Tensor, Tensor]:
    """Scores of every position, of which ``gather`` picks one for each pair; its indices serve all rows, heads."""
    tape, pairs = p.tape, Dim("s·s", p.length * p.length)
    every = None
    scores = Dim("T·H·R", p.tokens * mixer.num_heads * mixer.rows)
    if temporaries > 1:
        index = indices(tape, pairs, temporaries)
        every = ops.matmul(tape, contents, positions, scores, SCORES)
    else:
        every = ops.matmul(tape, contents, positions, scores, SCORES)
        index = indices(tape, pairs, temporaries)
    node = tape.node((every,), (every, index), into_zeros(every))
    return tape.new(dim, every.itemsize, SCORES, node), index


def indices(tape: Tape, pairs: Dim, temporaries: int) -> Tensor:
    """``clamp(relative_pos + span, …)`` in int64, of which some steps are in between."""
    label = "indices of positions"
    step = tape.new(pairs, INT64, label)
    if temporaries > 1:
        step = tape.new(pairs, INT64, label)
    found = tape.new(pairs, INT64, label)
    del step
    return found
