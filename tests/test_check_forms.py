"""Proves the forms of ``memplan check`` for programs, what it does with folders, and that the examples for CI run."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from commands import Run, runner_of
from jsonschema import Draft4Validator

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "check"
SCHEMA = json.loads((ROOT / "tests" / "data" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
"""Of OASIS's schema of SARIF 2.1.0 (oasis-tcs/sarif-spec, sarif-2.1/schema) the parts that memplan writes; every object
is closed, as there, so that anything else fails."""
TRL = """# trl sft
model_name_or_path: HuggingFaceTB/SmolLM2-135M
dataset_name: x
per_device_train_batch_size: {batch}
max_length: 1024
"""
FILES = ("small.yaml", "large.yaml", "wrong.yaml", "odd.yaml", "acc.yaml")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(TRL.format(batch=1))
    Path("large.yaml").write_text(TRL.format(batch=512) + "odd_key: 1\n")
    Path("wrong.yaml").write_text(TRL.format(batch="many"))
    Path("odd.yaml").write_text(TRL.format(batch=1) + "use_q_lora: true\n")
    Path("acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n")
    return runner_of(capsys, "check")


@pytest.mark.slow
def test_sarif_is_as_its_schema_says_and_has_a_result_for_what_does_not_surely_fit(run: Run) -> None:
    code, out, _ = run(*FILES, "--gpu", "24GB", "--format", "sarif")
    log = json.loads(out)
    Draft4Validator.check_schema(SCHEMA)
    Draft4Validator(SCHEMA).validate(log)
    (only,) = log["runs"]
    rules = [rule["id"] for rule in only["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in only["results"])
    places = [
        (
            result["ruleId"],
            result["level"],
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for result in only["results"]
    ]
    assert code == 2
    assert places[:5] == [
        ("does-not-fit", "error", "large.yaml", 4),
        ("not-counted", "note", "large.yaml", 6),
        ("not-counted", "note", "large.yaml", 1),
        ("not-readable", "error", "wrong.yaml", 4),
        ("unclear", "warning", "odd.yaml", 6),
    ]


@pytest.mark.slow
def test_junit_has_a_case_for_each_file_and_counts_that_add_up(run: Run) -> None:
    code, out, _ = run(*FILES, "--gpu", "24GB", "--format", "junit")
    suite = ElementTree.fromstring(out)[0]
    assert code == 2
    assert [case.get("name") for case in suite] == list(FILES)
    outcomes = [[part.tag for part in case if part.tag != "system-out"] for case in suite]
    assert outcomes == [[], ["failure"], ["error"], ["error"], ["skipped"]]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "1", "2", "1"]


def test_junit_stays_xml_whatever_a_file_is_called(run: Run) -> None:
    name = '<&"\x1b]]>.yaml'
    Path(name).write_text(TRL.format(batch=1) + "use_q_lora: '\x1b<x>&'\n")
    out = run(name, "--gpu", "24GB", "--format", "junit")[1]
    assert ElementTree.fromstring(out)[0][0].get("name") == '<&"\\x1b]]>.yaml'


@pytest.mark.slow
def test_markdown_folds_what_was_assumed(run: Run) -> None:
    code, out, _ = run("small.yaml", "large.yaml", "--gpu", "24GB", "--format", "markdown")
    assert code == 1
    assert out.startswith("### memplan: 2 training configs, 1 to change\n")
    assert "| small.yaml | **yes** | " in out
    assert "| large.yaml | **no** | " in out
    assert "short by" in out
    assert out.count("<details><summary>") == 2
    assert out.count("<details open><summary>") == out.count("```text\n") == 1, "what makes the large one fit"
    assert "odd\\_key is not counted" in out.partition("<details>")[2]


@pytest.mark.slow
def test_quiet_says_only_what_is_wrong(run: Run) -> None:
    assert run("small.yaml", "acc.yaml", "--gpu", "24GB", "-q") == (0, "", "")
    code, out, told = run(*FILES, "--gpu", "24GB", "-q")
    assert (code, told) == (2, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == ["large.yaml", "wrong.yaml", "odd.yaml"]


@pytest.mark.slow
def test_a_folder_is_its_training_configs_and_what_else_is_in_it_is_told(run: Run) -> None:
    Path("deep/er").mkdir(parents=True)
    Path("deep/er/inner.yaml").write_text(TRL.format(batch=1))
    Path("deep/compose.yml").write_text("services: {web: {image: nginx}}\n")
    Path("deep/stack.yml").write_text("Role: !Ref Admin\nimage: x\n")
    Path("deep/train.py").write_text("from trl import SFTTrainer\n")
    Path("deep/.hidden").mkdir()
    Path("deep/.hidden/no.yaml").write_text(TRL.format(batch=512))
    code, out, _ = run("deep", "--gpu", "24GB")
    lines = [line for line in out.splitlines() if not line.startswith("  assumed")]
    assert code == 0
    assert lines[0].startswith(f"{Path('deep/er/inner.yaml')}: fits 24GB")
    assert lines[1:] == [
        "deep: skipped: in this folder 2 other files (compose.yml, stack.yml); 1 program, to be named by file"
    ]
    Path("deep/broken.yaml").write_text(TRL.format(batch=1) + "  : [\n")
    code, out, _ = run("deep", "--gpu", "24GB", "-q")
    assert (code, out.startswith(f"{Path('deep/broken.yaml')}:")) == (2, True), (
        "a broken training config is no other file"
    )


def test_a_folder_of_programs_alone_is_its_trainings(run: Run) -> None:
    Path("notebooks").mkdir()
    Path("notebooks/trains.py").write_text(
        "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model='Qwen/Qwen2.5-0.5B', args=SFTConfig(max_length=256))\n"
    )
    Path("notebooks/test_it.py").write_text("import trl\nSFTTrainer()\n")
    Path("notebooks/data.py").write_text("import transformers\n")
    Path("notebooks/other.yaml").write_text("name: x\n")
    Path("notebooks/trainer_state.json").write_text('{"num_train_epochs": 1, "train_batch_size": 2, "max_steps": 3}\n')
    Path("notebooks/rows.json").write_text('[{"model": "a", "batch_size": 2, "lora_r": 8, "max_length": 9}]\n')
    code, out, _ = run("notebooks", "--gpu", "24GB", "--num-gpus", "1")
    lines = [line for line in out.splitlines() if line[0] != " "]
    assert (code, lines[0].split(":")[1]) == (0, " fits 24GB")
    assert lines[1:] == [
        "notebooks: skipped: in this folder 2 other files (other.yaml, rows.json); 2 programs, to be named by file"
    ]


def test_a_folder_without_a_training_config_never_passes(run: Run) -> None:
    Path("empty").mkdir()
    Path("empty/acc.yaml").write_text(Path("acc.yaml").read_text())
    for arguments in (["empty"], ["empty", "-q"]):
        code, out, _ = run(*arguments, "--gpu", "24GB")
        assert code == 2
        assert "empty: error: no training config or program in this folder" in out


def test_a_file_that_is_no_training_config_is_an_error_unless_others_are_skipped(run: Run) -> None:
    Path("compose.yml").write_text("services: {web: {image: nginx}}\n")
    assert run("compose.yml", "--gpu", "24GB")[0] == 2
    code, out, _ = run("compose.yml", "small.yaml", "--gpu", "24GB", "--skip-others")
    assert (code, out.splitlines()[0]) == (0, "compose.yml: skipped: no training config that memplan knows")
    assert run("wrong.yaml", "--gpu", "24GB", "--skip-others")[0] == 2
    assert run("none.yaml", "--gpu", "24GB", "--skip-others")[0] == 2


@pytest.mark.slow
def test_reports_are_written_beside_the_answer(run: Run) -> None:
    code, out, _ = run("large.yaml", "--gpu", "24GB", "-o", "a.sarif", "-o", "a.xml", "-o", "a.md", "-o", "a.json")
    assert code == 1
    assert out.startswith("large.yaml: does not fit")
    assert json.loads(Path("a.sarif").read_text())["version"] == "2.1.0"
    assert ElementTree.parse("a.xml").getroot().tag == "testsuites"
    assert Path("a.md").read_text().startswith("### memplan")
    assert json.loads(Path("a.json").read_text())[0]["fits"] == "no"
    for arguments, says in ((["-o", "a.md"], "exists already"), (["-o", "a.pdf"], "its ending says no form")):
        code, out, told = run("large.yaml", "--gpu", "24GB", *arguments)
        assert (code, out) == (2, "")
        assert says in told
    assert run("large.yaml", "--gpu", "24GB", "-o", "a.md", "--force")[0] == 1


@pytest.fixture
def project(run: Run, tmp_path: Path) -> dict[str, str]:
    """A project with configs, and an environment in which ``memplan`` is this one and pip installs nothing."""
    for name, text in (
        ("train/small.yaml", TRL.format(batch=1)),
        ("zero3.yaml", (EXAMPLES / "zero3.yaml").read_text()),
    ):
        path = tmp_path / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shims = tmp_path / "bin"
    shims.mkdir()
    for name, line in (
        ("memplan", f'exec "{sys.executable}" -m memplan "$@"'),
        ("pip", "exit 0"),
        ("python", "exit 0"),
    ):
        (shims / name).write_text(f"#!/bin/sh\n{line}\n")
        (shims / name).chmod(0o755)
    places = f"{shims}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": places, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def bash(script: str, environment: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "code"), [(1, 0), (4096, 1)])
def test_the_action_annotates_and_sums_up(project: dict[str, str], batch: int, code: int) -> None:
    action = yaml.safe_load((EXAMPLES / "action.yml").read_text(encoding="utf-8"))
    workflow = yaml.safe_load((EXAMPLES / "memplan.yml").read_text(encoding="utf-8"))
    uses = workflow["jobs"]["memory"]["steps"][-1]
    assert uses["uses"].endswith("/examples/check")
    assert set(uses["with"]) <= set(action["inputs"])
    assert {name for name, row in action["inputs"].items() if row.get("required")} <= set(uses["with"])
    Path("configs/train/small.yaml").write_text(TRL.format(batch=batch))
    given = (
        {name: row.get("default", "") for name, row in action["inputs"].items()} | uses["with"] | {"sarif": "a.sarif"}
    )
    for step in action["runs"]["steps"]:
        env = {
            name: str(given.get(text.strip("${} ").removeprefix("inputs."), "x")) for name, text in step["env"].items()
        }
        done = bash(step["run"], project, **env, GITHUB_STEP_SUMMARY="summary.md")
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(f"::{'error' if code else 'notice'} file=configs/train/small.yaml,line=4,")
    assert "8 × h100-80gb" in done.stdout
    assert Path("summary.md").read_text(encoding="utf-8").startswith("### memplan: 1 training config")
    assert json.loads(Path("a.sarif").read_text())["version"] == "2.1.0"


@pytest.mark.slow
def test_the_gitlab_job_leaves_a_report(project: dict[str, str]) -> None:
    job = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))["memplan"]
    done = bash("\n".join(job["script"]), project, **job["variables"])
    assert done.returncode == 0, done.stderr
    assert ElementTree.parse(job["artifacts"]["reports"]["junit"]).getroot()[0].get("tests") == "1"


@pytest.mark.slow
def test_the_hook_is_what_the_example_asks_for_and_runs(project: dict[str, str]) -> None:
    hooks = {row["id"]: row for row in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    (repo,) = yaml.safe_load((EXAMPLES / "pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (asked,) = repo["hooks"]
    entry = hooks[asked["id"]]["entry"]
    done = bash(f"{entry} {shlex.join(asked['args'])} configs/train/small.yaml acc.yaml", project)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    Path("configs/train/small.yaml").write_text(TRL.format(batch=4096))
    done = bash(f"{entry} {shlex.join(asked['args'])} configs/train/small.yaml acc.yaml", project)
    assert (done.returncode, done.stdout.startswith("configs/train/small.yaml: does not fit")) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "code"), [(1, 0), (4096, 1)])
def test_the_prologue_ends_a_job_that_does_not_fit(project: dict[str, str], batch: int, code: int) -> None:
    Path("configs/train/small.yaml").write_text(TRL.format(batch=batch))
    given = {"MEMPLAN_FILES": "configs/train/small.yaml", "SLURM_GPUS": "2", "MEMPLAN_GPU": "24GB"}
    done = bash((EXAMPLES / "prologue.sh").read_text(encoding="utf-8"), project, **given)
    assert done.returncode == code, done.stderr
    assert "2 × 24GB" in done.stdout


def test_no_example_takes_memplan_from_a_package_index() -> None:
    written = [path for path in (ROOT / "examples").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    texts = [path.read_text(encoding="utf-8") for path in written]
    assert [text for text in texts if "pip install memplan" in text] == []
