"""Rotary embeddings as programs on the tape: q and k turned by the tables cos and sin of their positions.

Pairs half a head apart (Llama, Mistral, Qwen2, Qwen3, Gemma) and neighbours (GLM, Cohere) differ in kernels alone."""

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Attention

Tables = tuple["Tensor | None", "Tensor | None"]
SHARED: Tables = (None, None)
"""cos and sin that all layers share, counted elsewhere."""


def rotary(
    p: Pass, mixer: Attention, q: Tensor, k: Tensor, held: list[Tensor | None] | None = None
) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb``. ``held`` takes the parts that stay locals of the attention's forward."""
    if mixer.rotary == "none":
        return q, k
    if p.mode.operators.kernels.rotary:
        from memplan.engine.layers.fused_kernels import fused_rotary

        return fused_rotary(p, q), fused_rotary(p, k)
    tape, before = p.tape, q.itemsize
    first = mixer.rotary_wide and mixer.rotary_tables == "shared"
    if first:
        q, k = (ops.cast(tape, x, ops.FP32, "queries and keys in fp32") for x in (q, k))
    of_layer = "repeated" in mixer.rotary_tables or mixer.rotary_tables == "made"
    tables = repeated_tables(p, mixer) if of_layer else SHARED
    if mixer.rotary_inline and held is not None:
        q_parts, k_parts = parts(p, mixer, q, tables), parts(p, mixer, k, tables)
        held += [*q_parts, *k_parts]
        return joined(p, *q_parts), joined(p, *k_parts)
    if mixer.rotary == "concatenated" and tables is SHARED:
        q = joined(p, *parts(p, mixer, q, tables))
        return q, joined(p, *parts(p, mixer, k, tables))
    q_parts, k_parts = parts(p, mixer, q, tables), parts(p, mixer, k, tables)
    if mixer.rotary == "concatenated":
        q_turned = joined(p, *q_parts)
        return q_turned, joined(p, *k_parts)
    (q_turned, _), (k_turned, _) = q_parts, k_parts
    if first or "fp32" in mixer.rotary_tables:
        del q_parts, k_parts  # ``q_embed.to(q.dtype)``: the fp32 results are the caller's only until cast
        out = ops.cast(tape, q_turned, before, "queries and keys after rotary")
        return out, ops.cast(tape, k_turned, before, "queries and keys after rotary")
    return q_turned, k_turned


def repeated_tables(p: Pass, mixer: Attention) -> Tables:
    """``cos[..., :half].repeat_interleave(2)`` and so for sin, or ``rotary_emb``: made in each layer for all rows."""
    size = Dim("s·rotary", p.length * (mixer.rotary_dim or mixer.head_dim))
    itemsize = table_itemsize(p, mixer)
    cos, sin = (p.tape.new(size, itemsize, "rotary tables of the layer") for _ in range(2))
    return cos, sin


def table_itemsize(p: Pass, mixer: Attention) -> int:
    """Element size of cos and sin: the residual stream's, fp32, or that of products."""
    if mixer.rotary_tables == "made" and p.tape.autocast:
        return p.tape.autocast
    return ops.FP32 if "fp32" in mixer.rotary_tables else p.mode.numerics.itemsize


def parts(p: Pass, mixer: Attention, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor | None]:
    """What turns, turned, and what passes."""
    if mixer.rotary_dim is None or mixer.rotary_dim == mixer.head_dim:
        return turn(p, mixer, x, tables), None
    elements = x.dim.elements // mixer.head_dim * mixer.rotary_dim
    turns = ops.view(p.tape, x, Dim(x.dim.symbol, elements), whole=False)
    passes = ops.view(p.tape, x, Dim(x.dim.symbol, x.dim.elements - elements), whole=False)
    return turn(p, mixer, turns, tables), passes


def turn(p: Pass, mixer: Attention, x: Tensor, tables: Tables, itemsize: int = 0) -> Tensor:
    """``turned`` by tables in the dtype of the residual stream, or in fp32, or of ``itemsize``. ERNIE ``widens``."""
    widens = mixer.rotary_wide and mixer.rotary_tables != "shared"
    return turned(p.tape, x, itemsize or table_itemsize(p, mixer), tables, widens=widens)


def turned(tape: Tape, x: Tensor, itemsize: int, tables: Tables = SHARED, *, widens: bool = False) -> Tensor:
    """``x * cos + rotate_half(x) * sin``. ``widens``: x and its turned half in fp32, a copy for each product."""
    cos, sin = tables
    straight_in = ops.cast(tape, x, ops.FP32, "queries and keys in fp32") if widens else x
    straight = ops.with_constant(tape, straight_in, itemsize, "rotary", cos)
    del straight_in  # ``q.float() * cos``: the copy is a temporary
    half = rotated_half(tape, x)
    if widens:
        half = ops.cast(tape, half, ops.FP32, "queries and keys in fp32")
    crossed = ops.with_constant(tape, half, itemsize, "rotary", sin)
    del half  # a temporary of ``rotate_half(q) * sin`` (apply_rotary_pos_emb)
    return ops.add(tape, straight, crossed, "queries and keys after rotary")


def rotated_half(tape: Tape, x: Tensor) -> Tensor:
    """``rotate_half(x)``: ``cat((-x2, x1))``."""
    half = Dim(x.dim.symbol, x.dim.elements // 2)
    first, second = (ops.view(tape, x, half, whole=False) for _ in range(2))
    return ops.concatenate(tape, (ops.scale(tape, second, "rotary"), first), x.dim, "rotary")


def joined(p: Pass, turned: Tensor, passes: Tensor | None) -> Tensor:
    """``torch.cat`` of both parts, which leaves them head-major."""
    both = (turned,) if passes is None else (turned, passes)
    dim = Dim(turned.dim.symbol, sum(part.dim.elements for part in both))
    return ops.concatenate(p.tape, both, dim, "queries and keys after rotary")


def scaled_queries(p: Pass, q: Tensor) -> Tensor:
    """``q * scale.to(q.dtype)`` by a factor of each position, the same for all rows (Ministral 3)."""
    factor = p.tape.new(Dim("s", p.length), q.itemsize, "query scales")
    return ops.with_constant(p.tape, q, q.itemsize, "scaled queries", factor)
