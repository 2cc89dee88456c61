"""Holds a vision tower before Megatron's layers against the same tower under transformers, and hand counts."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.api import estimate
from memplan.errors import InvalidJob
from memplan.models import load_model
from memplan.report import Report

MODEL = "qwen2.5-vl-7b"
JOB: dict[str, Any] = {
    "model": MODEL, "method": "sft", "sequence_length": 2048, "num_gpus": 8,
    "images": {"per_example": 1, "width": 448, "height": 448}, "trainer": "megatron", "tensor_parallel": 2,
}  # fmt: skip
SAVED, FROZEN = "saved in the vision tower", {"freeze": ["visual"]}


def of(**keys: Any) -> Report:
    return estimate({**JOB, **keys})


def row(report: Report, name: str) -> int:
    return sum(each.bytes for each in report.per_gpu.ledger if each.name == name)


def test_the_tower_stands_whole_beside_tensor_parallelism() -> None:
    """Against the language model alone: bf16 weights of the tower on each rank, whatever tensor parallelism is."""
    params = load_model(MODEL).params.by_category
    tower = params["vision"] + params["projector"]
    two, four = (row(of(tensor_parallel=n), "weights") for n in (2, 4))
    text = 2 * (load_model(MODEL).params.total - tower)
    assert two - four == pytest.approx(text / 4, rel=0.01)
    assert two - text / 2 == pytest.approx(2 * tower, rel=0.01)


def test_it_keeps_what_transformers_tower_keeps() -> None:
    plain = estimate({**JOB, "trainer": "pytorch", "tensor_parallel": 1, "num_gpus": 1, "precision": "bf16"})
    assert row(of(), SAVED) == pytest.approx(row(plain, SAVED), rel=0.001)


def test_each_micro_batch_in_flight_keeps_its_own_and_later_stages_none() -> None:
    one, two = of(), of(pipeline_parallel=2, gradient_accumulation_steps=8)
    assert row(two, SAVED) == 2 * row(one, SAVED)
    last = estimate({**JOB, "pipeline_parallel": 2, "gradient_accumulation_steps": 8}).ranks[-1]
    assert last.allocated_bytes < two.per_gpu.allocated_bytes


def test_a_frozen_tower_keeps_little_and_has_no_gradients() -> None:
    free, rests = of(), of(**FROZEN)
    assert row(rests, SAVED) < row(free, SAVED) / 20
    params = load_model(MODEL).params.by_category["vision"]
    assert row(rests, "frozen weights") == pytest.approx(2 * params, rel=0.01)
    less = free.per_gpu.by_category["gradients"] - rests.per_gpu.by_category["gradients"]
    assert less == pytest.approx(4 * params, rel=0.01)


def test_adapters_of_text_alone_leave_the_tower_as_it_is() -> None:
    plain, found = (of(images=None, **keys).per_gpu.by_category for keys in ({}, {"lora": {"r": 8}}))
    assert found["parameters"] == pytest.approx(plain["parameters"], rel=0.02)
    assert found["gradients"] < plain["gradients"] / 50


def test_adapters_beside_a_resting_tower_lie_around_a_published_run() -> None:
    """ms-swift 3.8 examples/megatron/multimodal/dense/lora.sh: 2 × 23 GiB. Its loss is Megatron's own fused one, and
    its tower's inputs require gradients; neither makes the expected figure of the default loss."""
    keys: dict[str, Any] = {
        "model": MODEL, "method": "sft", "trainer": "megatron-swift", "num_gpus": 2, "sequence_length": 2048,
        "gradient_accumulation_steps": 2, "lora": {"r": 8, "alpha": 32, "dropout": 0.05}, "gpu": "a100-80gb",
        "gradient_checkpointing": True, "megatron": {"cross_entropy_fusion_impl": "native"},
        "images": {"per_example": 1, "width": 1024, "height": 980},
    }  # fmt: skip
    report = estimate(keys)
    device = report.per_gpu.device_bytes
    assert device.low <= 23 * 2**30 <= device.high
    blocks = next(each for each in report.per_gpu.ledger if each.name.startswith("inputs of a resting tower"))
    assert (blocks.bytes, blocks.high) == (0, 32 * (70 * 74) * 1280 * 2)


def test_adapters_with_images_take_no_less_than_without() -> None:
    apart = {"r": 8, "exclude_modules": ["vision_tower", "multi_modal_projector"]}
    for trainer in ("megatron", "megatron-swift"):
        seen, blind = (of(lora=apart, trainer=trainer, **keys).per_gpu for keys in ({}, {"images": None}))
        assert seen.allocated_bytes >= blind.allocated_bytes
        assert seen.device_bytes.high >= blind.device_bytes.high


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"freeze": ["layers.0"]}, "trainer: Megatron-LM with frozen weights of the language model"),
        ({"model": "llama-3.2-11b-vision"}, "trainer: Megatron-LM with a vision tower whose layers cross"),
        ({"lora": {"r": 8}}, "trainer: Megatron-LM with adapters of a vision tower"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        of(**given)
    assert caught.value.message.startswith(message)
