"""Proves that the search finds what brute force finds, and that a plan is what ``estimate`` says of its job."""

import json
import random
from functools import partial
from itertools import product
from operator import add, ge
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import memplan
from memplan.cli.app import main
from memplan.cost import card, examples_per_step, seconds
from memplan.errors import InvalidJob, UsageError
from memplan.planner import Plans, plan
from memplan.planner import candidates as planned_candidates
from memplan.planner.axes import Refusal, joined
from memplan.planner.candidates import Builder, without_choices
from memplan.planner.changes import change
from memplan.planner.planning import question
from memplan.planner.search import best, front, largest, nearest
from memplan.planner.space import CHECKPOINTING, HEADS, PAIR_PASSES, batches, data_ranks, layouts
from memplan.planner.splits import candidates
from memplan.render.plan_view import plan_blocks
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.allocator import Allocator
from memplan.spec.reading import read_job, with_changes

SMALL = {"model": "qwen3-0.6b", "method": "simpo", "sequence_length": 512, "global_batch_size": 8, "gpu": "8GiB"}


class Made(NamedTuple):
    """A candidate that was drawn."""

    order: tuple[float, int]
    group: int
    under: int
    batch: int
    layout: int
    size: int


def drawn(random_: random.Random) -> list[Made]:
    """A small space: groups whose memory grows with the batch, some of them over a group that holds no more, or one
    that is not there; speeds that do what they like, some of them equal."""
    made: list[Made] = []
    sizes: dict[int, list[int]] = {}
    for group in range(random_.randint(1, 6)):
        size, layout = random_.randint(1, 30), random_.randint(0, 3)
        under = random_.choice([*range(group), group, 9])
        most = sizes.get(under, [0] * 9)
        sizes[group] = [size := max(size + random_.randint(0, 12), most[batch]) for batch in range(9)]
        for batch in random_.sample(range(1, 9), random_.randint(1, 4)):
            made.append(Made((random_.randint(1, 12), len(made)), group, under, batch, layout, sizes[group][batch]))
    return sorted(made)


def bound(room: int, sure: float, each: Made, enough: float = 0) -> int:
    """A share of what is missing, whatever is ``enough``."""
    return int(sure * max(0, each.size - room))


@pytest.mark.parametrize("seed", range(8))
def test_the_search_finds_what_brute_force_finds_in_thousands_of_spaces(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(500):
        space, room, wanted = drawn(random_), random_.randint(1, 60), random_.randint(1, 3)
        priced: list[Made] = []

        def price(each: Made, priced: list[Made] = priced) -> int:
            priced.append(each)
            return each.size

        sure = random_.random()
        found = best(
            space, price, partial(ge, room), wanted, least=partial(bound, room, sure), surely=random_.random() < 0.5
        )
        fitting = [each for each in space if each.size <= room]
        first: dict[int, Made] = {}
        for each in fitting:
            first.setdefault(each.layout, each)
        assert [each for each, _ in found.plans] == sorted(first.values())[:wanted]
        assert found.priced == len(priced) == len(set(priced)) <= len(space)
        assert all(each.size > room for each, _ in (*found.rejected, *found.ruled_out))
        looked = [each for each, _ in (*found.rejected, *found.ruled_out)]
        assert len(looked) == len(set(looked))
        surer = sure + random_.random() * (1 - sure)
        misses = nearest(found, price, partial(add, -room), least=partial(bound, room, surer))
        assert found.priced == len(priced) == len(set(priced))
        for layout in {each.layout for each in looked}:
            short = min(each.size for each in looked if each.layout == layout)
            assert [size for each, size in misses if each.layout == layout] == [short]


@pytest.mark.parametrize("seed", range(4))
def test_the_front_is_that_of_brute_force(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(500):
        space, room = drawn(random_), random_.randint(1, 60)
        sure = sorted((random_.random(), random_.random()))
        least = [partial(lambda share, each: int(share * each.size), share) for share in sure]
        found = front(space, lambda each: each.size, partial(ge, room), lambda size: size, least=least, most=room)
        fitting = [each for each in space if each.size <= room]
        expected = [each for i, each in enumerate(fitting) if all(each.size < before.size for before in fitting[:i])]
        assert [each for each, _ in found.plans] == expected


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_is_exact(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(500):
        low, most = random_.randint(1, 20), random_.randint(1, 3000)
        limit = random_.randint(0, 3200)
        assert largest(partial(ge, limit), low, most) == max(low - 1, min(limit, most))
        slope, curve, step = random_.randint(1, 9), random_.randint(0, 2), random_.randint(1, 99)
        for short in (1, slope):  # what it misses by at the least is told of some, and nothing of others

            def room(size: int, by: tuple[int, int, int] = (limit, slope, curve), short: int = short) -> int:
                left = by[1] * (by[0] - size) + by[2] * (by[0] ** 2 - size**2)
                return left + 1 if left >= 0 else left // short if size % 3 else 0

            assert largest(room, low, most, step) == max(low - 1, min(limit, most))


AXES: dict[str, tuple[Any, ...]] = {
    "gradient_checkpointing": CHECKPOINTING,
    "loss_head": HEADS,
    "pair_pass": PAIR_PASSES,
    "optimizer_impl": ("fused", "foreach"),
    "attention": ("sdpa", "flash", "eager"),
    "kernels": ("none", "liger"),
}


def everything(job: dict[str, Any]) -> list[tuple[float, int]]:
    """(seconds of an example, device bytes) of every combination that is legal, nothing left out."""
    asked = question(read_job(job))
    found = []
    free = {key: axis for key, axis in AXES.items() if key not in job}
    for layout in layouts(asked.space):
        precision = {"precision": "bf16-amp"} if layout["sharding"] in ("none", "ddp") else {}
        ranks = data_ranks(asked.space, layout)
        for (size, _), *chosen in product(batches(asked.space, ranks), *free.values()):
            keys = {**job, **layout, **precision, **dict(zip(free, chosen, strict=True)), "batch_size": size}
            try:
                recipe = resolve(read_job(keys))
            except InvalidJob:
                continue
            took = seconds(recipe, asked.device) / examples_per_step(recipe)
            variants = (
                recipe.varied({"hardware.allocator": Allocator(expandable_segments=expandable)})
                for expandable in (False, True)
            )
            found += [(took, peak(each, search=True).device.high) for each in variants]
    return found


REAL: tuple[dict[str, Any], ...] = (
    {"num_gpus": 1, "global_batch_size": 2, "pair_pass": "concatenated"},
    {"num_gpus": 1, "global_batch_size": 4, "loss_head": "auto", "gradient_checkpointing": "every:2"},
    {"num_gpus": 2, "global_batch_size": 4, "pair_pass": "split", "loss_head": "fused", "attention": "sdpa"},
    {"num_gpus": 2, "global_batch_size": 2, "method": "sft", "loss_head": "auto", "optimizer_impl": "fused"},
)


@pytest.mark.slow
@pytest.mark.parametrize("keys", REAL, ids=str)
def test_a_real_plan_is_the_best_of_all_that_can_be(keys: dict[str, Any]) -> None:
    job = {**SMALL, **keys, "gpu": "24GiB"}
    every = everything(job)
    assert len(every) > 50
    for room in (4, 6, 8, 10, 12, 16, 24):
        margin = 1 - room / 24 * 0.95
        fitting = [took for took, size in every if size <= int(24 * 2**30 * (1 - margin))]
        found = plan(read_job({**job, "margin": margin}), wanted=1, suggest=False)
        assert found.fits >= bool(fitting), room
        if not fitting:  # what is not searched by itself: pure bf16
            assert all(each.training for each in found.plans)
        if fitting:
            recipe = found.plans[0].report.recipe
            assert recipe is not None
            took = seconds(recipe, question(read_job(job)).device) / examples_per_step(recipe)
            assert took == pytest.approx(min(fitting), rel=1e-9), room


@pytest.fixture(scope="module")
def planned() -> Plans:
    return plan(read_job({"model": "llama-3.1-8b", "method": "simpo", "gpu": "h100-80gb", "num_gpus": 8}))


@pytest.mark.slow
def test_plans_are_ranked_and_fit(planned: Plans) -> None:
    assert planned.fits
    assert len(planned.plans) == 5
    speeds = [each.speed.tokens_per_second for each in planned.plans]
    assert speeds == sorted(speeds, reverse=True)
    assert all(each.report.verdict is not None and each.report.verdict.fits == "yes" for each in planned.plans)
    assert 0 < planned.priced < planned.considered


@pytest.mark.slow
def test_a_plan_is_estimated_to_the_same_bytes(planned: Plans) -> None:
    for each in planned.plans:
        again = memplan.estimate(each.job)
        assert again.per_gpu.device_bytes.high == each.report.per_gpu.device_bytes.high
        assert again.per_gpu.allocated_bytes == each.report.per_gpu.allocated_bytes


@pytest.mark.slow
def test_the_same_question_has_the_same_answer(planned: Plans) -> None:
    again = plan(read_job({"model": "llama-3.1-8b", "method": "simpo", "gpu": "h100-80gb", "num_gpus": 8}))
    assert again.to_dict() == planned.to_dict()


@pytest.mark.slow
def test_misses_say_how_much_and_where(planned: Plans) -> None:
    misses = [each for each in planned.rejected if each.short_bytes]
    assert misses
    assert all("short by" in each.reason and " at " in each.reason for each in misses)
    assert any("model states alone" in each.reason and each.name == "DDP" for each in planned.rejected)


FIXED = [
    ({"zero_stage": 3}, "sharding", "zero3"),
    ({"batch_size": 2}, "batch_size", 2),
    ({"gradient_checkpointing": "full"}, "gradient_checkpointing", "full"),
    ({"loss_head": "chunked"}, "loss_head", "chunked"),
    ({"precision": "bf16", "sharding": "ddp"}, "precision", "bf16"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "key", "value"), FIXED, ids=str)
def test_what_is_given_stays(keys: dict[str, Any], key: str, value: Any) -> None:
    found = plan(read_job({**SMALL, "gpu": "80GB", "num_gpus": 2, **keys}))
    assert found.plans
    assert all(each.job[key] == value for each in found.plans)


@pytest.mark.slow
def test_a_job_files_choices_are_chosen_anew_and_its_batch_is_kept() -> None:
    values = {**SMALL, "gpu": "80GB", "num_gpus": 2, "gradient_checkpointing": "full", "gradient_accumulation_steps": 4}
    values.pop("global_batch_size")
    found = plan(read_job({}, {**values, "batch_size": 2}))
    best_ = found.plans[0].job
    assert best_["gradient_checkpointing"] == "none"
    assert best_["batch_size"] * best_["gradient_accumulation_steps"] * 2 == 16


@pytest.mark.slow
def test_a_size_alone_is_planned_and_said_to_be_a_shape_and_a_wide_range() -> None:
    found = plan(read_job({"total_params": "3B", "method": "simpo", "gpu": "h100-80gb", "num_gpus": 2}), wanted=1)
    best_ = found.plans[0]
    again = memplan.estimate(best_.job).per_gpu
    assert again.device_bytes.high == best_.report.per_gpu.device_bytes.high
    assert again.allocated_range.high > again.allocated_bytes
    assert any("interpolated" in text and "wide" in text for text in found.assumptions)


ONE_TRL = {"model": "llama-3.2-1b", "trainer": "trl", "sequence_length": 512, "global_batch_size": 2}
NOTHING = {"model": "llama-3.1-8b", "method": "sft", "gpu": "rtx-4090-24gb", "sharding": "none"}


@pytest.mark.slow
def test_where_nothing_fits_it_says_what_would_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(read_job(NOTHING))
    assert not found.fits
    assert found.needed == ("LoRA of rank 16",)
    assert found.plans[0].job["lora"]["r"] == 16
    assert main(["plan", "llama-3.1-8b", "--method", "sft", "--gpu", "rtx-4090", "--sharding", "none"]) == 1
    assert "nothing fits as asked" in capsys.readouterr().out


def test_where_nothing_fits_every_set_of_as_few_changes_is_said() -> None:
    found = plan(read_job({**ONE_TRL, "method": "sft", "gpu": "8GiB"}), wanted=1)
    assert found.needed == ("states or activations offloaded to CPU",)
    assert [each.allow for each in found.instead] == ["lora", "qlora"]
    assert "how much there is nobody said" in str(plan_blocks(found, 100))
    last = found.instead[-1]
    again = plan(read_job({**ONE_TRL, "method": "sft", "gpu": "8GiB"}), allow=[last.allow], wanted=1)
    assert (again.fits, again.plans[0].name, again.plans[0].training) == (True, last.name, last.training)


@pytest.mark.parametrize("name", ["lora", "qlora"])
def test_adapters_come_with_an_optimizer_that_takes_them(name: str) -> None:
    """GaLore projects the gradients of full weights."""
    given = read_job({"model": "llama-3.2-1b", "method": "sft", "optimizer": "galore", "gpu": "8GiB"})
    made = change(name, given.job)
    assert made is not None
    assert made.words.endswith(" and AdamW")
    assert resolve(with_changes(given, made.values[0])).optimizer.row.name == "adamw"


def test_a_frozen_base_is_loaded_in_half_precision_and_need_not_wait_on_the_host() -> None:
    """TRL loads fp32 where nobody says; what it has a switch for may also be left unsaid."""
    job = {**ONE_TRL, "method": "dpo", "gpu": "6GiB", "lora": {"r": 8}}
    found = plan(read_job(job), wanted=1)
    assert found.fits
    assert (found.plans[0].job["dtype"], found.plans[0].job["offload"]) == ("bf16", [])


@pytest.mark.slow
def test_what_estimate_finds_to_fit_a_plan_finds_too() -> None:
    """Pure bf16, which estimate counts of a bare loop, where no plan with fp32 weights fits."""
    job = {
        "model": "llama-3.2-1b",
        "gpu": "t4",
        "gradient_checkpointing": "full",
        "loss_head": "fused",
        "sequence_length": 1024,
    }
    estimated = memplan.estimate(job).verdict
    assert estimated is not None
    assert estimated.fits == "yes"
    found = plan(read_job(job), wanted=1)
    assert found.fits
    assert found.plans[0].training == ("pure bf16 (no fp32 weights)",)
    assert found.plans[0].report.job["precision"] == "bf16"
    assert not any("fp32 master weights" in text for text in found.assumptions)
    assert not plan(read_job({**job, "precision": "bf16-amp"}), wanted=1).fits


@pytest.mark.slow
def test_a_question_is_about_the_plans_that_are_shown() -> None:
    """With what was allowed where that was needed; as asked where nothing allowed fits."""
    job = {"model": "llama-3.2-1b", "gpu": "4GB", "sequence_length": 512}
    found = plan(read_job(job), allow=["qlora"], ask=["sequence_length"], wanted=1)
    assert found.plans[0].training == ("QLoRA (4-bit base)",)
    longest = found.answers[0].value
    assert isinstance(longest, int)
    assert longest >= 512
    asked = plan(read_job(job), ask=["sequence_length"], wanted=1)
    assert asked.needed
    assert (asked.answers[0].value, asked.answers[0].words) == (None, "nothing fits as asked")


@pytest.mark.slow
def test_an_allowed_change_is_made_only_where_it_is_needed() -> None:
    found = plan(read_job(NOTHING), allow=["lora"])
    assert found.fits
    assert found.plans[0].training == ("LoRA of rank 16",)
    assert not plan(read_job({**NOTHING, "gpu": "b300"}), allow=["lora"]).plans[0].training


@pytest.mark.parametrize("key", ["batch_size", "sequence_length"])
def test_the_largest_fits_and_one_more_does_not(key: str) -> None:
    job = {**SMALL, "gpu": "16GiB", "sharding": "none", "gradient_checkpointing": "full", "loss_head": "auto"}
    job |= {"pair_pass": "concatenated", "attention": "sdpa", "allocator": {"expandable_segments": True}}
    job.pop("global_batch_size")
    answer = plan(read_job({**job, "gradient_accumulation_steps": 1}), ask=[key]).answers[0]
    assert isinstance(answer.value, int)
    fixed = {**job, "precision": "bf16-amp", "optimizer_impl": "fused", "batch_size": 1}
    fits = [
        peak(resolve(read_job({**fixed, key: value})), search=True).verdict.fits  # type: ignore[union-attr]
        for value in (answer.value, answer.value + 1)
    ]
    assert fits[0] == "yes"
    assert fits[1] != "yes"


@pytest.mark.slow
def test_the_fewest_gpus_and_the_smallest_card() -> None:
    job = {"model": "llama-3.2-1b", "method": "sft", "gpu": "20GB", "num_gpus": 4, "trainer": "pytorch"}
    few, small = plan(read_job(job), ask=["min_gpus", "smallest_card"]).answers
    assert few.value == 4
    assert plan(read_job({**job, "num_gpus": 4}), wanted=1, suggest=False).fits
    fewer = plan(read_job({**job, "num_gpus": 2}), wanted=1, suggest=False)
    assert all(each.training for each in fewer.plans)
    assert isinstance(small.value, str)
    assert plan(read_job({**job, "gpu": small.value})).fits


@pytest.mark.parametrize(
    ("keys", "allow", "message"),
    [
        ({"model": "qwen3-0.6b"}, (), "a plan is for a card"),
        ({"gpu": "h100-80gb"}, (), "a plan is for a model"),
        (SMALL, ("lorra",), "unknown change"),
    ],
)
def test_what_cannot_be_asked(keys: dict[str, Any], allow: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(read_job(keys), allow=allow)


COMMAND = ["plan", "qwen3-0.6b", "--method", "simpo", "--gpu", "80GB", "--sequence-length", "512"]
COMMAND += ["--pair-pass", "concatenated", "--loss-head", "auto"]


@pytest.mark.slow
def test_the_written_plan_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    assert main([*COMMAND, "--output", str(path)]) == 0
    assert "considered" in capsys.readouterr().out
    assert main([*COMMAND, "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert main(["estimate", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    first = plans["plans"][0]["report"]
    assert report["per_gpu"]["device_bytes"] == first["per_gpu"]["device_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("width", ["60", "140"])
def test_the_view_keeps_its_width(width: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main([*COMMAND, "--pareto", "--maximize", "batch_size"]) == 0
    out = capsys.readouterr().out
    assert "Speed against memory" in out
    assert max(map(len, out.splitlines())) <= int(width)


def test_speeds_are_those_of_the_cost_model(planned: Plans) -> None:
    recipe = planned.plans[0].report.recipe
    assert recipe is not None
    assert recipe.hardware.gpu is not None
    assert planned.plans[0].speed.step_seconds == pytest.approx(seconds(recipe, card(recipe.hardware.gpu)))


@pytest.mark.slow
def test_a_trainer_on_megatron_runs_what_it_has() -> None:
    """NeMo-Aligner's DPO has no context parallelism, no chunks, and swaps its reference in from the host."""
    job = {"model": "llama-3.1-8b", "method": "dpo", "gpu": "h100-80gb", "num_gpus": 8, "trainer": "nemo-aligner"}
    found = plan(read_job(job), wanted=20)
    assert found.plans
    assert all(each.job["reference"] == "offloaded" for each in found.plans)
    assert all(each.job["context_parallel"] == each.job["virtual_pipeline"] == 1 for each in found.plans)
    assert {each.reason for each in found.rejected} >= {"NeMo-Aligner has none for dpo"}
    warned = memplan.estimate({**job, "context_parallel": 2, "reference": "resident"}).warnings
    assert any("context_parallel: NeMo-Aligner has none for dpo" in text for text in warned)
    assert any("reference: NeMo-Aligner has none that is resident" in text for text in warned)


@pytest.mark.slow
def test_a_trainer_that_the_planner_found_is_asked_for_nothing_that_it_cannot_be_told() -> None:
    job = {"model": "llama-3.1-8b", "method": "simpo", "gpu": "ascend-910b-64gb", "num_gpus": 8}
    found = plan(read_job(job), wanted=8)
    megatron = [each.job for each in found.plans if each.job["trainer"] == "mindspeed"]
    assert megatron
    assert {each["pair_pass"] for each in megatron} == {"concatenated"}
    assert not [each for each in found.rejected if "pair_pass" in each.reason]


EIGHT = {"model": "llama-3.1-8b", "method": "simpo"}
SEVENTY = {"model": "llama-3.1-70b", "method": "dpo", "gpu": "h100-80gb"}
LARGEST = {"model": "llama-3.1-405b", "method": "sft", "gpu": "h100-80gb", "num_gpus": 1024, "global_batch_size": 1024}
SHOWS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({**EIGHT, "gpu": "rtx-4090-24gb", "num_gpus": 2}, ("offload",)),
    ({**EIGHT, "gpu": "ascend-910b-64gb", "num_gpus": 8}, ()),
    ({**EIGHT, "gpu": "h100-80gb", "num_gpus": 8}, ()),
    ({**SEVENTY, "num_gpus": 8, "pair_pass": "concatenated", "loss_head": "auto"}, ("offload",)),
    ({**SEVENTY, "num_gpus": 16, "pair_pass": "concatenated", "loss_head": "auto"}, ("offload",)),
    ({**SEVENTY, "num_gpus": 64, "pair_pass": "concatenated"}, ()),
    (LARGEST, ()),
    (
        {
            "model": "mixtral-8x7b",
            "method": "sft",
            "gpu": "h100-80gb",
            "num_gpus": 16,
            "tensor_parallel": 2,
            "expert_parallel": 1,
        },
        (),
    ),
)


QUICK: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("job", "allow"),
    [pytest.param(*each, marks=() if number in QUICK else pytest.mark.slow) for number, each in enumerate(SHOWS)],
    ids=str,
)
def test_the_plans_that_the_documents_show_are_estimated_to_the_same_bytes(
    job: dict[str, Any], allow: tuple[str, ...]
) -> None:
    found = plan(read_job(job), allow=allow, wanted=3)
    assert found.fits
    assert found.plans[0].training == (("states or activations offloaded to CPU",) if allow else ())
    for each in found.plans:
        again = memplan.estimate(each.job)
        assert again.per_gpu.device_bytes.high == each.report.per_gpu.device_bytes.high
        assert again.per_gpu.allocated_bytes == each.report.per_gpu.allocated_bytes
        assert again.host.bytes_per_node == each.report.host.bytes_per_node
        assert again.verdict is not None
        assert again.verdict.fits == "yes"


@pytest.mark.slow
def test_what_misses_with_changes_is_said_too() -> None:
    """A search that is made once is not made again for what would be needed."""
    job = {**EIGHT, "gpu": "rtx-4090-24gb", "num_gpus": 2, "sharding": "fsdp2", "pair_pass": "concatenated"}
    job |= {"loss_head": "auto", "attention": "sdpa", "precision": "bf16-amp"}
    found = plan(read_job(job), allow=["offload"])
    missed = [each for each in found.rejected if ": FSDP2" in each.name[:60] and "offloaded to CPU" in each.name]
    assert len(missed) == 1
    assert missed[0].short_bytes
    assert found.needed


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["bert-base", "--method", "simpo"], "bert is an encoder", "reward"),
        (
            ["llama-3.2-1b", "--num-gpus", "8", "--global-batch-size", "7"],
            "global_batch_size: 7 is no multiple",
            "use 8",
        ),
        (
            ["llama-3.2-1b", "--num-gpus", "8", "--method", "sft", "--fix", "tensor_parallel=3"],
            "num_gpus: 8 is no multiple",
            "num_gpus 9",
        ),
        (["llama-3.2-1b", "--fix", "zero_stage"], "--fix 'zero_stage' is no assignment", "--fix zero_stage=3"),
        (["llama-3.2-1b", "--fix", "foo=3"], "--fix 'foo=3': unknown key 'foo'", ""),
        (["llama-3.2-1b", "--maximize", "speed"], "--maximize: not 'speed'", "batch_size"),
    ],
)
def test_what_can_never_run_is_an_error_and_no_lack_of_memory(
    arguments: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments, "--gpu", "h100-80gb"]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert hint in said


@pytest.mark.parametrize(("gpus", "batch"), [(1, 64), (3, 66), (8, 64), (96, 96), (1024, 1024)])
def test_where_no_batch_is_given_all_gpus_have_some(gpus: int, batch: int) -> None:
    asked = question(read_job({"model": "llama-3.2-1b", "method": "sft", "gpu": "h100-80gb", "num_gpus": gpus}))
    assert asked.space.global_batch == batch


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "qwen3-0.6b", "method": "dpo", "num_gpus": 8},
        {"model": "qwen3-0.6b", "method": "kto", "num_gpus": 2, "lora": {}, "trainer": "llamafactory"},
        {"model": "gemma-3n-e2b", "method": "simpo", "num_gpus": 2},
        {"model": "recurrentgemma-2b", "method": "simpo", "num_gpus": 1},
        {"model": "t5-small", "method": "sft", "num_gpus": 2},
        {"model": "deepseek-v2-lite", "method": "orpo", "num_gpus": 16, "trainer": "trl"},
        {"model": "olmoe-1b-7b", "method": "sft", "num_gpus": 16},
        {"model": "qwen3-0.6b", "method": "dpo", "num_gpus": 4, "trainer": "megatron-swift"},
    ],
    ids=str,
)
def test_a_candidate_is_what_resolve_makes_of_its_keys(keys: dict[str, Any]) -> None:
    asked = question(read_job({**keys, "gpu": "h100-80gb"}))
    builder = Builder(without_choices(asked.given), asked.space, asked.device)
    legal = {each.group: each for each in candidates(asked.given, asked.space, asked.device).legal}
    assert legal
    for each in legal.values():
        found, resolved = (
            {name: value for name, value in recipe.flat().items() if not name.startswith("provenance.")}
            for recipe in (each.recipe, builder.recipe(each.keys))
        )
        assert found == resolved, each.keys


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "t5-small", "method": "sft", "num_gpus": 2},
        {"model": "gemma-2-9b", "method": "kto", "num_gpus": 8, "sequence_length": 8192},
        {"model": "qwen2.5-vl-7b", "method": "dpo", "num_gpus": 2, "quantization": "nf4", "lora": {"r": 8}},
    ],
    ids=str,
)
def test_what_refuses_both_halves_of_a_structure_refuses_it(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = question(read_job({**keys, "gpu": "a100-40gb"}))
    space, said = (asked.given, asked.space, asked.device), list[Refusal]()

    def noted(*given: Any) -> Any:
        found = joined(*given)
        said.extend([found] if isinstance(found, Refusal) else [])
        return found

    monkeypatch.setattr(planned_candidates, "joined", noted)
    found = planned_candidates.trainings(*space)
    assert said
    monkeypatch.setattr(planned_candidates, "joined", lambda *given: None)
    whole = planned_candidates.trainings(*space)
    assert found.refused == whole.refused
    assert [each.keys for each in found.legal] == [each.keys for each in whole.legal]
