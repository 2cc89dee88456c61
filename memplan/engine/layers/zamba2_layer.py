"""Zamba 2's hybrid layer as a program on the tape, in the order of transformers 5.23: a transformer block whose weights
other layers have too, over the residual stream beside the embedding's output; a linear; the layer's own state space.

Each layer has low-rank adapters of its own beside the block's projections, which are part of the model. Symbols: h
hidden, F feed-forward width, a the adapters' rank."""

from memplan.engine.layers.activations import activate
from memplan.engine.layers.attention.softmax import core
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.rotary import rotary
from memplan.engine.layers.shared_inputs import EMBEDDED
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer
from memplan.spec.parts import Attention, FeedForward, Linear, Mixer

QKV, OUTPUT = "queries, keys, values", "output of the outer checkpoint"


def shared_block_layer(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """``x + mamba(norm(x + linear(block(x))))``; the block's output stays a local of the layer."""
    tape, (own, of_attention, of_mlp, mamba) = p.tape, layer.extra
    assert isinstance(layer.mixer, Attention)
    assert isinstance(mamba, Mixer)
    assert layer.feed_forward is not None
    with tape.at("attention"):
        hidden = beside(tape, x, p.shared[EMBEDDED])
        hidden = norm(p, layer.norms[1], hidden, "2h")
        hidden, weights = attention(p, layer.mixer, of_attention.linears, hidden)
        hidden = norm(p, layer.norms[0], hidden, "h")
        hidden = feed_forward(p, layer.feed_forward, of_mlp.linears, hidden)
        del weights
        block = project(p, hidden, own.linears[0], "h", "block output")
        del hidden  # ``transformer_hidden_states = self.linear(…)`` rebinds it (Zamba2HybridLayer.forward)
    within(tape, x, block)
    with tape.at("feed-forward"):
        hidden = ops.add(tape, x, block, "mixer input")
        hidden = norm(p, own.norms[0], hidden, "h")
        hidden, _ = mix(p, mamba, hidden)
        return ops.add(tape, x, hidden, "residual stream")


def within(tape: Tape, x: Tensor, block: Tensor) -> None:
    """What the checkpoint of the state space, inside that of the layer, adds.

    It is given the block's output beside its arguments, and so holds it itself until backward. A reentrant one runs its
    own backward while the output of the outer one's recomputation is still there."""
    if tape.frame is not None and block.storage is not None:
        tape.closures.append(block.storage)
    if tape.category != "recomputation" or tape.refilling is not None:
        return
    output = tape.gradient(x, OUTPUT).storage
    if output is not None:
        tape.closures.append(output)


def beside(tape: Tape, x: Tensor, other: Tensor) -> Tensor:
    """``torch.concatenate([x, other], dim=-1)``: the gradients are views of one."""
    dims, itemsize = (x.dim, other.dim), max(x.itemsize, other.itemsize)

    def backward(t: Tape, grads: Grads) -> Grads:
        whole = grads[0]
        assert whole is not None
        return [Tensor(dim, itemsize, whole.storage) for dim in dims]

    both = Dim("T·2h", x.dim.elements + other.dim.elements)
    return tape.new(both, itemsize, "residual stream and embeddings", tape.node((x, other), (), backward))


def adapter(p: Pass, x: Tensor, pair: tuple[Linear, ...], symbol: str) -> Tensor:
    """Two linears one after the other."""
    low = project(p, x, pair[0], "a", "rank of the block's adapters")
    return project(p, low, pair[1], symbol, "outputs of the block's adapters")


def attention(p: Pass, mixer: Attention, adapters: tuple[Linear, ...], x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``Zamba2Attention``: an adapter beside each of q, k and v, where there are any."""
    made = [project(p, x, linear, "q", QKV) for linear in mixer.linears[:3]]
    if adapters:
        for i in range(3):
            made[i] = ops.add(p.tape, made[i], adapter(p, x, adapters[2 * i : 2 * i + 2], "q"), QKV)
    q, k, v = made
    del made
    q, k = rotary(p, mixer, q, k)
    out, weights = core(p, mixer, q, k, v, p.dim("q", mixer.num_heads * mixer.head_dim))
    return project(p, out, mixer.linears[3], "h", "attention projection"), weights


def feed_forward(p: Pass, spec: FeedForward, adapters: tuple[Linear, ...], x: Tensor) -> Tensor:
    """``Zamba2MLP``: gate and up, with an adapter beside both, are locals until its end."""
    tape, width = p.tape, p.dim("F", spec.intermediate)
    both = project(p, x, spec.linears[0], "2F", "gate and up")
    both = ops.add(tape, both, adapter(p, x, adapters, "2F"), "gate and up")
    gate, up = ops.split(tape, both, 2, width)
    del both  # ``chunk`` of it: the views hold its storage
    product = ops.mul(tape, activate(tape, spec.activation, gate), up, "feed-forward product")
    return project(p, product, spec.linears[1], "h", "feed-forward output")
