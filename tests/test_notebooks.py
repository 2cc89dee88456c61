"""Proves that no run of a notebook held more than memplan's high figure, but for those whose reason is written down."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from notebooks import Case, cases, rows


def unread(found: list[Case]) -> list[str]:
    """Runs above their high figure that nobody read, and runs that were read and are not above it."""
    assert found
    return [case.id for case in found if case.above != bool(case.read)]


def test_unsloths_kernels_hold_no_more_than_the_high_figure() -> None:
    assert unread(list(cases(fused=True))) == []


@pytest.mark.slow
def test_layers_that_are_counted_from_above_hold_no_more() -> None:
    assert unread(list(cases(fused=False))) == []


def test_a_run_names_its_notebook_and_its_versions() -> None:
    found = rows()
    assert len({row["id"] for row in found}) == len(found) >= 60
    for row in found:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{12}:.+\.ipynb", row["source"]), row["id"]
        assert re.fullmatch(r"20\d\d\.\d+(\.\d+)?", row["unsloth"]), row["id"]
        assert 0 < row["start"] <= row["peak"], row["id"]
