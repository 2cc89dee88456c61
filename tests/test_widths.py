"""Proves that what a command prints is no wider than the screen, whatever the command, the screen and the language."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import Run, runner_of

from memplan.cli import check as check_module
from memplan.lang import ENGLISH, use
from memplan.lang.width import cells
from memplan.render.layout import PROSE

SMALL = "smollm2-135m"
WIDTHS = (40, 60, 80, 120, 200)
QUICK = (
    f"estimate {SMALL} --gpu 8GB",
    f"estimate {SMALL}",
    f"estimate {SMALL} --rule-of-thumb",
    f"estimate {SMALL} --method generate --rollout-engine vllm --gpu h100-80gb",
    f"compare {SMALL} --methods dpo,sft",
    "show gpus",
    "show models",
    "show trainers",
    "show optimizers",
    "show jobs",
    f"explain optimizer-states {SMALL}",
    "diagnose examples/diagnose/dpo.log",
    "--help",
    "check --help",
    "estimate --help",
    "lengths --help-all",
)
DEAR = (
    f"estimate {SMALL} --method simpo --gpu 8GB -b 16 --ranks",
    f"estimate {SMALL} --method dpo --trainer trl --lora --gpu t4 -v",
    f"estimate {SMALL} --method grpo --trainer trl --gpu t4 --explain",
    f"estimate {SMALL} --method grpo --trainer trl --rollout-engine vllm --gpu h100 --num-gpus 4 --zero-stage 3",
    f"estimate {SMALL} --method dpo --gpu 8GB -b 16 --timeline --how-sure",
    f"estimate {SMALL} --method sft --trainer megatron --pp 2 --num-gpus 4 --gpu h100",
    f"compare {SMALL} --method dpo --gpu t4 --all",
    f"plan {SMALL} --method dpo --trainer trl --gpu h100-80gb --pareto",
    f"plan {SMALL} --method sft --budget 4GiB --gpu 8GB",
    "diagnose examples/diagnose/dpo.log examples/sessions/dpo.yaml --trainer-version 0.19 --gpu rtx-4090-24gb",
    "check --log examples/vllm_start.log --gpu h100-80gb",
    "lengths examples/tokenized.jsonl",
    *(f"{command} --help-all" for command in ("estimate", "plan", "compare", "emit", "diagnose", "measure")),
)
COLUMNS_OF_A_TABLE = re.compile(r"\S {2,}\S")
WORDS = re.compile(r"[a-z]{2,} [a-z]{2,}|[\u4e00-\u9fff]{4}")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


@pytest.mark.parametrize("line", [*QUICK, *(pytest.param(line, marks=pytest.mark.slow) for line in DEAR)])
def test_nothing_spills(run: Run, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """In every width (of dear ones the least, the usual and the most) and language. Beyond 100 columns a line without
    columns is an indented cell of 100 at the most."""
    for columns in WIDTHS[:: 2 if line in DEAR else 1]:
        monkeypatch.setenv("COLUMNS", str(columns))
        for language in (ENGLISH, "zh"):
            code, out, err = run(*shlex.split(line), "--lang", language)
            use(ENGLISH)
            assert out, (code, err)
            assert [row for row in out.splitlines() if cells(row) > columns] == [], (columns, language)
            prose = [row for row in out.splitlines() if WORDS.search(row) and not COLUMNS_OF_A_TABLE.search(row)]
            assert [row for row in prose if cells(row.strip()) > PROSE] == [], (columns, language)


@pytest.mark.parametrize("columns", [40, 60])
def test_check_breaks_its_lines_for_a_screen_and_keeps_them_for_programs(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(f"model_name_or_path: {SMALL}\ndataset_name: x\nmax_length: 128\nbeta: 0.1\nloss_type: sigmoid\n")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(tmp_path)
    whole = run("check", path.name, "--gpu", "t4")[1]
    monkeypatch.setattr(check_module, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    shown = run("check", path.name, "--gpu", "t4")[1]
    assert max(map(len, whole.splitlines())) > columns >= max(map(len, shown.splitlines()))
    assert shown.split() == whole.split()
