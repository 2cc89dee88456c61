"""Proves that a plan for a named trainer is one that it can be told: its best plans are emitted in the trainer's own
framework without an error, and read back they are the same job, to the byte."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

import memplan
from memplan.errors import InvalidJob
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.registry import find_framework
from memplan.planner import plan
from memplan.planner.axes import others, values
from memplan.planner.moves import moves, training_moves
from memplan.planner.planning import question
from memplan.planner.space import HEADS, PAIR_PASSES, layouts
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job, with_changes
from memplan.tables.trainers import TRAINERS

METHODS = {
    "trl": ("sft", "dpo", "ipo", "kto", "simpo", "cpo", "orpo", "reward", "grpo"),
    "transformers": ("sft",),
    "llamafactory": ("sft", "dpo", "simpo", "kto", "orpo", "reward"),
    "openrlhf": ("sft", "dpo", "reward", "grpo"),
    "verl": ("sft", "grpo"),
    "litgpt": ("sft",),
    "megatron": ("sft",),
}
CARDS: tuple[dict[str, Any], ...] = (
    {"model": "qwen2.5-0.5b", "gpu": "rtx-4090-24gb", "num_gpus": 1},
    {"model": "llama-3.1-8b", "gpu": "h100-80gb", "num_gpus": 8},
)
ONLINE = {"sequence_length": 1024, "completion_length": 512, "rollout": {"group_size": 8}}
ADAPTERS = {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}


def job_of(trainer: str, method: str, card: dict[str, Any]) -> dict[str, Any]:
    """A job of the trainer."""
    return {**card, "trainer": trainer, "method": method, **(ONLINE if method == "grpo" else {})}


def assert_said(given: JobInput, trainer: str) -> None:
    """Its files make the same bytes."""
    found = emit(given, find_framework(trainer))
    again, first = (peak(resolve(each)) for each in (found.read_back(found.given.job), given))
    assert again.device == first.device
    assert again.allocated == first.allocated


def every_job() -> Iterator[Any]:
    """Every trainer, method and card, of all weights and of adapters; CI's, but one job of each trainer."""
    for name, those in METHODS.items():
        for method, card, more in product(those, CARDS, ({}, ADAPTERS)):
            quick = method == those[-1] and card is CARDS[1] and bool(more) == (name != "megatron")
            marks = () if quick else pytest.mark.slow
            title = f"{name}-{method}-{card['num_gpus']}x{card['gpu']}-{'lora' if more else 'full'}"
            yield pytest.param(name, method, card, more, id=title, marks=marks)


@pytest.mark.parametrize(("trainer", "method", "card", "more"), list(every_job()))
@pytest.mark.slow
def test_the_best_plans_are_said_to_the_trainer(
    trainer: str, method: str, card: dict[str, Any], more: dict[str, Any]
) -> None:
    if trainer == "megatron" and more:
        with pytest.raises(InvalidJob, match="fused in Megatron's linear_qkv"):
            plan(read_job({**job_of(trainer, method, card), **more}))
        return
    found = plan(read_job({**job_of(trainer, method, card), **more}), wanted=4, allow=("offload",))
    assert found.fits
    for each in found.plans:
        assert_said(read_job(each.job), trainer)
        again, first = memplan.estimate(each.job).per_gpu, each.report.per_gpu
        assert again.allocated_bytes == first.allocated_bytes
        assert again.device_bytes.high == first.device_bytes.high


def but_one(*pairs: tuple[str, str]) -> list[Any]:
    """Trainers and methods, of which all but the first are CI's."""
    return [pairs[0], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs[1:])]


@pytest.mark.parametrize(
    ("trainer", "method"), but_one(("trl", "dpo"), ("trl", "sft"), ("llamafactory", "dpo"), ("openrlhf", "dpo"))
)
@pytest.mark.slow
def test_every_choice_of_the_space_is_said(trainer: str, method: str) -> None:
    """Not the best ones alone: each combination that is legal."""
    asked = question(read_job({**job_of(trainer, method, CARDS[1]), "model": "smollm2-135m", "num_gpus": 2}))
    legal = 0
    for layout in layouts(asked.space):
        for keys, *_ in others(asked.space, layout):
            given = with_changes(asked.given, {**layout, **keys})
            try:
                resolve(given)
            except InvalidJob:
                continue
            assert_said(given, trainer)
            legal += 1
    assert legal >= 16


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != "pytorch"])
def test_no_trainer_but_a_bare_loop_is_free(trainer: str) -> None:
    """Its code has one schedule of pairs, and its own loss heads."""
    for row in TRAINERS[trainer]:
        assert [head for head in HEADS if row.can_be_told("loss_head", head)] in (["auto"], ["auto", "fused"])
        assert [way for way in PAIR_PASSES if row.can_be_told("pair_pass", way)] == ["concatenated"]
        assert row.can_be_told("allocator", {"expandable_segments": True})
    assert all(row.can_be_told("loss_head", head) for row in TRAINERS["pytorch"] for head in HEADS)


@pytest.mark.parametrize(("trainer", "kernels"), [("nemo-rl", "liger"), ("areal", "none")])
def test_automodels_layouts_and_heads_are_not_chosen(trainer: str, kernels: str) -> None:
    row = TRAINERS[trainer][-1]
    assert row.can_be_told("kernels", kernels)
    assert row.can_be_told("kernels", "liger") is (kernels == "liger")
    assert not row.can_be_told("loss_head", "fused")
    assert not row.can_be_told("reshard_after_forward", False)


def test_what_no_switch_says_is_told() -> None:
    job = {**job_of("verl", "grpo", CARDS[0]), **ADAPTERS, "quantization": "nf4"}
    text = "quantization: nf4 is kept, and verl has no switch for it (none)"
    assert text in question(read_job(job)).assumptions
    assert not [each for each in question(read_job({**job, "trainer": "trl"})).assumptions if "no switch" in each]
    text = "lora: r 8 is kept, and Megatron-LM has no switch for it (Megatron-Bridge's recipes do)"
    free = {"model": "llama-3.2-1b", "method": "sft", "gpu": "h100-80gb", "num_gpus": 8, "lora": {"r": 8}}
    for fixed, told in (({"sharding": "distributed-optimizer"}, 1), ({"sharding": "ddp"}, 0)):
        found = plan(read_job(free | fixed))
        assert any(each.job["trainer"] == "megatron" for each in found.plans) == bool(told)
        assert found.assumptions.count(text) == told, "of a trainer that plans name"
    whole = question(read_job(job_of("litgpt", "sft", CARDS[0]) | {"lora": {"r": 8}})).assumptions
    assert [each for each in whole if each.startswith("lora.targets: all-linear is kept, and LitGPT has no switch")]


@pytest.mark.slow
def test_what_the_user_fixes_is_kept_whatever_the_switches() -> None:
    job = job_of("trl", "dpo", CARDS[1]) | {
        "loss_head": "chunked",
        "pair_pass": "split",
        "gradient_checkpointing": "every:2",
    }
    found = plan(read_job(job), wanted=1)
    assert [found.plans[0].job[key] for key in ("loss_head", "pair_pass")] == ["chunked", "split"]
    asked = question(read_job(job))
    assert values(asked.space, {"sharding": "zero3"}, "gradient_checkpointing") == ("every:2",)


@pytest.mark.parametrize(
    ("trainer", "method"), but_one(("openrlhf", "dpo"), ("trl", "dpo"), ("trl", "sft"), ("llamafactory", "simpo"))
)
@pytest.mark.slow
def test_remedies_are_said_to_the_trainer(trainer: str, method: str) -> None:
    job = {
        **job_of(trainer, method, CARDS[1]),
        "gpu": "rtx-4090-24gb",
        "zero_stage": 2,
        "gradient_checkpointing": "none",
    }
    given = read_job(job)
    recipe = resolve(given)
    for move in (*moves(given.job, recipe), *training_moves(given.job, recipe)):
        changed = with_changes(given, move.keys)
        try:
            resolve(changed)
        except InvalidJob:
            continue
        assert_said(changed, trainer)
    for remedy in memplan.estimate(job).remedies:
        assert_said(with_changes(given, remedy.changes), trainer)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["trl", "llamafactory", "openrlhf"])
def test_what_waits_on_the_host_is_said(trainer: str) -> None:
    job = {"model": "llama-3.1-8b", "method": "sft", "trainer": trainer, "gpu": "rtx-4090-24gb", "num_gpus": 4}
    found = plan(read_job(job), allow=("offload",))
    assert found.plans[0].training == ("states or activations offloaded to CPU",)
    for each in found.plans:
        assert_said(read_job(each.job), trainer)
