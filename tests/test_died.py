"""Proves that jobs which died as their users published it do not fit: waking up beside a cache that is not given back,
copies of sleeping engines that a node does not hold, graphs and a sampler outside of the share.
"""

from typing import Any

import pytest

from memplan.api import estimate

EIGHT = {"nodes": 2, "gpus_per_node": 8, "gpu": "80GB", "host_memory": "512GB"}
DIED: dict[str, dict[str, Any]] = {
    # step 106 of verl's GRPO of Qwen3 8B on 8 MI355X: 56.9 GiB allocated, 264 reserved, then waking up fails
    "wake-up": {
        "model": "qwen3-8b",
        "trainer": "verl",
        "trainer_version": "0.8",
        "sharding": "fsdp",
        "num_gpus": 8,
        "gpu": "mi355x-288gb",
        "token_budget": 24576,
        "sequence_length": 10240,
        "completion_length": 8192,
        "rollout": {"engine": "vllm", "engine_version": "0.20.0", "tensor_parallel": 2, "gpu_memory_utilization": 0.6},
    },
    # github.com/OpenRLHF/OpenRLHF/issues/1013: a 7B on two nodes of 512 GB, killed where engines sleep
    "host": {
        "model": "qwen2.5-7b",
        "trainer": "openrlhf",
        "zero_stage": 1,
        "num_gpus": 16,
        "gpu": "80GB",
        "cluster": EIGHT,
        "sequence_length": 2048,
        "completion_length": 1024,
        "rollout": {
            "engine": "vllm",
            "engine_version": "0.8.5",
            "placement": "colocate",
            "sleep": "1",
            "gpu_memory_utilization": 0.5,
        },
    },
    # github.com/verl-project/verl/issues/855: a 14B on 8 H100, whose loss makes an entropy though its coefficient is 0
    "entropy": {
        "model": "deepseek-r1-distill-qwen-14b",
        "trainer": "verl",
        "trainer_version": "0.3",
        "sharding": "fsdp",
        "num_gpus": 8,
        "gpu": "h100-80gb",
        "token_budget": 24000,
        "gradient_accumulation_steps": 14,
        "sequence_length": 1024,
        "completion_length": 512,
        "attention": "flash",
        "reference": "offloaded",
        "rollout": {"engine": "vllm", "tensor_parallel": 8, "gpu_memory_utilization": 0.6},
    },
    # github.com/modelscope/ms-swift/issues/7125: LoRA of a 235B on 128 H20, whose weights are gathered whole to be sent
    "gathered": {
        "model": "qwen3-235b-a22b",
        "trainer": "swift",
        "lora": {"r": 128},
        "zero_stage": 3,
        "num_gpus": 128,
        "gpu": "h20-96gb",
        "sequence_length": 10240,
        "completion_length": 2048,
        "trainer_offload": ["parameters", "optimizer"],
        "rollout": {
            "engine": "vllm",
            "placement": "colocate",
            "sleep": "1",
            "tensor_parallel": 8,
            "expert_parallel": 8,
            "gpu_memory_utilization": 0.7,
            "max_model_len": 10240,
        },
    },
}
ALONE: dict[str, tuple[str, str, int, str, dict[str, Any]]] = {
    # vLLM 0.11: 70.35 GiB of cache and 3.49 of graphs, then the sampler's warm-up fails
    "sampler": ("qwen2.5-1.5b", "79.33GiB", 1, "0.11.0", {"gpu_memory_utilization": 0.95, "max_model_len": 4096}),
    # github.com/vllm-project/vllm/issues/17469: graphs beside a share of 0.9 of 24 GB cards
    "graphs": ("qwen3-30b-a3b", "a10g-24gb", 4, "0.8.5", {"tensor_parallel": 4, "max_model_len": 8192}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIED)
def test_jobs_that_died_do_not_fit(name: str) -> None:
    found = estimate({"method": "grpo", **DIED[name]})
    assert found.engine is not None
    assert found.engine.starts
    assert found.verdict is not None
    assert found.verdict.fits != "yes"


@pytest.mark.parametrize("name", ALONE)
def test_engines_that_died_do_not_fit(name: str) -> None:
    model, gpu, cards, version, rollout = ALONE[name]
    job = {"model": model, "method": "generate", "gpu": gpu, "num_gpus": cards}
    found = estimate({**job, "rollout": {"engine": "vllm", "engine_version": version, **rollout}})
    assert found.verdict is not None
    assert found.verdict.fits != "yes"


@pytest.mark.slow
def test_an_engine_that_comes_first_has_the_card_for_itself() -> None:
    """OpenRLHF builds its engines before its models (cli/train_ppo_ray.py): what those hold is not in their way."""
    job = {"method": "grpo", **DIED["host"], "cluster": None}
    at = next(each for each in estimate(job).rollout if each.name == "start.engine")
    assert [process.device_bytes for process in at.processes if process.name == "trainer"] == [0]
    assert at.device_bytes > 0.4 * 80e9
