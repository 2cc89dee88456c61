"""Tests that need torch: left out where it is missing, and failing where MEMPLAN_REQUIRE_TORCH=1.

The folder is not named torch: tests/ is on the path, so that where the library is missing ``import torch`` would find
the folder.
"""

import os
import sys
from importlib.util import find_spec

import pytest
from traced_jobs import name, phases, traces

PARSERS = ("axolotl", "litgpt", "llamafactory", "torchtitan", "verl")
MISSING = [name for name in ("torch", "transformers", "peft") if find_spec(name) is None]
OTHERS = [name for name in ("trl", "accelerate", "deepspeed", *PARSERS) if find_spec(name) is None]
"""What single files leave themselves out without."""
if sys.version_info[:2] == (3, 11):  # the one that OpenRLHF has a wheel for
    OTHERS += [name for name in ("openrlhf",) if find_spec(name) is None]

if (MISSING or OTHERS) and os.environ.get("MEMPLAN_REQUIRE_TORCH") == "1":
    raise ModuleNotFoundError(f"MEMPLAN_REQUIRE_TORCH=1, but these are missing: {', '.join(MISSING + OTHERS)}")

collect_ignore_glob = ["test_*.py"] if MISSING else []


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, dict[str, int]]:
    """Peaks of the phases of each of a file's JOBS, traced in one process, by the job's name."""
    jobs = request.module.JOBS
    return {name(each): phases(trace) for each, trace in zip(jobs, traces(jobs), strict=True)}
