"""Proves the picture of a report: sound SVG that stands by itself, areas that add up to the report's figures, the card
and the verdict in it, names as text and never as markup; and that a file holds what its name says.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import Run, runner_of

from memplan.api import estimate
from memplan.render.svg import Scale, gib_ticks
from memplan.render.timeline_svg import GAP, HEAD, PANEL, report_svg
from memplan.timeline import PLAYED, STEP, TOGETHER, timeline
from memplan.units import GiB, format_bytes

SVG = "{http://www.w3.org/2000/svg}"
JOBS: dict[str, dict[str, Any]] = {
    "fits": {"model": "qwen3-0.6b", "method": "dpo", "gpu": "24GB"},
    "does not": {"model": "qwen3-4b", "gpu": "24GB"},
    "no card": {"model": "qwen3-0.6b", "method": "dpo"},
    "rollout": {"model": "qwen2.5-7b", "method": "grpo", "trainer": "verl", "num_gpus": 8, "gpu": "h100-80gb"},
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


@pytest.mark.parametrize("name", JOBS)
def test_all_curves_are_drawn_and_what_decides_is_said(name: str) -> None:
    report = estimate(JOBS[name])
    found = timeline(report)
    drawn = report_svg(report, found)
    root = ElementTree.fromstring(drawn)
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    curves = [*found.of(STEP)[:1], *found.of(TOGETHER)[-1:], *found.of(PLAYED)]
    assert words.count("at the peak") == len(curves)
    assert {f"peak {format_bytes(curve.peak_bytes)}" for curve in curves} <= set(words)
    assert {point.instant for point in curves[0].points} <= set(words)
    listed = sum(len({kind for point in curve.points for kind in point.by_category}) for curve in curves)
    assert len(curves) < len(re.findall("<polygon", drawn)) <= listed  # without those that no pixel shows
    if report.verdict is not None:
        assert any(text.startswith(f"needs {format_bytes(report.verdict.usable_bytes - report.verdict.headroom_bytes)}")
                   for text in words)  # fmt: skip
        assert ("over by" in drawn) == (report.verdict.fits == "no")
    height = float(root.attrib["height"])
    for box in root.iter(f"{SVG}rect"):
        assert 0 <= float(box.get("y", 0)) <= height
        assert float(box.get("x", 0)) + float(box.attrib["width"]) <= 1100
    assert re.findall(r"https?://[^\"]+", drawn) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in drawn


def test_the_areas_of_instants_reach_the_reports_figures() -> None:
    report = estimate(JOBS["no card"])
    found = timeline(report)
    step = found.of(STEP)[0]
    areas = list(ElementTree.fromstring(report_svg(report, found)).iter(f"{SVG}polygon"))
    top = HEAD + GAP
    scale = Scale(len(step.points), gib_ticks(max(step.peak_bytes, step.device_bytes or 0))[-1] * GiB, top, top + PANEL)
    upper = areas[-1].attrib["points"].split()[: 2 * len(step.points)]
    assert upper == [
        f"{scale.x(place + side)},{scale.y(point.bytes)}" for place, point in enumerate(step.points) for side in (0, 1)
    ]


def test_a_hostile_name_is_text() -> None:
    report = estimate(JOBS["no card"])
    report.model.name = "</title><script>alert(1)</script>\x1b[31m"
    drawn = report_svg(report, timeline(report))
    ElementTree.fromstring(drawn)
    assert "<script" not in drawn
    assert "\x1b" not in drawn


def test_a_file_holds_what_its_name_says(run: Run, tmp_path: Path) -> None:
    svg = tmp_path / "step.svg"
    assert run("estimate", "qwen3-0.6b", "--gpu", "24GB", "-o", str(svg))[0] == 0
    assert ElementTree.parse(svg).getroot().tag == f"{SVG}svg"
    for method in ("sft", "generate"):
        printed = run("estimate", "qwen3-0.6b", "--method", method, "--gpu", "24GB", "--format", "svg")[1]
        assert printed.startswith("<svg ")
    text = tmp_path / "step.txt"
    run("estimate", "qwen3-0.6b", "--method", "sft", "-o", str(text))
    assert "Peak " in text.read_text(encoding="utf-8")
    code, _, error = run("estimate", "qwen3-0.6b", "-o", str(tmp_path / "step.pdf"))
    assert (code, "nothing is written as .pdf" in error) == (2, True)


def test_a_png_is_pixels_or_says_what_to_install(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    png = tmp_path / "step.png"
    if find_spec("resvg_py") is not None:
        assert run("estimate", "qwen3-0.6b", "--method", "sft", "-o", str(png))[0] == 0
        assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, error = run("estimate", "qwen3-0.6b", "--method", "sft", "-o", str(png), "--force")
    assert code == 2
    assert "resvg-py" in error
    assert "hint: pip install" in error
    code, _, error = run("estimate", "qwen3-0.6b", "--method", "sft", "--format", "png")
    assert (code, "needs a file" in error) == (2, True)
