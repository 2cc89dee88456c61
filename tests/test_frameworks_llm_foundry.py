"""Proves what is read of LLM Foundry's YAML, and that what Composer holds over a step is counted."""

from functools import partial
from pathlib import Path

import pytest
from framework_cases import changed, decided, unclear_text
from framework_cases import read_text as read

from memplan.engine.build import build_ledger
from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import framework_of
from memplan.models import load_model
from memplan.resolve import resolve
from memplan.spec.reading import read_job

CONFIG = """variables:
  max_seq_len: 1024
max_seq_len: ${variables.max_seq_len}
model:
  name: hf_causal_lm
  pretrained: true
  pretrained_model_name_or_path: Qwen/Qwen2.5-0.5B
  use_flash_attention_2: true
  init_device: mixed
tokenizer:
  name: Qwen/Qwen2.5-0.5B
train_loader:
  name: finetuning
  dataset:
    hf_name: tatsu-lab/alpaca
    max_seq_len: ${max_seq_len}
    packing_ratio: auto
optimizer:
  name: decoupled_adamw
  lr: 1.0e-5
scheduler:
  name: cosine_with_warmup
max_duration: 1ep
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config:
  sharding_strategy: SHARD_GRAD_OP
  mixed_precision: PURE
  activation_checkpointing: true
  activation_checkpointing_reentrant: false
  limit_all_gathers: true
callbacks:
  speed_monitor: {}
"""
MPT = CONFIG.replace("  pretrained_model_name_or_path: Qwen/Qwen2.5-0.5B\n  use_flash_attention_2: true\n", "")
ON_A_CARD = {"gpu": "h100-80gb"}


unclear = partial(unclear_text, num_gpus=8)


def test_config(tmp_path: Path) -> None:
    given = read(tmp_path, CONFIG, num_gpus=8)
    job = given.job
    assert framework_of(str(tmp_path / "train.yaml")).name == "llm-foundry"
    assert not given.unread
    assert (job.model, job.trainer, job.precision, job.attention) == (
        "Qwen/Qwen2.5-0.5B", "llm-foundry", "bf16-amp", "flash")  # fmt: skip
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length) == (4, 2, 1024)
    assert (job.sharding, job.reduce_dtype, job.gradient_checkpointing) == ("fsdp", "bf16", "full")
    assert job.gradient_checkpointing_reentrant is False
    assert job.fsdp is not None
    assert (job.fsdp.sharding_strategy, job.fsdp.backward_prefetch) == ("SHARD_GRAD_OP", "BACKWARD_POST")
    assert (job.optimizer, job.optimizer_impl) == ("adamw", "loop")


def test_on_one_gpu_the_section_does_not_hold(tmp_path: Path) -> None:
    job = read(tmp_path, CONFIG, num_gpus=1).job
    assert (job.sharding, job.gradient_checkpointing, job.fsdp.sharding_strategy) == ("none", "none", None)
    assert job.gradient_accumulation_steps == 16


def test_a_micro_batch_is_no_larger_than_a_gpus_batch(tmp_path: Path) -> None:
    job = read(tmp_path, changed(CONFIG, "global_train_batch_size: 64", "global_train_batch_size: 16"), num_gpus=8).job
    assert (job.batch_size, job.gradient_accumulation_steps) == (2, 1)


def test_composer_starts_it(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(CONFIG, encoding="utf-8")
    changes = "device_train_microbatch_size=8 model.use_flash_attention_2=false"
    text = f"composer -n 2 scripts/train/train.py train.yaml {changes}\n"
    given = read(tmp_path, text, "run.sh")
    assert (given.job.num_gpus, given.job.batch_size, given.job.attention) == (2, 8, "eager")
    path = tmp_path / "every.sh"
    path.write_text("composer train.py train.yaml\n", encoding="utf-8")
    found = check_file(str(path), ON_A_CARD)
    assert found.fits == "unclear"
    assert "num_gpus" in found.text


def test_platform_file(tmp_path: Path) -> None:
    inner = "".join(f"  {line}\n" for line in CONFIG.splitlines()).replace("${variables.", "${variables.")
    text = f"name: run\ncompute:\n  gpus: 16\ncommand: composer train/train.py $PARAMETERS\nparameters:\n{inner}"
    job = read(tmp_path, text).job
    assert (job.num_gpus, job.gpus_per_node, job.sequence_length, job.batch_size) == (16, 8, 1024, 4)
    mounted = text.replace("$PARAMETERS", "/mnt/config/parameters.yaml")  # where the platform puts them
    assert read(tmp_path, mounted).job == job


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("precision: amp_bf16", "precision: amp_fp8", "precision"),
        ("mixed_precision: PURE", "mixed_precision: FULL", "mixed_precision"),
        ("fsdp_config:", "fsdp_config:\n  keep_low_precision_grads: true", "keep_low_precision_grads"),
        ("name: decoupled_adamw", "name: adalr_lion", "optimizer"),
        (
            "  init_device: mixed",
            "  config_overrides:\n    text_config:\n      num_hidden_layers: 4",
            "num_hidden_layers",
        ),
        ("pretrained_model_name_or_path: Qwen/Qwen2.5-0.5B", "pretrained_model_name_or_path: mosaicml/mpt-7b", "model"),
        ("callbacks:", "algorithms:\n  alibi: {}\ncallbacks:", "alibi"),
        ("name: Qwen/Qwen2.5-0.5B\ntrain", "name: google/gemma-7b\ntrain", "tokenizer"),
        ("callbacks:", "tp_config:\n  strategy: ffn\ncallbacks:", "tp_config"),
    ],
)
def test_what_decides_and_is_not_modelled(tmp_path: Path, old: str, new: str, word: str) -> None:
    assert word in unclear(tmp_path, changed(CONFIG, old, new))


def test_what_is_set_of_the_models_config_is_counted(tmp_path: Path) -> None:
    """setattr(config, k, v) for each of them (hf_causal_lm.py); GPT-2's class has names of its own."""
    fields = "  config_overrides:\n    num_hidden_layers: 4\n    rope_scaling:\n      factor: 2.0"
    few = read(tmp_path, changed(CONFIG, "  init_device: mixed", fields))
    assert load_model(few.job.model).num_layers == 4  # type: ignore[arg-type]
    assert "model" not in decided(few).values()
    gpt2 = changed(CONFIG, "name_or_path: Qwen/Qwen2.5-0.5B", "name_or_path: openai-community/gpt2")
    longer = changed(gpt2, "  init_device: mixed", "  config_overrides:\n    n_positions: 4096\n    n_layer: 2")
    given = read(tmp_path, longer)
    assert isinstance(given.job.model, dict)
    assert (given.job.model["max_position_embeddings"], given.job.model["num_hidden_layers"]) == (4096, 2)
    assert read(tmp_path, longer, model="Qwen/Qwen3-8B").job.model == "Qwen/Qwen3-8B"


def test_a_micro_batch_that_is_found_by_trying_is_counted_at_its_least(tmp_path: Path) -> None:
    found = read(tmp_path, changed(CONFIG, "device_train_microbatch_size: 4", "device_train_microbatch_size: auto"))
    assert found.job.batch_size == 1
    assert any("halved until the step fits" in remark for remark in found.assumptions + found.warnings)


def test_own_layers_are_never_taken_for_another_model(tmp_path: Path) -> None:
    sizes = "name: mpt_causal_lm\n  d_model: 64\n  n_heads: 4\n  n_layers: 2\n  vocab_size: 512\n  expansion_ratio: 4"
    own = changed(MPT, "name: hf_causal_lm", sizes)
    for odd in ("attn_config: {clip_qkv: 6}", "attn_config: {rope: true}", "ffn_config: {ffn_type: mptglu}"):
        assert "own layers" in unclear(tmp_path, changed(own, "  expansion_ratio: 4", f"  expansion_ratio: 4\n  {odd}"))
    assert "own layers" in unclear(tmp_path, changed(own, "d_model: 64", "d_model: 64\n  norm_type: rmsnorm"))


def test_own_layers_are_counted_from_above_as_gpt2s(tmp_path: Path) -> None:
    sizes = "name: mpt_causal_lm\n  d_model: 64\n  n_heads: 4\n  n_layers: 2\n  vocab_size: 512\n  attn_config:\n    "
    flash = changed(MPT, "name: hf_causal_lm", f"{sizes}attn_impl: flash\n    alibi: true")
    (tmp_path / "mpt.yaml").write_text(flash)
    found = check_file(str(tmp_path / "mpt.yaml"), {"num_gpus": 8, **ON_A_CARD})
    assert (found.fits, "at most" in found.text, found.job["attention"]) == ("yes", True, "flash")
    assert isinstance(found.job["model"], dict)
    assert found.job["model"]["resid_pdrop"] == 0
    torch = read(tmp_path, flash.replace("attn_impl: flash", "attn_impl: torch"), num_gpus=8)
    assert torch.job.attention == "eager"
    with pytest.raises(InvalidJob, match="hf_t5"):
        read(tmp_path, changed(CONFIG, "name: hf_causal_lm", "name: hf_t5"), num_gpus=8)


def test_adapters(tmp_path: Path) -> None:
    lora = "peft_config:\n    peft_type: LORA\n    r: 16\n    lora_alpha: 32\n    target_modules: [q_proj, v_proj]"
    job = read(tmp_path, changed(CONFIG, "init_device: mixed", lora + "\n    use_dora: true"), num_gpus=8).job
    assert job.lora is not None
    assert (job.lora.r, job.lora.targets, job.lora.dora) == (16, ("q_proj", "v_proj"), True)
    assert "adapters" in unclear(tmp_path, changed(CONFIG, "init_device: mixed", lora + "\n    bias: all"))


def test_logits_of_the_step_before_wait(tmp_path: Path) -> None:
    """Composer's state holds a micro-step's logits, in bf16, until the next has its own."""
    job = {"model": "Qwen/Qwen2.5-0.5B", "batch_size": 4, "sequence_length": 1024, "method": "sft", "sharding": "none"}
    recipe = resolve(read_job({**job, "trainer": "llm-foundry", "attention": "flash", **ON_A_CARD}))
    rows = {row.name: row for row in build_ledger(recipe).rows}
    logits = 4 * 1024 * 151936 * 2
    assert rows["logits of the micro-step before"].bytes == logits
    assert rows["logits, held over the step"].bytes == logits


def test_a_class_of_a_projects_own_is_the_model_that_an_option_says(tmp_path: Path) -> None:
    """LLM-Shearing's mosaic_llama2_1.3b: one hint has all that is typed."""
    own = changed(MPT, "name: hf_causal_lm", "name: mosaic_mine\n  d_model: 64\n  n_heads: 4\n  attn_impl: flash")
    (tmp_path / "train.yaml").write_text(own)
    found = check_file(str(tmp_path / "train.yaml"), {**ON_A_CARD, "num_gpus": 8})
    assert found.hint.startswith("add --model Qwen/Qwen2.5-7B, with your own values; add --without model.name, if")
    options = {**ON_A_CARD, "num_gpus": 8, "model": "Qwen/Qwen2.5-0.5B", "without": ["model.name"]}
    found = check_file(str(tmp_path / "train.yaml"), options)
    assert (found.fits, found.job["attention"]) == ("yes", "flash")
