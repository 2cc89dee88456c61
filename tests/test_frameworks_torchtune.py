"""Proves what is read of torchtune's configs and commands, and that its trainer needs what torchtune published."""

from pathlib import Path
from typing import Any

import pytest
from framework_cases import changed, decided
from framework_cases import read_text as read

from memplan.errors import InvalidJob
from memplan.frameworks.asking import one_hint
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import framework_of
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job

CONFIG = """# Config for multi-device LoRA finetuning
#   tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_1/8B_lora
output_dir: /tmp/out
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: ${output_dir}/tokenizer.model
  max_seq_len: 2048
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
  lora_alpha: 32
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: False
optimizer:
  _component_: torch.optim.AdamW
  fused: True
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
batch_size: 2
batch_size_val: ${batch_size}
run_val_every_n_steps: null
gradient_accumulation_steps: 8
dtype: bf16
enable_activation_checkpointing: True
"""
SINGLE = CONFIG.replace("--nproc_per_node 2 lora_finetune_distributed", "full_finetune_single_device").replace(
    "lora_llama3_1_8b\n  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']\n  apply_lora_to_mlp: True\n"
    "  lora_rank: 16\n  lora_alpha: 32",
    "llama3_1_8b",
)
ON_A_CARD = {"gpu": "h100-80gb"}


def test_a_config_says_the_job_and_its_comment_the_recipe(tmp_path: Path) -> None:
    found = read(tmp_path, CONFIG)
    job = found.job
    assert framework_of(str(tmp_path / "train.yaml")).name == "torchtune"
    assert (job.trainer, job.trainer_version, job.method, job.model) == (
        "torchtune",
        "0.7",
        "sft",
        "meta-llama/Llama-3.1-8B",
    )
    assert (job.num_gpus, job.sharding, job.batch_size, job.gradient_accumulation_steps) == (2, "fsdp2", 2, 8)
    assert (job.precision, job.sequence_length, job.gradient_checkpointing, job.optimizer_impl) == (
        "bf16",
        2048,
        "full",
        "fused",
    )
    assert job.lora is not None
    assert (job.lora.r, job.lora.dtype) == (16, "bf16")
    assert job.lora.targets == ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert "the comment in" in found.origins["num_gpus"]
    assert not found.unread
    assert resolve(found)


def test_a_recipe_of_one_gpu_runs_on_one_of_many(tmp_path: Path) -> None:
    found = read(tmp_path, SINGLE, num_gpus=8, **ON_A_CARD)
    alone = read(tmp_path, SINGLE, num_gpus=1, **ON_A_CARD)
    assert found.job.sharding == alone.job.sharding == "none"
    assert peak(resolve(found)).allocated == peak(resolve(alone)).allocated
    assert found.job.num_gpus == 1
    assert "runs on one of those that are there" in found.origins["num_gpus"]


@pytest.mark.parametrize(
    ("comment", "gpus"),
    [
        ("lora_finetune_single_device.py", 1),
        ("lora_finetune_distributed.py", None),
        ("", None),
    ],
)
def test_a_recipe_without_a_launcher_asks_how_many(tmp_path: Path, comment: str, gpus: int | None) -> None:
    text = CONFIG.replace("#   tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_1/8B_lora", "")
    found = read(tmp_path, f"# in {comment}\n{text}")
    assert ("num_gpus" in decided(found)) == (gpus is None)
    assert gpus is None or found.job.num_gpus == gpus
    assert not decided(read(tmp_path, text, num_gpus=4))
    named = text.replace("/tmp/out", "out/lora_single_device")
    assert read(tmp_path, named).job.num_gpus == 1


def test_samples_that_nothing_cuts_are_as_long_as_the_models_positions_at_most(tmp_path: Path) -> None:
    text = changed(CONFIG, "max_seq_len: 2048", "max_seq_len: null")
    found = read(tmp_path, text)
    assert (found.job.sequence_length, [each.above for each in found.unread]) == (131072, [True])
    assert not read(tmp_path, text, sequence_length=512).unread
    assert check_file(str(tmp_path / "train.yaml"), ON_A_CARD).fits == "unclear"


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("lora_llama3_1_8b", "qlora_llama3_1_8b", "quantization", "nf4-torchao"),
        ("lora_llama3_1_8b", "lora_qwen2_5_7b_instruct", "model", "Qwen/Qwen2.5-7B"),
        ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss", "trainer_version", "0.6"),
        ("dtype: bf16", "dtype: fp32", "precision", "fp32"),
        (
            "enable_activation_checkpointing: True",
            "ac_mode: selective\nac_option: 2",
            "gradient_checkpointing",
            "every:2",
        ),
        ("dtype: bf16", "dtype: bf16\nfsdp_reshard_after_forward: False", "reshard_after_forward", False),
        ("dtype: bf16", "dtype: bf16\ncompile: {model: true, loss: false}", "compile", True),
        ("run_val_every_n_steps: null", "run_val_every_n_steps: 10", "eval_batch_size", 2),
        ("  fused: True", "", "optimizer_impl", "foreach"),
        ("torch.optim.AdamW\n  fused: True", "torch.optim.SGD\n  momentum: 0.9", "optimizer", "sgd-momentum"),
    ],
)
def test_one_key(tmp_path: Path, old: str, new: str, key: str, value: object) -> None:
    found = read(tmp_path, changed(CONFIG, old, new))
    assert getattr(found.job, key) == value
    assert not decided(found)


@pytest.mark.parametrize(
    ("old", "new", "key", "decides"),
    [
        ("torchtune.modules.loss.LinearCrossEntropyLoss", "mine.Loss", "loss._component_", "loss"),
        ("torchtune.modules.loss.LinearCrossEntropyLoss", "mine.ORPOLoss", "loss._component_", "method"),
        ("torch.optim.AdamW", "mine.Optimizer", "optimizer._component_", "optimizer"),
        (
            "dtype: bf16",
            "dtype: bf16\nenable_activation_offloading: True",
            "enable_activation_offloading",
            "checkpointing",
        ),
        ("dtype: bf16", "dtype: bf16\nenable_fp8_training: True", "enable_fp8_training", "quantisation"),
        ("dtype: bf16", "dtype: bf16\ndata_parallel_replicate_dim: 2", "data_parallel_replicate_dim", "parallelism"),
        ("dtype: bf16", "quantizer: {_component_: a.B}", "quantizer._component_", "quantisation"),
    ],
)
def test_what_decides_and_is_not_modelled_is_named(tmp_path: Path, old: str, new: str, key: str, decides: str) -> None:
    found = read(tmp_path, changed(CONFIG, old, new))
    assert decided(found) == {key: decides}
    assert decides != "loss" or f"--without {key}" in one_hint(found.unread)


@pytest.mark.parametrize(
    ("chunks", "head", "above"), [(1, "cross-entropy", [True]), (8, "auto", []), (16, "auto", [True])]
)
def test_other_numbers_of_chunks_are_counted_from_above(
    tmp_path: Path, chunks: int, head: str, above: list[bool]
) -> None:
    loss = "LinearCrossEntropyLoss"
    found = read(tmp_path, changed(CONFIG, loss, f"{loss}\n  num_output_chunks: {chunks}"))
    assert (found.job.loss_head, [each.above for each in found.unread]) == (head, above)


def test_an_old_checkpointer_is_an_old_torchtune(tmp_path: Path) -> None:
    old = "checkpointer: {_component_: torchtune.utils.FullModelMetaCheckpointer}\ndtype: bf16"
    found = read(tmp_path, changed(CONFIG, "dtype: bf16", old).replace("packed: False", "packed: True"))
    assert (found.job.trainer_version, found.job.sharding, found.job.padded) == ("0.2", "fsdp", True)


def test_over_several_gpus_the_optimizer_steps_in_backward(tmp_path: Path) -> None:
    text = changed(CONFIG, "dtype: bf16", "dtype: bf16\noptimizer_in_bwd: True")
    found = read(tmp_path, text.replace("gradient_accumulation_steps: 8", "gradient_accumulation_steps: 1"))
    assert (found.job.sharding, found.job.optimizer_args.in_backward) == ("fsdp2", True)
    assert not found.unread


def test_on_one_gpu_the_optimizer_steps_in_backward_and_activations_wait_on_the_host(tmp_path: Path) -> None:
    more = "dtype: bf16\noptimizer_in_bwd: True\nenable_activation_offloading: True\ncompile: True"
    found = read(tmp_path, changed(SINGLE, "dtype: bf16", more).replace("steps: 8", "steps: 1"))
    assert found.job.optimizer_args.in_backward
    assert found.job.offload == ("activations",)
    assert not found.job.compile
    assert [unread.key for unread in found.unread] == ["compile"]
    assert resolve(found)


def test_a_command_names_recipe_and_config_and_what_is_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    text = (
        "tune run --nnodes 2 --nproc_per_node 4 lora_finetune_distributed --config mine.yaml batch_size=4 \\\n"
        "  model.lora_rank=64 optimizer=torchao.optim.AdamW8bit ~optimizer.fused\n"
    )
    job = read(tmp_path, text, "run.sh").job
    assert (job.num_gpus, job.gpus_per_node, job.batch_size, job.lora and job.lora.r) == (8, 4, 4, 64)
    assert (job.optimizer, job.optimizer_args.library) == ("adamw-8bit", "torchao")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("tune run lora_finetune_single_device --config llama9/8B_lora_single_device\n", "tune cp"),
        ("tune run lora_finetune_single_device\n", "--config"),
        (changed(CONFIG, "torchtune.models.llama3_1.lora_llama3_1_8b", "mine.model"), "add --model"),
        (changed(CONFIG, "optimizer:", "sampler:"), "of a training"),
        (
            changed(CONFIG, "torchtune.modules.loss.LinearCrossEntropyLoss", "torchtune.rlhf.loss.PPOLoss"),
            "use trainer",
        ),
    ],
)
def test_what_is_no_training_that_is_known_says_what_to_do(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        resolve(read(tmp_path, text, "run.sh" if text.startswith("tune") else "train.yaml"))
    assert hint in caught.value.hint


def test_a_model_may_stand_by_its_sizes(tmp_path: Path) -> None:
    sizes = """torchtune.models.llama2.llama2
  vocab_size: 32000
  num_layers: 4
  num_heads: 8
  num_kv_heads: 2
  embed_dim: 512
  intermediate_dim: 1024
  max_seq_len: 2048"""
    found = read(tmp_path, changed(SINGLE, "torchtune.models.llama3_1.llama3_1_8b", sizes))
    model = resolve(found).model
    assert (model.hidden_size, model.num_layers, model.vocab_size) == (512, 4, 32000)


# -- the trainer, held against what torchtune's README of April 2026 gives as peak memory ------------------------------

LLAMA_3B = {"model": "llama-3.2-3b", "sequence_length": 4096, "gpu": "a100-80gb", "trainer_version": "0.6"}
LLAMA_8B = {"model": "llama-3.1-8b", "sequence_length": 2048, "gpu": "rtx-4090-24gb", "trainer_version": "0.6"}
COMPILED = {"compile": True}
CHECKPOINTED = {**COMPILED, "gradient_checkpointing": "full"}
IN_BACKWARD = {**CHECKPOINTED, "optimizer_args": {"in_backward": True}}
PUBLISHED = [
    (60.0, LLAMA_3B, {"loss_head": "cross-entropy"}),
    (51.0, LLAMA_3B, {"loss_head": "cross-entropy", **COMPILED}),
    (42.9, LLAMA_3B, COMPILED),
    (24.9, LLAMA_3B, CHECKPOINTED),
    (23.1, LLAMA_3B, IN_BACKWARD),
    (18.9, LLAMA_8B, {**IN_BACKWARD, "optimizer": "paged-adamw-8bit"}),
]


def allocated(**keys: Any) -> int:
    base = {"trainer": "torchtune", "method": "sft", "sharding": "none", "precision": "bf16", "batch_size": 2}
    return peak(resolve(read_job({**base, **keys}))).allocated.expected


@pytest.mark.parametrize(("gib", "model", "keys"), PUBLISHED)
def test_the_published_peaks_are_met(gib: float, model: dict[str, Any], keys: dict[str, Any]) -> None:
    impl = {} if "optimizer" in keys else {"optimizer_impl": "fused"}
    assert allocated(**model, **impl, **keys) / 2**30 == pytest.approx(gib, rel=0.03)


def test_in_backward_no_gradient_waits_but_the_largest() -> None:
    keys = {**LLAMA_8B, "gradient_checkpointing": "full", "optimizer": "sgd", "sequence_length": 128}
    held, taken = allocated(**keys), allocated(**keys, optimizer_args={"in_backward": True})
    weights = 8_030_261_248 * 2
    assert held > 2 * weights
    assert weights < taken < weights + 3 * 128_256 * 4096 * 2


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"gradient_accumulation_steps": 2}, "every micro-step"),
        ({"num_gpus": 2, "sharding": "ddp"}, "before gradients are reduced"),
        ({"optimizer": "muon"}, "is not modelled so"),
    ],
)
def test_an_optimizer_in_backward_has_its_limits(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidJob, match=what):
        allocated(**{**LLAMA_8B, "optimizer_args": {"in_backward": True}, **keys})


def test_torchaos_four_bits_are_as_large_and_dearer_to_unpack() -> None:
    small = {"model": "qwen2.5-0.5b", "sequence_length": 16, "batch_size": 1, "gradient_checkpointing": "full"}
    lora = {"lora": {"r": 8, "targets": ["q_proj"], "dtype": "bf16"}, "kbit_upcast": False}
    own = allocated(**small, **lora, quantization="nf4-torchao")
    theirs = allocated(**small, **lora, quantization="nf4-double")
    largest = 896 * 4864
    assert 8 * largest < own - theirs < 16 * largest


def test_keys_and_values_are_repeated_whatever_the_kernel() -> None:
    keys = {"model": "llama-3.1-8b", "sequence_length": 4096, "loss_head": "cross-entropy", "logits_dtype": "bf16"}
    extra = allocated(**keys) - allocated(**keys, trainer="pytorch")
    repeated = 32 * 2 * 4096 * 2 * (4096 - 1024) * 2
    assert extra == pytest.approx(repeated, rel=0.1)


def test_adapters_of_no_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"lora\.r: '0' is less than 1"):
        read(tmp_path, CONFIG.replace("lora_rank: 16", "lora_rank: 0"))
