"""Tensor parallelism by transformers' plans, against traces of its own code and by hand; the files that name it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner_of

from memplan.api import estimate
from memplan.errors import InvalidJob
from memplan.models import load_model
from memplan.report import Report

MODEL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 2048, "head_dim": 32,
    "tie_word_embeddings": False,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": MODEL, "method": "sft", "trainer": "transformers", "sequence_length": 512, "batch_size": 2,
    "precision": "bf16",
}  # fmt: skip
TWO, FULL = {"num_gpus": 2, "tensor_parallel": 2}, {"gradient_checkpointing": "full"}
FOUR = {"num_gpus": 4, "tensor_parallel": 4}
TIED = {"model": MODEL | {"tie_word_embeddings": True}}
EXPERTS = {
    "model_type": "qwen3_moe", "moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
SHARED = {
    "model_type": "glm4_moe", "moe_intermediate_size": 256, "num_experts_per_tok": 2, "n_routed_experts": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
WIDE = EXPERTS | {
    "hidden_size": 1024, "intermediate_size": 6144, "moe_intermediate_size": 3072, "num_experts": 16,
    "num_hidden_layers": 3, "num_attention_heads": 16, "head_dim": 64, "vocab_size": 4000,
}  # fmt: skip
LORA = {"lora": {"r": 8, "targets": ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]}}
OLDER = TWO | {"trainer_version": "5.14"}
SHARDS = FOUR | {"tensor_parallel": 2, "sharding": "fsdp2"}
DPO = TWO | {"trainer": "trl", "method": "dpo", "loss_head": "selective"}
TRACED = [
    ({}, (109882880, 114060288, 39901696)),
    (TWO, (74952192, 79129600, 21027328)),
    (FOUR, (57486848, 61664256, 11065856)),
    (TWO | {"gradient_accumulation_steps": 2}, (80461824, 84639744, 21027328)),
    (TWO | FULL, (40250880, 44428288, 21027328)),
    (FOUR | FULL | {"sequence_length": 2048}, (108596736, 125307904, 11115008)),
    (TWO | {"precision": "bf16-amp"}, (106488832, 109617664, 42017280)),
    (TWO | {"trainer": "trl", "loss_head": "cross-entropy"}, (40259072, 44436480, 21027328)),
    (TWO | {"trainer": "trl"}, (87880704, 92044288, 21027328)),  # ``weight.full_tensor()`` of the head
    (TWO | {"trainer": "trl", "method": "reward"}, (26091008, 41610240, 18948608)),
    (DPO | {"reference": "precomputed"}, (48668160, 90504704, 21043712)),
    (DPO, (75412480, 100471808, 31010816)),  # a reference that is whole on each rank
    (TWO | TIED, (73378816, 77556224, 17881088)),
    (TWO | TIED | FULL | {"gradient_accumulation_steps": 2}, (43138560, 47316480, 17881088)),
    (TWO | {"model": MODEL | EXPERTS}, (89683456, 93860864, 33696256)),
    (FOUR | {"model": MODEL | EXPERTS, "precision": "bf16-amp"}, (104819712, 107948544, 34828800)),
    (
        TWO | {"model": MODEL | WIDE, "precision": "bf16-amp", "batch_size": 1, "gradient_accumulation_steps": 2},
        (3950183424, 4209757184, 3769654272),
    ),
    (TWO | {"model": MODEL | SHARED}, (89910272, 94087680, 32928256)),
    (TWO | LORA, (62782464, 66423296, 6333952)),
    (DPO | FOUR | LORA | FULL, (51624960, 76684288, 3532288)),
    (TWO | {"optimizer_impl": "loop", "sequence_length": 64}, (22458880, 22980608, 21779456)),
    (OLDER | SHARDS, (69317120, 72969728, 11063808)),
    (OLDER | SHARDS | {"precision": "bf16-amp", "gradient_accumulation_steps": 2}, (83084288, 86737408, 22075904)),
    (
        SHARDS | FULL | {"trainer": "trl", "trainer_version": "1.6", "precision": "bf16-amp"},
        (46534144, 46534144, 22075904),
    ),
]
"""memplan trace with transformers 5.24 and PEFT 0.21 on torch 2.13's fake tensors and ranks: forward, backward and step
in bytes. A rank's own rows and columns of the embedding, which its lookup's gradient has all of, and of the head."""


def of(**keys: Any) -> Report:
    return estimate({**JOB, **keys})


@pytest.mark.parametrize(("job", "traced"), TRACED)
def test_it_is_what_transformers_holds(job: dict[str, Any], traced: tuple[int, ...]) -> None:
    phases = of(**job).per_gpu.phases
    for name, size in zip(("forward", "backward", "step"), traced, strict=True):
        assert phases[name] / size == pytest.approx(1, abs=25e-4)


@pytest.mark.parametrize(("ranks", "version"), [(2, None), (4, "5.14"), (8, None)])
def test_a_part_is_divided_and_the_rest_is_not(ranks: int, version: str | None) -> None:
    """Of 8B in bf16: products over all ranks, norms on each, the embedding too before transformers 5.21; activations of
    the stream stay whole."""
    params = load_model("llama-3.1-8b").params.total
    table = 128256 * 4096 if version else 0
    job = {"model": "llama-3.1-8b", **FULL, "sequence_length": 2048, "num_gpus": ranks, "tensor_parallel": ranks}
    report = of(**job, trainer_version=version)
    held = sum(row.bytes for row in report.per_gpu.ledger if row.name == "weights of the policy")
    assert held == pytest.approx(2 * ((params - table) / ranks + table), rel=0.001)
    assert report.job["sharding"] == "none"
    whole = of(**{**job, "num_gpus": 1, "tensor_parallel": 1})
    kept = [
        sum(row.bytes for row in each.per_gpu.ledger if row.name.startswith("checkpoints: the layer's input"))
        for each in (report, whole)
    ]
    assert kept[0] == kept[1] > 0


def test_under_fsdp2_the_other_ranks_divide_states() -> None:
    job = {"model": "llama-3.1-8b", **FULL, "sharding": "fsdp2", "precision": "bf16-amp", "trainer_version": "5.14"}
    both, alone = of(**job, num_gpus=8, tensor_parallel=2), of(**job, num_gpus=4)
    halves = [each.per_gpu.by_category["parameters"] for each in (both, alone)]
    assert halves[0] == pytest.approx(halves[1] / 2 + 4 * 128256 * 4096 / 8, rel=0.001), "the embedding is not divided"
    assert both.per_gpu.allocated_bytes < alone.per_gpu.allocated_bytes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_gpus": 4, "tensor_parallel": 2}, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with sh"),
        (TWO | {"zero_stage": 3}, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with sharding zero3"),
        (OLDER | {"model": "llama-3.2-1b"}, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with the t"),
        (OLDER | {"model": "qwen3-30b-a3b"}, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with exp"),
        (OLDER | LORA, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with adapters before"),
        (TWO | {"model": "glm-4-9b-0414"}, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with the pla"),
        (TWO | {"model": "qwen1.5-moe-a2.7b"}, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with the"),
        (TWO | {"lora": {"r": 8}}, "tensor_parallel: 2 with adapters beside down_proj and o_proj"),
        (TWO | {"lora": {"targets": ["o_proj"]}}, "tensor_parallel: 2 with adapters beside o_proj"),
        (TWO | LORA | {"model": "qwen3-30b-a3b"}, "tensor_parallel: 2 with adapters beside experts"),
        (TWO | {"lora": LORA["lora"] | {"dora": True}}, "tensor_parallel: 2 with adapters with Do"),
        (SHARDS, "tensor_parallel: 2 with Hugging Face Trainer is not modelled with sharding fsdp2, at which accel"),
        (TWO | {"optimizer": "adafactor"}, "optimizer: adafactor with tensor_parallel: torch 2.13: its step on DT"),
        (TWO | {"optimizer": "adamw-8bit"}, "optimizer: adamw-8bit with tensor_parallel: bitsandbytes 0.50 hands DTen"),
        (TWO | {"trainer": "trl", "method": "simpo", "loss_head": "log-softmax"}, "loss_head: log-softmax with t"),
        (TWO | {"trainer": "trl", "method": "grpo"}, "tensor_parallel: 2 with TRL is not modelled with method grpo"),
        ({"num_gpus": 8, "tensor_parallel": 8}, "tensor_parallel: 8 with Hugging Face Trainer is not modelled with 4"),
    ],
)  # fmt: skip
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        of(**given)
    assert caught.value.message.startswith(message)
    assert "[]" not in caught.value.hint


def test_sequences_are_shared_beside_products() -> None:
    """Axolotl's examples/distributed-parallel: FSDP2, tensor and context parallelism of two ranks each."""
    job = {"model": "llama-3.1-8b", **FULL, "sharding": "fsdp2", "precision": "bf16-amp", "num_gpus": 8}
    job |= {"tensor_parallel": 2, "attention": "flash", "sequence_length": 8192, "trainer_version": "5.14"}
    both = of(**job, context_parallel=2, context_exchange="gathered")
    assert both.per_gpu.allocated_bytes < of(**job).per_gpu.allocated_bytes
    with pytest.raises(InvalidJob, match="tensor_parallel: 2 with Hugging Face Trainer and sharding fsdp2"):
        of(**job, context_parallel=2)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


PROGRAM = """
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", dtype="bfloat16", {plan})
args = TrainingArguments(output_dir="out", per_device_train_batch_size=1, bf16=True)
trainer = Trainer(model=model, args=args, train_dataset=load_dataset("a/b", split="train"))
trainer.train()
"""


@pytest.mark.parametrize(
    ("plan", "ranks"),
    [
        ('tp_plan="auto"', 8),
        ('tp_plan="auto", tp_size=8', 8),
        ("distributed_config=DistributedConfig(tp_size=8)", 8),
        ('distributed_config=DistributedConfig(tp_plan="auto")', 8),
        ("distributed_config=DistributedConfig(tp_size=4, fsdp_size=2)", 0),
        ("tp_plan=PLAN", 0),
    ],
)
def test_a_programs_plan_is_read(tmp_path: Path, run: Run, plan: str, ranks: int) -> None:
    """It had been passed over, and the whole model counted on each rank."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(plan=plan))
    given = (str(path), "--sequence-length", "2048", "--num-gpus", "8")
    if not ranks:
        assert run("check", *given, "--gpu", "h100-80gb")[0] == 2
        return
    job = json.loads(run("estimate", *given, "--json")[1])["job"]
    assert (job["tensor_parallel"], job["sharding"]) == (ranks, "none")
    older = "5.14" if plan.startswith("tp_plan") else None  # which takes it as an argument, and divides no embedding
    assert job.get("trainer_version") == older


CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: {kind}
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
num_processes: 8
parallelism_config:
  parallelism_config_dp_shard_size: {shards}
  parallelism_config_tp_size: {tensor}
"""
ARGS = "model_name_or_path: llama-3.1-8b\ndataset_name: a/b\nmax_length: 2048\nper_device_train_batch_size: 1\n"


@pytest.mark.parametrize(
    ("kind", "shards", "tensor", "said"),
    [
        ("FSDP", 4, 2, "tp_size shares no product"),
        ("FSDP", 1, 8, "accelerate takes tp_size 8 of a model that is divided alone"),
        ("MULTI_GPU", 1, 8, "accelerate takes tp_size 8 of a model that is divided alone"),
    ],
)
def test_accelerates_size_divides_no_model(
    tmp_path: Path, run: Run, kind: str, shards: int, tensor: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerator.py passes over a model without DTensors under FSDP2, whose ranks are then fewer; else it refuses."""
    (tmp_path / "acc.yaml").write_text(CONFIG.format(kind=kind, shards=shards, tensor=tensor))
    (tmp_path / "train.yaml").write_text(ARGS)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(
        "estimate", "train.yaml", "--with", "acc.yaml", "--method", "sft", "--trainer", "trl", "--json"
    )
    assert said in out + err
    if code == 0:
        alone = estimate({"model": "llama-3.1-8b", "method": "sft", "trainer": "trl", "sequence_length": 2048,
                          "num_gpus": 4, "sharding": "fsdp2", "precision": "bf16-amp",
                          "gradient_checkpointing": "full"})  # fmt: skip
        found = json.loads(out)["per_gpu"]["allocated_bytes"]
        assert 1 <= found / alone.per_gpu.allocated_bytes < 1.15, "as replicas, which sum gradients once more"


AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
datasets: [{path: a/b, type: alpaca}]
sequence_len: 8192
micro_batch_size: 1
num_epochs: 1
optimizer: adamw_torch_fused
bf16: true
flash_attention: true
gradient_checkpointing: true
context_parallel_size: 2
fsdp_version: 2
fsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, transformer_layer_cls_to_wrap: LlamaDecoderLayer}
"""


@pytest.mark.parametrize(("more", "tensor"), [("", 1), ("dp_shard_size: 2\ntensor_parallel_size: 2\n", 2)])
def test_axolotls_ranks_gather_keys(tmp_path: Path, run: Run, more: str, tensor: int) -> None:
    """ring-flash-attention's llama3 (monkeypatch/ring_attn/patch.py), where accelerate's own takes sdpa."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(AXOLOTL + more)
    job = json.loads(run("estimate", str(path), "--num-gpus", "8", "--json")[1])["job"]
    assert (job["tensor_parallel"], job["context_parallel"], job["context_exchange"]) == (tensor, 2, "gathered")


SIZES = """
from accelerate.utils import ParallelismConfig
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
sizes = ParallelismConfig({sizes})
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", dtype="bfloat16"{plan})
args = SFTConfig(output_dir="out", per_device_train_batch_size=1, max_length=2048, parallelism_config=sizes)
SFTTrainer(model=model, args=args, train_dataset=load_dataset("a/b", split="train")).train()
"""


@pytest.mark.parametrize(
    ("sizes", "plan", "found"),
    [
        ("dp_shard_size=4, tp_size=2", ', tp_plan="auto", tp_size=2', (2, 1, None)),
        ("dp_shard_size=4, tp_size=2", "", (1, 1, 2)),
        ("dp_shard_size=2, cp_size=4", "", (1, 4, None)),
        ("dp_shard_size=4, dp_replicate_size=2", "", (1, 1, 2)),
    ],
)
def test_a_programs_sizes_are_read(
    tmp_path: Path, run: Run, sizes: str, plan: str, found: tuple[int, int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acc.yaml").write_text(CONFIG.format(kind="FSDP", shards=1, tensor=1))
    (tmp_path / "train.py").write_text(SIZES.format(sizes=sizes, plan=plan))
    (tmp_path / "run.sh").write_text("accelerate launch --config_file acc.yaml train.py\n")
    monkeypatch.chdir(tmp_path)
    job = json.loads(run("estimate", "run.sh", "--json")[1])["job"]
    fsdp = job.get("fsdp", {})
    assert (job["tensor_parallel"], job["context_parallel"], fsdp.get("replicate")) == found
