"""Holds products in FP8 under Megatron against hand counts: saved inputs, copies of weights, weights in FP8 alone."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.api import estimate
from memplan.engine.megatron.build import MegatronParts, megatron_ledger
from memplan.engine.megatron.layers import layer_steps
from memplan.engine.megatron.steps import kept_bytes
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

T, H, F, Q, QKV = 1024, 4096, 14336, 4096, 6144
PRODUCTS = 32 * (H * QKV + Q * H + 3 * H * F)
JOB: dict[str, Any] = {"model": "llama-3.1-8b", "method": "sft", "trainer": "megatron", "sequence_length": T}


def recipe(recipe: str = "", gpu: str = "h100-80gb", **megatron: Any) -> Recipe:
    fp8 = {"fp8_format": "hybrid", "fp8_recipe": recipe} if recipe else {}
    fp8 = {"fp4_format": "e2m1"} if recipe == "nvfp4" else fp8
    return resolve(read_job({**JOB, "gpu": gpu, "megatron": {**fp8, **megatron}}))


def kept(of: Recipe) -> int:
    return kept_bytes(layer_steps(MegatronParts(of).shape, of.model.runs[0].layer))


def rows(of: Recipe) -> dict[str, int]:
    return {row.name: row.bytes for row in megatron_ledger(of).rows}


@pytest.mark.parametrize(
    ("name", "saved", "projection"),
    [("tensorwise", 1, 0), ("delayed", 1, 1), ("mxfp8", 33 / 32, 0), ("nvfp4", 9 / 16, 0)],
)
def test_products_save_their_inputs_in_fp8(name: str, saved: float, projection: int) -> None:
    """Both norms' outputs and the second matmul's input; with delayed scaling the output matmul's too."""
    narrow = T * (2 * H + F)
    wanted = kept(recipe()) - narrow * 2 + narrow * saved + projection * T * Q
    assert kept(recipe(name, "b200-180gb")) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "gpu", "each"),
    [
        ("tensorwise", "h100-80gb", 2),
        ("tensorwise", "b200-180gb", 1),
        ("blockwise", "h100-80gb", 2),
        ("mxfp8", "b200-180gb", 33 / 16),
    ],
)
def test_weights_have_copies_of_the_layouts_that_products_read(name: str, gpu: str, each: float) -> None:
    found = rows(recipe(name, gpu))
    assert found["weights in FP8"] == PRODUCTS * each
    assert found["weights"] == rows(recipe(gpu=gpu))["weights"]


@pytest.mark.parametrize("alone", [False, True])
def test_weights_in_fp4_have_two_copies_with_a_scale_for_16(alone: bool) -> None:
    found, plain = rows(recipe("nvfp4", "b200-180gb", fp4_param_gather=alone)), rows(recipe(gpu="b200-180gb"))
    assert found["weights in FP4"] == PRODUCTS * 9 / 8
    assert plain["weights"] - found["weights"] == (PRODUCTS * 2 if alone else 0)


def test_weights_in_fp8_alone() -> None:
    plain, alone = rows(recipe()), rows(recipe("tensorwise", fp8_param_gather=True))
    assert plain["weights"] - alone["weights"] == PRODUCTS * 2
    assert alone["weights in FP8"] == PRODUCTS * 2
    assert alone["main weights"] == plain["main weights"]


def test_the_high_figure_saves_half_precision() -> None:
    name = "normalised input of the first matmul (last layer)"
    high = next(row.high_bytes for row in megatron_ledger(recipe("tensorwise")).rows if row.name == name)
    assert high == rows(recipe())[name]


LORA = {"lora": {"r": 16}}


def of_lora(trainer: str, gpu: str = "h100-80gb", **megatron: Any) -> Recipe:
    return resolve(read_job({**JOB, **LORA, "gpu": gpu, "trainer": trainer, "megatron": megatron}))


@pytest.mark.parametrize("trainer", ["megatron", "megatron-swift"])
def test_a_frozen_base_has_copies_too(trainer: str) -> None:
    """Both layouts beside bf16; alone, two bytes in all, and never less than bf16 weights on Hopper."""
    plain, copies, alone = (
        rows(of_lora(trainer, **keys))
        for keys in ({}, {"fp8_format": "hybrid"}, {"fp8_format": "hybrid", "fp8_param_gather": True})
    )
    assert copies["weights in FP8 of the base"] == alone["weights in FP8 of the base"] == PRODUCTS * 2
    assert copies["frozen weights"] == plain["frozen weights"]
    assert plain["frozen weights"] - alone["frozen weights"] == PRODUCTS * 2
    assert alone["weights"] == plain["weights"], "adapters come to layers that are made, in bf16"
    assert kept(of_lora(trainer, fp8_format="hybrid")) == kept(of_lora(trainer)), "adapters keep what they kept"


def test_a_towers_weights_are_not_in_fp8() -> None:
    job = {"model": "qwen2.5-vl-7b", "method": "sft", "trainer": "megatron-swift", "sequence_length": T, **LORA}
    job |= {"gpu": "b200-180gb", "images": {"per_example": 1, "tokens": 256}}
    low = {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True}
    found = [rows(resolve(read_job(job | keys))) for keys in ({}, {"megatron": low})]
    language = 28 * (3584 * 4608 + 3584 * 3584 + 3 * 3584 * 18944)
    assert found[0]["frozen weights"] - found[1]["frozen weights"] == 2 * language


@pytest.mark.parametrize(("model", "tensor", "pipeline"), [("llama-2-7b", 1, 1), ("llama-2-70b", 2, 4)])
def test_what_ran_in_fp8_with_adapters_fits(model: str, tensor: int, pipeline: int) -> None:
    """NeMo 24.12's performance summary on 8 × H100 80 GB, 4,096 tokens, nothing recomputed."""
    job: dict[str, Any] = {
        "model": model, "method": "sft", "trainer": "megatron", "num_gpus": 8, "sequence_length": 4096,
        "tensor_parallel": tensor, "pipeline_parallel": pipeline, "gradient_accumulation_steps": 32 // 8 * pipeline,
        "lora": {"r": 16, "targets": ["q_proj", "k_proj", "v_proj"], "dropout": 0.1}, "gpu": "h100-80gb",
        "megatron": {"fp8_format": "hybrid"},
    }  # fmt: skip
    report = estimate(job)
    assert report.verdict is not None
    assert report.verdict.fits != "no"
    assert report.per_gpu.device_bytes.expected < 75 * 2**30
    plain = estimate(job | {"megatron": {}})
    assert report.per_gpu.device_bytes.high > plain.per_gpu.device_bytes.high


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu": "a100-80gb", "megatron": {"fp8_format": "hybrid"}}, "megatron.fp8_recipe: delayed needs compute"),
        ({"gpu": "h100-80gb", "megatron": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}}, "megatron.fp8_recipe: mxfp8"),
        ({"dtype": "fp16", "megatron": {"fp8": "hybrid"}}, "megatron.fp8_format: products in FP8 need bf16"),
        ({"megatron": {"fp8_param": True}}, "megatron.fp8_param_gather: needs fp8_format"),
        ({"megatron": {"fp8": "hybrid"}, "lora": {"r": 8}, "trainer": "megatron-swift"}, "lora.r: 8 is no multiple of"),
        ({"gpu": "h100-80gb", "megatron": {"fp4": "e2m1"}}, "megatron.fp4_recipe: nvfp4 needs compute capability 10.0"),
        ({"megatron": {"fp4": "e2m1", "fp8": "hybrid"}}, "megatron.fp4_format: not with fp8_format"),
        ({"megatron": {"fp4_param": True}}, "megatron.fp4_param_gather: needs fp4_format"),
        ({"megatron": {"fp8": "hybrid", "first_last_layers_bf16": True}}, "megatron.first_last_layers_bf16: not mod"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        resolve(read_job({**JOB, **given}))
    assert caught.value.message.startswith(message)
