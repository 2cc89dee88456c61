"""How each processor cuts an image: from its size to the tower's patches and the language model's tokens.

A rule (``spec.vision.ImageRule``) names one of ``CUTS``. Sources: transformers 5.23 processors, at each."""

from collections.abc import Callable
from itertools import product
from math import ceil, floor, sqrt

from memplan.errors import InvalidJob
from memplan.spec.groups import ImageBatch
from memplan.spec.vision import ImageRule
from memplan.units import by_name, ceil_div

Cut = Callable[[ImageRule, int, int], ImageBatch]


def batch(squares: int, rows: int, columns: int, tokens: int, pixels: int) -> ImageBatch:
    """One image; ``image_batch`` puts in how many an example has."""
    return ImageBatch(1, squares, rows, columns, tokens, pixels)


def smart_resize(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Both sides to multiples of a token's, the area within bounds (image_processing_qwen2_vl.py: smart_resize)."""
    factor = rule.patch * rule.merge
    if max(width, height) > 200 * min(width, height):
        raise InvalidJob(f"images: {width} × {height} is longer than 200 times its other side", "the processor refuses")
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > rule.max_pixels:
        shrink = sqrt(height * width / rule.max_pixels)
        tall = max(factor, floor(height / shrink / factor) * factor)
        wide = max(factor, floor(width / shrink / factor) * factor)
    elif tall * wide < rule.min_pixels:
        grow = sqrt(rule.min_pixels / (height * width))
        tall, wide = ceil(height * grow / factor) * factor, ceil(width * grow / factor) * factor
    return packed(rule, tall // rule.patch, wide // rule.patch)


def longest_edge(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Scaled down to the longest side, sides rounded up to tokens (image_processing_pixtral.py)."""
    ratio = max(width / rule.longest, height / rule.longest)
    if ratio > 1:
        width, height = floor(width / ratio), floor(height / ratio)
    side = rule.patch * rule.merge
    down, across = ceil_div(height, side), ceil_div(width, side)
    return packed(rule, down * rule.merge, across * rule.merge)._replace(breaks=down)


def native(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Scaled down to a number of patches, and of patches a side, then padded to whole tokens
    (image_processing_kimi_k25.py: navit_resize)."""
    patches = max(1, height // rule.patch) * max(1, width // rule.patch)
    most = rule.longest * rule.patch
    scale = min(1.0, sqrt(rule.max_pixels // rule.patch**2 / patches), most / height, most / width)
    tall, wide = (min(max(1, int(side * scale)), most) for side in (height, width))
    factor = rule.patch * rule.merge
    return packed(rule, ceil_div(tall, factor) * rule.merge, ceil_div(wide, factor) * rule.merge)


def budget(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Scaled to as many whole tokens as fit in the number of patches that there may be
    (image_processing_gemma4.py: get_aspect_ratio_preserving_size)."""
    most, side = rule.max_tiles * rule.merge**2, rule.merge * rule.patch
    scale = sqrt(most * rule.patch**2 / (height * width))
    down, across = floor(scale * height / side), floor(scale * width / side)
    if not down:
        down, across = 1, min(width // height, rule.max_tiles)
    elif not across:
        down, across = min(height // width, rule.max_tiles), 1
    return slots(rule, down * across)


def slots(rule: ImageRule, tokens: int) -> ImageBatch:
    """So many tokens of an image, in a row of as many patches as there may be, where the others are masked."""
    if tokens > rule.max_tiles:
        raise InvalidJob(
            f"images: an image of this model has at most {rule.max_tiles} tokens, not {tokens}", "give fewer"
        )
    most = rule.max_tiles * rule.merge**2
    made = batch(1, most, 1, tokens, most * rule.patch**2 * rule.channels)
    return made._replace(breaks=2, masked=tokens < rule.max_tiles)


def packed(rule: ImageRule, rows: int, columns: int) -> ImageBatch:
    """An image of so many patches, in a tower that takes any number."""
    pixels = rows * columns * rule.patch**2 * rule.channels * rule.frames
    return batch(1, rows, columns, rows * columns // rule.merge**2, pixels)


def tiles_of(rule: ImageRule, tiles: int, tokens: int | None = None) -> ImageBatch:
    """Squares of the tower's size."""
    grid = rule.side // rule.patch
    tokens = tiles * rule.tokens if tokens is None else tokens
    return batch(tiles, grid, grid, tokens, tiles * rule.channels * rule.side**2)


def fixed(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Every image to one square."""
    return tiles_of(rule, 1)


def tiled(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """The arrangement of tiles nearest in shape, and a thumbnail beside more than one
    (image_processing_got_ocr2.py: get_optimal_tiled_canvas)."""
    best, nearest = (1, 1), float("inf")
    sides = range(1, rule.max_tiles + 1)
    grids = sorted(
        ((a, b) for a in sides for b in sides if a * b <= rule.max_tiles), key=lambda grid: grid[0] * grid[1]
    )
    for across, down in grids:
        distance = abs(width / height - across / down)
        roomy = width * height > 0.5 * rule.side**2 * across * down
        if distance < nearest or (distance == nearest and roomy):
            best, nearest = (across, down), distance
    tiles = best[0] * best[1]
    return tiles_of(rule, tiles + (tiles > 1))


def split(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Scaled to the longest side, cut into squares, the whole image beside them (image_processing_idefics3.py)."""
    longest = rule.longest
    if width >= height:
        wide, tall = longest, int(longest * height / width)
        tall += tall % 2
    else:
        wide, tall = int(longest * width / height), longest
        wide += wide % 2
    ratio = wide / tall
    if wide >= tall:
        across = ceil_div(wide, rule.side)
        down = ceil_div(int(across * rule.side / ratio), rule.side)
    else:
        down = ceil_div(tall, rule.side)
        across = ceil_div(int(down * rule.side * ratio), rule.side)
    tiles = down * across
    if tiles == 1:
        return tiles_of(rule, 1)._replace(breaks=3)
    return tiles_of(rule, tiles + 1)._replace(breaks=2 * tiles + down + 4)


def quarters(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Four quarters and the whole image, each scaled by itself, then filled up to the largest
    (image_processing_idefics2.py: split_images, pad)."""
    halves = product((width // 2, width - width // 2), (height // 2, height - height // 2))
    found = {scaled(rule, wide, tall) for wide, tall in ((width, height), *halves)}
    wide, tall = max(each[0] for each in found), max(each[1] for each in found)
    return filled(rule, 5, wide, tall)._replace(masked=len({patches_of(rule, each) for each in found}) > 1)


def scaled(rule: ImageRule, width: int, height: int) -> tuple[int, int]:
    """Shrunk to the longest side, then each side stretched to the shortest (get_resize_output_image_size)."""
    aspect = width / height
    if width >= height and width > rule.longest:
        width, height = rule.longest, int(rule.longest / aspect)
    elif height > width and height > rule.longest:
        width, height = int(rule.longest * aspect), rule.longest
    return max(width, rule.shortest), max(height, rule.shortest)


def patches_of(rule: ImageRule, sides: tuple[int, int]) -> tuple[int, int]:
    """Whole patches a side."""
    return sides[0] // rule.patch, sides[1] // rule.patch


def filled(rule: ImageRule, squares: int, width: int, height: int) -> ImageBatch:
    """Tiles of one size that is not the tower's own; the marks between them."""
    columns, rows = patches_of(rule, (width, height))
    pixels = squares * rule.channels * width * height
    return batch(squares, rows, columns, squares * rule.tokens, pixels)._replace(breaks=squares + 1)


def best_fit(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """The canvas of tiles that shrinks an image least, or enlarges it least; of these the smallest; the whole image
    beside more than one tile (image_processing_llama4.py: get_best_fit)."""
    sides = range(1, rule.max_tiles + 1)
    grids = [(down, across) for down in sides for across in sides if down * across <= rule.max_tiles]
    scales = {grid: min(grid[1] * rule.side / width, grid[0] * rule.side / height) for grid in grids}
    larger = [scale for scale in scales.values() if scale >= 1]
    chosen = min(larger) if larger else max(scales.values())
    down, across = min((grid for grid in grids if scales[grid] == chosen), key=lambda grid: grid[0] * grid[1])
    tiles = down * across
    return tiles_of(rule, tiles + (tiles > 1))._replace(breaks=3 + (tiles if tiles > 1 else 0))


def anyres(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """The resolution that keeps most of the image, in tiles, and the whole image; padding is taken off again, and each
    row of tokens gets one more (processing_llava_next.py). ``max_tiles``: more tokens than so many tiles have are
    shrunk to that (processing_llava_onevision.py)."""
    best, kept, wasted = rule.grids[0], 0, float("inf")
    for tall, wide in rule.grids:
        scale = min(wide / width, tall / height)
        effective = min(int(width * scale) * int(height * scale), width * height)
        if effective > kept or (effective == kept and tall * wide - effective < wasted):
            best, kept, wasted = (tall, wide), effective, tall * wide - effective
    down, across = best[0] // rule.side, best[1] // rule.side
    grid = rule.side // rule.patch
    rows, columns = grid * down, grid * across
    if width / height > columns / rows:
        rows -= (rows - int(round(height * columns / width, 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * rows / height, 7))) // 2 * 2
    unpadded = rows * columns
    ratio = sqrt(unpadded / (rule.max_tiles * grid**2)) if rule.max_tiles > 1 else 1
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    tokens = rows * columns + rows + rule.tokens
    return tiles_of(rule, down * across + 1, tokens)._replace(lines=rows, unpadded=unpadded)


def canvas(rule: ImageRule, width: int, height: int) -> ImageBatch:
    """Tiles of the fitting canvas, padded to as many as there may be; one position of the text stands for them
    (image_processing_mllama.py: pack_images)."""
    return tiles_of(rule, rule.max_tiles, 1)


CUTS: dict[str, Cut] = {
    **by_name(smart_resize, longest_edge, fixed, native, budget, best_fit, split, quarters, anyres, canvas),
    "tiles": tiled,
}
"""A function for each ``ImageRule.kind`` whose tower the engine runs."""


def by_patches(rule: ImageRule, patches: int) -> ImageBatch:
    """An image given by its patches: as square as they allow, or in whole tiles."""
    if rule.side:
        each = (rule.side // rule.patch) ** 2
        return tiles_of(rule, ceil_div(patches, each))
    area = rule.merge**2
    if patches % area:
        raise InvalidJob(f"images.patches: {patches} is no multiple of {area}", f"{area} patches become one token")
    if rule.kind == "budget":
        return slots(rule, patches // area)
    rows = next(side for side in range(int(sqrt(patches // area)), 0, -1) if patches // area % side == 0)
    if rule.kind == "quarters":
        return filled(rule, 1, patches // rows * rule.patch, rows * rule.patch)
    return packed(rule, rows * rule.merge, patches // rows // rule.merge)


def by_tokens(rule: ImageRule, tokens: int) -> ImageBatch:
    """An image given by its tokens."""
    if rule.kind == "quarters":
        raise InvalidJob(
            f"images.tokens: {rule.tokens} tokens stand for an image of this model, whatever its size",
            "give width and height, or the patches of an image that is not cut",
        )
    if rule.side:
        return tiles_of(rule, ceil_div(tokens, rule.tokens), tokens)
    return by_patches(rule, tokens * rule.merge**2)
