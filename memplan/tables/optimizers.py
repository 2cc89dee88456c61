"""One row per optimizer and library: the states it keeps, what its step holds for a moment, and where it cannot run."""

from pathlib import Path

from memplan.tables.rows import Rows, by_name
from memplan.tables.styles import Optimizer
from memplan.tables.texts import Lazily, texts_by_name
from memplan.units import pairs_of

HF_TRAINERS = ("transformers", "trl", "llamafactory", "simpo-repo", "swift")
"""Trainers built on Hugging Face's Trainer, which picks the optimizer's class (trainer_optimizer.py)."""
REFUSALS = texts_by_name(str(Path(__file__).with_name("optimizer_refusals")))


def refusals_of(text: str) -> dict[str, str]:
    """What each word of ``way=word`` stands for."""
    return {way: REFUSALS[word] for way, word in pairs_of(text).items()}


_ROWS = Rows(__file__, Optimizer, "library", refusals=refusals_of, notes=lambda text: (text,))
VARIANTS = by_name(_ROWS)
"""Every row of a name, the bare loop's first."""
OPTIMIZERS = Lazily(VARIANTS, lambda name: VARIANTS[name][0])
LIBRARIES = tuple(sorted({heading.partition(" ")[2] for heading in _ROWS}))


def find_optimizer(name: str, trainer: str, library: str = "") -> Optimizer | None:
    """The row of a name: of the library, else what Hugging Face's Trainer takes, else the bare loop's; or None."""
    rows = VARIANTS[name]
    if library:
        return next((row for row in rows if row.library == library), None)
    return next((row for row in rows if row.under_trainers and trainer in HF_TRAINERS), rows[0])
