"""Self-attention's steps: products, rotary embedding, the attention kernel, and what context parallelism exchanges.

megatron-core 0.14 transformer/attention.py; TransformerEngine 2.11 pytorch/attention: FusedAttnFunc saves q, k, v, the
output and the softmax statistics; get_qkv_layout makes q, k and v contiguous: the fused matmul is freed. With several
rows FlashAttention turns q, k and v to [b, s], and copies its output back to [s, b]: both outputs are kept.
A project that calls flash-attn itself on Megatron's views keeps, with v, all of the fused matmul; the output has the
strides of q, and is no copy (flash-attn 2.8 csrc/flash_attn/flash_api.cpp: mha_fwd)."""

from memplan.engine.megatron import te
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import Held, Step, Steps, made_again
from memplan.spec.parts import Attention

CORE = "TransformerEngine 2.11 pytorch/attention/dot_product_attention/backends.py: FusedAttnFunc"
EXCHANGES = "TransformerEngine 2.11 pytorch/attention/dot_product_attention/context_parallel.py"
Q, K, V, OUT, LSE = "queries", "keys", "values", "attention's output", "softmax statistics"


def self_attention(s: Shape, mixer: Attention) -> Steps:
    """Multi-head or grouped-query attention."""
    head, heads = mixer.head_dim, mixer.num_heads // s.tensor
    groups = max(1, mixer.num_kv_heads // s.tensor)
    q, kv = heads * head, groups * head
    *inputs, output = mixer.linears
    gate = inputs[0].outputs // s.tensor - q
    fused = te.layernorm_linear(s, "qkv", "the q, k, v product", q + gate + 2 * kv, s.product(inputs))
    core = unfused(s, q, kv, heads) if s.unfused else kernel(s, q, kv, kv, q, heads)
    steps = [fused]
    if mixer.norms:
        steps.append(_head_norms(s, q, kv, heads + groups))
    out = te.row_linear(s, "projection", "the output matmul", q, keeps_input=gate > 0, product=s.product([output]))
    gated = (_gate(s, q),) if gate else ()
    return _recomputed(s, (*steps, core, *gated, out), q + gate + 2 * kv)


def _gate(s: Shape, q: int) -> Step:
    """The output times the sigmoid of a gate, compiled into one (attention.py: _apply_output_gate)."""
    gate = te.of_tokens(s, "attention's gate", q, "q")
    return Step("output-gate", (gate,), (), (te.of_tokens(s, "gradients of gate and output", 3 * q, "3q"),), te.NORM)


def _head_norms(s: Shape, q: int, kv: int, heads: int) -> Step:
    """Norms of q and k by head: their inputs, made contiguous, and statistics are kept. Norms of PyTorch's operations
    hold fp32 tensors of q for a moment, as those of the residual stream do of it."""
    moment = () if s.settings.norm_fusion else (te.NORM_FORWARD, te.NORM_BACKWARD)
    wide = [Held("within q's norm, in fp32", "tensors·T·q·4", (count, s.tokens, q, te.FP32)) for count in moment]
    return Step(
        "head-norms",
        kept=(
            *te.kept_of(s, te.of_tokens(s, "q and k before their norms", q + kv, "(q + kv)")),
            Held("statistics of q's and k's norms", "T·heads·4", (s.tokens, heads, te.FP32)),
        ),
        forward=tuple(wide[:1]),
        backward=(
            te.stream(s, te.STREAM_GRADIENT),
            te.of_tokens(s, "gradients of q, k, v", 2 * (q + 2 * kv)),
            *wide[1:],
        ),
        source=te.NORM if s.settings.norm_fusion else te.PLAIN_NORM,
    )


def kernel(s: Shape, q: int, k: int, v: int, out: int, heads: int) -> Step:
    """The attention kernel over widths of q, k, v and output on this rank.

    Context parallelism by all-to-all keeps the output twice: by heads for the kernel, by sequence for the product that
    follows; so does a kernel that works by rows. Around a ring (p2p), what came in each round and each round's output
    are held until the last one; the last rank of the ring has the largest. Backward takes what kernels take within
    themselves (``fused_kernel.within_backward``; cuDNN as flash-attn)."""
    kind = s.settings.cp_comm_type if s.context > 1 else ""
    qkv = (te.of_tokens(s, Q, q, "q"), te.of_tokens(s, K, k, "k"), te.of_tokens(s, V, v, "v"))
    kept = [*qkv, te.of_tokens(s, OUT, out, "out"), Held(LSE, "T·heads·4", (s.tokens, heads, te.FP32))]
    forward: list[Held] = [te.of_tokens(s, "the fused q, k, v product", q + k + v, "(q + k + v)")]
    gradients = [
        te.stream(s, te.STREAM_GRADIENT),
        te.of_tokens(s, "gradient of attention's output", out, "out"),
        te.of_tokens(s, "gradients of q, k, v", q + k + v, "(q + k + v)"),
    ]
    if twice(s):
        kept.append(te.of_tokens(s, "attention's output by sequence", out, "out"))
        forward.append(te.of_tokens(s, "q, k, v by sequence", q + k + v, "(q + k + v)"))
    if kind == "a2a":
        gradients.append(te.of_tokens(s, "gradient of attention's output by heads", out, "out"))
    elif kind == "p2p":
        forward.append(te.of_tokens(s, "keys and values of all rounds", s.context * (k + v), "cp·(k + v)"))
        forward.append(te.of_tokens(s, "outputs of all rounds", s.context * out, "cp·out"))
        gradients.append(te.of_tokens(s, "keys, values and their gradients of two rounds", 4 * (k + v), "4·(k + v)"))
        gradients.append(te.of_tokens(s, "gradient of q of a round", q, "q"))
    elif kind == "all_gather":
        whole = te.of_tokens(s, "gathered keys and values", s.context * (k + v), "cp·(k + v)")
        forward.append(whole)
        gradients += [whole, whole._replace(name="gradients of gathered keys and values")]
    wide = (s.tokens, q, te.FP32)
    sums = Held("attention's row sums", "T·heads·4", (s.tokens, heads, te.FP32))
    gradients += [Held("gradients of queries in fp32", "T·q·4", wide), sums]
    if k < q:
        gradients.append(te.of_tokens(s, "gradients of keys of every head", 2 * q, "2q"))
    return Step("attention", tuple(kept), tuple(forward), tuple(gradients), CORE if not kind else EXCHANGES)


def _recomputed(s: Shape, steps: Steps, fused: int) -> Steps:
    """``core_attn``: q, k and v stay, and with v, which is a view, all of the fused matmul; statistics (and, where
    nobody else reads it, the output by heads) are made again. So they stay where a project hands views on."""
    again = "core_attn" in s.recomputed
    if not again and (s.settings.attention_backend != "direct" or s.unfused):
        return steps
    if again:
        steps = made_again(steps, (LSE, *SCORES, *((OUT,) if twice(s) else ())), "attention")
    whole = te.of_tokens(s, V + ": a view of the fused matmul", fused, "(q + 2·kv)")
    return tuple(step._replace(kept=tuple(whole if each.name == V else each for each in step.kept)) for step in steps)


def twice(s: Shape) -> bool:
    """Whether attention's output is kept by heads, or by rows, and by sequence."""
    return s.by_rows or (s.context > 1 and s.settings.cp_comm_type == "a2a")


UNFUSED = "TransformerEngine 2.20 pytorch/attention/dot_product_attention/backends.py: UnfusedDotProductAttention"
PROBABILITIES, MASK, DROPPED, REPEATED = (
    "probabilities",
    "dropout's mask",
    "dropped probabilities",
    "keys, values of heads",
)
SCORES = (PROBABILITIES, PROBABILITIES + " in fp32", MASK, DROPPED, REPEATED)
"""What selective checkpointing of the core attention makes again."""
DOUBT = 0.25
"""Of the scores: layers of other releases, and Megatron's own buffer of them."""
LONGEST = 16384
"""The kernel of mask and softmax takes shorter sequences."""


def unfused(s: Shape, q: int, kv: int, heads: int) -> Step:
    """Attention that makes its scores, over widths of q and of k and v: two batched products, and a softmax between
    them. Keys and values of groups are repeated to all heads. Without a kernel of mask and softmax, it runs in fp32.

    Megatron-core's own DotProductAttention keeps the same. Each rank has its heads' scores, of the whole sequence.
    Nothing measured holds them: the one report of such a run (GPT-2 large on a V100) asked for 29.6 GiB in its first
    step, and this says 27.4; so each row of scores has a high figure of its own (``DOUBT``)."""
    groups, rate, e = kv < q, s.settings.attention_dropout, s.itemsize
    fused = _has_kernel(s, heads)
    kept = [te.of_tokens(s, "queries", q, "q")]
    whole = te.of_tokens(s, "keys, values", 2 * kv, "2·kv")
    kept.append(te.of_tokens(s, REPEATED, 2 * q, "2·q") if groups else whole)
    wide = _scores(s, heads, PROBABILITIES + " in fp32", te.FP32)
    kept += [] if fused else [wide]
    if fused or not rate:
        kept.append(_scores(s, heads, PROBABILITIES, e))
    if rate:
        kept += [_scores(s, heads, MASK, 1), _scores(s, heads, DROPPED, e)]
    kept.append(te.of_tokens(s, "attention's output", q, "out"))
    forward = [
        te.of_tokens(s, "the fused q, k, v product", q + 2 * kv, "(q + 2·kv)"),
        whole,
        _scores(s, heads, "scores", e),
    ]
    forward += [] if fused else [wide._replace(name="scores in fp32")]
    moment = (e if rate else 2 * e) if fused else 2 * te.FP32 - e - bool(rate)
    backward = (
        te.stream(s, te.STREAM_GRADIENT),
        te.of_tokens(s, "gradient of attention's output", q, "out"),
        te.of_tokens(s, "gradients of q, k, v", 3 * q, "3·q"),
        _scores(s, heads, "gradients of the scores", moment),
    )
    return Step("attention", tuple(kept), tuple(forward), backward, UNFUSED)


def _scores(s: Shape, heads: int, name: str, itemsize: int) -> Held:
    """A number for each head, query and key."""
    return Held(name, "T·heads·s·e", (s.tokens, heads, s.unfused, itemsize), doubt=DOUBT)


def _has_kernel(s: Shape, heads: int) -> bool:
    """``FusedScaleMaskSoftmax.is_kernel_available``: half precision, lengths and batches that its blocks divide."""
    rows = s.tokens // s.unfused
    return s.itemsize == 2 and 16 < s.unfused < LONGEST and s.unfused % 8 == 0 and rows * heads % 4 == 0
