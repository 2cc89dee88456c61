"""Proves that steps with images are played as they run: the play's phases are those of traces of the real classes
(transformers 5.24 on fake tensors of a GPU), every weight gets its gradient, and the hooks of what divides a model know
the units of its tower.
"""

from collections import Counter
from typing import Any

import pytest
from drawing import over
from seeing import LARGE_TOWERS, MODELS
from test_played_families import phases

from memplan.engine.allocator.events import step_events
from memplan.engine.play.step import Player
from memplan.engine.tensors import model_weights
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job

FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
REENTRANT = FULL | {"gradient_checkpointing_reentrant": True}
AMP, LORA, DPO = {"precision": "bf16-amp"}, {"lora": {"r": 8}}, {"method": "dpo"}
SQUARE, TOKENS = {"images": {"width": 336, "height": 336}}, {"images": {"tokens": 100}}
SMALL = {"images": {"per_example": 2, "width": 224, "height": 224}}
PARTS = {"exclude_modules": ["vision_tower"], "modules_to_train": ["multi_modal_projector"]}

TRACED: dict[str, tuple[str, dict[str, Any], tuple[int, int, int]]] = {
    "a tower whose last block is not read": ("llava", SQUARE, (271016960, 282892288, 176932352)),
    "a frozen tower": ("llava", SQUARE | {"lora": PARTS}, (220761088, 235028992, 44289536)),
    "tiles": ("llava_next", SQUARE | AMP | LORA, (678713856, 689752576, 84080640)),
    "one sequence of patches": ("mistral3", SQUARE | AMP, (449798144, 463773184, 294867456)),
    "a perceiver": ("idefics2", SQUARE | LORA | FULL, (518420480, 529351168, 102169600)),
    "biases of a tower": ("idefics2", SQUARE | FULL | {"lora": {"r": 8, "bias": "all"}},
                          (527032832, 537963520, 102247424)),
    "masks of pixels": ("smolvlm", SQUARE | AMP | LORA | FULL, (465048064, 496095232, 113108992)),
    "windows": ("qwen2_5_vl", SQUARE | LORA | FULL, (147308032, 161741824, 51971584)),
    "tokens for later layers": ("qwen3_vl", SQUARE | FULL, (239167488, 254920192, 230637056)),
    "casts of a reentrant tower": ("internvl", AMP | REENTRANT | {"images": {"width": 336, "height": 224}},
                                   (431035392, 436600832, 294393856)),
    "a reference": ("paligemma", SQUARE | AMP | REENTRANT | DPO, (368491008, 331608064, 302419456)),
    "what layers attend to": ("mllama", SQUARE | LORA | FULL, (256344576, 268505088, 52057600)),
    "inputs of all layers": ("gemma4", TOKENS | {"freeze": ["vision_tower", "embed_vision"]},
                             (329554432, 345614336, 150438400)),
}  # fmt: skip
WIDE: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "a norm that autocast widens": (FULL | LORA | {"autocast": True}, (247849472, 287424000, 176290816)),
    "a graph that nobody reads": (AMP | LORA, (832291840, 750209024, 333228544)),
    "FSDP2": ({"images": {"width": 336, "height": 336}, "sharding": "fsdp2", "num_gpus": 4} | LORA | FULL,
              (131093504, 174289408, 44687872)),
}  # fmt: skip
LENGTHS = {"internvl": 1024, "llava_next": 1536, "smolvlm": 1536}


def job(config: dict[str, Any], length: int, keys: dict[str, Any]) -> dict[str, Any]:
    """A micro-batch of two rows with images."""
    return {"model": config, "method": "sft", "precision": "bf16", "batch_size": 2, "sequence_length": length, **keys}


def check(described: dict[str, Any], measured: tuple[int, int, int]) -> None:
    """The play's phases, and the ledger's, against those of a trace."""
    found, ledger = phases(described), build_report(resolve(read_job(described))).per_gpu.phases
    for phase, size in zip(("forward", "backward", "step"), measured, strict=True):
        assert found[phase] == pytest.approx(size, rel=8e-4), phase
        assert ledger[phase] == pytest.approx(size, rel=5e-3), phase


@pytest.mark.parametrize("name", TRACED)
def test_the_play_is_the_trace(name: str) -> None:
    family, keys, measured = TRACED[name]
    check(job({"model_type": family, **MODELS[family]}, LENGTHS.get(family, 512), keys), measured)


@pytest.mark.parametrize("name", WIDE)
def test_a_tower_wider_than_its_text_is_played(name: str) -> None:
    keys, measured = WIDE[name]
    check(job({"model_type": "llava", **LARGE_TOWERS["llava"]}, 512, SMALL | keys), measured)


def test_an_embedding_that_is_frozen_leaves_its_output_in_the_graph() -> None:
    """188,587,008 bytes in forward of a trace of Gemma 3, its language model frozen; without the leaf 1.2 % less."""
    frozen = SQUARE | AMP | FULL | {"freeze": ["language_model"]}
    described = job({"model_type": "gemma3", **MODELS["gemma3"]}, 512, frozen)
    for found in (phases(described), build_report(resolve(read_job(described))).per_gpu.phases):
        assert found["forward"] == pytest.approx(188587008, rel=1e-3)


WIDENED = (
    "qwen3_vl swift",
    "idefics3 llamafactory",
    "internvl llamafactory",
    "mllama llamafactory",
    "qwen2_vl trl",
    "qwen2_5_vl trl",
)


@over(WIDENED)
def test_the_ledger_has_a_quantised_tower_as_it_is_played(row: str) -> None:
    """What bitsandbytes' linears give back is in fp32 behind a LayerNorm of autocast's, or behind a norm in fp32;
    a reentrant checkpoint is held by nothing where no gradient comes to its input."""
    family, trainer = row.split()
    keys = {"trainer": trainer, "quantization": "nf4", "precision": "auto", "batch_size": 4}
    model = {"model_type": family, **MODELS[family]}
    recipe = resolve(read_job(job(model, 1536, keys | SQUARE | LORA | FULL)))
    played = step_events(recipe)
    assert played is not None
    assert build_report(recipe).per_gpu.allocated_bytes == pytest.approx(played.peak, rel=3e-3), row


FAMILIES = ("llava", "idefics2", "qwen3_vl", "mllama", "kimi_k25")


@over([(family, keys) for family in FAMILIES for keys in ({}, LORA, FULL)], name=lambda row: f"{row[0]} {row[1]}")
def test_every_weight_of_a_tower_gets_its_gradient(row: tuple[str, dict[str, Any]]) -> None:
    family, keys = row
    model = {"model_type": family, **MODELS[family]}
    recipe = resolve(read_job(job(model, 512, {**keys, "images": {"width": 224, "height": 224}})))
    player, found = Player(recipe), Counter[str]()
    player.sharding.step = lambda steps: found.update(param.name for param in player.tape.stored)  # type: ignore[method-assign]
    player.steps(1)
    trained = Counter[str]()
    for weight in model_weights(recipe.model, recipe.adapter is None, recipe.adapter):
        trained[weight.name] += weight.copies * weight.trained
    trained.pop("embed_tokens, extra rows", None)  # which the play has in the embedding
    assert {name: count for name, count in trained.items() if count} == dict(found), family


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("qwen2_vl", {"sharding": "fsdp"}),
        ("qwen2_vl", {"zero_stage": 3}),
        ("qwen2_vl", {"sharding": "ddp"}),
        ("qwen2_vl", {"zero_stage": 2} | LORA),
        ("paligemma", {"sharding": "fsdp2"}),
    ],
)
def test_units_of_a_tower_are_gathered_and_reduced(family: str, keys: dict[str, Any]) -> None:
    described = job({"model_type": family, **MODELS[family]}, 512, SQUARE | FULL | keys | {"num_gpus": 4})
    recipe = resolve(read_job(described))
    assert step_events(recipe) is not None
    ledger = build_report(recipe).per_gpu.phases
    for phase, size in phases(described).items():
        assert size == pytest.approx(ledger[phase], rel=5e-3), phase


@pytest.mark.parametrize(("sharding", "held"), [("zero3", 6545), ("fsdp2", 3400)])
def test_the_ledger_of_an_evaluation_is_no_lower_than_what_it_holds(sharding: str, held: int) -> None:
    """In MiB, of a play under ZeRO-3, where ever more is fetched ahead of layers that are alike and what a backward
    needs soon stays (4402 without), and of a trace under FSDP2, whose second batch finds the head gathered and holds
    the last layer's gather."""
    keys = {"images": {"width": 448, "height": 448}, "trainer": "transformers", "batch_size": 1, "eval_batch_size": 1}
    described = {**job({}, 3072, FULL | LORA), **keys, "model": "llava-1.5-7b", "num_gpus": 8, "sharding": sharding}
    size = build_report(resolve(read_job(described))).per_gpu.phases["evaluate"] / 2**20
    assert 0.999 * held <= size <= 1.035 * held
