"""Holds products in FP8 under Megatron against hand counts: saved inputs, copies of weights, weights in FP8 alone."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu": "a100-80gb", "megatron": {"fp8_format": "hybrid"}}, "megatron.fp8_recipe: delayed needs compute"),
        ({"gpu": "h100-80gb", "megatron": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}}, "megatron.fp8_recipe: mxfp8"),
        ({"dtype": "fp16", "megatron": {"fp8": "hybrid"}}, "megatron.fp8_format: products in FP8 need bf16"),
        ({"megatron": {"fp8_param": True}}, "megatron.fp8_param_gather: needs fp8_format"),
        ({"megatron": {"fp8": "hybrid"}, "lora": {"r": 8}}, "trainer: Megatron-LM with LoRA and products in FP8"),
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
