"""Errors as tables: what was held against the estimate, how far it was off, and what was refused."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, sqrt
from statistics import median
from typing import Any

from memplan.accuracy import Accuracy, Grouping
from memplan.cost.fitting import BEFORE, INSIDE, Fitted, Run
from memplan.lang import Name
from memplan.render.blocks import Block, Column, Heading, Prose, Table, columns_of, definitions
from memplan.spec.gpu import FACTORS, Calibration
from memplan.trust import Trust
from memplan.units import format_bytes

BANDED = ("meter", "quality", "engine")
"""Groupings by meter: reserved and device are estimated as a range, which a measured figure is in or not."""
NOTHING = "Nothing could be estimated."


def accuracy_blocks(found: "Accuracy") -> list[Block]:
    """The sets and their sources, a table for each grouping, and the refused rows by reason."""
    blocks: list[Block] = [Heading("Truth"), _sets(found)]
    sources = [(Name(each.name), each.source) for each in found.sets if each.source]
    blocks += [Heading("Sources"), definitions([*sources])] if sources else []
    tables = [grouping for grouping in found.groupings if grouping.groups]
    for grouping in tables:
        blocks += [Heading(f"Error by {grouping.by} ({grouping.of})"), _errors(grouping)]
    blocks += [] if tables else [Heading("Error"), Prose(NOTHING)]
    return blocks + ([Heading("Refused"), _refused(found)] if found.refused else [])


def _sets(found: "Accuracy") -> Table:
    columns = (Column("set"), Column("made by"), *(Column(title, right=True) for title in ROWS))
    cells = (
        (Name(each.name), each.kind, str(each.rows), str(each.estimated), str(each.refused)) for each in found.sets
    )
    return Table(columns, tuple(cells))


ROWS = ("rows", "estimated", "refused")


def _errors(grouping: "Grouping") -> Table:
    banded = grouping.by in BANDED
    titles = ("rows", "median %", "p95 %", "worst %", *(["in range"] if banded else []))
    columns = (Column(grouping.by), *(Column(title, right=True) for title in titles), Column("worst row"))
    cells = (
        (
            Name(group.name),
            str(group.rows),
            f"{100 * group.median:.4f}",
            f"{100 * group.p95:.4f}",
            f"{100 * group.worst:+.4f}",
            *([str(group.inside)] if banded else []),
            group.worst_id,
        )
        for group in grouping.groups
    )
    return Table(columns, tuple(cells))


def _refused(found: "Accuracy") -> Table:
    columns = columns_of("set | reason ~ | rows > | such as")
    return Table(columns, tuple((Name(each.set), each.reason, str(each.rows), each.first_id) for each in found.refused))


def accuracy_rows(found: "Accuracy") -> list[dict[str, Any]]:
    """A line for each figure, then one for each refused row, for CSV."""
    figures: list[dict[str, Any]] = [
        figure._asdict() | {"error": figure.error, "refused": ""} for figure in found.figures
    ]
    refused = [{"set": each.set, "kind": each.kind, "id": each.id, "refused": each.reason} for each in found.refusals]
    return figures + refused


OF_WHAT = {
    "compute": "products, attention, memory",
    "host": "Python and launches",
    "link": "collectives within a node",
    "network": "collectives between nodes",
}
KNOWN = 0.8
"""Of the doubt before: above it no run has told much of a factor."""


def share(of: float) -> str:
    """In hundredths."""
    return f"{100 * of:.0f} %" if of >= 0.1 else f"{100 * of:.1f} %"


def blocks(runs: Sequence[Run], found: Fitted) -> Iterator[Block]:
    """The factors, the errors of each run before and after, and what is not known."""
    of = found.calibration
    yield Heading(f"{of.gpu}: {of.runs} measured run{'s'[: of.runs != 1]}", "strong")
    rows = [(name, OF_WHAT[name], f"× {value:.2f}", said) for name, value, said in _factors(of)]
    yield Table(columns_of("seconds of |  | published > | 90 in 100"), tuple(rows))
    yield Heading("The runs, estimated")
    errors = [
        (run.name, f"{run.seconds:.3g} s", f"{100 * before:+.1f} %", f"{100 * after:+.1f} %")
        for run, before, after in zip(runs, found.before, found.after, strict=True)
    ]
    columns = (Column("run"), *(Column(name, right=True) for name in ("step measured", "published", "own rates")))
    yield Table(columns, tuple(errors))
    before, after = (median(map(abs, each)) for each in (found.before, found.after))
    said = f"Steps were {share(before)} off in the median, and are {share(after)} now. These runs were fitted: others"
    yield from engine_blocks(of)
    yield Prose(f"{said} like them lie within {share(exp(INSIDE * of.noise) - 1)} 90 times in 100.", "dim")


def engine_blocks(of: Calibration) -> Iterator[Block]:
    """An engine's own constants on a card."""
    own = of.engine
    if own is None:
        return
    yield Heading(f"{of.gpu}: the engine's own constants, of {own.starts} start{'s'[: own.starts != 1]}", "strong")
    terms = ("the profile run", own.activation), ("outside PyTorch", own.non_torch), ("CUDA graphs", own.graphs)
    columns = (Column("bytes of"), Column("expected", right=True))
    yield Table(columns, tuple((name, f"× {value:.2f}") for name, value in terms))


def _factors(of: Calibration) -> Iterator[tuple[str, float, str]]:
    """Each with its range, or that nothing was said of it."""
    for i, (name, value) in enumerate(zip(FACTORS, of.factors, strict=True)):
        doubt = sqrt(of.covariance[i][i])
        if doubt > KNOWN * BEFORE[i]:
            yield name, value, "hardly felt by these runs"
        else:
            yield name, value, f"{value / exp(INSIDE * doubt):.2f} to {value * exp(INSIDE * doubt):.2f}"


def trust_blocks(found: Trust) -> Iterator[Block]:
    """The kind, errors by meter of the rows like it, the nearest row with its source."""
    kind = tuple(found.kind)
    yield Heading(f"How sure this is: estimates held against measured runs like {_words(found.kind, kind)}")
    columns = columns_of("measured ~ | meter | rows > | median % > | worst % > | in range >")
    rows = []
    for alike in found.alike:
        how = "tensor by tensor, without a card" if alike.traced else "on a card"
        of = _words(found.kind, alike.shared) or "any kind"
        for group in alike.groups:
            inside = f"{group.inside} of {group.rows}" if group.name in RANGED else ""
            errors = _hundredths(group.median, ""), _hundredths(group.worst)
            rows.append((f"{of}; {how}", group.name, str(group.rows), *errors, inside))
    if rows:
        yield Table(columns, tuple(rows))
    if not any(not alike.traced and set(kind) <= set(alike.shared) for alike in found.alike):
        yield Prose("No run of just this kind that somebody measured on a card is known to memplan.")
    near = found.nearest
    if near is not None:
        other = f"; it differs in {', '.join(near.differs)}" if near.differs else ""
        amounts = f"{format_bytes(near.measured_bytes)} {near.meter}, estimated {format_bytes(near.estimated_bytes)}"
        yield Prose(f"Nearest: {near.id} ({near.kind}): {amounts} ({_hundredths(near.error)} %){other}.")
        yield Prose(f"Source: {near.source}", "dim")


RANGED = ("reserved", "device")
"""Meters whose estimates have a range; allocated is one figure."""


def _words(kind: Mapping[str, str], keys: Iterable[str]) -> str:
    return ", ".join(kind[key] for key in keys if key in kind)


def _hundredths(error: float, sign: str = "+") -> str:
    return f"{100 * error:{sign}.2f}".replace("-", "−")
