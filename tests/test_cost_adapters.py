"""Proves what adapters cost beside the products of their small matrices: whole matrices' norms, stacks of experts."""

from typing import Any

import pytest

from memplan.cost import card, seconds
from memplan.cost.shape import shape_of
from memplan.cost.work import model_work
from memplan.gpus import find_gpu
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

H200 = card(find_gpu("h200-141gb"))


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({"method": "sft", "gpu": "h200-141gb", "batch_size": 1, **keys}))


def test_dora_makes_norms_of_its_linears_whatever_the_tokens() -> None:
    """Llama 3.2 3B on an L40S, 840 tokens a step: 29.2 and 35.3 s for 250 steps (huggingface/peft@5d602fd
    method_comparison/MetaMathQA/results: lora rank 32 on q and v, without and with DoRA)."""
    keys: dict[str, Any] = {"model": "llama-3.2-3b", "batch_size": 4, "sequence_length": 210, "padded": True}
    keys |= {"precision": "bf16", "autocast": False, "gpu": "l40s-48gb"}
    lora = {"r": 32, "targets": ["q_proj", "v_proj"], "dropout": 0}
    plain, dora = (
        seconds(recipe(**keys, lora={**lora, "dora": it}), card(find_gpu("l40s-48gb"))) for it in (False, True)
    )
    assert dora / plain == pytest.approx(35.3 / 29.2, rel=0.03)


@pytest.mark.parametrize("length", [16_384, 65_536])
def test_adapters_of_stacked_experts_take_a_time_that_tokens_do_not_change(length: int) -> None:
    """Qwen3-30B-A3B on eight H200: 7.1 and 43 s a step of two micro-batches (PrimeIntellect-ai/prime-rl@559b447
    benchmarks/baselines), of which the adapters of the experts are about one."""
    keys: dict[str, Any] = {"model": "qwen3-30b-a3b", "trainer": "prime-rl", "num_gpus": 8, "sequence_length": length}
    keys |= {"attention": "flash", "flash_version": 3, "gradient_checkpointing": "full", "compile": True}
    layers = ["q_proj", "k_proj", "v_proj", "o_proj"]
    whole, linears = (
        seconds(recipe(**keys, gradient_accumulation_steps=2, lora=lora), H200)
        for lora in ({"r": 16}, {"r": 16, "targets": layers})
    )
    assert 0.6 < whole - linears < 1.8


def test_in_megatron_adapters_of_experts_are_grouped_products() -> None:
    """Which cost by the tokens that visit them, twice as many twice as much."""
    keys: dict[str, Any] = {"model": "qwen3-30b-a3b", "trainer": "megatron-swift", "num_gpus": 8, "expert_parallel": 8}
    linears = {"r": 32, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    more = [
        seconds(recipe(**keys, sequence_length=length, lora={"r": 32, "targets": "all-linear"}), H200)
        - seconds(recipe(**keys, sequence_length=length, lora=linears), H200)
        for length in (16_384, 32_768)
    ]
    assert more[1] == pytest.approx(2 * more[0], rel=0.2)


def test_unsloths_adapters_are_added_by_their_own_product() -> None:
    """Which reads and writes each element of what a linear gives (4 bytes); PEFT's writes its own, scales it and adds
    it (12). Its adapters' matrices are cast to what comes in, where PEFT's in fp32 have that cast to them (12)."""
    keys: dict[str, Any] = {"model": "llama-3.1-8b", "trainer": "trl", "precision": "bf16"}
    keys |= {"lora": {"r": 16, "dropout": 0, "targets": "all-linear"}}
    plain, unsloth = (recipe(**keys, kernels=kernels) for kernels in ("none", "unsloth"))
    moved = [shape_of(each, model_work(each.model)).adapted_moves for each in (plain, unsloth)]
    came, gone = 6 * 4096 + 14336, 3 * 4096 + 2 * 1024 + 2 * 14336  # of one layer
    assert moved[0] - moved[1] == 8 * gone + 12 * came
