"""A report's own job, read again, gives the same report: nothing that decides a byte is left open in it."""

from typing import Any

import pytest
from any_jobs import MODELS, sparse_jobs
from drawing import examples
from hypothesis import HealthCheck, assume, given

import memplan
from memplan.errors import InvalidJob
from memplan.jobs import job_names, read_target
from memplan.report import Report, plain

JOBS: list[dict[str, Any]] = [
    {"model": "llama-3.2-1b"},
    {"model": "llama-3.2-1b", "trainer": "trl", "method": "dpo", "lora": {"r": 8}},
    {"model": "qwen2.5-0.5b", "trainer": "trl", "trainer_version": "0.20", "method": "orpo"},
    {"model": "qwen2.5-0.5b", "trainer": "llamafactory", "method": "simpo", "gradient_checkpointing": "none"},
    {"model": "qwen2.5-0.5b", "trainer": "transformers", "method": "sft", "num_gpus": 4, "sharding": "fsdp2"},
    {"model": "gemma-2-2b", "method": "reward", "num_gpus": 8, "zero_stage": 2, "global_batch_size": 64},
    {"total_params": "3B", "method": "kto", "precision": "fp32"},
]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_the_resolved_job_gives_the_same_report(job: dict[str, Any]) -> None:
    first = memplan.estimate(job)
    again = memplan.estimate(first.job)
    assert again.per_gpu.allocated_bytes == first.per_gpu.allocated_bytes
    assert again.per_gpu.by_category == first.per_gpu.by_category
    assert again.job == first.job


@pytest.mark.slow
@pytest.mark.parametrize("name", job_names())
def test_a_preset_job_resolves_to_itself(name: str) -> None:
    first = memplan.estimate(read_target(name, {}))
    again = memplan.estimate(first.job)
    assert [(i.name, i.allocated_bytes) for i in again.per_gpu.instants] == [
        (i.name, i.allocated_bytes) for i in first.per_gpu.instants
    ]


def test_a_job_file_takes_another_model() -> None:
    given = read_target("simpo-8b-8xh100", {"model": "qwen2.5-7b"})
    assert given.job.model == "qwen2.5-7b"


def figures(report: Report) -> Any:
    """Every figure of a report, with its words."""
    return plain([report.per_gpu, report.ranks, report.host, report.verdict])


@pytest.mark.slow
@examples(300, suppress_health_check=list(HealthCheck))
@given(keys=sparse_jobs())
def test_any_job_comes_back_figure_for_figure(keys: dict[str, Any]) -> None:
    """Whatever is resolved is said so that it is resolved to itself: no refusal reads what only the first job left
    open, and none is stepped around by another spelling of the same job.
    """
    try:
        first = memplan.estimate(keys)
    except InvalidJob:
        assume(False)
        raise
    again = memplan.estimate(first.job)
    assert figures(again) == figures(first)
    assert again.job == first.job


LLAMA, MIXTRAL = MODELS["tied"], MODELS["mixtral"]
FOUND: list[dict[str, Any]] = [
    {"model": LLAMA, "precision": "fp32", "entropy": "metric"},
    {"model": LLAMA, "lora": {}, "quantization": "nf4", "kbit_upcast": True},
    {"model": LLAMA, "lora": {}, "quantization": "awq-4bit", "trainer": "trl", "method": "dpo"},
    {"model": MIXTRAL, "sharding": "zero3", "precision": "bf16-amp", "grad_dtype": "bf16"},
    {"model": LLAMA, "zero_stage": 2, "deepspeed": {"communication_data_type": "fp16"}},
    {"model": MIXTRAL, "trainer": "llamafactory", "precision": "fp16-amp", "logits_dtype": "bf16"},
    {"model": LLAMA, "method": "grpo", "trainer": "slime", "megatron": {"use_precision_aware_optimizer": True}},
    {"model": LLAMA, "sharding": "fsdp2", "num_gpus": 2, "precision": "fp32", "reduce_dtype": "fp16"},
    {"total_params": "1B", "method": "sft", "trainer": "openrlhf", "sharding": "fsdp2", "num_gpus": 2},
    {"model": LLAMA, "method": "sft", "trainer": "verl", "sharding": "fsdp2", "num_gpus": 2, "loss_head": "fused"},
]


@pytest.mark.parametrize("job", [{"sequence_length": 64, **job} for job in FOUND])
@pytest.mark.parametrize("more", [{}, {"entropy": "metric"}, {"entropy": "loss"}], ids=str)
def test_what_once_did_not_come_back(job: dict[str, Any], more: dict[str, Any]) -> None:
    try:
        first = memplan.estimate({**job, **more})
    except InvalidJob:
        assert more, "refused"
        return
    assert figures(memplan.estimate(first.job)) == figures(first)


SPELLINGS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"optimizer": "adalomo", "batch_size": 2},
        {"gradient_accumulation_steps": 2, "global_batch_size": 4},
        "optimizer: adalomo with gradient_accumulation_steps 2",
    ),
    (
        {"method": "distill", "extra_models": [{"role": "teacher", "model": MODELS["tied"], "precision": "bf16"}]},
        {"precision": "fp16", "dtype": "fp16"},
        "extra_models: a teacher in bf16 beside a student in fp16",
    ),
    ({"model": "gemma-2-2b", "compile": True}, {"attention": "eager", "trainer": "pytorch"}, "compile: not modelled"),
    (
        {"trainer": "mindspeed", "num_gpus": 2, "megatron": {"use_precision_aware_optimizer": True}, "method": "dpo"},
        {"sharding": "ddp", "gpus_per_node": 8},
        "megatron.use_precision_aware_optimizer",
    ),
]
"""A job that is refused with either of two keys, which mean the same here, and how."""


@pytest.mark.parametrize(("job", "ways", "said"), SPELLINGS, ids=[row[2] for row in SPELLINGS])
def test_no_refusal_is_stepped_around(job: dict[str, Any], ways: dict[str, Any], said: str) -> None:
    for key, value in ways.items():
        with pytest.raises(InvalidJob, match=said):
            memplan.estimate({"model": LLAMA, "sequence_length": 64, **job, key: value})
