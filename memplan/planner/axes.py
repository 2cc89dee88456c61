"""The choices beside the layout, each with the values that the layout's trainer has a switch for."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from memplan.planner.degrees import Keys, is_native
from memplan.planner.space import (
    CHECKPOINTING,
    DOMINATED,
    HEADS,
    KERNELS,
    OTHERS,
    PAIR_PASSES,
    REFERENCES,
    Space,
    trainer_of,
)
from memplan.tables.kernels import LIGER
from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS

OF_LIGER = ("nvidia", "amd", "custom")
"""Vendors whose cards run its Triton kernels; a size alone names none, and is taken for one of theirs."""


def others(space: Space, layout: Mapping[str, Any]) -> Iterator[Keys]:
    """The axes beside the layout, of which dominated values are left out (see ``alternatives``)."""
    axes = {key: axis for key in OTHERS if (axis := values(space, layout, key))}
    for chosen in product(*axes.values()):
        yield dict(zip(axes, chosen, strict=True))


def values(space: Space, layout: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """The values of an axis that come first: all of them where none dominates another."""
    if key in space.fixed:
        return (space.fixed[key],)
    known = _told(space, layout, key, _known(space, layout, key))
    if key not in DOMINATED:
        return known
    if key == "attention" and not space.job.padded and "sdpa" in known:
        return ("sdpa",)
    return known[:1] or (("auto",) if key == "optimizer_impl" and _known(space, layout, key) else ())


def _told(space: Space, layout: Mapping[str, Any], key: str, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values that the trainer can be told."""
    trainer = trainer_of(space, layout)
    return tuple(value for value in known if trainer.can_be_told(key, value, space.gpus > 1))


def _known(space: Space, layout: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """The values of an axis, whatever the trainer has switches for."""
    job, method = space.job, METHODS[space.job.method]
    if key == "gradient_checkpointing":
        return CHECKPOINTING
    if key == "loss_head":
        return ("auto",) if method.score_head or is_native(layout) else HEADS
    if key == "pair_pass":
        return PAIR_PASSES if method.pairs else ()
    if key == "reference":
        if not method.reference or method.online:
            return ()
        adapters = ("adapter",) if job.lora is not None else ()
        own = trainer_of(space, layout).reference.places
        return tuple(kind for kind in (*REFERENCES, *adapters) if kind == "auto" or not own or kind in own)
    if key == "kernels":
        switch = "kernels" in trainer_of(space, layout).switches
        free = "kernels" not in job.model_fields_set and not job.compile
        return KERNELS if switch and free and space.spec.family in LIGER and space.vendor in OF_LIGER else ()
    if key == "optimizer_impl":
        return tuple(name for name in DOMINATED[key] if name in OPTIMIZERS[job.optimizer].implementations)
    return DOMINATED[key]


def alternatives(space: Space, keys: Keys, refusal: str) -> Iterator[Keys]:
    """What to try in order where a dominating value is what is refused: the next ones of its axis."""
    for key, ordered in DOMINATED.items():
        if key in space.fixed or keys.get(key) not in ordered or key.split("_")[0] not in refusal:
            continue
        for value in _told(space, keys, key, ordered[ordered.index(keys[key]) + 1 :]):
            yield {**keys, key: value}
        if key == "optimizer_impl":
            yield {**keys, key: "auto"}
