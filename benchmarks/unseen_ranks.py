"""Traces of one of many ranks, of jobs drawn at random: truth that nobody looked at while the engine was written.

As ``unseen.py`` draws jobs of one GPU, this draws jobs of 2 to 64 under DDP and FSDP2: families of every kind with real
widths and few layers, trainers and thus wrappings, reduction dtypes, resharding (by a number too), hybrid sharding,
accumulation with and without synchronisation, LoRA, checkpointing, pair methods and their schedules.

    python benchmarks/unseen_ranks.py --seed 11 -n 200 --output ranks-11.json        needs memplan[trace]
    memplan accuracy ranks-11.json
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from unseen import LOOPS, PAIRS, cut, main, models, traceable

CHOICES: dict[str, tuple[Any, ...]] = {
    "sharding": ("fsdp2", "fsdp2", "fsdp2", "ddp"),
    "num_gpus": (2, 3, 4, 8, 8, 16, 32, 64),
    "method": ("sft", "sft", "sft", "sft", "dpo", "simpo", "orpo", "reward"),
    "trainer": ("pytorch", "pytorch", "pytorch", "pytorch", "transformers", "trl", "llamafactory"),
    "precision": ("bf16", "bf16-amp", "bf16-amp", "bf16-amp", "fp32"),
    "gradient_checkpointing": ("none", "full"),
    "optimizer_impl": ("fused", "foreach"),
    "gradient_accumulation_steps": (1, 1, 2, 4),
    "batch_size": (1, 1, 2, 3),
    "sequence_length": (128, 512, 1000, 2048, 4096),
    "lora": (None, None, None, {"r": 8}, {"r": 16, "dtype": "bf16"}, {"r": 64, "targets": ["q_proj", "v_proj"]}),
}
FSDP2: dict[str, tuple[Any, ...]] = {
    "reshard_after_forward": (True, True, False, 2, 4, 8),
    "reduce_dtype": ("auto", "fp32", "bf16"),
}
LARGEST_TOKENS = 8192
LAYERS = (2, 3, 4, 5)


def draw(rng: random.Random, catalogue: dict[str, list[tuple[str, dict[str, Any]]]]) -> tuple[str, dict[str, Any]]:
    """A model's name, and a job with every choice left to chance."""
    name, config = rng.choice(catalogue[rng.choice(sorted(catalogue))])
    job: dict[str, Any] = {key: rng.choice(values) for key, values in CHOICES.items()}
    job["model"] = cut(config, rng.choice(LAYERS))
    if config["model_type"] in LOOPS:
        job["sequence_length"] = 64
    job["sync_each_batch"] = rng.random() < 0.5
    if job["method"] in PAIRS and job["trainer"] == "pytorch":  # no trainer has other schedules
        job["pair_pass"] = rng.choice(
            ("concatenated", "concatenated", "concatenated", "two-forward", "split", "gradcache")
        )
    if job["sharding"] == "ddp":
        job["gradient_as_bucket_view"] = rng.random() < 0.4
    else:
        job |= {key: rng.choice(values) for key, values in FSDP2.items()}
        copies = rng.choice((1, 1, 1, 2))
        shards = job["num_gpus"] // copies
        if copies > 1 and shards > 1 and job["num_gpus"] % copies == 0:
            job["fsdp"] = {"replicate": copies}
        else:
            shards = job["num_gpus"]
        if job["reshard_after_forward"] not in (True, False) and shards % job["reshard_after_forward"]:
            job["reshard_after_forward"] = True
    return name, {key: value for key, value in job.items() if value is not None}


def jobs(seed: int, count: int, refused: Counter[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(id, model's name, job), none of which is refused. Images and encoders are seen on one GPU."""
    rng, catalogue, made = random.Random(seed), models(), 0
    while made < count:
        name, job = draw(rng, catalogue)
        reason = traceable(job)
        if job["batch_size"] * job["sequence_length"] > LARGEST_TOKENS:
            reason = "too many tokens"
        refused[reason] += 1
        if not reason:
            made += 1
            yield f"ranks-{seed}-{made:03}", name, job


if __name__ == "__main__":
    main(__doc__, jobs)
