"""How each trainer is told what to make again in backward: the kinds that it has a switch for, and the lines.

Kinds: none and full; every (``{n}``: one layer of so many); selective, a policy of its own; of Megatron block (the
first ``{n}`` layers of each chunk), uniform (``{n}`` layers at once) and modules; layers, any number of layers each in
its own way (``planner.budget_lines`` writes these). Beside one of them, activations: saved tensors on the host."""

from collections.abc import Mapping
from typing import NamedTuple

from memplan.tables.texts import parts_of, rows_of
from memplan.units import words_of


class Told(NamedTuple):
    """What one trainer can be told."""

    where: str
    """The file, or what else the lines stand in."""
    lines: Mapping[str, str]
    """By kind."""
    source: str
    """Read there: framework, version, file."""
    alone: tuple[str, ...]
    """Kinds of one GPU alone."""
    several: tuple[str, ...]
    """Kinds of several GPUs alone."""
    methods: Mapping[str, tuple[str, ...]]
    """Kinds of some methods alone."""


def _told(text: str) -> Told:
    """A row of the table."""
    row = rows_of(text)
    nothing, alone, several, sft = (words_of(row.pop(name, "")) for name in ("nothing", "alone", "several", "sft"))
    where, source = row.pop("where"), row.pop("source")
    lines = dict.fromkeys(nothing, "") | {kind: line.replace("\\n", "\n") for kind, line in row.items()}
    return Told(where, lines, source, alone, several, dict.fromkeys(sft, ("sft",)))


TOLD = {trainer: _told(text) for trainer, text in parts_of(__file__).items()}
"""By trainer, and by the framework whose file was read where its words are others (``told``)."""


def told(trainer: str, framework: str = "", kernels: str = "none") -> Told:
    """A trainer's settings, in the words of the framework whose file is at hand, or whose kernels run."""
    names = (framework.partition(" ")[0].lower(), kernels)
    return next((TOLD[name] for name in names if name in ("torchtitan", "axolotl", "unsloth")), TOLD[trainer])
