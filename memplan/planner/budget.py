"""``plan --budget``: what is kept, made again or sent to the host, so that a job's peak stays within so many bytes.

The job stays as it is, its layout and its batch too. ``budget_ways`` lists what its trainer can be told, and
``budget_search`` finds the fastest way within so many bytes that are allocated, exactly. What a card holds beyond that
is the allocator's: of a budget of the device the largest of ``STEPS`` equal steps between the least and all that can be
allocated is taken whose fastest way stays within it, as its report says. The steps do not depend on the budget, so that
a larger one gets no slower way."""

from collections.abc import Iterator
from math import inf

from memplan.cost import card, seconds, speed
from memplan.errors import UsageError
from memplan.lengths.longest import at_longest
from memplan.planner.budget_search import Search, Sized
from memplan.planner.budget_ways import Way, Ways, with_keys, without_ways
from memplan.planner.planning import Tell, nothing
from memplan.planner.result import ALLOCATED, DEVICE, Budget, Plan, Plans, Point, Row, billed
from memplan.planner.words import plan_name
from memplan.report import SCHEMA_VERSION, Report
from memplan.reporting import build_report, peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, understood
from memplan.spec.recipe import Recipe
from memplan.spec.recompute import counts_of, is_by_layer
from memplan.tables.recompute_settings import Told
from memplan.units import format_bytes, parse_size

STEPS = 128
SHOWN = 6
"""Rows of the table: budgets in equal steps from the least to all kept."""
TOO_MUCH = 1 << 62
"""Of a way for which a node has not the memory."""


def within(given: JobInput, size: int, meter: str, tell: Tell = nothing, price: float | None = None) -> Plans:
    """The fastest way to run the job within a budget of one of its meters. Raises UsageError where there is no sense in
    one, InvalidJob for a job that cannot be."""
    tell("finding what can be made again", 0, 0)
    given = at_longest(given)
    assumed = _check(given)
    ways = Ways(without_ways(given))
    _check_engine(ways.none.recipe, size)
    asked = _Asked(ways, tell)
    chosen = asked.within(size, meter)
    rows = tuple(asked.rows())
    shown = () if chosen is None else (asked.plan(chosen.way, price),)
    points = tuple(Point(row.name, row.job, row.tokens_per_second, row.device_bytes) for row in rows)
    report = asked.report((chosen or asked.search.kept).way)
    return Plans(
        SCHEMA_VERSION,
        shown,
        points,
        (),
        asked.search.considered,
        asked.search.priced,
        assumptions=tuple(dict.fromkeys((*given.assumptions, *assumed, *report.assumptions))),
        warnings=tuple(dict.fromkeys((*given.warnings, *report.warnings))),
        budget=asked.answer(size, meter, chosen, rows),
    )


class _Asked:
    """One job's ways, with what is shown of each."""

    def __init__(self, ways: Ways, tell: Tell) -> None:
        none = ways.none.recipe
        assert none.hardware.gpu is not None
        on, self.ways, self.tell = card(none.hardware.gpu), ways, tell
        starts, first = [], 0
        for run in none.model.runs:
            starts.append(first)
            first += run.count
        self.search = Search(ways.grids(), lambda way: seconds(way.recipe, on), _allocated, ways.none, starts)
        self.least = self.search.least()
        self._reports: dict[str, Report] = {}

    def report(self, way: Way) -> Report:
        """What ``memplan estimate`` says of it."""
        if way.said not in self._reports:
            self.tell("estimating ways", len(self._reports), 0)
            self._reports[way.said] = build_report(resolve(with_keys(self.ways.given, way.keys)), None)
        return self._reports[way.said]

    def device(self, way: Way) -> int:
        """The high figure of the device."""
        return self.report(way).per_gpu.device_bytes.high

    def within(self, size: int, meter: str) -> Sized | None:
        """The fastest way within a budget, and on the card; None where there is none."""
        gpu = self.ways.none.recipe.hardware.gpu
        assert gpu is not None
        limit = size if meter == DEVICE else int(gpu.usable_bytes)
        most = self.search.kept.bytes if meter == DEVICE else min(size, self.search.kept.bytes)

        def fits(found: Sized | None) -> bool:
            return found is not None and self.device(found.way) <= limit

        good, bad = -1, STEPS + 1
        if fits(whole := self.search.best(most)):
            return whole
        bad = STEPS
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if fits(self._step(middle, most)) else (good, middle)
        return self._step(good, most) if good >= 0 else None

    def _step(self, number: int, most: int) -> Sized | None:
        """The best way of one of the steps."""
        return self.search.best(self.least.bytes + (most - self.least.bytes) * number // STEPS)

    def rows(self) -> list[Row]:
        """Budgets against peak and time: from the least to all kept, but for what a faster one holds less than."""
        steps = (self._step(number * STEPS // (SHOWN - 1), self.search.kept.bytes) for number in range(SHOWN))
        rows = {step.way.said: self.row(step.way) for step in steps if step is not None}
        found: list[Row] = []
        for row in reversed(rows.values()):
            if not found or row.device_bytes < found[-1].device_bytes:
                found.append(row)
        return found[::-1]

    def row(self, way: Way) -> Row:
        """A way as the table has it."""
        report = self.report(way)
        assert report.recipe is not None
        fast = speed(report.recipe).tokens_per_second
        kept = seconds_of(self.search.kept.way) / seconds_of(way)
        return Row(way.name, way.keys, report.per_gpu.allocated_bytes, self.device(way), fast, kept)

    def plan(self, way: Way, price: float | None) -> Plan:
        """A way as plans are shown."""
        report = self.report(way)
        assert report.recipe is not None
        found = speed(report.recipe)
        name, of = plan_name(report.job), report.recipe.parallel.world
        return Plan(name, report.job, report, found, report.per_gpu.peak_instant, (), *billed(found, of, price))

    def answer(self, size: int, meter: str, chosen: Sized | None, rows: tuple[Row, ...]) -> Budget:
        """What is said beside the plan."""
        ways, way = self.ways, (chosen or self.least).way
        full = None if ways.full is None else seconds_of(ways.full) / seconds_of(way)
        kept = chosen is not None and chosen.way == ways.none
        return Budget(
            size,
            meter,
            self.row(way),
            full,
            kept,
            ways.kinds(),
            ways.told.where,
            lines(way, ways.told),
            ways.told.source,
            rows,
        )


def seconds_of(way: Way) -> float:
    """Of a step."""
    assert way.recipe.hardware.gpu is not None
    return seconds(way.recipe, card(way.recipe.hardware.gpu))


def _allocated(way: Way) -> int:
    """The high figure of what is allocated; too much where the node's memory is short."""
    found = peak(way.recipe)
    return TOO_MUCH if found.host.fits is False else found.allocated.high


def _check(given: JobInput) -> list[str]:
    """What is assumed. Raises UsageError."""
    understood(given, "a plan")
    if given.job.gpu is None:
        raise UsageError("a plan is for a card", "add --gpu, such as --gpu h100-80gb")
    if given.job.model is None and given.job.total_params is None:
        raise UsageError("a plan is for a model", "memplan plan llama-3.1-8b --gpu h100-80gb --budget 60GiB")
    if given.job.method == "generate":
        raise UsageError("--budget: generate trains nothing, so that nothing is made again", "leave --budget out")
    if given.sources.get("gradient_checkpointing") == "option":
        raise UsageError("--budget chooses gradient_checkpointing, which is given", "leave one of them out")
    if given.sources.get("gradient_checkpointing"):
        return ["gradient_checkpointing: chosen anew, whatever the job file says"]
    return []


def _check_engine(recipe: Recipe, size: int) -> None:
    """Raise UsageError where an engine has its share of the card, whatever trains, or the card is too small."""
    of, gpu = recipe.generator, recipe.hardware.gpu
    if of is not None and not of.separate and of.engine != "hf":
        raise UsageError(
            f"--budget: {of.engine} beside the trainer takes its share of the card, whatever is made again",
            "leave --budget out, or give the engine cards of its own: --set rollout.placement=separate",
        )
    if gpu is not None and size > gpu.usable_bytes:
        usable = format_bytes(int(gpu.usable_bytes), 1)
        raise UsageError(
            f"--budget: {format_bytes(size, 1)} is more than {gpu.name} has, of which {usable} are usable",
            f"write {usable.replace(' ', '')} or less",
        )


def read_budget(text: str) -> tuple[int, str]:
    """(bytes, meter) of 70GiB, or of allocated:60GiB. Raises UsageError."""
    meter, colon, size = text.partition(":")
    name = meter.strip().lower() if colon else DEVICE
    hint = "write --budget 70GiB, or --budget allocated:60GiB for what torch.cuda.max_memory_allocated says"
    try:
        found = parse_size((size if colon else text).strip())
    except UsageError as error:
        raise UsageError(f"--budget: {text[:40]!r} is no size", hint) from error
    if name not in (DEVICE, ALLOCATED) or not 0 < found < inf:
        raise UsageError(f"--budget: {text[:40]!r} is no budget", hint)
    return found, name


ENABLE = 'model.gradient_checkpointing_enable({"use_reentrant": False})'
LAYERS = "layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]"
KEPT = {"keep-attention": "ATTENTION", "keep-matmuls": "MATMULS"}
OPERATIONS = (
    "aten = torch.ops.aten",
    "ATTENTION = [",
    "    aten._scaled_dot_product_flash_attention.default,",
    "    aten._scaled_dot_product_efficient_attention.default,",
    "    aten._scaled_dot_product_cudnn_attention.default,",
    "]",
)
MATMULS = "MATMULS = [*ATTENTION, aten.mm.default, aten.addmm.default, aten.bmm.default]"


def lines(way: Way, told: Told) -> tuple[str, ...]:
    """The lines of a way."""
    how, away = str(way.keys["gradient_checkpointing"]), "activations" in way.keys.get("offload", ())
    if "layers" in told.lines:
        found = list(_python(how))
    else:
        modules = way.keys.get("megatron", {}).get("recompute_modules", ())
        between = "," if "[{modules}]" in told.lines[way.kind] else " "
        text = told.lines[way.kind].replace("{n}", str(way.n)).replace("{modules}", between.join(modules))
        found = text.splitlines()
    return (*found, told.lines["activations"]) if away else tuple(found)


def _python(how: str) -> Iterator[str]:
    """For a model of transformers; the optimizer and the rest of a loop do not change."""
    if how == "none":
        yield "# no gradient checkpointing"
        return
    if not is_by_layer(how):
        yield ENABLE
        return
    counts, start = counts_of(how), 0
    kept = [word for word in counts if word in KEPT]
    if kept:
        yield "from functools import partial"
        yield "from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts as keeping"
    yield "from transformers.modeling_layers import GradientCheckpointingLayer"
    yield from OPERATIONS if kept else ()
    yield from [MATMULS] if "keep-matmuls" in kept else ()
    yield from (ENABLE, LAYERS)
    for word, count in counts.items():
        if word in KEPT:
            yield f"for layer in layers[{start or ''}:{start + count}]:"
            yield f"    how = partial(checkpoint, use_reentrant=False, context_fn=partial(keeping, {KEPT[word]}))"
            yield "    layer._gradient_checkpointing_func = how"
        start += count
    yield f"for layer in layers[{start}:]:"
    yield "    layer.gradient_checkpointing = False"
