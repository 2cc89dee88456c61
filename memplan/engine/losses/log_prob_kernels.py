"""Heads whose log-probabilities come from a kernel or a function of their own: what each saves, and its way back.

Sources are named at each. An in-place backward hands on the storage that was saved."""

import weakref
from typing import Any

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import loss_ops, ops, routing_ops
from memplan.engine.tape.graph import Backward, Grads, Tensor, in_turn
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape

MOST_CHUNKS = 256
"""Chunks of a loop that keeps something of each, as played at most."""
ROWS_AT_ONCE = 128
"""Rows of ``entropy_from_logits`` (trl 1.9, trl/trainer/utils.py)."""
MANY_ROWS = 1024
"""Of SkyRL's, in each sequence (utils/torch_utils.py: CHUNK_SIZE)."""


def saving_logits(p: Pass, logits: Tensor, rows: int, back: Backward | None = None) -> Tensor:
    """A kernel that keeps the logits and makes one tensor of their size in backward: TRL's Triton kernel (from 1.14,
    kernels/logprob_entropy.py), flash-attention's cross-entropy as OpenRLHF calls it."""
    statistics = p.tape.new(p.dim("1", 1), ops.FP32, "log-probability statistics")
    node = p.tape.node((logits,), (logits, statistics), back or ops.own(logits))
    return p.tape.new(p.dim("1", 1), ops.FP32, "log-probabilities", node)


def _in_place(kept: Tensor) -> Tensor:
    """The saved storage, as a gradient."""
    return Tensor(kept.dim, kept.itemsize, kept.storage)


def saving_logits_in_place(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """The same with ``inplace_backward``: the logits become their own gradient (verl 0.9 utils/torch_functional.py)."""
    saved = _in_place(logits)
    return saving_logits(p, logits, rows, lambda t, g: (saved,))


def foak_cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """The logits in fp32, and a copy without each row's last position, which becomes its own gradient
    (fms-acceleration-foak 0.7, kernels/unsloth/cross_entropy_loss.py: FastForCausalLMLoss)."""
    wide, scored = loss_ops.shifted(p, logits)
    losses = saving_logits_in_place(p, scored, rows)
    del wide  # local of FastForCausalLMLoss
    return losses


def saving_sliced_logits(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """AReaL's ``_chunked_apply``: a compiled log-softmax of 1024 rows at a time keeps the logits; each slice's gradient
    becomes one of the whole, and is added to that of those before (areal/utils/functional/vocab_parallel.py)."""
    dim, itemsize = logits.dim, logits.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        whole = t.gradient((dim, itemsize), "gradients of the slices before")
        one = t.gradient((dim, itemsize), "gradient of a slice")
        del one  # added in place
        return (whole,)

    statistics = p.tape.new(p.dim("1", 1), ops.FP32, "log-probability statistics")
    return p.tape.new(
        p.dim("1", 1), ops.FP32, "log-probabilities", p.tape.node((logits,), (logits, statistics), backward)
    )


def unpadded_slices(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """AReaL's Megatron engine: ``unpad_logits`` writes fp32 logits into new ones, a sequence at a time; of their slices
    stays as much, a softmax under tensor parallelism. Each write's backward clones the whole gradient and its own
    part, and the part's gradient becomes one of the whole: two sequences, the most there may be of it, are counted
    (areal/utils/data.py; torch autograd/functions: CopySlices)."""
    dim, itemsize = logits.dim, logits.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        before = t.gradient((dim, itemsize), "gradient of the sequence before")
        clone = t.gradient((dim, itemsize), "gradient, cloned")
        part = t.gradient((Dim("T·V/2", dim.elements // 2), itemsize), "gradient of a sequence, cloned")
        del clone, part
        return (before,)

    unpadded = p.tape.new(dim, itemsize, "logits without padding", p.tape.node((logits,), (), backward))
    return saving_sliced_logits(p, unpadded, rows)


def exponentiated(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """NeMo RL's ``DistributedLogprob``: the log-softmax and its exp, which is kept; backward negates it
    (nemo_rl/distributed/model_utils.py)."""
    tape = p.tape
    wide = tape.new(logits.dim, logits.itemsize, "log-softmax")
    kept = tape.new(logits.dim, logits.itemsize, "softmax")
    del wide  # ``full_log_probs`` of ``forward``
    node = tape.node((logits,), (kept,), ops.own(logits))
    return tape.new(p.dim("1", 1), ops.FP32, "log-probabilities", node)


def one_hot(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """NeMo-Aligner's ``DistributedLogprob`` with ``higher_stability``: backward makes an int64 one-hot of the
    vocabulary twice (nemo_aligner/utils/distributed.py)."""
    tape, dim, itemsize = p.tape, logits.dim, logits.itemsize
    shifted = tape.new(dim, itemsize, "shifted logits")
    powers = tape.new(dim, itemsize, "exponentials")
    del powers
    softmax = tape.new(dim, itemsize, "softmax")
    del shifted
    clone = tape.new(dim, itemsize, "log-softmax")
    del clone
    hot = dim, 8, "one-hot labels in int64"
    node = tape.node((logits,), (softmax,), in_turn(hot, hot, (dim, ops.FP32)))
    return tape.new(p.dim("1", 1), itemsize, "log-probabilities", node)


def megatron_cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """Megatron's vocabulary-parallel cross-entropy inside the model: an fp32 copy becomes the softmax, and that the
    gradient, in place (megatron-core 0.16 tensor_parallel/cross_entropy.py)."""
    wide = ops.cast(p.tape, logits, ops.FP32, "softmax")
    if wide.storage is logits.storage:
        wide = ops.copy(p.tape, logits, "softmax")
    saved = _in_place(wide)
    dim, itemsize = logits.dim, logits.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        return (saved if itemsize == ops.FP32 else t.gradient((dim, itemsize)),)

    node = p.tape.node((logits,), (wide,), backward)
    return p.tape.new(p.dim("1", 1), ops.FP32, "loss", node)


def megatron_fused(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """slime up to 0.3: ``logits.clone()`` into Megatron's fused cross-entropy, which works in it; its gradient passes
    through bf16 (slime utils/ppo_utils.py: compute_log_probs; megatron-core 0.16 fusions/fused_cross_entropy.py)."""
    tape = p.tape
    clone = ops.copy(tape, logits, "softmax")
    dim, itemsize = clone.dim, clone.itemsize
    theirs = weakref.ref(clone.storage) if clone.storage else lambda: None

    def backward(t: Tape, grads: Grads) -> Grads:
        low = t.gradient((dim, 2), "gradient in bf16")
        if node is not None and node.packed:  # made again: only the function itself held it
            node.saved = [storage for storage in node.saved if storage is not theirs()]
        wide = t.gradient((dim, itemsize))
        del low  # cast to the clone's dtype, which is the gradient that goes on
        return (wide,)

    node = tape.node((clone,), (clone,), backward)
    return tape.new(p.dim("1", 1), ops.FP32, "log-probabilities", node)


def shared_softmax(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """slime after 0.3: one softmax for log-probabilities and entropy, negated in place in backward (slime
    utils/ppo_utils.py: _VocabParallelLogProbEntropy)."""
    tape = p.tape
    wide = ops.cast(tape, logits, ops.FP32, "logits in fp32")
    softmax = tape.new(wide.dim, ops.FP32, "softmax")
    saved = _in_place(softmax)
    node = tape.node((wide,), (softmax,), lambda t, g: (saved,))
    return tape.new(p.dim("1", 1), ops.FP32, "log-probabilities", node)


# -- entropy ----------------------------------------------------------------------------------------------------------


def entropy_by_rows(
    p: Pass, logits: Tensor, gradient: bool, sliced: bool = True, at_once: int = ROWS_AT_ONCE
) -> Tensor | None:
    """``entropy_from_logits``: log-softmax, its exponential and their product, 128 rows at a time; with a gradient,
    every chunk keeps the first two (trl 1.9 trainer/utils.py). Flattening a slice of several rows copies it."""
    tape = p.tape
    flat = ops.copy(tape, logits, "logits, flattened") if sliced and p.rows > 1 else logits
    if not gradient:
        part = Dim(f"{at_once}·V", logits.dim.elements * min(at_once, p.tokens) // p.tokens)
        itemsize = ops.FP32 if tape.autocast else logits.itemsize  # which autocast's log_softmax gives
        parts = [tape.new(part, itemsize, f"entropy of {at_once} rows") for _ in range(3)]
        del parts, flat  # ``logps``, its exp and their product die with each chunk (entropy_from_logits)
        return None
    entropies, width = [], logits.dim.elements // p.tokens
    at_once = max(at_once, -(-p.tokens // MOST_CHUNKS))
    sizes = [min(at_once, p.tokens - first) for first in range(0, p.tokens, at_once)]
    chunks = ops.cut(tape, flat, [Dim(f"{at_once}·V", size * width) for size in sizes])
    for chunk, size in zip(chunks, sizes, strict=True):
        logps = loss_ops.log_softmax(tape, chunk, "log-softmax for the entropy")
        product = ops.mul(tape, ops.unary(tape, logps, "softmax for the entropy", saves="result"), logps, "entropy")
        entropies.append(routing_ops.reduce(tape, product, Dim("T/chunks", size), "entropy"))
        del product, logps  # rebound by the next chunk; with a graph its nodes keep the first two
    return ops.concatenate(tape, entropies, p.dim("1", 1), "entropy")


def entropy_by_many_rows(p: Pass, logits: Tensor, gradient: bool, sliced: bool = True) -> Tensor | None:
    """The same 1024 rows at a time of logits that are not flattened, under an autocast of its own: in fp32 (SkyRL
    utils/torch_utils.py: chunked_entropy_from_logits; workers/worker.py: torch.autocast)."""
    autocast, p.tape.autocast = p.tape.autocast, True
    entropy = entropy_by_rows(p, logits, gradient, False, MANY_ROWS)
    p.tape.autocast = autocast
    return entropy


def entropy_in_kernel(p: Pass, logits: Tensor, gradient: bool, sliced: bool = True) -> Tensor | None:
    """The kernel that makes log-probabilities makes the entropy too, and both gradients at once."""
    return None


def entropy_by_softmax(p: Pass, logits: Tensor, gradient: bool, sliced: bool = True) -> Tensor | None:
    """``logsumexp(logits) − sum(softmax(logits) · logits)`` in eager torch; torch.compile, which verl and OpenRLHF
    put around it, fuses some of it (verl 0.9 utils/torch_functional.py, OpenRLHF 0.11 models/utils.py)."""
    tape = p.tape
    enabled, tape.grad_enabled = tape.grad_enabled, tape.grad_enabled and gradient
    probabilities = ops.unary(tape, logits, "softmax for the entropy", saves="result")
    sums = loss_ops.logsumexp(tape, logits, p.dim("1", 1))
    product = ops.mul(tape, probabilities, logits, "softmax × logits")
    total = routing_ops.reduce(tape, product, p.dim("1", 1), "entropy")
    del product  # a temporary of ``torch.sum(softmax * logits, dim=-1)``
    entropy = ops.add(tape, sums, total, "entropy")
    tape.grad_enabled = enabled
    return entropy if gradient else None


def entropy_compiled(p: Pass, logits: Tensor, gradient: bool, sliced: bool = True) -> Tensor | None:
    """The same under torch.compile: the exponentials in fp32, at most, while it runs; its graph keeps the logits and
    numbers of rows, and backward makes one tensor (the code that Inductor of torch 2.13 generates)."""
    tape = p.tape
    wide = tape.new(logits.dim, ops.FP32, "exponentials for the entropy")
    del wide
    return entropy_of_softmax(p, logits, gradient, sliced)


def entropy_of_clone(p: Pass, logits: Tensor, gradient: bool, sliced: bool = True) -> Tensor | None:
    """slime's ``_VocabParallelEntropy``: a clone of the logits and its softmax, the gradient in place of the softmax.
    Before the loss-OOM change the graph was built whether its gradient was used or not."""
    tape = p.tape
    clone = ops.copy(tape, logits, "logits of the entropy") if gradient else logits
    softmax = tape.new(clone.dim, clone.itemsize, "softmax for the entropy")
    if not gradient:
        return None
    saved = _in_place(softmax)
    node = tape.node((clone,), (clone, softmax), lambda t, g: (saved,))
    return tape.new(p.dim("1", 1), clone.itemsize, "entropy", node)


def entropy_beside_a_copy(p: Pass, logits: Tensor, gradient: bool, sliced: bool = True) -> Tensor | None:
    """verl's on Megatron: the logits are cloned for the log-probabilities though nobody wants a gradient
    (workers/actor/megatron_actor.py: logits_processor)."""
    clone = logits if gradient else ops.copy(p.tape, logits, "logits of the entropy")
    return entropy_of_clone(p, clone, gradient, sliced)


def entropy_of_softmax(p: Pass, logits: Tensor, gradient: bool, sliced: bool = True) -> Tensor | None:
    """One softmax serves both: with a gradient the logits stay too, and backward makes one more tensor."""
    if not gradient:
        return None
    node = p.tape.node((logits,), (logits,), ops.own(logits))
    return p.tape.new(p.dim("1", 1), logits.itemsize, "entropy", node)


def parallel_cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """``F.cross_entropy`` of ``logits.float()`` with the vocabulary over tensor-parallel ranks; V: the rank's part.

    torch 2.13 distributed/tensor/parallel/loss.py (``loss_parallel``): the log-softmax is made of single operations,
    with the maximum and the sum reduced over ranks, and one backward makes the gradient of both of its parts."""
    tape = p.tape
    wide = ops.cast(tape, logits, ops.FP32, "logits in fp32")
    dim, kind = wide.dim, ops.FP32
    shifted = tape.new(dim, kind, "logits less their maximum")
    powers = tape.new(dim, kind, "exponentials")
    del powers  # a temporary of ``sum(exp(shifted))`` (torch/distributed/tensor/parallel/loss.py: _log_softmax)
    result = tape.new(dim, kind, "log-softmax")
    del shifted  # ``shifted - shifted_logsumexp`` is the result; the local ends with _log_softmax

    def backward(t: Any, grads: Any) -> Any:
        ones = t.gradient((dim, kind))
        powers = t.gradient((dim, kind))
        both = t.gradient((dim, kind))
        del powers
        product = t.gradient((dim, kind))
        del ones, both
        return (product,)

    return tape.new(Dim("1", 1), kind, "loss", tape.node((wide,), (result,), backward))
