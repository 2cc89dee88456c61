"""Proves the RL step of trainer and engine: who holds what of the card at each instant, what is on the host, what does
not start, and what every trainer does where nobody says."""

from typing import Any

import pytest

from memplan.api import estimate
from memplan.engine.ranks import ledger_of, totals_of_rank
from memplan.engine.tensors import model_weights
from memplan.errors import InvalidJob
from memplan.generated import Together
from memplan.models import load_model
from memplan.priced import price
from memplan.render.estimate_view import estimate_blocks
from memplan.render.text import plain
from memplan.report import Report
from memplan.reporting import build_report, peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.tables.generation import ROWS, generation_of
from memplan.tables.trainers import TRAINERS
from memplan.units import GiB, MiB

JOB: dict[str, Any] = {
    "model": "qwen2.5-7b",
    "method": "grpo",
    "gpu": "h100-80gb",
    "num_gpus": 8,
    "sequence_length": 2048,
    "completion_length": 1024,
    "attention": "flash",
    "gradient_checkpointing": "full",
}
TRL = {"trainer": "trl", "trainer_version": "1.16", "zero_stage": 3}
COLOCATED = TRL | {"rollout": {"engine": "vllm", "max_model_len": 2048}}
VERL = {"trainer": "verl", "trainer_version": "0.7", "sharding": "fsdp2"}
OFFLOADED = VERL | {"trainer_offload": ["parameters", "optimizer"]}


def report(**keys: Any) -> Report:
    return estimate(JOB | keys, play=False)


def at(found: Report, name: str, first: bool = False) -> Together:
    return next(each for each in found.rollout if each.name == name and each.first is first)


def trainer(found: Report, name: str, first: bool = False) -> int:
    return at(found, name, first).processes[0].allocated_bytes


def engine(found: Report, name: str) -> int:
    return at(found, name).processes[1].device_bytes


# -- the sum of the processes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [COLOCATED, VERL, OFFLOADED, TRL, VERL | {"method": "ppo"}, {"trainer": "nemo-rl"}])
def test_the_device_is_the_sum_of_its_processes_at_the_worst_instant(keys: dict[str, Any]) -> None:
    found = report(**keys)
    for each in found.rollout:
        assert each.device_bytes == sum(process.device_bytes for process in each.processes)
        assert each.low_bytes <= each.device_bytes <= each.high_bytes
    worst = max(found.rollout, key=lambda each: each.device_bytes)
    assert found.per_gpu.device_bytes.expected == worst.device_bytes
    assert any(
        each.name == found.per_gpu.device_peak_instant
        for each in found.rollout
        if each.device_bytes == worst.device_bytes
    )
    assert sum(process.device_bytes for process in found.processes) == worst.device_bytes
    sought = peak(resolve(read_job(JOB | keys)))
    assert sought.verdict is not None
    assert found.verdict is not None
    assert (sought.device.expected, sought.verdict.fits) == (worst.device_bytes, found.verdict.fits)


def test_an_engine_in_the_trainer_s_process_has_no_context_of_its_own() -> None:
    """Nothing but 1 rank: no communicators either, so that the budget is all that stands outside the trainer."""
    same, own = (report(**COLOCATED | {"rollout": {"engine": "vllm", "max_model_len": 2048, "process": each}})
                 for each in ("same", "own"))  # fmt: skip
    assert same.engine is not None
    assert engine(same, "rollout.generate") == same.engine.budget_bytes
    assert 400 * MiB < engine(own, "rollout.generate") - engine(same, "rollout.generate") < GiB


def test_what_generates_is_not_beside_the_update_where_it_sleeps() -> None:
    awake = report(**COLOCATED)
    asleep = report(**COLOCATED | {"rollout": {"engine": "vllm", "max_model_len": 2048, "sleep": "2"}})
    assert awake.engine is not None
    update = next(each.name for each in awake.rollout if each.name.startswith("policy."))
    assert engine(awake, update) == awake.engine.awake_bytes
    assert engine(asleep, update) < 2 * GiB
    assert engine(asleep, "sync.transfer") == pytest.approx(
        engine(asleep, update) + awake.engine.weights_bytes, rel=1e-6
    )
    assert [each.name for each in awake.rollout if each.name.startswith("sync")] == ["sync.transfer"] * 2


def test_the_first_step_lacks_the_optimizer_s_states() -> None:
    found = report(**COLOCATED)
    states = sum(row.bytes for row in found.per_gpu.ledger if row.category == "optimizer_states")
    assert trainer(found, "rollout.generate") - trainer(found, "rollout.generate", True) == states
    assert trainer(found, "step.optimizer") == trainer(found, "step.optimizer", True)
    assert trainer(found, "start.engine", True) == trainer(found, "rollout.generate", True)


# -- offload, and the trainer's cache ---------------------------------------------------------------------------------


def test_what_is_on_the_host_while_the_engine_generates_is_back_for_the_update() -> None:
    found, whole = report(**OFFLOADED), report(**VERL)
    weights = sum(row.bytes for row in whole.per_gpu.ledger if row.category == "parameters")
    assert trainer(found, "rollout.generate") < 0.1 * GiB
    assert trainer(found, "sync.resume-weights") == pytest.approx(weights, rel=0.05), (
        "parameters are sent, states are not"
    )
    assert found.per_gpu.allocated_bytes == whole.per_gpu.allocated_bytes
    moved = trainer(whole, "rollout.generate") - trainer(found, "rollout.generate")
    assert 8 * moved < found.host.phases["rollout"] < 2 * 8 * moved
    assert "rollout" not in whole.host.phases


def test_copies_that_wait_on_the_host_are_page_locked_in_blocks_of_a_power_of_two() -> None:
    """FSDP2's weights come with cpu() as they are, each state of each shard in a block of its own; FSDP1's are one of a
    unit; Megatron's gradients are freed, not copied."""
    job = OFFLOADED | {"model": "qwen2.5-0.5b", "num_gpus": 2}
    spec = load_model("qwen2.5-0.5b")
    sizes = [weight.elements * 4 // 2 for weight in model_weights(spec, True) for _ in range(weight.copies)]
    shards = 2 * sum(sizes)
    states = 2 * 2 * sum(1 << (size - 1).bit_length() for size in sizes)
    per_unit = report(**job | {"sharding": "fsdp"}).host.phases["rollout"]
    per_tensor = report(**job | {"sharding": "fsdp2"}).host.phases["rollout"]
    assert per_tensor == pytest.approx(shards + states, rel=1e-3)
    layer = sum(size for size in sizes[1:]) // spec.num_layers
    units = [sizes[0], *[layer] * spec.num_layers]
    assert per_unit == pytest.approx(3 * 2 * sum(1 << (size - 1).bit_length() for size in units), rel=0.02)
    keys = {"trainer": "verl-megatron", "sharding": "distributed-optimizer"}
    megatron = report(**job | keys)
    kept = {row.category: row.bytes for row in megatron.per_gpu.ledger if row.category in ("gradients", "parameters")}
    assert megatron.host.phases["rollout"] >= 2 * (1 << (kept["parameters"] - 1).bit_length())
    assert megatron.host.phases["rollout"] < 2 * sum(kept.values()) + 4 * 2 * shards


def test_a_cache_that_is_not_given_back_stands_against_the_engine() -> None:
    """verl 0.8 does not empty it before the engine's weights are there again, only before its cache is; 0.7 and 0.9
    empty it before both, and what is offloaded leaves none."""
    kept, emptied = (report(**VERL | {"trainer_version": each}) for each in ("0.8", "0.9"))
    woken, cached = "sync.resume-weights", "sync.resume-kv"
    assert at(kept, woken).processes[0].reserved_bytes == kept.per_gpu.reserved_bytes.expected
    for found, name in ((kept, cached), (emptied, woken), (emptied, cached)):
        assert at(found, name).processes[0].reserved_bytes < 1.01 * trainer(found, name)
    off = report(**OFFLOADED | {"trainer_version": "0.8"})
    assert at(off, woken).processes[0].reserved_bytes < 1.01 * trainer(off, woken) + GiB
    assert any("keeps its cache" in each for each in kept.assumptions)
    assert not any("keeps its cache" in each for each in emptied.assumptions)


def test_over_steps_of_packed_rows_such_a_cache_may_grow_to_the_card() -> None:
    keys = {"token_budget": 16384, "trainer": "verl", "sharding": "fsdp2"}
    grows, emptied = (report(**keys, trainer_version=each) for each in ("0.8", "0.9"))
    assert grows.verdict is not None
    assert emptied.verdict is not None
    assert (grows.verdict.fits, emptied.verdict.fits) == ("tight", "yes")
    assert at(grows, "sync.resume-weights").high_bytes > grows.verdict.usable_bytes


def plain_rows(found: Report) -> list[Any]:
    return [row for row in found.per_gpu.ledger if (row.place, row.meter) == ("gpu", "allocated")]


def test_the_critic_waits_on_the_host_while_the_policy_trains() -> None:
    found = report(**OFFLOADED | {"method": "ppo"})
    plain = report(**VERL | {"method": "ppo"})
    names = [each.name for each in found.rollout if not each.first]
    assert (
        names.index("old-logprob")
        < names.index("value")
        < names.index(next(n for n in names if n.startswith("critic.")))
    )
    update = next(name for name in names if name.startswith("policy."))
    states = ("parameters", "optimizer_states")
    critic = sum(row.bytes for row in plain_rows(plain) if "critic" in row.name and row.category in states)
    assert trainer(plain, update) - trainer(found, update) == pytest.approx(critic, rel=0.02)
    assert found.verdict is not None
    needed = found.verdict.usable_bytes - found.verdict.headroom_bytes
    assert needed == max(each.device_bytes for each in found.rollout), "what waits on the host need not fit"


@pytest.mark.parametrize("method", ["grpo", "ppo"])
@pytest.mark.parametrize("away", [["optimizer"], ["parameters", "optimizer"]])
@pytest.mark.parametrize(
    "keys", [VERL, VERL | {"num_gpus": 1, "model": "qwen2.5-0.5b"}, {"trainer": "verl-megatron", "tensor_parallel": 2}]
)
def test_torch_s_meters_see_what_is_on_the_card_in_a_pass(keys: dict[str, Any], away: list[str], method: str) -> None:
    """``max_memory_allocated`` is that of the fullest pass, without the model that waits on the host meanwhile."""
    found = report(**keys | {"method": method, "trainer_offload": away})
    passes = [
        each for each in found.rollout if not each.first and each.name.startswith(("old", "critic", "policy", "step"))
    ]
    card = found.per_gpu
    assert card.allocated_bytes == max(each.processes[0].allocated_bytes for each in passes)
    assert card.allocated_bytes == sum(card.by_category.values())
    assert card.phases.get("first-step", 0) <= card.allocated_bytes <= card.reserved_bytes.expected
    assert card.reserved_bytes.expected < card.device_bytes.expected
    recipe = resolve(read_job(found.job))
    sums, rows = totals_of_rank(recipe), ledger_of(recipe)
    assert sums.bounds() == rows.bounds()


# -- weights on their way ---------------------------------------------------------------------------------------------


def gathered(**keys: Any) -> dict[str, int]:
    found = report(**keys)
    moment = next(each for each in found.per_gpu.moments if each.name == "sync")
    own = {row.name: row.bytes for row in moment.ledger if row.category in ("gathered_parameters", "buffers")}
    assert moment.allocated_bytes == trainer(found, "sync.transfer")
    return own


def test_what_is_gathered_and_sent_at_once() -> None:
    """TRL's ZeRO-3 gathers a tensor, with adapters all of the model; verl's buckets have 2 GiB, and its tensors the
    trainer's fp32."""
    table = 152064 * 3584
    assert gathered(**COLOCATED)["the largest tensor, gathered"] == 2 * table
    adapters = COLOCATED | {"lora": {"r": 8}}
    assert gathered(**adapters)["the whole model, gathered"] > 15e9
    one = gathered(**VERL)
    assert one["the largest tensor, gathered"] == 4 * table
    assert one["buckets that are sent"] == 2048 * MiB
    assert gathered(**VERL, sync={"bucket_bytes": "1GiB"})["buckets that are sent"] == GiB
    whole = gathered(**VERL | {"sharding": "fsdp", "lora": {"r": 8}})
    assert whole["the whole model, gathered"] > 30e9, "summon_full_params of all, where layered_summon is not on"
    assert whole["the base, back from the host"] == whole["the whole model, gathered"], "collect_lora_params"
    for other in ({"sync": {"gather": "model"}}, {"sharding": "fsdp2"}, {"trainer_version": "0.3"}):
        found = gathered(**VERL | {"sharding": "fsdp", "lora": {"r": 8}} | other)
        assert not found.get("the base, back from the host"), other


def test_shared_weights_are_there_once_and_not_sent() -> None:
    """Unsloth's LoRA: the engine adds its cache and what it runs with; on standby its share is a target of its own."""
    keys = {"trainer": "trl", "num_gpus": 1, "gpu": "rtx-4090", "lora": {"r": 16}, "quantization": "nf4"}
    shared = report(**keys, rollout={"engine": "vllm", "shared_weights": True, "max_model_len": 2048})
    apart = report(**keys, rollout={"engine": "vllm", "max_model_len": 2048, "gpu_memory_utilization": 0.5,
                                    "quantization": "nf4", "max_num_seqs": 256})  # fmt: skip
    assert shared.engine is not None
    assert shared.engine.starts
    weights = shared.engine.weights_bytes
    assert engine(apart, "rollout.generate") - engine(shared, "rollout.generate") == pytest.approx(weights, rel=0.01)
    assert not [each for each in shared.rollout if each.name.startswith("sync")]
    standby = report(**keys, rollout={"engine": "vllm", "shared_weights": True, "sleep": "1", "max_model_len": 2048})
    assert standby.engine is not None
    assert standby.engine.budget_bytes == int(round(0.95 * 0.825, 4) * standby.verdict.usable_bytes)  # type: ignore[union-attr]
    assert "rollout" not in standby.host.phases
    with pytest.raises(InvalidJob, match="the trainer's own modules, which zero3 divides"):
        report(**keys, zero_stage=3, rollout={"engine": "vllm", "shared_weights": True})


# -- what does not start, or does not fit -----------------------------------------------------------------------------


def words(found: Report) -> str:
    return " ".join(plain(estimate_blocks(found, 100), 100).split())


@pytest.mark.slow
def test_an_engine_that_asks_for_more_than_is_free_is_refused_with_what_to_change() -> None:
    rollout = {"engine": "vllm", "max_model_len": 2048, "gpu_memory_utilization": 0.9}
    found = report(**COLOCATED | {"num_gpus": 1, "zero_stage": None, "rollout": rollout})
    assert found.engine is not None
    assert found.verdict is not None
    assert not found.engine.starts
    assert found.verdict.fits == "no"
    assert "Does not start on h100-80gb: vllm" in words(found)
    assert ("To start at all: --gpu-memory-utilization 0." in words(found)) == all(
        remedy.fits != "yes" for remedy in found.remedies
    )


@pytest.mark.slow
def test_the_first_line_names_the_instant_and_the_processes() -> None:
    short = report(**COLOCATED | {"num_gpus": 1, "zero_stage": None})
    assert "Does not fit h100-80gb at" in words(short)
    assert " of the first step: trainer " in words(short).split("Does not fit")[1][:70]
    assert " GiB + engine " in words(short).split("Does not fit")[1][:100]
    assert "to spare, fullest at" in words(report(**COLOCATED))
    assert words(short).index("Does not fit") < words(short).index("Peak")


@pytest.mark.slow
def test_host_copies_of_sleeping_engines_can_be_too_much_for_a_node() -> None:
    """Level 1 pins the weights of every engine on the node, eight of 7 B, in blocks of powers of two."""
    nodes = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-80gb", "host_memory": "100GB"}
    keys = COLOCATED | {"gpu": None, "cluster": nodes, "phases": "sync"}
    one, two = (
        report(**keys | {"rollout": {"engine": "vllm", "max_model_len": 2048, "sleep": level}}) for level in ("1", "2")
    )
    assert one.host.phases["rollout"] == pytest.approx(8 * 28.76e9, rel=0.001)
    assert one.verdict is not None
    assert two.verdict is not None
    assert (one.verdict.fits, two.verdict.fits) == ("no", "yes")
    assert "memory is short" in words(one)
    assert "Less there" not in words(one)  # TRL's own level is its version's
    swift = report(
        **keys
        | {
            "trainer": "swift",
            "trainer_version": None,
            "rollout": {"engine": "vllm", "max_model_len": 2048, "sleep": "1"},
        }
    )
    assert "Less there: --set rollout.sleep=2" in words(swift)


def test_an_engine_on_cards_of_its_own_takes_nothing_of_the_trainer_s() -> None:
    keys = TRL | {"rollout": {"engine": "vllm", "placement": "separate", "num_gpus": 2, "tensor_parallel": 2}}
    found = report(**keys)
    assert found.engine is not None
    assert all(len(each.processes) == 1 for each in found.rollout)
    assert found.engine.awake_bytes > 65 * GiB
    assert "starts on 2 GPUs of its own: " in words(found)
    assert "start.engine" not in {each.name for each in found.rollout}
    assert "sync.transfer" in {each.name for each in found.rollout}


def test_transformers_generate_grows_a_cache_of_all_completions() -> None:
    """28 layers, 4 heads of 128, keys and values in bf16: 56 KiB a token."""
    small, large = (report(**TRL | {"batch_size": size}) for size in (1, 9))
    more = trainer(large, "rollout.generate") - trainer(small, "rollout.generate")
    assert more == pytest.approx(8 * (2048 * 56 * 1024 * 29 / 28 + 14 * 152064), rel=0.02)
    assert trainer(small, "rollout.generate") > 15e9, "ZeRO-3 gathers the model"
    assert small.engine is None


@pytest.mark.parametrize(
    ("version", "token"),
    [("1.16", 576 * 2 * 28 + 16 * (2 * 128 + 64 + 128) * 2), ("1.7", 16 * 320 * 2 * 28 + 14 * 102400 / 2048)],
)
def test_transformers_generate_caches_the_latents_from_5_15_on(version: str, token: float) -> None:
    """27 layers of DeepSeek-V2-Lite, 512 + 64 elements in bf16, a layer's while a token is added, and its keys and
    values made anew; before, 192 and 128 elements for each of 16 heads, and the logits that are sampled."""
    job = {**TRL, "model": "deepseek-v2-lite", "trainer_version": version}
    small, large = (report(**job | {"batch_size": size}) for size in (1, 9))
    more = trainer(large, "rollout.generate") - trainer(small, "rollout.generate")
    assert more == pytest.approx(8 * 2048 * token, rel=0.02)


# -- jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rollout", "message", "hint"),
    [
        ({"tensor_parallel": 3}, "rollout.tensor_parallel: 3 ", "use 1 or 2"),
        ({"tensor_parallel": 14}, "rollout.tensor_parallel: 14 ", "use 1 or 2 or 4"),
        ({"max_model_len": 512}, "rollout.max_model_len: 512 is shorter than", "rollout.max_model_len 2048"),
        ({"engine_version": "0.5.0"}, "rollout.engine_version: vllm 0.5.0", "versions"),
    ],
)
def test_an_engine_that_cannot_be_is_refused_by_its_key(rollout: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        report(**TRL | {"rollout": {"engine": "vllm"} | rollout})
    assert refused.value.message.startswith(message)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("trl", "0.16", {"engine": "hf", "separate": True, "share": 0.9}),
        ("trl", "0.24", {"share": 0.3, "asleep": 1, "whole_context": False}),
        ("trl", "0.25", {"asleep": 2, "whole_context": False, "four_bits": False}),
        ("trl", "0.26", {"whole_context": True, "four_bits": True, "tokens": 4096, "separate": True}),
        ("trl", "1.16", {"separate": False, "share": 0.3}),
        ("verl", "0.5", {"own_process": False, "sleep": 1, "sequences": 0}),
        ("verl", "0.6", {"own_process": True, "sleep": 2, "share": 0.5, "tensor_parallel": 2, "sequences": 1024}),
        ("verl", "0.9", {"sequences": 256}),
        ("verl-megatron", "0.8", {"emptied": False, "bucket": 2048 * MiB}),
        ("skyrl-megatron", "", {"share": 0.8, "sleep": 2, "engine_first": True, "whole_context": True}),
        ("openrlhf", "", {"separate": True, "asleep": 1, "half": True}),
        ("nemo-rl-megatron", "", {"share": 0.6, "sleep": 1, "free_share": 0.3}),
        ("slime", "", {"engine": "sglang", "pauses": True, "buckets": 2}),
        ("areal", "", {"engine": "sglang", "static": 0.9, "separate": True}),
        ("swift", "", {"engine": "hf", "share": 0.9}),
        ("pytorch", "", {"engine": "none"}),
    ],
)
def test_what_a_trainer_does_where_nobody_says(name: str, version: str, expected: dict[str, Any]) -> None:
    found = generation_of(name, version)
    assert {key: getattr(found, key) for key in expected} == expected


def test_every_row_is_of_a_trainer_and_has_its_source() -> None:
    assert {row.trainer for row in ROWS} <= set(TRAINERS)
    assert all(row.source for row in ROWS)
    for online in ("trl", "verl", "openrlhf", "slime", "nemo-rl", "areal", "swift", "megatron-swift"):
        assert generation_of(online).engine != "none"


def test_a_loop_that_says_no_engine_counts_none_and_says_so() -> None:
    found = report(trainer="pytorch", sharding="fsdp2")
    assert any(each.startswith("rollout: generation is not counted") for each in found.warnings)
    assert found.rollout == ()
    assert report(trainer="verl", rollout={"engine": "none"}).engine is None
    named = report(trainer="pytorch", sharding="fsdp2", rollout={"engine": "vllm", "gpu_memory_utilization": 0.3})
    assert named.engine is not None


# -- PPO's critic ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer_name", "version", "sharding"),
    [
        *(("openrlhf", None, each) for each in ("zero1", "zero2", "zero3", "ddp")),
        *(("trl", "1.12", each) for each in ("ddp", "zero2", "zero3")),
        *(("swift", None, each) for each in ("zero1", "zero3")),
        ("pytorch", None, "zero2"),
    ],
)
def test_a_critic_is_shared_under_every_sharding(trainer_name: str, version: str | None, sharding: str) -> None:
    keys = {"model": "qwen2.5-0.5b", "method": "ppo", "trainer": trainer_name, "sharding": sharding}
    found = resolve(read_job(JOB | keys | ({"trainer_version": version} if version else {})))
    ledger, sums = ledger_of(found), totals_of_rank(found)
    assert ledger.totals() == sums.totals()
    assert ledger.lasting() == sums.lasting()
    alone = resolve(read_job(JOB | keys | {"method": "grpo", "trainer_version": None}))
    assert max(ledger.totals()) > max(ledger_of(alone).totals())
    one = build_report(
        resolve(read_job(JOB | keys | {"num_gpus": 16} | ({"trainer_version": version} if version else {})))
    )
    assert sharding == "ddp" or one.per_gpu.allocated_bytes < max(ledger.totals())


def test_ray_s_object_store_makes_a_node_tight() -> None:
    def verdict(memory: str) -> str:
        nodes = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-80gb", "host_memory": memory}
        found = report(**OFFLOADED | {"gpu": None, "cluster": nodes, "phases": "sync"}).verdict
        assert found is not None
        return found.fits

    assert [verdict(memory) for memory in ("120GB", "180GB", "400GB")] == ["no", "tight", "yes"]
    nodes = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-80gb", "host_memory": "180GB"}
    assert "Tight on the nodes:" in words(report(**OFFLOADED | {"gpu": None, "cluster": nodes, "phases": "sync"}))


def test_where_only_the_start_is_uncertain_the_first_line_says_so() -> None:
    job = {"model": "qwen2.5-7b", "method": "grpo", "trainer": "trl", "gpu": "a100-80gb", "num_gpus": 4}
    barely = {"engine": "vllm", "gpu_memory_utilization": 0.29}
    found = estimate(job | {"sharding": "zero3", "rollout": barely})
    assert words(found).startswith("May not start on a100-80gb")
    assert "To be sure, cheapest changes:" in words(found)
    known = estimate(job | {"sharding": "zero3", "rollout": {"engine": "vllm", "max_model_len": 4096}})
    assert known.engine is not None
    assert (known.engine_doubt, known.engine.doubt) == ("", "")


def test_a_reference_that_waits_on_the_host_is_page_locked() -> None:
    """verl's in fp32: FSDP2's shards each in a block; FSDP1's units, with a gradient's buffer beside each."""
    job = VERL | {"model": "qwen2.5-0.5b", "num_gpus": 2, "reference": "offloaded"}
    weights = [weight for weight in model_weights(load_model("qwen2.5-0.5b"), True) for _ in range(weight.copies)]
    blocks = sum(1 << (weight.elements * 2 - 1).bit_length() for weight in weights)
    assert report(**job).host.bytes_per_node == pytest.approx(2 * blocks, rel=1e-3)
    assert report(**job | {"sharding": "fsdp"}).host.bytes_per_node > 2 * 2 * sum(each.elements * 2 for each in weights)


def test_checkpoints_are_written_beside_what_sleeps_on_the_host() -> None:
    """OpenRLHF's eight engines a node pin 230 GB while ZeRO-1 clones its weights there; Ray kills at 95 %."""
    nodes = {"nodes": 2, "gpus_per_node": 8, "gpu": "a100-80gb", "host_memory": "512GB"}
    engine = {"engine": "vllm", "engine_version": "0.8.5", "placement": "colocate", "gpu_memory_utilization": 0.5}
    keys = {"trainer": "openrlhf", "zero_stage": 1, "gpu": None, "num_gpus": 16, "cluster": nodes}
    asleep, awake = (report(**keys, rollout=engine | {"sleep": level}).host for level in (1, None))
    assert asleep.phases["save"] - awake.phases["save"] == asleep.phases["rollout"] > 220 * 10**9
    assert asleep.memory_bytes == int(0.95 * 512 * 10**9)
    assert (asleep.crowded, awake.crowded) == (True, False)


@pytest.mark.slow
def test_an_engine_whose_cache_is_short_by_less_than_is_uncertain_may_start() -> None:
    """A profile run may take 0.3 GiB less than expected; nobody refuses a job for that, and nobody promises it."""

    def told(length: int) -> tuple[str, str]:
        found = report(**COLOCATED | {"rollout": {"engine": "vllm", "max_model_len": length}})
        assert found.verdict is not None
        assert found.engine is not None
        return found.verdict.fits, "" if found.engine.starts else words(found)

    found = report(**COLOCATED).engine
    assert found is not None
    tokens = found.kv_bytes // found.kv_bytes_per_token
    assert told(tokens // 2)[0] == "yes"
    assert told(int(0.99 * tokens)) == ("tight", "")  # a first compilation may take it
    fits, text = told(tokens + 2000)
    assert fits == "tight"
    assert "May not start on h100-80gb" in text
    assert told(2 * tokens)[0] == "no"


# -- a reward model's engine ------------------------------------------------------------------------------------------


def test_a_reward_model_s_engine_wakes_while_it_scores() -> None:
    """Asleep everywhere else: a context, its graphs, and its weights on the host."""

    def at(found: Report) -> dict[str, int]:
        return {each.name: each.device_bytes for each in found.rollout if not each.first or "start" in each.name}

    job = {"trainer": "verl", "sharding": "fsdp", "rollout": {"engine": "vllm", "gpu_memory_utilization": 0.4}}
    engine = {"engine": "vllm", "gpu_memory_utilization": 0.6, "max_model_len": 4096, "enforce_eager": True}
    reward = {"role": "reward", "model": "qwen2.5-1.5b", "rollout": engine}
    keys = COLOCATED | {"zero_stage": None} | job
    plain, found = report(**keys), report(**keys, extra_models=[reward])
    before, then = at(plain), at(found)
    assert then.keys() - before.keys() == {"start.reward", "reward"}
    assert then["reward"] == max(then.values())
    asleep = then["rollout.sleep"] - before["rollout.sleep"]
    assert 0 < asleep < 2 << 30
    assert all(then[name] - size == asleep for name, size in before.items())
    assert found.host.phases["rollout"] > plain.host.phases.get("rollout", 0)
    full = report(**keys, extra_models=[reward | {"rollout": engine | {"gpu_memory_utilization": 0.99}}])
    assert full.verdict is not None
    assert full.verdict.fits == "no"
    with pytest.raises(InvalidJob, match=r"beside rollout\.engine none"):
        report(**keys | {"rollout": {"engine": "none"}}, extra_models=[reward])
    with pytest.raises(InvalidJob, match="rollout of a critic"):
        report(**keys | {"method": "ppo"}, extra_models=[reward | {"role": "critic"}])


def test_the_verdict_is_of_the_card_that_may_need_the_most() -> None:
    """A last stage without experts is the fullest as expected, beside the engine that starts; an earlier one is at
    worst, where its experts get more tokens than their share."""
    keys: dict[str, Any] = {"model": "deepseek-v3", "trainer": "verl-megatron", "num_gpus": 256, "batch_size": 2}
    keys |= {
        "gradient_accumulation_steps": 32,
        "tensor_parallel": 4,
        "pipeline_parallel": 16,
        "expert_parallel": 16,
        "expert_tensor_parallel": 1,
    }
    keys |= {"megatron": {"num_layers_in_last_pipeline_stage": 1}, "trainer_offload": ["parameters", "optimizer"]}
    found = report(**keys | {"rollout": {"engine": "vllm", "tensor_parallel": 32, "gpu_memory_utilization": 0.7}})
    recipe = found.recipe
    assert recipe is not None
    assert found.verdict is not None
    classes = price(recipe, detailed=False)
    most = max(each.to_fit.high for each in classes)
    assert classes[0].to_fit.high < most == found.verdict.high_bytes
