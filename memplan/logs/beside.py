"""What was measured beside what is estimated, term by term, with the difference and what nobody accounts for."""

from dataclasses import dataclass
from typing import Any

from memplan.logs.measured import Figure, figures, unaccounted
from memplan.logs.reading import Log
from memplan.report import Report, plain
from memplan.tables.texts import texts_by_name
from memplan.units import attributes_of

TITLES = texts_by_name(__file__)
NUMBERS = ("kv_blocks", "kv_tokens", "max_model_len", "concurrency")
"""Terms that are no bytes."""


@dataclass(slots=True, eq=False, repr=False)
class Term:
    """One thing; bytes, or a number, as ``unit`` says."""

    name: str
    title: str
    unit: str
    measured: float | None
    low: float | None
    """Of the ranks that said it."""
    high: float | None
    ranks: int
    estimated: float | None
    """Null where memplan's report has no such figure."""
    difference: float | None
    """Estimated less measured."""


@dataclass(slots=True, eq=False, repr=False)
class Unaccounted:
    """Bytes that no term of the log accounts for."""

    bytes: int
    of: str


@dataclass(slots=True, eq=False, repr=False)
class Death:
    """How it died of memory."""

    instant: str
    why: str
    line: int
    process: str
    count: int


@dataclass(slots=True, eq=False, repr=False)
class Compared:
    """A log beside an estimate."""

    file: str
    engine: str
    version: str
    model: str
    starts: int
    ranks: int
    died: tuple[Death, ...]
    """At the last start, or in training; empty where it lived."""
    terms: tuple[Term, ...]
    unaccounted: tuple[Unaccounted, ...]
    settings: dict[str, Any]
    """Of the engine, as the log has them."""
    fits: str
    """What memplan says of the job; empty where it is not estimated."""
    contradicts: str
    """Where the log shows that this verdict is wrong."""
    job: dict[str, Any]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Names and values of JSON."""
        found: dict[str, Any] = plain(self)
        return found


def compared(log: Log, report: Report | None, warnings: tuple[str, ...] = ()) -> Compared:
    """The log beside the job's report, where there is one."""
    found = figures(log)
    guess = estimated(report) if report is not None else {}
    died = tuple(Death(*each[:5]) for each in log.deaths if each.start in (0, log.starts))
    fits = report.verdict.fits if report is not None and report.verdict is not None else ""
    return Compared(
        log.path,
        log.engine,
        str(log.settings.get("engine_version", "")),
        str(log.settings.get("model", "")),
        log.starts,
        sum("weights" in process.terms for process in log.processes.values()),
        died,
        tuple(_term(name, found.get(name), guess.get(name)) for name in TITLES if name in found or name in guess),
        tuple(Unaccounted(round(left.bytes), left.of) for left in unaccounted(log, found)),
        dict(log.settings),
        fits,
        _contradiction(died, fits, report, "kv_tokens" in found or "kv_blocks" in found),
        report.job if report is not None else {},
        (*log.warnings, *warnings),
    )


def _contradiction(died: tuple[Death, ...], fits: str, report: Report | None, started: bool) -> str:
    """Where the log shows that memplan is wrong."""
    if died and fits in ("yes", "tight"):
        return f"memplan says {fits!r} of this job, and it died: memplan is wrong, or the job is another"
    engine = report.engine if report is not None else None
    if started and not died and engine is not None and not engine.starts:
        return "memplan says that this engine does not start, and it did: memplan is wrong, or the job is another"
    return ""


def _term(name: str, figure: Figure | None, guess: float | None) -> Term:
    unit = "number" if name in NUMBERS else "bytes"

    def shown(value: float | None) -> float | None:
        return value if value is None or (unit == "number" and value != round(value)) else round(value)

    if figure is None:
        return Term(name, TITLES[name], unit, None, None, None, 0, shown(guess), None)
    difference = guess - figure.value if guess is not None else None
    value, low, high = shown(figure.value), shown(figure.low), shown(figure.high)
    return Term(name, TITLES[name], unit, value, low, high, figure.ranks, shown(guess), shown(difference))


def estimated(report: Report) -> dict[str, float]:
    """The report's figures under the names of a log's terms."""
    found: dict[str, float] = {}
    engine, gpu = report.engine, report.per_gpu
    if engine is not None:
        found |= attributes_of(
            engine,
            """budget=budget_bytes weights=weights_bytes activation=activation_bytes non_torch=non_torch_bytes
            graphs=graph_bytes kv=kv_bytes kv_per_token=kv_bytes_per_token kv_tokens concurrency=max_concurrency""",
        )
        found |= {"asleep": engine.asleep_bytes} if engine.asleep_bytes < engine.awake_bytes else {}
    if report.job.get("method") != "generate":
        found |= {"max_allocated": gpu.allocated_bytes, "max_reserved": gpu.reserved_bytes.expected}
        found |= {"host": report.host.bytes_per_node} if report.host.bytes_per_node else {}
    return found | {"device": gpu.device_bytes.expected}
