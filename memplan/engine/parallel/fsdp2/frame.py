"""What FSDP gathers and reduces together, in bytes."""

from typing import NamedTuple


class Unit(NamedTuple):
    """What is gathered and reduced together, in bytes."""

    gathered: int = 0
    """Weights as modules use them."""
    gradients: int = 0
    """Whole gradients as autograd makes them."""
    reduced: int = 0
    """Input of the reduce-scatter, in the reduction's dtype."""
    shard: int = 0
    """Gradients that stay: the rank's part, in the weights' dtype."""
    last: int = 0
    """The gradient of its last tensor: a loop's variable keeps it through the reduction (``foreach_reduce``)."""
    cast: int = 0
    """The all-gather's input in backward: the rank's part in the gathered dtype, where it is stored in another; before
    that, its copy from the host. After resharding to a number, a copy of the part that is there."""
    waiting: int = 0
    """Whole gradients that no backward has reduced yet, in the reduction's dtype, without its padding."""
    zeros: int = 0
    """FSDP1: gradients of views that nothing used, which autograd makes when it puts the flat gradient together."""
    largest: int = 0
    """The largest shard of a gradient among these."""
    widest: int = 0
    """The largest of the copies that the weights of one rank are cast to, one after another, before they are taken."""
