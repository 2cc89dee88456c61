"""How scripts on transformers' Trainer spell what ``TrainingArguments`` have no word for: one table of synonyms.

A row is a name, what it sets (``MEANINGS``) and where it was seen. Scripts copy each other's dataclasses, so a name
means the same nearly everywhere; the few that do not are told by their script (``hf_dialect_scripts``)."""

from collections.abc import Mapping

from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, told_in

_PARTS = parts_of(__file__)
MEANINGS = told_in(_PARTS["meanings"])
"""What a name means: what of memory it decides, and the job's key that it sets."""

ROWS = tuple((parts[1], parts[0], parts[2]) for line in _PARTS["names"].splitlines() if (parts := line.split(None, 2)))
NAMES: Mapping[str, tuple[str, ...]] = {
    meaning: tuple(name for name, of, _ in ROWS if of == meaning) for meaning in MEANINGS
}
"""Names by what they mean."""

HARMLESS = words(_PARTS["harmless"])

"""Names of the same scripts that say where data lies, how it is worded, or how fast is learnt."""
