"""The choices beside the layout, each with the values that the layout's trainer has a switch for."""

from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations, product
from typing import Any, NamedTuple

from memplan.planner.degrees import Keys, is_native
from memplan.planner.space import (
    CHECKPOINTING,
    DOMINATED,
    HEADS,
    KERNELS,
    OTHERS,
    PAIR_PASSES,
    REFERENCES,
    WHERE_UNSAID,
    Space,
    offloads_activations,
    trainer_of,
)
from memplan.spec.recipe import Recipe
from memplan.tables.kernels import LIGER
from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS

LEANEST: Keys = {"reference": "precomputed"}
"""No other reference holds less (tests/test_plan_order.py)."""
OUTDONE = {"reference": ("offloaded", LEANEST["reference"]), "pair_pass": ("gradcache", "split")}
"""Values that another of their axis outdoes: one that does more, and holds no less (tests/test_plan_order.py)."""
OF_LIGER = ("nvidia", "amd", "custom")
"""Vendors whose cards run its Triton kernels; a size alone names none, and is taken for one of theirs."""


class Other(NamedTuple):
    """What is chosen beside a layout."""

    keys: Keys
    name: Hashable
    rest: Hashable
    """The name of the same with any loss head."""
    twins: list[tuple[str, Hashable]]
    """By axis, the names of those with a value that outdoes its own."""


def others(space: Space, layout: Mapping[str, Any]) -> tuple[Other, ...]:
    """The axes beside the layout, of which dominated values are left out (see ``attempts``)."""
    axes = tuple((key, axis) for key in OTHERS if (axis := values(space, layout, key)))
    return _products(axes, trainer_of(space, layout).reference.offloads)


@lru_cache(maxsize=64)
def _products(axes: tuple[tuple[str, tuple[Any, ...]], ...], offloads: bool) -> tuple[Other, ...]:
    """Of values by axis; ``offloads``: a reference can be on the host."""
    every = []
    for chosen in product(*(axis for _, axis in axes)):
        found = dict(zip((key for key, _ in axes), chosen, strict=True))
        if found.get("compile") and found.get("offload"):  # what a graph sends to the host is counted as without it
            continue
        if not (found.get("recompute_modules") and found["gradient_checkpointing"] != "selective"):
            keys = {key: value for key, value in found.items() if value is not None}
            rest = frozenset(item for item in keys.items() if item[0] != "loss_head")
            every.append(Other(keys, frozenset(keys.items()), rest, _twins_of(keys, offloads)))
    return tuple(every)


def _twins_of(other: Keys, offloads: bool) -> list[tuple[str, Hashable]]:
    return [
        (key, frozenset({**other, key: better}.items()))
        for key, (worse, better) in OUTDONE.items()
        if other.get(key) == worse and (offloads or key != "reference")
    ]


def in_megatron(keys: Keys) -> Keys:
    """The keys, with the modules that are made again where a job has them."""
    modules = keys.pop("recompute_modules", ())
    return {**keys, "megatron": {**keys.get("megatron", {}), "recompute_modules": modules}} if modules else keys


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
        return ("auto",) if method.score_head or _is_native(space, layout) else HEADS
    if key == "pair_pass":
        return PAIR_PASSES if method.pairs else ()
    if key == "reference":
        if not method.reference or method.online:
            return ()
        if job.reference == "second-adapter":  # another would not say the same, and precomputed it stays on the card
            return ("second-adapter",)
        adapters = ("adapter",) if job.lora is not None else ()
        own = trainer_of(space, layout).reference.places
        return tuple(kind for kind in (*REFERENCES, *adapters) if kind == "auto" or not own or kind in own)
    if key == "kernels":
        free = "kernels" not in job.model_fields_set and not job.compile
        return KERNELS if free and _has_liger(space, layout) else ()
    if key in WHERE_UNSAID:
        return (
            _compiled(space, layout)
            if key == "compile"
            else _away(space)
            if key == "offload"
            else _modules(space, layout)
        )
    if key == "optimizer_impl":
        return tuple(name for name in DOMINATED[key] if name in OPTIMIZERS[job.optimizer].implementations)
    return DOMINATED[key]


def _has_liger(space: Space, layout: Mapping[str, Any]) -> bool:
    """Whether Liger has kernels for the layers, and the trainer a switch: not Megatron's, nor where DTensors run."""
    trainer = trainer_of(space, layout)
    runs = not trainer.megatron and not _is_native(space, layout)
    runs = runs and trainer.can_be_told("kernels", "liger", space.gpus > 1)
    return runs and space.spec.family in LIGER and space.vendor in OF_LIGER


def _is_native(space: Space, layout: Mapping[str, Any]) -> bool:
    """Whether DTensors run through the layers, as torch's own parallelism has them in a bare loop."""
    return is_native(layout) and trainer_of(space, layout).name == "pytorch"


def _compiled(space: Space, layout: Mapping[str, Any]) -> tuple[bool, ...]:
    """torch.compile, where Liger has nothing, which comes to the same speed."""
    job = space.job
    free = not {"compile", "kernels"} & job.model_fields_set and space.vendor in OF_LIGER
    return (False, True) if free and not _has_liger(space, layout) and not trainer_of(space, layout).megatron else ()


def _away(space: Space) -> tuple[tuple[str, ...] | None, ...]:
    """Saved tensors on the host, where one card trains little beside what it saves: adapters."""
    job = space.job
    alone = space.gpus == 1 and job.lora is not None and offloads_activations(space)
    return (None, ("activations",)) if alone and not job.offload and not space.offload else ()


def _modules(space: Space, layout: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Of Megatron's modules those that cost next to nothing to make again, and the feed-forward with them."""
    if not trainer_of(space, layout).megatron or "recompute_modules" in space.job.megatron.model_fields_set:
        return ()
    layers = [run.layer for run in space.spec.runs]
    experts = any(layer.experts for layer in layers)
    latent = any(layer.mixer is not None and layer.mixer.kind == "latent" for layer in layers)
    cheap = ("layernorm", *(["moe_act"] if experts else []), *(["mla_up_proj"] if latent else []))
    dense = any(layer.feed_forward is not None and not layer.experts for layer in layers)
    whole = [each for each in cheap if each != "moe_act"]
    return (), cheap, (*whole, *(["moe"] if experts else []), *(["mlp"] if dense else []))


class Reason(NamedTuple):
    """Why an attempt is refused."""

    message: str
    hint: str = ""


def attempts(space: Space, keys: Keys, reasons: list[Reason]) -> Iterator[Keys]:
    """The keys; and where a dominating value is what the first of the ``reasons`` refuses, the next of its axis."""
    yield keys
    refusal = " ".join(reasons[0])
    for key, ordered in DOMINATED.items():
        if key in space.fixed or keys.get(key) not in ordered or key.split("_")[0] not in refusal:
            continue
        for value in _told(space, keys, key, ordered[ordered.index(keys[key]) + 1 :]):
            yield {**keys, key: value}
        if key == "optimizer_impl":
            yield {**keys, key: "auto"}


class Refusal(NamedTuple):
    """Why a structure is, and each of what was tried in its place (``attempts``)."""

    reasons: tuple[Reason, ...]


Made = dict[Hashable, tuple[Keys, Recipe] | Refusal]
"""Structures of a layout by their choices: their keys, and what they resolve to, or why they do not."""


def joined(other: Keys, keys: Keys, first: Keys, made: Made) -> tuple[Keys, Recipe] | Refusal | None:
    """A structure of two that are resolved: one with its checkpointing, one with its loss head and reference, which do
    not bear on each other. So what refuses both refuses it, and what refuses one where the other runs as it is. None
    where it is one of these itself, or they do not say."""
    loss: Keys = {key: first[key] for key in ("loss_head", "reference") if key in other}
    again: Keys = {"gradient_checkpointing": first.get("gradient_checkpointing")}
    own, plain = (made.get(frozenset((other | half).items())) for half in (loss, again))
    if own is None or plain is None:
        return None
    if isinstance(own, Refusal):
        return own if own == plain or _refused_alone(own, plain, keys) else None
    if isinstance(plain, Refusal):
        return plain if _refused_alone(plain, own, keys) else None
    if not _as_it_is(own[0], plain[0]):
        return None
    (said, recipe), (_, of) = own, plain
    same = {key: said[key] for key in DOMINATED if key in said}
    recipe = recipe._replace(loss=of.loss, others=of.others, batch=of.batch, provenance=of.provenance)
    return {**keys, **same}, recipe


def named(other: Keys, recipe: Recipe) -> Iterator[Hashable]:
    """The choices that name what ``auto`` came to: the same again."""
    came_to = {"reference": recipe.others.reference, "loss_head": recipe.provenance.job.get("loss_head")}
    autos = {key: value for key, value in came_to.items() if other.get(key) == "auto"}
    for size in range(1, len(autos) + 1):
        for keys in combinations(autos, size):
            yield frozenset({**other, **{key: autos[key] for key in keys}}.items())


def _as_it_is(keys: Keys, others: Keys) -> bool:
    return all(keys.get(key) == others.get(key) for key in DOMINATED)


def _refused_alone(one: Refusal, other: tuple[Keys, Recipe] | Refusal, keys: Keys) -> bool:
    """Whether nothing was tried in the place of the one, and the other runs with what is tried first."""
    return len(one.reasons) == 1 and not isinstance(other, Refusal) and _as_it_is(other[0], keys)
