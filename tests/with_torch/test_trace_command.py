"""Proves memplan trace as a user meets it: the command, its forms, what it says of a peak, life without a compiler."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from traced_jobs import SMALL, TINY, job, phases, traces

from memplan.errors import InvalidJob
from memplan.trace import trace
from memplan.trace.ledger import PHASES
from memplan.trace.result import Trace

JOB = job(SMALL, batch_size=2, sequence_length=512)


def memplan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memplan", "trace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = memplan("smollm2-135m", "--method", "dpo", "--sequence-length", "256", "--compare", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_json_is_a_trace_and_its_comparison(found: dict[str, Any]) -> None:
    compared = found.pop("compared")
    read = Trace.from_dict(found)
    assert read.to_dict() == found
    assert [phase.name for phase in read.phases] == list(PHASES)
    assert read.allocated_bytes == max(phase.allocated_bytes for phase in read.phases)
    for phase in read.phases:
        rows = {row["term"]: row for row in compared if row["phase"] == phase.name}
        assert sum(phase.by_category.values()) == phase.allocated_bytes == rows["total"]["traced_bytes"]
        for side in ("traced_bytes", "estimated_bytes"):
            assert sum(row[side] for term, row in rows.items() if term != "total") == rows["total"][side]


def test_categories_are_what_the_job_holds(found: dict[str, Any]) -> None:
    step = found["phases"][2]["by_category"]
    weights = 2 * found["parameters"]
    assert step["parameters"] == step["reference"] == step["gradients"] == pytest.approx(weights, rel=0.001)
    assert step["optimizer_states"] == pytest.approx(2 * weights, rel=0.001)
    assert found["phases"][2]["operation"] == "_foreach_sqrt"


def test_the_timeline_reaches_every_peak(found: dict[str, Any]) -> None:
    points = found["timeline"]
    assert 0 < len(points) <= 2100
    assert [point["event"] for point in points] == sorted({point["event"] for point in points})
    for phase in found["phases"]:
        reached = max(point["allocated_bytes"] for point in points if point["phase"] == phase["name"])
        assert reached <= phase["allocated_bytes"]
    assert max(point["allocated_bytes"] for point in points) == found["allocated_bytes"]


def test_the_timeline_shows_both_steps_by_category(found: dict[str, Any]) -> None:
    points = found["timeline"]
    assert all(sum(point["by_category"].values()) == point["allocated_bytes"] for point in points)
    names = list(dict.fromkeys(point["phase"] for point in points))
    assert names[:3] == ["forward-1", "backward-1", "step-1"]
    assert {"forward", "backward", "step"} <= set(names[3:])


def test_the_picture_is_written_by_its_ending(tmp_path: Path) -> None:
    out = tmp_path / "steps.svg"
    done = memplan(
        "smollm2-135m", "--method", "sft", "--sequence-length", "64", "--sharding", "fsdp2", "--num-gpus", "2",
        "--trainer", "pytorch", "--output", str(out),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "on 2 GPUs, fsdp2: rank 0" in out.read_text(encoding="utf-8")


def test_the_table_names_phases_terms_and_versions() -> None:
    done = memplan("smollm2-135m", "--method", "sft", "--sequence-length", "128", "--compare")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("forward, loss", "optimizer step", "between steps", "optimizer states", "torch 2."):
        assert words in done.stdout


def test_a_module_is_named_at_a_peak_inside_the_model() -> None:
    (answer,) = traces([job(SMALL, {"vocab_size": 512}, sequence_length=2048, attention="eager", optimizer="sgd")])
    assert isinstance(answer, Trace)
    assert answer.phase("backward").module.startswith("model.layers.3.")
    assert answer.phase("step").module == "the loop"


def test_the_library_traces_apart_where_torch_is_in_the_process() -> None:
    import torch  # noqa: F401

    told: list[str] = []
    assert phases(trace(JOB, told.append)) == phases(traces([JOB])[0])
    assert not told
    with pytest.raises(InvalidJob, match="optimizer: lion"):
        trace({**JOB, "optimizer": "lion", "optimizer_impl": "auto"})


@pytest.mark.parametrize(
    ("model", "keys", "said"),
    [
        (TINY | {"model_type": "minicpm"}, {}, "minicpm is no class of transformers"),
        (TINY | {"model_type": "llama4_text", "num_local_experts": 2}, {"lora": {"r": 8}}, "router.*two tensors"),
    ],
)
def test_what_neither_transformers_nor_peft_can_run_is_refused_by_name(
    model: dict[str, Any], keys: dict[str, Any], said: str
) -> None:
    (answer,) = traces([job(model, **keys)])
    assert isinstance(answer, InvalidJob)
    assert re.search(said, answer.message)
    assert answer.hint


def test_without_a_compiler_fake_cpu_tensors_say_the_same_or_refuse(tmp_path: Path) -> None:
    jobs = [JOB, {**JOB, "precision": "fp32"}, {**JOB, "method": "dpo", "lora": {"r": 8}}, {**JOB, "autocast": True}]
    bare = traces(jobs, XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path), CXX="")
    for answer, known in zip(bare[:3], traces(jobs[:3]), strict=True):
        assert isinstance(answer, Trace)
        assert answer.device == "cpu"
        assert {name: size - phases(known)[name] for name, size in phases(answer).items()} == pytest.approx(
            dict.fromkeys(PHASES, 0), abs=512 * 200
        )
    assert isinstance(bare[3], InvalidJob)
    assert "no C++ compiler found" in bare[3].message
