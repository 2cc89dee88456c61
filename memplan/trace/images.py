"""Images of a traced batch: pixels of the right shape, and what a processor gives beside them."""

from __future__ import annotations

from typing import Any

import torch

from memplan.errors import InvalidJob
from memplan.spec.recipe import Recipe

GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Types that take the patches of all images in one sequence, and the grid of each."""


def image_inputs(recipe: Recipe, device: str, rows: int) -> dict[str, Any]:
    """Arguments of the model for ``rows`` sequences; nothing for a batch of text."""
    images, tower = recipe.images, recipe.model.tower
    if images is None or tower is None:
        return {}
    count, rule = rows * images.per_example, tower.rule
    if recipe.model.family in GRIDS:
        values = images.pixels // (images.rows * images.columns)
        shape: tuple[int, ...] = (count * images.rows * images.columns, values)
        grid = torch.tensor([[1, images.rows, images.columns]] * count, device=device)
        types = torch.tensor([token_types(recipe)] * rows, device=device)
        return {
            "pixel_values": torch.zeros(shape, device=device),
            "image_grid_thw": grid,
            "mm_token_type_ids": types,
        }
    side = rule.side
    pixels = torch.zeros((count * images.squares, rule.channels, side, side), device=device)
    inputs: dict[str, Any] = {"pixel_values": pixels}
    if rule.kind == "anyres":
        return inputs | anyres_inputs(recipe, pixels, device, count)
    if recipe.model.family in ("gemma3", "paligemma"):
        inputs["token_type_ids"] = torch.zeros((rows, recipe.sequence_length), dtype=torch.long, device=device)
    return inputs


def anyres_inputs(recipe: Recipe, pixels: torch.Tensor, device: str, count: int) -> dict[str, Any]:
    """Tiles image by image, and the size of each, from which the model computes how they lie."""
    images = recipe.images
    assert images is not None
    given = recipe.job["images"]
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


def token_types(recipe: Recipe) -> list[int]:
    """1 where a token stands for an image, 0 elsewhere: each image between two tokens of text."""
    images = recipe.images
    assert images is not None
    types: list[int] = []
    for _ in range(images.per_example):
        types += [0] * bool(types and len(types) + images.tokens < recipe.sequence_length) + [1] * images.tokens
    return (types + [0] * recipe.sequence_length)[: recipe.sequence_length]
