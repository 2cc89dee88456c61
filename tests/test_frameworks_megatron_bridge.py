"""Proves what is read of Megatron-Bridge: recipes under a command's overrides, YAML over one, and programs."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from framework_cases import read_text as read
from framework_cases import unclear_text

from memplan.errors import InvalidJob
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.megatron_bridge.recipes import TABLE, recipe
from memplan.frameworks.reading import framework_of

RUN = """#!/bin/bash
TP=2
torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe qwen3_600m_sft_config \\
    model.tensor_model_parallel_size=$TP model.sequence_parallel=True train.micro_batch_size=2 \\
    train.global_batch_size=64 dataset.seq_length=4096 model.seq_length=4096 logger.log_interval=1
"""
YAML = """recipe:
  _target_: megatron.bridge.recipes.qwen.qwen3.qwen3_600m_finetune_config
  peft: null
train:
  micro_batch_size: 1
  global_batch_size: 32
model:
  pipeline_model_parallel_size: 2
  seq_length: 1024
dataset:
  packed_sequence_specs:
    packed_sequence_size: 1024
"""
PROGRAM = """from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _sft_common
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.finetune import finetune
from megatron.bridge.training.gpt_step import forward_step

LENGTH = 1024


def own_config() -> ConfigContainer:
    cfg = _sft_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-0.6B").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 1
    cfg.model.recompute_granularity = "full"
    cfg.dataset.seq_length = LENGTH * 2
    cfg.train.global_batch_size = 16
    cfg.mixed_precision = "bf16_mixed"
    return cfg


if __name__ == "__main__":
    finetune(config=own_config(), forward_step_func=forward_step)
"""
unclear = partial(unclear_text, num_gpus=8)


def test_command_over_a_recipe(tmp_path: Path) -> None:
    given = read(tmp_path, RUN, "run.sh")
    job = given.job
    assert framework_of(str(tmp_path / "run.sh")).name == "megatron-bridge"
    assert (job.model, job.trainer, job.method) == ("Qwen/Qwen3-0.6B", "megatron", "sft")
    assert (job.num_gpus, job.tensor_parallel, job.sequence_parallel) == (8, 2, True)
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length) == (2, 8, 4096)
    assert job.sharding == "distributed-optimizer"
    assert not given.unread
    assert job.megatron is not None
    assert job.megatron.cross_entropy_fusion_impl == "native"
    assert job.megatron.make_vocab_size_divisible_by == 1


def test_yaml_over_a_recipe(tmp_path: Path) -> None:
    job = read(tmp_path, YAML, "train.yaml", num_gpus=4).job
    assert (job.pipeline_parallel, job.tensor_parallel, job.sequence_length) == (2, 1, 1024)
    assert (job.batch_size, job.gradient_accumulation_steps) == (1, 16)


def test_program(tmp_path: Path) -> None:
    given = read(tmp_path, PROGRAM, "train.py", num_gpus=4)
    job = given.job
    assert given.framework == "Megatron-Bridge 0.6"
    assert not given.unread
    assert (job.model, job.tensor_parallel, job.gradient_checkpointing) == ("Qwen/Qwen3-0.6B", 2, "full")
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length) == (1, 8, 2048)


def test_program_whose_config_is_written_over_at_run_time(tmp_path: Path) -> None:
    over = PROGRAM.replace(
        "config=own_config()", "config=process_config_with_overrides(own_config(), args.file)"
    ).replace(
        "import finetune\n",
        "import finetune\nfrom megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides\n",
    )
    assert over != PROGRAM
    assert "config_file" in unclear(tmp_path, over, "train.py")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("ddp.use_megatron_fsdp=True", "use_megatron_fsdp"),
        ("mixed_precision=bf16_with_fp8_current_scaling_mixed", "mixed_precision"),
        ("mixed_precision.fp8=hybrid", "fp8"),
        ("mixed_precision=bf16_with_mxfp8_mixed mixed_precision.fp8_param_gather=false", "fp8"),
        ("model.num_layers=4", "num_layers"),
        ("optimizer.optimizer=dist_muon", "optimizer"),
    ],
)
def test_what_decides_and_is_not_modelled(tmp_path: Path, more: str, word: str) -> None:
    assert word in unclear(tmp_path, RUN.replace("logger.log_interval=1", more), "run.sh")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("bf16_with_fp8_delayed_scaling_mixed", {"fp8_format": "hybrid", "fp8_param_gather": True}),
        ("bf16_with_mxfp8_mixed", {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True}),
        ("bf16_with_fp8_subchannel_scaling_mixed", {"fp8_format": "hybrid", "fp8_recipe": "blockwise"}),
        ("bf16_with_nvfp4_mixed", {"fp4_format": "e2m1", "fp4_param_gather": True}),
    ],
)
def test_precisions_that_are_known_by_name(tmp_path: Path, name: str, keys: dict[str, Any]) -> None:
    found = read(tmp_path, RUN.replace("logger.log_interval=1", f"mixed_precision={name}"), "run.sh")
    assert not [each for each in found.unread if each.decides == "precision"]
    settings = found.job.megatron.model_dump()
    assert settings.items() >= keys.items()


def test_what_mixed_precision_overwrites_decides_nothing(tmp_path: Path) -> None:
    """training/mixed_precision.py: setup puts its own fp8_param_gather into ddp and model as training starts."""
    name = "mixed_precision=bf16_with_fp8_delayed_scaling_mixed"
    texts = (RUN.replace("logger.log_interval=1", f"{name} {more}") for more in ("", "ddp.fp8_param_gather=false"))
    first, second = (read(tmp_path, text, "run.sh") for text in texts)
    assert first.job == second.job
    assert not [each for each in second.unread if each.decides == "precision"]


def test_adapters_by_recipe_or_mode(tmp_path: Path) -> None:
    by_mode = RUN.replace("--recipe qwen3_600m_sft_config", "--model qwen3_600m --mode lora")
    texts = RUN.replace("_sft_config", "_peft_config"), RUN.replace("_sft_config", "_finetune_config"), by_mode
    for text in texts:
        found = read(tmp_path, text, "run.sh")
        assert found.job.model_dump()["lora"]["r"] == 32
        assert [each.above for each in found.unread if each.decides == "adapters"] == [True]
    said = read(
        tmp_path, texts[0].replace("logger.log_interval=1", "peft.dim=16 peft.target_modules=[linear_qkv]"), "a.sh"
    )
    assert said.job.model_dump()["lora"] | {"r": 16, "targets": ("linear_qkv",)} == said.job.model_dump()["lora"]
    assert not said.unread
    assert "adapters" in unclear(tmp_path, by_mode.replace("lora", "dora"), "dora.sh")


def test_unknown_recipe_is_never_guessed(tmp_path: Path) -> None:
    text = RUN.replace("qwen3_600m_sft_config", "my_own_sft_config")
    assert "my_own_sft_config" in unclear(tmp_path, text, "run.sh")
    assert "my_own_sft_config" in unclear(tmp_path, text, "run.sh", model="Qwen/Qwen3-0.6B")


def test_a_checkpoints_name_is_a_models(tmp_path: Path) -> None:
    """Where no recipe is told: training starts from it (``checkpoint.pretrained_checkpoint``)."""
    text = """train: {micro_batch_size: 1, global_batch_size: 16}
model: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, seq_length: 1024}
"""
    with pytest.raises(NotKnown, match="no recipe"):
        read(tmp_path, text)
    named = read(tmp_path, f"{text}checkpoint: {{pretrained_checkpoint: /share/ckpts/megatron/Qwen3-0.6B}}\n")
    assert named.job.model == "Qwen/Qwen3-0.6B"


def test_distillation_and_evaluation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="skip_train"):
        read(tmp_path, RUN.replace("logger.log_interval=1", "train.skip_train=True"), "run.sh")
    distilled = PROGRAM.replace("cfg.train.global", "cfg.model = distill(cfg.model)\n    cfg.train.global").replace(
        "LENGTH = 1024", "from megatron.bridge.training.distill import distill\nLENGTH = 1024"
    )
    with pytest.raises(InvalidJob, match="distillation"):
        read(tmp_path, distilled, "train.py", num_gpus=4)


def test_recipes_by_their_names() -> None:
    assert recipe("qwen3_8b_pretrain_4gpu_h100_bf16_config")[1]["tensor_model_parallel_size"] == 4  # type: ignore[index]
    assert "tensor_model_parallel_size" not in recipe("qwen3_8b_pretrain_config")[1]  # type: ignore[index]
    assert recipe("llama3_8b_16k_pretrain_config") == recipe("llama3_8b_pretrain_16gpu_h100_bf16_16k_config")
    assert recipe("somebody_elses_config") is None
    names = [line.split()[0] for line in TABLE]
    assert len(names) == len(set(names))
    assert all(recipe(name) for name in names if "@" not in name)


@pytest.mark.parametrize(
    ("more", "dtype"),
    [("", "auto"), ("mixed_precision.grad_reduce_in_fp32=False", "bf16"), ("ddp.grad_reduce_in_fp32=True", "auto")],
)
def test_gradients_in_bf16(tmp_path: Path, more: str, dtype: str) -> None:
    found = read(tmp_path, f"{RUN.rstrip()} {more}\n", "run.sh")
    assert found.job.grad_dtype == dtype
    assert not [each for each in found.unread if "grad_reduce" in each.key]
