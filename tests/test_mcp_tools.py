"""Proves the tools for agents without the SDK: what they answer, what they refuse, and which files a call may open."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from memplan.api import estimate
from memplan.cli.app import main
from memplan.cli.schemas import job_schema
from memplan.errors import MemplanError
from memplan.mcp.tools import TOOLS, call, with_job
from memplan.mcp.worker import answer
from memplan.render.summary import summary
from memplan.spec.job import Job

ROOT = Path(__file__).resolve().parent.parent
JOB = {"model": "smollm2-135m", "method": "dpo", "gpu": "t4"}
CONFIG = "# trl sft\nmodel_name_or_path: HuggingFaceTB/SmolLM2-135M\ndataset_name: x\nmax_length: 1024\n"


@pytest.mark.slow
def test_an_estimate_is_the_summary_of_the_jobs_report_or_the_whole() -> None:
    report = estimate(JOB)
    found = call("estimate", {"job": JOB})
    assert found == {**summary(report), "assumptions": list(report.assumptions)}
    assert len(json.dumps(found)) < 5000
    assert call("estimate", {"job": JOB, "full": True})["per_gpu"] == report.to_dict()["per_gpu"]


@pytest.mark.slow
def test_a_file_is_read_under_the_keys_of_the_job(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(CONFIG)
    found = call("estimate", {"file": str(path), "job": {"gpu": "24GB", "batch_size": 3}})
    assert (found["job"]["batch_size"], found["job"]["sequence_length"]) == (3, 1024)
    checked = call("check", {"files": [str(tmp_path)], "job": {"gpu": "24GB"}})
    assert (checked["exit_code"], checked["files"][0]["fits"]) == (0, "yes")
    assert "job" not in checked["files"][0]
    whole = call("check", {"files": [str(path)], "job": {"gpu": "24GB"}, "full": True})
    assert whole["files"][0]["job"]["sequence_length"] == 1024


@pytest.mark.slow
def test_plans_carry_the_whole_job_and_diagnosis_and_terms_are_the_commands_own() -> None:
    found = call("plan", {"job": {**JOB, "trainer": "trl"}, "top": 2})
    assert found["fits"]
    assert 1 <= len(found["plans"]) <= 2
    again = call(
        "estimate", {"job": {key: value for key, value in found["plans"][0]["job"].items() if value is not None}}
    )
    assert again["verdict"]["fits"] == "yes"
    text = (ROOT / "examples" / "diagnose" / "dpo.log").read_text(encoding="utf-8")
    assert call("diagnose", {"text": text})["requested_bytes"] == 4198330532
    assert call("explain", {"term": "logits"})["key"] == "logits"
    assert call("explain", {"term": "logits", "job": JOB})["peak_bytes"] >= 0


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("estimat", {}, "no such tool: 'estimat'"),
    ("estimate", {}, "which job?"),
    ("estimate", {"jbo": {}}, "estimate has no argument 'jbo'"),
    ("estimate", {"job": "llama"}, "job is no object"),
    ("check", {}, "check: files is missing"),
    ("check", {"files": ["a", 1]}, "files is no array of strings"),
    ("check", {"files": ["examples/check/train.yaml"]}, "check needs a card"),
    ("plan", {"job": JOB, "top": 0}, "top: 0 is no number of plans"),
    ("plan", {"job": JOB, "top": True}, "top is no integer"),
    ("estimate", {"job": {**JOB, "batch_sise": 1}}, "batch_sise"),
    ("explain", {"term": "nonsense"}, "nonsense"),
]


@pytest.mark.parametrize(("name", "arguments", "says"), WRONG)
def test_what_is_wrong_comes_with_what_to_give_instead(name: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(MemplanError) as caught:
        call(name, arguments)
    assert says in caught.value.message
    assert caught.value.hint
    assert answer(name, arguments) == {
        "error": {"error": caught.value.message, "hint": caught.value.hint, "code": caught.value.exit_code}
    }


def test_the_schema_of_a_job_names_every_key_and_leaves_room_in_a_context() -> None:
    schema = with_job(job_schema())
    assert set(Job.model_fields) <= set(schema["properties"])
    assert all("description" in part for part in schema["properties"].values())
    assert len(json.dumps(schema)) < 20_000
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate({**JOB, "lora": {"r": 8}, "gradient_checkpointing": True, "gpu": "80GB"})
    with pytest.raises(Exception, match="is not of type"):
        Draft202012Validator(schema).validate({"batch_size": "many"})
    for tool in TOOLS.values():
        Draft202012Validator.check_schema(tool.schema)


def worker(request: dict[str, Any], cwd: Path) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.path[:] = filter(None, sys.path); from memplan.mcp.worker import main; main()",
        ],
        input=json.dumps(request).encode(),
        capture_output=True,
        cwd=cwd,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "train.yaml").write_text(CONFIG)
    (inside / "link.yaml").symlink_to(outside / "train.yaml")
    return inside, outside


@pytest.mark.slow
def test_a_call_opens_no_file_outside_the_folders_however_it_is_named(folders: tuple[Path, Path]) -> None:
    inside, outside = folders
    request = {"tool": "estimate", "folders": [str(inside)]}
    assert "result" in worker({**request, "arguments": {"file": "train.yaml", "job": {"gpu": "24GB"}}}, inside)
    for name in (str(outside / "train.yaml"), "../outside/train.yaml", "link.yaml"):
        found = worker({**request, "arguments": {"file": name}}, inside)
        assert "outside the folders that memplan mcp was given" in found["error"]["error"], name
    (outside / "config.json").write_text((ROOT / "tests" / "data" / "sarif-2.1.0.json").read_text())
    found = worker({**request, "arguments": {"job": {"model": str(outside)}}}, inside)
    assert "error" in found
    assert "runs" not in json.dumps(found), "nothing of the file is told"
    found = worker(
        {"tool": "check", "folders": [str(inside)], "arguments": {"files": ["../outside"], "job": JOB}}, inside
    )
    assert "CONFIG" not in json.dumps(found)
    assert all(row["fits"] in ("error", "skipped") for row in found.get("result", {}).get("files", ()))


@pytest.mark.slow
def test_a_call_writes_nothing_and_imports_nothing_of_the_folder(folders: tuple[Path, Path]) -> None:
    inside, _ = folders
    (inside / "yaml.py").write_text("raise SystemExit('imported')\n")
    request = {"tool": "estimate", "folders": [str(inside)], "arguments": {"file": "train.yaml"}}
    assert "result" in worker(request, inside)
    for change in ("open('new.txt', 'w')", "os.open('new.txt', os.O_CREAT | os.O_WRONLY)", "os.remove('train.yaml')"):
        program = f"import os; from memplan.mcp.within import keep_within; keep_within(['.']); {change}"
        done = subprocess.run([sys.executable, "-c", program], cwd=inside, capture_output=True, text=True, check=False)
        assert "nothing is written for an agent" in done.stderr, change
    assert sorted(path.name for path in inside.iterdir()) == ["link.yaml", "train.yaml", "yaml.py"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "memplan mcp needs the mcp SDK"),
        (["no-such-folder"], "no-such-folder: no such folder"),
        (["--timeout", "soon"], "--timeout: 'soon' is no number of seconds"),
        (["--timeout", "nan"], "--timeout: 'nan' is no number of seconds"),
    ],
)
def test_what_the_command_cannot_do_is_told_in_two_lines(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("memplan.cli.mcp.find_spec", lambda name: None)
    assert main(["mcp", *arguments]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: {says}"
    assert hint.startswith("hint: ")
