"""Holds Megatron's steps as events against the ledger, against published runs, and against what searches take."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.api import estimate
from memplan.engine.allocator.events import is_covered, step_events
from memplan.engine.allocator.figures import AGREES, played
from memplan.engine.allocator.reserved import Unplayed
from memplan.engine.megatron.activations import UNEXPLAINED
from memplan.engine.megatron.build import megatron_ledger
from memplan.engine.ranks import rank_classes
from memplan.errors import MemplanError
from memplan.meters import measure
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

PUBLISHED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "presets" / "measurements" / "megatron.json").read_text()
)
RESERVED = [row for row in PUBLISHED["rows"] if "reserved_bytes" in row["measured"]]
JOB: dict[str, Any] = {"model": "llama-3.1-8b", "method": "sft", "trainer": "megatron", "sequence_length": 4096}


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({**JOB, **keys}))


def of_row(row: dict[str, Any]) -> float:
    """Reserved, estimated over measured."""
    model = row.get("model", row["job"].get("model"))
    report = estimate({**row["job"], "model": PUBLISHED["models"].get(model, model)})
    reserved = report.per_gpu.reserved_bytes
    assert reserved.played
    assert reserved.low <= row["measured"]["reserved_bytes"] <= reserved.high
    return reserved.expected / int(row["measured"]["reserved_bytes"])


@pytest.mark.slow
def test_published_runs_hold_what_is_played() -> None:
    errors = [abs(of_row(row) - 1) for row in RESERVED]
    assert len(errors) == 29
    assert median(errors) < 0.02
    assert max(errors) < 0.06


drawn = st.fixed_dictionaries(
    {
        "model": st.sampled_from(("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite")),
        "tensor_parallel": st.sampled_from((1, 2, 4)),
        "pipeline_parallel": st.sampled_from((1, 2, 4)),
        "context_parallel": st.sampled_from((1, 2)),
        "expert_parallel": st.sampled_from((1, 2)),
        "batch_size": st.sampled_from((1, 2)),
        "sequence_length": st.sampled_from((1024, 8192)),
        "gradient_accumulation_steps": st.sampled_from((1, 8)),
        "gradient_checkpointing": st.sampled_from(("none", "full", "selective")),
        "sharding": st.sampled_from(("ddp", "distributed-optimizer")),
        "allocator": st.sampled_from(({}, {"expandable_segments": True})),
        "trainer": st.sampled_from(("megatron", "megatron-swift")),
        "megatron": st.sampled_from(({}, {"moe_shared_expert_overlap": True})),
        "lora": st.sampled_from((None, {"r": 8}, {"r": 16, "dropout": 0.05})),
    }
)


@pytest.mark.slow
@examples(12)
@given(drawn)
def test_the_play_is_the_ledgers_and_a_search_is_not_below_it(keys: dict[str, Any]) -> None:
    degrees = (keys[f"{name}_parallel"] for name in ("tensor", "pipeline", "context"))
    cards = keys["expert_parallel"] * 2
    for degree in degrees:
        cards *= degree
    try:
        of = recipe(**keys, num_gpus=cards)
    except MemplanError:  # a model without experts has none to divide
        assume(False)
    agrees(of)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize(
    ("stages", "chunks", "micro", "form"),
    [(2, 2, 8, "none"), (4, 2, 4, "full"), (4, 4, 32, "selective"), (8, 2, 8, "full")],
)
def test_chunks_of_a_rank_take_turns(model: str, stages: int, chunks: int, micro: int, form: str) -> None:
    keys = {"pipeline_parallel": stages, "virtual_pipeline": chunks, "gradient_accumulation_steps": micro}
    agrees(recipe(**keys, model=model, gradient_checkpointing=form, num_gpus=4 * stages, tensor_parallel=4))


def agrees(of: Recipe) -> None:
    """Play and ledger, and a search that holds no less than what is needed."""
    for each in rank_classes(of):
        assert is_covered(each.recipe)
        ledger = megatron_ledger(each.recipe)
        search = measure(ledger, each.recipe, search=True)
        events = step_events(each.recipe)
        assert events is not None
        assert abs(events.peak / search.allocated.expected - 1) <= AGREES
        found = played(each.recipe, search.allocated.expected, None, True)
        assert not isinstance(found, Unplayed)
        assert found.needs + found.doubt <= search.reserved.high


def test_weights_are_made_before_the_buffer_that_takes_them() -> None:
    """Both are there at once, with the gradients' buffer, and the weights' own blocks are freed behind it."""
    of = recipe(num_gpus=2, sharding="distributed-optimizer")
    events = step_events(of)
    assert events is not None
    born = [(events.tags[number], size) for number, size in events.events if size > 0]
    buffer = next(i for i, (tag, _) in enumerate(born) if tag.label == "weights")
    weights = [size for tag, size in born[:buffer] if tag.category == "parameters"]
    assert len(weights) > of.model.num_layers
    assert sum(weights) == pytest.approx(born[buffer][1], rel=1e-3)
    positions = {number: at for at, (number, size) in enumerate(events.events) if size < 0}
    assert all(number in positions for number in range(len(weights)))


MIXTURE: dict[str, Any] = {"model": "deepseek-v2-lite", "num_gpus": 8, "expert_parallel": 4, "sharding": "ddp"}


def test_overlapped_shared_experts_have_blocks_of_their_own() -> None:
    """Their stream's: what they freed serves nothing else, least of all the logits."""
    overlap = step_events(recipe(**MIXTURE, megatron={"moe_shared_expert_overlap": True}))
    alone = step_events(recipe(**MIXTURE))
    assert overlap is not None
    assert alone is not None
    assert not alone.streams
    assert len(overlap.events) == len(alone.events)
    labels = {overlap.tags[number].label for number in overlap.streams}
    assert "input of the shared experts' second matmul" in labels
    assert not {label for label in labels if "tokens" in label}


def test_what_whole_layers_of_experts_may_keep_is_in_the_high_figure_alone() -> None:
    """Of 27 layers, 26 with experts: 4,096 tokens to 6 of them, 2,048 wide in bf16."""
    full = {row.name: row for row in megatron_ledger(recipe(**MIXTURE, gradient_checkpointing="full")).rows}[
        UNEXPLAINED
    ]
    assert (full.low_bytes, full.bytes, full.high_bytes) == (0, 0, 26 * 4096 * 6 * 2048 * 2)
    one = {**MIXTURE, "expert_parallel": 1}
    for keys in ({**MIXTURE, "gradient_checkpointing": "none"}, {**one, "gradient_checkpointing": "full"}):
        assert UNEXPLAINED not in {row.name for row in megatron_ledger(recipe(**keys)).rows}


@pytest.mark.parametrize(
    "keys",
    [
        {"megatron": {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}},
    ],
)
def test_what_is_not_played_keeps_its_band(keys: dict[str, Any]) -> None:
    assert step_events(recipe(num_gpus=8, gradient_accumulation_steps=8, **keys)) is None
