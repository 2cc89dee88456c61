"""Softmax attention of Llama, Mistral, Qwen2, Qwen3, Gemma and their kin: projections, q/k-norms, rotary, output.

``sdpa`` chooses the kernel and says what it keeps; ``eager`` is the one of tensors."""

from memplan.engine.layers.attention.eager import eager, repeat_kv
from memplan.engine.layers.attention.sdpa import sdpa
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.rotary import rotary, scaled_queries
from memplan.engine.layers.unsloth import adapted_products, fuses
from memplan.engine.losses.scored import checkpointed
from memplan.engine.parallel.sequence import gathered, scattered
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Attention


def attention(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Projections, rotary, softmax attention, output projection. Also returns eager's probabilities."""
    tape, heads, kv_heads, head_dim = p.tape, mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    q_dim, kv_dim = p.dim("q", heads * head_dim), p.dim("kv", kv_heads * head_dim)
    x = gathered(p, x)
    if not mixer.fused_qkv and fuses(p, mixer.linears[:3]):
        fused = None
        labels = "queries, keys, values"
        q, k, v = adapted_products(p, x, mixer.linears[:3], (q_dim, kv_dim, kv_dim), labels, over=True)
    elif mixer.fused_qkv:
        fused = project(p, x, mixer.linears[0], "(q+2kv)", "queries, keys, values")
        q, k, v = unfused(p, mixer, fused, q_dim, kv_dim)
    else:
        fused = None
        with tape.at(_place(p, mixer)):
            q = project(p, x, mixer.linears[0], "q", "queries, keys, values")
            k = project(p, x, mixer.linears[1], "kv", "queries, keys, values")
            v = project(p, x, mixer.linears[2], "kv", "queries, keys, values")
    if mixer.scaled_keys:
        k = ops.scale(tape, k, "scaled keys")
    if mixer.clipped:
        q, k, v = (clamp_in_place(tape, x) for x in (q, k, v))
    if mixer.norms and not mixer.norms_last:
        q, k = _normalised(p, mixer, q, k)
    held: list[Tensor | None] = []
    q, k = rotary(p, mixer, q, k, held)
    if mixer.norms and mixer.norms_last:
        q, k = _normalised(p, mixer, q, k)
    if mixer.scaled_queries:
        q = scaled_queries(p, q)
    if mixer.style == "opt":
        q = ops.scale(tape, q, "scaled queries")
    if p.mode.repeats_keys == "class" and p.mode.operators.attention != "eager":
        k = repeat_kv(p, mixer, k, "repeated keys", q_dim)
        v = repeat_kv(p, mixer, v, "repeated values", q_dim)
    if "core_attn" in p.mode.recompute.modules:
        out, weights = checkpointed(tape, lambda x: core(p, mixer, x[0], x[1], x[2], q_dim)[0], (q, k, v)), None
        del q, k, v, fused, held
    else:
        out, weights = core(p, mixer, q, k, v, q_dim)
    if fuses(p, mixer.linears[-1:]):
        (projected,) = adapted_products(p, out, mixer.linears[-1:], (x.dim,), "attention projection", over=False)
        return projected, weights
    return scattered(p, project(p, out, mixer.linears[-1], "h", "attention projection")), weights


def _place(p: Pass, mixer: Attention) -> str:
    """A place of their own for projections with adapters that FSDP1 wraps by themselves: they gather ahead."""
    mode = p.mode
    apart = mode.flat == "apart" and mode.adapter is not None
    named = apart and any(linear.name in mode.adapter.targets for linear in mixer.linears[:-1])  # type: ignore[union-attr]
    return "projections" if named and p.tape.point == "attention" else p.tape.point


def core(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, q_dim: Dim) -> tuple[Tensor, Tensor | None]:
    """Softmax attention itself, and the probabilities that eager returns."""
    if p.mode.operators.attention == "eager":
        return eager(p, mixer, q, k, v, q_dim)
    return sdpa(p, mixer, q, k, v, q_dim), None


def unfused(p: Pass, mixer: Attention, fused: Tensor, q_dim: Dim, kv_dim: Dim) -> list[Tensor]:
    """q, k and v, as views of what one linear made."""
    dims = (q_dim, kv_dim, kv_dim)
    if mixer.split_qkv:
        return ops.cut(p.tape, fused, dims)
    return [ops.view(p.tape, fused, dim, whole=False) for dim in dims]


def _normalised(p: Pass, mixer: Attention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """q and k through their norms: of each head, or of all together."""
    of_q, of_k = mixer.norms
    q = norm(p, of_q, q, "q", "H", q.dim.elements // p.tokens // of_q.width * of_q.groups)
    return q, norm(p, of_k, k, "kv", "K", k.dim.elements // p.tokens // of_k.width * of_k.groups)


def clamp_in_place(tape: Tape, x: Tensor) -> Tensor:
    """``x.clamp_(…)``: its node keeps a copy of what x was."""
    before = tape.new(x.dim, x.itemsize, "clamped projections") if x.needs_grad and tape.grad_enabled else None
    return Tensor(x.dim, x.itemsize, x.storage, tape.node((x,), (before,), ops.own(x)))
