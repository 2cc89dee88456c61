"""Holds the figures of docs/pair_schedules.md, and of the Chinese page beside it, to the engine."""

import re
from pathlib import Path

import pytest

import memplan
from memplan.units import format_bytes

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = [(DOCS / name).read_text(encoding="utf-8") for name in ("pair_schedules.md", "pair_schedules.zh.md")]
JOB = {"model": "llama-3.2-1b", "method": "simpo", "batch_size": 4, "optimizer_impl": "fused"}


def peak(schedule: str, checkpointing: str, **job: object) -> int:
    pair_pass = schedule.replace("_", "-")
    keys = {**JOB, **job, "pair_pass": pair_pass, "gradient_checkpointing": checkpointing}
    return memplan.estimate(keys).per_gpu.allocated_bytes


@pytest.mark.parametrize("schedule", ["concatenated", "two_forward", "split", "gradcache"])
def test_the_page_says_what_the_engine_says(schedule: str) -> None:
    peaks = tuple(format_bytes(peak(schedule, kind)) for kind in ("none", "full"))
    for page in PAGES:
        figures = page.split("<!-- figures")[1].split("```")[0]
        row = re.search(rf"^\| `{schedule}` \| (.+?) \| (.+?) \|$", figures, re.MULTILINE)
        assert row is not None
        assert row.groups() == peaks


def test_where_the_step_peaks_no_schedule_helps() -> None:
    job = {"model": "llama-3.1-8b", "batch_size": 2, "optimizer_impl": "auto"}
    assert len({peak(schedule, "full", **job) for schedule in ("concatenated", "two_forward", "split")}) == 1
