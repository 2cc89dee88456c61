"""How the experts of each token are chosen, and what becomes of the routers' logits."""

from typing import Literal, NamedTuple

from memplan.spec.base import Described
from memplan.tables.styles import RouterUse


class Routing(Described):
    """How the experts of each token are chosen: the operations between the router's logits and the chosen weights.

    In their order: the product, scores over all experts, a correction and groups that only the choice sees, top-k,
    the weights of the chosen. ``engine.routing.ROUTERS`` has a program for each ``program``."""

    program: Literal["top-k", "sparse-mixer", "noisy-mixer", "scatter", "normed"] = "top-k"
    """'sparse-mixer': PhiMoE's two, each drawn with noise ('noisy-mixer': noise on the input too); 'scatter': Llama 4's
    experts see every token, scaled by a score; 'normed': of a bare norm (Gemma 4)."""
    product: Literal["own", "fp32", "fp32-always"] = "own"
    """In the model's dtype; or of fp32 copies of hidden states and weight, where 'always' switches autocast off."""
    scores: Literal["softmax", "sigmoid", "square-root", "logits"] = "softmax"
    """What is chosen from; of logits, the softmax is taken over the chosen alone; square-root: of a softplus."""
    widened: bool = False
    """The logits are copied to fp32 before."""
    corrected: bool = False
    """A bias of each expert is added for the choice; the weights are gathered from the scores without it."""
    stored_itemsize: int = 0
    """Of the router's weight, where it is kept in fp32 beside half-precision weights; 0: as the model's."""
    kept_wide: bool = False
    """The router's weight is stored so, too, with its gradient and states."""
    groups: int = 0
    """Experts are chosen within the best of so many groups; 0 does not group."""
    kept_groups: int = 0
    group_score: Literal["two", "best"] = "two"
    """What a group is worth: the sum of its two best scores, or the best."""
    normalize: Literal["no", "in-place", "epsilon", "clamped", "epsilon-apart"] = "no"
    """Weights over their sum, in place; plus an epsilon; or out of place, clamped, or plus an epsilon ('apart')."""
    scaled: bool = False
    """Weights are multiplied by a factor."""
    behind: bool = False
    """The router's module is registered behind the experts."""
    hashed: bool = False
    """Experts are those of the token's id in a table; the scores of these decide their weights alone."""
    softmax_itemsize: int = 4
    """Of logits: the softmax of the chosen is computed in fp32, or (0) in their own dtype."""
    narrowed: bool | Literal["logits"] = False
    """Weights are cast back to the model's dtype, or to that of the router's logits."""


class RouterLoss(NamedTuple):
    """What becomes of the load-balancing loss in each kind of pass."""

    policy: RouterUse = ""
    scoring: RouterUse = ""
    """The policy's own passes without a graph."""
    reference: RouterUse = ""
    stacked: bool = False
    """Over all layers at once, through a one-hot mask of the chosen experts (transformers 4 to 5.12)."""
