"""Linear attention in blocks as a program on the tape: ``MiniMaxLightningAttention`` (transformers 5.23).

Within a block, scores of every pair times fixed decays; across blocks, a state of keys and values. The decays are
buffers of the weights' dtype, so that autocast widens what they are multiplied with. Symbols: q = heads × head_dim,
c the length of a block."""

from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.state_space.causal_convolution import without_padding
from memplan.engine.tape import ops
from memplan.engine.tape.chunked_ops import contract
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.state_space import Lightning

QKV, SCORES, STATES, OUT = "queries, keys, values", "scores within a block", "states", "attention output"
DECAYED = "decayed queries and keys"
FIRST, LAST = 3, 3
"""Blocks that are played one by one at either end: the third is the first whose forerunner has all that it has."""


def lightning(p: Pass, mixer: Lightning, x: Tensor) -> tuple[Tensor, Tensor]:
    """Projection and activation, blocks, norm, gate, projection. Also returns the last state, as the module does."""
    tape, inner = p.tape, p.dim("q", mixer.heads * mixer.head_dim)
    qkv = ops.unary(tape, project(p, x, mixer.linears[0], "3q", QKV), "activation")
    qkv = without_padding(p, qkv)
    parts = ops.split(tape, qkv, 3, inner)
    held: dict[str, Tensor] = {}
    outputs, state = run_blocks(p, mixer, parts, held)
    out = ops.concatenate(tape, outputs, inner, OUT)
    outputs.clear()
    if p.length > 1 and mixer.heads > 1:
        out = ops.copy(tape, out, OUT)
    out = norm(p, mixer.norms[0], out, "q")
    gate = ops.unary(tape, project(p, x, mixer.linears[2], "q", "gate"), "gate", saves="result")
    out = ops.mul(tape, gate, out, "gated outputs")
    del gate  # a temporary of ``F.sigmoid(self.output_gate(hidden_states)) * attn_output``
    result = project(p, out, mixer.linears[1], "h", "mixer output")
    del held, parts, qkv  # locals of MiniMaxLightningAttention.forward: ``qkv_states``, the last block's
    return result, state


def run_blocks(p: Pass, mixer: Lightning, parts: list[Tensor], held: dict[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """The output of each block and the last state; ``held`` takes what the loop's names hold.

    A long loop is not played block by block: the middle is one step, as the peak is where the last run back."""
    tape, size = p.tape, parts[0].itemsize
    blocks = -(-p.length // mixer.block)
    state = tape.new(Dim("H·d²", p.rows * mixer.heads * mixer.head_dim**2), size, STATES)
    outputs: list[Tensor] = []
    middle, kept = max(blocks - FIRST - LAST, 0), 0
    for i in (*range(min(FIRST, blocks)), *range(FIRST + middle, blocks)):
        if i == FIRST + middle and middle:
            state = _skipped(p, parts, middle, kept, state, outputs)
        length = min(mixer.block, p.length - i * mixer.block)
        before = tape.live
        state = one_block(p, mixer, parts, state, length, blocks, held)
        outputs.append(held["out"])
        kept = tape.live - before
    return outputs, state


def one_block(
    p: Pass, mixer: Lightning, parts: list[Tensor], state: Tensor, length: int, blocks: int, held: dict[str, Tensor]
) -> Tensor:
    """The next state, ``state * decay + (k * decay)ᵀ v``; in ``held`` the output, ``(q kᵀ * decays) v + (q * decay)
    state``, and the other locals."""
    tape, fixed = p.tape, p.mode.numerics.itemsize
    share = Dim("c·q", p.rows * length * mixer.heads * mixer.head_dim)
    square = Dim("H·c²", p.rows * mixer.heads * length * length)
    q, k, v = (ops.view(tape, each, share, whole=False) if blocks > 1 else each for each in parts)
    held["decay"] = decay = tape.new(Dim("H", mixer.heads), fixed, "decays")
    copied = p.rows > 1 and mixer.heads > 1
    held["pairs"] = product(p, q, k, square, SCORES, (copied, copied))
    held["inside"] = product(p, ops.with_constant(tape, held["pairs"], fixed, SCORES), v, share, OUT, (False, copied))
    held["across"] = product(p, ops.with_constant(tape, q, fixed, DECAYED), state, share, OUT, (copied, False))
    held["out"] = ops.add(tape, held["across"], held["inside"], OUT)
    held["written"] = product(p, ops.with_constant(tape, k, fixed, DECAYED), v, state.dim, STATES, (copied, copied))
    return ops.add(tape, ops.with_constant(tape, state, fixed, STATES, decay), held["written"], STATES)


def product(p: Pass, a: Tensor, b: Tensor, dim: Dim, label: str, copies: tuple[bool, bool]) -> Tensor:
    """``torch.matmul``: an operand whose heads lie beside each other in each of several rows is copied first."""
    narrow_a, narrow_b = ops.autocast_input(p.tape, a), ops.autocast_input(p.tape, b)
    return contract(p.tape, narrow_a, narrow_b, dim, label, copies)


def _skipped(p: Pass, parts: list[Tensor], count: int, kept: int, state: Tensor, outputs: list[Tensor]) -> Tensor:
    """``count`` blocks as one step: what they keep, their outputs and the state behind them."""
    tape, last = p.tape, outputs[-1]
    following = tape.new(state.dim, state.itemsize, STATES)
    out = tape.new(Dim(last.dim.symbol, last.dim.elements * count), last.itemsize, OUT)
    others = kept * count - sum(each.storage.size for each in (following, out) if each.storage)
    saved = [tape.new(Dim("L·q", max(others // ops.FP32, 1)), ops.FP32, "states and products of blocks"), state]
    size = (state.dim, state.itemsize)
    node = tape.node((*parts, state, out), saved, lambda t, grads: (None, None, None, t.gradient(size), None))
    if node is not None:
        node.outputs = 2
    outputs.append(Tensor(out.dim, out.itemsize, out.storage, node, 1))
    return Tensor(following.dim, following.itemsize, following.storage, node, 0)
