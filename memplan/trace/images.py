"""Images of a traced batch: pixels of the right shape, and what a processor gives beside them."""

import sys
from functools import partial
from typing import Any

import torch
from transformers.masking_utils import create_bidirectional_mask

from memplan.errors import InvalidJob
from memplan.resolve.image_cuts import scaled
from memplan.spec.groups import ImageBatch
from memplan.spec.recipe import Recipe
from memplan.spec.vision import ImageRule, Tower
from memplan.trace.known import remember

GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v")
"""Types that take the patches of all images in one sequence, and the grid of each."""


def image_inputs(recipe: Recipe, device: str, rows: int) -> dict[str, Any]:
    """Arguments of the model for ``rows`` sequences; nothing for a batch of text."""
    images, tower = recipe.batch.images, recipe.model.tower
    if images is None or tower is None:
        return {}
    count, rule = rows * images.per_example, tower.rule
    if recipe.model.family in GRIDS:
        values = images.pixels // (images.rows * images.columns)
        shape: tuple[int, ...] = (count * images.rows * images.columns, values)
        grid = torch.tensor([[1, images.rows, images.columns]] * count, device=device)
        types = torch.tensor([token_types(recipe)] * rows, device=device)
        return {"pixel_values": torch.zeros(shape, device=device), "image_grid_thw": grid, "mm_token_type_ids": types}
    if tower.kind in ("pixtral", "kimi"):
        return native_inputs(recipe, images, tower, device, count)
    if tower.kind in ("gemma4", "gemma4_unified"):
        return placed_inputs(recipe, images, tower.rule, device, rows)
    if tower.crossed:
        return crossed_inputs(recipe, images, tower.rule, device, rows)
    sides = (rule.side, rule.side) if rule.side else sides_of(recipe, images, rule)
    pixels = torch.zeros((count * images.squares, rule.channels, *sides), device=device)
    inputs: dict[str, Any] = {"pixel_values": pixels}
    if tower.pixel_masks:
        masks = torch.ones((pixels.shape[0], *sides), dtype=torch.long, device=device)
        return {"pixel_values": pixels.unflatten(0, (rows, -1)), "pixel_attention_mask": masks.unflatten(0, (rows, -1))}
    if tower.kind == "llama4":
        return {"pixel_values": pixels.to(torch.float32 if recipe.storage.precision.weights == 4 else torch.bfloat16)}
    if rule.kind == "anyres":
        return inputs | anyres_inputs(recipe, images, pixels, device, count)
    if recipe.model.family in ("gemma3", "paligemma"):
        inputs["token_type_ids"] = torch.zeros((rows, recipe.batch.sequence_length), dtype=torch.long, device=device)
    return inputs


def sides_of(recipe: Recipe, images: ImageBatch, rule: ImageRule) -> tuple[int, int]:
    """Height and width of the largest tile."""
    given = recipe.provenance.job["images"]
    if given.get("width") is None:
        return images.rows * rule.patch, images.columns * rule.patch
    width, height = scaled(rule, given["width"], given["height"])
    return height, width


TILES = ("Gemma4VisionEncoder", "Idefics2VisionTransformer", "Idefics3VisionTransformer", "SmolVLMVisionTransformer")


def fill_tiles(model: torch.nn.Module, recipe: Recipe) -> None:
    """Whether every tile is full, so that no mask reaches attention, the class finds out on a GPU, and not on fakes."""
    if recipe.batch.images is None:
        return
    for module in model.modules():
        if type(module).__name__ in TILES:
            code: Any = sys.modules[type(module).__module__]
            made = partial(create_bidirectional_mask, allow_is_bidirectional_skip=False)
            code.create_bidirectional_mask = made if recipe.batch.images.masked else lambda **_: None
        if type(module).__name__ == "Gemma4VisionPooler":
            module.register_forward_hook(partial(tell_tokens, recipe.batch.images.tokens))


def tell_tokens(tokens: int, module: torch.nn.Module, given: Any, out: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Which of an image's tokens are there comes of numbers that are not followed."""
    rows, slots = out[1].shape
    remember(out[1], [[i < tokens for i in range(slots)]] * rows, torch.tensor)


def anyres_inputs(recipe: Recipe, images: ImageBatch, pixels: torch.Tensor, device: str, count: int) -> dict[str, Any]:
    """Tiles image by image, and the size of each, from which the model computes how they lie."""
    given = recipe.provenance.job["images"]
    if not given.get("width"):
        raise InvalidJob("images: the model computes with the size of each image", "give width and height")
    inputs = {
        "pixel_values": pixels.unflatten(0, (count, images.squares)),
        "image_sizes": torch.tensor([[given["height"], given["width"]]] * count, device=device),
    }
    if recipe.model.family == "llava_onevision":
        alone = [images.per_example] * (count // images.per_example)
        inputs["batch_num_images"] = torch.tensor(alone, device=device)
    return inputs


def crossed_inputs(recipe: Recipe, images: ImageBatch, rule: ImageRule, device: str, rows: int) -> dict[str, Any]:
    """Tiles of each image, their arrangement, which of them are there, and which each token of the text attends to."""
    tiles = rows, images.per_example, images.squares
    return {
        "pixel_values": torch.zeros((*tiles, rule.channels, rule.side, rule.side), device=device),
        "aspect_ratio_ids": torch.ones(tiles[:2], dtype=torch.long, device=device),
        "aspect_ratio_mask": torch.ones(tiles, dtype=torch.long, device=device),
        "cross_attention_mask": torch.ones(
            (rows, recipe.batch.sequence_length, *tiles[1:]), dtype=torch.long, device=device
        ),
    }


def placed_inputs(recipe: Recipe, images: ImageBatch, rule: ImageRule, device: str, rows: int) -> dict[str, Any]:
    """Patches in a row of as many as there may be, and the place of each: those that are not there have none."""
    count, most = rows * images.per_example, images.rows
    there = images.tokens * rule.merge**2
    across = next(side for side in range(int(images.tokens**0.5), 0, -1) if images.tokens % side == 0) * rule.merge
    places = [[i % across, i // across] if i < there else [-1, -1] for i in range(most)]
    return {
        "pixel_values": torch.zeros((count, most, images.pixels // most), device=device),
        "image_position_ids": torch.tensor([places] * count, device=device),
        "mm_token_type_ids": torch.tensor([token_types(recipe)] * rows, device=device),
    }


def native_inputs(recipe: Recipe, images: ImageBatch, tower: Tower, device: str, count: int) -> dict[str, Any]:
    """Images of their own shape, whole (Pixtral) or in patches that are cast beforehand (Kimi)."""
    patch, channels = tower.rule.patch, tower.rule.channels
    height, width = images.rows * patch, images.columns * patch
    if tower.kind == "pixtral":
        sizes = torch.tensor([[height, width]] * count, device=device)
        return {"pixel_values": torch.zeros((count, channels, height, width), device=device), "image_sizes": sizes}
    dtype = torch.float32 if recipe.storage.precision.weights == 4 else torch.bfloat16
    grid = torch.tensor([[1, images.rows, images.columns]] * count, device=device)
    shape = (count * images.rows * images.columns, channels, patch, patch)
    return {"pixel_values": torch.zeros(shape, dtype=dtype, device=device), "image_grid_thw": grid}


def token_types(recipe: Recipe) -> list[int]:
    """1 where a token stands for an image, 0 elsewhere: each image between two tokens of text."""
    images = recipe.batch.images
    assert images is not None
    types: list[int] = []
    for _ in range(images.per_example):
        types += [0] * bool(types and len(types) + images.tokens < recipe.batch.sequence_length) + [1] * images.tokens
    return (types + [0] * recipe.batch.sequence_length)[: recipe.batch.sequence_length]
