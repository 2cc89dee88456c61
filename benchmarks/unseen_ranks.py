"""Traces of one of many ranks, of jobs drawn at random: truth that nobody looked at while the engine was written.

As ``unseen.py`` draws jobs of one GPU, this draws jobs of 2 to 64 under DDP, FSDP1 and FSDP2, and with ``--plans`` of
2 to 8 under transformers' plans of tensor parallelism: families of every kind with real widths and few layers, methods,
trainers and thus wrappings, dtypes of reductions, resharding (by a number too), hybrid sharding, original parameters or
flat ones, prefetches, CPU offload, accumulation with and without synchronisation, adapters of every kind, evaluations,
checkpointing, pair methods and their schedules.

    python benchmarks/unseen_ranks.py --seed 11 -n 200 --output ranks-11.json        needs memplan[trace]
    python benchmarks/unseen_ranks.py --plans --seed 11 -n 50 --output plans-11.json
    memplan accuracy ranks-11.json
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from unseen import ADAPTERS, LATELY, LOOPS, PAIRS, RARELY, VERSIONS, cut, main, models, traceable

CHOICES: dict[str, tuple[Any, ...]] = {
    "sharding": ("fsdp2", "fsdp2", "fsdp", "ddp"),
    "num_gpus": (2, 3, 4, 8, 8, 16, 32, 64),
    "method": ("sft", "sft", "sft", "sft", "dpo", "simpo", "orpo", "cpo", "ipo", "kto", "reward", "grpo"),
    "trainer": (
        *("pytorch", "pytorch", "pytorch", "transformers", "transformers", "trl", "trl", "llamafactory"),
        *("openrlhf", "verl", "simpo-repo", "litgpt"),
    ),
    "precision": ("bf16", "bf16", "bf16-amp", "bf16-amp", "bf16-amp", "fp32", "fp16-amp"),
    "attention": ("sdpa", "sdpa", "sdpa", "eager", "flash"),
    "gradient_checkpointing": ("none", "none", "full", "full", "full", "every:2", "selective"),
    "optimizer": ("adamw", "adamw", "adamw", "adamw", "sgd", "sgd-momentum", "adafactor"),
    "optimizer_impl": ("fused", "foreach", "loop"),
    "gradient_accumulation_steps": (1, 1, 2, 4),
    "padded": (False, False, True),
    "batch_size": (1, 1, 2, 3),
    "sequence_length": (128, 512, 1000, 2048, 4096),
    "lora": (None, None, None, {"r": 8}, {"r": 16}, {"r": 16, "dtype": "bf16"}, {"r": 64}),
}
FSDP2: dict[str, tuple[Any, ...]] = {
    "reshard_after_forward": (True, True, False, 2, 4, 8),
    "reduce_dtype": ("auto", "fp32", "bf16"),
}
FSDP1: dict[str, tuple[Any, ...]] = {
    "sharding_strategy": ("FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
    "backward_prefetch": (None, "BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "forward_prefetch": (False, False, False, True),
    "use_orig_params": (None, None, True, False),
    "keep_low_precision_grads": (False, False, False, True),
}
SELDOM = 1 / 8
"""How often a job has an evaluation, CPU offload, a longer completion; one of each key of ``RARELY`` half as often."""
COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Products of which each rank has some columns: PEFT 0.21 stops at adapters beside the others."""
LARGEST_TOKENS = 8192
LAYERS = (2, 3, 4, 5)


def draw(
    rng: random.Random, catalogue: dict[str, list[tuple[str, dict[str, Any]]]], plans: bool = False
) -> tuple[str, dict[str, Any]]:
    """A model's name, and a job with every choice left to chance."""
    families = [name for name in LATELY if name in catalogue] if rng.random() < 0.25 else sorted(catalogue)
    name, config = rng.choice(catalogue[rng.choice(families)])
    job: dict[str, Any] = {key: rng.choice(values) for key, values in CHOICES.items()}
    job |= {key: rng.choice(values) for key, values in RARELY.items() if rng.random() < SELDOM / 2}
    job["model"] = cut(config, rng.choice(LAYERS))
    if config["model_type"] in LOOPS:
        job["sequence_length"] = 64
    if job["lora"]:
        job["lora"] = job["lora"] | rng.choice(ADAPTERS)
    if job["trainer"] in VERSIONS and rng.random() < 0.4:
        job["trainer_version"] = rng.choice(VERSIONS[job["trainer"]])
    if job["gradient_checkpointing"] not in ("none", "selective") and rng.random() < 0.3:
        job["gradient_checkpointing_reentrant"] = True
    if rng.random() < SELDOM:
        job["eval_batch_size"] = rng.choice((1, 4, 8))
    if rng.random() < SELDOM and job["method"] != "reward":
        job["completion_length"] = job["sequence_length"] // 2
    job["sync_each_batch"] = rng.random() < 0.5
    if job["method"] in PAIRS and job["trainer"] == "pytorch":  # no trainer has other schedules
        job["pair_pass"] = rng.choice(
            ("concatenated", "concatenated", "concatenated", "two-forward", "split", "gradcache")
        )
    how = {"ddp": replicated, "fsdp": flat, "fsdp2": sharded}[job["sharding"]]
    job |= (by_plan if plans else how)(rng, job["num_gpus"])
    return name, {key: value for key, value in job.items() if value is not None}


def by_plan(rng: random.Random, ranks: int) -> dict[str, Any]:
    """transformers' plans: the Trainer's and TRL's, of adapters those beside products that are cut by columns."""
    keys: dict[str, Any] = {"sharding": "none", "num_gpus": (count := rng.choice((2, 4, 8))), "tensor_parallel": count}
    keys |= {
        "trainer": rng.choice(("transformers", "trl")),
        "method": rng.choice(("sft", "sft", "dpo", "kto", "reward")),
    }
    lora = rng.choice((None, {"r": rng.choice((8, 64)), "dtype": rng.choice(("fp32", "bf16"))}))
    return keys | {"trainer_version": None, "attention": "sdpa", "lora": lora and lora | {"targets": list(COLUMNS)}}


def replicated(rng: random.Random, ranks: int) -> dict[str, Any]:
    """DDP's keys."""
    keys: dict[str, Any] = {"gradient_as_bucket_view": rng.random() < 0.4}
    if rng.random() < 0.3:
        keys["ddp"] = {"bucket_cap_mb": rng.choice((5, 100))}
    if rng.random() < 0.5:  # what torch stops at otherwise: towers that rest, reentrant checkpoints beside adapters
        keys["ddp"] = keys.get("ddp", {}) | {"find_unused_parameters": rng.random() < 0.7}
    return keys


def flat(rng: random.Random, ranks: int) -> dict[str, Any]:
    """FSDP1's."""
    settings = {key: rng.choice(values) for key, values in FSDP1.items()}
    if settings["sharding_strategy"].startswith("HYBRID"):
        settings["replicate"] = 2
        if ranks % 2 or ranks == 2:
            settings |= {"sharding_strategy": "FULL_SHARD", "replicate": None}
    keys: dict[str, Any] = {"fsdp": {key: value for key, value in settings.items() if value is not None}}
    return keys | {"reduce_dtype": rng.choice(FSDP2["reduce_dtype"])}


def sharded(rng: random.Random, ranks: int) -> dict[str, Any]:
    """FSDP2's."""
    keys: dict[str, Any] = {key: rng.choice(values) for key, values in FSDP2.items()}
    copies, settings = rng.choice((1, 1, 1, 2)), dict[str, Any]()
    if copies > 1 and ranks > copies and ranks % copies == 0:
        settings["replicate"] = copies
    shards = ranks // settings.get("replicate", 1)
    if rng.random() < SELDOM:
        settings["cpu_offload"] = True
    if keys["reshard_after_forward"] not in (True, False) and shards % keys["reshard_after_forward"]:
        keys["reshard_after_forward"] = True
    return keys | ({"fsdp": settings} if settings else {})


def jobs(
    seed: int, count: int, refused: Counter[str], plans: bool = False
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(id, model's name, job), none of which is refused. Images and encoders are seen on one GPU."""
    rng, catalogue, made = random.Random(seed), models(), 0
    while made < count:
        name, job = draw(rng, catalogue, plans)
        reason = traceable(job)
        if job["batch_size"] * job["sequence_length"] > LARGEST_TOKENS:
            reason = "too many tokens"
        refused[reason] += 1
        if not reason:
            made += 1
            yield f"{'plans' if plans else 'ranks'}-{seed}-{made:03}", name, job


if __name__ == "__main__":
    if plans := "--plans" in sys.argv:
        sys.argv.remove("--plans")
    main(__doc__, partial(jobs, plans=plans))
