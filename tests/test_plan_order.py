"""Proves what the search rests on: memory grows with the batch, dominated choices never hold less, states alone do not
depend on what passes, and a recipe with another batch is the one that ``resolve`` makes of it."""

from typing import Any

import pytest
from any_jobs import MODELS
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.cost import card, seconds
from memplan.engine.bounds import at_least, first_stage, floor, held_at_least, stepping
from memplan.errors import InvalidJob
from memplan.gpus import find_gpu
from memplan.planner.axes import LEANEST
from memplan.planner.candidates import stays_gathered
from memplan.planner.pricing import FREE, Pricing
from memplan.planner.space import CHECKPOINTING, HEADS, PAIR_PASSES, REFERENCES
from memplan.planner.steps import accumulation_class, depends_on_batch
from memplan.priced import price
from memplan.reporting import host_of, peak
from memplan.resolve import resolve
from memplan.spec.allocator import Allocator
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.methods import METHODS

LAYOUTS: tuple[dict[str, Any], ...] = (
    {"sharding": "none"},
    *({"sharding": name, "num_gpus": 4} for name in ("ddp", "zero0", "zero1", "zero2", "zero3")),
    {"sharding": "fsdp2", "num_gpus": 4},
    {"sharding": "fsdp2", "num_gpus": 4, "reshard_after_forward": False},
    {"sharding": "zero3", "num_gpus": 4, "offload": ["optimizer", "parameters"]},
    {"sharding": "distributed-optimizer", "num_gpus": 4, "trainer": "megatron"},
    {"tensor_parallel": 2, "sequence_parallel": True, "num_gpus": 4, "trainer": "megatron"},
    {"pipeline_parallel": 2, "virtual_pipeline": 2, "num_gpus": 4, "trainer": "megatron"},
    {"pipeline_parallel": 2, "num_gpus": 4, "trainer": "megatron"},
    {"context_parallel": 2, "num_gpus": 4, "trainer": "megatron"},
)
OTHERS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(list(MODELS.values())),
        "method": st.sampled_from([name for name in METHODS if name not in ("ppo", "distill", "generate")]),
        "sequence_length": st.sampled_from([16, 64, 100]),
        "gradient_checkpointing": st.sampled_from(CHECKPOINTING),
        "gradient_accumulation_steps": st.sampled_from([1, 4]),
    },
    optional={
        "loss_head": st.sampled_from(HEADS),
        "pair_pass": st.sampled_from(PAIR_PASSES),
        "reference": st.sampled_from(REFERENCES),
        "optimizer_impl": st.sampled_from(["fused", "foreach"]),
        "attention": st.sampled_from(["sdpa", "flash", "eager"]),
        "padded": st.booleans(),
        "compile": st.booleans(),
        "lora": st.just({"r": 8}),
        "precision": st.sampled_from(["bf16", "bf16-amp", "bf16-master"]),
    },
)
LAYOUT = st.sampled_from(LAYOUTS)


def recipe(**keys: Any) -> Recipe:
    """The job's recipe; another is drawn where it is refused."""
    try:
        return resolve(read_job({"gpu": "h100-80gb", **keys}))
    except InvalidJob:
        assume(False)
        raise


@pytest.mark.slow
@given(others=OTHERS, layout=LAYOUT, batch=st.integers(1, 6), more=st.integers(1, 6))
@examples(100)
def test_memory_grows_with_the_batch(others: dict[str, Any], layout: dict[str, Any], batch: int, more: int) -> None:
    small = recipe(**others, **layout, batch_size=batch)
    assume(not depends_on_batch(small))
    large = small.varied({"batch.size": batch + more})
    assert accumulation_class(small) == accumulation_class(large)
    assert peak(small).device.high <= peak(large).device.high
    assert peak(small).host.bytes_per_node <= peak(large).host.bytes_per_node


@given(others=OTHERS, layout=LAYOUT, length=st.integers(8, 200), more=st.integers(1, 200))
@examples(60)
def test_memory_grows_with_the_sequence(others: dict[str, Any], layout: dict[str, Any], length: int, more: int) -> None:
    shorter = recipe(**{**others, **layout, "sequence_length": length})
    longer = recipe(**{**others, **layout, "sequence_length": length + more})
    assert peak(shorter).device.high <= peak(longer).device.high


@given(others=OTHERS, layout=LAYOUT)
@examples(60)
def test_any_accumulation_is_as_large_as_another(others: dict[str, Any], layout: dict[str, Any]) -> None:
    found = recipe(**{**others, **layout, "gradient_accumulation_steps": 2})
    assume(found.parallel.pipeline == 1 and not depends_on_batch(found))
    assert peak(found).device == peak(found.varied({"batch.accumulation": 7})).device


@given(others=OTHERS, layout=LAYOUT, size=st.integers(1, 5), steps=st.integers(1, 5))
@examples(60)
def test_a_recipe_with_another_batch_is_the_resolved_one(
    others: dict[str, Any], layout: dict[str, Any], size: int, steps: int
) -> None:
    first = recipe(**{**others, **layout, "batch_size": 1, "gradient_accumulation_steps": 1})
    assume(not depends_on_batch(first))
    again = recipe(**{**others, **layout, "batch_size": size, "gradient_accumulation_steps": steps})
    made = first.varied({"batch.size": size, "batch.accumulation": steps})
    for field in (name for name in Recipe._fields if name != "provenance"):
        assert getattr(made, field) == getattr(again, field), field


DOMINATING = [
    ({"optimizer_impl": "fused"}, {"optimizer_impl": "foreach"}),
    ({"attention": "flash"}, {"attention": "sdpa"}),
    # From some heads' width of tokens on: below it the kernel's own memory in backward is more than the scores.
    ({"attention": "sdpa", "sequence_length": 256}, {"attention": "eager", "sequence_length": 256}),
    ({"allocator": {"expandable_segments": True}}, {}),
]


@pytest.mark.parametrize(("better", "worse"), DOMINATING, ids=str)
@given(others=OTHERS, layout=LAYOUT, batch=st.integers(1, 3))
@examples(30)
def test_a_dominated_choice_never_holds_less_and_is_never_faster(
    better: dict[str, Any], worse: dict[str, Any], others: dict[str, Any], layout: dict[str, Any], batch: int
) -> None:
    keys = {key: value for key, value in {**others, **layout}.items() if key not in better}
    first, second = (recipe(**keys, **choice, batch_size=batch) for choice in (better, worse))
    assert peak(first).device.high <= peak(second).device.high
    on = card(find_gpu("h100-80gb"))
    assert seconds(first, on) <= seconds(second, on)


@pytest.mark.slow
@given(one=OTHERS, other=OTHERS, layout=LAYOUT)
@examples(60)
def test_states_alone_are_those_of_the_layout_and_below_every_peak(
    one: dict[str, Any], other: dict[str, Any], layout: dict[str, Any]
) -> None:
    shared = ("model", "method", "lora", "precision")
    same: dict[str, Any] = {key: one[key] for key in (*shared, "sequence_length") if key in one}
    rest: dict[str, Any] = {key: value for key, value in other.items() if key not in shared}
    first, second = recipe(**{**one, **layout}), recipe(**{**rest, **same, **layout, "batch_size": 3})
    assert floor(first) == floor(second)
    assert floor(first) <= stepping(first) <= peak(first).allocated.expected


@pytest.mark.slow
@given(others=OTHERS, layout=LAYOUT, batch=st.integers(1, 3), expandable=st.booleans())
@examples(200)
def test_what_a_part_of_the_rows_comes_to_is_below_the_whole(
    others: dict[str, Any], layout: dict[str, Any], batch: int, expandable: bool
) -> None:
    found = recipe(**others, **layout, batch_size=batch).varied(
        {"hardware.allocator": Allocator(expandable_segments=expandable)}
    )
    assert floor(found) < held_at_least(found) <= at_least(found) <= peak(found, search=True).device.high
    assert at_least(found) > floor(found) or found.in_megatron
    assert not found.in_megatron or at_least(found) <= first_stage(found) <= peak(found, search=True).device.high


REFERRING = [name for name, row in METHODS.items() if row.reference and not row.online]


@pytest.mark.slow
@given(
    others=OTHERS,
    layout=st.sampled_from([each for each in LAYOUTS if "trainer" not in each]),
    method=st.sampled_from(REFERRING),
    reference=st.sampled_from(["auto", "resident", "offloaded", "adapter"]),
    batch=st.integers(1, 3),
)
@examples(150)
def test_no_reference_holds_less_than_one_computed_before(
    others: dict[str, Any], layout: dict[str, Any], method: str, reference: str, batch: int
) -> None:
    keys = {**others, **layout, "method": method, "batch_size": batch}
    keys |= {"lora": {"r": 8}} if reference == "adapter" else {}
    before, other = recipe(**{**keys, **LEANEST}), recipe(**{**keys, "reference": reference})
    assume(not stays_gathered(other))
    assume(other.zero_stage < 3)  # another forward ends DeepSpeed's record: nothing more is fetched ahead
    free = Pricing(FREE)
    for one, two in ((before, other), (free.variants(before)[-1][1], free.variants(other)[-1][1])):
        assert peak(one).device.high <= peak(two).device.high
        assert peak(one).host.bytes_per_node <= peak(two).host.bytes_per_node


PAIRED = [name for name, row in METHODS.items() if row.pairs]


@pytest.mark.slow
@given(
    others=OTHERS,
    layout=st.sampled_from([each for each in LAYOUTS if "trainer" not in each]),
    method=st.sampled_from(PAIRED),
    batch=st.integers(1, 3),
)
@examples(100)
def test_halves_that_are_both_scored_before_hold_no_less_than_one(
    others: dict[str, Any], layout: dict[str, Any], method: str, batch: int
) -> None:
    keys = {**others, **layout, "method": method, "batch_size": batch}
    one, both = (recipe(**{**keys, "pair_pass": how}) for how in ("split", "gradcache"))
    free = Pricing(FREE)
    for less, more in ((one, both), (free.variants(one)[-1][1], free.variants(both)[-1][1])):
        assert peak(less).device.high <= peak(more).device.high
        assert peak(less).host.bytes_per_node <= peak(more).host.bytes_per_node


IN_MEGATRON = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite"]),
        "pipeline_parallel": st.sampled_from([1, 2, 4, 8]),
        "virtual_pipeline": st.sampled_from([1, 2]),
        "tensor_parallel": st.sampled_from([1, 2]),
        "context_parallel": st.sampled_from([1, 2]),
        "gradient_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "batch_size": st.integers(1, 3),
        "gradient_accumulation_steps": st.sampled_from([1, 4, 8, 16]),
    }
)
ON_EIGHT = {"method": "sft", "trainer": "megatron", "num_gpus": 8, "sequence_length": 512}


@pytest.mark.slow
@given(keys=IN_MEGATRON, more=st.sampled_from([1, 3]))
@examples(25)
def test_megatrons_bounds_are_below_the_whole_and_more_micro_batches_hold_no_more(
    keys: dict[str, Any], more: int
) -> None:
    found = recipe(**ON_EIGHT, **keys)
    assert floor(found) < at_least(found) <= first_stage(found) <= peak(found, search=True).device.high
    leading, every = (price(found, detailed=False, leading=only) for only in (True, False))
    assert (leading[0].of.name, leading[0].meters, leading[0].phases) == (
        every[0].of.name, every[0].meters, every[0].phases,
    )  # fmt: skip
    assert host_of(leading, found).bytes_per_node == host_of(every, found).bytes_per_node
    longer = found.varied({"batch.accumulation": found.batch.accumulation * (1 + more)})
    if accumulation_class(longer) == accumulation_class(found):
        assert peak(longer).device == peak(found).device
    assert peak(longer).device.high >= peak(found).device.high


def test_of_stages_that_differ_in_what_waits_the_first_is_priced() -> None:
    """Sixteen stages of two layers each, but for the ends': first, one of the middle, last."""
    found = recipe(model="llama-3.1-8b", method="sft", trainer="megatron", num_gpus=16, pipeline_parallel=16)
    names = [each.of.name for each in price(found, detailed=False, leading=True)]
    assert sorted(names) == [f"each GPU of pipeline stage {stage} of 16" for stage in (1, 16, 2)]
    assert names[0] == price(found, detailed=False)[0].of.name == peak(found).rank
