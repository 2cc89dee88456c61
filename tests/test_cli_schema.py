"""The schemas are valid JSON Schema, describe what they name, and hold for real inputs and outputs."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from memplan.api import compare, estimate
from memplan.cli.app import main
from memplan.cli.schemas import schema_of
from memplan.jobs import job_names, jobs_dir, read_target
from memplan.timeline import timeline

JOBS: list[dict[str, Any]] = [
    {"model": "smollm2-135m"},
    {"model": "smollm2-135m", "method": "dpo", "gpu": "t4", "sequence_length": 8192, "batch_size": 8},
    {"model": "qwen3-30b-a3b", "method": "sft", "num_gpus": 8, "sharding": "fsdp2"},
    {"model": "gemma-2-2b", "method": "kto", "lora": {"r": 8}, "trainer": "trl"},
    {"total_params": "3B", "method": "reward", "num_gpus": 4, "zero_stage": 3, "gradient_checkpointing": True},
]


@cache
def checker(what: str) -> Any:
    """A schema's validator, once the schema itself has been checked."""
    schema = schema_of(what)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("what", ["job", "report", "compare", "plan", "check", "timeline"])
def test_schema_is_valid_and_described(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", what]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == checker(what).schema
    assert (schema.get("items") or schema)["properties"]
    assert schema["title"].startswith("memplan ")


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.get('model', 'sized')}-{job.get('method', 'default')}")
def test_reports_and_their_comparison_match_their_schemas(job: dict[str, Any]) -> None:
    report = json.loads(json.dumps(estimate(job).to_dict()))
    checker("report").validate(report)
    assert set(schema_of("report")["required"]) == set(report)


@pytest.mark.slow
def test_timelines_match_their_schema() -> None:
    found = timeline(estimate({"model": "smollm2-135m", "gpu": "t4"}))
    checker("timeline").validate(json.loads(json.dumps(found.to_dict())))


def test_comparisons_match_their_schema() -> None:
    comparison = json.loads(json.dumps(compare({"model": "smollm2-135m", "gpu": "t4"}).to_dict()))
    checker("compare").validate(comparison)


def test_a_report_with_something_missing_does_not_match() -> None:
    report = json.loads(json.dumps(estimate(JOBS[0]).to_dict()))
    del report["per_gpu"]["peak_instant"]
    with pytest.raises(jsonschema.ValidationError, match="peak_instant"):
        checker("report").validate(report)


@pytest.mark.parametrize("name", job_names())
def test_preset_jobs_match_the_schema_of_a_job(name: str) -> None:
    job = yaml.safe_load((Path(jobs_dir()) / f"{name}.yaml").read_text())
    checker("job").validate(job)


@pytest.mark.parametrize(
    "job",
    [
        {"model": "x", "max_length": 512, "learning_rate": 1e-6, "use_lora": True, "lora": {"r": 16, "dropout": 0.1}},
        {"model": "x", "gradient_checkpointing": True, "optimizer": "adamw_torch", "dtype": None},
        {"model": "x", "allocator": {"expandable_segments": True}, "images": {"width": 336, "height": 336}},
    ],
)  # fmt: skip
def test_what_memplan_reads_matches(job: dict[str, Any]) -> None:
    checker("job").validate(job)
    read_target(None, job)


@pytest.mark.parametrize("job", [{"bach_size": 2}, {"batch_size": 0}, {"lora": {"rank": 8}}, {"num_gpus": "many"}])
def test_what_memplan_refuses_does_not_match(job: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        checker("job").validate(job)


def test_keys_of_a_job_have_their_docstrings() -> None:
    properties = schema_of("job")["properties"]
    assert properties["batch_size"]["description"].startswith("Examples per GPU")
    assert properties["max_length"]["description"] == "The same as sequence_length."
    assert {"enum": ["bf16", "fp16", "fp32"]} in properties["dtype"]["anyOf"]
    assert properties["learning_rate"]["description"] == "Accepted, and without effect on memory."
    assert schema_of("report")["$defs"]["Verdict"]["properties"]["headroom_bytes"]["description"]


def test_settings_inside_a_job_are_described_once_each() -> None:
    parts = schema_of("job")["$defs"]
    named = {
        "Allocator",
        "Cluster",
        "Ddp",
        "DeepSpeed",
        "Fsdp",
        "Images",
        "Lora",
        "Megatron",
        "OptimizerArgs",
        "Rollout",
    }
    assert named <= set(parts)
    assert all(part["properties"] and part["description"] for part in parts.values())


def test_rows_of_a_check_match_their_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of files that fit, that do not, that are unclear, and that cannot be read."""
    texts = {
        "fits.yaml": "model: smollm2-135m\n",
        "no.yaml": "model: llama-3.1-8b\nmethod: dpo\n",
        "bad.yaml": "x: [",
        "unclear.yaml": "model_name_or_path: a/b\nper_device_train_batch_size: 1\nuse_lora: [x]\nbeta: 0.1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    main(["check", *(str(tmp_path / name) for name in texts), "--gpu", "24GB", "--json"])
    rows = json.loads(capsys.readouterr().out)
    checker("check").validate(rows)
    assert len(rows) == len(texts)
    assert set(schema_of("check")["items"]["required"]) == set(rows[0])
