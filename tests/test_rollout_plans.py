"""Proves what is advised for jobs that generate, and how GPUs are split for them: every figure is that of the changed
job estimated anew, every split uses the GPUs that are there, and the seconds of generation follow bandwidth.
"""

import random
from itertools import product
from math import inf
from operator import le
from typing import Any

import pytest
from test_remedies import assert_true

from memplan.api import as_input, estimate, plan
from memplan.cost import card, speed
from memplan.cost.generation import Generating, generating
from memplan.cost.rates import EXPECTED
from memplan.engine.generation.figures import engine_figures
from memplan.errors import InvalidJob
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.registry import find_framework
from memplan.gpus import find_gpu
from memplan.planner.generating import not_apart, row_of, ways
from memplan.planner.moves import _paths, moves, space_of
from memplan.planner.planning import job_input, pricing_of, question, search
from memplan.planner.pricing import FREE, ROWS, Pricing
from memplan.planner.space import CHOSEN, WHERE_UNSAID, layouts, offloading
from memplan.planner.splits import candidates
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.rollout.bounds import is_of_whole
from memplan.spec.generation import Away
from memplan.spec.job import Job
from memplan.units import GiB

LENGTHS = {"group_size": 8, "prompt_length": 512, "completion_length": 1536}
VERL: dict[str, Any] = {"model": "qwen2.5-7b", "method": "grpo", "trainer": "verl", "gpu": "h100-80gb", "num_gpus": 8}
TRL: dict[str, Any] = {**VERL, "trainer": "trl", "sharding": "zero3"}


def rolling(base: dict[str, Any], **rollout: Any) -> dict[str, Any]:
    """A job with these keys in its rollout."""
    return {**base, "rollout": {**LENGTHS, **rollout}}


SHORT = [
    rolling(VERL, gpu_memory_utilization=0.85),
    rolling(VERL, gpu_memory_utilization=0.1),
    rolling(TRL, engine="vllm", gpu_memory_utilization=0.75, max_model_len=2048),
    rolling({**TRL, "num_gpus": 4, "batch_size": 2}, engine="vllm", gpu_memory_utilization=0.8, sleep="2"),
    rolling({**VERL, "num_gpus": 4, "batch_size": 2}, gpu_memory_utilization=0.7),
    rolling({**VERL, "trainer": "openrlhf", "sharding": "zero3"}, gpu_memory_utilization=0.95, placement="colocate"),
    rolling(
        {**VERL, "model": "qwen2.5-0.5b", "num_gpus": 1, "batch_size": 8, "gpu": "24GiB"}, gpu_memory_utilization=0.9
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("job", SHORT, ids=range(len(SHORT)))
def test_what_is_advised_is_what_estimate_says_of_it(job: dict[str, Any]) -> None:
    report = estimate(job)
    assert report.verdict is not None
    assert report.verdict.fits != "yes"
    assert report.remedies
    assert_true(job, report)


def advised(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Changes, in their order."""
    return [remedy.changes for remedy in estimate(job).remedies]


@pytest.mark.slow
def test_a_share_that_is_too_large_becomes_the_largest_that_fits() -> None:
    """Of a trainer that gives its cache back before the engine wakes: what else holds is known without a play."""
    base = {**VERL, "trainer_version": "0.7"}
    first = next(each for each in advised(rolling(base, gpu_memory_utilization=0.93)) if "rollout" in each)
    share = first["rollout"]["gpu_memory_utilization"]
    verdicts = [estimate(rolling(base, gpu_memory_utilization=round(share + more, 2))).verdict for more in (0, 0.02)]
    assert [verdict is not None and verdict.fits for verdict in verdicts] == ["yes", "tight"]


@pytest.mark.slow
def test_a_context_that_nobody_needs_is_the_first_to_go() -> None:
    """TRL's engine is told the model's whole context, of which one sequence does not fit a small share."""
    job = rolling(TRL, engine="vllm", gpu_memory_utilization=0.25)
    report = estimate(job)
    assert report.engine is not None
    assert not report.engine.starts
    assert {"rollout": {"max_model_len": 2048}} in advised(job)


@pytest.mark.slow
def test_an_engine_of_unsloths_is_told_to_run_the_policys_own_weights() -> None:
    """A second copy of a 7B's weights has no room on 24 GB: fast_inference has none (unsloth_zoo's vllm_utils)."""
    card = {
        **VERL,
        "trainer": "trl",
        "kernels": "unsloth",
        "gpu": "rtx-4090-24gb",
        "num_gpus": 1,
        "batch_size": 8,
        "lora": {"r": 16},
    }
    first = advised(rolling(card, engine="vllm"))[0]
    assert first["rollout"] == {"shared_weights": True, "sleep": "1"}


def test_moves_of_one_mapping_join_and_one_key_is_moved_once() -> None:
    given = as_input(rolling(TRL, engine="vllm", gpu_memory_utilization=0.75))
    from memplan.planner.moves import compatible, together

    found = {move.axis: move for move in moves(given.job, resolve(given))}
    sleep, share = found["sleep"], found["share"]
    both = together(given.job, resolve(given), (sleep, share))
    assert both == {"rollout": {**sleep.keys["rollout"], **share.keys["rollout"]}}
    assert compatible((sleep, share))
    assert not compatible((found["placement"], sleep._replace(axis="other", keys={"num_gpus": 2})))


@pytest.mark.parametrize(
    ("trainer", "axes"), [("verl", {"share", "trainer_offload"}), ("trl", {"share", "sleep", "placement"})]
)
def test_only_what_a_trainer_can_is_moved(trainer: str, axes: set[str]) -> None:
    given = as_input(rolling({**VERL, "trainer": trainer}, engine="vllm", gpu_memory_utilization=0.8))
    found = {move.axis for move in moves(given.job, resolve(given))}
    assert found & {"share", "sleep", "trainer_offload", "placement"} == axes


def test_an_engine_that_always_sleeps_is_planned_asleep() -> None:
    given = as_input(rolling({**VERL, "trainer": "nemo-rl"}))
    beside = [way for way in ways(given.job, space_of(given.job, resolve(given))) if not way.engine_gpus]
    assert {way.rollout["sleep"] for way in beside} == {"1"}
    with pytest.raises(InvalidJob, match="engine sleeps whenever"):
        resolve(as_input(rolling({**VERL, "trainer": "nemo-rl"}, sleep="none")))


def test_less_may_be_offloaded_where_the_nodes_memory_is_short() -> None:
    given = as_input(rolling(VERL) | {"trainer_offload": ["parameters", "optimizer"]})
    found = [
        move.keys["trainer_offload"] for move in moves(given.job, resolve(given)) if move.axis == "trainer_offload"
    ]
    assert found == [(), ("optimizer",)]


def test_jobs_that_generate_nothing_have_no_such_moves() -> None:
    for job in ({"model": "qwen2.5-0.5b", "gpu": "h100-80gb"}, rolling({**VERL, "trainer": "pytorch"})):
        given = as_input(job)
        found = {move.axis for move in moves(given.job, resolve(given))}
        assert not found & {"share", "sleep", "trainer_offload", "placement", "max_model_len", "engine ranks"}


@pytest.mark.parametrize("trainer", ["verl", "trl", "openrlhf", "areal"])
@pytest.mark.slow
def test_plans_split_the_gpus_and_are_what_estimate_says(trainer: str) -> None:
    job = {**rolling({**VERL, "trainer": trainer}), "global_batch_size": 512}
    found = plan(job)
    assert found.fits
    times = [each.speed.step_seconds for each in found.plans]
    assert times == sorted(times)
    for each in found.plans:
        rollout = each.job["rollout"]
        apart = rollout["num_gpus"] if rollout.get("placement") == "separate" else 0
        assert each.job["num_gpus"] + apart == 8
        again = estimate(each.job)
        assert again.verdict is not None
        assert again.verdict.fits == "yes"
        assert again.per_gpu.device_bytes.high == each.report.per_gpu.device_bytes.high
        assert again.recipe is not None
        assert speed(again.recipe).step_seconds == pytest.approx(each.speed.step_seconds)
    splits = {
        (each.job["rollout"].get("num_gpus"), each.job["rollout"].get("sleep"), str(each.job.get("trainer_offload")))
        for each in found.plans
    }
    assert len(splits) == len(found.plans), "each split is shown once"


def test_every_candidate_is_what_resolve_makes_of_its_job() -> None:
    """A generator is resolved once for all trainings that are alike to it."""
    asked = question(as_input({**rolling(TRL | {"num_gpus": 4}), "global_batch_size": 64}))
    found = candidates(asked.given, asked.space, asked.device)
    for each in random.Random(5).sample(found.legal, 12):
        priced = pricing_of(asked)(each)._replace(keys={})
        made = resolve(job_input(asked, each, priced))
        assert made.generator == each.recipe.generator
        assert made.parallel == each.recipe.parallel
        assert speed(made).step_seconds == pytest.approx(each.seconds * 64)
    assert [each.order for each in found.legal] == sorted(each.order for each in found.legal)


def test_no_way_is_faster_than_those_that_are_shown() -> None:
    """The first plan is the fastest of all that fit, priced one by one."""
    asked = question(
        as_input({**rolling({**TRL, "model": "qwen2.5-0.5b", "gpu": "24GiB", "num_gpus": 2}), "global_batch_size": 8})
    )
    found = search(asked, 1)
    best = found.found.plans[0][0]
    pricing = pricing_of(asked)
    for each in found.of.legal:
        if each.order < best.order:
            assert not pricing(each).fits


MIXTURE: dict[str, Any] = {"model": "qwen3-30b-a3b", "method": "grpo", "gpu": "h100-80gb", "num_gpus": 16}
PPO: dict[str, Any] = {"model": "qwen2.5-7b", "method": "ppo", "gpu": "a100-80gb", "num_gpus": 4}
SGLANG: dict[str, Any] = {**rolling(VERL, engine="sglang"), "model": "qwen2.5-14b"}


@pytest.mark.parametrize("job", [TRL, VERL, MIXTURE, PPO, SGLANG], ids=["trl", "verl", "mixture", "ppo", "sglang"])
def test_what_rules_a_candidate_out_beside_an_engine_is_no_more_than_it_misses_by(job: dict[str, Any]) -> None:
    asked = question(as_input(job))
    legal = candidates(asked.given, asked.space, asked.device).legal
    missed = 0
    for each in random.Random(job["model"]).sample(legal, 60):
        pricing, priced = pricing_of(asked), pricing_of(asked).lean(each)
        least = [pricing.misses_by(each), pricing.misses_by(each, inf)]
        assert least == sorted(least)
        assert least[1] <= priced.short
        assert not (least[1] and priced.fits)
        missed += bool(least[0])
    assert missed


def test_more_room_is_left_on_a_larger_card_beside_a_smaller_share_and_with_more_on_the_host() -> None:
    """What the search for the smallest card infers of shares of the whole card with which the engine surely starts."""
    recipe = resolve(as_input(rolling({**VERL, "model": "qwen2.5-3b", "gradient_checkpointing": "full"})))
    of, found = recipe.generator, dict[tuple[int, float, int], bool]()
    assert of is not None
    assert is_of_whole(of)
    aways = Away(), Away(optimizer=True), Away(parameters=True, optimizer=True)
    for gpu in map(find_gpu, ("rtx-2000-ada-16gb", "rtx-4000-ada-20gb", "rtx-4090-24gb")):
        for share, (at, away) in product((0.4, 0.5, 0.8), enumerate(aways)):
            engine = of._replace(share=share, away=away)
            if (figures := engine_figures(engine, gpu)).starts and not figures.may_fail:
                there = recipe._replace(hardware=recipe.hardware._replace(gpu=gpu), generator=engine)
                verdict = peak(there, search=True).verdict
                found[gpu.usable_bytes, -share, at] = verdict is not None and verdict.fits == "yes"
    assert {*found.values()} == {True, False}
    for less, more in product(found, found):
        if all(map(le, less, more)):
            assert found[less] <= found[more]


@pytest.mark.slow
def test_what_the_job_says_of_its_rollout_is_kept() -> None:
    asked = question(
        as_input(rolling(TRL, engine="vllm", tensor_parallel=2, gpu_memory_utilization=0.35, placement="colocate"))
    )
    every = ways(asked.given.job, asked.space)
    assert {way.engine_gpus for way in every} == {0}
    assert all(
        not way.rollout.keys() & {"tensor_parallel", "gpu_memory_utilization", "engine", "placement"} for way in every
    )
    found = plan(asked.given).plans[0]
    assert (found.job["rollout"]["tensor_parallel"], found.job["rollout"]["gpu_memory_utilization"]) == (2, 0.35)


def test_a_critics_batch_of_a_file_is_chosen_anew() -> None:
    models = [{"role": "critic", "batch_size": 64, "gradient_checkpointing": "full"}]
    given = as_input(rolling({**VERL, "method": "ppo", "extra_models": models}))
    for source, kept in (("file", None), ("option", 64)):
        asked = question(given._replace(sources={**given.sources, "extra_models": source}))
        (critic,) = asked.given.job.extra_models
        assert (critic.batch_size, critic.gradient_checkpointing) == (kept, "full")
        assert any("critic batch_size" in said for said in asked.assumptions) is (kept is None)


def test_an_engine_that_is_not_counted_is_not_planned_for() -> None:
    for job in (
        rolling(TRL, engine="hf"),
        rolling(TRL, engine="none"),
        rolling({**VERL, "trainer": "pytorch"}),
        {**VERL, "method": "dpo"},
    ):
        given = as_input(job)
        assert not ways(given.job, question(given).space)


@pytest.mark.slow
def test_verl_has_no_cards_apart_with_the_training_as_it_is_and_no_plan_needs_more_than_its_card() -> None:
    """A trainer's cache beside an engine that never sleeps is given back where the card has no more."""
    assert row_of(Job.model_validate({"trainer": "verl"})).places == ("colocate",)
    found = plan({**rolling(VERL), "global_batch_size": 64})
    assert all(each.job["rollout"].get("placement") != "separate" for each in found.plans)
    for each in found.plans:
        assert each.report.verdict is not None
        assert each.report.verdict.high_bytes <= each.report.verdict.usable_bytes


@pytest.mark.slow
def test_verl_splits_the_cards_where_that_is_asked_for() -> None:
    """Its recipes with cards apart generate while they train, on completions of the step before: less waits."""
    found = plan({**rolling(VERL, placement="separate"), "global_batch_size": 64})
    best, together = found.plans[0], plan({**rolling(VERL), "global_batch_size": 64}).plans[0]
    assert best.job["rollout"]["num_gpus"] + best.job["num_gpus"] == VERL["num_gpus"]
    waits = [each.speed.parts.get("generation", 0) / each.speed.step_seconds for each in (best, together)]
    assert waits[0] < waits[1] / 2
    assert any("step before" in each for each in best.report.assumptions)
    verdicts = [each.report.verdict for each in found.plans]
    assert all(verdict and verdict.high_bytes <= verdict.usable_bytes for verdict in verdicts)


def made(gpu: str = "h100-80gb", model: str = "qwen2.5-7b", **rollout: Any) -> Generating:
    """The generation of a step of 64 completions for each engine."""
    job = {**VERL, "gpu": gpu, "model": model, "gradient_accumulation_steps": 64}
    recipe = resolve(as_input(rolling(job, **{"tensor_parallel": 1, "enforce_eager": False} | rollout)))
    return generating(recipe, card(find_gpu(gpu)), EXPECTED)


def test_decoding_is_bound_by_what_is_read() -> None:
    """One step reads the weights once and each sequence's keys and values: 64 rows of 7.6 B in bf16."""
    found = made()
    weights, cache = 7.615e9 * 2, 64 * 28 * 2 * 4 * 128 * 2 * (512 + 768)
    rate = 3350e9 * EXPECTED.memory
    least = 1536 * (weights + cache) / rate
    assert least < found.decode < 1.6 * least
    slower = made(gpu="a100-80gb")
    assert slower.decode > 1.3 * found.decode


def test_prompts_are_read_once_a_group() -> None:
    assert made(group_size=64).prefill == pytest.approx(made(group_size=8).prefill / 8)


def test_a_cache_that_is_too_small_makes_waves() -> None:
    small, large = made(gpu_memory_utilization=0.24), made(gpu_memory_utilization=0.9)
    assert small.preempted
    assert not large.preempted
    assert small.decode > large.decode
    assert made(max_num_seqs=32).decode > 1.5 * large.decode


def test_a_mixture_reads_the_experts_that_are_visited() -> None:
    one = made(model="qwen3-30b-a3b", max_num_seqs=1, tensor_parallel=4)
    many = made(model="qwen3-30b-a3b", max_num_seqs=64, tensor_parallel=4)
    assert many.decode < one.decode / 8
    assert many.decode > one.decode / 64


def test_the_trainer_of_areal_trains_meanwhile() -> None:
    job = {
        **rolling({**VERL, "trainer": "areal", "sharding": "fsdp2"}, placement="separate", num_gpus=8),
        "global_batch_size": 512,
    }
    recipe = resolve(as_input(job))
    found = speed(recipe)
    alone = speed(recipe._replace(generator=None)).step_seconds
    took = generating(recipe, card(find_gpu("h100-80gb")), EXPECTED)
    assert found.step_seconds == pytest.approx(max(alone, took.seconds) + took.moved)
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds)


def test_waiting_on_the_host_takes_time() -> None:
    jobs = [
        rolling(VERL),
        {**rolling(VERL), "trainer_offload": ["optimizer"]},
        {**rolling(VERL), "trainer_offload": ["parameters", "optimizer"]},
    ]
    moved = [speed(resolve(as_input(job))).parts["syncing"] for job in jobs]
    assert moved == sorted(moved)
    assert moved[2] > 5 * moved[0]


def test_an_engine_apart_is_not_on_the_trainers_card() -> None:
    beside = peak(resolve(as_input(rolling(TRL, engine="vllm", gpu_memory_utilization=0.5, max_model_len=2048))))
    apart = peak(
        resolve(
            as_input(
                rolling(
                    TRL, engine="vllm", gpu_memory_utilization=0.5, max_model_len=2048, placement="separate", num_gpus=1
                )
            )
        )
    )
    assert apart.device.expected < beside.device.expected - 30 * 2**30
    assert apart.verdict is not None
    assert apart.verdict.fits == "yes"


@pytest.mark.parametrize(("method", "trainers"), [("ppo", {"verl", "verl-megatron"}), ("online-dpo", {"trl"})])
def test_without_a_trainer_every_plan_generates(method: str, trainers: set[str]) -> None:
    found = plan({"model": "qwen2.5-0.5b", "method": method, "gpu": "h100-80gb", "num_gpus": 2})
    assert {each.job["trainer"] for each in found.plans} <= trainers
    assert all(each.speed.parts["generation"] > 0 for each in found.plans)
    assert any(text.startswith("trainer:") for text in found.assumptions)
    rates = [each.speed.tokens_per_second for each in found.plans]
    assert rates == sorted(rates, reverse=True)


def test_a_trainer_that_is_not_kept_up_is_never_taken() -> None:
    found = plan({"model": "llama-3.1-70b", "method": "reward", "gpu": "h100-80gb", "num_gpus": 64})
    assert {each.job["trainer"] for each in found.plans} == {"megatron-swift", "pytorch"}


def test_no_plan_stands_an_engine_apart_where_its_critic_then_does_too() -> None:
    job = {**VERL, "trainer": "openrlhf", "method": "ppo"}
    asked = question(as_input(job))
    assert {way.engine_gpus for way in ways(asked.given.job, asked.space)} == {0}
    assert "openrlhf's critic then stands on cards of its own too" in not_apart(asked.given.job, asked.space)
    without = question(as_input(job | {"method": "grpo"}))
    assert {way.engine_gpus for way in ways(without.given.job, without.space)} > {0}


@pytest.mark.parametrize(
    ("given", "taken"), [({"sequence_length": 1024}, 1024), ({"rollout": {**LENGTHS, "completion_length": 1024}}, 1536)]
)
def test_a_small_card_generates_from_four_bits_and_no_further_than_its_sequences(
    given: dict[str, Any], taken: int
) -> None:
    """TRL's vLLM takes the model's whole context, 131,072 tokens here, whose cache a small card has no room for."""
    keys = {"lora": {"r": 16}, "quantization": "nf4", "gpu": "24GB", "num_gpus": 1, "trainer": "trl"}
    found = plan({**VERL, **keys, **given})
    assert found.plans
    assert {each.job["rollout"]["max_model_len"] for each in found.plans} == {taken}
    engine = found.plans[0].report.engine
    assert engine is not None
    assert engine.weights_bytes < 7 * GiB, "of 7.6 B parameters"


def test_the_base_that_verl_gathers_twice_has_a_remedy() -> None:
    """layered_summon sends adapters of FSDP1 a layer at a time; FSDP2 gathers no more than a tensor."""
    keys = {**VERL, "rollout": LENGTHS, "sequence_length": 2048, "completion_length": 1536, "lora": {"r": 8}}
    for sharding, told in (("fsdp", True), ("fsdp2", False)):
        given = {**keys, "sharding": sharding}
        found, least = Pricing(FREE).leanest(resolve(as_input(given)))
        assert (found.get("sync") == {"gather": "unit"}) is told
        said = resolve(as_input(given | {"sync": {"gather": "unit"}})).generator
        assert least.generator is not None
        assert said is not None
        assert told is (least.generator.syncing == said.syncing)
    made = emit(as_input({**keys, "sharding": "fsdp", "sync": {"gather": "unit"}}), find_framework("verl"))
    assert "layered_summon: true" in made.texts["verl.yaml"]


ASKED: tuple[dict[str, Any], ...] = (
    {"model": "llama-3.1-8b", "method": "sft"},
    {"model": "llama-3.1-8b", "method": "dpo", "trainer": "trl", "eval_batch_size": 4},
    {"model": "llama-3.1-8b", "method": "sft", "trainer": "megatron", "num_gpus": 16},
    {"model": "llama-3.1-8b", "method": "sft", "trainer": "trl", "lora": {"r": 8}, "quantization": "nf4"},
    {"model": "llama-3.1-8b", "method": "sft", "trainer": "trl", "num_gpus": 1, "precision": "fp32"},
    rolling({**VERL, "lora": {"r": 8}, "sharding": "fsdp"}),
    rolling({**VERL, "token_budget": 8192}),
    rolling(TRL),
    rolling({**VERL, "extra_models": [{"role": "reward", "model": "qwen2.5-7b", "rollout": {"engine": "vllm"}}]}),
)
OUTSIDE = {
    "num_gpus": "the cards are the question's: --min-gpus asks for more",
    "precision": "its training stays what it is",
    "quantization": "--allow has what changes the weights",
    "eval_batch_size": "no training sees it",
    "token_budget": "batch_size stands for it",
    "sync.bucket_bytes": "its default is small beside what is gathered",
    "extra_models.reward.rollout.gpu_memory_utilization": "of extra_models as a whole",
    "extra_models.reward.rollout.tensor_parallel": "of extra_models as a whole",
}
"""Keys that a remedy changes and a plan does not, with why."""


def test_what_a_remedy_changes_a_plan_has_too() -> None:
    changed, chosen = set[str](), {*CHOSEN, *WHERE_UNSAID, *(path for row in ROWS for path in _paths(row.keys))}
    for keys in ASKED:
        given = as_input({"gpu": "h100-80gb", "num_gpus": 8, **keys})
        changed |= {path for move in moves(given.job, resolve(given)) for path in _paths(move.keys)}
        space = question(given).space
        chosen |= {path for layout in (*layouts(space), *offloading(space)) for path in layout}
        chosen |= {path for way in ways(given.job, space) for path in _paths(way.keys)}
    assert changed - chosen == set(OUTSIDE)


@pytest.mark.slow
def test_a_plan_knows_that_one_model_waits_on_the_host_while_the_other_trains() -> None:
    """A critic of 8 B parameters and its states, and the policy's weights, are too much for a card at once."""
    keys = {**VERL, "model": "llama-3.1-8b", "method": "ppo", "num_gpus": 1, "lora": {"r": 8}, "sequence_length": 512}
    found = plan({**keys, "optimizer": "adamw-8bit", "sync": {"gather": "unit"}})
    assert found.plans
    assert {tuple(each.job["trainer_offload"]) for each in found.plans} == {("parameters", "optimizer")}


def test_weights_that_no_node_holds_are_served_over_the_fewest_that_do() -> None:
    """verl's recipe of DeepSeek-V3 generates over 32 cards too; one that crowds a node has more;
    a model that a node holds with room to spare stays on one."""
    keys = {**VERL, "trainer": "verl-megatron", "model": "deepseek-v3", "num_gpus": 256}
    tensor = {
        model: {way.rollout["tensor_parallel"] for way in ways(asked.given.job, asked.space)}
        for model in ("deepseek-v3", "qwen3-235b-a22b", "qwen2.5-72b")
        for asked in [question(as_input({**keys, "model": model}))]
    }
    node = {1, 2, 4, 8}
    assert tensor == {"deepseek-v3": node | {32}, "qwen3-235b-a22b": node | {16}, "qwen2.5-72b": node}
