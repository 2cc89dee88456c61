"""One row per optimizer and library: the states it keeps, what its step holds for a moment, and where it cannot run."""

from pathlib import Path

from memplan.tables.rows import rows_in
from memplan.tables.styles import Optimizer
from memplan.tables.texts import texts_by_name
from memplan.units import pairs_of

HF_TRAINERS = ("transformers", "trl", "llamafactory", "simpo-repo", "swift")
"""Trainers built on Hugging Face's Trainer, which picks the optimizer's class (trainer_optimizer.py)."""
REFUSALS = texts_by_name(str(Path(__file__).with_name("optimizer_refusals")))


def refusals_of(text: str) -> dict[str, str]:
    """What each word of ``way=word`` stands for."""
    return {way: REFUSALS[word] for way, word in pairs_of(text).items()}


_ROWS = rows_in(__file__, Optimizer, "library", refusals=refusals_of, notes=lambda text: (text,))
VARIANTS = {name: tuple(row for row in _ROWS if row.name == name) for name in dict.fromkeys(row.name for row in _ROWS)}
"""Every row of a name, the bare loop's first."""
OPTIMIZERS = {name: rows[0] for name, rows in VARIANTS.items()}
LIBRARIES = tuple(sorted({row.library for row in _ROWS}))


def find_optimizer(name: str, trainer: str, library: str = "") -> Optimizer | None:
    """The row of a name: of the library, else what Hugging Face's Trainer takes, else the bare loop's; or None."""
    rows = VARIANTS[name]
    if library:
        return next((row for row in rows if row.library == library), None)
    return next((row for row in rows if row.under_trainers and trainer in HF_TRAINERS), rows[0])
