"""What FSDP gathers and reduces together, in bytes."""

from typing import NamedTuple


class Unit(NamedTuple):
    """What is gathered and reduced together, in bytes."""

    gathered: int
    """Weights as modules use them."""
    gradients: int
    """Whole gradients as autograd makes them."""
    reduced: int
    """Input of the reduce-scatter, in the reduction's dtype."""
    scattered: int
    """Its output, and the copy in the weights' dtype where that is another."""
    shard: int
    """Gradients that stay: the rank's part, in the weights' dtype."""
    last: int
    """The gradient of its last tensor: a loop's variable keeps it through the reduction (``foreach_reduce``)."""
    held: int
    """Output of the reduce-scatter that hybrid sharding holds to the end of backward, beside a copy of other dtype."""
    cast: int = 0
    """The all-gather's input in backward: the rank's part in the gathered dtype, where it is stored in another; before
    that, its copy from the host. After resharding to a number, a copy of the part that is there."""
    replicated: int = 0
    """Output of the reduce-scatter under hybrid sharding: what is held, where it is added to gradients."""
    waiting: int = 0
    """Whole gradients that no backward has reduced yet, in the reduction's dtype, without its padding."""
    parting: int = 0
    """The most that resharding to a number adds: a tensor's part is cloned before the whole is freed, one after another
    (``to_sharded_post_forward``)."""
    zeros: int = 0
    """FSDP1: gradients of views that nothing used, which autograd makes when it puts the flat gradient together."""
    widest: int = 0
    """The largest of the copies that the weights of one rank are cast to, one after another, before they are taken."""


NOTHING = Unit(0, 0, 0, 0, 0, 0, 0)
