"""Every kind of bad input: two lines, the value at fault, what to type instead, the right exit code, no traceback."""

import json
from pathlib import Path
from typing import Any

import pytest

import memplan.api
from memplan.cli.app import main
from memplan.cli.edge import LONGEST, one_line

SMALL = "smollm2-135m"
BAD: list[tuple[str, int, str, str]] = [
    # arguments, exit code, in the error, in the hint
    ("estiamte llama-3.1-8b", 2, "no such command: 'estiamte'", "estimate"),
    ("llama-3.1-8b", 2, "no such command", "memplan estimate llama-3.1-8b"),
    ("--versoin", 2, "no such option: --versoin", "--version"),
    ("estimate SMALL --batchsize 2", 2, "no such option: --batchsize", "--batch-size"),
    ("estimate SMALL --sequence_lenght 2", 2, "--sequence-lenght", "--sequence-length"),
    ("estimate SMALL --lora-rnk 2", 2, "--lora-rnk", "--lora-r"),
    ("estimate SMALL -y", 2, "no such option: -y", "--help"),
    ("estimate --gpu", 2, "'--gpu' requires an argument", "memplan estimate --help"),
    ("estimate SMALL again", 2, "one argument too many: 'again'", "options begin with --"),
    ("estimate", 2, "no model named", "--total-params"),
    ("estimate SMALL --model SMALL", 2, "given twice", "keep one"),
    ("estimate SMALL --method sympo", 2, "method: unknown value 'sympo'", "simpo"),
    ("estimate SMALL --method ppo --trainer trl", 2, "TRL has no ppo from 1.13 on", "--trainer-version 1.12"),
    ("estimate SMALL --method distill", 2, "extra_models: distill needs a teacher", "role: teacher"),
    ("estimate SMALL --optimizer adam-w", 2, "optimizer: unknown value 'adam-w'", "adamw"),
    ("estimate SMALL --batch-size 0", 2, "batch_size: '0' is less than 1", "write --batch-size 1 or more"),
    ("estimate SMALL --batch-size two", 2, "'two' is no whole number", "write --batch-size 8, say"),
    ("estimate SMALL --batch-size=", 2, "batch_size: '' is no whole number", "write --batch-size 8, say"),
    ("estimate SMALL --margin 2", 2, "margin: '2' is not below 1", "write --margin 0.02"),
    ("estimate SMALL --zero-stage 3 --num-gpus 4 --tensor-parallel 2", 2, "tensor_parallel: 2 with",
     "--trainer mindspeed"),
    ("estimate SMALL --compile --attention eager", 2, "compile: not modelled with attention: eager",
     "leave compile or attention out"),
    ("estimate SMALL --recompute every:none", 2, "gradient_checkpointing: 'every:none' names no number of layers",
     "write every:2 for every second layer"),
    ("estimate SMALL --load-in-4bit", 2, "nf4 weights cannot be trained", "--lora-r 16"),
    ("estimate SMALL --gpu h10", 2, "'h10'", "h100-80gb"),
    ("estimate SMALL --gpu rtx4909", 2, "no such card: 'rtx4909'", "rtx-4090"),
    ("estimate SMALL --padded=maybe", 2, "neither true nor false: 'maybe'", "--no-padded"),
    ("estimate SMALL --recompute full --no-gradient-checkpointing", 2, "given twice", "keep one"),
    ("estimate SMALL --no-lora --lora-r 8", 2, "--no-lora contradicts --lora-r", "leave one"),
    ("estimate SMALL --lora-targets q_prj", 2, "no linear module 'q_prj'", "q_proj"),
    ("estimate SMALL --set alocator.x=1", 2, "unknown key 'alocator'", "allocator"),
    ("estimate SMALL --set allocator.expandable=true", 2, "unknown key", "expandable_segments"),
    ("estimate SMALL --set gpu_memory_utilization=0.5", 2, "unknown key", "mean rollout.gpu_memory_utilization?"),
    ("estimate SMALL --set host_memory=64GB", 2, "unknown key", "did you mean cluster.host_memory?"),
    ("estimate SMALL --set xyzzyq=1", 2, "unknown key 'xyzzyq'", "memplan estimate --help-all"),
    ("compare SMALL --vary xyzzyq=1,2", 2, "unknown key 'xyzzyq'", "memplan estimate --help-all"),
    ("estimate SMALL --set allocator", 2, "is no assignment", "--set key=value"),
    ("estimate SMALL --set allocator.=1", 2, "is no assignment", "--set key=value"),
    ("estimate SMALL --set batch_size=2 -b 4", 2, "given twice", "keep one"),
    ("estimate SMALL --set lora.r=2 --lora-r 4", 2, "given twice", "keep one"),
    ("estimate SMALL --zero-stage 1 --sharding zero2", 2, "contradicts zero_stage", "one of them"),
    ("estimate SMALL --format jsno", 2, "unknown form 'jsno'", "json"),
    ("estimate SMALL --format csv --json", 2, "--json contradicts --format csv", "leave one"),
    ("estimate SMALL -o x.pdf", 2, "--output x.pdf: nothing is written as .pdf", "--format table"),
    ("compare SMALL -o x.pdf", 2, "nothing is written as .pdf", ".json"),
    ("show gpus -o x.html", 2, "nothing is written as .html", ".yaml"),
    ("estimate SMALL -q -v", 2, "--verbose contradicts --quiet", "leave one"),
    ("estimate SMALL --fail-over", 2, "--fail-over needs a card", "--gpu"),
    ("estimate --total-params 8B --verify", 2, "--verify needs a model of the Hub", "Hub id"),
    ("estimate SMALL --rule-of-thumb --optimizer lion", 2, "not in the rule of thumb", "adamw"),
    ("estimate lama-3.1-8b", 3, "'lama-3.1-8b'", "llama-3.1-8b"),
    ("estimate no-such-file.yaml", 3, "no-such-file.yaml", ""),
    ("compare SMALL --strategies no-such.yaml", 2, "no-such.yaml", ""),
    ("show", 2, "show what?", "gpus"),
    ("show gpsu", 2, "no list of 'gpsu'", "gpus"),
    ("show gpus --method dpo", 2, "no such option: --method", ""),
    ("explain", 2, "explain which term?", "optimizer-states"),
    ("explain CUDA_out_of_memory", 2, "is an error, no term", "memplan diagnose train.log"),
    ("explain batch_size", 2, "is a key of a job, no term", "Examples per GPU and micro-step"),
    ("explain xyzzy", 2, "no term 'xyzzy'", "memplan show terms"),
    ("show cards", 2, "no list of 'cards'", "memplan show gpus"),
    ("help", 2, "no such command: 'help'", "memplan --help"),
    ("explain optimiser-state", 2, "no term 'optimiser-state'", "optimizer-states"),
    ("schema", 2, "schema of what?", "report"),
    ("schema reprot", 2, "no schema of 'reprot'", "report"),
    ("schema job --format csv", 2, "no form 'csv'", "json"),
    ("explain zero --format csv", 2, "no CSV", "json"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "error", "hint"), BAD, ids=[row[0] for row in BAD])
def test_bad_input(capsys: pytest.CaptureFixture[str], line: str, code: int, error: str, hint: str) -> None:
    assert main(line.replace("SMALL", SMALL).split(" ")) == code
    printed = capsys.readouterr()
    first, *rest = printed.err.splitlines()
    assert (printed.out == "") == ("--json" not in line)
    assert first.startswith("error: ")
    assert error in first
    assert len(rest) <= 1
    assert all(line.startswith("hint: ") for line in rest)
    assert hint in "".join(rest)


def test_keys_of_a_job_file_are_told_with_file_and_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"model: {SMALL}\nbach_size: 2\n")
    assert main(["estimate", str(file)]) == 2
    err = capsys.readouterr().err
    assert f"{file}, line 2" in err
    assert "batch_size" in err


@pytest.mark.parametrize(
    ("text", "line", "key", "hint"),
    [
        ("xyzzyq: 1", 2, "xyzzyq", "memplan estimate --help-all"),
        ("lora:\n  r: 8\n  xyzzyq: 1", 4, "lora.xyzzyq", "known: r, alpha"),
        ("# xyzzyq\ndeepspeed:\n  xyzzyq: 1", 4, "xyzzyq", "memplan estimate --help-all"),
        ("megatron: {\n  xyzzyq: 1}", 3, "megatron.xyzzyq", "memplan estimate --help-all"),
        ("allocator:\n  xyzzyq: 1", 3, "allocator.xyzzyq", "known: expandable_segments"),
        ("rollout:\n  xyzzyq: 1", 3, "rollout.xyzzyq", "memplan estimate --help-all"),
        ("per-device-train-batch-size: two", 2, "two", "batch_size: 8"),
        ("lora: {r: 8}\nmethod: sympo", 3, "sympo", "simpo"),
    ],
)
def test_what_is_wrong_in_a_job_file_has_its_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, line: int, key: str, hint: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"model: {SMALL}\n{text}\n")
    assert main(["estimate", str(file)]) == 2
    error, hinted = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {file}, line {line}: ")
    assert repr(key) in error
    assert hint in hinted


def test_an_option_s_fault_is_not_said_to_be_the_file_s(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"model: {SMALL}\nmethod: dpo\n")
    assert main(["estimate", str(file), "--method", "sympo"]) == 2
    assert capsys.readouterr().err.startswith("error: method: unknown value 'sympo'")


@pytest.mark.parametrize(
    "name",
    [
        "\x1b[31mred",
        "two\nlines",
        "\x00",
        "\udcff",
        "a" * 5000,
        "\u202eright-to-left",
        "{broken",
        "%s%n",
        "../../etc/passwd",
    ],
)
@pytest.mark.parametrize("where", [["estimate"], ["estimate", SMALL, "--gpu"], ["explain"], ["show"]])
def test_hostile_names(capsys: pytest.CaptureFixture[str], where: list[str], name: str) -> None:
    assert main([*where, name]) in (2, 3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert all(line.isprintable() and len(line) <= LONGEST for line in lines)
    assert "internal error" not in lines[0]


def test_one_line_escapes_and_cuts() -> None:
    assert one_line("a\x1b[0m\tb\n c") == "a\\x1b[0m b c"
    assert len(one_line("x" * 10_000)) == LONGEST
    assert one_line("x", "y " * LONGEST).count("y") == LONGEST  # a hint is typed as it stands


def test_a_bug_is_told_as_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Any, **keys: Any) -> Any:
        raise RuntimeError("wires\ncrossed")

    monkeypatch.setattr(memplan.api, "estimate", broken)
    assert main(["estimate", SMALL, "--method", "sft"]) == 70
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "error: internal error: RuntimeError: wires crossed"
    assert "MEMPLAN_DEBUG=1" in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLAN_DEBUG", "1")
    assert main(["estimate", SMALL, "--method", "sympo"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-2].startswith("error: method")


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(job: Any, **keys: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(memplan.api, "estimate", interrupted)
    assert main(["estimate", SMALL, "--method", "sft"]) == 130
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "estimate SMALL --gpu 9999 --json",
        "estimate SMALL --json --batchsize 2",
        "estimate SMALL --format json --method sympo",
        "estimate SMALL --format=json again",
        "estimate no-such-model --summary",
        "plan SMALL --json",
        "compare --json",
        "explain attntion --json",
        "show gpsu --json",
        "estiamte --json",
        "check --json",
    ],
)
def test_errors_of_commands_that_ask_for_json_are_json(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """One object on standard output, and the two lines as ever beside it."""
    code = main(line.replace("SMALL", SMALL).split(" "))
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert sorted(said) == ["code", "error", "hint"]
    assert (said["code"], code) in ((2, 2), (3, 3))
    assert printed.err == f"error: {said['error']}\n" + (f"hint: {said['hint']}\n" if said["hint"] else "")


def test_a_result_in_json_is_asked_for_before_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--", "--json"]) == 3
    assert capsys.readouterr().out == ""
