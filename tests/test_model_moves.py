"""Proves that the settings of a critic and of a reward model's engine are among what is proposed."""

from typing import Any

import pytest

from memplan.api import estimate, plan
from memplan.planner.model_moves import CRITIC_AGAIN, CRITIC_BATCH, REWARD_RANKS, REWARD_SHARE
from memplan.planner.moves import compatible, moves, together, training_moves
from memplan.resolve import resolve
from memplan.spec.other_models import MODELS
from memplan.spec.reading import read_job

JOB: dict[str, Any] = {
    "model": "qwen2.5-1.5b",
    "method": "ppo",
    "trainer": "verl",
    "num_gpus": 4,
    "gpu": "h100-80gb",
    "sharding": "fsdp",
    "batch_size": 8,
    "gradient_checkpointing": "none",
    "extra_models": [
        {"role": "critic", "batch_size": 32},
        {"role": "reward", "model": "qwen2.5-1.5b", "rollout": {"engine": "vllm", "gpu_memory_utilization": 0.8}},
    ],
    "rollout": {"engine": "vllm", "gpu_memory_utilization": 0.5, "prompt_length": 512, "completion_length": 512},
}


def found(**changed: Any) -> Any:
    """Its moves by axis, with the job and the recipe."""
    read = read_job(JOB | changed)
    recipe = resolve(read)
    return read.job, recipe, {move.axis: move for move in (*moves(read.job, recipe), *training_moves(read.job, recipe))}


def test_each_setting_is_a_move_and_the_models_keep_theirs() -> None:
    job, recipe, axes = found()
    chosen = [axes[axis] for axis in (CRITIC_BATCH, CRITIC_AGAIN, REWARD_RANKS)]
    assert compatible([*chosen[:2], axes[REWARD_SHARE]])
    assert not compatible([*chosen, axes[REWARD_SHARE]])
    assert compatible(chosen)
    keys = together(job, recipe, chosen)
    assert keys is not None
    critic, reward = keys[MODELS]
    assert (critic["batch_size"], critic["gradient_checkpointing"]) == (1, "full")
    assert reward["model"] == "qwen2.5-1.5b"
    assert reward["rollout"] == {"engine": "vllm", "gpu_memory_utilization": 0.2, "tensor_parallel": 4}
    gone = together(job, recipe, [axes["method"], axes[REWARD_SHARE]])
    assert gone is not None
    assert [each["role"] for each in gone[MODELS]] == ["reward"]


def test_a_critic_that_is_not_named_is_named() -> None:
    job, recipe, axes = found(extra_models=[])
    keys = together(job, recipe, [axes[CRITIC_BATCH]])
    assert keys is not None
    assert {"role": "critic", "batch_size": 1}.items() <= keys[MODELS][0].items()
    assert not {REWARD_SHARE, REWARD_RANKS} & axes.keys()


def test_a_budget_of_tokens_is_halved_down_to_a_sequence() -> None:
    _, _, axes = found(extra_models=[{"role": "critic", "token_budget": 8192}])
    assert axes[CRITIC_BATCH].keys == {MODELS: {"critic.token_budget": 1024}}


@pytest.mark.parametrize(("trainer", "version"), [("openrlhf", None), ("trl", "1.12")])
def test_trainers_that_say_one_size_for_both_have_no_such_moves(trainer: str, version: str | None) -> None:
    job = {"model": "qwen2.5-1.5b", "method": "ppo", "trainer": trainer, "gpu": "h100-80gb"}
    read = read_job(job | ({"trainer_version": version} if version else {}))
    assert CRITIC_BATCH not in {move.axis for move in moves(read.job, resolve(read))}


@pytest.mark.slow
def test_the_critics_batch_comes_before_another_training() -> None:
    job = JOB | {"model": "qwen2.5-7b", "batch_size": 2, "gradient_checkpointing": "full", "num_gpus": 8}
    job |= {"extra_models": [{"role": "critic", "batch_size": 48}]}
    first = estimate(job | {"rollout": JOB["rollout"] | {"completion_length": 3584}}).remedies[0]
    assert "critic batch" in first.title


@pytest.mark.slow
def test_a_plan_divides_a_reward_models_engine_that_no_card_holds() -> None:
    job = JOB | {"method": "grpo", "num_gpus": 8, "model": "qwen2.5-0.5b"}
    job |= {"extra_models": [{"role": "reward", "model": "qwen2.5-32b", "rollout": {"engine": "vllm"}}]}
    first = plan(job).plans[0]
    assert first.job["extra_models"][0]["rollout"]["tensor_parallel"] == 8
