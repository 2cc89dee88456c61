"""Proves the phases beside the steady step: which a job has, what is alive in each, and that a verdict counts them."""

from __future__ import annotations

from typing import Any

import pytest
from any_jobs import ANY_JOB, Keys, possible
from drawing import examples
from hypothesis import given

from memplan.api import estimate
from memplan.engine.optimizer.temporaries import REFRESHES
from memplan.engine.phases.first_step import RENEWING
from memplan.errors import InvalidJob
from memplan.render.estimate_view import estimate_blocks
from memplan.render.instants import MOMENTS, instant_words, moment_words
from memplan.render.text import plain
from memplan.render.verdict_view import verdict_blocks
from memplan.report import Moment, Report
from memplan.reporting import build_report, peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.units import format_bytes

GiB = 1 << 30
EIGHT = {"model": "llama-3.1-8b", "method": "sft", "trainer": "transformers", "trainer_version": "5.23", "num_gpus": 8}
MEGATRON = {"trainer": "megatron", "trainer_version": None, "tensor_parallel": 2, "phases": "load,save,resume"}
WHOLE = 8_030_261_248
"""Parameters of Llama 3.1 8B."""
TABLE = 128_256 * 4096


def report(**keys: Any) -> Report:
    return estimate(EIGHT | keys)


def moment(name: str, **keys: Any) -> Moment:
    return next(each for each in report(**keys).per_gpu.moments if each.name == name)


def rows(found: Moment, place: str = "gpu") -> dict[str, int]:
    return {each.name: each.bytes for each in found.ledger if each.place == place}


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({}, ["load", "first-step", "save"]),
        ({"trainer": "pytorch", "trainer_version": None}, ["load", "first-step"]),
        ({"eval_batch_size": 8}, ["load", "first-step", "save"]),
        ({"phases": "save,load"}, ["load", "save"]),
        ({"phases": "none"}, []),
        ({"phases": ["merge"], "lora": {"r": 8}}, ["merge"]),
        ({"trainer": "megatron", "trainer_version": None, "tensor_parallel": 2}, ["load", "first-step", "save"]),
        (
            {
                "trainer": "trl",
                "trainer_version": "1.16",
                "method": "grpo",
                "phases": "sync",
                "zero_stage": 3,
                "rollout": {"engine": "vllm"},
            },
            ["sync"],
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, (dict, list)) else str(value),
)
def test_a_job_has_the_phases_of_its_trainer_or_those_that_it_names(keys: dict[str, Any], names: list[str]) -> None:
    found = report(**keys)
    assert [each.name for each in found.per_gpu.moments] == names
    assert set(names) <= set(found.per_gpu.phases)
    assert set(found.per_gpu.phases) - set(names) <= {"forward", "backward", "step", "evaluate", "rollout"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"phases": "merge"}, "phases: merge: there is no adapter"),
        ({"phases": "evaluate"}, "phases: evaluate: there is no eval_batch_size"),
        ({"phases": "sync"}, "phases: sync: there is no engine that weights are sent to"),
        ({"phases": "rewind"}, "phases: unknown value 'rewind'"),
        ({"phases": "merge", "tensor_parallel": 2, "trainer": "megatron"}, "phases: merge: "),
        (
            {"phases": "evaluate", "tensor_parallel": 2, "trainer": "megatron"},
            "phases: evaluate: Megatron evaluates in",
        ),
    ],
)
def test_a_phase_that_cannot_be_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        report(trainer_version=None, **keys)
    assert refused.value.message.startswith(words)


@given(keys=ANY_JOB)
@examples(40)
def test_a_search_counts_what_the_report_shows(keys: Keys) -> None:
    """Sums without rows are the rows', on the card and on the host, and each instant is the sum of its rows."""
    possible(keys)
    recipe = resolve(read_job(keys))
    quick, whole = peak(recipe), build_report(recipe)
    assert quick.host.phases == whole.host.phases
    for each in whole.per_gpu.moments:
        assert whole.per_gpu.phases[each.name] == each.allocated_bytes
        names = [at.name for at in each.instants]
        for i, at in enumerate(each.instants):
            alive = (row for row in each.ledger if names.index(row.born) <= i <= names.index(row.dies))
            held = sum(row.bytes for row in alive if (row.place, row.meter) == ("gpu", "allocated"))
            assert held == at.allocated_bytes, at.name
        if each.name != "first-step":
            assert each.host_bytes_per_node == whole.host.phases.get(each.name, 0)


def test_nothing_of_the_step_moves() -> None:
    without, beside = report(phases="none"), report()
    assert without.per_gpu.allocated_bytes == beside.per_gpu.allocated_bytes
    assert [at.allocated_bytes for at in without.per_gpu.instants] == [
        at.allocated_bytes for at in beside.per_gpu.instants
    ]


def test_every_instant_has_a_word() -> None:
    found = [moment("load"), moment("save"), moment("merge", phases="merge", lora={"r": 8})]
    found.append(moment("resume", phases="resume"))
    found += [moment(name, **MEGATRON) for name in ("load", "save", "resume")]
    assert {at.name for each in found for at in each.instants} == set(MOMENTS) - {"sync.transfer"}
    assert moment_words("first-policy.loss") == instant_words("policy.loss")[0]


class TestLoad:
    def test_every_process_reads_the_model_where_nobody_says_otherwise(self) -> None:
        found = moment("load", sharding="fsdp2", precision="bf16-amp", trainer_version="4.48")
        assert rows(found, "host")["weights as they are read"] == 4 * WHOLE
        assert found.host_bytes_per_node == 8 * 4 * WHOLE

    def test_one_process_of_a_node_reads_it_where_that_is_said(self) -> None:
        fsdp = {"cpu_ram_efficient_loading": True}
        found = moment("load", sharding="fsdp2", precision="bf16-amp", trainer_version="4.48", fsdp=fsdp)
        assert found.host_bytes_per_node == 4 * WHOLE
        assert rows(found)["what is divided, whole"] == 4 * TABLE  # a parameter at a time

    def test_weights_in_the_checkpoints_dtype_are_pages_of_its_files(self) -> None:
        assert moment("load", sharding="ddp", precision="bf16").host_bytes_per_node == 0
        assert moment("load", sharding="ddp", precision="fp32").host_bytes_per_node == 8 * 4 * WHOLE
        assert moment("load", sharding="ddp", precision="bf16", trainer_version="4.48").host_bytes_per_node > 0

    def test_a_loop_of_ones_own_packs_for_the_host_where_it_says_so(self) -> None:
        keys = {"quantization": "nf4", "lora": {"r": 8}, "sharding": "fsdp", "num_gpus": 2, "model": "llama-2-70b"}
        sparing = {"fsdp": {"cpu_ram_efficient_loading": True}}
        bare = {"trainer": "pytorch", "trainer_version": None}
        whole, own = moment("load", **keys, **bare), moment("load", **keys, **bare, **sparing)
        assert "the whole model, before it is divided" in rows(whole)
        assert "the whole model, before it is divided" not in rows(own)
        assert own.allocated_bytes < whole.allocated_bytes
        away = moment("load", **keys, **bare, fsdp={"cpu_offload": True})  # as fsdp_qlora loads, which is said
        assert "the whole model, before it is divided" not in rows(away)
        factory = {**keys, **sparing, "trainer": "llamafactory"}
        older = moment("load", **factory, trainer_version="0.9.4")
        assert "the whole model, before it is divided" not in rows(older)
        assert any("trainer_version: 0.9.4" in each for each in report(**factory, trainer_version="0.9.5").warnings)
        packed = moment("load", **{**keys, "sharding": "fsdp2"}, fsdp={"packs_on_host": True})
        assert "the whole model, before it is divided" not in rows(packed)
        older, newer = (moment("load", **keys, **sparing, trainer_version=version) for version in ("4.57", "5.23"))
        assert "the whole model, before it is divided" not in rows(older)
        assert "the whole model, before it is divided" in rows(newer)

    def test_zero_init_makes_a_part_and_one_parameter_whole(self) -> None:
        parts, whole = (moment("load", zero_stage=3, deepspeed=settings) for settings in ({}, {"zero_init": False}))
        assert rows(parts)["the largest parameter, before it is divided"] == 2 * TABLE
        assert rows(whole)["the whole model, before it is divided"] == 2 * WHOLE
        assert whole.allocated_bytes > 2 * WHOLE > parts.allocated_bytes

    @pytest.mark.slow
    def test_a_flat_copy_is_made_on_the_card_only_where_it_has_the_room(self) -> None:
        roomy, small = (moment("load", zero_stage=2, gpu=gpu) for gpu in ("h100-80gb", "24GB"))
        name = "the flat copy of the weights"
        assert rows(roomy)[name] == rows(small, "host")[name] == pytest.approx(2 * WHOLE, rel=0.001)

    def test_a_base_is_packed_matrix_by_matrix_and_whole_before_fsdp_divides_it(self) -> None:
        keys = {"quantization": "nf4", "lora": {"r": 8}}
        alone = rows(moment("load", num_gpus=1, **keys))
        assert alone["the matrix that is being packed, unpacked"] == 2 * 14336 * 4096
        divided = moment("load", sharding="fsdp2", **keys)
        whole = rows(divided)["the whole model, before it is divided"]
        packed = sum(size for name, size in alone.items() if "quantised weights of" in name and "un" not in name)
        assert whole == pytest.approx(packed + 2 * 2 * TABLE, rel=0.02)  # norms and adapters beside
        assert divided.allocated_bytes > whole

    def test_transformers_4_51_to_4_57_ask_for_half_of_a_model_before_it_is_packed(self) -> None:
        keys = {"quantization": "nf4", "lora": {"r": 8}, "num_gpus": 1, "gpu": "h100-80gb", "sequence_length": 16}
        keys |= {"precision": "bf16", "trainer": "trl"}
        warm, before = (report(trainer_version=version, **keys).per_gpu for version in ("0.24", "0.18"))
        name = "the allocator's warm-up"
        assert rows(next(each for each in warm.moments if each.name == "load"))[name] == WHOLE  # 16 bits, halved
        assert warm.reserved_bytes.expected >= WHOLE > before.reserved_bytes.expected
        assert rows(moment("load", trainer_version="0.24", **keys | {"gpu": "12GB"}))[name] < 6 * GiB
        assert name not in rows(moment("load", trainer_version="1.16", **keys))

    def test_experts_are_stacked_on_the_card_where_they_are_read_to_it(self) -> None:
        one = {
            "model": "qwen3-30b-a3b",
            "num_gpus": 1,
            "trainer": "llamafactory",
            "trainer_version": None,
            "lora": {"r": 8},
            "gpu": "h100-80gb",
        }
        report = estimate(EIGHT | one)
        found = next(each for each in report.per_gpu.moments if each.name == "load")
        stacks = next(row for row in found.ledger if row.name == "experts' matrices before they are stacked")
        assert stacks.high == 48 * stacks.bytes == 48 * 128 * 3 * 768 * 2048 * 2
        text = " ".join(plain([*verdict_blocks(report, 200)], 200).split())
        assert f"up to {format_bytes(found.device_bytes.high)} in load" in text  # what decides is what is shown


class TestFirstStep:
    def test_states_are_made_at_its_end(self) -> None:
        found = report(num_gpus=1, precision="bf16")
        first = next(each for each in found.per_gpu.moments if each.name == "first-step")
        steady = {at.name: at.allocated_bytes for at in found.per_gpu.instants}
        for at in first.instants:
            later = steady[at.name.removeprefix("first-")]
            assert later - at.allocated_bytes == (0 if at.name == "first-step.optimizer" else 2 * 2 * WHOLE)

    def test_projections_are_made_in_it(self) -> None:
        found = report(num_gpus=1, optimizer="soap", precision="bf16")
        assert found.per_gpu.phases["first-step"] > found.per_gpu.phases["step"]
        assert set(RENEWING) == set(REFRESHES)


class TestSave:
    def test_fsdp_gathers_a_whole_state_dict_on_one_host(self) -> None:
        found = moment("save", sharding="fsdp2", precision="bf16-amp")
        node = rows(found, "node")
        assert node == {"the whole state dict": 4 * WHOLE, "the whole optimizer's states": 8 * WHOLE}
        assert found.host_bytes_per_node == 8 * WHOLE
        assert rows(found)["the largest tensor, gathered"] == 4 * TABLE

    def test_sharded_state_dicts_are_each_process_s_own(self) -> None:
        fsdp = {"state_dict_type": "SHARDED_STATE_DICT"}
        found = moment("save", sharding="fsdp2", precision="bf16-amp", fsdp=fsdp)
        assert not rows(found, "node")
        assert found.host_bytes_per_node == pytest.approx(8 * WHOLE, rel=0.001)

    def test_fsdp1_gathers_units(self) -> None:
        found = rows(moment("save", sharding="fsdp", precision="bf16-amp"))
        assert found["the largest unit, gathered"] == pytest.approx(4 * 2 * TABLE, rel=0.001)

    def test_zero_3_gathers_on_one_host_or_not_at_all(self) -> None:
        gathered = moment("save", zero_stage=3)
        assert rows(gathered, "node") == {"the whole state dict": 2 * WHOLE}
        not_gathered = moment("save", zero_stage=3, deepspeed={"stage3_gather_16bit_weights_on_model_save": False})
        assert not rows(not_gathered, "node")

    def test_below_stage_3_every_process_clones_all(self) -> None:
        found = moment("save", zero_stage=2, lora={"r": 8})
        assert rows(found, "host")["clones of all weights"] > 2 * WHOLE

    def test_adapters_alone_are_small(self) -> None:
        assert moment("save", num_gpus=1, lora={"r": 8}).host_bytes_per_node < GiB


STATES = 2 * 4 * WHOLE
"""AdamW's, of fp32 weights."""


@pytest.mark.parametrize(
    ("keys", "card", "host", "node"),
    [
        ({"num_gpus": 1, "trainer": "trl"}, 0, STATES, 0),
        ({"trainer": "trl", "sharding": "ddp"}, 0, 0, 0),
        ({"sharding": "ddp", "optimizer": "adamw-8bit"}, None, 0, 0),
        ({"trainer": "pytorch", "trainer_version": None, "num_gpus": 1}, 2 * WHOLE, 0, 0),
        ({"zero_stage": 2, "precision": "bf16-master"}, 0, 2 * WHOLE + (STATES + 4 * WHOLE) // 8, 0),
        ({"zero_stage": 3, "precision": "bf16-master"}, 0, (STATES + 4 * WHOLE) // 8, 0),
        ({"sharding": "fsdp", "precision": "bf16-amp"}, None, 4 * WHOLE, STATES),
        ({"sharding": "fsdp2", "precision": "bf16-amp"}, 2 * 4 * TABLE + 4 * WHOLE // 8, 0, 4 * WHOLE + STATES),
    ],
    ids=["one", "ddp", "8-bit", "own loop", "zero 2", "zero 3", "fsdp", "fsdp2"],
)
def test_resuming_reads_where_the_framework_reads(keys: Keys, card: int | None, host: int, node: int) -> None:
    found = moment("resume", phases="resume", **keys)
    read = "_load_from_checkpoint", "serialization.py: load", "_load_checkpoint", "load_fsdp_model", "_init_optim"
    new = [each for each in found.ledger if any(word in each.source for word in read)]
    at = {place: sum(each.bytes for each in new if each.place == place) for place in ("gpu", "host", "node")}
    assert at["host"] == pytest.approx(host, rel=1e-4)
    assert at["node"] == pytest.approx(node, rel=1e-4)
    assert at["gpu"] > 0 if card is None else at["gpu"] == pytest.approx(card, rel=1e-4)


def test_megatron_copies_weights_into_their_buffer_and_a_ranks_part_to_the_host() -> None:
    """16-bit weights twice and fp32 gradients at once; then main weights and states of a quarter, and a quarter of the
    weights."""
    load, save = moment("load", **MEGATRON), moment("save", **MEGATRON)
    assert load.allocated_bytes == pytest.approx((2 + 2 + 4) * WHOLE // 2, rel=1e-3)
    assert rows(save, "host")["this rank's part of the checkpoint"] == pytest.approx((12 + 2) * WHOLE // 8, rel=1e-3)


def test_megatron_reads_a_checkpoint_into_what_is_there() -> None:
    """Beside 16-bit weights, fp32 gradients and a quarter of main weights and states; received weights at the most."""
    resume = moment("resume", **MEGATRON)
    received = next(row for row in resume.ledger if row.name == "weights that other ranks have read")
    assert received.bytes == 0
    assert received.high == pytest.approx(2 * WHOLE // 2, rel=1e-3)
    assert resume.allocated_bytes == pytest.approx((2 + 4 + 12 / 4) * WHOLE // 2, rel=0.03)


def test_merging_holds_the_largest_matrix_alone() -> None:
    dense, packed = (
        moment("merge", num_gpus=1, lora={"r": 8}, phases="merge", quantization=base) for base in ("none", "nf4")
    )
    assert rows(dense)["the update of the largest matrix"] == 2 * 4 * 14336 * 4096
    assert rows(packed)["the largest matrix, unpacked and packed again"] == 14 * 14336 * 4096


def test_sync_gathers_all_with_adapters_and_a_tensor_without() -> None:
    keys = {"trainer": "trl", "trainer_version": "1.16", "method": "grpo", "zero_stage": 3, "phases": "sync"}
    keys |= {"rollout": {"engine": "vllm"}}
    assert "the largest tensor, gathered" in rows(moment("sync", **keys))
    assert rows(moment("sync", **keys, lora={"r": 8}))["the whole model, gathered"] > 2 * WHOLE


QLORA = {"quantization": "nf4", "lora": {"r": 8}, "sharding": "fsdp2", "sequence_length": 128}


class TestVerdict:
    @pytest.mark.slow
    def test_a_job_that_cannot_be_loaded_does_not_fit(self) -> None:
        """The step of QLoRA under FSDP2 is small, but each card holds the whole base before it is divided."""
        keys = QLORA | {"gpu": "8.5GB"}
        found, step = report(**keys), report(**keys, phases="none")
        assert found.verdict is not None
        assert step.verdict is not None
        assert (found.verdict.fits, step.verdict.fits) == ("no", "tight")
        assert found.per_gpu.device_bytes.expected == step.per_gpu.device_bytes.expected
        crossing = found.per_gpu.first_crossing
        assert crossing is not None
        assert crossing.phase == "load"
        assert step.per_gpu.first_crossing is None
        assert peak(found.recipe).verdict.fits == "no"  # type: ignore[arg-type, union-attr]

    def test_a_job_dies_where_it_first_crosses_the_card(self) -> None:
        """The peak is at the loss, but without states the first step's layers already fill the card."""
        found = report(num_gpus=1, gpu="24GB", precision="bf16", batch_size=8)
        crossing = found.per_gpu.first_crossing
        assert crossing is not None
        assert (crossing.phase, crossing.instant) == ("first-step", "first-policy.layer-forward")
        assert crossing.instant != f"first-{found.per_gpu.peak_instant}"
        assert crossing.device_bytes > 24e9

    def test_no_instant_holds_more_than_the_run_at_its_most(self) -> None:
        """A play of flat parameters has the loading in it, whose bytes are no share of a step's."""
        found = report(**QLORA | {"gpu": "4GB", "num_gpus": 2, "sharding": "fsdp", "fsdp": {"cpu_offload": True}})
        crossing = found.per_gpu.first_crossing
        assert crossing is not None
        assert crossing.phase == "load"
        assert crossing.device_bytes <= max(each.device_bytes.expected for each in found.per_gpu.moments)

    @pytest.mark.slow
    def test_a_node_that_cannot_load_it_does_not_fit(self) -> None:
        cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": "h100-80gb", "host_memory": "200GB"}
        keys = {
            "cluster": cluster,
            "num_gpus": 8,
            "sharding": "fsdp2",
            "precision": "bf16-amp",
            "trainer_version": "4.48",
        }
        found = report(**keys)
        assert found.host.fits is False
        assert found.verdict is not None
        assert found.verdict.fits == "no"
        text = str(list(estimate_blocks(found, 100)))
        assert "on each node for load" in text
        rank0 = report(**keys, fsdp={"cpu_ram_efficient_loading": True})
        assert rank0.host.fits is True


def test_evaluation_keeps_logits_where_metrics_are_computed() -> None:
    keys = {"eval_batch_size": 4, "sequence_length": 256, "sharding": "ddp", "precision": "bf16"}
    one = 4 * 8 * 256 * 128_256
    plain, kept = report(**keys), report(**keys, evaluation={"keeps_logits": True, "examples": 320})
    found = {row.name: row.bytes for row in kept.per_gpu.ledger if row.category == "logits"}
    assert found["logits of the batches before"] == found["their concatenation"] == 10 * one * 4  # accelerate's fp32
    assert kept.host.bytes_per_node - plain.host.bytes_per_node == 8 * 10 * one * 4
    assert kept.per_gpu.phases["evaluate"] > plain.per_gpu.phases["evaluate"] + 19 * one * 4
    few = report(**keys, evaluation={"keeps_logits": True, "examples": 320, "accumulation_steps": 2})
    assert few.per_gpu.phases["evaluate"] < kept.per_gpu.phases["evaluate"]
    with pytest.raises(InvalidJob, match="of how many batches"):
        report(**keys, evaluation={"keeps_logits": True})
    loop = {"method": "dpo", "trainer": "pytorch", "trainer_version": None}
    with pytest.raises(InvalidJob, match="keeps scores"):
        report(**keys | loop, evaluation={"keeps_logits": True, "examples": 3})


def test_the_json_says_the_step_once() -> None:
    found = report(gpu="24gb")
    step = {(row.name, row.formula, row.bytes) for row in found.per_gpu.ledger}
    told = {each["name"]: each["ledger"] for each in found.to_dict()["per_gpu"]["moments"]}
    whole = {each.name: each.ledger for each in found.per_gpu.moments}
    assert 0 < len(told["first-step"]) < len(whole["first-step"]) / 2
    for name, rows in whole.items():
        kept = {(row["name"], row["formula"], row["bytes"]) for row in told[name]}
        assert {(row.name, row.formula, row.bytes) for row in rows} <= kept | step
