"""Proves that jobs on Megatron are as near to measured runs as is said, are refused as Megatron refuses them, and cost
no more time on a hundred thousand GPUs than on eight."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from counting import calls
from test_megatron_weights import JOB, LLAMA, MODELS

from memplan.api import estimate
from memplan.engine.play.alike import Storages
from memplan.engine.play.megatron import megatron_events
from memplan.errors import InvalidJob
from memplan.reporting import totals_of
from memplan.resolve import resolve
from memplan.spec.reading import read_job

MEASURED = json.loads((Path(__file__).parent.parent / "presets/measurements/megatron.json").read_text())
RUNS = {row["id"]: row for row in MEASURED["rows"]}


def error_of(row: dict[str, Any]) -> float:
    model = MEASURED["models"][row["model"]] if "model" in row else row["job"]["model"]
    report = estimate({**row["job"], "model": model})
    return max(rank.allocated_bytes for rank in report.ranks) / int(row["measured"]["allocated_bytes"]) - 1


@pytest.mark.slow
def test_runs_whose_every_setting_is_told() -> None:
    errors = {name: abs(error_of(row)) for name, row in RUNS.items() if row["quality"] == "A"}
    assert len(errors) == 28
    assert median(errors.values()) < 0.0005
    assert max(errors.values()) < 0.002, max(errors, key=errors.__getitem__)


@pytest.mark.slow
def test_runs_whose_routing_is_not_told_are_underestimated() -> None:
    """A young router is uneven; the estimate is of even routing, and says so."""
    for name, row in RUNS.items():
        if name.startswith("mbridge"):
            assert -0.18 < error_of(row) < 0, name


@pytest.mark.parametrize("name", ["alps-1728401", "alps-1736631", "alps-2710412", "seo-dense-24-layers"])
def test_kernels_and_workspaces_of_measured_runs(name: str) -> None:
    """flash-attn on views; cuDNN's; one so small that workspaces show; flash-attn on rows, before Hopper."""
    assert abs(error_of(RUNS[name])) < 0.0005


def test_every_stage_of_a_measured_pipeline() -> None:
    """MiB of the fullest rank of either stage, from the source's peak_memory_by_rank_mb."""
    stages = {
        "simumax-b200-llama3_70b_l12_tp1_pp2_dp4": (68149.199, 64479.479),
        "simumax-b200-llama3_405b_l4_tp1_pp2_dp4": (88688.882, 89173.399),
        "simumax-b200-deepseekv2_tp1_ep4_pp2_dp4_l4": (32343.429, 45775.801),
        "simumax-b200-deepseekv3_l4_tp1_ep4_pp2_dp4": (72948.511, 116737.923),
    }
    for name, sizes in stages.items():
        row = RUNS[name]
        report = estimate({**row["job"], "model": MEASURED["models"][row["model"]]})
        found = {rank.name: rank.allocated_bytes / 2**20 for rank in report.ranks}
        for stage, size in enumerate(sizes, 1):
            assert found[f"each GPU of pipeline stage {stage} of 2"] == pytest.approx(size, rel=0.003)


def test_a_compiled_loss_makes_a_buffer_of_its_own() -> None:
    """megatron-core's native fusion, eager steps in place, and Transformer Engine's kernel in the logits themselves."""
    job = {"model": "qwen2.5-7b", "trainer": "megatron", "method": "sft", "num_gpus": 4, "tensor_parallel": 4,
           "sequence_parallel": True, "sequence_length": 8192, "gradient_checkpointing": "full"}  # fmt: skip
    shard = 8192 * 152064 // 4 * 4
    losses = {
        name: next(each for each in estimate({**job, "megatron": settings}).to_dict()["per_gpu"]["instants"]
                   if each["name"] == "policy.loss")["allocated_bytes"]
        for name, settings in (
            ("native", {"cross_entropy_fusion_impl": "native"}),
            ("eager", {"cross_entropy_loss_fusion": False}),
            ("te", {"cross_entropy_fusion_impl": "te"}),
        )
    }  # fmt: skip
    assert losses["native"] - losses["eager"] == shard
    assert losses["eager"] - losses["te"] == shard


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tensor_parallel": 3, "num_gpus": 3}, "tensor_parallel: 3 does not divide the 16 attention heads"),
    ({"tensor_parallel": 2, "num_gpus": 3}, "num_gpus: 3 is no multiple of tensor × pipeline × context parallel = 2"),
    ({"pipeline_parallel": 9, "num_gpus": 9}, "pipeline_parallel: 9 is more than the 8 layers"),
    (
        {
            "pipeline_parallel": 3,
            "num_gpus": 3,
            "megatron": dict.fromkeys(
                ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"), True
            ),
        },
        "pipeline_parallel: 3 does not divide 10 layers",
    ),
    ({"pipeline_parallel": 2, "num_gpus": 2, "virtual_pipeline": 3}, "virtual_pipeline: 3 does not divide the 4"),
    (
        {"pipeline_parallel": 4, "num_gpus": 4, "virtual_pipeline": 2, "gradient_accumulation_steps": 6},
        "gradient_accumulation_steps: 6 micro-batches are no multiple of pipeline_parallel 4",
    ),
    ({"virtual_pipeline": 2}, "virtual_pipeline: needs pipeline_parallel"),
    ({"expert_parallel": 2, "num_gpus": 2}, "expert_parallel: 2, but"),
    ({"model": MODELS["experts"], "expert_parallel": 3, "num_gpus": 3}, "expert_parallel: 3 does not divide the 8"),
    (
        {"model": MODELS["experts"], "tensor_parallel": 2, "num_gpus": 2, "sequence_parallel": False},
        "sequence_parallel: false, and experts with tensor_parallel need it",
    ),
    (
        {"context_parallel": 2, "num_gpus": 2, "sequence_length": 1022},
        "sequence_length: 1022 is no multiple of 2 × context_parallel = 4",
    ),
    (
        {"tensor_parallel": 4, "num_gpus": 4, "sequence_length": 1022},
        "sequence_length: 1022 is no multiple of context × tensor parallel = 4",
    ),
    (
        {
            "tensor_parallel": 8, "context_parallel": 4, "num_gpus": 32, "megatron": {"cp_comm_type": "a2a"},
        },
        "context_parallel: 4 does not divide the 2 heads",
    ),
    (
        {"model": LLAMA | {"intermediate_size": 1404}, "tensor_parallel": 8, "num_gpus": 8},
        "tensor_parallel: 8 does not divide the feed-forward width",
    ),
    ({"optimizer": "lion"}, "optimizer: Megatron steps with adam or sgd, not lion"),
    ({"lora": {"r": 8, "dora": True}}, "trainer: Megatron-LM with lora.dora is not modelled"),
    ({"lora": {"r": 8, "targets": ["q_proj"]}}, "lora.targets: q_proj without k_proj, v_proj, fused in Megatron's"),
    ({"lora": {"r": 6}, "tensor_parallel": 4, "num_gpus": 4}, "lora.r: 6 is no multiple of tensor_parallel 4"),
    (
        {"attention": "eager", "context_parallel": 2, "num_gpus": 2},
        "trainer: Megatron-LM with eager attention over a divided sequence is not modelled",
    ),
    (
        {"trainer": "mindspeed", "lora": {"r": 8}, "tensor_parallel": 2, "num_gpus": 2},
        "trainer: MindSpeed-LLM with LoRA",
    ),
    ({"trainer": "pytorch", "megatron": {"cp_comm_type": "a2a"}}, "megatron: settings, and"),
    ({"megatron": {"cp_comm_type": "ring"}}, "megatron.cp_comm_type: unknown value 'ring'"),
    ({"megatron": {"fp8": True}}, "megatron.fp8_format: unknown value 'true'"),
    ({"megatron": {"moe_pad_expert_input_to_capacity": True}}, "megatron.moe_pad_expert_input_to_capacity: needs a"),
    ({"megatron": {"overlap_param_gather": True}}, "megatron.overlap_param_gather: needs overlap_grad_reduce"),
    ({"megatron": {"optimizer_cpu_offload": True}}, "megatron.optimizer_cpu_offload: needs use_precision_aware"),
    (
        {"sharding": "ddp", "megatron": {"use_precision_aware_optimizer": True}},
        "megatron.use_precision_aware_optimizer: needs the distributed optimizer",
    ),
    ({"megatron": {"pipeline_model_parallel_layout": "tt|L"}}, "megatron.pipeline_model_parallel_layout: 'tt|L' is no"),
    (
        {"pipeline_parallel": 2, "num_gpus": 2, "megatron": {"pipeline_model_parallel_layout": "Et*4|t*3L"}},
        "megatron.pipeline_model_parallel_layout: 7 layers, and the model has 8",
    ),
    (
        {"pipeline_parallel": 2, "num_gpus": 2, "megatron": {"pipeline_model_parallel_layout": "Et*4|t*2|t*2L"}},
        "megatron.pipeline_model_parallel_layout: 3 parts are no multiple of pipeline_parallel 2",
    ),
    (
        {"pipeline_parallel": 4, "num_gpus": 4, "megatron": {"num_layers_in_first_pipeline_stage": 3}},
        "megatron.num_layers_in_first_pipeline_stage: 5 layers are left for 3 stages",
    ),
    (
        {
            "pipeline_parallel": 2, "num_gpus": 2,
            "megatron": {"num_layers_in_first_pipeline_stage": 3, "account_for_loss_in_pipeline_split": True},
        },
        "megatron: num_layers_in_first/last_pipeline_stage with account_for",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_megatron_refuses(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        estimate({**JOB, "model": LLAMA, **keys})
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_sinks_run_within_megatrons_kernel() -> None:
    oss = {"model": "gpt-oss-20b", "num_gpus": 8, "expert_parallel": 8}
    fused, scores = (estimate({**JOB, **oss, "attention": kind}) for kind in ("sdpa", "eager"))
    assert any("sinks within the fused kernel" in line for line in fused.assumptions)
    assert scores.per_gpu.allocated_bytes > fused.per_gpu.allocated_bytes
    with pytest.raises(InvalidJob):
        estimate({**JOB, "model": "gemma-2-9b", "attention": "sdpa"})


@pytest.mark.parametrize("sharding", ["ddp", "distributed-optimizer"])
def test_main_weights_and_moments_where_other_layers_stand_in(sharding: str) -> None:
    """What Megatron's optimizer keeps is the same, whoever's layers are counted: norms that rest leave a thousandth."""
    keys = {**JOB, "model": LLAMA, "trainer": "megatron-swift", "num_gpus": 4, "sharding": sharding}
    own, other = (
        estimate({**keys, "freeze": rests}).to_dict()["per_gpu"]["ledger"] for rests in ([], ["input_layernorm"])
    )
    for kind in ("master_weights", "optimizer_states"):
        whole, less = (sum(row["bytes"] for row in rows if row["category"] == kind) for rows in (own, other))
        assert 0.99 * whole < less <= whole


@pytest.mark.parametrize("more", [{"mtp_num_layers": 2}, {"num_distributed_optimizer_instances": 2}])
def test_what_layers_that_stand_in_do_not_know_is_refused(more: dict[str, Any]) -> None:
    keys = {**JOB, "model": LLAMA, "trainer": "megatron-swift", "num_gpus": 4, "freeze": ["input_layernorm"]}
    with pytest.raises(InvalidJob, match=next(iter(more))):
        estimate({**keys, "megatron": more})


def test_a_layout_says_how_many_chunks_a_stage_has() -> None:
    keys = {**JOB, "model": LLAMA, "gradient_accumulation_steps": 4, "pipeline_parallel": 2, "num_gpus": 2}
    laid = estimate({**keys, "megatron": {"pipeline_model_parallel_layout": "Ett|tt|tt|ttL"}})
    same = estimate({**keys, "virtual_pipeline": 2})
    assert [rank.allocated_bytes for rank in laid.ranks] == [rank.allocated_bytes for rank in same.ranks]
    other = estimate({**keys, "megatron": {"pipeline_model_parallel_layout": "E|tttt|tt|ttL"}})
    assert {rank.allocated_bytes for rank in other.ranks} != {rank.allocated_bytes for rank in laid.ranks}


def test_sequence_parallelism_is_off_without_tensor_parallelism() -> None:
    alone = estimate({**JOB, "model": LLAMA, "sequence_parallel": True})
    assert any("sequence_parallel: without effect" in warning for warning in alone.warnings)
    assert alone.per_gpu.allocated_bytes == estimate({**JOB, "model": LLAMA}).per_gpu.allocated_bytes


def test_degrees_alone_mean_megatron() -> None:
    report = estimate({"model": LLAMA, "method": "sft", "tensor_parallel": 2, "num_gpus": 4, "sequence_length": 1024})
    assert report.job["trainer"] == "megatron"


# -- preference losses ------------------------------------------------------------------------------------------------

WIDE = {"model": LLAMA | {"vocab_size": 64000}}
ON_MEGATRON = [
    ("mindspeed", "dpo"), ("mindspeed", "simpo"), ("mindspeed", "reward"), ("nemo-aligner", "dpo"),
    ("nemo-aligner", "kto"), ("slime", "grpo"), ("slime", "sft"),
]  # fmt: skip


@pytest.mark.parametrize(("trainer", "method"), ON_MEGATRON)
def test_preference_losses_over_a_part_of_the_vocabulary(trainer: str, method: str) -> None:
    """Tensor and context parallelism divide logits and what the loss makes of them."""

    def logits(**degrees: int) -> int:
        report = estimate(
            {
                **JOB,
                "model": LLAMA | {"vocab_size": 64000},
                "trainer": trainer,
                "method": method,
                "num_gpus": 4,
                **degrees,
            }
        )
        points = (row for row in report.per_gpu.ledger if row.category == "logits" and row.born == "policy.loss")
        return sum(row.bytes for row in points)

    whole, pair = logits(), logits(tensor_parallel=2)
    assert (whole > 0) == (method != "reward")
    assert logits(context_parallel=4) == pytest.approx(whole / 4, rel=0.02)
    assert logits(tensor_parallel=4) == pytest.approx(pair / 2, rel=0.02)
    if trainer != "mindspeed":
        assert pair == pytest.approx(whole / 2, rel=0.02)


@pytest.mark.parametrize(("method", "expected"), [("simpo", 16), ("dpo", 28)])
def test_log_softmax_over_ranks_by_hand(method: str, expected: int) -> None:
    """MindSpeed-LLM, bytes for each logit of the rank: fp32 logits, exp(x − z), x − z and the result; DPO holds the
    reference's logits and both concatenated besides. Pairs double the rows."""
    keys = {**WIDE, "trainer": "mindspeed", "tensor_parallel": 4, "num_gpus": 4}
    report = estimate({**JOB, **keys, "method": method})
    rows = [row for row in report.per_gpu.ledger if row.category == "logits" and row.born == "policy.loss"]
    assert sum(row.bytes for row in rows) == expected * 2 * 1024 * 64000 // 4


def test_a_reference_is_divided_as_the_policy_is() -> None:
    def reference(**keys: Any) -> int:
        report = estimate({**JOB, "model": LLAMA, "trainer": "mindspeed", "method": "dpo", **keys})
        return sum(row.bytes for row in report.per_gpu.ledger if row.category == "reference")

    whole = reference()
    assert reference(tensor_parallel=4, num_gpus=4) == pytest.approx(whole / 4, rel=0.05)
    report = estimate({**JOB, "model": LLAMA, "trainer": "nemo-aligner", "method": "dpo"})
    hosts = [row for row in report.per_gpu.ledger if row.place == "host"]
    assert sum(row.bytes for row in hosts) == pytest.approx(whole, rel=0.01)
    assert report.host.bytes_per_node >= sum(row.bytes for row in hosts)


def test_policy_and_reference_pass_the_stages_in_one_tensor() -> None:
    """MindSpeed-LLM's DPO: stages behind the first keep twice the rows of each micro-batch that waits."""
    keys = {"trainer": "mindspeed", "pipeline_parallel": 2, "num_gpus": 2, "sharding": "distributed-optimizer"}
    report = estimate({**JOB, "model": LLAMA | {"vocab_size": 128000}, "method": "dpo", **keys})
    assert report.per_gpu.rank.startswith("each GPU of pipeline stage 2")
    stream = 2 * 1024 * 512 * 2
    rows = {row.name: row.bytes for row in report.per_gpu.ledger}
    assert rows["the reference's half of what was received"] == stream
    assert rows["gradient that was sent to the stage before"] == 2 * stream


# -- work -------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_gpus_cost_no_more_work_than_eight() -> None:
    def work(gpus: int) -> int:
        recipe = resolve(read_job({**JOB, "model": LLAMA, "tensor_parallel": 4, "num_gpus": gpus}))
        return calls(lambda: totals_of(recipe))

    work(16)
    assert max(work(gpus) for gpus in (98304, 99328, 99840)) < 2 * work(8)


def test_a_card_older_than_the_kernels_of_attention_keeps_scores() -> None:
    """A GPT-2 large of 32 GB died on a V100, where its first step was said to take 19 GiB."""
    job = {"model": "gpt2-large", "method": "sft", "trainer": "megatron", "dtype": "fp16", "sequence_length": 1024}

    def most(gpu: str, **keys: Any) -> int:
        return estimate({**job, "gpu": gpu, "batch_size": 4, **keys}).per_gpu.allocated_bytes

    assert most("v100-32gb") == most("v100-32gb", attention="eager") > most("a100-40gb")
    assert most("a100-40gb") == most("a100-40gb", attention="flash")
    with pytest.raises(InvalidJob, match="attention: flash does not run on v100-32gb") as refused:
        most("v100-32gb", attention="flash")
    assert refused.value.hint == "use attention: eager"


@pytest.mark.parametrize(
    ("keys", "assumed"),
    [
        ({"pipeline_parallel": 3, "num_gpus": 3}, "E(t*3|)*2t*2L"),
        ({"pipeline_parallel": 8, "num_gpus": 8, "model": LLAMA | {"num_hidden_layers": 9}}, "E(t*2|)*1(t*1|)*6t*1L"),
        ({"pipeline_parallel": 3, "virtual_pipeline": 2, "num_gpus": 3}, "E(t*2|)*2(t*1|)*3t*1L"),
        ({"pipeline_parallel": 3, "num_gpus": 3, "megatron": {"mtp_num_layers": 1}}, "E(t*3|)*2t*2mL"),
    ],
)
def test_layers_that_do_not_divide_are_laid_out_evenly_and_it_is_said(keys: dict[str, Any], assumed: str) -> None:
    keys = JOB | {"model": LLAMA, "gradient_accumulation_steps": 24} | keys
    found = estimate(keys)
    assert [text for text in found.warnings if f"layout {assumed} is assumed" in text]
    said = {**keys.get("megatron", {}), "pipeline_model_parallel_layout": assumed}
    given = estimate({**keys, "megatron": said})
    assert not [text for text in given.warnings if "is assumed" in text]
    assert [rank.allocated_bytes for rank in found.ranks] == [rank.allocated_bytes for rank in given.ranks]


@pytest.mark.parametrize(
    "setting",
    [
        {"moe_grouped_gemm": False},
        {"disable_parameter_transpose_cache": True},
        {"reduce_scatter_with_fp32_accumulation": True},
    ],
)
def test_a_setting_that_is_estimated_as_its_opposite_is_said(setting: dict[str, bool]) -> None:
    (name,) = setting
    said = estimate({**JOB, "model": MODELS["experts"], "megatron": setting}).warnings
    assert [text for text in said if text.startswith(f"megatron.{name}: ")]
    plain = estimate({**JOB, "model": MODELS["experts"]}).warnings
    assert not [text for text in plain if text.startswith(f"megatron.{name}: ")]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite", "deepseek-v3"])
@pytest.mark.parametrize("recompute", [{}, {"gradient_checkpointing": "full"}, {"lora": {"r": 8}}])
def test_layers_do_again_what_alike_ones_did(
    model: str, recompute: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the event, as if each were followed."""
    layout = {"num_gpus": 16, "pipeline_parallel": 2, "virtual_pipeline": 1, "tensor_parallel": 2}
    overlap = {"moe_shared_expert_overlap": True} if "deepseek" in model else {}
    job = {"model": model, "method": "sft", "trainer": "megatron", "gradient_accumulation_steps": 4, **layout}
    recipe = resolve(read_job({**job, "sequence_length": 512, "megatron": overlap, **recompute}))
    found = megatron_events(recipe, 2)
    monkeypatch.setattr(Storages, "alike", lambda _, work, layers: work(layers))
    assert megatron_events(recipe, 2) == found
