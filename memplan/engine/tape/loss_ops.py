"""Operations of losses: log-softmax and its kin, gathering of labels, reductions."""

from memplan.engine.layers.modules import Pass
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.ops import FP32, cast, concatenate, copy, own, softmax_of_half, split, unary, view
from memplan.engine.tape.routing_ops import into_zeros
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape


def log_softmax(tape: Tape, x: Tensor, label: str) -> Tensor:
    """Saves its result; under autocast it reads a converted fp32 copy, or fp16 as it is (``half_to_float``)."""
    if tape.autocast and tape.half_to_float:
        return softmax_of_half(tape, x, label)
    source = cast(tape, x, FP32, "logits in fp32") if tape.autocast else x
    return unary(tape, source, label, saves="result")


def gather(tape: Tape, x: Tensor, out: Dim, label: str) -> Tensor:
    """``x.gather(-1, index)``: saves x (its backward asks for its sizes) and the int64 index.

    Backward scatters into zeros."""
    index = tape.new(out, 8, "label indices")
    return tape.new(out, x.itemsize, label, tape.node((x,), (x, index), into_zeros(x)))


def nll(tape: Tape, x: Tensor, out: Dim) -> Tensor:
    """``nll_loss``: saves the log-probabilities; backward fills a new tensor of their size."""
    return tape.new(out, FP32, "loss", tape.node((x,), (x,), own(x)))


def logsumexp(tape: Tape, x: Tensor, out: Dim) -> Tensor:
    """Saves x and its result; backward makes x − result, its exp, and the product."""
    dim, itemsize = x.dim, x.itemsize
    result = tape.new(out, itemsize, "log-probabilities")

    def backward(t: Tape, grads: Grads) -> Grads:
        shifted, powers = t.gradient((dim, itemsize)), t.gradient((dim, itemsize))
        product = t.gradient((dim, itemsize))
        del shifted, powers  # ``grad * (self - result).exp()`` (FunctionsManual.cpp: logsumexp_backward)
        return (product,)

    return Tensor(out, itemsize, result.storage, tape.node((x,), (x, result), backward))


def plain_cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """``CrossEntropyLoss`` of the logits in their own dtype; autocast widens the log-softmax for ``nll_loss`` (T5)."""
    tape = p.tape
    autocast, tape.autocast = tape.autocast, 0
    log_probabilities = log_softmax(tape, logits, "log-softmax")
    tape.autocast = autocast
    if autocast:
        log_probabilities = cast(tape, log_probabilities, FP32, "log-softmax in fp32")
    return nll(tape, log_probabilities, Dim("1", 1))


def shifted(p: Pass, logits: Tensor) -> tuple[Tensor, Tensor]:
    """``logits.float()``, and a copy of all but each row's last position; a single row is contiguous as it is.

    ``logits[..., :-1, :]`` is two slices, each of which has its zeros in backward, in torch of that time (2.4
    ATen/TensorIndexing.h: applySlice; 2.13 leaves the one of all the vocabulary out)."""
    tape, dim = p.tape, logits.dim
    wide = cast(tape, logits, FP32, "logits in fp32")
    scored = view(tape, wide, Dim(dim.symbol, dim.elements - dim.elements // p.tokens * p.rows), whole=False)
    scored = view(tape, scored, scored.dim, whole=False)
    return wide, copy(tape, scored, "shifted logits in fp32") if p.rows > 1 else scored


def shifted_cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """``ForCausalLMLoss`` before transformers 4.49: the fp32 logits stand beside the copy that is scored."""
    wide, scored = shifted(p, logits)
    loss = nll(p.tape, log_softmax(p.tape, scored, "log-softmax"), Dim("1", 1))
    del wide  # ``logits = logits.float()``, a local until the loss is there (loss_utils.py: ForCausalLMLoss)
    return loss


def repeated_cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """The model is given the labels, and its own loss waits with the outputs until the trainer's is there
    (LLaMA-Factory v1/core/base_trainer.py: compute_log_probs)."""
    with p.tape.at("head"):  # within the model's forward
        wide = cast(p.tape, logits, FP32, "logits in fp32")
        own = nll(p.tape, log_softmax(p.tape, wide, "log-softmax of the model's own loss"), Dim("1", 1))
        del wide  # the same local, of the model's own ForCausalLMLoss
        logits = p.leaving(logits) if p.leaving is not None else logits
    loss = shifted_cross_entropy(p, logits, rows)
    del own  # ``outputs.loss``: compute_log_probs names the outputs until it returns
    return loss


def chunked_cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """LitGPT's full fine-tuning: logits in one piece, a cross-entropy for 128 rows at a time in their own dtype, whose
    gradients are joined again (litgpt 0.5, utils.py: chunked_cross_entropy)."""
    tape = p.tape
    flat = copy(tape, logits, "logits, shifted") if rows > 1 else logits
    parts = min(32, max(1, p.tokens // 128))
    part, scored = Dim("T·V/chunks", logits.dim.elements // parts), Dim("T/chunks", p.tokens // parts)
    losses = [
        nll(tape, log_softmax(tape, block, "log-softmax of a chunk"), scored)
        for block in split(tape, flat, parts, part)
    ]
    return concatenate(tape, losses, p.dim("1", 1), "loss of each token")
