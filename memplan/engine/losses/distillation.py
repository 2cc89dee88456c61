"""Losses over whole distributions: what a student and its teacher say of every entry of the vocabulary.

Both stand in full beside each other; the teacher's side has no graph. T tokens, V vocabulary."""

from memplan.engine.layers.modules import Pass
from memplan.engine.tape import loss_ops, ops, routing_ops
from memplan.engine.tape.graph import Grads, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape


def exponential(tape: Tape, x: Tensor, label: str) -> Tensor:
    """``torch.exp``: saves its result where x has a graph."""
    return ops.unary(tape, x, label, saves="result")


def difference(tape: Tape, a: Tensor, b: Tensor, label: str) -> Tensor:
    """``a - b``, in the wider dtype of both: saves nothing; b's gradient is negated, a new tensor, and each is narrowed
    where its side was the narrower."""
    dim, itemsize, want_a, want_b = a.dim, max(a.itemsize, b.itemsize), a.needs_grad, b.needs_grad
    a_size, b_size = a.itemsize, b.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        of_b = t.gradient((dim, itemsize)) if want_b else None
        if want_b and b_size != itemsize:
            of_b = t.gradient((dim, b_size))
        of_a = grads[0] if a_size == itemsize else t.gradient((dim, a_size)) if want_a else None
        return (of_a if want_a else None, of_b)

    return tape.new(dim, itemsize, label, tape.node((a, b), (), backward))


def kl_div(tape: Tape, given: Tensor, target: Tensor) -> Tensor:
    """``F.kl_div(log_target=True)``: exp(target) × (target − given) (aten/src/ATen/native/Loss.cpp)."""
    powers = exponential(tape, target, "probabilities")
    apart = difference(tape, target, given, "difference of log-probabilities")
    return ops.mul(tape, powers, apart, "divergence of each entry")


def kl_divergence(p: Pass, logits: Tensor, teacher: Tensor, scored: int) -> Tensor:
    """The forward KL of a plain loop: ``kl_div(log_softmax(student), log_softmax(teacher))``, summed."""
    tape = p.tape
    student = loss_ops.log_softmax(tape, logits, "log-softmax of the student")
    theirs = _of_teacher(tape, teacher)
    return routing_ops.reduce(tape, kl_div(tape, student, theirs), Dim("1", 1), "loss")


def _of_teacher(tape: Tape, teacher: Tensor) -> Tensor:
    """The log-softmax of the teacher's logits, which have no graph."""
    return loss_ops.log_softmax(
        tape, Tensor(teacher.dim, teacher.itemsize, teacher.storage), "log-softmax of the teacher"
    )


def jensen_shannon(p: Pass, logits: Tensor, teacher: Tensor, scored: int) -> Tensor:
    """TRL's ``generalized_jsd_loss`` with beta 0.5 (trl 1.16, experimental/gkd/gkd_trainer.py): copies over the
    temperature, the mixture's log-sum-exp over a stack of both, two divergences, their sum, and its scored rows."""
    tape, dim = p.tape, logits.dim
    student_logits = ops.scale(tape, logits, "student logits over the temperature")
    teacher_logits = ops.scale(tape, teacher, "teacher logits over the temperature")
    student = loss_ops.log_softmax(tape, student_logits, "log-softmax of the student")
    theirs = _of_teacher(tape, teacher_logits)
    parts = [
        ops.scale(tape, student, "weighted log-probabilities", shares_gradient=True),
        ops.scale(tape, theirs, "weighted log-probabilities"),
    ]
    both = ops.concatenate(tape, parts, Dim("2·T·V", 2 * dim.elements), "log-probabilities of both")
    parts.clear()  # temporaries in the list given to ``torch.stack`` (gkd_trainer.py: generalized_jsd_loss)
    mixture = loss_ops.logsumexp(tape, both, dim)
    del both  # the stack is a temporary of ``torch.logsumexp(torch.stack(…), dim=0)``
    of_teacher = kl_div(tape, mixture, theirs)
    of_student = kl_div(tape, mixture, student)
    halves = [ops.scale(tape, each, "weighted divergence") for each in (of_teacher, of_student)]
    total = ops.add(tape, halves[0], halves[1], "divergence of each entry")
    halves.clear()  # temporaries of ``beta * kl_teacher + (1 - beta) * kl_student``
    part = Dim("N·V", min(scored, p.tokens) * (dim.elements // p.tokens))
    rows = routing_ops.gather_rows(tape, total, part, "divergence of scored tokens")
    del total  # ``jsd = jsd[mask]`` rebinds it
    return routing_ops.reduce(tape, rows, Dim("1", 1), "loss")


DIVERGENCES = {"kl-divergence": kl_divergence, "jensen-shannon": jensen_shannon}
