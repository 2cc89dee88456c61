"""What stands beside an estimate: what to change, the cards that hold the job, what it has over SFT."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from memplan.engine.allocator.reserved import Band
from memplan.engine.overhead import HANDLES, workspace_bytes
from memplan.engine.step_and_evaluation import EVALUATION
from memplan.errors import MemplanError
from memplan.generated import Step
from memplan.gpus import listed
from memplan.meters import Totals, judge, needed_of
from memplan.report import Card, Remedy, Report, Verdict
from memplan.reporting import totals_of
from memplan.resolve import resolve
from memplan.resolve.attention import attention_on
from memplan.spec.gpu import Gpu
from memplan.spec.parallel import Parallel
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe

COSTS = ("nothing", "setup", "speed", "numerics", "training", "cards", "data")
"""What a remedy costs: nothing; effort once; time a step; optimizer precision; another run; more cards; cut data."""


def remedies(given: JobInput, report: Report) -> tuple[Remedy, ...]:
    """What would make the job fit its card, by a search for plans; nothing where it fits, or is not understood."""
    recipe, verdict = report.recipe, report.verdict
    if recipe is None or recipe.hardware.gpu is None or verdict is None or verdict.fits == "yes":
        return ()
    if verdict.fits == "unclear":
        if recipe.provenance.unclear or not verdict.missing_bytes:
            return ()
        given = given._replace(unread=())  # what fits from above fits
        recipe = resolve(given)
    from memplan.planner.remedies import remedies as search

    return search(given, recipe, needed_of(verdict))


def changed(given: JobInput, changes: dict[str, Any]) -> Recipe:
    """The recipe of the job with some keys set (None removes one). Raises MemplanError where that cannot be."""
    return resolve(with_changes(given, changes))


GPU_COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def cards(given: JobInput, report: Report) -> tuple[Card, ...]:
    """Every card, smallest first: whether the job fits, or GPUs with ZeRO-3 that do it; none if not understood."""
    recipe = report.recipe
    if recipe is None or recipe.hardware.gpu is not None or report.unclear:
        return ()
    base, rows, needed = _every_phase(report), [], _Needed(given, recipe)
    first = {gpu.architecture: gpu for gpu in reversed(listed())}  # a workspace is its architecture's
    held = {architecture: _device(report, gpu) for architecture, gpu in first.items()}
    for gpu in listed():
        device = held[gpu.architecture]
        verdict = judge(device if device else base, gpu, recipe.hardware.margin)
        count = None if verdict.fits == "yes" else needed.gpus(gpu, HANDLES * workspace_bytes(gpu))
        lacks = "" if gpu.has_bf16 or recipe.storage.precision.dtype != "bf16" else "bf16"
        lacks = lacks if device else "flash attention"
        rows.append(Card(gpu.name, gpu.usable_bytes, verdict.headroom_bytes, verdict.fits, count, lacks))
    return tuple(rows)


def on_card(report: Report, gpu: Gpu) -> Verdict | None:
    """Whether a job without a card fits this one; None where it does not run there."""
    assert report.recipe is not None
    device = _device(report, gpu)
    return device and judge(device, gpu, report.recipe.hardware.margin)


def _device(report: Report, gpu: Gpu) -> Band | None:
    """What this card holds at most with the job of a report without one; None where it does not run there."""
    recipe = report.recipe
    assert recipe is not None
    if gpu.has_bf16:
        return _moved(_every_phase(report), HANDLES * workspace_bytes(gpu))
    attention = attention_on(gpu, recipe)
    if not attention:
        return None
    hardware = recipe.hardware._replace(gpu=gpu)
    return totals_of(
        recipe._replace(hardware=hardware, operators=recipe.operators._replace(attention=attention))
    ).device


def _every_phase(report: Report) -> Band:
    """What the device holds at most, in the step and in the phases beside it that allocate more."""
    gpu, bands = report.per_gpu, [report.per_gpu.device_bytes]
    if any(size > gpu.allocated_bytes for size in gpu.phases.values()):
        bands += [each.device_bytes for each in gpu.moments]
    low, expected, high = zip(*((each.low, each.expected, each.high) for each in bands), strict=True)
    return Band(max(low), max(expected), max(high))


class _Needed:
    """How many GPUs hold the job with ZeRO-3; each count is priced once."""

    def __init__(self, given: JobInput, recipe: Recipe) -> None:
        self.recipe = recipe
        self.counts = tuple(count for count in GPU_COUNTS if count > recipe.sharding.ranks)
        self.spread, self.priced = on_counts(given, self.counts), dict[int, Totals]()

    def gpus(self, gpu: Gpu, workspace: int) -> int | None:
        """The smallest count tried that fits this card. What is divided falls as one over the count, so that all the
        doublings to come save what the last one saved; where twice that is too little no more are priced."""
        margin, last = self.recipe.hardware.margin, 0
        for count in self.counts:
            if count not in self.priced:
                recipe = next(self.spread)
                if recipe is None:
                    self.spread = repeat(None)
                    return None
                self.priced[count] = totals_of(recipe)
            device = _moved(self.priced[count].device, workspace)
            if judge(device, gpu, margin).fits == "yes":
                return count
            if last and device.high - 2 * (last - device.high) > gpu.usable_bytes * (1 - margin):
                return None
            last = device.high
        return None


def _moved(device: Band, size: int) -> Band:
    """With so many bytes more."""
    return Band(*(figure + size for figure in device))


def on_counts(given: JobInput, counts: Iterable[int]) -> Iterator[Recipe | None]:
    """The job with ZeRO-3 on each of these numbers of GPUs, two or more; None where that cannot be.

    A recipe of data parallelism alone, without a group of completions, a cluster or DeepSpeed settings, hangs
    on the number by its ranks, so that only the first is resolved (its ``job`` keeps the first number)."""
    change = {"sharding": "zero3", "zero_stage": None, "precision": None, "global_batch_size": None}
    first: Recipe | None = None
    for count in counts:
        if first is not None:
            yield first._replace(parallel=Parallel(count), sharding=first.sharding._replace(ranks=count))
            continue
        try:
            found = changed(given, change | {"num_gpus": count})
        except MemplanError:
            yield None
            continue
        alone = given.job.cluster is None and not given.job.deepspeed.model_fields_set
        if alone and found.parallel == Parallel(count) and found.batch.group == 1:
            first = found
        yield found


def from_sft(given: JobInput, report: Report) -> tuple[Step, ...]:
    """The allocated peak beside that of SFT of the same examples: sequences, the loss, the reference's weights."""
    recipe = report.recipe
    if recipe is None or recipe.method.name == "sft" or report.per_gpu.peak_instant.startswith(EVALUATION):
        return ()
    none = """reference extra_models pair_pass loss_head sft_term logits_dtype rollout entropy temperature
        recompute_loss hold_outputs eval_batch_size token_budget logprob_token_budget"""
    drop = {
        **dict.fromkeys(none.split()),
        "padded": recipe.batch.padded,
        "sequence_length": recipe.batch.sequence_length,
        "completion_length": recipe.batch.completion_length,
    } | ({"batch_size": recipe.rows, "global_batch_size": None} if recipe.batch.group > 1 else {})
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
