"""What a comparison recommends: always one of its own rows, by its own figures."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from memplan.comparison.result import CompareRow
from memplan.cost import speed
from memplan.remedies import on_card
from memplan.report import Verdict
from memplan.spec.gpu import Gpu
from memplan.strategies import StrategyFile
from memplan.units import format_bytes, words_of

TRAINING = words_of("model method num_gpus sequence_length completion_length lora quantization optimizer freeze")
"""What a strategy may change of the training itself, or ask for beside it; and the examples of a step."""
MOST_NAMED = 3


class Judged(NamedTuple):
    """A row on a card."""

    row: CompareRow
    verdict: Verdict
    speed: float

    @property
    def short(self) -> str:
        """By how much it does not fit, where it is the card that is short."""
        missing = self.verdict.missing_bytes
        return f"short by {format_bytes(missing)}" if missing else "a node's memory or the engine is what is short"


def of_strategies(rows: Sequence[CompareRow], baseline: CompareRow, file: StrategyFile, whole: bool) -> Iterator[str]:
    """The fastest that fits the job's card; without one, that of each class of cards. ``whole``: no row is left out."""
    assert baseline.report.recipe is not None
    gpu, count = baseline.report.recipe.hardware.gpu, int(baseline.report.job["num_gpus"])
    cards = f"{count} × " if count > 1 else ""
    if gpu is not None:
        judged = list(_judged(rows))
        yield from chosen(judged, baseline, cards + gpu.title)
        if not any(each.verdict.fits == "yes" for each in judged):
            more = "" if whole or not file.more else "--all adds " + ", ".join(row.name for row in file.more) + "; "
            yield f"To look further: {more}memplan plan, with the same options, searches every other way."
        return
    for card in file.cards:
        judged = [
            Judged(row, verdict, _speed_on(row, card.gpu))
            for row in rows
            if (verdict := on_card(row.report, card.gpu)) and row.report.recipe is not None
        ]
        nowhere = f"None of these runs on {card.gpu.title}, which has no flash attention."
        said = " ".join(chosen(judged, baseline, cards + card.gpu.title)) if judged else nowhere
        yield f"{card.title}: {said[:1].lower()}{said[1:]}"


def fastest_that_fits(rows: Sequence[CompareRow]) -> str:
    """Which of some rows to take, where cards are named; of what is unclear none."""
    judged = list(_judged(rows))
    return " ".join(chosen(judged, None, "its card")) if judged and len(rows) > 1 else ""


def _judged(rows: Iterable[CompareRow]) -> Iterator[Judged]:
    for row in rows:
        if row.report.verdict is not None and row.fits != "unclear":
            yield Judged(row, row.report.verdict, row.relative_speed or 0)


def _speed_on(row: CompareRow, gpu: Gpu) -> float:
    """Tokens per second on a card that the job does not name."""
    recipe = row.report.recipe
    assert recipe is not None
    return speed(recipe._replace(hardware=recipe.hardware._replace(gpu=gpu))).tokens_per_second


def chosen(judged: Sequence[Judged], baseline: CompareRow | None, where: str) -> Iterator[str]:
    """The fastest that surely fits, before a tight one; ways to run the baseline's own training come first."""
    wanted = baseline and _trains(baseline)
    own = [each for each in judged if wanted is None or _trains(each.row) == wanted]
    others = [each for each in judged if wanted is not None and _trains(each.row) != wanted]
    sure, tight = _fastest(own, "yes"), _fastest(own, "tight")
    if sure:
        yield f"Fastest of these that fits {where}: {sure[0].row.title}."
        return
    if tight:
        yield f"None of these surely fits {where}; tight: {tight[0].row.title}."
    else:
        yield f"None of these fits {where}" + (" with the training as it is." if others else ".")
    changed = _fastest(others, "yes")
    if changed:
        names = "; ".join(each.row.title for each in changed[:MOST_NAMED])
        yield f"Another training, or more GPUs, does: {names}."
    elif not tight and judged:
        nearest = min(judged, key=lambda each: (each.verdict.missing_bytes, -each.speed))
        yield f"Nearest: {nearest.row.title}, {nearest.short}."


def _fastest(judged: Iterable[Judged], fits: str) -> list[Judged]:
    """Those with this verdict, fastest first; of equals the one that needs less."""
    found = (each for each in judged if each.verdict.fits == fits)
    return sorted(found, key=lambda each: (-round(each.speed, 3), each.row.report.per_gpu.allocated_bytes))


def _trains(row: CompareRow) -> tuple[Any, ...]:
    """What is trained on how many GPUs: rows with the same differ in how alone."""
    job = row.report.job
    examples = int(job.get("batch_size") or 0) * int(job.get("gradient_accumulation_steps") or 1)
    return (*(job.get(key) for key in TRAINING), examples)
