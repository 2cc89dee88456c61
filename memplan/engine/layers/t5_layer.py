"""T5's layers as programs on the tape, in the order of transformers 5.23: ``models/t5/modeling_t5.py``.

A bias of relative positions is made in the first layer of each stack and added to the scores of all; attention to the
encoder's output has a bias of zeros."""

from collections.abc import Sequence

from memplan.engine.layers.activations import activate
from memplan.engine.layers.attention.older_classes import PROBABILITIES, SCORES, batched, queries_and_keys
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.shared_inputs import BIAS, CROSS_BIAS
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Tensor, leaf
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer
from memplan.spec.parts import Attention, FeedForward

INT64 = 8


def t5_layer(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm before each of attention, attention to the encoder and feed-forward, a residual around each."""
    tape, probabilities = p.tape, None
    assert isinstance(layer.mixer, Attention)
    assert layer.feed_forward is not None
    drops = "mixer" in layer.dropout
    with tape.at("attention"):
        x, probabilities = branch(p, layer, layer.mixer, 0, x, drops)
        if layer.cross:
            x, probabilities = branch(p, layer, layer.cross, 1, x, drops)
    with tape.at("feed-forward"):
        normed = norm(p, layer.norms[-1], x, "h")
        hidden = feed_forward(p, layer.feed_forward, normed)
        del normed  # ``forwarded_states`` is rebound by DenseReluDense's output (T5LayerFF.forward)
        if drops:
            hidden = ops.dropout(tape, hidden, "dropped-out outputs")
        out = ops.add(tape, x, hidden, "residual stream")
    del probabilities  # attention's second output, to the end of T5Block.forward
    return out


def branch(p: Pass, layer: Layer, mixer: Attention, index: int, x: Tensor, drops: bool) -> tuple[Tensor, Tensor | None]:
    """``T5LayerSelfAttention`` or ``T5LayerCrossAttention``."""
    normed = norm(p, layer.norms[index], x, "h")
    out, probabilities = attention(p, mixer, normed)
    if drops:
        out = ops.dropout(p.tape, out, "dropped-out outputs")
    return ops.add(p.tape, x, out, "residual stream"), probabilities


def feed_forward(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """``wo(dropout(act(wi(x))))``, or of ``act(wi_0(x)) * wi_1(x)``."""
    tape = p.tape
    held = []
    inner = activate(tape, spec.activation, project(p, x, spec.linears[0], "F", "up"))
    if spec.gated:
        held = [inner, project(p, x, spec.linears[1], "F", "gate")]
        inner = ops.mul(tape, held[0], held[1], "feed-forward product")
    if spec.dropout:
        inner = ops.dropout(tape, inner, "feed-forward product")
    inner = ops.cast(tape, inner, p.mode.numerics.itemsize, "feed-forward product, in the dtype of wo")
    out = project(p, inner, spec.linears[-1], "h", "feed-forward output")
    held.clear()  # ``hidden_gelu`` and ``hidden_linear`` (T5DenseGatedActDense.forward)
    return out


def attention(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """``T5Attention``: keys and values of x, or of what the encoder gave."""
    (q, k, v), keys = queries_and_keys(p, mixer, x, cross=mixer.style == "t5-cross")
    bias = position_bias(p, mixer, q, keys)
    if p.mode.operators.attention == "eager":
        out, weights = eager(p, mixer, (q, k, v), bias, keys)
    else:
        out, weights = biased(p, mixer, (q, k, v), bias, keys), None
    return project(p, out, mixer.linears[-1], "h", "attention projection"), weights


def position_bias(p: Pass, mixer: Attention, q: Tensor, keys: int) -> Tensor:
    """The bias of all layers of the stack: the first makes it of its table, or of zeros."""
    name = CROSS_BIAS if mixer.style == "t5-cross" else BIAS
    if name in p.shared:
        return p.shared[name]
    tape, dim = p.tape, Dim("H·s·s", mixer.num_heads * p.length * keys)
    if name == CROSS_BIAS:
        made = zeros(p, dim, q.itemsize)
    else:
        bare = mixer.tensors[0]
        table = p.param(bare.name, bare.parameters)
        buckets = tape.new(Dim("s·s", p.length * keys), INT64, "buckets of relative positions")
        backward = ops.dense(table, table.itemsize, "gradients of relative positions")
        made = tape.new(dim, table.itemsize, "bias of relative positions", tape.node((table,), (buckets,), backward))
    p.shared[name] = made
    return made


def zeros(p: Pass, dim: Dim, itemsize: int) -> Tensor:
    """Zeros, which checkpointing lets need a gradient."""
    made = p.tape.new(dim, itemsize, "bias of the attention to the encoder")
    return leaf(p.tape, made) if p.checkpointed else made


def scores_dim(p: Pass, mixer: Attention, keys: int) -> Dim:
    """One element for each head and pair of positions."""
    return Dim("T·H·s", p.tokens * keys * mixer.num_heads)


def masked(p: Pass, mixer: Attention) -> bool:
    """Whether a mask comes from the model: eager's causal one, or padding of what the encoder read."""
    return p.mode.operators.attention == "eager" if mixer.style == "t5-decoder" else p.mode.padded


def eager(p: Pass, mixer: Attention, qkv: Sequence[Tensor], bias: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Scores, their product with 1, the bias, a mask, a softmax in their own dtype."""
    tape, (q, k, v) = p.tape, qkv
    dim = scores_dim(p, mixer, keys)
    weights = ops.scale(tape, ops.matmul(tape, batched(p, q), batched(p, k), dim, SCORES), SCORES)
    weights = add_bias(tape, weights, bias)
    if masked(p, mixer):
        weights = ops.scale(tape, weights, "masked scores", shares_gradient=True)
    weights = ops.softmax(tape, weights, PROBABILITIES, to_fp32=tape.autocast > 0)
    if mixer.dropout:
        weights = ops.dropout(tape, weights, PROBABILITIES)
    out = ops.matmul(tape, weights, batched(p, v), q.dim, "attention output")
    return ops.copy(tape, out, "attention output"), weights


def add_bias(tape: Tape, scores: Tensor, bias: Tensor) -> Tensor:
    """``scores + bias``, the bias the same for all rows: its gradient is their sum, in the bias's dtype."""
    dim, before, itemsize = scores.dim, scores.itemsize, max(scores.itemsize, bias.itemsize)
    size, several, wants = (bias.dim, bias.itemsize), bias.dim.elements != scores.dim.elements, bias.needs_grad

    def backward(t: Tape, grads: Grads) -> Grads:
        grad = grads[0]
        of_scores = grad if before == itemsize else t.gradient((dim, before))
        of_bias = None
        if wants:
            of_bias = t.gradient((size[0], itemsize)) if several else grad
            if size[1] != itemsize:
                of_bias = t.gradient(size)
        return (of_scores, of_bias)

    return tape.new(dim, itemsize, SCORES, tape.node((scores, bias), (), backward))


def biased(p: Pass, mixer: Attention, qkv: Sequence[Tensor], bias: Tensor, keys: int) -> Tensor:
    """``create_position_bias_mask`` and memory-efficient attention with it."""
    tape = p.tape
    mask = ops.autocast_input(tape, mask_of(p, mixer, bias, keys))
    q, k, v = (ops.autocast_input(tape, x) for x in qkv)
    return efficient(p, mixer, (q, k, v), mask, keys)


def mask_of(p: Pass, mixer: Attention, bias: Tensor, keys: int) -> Tensor:
    """The bias, minus infinity where a position may not look: for each row where there is padding."""
    tape, padded = p.tape, mixer.style != "t5-decoder" and p.mode.padded
    label = "bias as a mask"
    if mixer.style == "t5-cross" and not padded:
        return bias
    if not padded and mixer.style != "t5-decoder":
        return ops.copy(tape, bias, label)
    pairs = p.length * keys
    causal = tape.new(Dim("s·s", pairs), 1, "causal mask of the layer") if mixer.style == "t5-decoder" else None
    dim = bias.dim if not padded else scores_dim(p, mixer, keys)
    before = (bias.dim, bias.itemsize)

    def backward(t: Tape, grads: Grads) -> Grads:
        picked = t.gradient((dim, before[1]))
        return (picked if dim.elements == before[0].elements else t.gradient(before),)

    return tape.new(dim, bias.itemsize, label, tape.node((bias,), (causal,), backward))


def efficient(p: Pass, mixer: Attention, qkv: Sequence[Tensor], mask: Tensor, keys: int) -> Tensor:
    """The kernel: keeps queries, keys, values, mask, output and an fp32 log-sum-exp; its mask's gradient is one for
    each row, which are then summed."""
    tape, (q, k, v) = p.tape, qkv
    result = tape.new(q.dim, q.itemsize, "attention output")
    lse = tape.new(p.dim("H", mixer.num_heads), ops.FP32, "attention log-sum-exp")
    whole = scores_dim(p, mixer, keys)
    source = expanded(tape, mask, whole) if mask.needs_grad else mask
    node = tape.node((q, k, v, source), (q, k, v, result, lse, mask), ops.of_each(q, k, v, source))
    return Tensor(q.dim, q.itemsize, result.storage, node)


def expanded(tape: Tape, x: Tensor, dim: Dim) -> Tensor:
    """``x.expand(…)``: a sum over rows on the way back, where there are several."""
    if x.dim.elements == dim.elements:
        return x
    return Tensor(dim, x.itemsize, x.storage, tape.node((x,), (), ops.own(x)))
