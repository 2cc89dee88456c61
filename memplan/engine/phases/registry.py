"""The phases of a job put together: as ledgers for a report, and as sums for a search.

A search asks for the sums of every phase but the first step, which never is above the step's high figure. A phase's
rows are added up once for all jobs that agree in what they read (``engine/memo``): most of what a search varies (batch,
length, checkpointing, kernels) no phase reads."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from memplan.engine.at_hand import AtHand, AtHandTotals
from memplan.engine.build import Parts
from memplan.engine.critic import NAME as CRITIC
from memplan.engine.critic_engine import has_critic_engine
from memplan.engine.held_states import KINDS, away_in_sync, held_states
from memplan.engine.ledger import ACCUMULATED, Ledger, Row
from memplan.engine.phases.first_step import first_step
from memplan.engine.phases.parts import NODE
from memplan.engine.step_and_evaluation import Joined
from memplan.engine.sums import Adding, Totalled
from memplan.engine.totals import remembered
from memplan.spec.recipe import Recipe

FIRST_STEP = "first-step"
HOST = "host"


BESIDE_STEP = {"load": False, "resume": True, "save": True, "merge": True, "sync": True}
"""The phases with rows of their own, and whether what lasts from step to step is there. The first step's rows are the
step's, the evaluation's stand beside them."""


class Module(Protocol):
    """What the module of a phase holds."""

    INSTANTS: tuple[str, ...]

    def enter(self, ledger: Ledger, parts: Any) -> None:
        """Every row of the phase."""


def _by_megatron(name: str, recipe: Recipe) -> bool:
    """Whether Megatron has a way of its own."""
    return recipe.in_megatron and name in ("load", "save", "resume")


def _module(name: str, recipe: Recipe) -> Module:
    """A phase's module, which jobs without it never load."""
    if _by_megatron(name, recipe):
        megatron: Any = import_module("memplan.engine.phases.megatron")
        return getattr(megatron, name.title())  # type: ignore[no-any-return]
    module: Any = import_module(f"memplan.engine.phases.{name}")
    return module  # type: ignore[no-any-return]


class PhaseSums(NamedTuple):
    """The most of one phase, as a search compares it; bytes."""

    name: str
    card: tuple[int, int, int]
    """Low, expected and high on the card."""
    process: int
    """In the host memory of each process."""
    node: int
    """Beside that, once in a node's."""


class _Instants(NamedTuple):
    """What a ledger of sums asks of parts."""

    schedule: tuple[str, ...]


def _own_sums(parts: Any, megatron: bool = False) -> tuple[PhaseSums, ...]:
    """The sums of the rows that each phase has of its own. ``megatron``: of those that are its own way."""
    found = []
    for name in parts.recipe.moments.names:
        if name in BESIDE_STEP and _by_megatron(name, parts.recipe) is megatron:
            module = _module(name, parts.recipe)
            adding = Adding(_Instants(module.INSTANTS))
            module.enter(adding, parts)
            own = Totalled([adding.closed()], module.INSTANTS)
            low, expected, high = (max(each) for each in own.bounds())
            host, node = (max(own.totals(place=place)) for place in (HOST, NODE))
            found.append(PhaseSums(name, (low, expected, high), host, node))
    return tuple(found)


_remembered_sums, _in_megatron = remembered(_own_sums), remembered(partial(_own_sums, megatron=True), megatron=True)


def sums_of_phases(recipe: Recipe, step: Ledger | Totalled) -> list[PhaseSums]:
    """The most of every phase with rows of its own."""
    if not recipe.moments.names:
        return []
    sums = [*_remembered_sums(recipe), *(_in_megatron(recipe) if recipe.in_megatron else ())]
    lasting = between_steps(step, recipe)
    on_host = sum(step.lasting(meter, HOST) for meter in step.meters(HOST))
    found = (_beside(own, lasting, on_host) if BESIDE_STEP[own.name] else own for own in sums)
    return [_without(own, _away(recipe)) if own.name == "sync" else own for own in found]


def _without(own: PhaseSums, away: int) -> PhaseSums:
    """Less what is on the host then."""
    low, expected, high = own.card
    return own._replace(card=(low - away, expected - away, high - away))


def _away(recipe: Recipe) -> int:
    """Bytes that are on the host while weights are sent, the critic's too."""
    of = recipe.generator
    if of is None or not any(of.away):
        return 0
    held = held_states(recipe)
    return held.policy.gone(away_in_sync(of)) + held.critic.gone(of.away)


def _is_away(row: Row, recipe: Recipe) -> bool:
    """Whether a row that lasts is on the host then."""
    of, kind = recipe.generator, KINDS.get(row.category)
    if of is None or kind is None or row.place != "gpu":
        return False
    return bool(getattr(of.away if CRITIC in row.name else away_in_sync(of), kind))


def _beside(own: PhaseSums, lasting: int, on_host: int) -> PhaseSums:
    """With what lasts from step to step."""
    low, expected, high = own.card
    return own._replace(card=(low + lasting, expected + lasting, high + lasting), process=own.process + on_host)


def between_steps(step: Ledger | Totalled, recipe: Recipe) -> int:
    """Bytes on the card from one step to the next: all that lasts but gradients that are accumulated."""
    step = step.whole if isinstance(step, AtHand | AtHandTotals) else step
    if recipe.in_megatron or has_critic_engine(recipe):
        return step.lasting()
    if isinstance(step, Ledger):
        return sum(row.bytes for row in _kept(step) if (row.place, row.meter) == ("gpu", "allocated"))
    return step.lasting() - step.accumulated()


def _kept(step: Ledger) -> Iterator[Row]:
    """The rows of the step that last from one to the next."""
    whole = step.whole if isinstance(step, AtHand) else step
    alone = whole.step if isinstance(whole, Joined) else whole
    end = len(alone.schedule) - 1
    for row in alone.rows:
        if not row.born and row.dies == end and row.meter != "device" and not row.name.startswith(ACCUMULATED):
            yield row


def _parts(name: str, recipe: Recipe) -> Any:
    """What a phase reads of a job."""
    if not _by_megatron(name, recipe):
        return Parts(recipe)
    from memplan.engine.megatron.build import MegatronParts

    return MegatronParts(recipe)


def ledger_of_phase(name: str, recipe: Recipe, step: Ledger) -> Ledger:
    """The rows of one phase, with those of the step that last through it."""
    if name == FIRST_STEP:
        return first_step(step, recipe)
    module = _module(name, recipe)
    ledger = Ledger(module.INSTANTS)
    for row in _kept(step) if BESIDE_STEP[name] else ():
        if name != "sync" or not _is_away(row, recipe):
            ledger.rows.append(row._replace(dies=len(ledger.schedule) - 1))
    module.enter(ledger, _parts(name, recipe))
    return ledger
