"""The phases of a job put together: as ledgers for a report, and as sums for a search.

A search asks for the sums of every phase but the first step, which never is above the step's high figure. A phase's
rows are added up once for all jobs that agree in what they read (``engine/memo``): most of what a search varies (batch,
length, checkpointing, kernels) no phase reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from memplan.engine.build import SECTIONS, _enter_gradients
from memplan.engine.ledger import Ledger, Row
from memplan.engine.phases.first_step import first_step
from memplan.engine.phases.parts import NODE, PhaseParts, parts_of
from memplan.engine.rows.step import ACCUMULATED
from memplan.engine.step_and_evaluation import Joined
from memplan.engine.totals import Remembering, Totalled, after_forgetting
from memplan.spec.recipe import Recipe

FIRST_STEP = "first-step"
HOST = "host"
GRADIENTS = SECTIONS.index(_enter_gradients)


BESIDE_STEP = {"load": False, "save": True, "merge": True, "sync": True}
"""The phases with rows of their own, and whether what lasts from step to step is there. The first step's rows are the
step's, the evaluation's stand beside them."""


class Phase(NamedTuple):
    """A moment of a job."""

    enter: Callable[[Ledger, Any], None]
    parts: type[PhaseParts]
    sums: Remembering
    """Met before."""


@cache
def _phase(name: str) -> Phase:
    """A phase, of a module that jobs without it never load."""
    module = import_module(f"memplan.engine.phases.{name}")
    parts = parts_of(module.INSTANTS)
    return Phase(module.enter, parts, after_forgetting(Remembering(parts, (module.enter,))))


class PhaseSums(NamedTuple):
    """The most of one phase, as a search compares it; bytes."""

    name: str
    card: tuple[int, int, int]
    """Low, expected and high on the card."""
    process: int
    """In the host memory of each process."""
    node: int
    """Beside that, once in a node's."""


def sums_of_phases(recipe: Recipe, step: Ledger | Totalled) -> list[PhaseSums]:
    """The most of every phase with rows of its own."""
    found = []
    for name in recipe.moments.names:
        if name in BESIDE_STEP:
            own = _phase(name).sums.totalled(recipe)
            found.append(_summed(name, own, step if BESIDE_STEP[name] else None))
    return found


def _summed(name: str, own: Totalled, step: Ledger | Totalled | None) -> PhaseSums:
    low, expected, high = (max(each) for each in own.bounds())
    lasting = _between_steps(step) if step else 0
    on_host = sum(step.lasting(meter, HOST) for meter in step.meters(HOST)) if step else 0
    process = max(own.totals(place=HOST)) + on_host
    return PhaseSums(name, (low + lasting, expected + lasting, high + lasting), process, max(own.totals(place=NODE)))


def _between_steps(step: Ledger | Totalled) -> int:
    """Bytes on the card from one step to the next: all that lasts but gradients that are accumulated."""
    if isinstance(step, Ledger):
        return sum(row.bytes for row in _kept(step) if (row.place, row.meter) == ("gpu", "allocated"))
    gradients = step.sections[GRADIENTS].get(("allocated", "gpu"))
    return step.lasting() - (gradients.lasting if gradients else 0)


def _kept(step: Ledger) -> Iterator[Row]:
    """The rows of the step that last from one to the next."""
    alone = step.step if isinstance(step, Joined) else step
    end = len(alone.schedule) - 1
    for row in alone.rows:
        if not row.born and row.dies == end and row.meter != "device" and row.name != ACCUMULATED:
            yield row


def ledger_of_phase(name: str, recipe: Recipe, step: Ledger) -> Ledger:
    """The rows of one phase, with those of the step that last through it."""
    if name == FIRST_STEP:
        return first_step(step, recipe)
    phase = _phase(name)
    parts = phase.parts(recipe)
    ledger = Ledger(parts.schedule)
    for row in _kept(step) if BESIDE_STEP[name] else ():
        ledger.rows.append(row._replace(dies=len(ledger.schedule) - 1))
    phase.enter(ledger, parts)
    return ledger
