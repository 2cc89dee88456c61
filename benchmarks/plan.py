"""The planner's speed: whole commands, cold, in CPU seconds; and plans priced per second, memory alone, and memory
and cost together.

``--check`` exits with 1 where a bound is missed: 8 GPUs within 1.5 s, 1,024 within 4 s, 100,000 within 5 s, a question
within 10 s, 5,000 plans a second on a core.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from memplan.cost import seconds
from memplan.engine.totals import forget
from memplan.planner.planning import question
from memplan.planner.splits import candidates
from memplan.reporting import peak
from memplan.spec.reading import read_job

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    ("SimPO, 8B, 8 × H100", "llama-3.1-8b --method simpo --gpu h100-80gb --num-gpus 8", 1.5),
    ("SimPO, 8B, 8 × Ascend", "llama-3.1-8b --method simpo --gpu ascend-910b-64gb --num-gpus 8", 1.5),
    ("DPO, 8B, 8 × H100", "llama-3.1-8b --method dpo --gpu h100-80gb --num-gpus 8", 1.5),
    ("DPO, 70B, 64 × H100", "llama-3.1-70b --method dpo --gpu h100-80gb --num-gpus 64", 4.0),
    (
        "SFT, 405B, 1,024 × H100",
        "llama-3.1-405b --method sft --gpu h100-80gb --num-gpus 1024 --global-batch-size 1024",
        4.0,
    ),
    ("SFT, DeepSeek-V3, 1,024", "deepseek-v3 --method sft --gpu h100-80gb --num-gpus 1024", 4.0),
    (
        "DPO, 8B, 100,000 × H100",
        "llama-3.1-8b --method dpo --gpu h100-80gb --num-gpus 100000 --global-batch-size 100000",
        5.0,
    ),
    ("DPO, 70B, the fewest GPUs", "llama-3.1-70b --method dpo --gpu h100-80gb --num-gpus 64 --min-gpus", 10.0),
    ("GRPO, 235B, 1,024 × H100", "qwen3-235b-a22b --method grpo --gpu h100-80gb --num-gpus 1024", 10.0),
    (
        "GRPO, 30B, the longest",
        "qwen3-30b-a3b --method grpo --gpu h100-80gb --num-gpus 8 --maximize sequence_length",
        10.0,
    ),
    (
        "SFT, 456B, the smallest card",
        "minimax-text-01 --method sft --gpu h200-141gb --num-gpus 512 --smallest-card",
        10.0,
    ),
    (
        "QLoRA, 27B, the smallest card",
        "gemma-3-27b --method dpo --lora-r 16 --load-in-4bit --gpu a100-80gb --num-gpus 2 --smallest-card",
        10.0,
    ),
    ("DPO, gemma-3n, 8 × H100", "gemma-3n-e4b --method dpo --gpu h100-80gb --num-gpus 8", 1.5),
    ("KTO, 9B, 8 × A100 40 GB", "gemma-2-9b --method kto --gpu a100-40gb --num-gpus 8 --sequence-length 8192", 8.0),
)
PER_SECOND = 5000
PRICED = {"model": "llama-3.1-8b", "method": "simpo", "gpu": "h100-80gb", "num_gpus": 8}


def command_seconds(arguments: str, runs: int = 3) -> tuple[float, str]:
    """CPU seconds of the whole command in a process of its own, the median of a few, and its first line. Bytecode is
    there, as where a package is installed: the run before compiles it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "memplan", "plan", *arguments.split()],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=environment,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times[1:]), done.stdout.splitlines()[0]


def plans_per_second(costs: bool, least: float = 1.0) -> tuple[float, float]:
    """(plans priced in a second, when their passes are met for the first time; and when they were met before), each the
    time of the job's memory, and with ``costs`` of its cost."""
    forget()
    asked = question(read_job(PRICED))
    legal = candidates(asked.given, asked.space, asked.device).legal
    rates: list[float] = []
    for _ in range(2):
        done, start = 0, time.process_time()
        while time.process_time() - start < least and done < 20 * len(legal):
            recipe = legal[done % len(legal)].recipe
            peak(recipe)
            if costs:
                seconds(recipe, asked.device)
            done += 1
            if done == len(legal) and not rates:
                break
        rates.append(done / (time.process_time() - start))
        if len(rates) == 1:
            for each in legal:
                peak(each.recipe)
    return rates[0], rates[1]


def main() -> int:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    check, missed = parser.parse_args().check, 0
    for title, arguments, bound in COMMANDS:
        took, said = command_seconds(arguments)
        missed += took > bound
        print(f"{title:30}{took:6.2f} s of CPU (bound {bound}): {said.split(';')[-1].strip()}")
    for title, costs in (("memory and cost, per second", True), ("memory alone, per second", False)):
        cold, warm = plans_per_second(costs)
        missed += costs and warm < PER_SECOND
        print(f"{title:30}{warm:6,.0f} (bound {PER_SECOND:,}); {cold:,.0f} when none was met before")
    return int(check and missed > 0)


if __name__ == "__main__":
    sys.exit(main())
