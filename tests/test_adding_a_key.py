"""Proves that a key is added in few places: docs/adding_a_key.md shows the edits, applied here to a copy."""

import json
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("adding_a_key.md", "adding_a_key.zh.md")
EDIT = re.compile(r"```diff\n\+\+\+ (\S+)\n(.*?)```", re.DOTALL)
TOKENS, VOCABULARY = 2 * 256, 49152
RUN = """
import json, sys
import memplan
from memplan.errors import InvalidJob
from memplan.cli.schemas import job_schema

def allocated(**keys):
    job = {"model": "smollm2-135m", "method": "simpo", "sequence_length": 256, "loss_head": "log-softmax", **keys}
    return memplan.estimate({**job, "precision": "bf16"}).per_gpu.allocated_bytes

def refused(**keys):
    try:
        allocated(z_loss=True, **keys)
    except InvalidJob as error:
        return str(error)

print(json.dumps([
    allocated(), allocated(z_loss=False), allocated(z_loss=True),
    refused(method="reward", loss_head="auto"), job_schema()["properties"]["z_loss"]["type"],
]))
"""


def edits(page: str) -> list[tuple[str, str]]:
    """(file, edit) of a page's worked example."""
    return EDIT.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def apply(folder: Path, file: str, edit: str) -> None:
    """One edit: its lines without a plus are there once, and are replaced by those without a minus."""
    lines, text = edit.splitlines(), (folder / file).read_text(encoding="utf-8")
    before, after = ("".join(line[1:] + "\n" for line in lines if line[:1] != sign) for sign in "+-")
    assert text.count(before) == 1, f"{file} has not once:\n{before}"
    (folder / file).write_text(text.replace(before, after), encoding="utf-8")


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edited")
    copytree(ROOT / "memplan", folder / "memplan", ignore=ignore_patterns("__pycache__"))
    (folder / "presets").symlink_to(ROOT / "presets")
    for file, edit in edits(PAGES[0]):
        apply(folder, file, edit)
    return folder


def ran(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-B", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_example_is_short_and_both_pages_show_it() -> None:
    shown = edits(PAGES[0])
    assert shown == edits(PAGES[1])
    added = [line for _, edit in shown for line in edit.splitlines() if line[:1] == "+"]
    assert (len({file for file, _ in shown}), len(added)) == (4, 11)


@pytest.mark.slow
def test_the_edits_make_the_key(edited: Path) -> None:
    without, off, on, refusal, kind = json.loads(ran(edited, "-c", RUN))
    assert without == off
    logits = TOKENS * VOCABULARY * 2
    assert on - off >= logits, "a gradient of all logits of its own"
    assert refusal.startswith("z_loss: a scalar head has no vocabulary")
    assert kind == "boolean"


@pytest.mark.slow
def test_the_command_line_has_it(edited: Path) -> None:
    arguments = ("-m", "memplan", "estimate", "smollm2-135m", "--json", "--loss-head", "log-softmax")
    shown = json.loads(ran(edited, *arguments, "--z-loss"))
    assert shown["job"]["z_loss"] is True
