"""Reserved beyond allocated, by simulation: what the caching allocator holds, and the least that it needs.

For one-GPU jobs that differ in model, method, length, batch, LoRA, checkpointing and optimizer, two steps are
played request by request. ``holds``: reserved at the second step's peak on a card without end, beyond the bytes
that the ledger calls allocated. ``needs``: the least capacity in which both steps run, beyond the same. Both as a share
of the bytes that come and go: the allocated peak less what is there between two steps, which never leaves its blocks.
``memplan/engine/allocator/reserved.py`` takes its bands from the last lines, which say too how many plays are above
the last column of ``FRAGMENTATION``. ``--published``: what published runs held beside their play (``figures.SPREAD``).
"""

import argparse
import random
from typing import Any, NamedTuple

from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.allocator.capacities import least
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.figures import DOUBT, SPREAD, played
from memplan.engine.allocator.replay import StepEvents, play
from memplan.engine.allocator.reserved import FRAGMENTATION, SLACK, Unplayed
from memplan.engine.allocator.settings import Settings
from memplan.engine.totals import totalled
from memplan.errors import InvalidJob
from memplan.meters import measure, room_of
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
    slack: float
    """Of the band of searches."""


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


def ratios(recorded: StepEvents, expandable: bool) -> Ratios:
    """Holds and needs."""
    settings, allocated = Settings(expandable), recorded.peak
    roomy = CachingAllocator(settings)
    play(recorded, roomy)
    needs = least(recorded, settings, roomy.peak_reserved)
    moving = allocated - between_steps(recorded)
    return Ratios((roomy.peak_reserved - allocated) / moving, (needs - allocated) / moving, SLACK / moving)


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
    what their play holds on the same card, as a share of what comes and goes.
    """
    shares = []
    for row in (row for group in read_sets() if group.kind == "published" for row in group.rows):
        held = row.meters.get("reserved", row.meters.get("device"))
        if row.unusable or not held or row.job.get("num_gpus", 1) > 1:
            continue
        try:
            recipe = resolve(read_job(row.job))
        except InvalidJob:
            continue
        ledger = totalled(recipe)
        meters = measure(ledger, recipe)
        if "reserved" not in row.meters:
            held -= meters.outside.expected
        room = room_of(meters, recipe) if recipe.hardware.gpu else None
        found = played(recipe, meters.allocated.expected, room)
        if isinstance(found, Unplayed):
            continue
        shares.append((held - (found.on_card or found.endless)) / found.moving)
        print(f"{held / GiB:7.2f} GiB  {shares[-1]:6.3f}  {row.id}")
    inside = sum(abs(share) <= SPREAD for share in shares)
    print(f"{len(shares)} runs beyond their play (lowest, 5 %, median, 95 %, highest)  {spread(shares)}")
    print(f"{inside} of them within {SPREAD} of what comes and goes")


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
        most = FRAGMENTATION[group.expandable, group.checkpointing].most
        above = sum(result.needs + DOUBT > most + result.slack for result in results)
        print(f"{f'{group.title}, above {most} of a search':44} {above} of {len(results)}")


if __name__ == "__main__":
    main()
