"""DeepSpeed's ledger: rows against the real engine's storages, and what holds for every job."""

import json
from itertools import pairwise
from typing import Any

import pytest
from deepspeed_rows import MEASURED, job_of, recipe_of
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.engine.build import build_ledger
from memplan.engine.ledger import Ledger
from memplan.engine.micro_step import stages
from memplan.engine.parallel.zero.stage3 import passes_of
from memplan.errors import InvalidJob
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job

STATES = ("parameters", "adapters", "master_weights", "gradients", "optimizer_states")
HELD = (*STATES, "buffers", "gathered_parameters", "optimizer_temporaries")


def held(ledger: Ledger, instant: str, categories: tuple[str, ...] = HELD, places: tuple[str, ...] = ("gpu",)) -> int:
    """Bytes of these categories at an instant; rotary tables are the model's."""
    at = ledger.index[instant]
    rows = (row for row in ledger.rows if row.born <= at <= row.dies and row.name != "rotary tables")
    return sum(row.bytes for row in rows if row.category in categories and row.place in places)


# -- against the real engine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["name"])
def test_states_and_steps_are_the_engines(row: dict[str, Any]) -> None:
    """Bytes that stay, and the step's peak: the real DeepSpeed's on CPU, where nothing is page-locked.

    Beside them the engine has step counters of 4 bytes and a few scalars; the tape rounds whole gradients of norms up.
    hpZ's second partition ends with the step.
    """
    ledger = build_ledger(job_of(row))
    last = len(ledger.schedule) - 1
    persistent = {id(each) for each in ledger.rows if each.name == "persistent parameters"}
    whole = [each for each in ledger.rows if each.born == 0 and (each.dies == last or id(each) in persistent)]
    stays = sum(
        each.low_bytes
        for each in whole
        if each.category in HELD and each.name not in ("rotary tables", "hpZ's second partition")
    )
    accumulated = sum(
        each.bytes for each in whole if each.name.startswith("accumulated gradients") and each.place == "gpu"
    )
    whole_gradients = row["found"][0]["optimizer"] in ("FP16_UnfusedOptimizer", "BF16_Optimizer")
    several = 512 * 13 if whole_gradients else 1024
    resident = max(found["resident"] for found in row["found"])
    assert stays - accumulated == pytest.approx(resident, abs=512)
    places = ("gpu", "host") if "offload" in json.dumps(row["job"]) else ("gpu",)
    step = max(found["step_peak"] for found in row["found"])
    if places == ("gpu",):
        assert held(ledger, "step.optimizer") == pytest.approx(step, abs=several)


PLAIN = {row["name"]: row["found"][0] for row in MEASURED if row["name"] in ("stage 2", "stage 2, checkpointing")}
GATHERING = [
    row for row in MEASURED if row["name"].startswith("stage 3") and not row["job"].keys() & {"trained", "lora"}
]


@pytest.mark.parametrize("row", [row for row in GATHERING if "hpZ" not in row["name"]], ids=lambda row: row["name"])
def test_weights_that_stay_gathered_after_the_forward_are_the_coordinators(row: dict[str, Any]) -> None:
    """What a forward leaves beside what stage 2's leaves of the same model."""
    ledger, found = build_ledger(job_of(row)), row["found"][0]
    plain = PLAIN["stage 2, checkpointing" if row["job"].get("checkpointing") else "stage 2"]
    left = found["after_forward"] - found["resident"] - (plain["after_forward"] - plain["resident"])
    at = ledger.index["policy.loss"]
    assert sum(each.bytes for each in ledger.rows if each.name == "gathered weights" and each.born == at) == left


@pytest.mark.parametrize("row", [row for row in MEASURED if "lora" in row["job"]], ids=lambda row: row["name"])
def test_phases_with_adapters_are_the_engines(row: dict[str, Any]) -> None:
    """PEFT's wrappers fetch ahead too, and stage 3's linears keep the inputs of frozen weights. Experts that several
    gatherings bring are waited for in the order of a set: the fullest one counts."""
    phases, found = build_report(job_of(row)).per_gpu.phases, row["found"][0]
    over = 0.05 if "beside experts" in row["name"] else 0.0005
    for phase, key in (("forward", "forward_peak"), ("backward", "backward_peak"), ("step", "step_peak")):
        assert -0.0005 <= phases[phase] / found[key] - 1 <= over


@pytest.mark.parametrize("name", [row["name"] for row in MEASURED if "stage 3" not in row["name"]])
def test_gradients_after_backward_are_the_engines(name: str) -> None:
    """What is left of a backward beside the states, before the step takes it: ranks own different parameters, and some
    hold one more gradient until Python's garbage collector runs."""
    row = next(row for row in MEASURED if row["name"] == name)
    ledger, found = build_ledger(job_of(row)), row["found"]
    if "host" in name:
        assert held(ledger, "step.optimizer", STATES, ("gpu",)) < found[0]["after_backward"]
        return
    left = [each["after_backward"] for each in found]
    assert min(left) - 512 <= held(ledger, "step.optimizer", (*STATES, "buffers")) <= max(left) + 512 * 13


# -- properties -------------------------------------------------------------------------------------------------------

Keys = dict[str, Any]
JOBS = st.fixed_dictionaries(
    {},
    optional={
        "lora": st.just({"r": 4}),
        "gradient_accumulation_steps": st.sampled_from([1, 3]),
        "gradient_checkpointing": st.sampled_from(["none", "full"]),
        "trainer": st.sampled_from(["pytorch", "trl"]),
        "method": st.sampled_from(["sft", "dpo"]),
        "grad_dtype": st.just("fp32"),
        "deepspeed": st.sampled_from(
            [
                {"overlap_comm": True},
                {"contiguous_gradients": False},
                {"sub_group_size": 5000, "stage3_param_persistence_threshold": 0},
                {"reduce_bucket_size": 3000, "round_robin_gradients": True},
            ]
        ),
    },
)


def model_states(ledger: Ledger, places: tuple[str, ...] = ("gpu",)) -> int:
    return held(ledger, "step.optimizer", STATES, places)


def possible(keys: Keys) -> Ledger:
    try:
        return build_ledger(recipe_of(**keys))
    except InvalidJob:
        assume(False)
        raise


CUT = 2 * 512 * 64 * 4
"""Two parameters of a tiny model may be cut by the boundaries of a part."""


@given(keys=JOBS, stage=st.sampled_from([1, 2, 3]), ranks=st.sampled_from([2, 3, 8]))
@examples(60)
def test_more_ranks_never_hold_more_states_each(keys: Keys, stage: int, ranks: int) -> None:
    fewer, more = (possible(keys | {"zero_stage": stage, "num_gpus": n}) for n in (ranks, 2 * ranks))
    assert model_states(more) <= model_states(fewer) + (CUT if stage < 3 else 4096)


@pytest.mark.slow
@given(keys=JOBS, ranks=st.sampled_from([2, 4, 7]))
@examples(40)
def test_a_later_stage_never_holds_more_states(keys: Keys, ranks: int) -> None:
    keys = {key: value for key, value in keys.items() if key != "grad_dtype"}
    sizes = [model_states(possible(keys | {"zero_stage": stage, "num_gpus": ranks})) for stage in range(4)]
    assert all(later <= earlier + CUT for earlier, later in pairwise(sizes)), sizes


@given(
    keys=JOBS,
    stage=st.sampled_from([1, 2, 3]),
    what=st.sampled_from([["optimizer"], ["optimizer", "parameters"]]),
    ranks=st.sampled_from([1, 2, 8]),
)
@examples(60)
def test_offload_never_raises_states_on_the_card(keys: Keys, stage: int, what: list[str], ranks: int) -> None:
    keys = {key: value for key, value in keys.items() if key != "grad_dtype"}  # BF16_Optimizer offloads nothing
    keys |= {"zero_stage": stage, "num_gpus": ranks}
    here, away = possible(keys), possible(keys | {"offload": what})
    assert model_states(away) <= model_states(here)
    assert model_states(away, ("gpu", "host")) >= model_states(here, ("gpu", "host")) - CUT


@given(keys=JOBS, stage=st.sampled_from([0, 1, 2, 3]))
@examples(40)
def test_the_ledger_sums_to_the_report(keys: Keys, stage: int) -> None:
    try:
        found = recipe_of(**keys, zero_stage=stage)
    except InvalidJob:
        assume(False)
        raise
    report, ledger = build_report(found), build_ledger(found)
    assert report.per_gpu.allocated_bytes == max(ledger.totals())
    assert sum(report.per_gpu.by_category.values()) == report.per_gpu.allocated_bytes
    bounds = report.per_gpu.allocated_range
    assert bounds.low <= report.per_gpu.allocated_bytes <= bounds.high


def test_adapters_that_are_switched_off_leave_the_order_up_to_the_first_of_them() -> None:
    """PEFT's wrappers run around linears whose adapters rest, and the base's weights are the same ones."""
    job = {"model": "llama-3.2-1b", "method": "dpo", "zero_stage": 3, "num_gpus": 8, "lora": {"r": 8}}
    recipe = resolve(read_job(job))
    off, on = ([visit.module for visit in one.visits] for one in passes_of(list(stages(recipe)), recipe.adapter))
    differ = next(at for at, (one, other) in enumerate(zip(off, on, strict=False)) if one != other)
    assert [size for _, size in on[differ].parameters] == [8 * recipe.model.hidden_size]
    rest = iter(on)
    assert all(each in rest for each in off if each.parameters)


@pytest.mark.parametrize("kernels", ["none", "liger"])
def test_a_head_that_the_models_own_forward_reads_is_whole_until_it_has_run_back(kernels: str) -> None:
    """It is a parameter of the model then; else it is gathered when its module runs."""
    one = {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0}
    of = recipe_of(zero_stage=3, trainer="transformers", kernels=kernels, gradient_checkpointing=True, deepspeed=one)
    ledger, head = build_ledger(of), 2 * of.model.head.parameters
    for instant in ("policy.layer-forward", "policy.first-layer-backward"):
        gathered = sum(row.bytes for row in ledger.alive(instant) if row.name == "gathered weights")
        assert (gathered >= head) == (kernels == "liger")
