"""What of a search does not fit or cannot be, and why."""

import sys
from collections.abc import Iterable
from dataclasses import replace

from memplan.planner.candidates import Candidate, Refused
from memplan.planner.degrees import native_obstacle
from memplan.planner.generating import not_apart
from memplan.planner.planning import Searched
from memplan.planner.pricing import Priced
from memplan.planner.result import Rejected
from memplan.planner.search import nearest
from memplan.planner.space import LAYOUT, Space, divided_sequences, megatron_trainer
from memplan.planner.words import layout_name, plan_name
from memplan.priced import price
from memplan.tables.trainers import find_trainer
from memplan.units import format_bytes

MISSES = 8


def rejections(searched: Searched) -> tuple[Rejected, ...]:
    """Of each layout the plan that misses by least; those with too large states; what cannot be, by reason."""
    rows = [_miss(*pair) for pair in sorted(_least(searched), key=lambda pair: (pair[1].short, pair[0].order))]
    floored = {each.layout: each for each in searched.of.floored}
    why = "model states alone need more than the card has"
    rows += [Rejected(layout_name(each.keys), each.keys, why) for each in floored.values()][:MISSES]
    return (*rows, *_refused(searched.of.refused))


def _least(searched: Searched, wanted: int = MISSES) -> list[tuple[Candidate, Priced]]:
    pricing = searched.pricing
    return nearest(searched.found, pricing, lambda priced: priced.short, wanted, pricing.misses_by)


def in_brief(searched: Searched) -> Searched:
    """Of a search with changes what is said of it: as many candidates, and without a plan the nearest one alone."""
    of = searched.of._replace(legal=[], outdone=searched.of.outdone + len(searched.of.legal))
    rejected = [] if searched.found.plans else _least(searched, 1)
    return searched._replace(of=of, found=replace(searched.found, rejected=rejected, ruled_out=[]))


def missed(tried: Iterable[tuple[Searched, tuple[str, ...]]]) -> tuple[Rejected, ...]:
    """Of each search with changes in which nothing fits, what misses by least."""
    rows = []
    for searched, words in tried:
        nearest = next(iter(rejections(searched)), None)
        if nearest is not None:
            name = f"with {' and '.join(words)}: {nearest.name}"
            rows.append(Rejected(name, nearest.job, nearest.reason, nearest.short_bytes))
    return tuple(sorted(rows, key=lambda row: row.short_bytes or sys.maxsize)[:MISSES])


def absences(space: Space) -> tuple[Rejected, ...]:
    """The kinds of parallelism that were not tried at all, and why; nothing where the layout is the user's."""
    apart = not_apart(space.job, space) if space.gpus > 1 else ""
    found = [Rejected("the engine on GPUs of its own", {"rollout": {"placement": "separate"}}, apart)] if apart else []
    if space.gpus == 1 or space.offload or any(key in space.fixed for key in LAYOUT):
        return tuple(found)
    job = space.job
    megatron = megatron_trainer(space)
    if megatron is None:
        named = "trainer" in job.model_fields_set
        reason = f"not with trainer {job.trainer}" if named else f"no trainer on Megatron has {job.method} on this card"
        found.append(Rejected("Megatron", {"sharding": "distributed-optimizer"}, reason))
    else:
        trainer = find_trainer(megatron.get("trainer", job.trainer))
        for key in trainer.methods.lacks.get(job.method, ()):
            keys = {"sharding": "distributed-optimizer", **megatron, key: 2}
            found.append(Rejected(layout_name(keys), keys, f"{trainer.title} has none for {job.method}"))
    obstacle = native_obstacle(job, space.spec)
    if obstacle:
        what = "FSDP2 with TP or PP" if divided_sequences(space) else "FSDP2 with TP, PP or CP"
        found.append(Rejected(what, {"sharding": "fsdp2"}, obstacle))
    return tuple(found)


def _miss(each: Candidate, priced: Priced) -> Rejected:
    keys = {**each.keys, **priced.keys}
    host, fullest = priced.figures.host, price(priced.recipe, detailed=False)[0]
    reason = f"short by {format_bytes(priced.short)} at {fullest.fullest_at}"
    if not priced.short and host.fits is not False and fullest.why_not:
        reason = f"the engine does not start: {fullest.why_not}"
    elif not priced.short and (host.fits is False or host.crowded):
        reason = f"{format_bytes(host.fullest[1])} of a node's host memory"
    elif not priced.short and fullest.may_fail:
        reason = "the engine may not start: at worst its cache does not hold the longest sequence"
    return Rejected(plan_name(keys), keys, reason, priced.short)


def _refused(refused: Iterable[Refused]) -> list[Rejected]:
    """One row for each reason, the most frequent first, named by what its layouts have in common."""
    by_reason: dict[str, list[Refused]] = {}
    for each in refused:
        by_reason.setdefault(each.reason, []).append(each)
    ordered = sorted(by_reason.items(), key=lambda pair: -sum(each.plans for each in pair[1]))
    rows = []
    for reason, group in ordered[:MISSES]:
        common = {
            key: value for key, value in group[0].keys.items() if all(each.keys.get(key) == value for each in group)
        }
        rows.append(Rejected(layout_name({"sharding": group[0].keys.get("sharding"), **common}), common, reason))
    return rows
