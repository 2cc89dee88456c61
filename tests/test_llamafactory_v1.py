"""Proves what is read of the files of LLaMA-Factory's rewritten trainer (v1), and what of them is named or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from memplan.errors import InvalidJob
from memplan.frameworks.reading import framework_of, read_target
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job

PLAIN = """model: Qwen/Qwen3-0.6B
train_dataset: data/v1_sft_demo.yaml
output_dir: outputs/test
micro_batch_size: 2
cutoff_len: 1024
learning_rate: 1.0e-4
max_steps: 10
sample_backend: hf
"""
FSDP2 = f"{PLAIN}dist_config:\n  name: fsdp2\n  dcp_path: null\n"
LORA = "peft_config:\n  name: lora\n  r: 16\n  lora_alpha: 32\n  target_modules: all\n"


def read(tmp_path: Path, text: str, name: str = "train.yaml", **options: Any) -> JobInput:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_target(str(path), {"model": "qwen3-0.6b", **options})


def test_a_file_is_known_and_read(tmp_path: Path) -> None:
    found = read(tmp_path, FSDP2, num_gpus=4)
    job = found.job
    assert framework_of(str(tmp_path / "train.yaml")).name == "llamafactory"
    assert (job.trainer, job.method, job.batch_size, job.sequence_length) == ("llamafactory-v1", "sft", 2, 1024)
    assert (job.sharding, job.gradient_checkpointing, job.gradient_checkpointing_reentrant) == ("fsdp2", "full", False)
    assert (job.precision, job.attention, job.optimizer, job.lora) == ("bf16-amp", "sdpa", "adamw", None)
    assert found.sources["precision"] == "trainer"
    assert not [line for line in found.warnings if "not counted" in line]
    recipe = resolve(found)
    assert (recipe.loss.head, recipe.numerics.autocast, recipe.storage.reduce_itemsize) == (
        "repeated-cross-entropy",
        0,
        4,
    )
    assert recipe.sharding.fsdp.root_reshards


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (PLAIN, "precision", "fp32"),
        (f"{PLAIN}{LORA}", "precision", "bf16"),
        (f"{PLAIN}{LORA}", "autocast", None),
        (f"{FSDP2}bf16: false\n", "precision", "fp32"),
        (f"{FSDP2}{LORA}", "precision", "bf16"),
        (f"{FSDP2}{LORA}", "autocast", True),
        (f"{PLAIN}enable_activation_checkpointing: false\n", "gradient_checkpointing", "none"),
        (f"{PLAIN}flash_attn: flash_attention_2\n", "attention", "flash"),
        (f"{PLAIN}optim_config: {{name: muon, wd: 0.1}}\n", "optimizer", "muon"),
        (f"{PLAIN}kernel_config: {{name: liger_kernel}}\n", "kernels", "liger"),
        (f"{PLAIN}{LORA}quant_config: {{name: bnb, quantization_bit: 4}}\n", "quantization", "nf4-double"),
        (f"{PLAIN}{LORA}quant_config: {{name: bnb, quantization_bit: 8}}\n", "quantization", "int8"),
        (f"{PLAIN}{LORA}quant_config: {{name: bnb, double_quantization: false}}\n", "quantization", "nf4"),
        (f"{PLAIN}{LORA}quant_config: {{name: auto}}\n", "quantization", "none"),
        (f"{PLAIN}global_batch_size: 16\n", "global_batch_size", 16),
        (f"{PLAIN}cp_size: 2\n", "context_parallel", 2),
        (f"{PLAIN}dist_config: {{name: fsdp2, reshard_after_forward: false}}\n", "reshard_after_forward", False),
    ],
)
def test_one_key(tmp_path: Path, text: str, key: str, value: object) -> None:
    assert getattr(read(tmp_path, text).job, key) == value


def test_adapters_have_the_plugins_defaults(tmp_path: Path) -> None:
    lora = read(tmp_path, f"{PLAIN}peft_config: {{name: lora}}\n").job.lora
    assert lora is not None
    assert (lora.r, lora.alpha, lora.dropout, lora.targets) == (8, 16.0, 0.05, "all-linear")


def test_deepspeeds_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}))
    found = read(tmp_path, f"{PLAIN}dist_config: {{name: deepspeed, config_file: ds.json}}\n", num_gpus=2)
    recipe = resolve(found)
    assert (recipe.sharding.name, recipe.storage.precision.name) == ("zero3", "bf16-master")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("dist_config: {name: fsdpturbo, ep_size: 16}", "dist_config"),
        ("peft_config: {name: freeze, freeze_trainable_layers: 2}", "peft_config"),
        ("kernel_config: {name: 'auto, flash-linear-attention'}", "kernel_config"),
        ("full_determinism: true", "full_determinism"),
        ("model_class: cls", "model_class"),
        ("strange: 3", "strange"),
        ("peft_config: {name: lora, strange: 3}", "peft_config.strange"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, line: str, key: str) -> None:
    found = read(tmp_path, f"{PLAIN}{line}\n").warnings
    assert any(key in warning and "line" in warning and "is not counted" in warning for warning in found), found


def test_kernels_that_only_lower_the_peak_are_a_bound(tmp_path: Path) -> None:
    (warning,) = read(tmp_path, f"{PLAIN}kernel_config: {{name: liger_kernel}}\n").warnings
    assert "kernel_config: the loss is counted as PyTorch's, which keeps more than Liger's" in warning


def test_a_command_names_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.yaml").write_text(PLAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("NPROC_PER_NODE=2 llamafactory-cli sft train.yaml micro_batch_size=4\n")
    found = read_target("run.sh", {})
    assert (found.job.method, found.job.batch_size, found.job.num_gpus) == ("sft", 4, 2)
    with pytest.raises(InvalidJob, match="dpo of LLaMA-Factory's v1 is not modelled"):
        read_target("llamafactory-cli dpo train.yaml", {})


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("train_lora_dpo.yaml", "", "dpo of LLaMA-Factory's v1 is not modelled"),
        ("train.yaml", "flash_attn: fa2\n", "'fa2' is no attention"),
        ("train.yaml", "dist_config: {name: deepspeed}\n", "without a config_file"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, name: str, more: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        read(tmp_path, f"{PLAIN}{more}", name)


def test_a_job_of_this_trainer_has_its_defaults() -> None:
    job = {"model": "qwen3-0.6b", "trainer": "llamafactory-v1", "method": "sft"}
    alone, adapted = resolve(read_job(job)), resolve(read_job({**job, "lora": {"r": 8}}))
    split = resolve(read_job({**job, "sharding": "fsdp2", "num_gpus": 2}))
    assert (alone.storage.precision.name, alone.numerics.autocast, alone.checkpointing.layers) == ("fp32", 0, True)
    assert (adapted.storage.precision.name, adapted.numerics.autocast) == ("bf16", 0)
    assert split.storage.precision.name == "bf16-amp"
