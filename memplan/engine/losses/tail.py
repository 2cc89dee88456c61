"""The tail of a pass played on a tape: final norm, head, loss, and what the caller holds of them.

Losses over whole distributions: what a student and its teacher say of every entry of the vocabulary. Both stand in full
beside each other; the teacher's side has no graph. T tokens, V vocabulary."""

from memplan.engine.layers.attention.eager import masked
from memplan.engine.layers.modules import Pass, norm, project, weight_of
from memplan.engine.layers.moe.load_balancing_loss import load_balancing_loss
from memplan.engine.losses import heads
from memplan.engine.losses.heads import STATES, Head
from memplan.engine.losses.scored import FUSED_PROGRAMS, Scored
from memplan.engine.parallel.sequence import gathered, whole_logits
from memplan.engine.tape import loss_ops, ops, routing_ops
from memplan.engine.tape.graph import Grads, Param, Tensor, in_turn
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.model import ModelSpec


def casts_of(tape: Tape) -> int:
    """Autocast's copies of weights, alive while autocast is open."""
    return sum(delta for delta, tag in tape.log if tag.category == "autocast_weights")


def tail_forward(
    p: Pass, spec: ModelSpec, head: Head, rows: int, inputs: list[Tensor], forward: list[Tensor] | None = None
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The loss, what the caller holds through backward, and what it holds until the loss is whole.

    Takes the hidden states out of the list (nobody else holds them), and ``forward``'s locals when it returns."""
    tape, x = p.tape, inputs.pop()
    with tape.at("final-norm"):
        locals_held: list[Tensor] = []
        if spec.streams > 1:
            inputs.append(x)
            del x  # ``inputs`` hands it on, so that streams can be let go of one by one
            from memplan.engine.layers.gemma3n_layer import averaged
            from memplan.engine.layers.hyper_connections import closed

            x = (closed if spec.runs[0].layer.form == "hyper" else averaged)(p, spec, inputs, locals_held)
        hidden = norm(p, spec.final_norm, x, "h") if spec.final_norm else x
        del x, locals_held  # ``hidden_states = self.norm(hidden_states)`` rebinds it (LlamaModel.forward)
        if spec.encoder and spec.encoder.dropout:
            hidden = ops.dropout(tape, hidden, "final hidden states")
        if spec.project_out:
            hidden = project(p, hidden, spec.project_out, "h", "projected outputs", quantised=False)
    if forward is not None:
        forward.clear()
    inputs.append(p.entering(hidden))
    del hidden  # ``inputs`` has it: the head takes the last holder where nothing of the forward remains
    if head.program in FUSED_PROGRAMS:
        with tape.at("loss"):
            held: list[Tensor] = []
            loss = _balanced(p, spec, _fused_loss(p, spec, head, inputs, rows, held))
            p.routers = []
            return loss, held, []
    if head.program == "hidden":
        p.routers = []
        with tape.at("loss"):
            return heads.mean_loss(p, inputs.pop()), [], []
    whole, within = p, head.program in heads.INSIDE
    with tape.at("head"):
        named = [tape.new(p.dim("h·L", earlier), 1, STATES)] if (earlier := head.before_last(spec)) else []
        p, states, logits = _logits(p, spec, head, inputs)
        if whole.leaving is not None and head.program != "repeated-cross-entropy":
            logits = whole.leaving(logits)
        balance = None if within or not whole.routers else load_balancing_loss(whole, spec)
    if head.program in ("score", "value-head"):
        with tape.at("loss"):
            return heads.reward(p, logits, states[0], head.program == "value-head"), [], []
    inputs.append(logits)
    returned = spec.tower is not None and spec.tower.loss_within  # the head's own forward has, when the loss is made
    model_locals = states if within and not returned else []
    del logits, states  # ``outputs.logits`` is in ``inputs``; ``hidden_states`` is a local while the loss is within
    with tape.at("loss"):
        if not within and head.loss.fp32_outputs:
            inputs[:0] = whole.routers  # all outputs are there until all are cast
            whole.routers = [ops.cast(tape, each, ops.FP32, "outputs in fp32") for each in whole.routers]
        loss, outputs, kept = _loss(p, spec, head, rows, inputs, model_locals, named)
        outputs += whole.routers if outputs else []
        kept += whole.routers if head.code.holds_logits else []
        whole.routers = []
        return loss if balance is None else _with(whole, loss, balance), outputs, kept


def _logits(p: Pass, spec: ModelSpec, head: Head, inputs: list[Tensor]) -> tuple[Pass, list[Tensor], Tensor]:
    """The pass over what is projected, states that forward names, and the logits. Takes the states off the list."""
    tape, hidden = p.tape, inputs.pop()
    if head.projected:
        p, hidden = project_completions(p, spec, hidden, head.projected)
    hidden = gathered(p, hidden)
    states = [hidden]
    if spec.pooler:
        from memplan.engine.layers.encoder_layer import pooled

        p, hidden = pooled(p, spec.pooler, hidden)
    if spec.scaled_head_input and head.program != "score":
        hidden = ops.scale(tape, hidden, "scaled final hidden states")
        states.append(hidden)
    if spec.residual_fp32:
        hidden = ops.cast(tape, hidden, p.mode.numerics.itemsize, "final hidden states")
    logits = project(p, hidden, spec.head, "V" if spec.head.outputs > 1 else "1", "logits", quantised=False)
    logits = whole_logits(p, logits) if spec.head.outputs > 1 else logits
    if spec.logits_fp32:
        logits = ops.cast(tape, logits, ops.FP32, "logits in fp32")
    if spec.logits_shifted and head.program != "score":
        logits = masked(p, logits)
    if spec.logits_scaled:
        logits = ops.scale(tape, logits, "scaled logits")
    if spec.logits_softcap is not None:
        uncapped = logits if spec.softcap_at_once else None
        logits = ops.scale(tape, logits, "logits")
        logits = ops.unary(tape, logits, "soft-capped logits", saves="result")
        logits = ops.scale(tape, logits, "logits")
        del uncapped  # one expression of division, tanh and product: the head's own logits live until its end
    return p, states, logits


def _balanced(p: Pass, spec: ModelSpec, loss: Tensor) -> Tensor:
    """The loss with that of the routers beside it, where the model's own forward makes both."""
    return _with(p, loss, load_balancing_loss(p, spec)) if p.routers else loss


def _with(p: Pass, loss: Tensor, balance: Tensor) -> Tensor:
    """The loss with that of the routers, if it is read."""
    return ops.add(p.tape, loss, balance, "loss") if p.mode.router.how == "read" else loss


def _fused_loss(p: Pass, spec: ModelSpec, head: Head, inputs: list[Tensor], rows: int, held: list[Tensor]) -> Tensor:
    """A head that never makes all of the logits."""
    weight = _whole_head(p, spec, head) if head.whole_itemsize else weight_of(p, spec.head)
    tokens = head.scored_tokens or p.tokens
    scored = Scored(
        tokens, rows, head.reference_itemsize, head.pairs, head.loss.fp32_outputs, spec.head, held, head.free
    )
    return FUSED_PROGRAMS[head.program](p, inputs.pop(), weight, scored)


def _whole_head(p: Pass, spec: ModelSpec, head: Head) -> Param:
    """The head's weight as ``full_tensor()`` gathers it."""
    own = weight_of(p, spec.head)  # whose place in the graph it takes: one of its own would hold it from step to step
    dim, summed = Dim(own.dim.symbol, own.dim.elements * p.mode.summed), p.mode.summed > 1
    whole = p.tape.new(dim, head.whole_itemsize, "head, gathered by the loss", category="gathered_parameters")
    weight = Param(p.tape, own.name, dim.elements, head.whole_itemsize, trained=False)
    part = p.tape.node((own,), (), in_turn((own.dim, head.whole_itemsize))) if summed else own.node
    weight.node, weight.needs_grad, weight.storage = part, own.needs_grad, whole.storage
    return weight


def _loss(
    p: Pass, spec: ModelSpec, head: Head, rows: int, inputs: list[Tensor], within: list[Tensor], named: list[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """From logits to loss: casts, log-probabilities, the log's copies. ``named``: hidden states that outputs have."""
    tape, logits = p.tape, inputs.pop()
    if head.code.leaves_autocast and head.program not in heads.INSIDE:
        tape.leave_autocast()
        tape.autocast = 0
    sliced = head.sliced if head.program not in heads.INSIDE else 0
    early = head.code.frees_logits or head.loss.fp32_outputs or not sliced  # else the slice alone is cast
    scores = ops.cast(tape, logits, ops.FP32, "logits in fp32") if head.loss.to_fp32 and early else logits
    if head.narrow and p.mode.residual_itemsize < ops.FP32:
        inputs.append(tape.new(p.dim("h·L", head.hidden_bytes // 2), 1, STATES))
    named += [tape.new(p.dim("h·L", last), 1, STATES)] if (last := head.hidden_bytes - head.before_last(spec)) else []
    inputs.clear()  # ``logits = logits.float()``: the model's own live on where ``logits`` or a node holds them
    logits = scores if head.code.frees_logits else logits
    whole, part, read = [scores] if head.code.holds_logits else [], p, scores
    if sliced:
        part, scores = completions_of(p, scores, sliced, head.code.step_outputs)
    scores = ops.cast(tape, scores, ops.FP32, "logits in fp32") if head.loss.to_fp32 else scores
    if head.code.rescales:
        logits = scores = read = ops.scale(tape, scores, "logits over the temperature")
    if head.beside_logits:
        reference = tape.new(scores.dim, head.beside_logits, "reference logits")
        logits = scores = read = heads.stacked(part, scores, reference)
        del reference  # joined with the policy's (dpo_model.py: hyper_model)
    if head.teacher_itemsize:
        teacher = tape.new(logits.dim, head.teacher_itemsize, "teacher's logits")
        loss = DIVERGENCES[head.program](part, scores, ops.view(tape, teacher, scores.dim), head.scored_tokens)
        del teacher  # ``shifted_teacher_logits`` (trl 1.16 experimental/gkd/gkd_trainer.py: compute_loss)
    else:
        loss = heads.score(part, scores, head, rows, named, (p, read))
    loss = _balanced(p, spec, loss) if head.program in heads.INSIDE else loss
    within.clear()  # LlamaForCausalLM.forward returns, and ``hidden_states`` goes
    if head.code.leaves_autocast:
        tape.leave_autocast()
    outputs: list[Tensor] = []
    if head.loss.keeps_outputs or (head.loss.fp32_outputs and head.program in heads.INSIDE):
        with tape.at("outputs" if head.code.leaves_autocast and head.program in heads.INSIDE else tape.point):
            outputs = [ops.cast(tape, logits, ops.FP32, "outputs in fp32") if head.loss.fp32_outputs else logits]
            p.routers = [ops.cast(tape, x, ops.FP32, "outputs") if head.loss.fp32_outputs else x for x in p.routers]
        logits = scores = read = outputs[0]
    if head.code.metrics:
        with tape.at("log" if head.program in heads.INSIDE else tape.point):
            p.ended()
            whole = heads.METRICS[head.code.metrics](p, logits, head.scored_tokens or p.tokens) or whole
    outputs += named if head.program == "own" else []  # names of a loop, until it comes around
    named.clear()  # ``outputs.hidden_states``, until concatenated_forward returns (trl 0.19 to 0.28)
    return loss, outputs if head.loss.keeps_outputs else [], whole


def project_completions(p: Pass, spec: ModelSpec, hidden: Tensor, length: int) -> tuple[Pass, Tensor]:
    """The last ``length`` positions of each row (``logits_to_keep``), and a pass over them alone.

    A product with a trained weight copies a slice of several rows (aten matmul: should_fold); a cast does so anyway."""
    if length >= p.length:
        return p, hidden
    tape, part = p.tape, p.part(p.rows, length)
    trained = p.mode.trained and spec.head.name not in p.mode.frozen
    hidden = ops.view(tape, hidden, part.dim("h", spec.head.inputs), whole=False)
    if trained and p.rows > 1 and tape.autocast in (0, hidden.itemsize):
        hidden = ops.copy(tape, hidden, "completions' hidden states")
    return part, hidden


def completions_of(p: Pass, logits: Tensor, length: int, divided: bool = False) -> tuple[Pass, Tensor]:
    """The logits of ``length`` positions of each row, a slice of all, and a pass over them alone.

    ``divided``: by the temperature, in place. The gradient of a view that was written to goes through a copy of the
    whole one, a clone of the slice and the slice's own (torch/csrc/autograd: CopySlices)."""
    if length >= p.length:
        return p, logits
    tape, part = p.tape, p.part(p.rows, length)
    whole, dim, itemsize = logits.dim, part.dim("V", logits.dim.elements // p.tokens), logits.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        copied = t.gradient((whole, itemsize))
        sides = t.gradient((dim, itemsize)), t.gradient((dim, itemsize))
        del sides  # the slice's clone and own gradient are copied into ``result`` (CopySlices::apply)
        return (copied,)

    if divided:
        logits = Tensor(whole, itemsize, logits.storage, tape.node((logits,), (), backward))
    return part, ops.view(tape, logits, dim, whole=False)


def difference(tape: Tape, a: Tensor, b: Tensor, label: str) -> Tensor:
    """``a - b``, in the wider dtype: saves nothing; b's gradient is negated, new; each narrowed where its side was."""
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
    powers = ops.unary(tape, target, "probabilities", saves="result")
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
