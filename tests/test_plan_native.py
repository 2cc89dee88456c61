"""torch's own tensor, pipeline and context parallelism in plans: no layout is missed, none is there that cannot run,
and what the search rests on holds for them."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from any_jobs import MODELS

import memplan
from memplan.cli.app import main
from memplan.cost import examples_per_step, seconds
from memplan.cost.rates import EXPECTED
from memplan.cost.stages import shares
from memplan.cost.step import step
from memplan.engine.bounds import floor
from memplan.errors import InvalidJob
from memplan.planner import plan
from memplan.planner.degrees import LEAST_TOKENS, NATIVE, is_native
from memplan.planner.moves import space_of
from memplan.planner.planning import question
from memplan.planner.space import CHECKPOINTING, divided_sequences, layouts
from memplan.planner.steps import accumulation_class
from memplan.planner.words import layout_name
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.allocator import Allocator
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

SFT = {"method": "sft", "trainer": "pytorch", "sharding": "fsdp2"}
FREE: dict[str, Any] = {**SFT, "model": MODELS["untied"], "gpu": "24GiB", "sequence_length": 2 * LEAST_TOKENS}


def _peaks(recipe: Recipe) -> tuple[int, ...]:
    """As it is, and with what costs nothing."""
    free = product(("sdpa", "flash"), (False, True))
    return tuple(
        peak(
            recipe.varied({"operators.attention": how, "hardware.allocator": Allocator(expandable_segments=far)}),
            search=True,
        ).device.high
        for how, far in free
    )


def everything(job: dict[str, Any]) -> list[tuple[float, int]]:
    """(seconds of an example, device bytes) of every combination of degrees that ``resolve`` lets through, whatever the
    space has; compiled where Liger has nothing, whose speed is taken to be the same (planner/axes.py)."""
    gpus, whole, found = job["num_gpus"], job["global_batch_size"], []
    device = question(read_job(job)).device
    for t, p, c in product(range(1, gpus + 1), repeat=3):
        if gpus % (t * p * c) or gpus // (t * p) == 1 or (c > 1 and job["sequence_length"] // c < LEAST_TOKENS):
            continue
        degrees = dict(zip(NATIVE, (t, p, c), strict=True))
        heads = ("auto",) if t * p * c > 1 else ("auto", "selective", "chunked", "fused")
        each, rest = divmod(whole, gpus // (t * p * c))
        sizes = [] if rest else [size for size in range(1, each + 1) if each % size == 0]
        fused: tuple[dict[str, Any], ...] = ({}, {"kernels": "liger"} if t * p * c == 1 else {"compile": True})
        for size, again, head, how in product(sizes, (True, False) if p == 1 else (False,), heads, fused):
            keys = {**job, **degrees, **how, "batch_size": size, "reshard_after_forward": again, "loss_head": head}
            try:
                recipe = resolve(read_job(keys))
            except InvalidJob:
                continue
            took = seconds(recipe, device) / examples_per_step(recipe)
            found += [(took, size) for size in _peaks(recipe)]
    return found


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in (*range(8), 10, 11)]


@pytest.mark.parametrize("seed", [8, 9, *SLOW])
def test_the_best_plan_is_that_of_brute_force(seed: int) -> None:
    random_ = random.Random(seed)
    job = {
        **FREE,
        "model": {**MODELS[random_.choice(["tied", "untied"])], "num_key_value_heads": random_.choice([1, 2, 4])},
        "num_gpus": random_.choice([2, 3, 4, 6, 8]),
        "global_batch_size": random_.choice([8, 12, 16]),
        "sequence_length": random_.choice([1, 2, 4]) * LEAST_TOKENS,
        "gradient_checkpointing": random_.choice(CHECKPOINTING),
        "optimizer_impl": "fused",
    }
    every = everything(job)
    for share in (0.05, 0.2, 0.5, 0.95):
        low, high = min(size for _, size in every), max(size for _, size in every)
        room = int(low + share * (high - low))
        margin = 1 - room / (24 * 2**30)
        fitting = [took for took, size in every if size <= int(24 * 2**30 * (1 - margin))]
        found = plan(read_job({**job, "margin": margin}), wanted=1, suggest=False)
        assert found.fits == bool(fitting)
        if fitting:
            recipe = found.plans[0].report.recipe
            assert recipe is not None
            took = seconds(recipe, question(read_job(job)).device) / examples_per_step(recipe)
            assert took == pytest.approx(min(fitting), rel=1e-9)


@pytest.mark.parametrize(
    ("keys", "degrees"),
    [
        ({"num_gpus": 8}, {(2, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 1, 4), (2, 2, 1), (2, 1, 4), (2, 2, 2)}),
        ({"num_gpus": 6}, {(1, 3, 1), (1, 2, 1), (2, 1, 1)}),
        ({"num_gpus": 2}, {(1, 1, 2)}),
    ],
    ids=["8 GPUs", "6 GPUs", "2 GPUs"],
)
def test_layouts_have_every_degree_that_divides(keys: dict[str, Any], degrees: set[tuple[int, ...]]) -> None:
    space = question(read_job({**FREE, "sequence_length": 4 * LEAST_TOKENS, **keys})).space
    found = {tuple(each.get(key, 1) for key in NATIVE) for each in layouts(space) if is_native(each)}
    assert degrees <= found
    assert all(space.gpus // (t * p) > 1 for t, p, _ in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"trainer": "trl"}, "not with trainer trl"),
        ({"method": "dpo"}, "not modelled with method dpo"),
        ({"lora": {"r": 8}}, "not modelled with lora"),
        ({"padded": True}, "not modelled with padded"),
    ],
    ids=str,
)
def test_where_it_cannot_run_there_is_none_and_it_is_said(keys: dict[str, Any], reason: str) -> None:
    job = {**FREE, "num_gpus": 4, **keys}
    job.pop("sharding")
    found = plan(read_job(job), wanted=1, suggest=False)
    assert not any(is_native(each) for each in layouts(question(read_job(job)).space))
    assert [each.reason for each in found.rejected if each.name == "FSDP2 with TP, PP or CP" and reason in each.reason]


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({**FREE, "num_gpus": 8, "sequence_length": 1024, **keys}))


DEGREES: tuple[dict[str, Any], ...] = (
    {"tensor_parallel": 2},
    {"context_parallel": 2},
    {"pipeline_parallel": 2},
    {"pipeline_parallel": 4},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "context_parallel": 2},
)
BY_LAYOUT = pytest.mark.parametrize("degrees", DEGREES, ids=str)


@pytest.mark.slow
@BY_LAYOUT
@pytest.mark.parametrize("how", ["none", "selective", "full"])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_memory_grows_with_the_batch_and_the_sequence(degrees: dict[str, Any], how: str, steps: int) -> None:
    keys = {**degrees, "gradient_checkpointing": how, "gradient_accumulation_steps": steps}
    sizes = [peak(recipe(**keys, batch_size=size)).device.high for size in (1, 2, 3, 7)]
    lengths = [peak(recipe(**{**keys, "sequence_length": length})).device.high for length in (64, 128, 512, 1024)]
    assert sizes == sorted(sizes)
    assert lengths == sorted(lengths)


@BY_LAYOUT
def test_a_pipeline_holds_no_more_micro_batches_than_stages(degrees: dict[str, Any]) -> None:
    stages = degrees.get("pipeline_parallel", 1)
    known: dict[int, set[int]] = {}
    for steps in (1, 2, 3, 4, 5, 9):
        each = recipe(**degrees, gradient_accumulation_steps=steps)
        known.setdefault(accumulation_class(each), set()).add(peak(each).device.high)
    assert set(known) == set(range(1, max(2, stages) + 1))
    assert all(len(sizes) == 1 for sizes in known.values())


@BY_LAYOUT
def test_states_alone_are_those_of_the_layout(degrees: dict[str, Any]) -> None:
    plain = recipe(**degrees)
    other = recipe(**degrees, batch_size=3, gradient_checkpointing="full", gradient_accumulation_steps=5)
    assert floor(plain) == floor(other) <= min(peak(plain).allocated.expected, peak(other).allocated.expected)


@BY_LAYOUT
def test_what_costs_nothing_only_ever_saves_memory(degrees: dict[str, Any]) -> None:
    plain = recipe(**degrees, gradient_accumulation_steps=3)
    flash = plain.varied({"operators.attention": "flash"})
    expandable = plain.varied({"hardware.allocator": Allocator(expandable_segments=True)})
    assert max(peak(flash).device.high, peak(expandable).device.high) <= peak(plain).device.high


@pytest.mark.slow
def test_a_plan_is_estimated_to_the_same_bytes() -> None:
    found = plan(read_job({"model": "llama-3.1-8b", **SFT, "gpu": "h100-80gb", "num_gpus": 8, "sequence_length": 8192}))
    assert any(each.job["tensor_parallel"] > 1 or each.job["context_parallel"] > 1 for each in found.plans)
    for each in found.plans:
        again = memplan.estimate(each.job).per_gpu
        assert again.device_bytes.high == each.report.per_gpu.device_bytes.high
        assert again.allocated_bytes == each.report.per_gpu.allocated_bytes


@pytest.mark.parametrize(
    ("keys", "fullest", "last"),
    [
        ({**SFT, "pipeline_parallel": 4, "num_gpus": 8}, 8 / 32, 8 / 32),
        ({**SFT, "pipeline_parallel": 5, "num_gpus": 10}, 7 / 32, 6 / 32),
        ({"trainer": "megatron", "method": "sft", "pipeline_parallel": 4, "num_gpus": 8}, 8 / 32, 8 / 32),
        ({**SFT, "num_gpus": 8}, 1, 1),
    ],
    ids=str,
)
def test_the_pace_is_that_of_the_fullest_stage(keys: dict[str, Any], fullest: float, last: float) -> None:
    assert shares(resolve(read_job({"model": "llama-3.1-8b", "gpu": "h100-80gb", **keys}))) == (fullest, last)


def test_a_pipeline_gathers_once_and_reduces_at_the_end() -> None:
    """More micro-batches add no communication of weights or gradients, as they do without a pipeline."""
    keys = {"model": "llama-3.1-8b", **SFT, "gpu": "l40s-48gb", "num_gpus": 8, "sequence_length": 1024}
    asked = question(read_job(keys))

    def sent(steps: int, **degrees: int) -> float:
        found = resolve(read_job({**keys, **degrees, "gradient_accumulation_steps": steps}))
        return step(found, asked.device, EXPECTED).communication

    assert sent(8, pipeline_parallel=4) - sent(4, pipeline_parallel=4) < 0.01 * (sent(8) - sent(4))


@pytest.mark.parametrize(
    "keys",
    [
        {"pipeline_parallel": 2, "tensor_parallel": 2},
        {"tensor_parallel": 4, "gradient_checkpointing": "selective"},
        {"context_parallel": 4, "reshard_after_forward": True},
    ],
    ids=str,
)
def test_the_best_plan_is_a_file_of_torchtitan_that_is_read_back(keys: dict[str, Any], tmp_path: Path) -> None:
    job = {"model": "llama-3.1-8b", **SFT, "gpu": "h100-80gb", "num_gpus": 16, "sequence_length": 8192}
    job |= {"reduce_dtype": "fp32", "logits_dtype": "fp32", **keys}
    best = plan(read_job(job), wanted=1).plans[0].job
    assert all(best[key] == value for key, value in keys.items())
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(best), encoding="utf-8")
    assert main(["emit", "torchtitan", str(path), "--output", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "torchtitan.toml").read_text(encoding="utf-8")
    steps = best["gradient_accumulation_steps"] if "pipeline_parallel" in keys else 1
    assert f"local_batch_size = {best['batch_size'] * steps}\n" in text


def test_a_pipelines_name_is_short() -> None:
    assert layout_name({"sharding": "fsdp2", "pipeline_parallel": 2, "reshard_after_forward": False}) == "FSDP2 PP 2"
    assert layout_name({"sharding": "fsdp2", "reshard_after_forward": False}) == "FSDP2 without resharding"


@pytest.mark.parametrize(("trainer", "divides"), [("transformers", True), ("trl", True), ("llamafactory", False)])
def test_accelerates_own_trainers_divide_long_sequences(trainer: str, divides: bool) -> None:
    job = {"model": "llama-3.1-8b", "method": "sft", "trainer": trainer, "num_gpus": 8, "sequence_length": 131072}
    given = read_job(job)
    assert bool(divided_sequences(space_of(given.job, resolve(given)))) is divides
