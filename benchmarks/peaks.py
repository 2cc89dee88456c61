"""Draws jobs and prices each: none may do more FLOP a second than its cards can.

    python benchmarks/peaks.py -n 10000 --seed 1

What a step must do at least is counted apart from the clock (``memplan/cost/peak.py``). Exits with 1 where a job
exceeds its cards' peak.
"""

import argparse
import random
import statistics
import sys
from typing import Any

from memplan.cost import speed
from memplan.cost.peak import least_seconds
from memplan.errors import MemplanError
from memplan.resolve import resolve
from memplan.spec.reading import read_job

CHOICES: dict[str, tuple[Any, ...]] = {
    "model": (
        "llama-3.1-8b", "llama-3.1-70b", "qwen3-0.6b", "qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b",
        "deepseek-v3", "gemma-2-9b",
    ),
    "method": ("sft", "sft", "dpo", "simpo", "reward"),
    "trainer": ("megatron", "megatron", "megatron", "pytorch", "transformers", "trl"),
    "gpu": ("a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb", "mi300x-192gb", "rtx-4090-24gb", "ascend-910b-64gb"),
    "num_gpus": (1, 2, 8, 8, 16, 64, 256, 1024),
    "batch_size": (1, 1, 2, 4, 16, 64),
    "sequence_length": (256, 1024, 4096, 4096, 16384, 65536),
    "gradient_accumulation_steps": (1, 2, 16),
    "gradient_checkpointing": ("none", "full", "selective"),
}  # fmt: skip
HUGGING_FACE: dict[str, tuple[Any, ...]] = {
    "attention": ("sdpa", "flash", "eager"),
    "sharding": ("ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp2"),
    "lora": (None, {"r": 8}, {"r": 64}),
    "kernels": ("none", "liger"),
    "quantization": ("none", "none", "nf4", "gptq-4bit"),
    "compile": (False, True),
}
MEGATRON: dict[str, tuple[Any, ...]] = {
    "sharding": ("distributed-optimizer",),
    "attention": ("flash",),
    "tensor_parallel": (1, 2, 4, 8),
    "pipeline_parallel": (1, 1, 2, 4),
    "context_parallel": (1, 1, 2),
    "expert_parallel": (1, 2, 8, 16),
    "expert_tensor_parallel": (1, 2, 4, 8),
    "sequence_parallel": (True, False),
}


def drawn(dice: random.Random) -> dict[str, Any]:
    """One job; it need not be possible."""
    job = {key: dice.choice(values) for key, values in CHOICES.items()}
    more = MEGATRON if job["trainer"] == "megatron" else HUGGING_FACE
    job |= {key: dice.choice(values) for key, values in more.items()}
    return {key: value for key, value in job.items() if value is not None}


def share_of_peak(job: dict[str, Any]) -> float:
    """What the job's cards do of what they can. Raises MemplanError where it is no job."""
    recipe = resolve(read_job(job))
    return least_seconds(recipe) / speed(recipe).step_seconds


def main() -> int:
    """Print the largest shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    dice, refused = random.Random(asked.seed), 0
    found: list[tuple[float, dict[str, Any]]] = []
    while len(found) < asked.n:
        job = drawn(dice)
        try:
            found.append((share_of_peak(job), job))
        except MemplanError:
            refused += 1
    found.sort(key=lambda each: each[0], reverse=True)
    shares = [share for share, _ in found]
    print(f"{len(found):,} jobs ({refused:,} drawn that are none)")
    print(f"share of the cards' peak: {statistics.median(shares):.2f} in the median, {shares[0]:.2f} at most")
    for share, job in found[:5]:
        print(f"{share:.2f} {job}")
    return int(shares[0] > 1)


if __name__ == "__main__":
    sys.exit(main())
