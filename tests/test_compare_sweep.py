"""Proves that a sweep's rows are the estimates' own, each once, in one order, whatever was written before."""

import csv
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from memplan.api import estimate
from memplan.cli.app import main
from memplan.comparison.sweep import FIGURES, LONGEST, Grid, read_grid, row_id, row_of
from memplan.comparison.workers import swept
from memplan.cost import speed
from memplan.errors import InvalidJob, UsageError

GRID = """\
base: {model: smollm2-135m, gpu: t4, learning_rate: 1.0e-5}
vary:
  batch_size: [1, 2]
  lora.r: [8, 16]
  tp: [1, 3]
jobs:
  - {num_gpus: 4, zero_stage: 2}
  - {num_gpus: 3, method: sft, trainer: transformers}
"""
ROWS = 16


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID, encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_point_of_every_job_is_a_row(grid: Path) -> None:
    made = read_grid(grid, {})
    points = [made.point(number) for number in range(made.size)]
    jobs: list[dict[str, Any]] = [
        {"num_gpus": 4, "zero_stage": 2},
        {"num_gpus": 3, "method": "sft", "trainer": "transformers"},
    ]
    expected = [
        {**job, "batch_size": batch, "lora.r": rank, "tensor_parallel": degree}
        for job, batch, rank, degree in product(jobs, (1, 2), (8, 16), (1, 3))
    ]
    assert points == expected
    assert len(points) == ROWS


@pytest.mark.parametrize(
    "job",
    [
        {"method": "dpo", "zero_stage": 3, "num_gpus": 8, "gradient_checkpointing": "full"},
        {"method": "sft", "lora": {"r": 8}, "batch_size": 4},
        {"method": "simpo", "pair_pass": "split", "num_gpus": 2, "sharding": "fsdp2"},
        {"method": "sft", "trainer": "transformers", "lengths": {"p50": 260, "p99": 700, "max": 900}},
    ],
)
def test_a_row_is_the_report_to_the_byte(job: dict[str, Any]) -> None:
    whole = {"model": "smollm2-135m", "gpu": "t4", **job}
    row = row_of(Grid(whole, ({},), ()), 0)
    report = estimate(whole, play=False)  # a sweep plays no steps
    per_gpu, verdict = report.per_gpu, report.verdict
    assert verdict is not None
    assert report.recipe is not None
    expected = (
        verdict.fits,
        per_gpu.allocated_bytes,
        per_gpu.allocated_range.low,
        per_gpu.allocated_range.high,
        per_gpu.reserved_bytes.expected,
        per_gpu.device_bytes.expected,
        per_gpu.device_bytes.high,
        *(per_gpu.phases[phase] for phase in ("forward", "backward", "step")),
        report.host.bytes_per_node,
        verdict.usable_bytes,
        verdict.headroom_bytes,
        round(speed(report.recipe).tokens_per_second, 1),
    )
    assert tuple(row[name] for name in FIGURES) == expected
    said, whole_text = row["warnings"] or "", "; ".join(report.warnings)
    assert said == whole_text or (len(said) == LONGEST and whole_text.startswith(said[:-1]))


def test_a_rows_id_is_that_of_its_job_however_it_is_written() -> None:
    first = Grid({"model": "smollm2-135m", "batch_size": 2}, ({},), ())
    second = Grid({"batch_size": 2}, ({"model": "smollm2-135m"},), ())
    third = Grid({"model": "smollm2-135m", "batch_size": 4}, ({"batch_size": 2},), ())
    other = Grid({"model": "smollm2-135m", "batch_size": 3}, ({},), ())
    assert row_id(first, 0) == row_id(second, 0) == row_id(third, 0) != row_id(other, 0)


def test_one_bad_row_says_so_and_the_others_are_done(grid: Path, tmp_path: Path) -> None:
    assert main(["compare", "--grid", str(grid), "-o", str(tmp_path / "rows.csv")]) == 0
    rows = read(tmp_path / "rows.csv")
    assert len(rows) == len({row["id"] for row in rows}) == ROWS
    bad = [row for row in rows if row["error"]]
    assert {row["tensor_parallel"] for row in bad} == {"3"}
    assert all(row["hint"] and not row["allocated_bytes"] for row in bad)
    assert all(int(row["allocated_bytes"]) > 0 and row["fits"] for row in rows if not row["error"])


def test_a_bug_in_one_row_is_told_in_that_row(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(recipe: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(sys.modules[row_of.__module__], "figures", broken)
    row = row_of(read_grid(grid, {}), 0)
    assert row["error"] == "internal error: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("cut", [0, 40, 500, 1200, 10**6])
def test_a_sweep_that_was_cut_off_goes_on_where_it_was(
    grid: Path, tmp_path: Path, ending: str, cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut anywhere: within the names of the columns, within a row, or not at all."""
    whole, part = tmp_path / f"whole.{ending}", tmp_path / f"part.{ending}"
    assert main(["compare", "--grid", str(grid), "-o", str(whole)]) == 0
    part.write_bytes(whole.read_bytes()[:cut])
    capsys.readouterr()
    assert main(["compare", "--grid", str(grid), "-o", str(part)]) == 0
    assert part.read_bytes() == whole.read_bytes()
    there = max(0, whole.read_bytes()[:cut].count(b"\n") - (ending == "csv"))
    told = capsys.readouterr().err
    assert f"{ROWS - there} rows" in told
    assert (f"{there} were there already" in told) == (there > 0)


def test_parts_together_are_the_whole(grid: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    assert main(["compare", "--grid", str(grid), "-o", str(whole)]) == 0
    text = ""
    for number in (1, 2, 3):
        path = tmp_path / f"{number}.jsonl"
        assert main(["compare", "--grid", str(grid), "-o", str(path), "--part", f"{number}/3"]) == 0
        text += path.read_text(encoding="utf-8")
    assert text == whole.read_text(encoding="utf-8")


def test_processes_give_the_same_rows_in_the_same_order(grid: Path) -> None:
    made = read_grid(grid, {})
    numbers = range(1, made.size)
    assert list(swept(made, numbers, 2, alone=0)) == list(swept(made, numbers, 1))


@pytest.mark.slow
def test_options_go_over_the_base_and_the_same_job_is_priced_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("base: {model: smollm2-135m}\njobs: [{b: 1}, {batch_size: 1}, {b: 2}]\n", encoding="utf-8")
    assert main(["compare", "smollm2-360m", "--grid", str(path), "--gpu", "t4", "--format", "jsonl"]) == 0
    told = capsys.readouterr()
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [row["batch_size"] for row in rows] == [1, 2]
    assert "1 left out: the same job again" in told.err
    expected = estimate({"model": "smollm2-360m", "gpu": "t4", "batch_size": 2})
    assert rows[1]["allocated_bytes"] == expected.per_gpu.allocated_bytes


def test_where_no_row_is_a_job_the_first_reason_is_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("base: {model: no-such-model}\nvary: {b: [1, 2]}\n", encoding="utf-8")
    assert main(["compare", "--grid", str(path)]) == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3
    assert "no-such-model" in told.err


WRONG_FILES = [
    ("base: {modl: x}\nvary: {b: [1]}\n", "line 1: modl: unknown key"),
    ("base: {model: x}\nvarry: {b: [1]}\n", "line 2: the file: unknown key 'varry'"),
    ("base: {model: x}\nvary: {b: 1}\n", "line 2: b: not a list"),
    ("base: {model: x}\nvary: {b: [1, 1]}\n", "line 2: b: 1 is there twice"),
    ("base: {model: x}\nvary: {b: []}\n", "line 2: b: no values"),
    ("base: {model: x}\nvary: {b: [1], batch_size: [2]}\n", "batch_size is there twice"),
    ("vary: {b: [1]}\njobs: [{batch_size: 2}]\n", "batch_size is there twice"),
    ("base: {model: x}\njobs: []\n", "line 2: jobs: not a list of jobs"),
    ("base: {model: x}\njobs: [1]\n", "line 2: job 1 is not a set"),
    ("base: {model: x}\n", "nothing varies"),
    ("vary: {gpu: [t4, t44]}\n", "line 1: gpu: no such card"),
]


@pytest.mark.parametrize(("text", "says"), WRONG_FILES)
def test_a_file_that_is_no_grid_is_refused_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidJob) as raised:
        read_grid(path, {})
    assert says in raised.value.message
    assert raised.value.hint


WRONG = [
    (["-b", "4"], "batch_size is given, and varies"),
    (["--vary", "b=1,2"], "--vary contradicts --grid"),
    (["--gpus", "t4,a100-80gb"], "one value for each option"),
    (["--part", "0/2"], "'0/2' is no part"),
    (["--part", "3/2"], "'3/2' is no part"),
    (["--processes", "none"], "no number of processes"),
    (["--format", "markdown"], "no form 'markdown'"),
    (["-o", "rows.txt"], "CSV or JSON lines"),
    (["-o", "no-such-folder/rows.csv"], "no folder"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_options_that_no_sweep_takes(
    arguments: list[str], says: str, grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--grid", str(grid), *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    error, hint = told.err.splitlines()
    assert says in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("text", ["hello\n", "id,other\n", '{"a": 1}\n', "\ufeff\n", '["id"]\n'])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_file_of_something_else_is_left_as_it_is(grid: Path, tmp_path: Path, text: str, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_text(text, encoding="utf-8")
    assert main(["compare", "--grid", str(grid), "-o", str(path)]) == 2
    assert path.read_text(encoding="utf-8") == text
    assert main(["compare", "--grid", str(grid), "-o", str(path), "--force"]) == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) == ROWS + (ending == "csv")


def test_a_key_cannot_be_given_and_vary(grid: Path) -> None:
    with pytest.raises(UsageError, match="lora is given, and varies"):
        read_grid(grid, {"lora": {"r": 4}})
