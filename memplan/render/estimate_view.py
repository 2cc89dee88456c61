"""A report as a person reads it: the verdict and what to change, then what, where it peaks and why, and the meters."""

from collections.abc import Iterable, Iterator

from memplan.lang import Name
from memplan.render import words
from memplan.render.blocks import Block, Column, Heading, Prose, Span, Table, bar, columns_of, definitions
from memplan.render.cards_view import cards_blocks, shares_blocks
from memplan.render.instants import instant_words, moment_words
from memplan.render.lengths_view import lengths_blocks
from memplan.render.rollout_view import engine_blocks, rollout_blocks
from memplan.render.verdict_view import verdict_blocks
from memplan.report import Report, Reserved
from memplan.units import format_bytes, words_of

ROOMY = 76
"""From this width on there is a column for the longer words."""


def estimate_blocks(report: Report, width: int, under: Iterable[Block] = ()) -> list[Block]:
    """Everything about one job, the answer first: whether it fits a named card; ``under`` that what else was asked."""
    if report.recipe is not None and report.recipe.method.generates:
        return [*engine_blocks(report, width), *under]
    return [
        *verdict_blocks(report, width),
        *under,
        *_what(report),
        *_peak(report, width),
        *_meters(report, width),
        *_moments(report, width),
        *rollout_blocks(report),
        *shares_blocks(report),
        *_from_sft(report),
        *lengths_blocks(report),
        *cards_blocks(report),
        *_assumptions(report),
    ]


def answer_blocks(report: Report, width: int) -> list[Block]:
    """The first line alone: the verdict; without a card, the peak."""
    found = next(verdict_blocks(report, width), None) or next(_peak(report, width))
    return [found]


def _what(report: Report) -> Iterator[Block]:
    job = report.job
    yield Heading(Name(report.model.name), "strong")
    yield definitions(
        [
            ("model", words.model_words(report)),
            ("method", words.method_words(job)),
            ("trainer", words.program_words(job)),
            ("storage", words.storage_words(job)),
            ("batch", words.batch_words(job)),
            ("GPUs", words.gpu_words(report)),
        ]
    )


def _peak(report: Report, width: int) -> Iterator[Block]:
    """The peak, why it is there, its categories, and the largest figure of each phase."""
    per_gpu = report.per_gpu
    what, why = instant_words(per_gpu.peak_instant)
    yield Heading(f"Peak {format_bytes(per_gpu.allocated_bytes)} allocated on {per_gpu.rank}, at {what}")
    if why:
        yield Prose(f"{per_gpu.peak_instant}: {why}.", "dim")
    yield category_table(per_gpu.by_category, per_gpu.allocated_bytes, width)
    beside = {moment.name for moment in per_gpu.moments}
    phases = [f"{name} {format_bytes(size)}" for name, size in per_gpu.phases.items() if name not in beside]
    yield Prose("Largest in each phase: " + ", ".join(phases) + ".")
    if report.host.bytes_per_node:
        yield Prose(f"Host memory: {format_bytes(report.host.bytes_per_node)} per node.")


def category_table(by_category: dict[str, int], total: int, width: int) -> Table:
    """Bytes by category with shares and bars, and their sum."""
    room = min(40, max(10, width - 52))
    rows = [
        (words.category_title(name), format_bytes(size), percent(size, total), bar(size / total if total else 0, room))
        for name, size in by_category.items()
    ]
    last = (Span("total", "strong"), Span(format_bytes(total), "strong"), "100 %", "")
    columns = (
        Column("category"),
        Column("bytes", right=True),
        Column("share", right=True),
        Column(style="bar", screen_only=True),
    )
    return Table(columns, (*rows, last))


def percent(part: int, whole: int) -> str:
    """'32 %'; '<1 %' for what is there but small."""
    share = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < share < 0.5 else f"{share:.0f} %"


def _meters(report: Report, width: int) -> Iterator[Block]:
    """The three meters with low, expected and high, and where each is read."""
    per_gpu = report.per_gpu
    spans = {
        "allocated": (per_gpu.allocated_range.low, per_gpu.allocated_bytes, per_gpu.allocated_range.high),
        "reserved": (per_gpu.reserved_bytes.low, per_gpu.reserved_bytes.expected, per_gpu.reserved_bytes.high),
        "device": (per_gpu.device_bytes.low, per_gpu.device_bytes.expected, per_gpu.device_bytes.high),
    }
    roomy = width >= ROOMY
    yield Heading("What each meter will show")
    columns = [Column("meter"), *(Column(title, right=True) for title in ("low", "expected", "high"))]
    rows = [(name, *map(format_bytes, figures)) for name, figures in spans.items()]
    if roomy:
        columns.append(Column("read from", style="dim"))
        rows = [(*row, words.METERS[row[0]]) for row in rows]
    yield Table(tuple(columns), tuple(rows))
    yield Prose(_reserved(per_gpu.reserved_bytes), "dim")


def _reserved(found: Reserved) -> str:
    """How the figure of reserved was found, and what is needed of it."""
    if not found.played:
        return f"Reserved and device are a band around allocated: {found.why_not_played}."
    text = "Reserved: every request replayed through PyTorch's caching allocator"
    if found.endless is not None and found.endless != found.expected:
        text += f": {format_bytes(found.endless)} on an unlimited card"
    if found.retries:
        often = "once" if found.retries == 1 else f"{found.retries} times"
        text += f"; on this card the cache is emptied {often} in two steps, which costs time"
    if found.needs_sought:
        return f"{text}; the job needs at least {format_bytes(found.needs)} of it."
    return f"{text}; the least it can run in was not computed (--play does)."


def _moments(report: Report, width: int) -> Iterator[Block]:
    """The phases beside the steady step, in the order of the run."""
    moments = report.per_gpu.moments
    if not moments:
        return
    yield Heading("Outside the steady step")
    columns = [Column("phase"), *(Column(title, right=True) for title in ("allocated", "device", "host, per node"))]
    rows: list[tuple[str, ...]] = [
        (
            each.name,
            format_bytes(each.allocated_bytes),
            format_bytes(each.device_bytes.expected),
            format_bytes(each.host_bytes_per_node) if each.host_bytes_per_node else "",
        )
        for each in moments
    ]
    if width >= ROOMY:
        columns.append(Column("peak at", wrap=True, style="dim"))
        rows = [(*row, moment_words(each.peak_instant)) for row, each in zip(rows, moments, strict=True)]
    yield Table(tuple(columns), tuple(rows))


def _from_sft(report: Report) -> Iterator[Block]:
    """The peak as a difference from supervised fine-tuning."""
    if not report.from_sft:
        return
    first, *others = report.from_sft
    parts = [f"{words.signed(step.bytes)} {step.title}" for step in others]
    yield Heading("Compared with SFT")
    total = format_bytes(report.per_gpu.allocated_bytes)
    yield Prose(f"{format_bytes(first.bytes)} {first.title}; " + "; ".join(parts) + f"; together {total}.")


SHOWN_DEFAULTS = words_of(
    """method trainer batch_size gradient_accumulation_steps sequence_length completion_length optimizer
    gradient_checkpointing attention pair_pass num_gpus margin"""
)
"""Keys whose default decides the figure, in the order of a job."""


def defaulted(report: Report) -> list[str]:
    """'sequence_length 2048' for each key that nobody set."""
    job, sources = report.job, report.sources
    skipped = {key for key, shown in (("pair_pass", words.is_pairwise(job)), ("margin", report.verdict)) if not shown}
    keys = [key for key in SHOWN_DEFAULTS if key in job and key not in skipped]
    return [f"{key} {job[key]}" for key in keys if sources.get(key, "default") == "default"]


def _assumptions(report: Report) -> Iterator[Block]:
    left = defaulted(report)
    if not (left or report.assumptions):
        return
    yield Heading("Assumed")
    for text in report.assumptions:
        yield Prose(text, "dim")
    if left:
        yield Prose("left at their defaults: " + ", ".join(left), "dim")


def ranks_blocks(report: Report) -> Iterator[Block]:
    """One row for each class, the fullest first."""
    columns = columns_of("GPUs > | which ~ | allocated > | device > | peak at ~")
    yield Heading("Ranks")
    yield Table(
        columns,
        tuple(
            (
                f"{rank.count:,}",
                rank.name,
                format_bytes(rank.allocated_bytes),
                format_bytes(rank.device_bytes.expected),
                instant_words(rank.peak_instant)[0],
            )
            for rank in report.ranks
        ),
    )
