"""Proves that the sums a search asks for are the ledger's, whatever was asked before, and that nothing read is lost."""

from pickle import dumps, loads
from typing import Any

import pytest
from any_jobs import ANY_JOB, MODELS, Keys, possible
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.engine import totals as quick
from memplan.engine.build import SECTIONS, Parts, build_ledger
from memplan.engine.memo import Reading, Remembered, Values
from memplan.engine.ranks import rank_classes
from memplan.engine.totals import totalled
from memplan.errors import InvalidJob
from memplan.planner.steps import depends_on_batch
from memplan.report import plain
from memplan.reporting import build_report, peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

KINDS = [("allocated", "gpu"), ("device", "gpu"), ("allocated", "host"), ("managed", "host")]
BOUNDS = ("low_bytes", "bytes", "high_bytes")


def recipe_of(**keys: Any) -> Recipe:
    return resolve(read_job({"model": MODELS["untied"], "batch_size": 2, "sequence_length": 64, **keys}))


def agrees(recipe: Recipe) -> None:
    ledger, quickly = build_ledger(recipe), totalled(recipe)
    assert quickly.schedule == ledger.schedule
    assert quickly.meters("host") == ledger.meters("host")
    for meter, place in KINDS:
        for bound in BOUNDS:
            assert quickly.totals(meter, place, bound) == ledger.totals(meter, place, bound), (meter, place, bound)
        assert quickly.lasting(meter, place) == ledger.lasting(meter, place)


@pytest.mark.slow
@given(keys=ANY_JOB, more=st.fixed_dictionaries({}, optional={"batch_size": st.integers(1, 3), "gpu": st.just("h200")}))
@examples(150)
def test_sums_are_the_ledgers_to_the_byte(keys: Keys, more: Keys) -> None:
    possible(keys)
    agrees(recipe_of(**keys))
    agrees(recipe_of(**{**keys, **more}))


CHANGES: dict[str, Any] = {
    "batch.size": 3,
    "batch.accumulation": 5,
    "batch.sequence_length": 96,
    "batch.completion_length": 32,
    "batch.padded": True,
    "checkpointing.form": "full",
    "optimizer.implementation": "fused",
    "sharding.ranks": 3,
    "sharding.sync_each_batch": True,
    "sharding.gradient_as_bucket_view": True,
    "loss.keeps_outputs": True,
}


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("sharding", ["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"])
def test_each_field_that_matters_is_seen(sharding: str, field: str) -> None:
    before = recipe_of(method="dpo", sharding=sharding, num_gpus=1 if sharding == "none" else 2)
    agrees(before)
    agrees(before.varied({field: CHANGES[field]}))
    agrees(before)


def test_only_what_was_read_is_asked_again() -> None:
    ran = []

    def rows_times(recipe: Any, parts: Any) -> int:
        ran.append(recipe.batch.size)
        return int(recipe.batch.size * (recipe.sharding.ranks if recipe.batch.padded else 1))

    remembered, values = Remembered(rows_times), Values()
    first = recipe_of(sharding="ddp", num_gpus=2, padded=False)

    def ask(recipe: Recipe) -> int:
        return remembered(Reading(values, recipe))

    assert (
        ask(first) == ask(first.varied({"sharding.ranks": 4})) == ask(first.varied({"batch.sequence_length": 7})) == 2
    )
    assert len(ran) == 1
    padded = first.varied({"batch.padded": True})
    assert (ask(padded), ask(padded.varied({"sharding.ranks": 4})), ask(first.varied({"batch.size": 5}))) == (4, 8, 5)
    assert len(ran) == 4


def test_equal_values_are_one_and_others_are_not() -> None:
    values = Values()
    one, same, other = (recipe_of(lora={"r": rank}).adapter for rank in (8, 8, 16))
    assert one is not same
    assert values.key(one) == values.key(same) != values.key(other)
    assert values.key({"a": 1, "b": 2}) == values.key({"b": 2, "a": 1}) != values.key({"a": 1})
    assert values.key([1]) != values.key([1])
    assert values.key((0,)) != values.key(0)


@pytest.mark.slow
def test_what_is_remembered_is_bounded_and_can_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "NUMBERED", 0)
    recipe = recipe_of(method="dpo")
    agrees(recipe)
    agrees(recipe)
    quick.forget()
    agrees(recipe)


def test_a_search_runs_a_section_again_only_for_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    quick.forget()
    recipe = recipe_of(method="dpo", num_gpus=2, sharding="zero2")
    totalled(recipe)
    monkeypatch.setattr(quick.ORDINARY.rows[0], "function", lambda *both: 1 // 0)
    for batch in (3, 4, 5):
        totalled(recipe.varied({"batch.size": batch, "batch.sequence_length": 64 * batch}))
    with pytest.raises(ZeroDivisionError):
        totalled(recipe.varied({"sharding.ranks": 4}))
    quick.forget()


def test_every_part_and_every_section_is_remembered() -> None:
    assert len(SECTIONS) == len(quick.ORDINARY.rows)
    assert quick.ORDINARY.parts.keys() == {name for name in vars(Parts) if not name.startswith("_")}


@given(keys=ANY_JOB, gpu=st.sampled_from([None, "24GB", "h200"]))
@examples(60)
def test_the_peak_is_the_reports(keys: Keys, gpu: str | None) -> None:
    possible(keys)
    recipe = recipe_of(**(keys | ({"gpu": gpu} if gpu else {})))
    found, report = peak(recipe), build_report(recipe)
    said = report.per_gpu
    assert (found.allocated.expected, found.rank) == (said.allocated_bytes, said.rank)
    assert found.phases == {name: size for name, size in said.phases.items() if name != "first-step"}
    assert (found.allocated.low, found.allocated.high) == (said.allocated_range.low, said.allocated_range.high)
    for band, shown in ((found.reserved, said.reserved_bytes), (found.device, said.device_bytes)):
        assert band == (shown.low, shown.expected, shown.high)
    assert plain(found.host) == plain(report.host)
    assert plain(found.verdict) == plain(report.verdict)


@given(keys=ANY_JOB, batch=st.integers(1, 4), steps=st.integers(1, 3))
@examples(60)
def test_another_batch_needs_no_other_resolution(keys: Keys, batch: int, steps: int) -> None:
    possible(keys)
    before = recipe_of(**keys)
    assume(not depends_on_batch(before))
    try:
        resolved = recipe_of(**keys | {"batch_size": batch, "gradient_accumulation_steps": steps})
    except InvalidJob:
        return
    again = before.in_batches(batch, steps)
    felt = [{k: v for k, v in each.flat().items() if not k.startswith("provenance.")} for each in (again, resolved)]
    assert felt[0] == felt[1]
    assert plain(peak(again)) == plain(peak(resolved))


@pytest.mark.parametrize("degrees", [{"tensor_parallel": 2}, {"pipeline_parallel": 2, "num_gpus": 4}])
def test_ranks_of_megatron_are_remembered_too(degrees: Keys) -> None:
    recipe = recipe_of(**{"method": "sft", "trainer": "megatron", "num_gpus": 2, "gpu": "h200", **degrees})
    for each in (recipe, recipe.varied({"batch.size": 4}), recipe.varied({"hardware.gpu": None}), recipe):
        for of in rank_classes(each):
            agrees(of.recipe)


def test_a_specs_hash_is_its_own_and_made_once() -> None:
    spec = recipe_of(method="sft").model
    changed, copied, pickled = spec.model_copy(update={"tied": True}), spec.model_copy(), loads(dumps(spec))
    assert hash(spec) == hash(spec) == hash(copied) == hash(pickled) != hash(changed)
    assert spec == copied == pickled != changed
    assert not hasattr(loads(dumps(spec)), "_hashed"), "another process hashes strings in another way"
