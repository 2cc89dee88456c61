"""The command line in one process: every command, every option, every form of output."""

import csv
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from commands import Run, runner_of

from memplan.cli import options
from memplan.cli.app import main
from memplan.cli.commands import COMMANDS, make
from memplan.cli.helps import COMMON, brief, documented_options
from memplan.cli.options import JobOption, job_options
from memplan.report import Report
from memplan.spec.job import Job
from memplan.spec.reading import read_job
from memplan.tables.choices import CHOICES
from memplan.tables.methods import METHODS

SMALL = "smollm2-135m"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line: exit code, standard output, standard error."""
    for name in ("NO_COLOR", "FORCE_COLOR", "MEMPLAN_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    return runner_of(capsys)


def given(*arguments: str) -> dict[str, Any]:
    """The job keys that typer and ``collect`` make of arguments."""
    return options.collect(parsed(*arguments))[1]


def parsed(*arguments: str) -> dict[str, Any]:
    """What typer makes of arguments."""
    words = list(arguments)
    return dict(make("estimate", words).make_context("estimate", words).params)


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: memplan {command}" in out
    assert f"memplan {command} " in out.split("Example")[1]


def test_without_arguments_the_help_names_every_command(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen(run: Run, monkeypatch: pytest.MonkeyPatch, command: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run(command, "--help")[1].splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= columns


def test_the_help_has_the_twenty_common_options_and_full_help_all(run: Run) -> None:
    common = {key for keys in COMMON.values() for key in keys}
    assert len(common) == 20
    short, full = run("estimate", "--help")[1], run("estimate", "--help-all")[1]
    listed = {
        line.split()[0] if line[2:4] == "--" else line.split()[1] for line in short.splitlines() if line[2:3] == "-"
    }
    written = {option.parameter: option.written[0].split("/")[0] for option in job_options()}
    assert all(title + ":" in short for title in COMMON)
    assert {key for key, name in written.items() if name in listed} == common - {"set_", "with_"}
    assert {"--set", "--with", "--explain", "--help-all"} <= listed
    assert all(f"{name} " in full for name in listed)


@pytest.mark.parametrize("title", COMMON)
def test_the_examples_of_the_help_run(run: Run, title: str) -> None:
    assert run("estimate", SMALL, *title.partition("such as ")[2].split())[::2] == (0, "")


@pytest.mark.parametrize(
    ("key", "room", "text"),
    [
        ("", 3, "Loss"),
        ("", 22, "Loss"),
        ("", 23, "Loss: how states become"),
        ("", 34, "Loss: how states become; and where"),
        ("attention", 22, "Loss: flash, sdpa, …"),
        ("attention", 40, "Loss: flash, sdpa, eager"),
        ("attention", 10, "Loss"),
    ],
)
def test_brief_text_is_what_the_line_has_room_for(key: str, room: int, text: str) -> None:
    assert brief("Loss: how states become; and where. [one of a, b]", key, room) == text


@pytest.fixture(scope="module")
def helped() -> str:
    """The full help of estimate, printed once."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["estimate", "--help-all"]) == 0
    return out.getvalue()


@pytest.mark.parametrize("option", documented_options(), ids=lambda option: option.parameter)
def test_full_help_shows_every_option_that_is_modelled(helped: str, option: JobOption) -> None:
    out = helped
    shown = option.written[0].split("/")[0]
    assert (f"{shown} " in out or f"{shown}," in out or f"{shown}\n" in out) is not option.hidden


def test_full_help_gives_choices_defaults_and_other_names(run: Run) -> None:
    words = " ".join(run("estimate", "--help-all")[1].split())
    assert "--lora-b-bias, --no-lora-b-bias A bias in each lora_B." in words
    assert "()" not in words
    assert f"one of {', '.join(METHODS)}; default simpo" in words
    assert "Also --max-length" in words
    assert "-b, --batch-size N" in words


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [key for key in Job.model_fields if key not in options.MAPPINGS])
def test_every_scalar_key_of_a_job_is_an_option(key: str) -> None:
    name = "--" + key.replace("_", "-")
    is_flag = any(option.parameter == key and not option.metavar for option in job_options())
    named: dict[str, Any] = {"lengths": {"file": "x"}}
    value = {"gradient_checkpointing": "full"}.get(key, True) if is_flag else named.get(key, "x")
    assert given(name, *([] if is_flag else ["x"])) in ({key: value}, {})
    if key != "model":
        assert given(name, *([] if is_flag else ["x"])) == {key: value}


def another(owner: Any, key: str) -> Any:
    """A value of a key that is not its default, as JSON has it."""
    field = owner.model_fields[key]
    kinds, words = str(field.annotation), CHOICES.get(key, get_args(field.annotation))
    own = VALUES.get(key)
    if own is not None:
        return own
    if key in CHOICES or get_origin(field.annotation) is Literal:
        return next(word for word in reversed(words) if word != field.default)
    if "bool" in kinds:
        return field.default is not True
    return (2 if field.default != 2 else 3) if "int" in kinds else 0.5 if "float" in kinds else "x"


VALUES: dict[str, Any] = {
    "model": SMALL,
    "trainer_version": "1.16",
    "gradient_checkpointing": "every:2",
    "freeze": ["embed_tokens", "lm_head"],
    "offload": ["activations"],
    "extra_models": [{"role": "reward", "model": SMALL}],
    "optimizer_args": {"rank": 8},
    "deepspeed": {"reduce_bucket_size": 1000},
    "fsdp": {"cpu_offload": True},
    "ddp": {"bucket_cap_mb": 10},
    "megatron": {"recompute_modules": ["mlp"]},
    "allocator": {"expandable_segments": True},
    "rollout": {"group_size": 4},
    "sync": {"bucket_bytes": 1024},
    "trainer_offload": ["optimizer"],
    "images": {"tokens": 10},
    "lora": {"r": 4},
    "evaluation": {"keeps_logits": True},
    "own_loss": {"logits": 24},
    "phases": ["load", "save"],
    "lengths": {"file": "lengths.txt"},
}


@pytest.mark.parametrize("key", Job.model_fields)
def test_every_key_of_a_job_can_be_set(key: str) -> None:
    value = another(Job, key)
    wanted = read_job({key: value}).job
    assert getattr(wanted, key) != Job.model_fields[key].default
    written = value if isinstance(value, str) else json.dumps(value)
    model, keys = options.collect(parsed("--set", f"{key}={written}"))
    assert read_job(keys | ({} if model is None else {"model": model})).job == wanted
    if isinstance(value, dict):
        ((inner, item),) = value.items()
        assert read_job(given("--set", f"{key}.{inner}={json.dumps(item)}")).job == wanted


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["-b", "4"], {"batch_size": "4"}),
        (["-b4"], {"batch_size": "4"}),
        (["--max-length", "512"], {"sequence_length": "512"}),
        (["--max_length=512"], {"sequence_length": "512"}),
        (["--total_params", "8B"], {"total_params": "8B"}),
        (["--per_device_train_batch_size", "2"], {"batch_size": "2"}),
        (["--gpus", "4", "--tp", "2"], {"num_gpus": "4", "tensor_parallel": "2"}),
        (["--zero-stage", "3"], {"zero_stage": "3"}),
        (["--gradient-checkpointing"], {"gradient_checkpointing": "full"}),
        (["--no-gradient-checkpointing"], {"gradient_checkpointing": "none"}),
        (["--gradient_checkpointing=true"], {"gradient_checkpointing": "full"}),
        (["--gradient-checkpointing", "false"], {"gradient_checkpointing": "none"}),
        (["--gradient-checkpointing", "full"], {"recompute": "full"}),
        (["--recompute", "none"], {"recompute": "none"}),
        (["--padded", "true", "--no-autocast"], {"padded": True, "autocast": False}),
        (["--padded=off"], {"padded": False}),
        (["--lora"], {"use_lora": True}),
        (["--use_lora", "true"], {"use_lora": True}),
        (["--no-lora"], {"use_lora": False}),
        (["--lora-r", "8", "--lora_dropout=0.1"], {"lora": {"r": "8", "dropout": "0.1"}}),
        (["--lora-rank", "8"], {"lora": {"r": "8"}}),
        (["--lora-b-bias"], {"lora": {"lora_bias": True}}),
        (["--no-lora-lora-bias"], {"lora": {"lora_bias": False}}),
        (["--lora-targets", "q_proj,v_proj"], {"lora": {"targets": "q_proj,v_proj"}}),
        (["--lora-targets", "all-linear"], {"lora": {"targets": "all-linear"}}),
        (["--load-in-4bit"], {"load_in_4bit": True}),
        (["--set", "allocator.expandable_segments=true"], {"allocator": {"expandable_segments": True}}),
        (["--set", "lora.r=4", "--lora-dropout", "0.1"], {"lora": {"r": 4, "dropout": "0.1"}}),
        (["--set", "deepspeed.reduce_bucket_size=5e8", "--set", "deepspeed.overlap_comm=auto"],
         {"deepspeed": {"reduce_bucket_size": 5e8, "overlap_comm": "auto"}}),
        (["--set", "max-length=512"], {"sequence_length": 512}),
        (["--set", "revision=1234567"], {"revision": "1234567"}),
        (["--set", "total_params=8"], {"total_params": 8}),
        (["--set", 'lora.targets=["q_proj"]'], {"lora": {"targets": ["q_proj"]}}),
    ],
    ids=" ".join,
)  # fmt: skip
def test_spellings(arguments: list[str], keys: dict[str, Any]) -> None:
    assert given(*arguments) == keys


def test_options_after_two_dashes_are_words(run: Run) -> None:
    code, _, err = run("estimate", "--", "--padded")
    assert code == 3
    assert "no model or job named '--padded'" in err


def test_options_win_over_a_job_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"model: {SMALL}\nbatch_size: 4\nsequence_length: 512\nlora: {{r: 4}}\n")
    report = json.loads(run("estimate", str(file), "-b", "1", "--no-lora", "--json")[1])
    assert report["job"]["batch_size"] == 1
    assert report["job"]["sequence_length"] == 512
    assert report["job"].get("lora") is None
    assert (report["sources"]["batch_size"], report["sources"]["sequence_length"]) == ("option", "file")


def test_the_model_may_be_an_option(run: Run) -> None:
    assert run("estimate", "--model", SMALL, "--json")[1] == run("estimate", SMALL, "--json")[1]


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_json_is_the_report(run: Run) -> None:
    from memplan.api import estimate

    code, out, err = run("estimate", SMALL, "--method", "dpo", "--gpu", "rtx-4090", "--json")
    assert (code, err) == (0, "")
    report: Report = estimate({"model": SMALL, "method": "dpo", "gpu": "rtx-4090"})
    assert json.loads(out) == json.loads(json.dumps(report.to_dict()))


@pytest.mark.slow
def test_yaml_and_csv_hold_the_same(run: Run) -> None:
    report = json.loads(run("estimate", SMALL, "--json")[1])
    assert yaml.safe_load(run("estimate", SMALL, "--format", "yaml")[1]) == report
    rows = list(csv.DictReader(io.StringIO(run("estimate", SMALL, "--format", "csv")[1])))
    assert [row["name"] for row in rows] == [row["name"] for row in report["per_gpu"]["ledger"]]
    assert [int(row["bytes"]) for row in rows] == [row["bytes"] for row in report["per_gpu"]["ledger"]]


@pytest.mark.slow
def test_markdown_has_tables_of_equal_width(run: Run) -> None:
    out = run("estimate", SMALL, "--gpu", "t4", "--format", "markdown")[1]
    table = [line for line in out.splitlines() if line.startswith(("| category", "| total"))]
    assert len(table) == 2
    assert {line.count("|") for line in table} == {4}
    assert "█" not in out


@pytest.mark.parametrize("form", ["json", "yaml", "csv", "markdown", "table"])
@pytest.mark.parametrize(
    "command", [["compare", SMALL], ["show", "gpus"], ["show", "models"], ["explain", "logits", SMALL]]
)
def test_every_command_has_every_form(run: Run, command: list[str], form: str) -> None:
    code, out, _ = run(*command, "--format", form)
    assert code == 0
    assert out.strip()
    if form == "json":
        json.loads(out)


@pytest.mark.slow
def test_compare_ranks_and_measures_against_the_first(run: Run) -> None:
    found = json.loads(run("compare", SMALL, "--gpu", "t4", "--json")[1])
    peaks = [row["report"]["per_gpu"]["allocated_bytes"] for row in found["rows"]]
    assert peaks == sorted(peaks)
    baseline = next(row for row in found["rows"] if row["name"] == found["baseline"])
    assert baseline["saving"] == 0
    assert found["rows"][0]["report"]["job"]["num_gpus"] in (1, 2)


def test_own_strategies(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("strategies:\n  - {name: one, set: {batch_size: 1}}\n  - {name: two, set: {batch_size: 2}}\n")
    found = json.loads(run("compare", SMALL, "--strategies", str(file), "--json")[1])
    assert {row["name"] for row in found["rows"]} == {"one", "two"}


def test_rule_of_thumb_gives_the_known_figures(run: Run) -> None:
    """8 B, ZeRO-2 with checkpointing on 4 GPUs: 39.9 GiB, against 114.8 GiB plain."""
    common = ["estimate", "--total-params", "8.0", "--num-gpus", "4", "--rule-of-thumb"]
    assert "39.88 GiB" in run(*common, "--zero-stage", "2", "--gradient-checkpointing")[1]
    assert "114.81 GiB" in run(*common)[1]
    rule = json.loads(run(*common, "--json")[1])["rule_of_thumb"]
    assert rule["total_bytes"] == rule["subtotal_bytes"] + rule["margin_bytes"]
    assert rule["subtotal_bytes"] == sum(term["bytes"] for term in rule["terms"])
    assert all(term["reason"] for term in rule["terms"] if term["bytes"] != term["engine_largest_bytes"])


def test_explain_with_a_job_has_its_rows(run: Run) -> None:
    found = json.loads(run("explain", "optimizer-states", SMALL, "--method", "simpo", "--json")[1])
    assert found["key"] == "optimizer-states"
    assert {row["category"] for row in found["ledger"]} == {"optimizer_states"}
    assert found["peak_bytes"] == sum(row["bytes"] for row in found["ledger"])
    assert "AdamW states" in run("explain", "optimizer-states", SMALL)[1]
    assert "AdamW states" not in run("explain", "optimizer-states")[1]


def test_explain_of_an_estimate_prints_every_row_of_the_ledger(run: Run) -> None:
    out = run("estimate", SMALL, "--explain")[1]
    report = json.loads(run("estimate", SMALL, "--json")[1])
    flat = " ".join(out.split())
    for row in report["per_gpu"]["ledger"]:
        assert row["name"] in flat
        assert " ".join(row["formula"].split()) in flat
        assert row["source"] in flat
    alive = out.index("Allocated at the peak")
    assert alive < out.index("Allocated at other instants")


@pytest.mark.parametrize("what", ["gpus", "models", "jobs", "methods", "optimizers", "trainers", "precisions"])
def test_show_lists_what_the_tables_hold(run: Run, what: str) -> None:
    rows = json.loads(run("show", what, "--json")[1])
    out = run("show", what)[1]
    assert len(rows) > 1
    assert all(row["name"] in out for row in rows)
    assert run("show", what[:-1])[1] == out


@pytest.mark.slow
def test_fail_over(run: Run) -> None:
    assert run("estimate", "llama-3.1-8b", "--gpu", "t4", "--fail-over")[0] == 1
    assert run("estimate", "llama-3.1-8b", "--gpu", "t4")[0] == 0
    assert run("estimate", SMALL, "--gpu", "h100-80gb", "--fail-over", "--gradient-checkpointing")[0] == 0


def test_warnings_are_not_part_of_the_result(run: Run) -> None:
    code, out, err = run("estimate", SMALL, "--num-gpus", "2", "--sharding", "none", "--json")
    assert code == 0
    assert json.loads(out)["warnings"]
    assert err.startswith("warning: ")


# -- names that would steer a terminal ---------------------------------------------------------------------------------

HOSTILE = "m\x1b[31mred\x9b"
"""An escape sequence, and the one character that begins one too."""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of that name with a config, in the working directory; a job file and strategies that carry it."""
    monkeypatch.chdir(tmp_path)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    Path(HOSTILE).mkdir()
    config = {"model_type": "llama", **shape, "intermediate_size": 128, "vocab_size": 256}
    Path(HOSTILE, "config.json").write_text(json.dumps(config))
    Path(f"{HOSTILE}.yaml").write_text(yaml.safe_dump({"model": HOSTILE, "method": "dpo"}))
    strategies: list[dict[str, Any]] = [{"name": name, "title": name + HOSTILE, "set": {}} for name in ("a", "b")]
    Path("strategies.yaml").write_text(yaml.safe_dump({"strategies": strategies}))
    return HOSTILE


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv", "markdown"])
@pytest.mark.parametrize(
    "line",
    [
        "estimate NAME --gpu h100-80gb --explain --ranks",
        "estimate NAME.yaml --explain",
        "compare NAME NAME.yaml",
        "compare NAME --strategies strategies.yaml",
        "compare NAME --vary method=dpo,sft",
    ],
)
def test_no_name_steers_a_terminal(run: Run, hostile: str, line: str, form: str) -> None:
    code, out, err = run(*(word.replace("NAME", hostile) for word in line.split()), "--format", form)
    assert code == 0, err
    assert all(char.isprintable() for char in (out + err).replace("\n", ""))
    if form == "json":
        assert json.loads(out)
    elif form in ("table", "markdown"):
        assert "\\x1b[31mred\\x9b" in out.replace("\\\\", "\\")


@pytest.mark.parametrize("form", ["text", "github", "json"])
def test_no_file_name_steers_a_terminal_through_check(run: Run, hostile: str, form: str) -> None:
    code, out, err = run("check", f"{hostile}.yaml", f"no{hostile}.yaml", "--gpu", "h100-80gb", "--format", form)
    assert code == 2, err
    assert all(char.isprintable() for char in (out + err).replace("\n", ""))
    assert "x1b[31mred" in out or "u001b[31mred" in out


# -- files -------------------------------------------------------------------------------------------------------------


def test_output_is_written_and_never_overwritten_without_force(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    code, out, _ = run("estimate", SMALL, "--output", str(file))
    assert (code, out) == (0, "")
    before = file.read_text()
    assert json.loads(before)["schema_version"] == 1
    code, _, err = run("estimate", SMALL, "-b", "2", "-o", str(file))
    assert code == 2
    assert "exists already" in err
    assert "--force" in err
    assert file.read_text() == before
    assert run("estimate", SMALL, "-b", "2", "-o", str(file), "--force")[0] == 0
    assert json.loads(file.read_text())["job"]["batch_size"] == 2


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.json", "{"), ("a.yaml", "schema_version"), ("a.csv", "name,"), ("a.md", "## "), ("a.txt", SMALL)],
)
def test_the_ending_decides_the_form(run: Run, tmp_path: Path, name: str, start: str) -> None:
    assert run("estimate", SMALL, "-o", str(tmp_path / name))[0] == 0
    assert (tmp_path / name).read_text().startswith(start)


@pytest.mark.parametrize("place", ["missing/report.json", "."])
def test_a_place_that_cannot_be_written(run: Run, tmp_path: Path, place: str) -> None:
    code, out, err = run("estimate", SMALL, "-o", str(tmp_path / place))
    assert (code, out) == (2, "")
    assert err.startswith("error: --output ")
    assert "hint: " in err
