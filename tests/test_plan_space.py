"""Holds the choices of a plan, and the moves around a job, to lists written by hand: what is there, and no more."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from any_jobs import MODELS

from memplan.cost import seconds
from memplan.engine.bounds import at_least
from memplan.errors import InvalidJob
from memplan.frameworks.emit.writing import emit_plan, plans_of
from memplan.frameworks.registry import find_framework
from memplan.generated import Host
from memplan.planner import plan
from memplan.planner.axes import values
from memplan.planner.candidates import Candidates, Floored, Refused, same_training
from memplan.planner.changes import sets
from memplan.planner.degrees import INSTANCES, LEAST_TOKENS, Keys, copied, divisors, is_native, native, twos
from memplan.planner.planning import job_input, pricing_of, question, search
from memplan.planner.pricing import FREE, ROWS, Priced, Pricing, has_flash
from memplan.planner.rejected import _miss, absences
from memplan.planner.space import Space, batches, data_ranks, layouts, megatron
from memplan.planner.splits import candidates
from memplan.planner.steps import accumulation_class
from memplan.priced import price
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.trainers import TRAINERS

LLAMA = MODELS["untied"]
JOB: dict[str, Any] = {"model": LLAMA, "method": "sft", "gpu": "h100-80gb", "sequence_length": 4 * LEAST_TOKENS}
SHORT = {
    "tensor_parallel": "t",
    "pipeline_parallel": "p",
    "virtual_pipeline": "v",
    "context_parallel": "c",
    "expert_parallel": "e",
}


def space(**keys: Any) -> Space:
    return question(read_job({**JOB, **keys})).space


def degrees(keys: dict[str, Any]) -> str:
    """Degrees above one, such as 't2 p4'; then how uneven stages are divided."""
    found = [f"{letter}{keys[key]}" for key, letter in SHORT.items() if keys.get(key, 1) != 1]
    options = keys.get("megatron", {})
    found += ["around"] if options.get("account_for_embedding_in_pipeline_split") else []
    found += [f"last{options[key]}" for key in ("num_layers_in_last_pipeline_stage",) if key in options]
    found += ["laid"] if "pipeline_model_parallel_layout" in options else []
    return " ".join(found)


def on_megatron(layers: int, **keys: Any) -> list[str]:
    found = megatron(space(**{"trainer": "megatron", **keys, "model": {**LLAMA, "num_hidden_layers": layers}}))
    return sorted(map(degrees, found))


def test_powers_of_two_and_divisors() -> None:
    assert [twos(most) for most in (0, 1, 2, 7, 8)] == [[1], [1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]
    assert divisors(12, 12) == [1, 2, 3, 4, 6, 12]
    assert divisors(12, 4) == [1, 2, 3, 4]
    assert is_native({"sharding": "fsdp2", "context_parallel": 2})
    assert not is_native({"sharding": "fsdp2", "tensor_parallel": 1, "pipeline_parallel": None})
    assert not is_native({"sharding": "zero3", "tensor_parallel": 2})


@pytest.mark.parametrize(
    ("gpus", "layout", "copies"),
    [
        (1024, {}, None),
        (2048, {"tensor_parallel": 2}, None),
        (2048, {"tensor_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 1}, None),
        (2048, {}, 4),
        (4096, {"tensor_parallel": 2, "pipeline_parallel": 1}, 4),
        (16384, {"context_parallel": 16, "pipeline_parallel": 2}, 16),
        (100_000, {"pipeline_parallel": 4}, 50),
        (2053, {}, None),
        (4096, {"expert_parallel": 1024, "expert_tensor_parallel": 1}, None),
        (4096, {"expert_parallel": 64, "expert_tensor_parallel": 1}, 8),
    ],
)
def test_states_of_more_than_a_thousand_ranks_also_in_copies(gpus: int, layout: Keys, copies: int | None) -> None:
    """The fewest that leave 512 ranks or fewer to share, and divide those of the experts too."""
    found = copied({**layout, "megatron": {"overlap_grad_reduce": True}}, gpus)
    assert [each["megatron"].get(INSTANCES) for each in found] == ([copies] if copies else [])
    assert all({**each, "megatron": None} == {**layout, "megatron": None} for each in found)


@pytest.mark.parametrize(
    ("trainer", "megatron_keys", "counts"),
    [
        ("megatron", {}, {1, 4}),
        ("megatron", {INSTANCES: 2}, {1}),
        ("megatron", {"reduce_scatter_with_fp32_accumulation": True}, {1}),
        ("megatron-swift", {}, {1}),
    ],
)
def test_copies_are_tried_where_they_can_be_told(trainer: str, megatron_keys: Keys, counts: set[int]) -> None:
    found = megatron(space(trainer=trainer, num_gpus=2048, pipeline_parallel=1, megatron=megatron_keys))
    assert {keys["megatron"].get(INSTANCES, 1) for keys in found} == counts


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (
            6,
            [
                *("", "c2", "c4", "p2", "p2 c2", "p2 v3", "p2 v3 c2", "p4 around", "p4 v2 around"),
                *("t2", "t2 c2", "t2 p2", "t2 p2 v3", "t4"),
            ],
        ),
        (
            7,
            [
                *("", "c2", "c4", "p2 c2 last3", "p2 last3", "p4 last1", "t2", "t2 c2", "t2 p2 last3", "t4"),
                *("p2 v2 c2 laid", "p2 v2 laid", "t2 p2 v2 laid"),
            ],
        ),
    ],
)
def test_degrees_of_megatron_are_all_that_divide(layers: int, expected: list[str]) -> None:
    """Two more than six layers, for embedding and loss, divide among four stages, and then in two chunks each."""
    assert on_megatron(layers, num_gpus=4) == sorted(expected)


@pytest.mark.parametrize(
    ("layers", "gpus", "expected"),
    [
        (5, 30, {"p2 last2", "p2 v2 laid", "p3 last1", "p5"}),
        (9, 24, {"p2 last4", "p2 v4 laid", "p3", "p3 v3", "p4 v2 laid"}),
        (
            10,
            12,
            {"p2", "p2 v5", "p3 around", "p3 v2 around", "p3 v4 around", "p4 around", "p4 v3 around"}
            | {"p6 around", "p6 v2 around"},
        ),
    ],
)
def test_stages_of_megatron_with_and_without_a_rest(layers: int, gpus: int, expected: set[str]) -> None:
    """Every stage has a layer at least: nine layers in stages of three leave none for a fourth. Of uneven ones the most
    chunks are tried, unless their number is fixed."""
    found = on_megatron(layers, num_gpus=gpus, sequence_length=LEAST_TOKENS)
    assert {text for text in found if text.startswith("p")} == expected
    asked = space(
        trainer="megatron", num_gpus=gpus, sequence_length=LEAST_TOKENS, model={**LLAMA, "num_hidden_layers": layers}
    )
    two = {degrees(keys) for keys in megatron(asked._replace(fixed={"virtual_pipeline": 2}))}
    assert {text.split()[1] for text in two if text.startswith("p")} == {"v2"}


def test_what_megatron_divides_at_most() -> None:
    """64 stages, the two largest numbers of up to 12 chunks of a stage, 16 parts of a sequence, ranks that
    divide the heads."""
    stages = on_megatron(64, num_gpus=128, sequence_length=LEAST_TOKENS)
    assert "p64" in stages
    assert {text for text in stages if text.startswith("p2")} == {"p2", "p2 v2", "p2 v4", "p2 v8"}
    without = [text for text in on_megatron(4, num_gpus=32, sequence_length=1 << 16) if "p" not in text]
    contexts = ["c2", "c4", "c8", "c16"]
    t2, t4 = ["t2", *(f"t2 {c}" for c in contexts)], ["t4", *(f"t4 {c}" for c in contexts[:3])]
    assert without == sorted(["", *contexts, *t2, *t4])
    assert [text for text in on_megatron(4, num_gpus=32) if text.startswith("c")] == ["c2", "c4"]


def test_layouts_of_megatron_say_what_comes_with_a_degree() -> None:
    overlaps = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    found = {degrees(keys): keys for keys in megatron(space(num_gpus=8, trainer="megatron", model=MODELS["mixtral"]))}
    assert found[""] == {"sharding": "distributed-optimizer", "megatron": overlaps}
    assert found["t2"] == found[""] | {"tensor_parallel": 2, "sequence_parallel": True}
    assert found["e2"] == found[""] | {"expert_parallel": 2, "expert_tensor_parallel": 1}
    own = megatron(space(num_gpus=8, trainer="megatron", model=MODELS["mixtral"], expert_tensor_parallel=2))
    assert {keys.get("expert_tensor_parallel") for keys in own} == {None}
    uneven = megatron(space(num_gpus=4, model={**LLAMA, "num_hidden_layers": 6}))
    around = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    assert [keys["megatron"] for keys in uneven if degrees(keys) == "p4 around"] == [overlaps | around]
    assert {keys["trainer"] for keys in uneven} == {"megatron"}
    assert megatron(space(num_gpus=4, trainer="trl")) == []


def test_experts_are_shared_by_what_a_stage_has() -> None:
    model = {**MODELS["mixtral"], "num_hidden_layers": 2}
    found = megatron(space(model=model, num_gpus=6, trainer="megatron", sequence_length=LEAST_TOKENS))
    assert sorted(map(degrees, found)) == ["", "e2", "p2", "t2", "t2 e2"]


def test_wide_experts_are_divided_too() -> None:
    """Into parts of 2,048 and more, within a node: ETP beside EP, or in its place; not where sequences are divided."""
    model = {**MODELS["mixtral"], "num_hidden_layers": 1, "intermediate_size": 4096}
    found = megatron(space(model=model, num_gpus=4, trainer="megatron", sequence_length=2 * LEAST_TOKENS))
    parts = {(degrees(keys), keys.get("expert_tensor_parallel", 0)) for keys in found}
    assert {(text, n) for text, n in parts if n > 1} == {
        *(("", 2), ("t4", 2)),
        *((f"{t}e2", 2) for t in ("", "t2 ", "t4 ")),
    }
    assert ("t2", 0) in parts


def test_degrees_of_torch_are_all_that_divide() -> None:
    """Two key/value heads and four layers; two ranks at least are left to share the states."""
    asked = space(num_gpus=8)
    found = native(asked.job, asked.spec, 8, 8, {})
    assert all(keys["sharding"] == "fsdp2" for keys in found)
    twice = ["c2", "c4", "t2", "t2 c2", "t2 c4"]
    once = ["p2", "p2 c2", "p2 c4", "p4", "p4 c2", "t2 p2", "t2 p2 c2"]
    assert sorted(degrees(keys) for keys in found if keys["reshard_after_forward"]) == twice
    assert sorted(degrees(keys) for keys in found if not keys["reshard_after_forward"]) == sorted(twice + once)
    short = native(space(num_gpus=8, sequence_length=512).job, asked.spec, 8, 8, {})
    assert {degrees(keys) for keys in short} == {"t2", "p2", "p4", "t2 p2"}


def test_what_torch_divides_at_most() -> None:
    nine = {**LLAMA, "hidden_size": 288, "num_attention_heads": 9, "num_key_value_heads": 9, "num_hidden_layers": 64}
    asked = space(model=nine, num_gpus=128, sequence_length=9 << 16)
    tensors = native(asked.job, asked.spec, 18, 18, {})
    assert {keys.get("tensor_parallel", 1) for keys in tensors} == {1, 3}
    most = native(asked.job, asked.spec, 128, 8, {})
    assert max(keys.get("pipeline_parallel", 1) for keys in most) == 64
    assert max(keys.get("context_parallel", 1) for keys in most) == 16


def test_layouts_of_one_gpu_of_a_node_and_of_two() -> None:
    plain: list[Keys] = [{"sharding": name} for name in ("ddp", "zero0", "zero1", "zero2", "zero3")]
    plain += [{"sharding": "fsdp2", "reshard_after_forward": again} for again in (True, False)]
    hybrid = [{"sharding": "fsdp2", "reshard_after_forward": 8}, {"sharding": "fsdp2", "fsdp": {"replicate": 2}}]
    fixed: Keys = {"tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "trainer": "pytorch"}
    assert layouts(space(num_gpus=1)) == [{"sharding": "none"}]
    assert layouts(space(num_gpus=8, **fixed)) == plain
    assert layouts(space(num_gpus=12, **fixed)) == plain
    assert layouts(space(num_gpus=16, **fixed)) == [*plain, *hybrid]
    assert layouts(space(num_gpus=16, zero_stage=2, **fixed)) == [{"sharding": "zero2"}]
    again = layouts(space(num_gpus=8, reshard_after_forward=True, **fixed))
    assert again == [{"sharding": "fsdp2", "reshard_after_forward": True}]
    assert {keys["sharding"] for keys in layouts(space(num_gpus=8, **fixed)._replace(offload=True))} == {
        *("zero2", "zero3", "fsdp2")
    }
    assert layouts(space(num_gpus=1)._replace(offload=True))[0] == {"sharding": "none", "offload": ["activations"]}
    of_megatron = space(num_gpus=4, trainer="megatron", sharding="distributed-optimizer")
    hosted = [{**keys, "offload": ["optimizer"]} for keys in layouts(of_megatron)]
    assert layouts(of_megatron._replace(offload=True)) == hosted != []
    alone = layouts(space(num_gpus=1, trainer="megatron")._replace(offload=True))
    assert alone == [{"sharding": "distributed-optimizer", "offload": ["optimizer"]}]


def test_a_trainer_without_liger_compiles() -> None:
    """torchtune has a switch for one alone, TRL for both: Liger's kernels come first."""
    found = {}
    for trainer in ("torchtune", "trl"):
        job = {"model": "llama-3.1-8b", "method": "sft", "trainer": trainer, "gpu": "h100-80gb", "num_gpus": 8}
        space = question(read_job(job)).space
        found[trainer] = (
            values(space, {"sharding": "fsdp2"}, "compile"),
            values(space, {"sharding": "fsdp2"}, "kernels"),
        )
    assert found == {"torchtune": ((False, True), ()), "trl": ((), ("none", "liger"))}


@pytest.mark.parametrize(("gpus", "said"), [(1024, False), (100_000, True)])
def test_a_batch_beyond_all_that_is_published_is_said(gpus: int, said: bool) -> None:
    job = {"model": "llama-3.2-1b", "method": "sft", "gpu": "h100-80gb", "num_gpus": gpus}
    texts = question(read_job(job)).assumptions
    assert any("more than any published run" in text for text in texts) is said


@pytest.mark.parametrize(
    ("fixed", "ranks", "expected"),
    [
        ({}, 2, [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]),
        ({}, 5, [(1, 0)]),
        ({"batch_size": 4}, 2, [(4, 3)]),
        ({"batch_size": 5}, 2, [(5, 0)]),
        ({"batch_size": 3}, 5, [(3, 0)]),
        ({"gradient_accumulation_steps": 3}, 2, [(4, 3)]),
        ({"gradient_accumulation_steps": 5}, 2, [(1, 0)]),
    ],
)
def test_batches_make_the_global_batch(fixed: dict[str, int], ranks: int, expected: list[tuple[int, int]]) -> None:
    of = space(num_gpus=4, global_batch_size=24)._replace(fixed=fixed)
    assert batches(of, ranks) == expected
    both = {"batch_size": 3, "gradient_accumulation_steps": 7}
    assert batches(of._replace(global_batch=0, fixed=both), ranks) == [(3, 7)]


def test_ranks_that_see_other_examples() -> None:
    of = space(num_gpus=8)
    assert data_ranks(of, {"tensor_parallel": 2, "context_parallel": 2, "pipeline_parallel": None}) == 2
    assert data_ranks(of, {}) == 8


def test_values_of_an_axis() -> None:
    fused = {"optimizer_impl": ("fused",), "attention": ("sdpa",), "gradient_checkpointing": None}
    for key, expected in fused.items():
        found = values(space(num_gpus=1), {"sharding": "none"}, key)
        assert found == expected or (expected is None and found[0] == "none" and found[-1] == "full")
    assert values(space(num_gpus=1, padded=True), {"sharding": "none"}, "attention") == ("flash",)
    assert values(space(num_gpus=1, optimizer="adafactor"), {"sharding": "none"}, "optimizer_impl") == ("foreach",)
    assert values(space(num_gpus=1), {"sharding": "none"}, "pair_pass") == ()


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({**JOB, **keys}))


def test_what_memory_depends_on_of_the_accumulation() -> None:
    assert accumulation_class(recipe(gradient_accumulation_steps=4)) == 2
    assert accumulation_class(recipe(gradient_accumulation_steps=1)) == 1
    keys: dict[str, Any] = {"pipeline_parallel": 2, "num_gpus": 4, "gradient_accumulation_steps": 5}
    assert accumulation_class(recipe(**keys, trainer="megatron")) == 4
    assert accumulation_class(recipe(**{**keys, "gradient_accumulation_steps": 3}, trainer="megatron")) == 3
    assert accumulation_class(recipe(**{**keys, "pipeline_parallel": 4, "num_gpus": 8}, sharding="fsdp2")) == 4


def test_considered_are_all() -> None:
    made = Candidates([], [Refused({}, "why", 3), Refused({}, "why not", 4)], [Floored(0, {}, 5)])
    assert made.considered == 12


@pytest.mark.parametrize(
    ("job", "keys", "precision"),
    [
        ({}, {"sharding": "none"}, "bf16-amp"),
        ({"dtype": "fp16"}, {"sharding": "ddp"}, "fp16-amp"),
        ({"dtype": "fp32"}, {"sharding": "ddp"}, None),
        ({"lora": {"r": 8}}, {"sharding": "ddp"}, None),
        ({"precision": "bf16"}, {"sharding": "ddp"}, None),
        ({"precision": "bf16-amp"}, {"sharding": "zero2"}, "bf16-master"),
        ({}, {"sharding": "zero2"}, None),
    ],
    ids=str,
)
def test_the_precision_that_keeps_the_training(job: dict[str, Any], keys: dict[str, Any], precision: str) -> None:
    of = space(num_gpus=2, **job)
    assert same_training(of, keys, asked=False) == keys | ({"precision": precision} if precision else {})


def candidates_of(**keys: Any) -> Candidates:
    asked = question(read_job({**JOB, **keys}))
    made = candidates(asked.given, asked.space, asked.device)
    for each in made.legal:
        assert each.recipe.batch.size * each.recipe.batch.accumulation * each.recipe.parallel.data == (
            asked.space.global_batch * each.recipe.batch.group
        )
    return made


def batches_of(made: Candidates) -> set[tuple[int, int]]:
    return {(each.batch, each.recipe.batch.accumulation) for each in made.legal}


def test_an_optimizer_that_may_not_accumulate_runs_where_nothing_does() -> None:
    made = candidates_of(optimizer="lomo", num_gpus=1, global_batch_size=8, loss_head="auto", kernels="none")
    assert batches_of(made) == {(8, 1)}
    assert {each.reason.split(":")[0] for each in made.refused} == {"optimizer"}
    assert [each.plans for each in made.refused] == [6] * 3
    assert made.considered == 24


def test_the_interleaved_schedule_runs_where_stages_divide_its_micro_batches() -> None:
    keys = {"trainer": "megatron", "num_gpus": 2, "global_batch_size": 6, "pipeline_parallel": 2}
    assert batches_of(candidates_of(**keys, virtual_pipeline=2)) == {(1, 6), (3, 2)}
    assert batches_of(candidates_of(**keys, virtual_pipeline=1)) == {(1, 6), (2, 3), (3, 2), (6, 1)}
    assert plan(read_job({**JOB, **keys, "virtual_pipeline": 2})).fits


def test_every_plan_is_counted_once() -> None:
    """Six ways to checkpoint and three batches, whatever becomes of them."""
    keys = {"num_gpus": 1, "global_batch_size": 4, "loss_head": "auto", "model": "qwen3-0.6b", "kernels": "none"}
    fine, large = candidates_of(**keys), candidates_of(**keys, gpu="2GiB")
    assert (len(fine.legal), len(large.legal), len(large.floored)) == (fine.considered, 0, 1)
    refused = candidates_of(**{**keys, "attention": "flash", "precision": "fp32"})
    assert fine.considered == large.considered == refused.considered == 6 * 3
    assert [each.plans for each in refused.refused] == [18]


def test_a_candidates_seconds_are_those_of_an_example() -> None:
    asked = question(read_job({**JOB, "num_gpus": 2, "global_batch_size": 4, "loss_head": "auto"}))
    for each in candidates(asked.given, asked.space, asked.device).legal[::50]:
        assert each.seconds == pytest.approx(seconds(each.recipe, asked.device) / 4)


def test_what_auto_comes_to_is_not_tried_again() -> None:
    """Nor a reference on the host, which one that is computed before outdoes: it is as fast, and holds no more
    (tests/test_plan_order.py)."""
    keys = {"num_gpus": 1, "global_batch_size": 2, "method": "dpo", "loss_head": "auto", "pair_pass": "concatenated"}
    made = candidates_of(**keys)
    assert {each.keys["reference"] for each in made.legal} == {"auto", "precomputed"}
    assert {each.recipe.others.reference for each in made.legal} == {"resident", "precomputed"}
    before, offloaded = (candidates_of(**keys, reference=name) for name in ("precomputed", "offloaded"))
    assert made.considered == len(made.legal) + made.outdone == len(made.legal) + len(offloaded.legal)
    quickest = {str({**each.keys, "reference": ""}): each.seconds for each in before.legal}
    assert all(quickest[str({**each.keys, "reference": ""})] < each.seconds for each in offloaded.legal)
    assert "offloaded" in {each.keys["reference"] for each in candidates_of(**{**keys, "num_gpus": 2}).legal}


def fitted(**keys: Any) -> Recipe:
    return recipe(**{"sequence_length": 256, **keys})


def test_flash_runs_in_half_precision_where_the_class_has_it() -> None:
    assert has_flash(fitted(precision="bf16"))
    assert has_flash(fitted(precision="bf16-amp"))
    assert not has_flash(fitted(precision="fp32"))
    lacking = fitted(precision="bf16")
    lacking = lacking._replace(model=lacking.model.model_copy(update={"family": "bloom"}))
    assert not has_flash(lacking)
    for trainer in ("litgpt", "megatron"):
        assert has_flash(lacking._replace(trainer=TRAINERS[trainer][-1]))


def test_what_costs_nothing_is_tried_one_after_another() -> None:
    of = fitted(num_gpus=2, sharding="ddp", attention="sdpa", optimizer_impl="foreach")
    whole, few = Pricing(FREE), Pricing(["allocator"])
    assert [row.name for row in few.rows] == ["allocator"]
    assert [sorted(keys) for keys, _ in few.variants(of)] == [[], ["allocator"]]
    found = [len(keys) for keys, _ in whole.variants(of)]
    assert found == sorted(found)
    assert len(found) == 2**4
    assert whole.variants(of)[0] == ({}, of)
    eager = fitted(attention="eager")
    assert "sdpa" in [keys.get("attention") for keys, _ in Pricing(["sdpa"]).variants(eager)]
    only: Any = SimpleNamespace(operators=eager.operators, model=SimpleNamespace(eager_only=True))
    assert [row.applies(only) for row in ROWS if row.name == "sdpa"] == [False]
    assert [keys for keys, _ in Pricing(["sdpa"]).variants(of)] == [{}]


def test_what_is_missing_at_least() -> None:
    small = fitted(gpu="4GiB", margin=0.25)
    pricing = Pricing(FREE)
    assert pricing.short_at_least(small) == 0
    assert pricing.room(small) > 0
    large = fitted(gpu="4GiB", margin=0.25, model="qwen3-0.6b")
    assert large.hardware.gpu is not None
    allowed = int(large.hardware.gpu.usable_bytes * 0.75)
    lean = pricing.variants(large)[-1][1]
    assert pricing.short_at_least(large) == at_least(lean) - allowed > 0
    assert pricing.room(large) == -pricing.short_at_least(large, quickly=True) < 0
    assert pricing.fewest(large) == []
    assert [priced.keys for priced in pricing.fewest(small)] == [{}]
    assert pricing.of(large).short >= pricing.short_at_least(large)
    assert Priced(peak(large.varied({"hardware.gpu": None})), {}, large).short == 0


def test_what_a_plan_assumes() -> None:
    file = {**JOB, "num_gpus": 2, "sharding": "zero3", "deepspeed": {"allgather_bucket_size": 1000}}
    anew, batch = "chosen anew, whatever the job file says: ", "global_batch_size: 64 (none given)"
    asked = question(read_job({}, {**file, "gradient_checkpointing": "full"}))
    assert asked.given.job.deepspeed == Job().deepspeed
    assert "deepspeed" not in asked.given.sources
    assert "trainer" not in asked.given.job.model_fields_set
    assert asked.given.job.sequence_length == JOB["sequence_length"]
    assert asked.given.sources["sharding"] == "file"
    assert asked.assumptions[:2] == (
        batch,
        f"{anew}sharding, gradient_checkpointing, deepspeed (--fix key=value keeps one)",
    )
    assert asked.assumptions[2].startswith("precision: fp32 weights")
    kept = question(read_job({"sharding": "zero3"}, file))
    assert kept.given.job.deepspeed is not None
    assert [text.split(":")[0] for text in kept.assumptions] == ["global_batch_size", "precision"]
    for more in ({"precision": "bf16"}, {"lora": {"r": 8}}):
        assert question(read_job({**JOB, "num_gpus": 2, **more})).assumptions == (batch,)


def test_a_files_own_batch_is_that_of_its_data_ranks() -> None:
    file = {**JOB, "num_gpus": 8, "trainer": "megatron", "tensor_parallel": 2, "pipeline_parallel": 2}
    own = {"batch_size": 3, "gradient_accumulation_steps": 5}
    assert question(read_job({}, {**file, **own})).space.global_batch == 30
    assert question(read_job({**JOB, "num_gpus": 8, **own})).space.global_batch == 0
    assert question(read_job({**JOB, "num_gpus": 8, "batch_size": 3})).space.global_batch == 64


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"num_gpus": 1}, []),
        ({"num_gpus": 4}, []),
        ({"num_gpus": 4, "trainer": "trl", "sharding": "zero3"}, []),
        (
            {"num_gpus": 4, "trainer": "trl"},
            [("Megatron", "not with trainer trl"), ("FSDP2 with TP, PP or CP", "not with trainer trl")],
        ),
        (
            {"num_gpus": 4, "trainer": "nemo-aligner", "method": "dpo"},
            [
                ("Megatron CP 2", "NeMo-Aligner has none for dpo"),
                ("Megatron VP 2", "NeMo-Aligner has none for dpo"),
                ("FSDP2 with TP, PP or CP", "not with trainer nemo-aligner"),
            ],
        ),
        ({"num_gpus": 1, "trainer": "trl"}, []),
    ],
    ids=str,
)
def test_what_was_not_tried_is_said(keys: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    of = space(**keys)
    assert [(each.name, each.reason) for each in absences(of)] == expected
    assert not absences(of._replace(offload=True))


def test_a_search_tells_where_it_is() -> None:
    told: list[tuple[str, int, int]] = []
    asked = question(read_job({**JOB, "num_gpus": 1, "global_batch_size": 2, "loss_head": "auto"}))
    whole = len(search(asked, 2, lambda *each: told.append(each)).of.legal)
    assert told == [("finding plans", 0, 0), *(("pricing plans", number + 1, whole) for number in range(len(told) - 1))]
    assert len(told) > 1


def test_what_misses_on_the_host_alone_says_so() -> None:
    made = candidates_of(num_gpus=1, global_batch_size=1, loss_head="auto").legal[0]
    host = Host(3 << 30, 2 << 30, False)
    priced: Any = SimpleNamespace(keys={}, short=0, figures=SimpleNamespace(host=host), recipe=made.recipe)
    row = _miss(made, priced)
    assert (row.reason, row.short_bytes) == ("3.00 GiB of a node's host memory", 0)
    assert row.job == made.keys


def test_a_miss_is_where_the_card_holds_the_most() -> None:
    """A base that transformers 5 packs on every card before FSDP sends it to the host."""
    job = {"model": "llama-3.1-8b", "method": "sft", "trainer": "trl", "sequence_length": 64, "gpu": "80GiB"}
    job |= {"num_gpus": 8, "sharding": "fsdp2", "lora": {"r": 8}, "gradient_checkpointing": "full"}
    job |= {"quantization": "nf4", "fsdp": {"cpu_offload": True}}
    packed = price(resolve(read_job(job)), detailed=False)[0]
    assert (packed.fullest_at, packed.peak_instant[:7]) == ("load", "policy.")


def test_what_misses_as_its_engine_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made, host = candidates_of(num_gpus=1, global_batch_size=1, loss_head="auto").legal[0], Host(1 << 30, 4 << 30, True)
    priced: Any = SimpleNamespace(keys={}, short=0, figures=SimpleNamespace(host=host), recipe=made.recipe)
    why = SimpleNamespace(why_not="its cache holds nothing", fullest_at="policy.loss")
    monkeypatch.setattr("memplan.planner.rejected.price", lambda *_, **__: [why])
    assert _miss(made, priced).reason == "the engine does not start: its cache holds nothing"
    priced.short = 1 << 30
    assert _miss(made, priced).reason == "short by 1.00 GiB at policy.loss"


@pytest.mark.parametrize(("method", "scored"), [("grpo", (384, 192, 96)), ("dpo", (768, 512, 256))])
def test_of_shorter_sequences_what_is_generated_shrinks_and_what_the_data_has_is_cut(
    method: str, scored: tuple[int, ...]
) -> None:
    asked = question(
        read_job({**JOB, "method": method, "num_gpus": 1, "sequence_length": 2048, "completion_length": 768})
    )
    (shorter,) = next(sets(["shorter"], asked))
    found = [(keys["sequence_length"], keys["completion_length"]) for keys in shorter.values]
    assert found == list(zip((1024, 512, 256), scored, strict=True))


def test_what_no_plan_can_say_is_answered_with_what_to_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema_version": 1, "plans": [{"job": {}}], "considered": 1}')
    other = ", or use another framework"
    hints = {f"use a.b=c, d=1{other}": " --fix a.b=c --fix d=1", f"leave lora out{other}": f": leave lora out{other}"}
    for hint, told in hints.items():

        def refuses(*_: object, hint: str = hint) -> None:
            raise InvalidJob("this cannot be said", hint)

        monkeypatch.setattr("memplan.frameworks.emit.writing.read_documents", refuses)
        with pytest.raises(InvalidJob, match="none of 1 plans: this cannot be said") as raised:
            emit_plan(plans_of(str(path)), {}, find_framework("trl"))
        assert raised.value.hint == f"plan again{told}"


def test_a_plans_job_says_nothing_of_what_its_file_chose_otherwise() -> None:
    asked = question(read_job({}, {**JOB, "num_gpus": 2, "reshard_after_forward": True, "global_batch_size": 2}))
    of = candidates(asked.given, asked.space, asked.device)
    plain = next(each for each in of.legal if each.keys["sharding"] == "ddp")
    made = job_input(asked, plain, pricing_of(asked)(plain))
    assert made.job.reshard_after_forward is None
    assert "reshard_after_forward" not in made.sources
    assert (made.sources["sharding"], made.sources["method"]) == ("option", "file")


def test_what_the_user_gave_is_not_changed_at_no_cost() -> None:
    given = {"attention": "sdpa", "allocator": {"expandable_segments": False}}
    for keys, names in (({}, ["allocator", "views", "flash", "gathered"]), (given, ["views", "gathered"])):
        rows = pricing_of(question(read_job({**JOB, **keys, "num_gpus": 2}))).rows
        assert [row.name for row in rows] == names
