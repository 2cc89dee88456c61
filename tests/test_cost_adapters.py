"""Proves what adapters cost beside the products of their small matrices: whole matrices' norms, stacks of experts."""

from typing import Any

import pytest

from memplan.cost import card, seconds
from memplan.cost.host import on_host
from memplan.cost.passes import passes_of
from memplan.cost.rates import EXPECTED
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


def test_unsloths_short_steps_take_as_long_as_python_does() -> None:
    """Qwen3 0.6B and 1.7B, 28 layers both, 4 micro-steps of 4,096 tokens on an H100: 21,300 and 20,800 tokens a second,
    18,000 either over NF4 (invergent-ai/surogate@524fb77 docs/reference/benchmarks.md)."""
    keys: dict[str, Any] = {"trainer": "trl", "kernels": "unsloth", "precision": "bf16", "gpu": "h100-80gb"}
    keys |= {"batch_size": 2, "gradient_accumulation_steps": 4, "sequence_length": 2048, "optimizer": "adamw-8bit"}
    keys |= {"lora": {"r": 16, "dropout": 0, "targets": "all-linear"}, "gradient_checkpointing": "full"}
    on = card(find_gpu("h100-80gb"))
    small, large = (seconds(recipe(model=model, **keys), on) for model in ("qwen3-0.6b", "qwen3-1.7b"))
    assert large == pytest.approx(small, rel=0.03)
    assert 4 * 4096 / small == pytest.approx(21_300, rel=0.2)
    packed = seconds(recipe(model="qwen3-0.6b", **keys, quantization="nf4"), on)
    assert packed / small == pytest.approx(21_300 / 18_000, rel=0.15)


def test_states_in_managed_memory_come_and_go_where_they_have_no_room() -> None:
    """Llama 3.1 8B, whole, with paged 8-bit states stepped in backward: 1,650 tokens a second on a 4090
    (pytorch/torchtune@bd2a0fc README.md); on a card with room they stay."""
    keys: dict[str, Any] = {"model": "llama-3.1-8b", "trainer": "torchtune", "batch_size": 2, "sequence_length": 2048}
    keys |= {"precision": "bf16", "compile": True, "gradient_checkpointing": "full", "loss_head": "chunked"}
    keys |= {"sharding": "none"}
    took = {
        (gpu, optimizer): seconds(recipe(**keys, gpu=gpu, optimizer=optimizer), card(find_gpu(gpu)))
        for gpu in ("rtx-4090-24gb", "h200-141gb")
        for optimizer in ("adamw-8bit", "paged-adamw-8bit")
    }
    assert 4096 / took["rtx-4090-24gb", "paged-adamw-8bit"] == pytest.approx(1650, rel=0.1)
    assert took["rtx-4090-24gb", "adamw-8bit"] < 0.8 * took["rtx-4090-24gb", "paged-adamw-8bit"]
    assert took["h200-141gb", "adamw-8bit"] == took["h200-141gb", "paged-adamw-8bit"]


def test_under_fsdp1_short_steps_wait_for_the_hooks_around_each_adapter() -> None:
    """Qwen2.5 0.5B, 105 tokens a row, four H100: 12,084 tokens a second under DDP, 2,945 under FSDP1, 217 units by a
    probe (MakazhanAlpamys/Soup@2428453 benchmarks/gate-h100-validation.md); long steps hide them."""
    keys: dict[str, Any] = {"model": "qwen2.5-0.5b", "trainer": "trl", "num_gpus": 4, "precision": "bf16"}
    keys |= {"batch_size": 4, "lora": {"r": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}}
    keys |= {"trainer_version": "0.26", "gradient_checkpointing": "none"}
    asked = recipe(**keys, sharding="fsdp")
    assert 24 * shape_of(asked, model_work(asked.model)).units == 24 + 24 * 8
    short, hooked = (seconds(recipe(**keys, sharding=how, sequence_length=105), H200) for how in ("ddp", "fsdp"))
    assert 2.5 < hooked / short < 4.2
    long, hidden = (seconds(recipe(**keys, sharding=how, sequence_length=16_384), H200) for how in ("ddp", "fsdp"))
    assert hidden == pytest.approx(long, rel=0.02)


def test_transformers_trainer_walks_over_every_module_before_a_micro_step() -> None:
    """2,000 of them with a LoRA of 9B: 8.9 ms of a B200's host (unslothai/unsloth#11238), as in 28 layers with seven
    adapters each; forwards that train nothing are not walked for."""
    asked = recipe(model="qwen3-0.6b", trainer="trl", sequence_length=16, lora={"r": 8, "targets": "all-linear"})
    work, rates = model_work(asked.model), on_host(EXPECTED, H200.host)
    shape = shape_of(asked, work)
    assert shape.walked
    walked, plain = (passes_of(work, shape._replace(walked=it), H200, rates)[1] for it in (True, False))
    assert walked.forward - plain.forward == pytest.approx(28 * 84 * 8.9e-3 / 2000, rel=0.01)
    assert (walked.backward, walked.again) == (plain.backward, plain.again)
    assert not shape_of(recipe(model="qwen3-0.6b", trainer="pytorch", sequence_length=16), work).walked


def test_a_compiler_scales_and_adds_what_comes_out_of_an_adapter_in_one_pass() -> None:
    """Of bf16 adapters on v of Llama 3.2 3B: 3,072 elements come in, 1,024 go out."""
    keys: dict[str, Any] = {"model": "llama-3.2-3b", "trainer": "torchtune", "precision": "bf16"}
    keys |= {"lora": {"r": 8, "dtype": "bf16", "dropout": 0, "targets": ["v_proj"]}}
    moved = []
    for compiled in (False, True):
        asked = recipe(**keys, compile=compiled)
        moved.append(shape_of(asked, model_work(asked.model)).adapted_moves)
    assert moved == [2 * 3072 + 12 * 1024, 2 * 3072 + 8 * 1024]


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_policy_that_is_its_own_reference_scores_as_fast_as_a_copy_of_it(quantization: str) -> None:
    """Its adapters are off meanwhile; a copy of a quantised base is quantised too."""
    keys: dict[str, Any] = {"model": "llama-3.1-8b", "method": "dpo", "trainer": "trl", "lora": {"r": 16}}
    keys |= {"quantization": quantization, "precision": "bf16", "sequence_length": 1024}
    itself, copy = (seconds(recipe(**keys, reference=it), H200) for it in ("adapter", "resident"))
    assert itself == pytest.approx(copy, rel=1e-3)
