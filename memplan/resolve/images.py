"""From the size of an image to what the tower sees and the language model reads.

The cutting itself stands in ``image_cuts.py``."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.groups import ImageBatch
from memplan.spec.job import Images, Job
from memplan.spec.model import ModelSpec

if TYPE_CHECKING:
    from memplan.spec.vision import ImageRule


@lru_cache(maxsize=64)
def without_images(spec: ModelSpec, flat: bool) -> ModelSpec:
    """The model as a batch of text alone runs it: the tower is idle, and so are layers that attend to images.

    ``flat``: DeepSpeed makes master weights and states for all that is trained, whether a gradient comes or not."""
    resting = tuple(run for run in spec.runs if run.layer.attends_to_images)
    runs = tuple(run for run in spec.runs if not run.layer.attends_to_images)
    numbers = tuple(i for i, layer in enumerate(spec.layers()) if not layer.attends_to_images) if resting else ()
    return spec.but(runs=runs, resting=resting, numbers=numbers, tower_idle=not flat)


def as_seen(spec: ModelSpec, sees: bool, flat: bool, length: int) -> ModelSpec:
    """The model as a batch with or without images runs it: its tower is idle, or its windows may have own masks."""
    if spec.tower is None:
        return spec
    if not sees:
        return without_images(spec, flat)
    return with_masked_windows(spec, length) if spec.tower.masks_windows else spec


@lru_cache(maxsize=64)
def with_masked_windows(spec: ModelSpec, length: int) -> ModelSpec:
    """The model whose layers with a window take a mask of their own for each row, however short the sequence: tokens of
    an image attend to each other in these (Gemma 4)."""
    windows = {window: window and min(window, length) for window in spec.windows}
    runs = []
    for run in spec.runs:
        mixer = run.layer.mixer
        assert mixer is not None
        own = mixer.but(window=windows.get(mixer.window, mixer.window))
        runs.append(run.but(layer=run.layer.but(mixer=own)))
    more = frozenset(windows[window] for window in spec.more_masks)
    return spec.but(runs=tuple(runs), more_masks=more, row_masks=True)


def one_image(rule: ImageRule, images: Images) -> ImageBatch:
    """What one image becomes. LLaVA-OneVision cuts only an image that is alone into tiles."""
    if rule.kind == "anyres" and rule.max_tiles > 1 and images.per_example > 1:
        from memplan.resolve.image_cuts import tiles_of

        return tiles_of(rule, 1, rule.tokens + 1)._replace(lines=1)
    if rule.kind == "canvas":
        if images.width is None:
            raise InvalidJob(
                "images: an image of this model is one token of the text and a canvas of tiles, whatever its size",
                "give width and height",
            )
        from memplan.resolve.image_cuts import canvas

        return canvas(rule, 0, 0)
    if images.patches is not None:
        from memplan.resolve.image_cuts import by_patches

        return by_patches(rule, images.patches)
    if images.tokens is not None:
        from memplan.resolve.image_cuts import by_tokens

        return by_tokens(rule, images.tokens)
    assert images.width is not None
    assert images.height is not None
    from memplan.resolve.image_cuts import CUTS

    return CUTS[rule.kind](rule, images.width, images.height)


def image_batch(job: Job, spec: ModelSpec, notes: Notes) -> ImageBatch | None:
    """The images of an example, resolved; None without. Raises InvalidJob for what the model or trainer cannot take."""
    images = job.images
    if images is None:
        if spec.tower:
            notes.assume("no images: the vision tower is resident, and a forward of text alone gives it no gradients")
        return None
    if spec.tower is None:
        if spec.family == "gemma3n_text":
            raise InvalidJob("images: the towers of gemma3n are not modelled", "leave images out: a step of text alone")
        if images.width is None or images.height is None:
            raise InvalidJob(f"images: {spec.family} has no vision tower", "give width and height, or leave images out")
        notes.remark("images: their pixels are in the batch, and no vision tower is counted: the model reads text")
        return ImageBatch(images.per_example, 1, 0, 0, 0, images.width * images.height * 3)
    rule = spec.tower.rule
    if spec.tower.fails:
        raise InvalidJob(f"images: {spec.tower.fails}", "leave images out: the step of a text batch")
    from memplan.resolve.image_cuts import CUTS

    if rule.kind not in CUTS or not spec.tower.projection:
        raise InvalidJob(
            f"images: the tower of {spec.family} is not modelled yet", "leave images out: the step of a text batch"
        )
    if job.trainer == "trl" and job.reference == "precomputed":
        raise InvalidJob(
            "reference: TRL refuses precomputed log-probabilities for images",
            "use reference resident, or adapter with LoRA",
        )
    one = one_image(rule, images)._replace(per_example=images.per_example)
    positions = (one.tokens + one.breaks) * one.per_example
    if positions > job.sequence_length:
        raise InvalidJob(
            f"sequence_length: {job.sequence_length} is shorter than {one.per_example} images of "
            f"{one.tokens + one.breaks} tokens",
            f"use sequence_length {positions} and more, smaller images, or fewer",
        )
    tiles = f" in {one.squares} tiles" if one.squares > 1 else ""
    marks = f" beside {one.breaks} of text" if one.breaks else ""
    notes.assume(
        f"images: {one.per_example} an example, each {one.squares * one.rows * one.columns} patches{tiles} and "
        f"{one.tokens} tokens of the sequence{marks}, as the processor of the published checkpoint cuts them"
    )
    return one
