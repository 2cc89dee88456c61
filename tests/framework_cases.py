"""Files of frameworks and programs of users, what they say, and jobs for each of them."""

from pathlib import Path
from typing import Any

from memplan.frameworks.checks.checking import Checked, check_file
from memplan.frameworks.reading import read_target
from memplan.spec.deepspeed import DeepSpeed
from memplan.spec.fsdp import Fsdp
from memplan.spec.reading import JobInput

CARD = {"gpu": "80GB", "num_gpus": 1}
UNSLOTH = """\
{first}
{second}
model, _ = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-0.5B", max_seq_length=256, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj"])
SFTTrainer(model=model, args=SFTConfig({arguments})).train()
"""
"""A program of Unsloth's, for the order in which it imports."""
FIRST, SECOND = "from unsloth import FastLanguageModel", "from trl import SFTConfig, SFTTrainer"


def read_text(folder: Path, text: str, name: str = "train.yaml", **options: Any) -> JobInput:
    """The job of a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_target(str(path), options)


def unclear_text(folder: Path, text: str, name: str = "train.yaml", **options: Any) -> str:
    """What ``memplan check`` says of a file with this text, which it finds unclear."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    found = check_file(str(path), {"gpu": "h100-80gb", **options})
    assert found.fits == "unclear", found.text
    return found.text


def decided(given: JobInput) -> dict[str, str]:
    """By key that was not understood: what it decides."""
    return {unread.key: unread.decides for unread in given.unread if unread.decides}


def changed(text: str, old: str, new: str) -> str:
    """A text with another word, which it had."""
    assert old in text
    return text.replace(old, new)


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
    actor_rollout_ref.actor.entropy_from_logits_chunk_size=2048
)
[ -n "$X" ] && echo hello
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.max_prompt_length=${PROMPT} data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.rollout.n=4 \\
    "${ACTOR[@]}" trainer.n_gpus_per_node=$N "$@" """
OPENRLHF = """deepspeed --module openrlhf.cli.train_dpo \\
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
TORCHTITAN = """[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 8192

[activation_checkpoint]
mode = "full"

[parallelism]
tensor_parallel_degree = 2
"""
LITGPT = """checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-true
quantize: bnb.nf4
devices: 1
lora_r: 32
lora_key: true
data: {class_path: litgpt.data.Alpaca2k}
train:
  global_batch_size: 8
  micro_batch_size: 2
  max_seq_length: 512
optimizer: {class_path: bitsandbytes.optim.PagedAdamW8bit}
"""
FILES = {
    "litgpt": ("qlora.yaml", LITGPT),
    "torchtitan": ("train.toml", TORCHTITAN),
    "megatron": ("gpt.sh", MEGATRON.replace("PROGRAM", "pretrain_gpt")),
    "mindspeed": ("dpo.sh", f"{MEGATRON.replace('PROGRAM', 'posttrain_gpt')} --stage dpo"),
    "openrlhf": ("dpo.sh", OPENRLHF),
    "llamafactory": ("train.yaml", LLAMAFACTORY),
    "verl": ("run.sh", VERL),
}
MESH = {"batch_size": 2, "gradient_accumulation_steps": 8, "sequence_length": 2048, "num_gpus": 8, "tensor_parallel": 2,
        "sequence_parallel": True, "sharding": "distributed-optimizer", "dtype": "bf16"}  # fmt: skip
SAID: dict[str, dict[str, Any]] = {
    "litgpt": {
        "trainer": "litgpt",
        "model": "meta-llama/Llama-3.2-1B",
        "batch_size": 2,
        "gradient_accumulation_steps": 4,
        "sequence_length": 512,
        "quantization": "nf4",
        "precision": "bf16",
        "autocast": False,
        "optimizer": "paged-adamw-8bit",
        "gradient_checkpointing": "none",
    },
    "torchtitan": {
        "trainer": "pytorch",
        "model": "meta-llama/Llama-3.1-8B",
        "batch_size": 1,
        "gradient_accumulation_steps": 16,
        "sequence_length": 8192,
        "num_gpus": 8,
        "tensor_parallel": 2,
        "sharding": "fsdp2",
        "precision": "bf16-amp",
        "gradient_checkpointing": "full",
        "logits_dtype": "fp32",
    },
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
HYBRID = Fsdp(own_ends=True, replicate=2)
LINES: list[tuple[str, str, str, object]] = [
    ("torchtitan", "data_parallel_shard_degree = 16", "num_gpus", 32),
    ("torchtitan", "pipeline_parallel_degree = 4", "precision", "fp32"),
    ("torchtitan", 'fsdp_reshard_after_forward = "never"', "reshard_after_forward", False),
    ("torchtitan", '[optimizer]\nimplementation = "foreach"', "optimizer_impl", "foreach"),
    ("torchtitan", "[compile]\nenable = true", "compile", True),
    ("torchtitan", '[compile]\nenable = true\ncomponents = ["loss"]', "loss_head", "compiled-cross-entropy"),
    ("torchtitan", "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 2", "fsdp", HYBRID),
    ("torchtitan", "[experimental]\ncontext_parallel_degree = 2", "context_parallel", 2),
    ("megatron", "--recompute-granularity full", "gradient_checkpointing", "full"),
    ("megatron", "--recompute-activations", "gradient_checkpointing", "selective"),
    ("megatron", "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", "virtual_pipeline", 2),
    ("megatron", "--pipeline-model-parallel-size 2", "gradient_accumulation_steps", 16),
    ("mindspeed", "--stage simpo", "method", "simpo"),
    ("mindspeed", "--stage dpo --dpo-loss-type ipo", "method", "ipo"),
    ("llamafactory", "disable_gradient_checkpointing: true", "gradient_checkpointing", "none"),
    ("llamafactory", "use_reentrant_gc: true", "gradient_checkpointing_reentrant", True),
    ("llamafactory", "use_reentrant_gc: false", "gradient_checkpointing_reentrant", False),
    ("llamafactory", "quantization_bit: 4", "quantization", "nf4-double"),
    ("llamafactory", "quantization_bit: 4\ndouble_quantization: false", "quantization", "nf4"),
    ("llamafactory", "quantization_bit: 4\nquantization_method: hqq", "quantization", "hqq-4bit"),
    ("llamafactory", "enable_liger_kernel: true", "kernels", "liger"),
    ("llamafactory", "use_galore: true", "optimizer", "galore"),
    ("openrlhf", "--model.ipo_enable", "method", "ipo"),
    ("openrlhf", "--ds.adam_offload", "offload", ("optimizer",)),
    ("openrlhf", "--lora_rank 8", "reference", "offloaded"),
    ("openrlhf", "--ds.overlap_comm", "deepspeed", DeepSpeed(overlap_comm=True)),
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
    "litgpt": ("strange: 1", ("strange",)),
    "torchtitan": ('strange_degree = 2\n[optimizer]\nname = "Muon"', ("parallelism.strange_degree", "optimizer.name")),
    "megatron": (
        "--new-offload-thing 3 --micro-bach-size 4 --no-fp8-wgrad --hybrid-context-parallel",
        ("new_offload_thing", "micro_bach_size", "no_fp8_wgrad", "hybrid_context_parallel"),
    ),
    "mindspeed": ("--swap-attention", ("swap_attention",)),
    "openrlhf": ("--ds.strange 3 --full_determinism", ("ds.strange", "train.full_determinism_enable")),
    "llamafactory": ("mixture_of_depths: load\nstrange_key: 3", ("mixture_of_depths", "strange_key")),
    "verl": (
        "actor_rollout_ref.model.mtp.enable=True trainer.n_gpu_per_node=4",
        ("actor_rollout_ref.model.mtp.enable", "trainer.n_gpu_per_node"),
    ),
}

PLAIN: dict[str, list[Any]] = {
    "method": ["sft"],
    "batch_size": [1, 4],
    "sequence_length": [128, 1024],
    "gradient_accumulation_steps": [1, 8],
}
DRAWN: dict[str, tuple[dict[str, list[Any]], dict[str, list[Any]]]] = {
    "litgpt": (
        PLAIN,
        {"num_gpus": [1, 4], "precision": ["bf16", "bf16-amp", "fp32"], "optimizer": ["adamw", "sgd"], "lora": [None]},
    ),
    "torchtitan": (
        {**PLAIN, "model": ["qwen3-0.6b"]},
        {
            "gradient_checkpointing": ["none", "full", "every:2"],
            "optimizer_impl": ["fused", "foreach", "loop"],
            "num_gpus": [1, 4],
            "precision": ["bf16", "bf16-amp"],
            "compile": [True, False],
            "reshard_after_forward": [True],
        },
    ),
    "megatron": (
        {
            **PLAIN,
            "model": ["llama-3.2-1b", "qwen2.5-1.5b", "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt2"],
            "num_gpus": [1, 8, 16],
        },
        {
            "gradient_checkpointing": ["none", "full", "selective"],
            "tensor_parallel": [1, 2],
            "pipeline_parallel": [1, 2],
            "virtual_pipeline": [1, 2],
            "context_parallel": [1, 2],
            "expert_parallel": [1, 4],
            "sequence_parallel": [True],
            "sharding": ["ddp", "distributed-optimizer"],
            "dtype": ["bf16", "fp16", "fp32"],
            "optimizer": ["adamw", "sgd", "sgd-momentum"],
            "attention": ["flash", "sdpa"],
            "offload": [["optimizer"]],
            "megatron": [
                {"overlap_grad_reduce": True, "ddp_bucket_size": 40_000_000},
                {"cross_entropy_loss_fusion": False, "gradient_accumulation_fusion": False},
                {"recompute_modules": ["core_attn", "layernorm"], "make_vocab_size_divisible_by": 64},
                {"recompute_method": "block", "recompute_num_layers": 2},
                {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "main_grads_dtype": "bf16"},
                {
                    "moe_expert_capacity_factor": 1.5,
                    "moe_expert_imbalance": 2.0,
                    "moe_token_dispatcher_type": "allgather",
                },
                {"cp_comm_type": "a2a", "cross_entropy_fusion_impl": "native", "bias_swiglu_fusion": False},
            ],
        },
    ),
    "llamafactory": (
        {**PLAIN, "method": ["sft", "reward", "dpo", "ipo", "kto", "orpo", "simpo"]},
        {
            "gradient_checkpointing": ["none", "full"],
            "gradient_checkpointing_reentrant": [False],
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
            "context_parallel": [1, 2],
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

REFUSED = [
    ("openrlhf", {"method": "ppo"}, "critic then stands on GPUs of its own"),
    ("litgpt", {"method": "sft", "lora": {"r": 8}}, "lora.targets: all-linear cannot be said to LitGPT"),
    ("torchtitan", {"model": "qwen3-0.6b", "method": "dpo"}, "method: dpo is not what torchtitan trains"),
    ("torchtitan", {"method": "sft"}, "is no flavor of torchtitan's"),
    ("mindspeed", {"method": "sft"}, "MindSpeed-LLM: its files are read, and not written"),
    (
        "megatron",
        {"method": "sft", "lora": {"r": 8}},
        "lora: r=8, targets=all-linear, dtype=fp32 cannot be said to Megatron-LM, whose files make it none",
    ),
    ("megatron", {"method": "sft", "trainer": "nemo-aligner"}, "trainer: nemo-aligner is not what Megatron-LM runs"),
    ("megatron", {"method": "sft", "model": "mistral-7b-v0.1"}, "has a sliding window of 4096, which Megatron-LM's"),
    ("megatron", {"method": "sft", "model": "olmoe-1b-7b"}, "norms of q and k over all heads"),
    ("megatron", {"method": "sft", "model": "ernie-4.5-21b-a3b"}, "experts are chosen by a softmax and a bias"),
    ("megatron", {"method": "sft", "gradient_checkpointing": "every:2"}, "chunks or the first layers, not every:2"),
    (
        "llamafactory",
        {
            "method": "sft",
            "sharding": "fsdp2",
            "num_gpus": 2,
            "gradient_checkpointing": "full",
            "gradient_checkpointing_reentrant": True,
        },
        "gradient_checkpointing_reentrant: true cannot be said",
    ),
    ("openrlhf", {"method": "dpo", "sharding": "fsdp2"}, "sharding: fsdp2 cannot be said to OpenRLHF"),
    ("openrlhf", {"method": "sft", "optimizer": "sgd"}, "optimizer: sgd cannot be said to OpenRLHF"),
    ("verl", {"method": "grpo", "completion_length": 64, "sharding": "zero3"}, "sharding: zero3 cannot be said"),
    ("verl", {"method": "grpo", "sharding": "fsdp2"}, "completion_length: verl is told of prompt and completion apart"),
    ("llamafactory", {"method": "rloo"}, "trainer: LLaMA-Factory has no rloo"),
    ("llamafactory", {"method": "dpo", "pair_pass": "split"}, "pair_pass: split cannot be said"),
    ("llamafactory", {"method": "sft", "trainer": "trl"}, "trainer: trl is not what LLaMA-Factory runs"),
]


def written(name: str, text: str) -> str:
    """The name of a file with this text, whose folders are made."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def checked(name: str, text: str, **given: object) -> Checked:
    """What check says of a text as a file, on one card of 80 GB."""
    return check_file(written(name, text), {**CARD, **given})
