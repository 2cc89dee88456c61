"""DeepSpeed: settings as users write them, what is refused, the parts of its rows, offload."""

from typing import Any

import pytest
from deepspeed_rows import LLAMA, recipe_of
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.engine.allocator.settings import pinned
from memplan.engine.build import build_ledger
from memplan.engine.parallel.zero.coordinator import Limits, Module, Visit
from memplan.engine.parallel.zero.flat_groups import (
    Group,
    buckets_of,
    groups_of,
    owned,
    persistent,
    sizes_in_order,
    sub_groups,
)
from memplan.engine.parallel.zero.module_order import Half, Stretch, Visits
from memplan.engine.parallel.zero.prefetch import Gathered, Pass, gathered
from memplan.engine.play.notes import DONE, USED, Note
from memplan.engine.tensors import Weight
from memplan.errors import InvalidJob
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job

Keys = dict[str, Any]


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings_",
    [
        {"reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 1e6, "overlap_comm": True},
        {"reduce_bucket_size": "5e8", "prefetch_bucket_size": 1_000_000, "overlap_comm": "true"},
        {"zero_optimization": {"stage": 3, "reduce_bucket_size": 500000000, "stage3_prefetch_bucket_size": 1e6}},
        {"stage": 3, "bf16": {"enabled": True}, "gradient_clipping": 1.0, "prefetch_bucket_size": "1e6"},
    ],
)
def test_settings_are_read_flat_and_as_a_file_has_them(settings_: dict[str, Any]) -> None:
    zero = recipe_of(zero_stage=3, deepspeed=settings_).sharding.deepspeed
    assert (zero.reduce_bucket_size, zero.prefetch_bucket_size, zero.overlap_comm) == (500_000_000, 1_000_000, True)


def test_a_stage_in_the_settings_is_the_jobs() -> None:
    found = recipe_of(deepspeed={"zero_optimization": {"stage": 2}})
    assert found.sharding.name == "zero2"
    assert found.provenance.job["sharding"] == "zero2"


@pytest.mark.parametrize(
    ("trainer", "given_", "bucket", "persistent_"),
    [
        ("pytorch", {}, 500_000_000, 100_000),
        ("trl", {}, 64 * 64, 640),
        ("trl", {"reduce_bucket_size": "auto", "zero_optimization": {}}, 64 * 64, 100_000),
        ("trl", {"zero_optimization": {"stage": 3}}, 500_000_000, 100_000),
        ("pytorch", {"reduce_bucket_size": "auto"}, 500_000_000, 100_000),
    ],
)
def test_auto_is_hugging_faces(trainer: str, given_: dict[str, Any], bucket: int, persistent_: int) -> None:
    zero = recipe_of(zero_stage=3, trainer=trainer, deepspeed=given_).sharding.deepspeed
    assert (zero.reduce_bucket_size, zero.param_persistence_threshold) == (bucket, persistent_)


@pytest.mark.parametrize(
    ("stage", "keys", "wrapper"),
    [
        (0, {}, "unfused"),
        (0, {"deepspeed": {"optimizer": {"type": "AdamW"}}}, "fused"),
        (0, {"precision": "fp32"}, "plain"),
        (1, {}, "zero"),
        (1, {"grad_dtype": "fp32"}, "bf16"),
        (1, {"deepspeed": {"data_types": {"grad_accum_dtype": "fp32"}}}, "bf16"),
        (1, {"grad_dtype": "fp32", "offload": "optimizer"}, "zero"),
        (2, {"grad_dtype": "fp32"}, "zero"),
        (3, {}, "zero3"),
    ],
)
def test_the_step_is_that_of_the_class_that_deepspeed_takes(stage: int, keys: dict[str, Any], wrapper: str) -> None:
    assert recipe_of(zero_stage=stage, **keys).sharding.deepspeed.wrapper == wrapper


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"deepspeed": {"stage3_prefetch": 1}}, "deepspeed: unknown key 'stage3_prefetch'"),
        ({"deepspeed": {"overlap_comm": "maybe"}}, "deepspeed: overlap_comm: 'maybe' is neither true nor false"),
        ({"deepspeed": {"reduce_bucket_size": -1}}, "deepspeed: reduce_bucket_size: '-1' is no number of elements"),
        ({"deepspeed": {"communication_data_type": "int8"}}, "unknown dtype 'int8'"),
        ({"deepspeed": {"stage": 1}}, "deepspeed: stage 1 contradicts zero_stage 2"),
        ({"zero_stage": None, "deepspeed": {"overlap_comm": True}}, "deepspeed: settings without a ZeRO stage"),
        ({"deepspeed": {"zero_hpz_partition_size": 8}}, "zero_hpz_partition_size with zero2"),
        ({"deepspeed": {"mics_shard_size": 2}}, "mics_shard_size with zero2"),
        ({"zero_stage": 3, "num_gpus": 4, "deepspeed": {"mics_shard_size": 3}}, "mics_shard_size: 3 does not divide 4"),
        ({"offload": "parameters"}, "offload: parameters with zero2"),
        ({"zero_stage": 0, "offload": "optimizer"}, "offload: optimizer with zero0"),
        ({"deepspeed": {"offload_optimizer": {"device": "nvme"}}}, "offload_optimizer.device nvme with zero2"),
        ({"deepspeed": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, "ratio 0.5 with zero2"),
        (
            {"offload": "optimizer", "optimizer": "sgd", "trainer": "pytorch"},
            "optimizer: sgd with an offloaded optimizer",
        ),
        ({"zero_stage": 3, "deepspeed": {"zero_quantized_nontrainable_weights": True}}, "quantises fp16 weights alone"),
        ({"zero_stage": 0, "grad_dtype": "fp32"}, "stage 0 accumulates in the dtype of the model"),
        ({"deepspeed": {"train_micro_batch_size_per_gpu": 4}, "batch_size": 2}, "contradicts batch_size 2"),
        ({"deepspeed": {"fp16": {"enabled": True}}, "dtype": "bf16"}, "deepspeed: fp16 contradicts dtype bf16"),
        (
            {"optimizer": "sgd", "deepspeed": {"zero_allow_untested_optimizer": False}},
            "optimizer: sgd is one that DeepSpeed's ZeRO has not tested",
        ),
        (
            {"deepspeed": {"stage": 3, "memory_efficient_linear": False}, "zero_stage": 3},
            "keeps whole weights to their",
        ),
        ({"deepspeed": {"zenflow": {"topk_ratio": 0.1}}}, "deepspeed: zenflow"),
        ({"reduce_dtype": "bf16", "deepspeed": {"communication_data_type": "fp32"}}, "contradicts reduce_dtype bf16"),
    ],
)
def test_what_deepspeed_refuses_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        recipe_of(**{"zero_stage": 2, **keys})
    assert said in caught.value.message
    assert caught.value.hint


# -- parts ------------------------------------------------------------------------------------------------------------


def weights(*sizes: int, copies: int = 1) -> tuple[Weight, ...]:
    return tuple(Weight(f"w{i}", size, 1, copies, True, "layer") for i, size in enumerate(sizes))


def test_flat_buffers_are_padded_to_two_elements_a_rank() -> None:
    found = recipe_of(zero_stage=2, num_gpus=4)
    group = groups_of(found, weights(1001, 22))[0]
    assert (group.elements, group.flat, group.partition) == (1023, 1024, 256)


def test_a_rank_owns_whole_what_a_boundary_cuts() -> None:
    sizes = weights(10, 30, 20)
    assert owned(Group(sizes, 60, 60, 30)) == 50
    assert owned(Group(weights(100), 100, 100, 10)) == 100
    assert owned(Group(sizes, 60, 60, 30), 2) == pinned(60) + pinned(40)


def test_tensors_of_equal_layers_are_interleaved() -> None:
    layers = (Weight("a", 1, 1, 2, True, "layer"), Weight("b", 2, 1, 2, True, "layer"))
    ends = (Weight("e", 5, 1, 1, True, "embedding"), *layers, Weight("h", 7, 1, 1, True, "head"))
    assert sizes_in_order(ends) == (5, 1, 2, 1, 2, 7)


def test_sub_groups_close_when_they_are_full() -> None:
    group = Group(weights(8, 8, 8, 4), 28, 28, 7)
    assert sub_groups(group, 4, 3) == (4, 3)
    assert sub_groups(group, 4, 100) == (7,)


def test_small_parameters_stay_up_to_the_models_limit() -> None:
    sizes = weights(10, 1000, copies=5)
    assert persistent(sizes, 10, 10**9) == 50
    assert persistent(sizes, 10, 35) == 30


@pytest.mark.parametrize(("size", "block"), [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (3 << 30, 4 << 30)])
def test_page_locked_blocks_are_powers_of_two(size: int, block: int) -> None:
    assert pinned(size) == block


def test_a_bucket_of_one_tensor_is_not_copied() -> None:
    assert buckets_of((600, 100, 100), 500) == [(600, 1), (200, 2)]
    assert buckets_of((100, 600), 500) == [(700, 2)]


Modules = list[Module]


def run(**halves: Modules) -> Pass:
    """A forward and what runs until the next one, each module a stretch of its own."""
    found = []
    for name, modules in halves.items():
        notes = [(Note(USED),) * len(each.parameters) + (Note(DONE),) for each in modules]
        found.append((name, Half(Stretch(str(i), each) for i, each in enumerate(notes))))
    return Pass(
        Visits(Visit(each, len(each.parameters)) for modules in halves.values() for each in modules), tuple(found)
    )


def step_of(modules: Modules, limits: Limits) -> list[Gathered]:
    """The stretches of one pass that is a step's only one."""
    return list(gathered((run(policy=modules),), (), limits).values())


def line(*sizes: int) -> Modules:
    return [Module(((i, size),)) for i, size in enumerate(sizes)]


def test_without_prefetch_one_module_is_gathered_at_a_time() -> None:
    found = step_of(line(100, 200, 50), Limits(0, 10**9, 0, 0, 4))
    assert [each.most for each in found] == [100, 200, 52]
    assert {each.left for each in found} == {0}


def test_several_parameters_in_one_call_are_there_twice() -> None:
    both = [Module(((0, 100), (1, 20)))]
    assert step_of(both, Limits(0, 10**9, 0, 0, 4))[0].most == 240
    assert step_of(both, Limits(0, 10**9, 0, 0, 4, sequential=True))[0].most == 120


def test_what_is_used_again_soon_stays() -> None:
    assert step_of(line(100) * 2, Limits(0, 10**9, 1, 0, 4))[0].left == 100
    assert step_of(line(100) * 2, Limits(0, 10**9, 0, 0, 4))[0].left == 0


def test_what_runs_in_another_order_than_was_recorded_is_gathered_module_by_module() -> None:
    """A forward of its own before the one that is trained makes the record, which has no backward: from there on
    nothing is fetched ahead and nothing stays, in every step."""
    forward = line(100, 100, 100)
    scored, trained = run(scored=forward), run(policy=forward, back=forward[::-1])
    ahead = Limits(100, 10**9, 10**9, 0, 4)
    assert {found.most for found in gathered((scored,), (), ahead).values()} == {200, 100}
    found = gathered((scored, trained), (), ahead)
    assert {found["scored", str(i)][:2] for i in range(3)} == {(100, 0)}
    assert found["policy", "0"][:2] == (200, 100)
    assert {found["back", str(i)][:2] for i in range(3)} == {(100, 0)}
    alone = gathered((trained,), (), ahead)
    assert alone["policy", "2"].left == 300


def test_an_evaluation_leaves_whole_what_the_backward_would_need_soon() -> None:
    forward = line(100, 100, 100)
    trained, near = run(policy=forward, back=forward[::-1]), Limits(0, 10**9, 250, 0, 4)
    found = gathered((trained,), (run(policy=forward),), near)
    assert gathered((trained,), (), near)["policy", "0"].most == 100
    assert found["policy", "0"].most == 300
    assert found["policy", "2"].left == 200


def test_persistent_parameters_are_never_gathered() -> None:
    assert step_of(line(100, 10), Limits(0, 10**9, 0, 10, 4))[1].most == 0


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    prefetch=st.integers(0, 3000),
    reuse=st.integers(0, 3000),
    ranks=st.sampled_from([2, 8]),
)
@examples(100)
def test_gathered_weights_lie_between_one_module_and_the_model(
    sizes: list[int], prefetch: int, reuse: int, ranks: int
) -> None:
    forward = line(*sizes)
    found = step_of(forward + forward[::-1], Limits(prefetch, 10**9, reuse, 0, ranks))
    most = max(each.most for each in found)
    assert max(sizes) <= most <= 2 * sum(size + ranks for size in sizes)
    assert found[-1].left == 0


# -- offload ----------------------------------------------------------------------------------------------------------


def rows_on(place: str, **keys: Any) -> dict[str, int]:
    return {row.name: row.bytes for row in build_ledger(recipe_of(**keys)).rows if row.place == place}


def test_the_host_holds_what_stage_2_offloads() -> None:
    """8,030,261,248 parameters over 8 ranks: master and gradient 4 + 4, moments 8, staging 2 bytes an element."""
    keys: Keys = {"model": "llama-3.1-8b", "num_gpus": 8, "zero_stage": 2, "sequence_length": 128}
    found = rows_on("host", **keys, offload="optimizer")
    part = 8_030_261_248 // 8
    assert found["fp32 master weights on the host"] == found["fp32 gradients on the host"] == pinned(4 * part)
    assert found["AdamW states on the host"] == 8 * part
    assert found["updated weights on the host"] == pinned(2 * part)
    exact = rows_on("host", **keys, deepspeed={"offload_optimizer": {"device": "cpu", "pin_memory": False}})
    assert exact["fp32 master weights on the host"] == 4 * part


def test_the_report_counts_every_gpu_of_the_node() -> None:
    found = recipe_of(zero_stage=3, num_gpus=16, gpus_per_node=8, offload="optimizer,parameters")
    own = sum(row.bytes for row in build_ledger(found).rows if row.place == "host")
    assert build_report(found).host.bytes_per_node == 8 * own > 0


def test_half_of_the_sub_groups_stay_where_the_ratio_says_so() -> None:
    keys: Keys = {"zero_stage": 3, "num_gpus": 2}
    small = {"sub_group_size": 9000, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    part = {**small, "offload_optimizer": {**small["offload_optimizer"], "ratio": 0.5}}  # type: ignore[dict-item]
    whole, half = (rows_on("host", **keys, deepspeed=each) for each in (small, part))
    name = "fp32 master weights on the host"
    assert 0.4 * whole[name] < half[name] < 0.7 * whole[name]
    card = rows_on("gpu", **keys, deepspeed=part)
    assert card["fp32 gradients of sub-groups on the card"] == card["fp32 master weights"] == whole[name] - half[name]


def test_nvme_holds_states_and_the_host_their_buffers() -> None:
    nvme: Keys = {"device": "nvme", "nvme_path": "/local"}
    keys: Keys = {"model": "llama-3.1-8b", "num_gpus": 8, "zero_stage": 3, "sequence_length": 128}
    given_ = {"offload_optimizer": nvme, "offload_param": {**nvme, "max_in_cpu": 0}}
    files, host = (rows_on(place, **keys, deepspeed=given_) for place in ("nvme", "host"))
    part = 8_030_261_248 // 8
    assert files["optimizer's swap files"] == 16 * part
    assert files["swap files of the weights"] == 2 * part
    assert host["swap buffers of the weights"] == 5 * 100_000_000 * 2
    assert host["optimizer's swap buffers"] == 4 * 4 * part


# -- ZeRO++ and MiCS --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_quantised_gradients_are_sent_in_place_of_the_bucket(nodes: int) -> None:
    """4 bits of the largest gradient, sent and received within the node, then its part between nodes."""
    keys: dict[str, Any] = {"zero_stage": 3, "num_gpus": 8 * nodes}
    rows = rows_on("gpu", deepspeed={"zero_quantized_gradients": True}, **keys)
    whole = rows_on("gpu", **keys)
    largest = 512 * 64
    assert rows["quantised gradients on their way"] == largest + largest // 8 * 3
    assert "interleaved gradients" in whole
    assert "interleaved gradients" not in rows


def test_hpz_keeps_a_second_partition() -> None:
    kept = {"stage3_param_persistence_threshold": 0}
    plain = rows_on("gpu", zero_stage=3, num_gpus=16, deepspeed=kept)
    more = rows_on("gpu", zero_stage=3, num_gpus=16, deepspeed={"zero_hpz_partition_size": 8, **kept})
    assert more["hpZ's second partition"] == pytest.approx(2 * plain["weights of the policy"], rel=0.01)


def test_mics_shares_within_a_group() -> None:
    groups = rows_on("gpu", zero_stage=3, num_gpus=16, deepspeed={"mics_shard_size": 4})
    four = rows_on("gpu", zero_stage=3, num_gpus=4)
    assert {name: size for name, size in groups.items() if name in four and "communication" not in name} == {
        name: size for name, size in four.items() if "communication" not in name
    }


# -- other models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "shards"), [(0, 1), (1, 1), (2, 1), (3, 2)])
def test_a_reference_is_a_replica_but_under_stage_3(stage: int, shards: int) -> None:
    found = rows_on("gpu", method="dpo", trainer="trl", zero_stage=stage)
    name = next(name for name in found if name.startswith("reference model"))
    assert found[name] == 2 * 213_568 // shards


def test_a_reference_waits_on_the_host_as_the_policys_weights_do() -> None:
    found = rows_on("host", method="dpo", trainer="trl", zero_stage=3, offload="parameters")
    assert any(name.startswith("reference model") for name in found)


def test_an_option_replaces_the_stage_of_a_files_settings() -> None:
    file = {"deepspeed": {"zero_optimization": {"stage": 2, "overlap_comm": True}}, "num_gpus": 2}
    found = resolve(read_job({"zero_stage": 3, "model": LLAMA, "method": "sft"}, file))
    assert (found.sharding.name, found.sharding.deepspeed.overlap_comm) == ("zero3", True)


def test_a_deepspeed_file_says_batch_and_dtype_of_the_job() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "train_batch_size": "auto",
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    found = recipe_of(deepspeed=config)
    assert (found.batch.size, found.batch.accumulation, found.storage.precision.name) == (4, 2, "fp16-master")


def test_one_gpu_copies_what_it_needs_of_the_weights_on_its_host() -> None:
    kept = {"stage3_param_persistence_threshold": 0}
    found = rows_on("gpu", zero_stage=3, num_gpus=1, offload="parameters", deepspeed=kept)
    assert "weights of the policy" not in found
    assert found["gathered weights"] > 0


@pytest.mark.parametrize(("bucket", "instant"), [(100, "policy.final-norm-backward"), (10**6, "step.optimizer")])
def test_what_fits_in_the_bucket_is_reduced_at_the_end(bucket: int, instant: str) -> None:
    ledger = build_ledger(recipe_of(zero_stage=2, deepspeed={"reduce_bucket_size": bucket}))
    first, *_ = sorted(row.born for row in ledger.rows if row.name == "gradients in partition")
    assert ledger.schedule[first] == instant


@pytest.mark.parametrize(("named", "steps"), [("paged-adamw", "adamw"), ("adafactor", "adamw"), ("lion", "lion")])
def test_accelerate_steps_on_the_host_by_deepspeeds_own(named: str, steps: str) -> None:
    recipe = recipe_of(zero_stage=2, offload="optimizer", optimizer=named, trainer="transformers")
    assert recipe.optimizer.row.name == steps
