"""Reserved beyond allocated, by simulation: what the caching allocator holds, and the least that it needs.

For one-GPU jobs that differ in model, method, length, batch, LoRA, checkpointing and optimizer, two steps are
played allocation by allocation. ``holds``: reserved at the second step's peak on a card without end, beyond the bytes
that the ledger calls allocated. ``needs``: the least capacity (to 0.1 % of the allocated bytes) in which both steps
run, beyond the same. Both as a share of the bytes that come and go: the allocated peak less what is there between two
steps, which never leaves its blocks. ``memplan/engine/allocator/reserved.py`` takes its bands from the last lines.
"""

import argparse
import random
from typing import Any, NamedTuple

from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.replay import StepEvents, play
from memplan.engine.allocator.settings import Settings
from memplan.engine.totals import totalled
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.truth import read_sets
from memplan.units import GiB

MODELS = (
    "qwen2.5-0.5b",
    "llama-3.2-1b",
    "qwen2.5-1.5b",
    "gemma-2-2b",
    "llama-3.2-3b",
    "qwen3-4b",
    "mistral-7b-v0.3",
    "llama-3.1-8b",
)
CHOICES: dict[str, tuple[Any, ...]] = {
    "method": ("sft", "sft", "dpo", "simpo", "orpo", "reward"),
    "sequence_length": (512, 1024, 1536, 2048, 3000, 4096, 8192),
    "batch_size": (1, 1, 2, 3, 4),
    "gradient_checkpointing": (True, True, False),
    "optimizer_impl": ("foreach", "fused"),
    "lora": (None, None, {"r": 16}, {"r": 64}),
}
SMALLEST, LARGEST = 2 * GiB, 160 * GiB
"""Jobs of other sizes are left out: nobody runs them on one card."""


class Ratios(NamedTuple):
    """Of one job, with or without expandable segments."""

    holds: float
    needs: float


class Group(NamedTuple):
    """Jobs whose ratios are alike."""

    expandable: bool
    checkpointing: bool

    @property
    def title(self) -> str:
        """In words."""
        with_it = "checkpointed" if self.checkpointing else "not checkpointed"
        return f"{'expandable segments' if self.expandable else 'default'}, {with_it}"


def draw(rng: random.Random, model: str) -> dict[str, Any]:
    """A job with every choice left to chance."""
    job = {"model": model, "gpu": "h200", "gradient_accumulation_steps": rng.choice((1, 1, 4))}
    job |= {key: rng.choice(values) for key, values in CHOICES.items()}
    return {key: value for key, value in job.items() if value is not None}


def runs(recorded: StepEvents, expandable: bool, capacity: int) -> bool:
    """Whether the steps run within so many bytes of segments."""
    try:
        play(recorded, CachingAllocator(Settings(expandable), capacity))
    except OutOfMemory:
        return False
    return True


def ratios(recorded: StepEvents, expandable: bool) -> Ratios:
    """Holds and needs, by bisection between the allocated peak and what is held without pressure."""
    allocated = recorded.peak
    roomy = CachingAllocator(Settings(expandable))
    play(recorded, roomy)
    fails, works = allocated, roomy.peak_reserved
    while works - fails > allocated // 1000:
        middle = (fails + works) // 2
        fails, works = (fails, middle) if runs(recorded, expandable, middle) else (middle, works)
    moving = allocated - between_steps(recorded)
    return Ratios((roomy.peak_reserved - allocated) / moving, (works - allocated) / moving)


def between_steps(recorded: StepEvents) -> int:
    """Bytes alive when the last step starts."""
    return sum(size for _, size in recorded.events[: recorded.start])


def spread(values: list[float]) -> str:
    """Lowest, 5th percentile, median, 95th percentile and highest."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return "  ".join(f"{ordered[round(last * share)]:.3f}" for share in (0, 0.05, 0.5, 0.95, 1))


def published() -> None:
    """What published one-GPU runs hold (their reserved figure, or the device's less the context by estimate) beyond
    their own allocated peak, as a share of that peak less what lasts by estimate.
    """
    shares = []
    for row in (row for group in read_sets() if group.kind == "published" for row in group.rows):
        allocated, reserved, device = (row.meters.get(meter, 0) for meter in ("allocated", "reserved", "device"))
        if row.unusable or not allocated or not (reserved or device) or row.job.get("num_gpus", 1) > 1:
            continue
        try:
            ledger = totalled(resolve(read_job(row.job)))
        except InvalidJob:
            continue
        held = reserved or device - max(ledger.totals(meter="device"))
        shares.append((held - allocated) / (allocated - ledger.lasting()))
        print(f"{allocated / GiB:7.2f} GiB  {shares[-1]:.3f}  {row.id}")
    print(f"{len(shares)} published runs of one GPU, holds (lowest, 5 %, median, 95 %, highest)  {spread(shares)}")


def main() -> None:
    """One line a job, then the spread of each ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", action="store_true", help="what published runs hold, in place of simulation")
    parser.add_argument("-n", type=int, default=120, help="jobs")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.published:
        published()
        return
    rng, done = random.Random(arguments.seed), 0
    found: dict[Group, list[Ratios]] = {Group(key, how): [] for key in (False, True) for how in (False, True)}
    while done < arguments.n:
        job = draw(rng, MODELS[done % len(MODELS)])
        recorded = step_events(resolve(read_job(job)))
        if recorded is None or not SMALLEST <= recorded.peak <= LARGEST:
            continue
        done += 1
        groups = [group for group in found if group.checkpointing == job["gradient_checkpointing"]]
        for group in groups:
            found[group].append(ratios(recorded, group.expandable))
        figures = "  ".join(f"{found[group][-1].holds:.3f} {found[group][-1].needs:.3f}" for group in groups)
        text = " ".join(f"{key}={value}" for key, value in job.items() if key != "gpu")
        print(f"{recorded.peak / GiB:7.2f} GiB  {figures}  {text}", flush=True)
    print("lowest, 5 %, median, 95 %, highest")
    for group, results in found.items():
        for name, position in (("holds", 0), ("needs", 1)):
            print(f"{f'{group.title}, {name}':44} {spread([result[position] for result in results])}")


if __name__ == "__main__":
    main()
