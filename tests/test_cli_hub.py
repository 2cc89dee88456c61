"""The command line against a Hub on loopback: a model by its id, a revision, --verify, refusals in two lines."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner_of
from fakehub import COMMIT, FakeHub, Repo, running_hub, safetensors_header

from memplan.models import load_model
from memplan.presets import model_preset

REPO = "someone/my-finetune"
CONFIG: dict[str, Any] = model_preset("smollm2-135m")["config"]
TOTAL = load_model("smollm2-135m").params.total
ROOT = Path(__file__).parent.parent


def weights(elements: int) -> bytes:
    return safetensors_header({"all": ("BF16", [elements], 2)})


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as server:
        files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights(TOTAL)}
        server.repos = {REPO: Repo(files)}
        yield server


def memplan(hub: FakeHub, home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))
    }
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "memplan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **own}, check=False)


@pytest.fixture
def run(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process, with this Hub and an empty cache."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    return runner_of(capsys, "estimate")


@pytest.mark.slow
def test_a_model_by_its_id_then_from_the_cache(hub: FakeHub, tmp_path: Path) -> None:
    first = memplan(hub, tmp_path, "estimate", REPO, "--json")
    assert (first.returncode, first.stderr) == (0, "")
    assert json.loads(first.stdout)["model"]["params"]["total"] == TOTAL
    asked = len(hub.requests)
    again = memplan(hub, tmp_path, "estimate", REPO, "--json", HF_HUB_OFFLINE="1")
    assert again.stdout == first.stdout
    assert len(hub.requests) == asked


def test_a_revision(run: Run) -> None:
    assert run(REPO, "--revision", COMMIT, "--json")[0] == 0
    code, _, err = run(REPO, "--revision", "v9")
    assert code == 3
    assert "no revision 'v9'" in err


def test_verify_says_whether_totals_agree(hub: FakeHub, run: Run) -> None:
    code, _, err = run(REPO, "--verify", "--json")
    assert code == 0
    assert err.startswith(f"note: the safetensors headers of {REPO} hold {TOTAL:,} parameters, as counted")
    hub.repos[REPO].files["model.safetensors"] = weights(TOTAL + CONFIG["vocab_size"] * CONFIG["hidden_size"])
    _, _, tied = run(REPO, "--verify", "--json")
    assert tied.startswith("warning: ")
    assert "which is the tied head stored once more" in tied


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"gated": True}, "is gated"),
        ({"status": 503}, "status 503"),
        ({"files": {}}, "has no config.json"),
        ({"files": {"config.json": b"[]"}}, "not usable"),
        ({"files": {"config.json": b'{"model_type": "lama"}'}}, "lama"),
    ],
)
def test_refusals_are_two_lines(hub: FakeHub, run: Run, changes: dict[str, Any], error: str) -> None:
    for name, value in changes.items():
        setattr(hub.repos[REPO], name, value)
    code, out, err = run(REPO)
    lines = err.splitlines()
    assert (code, out) == (3, "")
    assert error in lines[0]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]


@pytest.mark.slow
def test_offline_names_what_is_at_hand(hub: FakeHub, tmp_path: Path) -> None:
    done = memplan(hub, tmp_path, "estimate", "someone/llama-3.1-8b-tuned", HF_HUB_OFFLINE="1")
    assert done.returncode == 3
    assert "not cached" in done.stderr
    assert "the preset llama-3.1-8b" in done.stderr
