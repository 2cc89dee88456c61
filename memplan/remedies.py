"""What to change: single changes ranked by what they cost the user, the smallest combination, the cards that do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from memplan.engine.overhead import workspace_bytes
from memplan.errors import MemplanError
from memplan.report import Card, Remedy, Report, Step
from memplan.reporting import Totals, judge, totals_of
from memplan.resolve import resolve
from memplan.spec.gpu import Gpu
from memplan.spec.reading import JobInput, build_job
from memplan.spec.recipe import Recipe

COSTS = ("nothing", "setup", "speed", "numerics", "hardware", "training")
"""What a change costs, cheapest first: nothing; effort once; time per step; optimizer numerics; more GPUs; another
training run.
"""
SHOWN = 3
LARGEST_COMBINATION = 4


class Change(NamedTuple):
    """A change that a user could make."""

    title: str
    cost: str
    changes: dict[str, Any]


def candidates(recipe: Recipe) -> Iterator[Change]:
    """Every single change that applies to this job, cheapest first within its kind."""
    if not recipe.expandable_segments:
        yield Change(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "nothing", {"allocator": {"expandable_segments": True}}
        )
    if recipe.optimizer_impl == "foreach" and "fused" in recipe.optimizer.implementations:
        yield Change("fused optimizer step", "nothing", {"optimizer_impl": "fused"})
    if recipe.attention == "eager" and not recipe.model.eager_only:
        yield Change("SDPA attention", "nothing", {"attention": "sdpa"})
    if recipe.sharding == "ddp" and not recipe.gradient_as_bucket_view:
        yield Change("gradients as views of DDP's buckets", "nothing", {"gradient_as_bucket_view": True})
    if recipe.reference == "resident" and not recipe.method.online:
        yield Change("precompute the reference's log-probabilities", "setup", {"reference": "precomputed"})
    yield from _online(recipe)
    yield from _sharding(recipe)
    if not recipe.checkpointing:
        yield Change("gradient checkpointing", "speed", {"gradient_checkpointing": "full"})
    for size in dict.fromkeys((recipe.batch_size // 2, 1)):
        if 0 < size < recipe.batch_size and recipe.batch_size % size == 0:
            steps = recipe.accumulation * recipe.batch_size // size
            yield Change(
                f"batch size {size}, accumulation {steps}",
                "speed",
                {"batch_size": size, "gradient_accumulation_steps": steps, "global_batch_size": None},
            )
    if recipe.method.pairs and not recipe.method.score_head and recipe.pair_pass in ("concatenated", "two-forward"):
        yield Change("split the pair: one half's graph at a time", "speed", {"pair_pass": "split"})
    if recipe.optimizer.name == "adamw" and not recipe.precision.master:
        yield Change("8-bit AdamW", "numerics", {"optimizer": "adamw-8bit", "optimizer_impl": "auto"})
    if recipe.ranks > 1 and recipe.sharding != "none":
        yield Change(f"{recipe.ranks * 2} GPUs", "hardware", {"num_gpus": recipe.ranks * 2, "global_batch_size": None})
    if recipe.adapter is None and not recipe.model.routed:
        changes: dict[str, Any] = {"lora": {"r": 16}}
        yield Change("LoRA r 16 in place of full training", "training", changes)
    if recipe.sequence_length >= 512:
        length = recipe.sequence_length // 2
        yield Change(f"sequence length {length}", "training", {"sequence_length": length, "completion_length": None})


def _online(recipe: Recipe) -> Iterator[Change]:
    """What the update after a rollout can do without."""
    rollout = recipe.job.get("rollout") or {}
    if recipe.method.optional_reference and recipe.reference == "resident":
        yield Change("no KL term (beta 0), so no reference", "training", {"reference": "none"})
    if recipe.loss_code.entropy_gradient:
        yield Change("entropy as a metric, without a gradient", "training", {"entropy": "metric"})
    if recipe.critic is not None:
        others = [extra for extra in recipe.job["extra_models"] if extra["role"] != "critic"]
        yield Change("GRPO in place of PPO: no critic", "training", {"method": "grpo", "extra_models": others})
    if recipe.group > 1 and recipe.group % 2 == 0:
        group = recipe.group // 2
        yield Change(f"groups of {group} completions", "training", {"rollout": {"group_size": group}})
    if rollout.get("completion_length", 0) >= 512:
        length = rollout["completion_length"] // 2
        changes = {"rollout": {"completion_length": length}, "sequence_length": None, "completion_length": None}
        yield Change(f"completions of {length} tokens", "training", changes)


def _sharding(recipe: Recipe) -> Iterator[Change]:
    """The next stages of splitting, when there is something to split over."""
    if recipe.ranks == 1:
        return
    names = {"zero_stage": None}
    if recipe.zero_stage >= 0:
        for stage in range(recipe.zero_stage + 1, 4):
            yield Change(f"ZeRO-{stage}", "speed" if stage == 3 else "setup", names | {"sharding": f"zero{stage}"})
    elif recipe.sharding == "ddp":
        yield Change("FSDP2", "setup", names | {"sharding": "fsdp2"})
        yield Change("ZeRO-2", "setup", names | {"sharding": "zero2"})
        yield Change("ZeRO-3", "speed", names | {"sharding": "zero3"})


def changed(given: JobInput, changes: dict[str, Any]) -> Recipe:
    """The recipe of the job with some keys set (None removes one). Raises MemplanError where that cannot be."""
    values = given.job.model_dump(exclude_unset=True)
    sources = dict(given.sources)
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        elif isinstance(value, dict) and isinstance(values.get(key), dict):
            values[key] = {**values[key], **value}
        else:
            values[key] = value
        sources[key] = "option"
    return resolve(JobInput(build_job(values), sources, given.ignored, given.spec))


class _Priced(NamedTuple):
    change: Change
    totals: Totals
    fits: str


def _price(given: JobInput, change: Change, gpu: Gpu, margin: float) -> _Priced | None:
    try:
        totals = totals_of(changed(given, change.changes))
    except MemplanError:
        return None
    return _Priced(change, totals, judge(totals.device, gpu, margin).fits)


def remedies(given: JobInput, report: Report) -> tuple[Remedy, ...]:
    """Up to three single changes, those that make it fit first and then by cost; and the smallest combination if none
    does.
    """
    recipe, verdict = report.recipe, report.verdict
    if recipe is None or recipe.gpu is None or verdict is None or verdict.fits == "yes":
        return ()
    gpu, before = recipe.gpu, report.per_gpu.device_bytes.expected
    priced = [p for p in (_price(given, change, gpu, recipe.margin) for change in candidates(recipe)) if p is not None]
    useful = [p for p in priced if p.totals.device.expected < before]
    useful.sort(key=lambda p: (p.fits != "yes", COSTS.index(p.change.cost), p.totals.device.expected))
    shown = useful[:SHOWN]
    if not any(p.fits == "yes" for p in useful):
        useful.sort(key=lambda p: (COSTS.index(p.change.cost), p.totals.device.expected))
        shown = useful[:SHOWN]
        priced.sort(key=lambda p: (COSTS.index(p.change.cost), p.totals.device.expected))
        combination = _smallest_combination(given, [p.change for p in priced], gpu, recipe.margin)
        shown += [combination] if combination else []
    return tuple(
        Remedy(
            p.change.title,
            {k: v for k, v in p.change.changes.items() if v is not None},
            p.change.cost,
            before - p.totals.device.expected,
            p.totals.device.expected,
            p.totals.allocated.expected,
            p.fits,
        )
        for p in shown
    )


def _smallest_combination(given: JobInput, changes: list[Change], gpu: Gpu, margin: float) -> _Priced | None:
    """The fewest changes that together make it fit, the cheapest among those; None when four do not."""
    everything = _price(given, _together(tuple(changes)), gpu, margin)
    if everything is None or everything.fits != "yes":
        return None
    for size in range(2, LARGEST_COMBINATION + 1):
        groups = [group for group in combinations(changes, size) if _compatible(group)]
        groups.sort(key=lambda group: sum(4 ** COSTS.index(change.cost) for change in group))
        for group in groups:
            priced = _price(given, _together(group), gpu, margin)
            if priced is not None and priced.fits == "yes":
                return priced
    return None


def _together(group: tuple[Change, ...]) -> Change:
    """All of them as one change; of two for one key, the later."""
    merged: dict[str, Any] = {}
    for change in group:
        merged |= change.changes
    cost = max((change.cost for change in group), key=COSTS.index)
    return Change(" + ".join(change.title for change in group), cost, merged)


def _compatible(group: tuple[Change, ...]) -> bool:
    """No key is set twice."""
    keys = [key for change in group for key, value in change.changes.items() if value is not None]
    return len(keys) == len(set(keys))


GPU_COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def cards(given: JobInput, report: Report) -> tuple[Card, ...]:
    """Every card of the catalogue, smallest first: whether the job fits, or how many GPUs with ZeRO-3 do it."""
    from memplan.gpus import load_gpus

    recipe = report.recipe
    if recipe is None or recipe.gpu is not None:
        return ()
    base = report.per_gpu.device_bytes
    rows, needed = [], _Needed(given, recipe)
    for gpu in sorted(load_gpus().values(), key=lambda gpu: (gpu.usable_bytes, gpu.name)):
        workspace = workspace_bytes(gpu)
        verdict = judge(
            type(needed.band)(*(size + workspace for size in (base.low, base.expected, base.high))), gpu, recipe.margin
        )
        count = None if verdict.fits == "yes" else needed.gpus(gpu, workspace)
        rows.append(Card(gpu.name, gpu.usable_bytes, verdict.headroom_bytes, verdict.fits, count))
    return tuple(rows)


class _Needed:
    """How many GPUs hold the job with ZeRO-3; each count is priced once."""

    def __init__(self, given: JobInput, recipe: Recipe) -> None:
        from memplan.engine.allocator import Band

        self.given, self.recipe, self.band = given, recipe, Band(0, 0, 0)
        self.priced: dict[int, Totals | None] = {}

    def gpus(self, gpu: Gpu, workspace: int) -> int | None:
        """The smallest count tried that fits this card."""
        for count in GPU_COUNTS:
            if count <= self.recipe.ranks:
                continue
            if count not in self.priced:
                change = {
                    "sharding": "zero3",
                    "zero_stage": None,
                    "num_gpus": count,
                    "precision": None,
                    "global_batch_size": None,
                }
                try:
                    self.priced[count] = totals_of(changed(self.given, change))
                except MemplanError:
                    self.priced[count] = None
            totals = self.priced[count]
            if totals is None:
                return None
            device = type(totals.device)(*(size + workspace for size in totals.device))
            if judge(device, gpu, self.recipe.margin).fits == "yes":
                return count
        return None


def from_sft(given: JobInput, report: Report) -> tuple[Step, ...]:
    """The allocated peak as a difference from SFT of the same examples: sequences, the loss, the reference's
    weights.
    """
    recipe = report.recipe
    if recipe is None or recipe.method.name == "sft":
        return ()
    drop = {
        "reference": None,
        "extra_models": None,
        "pair_pass": None,
        "loss_head": None,
        "sft_term": None,
        "logits_dtype": None,
        "rollout": None,
        "entropy": None,
        "temperature": None,
        "recompute_loss": None,
        "sequence_length": recipe.sequence_length,
        "completion_length": recipe.completion_length,
    } | ({"batch_size": recipe.rows, "global_batch_size": None} if recipe.group > 1 else {})
    try:
        sft = totals_of(changed(given, drop | {"method": "sft"})).allocated.expected
        rows = {"batch_size": recipe.rows} if recipe.method.pairs else {}
        twice = totals_of(changed(given, drop | {"method": "sft", "global_batch_size": None} | rows)).allocated.expected
    except MemplanError:
        return ()
    models = sum(row.bytes for row in report.per_gpu.ledger if row.category in ("reference", "extra_models"))
    critic = sum(row.bytes for row in report.per_gpu.ledger if row.name.endswith("of the critic"))
    total = report.per_gpu.allocated_bytes
    steps = [Step("SFT of the same examples", sft)]
    if recipe.method.pairs:
        steps.append(Step("twice the sequences", twice - sft))
    if models:
        steps.append(Step("weights of the reference and other models", models))
    if critic:
        steps.append(Step("weights and states of the critic", critic))
    rest = total - twice - models - critic
    steps.append(Step(f"the loss of {recipe.method.name} in place of cross-entropy", rest))
    return tuple(steps)
