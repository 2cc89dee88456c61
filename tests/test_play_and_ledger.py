"""Proves that the play of a step and its ledger say the same of a job: on jobs that benchmarks/agreement.py draws, and
on those where one of them was wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
QV: dict[str, Any] = {"r": 8, "targets": ["q_proj", "v_proj"]}
JOBS: dict[str, dict[str, Any]] = {
    "stage 3 fetches ahead at PEFT's wrappers": {"sharding": "zero3", "lora": QV},
    "stage 3 gathers the trained copy alone": {"sharding": "zero3", "lora": QV | {"modules_to_save": ["lm_head"]}},
    "a head is gathered, or let go of, when the loss comes": {
        "sharding": "zero3",
        "method": "kto",
        "trainer": "trl",
        "precision": "auto",
    },
    "the embedding is gathered with what is fetched ahead": {
        "sharding": "zero3",
        "method": "simpo",
        "lora": {"r": 8, "modules_to_save": ["lm_head"]},
        "pair_pass": "two-forward",
        "precision": "auto",
    },
    "a tail that the batch before left": {"sharding": "fsdp2", "trainer": "trl", "eval_batch_size": 1},
    "two forwards, one backward": {"sharding": "fsdp", "method": "cpo", "pair_pass": "two-forward"},
    "two forwards beside gradients that wait": {
        "sharding": "fsdp2",
        "method": "cpo",
        "pair_pass": "two-forward",
        "gradient_accumulation_steps": 4,
        "sync_each_batch": False,
    },
    "gathered behind the first adapter": {
        "sharding": "fsdp",
        "trainer": "trl",
        "lora": QV,
        "fsdp": {"backward_prefetch": "BACKWARD_POST"},
    },
    "copies of embedding and head are units": {
        "sharding": "fsdp",
        "trainer": "trl",
        "lora": QV | {"modules_to_save": ["embed_tokens", "lm_head"]},
    },
    "a layer's flat gradient is reduced when its first adapter has run back": {
        "sharding": "fsdp",
        "trainer": "trl",
        "model": LLAMA | {"model_type": "qwen2"},
        "lora": QV | {"bias": "lora_only"},
        "reduce_dtype": "fp32",
    },
    "a flat gradient has zeros where no image comes": {
        "sharding": "fsdp",
        "precision": "bf16-amp",
        "reduce_dtype": "fp32",
        "lora": {"r": 8, "bias": "all"},
        "model": {
            "model_type": "qwen2_5_vl",
            "text_config": LLAMA | {"model_type": "qwen2_5_vl_text", "vocab_size": 8000},
            "vision_config": {"depth": 2, "hidden_size": 1024, "out_hidden_size": 8192},
        },
    },
    "the next unit is gathered in forward": {"sharding": "fsdp", "fsdp": {"forward_prefetch": True}},
    "nothing is gathered ahead when a reentrant checkpoint runs again": {
        "sharding": "fsdp",
        "trainer": "trl",
        "trainer_version": "0.24",
        "fsdp": {"forward_prefetch": True},
    },
    "nothing is gathered for what no gradient comes to": {
        "sharding": "fsdp",
        "trainer": "trl",
        "lora": QV,
        "gradient_checkpointing": "none",
        "fsdp": {"backward_prefetch": "BACKWARD_POST"},
    },
    "adapters that are units are reduced in fp32": {
        "sharding": "fsdp",
        "trainer": "trl",
        "lora": QV | {"r": 256},
        "reduce_dtype": "fp32",
    },
    **{
        f"the first half of a pair leaves what it made, {name}": {
            "sharding": name,
            "method": "dpo",
            "precision": "auto",
            "pair_pass": "split",
            "deepspeed": {"reduce_bucket_size": size},
        }
        for name, size in (("zero1", 100_000_000), ("zero2", 1_000_000))
    },
    **{
        f"{what} is flattened": {
            "sharding": "zero2",
            "num_gpus": ranks,
            "model": LLAMA
            | {"model_type": "mixtral", "num_local_experts": 8, "vocab_size": 8000, "num_hidden_layers": layers},
            "precision": "auto",
            "optimizer": "sgd",
            "deepspeed": {"reduce_bucket_size": 20_000_000},
        }
        for what, ranks, layers in (
            ("what a layer in between reduces", 4, 5),
            ("a bucket with another rank's norm", 2, 3),
        )
    },
    **{
        f"stage 0 steps on fp32 copies, {name}": {
            "sharding": "zero0",
            "model": LLAMA | {"num_hidden_layers": 14},
            "precision": "auto",
            "gradient_accumulation_steps": 2,
            "deepspeed": {"ds_optimizer": flat, "communication_data_type": "fp32"},
        }
        for name, flat in (("each", False), ("flat", True))
    },
    **{
        f"gradients are added up in fp32, {when}": {
            "sharding": "zero1",
            "model": LLAMA | {"num_hidden_layers": 14},
            "precision": "auto",
            "gradient_accumulation_steps": 2,
            "deepspeed": {"grad_accum_dtype": "fp32", "immediate_grad_update": at_once},
        }
        for when, at_once in (("when all have come", False), ("one by one", True))
    },
    "a bucket is there from the first reentrant checkpoint of two forwards on": {
        "sharding": "zero1",
        "method": "cpo",
        "pair_pass": "two-forward",
        "precision": "auto",
        "lora": QV,
        "gradient_checkpointing_reentrant": True,
        "sequence_length": 512,
        "deepspeed": {"reduce_bucket_size": 100_000_000},
    },
    "gradients of a tied head are added before a bucket is copied": {
        "sharding": "zero2",
        "model": LLAMA | {"tie_word_embeddings": True},
        "precision": "auto",
        "deepspeed": {"reduce_bucket_size": 50_000_000},
    },
    "a reference's head is let go of": {
        "sharding": "zero3",
        "method": "dpo",
        "precision": "auto",
        "reference": "resident",
        "loss_head": "fused",
    },
    "a head that is gathered whole is let go of": {"model": "qwen2.5-vl-7b", "sharding": "fsdp2", "trainer": "trl"},
    "what the delta rule's values are cut from is let go of": {
        "model": "qwen3.5-4b",
        "mixer_kernels": "cuda",
        "sharding": "fsdp2",
        "sequence_length": 4096,
    },
    "gradients of positions are gone when the embedding's comes": {
        "num_gpus": 1,
        "model": {"model_type": "gpt2", "vocab_size": 8000, "n_embd": 512, "n_head": 8, "n_positions": 4000},
        "optimizer": "sgd",
        "gradient_accumulation_steps": 4,
    },
    "the shard of a trained copy of a tied head": {
        "sharding": "fsdp2",
        "trainer": "trl",
        "model": LLAMA | {"tie_word_embeddings": True},
        "lora": QV | {"modules_to_save": ["lm_head"]},
        "gradient_checkpointing": "none",
    },
    "a trained copy of a tied head and the embedding have a gradient each in a flat one": {
        "sharding": "fsdp",
        "model": LLAMA | {"tie_word_embeddings": True},
        "precision": "fp32",
        "lora": QV | {"modules_to_save": ["lm_head"]},
    },
    "what is scaled in the model's forward is let go of": {
        "model": LLAMA | {"model_type": "granite", "vocab_size": 1000},
        "sharding": "fsdp2",
        "trainer": "trl",
        "eval_batch_size": 8,
        "sequence_length": 2048,
    },
    "all that the model's forward holds is there when the first layer is gathered": {
        "model": LLAMA | {"vocab_size": 128000, "tie_word_embeddings": True},
        "sharding": "fsdp2",
        "trainer": "trl",
        "kernels": "liger",
        "eval_batch_size": 1,
        "sequence_length": 5000,
        "padded": True,
    },
    "the forward has returned when the loss of chunks is made": {
        "sharding": "fsdp2",
        "trainer": "litgpt",
        "lora": QV,
        "sequence_length": 2048,
    },
    "the last adapter of a layer has the next layer gathered": {
        "sharding": "fsdp",
        "trainer": "transformers",
        "lora": QV,
        "fsdp": {"forward_prefetch": True},
        "attention": "eager",
        "batch_size": 4,
        "sequence_length": 1024,
    },
    "no layer is gathered ahead that ran without a graph": {
        "sharding": "fsdp",
        "trainer": "transformers",
        "trainer_version": "4.47",
        "lora": QV,
        "fsdp": {"backward_prefetch": "BACKWARD_PRE"},
        "sequence_length": 512,
    },
    "a reference runs beside what the batch before has left of the policy": {
        "model": "qwen1.5-moe-a2.7b",
        "sharding": "zero3",
        "method": "dpo",
        "eval_batch_size": 1,
        "gradient_checkpointing": "none",
    },
    **{
        f"a critic is trained before the policy, {name}, {' and '.join(away) or 'nothing'} on the host": {
            "method": "ppo",
            "trainer": "verl",
            "precision": "auto",
            "gradient_accumulation_steps": 2,
            "sharding": name,
            "trainer_offload": away,
        }
        for name in ("fsdp", "fsdp2")
        for away in ([], ["optimizer"], ["parameters", "optimizer"])
    },
    **{
        f"a critic has an engine of its own, {name}, {trainer}": {
            "method": "ppo",
            "trainer": trainer,
            "precision": "auto",
            "gradient_accumulation_steps": 2,
            "sharding": name,
        }
        for name in ("ddp", "zero0", "zero1", "zero2", "zero3")
        for trainer in ("pytorch", "openrlhf")
    },
    **{
        f"a teacher runs {when}, {name}": {
            "method": "distill",
            "trainer": trainer,
            "sharding": name,
            "precision": "auto",
            "gradient_accumulation_steps": 2,
            "extra_models": [{"role": "teacher", "model": LLAMA | {"num_hidden_layers": 6, "head_dim": 128}}],
        }
        for name in ("ddp", "fsdp", "zero1", "zero2", "zero3")
        for trainer, when in (("pytorch", "before the student"), ("trl", "between its logits and its loss"))
    },
    **{
        f"nothing comes to a tied head beside a value head, {name}": {
            "method": "reward",
            "trainer": "llama-factory",
            "model": LLAMA | {"tie_word_embeddings": True},
            "sharding": name,
            "precision": "auto",
        }
        for name in ("ddp", "fsdp2", "zero2")
    },
    "a critic steps with the policy": {"sharding": "ddp", "method": "ppo"},
    "scales stay on the card": {
        "sharding": "fsdp2",
        "trainer": "trl",
        "lora": QV,
        "quantization": "nf4",
        "fsdp": {"cpu_offload": True},
    },
}
BOUNDS = {
    # sharding: the most that 95 in 100 phases may be apart; that the ledger of any may be below, and above; in percent
    "none": (0.5, 3, 3),
    "ddp": (0.5, 3, 3),
    "fsdp2": (0.5, 3, 3),
    "fsdp": (0.5, 2, 8),
    "zero1": (3, 2, 8),
    "zero2": (3, 2, 8),
    "zero3": (1, 2, 14),  # a bucket's reduction is taken at the fullest instant of a layer's backward
}


@pytest.fixture(scope="module")
def agreement() -> Iterator[ModuleType]:
    """benchmarks/agreement.py, which is no part of the package."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
    import agreement

    yield agreement
    sys.path.pop(0)


@pytest.mark.parametrize("name", JOBS)
def test_they_say_the_same(name: str, agreement: ModuleType) -> None:
    job = {"model": LLAMA, "method": "sft", "trainer": "pytorch", "num_gpus": 4, "batch_size": 1, "precision": "bf16"}
    job |= {"sequence_length": 64, "gradient_checkpointing": "full"} | JOBS[name]
    pairs = agreement.compared(0, job)
    assert pairs
    assert all(abs(pair.apart) < 2 for pair in pairs), pairs


@pytest.mark.slow
def test_of_drawn_jobs_too(agreement: ModuleType) -> None:
    """Half of all phases agree to a thousandth of a percent or nearly; where they do not, one description is wrong."""
    every = list(agreement.drawn(17, 120))
    pairs = [pair for each in every for pair in each.pairs]
    sizes = sorted(abs(pair.apart) for pair in pairs)
    assert len(sizes) > 300
    assert sizes[len(sizes) // 2] < 0.005
    for sharding, (most, below, above) in BOUNDS.items():
        own = [pair for pair in pairs if pair.sharding == sharding]
        apart = sorted(abs(pair.apart) for pair in own)
        assert not apart or apart[int(len(apart) * 0.95) - 1] <= most, sharding
        beyond = {pair.number for pair in own if not -above <= pair.apart <= below}
        far = [each for each in every if each.number in beyond]
        assert not far, far
