"""In which order changes are told: what is free, what costs little, another training, the host, more degrees of
parallelism, more cards, shorter sequences.

Within a tier the fewest changes come first, then what is easiest to write (``place``), then the fastest."""

from collections.abc import Iterable

from memplan.units import words_of

FREE, LITTLE, TRAINING, HOST, DEGREES, CARDS, SHORTER = range(7)
"""Free: the same training, by settings alone. Little: the same by way of set-up, of numerics or of the cards that are
there. Training: other weights, another method. Host: something waits there. Degrees: of tensor, pipeline and context
parallelism."""
ALL = (FREE, LITTLE, TRAINING, HOST, DEGREES, CARDS, SHORTER)
SLOWEST = 3.0
"""Times the job's own time per token above which a change is told last, if at all."""
_OF_AXIS = {
    "pair_pass": LITTLE,
    "layout": LITTLE,
    "8bit": LITTLE,
    "trainer_offload": LITTLE,
    "engine ranks": LITTLE,
    "placement": LITTLE,
    "weights": TRAINING,
    "entropy": TRAINING,
    "method": TRAINING,
    "group": TRAINING,
    "shorter": SHORTER,
}
_PLACES = words_of(
    """precision allocator loss_head batch_size token_budget kernels attention gradient_checkpointing reference
    sharding zero_stage pair_pass optimizer"""
)
"""Keys, the easiest to write first."""


def of_axis(axis: str) -> int:
    """The tier of a change of this axis."""
    return _OF_AXIS.get(axis, FREE)


def place(keys: Iterable[str]) -> int:
    """Where a change of these keys stands in its tier: by the hardest of them to write."""
    return max((_PLACES.index(key) if key in _PLACES else len(_PLACES) for key in keys), default=0)
