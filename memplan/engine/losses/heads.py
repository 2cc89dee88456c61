"""How each trainer turns hidden states into a loss: programs on the tape, in the words of the trainers' own code.

A program takes the logits (or, for fused heads, the hidden states) and returns the tensor that backward starts from.
Symbols: V vocabulary, h hidden; all per token, T tokens of the pass."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from memplan.engine.layers.modules import Pass
from memplan.engine.losses.scored import checkpointed
from memplan.engine.programs import Programs
from memplan.engine.tape import loss_ops, ops, routing_ops
from memplan.engine.tape.graph import Tensor, in_turn
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.turns import played, turns
from memplan.spec.groups import Loss, LossCode
from memplan.spec.model import ModelSpec
from memplan.units import by_name, words_of

Program = Callable[[Pass, Tensor, int], Tensor]
STATES = "hidden states of the outputs"


class Head(NamedTuple):
    """How the tail of a pass becomes a loss."""

    loss: Loss
    """The recipe's, without what this pass does not do. Its head is a key of ``LOGITS_PROGRAMS`` or
    ``FUSED_PROGRAMS``, 'score', 'value-head', or 'hidden' (no head at all)."""
    scored_tokens: int = 0
    hidden_bytes: int = 0
    """Bytes per token of hidden states that the outputs hold besides, of all layers together."""
    narrow: bool = False
    """They are copies in fp32 of what the outputs hold until all are made, and nothing keeps anyway."""
    beside_logits: int = 0
    """Element size of the reference's logits, which stand beside the policy's and are concatenated with them."""
    pairs: bool = True
    """Rows are chosen and rejected halves."""
    reference_itemsize: int = 0
    """Element size of the reference's hidden states and head, where the fused loss reads them; 0 without."""
    projected: int = 0
    """Positions of each row that the head projects; 0: all."""
    sliced: int = 0
    """Positions of each row whose logits the loss reads; 0: all."""
    teacher_itemsize: int = 0
    """Element size of a teacher's logits, which the loss reads in full; 0 without."""
    whole_itemsize: int = 0
    """Element size of the head's weight, where it is a shard that a fused loss gathers by itself; 0: it is there."""
    free: int = 0
    """Bytes of the card that weights leave, where chunks of the loss go by that; 0: not known, or they do not."""
    waits: bool = False
    """The teacher's forward comes between this pass's forward and its loss."""

    @property
    def program(self) -> str:
        """What it runs."""
        return self.loss.head

    @property
    def code(self) -> LossCode:
        """What the trainer's code does in this pass."""
        return self.loss.code

    def before_last(self, spec: ModelSpec) -> int:
        """Of the hidden states' bytes, those of all but the last, which goes into the head."""
        there = self.code.hidden_states and not self.narrow
        return self.hidden_bytes * spec.num_layers // (spec.num_layers + 1) * there


NO_HEAD = Head(Loss(head="hidden"))
"""Of a pass that ends with its layers."""


def cross_entropy(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """``ForCausalLMLoss`` of transformers: ``logits.float()``, then ``F.cross_entropy`` on shifted labels."""
    tape = p.tape
    wide = ops.cast(tape, logits, ops.FP32, "logits in fp32")
    log_probabilities = loss_ops.log_softmax(tape, wide, "log-softmax")
    return loss_ops.nll(tape, log_probabilities, Dim("1", 1))


def log_softmax(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """``logits.log_softmax(-1)`` and gather: the whole log-softmax is kept."""
    tape = p.tape
    log_probabilities = loss_ops.log_softmax(tape, logits, "log-softmax")
    return loss_ops.gather(tape, log_probabilities, p.dim("1", 1), "log-probabilities")


def selective(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """TRL's ``selective_log_softmax`` in torch: row by row in half precision, by log-sum-exp in fp32."""
    tape = p.tape
    per_row = Dim("T·V/rows", logits.dim.elements // rows)
    scored = Dim("T/rows", p.tokens // rows)
    if logits.itemsize == ops.FP32:
        chosen = loss_ops.gather(tape, logits, p.dim("1", 1), "log-probabilities")
        each = ops.split(tape, logits, played(tape, rows), per_row)
        sums = [loss_ops.logsumexp(tape, each[row], scored) for row in turns(tape, rows)]
        total = ops.concatenate(tape, sums, p.dim("1", 1), "log-probabilities")
        return ops.add(tape, chosen, ops.scale(tape, total, "log-probabilities"), "log-probabilities")
    parts, row_logps, each = [], None, ops.split(tape, logits, played(tape, rows), per_row)
    for row in turns(tape, rows):
        row_logps = loss_ops.log_softmax(tape, each[row], "log-softmax")
        parts.append(loss_ops.gather(tape, row_logps, scored, "log-probabilities"))
    del row_logps, each  # what is left of the loop over rows (trl 0.17 trainer/utils.py: selective_log_softmax)
    return ops.concatenate(tape, parts, p.dim("1", 1), "log-probabilities")


def stacked(p: Pass, logits: Tensor, reference: Tensor) -> Tensor:
    """MindSpeed's DPO: ``torch.cat`` of policy and reference logits; the policy's half (MindSpeed-LLM dpo_model.py)."""
    tape, dim = p.tape, logits.dim
    whole = Dim(dim.symbol, 2 * dim.elements)
    both = ops.concatenate(tape, (logits,), whole, "logits of policy and reference")
    zeros = dim, both.itemsize, "zeros of the reference's half"
    back = in_turn(zeros, (whole, both.itemsize, "joined gradients"))
    return Tensor(dim, both.itemsize, both.storage, tape.node((both,), (), back))


def stacked_log_softmax(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """Both halves are scored (MindSpeed-LLM tasks/posttrain/utils.py: compute_log_probs, one tensor-parallel rank)."""
    scores = log_softmax(p, logits, rows)
    theirs = p.tape.new(logits.dim, logits.itemsize, "reference log-softmax")
    del theirs  # under ``no_grad``: of the reference's half the gathered values stay
    return scores


def logits_alone(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """The reference of a trainer that scores its logits together with the policy's."""
    return p.tape.new(Dim("1", 1), ops.FP32, "loss")


def own_loss(p: Pass, logits: Tensor, itemsize: int, beside: list[Tensor]) -> Tensor:
    """A loss of the program's own, from above: all that it has at once for each logit stands beside the logits from its
    forward to the end of its backward, as do hidden states that it reads (``spec/own_loss.py``). All of it goes to
    ``beside``."""
    beside.append(p.tape.new(logits.dim, itemsize, "tensors of the program's own loss"))
    return p.tape.new(Dim("1", 1), ops.FP32, "loss", p.tape.node((logits,), (logits, *beside), ops.own(logits)))


def held_logits(p: Pass, logits: Tensor, rows: int) -> Tensor:
    """No loss yet: the logits wait, with their graph."""
    return logits


LOGITS_PROGRAMS: Programs[Program] = Programs("logits")
INSIDE = words_of(
    """cross-entropy shifted-cross-entropy foak-cross-entropy parallel-cross-entropy plain-cross-entropy
    compiled-cross-entropy megatron-cross-entropy unsloth-cross-entropy"""
)
"""Losses that the model's own forward computes: its locals live meanwhile."""

ENTROPIES: Programs[Callable[[Pass, Tensor, bool, bool], Tensor | None]] = Programs("entropies")


def mean_loss(p: Pass, log_probabilities: Tensor) -> Tensor:
    """From log-probabilities to a scalar: bytes per token only, kept as one storage."""
    return routing_ops.reduce(p.tape, log_probabilities, Dim("1", 1), "loss")


def reward(p: Pass, logits: Tensor, hidden: Tensor, beside: bool) -> Tensor:
    """A score head's loss; ``beside`` the vocabulary's head the value head reads the hidden states, and the logits are
    cast for nobody (trl 0.9 models/modeling_value_head.py: ``lm_logits.float()``)."""
    if beside:
        ops.cast(p.tape, logits, ops.FP32, "logits in fp32")
    return mean_loss(p, hidden if beside else logits)


def sft_term(p: Pass, logits: Tensor, late: str = "") -> Tensor:
    """A cross-entropy over the chosen half without each row's last position: a contiguous copy, and its log-softmax
    (trl cpo_trainer.py, orpo_trainer.py: ``logits[:, :-1]``, then its half). One chosen row is contiguous as it is.
    ``late``: the half first, whole where it is 'viewed' (trl 0.14 and 0.24 dpo_trainer.py)."""
    tape, dim, viewed = p.tape, logits.dim, late == "viewed"
    last = dim.elements // p.tokens * p.rows
    first = dim.elements // 2 if late else dim.elements - last
    chosen = ops.view(tape, logits, Dim(dim.symbol, first), whole=False)
    if not viewed:
        chosen = ops.view(tape, chosen, Dim("T·V/2", (dim.elements - last) // 2), whole=False)
    if p.rows > 2 and not viewed:
        chosen = ops.copy(tape, chosen, "chosen half of the logits")
    return loss_ops.nll(tape, loss_ops.log_softmax(tape, chosen, "log-softmax of the chosen half"), Dim("1", 1))


# -- what is copied for the log ---------------------------------------------------------------------------------------


def labelled(p: Pass, logits: Tensor) -> tuple[Pass, Tensor]:
    """All but each row's last position, ``logits[:, :-1]``, outside the graph, and a pass over them."""
    part = p.part(p.rows, p.length - 1)
    return part, Tensor(part.dim("V", logits.dim.elements // p.tokens), logits.itemsize, logits.storage)


def _copied(p: Pass, logits: Tensor, tokens: int, label: str) -> Tensor:
    """Rows of the logits, picked by a mask or an index."""
    width = logits.dim.elements // p.tokens
    return p.tape.new(Dim("N·V", tokens * width), logits.itemsize, label)


def _halves(p: Pass, logits: Tensor, tokens: int) -> list[Tensor]:
    """The mean of the scored logits, first of the chosen half, then of the rejected one (trl 0.9 to 0.28)."""
    half = _copied(p, logits, tokens // 2, "scored logits of one half")
    del half  # ``logits[mask].mean()`` is one expression
    return []


def _pairs(p: Pass, logits: Tensor, tokens: int) -> list[Tensor]:
    """Entropy, then the mean of each half's scored logits (trl 0.29 to 1.13, trainer/dpo_trainer.py)."""
    ENTROPIES["rows"](*labelled(p, logits), False, True)
    return _halves(p, logits, tokens)


def _picked(p: Pass, logits: Tensor, tokens: int) -> list[Tensor]:
    """Logits of chosen and rejected, picked by label, in the logits' place (trl 0.9 to 0.28 kto_trainer.py)."""
    return [_copied(p, logits, p.tokens, "logits of chosen and rejected")]


def _picked_halves(p: Pass, logits: Tensor, tokens: int) -> list[Tensor]:
    """The same, and of either its scored logits (trl 1.14, trainer/kto_trainer.py)."""
    both = _copied(p, logits, p.tokens - p.rows, "logits of chosen and rejected")
    _halves(p, logits, tokens)
    del both
    return []


def _chosen_and_rejected(p: Pass, logits: Tensor, tokens: int) -> list[Tensor]:
    """The same after an entropy (trl 0.29 to 1.13)."""
    ENTROPIES["rows"](*labelled(p, logits), False, True)
    return _picked_halves(p, logits, tokens)


def _shifted(p: Pass, logits: Tensor, tokens: int) -> list[Tensor]:
    """Entropy, then a contiguous copy of the shifted logits for the accuracy (trl 0.16 to 1.6 sft_trainer.py)."""
    ENTROPIES["rows"](p, logits, False, False)
    if p.rows > 1:  # a single row is contiguous as it is
        shifted = _copied(p, logits, p.tokens - p.rows, "logits, shifted")
        del shifted  # ``argmax`` has read the contiguous copy
    return []


def _scored_again(p: Pass, logits: Tensor, tokens: int, made: Sequence[str] = ("logits", "scores")) -> list[Tensor]:
    """LLaMA-Factory's KTO scores the mismatched completions while the reference's logits are held: logits and
    log-softmax once more (llamafactory 0.9.5, train/kto/trainer.py: concatenated_forward)."""
    sizes = {what: p.tokens - p.rows * (what != "logits") for what in made}
    copies = [_copied(p, logits, size, f"{what} of mismatched completions") for what, size in sizes.items()]
    return copies[:0]


METRICS: dict[str, Callable[[Pass, Tensor, int], list[Tensor]]] = {
    **by_name(_halves, _pairs, _picked, _picked_halves, _chosen_and_rejected, _shifted, _scored_again),
    "scored-again-tempered": partial(_scored_again, made=("logits", "tempered logits", "scores")),
}
"""Each returns what the caller holds in place of the logits, if anything."""


# -- from logits to the loss ------------------------------------------------------------------------------------------


def score(p: Pass, logits: Tensor, head: Head, rows: int, beside: list[Tensor], whole: tuple[Pass, Tensor]) -> Tensor:
    """Log-probabilities and entropy of what is read of logits in the dtype that the loss sees, SFT term of ``whole``
    ones; or a loss of the program's own, ``beside`` hidden states that the outputs hold."""
    tape, code = p.tape, head.code
    if head.program == "own":
        return own_loss(p, logits, code.own_logits, beside)
    sliced = not code.tempered and not code.rescales and not (head.loss.to_fp32 and not code.frees_logits)

    def log_probabilities(inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        program = head.program.removesuffix("-in-place") if code.entropy else head.program  # its logits are read again
        loss = LOGITS_PROGRAMS[program](p, x, rows)
        entropy = ENTROPIES[code.entropy](p, x, code.entropy_gradient, sliced) if code.entropy else None
        return loss if entropy is None else ops.add(tape, loss, entropy, "loss")

    if code.tempered:
        logits = ops.scale(tape, logits, "logits over the temperature")
    late = code.late_sft_term
    term = sft_term(*whole) if head.loss.sft_term and not late else None
    loss = checkpointed(tape, log_probabilities, (logits,)) if code.recomputed else log_probabilities((logits,))
    term = sft_term(*whole, late) if late else term
    if term is not None:
        loss = ops.add(tape, mean_loss(p, loss), term, "loss")
    return loss
