"""Proves the play of ZeRO: what it holds is what the real engine held (tests/data/deepspeed), never more than the
ledger's rows, and a few layers stand for all."""

import json
from pathlib import Path
from typing import Any

import pytest
from deepspeed_rows import EVALUATIONS, LLAMA, MEASURED, job_of, recipe_of
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.allocator.events import is_covered, step_events
from memplan.engine.allocator.replay import EMPTY_CACHE, StepEvents, play
from memplan.engine.build import build_ledger
from memplan.engine.play.unfolding import _of_hooks, played
from memplan.engine.play.zero.engine import notes_of
from memplan.engine.play.zero.visits import Modules, passes_of, placed, visits_of
from memplan.engine.tensors import count, model_weights
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

PLAYED = [row for row in MEASURED if is_covered(job_of(row))]
ON_CARD = [row for row in PLAYED if "host" not in row["name"]]
NEAR = 0.005
"""Of what was held: fp32 norms on CPU keep a little less."""
BESIDE = {
    "stage 2, four ranks": (0, 14812, 0, 0),
    "stage 2, fp32 communication": (0, 48856),
    "stage 3, sub-groups and persistent parameters": (124032, 124032),
}
"""Bytes of backward's measured peak that are not the engine's, by rank: of stage 2, a gradient that Python's garbage
collector had not come to; of stage 3, the views of ``torch.chunk``, which the worker took for storages."""
TINY: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 3000, "hidden_size": 256, "intermediate_size": 700, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip


def recipe(**keys: Any) -> Recipe:
    job = {"model": TINY, "method": "sft", "batch_size": 2, "sequence_length": 300, "num_gpus": 4, **keys}
    return resolve(read_job(job))


def peaks(events: StepEvents) -> dict[str, int]:
    """The most bytes in each part of the last step, not rounded."""
    found: dict[str, int] = {}
    live, part, starts = 0, "", {at: name for at, name in events.marks if "." in name}
    for at, (number, size) in enumerate(events.events):
        name = starts.get(at, "")
        part = "evaluate" if name.startswith("evaluation") else name.rsplit(".", 1)[-1] or part
        tag, before = events.tags[number], live
        live += tag.elements * tag.itemsize * (1 if size > 0 else -1)
        if at >= events.start:
            found[part] = max(found.get(part, 0), before, live)
    return found


@pytest.mark.parametrize("row", ON_CARD, ids=lambda row: row["name"])
def test_every_rank_holds_what_the_engine_held(row: dict[str, Any]) -> None:
    of = job_of(row)
    for rank, found in enumerate(row["found"]):
        peak = peaks(played(of, rank=rank))
        beside, over = BESIDE.get(row["name"], (0,) * 4)[rank], 0.05 if "beside experts" in row["name"] else NEAR
        for phase, held in (("backward", found["backward_peak"] - beside), ("forward", found.get("forward_peak"))):
            assert held is None or -NEAR <= peak[phase] / held - 1 <= over
        assert peak["optimizer"] == pytest.approx(found["step_peak"], abs=160, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("row", EVALUATIONS, ids=lambda row: row["name"])
def test_an_evaluation_holds_what_the_engine_held(row: dict[str, Any]) -> None:
    """Its engine knows the order of a step, and leaves whole what a backward would need soon."""
    of = job_of(row)
    experts = row["name"] == "experts"  # a block's are waited for at their fullest
    assert -NEAR <= peaks(played(of))["evaluate"] / row["evaluate_peak"] - 1 <= (0.05 if experts else NEAR)
    reported = build_report(of, False).per_gpu.phases["evaluate"]
    assert -0.0005 <= reported / row["evaluate_peak"] - 1 <= (0.05 if experts else 0.0005)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradients_of_two_forwards_meet_before_the_engine_has_them(reentrant: bool | None) -> None:
    """Those of one graph wait whole for the other's, but for a reentrant checkpoint's; and the order that the first
    forward has recorded ends with it."""
    again = {} if reentrant is None else {"gradient_checkpointing": True, "gradient_checkpointing_reentrant": reentrant}
    small = {"reduce_bucket_size": 100_000}
    of = recipe(method="simpo", pair_pass="two-forward", sharding="zero3", deepspeed=small, **again)
    whole, found = 2 * count(model_weights(of.model)), peaks(played(of))
    assert found["backward"] == pytest.approx(build_report(of, False).per_gpu.phases["backward"], rel=0.01)
    states = max(build_ledger(of, detailed=False).totals()[:1])
    assert (found["backward"] > states + whole * 0.9) == (not reentrant)


EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 256,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 24,
    "num_experts_per_tok": 4, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("again", [False, True])
def test_the_ledger_knows_what_is_alive_when_experts_are_gathered(again: bool) -> None:
    """They come twice, the flat buffer and what is copied out of it, when most of their layer is not there yet."""
    near = {"stage3_prefetch_bucket_size": 300_000, "stage3_max_reuse_distance": 3_000_000}
    keys = {"model": EXPERTS, "sequence_length": 1000, "lora": {"r": 8}, "gradient_checkpointing": again}
    of = recipe(sharding="zero3", deepspeed={**near, "reduce_bucket_size": 100_000}, **keys)
    found, ledger = peaks(played(of)), build_report(of, False).per_gpu.phases
    for phase in ("forward", "backward"):
        assert ledger[phase] == pytest.approx(found[phase], rel=0.002)


def test_a_reference_whose_parameters_are_on_the_host_is_not_on_the_card() -> None:
    """TRL's ``prepare_deepspeed`` gives its engine the policy's config."""
    of = recipe(sharding="zero3", method="dpo", trainer="trl", offload=["optimizer", "parameters"])
    assert "reference" not in {tag.category for tag in played(of).tags}


PLAYS = json.loads((Path(__file__).parent / "data/deepspeed/played.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", PLAYS["rows"], ids=lambda row: row["name"])
def test_reserved_is_that_of_the_engines_own_storages(row: dict[str, Any]) -> None:
    """Allocated to 0.01 %; reserved to 7 %: one or two segments of 20 MiB are as much in these small models."""
    events = played(job_of(row))
    allocator = CachingAllocator()
    marks = tuple(mark for mark in events.marks if mark[1] == EMPTY_CACHE)
    play(events._replace(streams={}, recorded={}, marks=marks), allocator)
    for found in row["found"]:
        assert allocator.peak_allocated == pytest.approx(found["allocated"], rel=1e-4)
        assert allocator.peak_reserved == pytest.approx(found["reserved"], rel=0.07)


@pytest.mark.parametrize("folds", [True, False])
def test_modules_run_in_the_engines_order(folds: bool) -> None:
    """Also those without parameters: each of them fetches ahead."""
    model = LLAMA | {"num_hidden_layers": 6}
    of = recipe_of(model=model, deepspeed={"stage": 3}, gradient_checkpointing="full")
    (*_, (_, notes)) = passes_of(notes_of(_of_hooks(of, 1, folds)))
    visits = visits_of(Modules(placed(of.model, None, frozen=True), of.model.hidden_size), notes)
    order = [module for line in PLAYS["order"] for module in line.split(", ")]
    assert [len(visit.module.parameters) for visit in visits] == [int(module.split(" ")[2]) for module in order]


def test_stage_1_keeps_what_does_not_fit_into_a_bucket() -> None:
    """Reduced as they come, gradients of other ranks stay to the epilogue: the ledger knows it."""
    short = {"sharding": "zero1", "sequence_length": 16}
    jobs = [recipe(**short, deepspeed={"overlap_comm": True, "reduce_bucket_size": n}) for n in (10**5, 10**6)]
    ledgers = [max(build_ledger(of, detailed=False).totals()) for of in jobs]
    few, all_ = (size - 4 * of.sharding.deepspeed.reduce_bucket_size for size, of in zip(ledgers, jobs, strict=True))
    assert few > all_ + 5_000_000
    for of in jobs:
        assert played(of).peak <= max(build_ledger(of, detailed=False).totals()) * 1.0005


SETTINGS: dict[str, tuple[Any, ...]] = {
    "overlap_comm": (False, True),
    "reduce_bucket_size": (100_000, 700_000, 500_000_000),
    "contiguous_gradients": (True, True, False),
    "reduce_scatter": (True, True, False),
    "communication_data_type": ("bf16", "bf16", "fp32"),
    "offload_optimizer": ({"device": "none"}, {"device": "cpu"}),
}
GATHERED: dict[str, tuple[Any, ...]] = {
    "stage3_prefetch_bucket_size": (0, 100_000, 50_000_000),
    "stage3_param_persistence_threshold": (0, 1000, 100_000),
    "stage3_max_reuse_distance": (0, 300_000, 1_000_000_000),
    "sub_group_size": (1_000_000, 1_000_000_000),
    "offload_param": ({"device": "none"}, {"device": "cpu"}),
}


@pytest.mark.slow
@examples(25)
@given(
    st.fixed_dictionaries({key: st.sampled_from(values) for key, values in (SETTINGS | GATHERED).items()}),
    st.sampled_from(("zero1", "zero2", "zero3", "zero3")),
    st.sampled_from((1, 3)),
    st.booleans(),
    st.sampled_from(("pytorch", "transformers")),
    st.sampled_from((None, {"r": 8})),
    st.integers(8, 14),
)
def test_it_is_folded_and_never_above_the_ledger(
    settings: dict[str, Any], stage: str, micro: int, again: bool, trainer: str, lora: Any, layers: int
) -> None:
    """The rows of the ledger are maxima of their instants: what comes one after another there is a sum. Stage 3's
    coordinator is told of the modules of a layer in nearly the order in which they run. Where gradients are not
    contiguous, the play has a bucket's flat copy beside more of them than the ledger; such a job keeps its band."""
    keys = {"gradient_accumulation_steps": micro, "gradient_checkpointing": again, "trainer": trainer}
    model = {**TINY, "num_hidden_layers": layers}
    settings = settings if stage == "zero3" else {key: settings[key] for key in SETTINGS}
    of = recipe(sharding=stage, deepspeed=settings, model=model, **keys, **({"lora": lora} if lora else {}))
    found = played(of)
    assert found == played(of, folds=False)
    ledger = max(build_ledger(of, detailed=False).totals())
    flat = (
        0
        if settings["contiguous_gradients"]
        else 2 * min(settings["reduce_bucket_size"], count(model_weights(of.model)))
    )
    assert found.peak <= ledger * (1.01 if stage == "zero3" else 1.0005) + flat
    live = set[int]()
    for number, size in found.events:
        assert (number in live) == (size < 0)
        live ^= {number}


@pytest.mark.slow
def test_a_model_whose_parameters_are_not_all_known_is_not_played() -> None:
    """It has weights of its activation."""
    assert step_events(recipe(model="apertus-8b", sharding="zero1", gradient_checkpointing=True)) is None
    for stage in ("zero2", "zero3"):
        step_events(recipe(model="apertus-8b", sharding=stage, gradient_checkpointing=True))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_layers_that_only_images_reach_are_held_without_any(stage: str) -> None:
    of = recipe(model="llama-3.2-11b-vision", sharding=stage, gradient_checkpointing=True)
    found = step_events(of)
    assert found is not None
    assert found.peak == pytest.approx(max(build_ledger(of, detailed=False).totals()), rel=0.001)
