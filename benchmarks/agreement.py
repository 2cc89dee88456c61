"""The play of a step beside its ledger, on jobs drawn at random: two descriptions of one thing that must say the same.

No trace is made, so that some hundred jobs take seconds. Where the two differ one of them is wrong: trace that job
(``unseen_ranks.py``) and mend the side at fault. Draws over shardings, ZeRO among them, methods, critics and
teachers, adapters, checkpointing, evaluation, accumulation, quantised bases and kinds of models; every phase above
16 MiB is compared.

    python benchmarks/agreement.py --seed 5 [-n 250] [--worst 20]
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import unseen
import unseen_ranks
from played import phases_of

from memplan.engine.allocator.events import step_events
from memplan.errors import MemplanError
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job

KINDS = ("one", "ranks", "ranks", "zero", "zero")
"""One GPU; DDP and FSDP; DeepSpeed."""
OTHERS = ("fsdp", "ddp", "reshard_after_forward", "reduce_dtype", "gradient_as_bucket_view", "sync_each_batch")
OF_PAIRS = ("pair_pass", "recompute_loss", "sft_term", "logits_dtype", "trainer_version")
TOGETHER = ({"method": "ppo", "trainer": "openrlhf"}, {"method": "ppo"}, {"method": "distill", "trainer": "trl"})
"""Methods of several models, which the rounds do not draw."""
SMALLEST, LARGEST = 2**24, 3 * 10**12


class Pair(NamedTuple):
    """A phase of a job: bytes by the play and by the ledger; ``peak`` is the largest phase of its job."""

    number: int
    sharding: str
    phase: str
    play: int
    ledger: int

    @property
    def apart(self) -> float:
        """How far the play is above the ledger, in percent."""
        return 100 * (self.play / self.ledger - 1)


class Drawn(NamedTuple):
    """A job, and its phases; none where it is not played."""

    number: int
    name: str
    job: dict[str, Any]
    pairs: list[Pair]


def draw(rng: random.Random, catalogue: dict[str, list[tuple[str, dict[str, Any]]]]) -> tuple[str, dict[str, Any]]:
    """A model's name and a job."""
    kind = rng.choice(KINDS)
    name, job = (unseen if kind == "one" else unseen_ranks).draw(rng, catalogue)
    if kind == "zero":
        job = {key: value for key, value in job.items() if key not in (*OTHERS, "precision")}
        job |= {"sharding": rng.choice(("zero1", "zero2", "zero3", "zero3")), "num_gpus": max(2, job["num_gpus"])}
    if rng.random() < 0.3:
        job["eval_batch_size"] = rng.choice((1, 4, 8))
    if kind != "one" and rng.random() < 0.15:
        job["quantization"] = "nf4"
    elif kind == "zero" and rng.random() < 0.15:
        job |= {"sharding": "zero1", "deepspeed": {"grad_accum_dtype": "fp32"}}
    elif kind != "one" and rng.random() < 0.25:
        teacher = {"role": "teacher", "model": job["model"]}
        job = {key: value for key, value in job.items() if key not in (*OF_PAIRS, "eval_batch_size")}
        job |= rng.choice(TOGETHER)
        job |= {"extra_models": [teacher]} if job["method"] == "distill" else {}
    return name, job | {"gpu": "h200-141gb"}


def compared(number: int, job: dict[str, Any]) -> list[Pair] | None:
    """The job's phases; None where it is refused."""
    try:
        recipe = resolve(read_job(job))
        ledger = build_report(recipe, False).per_gpu
        if ledger.allocated_bytes > LARGEST:
            return None
        events = step_events(recipe)
    except MemplanError:
        return None
    play = phases_of(events) if events else {}
    return [
        Pair(number, recipe.sharding.name, phase, play[phase], size)
        for phase, size in ledger.phases.items()
        if phase in play and size >= SMALLEST
    ]


def drawn(seed: int, count: int) -> Iterator[Drawn]:
    """So many jobs that are not refused."""
    rng, catalogue, number = random.Random(seed), unseen.models(), 0
    while number < count:
        name, job = draw(rng, catalogue)
        pairs = compared(number, job)
        if pairs is not None:
            yield Drawn(number, name, job, pairs)
            number += 1


def line(title: str, pairs: list[Pair]) -> str:
    """Median, 95th percentile, the most that the play is below the ledger and the most that it is above."""
    sizes = sorted(abs(each.apart) for each in pairs)
    figures = sizes[len(sizes) // 2], sizes[-(-len(sizes) * 95 // 100) - 1]
    ends = (min(0.0, *(each.apart for each in pairs)), max(0.0, *(each.apart for each in pairs)))
    return f"| {title} | {len(sizes)} | " + " | ".join(f"{figure:.4f}" for figure in (*figures, *ends)) + " |"


def main() -> None:
    """Tables by sharding and by phase, and the jobs whose phases differ most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("-n", type=int, default=250)
    parser.add_argument("--worst", type=int, default=0, help="so many of the phases that differ most")
    parser.add_argument("--only", type=int, help="the job of this number, as JSON")
    options = parser.parse_args()
    every = list(drawn(options.seed, options.n if options.only is None else options.only + 1))
    if options.only is not None:
        print(json.dumps(every[options.only].job))
        return
    pairs = [pair for each in every for pair in each.pairs]
    print(
        "| phases | of | median % | p95 % | play below % | play above % |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    tops = [max(each.pairs, key=lambda pair: pair.ledger) for each in every if each.pairs]
    print(line("the job's largest", tops))
    for key in ("sharding", "phase"):
        for value in sorted({getattr(pair, key) for pair in pairs}):
            print(line(value, [pair for pair in pairs if getattr(pair, key) == value]))
    missing = Counter(each.job["model"]["model_type"] for each in every if not each.pairs)
    print(f"\n{len(every) - missing.total()} of {len(every)} jobs are played; not {dict(missing.most_common(9))}.")
    for pair in sorted(pairs, key=lambda pair: -abs(pair.apart))[: options.worst]:
        each = every[pair.number]
        rest = {key: value for key, value in each.job.items() if key not in ("model", "gpu")}
        print(f"- {pair.number} {pair.phase} {pair.apart:+.2f} % of {pair.ledger / 2**20:.0f} MiB: {each.name} {rest}")


if __name__ == "__main__":
    main()
