"""Proves the step in a terminal: bars as long as their bytes, the card's line and the peak where they belong, letters
where there are no colours, and only ASCII where the terminal has nothing else.
"""

import io
import json
import re
import sys

import pytest
from commands import Run, runner_of

from memplan.api import estimate
from memplan.render.blocks import Drawing
from memplan.render.svg import PALETTE, ink
from memplan.render.timeline_view import CARD, HEIGHT, PEAK, stack, timeline_blocks
from memplan.tables.categories import STACK
from memplan.timeline import STEP, timeline
from memplan.units import format_bytes

JOB = "estimate qwen3-0.6b --method dpo --gpu 24GB --timeline"
ROLLOUT = "estimate qwen2.5-7b --method grpo --trainer verl --num-gpus 8 --gpu h100-80gb --timeline"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


def test_a_bar_is_as_long_as_its_bytes_to_half_a_cell() -> None:
    assert stack({"parameters": 50, "logits": 25}, 8, 100) == ["parameters"] * 4 + ["logits"] * 2
    assert stack({"parameters": 6}, 8, 100) == []
    assert stack({"parameters": 7}, 8, 100) == ["parameters"]
    assert stack({"parameters": 40, "batch": 1, "logits": 60}, 10, 100) == ["parameters"] * 4 + ["logits"] * 6
    assert stack({"parameters": 400}, 10, 100) == ["parameters"] * 10


def test_every_kind_of_memory_has_a_letter_of_its_own() -> None:
    assert list(PALETTE) == list(STACK)
    assert len({each.letter for each in PALETTE.values()}) == len(PALETTE)
    assert ink("unheard of").letter == "?"


def test_every_instant_has_its_bar_and_the_largest_is_marked(run: Run) -> None:
    report = estimate({"model": "qwen3-0.6b", "method": "dpo", "gpu": "24GB"})
    shown = run(*JOB.split())[1].splitlines()
    for at in report.per_gpu.instants:
        [line] = [line for line in shown if line.startswith(f"    {at.name} ")]
        assert format_bytes(at.allocated_bytes) in line
        assert (PEAK in line) == (at.name == report.per_gpu.peak_instant)
        assert line.count(CARD) == 1
    assert len({line.index(CARD) for line in shown if line.startswith(("    reference.", "    policy."))}) == 1


@pytest.mark.parametrize("line", [JOB, ROLLOUT])
@pytest.mark.parametrize("columns", [40, 77, 200])
def test_it_is_drawn_at_any_width(run: Run, monkeypatch: pytest.MonkeyPatch, line: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = run(*line.split())[1].splitlines()
    assert max(map(len, rows)) <= columns
    bars = [row for row in rows if CARD in row and "GiB" not in row.split(CARD)[0]]
    assert len(bars) > 10
    assert max(map(len, bars)) > columns - 22  # they take the room that there is


def test_colours_are_blocks_and_no_colours_are_letters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(*JOB.split())[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run(*JOB.split())[1]
    assert "\x1b[" not in plain
    assert "WWW" in plain
    assert "\x1b[" in coloured
    assert "WWW" not in coloured
    assert "███" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [len(line) for line in bare.splitlines()] == [len(line) for line in plain.splitlines()]
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(*JOB.split())[1] == plain


def test_a_terminal_of_ascii_shows_the_same_bars(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(*JOB.split())[1]
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    from memplan.cli.app import main

    assert main(JOB.split()) == 0
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    shown = raw.getvalue().decode("ascii").splitlines()
    assert "?" not in "".join(line for line in shown if "policy." in line)
    assert [line for line in shown if "policy.loss " in line] == [
        line.replace("·", ".").replace(CARD, "|").replace(PEAK, "<")
        for line in whole.splitlines()
        if "policy.loss " in line
    ]


def test_what_is_played_is_drawn_where_there_is_room() -> None:
    found = timeline(estimate({"model": "qwen3-0.6b", "gpu": "24GB"}))
    wide, narrow = (
        [block for block in timeline_blocks(found, width) if isinstance(block, Drawing)] for width in (90, 50)
    )
    assert len(wide) == len(narrow) + 1
    assert len(wide[-1].lines) == HEIGHT + 1


def test_data_holds_the_curves_only_where_they_are_asked_for(run: Run) -> None:
    line = JOB.removesuffix(" --timeline").split()
    assert "timeline" not in json.loads(run(*line, "--json")[1])
    found = json.loads(run(*line, "--json", "--timeline")[1])
    [step] = [curve for curve in found["timeline"]["curves"] if curve["kind"] == STEP]
    assert step["peak_bytes"] == found["per_gpu"]["allocated_bytes"]
    rows = run(*line, "--timeline", "--format", "csv")[1].splitlines()
    assert rows[0].startswith("kind,name,instant,phase,event,bytes,reserved_bytes,parameters,")
    assert len(rows) == 1 + sum(len(curve["points"]) for curve in found["timeline"]["curves"])


def test_in_markdown_it_is_text_of_one_width(run: Run) -> None:
    text = run(*JOB.split(), "--format", "markdown")[1]
    fenced = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert len(fenced) == 3
    assert "policy.loss" in fenced[0]
