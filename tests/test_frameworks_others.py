"""Proves what is read of the files of LLaMA-Factory, verl, OpenRLHF, Megatron, torchtitan and LitGPT, and that what
is written for them comes back as the same job.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.reading import framework_of, read_target
from memplan.frameworks.registry import find_framework
from memplan.frameworks.scripts import read_script, whole_sum
from memplan.frameworks.writing import emit
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job

LLAMAFACTORY = """model_name_or_path: Qwen/Qwen2.5-0.5B
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
pref_loss: simpo
dataset: dpo_en_demo
template: qwen
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
flash_attn: fa2
"""
VERL = """#!/bin/bash
N=${N:-8}
PROMPT=$((512 * 2))
ACTOR=(
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.actor.strategy=fsdp2
)
[ -n "$X" ] && echo hello
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.max_prompt_length=${PROMPT} data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.rollout.n=4 \\
    "${ACTOR[@]}" trainer.n_gpus_per_node=$N "$@" """
OPENRLHF = """read -r -d '' training_commands <<EOF
openrlhf.cli.train_dpo \\
   --model.model_name_or_path Qwen/Qwen2.5-0.5B \\
   --train.batch_size 256 \\
   --train.micro_batch_size 2 \\
   --data.max_len 4096 \\
   --ds.zero_stage 3 \\
   --ref.offload \\
   --model.gradient_checkpointing_enable"""
MEGATRON = """#!/bin/bash
GPUS=${GPUS:-8}
ARGS=(
    --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups 8
    --ffn-hidden-size 2816 --swiglu --normalization RMSNorm --position-embedding-type rope
    --untie-embeddings-and-output-weights --seq-length 2048 --vocab-size 32000
    --micro-batch-size 2 --global-batch-size 64 --bf16 --use-distributed-optimizer
)
torchrun --nproc_per_node $GPUS --nnodes 1 PROGRAM.py ${ARGS[@]} \\
    --tensor-model-parallel-size 2 --sequence-parallel"""
FILES = {
    "megatron": ("gpt.sh", MEGATRON.replace("PROGRAM", "pretrain_gpt")),
    "mindspeed": ("dpo.sh", f"{MEGATRON.replace('PROGRAM', 'posttrain_gpt')} --stage dpo"),
    "openrlhf": ("dpo.sh", OPENRLHF),
    "llamafactory": ("train.yaml", LLAMAFACTORY),
    "verl": ("run.sh", VERL),
}
MESH = {"batch_size": 2, "gradient_accumulation_steps": 8, "sequence_length": 2048, "num_gpus": 8, "tensor_parallel": 2,
        "sequence_parallel": True, "sharding": "distributed-optimizer", "dtype": "bf16"}  # fmt: skip
SAID: dict[str, dict[str, Any]] = {
    "megatron": {"trainer": "megatron", "method": "sft", **MESH},
    "mindspeed": {"trainer": "mindspeed", "method": "dpo", **MESH},
    "llamafactory": {
        "trainer": "llamafactory",
        "method": "simpo",
        "batch_size": 2,
        "gradient_accumulation_steps": 8,
        "sequence_length": 4096,
        "attention": "flash",
        "gradient_checkpointing": "full",
        "gradient_checkpointing_reentrant": True,
        "dtype": "bf16",
    },
    "openrlhf": {
        "trainer": "openrlhf",
        "method": "dpo",
        "batch_size": 2,
        "gradient_accumulation_steps": 128,
        "sequence_length": 4096,
        "sharding": "zero3",
        "reference": "offloaded",
        "gradient_checkpointing": "full",
        "attention": "flash",
    },
    "verl": {
        "trainer": "verl",
        "method": "grpo",
        "batch_size": 4,
        "gradient_accumulation_steps": 8,
        "sequence_length": 2048,
        "completion_length": 1024,
        "num_gpus": 8,
        "sharding": "fsdp2",
        "precision": "bf16-amp",
        "reference": "offloaded",
        "attention": "flash",
    },
}
LINES: list[tuple[str, str, str, object]] = [
    ("megatron", "--recompute-granularity full", "gradient_checkpointing", "full"),
    ("megatron", "--recompute-activations", "gradient_checkpointing", "selective"),
    ("megatron", "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", "virtual_pipeline", 2),
    ("megatron", "--pipeline-model-parallel-size 2", "gradient_accumulation_steps", 16),
    ("mindspeed", "--stage simpo", "method", "simpo"),
    ("mindspeed", "--stage dpo --dpo-loss-type ipo", "method", "ipo"),
    ("llamafactory", "disable_gradient_checkpointing: true", "gradient_checkpointing", "none"),
    ("llamafactory", "use_reentrant_gc: false", "gradient_checkpointing_reentrant", False),
    ("llamafactory", "quantization_bit: 4", "quantization", "nf4-double"),
    ("llamafactory", "quantization_bit: 4\ndouble_quantization: false", "quantization", "nf4"),
    ("llamafactory", "quantization_bit: 4\nquantization_method: hqq", "quantization", "hqq-4bit"),
    ("llamafactory", "enable_liger_kernel: true", "kernels", "liger"),
    ("llamafactory", "use_galore: true", "optimizer", "galore"),
    ("openrlhf", "--model.ipo_enable", "method", "ipo"),
    ("openrlhf", "--ds.adam_offload", "offload", ("optimizer",)),
    ("openrlhf", "--lora_rank 8", "reference", "offloaded"),
    ("openrlhf", "--ds.load_in_4bit --ds.lora.rank 8", "quantization", "nf4-double"),
    ("verl", "algorithm.adv_estimator=gae", "method", "ppo"),
    ("verl", "++actor_rollout_ref.model.lora_rank=8", "reference", "adapter"),
    ("verl", "actor_rollout_ref.actor.use_kl_loss=False", "reference", "none"),
    ("verl", "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", "precision", "bf16"),
    ("verl", "actor_rollout_ref.model.use_fused_kernels=True", "loss_head", "fused"),
    ("verl", "actor_rollout_ref.actor.entropy_coeff=0.01", "entropy", "loss"),
]
"""A framework, a line more, a key of the job and its value."""
UNREAD = {
    "megatron": ("--fp8-format hybrid --new-offload-thing 3", ("fp8_format", "new_offload_thing")),
    "mindspeed": ("--swap-attention", ("swap_attention",)),
    "openrlhf": ("--ds.ring_attn_size 4 --ds.strange 3", ("ds.ring_attn_size", "ds.strange")),
    "llamafactory": ("use_badam: true\nstrange_key: 3", ("use_badam", "strange_key")),
    "verl": ("actor_rollout_ref.model.mtp.enable=True", ("actor_rollout_ref.model.mtp.enable",)),
}


def read(tmp_path: Path, name: str, more: str = "", **options: Any) -> JobInput:
    file, text = FILES[name]
    path = tmp_path / file
    space = " " if file.endswith(".sh") else ""
    path.write_text(f"{text}{space}{more}\n" if more else text, encoding="utf-8")
    return read_target(str(path), options)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_known_and_read(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, name)
    assert framework_of(str(tmp_path / FILES[name][0])).name == name
    assert {key: getattr(found.job, key) for key in SAID[name]} == SAID[name]
    assert not [line for line in found.warnings if "not counted" in line]
    assert resolve(found)


@pytest.mark.parametrize(("name", "line", "key", "value"), LINES)
def test_one_key(tmp_path: Path, name: str, line: str, key: str, value: object) -> None:
    assert getattr(read(tmp_path, name, line).job, key) == value


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_understood_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    more, keys = UNREAD[name]
    warnings = read(tmp_path, name, more).warnings
    for key in keys:
        assert any("line" in line and key in line and "is not counted" in line for line in warnings), (key, warnings)


def test_a_command_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.yaml").write_text(LLAMAFACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    job = read_target("llamafactory-cli train train.yaml cutoff_len=512 lora_rank=4", {}).job
    assert (job.sequence_length, job.lora.r if job.lora else 0, job.batch_size) == (512, 4, 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("llamafactory", LLAMAFACTORY.replace("stage: dpo", "stage: ppo"), r"line 2: stage: 'ppo' is not modelled"),
        ("llamafactory", LLAMAFACTORY.replace("fa2", "fa9"), r"line 14: flash_attn: 'fa9' is no attention"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / FILES[name][0]
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidJob, match=message):
        read_target(str(path), {})


PLAIN = {"method": ["sft"], "batch_size": [1, 4], "sequence_length": [128, 1024], "gradient_accumulation_steps": [1, 8]}
DRAWN: dict[str, tuple[dict[str, list[Any]], dict[str, list[Any]]]] = {
    "llamafactory": (
        {**PLAIN, "method": ["sft", "reward", "dpo", "ipo", "kto", "orpo", "simpo"]},
        {
            "gradient_checkpointing": ["none", "full"],
            "gradient_checkpointing_reentrant": [True, False],
            "optimizer": ["adamw", "adafactor", "sgd", "adamw-8bit"],
            "attention": ["sdpa", "flash", "eager"],
            "lora": [{"r": 4}, {"r": 16, "dropout": 0.1, "targets": ["q_proj", "v_proj"]}],
            "sharding": ["zero1", "zero2", "zero3", "fsdp2"],
            "num_gpus": [1, 4],
            "padded": [True, False],
        },
    ),
    "openrlhf": (
        {**PLAIN, "method": ["sft", "dpo", "ipo", "reward", "grpo", "ppo", "rloo"]},
        {
            "gradient_checkpointing": ["none", "full"],
            "gradient_checkpointing_reentrant": [True, False],
            "lora": [{"r": 4}, {"r": 16, "dropout": 0.1, "targets": ["q_proj", "v_proj"]}],
            "sharding": ["zero2", "zero3"],
            "num_gpus": [1, 4],
            "attention": ["flash", "sdpa"],
        },
    ),
    "verl": (
        {**PLAIN, "method": ["sft", "grpo", "ppo", "rloo"], "completion_length": [64]},
        {
            "gradient_checkpointing": ["none", "full"],
            "optimizer": ["adamw", "sgd"],
            "precision": ["bf16", "bf16-amp"],
            "lora": [{"r": 4}, {"r": 16, "targets": ["q_proj", "v_proj"]}],
            "sharding": ["fsdp", "fsdp2"],
            "num_gpus": [1, 4],
            "attention": ["flash", "sdpa"],
        },
    ),
}


@pytest.mark.parametrize("name", DRAWN)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_jobs_come_back(name: str, data: st.DataObject) -> None:
    required, optional = ({key: st.sampled_from(row) for key, row in rows.items()} for rows in DRAWN[name])
    keys = data.draw(st.fixed_dictionaries(required, optional=optional))
    try:
        asked = read_job({"model": "smollm2-135m", **keys})
        resolve(asked)
    except MemplanError:
        assume(False)
    assert emit(asked, find_framework(name)).texts


REFUSED = [
    ("megatron", {"method": "sft"}, "Megatron-LM: its files are read, and not written"),
    ("openrlhf", {"method": "dpo", "sharding": "fsdp2"}, "sharding: fsdp2 cannot be said to OpenRLHF"),
    ("openrlhf", {"method": "sft", "optimizer": "sgd"}, "optimizer: sgd cannot be said to OpenRLHF"),
    ("verl", {"method": "grpo", "completion_length": 64, "sharding": "zero3"}, "sharding: zero3 cannot be said"),
    ("verl", {"method": "grpo", "sharding": "fsdp2"}, "completion_length: verl is told of prompt and completion apart"),
    ("llamafactory", {"method": "rloo"}, "trainer: LLaMA-Factory has no rloo"),
    ("llamafactory", {"method": "dpo", "pair_pass": "split"}, "pair_pass: split cannot be said"),
    ("llamafactory", {"method": "sft", "trainer": "trl"}, "trainer: trl is not what LLaMA-Factory runs"),
]


@pytest.mark.parametrize(("name", "keys", "message"), REFUSED)
def test_what_a_framework_cannot_say_is_refused(name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        emit(read_job({"model": "smollm2-135m", **keys}), find_framework(name))


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ("", {"model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 2816, "vocab_size": 32000}),
        ("--add-qkv-bias", {"model_type": "qwen2"}),
        ("--qk-layernorm", {"model_type": "qwen3", "head_dim": 64}),
        ("--num-experts 8 --moe-router-topk 2", {"model_type": "mixtral", "num_local_experts": 8}),
        (
            "--multi-latent-attention --num-experts 8 --moe-ffn-hidden-size 512 --moe-layer-freq ([0]*1+[1]*3)",
            {"model_type": "deepseek_v3", "n_routed_experts": 8, "first_k_dense_replace": 1},
        ),
    ],
)
def test_the_model_that_megatrons_arguments_describe(tmp_path: Path, more: str, shape: dict[str, Any]) -> None:
    config = read(tmp_path, "megatron", more).job.model
    assert isinstance(config, dict)
    assert {key: config[key] for key in shape} == shape


def test_arguments_of_megatron_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    lines = ["MODEL_ARGS:", "  --num-layers: 2", "  --hidden-size: 256", "  --num-attention-heads: 4", "  --swiglu: true",
             "  --seq-length: 512", "  --micro-batch-size: 4", "  --bf16: true", "  --vocab-size: 1000"]  # fmt: skip
    path.write_text("\n".join(lines), encoding="utf-8")
    job = read_target(str(path), {}).job
    assert (job.trainer, job.batch_size, job.sequence_length, job.sharding) == ("megatron", 4, 512, "ddp")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=(x y)\nrun ${A[@]} z", ["run", "x", "y", "z"]),
        ("A=${A:-7}\nB=$((A * 2 + 1))\nrun --n $B", ["run", "--n", "15"]),
        ("A=1\nif [ -n x ]; then\n  A=2\nfi\nrun $A", ["run", "1"]),
        ("A=()\nA+=(1)\nA+=(\n  2 # two\n)\nrun ${A[@]}", ["run", "1", "2"]),
        ('ARGS="\n  --a 1 \\\n  --b 2\n"\nrun $ARGS', ["run", "--a", "1", "--b", "2"]),
        ("run $NOBODY '$1'", ["run", "$NOBODY", "$1"]),
        ("run $(rm -rf x)", ["run", "$(rm", "-rf", "x)"]),
    ],
)
def test_what_a_script_comes_to(text: str, words: list[str]) -> None:
    assert [word.text for word in read_script(text).commands[-1]] == words


@pytest.mark.parametrize(("text", "value"), [("2*(3+4)", 14), ("7/2-1", 2), ("1/0", 0), ("2**9", None), ("x+1", None)])
def test_sums_of_whole_numbers(text: str, value: int | None) -> None:
    assert whole_sum(text) == value
