"""Completion scripts: bash runs its own for real; zsh's and fish's say every command, option and choice."""

import shutil
import subprocess
from pathlib import Path

import pytest
from commands import Run, runner_of

from memplan.cli.check import FORMS as CHECK_FORMS
from memplan.cli.commands import COMMANDS
from memplan.cli.completion import SHELLS, completed
from memplan.gpus import gpu_names
from memplan.planner.questions import MAXIMIZED
from memplan.presets import model_names
from memplan.render.catalogue import LISTS
from memplan.spec.job import Job
from memplan.tables.choices import CHOICES


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys, "completion")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "memplan.bash"
    file.write_text(SHELLS["bash"](completed()))
    return file


def completions(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word, with no program in reach that a script could call."""
    quoted = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(
        [
            str(shutil.which("bash")),
            "--norc",
            "-c",
            f"compopt() {{ :; }}; source {script}; complete -p memplan >&2; "
            f"COMP_WORDS=(memplan {quoted}); COMP_CWORD={len(words)}; "
            '_memplan && printf "%s\\n" "${COMPREPLY[@]}"',
        ],
        capture_output=True,
        text=True,
        env={"PATH": ""},
        check=True,
    )
    assert done.stderr == "complete -o bashdefault -o default -F _memplan memplan\n"
    return done.stdout.split()


def test_bash_takes_the_script(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["es"], ["estimate"]),
        ([""], [*COMMANDS, "--help", "--version"]),
        (["estimate", ""], model_names()),
        (["estimate", "llama-3.1-8"], ["llama-3.1-8b"]),
        (["estimate", "job.yaml", "--method", ""], list(CHOICES["method"])),
        (["plan", "job.yaml", "--method", "=", "sim"], ["simpo"]),
        (["compare", "job.yaml", "--method", "="], list(CHOICES["method"])),
        (["estimate", "--gpu", "h100-8"], ["h100-80gb"]),
        (["plan", "--maximize", ""], list(MAXIMIZED)),
        (["show", "gp"], ["gpus"]),
        (["show", ""], list(LISTS)),
        (["schema", "re"], ["report"]),
        (["completion", ""], list(SHELLS)),
        (["emit", "deep"], ["deepspeed"]),
        (["emit", "trl", "llama-3.1-8"], ["llama-3.1-8b"]),
        (["explain", "optimizer-s"], ["optimizer-states"]),
        (["check", "train.yaml", "--format", ""], list(CHECK_FORMS)),
        (["trace", "job.yaml", "--format", "mark"], ["markdown"]),
        (["estimate", "--lora-b"], ["--lora-bias", "--lora-b-bias"]),
        (["plan", "--smallest"], ["--smallest-card"]),
        (["estimate", "--smallest"], []),
        (["estimate", "--batch-size", ""], []),
        (["estimate", "--set", "allocator.exp"], ["allocator.expandable_segments="]),
        (["estimate", "--set", "loss_head", "=", "sel"], ["selective"]),
        (["estimate", "--set", "lora.dora", "=", ""], []),
    ],
    ids=lambda words: " ".join(words[:4]),
)
def test_bash_completes(script: Path, words: list[str], offered: list[str]) -> None:
    found = completions(script, *words)
    assert found[: len(offered)] == offered
    assert len(found) == len(offered) or words == ["estimate", ""]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_says_every_option_and_choice(run: Run, shell: str) -> None:
    code, out, err = run(shell)
    assert (code, err) == (0, "")
    said = set(out.replace("'", " ").replace(")", " ").replace("|", " ").split())
    assert said >= {*COMMANDS, *gpu_names(), *model_names(), *(value for each in CHOICES.values() for value in each)}
    assert said >= {f"{key}=" for key in Job.model_fields if Job.model_fields[key].annotation is bool}
    names = {name for each in completed() for name in each.names}
    assert said >= {name.lstrip("-") if shell == "fish" else name for name in names}


@pytest.mark.parametrize(("arguments", "hint"), [([], "bash, zsh, fish"), (["bahs"], "bash"), (["tcsh"], "bash")])
def test_other_shells_are_refused(run: Run, arguments: list[str], hint: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert hint in err
