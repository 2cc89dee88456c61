"""``scaled_dot_product_attention``: which kernel CUDA chooses (flash, memory-efficient, math), and what each keeps."""

from typing import TYPE_CHECKING

from memplan.engine.layers.attention.eager import repeat_kv, scores_of
from memplan.engine.layers.attention.fused_kernel import fused_attention
from memplan.engine.layers.modules import Mode, Pass
from memplan.engine.parallel.sequence import gathered_attention, ring_attention, ulysses_attention
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import Attention

if TYPE_CHECKING:
    from memplan.spec.vision import VisionAttention


def attention_kernel(mode: Mode, mixer: Attention, length: int, itemsize: int) -> str:
    """The kernel that runs: flash in half precision without a mask, else memory-efficient, else math.

    transformers repeats keys and values before SDPA when there is a mask, and asks for grouped heads when there is
    none, whatever the card; the memory-efficient kernel cannot group heads, and flash needs compute capability 8.0
    (integrations/sdpa_attention.py: use_gqa_in_sdpa; aten/native/transformers/cuda/sdp_utils.cpp; transformers issue
    48633)."""
    if mode.operators.attention != "sdpa":
        return mode.operators.attention
    if has_mask(mode, mixer, length):
        return "efficient"
    if itemsize == 2 and mixer.head_dim <= 256 and not mode.lacks_flash:
        return "flash"
    repeated = mode.repeats_keys or mode.operators.kernels.adapters == "fused"  # Unsloth's attention does for xformers
    grouped = mixer.num_kv_heads != mixer.num_heads and mixer.head_dim <= 256 and not repeated
    return "math" if grouped else "efficient"


def has_mask(mode: Mode, mixer: Attention, length: int) -> bool:
    """Whether a 4-D mask reaches the layer: padding, or a window that the sequence fills."""
    return mode.padded or (mixer.window is not None and length >= mixer.window)


def sdpa(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, q_dim: Dim) -> Tensor:
    """``scaled_dot_product_attention``: with a mask, keys and values are repeated first and the mask becomes a bias."""
    tape = p.tape
    if p.mode.context > 1 and p.mode.shares == "ulysses":
        return ulysses_attention(p, mixer, q, k, v, q_dim)
    if p.mode.context > 1:
        shared = gathered_attention if p.mode.shares == "gathered" else ring_attention
        return shared(p, q, k, v, p.dim("H", mixer.num_heads), q_dim)
    kernel = attention_kernel(p.mode, mixer, p.length, tape.autocast or q.itemsize)
    if kernel == "math":
        return math(p, mixer, q, k, v, q_dim)
    bias = None
    if (kernel == "efficient" or p.mode.repeats_keys) and k.dim.elements < q.dim.elements:
        k, v = repeat_kv(p, mixer, k, "repeated keys", q_dim), repeat_kv(p, mixer, v, "repeated values", q_dim)
    if kernel == "efficient" and has_mask(p.mode, mixer, p.length):
        one = tape.new(Dim("T·s", p.tokens * p.length), tape.autocast or q.itemsize, "attention bias")
        bias = Tensor(scores_of(p, mixer), one.itemsize, one.storage)
    q, k, v = (ops.autocast_input(tape, x) for x in (q, k, v))
    grouped = k.dim.elements < q.dim.elements
    out = fused_attention(tape, q, k, v, p.dim("H", mixer.num_heads), q_dim, bias, grouped, unpads=p.mode.unpads)
    if mixer.rotary == "concatenated" and kernel == "flash" and not p.mode.operators.kernels.rotary:
        return ops.copy(tape, out, "attention output")
    return out


def math(p: Pass, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, q_dim: Dim) -> Tensor:
    """``_scaled_dot_product_attention_math``, whose locals die with it, and the layout of its output."""
    return ops.copy(p.tape, grouped_math(p, mixer, q, k, v, q_dim), "attention output")


def grouped_math(
    p: Pass, mixer: "Attention | VisionAttention", q: Tensor, k: Tensor, v: Tensor, q_dim: Dim, length: int = 0
) -> Tensor:
    """In fp32, keys and values repeated to all heads, a mask of s × s, s × s probabilities kept; the scaled keys are a
    temporary of the product, and so are the queries of several rows, unless rotary left them head-major
    (aten/native/transformers/attention.cpp). ``length``: all tokens stand in one row.

    Not counted: the sum of scores and mask, which softmax's result replaces (in place on a real device)."""
    tape, before = p.tape, q.itemsize
    autocast, tape.autocast = tape.autocast, 0
    wide_q, wide_k, wide_v = (ops.cast(tape, x, ops.FP32, "attention in fp32") for x in (q, k, v))
    scaled_q = ops.scale(tape, wide_q, "scaled queries")
    bias = tape.new(Dim("s²", (length or p.length) ** 2), ops.FP32, "attention bias")
    all_k, all_v = wide_k, wide_v
    if k.dim.elements < q_dim.elements:
        all_k, all_v = ops.copy(tape, wide_k, "repeated keys", q_dim), ops.copy(tape, wide_v, "repeated values", q_dim)
    copied = p.rows > 1 and mixer.rotary != "concatenated" and not length
    queries = ops.copy(tape, scaled_q, "queries") if copied else scaled_q
    pairs = scores_of(p, mixer, length)
    scores = ops.matmul(tape, queries, ops.scale(tape, all_k, "scaled keys"), pairs, "attention scores")
    del queries  # a copy that ``at::matmul`` makes of the strided, scaled q
    probabilities = safe_softmax(tape, scores, "attention probabilities")
    del scores  # ``attn = at::_safe_softmax(attn, -1)`` rebinds it (attention.cpp)
    if getattr(mixer, "dropout", False):
        probabilities = ops.dropout(tape, probabilities, "attention probabilities")
    returned = ops.cast(tape, probabilities, before, "attention probabilities")
    out = ops.matmul(tape, probabilities, all_v, q_dim, "attention output")
    tape.autocast = autocast
    out = ops.cast(tape, out, before, "attention output")
    del bias, returned  # locals and the second output of _scaled_dot_product_attention_math
    return out


def safe_softmax(tape: Tape, scores: Tensor, label: str) -> Tensor:
    """``_safe_softmax``: on a real device, a byte for each score says afterwards whether it was minus infinity."""
    out = ops.softmax(tape, scores, label, to_fp32=False)
    if tape.in_place:
        tape.new(scores.dim, 1, "masked scores")
    return out
