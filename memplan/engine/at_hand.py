"""The ledger of a step in whose passes a model, or its optimizer's states, are on the host: a trainer fetches what a
pass works with, and puts it back behind it (verl 0.4 to 0.9 workers/fsdp_workers.py, workers/megatron_workers.py:
compute_log_prob, update_actor and update_critic with ``param_offload`` and ``optimizer_offload``)."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.held_states import KINDS, Held, held_states
from memplan.engine.ledger import Ledger, Row
from memplan.engine.step_and_evaluation import EVALUATION
from memplan.engine.sums import Totalled
from memplan.spec.generation import Away
from memplan.spec.recipe import Recipe

HERE = Away()
PASSES = ("old", "reference", "value", "critic", "policy", "step", EVALUATION)
"""In the order of a step; those of a pair and the teacher's are the policy's."""
SCORES = {"old": 0, "reference": 0, "value": 1}
"""Passes without a graph, which ask for the parameters of the policy (0) or the critic (1) alone."""


def pass_of(instant: str) -> str:
    """That an instant belongs to; the optimizer's step is one by itself."""
    name = instant.partition(".")[0]
    return EVALUATION if name.startswith(EVALUATION) else name if name in PASSES else "policy"


def away_in(name: str, away: Away) -> tuple[Away, Away]:
    """What of the policy, and of the critic, is on the host in a pass; of the one that it works on nothing, but for the
    optimizer's states and the gradients where it only scores."""
    mine = away._replace(parameters=False) if name in SCORES else HERE
    of_critic = name == "critic" or SCORES.get(name) == 1
    return (away, mine) if of_critic else (mine, away)


def gone_in(name: str, held: Held, away: Away) -> int:
    """Bytes of both that are on the host in a pass."""
    policy, critic = away_in(name, away)
    return held.policy.gone(policy) + held.critic.gone(critic)


def _away(recipe: Recipe) -> Away | None:
    """What is on the host between the passes; None where each finds all on the card."""
    of = recipe.generator
    return of.away if of is not None and any(of.away[:3]) else None


class AtHand(Ledger):
    """The rows of a ledger, those of states in the passes alone that have them on the card. ``whole``: what lasts."""

    def __init__(self, whole: Ledger, held: Held, away: Away) -> None:
        super().__init__(whole.schedule)
        self.whole = whole
        passes = [pass_of(instant) for instant in whole.schedule]
        for row in whole.rows:
            self.rows += _cut(row, passes, away) if _is_state(row, held, len(passes)) else (row,)
        self.gone = [size - here for size, here in zip(whole.totals(), self.totals(), strict=True)]

    def lasting(self, meter: str = "allocated", place: str = "gpu") -> int:
        """Bytes that a rank has from one step to the next, nothing away."""
        return self.whole.lasting(meter, place)


class AtHandTotals(Totalled):
    """The same without rows."""

    def __init__(self, whole: Totalled, held: Held, away: Away) -> None:
        super().__init__(whole.sections, whole.schedule)
        self.whole = whole
        by_pass = {name: gone_in(name, held, away) for name in PASSES}
        self.gone = [by_pass[pass_of(instant)] for instant in whole.schedule]

    def totals(self, meter: str = "allocated", place: str = "gpu", bound: str = "bytes") -> list[int]:
        """Bytes alive at each instant."""
        found = self.whole.totals(meter, place, bound)
        states = meter == "allocated" and place == "gpu"
        return [size - gone for size, gone in zip(found, self.gone, strict=True)] if states else found

    def meters(self, place: str) -> set[str]:
        """What sees bytes at a place."""
        return self.whole.meters(place)

    def lasting(self, meter: str = "allocated", place: str = "gpu") -> int:
        """Bytes that a rank has from one step to the next, nothing away."""
        return self.whole.lasting(meter, place)


def at_hand(whole: Ledger, recipe: Recipe) -> Ledger:
    """The ledger as the card has it in each pass."""
    away = _away(recipe)
    return AtHand(whole, held_states(recipe), away) if away else whole


def at_hand_totals(whole: Totalled, recipe: Recipe) -> Totalled:
    """The same without rows."""
    away = _away(recipe)
    return AtHandTotals(whole, held_states(recipe), away) if away else whole


def lasting_at(ledger: Ledger | Totalled, at: int) -> int:
    """Of what a rank has from one step to the next, bytes on the card at an instant."""
    return ledger.lasting() - (ledger.gone[at] if isinstance(ledger, AtHand | AtHandTotals) else 0)


def _is_state(row: Row, held: Held, length: int) -> bool:
    """Whether it lasts, and is of a kind that the trainer has of its model as states."""
    lasts = not row.born and row.dies == length - 1 and (row.place, row.meter) == ("gpu", "allocated")
    return lasts and row.category in KINDS and getattr(held[CRITIC in row.name], KINDS[row.category]) > 0


def _cut(row: Row, passes: Sequence[str], away: Away) -> Iterator[Row]:
    """A row for each run of passes that have it on the card."""
    kind, of = KINDS[row.category], CRITIC in row.name
    here = [not getattr(away_in(name, away)[of], kind) for name in passes]
    for there, run in groupby(enumerate(here), itemgetter(1)):
        at = [position for position, _ in run]
        if there:
            yield row._replace(born=at[0], dies=at[-1])
