"""Plans as tables: the best ones with what limits them, the near misses, the answers to further questions."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, columns_of, definitions
from memplan.render.instants import instant_title, instant_words
from memplan.report import Report
from memplan.tables.texts import texts_by_name
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.planner import Plan, Plans

ROOMY = 110
"""From this width on there are columns for what limits a plan."""
LIMITS = texts_by_name(__file__)
"""What the largest part of a step is, in words."""
SHOWN_POINTS = 12


def plan_blocks(found: "Plans", width: int) -> list[Block]:
    """All of it."""
    if found.budget is not None:
        from memplan.render.budget_view import budget_blocks

        return budget_blocks(found)
    blocks: list[Block] = [Heading(_title(found), "strong" if found.fits else "bad")]
    if found.plans:
        blocks.append(definitions(_common(found.plans[0])))
        blocks += _plans(found, width)
        blocks += _best(found)
    if found.instead:
        blocks += [Heading("With another change in its place"), _instead(found)]
    if found.answers:
        answers = [(each.question.replace("_", " "), each.words) for each in found.answers]
        blocks += [Heading("Answers"), definitions(answers)]
    if found.pareto:
        blocks += [Heading("Speed against memory"), _front(found)]
    if found.rejected:
        blocks += [Heading("Rejected"), _rejected(found)]
    if found.assumptions:
        blocks += [Heading("Assumed"), *(Prose(line, "dim") for line in found.assumptions)]
    return blocks


def _title(found: "Plans") -> str:
    counts = f"{found.considered:,} plans considered, {found.priced:,} priced"
    if not found.plans:
        return f"Nothing fits, whatever may change; {counts}"
    name = found.plans[0].report.model.name
    if found.needed:
        if found.instead:
            return f"{name}: nothing fits as asked; it would with any of {len(found.instead) + 1} changes; {counts}"
        return f"{name}: nothing fits as asked; it would with {' and '.join(found.needed)}; {counts}"
    return f"{name}: {len(found.plans)} of the plans that fit, the fastest first; {counts}"


def _common(best: "Plan") -> list[tuple[Cell, Cell]]:
    job, ranks = best.job, best.report.recipe.parallel.data if best.report.recipe is not None else 1
    examples = job["batch_size"] * job["gradient_accumulation_steps"] * ranks
    pairs = words.is_pairwise(job)
    length, packed = job["sequence_length"], job.get("token_budget")
    unit = "packed rows" if packed else "pairs" if pairs else "sequences"
    length = packed or length
    rows: list[tuple[Cell, Cell]] = [
        ("model", words.model_words(best.report)),
        ("method", words.method_words(job)),
        ("batch", f"{examples:,} {unit} of {length:,} tokens each optimizer step"),
        ("GPUs", words.cards_words(best.report) + _apart(best)),
    ]
    return [*rows, ("changes", ", ".join(best.training))] if best.training else rows


def _needs(report: Report) -> int:
    """What the card must hold at the most, of all processes."""
    beside = report.rollout and report.verdict is not None
    return report.verdict.high_bytes if beside and report.verdict else words.needs_high(report.per_gpu)


def _apart(plan: "Plan") -> str:
    """The engine's own, beside those that train."""
    rollout = plan.job.get("rollout") or {}
    return f"; {rollout['num_gpus']} more generate" if rollout.get("placement") == "separate" else ""


def _plans(found: "Plans", width: int) -> Iterator[Block]:
    columns = [Column("", right=True), Column("plan", wrap=True), Column("tokens/s", right=True, style="strong")]
    columns += [Column("needs", right=True), Column("spare", right=True)]
    roomy = width >= ROOMY
    columns += [Column("memory peaks at", wrap=True), Column("most time goes to", wrap=True)] if roomy else []
    rows: list[tuple[Cell, ...]] = []
    for number, plan in enumerate(found.plans, 1):
        needs, verdict = _needs(plan.report), plan.report.verdict
        spare = int(verdict.usable_bytes) - needs if verdict else 0
        speed = f"{plan.speed.tokens_per_second:,.0f}"
        cells: list[Cell] = [str(number), plan.name, speed, format_bytes(needs, 1), format_bytes(spare, 1)]
        peak, most = instant_words(plan.memory_limit)[0], LIMITS[plan.speed.limited_by]
        rows.append((*cells, *([peak, most] if roomy else [])))
        drawn = plan.report.lengths
        if drawn is not None:
            rows.append(("", Span(drawn.words, "bad" if drawn.p_oom else "dim"), "", "", "", *("" for _ in cells[5:])))
        if not roomy:
            rows.append(("", Span(f"peaks at {peak}; most time: {most}", "dim"), "", "", ""))
    yield Heading("Plans")
    yield Table(tuple(columns), tuple(rows))
    below = "Needs: the most nvidia-smi may show, with PyTorch's unused cache freed."
    yield Prose(f"Speeds are rough estimates, good for ranking. {below}", "dim")


def _best(found: "Plans") -> Iterator[Block]:
    best = found.plans[0]
    low, high = best.speed.tokens_range
    seconds = best.speed.step_seconds
    unit = "pairs" if words.is_pairwise(best.job) else "sequences"
    shares = sorted(best.speed.parts.items(), key=lambda pair: -pair[1])
    parts = [f"{LIMITS[name]} {100 * size / seconds:.0f} %" for name, size in shares if size > 0.01 * seconds]
    host = best.report.host
    taken = f"{format_bytes(host.bytes_per_node, 1)} of each node's memory"
    if host.fits is None:
        taken += "; how much there is nobody said (--set cluster.host_memory=256GiB)"
    yield Heading("The first")
    yield definitions(
        [
            ("step", f"{seconds:.2f} s, {_rate(best.speed.examples_per_second)} {unit}/s"),
            ("tokens/s", f"{low:,.0f} to {high:,.0f}"),
            ("cost", _cost(best)),
            ("time", ", ".join(parts)),
            ("memory", f"peaks at {instant_title(best.memory_limit)}"),
            *([("host", taken)] if host.bytes_per_node else []),
            ("its job", "--output plan.yaml writes it for memplan estimate"),
        ]
    )


def _rate(a_second: float) -> str:
    """One decimal, and of less than one its first two digits."""
    return f"{a_second:,.1f}" if a_second >= 1 else f"{a_second:.2g}"


def _cost(plan: "Plan") -> str:
    """GPU hours of a billion tokens, and what they cost where a price is given."""
    hours = f"{plan.gpu_hours:,.4g} GPU hours a billion tokens"
    return hours if plan.cost is None else f"{hours}, which cost {plan.cost:,.2f}"


def _instead(found: "Plans") -> Table:
    rows = []
    for each in found.instead:
        figures = f"{each.tokens_per_second:,.0f}", format_bytes(each.device_bytes, 1)
        rows.append((", ".join(each.training), each.name, *figures, f"--allow {each.allow}"))
    return Table(columns_of("change ~ | plan ~ | tokens/s > | needs > | to type"), tuple(rows))


def _front(found: "Plans") -> Table:
    columns = columns_of("plan ~ | tokens/s > | needs >")
    points = found.pareto
    if len(points) > SHOWN_POINTS:
        step = (len(points) - 1) / (SHOWN_POINTS - 1)
        points = tuple(points[round(step * i)] for i in range(SHOWN_POINTS))
    rows = [(each.name, f"{each.tokens_per_second:,.0f}", format_bytes(each.device_bytes, 1)) for each in points]
    return Table(columns, tuple(rows))


def _rejected(found: "Plans") -> Table:
    columns = (Column("plan", wrap=True), Column("why", wrap=True))
    by_reason: dict[str, list[str]] = {}
    for each in found.rejected:
        by_reason.setdefault(each.reason, []).append(each.name)
    return Table(columns, tuple((together(dict.fromkeys(names)), reason) for reason, names in by_reason.items()))


ALIKE = 2
"""Parts of a plan's name, how GPUs share it and the batch, by which others are like it."""
SHORTER = re.compile(r"\b\d+(?= tokens: )")
"""What a change to shorter sequences cuts them to."""


def together(names: Iterable[str]) -> str:
    """Plans that one reason rejects: of those that differ in their length, or behind their batch, alone the first, and
    how many more."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        alike.setdefault(tuple(SHORTER.sub("", name).split(", ")[:ALIKE]), []).append(name)
    return ", ".join(f"{first} (and {len(more)} like it)" if more else first for first, *more in alike.values())


def plan_rows(found: "Plans") -> list[dict[str, Any]]:
    """A line for each plan, then one for each that was rejected, for CSV."""
    plans = [
        {
            "rank": number,
            "plan": plan.name,
            "tokens_per_second": round(plan.speed.tokens_per_second, 1),
            "examples_per_second": round(plan.speed.examples_per_second, 4),
            "step_seconds": round(plan.speed.step_seconds, 4),
            "device_bytes": _needs(plan.report),
            "memory_limit": plan.memory_limit,
            "limited_by": plan.speed.limited_by,
            "reason": "",
        }
        for number, plan in enumerate(found.plans, 1)
    ]
    rejected: list[dict[str, Any]] = [{"plan": each.name, "reason": each.reason} for each in found.rejected]
    return [*plans, *rejected]
