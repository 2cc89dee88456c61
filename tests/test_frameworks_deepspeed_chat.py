"""DeepSpeed-Chat: the main.py of its steps, as it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memplan.frameworks.checks.checking import Checked, check_file
from memplan.resolve import resolve
from memplan.spec.reading import read_job

OPTIONS = "--model_name_or_path smollm2-135m --data_split 2,4,4 --max_seq_len 256 --per_device_train_batch_size 2 "
STEP_1 = "deepspeed --num_gpus 8 training/step1_supervised_finetuning/main.py " + OPTIONS + "--deepspeed "
STEP_2 = STEP_1.replace("step1_supervised_finetuning", "step2_reward_model_finetuning")
DPO = STEP_1.replace("step1_supervised_finetuning", "step2_dpo_finetuning")


def checked(folder: Path, text: str, **options: Any) -> Checked:
    path = folder / "run.sh"
    path.write_text(text + "\n", encoding="utf-8")
    return check_file(str(path), {"gpu": "80GB", **options})


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (STEP_1, {"method": "sft", "num_gpus": 8, "sharding": "zero0", "precision": "fp16-master", "batch_size": 2,
                  "sequence_length": 256, "padded": True, "gradient_checkpointing": "none"}),
        (STEP_1 + "--zero_stage 3 --dtype bf16 --gradient_checkpointing --offload",
         {"sharding": "zero3", "precision": "bf16-master", "gradient_checkpointing": "full",
          "offload": ["offload_optimizer", "offload_param"]}),
        (STEP_1 + "--zero_stage 2 --offload", {"offload": ["offload_optimizer"]}),
        (STEP_1 + "--offload", {"offload": []}),
        (STEP_2 + "--zero_stage 2", {"method": "reward", "sharding": "zero2"}),
        (DPO + "--zero_stage 3", {"method": "dpo", "reference": "resident", "loss_head": "log-softmax"}),
        (DPO + "--zero_stage 3 --offload_reference_model", {"reference": "offloaded"}),
        (DPO + "--zero_stage 2 --offload_reference_model", {"reference": "resident"}),
    ],
)  # fmt: skip
def test_a_step_is_read_as_it_runs(tmp_path: Path, text: str, keys: dict[str, Any]) -> None:
    found = checked(tmp_path, text)
    assert found.fits == "yes", found.text
    job = {**found.job, "offload": sorted(key for key in found.job["deepspeed"] if key.startswith("offload"))}
    assert {key: job[key] for key in keys} == keys


def test_what_a_script_leaves_to_fill_in_is_asked_for_at_once(tmp_path: Path) -> None:
    text = STEP_1.replace("smollm2-135m", "'<your_model>'") + "--zero_stage '<zero_stage>' --offload"
    assert checked(tmp_path, text).hint == "add --model Qwen/Qwen2.5-7B --sharding zero2, with your own values"
    job = checked(tmp_path, text, model="smollm2-135m", sharding="zero2").job
    assert (job["sharding"], "offload_optimizer" in job["deepspeed"]) == ("zero2", True)


def test_adapters_have_the_models_dtype(tmp_path: Path) -> None:
    alone = checked(tmp_path, STEP_1 + "--lora_dim 8 --only_optimize_lora --zero_stage 2")
    assert (alone.fits, alone.job["lora"]["r"], alone.job["lora"]["dtype"]) == ("yes", 8, "fp16")
    both = checked(tmp_path, STEP_1 + "--lora_dim 8 --zero_stage 2")
    assert (both.fits, both.job["lora"]["bias"], "at most" in both.text) == ("yes", "all", True)  # all but the linears


@pytest.mark.slow
def test_a_main_py_without_its_folder_is_asked_about(tmp_path: Path) -> None:
    bare = STEP_1.replace("training/step1_supervised_finetuning/", "") + "--zero_stage 2 "
    assert checked(tmp_path, bare).fits == "unclear"
    assert checked(tmp_path, bare, method="sft").fits == "yes"
    assert checked(tmp_path, bare + "--num_padding_at_beginning 1").job["method"] == "reward"


PPO = (
    "deepspeed --num_gpus 8 main.py --actor_model_name_or_path smollm2-360m --critic_model_name_or_path smollm2-135m "
    "--max_prompt_seq_len 128 --per_device_mini_train_batch_size 2 --per_device_train_batch_size 2 "
)


def test_ppo_has_four_models(tmp_path: Path) -> None:
    found = checked(tmp_path, PPO + "--actor_zero_stage 3 --critic_zero_stage 3 --offload_reference_model")
    assert (found.fits, found.warnings) == ("yes", ())
    roles = [(each["role"], each["model"]) for each in found.job["extra_models"]]
    assert roles == [("critic", "smollm2-135m"), ("reward", "smollm2-135m")]
    keys = ("method", "batch_size", "sequence_length", "completion_length", "sharding", "reference", "loss_head")
    assert [found.job[key] for key in keys] == ["ppo", 2, 384, 256, "zero3", "offloaded", "log-softmax"]


def test_a_batch_of_generation_is_generated_at_once_and_trained_in_parts(tmp_path: Path) -> None:
    """step3_rlhf_finetuning/main.py: MiniDataset divides what generate_experience made of a whole batch."""
    large = PPO.replace("per_device_train_batch_size 2", "per_device_train_batch_size 64") + "--actor_zero_stage 2 "
    found, small = (
        checked(tmp_path, text + "--critic_zero_stage 2") for text in (large, PPO + "--actor_zero_stage 2 ")
    )
    made = [resolve(read_job({key: value for key, value in each.job.items() if key != "evaluation"})).generator
            for each in (found, small)]  # fmt: skip
    assert [each and each.rows for each in made] == [64, 2]
    assert found.job["batch_size"] == 2


def test_critic_and_reward_are_asked_for_at_once(tmp_path: Path) -> None:
    found = checked(tmp_path, PPO.replace("smollm2-135m", "/mnt/step2") + "--actor_zero_stage 2 --critic_zero_stage 2")
    both = ", ".join(f'{{"role": "{role}", "model": "Qwen/Qwen2.5-7B"}}' for role in ("critic", "reward"))
    assert (found.fits, found.hint) == ("unclear", f"add --set 'extra_models=[{both}]'")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--beta 0.1", "beta"),
        ("--critic_zero_stage 3", "critic_zero_stage"),
        ("--enable_hybrid_engine", "hybrid engine"),
        ("--actor_gradient_checkpointing", "actor_gradient_checkpointing"),
        ("--critic_lora_dim 8 --only_optimize_lora", "critic_lora_dim"),
    ],
)
def test_what_ppo_holds_beside_what_is_counted_is_told(tmp_path: Path, more: str, told: str) -> None:
    found = checked(
        tmp_path, PPO + "--actor_zero_stage 2 " + ("" if "critic_zero" in more else "--critic_zero_stage 2 ") + more
    )
    assert (found.fits, told in found.text) == ("unclear", True)


def test_evaluation_has_a_batch_of_its_own_and_dropout_is_told(tmp_path: Path) -> None:
    assert checked(tmp_path, STEP_1).job["eval_batch_size"] == 16
    assert checked(tmp_path, STEP_1 + "--per_device_eval_batch_size 64").job["eval_batch_size"] == 64
    assert checked(tmp_path, STEP_1 + "--dropout 0.0").fits == "yes"
    found = checked(tmp_path, STEP_1 + "--dropout 0.1")
    assert (found.fits, "dropout" in found.text) == ("unclear", True)
