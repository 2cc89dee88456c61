"""Proves that the page of unseen rounds is whole: every round has its rows, and each miss of today a reason."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """benchmarks/rounds.py, which is no part of the package."""
    spec = spec_from_file_location("rounds", BENCHMARKS / "rounds.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["ONE_GPU", "RANKS"])
def test_each_round_has_the_rows_that_it_says(page: ModuleType, kind: str) -> None:
    of = getattr(page, kind)
    rounds = page.rounds(of)["rounds"]
    kept = {each["seed"]: len(json.loads(page.rows_of(each["seed"], of).read_text())["rows"]) for each in rounds}
    assert kept == {each["seed"]: each["kept"] for each in rounds}
    assert all(each["kept"] <= each["traced"] <= each["drawn"] for each in rounds)


@pytest.mark.parametrize("kind", ["ONE_GPU", "RANKS"])
def test_every_miss_has_a_reason_and_every_reason_a_miss(kind: str, page: ModuleType) -> None:
    """As docs/accuracy.md lists them, whose part docs/build.py --check makes anew from every row."""
    of = getattr(page, kind)
    listed = (BENCHMARKS.parent / "docs" / "accuracy.md").read_text(encoding="utf-8")
    listed = listed.partition(f"<!-- markdown of: python benchmarks/rounds.py{' --ranks' * (kind == 'RANKS')} -->")[2]
    _, found, off = listed.partition("<!-- end of output -->")[0].partition(f"off by more than {100 * of.miss:.0f} %:")
    assert found
    rows = [line[2:].split(" ")[0] for line in off.splitlines() if line.startswith("- ") and line != "- nothing"]
    assert "no reason is known yet" not in off
    assert rows == [*dict.fromkeys(rows)]
    assert {*rows} == {*page.rounds(of)["reasons"]}
