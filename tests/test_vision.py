"""Proves that images are cut as the processors of transformers cut them, that a tower without images rests, and what is
refused.
"""

from typing import Any

import pytest

import memplan
from memplan.api import as_input
from memplan.arch import parse_config
from memplan.engine.build import build_ledger
from memplan.engine.tensors import count, model_weights
from memplan.errors import InvalidJob, ModelError, UnknownArchitecture
from memplan.resolve import resolve
from memplan.resolve.image_cuts import CUTS, by_patches, by_tokens
from memplan.resolve.images import one_image, without_images
from memplan.spec.job import Images

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def cut(preset: str, width: int, height: int) -> tuple[int, int, int, int]:
    """(tiles, rows, columns, tokens) of one image."""
    rule = memplan.load_model(preset).tower.rule  # type: ignore[union-attr]
    one = CUTS[rule.kind](rule, width, height)
    return one.squares, one.rows, one.columns, one.tokens


# Expected values: the functions of transformers 5.23 that the processors cut with, run on images of these sizes.


@pytest.mark.parametrize(
    ("preset", "width", "height", "expected"),
    [
        ("qwen2.5-vl-7b", 1024, 768, (1, 54, 74, 999)),
        ("qwen2.5-vl-7b", 28, 28, (1, 4, 4, 4)),
        ("qwen2-vl-7b", 8000, 6000, (1, 220, 294, 16170)),
        ("qwen3-vl-8b", 1024, 768, (1, 48, 64, 768)),
        ("llava-1.5-7b", 1024, 768, (1, 24, 24, 576)),
        ("gemma-3-4b", 1024, 768, (1, 64, 64, 256)),
        ("gemma-4-e2b", 1024, 768, (1, 2520, 1, 266)),
        ("gemma-4-e2b", 40, 3000, (1, 2520, 1, 144)),
        ("paligemma-3b-224", 1024, 768, (1, 16, 16, 256)),
        ("internvl3-8b", 1024, 768, (13, 32, 32, 3328)),
        ("internvl3-8b", 448, 448, (1, 32, 32, 256)),
        ("llava-1.6-mistral-7b", 1024, 768, (5, 24, 24, 2340)),
        ("llava-onevision-0.5b", 1024, 768, (7, 27, 27, 4725)),
        ("llava-onevision-0.5b", 2304, 2304, (37, 27, 27, 7371)),
        ("llava-onevision-0.5b", 5000, 400, (7, 27, 27, 2848)),
        ("kimi-k2.5", 1024, 768, (1, 56, 74, 1036)),
        ("kimi-k2.5", 9000, 300, (1, 18, 512, 2304)),
        ("llama-4-scout", 1024, 768, (13, 24, 24, 1872)),
        ("llama-4-scout", 200, 100, (1, 24, 24, 144)),
        ("idefics3-8b", 1024, 768, (13, 26, 26, 2197)),
        ("idefics3-8b", 1000, 300, (9, 26, 26, 1521)),
        ("idefics3-8b", 300, 1000, (9, 26, 26, 1521)),
        ("idefics2-8b", 1024, 768, (5, 52, 70, 320)),
        ("idefics2-8b", 300, 200, (5, 27, 27, 320)),
        ("idefics2-8b", 901, 1777, (5, 70, 35, 320)),
        ("mistral-small-3.1-24b", 1024, 768, (1, 56, 74, 1036)),
        ("llama-3.2-11b-vision", 200, 100, (4, 40, 40, 1)),
    ],
)
def test_images_are_cut_as_processors_cut_them(
    preset: str, width: int, height: int, expected: tuple[int, int, int, int]
) -> None:
    assert cut(preset, width, height) == expected


@pytest.mark.parametrize(
    ("preset", "width", "height", "tiles", "breaks", "pixels"),
    [
        # image_processing_qwen2_vl.py: every patch twice, as two frames
        ("qwen2.5-vl-7b", 1024, 768, 1, 0, 54 * 74 * 14**2 * 3 * 2),
        # image_processing_gemma4.py: a row of 280 × 3² patches of 16 × 16 in three channels
        ("gemma-4-e2b", 1024, 768, 1, 2, 280 * 9 * 16**2 * 3),
        # processing_llama4.py: start, image and end, and a separator behind each tile
        ("llama-4-scout", 200, 100, 1, 3, 336**2 * 3),
        ("llama-4-scout", 1024, 768, 13, 3 + 12, 13 * 336**2 * 3),
        ("llama-4-scout", 16 * 336, 336, 17, 3 + 16, 17 * 336**2 * 3),
        # processing_idefics2.py: a mark between every two of five images, before and behind them
        ("idefics2-8b", 300, 200, 5, 6, 5 * 378 * 378 * 3),
    ],
)
def test_marks_between_tiles_and_pixels_are_counted(
    preset: str, width: int, height: int, tiles: int, breaks: int, pixels: int
) -> None:
    rule = memplan.load_model(preset).tower.rule  # type: ignore[union-attr]
    one = CUTS[rule.kind](rule, width, height)
    assert (one.squares, one.breaks, one.pixels) == (tiles, breaks, pixels)


def test_of_resolutions_that_keep_as_much_the_smallest_is_taken_in_any_order() -> None:
    rule = memplan.load_model("llava-1.6-mistral-7b").tower.rule  # type: ignore[union-attr]
    turned = rule.model_copy(update={"grids": rule.grids[::-1]})
    assert [CUTS["anyres"](each, 300, 300).squares for each in (rule, turned)] == [3, 3]


def test_an_image_may_be_given_by_its_patches_or_tokens() -> None:
    rule = memplan.load_model("qwen2.5-vl-7b").tower.rule  # type: ignore[union-attr]
    assert by_tokens(rule, 999) == by_patches(rule, 3996)
    assert by_tokens(rule, 999).rows * by_tokens(rule, 999).columns == 3996
    with pytest.raises(InvalidJob, match="no multiple of 4"):
        by_patches(rule, 3)


@pytest.mark.parametrize(("width", "height", "masked"), [(1024, 768, True), (300, 200, False), (2100, 1500, False)])
def test_quarters_smaller_than_the_whole_image_are_filled_up_and_masked(width: int, height: int, masked: bool) -> None:
    rule = memplan.load_model("idefics2-8b").tower.rule  # type: ignore[union-attr]
    assert CUTS[rule.kind](rule, width, height).masked is masked


@pytest.mark.parametrize(("patches", "squares"), [(576, 1), (577, 2)])
def test_patches_of_a_tower_of_squares_are_whole_squares(patches: int, squares: int) -> None:
    rule = memplan.load_model("llava-1.5-7b").tower.rule  # type: ignore[union-attr]
    assert (by_patches(rule, patches).squares, by_patches(rule, patches).tokens) == (squares, squares * 24**2)


@pytest.mark.parametrize(("per_example", "squares", "tokens"), [(1, 7, 4725), (2, 1, 730), (3, 1, 730)])
def test_llava_onevision_cuts_an_image_that_is_alone(per_example: int, squares: int, tokens: int) -> None:
    """One square has 27 × 27 tokens and one that ends its line (processing_llava_onevision.py)."""
    rule = memplan.load_model("llava-onevision-0.5b").tower.rule  # type: ignore[union-attr]
    one = one_image(rule, Images(width=1024, height=768, per_example=per_example))
    assert (one.squares, one.tokens) == (squares, tokens)


def test_an_image_of_so_many_patches_is_not_cut_and_still_as_many_tokens() -> None:
    rule = memplan.load_model("idefics2-8b").tower.rule  # type: ignore[union-attr]
    one = by_patches(rule, 720)
    assert (one.squares, one.rows * one.columns, one.tokens, one.masked) == (1, 720, 64, False)


def job(**keys: Any) -> dict[str, Any]:
    return {"model": "qwen2.5-vl-3b", "method": "sft", "sequence_length": 2048, **keys}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"images": {"width": 640}}, "in one way"),
        ({"images": {"width": 640, "height": 480, "tokens": 4}}, "in one way"),
        ({"images": {"width": 2048, "height": 2048}}, "shorter than"),
        ({"images": {"width": 4100, "height": 20}}, "200 times"),
        ({"model": "qwen3-0.6b", "images": {"tokens": 4}}, "no vision tower"),
        ({"model": "idefics2-8b", "images": {"tokens": 64}}, "64 tokens stand for an image"),
        (
            {"model": {"model_type": "mistral3", "vision_feature_layer": [-2, -1]}, "images": {"tokens": 64}},
            "several layers, on which transformers 5.23 fails",
        ),
        ({"model": "llama-3.2-11b-vision", "images": {"tokens": 4}}, "one token of the text and a canvas"),
        (
            {
                "model": "llama-3.2-11b-vision",
                "images": {"width": 300, "height": 300},
                "gradient_checkpointing": "full",
                "gradient_checkpointing_reentrant": True,
            },
            "the backward of its tower",
        ),
        (
            {"model": {"model_type": "mllama", "vision_config": {"vision_output_dim": 8960}}, "images": {"tokens": 1}},
            "vision_output_dim is 8960, where its tower gives 7680",
        ),
        ({"model": "gemma-4-e2b", "images": {"tokens": 281}}, "at most 280 tokens, not 281"),
        ({"method": "reward"}, "sequence-classification"),
        (
            {"method": "dpo", "trainer": "trl", "reference": "precomputed", "images": {"tokens": 4}},
            "TRL refuses precomputed",
        ),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        memplan.estimate(job(**keys))


@pytest.mark.slow
def test_images_fill_memory_in_the_tower_and_pairs_see_them_twice() -> None:
    def forward(**keys: Any) -> int:
        report = memplan.estimate(job(optimizer="sgd", **keys)).to_dict()["per_gpu"]
        return int(next(row["bytes"] for row in report["ledger"] if row["name"] == "saved in the vision tower"))

    one, two = ({"per_example": n, "width": 448, "height": 448} for n in (1, 2))
    assert forward(images=two) == pytest.approx(2 * forward(images=one), rel=0.001)
    assert forward(images=one, method="simpo") == pytest.approx(2 * forward(images=one), rel=0.001)
    assert forward(images=one, gradient_checkpointing=True) < forward(images=one) / 10


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_a_projector_alone_has_gradients_through_the_layers_that_rest(sharding: str) -> None:
    """Whether or not its own stay where they are made: ZeRO-2 and 3 take them into a bucket."""
    images = {"per_example": 1, "width": 336, "height": 336}
    keys = job(model="llava-1.5-7b", images=images, freeze=["vision_tower", "language_model"], num_gpus=8)
    one, found = (
        memplan.estimate({**keys, "sharding": each}).to_dict()["per_gpu"]["by_category"]["activations"]
        for each in ("zero1", sharding)
    )
    assert found >= one > 2**32


def test_without_images_the_tower_rests() -> None:
    spec = memplan.load_model("qwen2.5-vl-3b")
    resting = without_images(spec, False)
    trained = count([weight for weight in model_weights(resting) if weight.trained])
    tower = sum(spec.params.by_category[name] for name in ("vision", "projector"))
    assert trained == spec.params.total - tower
    assert resting.params == spec.params
    assert count(model_weights(resting)) == spec.params.total
    flat = without_images(spec, True)
    assert count([weight for weight in model_weights(flat) if weight.trained]) == spec.params.total


def test_layers_that_attend_to_images_rest_too() -> None:
    spec = memplan.load_model("llama-3.2-11b-vision")
    resting = without_images(spec, False)
    assert (spec.num_layers, resting.num_layers, sum(run.count for run in resting.resting)) == (40, 32, 8)
    assert resting.params == spec.params


def test_blocks_behind_the_one_that_is_read_get_no_gradient() -> None:
    """LLaVA reads the last state but one: the last block and the norm behind it are never trained."""
    spec = memplan.load_model("llava-1.5-7b")
    assert spec.tower is not None
    block = spec.tower.runs[0].block.parameters
    left = count([weight for weight in model_weights(spec) if not weight.trained])
    assert left == block + 2 * 1024


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"model_type": "llava", "text_config": {"model_type": "nobody"}}, UnknownArchitecture, "language model of"),
        ({"model_type": "llava", "vision_config": {"model_type": "nobody"}}, UnknownArchitecture, "vision tower of"),
        ({"model_type": "llava", "vision_config": 3}, ModelError, "must be an object"),
        ({"model_type": "llava", "text_config": TEXT, "vision_feature_layer": 30}, ModelError, "vision_feature_layer"),
        ({"model_type": "gemma3", "tie_word_embeddings": 1}, ModelError, "tie_word_embeddings"),
        ({"model_type": "qwen2_vl", **TEXT, "vision_config": {"patch_size": [14, 7]}}, ModelError, "a square"),
        ({"model_type": "mllama", "vision_config": {"max_num_tiles": 2}}, ModelError, "max_num_tiles"),
    ],
)
def test_odd_configs_are_refused(config: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_config(config, "odd")


@pytest.mark.parametrize(
    ("model_type", "vision", "apart"),
    [
        ("llava", "clip_vision_model", {"q_proj", "fc1", "layer_norm1", "position_embedding"}),
        ("paligemma", "siglip_vision_model", {"q_proj", "fc1", "layer_norm1", "position_embedding", "linear"}),
        ("smolvlm", "smolvlm_vision", {"q_proj"}),
    ],
)
def test_fsdp2_gathers_with_the_root_what_of_a_tower_is_no_unit(model_type: str, vision: str, apart: set[str]) -> None:
    """``_no_split_modules`` of transformers 5.23; LLaVA's last block, which nobody reads, is a unit like the others."""
    tower = {"model_type": vision, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | {
        "num_attention_heads": 4, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = {"model_type": model_type, "text_config": TEXT, "vision_config": tower, "projection_dim": 64}
    spec = parse_config(config, "test")
    named = ("q_proj", "fc1", "layer_norm1", "position_embedding", "pre_layrnorm", "linear")
    vision_weights = [weight for weight in model_weights(spec) if weight.unit == "vision"]
    assert {weight.name for weight in vision_weights if weight.apart and weight.name in named} == apart
    assert all(weight.apart for weight in vision_weights if weight.name == "q_proj")


def test_fsdp2_reduces_a_tower_block_by_block() -> None:
    """Twice as many checkpointed blocks leave as many more shards of gradients, and no whole gradients: their
    inputs are gone by then.
    """

    def tower_backward(blocks: int) -> int:
        tower = {
            "model_type": "clip_vision_model", "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
            "num_hidden_layers": blocks + 1, "image_size": 224, "patch_size": 14,
        }  # fmt: skip
        config = {"model_type": "llava", "text_config": {"model_type": "llama", **TEXT}, "vision_config": tower}
        keys = {"model": config, "images": {"width": 224, "height": 224}, "sequence_length": 512, "sharding": "fsdp2"}
        ledger = build_ledger(
            resolve(as_input(job(**keys, num_gpus=4, precision="bf16", gradient_checkpointing="full")))
        )
        tower_rows = ("vision tower, backward", "of the tower's blocks", "more for a moment")
        return sum(row.bytes for row in ledger.alive("policy.vision-backward") if row.name.endswith(tower_rows))

    block = 12 * 512**2 + 13 * 512
    more = (tower_backward(12) - tower_backward(6)) / (block // 4 * 2)
    assert 5.99 < more < 7.01, "of six, and of one more where most is there a block later"


@pytest.mark.parametrize("images", [None, {"width": 560, "height": 560}])
@pytest.mark.parametrize("sharding", ["zero3", "fsdp", "fsdp2"])
def test_a_share_of_mllama_is_at_least_two_bytes_a_weight(sharding: str, images: dict[str, int] | None) -> None:
    """Layers that attend to images rest in a batch of text and their weights do not: less than that is on the card
    only where shards wait on the host, and then no less than one unit as it is gathered.
    """
    job = {"model": "llama-3.2-11b-vision", "method": "sft", "sharding": sharding, "num_gpus": 2, "images": images}
    job |= {"sequence_length": 4096 if images else 64}
    share = 2 * memplan.load_model("llama-3.2-11b-vision").params.total / 2
    assert memplan.estimate(job).per_gpu.allocated_bytes > share
    if sharding.startswith("fsdp"):
        away = memplan.estimate({**job, "sequence_length": 64, "images": None, "fsdp": {"cpu_offload": True}})
        assert away.host.bytes_per_node > share
        assert share > away.per_gpu.allocated_bytes > 0
