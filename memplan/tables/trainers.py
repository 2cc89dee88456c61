"""Trainers by name, eras in order: what each fills in for a silent job, and how it computes log-probabilities."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from memplan.tables.rows import Rows, by_name, said_in
from memplan.tables.texts import json_value, parts_of
from memplan.tables.trainer import Trainer, version_key
from memplan.units import by_word

_WORD = re.compile(r'"[^"]*"|\S+')
Switched = dict[str, tuple[Any, ...]]


@cache
def _switches() -> dict[str, Switched]:
    """By name."""
    found: dict[str, Switched] = {}
    for heading, text in parts_of(str(Path(__file__).with_name("trainer_switches"))).items():
        own, _, under = heading.partition(" < ")
        said = {key: tuple(map(json_value, _WORD.findall(words))) for key, words in said_in(text, {})}
        found[own] = {**found.get(under, {}), **said}
    return found


_named: dict[str, Any] = dict.fromkeys(("switches", "switches_over_several"), lambda name: _switches()[name])
TRAINERS = by_name(Rows(__file__, Trainer, **_named))
SHOWN_HEADS = by_word(
    {
        "selective": """selective-kernel flash-cross-entropy flash-cross-entropy-in-place
            flash-cross-entropy-overwritten""",
        "log-softmax": """stacked-log-softmax one-hot exponentiated sliced-log-softmax unpadded-slices
            megatron-fused megatron-log-probs shared-softmax jensen-shannon kl-divergence""",
        "cross-entropy": """shifted-cross-entropy repeated-cross-entropy foak-cross-entropy compiled-cross-entropy
            megatron-cross-entropy chunked-cross-entropy unsloth-cross-entropy""",
        "chunked": """chunked-lm-head linear-chunks compiled-linear-chunks compiled-output-chunks output-chunks
            chunked-nll chunked-log-probs unsloth-chunks compiled-unsloth-chunks unsloth-log-probs
            compiled-unsloth-log-probs""",
        "fused": "liger foak-chunks liger-preference liger-policy liger-policy-blocks",
    }
)
"""The job's word for a head's program, where it is another: trainers do the same thing by different code."""


NEWEST = {
    "transformers": "5.24",
    "trl": "1.16",
    "llamafactory": "0.9.5",
    "openrlhf": "0.11",
    "verl": "0.9",
    "verl-megatron": "0.9",
    "litgpt": "0.5",
}
"""The newest version of a trainer that was read. Those without a name here are read at one commit."""


def newest_read(name: str) -> str:
    """The newest version of a trainer that was read: where the table has none, the major one of its last era."""
    return NEWEST.get(name) or TRAINERS[name][-1].since.partition(".")[0]


def is_newer(name: str, version: str) -> bool:
    """Whether a version is later than any that was read, by as much of it as is known."""
    newest = version_key(newest_read(name))
    return bool(newest) and version_key(version)[: len(newest)] > newest


def find_trainer(name: str, version: str = "") -> Trainer:
    """The era of a trainer that a version falls in; the newest without a version, the first for older ones."""
    eras = TRAINERS[name]
    if not version:
        return eras[-1]
    fitting = [era for era in eras if version_key(era.since) <= version_key(version)]
    return fitting[-1] if fitting else eras[0]


ON_MEGATRON = ("megatron", "megatron-swift", "nemo-rl-megatron", "verl-megatron", "slime", "skyrl-megatron")
"""Trainers on Megatron in the order in which one is taken where nobody names one: NVIDIA's own first, and none that is
for other cards (MindSpeed) or that is not kept up (NeMo-Aligner)."""


def on_megatron(name: str, method: str, taken: bool = False) -> str:
    """The trainer on Megatron that has a method and is next to a trainer: its own, else Megatron-LM, else another;
    empty where there is none. ``taken``: of those alone that may be taken without a word of the user's."""
    others = () if taken else [each for each, eras in TRAINERS.items() if eras[-1].megatron]
    known = (each for each in (f"{name}-megatron", f"megatron-{name}", *ON_MEGATRON, *others) if each in TRAINERS)
    return next((each for each in known if method in TRAINERS[each][-1].methods.names), "")
