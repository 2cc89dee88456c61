"""What a trainer keeps of its models from one step to the next, by what could be on the host meanwhile: weights,
optimizer states, gradients that stay, each of the policy and of a critic."""

from collections import Counter
from functools import cache
from operator import is_
from typing import Any, NamedTuple

from memplan.engine.build import SECTIONS
from memplan.engine.critic import NAME as CRITIC
from memplan.engine.critic_engine import has_critic_engine, parted
from memplan.engine.host_copies import locked
from memplan.engine.ledger import NO_ROW, Entry
from memplan.engine.sums import Adding
from memplan.engine.tensors import Weight
from memplan.engine.totals import remembered
from memplan.spec.generation import Away, Generator
from memplan.spec.recipe import Recipe

KINDS = {
    "parameters": "parameters",
    "adapters": "parameters",
    "quantised": "parameters",
    "master_weights": "optimizer",
    "optimizer_states": "optimizer",
    "gradients": "gradients",
}
"""What a category goes to the host with; a new one of weights goes with them."""
LATE = "optimizer_states"


class States(NamedTuple):
    """Bytes on the card of one model."""

    parameters: int = 0
    optimizer: int = 0
    gradients: int = 0
    late: int = 0
    """Of the optimizer's, what comes with the first step."""
    locked_parameters: int = 0
    """Page-locked memory that copies of them take (``host_copies.py``)."""
    locked_optimizer: int = 0
    dropped: int = 0
    """Of the gradients, what is freed and made anew: Megatron's buffers (verl utils/megatron_utils.py, ms-swift
    megatron/trainers/utils.py, megatron-core's offload_to_cpu: grad_data.storage().resize_(0))."""

    @property
    def whole(self) -> int:
        """All of them."""
        return self.parameters + self.optimizer + self.gradients

    def gone(self, away: Away) -> int:
        """What of them is on the host."""
        return self.parameters * away.parameters + self.optimizer * away.optimizer + self.gradients * away.gradients

    def beyond(self, away: Away) -> int:
        """What copies on the host take beyond the bytes of what is away."""
        parameters = (self.locked_parameters - self.parameters) * ("parameters" in away.locked)
        states = (self.locked_optimizer - self.optimizer) * ("optimizer" in away.locked)
        return parameters + states - self.dropped * away.gradients

    def not_yet(self, away: Away) -> int:
        """Of what is on the card, what the first step brings."""
        return 0 if away.optimizer else self.late


class Held(NamedTuple):
    """Of both models."""

    policy: States
    critic: States = States()


def away_in_sync(of: Generator) -> Away:
    """What of the policy is on the host while its weights are sent: never the parameters, unless the host's are."""
    return of.away._replace(parameters=of.away.parameters and of.syncing.from_host)


class _Sorting(Adding):
    """A ledger that adds up what lasts, by model and kind."""

    def __init__(self, parts: Any) -> None:
        super().__init__(parts)
        self.found: Counter[tuple[bool, str]] = Counter()

    def add(
        self, name: str, category: str, size: int, born: str = "", dies: str = "", *, at: str = "", **rest: Any
    ) -> Entry:
        """Add what is on the card throughout."""
        if born or dies or at or rest.get("place", "gpu") != "gpu" or rest.get("meter", "allocated") != "allocated":
            return NO_ROW
        critic = CRITIC in name
        self.found[critic, KINDS.get(category, "parameters")] += size
        if category == LATE:
            self.found[critic, "late"] += size
        return NO_ROW


def _held(parts: Any, sections: Any) -> Held:
    ledger = _Sorting(parts)
    sections[0](ledger, parts)
    weights = ((), ()) if parts.recipe.in_megatron else (parts.weights, parts.critic_weights)
    return Held(*(_with_copies(parts, ledger.found, of, list(weights[of])) for of in (False, True)))


def _with_copies(parts: Any, found: Counter[tuple[bool, str]], of: bool, weights: list[Weight]) -> States:
    kinds = States(**{name: found[of, name] for name in States._fields})
    sizes = locked(parts, weights, kinds.parameters, kinds.optimizer)
    dropped = kinds.gradients * parts.recipe.in_megatron
    return kinds._replace(locked_parameters=sizes[0], locked_optimizer=sizes[1], dropped=dropped)


_ordinary = remembered(lambda parts: _held(parts, SECTIONS))


@cache
def _megatron() -> Any:
    from memplan.engine.megatron.build import SECTIONS as OF_MEGATRON

    return remembered(lambda parts: _held(parts, OF_MEGATRON), megatron=True)


_LAST: list[tuple[tuple[Any, ...], Held]] = [((), Held(States()))]
"""Of the recipe that was asked for last, but for its generator, which is its last field: no state depends on it."""
assert Recipe._fields[-1] == "generator"


def held_states(recipe: Recipe) -> Held:
    """Of one rank."""
    fields, (last, found) = recipe[:-1], _LAST[0]
    if not last or not all(map(is_, fields, last)):
        if has_critic_engine(recipe):
            critic, policy = parted(recipe)
            found = Held(_alone(policy).policy, _alone(critic).policy)
        else:
            found = _alone(recipe)
        _LAST[0] = fields, found
    return found


def _alone(recipe: Recipe) -> Held:
    found: Held = _megatron()(recipe) if recipe.in_megatron else _ordinary(recipe)
    return found
