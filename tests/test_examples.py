"""Every file in examples/ runs, offline, and says what its README promises."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sh"))
SAYS = {
    "simpo_on_8_h100.sh": "h100-80gb",
    "after_a_rollout.sh": "weights and states of the critic",
    "own_strategies.sh": "ZeRO-3",
    "sweep.sh": "nf4   rtx-4090",
    "sweep_slurm.sh": "part 1 of 1: 96 rows",
    "sweep_ray.py": "96 rows of 4 parts",
    "dpo_lora_longest_sequence.py": "longest sequence:",
    "reward_model_on_64gb.py": "LoRA r 16",
    "from_sft_to_dpo.py": "twice the sequences",
    "pair_schedules.py": "gradcache",
    "trl_split_trainer.py": "at rejected.",
    "stop_before_oom.py": "exit code 1",
    "engine_shares.py": "every-sequence",
    "agent_session.py": "! error: no model or job named 'llama-3.1-9b'",
    "mend_a_config.sh": "+per_device_train_batch_size: 8    # pairs",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    if name == "agent_session.py" and find_spec("mcp") is None:
        pytest.skip("the mcp SDK is not installed; docs/build.py runs it in CI")
    if name == "sweep_ray.py" and find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    shim = tmp_path / "memplan"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memplan "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }
    program = ["bash"] if name.endswith(".sh") else [sys.executable]
    done = subprocess.run(
        [*program, str(ROOT / "examples" / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


def test_every_example_is_in_its_readme() -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in SCRIPTS if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_parts_of_an_array_make_the_whole(tmp_path: Path) -> None:
    """As Slurm starts them, one after another here: a copy of the script in its spool, and variables that say which of
    how many."""
    shim = tmp_path / "memplan"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memplan "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    kept = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script = tmp_path / "slurm_script"
    script.write_bytes((ROOT / "examples" / "sweep_slurm.sh").read_bytes())
    array = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3"}
    for part in ("1", "2", "3"):
        own = {**kept, **array, "SLURM_ARRAY_TASK_ID": part}
        subprocess.run(["bash", str(script)], env=own, check=True, capture_output=True, timeout=120)
    whole = [
        "memplan",
        "compare",
        "--grid",
        str(ROOT / "examples" / "sweep.yaml"),
        "--output",
        str(tmp_path / "whole.csv"),
    ]
    subprocess.run([sys.executable, "-m", *whole], env=kept, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "rows-7" / "rows.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
