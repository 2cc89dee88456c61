"""Jobs side by side: a ranked table where there is room, a line below each where there is not."""

from collections.abc import Iterator

from memplan.comparison import CompareRow, Comparison
from memplan.drawn import share
from memplan.render import words
from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, definitions
from memplan.render.difference_view import difference_blocks
from memplan.render.estimate_view import percent
from memplan.render.layout import GAP, widths
from memplan.render.verdict_view import STYLES
from memplan.report import Report
from memplan.units import format_bytes

TITLE = 24
"""Characters that a job's title has at least, where it is so long: with room for them and for the figures, every group
of categories has a column."""
ROOMIER = 120
"""From this width on tokens per second have one, too."""
SINGULAR = {"strategies": "strategy", "jobs": "job"}
GROUPS = {
    "weights": ("parameters", "gathered_parameters", "autocast_weights", "adapters", "reference", "extra_models"),
    "optimizer": ("master_weights", "optimizer_states", "optimizer_temporaries"),
    "gradients": ("gradients",),
    "activations, logits": ("activations", "recomputation", "logits", "temporaries"),
}
"""What the columns of a comparison add up; whatever is in none of them is the rest."""


def compare_blocks(comparison: "Comparison", width: int) -> list[Block]:
    """The table, what cannot be, two jobs side by side, the recommendation, and what was assumed."""
    blocks: list[Block] = [Heading(f"{_subject(comparison)}: {_count(comparison)}, least memory first", "strong")]
    blocks.append(definitions(_common(comparison)))
    blocks += [Heading("Peak per GPU"), *_table(comparison, width)]
    blocks += [Prose(SPEEDS[comparison.speed_from], "dim")]
    if comparison.impossible:
        whys = (f"{row.error}; {row.hint}" if row.hint else row.error for row in comparison.impossible)
        rows = tuple((row.title, why) for row, why in zip(comparison.impossible, whys, strict=True))
        columns = Column(SINGULAR[comparison.of], wrap=True), Column("why", wrap=True)
        blocks += [Heading("Cannot be"), Table(columns, rows)]
    if comparison.difference:
        blocks += difference_blocks(comparison)
    if comparison.recommendation:
        blocks += [Heading("Recommendation"), *(Prose(line) for line in comparison.recommendation.splitlines())]
    if comparison.assumptions:
        blocks += [Heading("Assumed"), *(Prose(line, "dim") for line in comparison.assumptions)]
    return blocks


SPEEDS = {
    "cost model": "speed: tokens per second of all GPUs, against the baseline, a rough estimate by the "
    "cost model, good for ranking.",
    "passes": "speed: passes over the model per token, against the baseline; name a card (--gpu) and it counts "
    "arithmetic, memory and communication.",
}
"""What the column of speeds is made of."""


def _count(comparison: "Comparison") -> str:
    count = len(comparison.rows)
    return f"{count} {comparison.of}" if count != 1 else f"1 {SINGULAR[comparison.of]}"


def _subject(comparison: "Comparison") -> str:
    """The model, or how many."""
    models = list(dict.fromkeys(row.report.model.name for row in comparison.rows))
    return models[0] if len(models) == 1 else f"{len(models)} models"


def _common(comparison: "Comparison") -> list[tuple[Cell, Cell]]:
    """What all rows share; of strategies, what they are applied to."""
    if comparison.of == "strategies":
        *shared, (name, gpus) = _shared(comparison.base.report)
        return [*shared, (name, f"{gpus}, where a strategy names no other number")]
    lines = [_shared(row.report) for row in comparison.rows]
    return [line[0] for line in zip(*lines, strict=True) if len(set(line)) == 1]


def _shared(report: "Report") -> list[tuple[str, str]]:
    job = report.job
    return [
        ("model", words.model_words(report)),
        ("method", words.method_words(job)),
        ("batch", words.batch_words(job)),
        ("GPUs", words.cards_words(report)),
    ]


def grouped(by_category: dict[str, int]) -> dict[str, int]:
    """Bytes of each group of categories, and of the rest."""
    sums = {name: sum(by_category.get(category, 0) for category in members) for name, members in GROUPS.items()}
    return {**sums, "rest": sum(by_category.values()) - sum(sums.values())}


def _saving(row: "CompareRow", baseline: str) -> str:
    if row.name == baseline:
        return "base"
    share = percent(abs(round(row.saving * 10**6)), 10**6)
    return share if not round(row.saving * 10**6) else f"{'−' if row.saving > 0 else '+'} {share}"


def _judged(comparison: "Comparison") -> bool:
    """Whether there is a card to fit."""
    return any(row.fits for row in comparison.rows)


def _drawn(comparison: "Comparison") -> bool:
    """Whether runs were drawn from the lengths of the data, with a card to fit."""
    return any(row.report.lengths is not None and row.report.lengths.p_oom is not None for row in comparison.rows)


def _dying(row: "CompareRow") -> str:
    found = row.report.lengths
    return share(found.p_oom) if found is not None and found.p_oom is not None else ""


def _columns(comparison: "Comparison", *titles: str) -> tuple[Column, ...]:
    """The job, its peak and saving, figures, and the verdict."""
    columns = [Column(SINGULAR[comparison.of], wrap=True), Column("peak", right=True, style="strong")]
    columns += [Column(title, right=True) for title in ("saving", "speed", *titles)]
    columns += [Column("runs that die", right=True)] if _drawn(comparison) else []
    return (*columns, *([Column("fits")] if _judged(comparison) else []))


def _row(comparison: "Comparison", row: "CompareRow", *figures: Cell) -> tuple[Cell, ...]:
    peak, saving = format_bytes(row.report.per_gpu.allocated_bytes, 1), _saving(row, comparison.baseline)
    drawn = [_dying(row)] if _drawn(comparison) else []
    speed = f"{row.relative_speed:.2f}×" if row.relative_speed is not None else ""
    fits = [Span(row.fits, STYLES[row.fits]) if row.fits else ""] if _judged(comparison) else []
    return (row.title, peak, saving, speed, *figures, *drawn, *fits)


def _table(comparison: "Comparison", width: int) -> Iterator[Block]:
    wide = _wide(comparison, width)
    title = min(TITLE, max(len(row.title) for row in comparison.rows))
    sizes = widths(wide, width)
    fits = wide.indent + sum(sizes) + len(GAP) * (len(sizes) - 1) <= width
    yield wide if fits and sizes[0] >= title else _narrow(comparison)


def _wide(comparison: "Comparison", width: int) -> Table:
    """A column for each group of categories, and for tokens per second where there is room for it."""
    tokens = ["tokens/s"] if width >= ROOMIER and comparison.speed_from == "cost model" else []
    titles = [title.replace(", ", ",\n") for title in (*GROUPS, "rest")]
    rows = []
    for row in comparison.rows:
        parts = [format_bytes(size, 1) for size in grouped(row.report.per_gpu.by_category).values()]
        rate = [f"{row.tokens_per_second:,.0f}" if row.tokens_per_second is not None else ""] if tokens else []
        rows.append(_row(comparison, row, *rate, *parts))
    return Table(_columns(comparison, *tokens, *titles), tuple(rows))


def _narrow(comparison: "Comparison") -> Table:
    """The peak, the saving, the speed and the verdict in columns; the categories below each row."""
    columns = _columns(comparison)
    rows: list[tuple[Cell, ...]] = []
    for row in comparison.rows:
        rows.append(_row(comparison, row))
        parts = [f"{name} {format_bytes(size, 1)}" for name, size in grouped(row.report.per_gpu.by_category).items()]
        rows.append((Span("; ".join(parts), "dim"), *("" for _ in columns[1:])))
    return Table(columns, tuple(rows))


def compare_rows(comparison: "Comparison") -> list[dict[str, object]]:
    """A line for each row, and for what cannot be, for CSV."""
    found: list[dict[str, object]] = [
        {
            "name": row.name,
            "title": row.title,
            "allocated_bytes": row.report.per_gpu.allocated_bytes,
            "device_bytes": row.report.per_gpu.device_bytes.expected,
            "saving": round(row.saving, 4),
            "fits": row.fits or "",
            "relative_speed": row.relative_speed,
            "tokens_per_second": row.tokens_per_second,
            "peak_instant": row.report.per_gpu.peak_instant,
            "changes": row.changes,
            **{
                f"{name.replace(', ', '_')}_bytes": size
                for name, size in grouped(row.report.per_gpu.by_category).items()
            },
        }
        for row in comparison.rows
    ]
    return found + [
        {"name": row.name, "title": row.title, "changes": row.changes, "error": row.error}
        for row in comparison.impossible
    ]
