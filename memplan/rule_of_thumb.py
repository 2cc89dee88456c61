"""The rule of thumb: closed formulas for the memory of preference training, as people work them out by hand.

Parameters, AdamW states, gradients, activations with their attention scores, the batch, divided by ZeRO, and a fifth
on top. It is kept because it can be checked with a pencil and is what many readers know; memplan's own figures come
from ``memplan/engine``, and ``REASONS`` says why they differ. It takes the reference model's log-probabilities as
precomputed, so a reference has no bytes here. Everything is per GPU.

Sources of the pieces: ZeRO, arXiv:1910.02054; mixed precision, arXiv:1710.03740; checkpointing, arXiv:1604.06174."""

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.errors import InvalidJob, did_you_mean
from memplan.tables.texts import texts_by_name
from memplan.units import ceil_div

OPTIMIZER_BYTES = {"adamw": 8, "sgd": 4}
"""Bytes of state per trainable parameter: two fp32 moments, or one."""
GRADIENT_BYTES = 4
"""fp32, whatever the parameters are."""
TOKEN_BYTES = 8
"""input_ids and labels are int64."""
MLP_RATIO = 4
"""A feed-forward four times as wide as the hidden state."""
CHECKPOINTED_PARTS = 4
"""Checkpointing leaves one part in four of the activations."""
MARGIN_PARTS = 5
"""The margin is one part in five: 20 %."""

TERM_NAMES = {
    "parameters": "model parameters",
    "optimizer_states": "optimizer states",
    "gradients": "gradients",
    "activations": "activations",
    "batch": "batch data",
    "margin": "margin of 20 %",
}


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the rule: its bytes on one GPU, its formula, and the formula with the numbers put in."""

    name: str
    key: str
    bytes: int
    formula: str
    numbers: str


def parameter_bytes(params: int, dtype_bytes: int) -> int:
    """All weights, trained or not, in the dtype that they are stored in."""
    return params * dtype_bytes


def optimizer_bytes(trainable: int, optimizer: str) -> int:
    """Optimizer states of the trained weights, in fp32. Raises InvalidJob for an optimizer that the rule lacks."""
    if optimizer not in OPTIMIZER_BYTES:
        hint = (
            did_you_mean(optimizer, OPTIMIZER_BYTES) + "; the rule of thumb has no other, memplan's own estimate does"
        )
        raise InvalidJob(f"optimizer: {optimizer!r} is not in the rule of thumb", hint)
    return trainable * OPTIMIZER_BYTES[optimizer]


def gradient_bytes(trainable: int) -> int:
    """One fp32 gradient for each trained weight."""
    return trainable * GRADIENT_BYTES


def attention_bytes(batch: int, heads: int, length: int, dtype_bytes: int) -> int:
    """Attention scores of one layer: [batch, heads, length, length]."""
    return batch * heads * length * length * dtype_bytes


def hidden_bytes(batch: int, length: int, hidden: int, dtype_bytes: int) -> int:
    """Hidden state of one layer: [batch, length, hidden]."""
    return batch * length * hidden * dtype_bytes


def mlp_bytes(batch: int, length: int, hidden: int, dtype_bytes: int) -> int:
    """Feed-forward state of one layer: [batch, length, 4 hidden]."""
    return batch * length * MLP_RATIO * hidden * dtype_bytes


def activation_bytes(
    *, hidden: int, heads: int, layers: int, batch: int, length: int, dtype_bytes: int, checkpointing: bool
) -> int:
    """Activations of all layers, a quarter of them with checkpointing. A pair's second sequence is not counted."""
    layer = attention_bytes(batch, heads, length, dtype_bytes)
    layer += hidden_bytes(batch, length, hidden, dtype_bytes) + mlp_bytes(batch, length, hidden, dtype_bytes)
    return ceil_div(layers * layer, CHECKPOINTED_PARTS) if checkpointing else layers * layer


def batch_bytes(batch: int, length: int, pairs: bool, images_bytes: int = 0) -> int:
    """Token ids and labels, and pixels (``images_bytes`` for the micro-batch); twice for pairs."""
    single = batch * length * 2 * TOKEN_BYTES + images_bytes
    return 2 * single if pairs else single


def zero_share(key: str, zero_stage: int, num_gpus: int) -> int:
    """By how many GPUs ZeRO divides a term: states from stage 1, gradients from 2, parameters from 3."""
    first_stage = {"optimizer_states": 1, "gradients": 2, "parameters": 3}
    return num_gpus if key in first_stage and zero_stage >= first_stage[key] else 1


def rule_of_thumb(
    *,
    params: int,
    trainable: int,
    hidden: int,
    heads: int,
    layers: int,
    batch: int,
    length: int,
    dtype_bytes: int,
    optimizer: str,
    num_gpus: int,
    zero_stage: int,
    checkpointing: bool,
    pairs: bool,
    images_bytes: int = 0,
) -> list[Term]:
    """The lines of the rule for one GPU, the margin last. ``subtotal`` and ``total`` add them up.

    ``batch`` is examples per GPU and micro-step (pairs, for pairwise methods), ``length`` tokens per sequence."""
    _check_sizes(params, hidden, heads, layers, batch, length, dtype_bytes, num_gpus)
    if zero_stage not in range(4):
        raise InvalidJob(f"zero_stage: {zero_stage} is no stage of ZeRO", "use 0, 1, 2 or 3")
    if not 0 <= trainable <= params:
        raise InvalidJob(f"{trainable:,} trainable of {params:,} parameters", "trainable ones are among the parameters")
    if images_bytes < 0:
        raise InvalidJob(f"{images_bytes} bytes of images", "give 0 or more")
    e = dtype_bytes
    quarter, twice = " × 0.25" if checkpointing else "", " × 2" if pairs else ""
    activations = activation_bytes(
        hidden=hidden,
        heads=heads,
        layers=layers,
        batch=batch,
        length=length,
        dtype_bytes=e,
        checkpointing=checkpointing,
    )
    layer = f"({batch}·{heads}·{length}² + {batch}·{length}·{hidden} + {batch}·{length}·{MLP_RATIO * hidden})"
    data = batch_bytes(batch, length, pairs, images_bytes)
    terms = [
        *(_divided(term, zero_stage, num_gpus) for term in _states(params, trainable, e, optimizer)),
        _term("activations", activations, _ACTIVATIONS + quarter, f"{layers} × {layer} × {e}{quarter}"),
        _term("batch", data, _BATCH + twice, f"({batch}·{length}·(8 + 8) + {images_bytes:,}){twice}"),
    ]
    return [*terms, margin(subtotal(terms))]


def margin(sum_of_terms: int) -> Term:
    """A fifth of all other terms, for what the rule leaves out."""
    return _term("margin", ceil_div(sum_of_terms, MARGIN_PARTS), "sum × 0.2", f"{sum_of_terms:,} × 0.2")


def subtotal(terms: Sequence[Term]) -> int:
    """Bytes of all terms but the margin: the figure that strategies are compared by."""
    return sum(term.bytes for term in terms if term.key != "margin")


def total(terms: Sequence[Term]) -> int:
    """Bytes of all terms, the margin included."""
    return sum(term.bytes for term in terms)


_ACTIVATIONS = "layers × (b·heads·s² + b·s·h + b·s·4h) × bytes"
_BATCH = "(b·s·(ids + labels) + images)"


def _states(params: int, trainable: int, e: int, optimizer: str) -> list[Term]:
    """Parameters, optimizer states and gradients before any division."""
    states = optimizer_bytes(trainable, optimizer)
    per_state = OPTIMIZER_BYTES[optimizer]
    return [
        _term("parameters", parameter_bytes(params, e), "parameters × bytes", f"{params:,} × {e}"),
        _term("optimizer_states", states, f"trainable × {per_state} ({optimizer})", f"{trainable:,} × {per_state}"),
        _term("gradients", gradient_bytes(trainable), "trainable × 4", f"{trainable:,} × {GRADIENT_BYTES}"),
    ]


def _divided(term: Term, zero_stage: int, num_gpus: int) -> Term:
    """A term after ZeRO's division, which shows in its formula."""
    gpus = zero_share(term.key, zero_stage, num_gpus)
    if gpus == 1:
        return term
    return _term(term.key, ceil_div(term.bytes, gpus), f"{term.formula} / GPUs", f"{term.numbers} / {gpus}")


def _term(key: str, size: int, formula: str, numbers: str) -> Term:
    return Term(TERM_NAMES[key], key, size, formula, numbers)


def _check_sizes(*sizes: int) -> None:
    """Every size is a whole number of at least 1."""
    for size in sizes:
        if size < 1:
            raise InvalidJob(f"the rule of thumb cannot take {size}", "give whole numbers of at least 1")


REASONS = texts_by_name(__file__)
"""Why the engine's figure differs, by the engine's category. Section by section: MEMORY_ESTIMATION.md."""
