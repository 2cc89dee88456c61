"""open-instruct: its programs in scripts, behind mason.py, and its files of arguments, as they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memplan.frameworks.checks.checking import Checked, check_file

STAGE_3 = "--deepspeed_config_file configs/ds_configs/stage3_no_offloading_accelerate.conf"
MASON = "python mason.py --cluster x --num_nodes 4 --gpus 8 -- "
BF16 = "accelerate launch --mixed_precision bf16 "
ACCELERATE = f"{BF16}--num_processes 8 --use_deepspeed {STAGE_3} "
SFT = "open_instruct/finetune.py --model_name_or_path smollm2-135m --max_seq_length 512 --per_device_train_batch_size 1"
DPO = SFT.replace("finetune.py", "dpo_tune_cache.py")
THREAD = (
    "python open_instruct/ppo_vllm_thread_ray_gtrl.py --model_name_or_path smollm2-135m --reward_model_path nobody/rm "
    "--response_length 256 --max_prompt_token_length 256 --local_rollout_forward_batch_size 4"
)
GRPO = "open_instruct/grpo_fast.py --model_name_or_path smollm2-135m --pack_length 1024 --per_device_train_batch_size 1"


def checked(folder: Path, text: str, name: str = "train.sh", **options: Any) -> Checked:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return check_file(str(path), {"gpu": "80GB", **options})


def job(folder: Path, text: str, name: str = "train.sh", **options: Any) -> dict[str, Any]:
    found = checked(folder, text, name, **options)
    assert found.job, found.text
    return {**found.job, "fits": found.fits, "unread": {each["key"] for each in found.unread if each["decides"]}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (MASON + ACCELERATE + SFT, {"method": "sft", "num_gpus": 32, "sharding": "zero3", "precision": "bf16-master",
                                    "gradient_checkpointing": "none", "attention": "flash", "fits": "yes"}),
        (MASON + "source env.sh \\&\\& " + ACCELERATE + SFT, {"num_gpus": 32, "sharding": "zero3"}),
        ("uv run " + MASON + "source env.sh \\&\\&python " + GRPO + " --num_learners_per_node 8", {"num_gpus": 8}),
        (ACCELERATE + SFT + " --gradient_checkpointing", {"num_gpus": 8, "gradient_checkpointing": "full"}),
        (BF16 + "--num_processes 1 " + SFT,
         {"precision": "bf16", "autocast": True, "optimizer_impl": "fused", "sharding": "none"}),
        (BF16 + "--num_processes 2 " + SFT + " --use_lora --use_qlora",
         {"quantization": "nf4-double", "optimizer": "paged-adamw", "sharding": "ddp"}),
        (BF16 + "--num_processes 1 " + SFT + " --use_lora --use_qlora --use_8bit_optimizer",
         {"optimizer": "paged-adamw-8bit"}),
        (ACCELERATE + DPO, {"method": "dpo", "loss_head": "log-softmax", "logits_dtype": "fp32",
                            "reference": "precomputed", "pair_pass": "concatenated"}),
        (ACCELERATE + DPO.replace("_cache", ""), {"reference": "resident"}),
        (ACCELERATE + DPO.replace("_cache", "") + " --use_lora", {"reference": "adapter"}),
        (ACCELERATE + DPO + " --loss_type simpo", {"method": "simpo", "reference": "none"}),
        (ACCELERATE + DPO + " --concatenated_forward False", {"pair_pass": "two-forward"}),
        (ACCELERATE + DPO + " --use_lora --gradient_checkpointing", {"gradient_checkpointing": "none"}),
        (ACCELERATE + DPO + " --activation_memory_budget 0.5", {"gradient_checkpointing": "full"}),
        (BF16 + "--num_processes 8 " + DPO + " --zero_stage 2", {"sharding": "zero2"}),
        ("python open_instruct/reward_modeling.py --model_name_or_path smollm2-135m --max_token_length 256",
         {"method": "reward", "sequence_length": 256, "batch_size": 1, "attention": "sdpa", "padded": True}),
        ("uv run " + GRPO + " --num_learners_per_node 8 4 --deepspeed_stage 3",
         {"method": "grpo", "num_gpus": 12, "sequence_length": 1024, "gradient_checkpointing": "full",
          "reference": "resident", "fits": "yes"}),
        (f"{THREAD.replace('ppo', 'grpo')} --reward_model_multiplier 0.0",
         {"logprob_token_budget": 2048, "method": "grpo", "extra_models": []}),
        (THREAD, {"method": "ppo", "extra_models": [{"role": role, "model": "smollm2-135m", "placement": "resident"}
                                                    for role in ("critic", "reward")]}),
        ("python " + GRPO + " --load_ref_policy False --beta 0.0", {"reference": "none", "num_gpus": 1,
                                                                    "sharding": "zero0"}),
    ],
)  # fmt: skip
def test_a_program_is_read_as_it_runs(tmp_path: Path, text: str, keys: dict[str, Any]) -> None:
    found = job(tmp_path, text + "\n")
    assert {key: found[key] for key in keys} == keys


@pytest.mark.slow
def test_groups_of_eight_keep_a_second_partition(tmp_path: Path) -> None:
    """get_train_ds_config's zero_hpz_partition_size, where the GPUs can be divided so."""
    eight, four = (
        job(tmp_path, f"python {GRPO} --deepspeed_stage 3 --num_learners_per_node {gpus}\n")["deepspeed"]
        for gpus in (8, 4)
    )
    assert eight["zero_hpz_partition_size"] == 8
    assert "zero_hpz_partition_size" not in four
    assert eight["grad_accum_dtype"] == four["grad_accum_dtype"] == "fp32"


def test_deepspeeds_settings_are_those_of_the_file_that_is_there(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs" / "ds_configs"
    folder.mkdir(parents=True)
    missing = checked(tmp_path, ACCELERATE + SFT + "\n", "train.sh")
    assert any("is not here: open-instruct's ds_configs/" in text for text in missing.warnings)
    assert missing.job["deepspeed"]["overlap_comm"] is True
    config = '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}}'
    (folder / "stage3_no_offloading_accelerate.conf").write_text(config, encoding="utf-8")
    there = checked(tmp_path, ACCELERATE + SFT + "\n", "train.sh")
    assert there.job["sharding"] == "zero1"
    assert not any("is not here" in text for text in there.warnings)


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        (ACCELERATE + SFT.replace("--max_seq_length 512", ""), "sequence_length"),
        (ACCELERATE + SFT + " --reduce_loss sum", "reduce_loss"),
        (ACCELERATE + SFT + " --sequence_parallel_size 4", "sequence_parallel_size"),
        (ACCELERATE + DPO + " --loss_type wpo", "loss_type"),
        ("accelerate launch --num_processes 2 " + SFT + " --use_lora --use_qlora", "precision"),
    ],
)
def test_what_is_not_understood_is_unclear(tmp_path: Path, text: str, unread: str) -> None:
    found = job(tmp_path, text + "\n")
    assert found["fits"] == "unclear"
    assert unread in found["unread"]


@pytest.mark.parametrize("program", ["dpo.py", "ppo_fast.py", "grpo.py", "olmo_core_finetune.py"])
def test_other_trainers_are_named(tmp_path: Path, program: str) -> None:
    text = f"torchrun --nproc_per_node 8 open_instruct/{program} --model_name_or_path smollm2-135m --num_epochs 1\n"
    found = checked(tmp_path, text)
    assert found.fits == "error"
    assert "open-instruct's" in found.text
    assert "not modelled" in found.text


ARGUMENTS = """model_name_or_path: smollm2-135m
use_slow_tokenizer: true
max_seq_length: 256
per_device_train_batch_size: 2
gradient_checkpointing: true
"""


@pytest.mark.slow
def test_a_file_of_arguments_is_launched_with_zero_3(tmp_path: Path) -> None:
    found = job(tmp_path, ARGUMENTS + "num_train_epochs: 2\n", "config.yaml", num_gpus=8)
    assert (found["method"], found["sharding"], found["precision"]) == ("sft", "zero3", "bf16-master")
    assert job(tmp_path, ARGUMENTS, "sft.yaml", num_gpus=1)["precision"] == "bf16"
    assert job(tmp_path, ARGUMENTS + "num_train_epochs: 2\n", "config.yaml")["unread"] == {"num_gpus"}
    older = job(tmp_path, ARGUMENTS + "dpo_loss_type: dpo_norm\ndpo_beta: 5\n", "config.yaml", num_gpus=8)
    assert (older["method"], older["reference"], older["unread"]) == ("dpo", "precomputed", set())


def test_a_file_that_says_no_program_is_unclear(tmp_path: Path) -> None:
    assert "method" in job(tmp_path, ARGUMENTS, "config.yaml", num_gpus=1)["unread"]
    assert job(tmp_path, ARGUMENTS, "config.yaml", num_gpus=1, method="dpo")["method"] == "dpo"


def test_options_stand_over_a_file_of_arguments(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(ARGUMENTS, encoding="utf-8")
    text = "accelerate launch --num_processes 1 open_instruct/finetune.py sft.yaml --max_seq_length 128\n"
    found = job(tmp_path, text)
    assert (found["sequence_length"], found["batch_size"]) == (128, 2)
    unset = checked(tmp_path, 'accelerate launch --num_processes 2 open_instruct/finetune.py "$CONFIG"\n')
    assert (unset.fits, "names the file of arguments" in unset.text) == ("error", True)


@pytest.mark.parametrize(("program", "more"), [(GRPO, "--num_learners_per_node 2 "), (DPO, ""), (SFT, "")])
def test_adamw_that_is_asked_not_to_be_fused_takes_one_weight_after_another(
    tmp_path: Path, program: str, more: str
) -> None:
    """torch.optim.AdamW(fused=False): only where both are None is foreach the default (torch 2.13 adamw.py)."""
    found = job(tmp_path, f"python {program} {more}--fused_optimizer false\n", num_gpus=2)
    assert found["optimizer_impl"] == "loop"
    assert job(tmp_path, f"python {program} {more}\n", num_gpus=2)["optimizer_impl"] == "fused"
