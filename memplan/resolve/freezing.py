"""``freeze``: the weights that its patterns name, layer by layer."""

from collections.abc import Iterator
from itertools import groupby

from memplan.errors import InvalidJob, did_you_mean
from memplan.resolve.notes import Notes
from memplan.spec.freezing import LANGUAGE_MODEL, Patterns, path_of
from memplan.spec.job import Job
from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import FeedForward, Part
from memplan.tables.trainer import Trainer

EMBEDDING, TOWER, PROJECTOR = "embed_tokens", "vision", "projector"
RESTING = ("vision_tower", "multi_modal_projector")
"""What some trainers freeze where nobody says what rests."""
MOST_TRIED = 400_000
"""Patterns × weights: what takes a second to go through."""


def frozen_model(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> ModelSpec:
    """The model with the weights marked that are not trained. Raises InvalidJob for a pattern that names none."""
    if not job.freeze:
        return _with_resting_tower(job, trainer, spec, notes)
    if job.lora is not None:
        raise InvalidJob("freeze: the base is frozen under LoRA already", "leave freeze out, or name lora.targets")
    if spec.resting:
        raise InvalidJob(
            f"freeze: layers of {spec.family} that rest without images are not modelled", "leave freeze out"
        )
    if _mixes(job, trainer, notes):
        raise InvalidJob(
            f"freeze: {trainer.title} keeps frozen weights in the checkpoint's dtype beside fp32 trained "
            "ones, which is not modelled",
            "give precision, such as precision: bf16",
        )
    outside, layers = dict(_outside(spec)), [dict(_of_layer(layer)) for layer in spec.layers()]
    given = [(pattern, path) for pattern in job.freeze for path in _paths(pattern, outside)]
    patterns = Patterns(dict.fromkeys(segments for _, segments in given))
    paths = [*outside.values(), *(("layers", str(i), *rest) for i, own in enumerate(layers) for rest in own.values())]
    if len(patterns.globs) * len(paths) > MOST_TRIED:
        raise InvalidJob(
            f"freeze: {len(patterns.globs)} patterns with * or ranges are too many for {len(paths)} weights",
            "join them, such as layers.0-15",
        )
    unknown = patterns.without_path(paths)
    for pattern, segments in ((pattern, segments) for pattern, segments in given if segments in unknown):
        words = sorted({word for path in paths for word in path if not word.isdigit()})
        raise InvalidJob(f"freeze: {pattern[:80]!r} names no weight of {spec.family}", _hint(spec, segments, words))
    is_frozen = patterns.name
    marked = frozenset(name for name, path in outside.items() if is_frozen(path))
    if TOWER not in marked and any(is_frozen(path) for path in _of_tower(spec)):
        notes.assume("freeze: layers of the vision tower are counted as trained, though a pattern names parts of them")
    if spec.head_is_tied and EMBEDDING in marked:
        marked |= {spec.head.name}
    by_layer = [
        frozenset(name for name, rest in own.items() if is_frozen(("layers", str(i), *rest)))
        for i, own in enumerate(layers)
    ]
    seen = {name for name in outside if name not in (TOWER, PROJECTOR) or job.images is not None}
    _check(spec, marked, seen, by_layer, layers)
    return spec.but(frozen=marked, runs=_runs(spec, by_layer))


def _with_resting_tower(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> ModelSpec:
    """The model as the trainer has it where nobody says what rests: some freeze the tower and its projector."""
    if not (trainer.models.freezes_tower and spec.tower) or job.lora is not None or notes.is_given("freeze"):
        return spec
    if _mixes(job, trainer, notes) or spec.resting:
        notes.assume(f"freeze: {trainer.title} freezes the vision tower and its projector; they are counted trained")
        return spec
    notes.fill("freeze", RESTING, "trainer", f"{trainer.title} freezes them")
    return spec.but(frozen=frozenset((TOWER, PROJECTOR)))


def tower_rests(spec: ModelSpec) -> bool:
    """Whether nothing of the tower and its projector is trained, nor adapted."""
    resting = spec.frozen | (spec.tower.unadapted - spec.tower.trained if spec.tower else frozenset())
    return {TOWER, PROJECTOR} <= resting


def _mixes(job: Job, trainer: Trainer, notes: Notes) -> bool:
    """Whether frozen weights have another dtype than trained ones: DeepSpeed casts both."""
    zero = job.zero_stage is not None or (job.sharding or "").startswith("zero")
    alike = notes.is_given("precision") or zero
    return trainer.numerics.weights == "trained-fp32" and not alike


def _paths(pattern: str, outside: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """A pattern's path; of ``language_model`` all but the tower and its projector."""
    if pattern != LANGUAGE_MODEL or TOWER not in outside:
        return [path_of(pattern)]
    return [("layers",), *(path for name, path in outside.items() if name not in (TOWER, PROJECTOR))]


def _runs(spec: ModelSpec, by_layer: list[frozenset[str]]) -> tuple[Run, ...]:
    """Runs of layers that are equal, and frozen alike."""
    runs: list[Run] = []
    start = 0
    for run in spec.runs:
        inside = 0
        for frozen, group in groupby(by_layer[start : start + run.count]):
            layer = run.layer.but(frozen=frozen) if frozen else run.layer
            runs.append(run.piece(inside, len(list(group)), layer))
            inside += runs[-1].count
        start += run.count
    return tuple(runs)


def _of_part(part: Part, word: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name in the engine, path) of a part's weights."""
    linears = part.linears
    if isinstance(part, FeedForward):
        linears += part.shared + ((part.experts.router,) if part.experts else ())
        yield from ((bare.name, (word, *path_of(bare.name))) for bare in (part.experts.stacked if part.experts else ()))
    for name, bias in [(item.name, item.bias) for item in linears] + [(norm.name, norm.bias) for norm in part.norms]:
        yield name, (word, *path_of(name))
        if bias:
            yield f"{name}.bias", (word, *path_of(name), "bias")
    yield from ((bare.name, (word, *path_of(bare.name))) for bare in part.tensors)


def _of_layer(layer: Layer) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, path behind ``layers.N``) of a layer's weights."""
    mixer = "cross_attn" if layer.attends_to_images else "self_attn"
    for part in layer.parts:
        word = mixer if part is layer.mixer else "mlp" if part is layer.feed_forward else ""
        for name, path in _of_part(part, word):
            yield name, path if word else path[1:]
    for name, path in _of_part(Part(norms=layer.norms), ""):
        yield name, path[1:]


def _outside(spec: ModelSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, path) of what stands outside the layers; the tower and its projector as one each."""
    yield EMBEDDING, (EMBEDDING,)
    for part in spec.extra:
        for name, path in _of_part(part, ""):
            yield name, path[1:]
    if spec.final_norm:
        for name, _ in _of_part(Part(norms=(spec.final_norm,)), ""):
            yield name, ("norm", "bias") if name.endswith(".bias") else ("norm",)
    if not spec.head_is_tied:
        yield spec.head.name, (spec.head.name,)
        if spec.head.bias:
            yield f"{spec.head.name}.bias", (spec.head.name, "bias")
    if spec.tower:
        yield from ((TOWER, ("vision_tower",)), (PROJECTOR, ("multi_modal_projector",)))


def _of_tower(spec: ModelSpec) -> Iterator[tuple[str, ...]]:
    """Paths of the weights in the tower's layers."""
    for run in spec.tower.runs if spec.tower else ():
        for part, word in ((run.block.attention, "self_attn"), (run.block.feed_forward, "mlp")):
            yield from (("vision_tower", "layers", "0", *path) for _, path in _of_part(part, word))


def _hint(spec: ModelSpec, segments: tuple[str, ...], words: list[str]) -> str:
    if spec.head_is_tied and spec.head.name in segments:
        return "the head is the embedding's tensor: freeze embed_tokens"
    last = next((word for word in reversed(segments) if not word[:1].isdigit()), "")
    if last == "layers":
        return f"the layers are 0 to {spec.num_layers - 1}"
    return did_you_mean(last, words)


def _check(
    spec: ModelSpec,
    marked: frozenset[str],
    outside: set[str],
    by_layer: list[frozenset[str]],
    layers: list[dict[str, tuple[str, ...]]],
) -> None:
    """What leaves nothing to train, or cannot be trained so. Raises InvalidJob."""
    if marked >= outside and all(own >= all_of.keys() for own, all_of in zip(by_layer, layers, strict=True)):
        idle = spec.tower is not None and TOWER not in outside
        raise InvalidJob(
            f"freeze: nothing is left to train{' by a batch without images' if idle else ''}",
            "give images, such as images: {per_example: 1, width: 448, height: 448}" if idle else "freeze less",
        )
    before = {name for name in outside if name not in (spec.head.name, f"{spec.head.name}.bias", TOWER, PROJECTOR)}
    before -= {
        name for part in (Part(norms=(spec.final_norm,)) if spec.final_norm else Part(),) for name in _names(part)
    }
    if spec.front and (marked & before) not in (frozenset(), before):
        raise InvalidJob(
            "freeze: a part of what stands before the layers is not modelled",
            "freeze all of: " + ", ".join(sorted(before)),
        )


def _names(part: Part) -> Iterator[str]:
    return (name for name, _ in _of_part(part, ""))
