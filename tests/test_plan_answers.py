"""Proves that the list of plans and the answers beside it never contradict each other: they are one search."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from any_jobs import MODELS
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.engine.totals import forget
from memplan.gpus import listed
from memplan.planner import plan, questions
from memplan.planner.candidates import Candidates, trainings
from memplan.planner.listed import Listed
from memplan.planner.planning import Question, question, search
from memplan.planner.questions import gpu_counts, least_of_all, tried
from memplan.planner.words import plan_name
from memplan.reporting import peak
from memplan.spec.gpu import Gpu
from memplan.spec.groups import Provenance
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.methods import METHODS
from memplan.units import GiB

JOBS = st.fixed_dictionaries(
    {
        "model": st.sampled_from([MODELS["untied"], MODELS["mixtral"]]),
        "method": st.sampled_from(["sft", "simpo"]),
        "gpu": st.just("2GiB"),
        "margin": st.sampled_from([0.1, 0.3, 0.4, 0.5, 0.55, 0.6]),
        "num_gpus": st.sampled_from([1, 2, 3, 6]),
        "gpus_per_node": st.sampled_from([2, 4]),
        "sequence_length": st.sampled_from([64, 512]),
    },
    optional={"trainer": st.sampled_from(["pytorch", "trl"]), "lora": st.just({"r": 8})},
)
MOST_CIRCLES = 3_000
"""Objects: those of a few plays, where one for each of the candidates would be ten times as many."""


@pytest.mark.slow
@given(job=JOBS)
@examples(8)
def test_the_fewest_gpus_are_the_first_count_whose_list_has_a_plan(job: dict[str, Any]) -> None:
    job = {**job, "global_batch_size": 12}
    found = plan(read_job(job), wanted=1, suggest=False, ask=["min_gpus"])
    asked = question(read_job(job))
    if any(plan_.training for plan_ in found.plans):  # pure bf16, which the answer is not of
        return
    listed = [count for count in gpu_counts(asked) if tried_at(asked, count)]
    assert found.answers[0].value == (listed[0] if listed else None)
    assert bool(found.plans) == (job["num_gpus"] in listed)


def tried_at(asked: Question, count: int) -> bool:
    space = asked.space._replace(gpus=count)
    there = asked._replace(given=questions._with(asked, num_gpus=count), space=space)
    of, names = tried(there), [plan_name({**each.keys, **priced.keys}) for each, priced in search(there).found.plans]
    assert of.may_fit == any(of.pricing(each).fits for each in of.of.legal)
    assert of.fastest == next(iter(names), "")
    return bool(names)


@pytest.mark.slow
def test_a_largest_batch_is_in_the_list_of_that_batch_and_the_next_is_not() -> None:
    """Its play reaches beyond what its ledger may: batch 64 would fit by that."""
    job = {"model": "starcoder2-3b", "method": "simpo", "gpu": "mi300x-192gb", "num_gpus": 8, "sequence_length": 8192}
    job |= {"lora": {"r": 16}, "quantization": "nf4"}
    value = plan(read_job(job), wanted=1, ask=["batch_size"]).answers[0].value
    assert isinstance(value, int)
    fixed = [read_job({**job, "batch_size": size, "gradient_accumulation_steps": 1}) for size in (value, value + 1)]
    options = dict.fromkeys(("batch_size", "gradient_accumulation_steps"), "option")
    asked = [question(each._replace(sources={**each.sources, **options})) for each in fixed]
    assert [bool(search(each).found.plans) for each in asked] == [True, False]


@given(job=JOBS)
@examples(5)
def test_no_plan_holds_less_than_its_share_of_all_states(job: dict[str, Any]) -> None:
    of = tried(question(read_job({**job, "gpu": "80GB", "margin": 0.05, "kernels": "none", "loss_head": "auto"}))).of
    for each in of.legal[::9]:
        least = least_of_all(each.recipe)
        assert least <= peak(each.recipe, search=True).device.expected * each.recipe.parallel.world


def test_all_gpus_at_hand_are_a_count() -> None:
    asked = question(read_job({"model": "llama-3.2-1b", "gpu": "80GB", "num_gpus": 20}))
    assert list(gpu_counts(asked)) == [*range(1, 9), 16, 20]


@pytest.mark.slow
def test_a_smallest_card_of_another_vendor_is_planned_as_that_vendors() -> None:
    job = {"model": "llama-3.2-1b", "method": "sft", "gpu": "ascend-910b-64gb", "num_gpus": 2}
    small = plan(read_job(job), wanted=1, ask=["smallest_card"]).answers[0]
    again = plan(read_job({**job, "gpu": small.value}), wanted=1)
    assert small.words.endswith(again.plans[0].name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"method": "dpo", "num_gpus": 8},
        {"method": "sft", "lora": {"r": 8}, "quantization": "nf4", "num_gpus": 2},
        {"method": "grpo", "trainer": "verl", "num_gpus": 4, "allocator": {"per_process_memory_fraction": 0.9}},
        {"model": MODELS["mixtral"], "method": "sft", "num_gpus": 16, "trainer": "megatron"},
        {"method": "sft", "float8": "tensorwise", "num_gpus": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("other", ["rtx-5070-12gb", "rtx-4090-24gb", "a100-40gb", "h200-141gb"])
def test_what_was_listed_for_one_card_is_listed_for_another(keys: dict[str, Any], other: str) -> None:
    """With the same recipes, but for the order; and where something generates, beside that."""
    job = {"model": "llama-3.2-1b", "gpu": "h100-80gb", "gpus_per_node": 8, "global_batch_size": 16, **keys}
    asked, there = question(read_job(job)), question(read_job({**job, "gpu": other}))
    listed = Listed(asked, tried(asked).of)
    leanest = METHODS[keys["method"]].online
    found, own = (lists(there.given, there.space, there.device, leanest) for lists in (listed, trainings))
    assert named(found) == named(own)
    assert len(found.legal) == len(own.legal)
    assert own.legal or "float8" in keys


def named(of: Candidates) -> dict[str, Recipe]:
    return {
        repr(sorted(each.keys.items())): each.recipe._replace(provenance=Provenance({}, {}), generator=None)
        for each in of.legal
    }


@pytest.mark.parametrize("needs", [9, 15, 20, 23.2, 30, 47, 90, 500])
def test_a_smallest_card_is_the_first_that_fits_of_all(needs: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards of one kind need the same, and each kind a little more than the one before."""
    first = tried(question(read_job({"model": "llama-3.2-1b", "gpu": "h100-80gb", "num_gpus": 8})))
    kinds = dict.fromkeys((gpu.vendor, gpu.architecture, gpu.link[:6] == "NVLink") for gpu in listed())
    least = {kind: (needs + number / 4) * GiB for number, kind in enumerate(kinds)}

    def fits(gpu: Gpu) -> bool:
        return gpu.usable_bytes >= least[gpu.vendor, gpu.architecture, gpu.link[:6] == "NVLink"]

    asked: list[str] = []

    def one(of: Question, lists: Any) -> Any:
        asked.append(of.gpu.name)
        return SimpleNamespace(may_fit=fits(of.gpu), fastest="a plan")

    monkeypatch.setattr(questions, "tried", one)
    answer = questions.smallest_card(first, lambda *said: None)
    assert answer.value == next((gpu.name for gpu in listed() if gpu.has_bf16 and fits(gpu)), None)
    assert len(asked) <= len(listed()) / 2


@pytest.mark.parametrize(
    "keys",
    [
        {"model": MODELS["mixtral"], "method": "dpo", "trainer": "trl", "lora": {"r": 8}, "quantization": "nf4"},
        {"model": "gemma-3n-e2b", "method": "sft", "gradient_checkpointing": "full"},
    ],
    ids=["refused often", "played as one stack"],
)
def test_a_search_leaves_nothing_to_the_collector_of_cycles(keys: dict[str, Any]) -> None:
    """The command runs without it: what names itself in a circle would be there until the end."""
    asked = question(read_job({"gpu": "80GB", "num_gpus": 2, "global_batch_size": 4, "sequence_length": 512, **keys}))
    search(asked, wanted=1)
    forget()
    gc.collect()
    gc.disable()
    try:
        tried(asked)
        search(asked, wanted=1)
        left = gc.collect()
    finally:
        gc.enable()
    assert left < MOST_CIRCLES
