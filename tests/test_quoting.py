"""Proves that no name gets out of its quotes: what every writer emits is run by bash and read by YAML, JSON and TOML's
own readers, which find the name whole and nothing else changed.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from memplan.errors import InvalidJob
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.files.quoting import comment, shell_word, toml_value, yaml_lines, yaml_value
from memplan.frameworks.files.yaml_edit import yaml_with
from memplan.frameworks.registry import find_framework, frameworks
from memplan.presets import model_preset
from memplan.spec.reading import read_job

HOSTILE = [
    "m$(touch X)",
    "`touch X`",
    '"$(touch X)"',
    '"; touch X; "',
    "';touch X;'",
    "a\ntouch X",
    "a\nfp16: true",
    "a\n# b",
    "a: b",
    "a #b",
    "-x",
    "--config=x",
    "!tag",
    "!!python",
    "*alias",
    "a, b]",
    "{a}",
    "a\u2028fp16: true",
    "a\x85b",
    "a\rb",
    "\x1b[31mred",
    "%TAG",
    "1:30",
    "on",
    " ",
    "~",
    "naïve 模型",
]
JOBS: dict[str, dict[str, Any]] = {
    "trl": {"method": "dpo", "lora": {}},
    "transformers": {"method": "sft"},
    "accelerate": {"method": "sft"},
    "deepspeed": {"method": "sft", "zero_stage": 2, "num_gpus": 2},
    "axolotl": {"method": "dpo", "lora": {}},
    "llamafactory": {"method": "dpo", "lora": {}},
    "litgpt": {"method": "sft"},
    "openrlhf": {"method": "dpo", "zero_stage": 2, "num_gpus": 2},
    "verl": {"method": "sft", "sharding": "fsdp2", "num_gpus": 2},
    "megatron": {"method": "sft", "num_gpus": 2, "trainer": "megatron"},
    "torchtitan": {"method": "sft"},
}
WRITERS = [name for name, row in frameworks().items() if row.write]
NAMELESS = ("torchtitan",)
"""Writers that take models of their own list alone."""
SCRIPTS_ALONE = ("openrlhf", "megatron")
"""Writers of a script alone, whose readers take no line ends within a word."""
COMMANDS = ("litgpt", "torchrun", "accelerate", "trl", "axolotl", "python3", "llamafactory-cli")
STUBS = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\"; }}\n" for name in COMMANDS)
READERS: dict[str, Any] = {".yaml": yaml.safe_load, ".json": json.loads}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model under every name."""
    at = tmp_path_factory.mktemp("names")
    config = json.dumps(model_preset("smollm2-135m")["config"])
    for name in ("plain", *HOSTILE):
        (at / name).mkdir()
        (at / name / "config.json").write_text(config)
    return at


def arguments_of(script: str, folder: Path) -> list[str]:
    """What the script's commands are given, by bash, with each of them in a function's place."""
    bash = shutil.which("bash")
    assert bash
    (folder / "run.sh").write_text(script, encoding="utf-8", newline="")
    subprocess.run([bash, "-n", "run.sh"], cwd=folder, check=True)
    ran = subprocess.run([bash, "-c", f"{STUBS}. ./run.sh"], cwd=folder, check=True, capture_output=True)
    assert not (folder / "X").exists()
    return ran.stdout.decode().split("\0")


def read_by_others(name: str, writer: str, folder: Path) -> dict[str, Any]:
    """Each emitted file as its own reader has it."""
    texts = emit(read_job({"model": name, **JOBS[writer]}), find_framework(writer)).texts
    assert not any(file.endswith(".py") for file in texts)  # no writer emits Python
    return {
        file: arguments_of(text, folder) if file.endswith(".sh") else READERS[Path(file).suffix](text)
        for file, text in texts.items()
    }


def renamed(value: Any, old: str, new: str) -> Any:
    """The same with one name in place of another."""
    if isinstance(value, dict):
        return {key: renamed(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, old, new) for each in value]
    return value.replace(old, new) if isinstance(value, str) else value


def test_every_writer_has_its_job() -> None:
    assert set(JOBS) == set(WRITERS)


@pytest.mark.parametrize("writer", [name for name in WRITERS if name not in NAMELESS])
@pytest.mark.parametrize("names", [HOSTILE[::6], pytest.param(HOSTILE, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_hostile_name_stays_a_name(
    writer: str, names: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    wanted = read_by_others("plain", writer, folder)
    for name in names:
        safe = f"./{name}" if name.startswith("-") else name
        may_be_refused = not name.strip() or (writer in SCRIPTS_ALONE and len(name.splitlines()) > 1)
        try:
            found = read_by_others(name, writer, folder)
        except InvalidJob:  # memplan reads what it wrote: what it does not find whole there is not handed out
            found = {}
        assert found == renamed(wanted, "plain", safe) or (may_be_refused and not found), name


def test_torchtitan_takes_no_name_but_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidJob, match="is no flavor"):
        emit(read_job({"model": HOSTILE[0], **JOBS["torchtitan"]}), find_framework("torchtitan"))


@pytest.mark.parametrize("text", [*HOSTILE, "a\x7fb", "\t", "'\"", "x" * 5000, "", "=", "0o17", "2020-01-01", "---"])
def test_one_function_for_each_language(text: str, folder: Path) -> None:
    said = yaml_value(text), yaml_value(text, inside=True)
    assert not any(len(each.splitlines()) > 1 for each in said)
    assert yaml.safe_load(f"k: {said[0]}\nl: 1") == {"k": text, "l": 1}
    assert yaml.safe_load(f"[{said[1]}, 1]") == [text, 1]
    assert yaml.safe_load(yaml_lines("k", {text: [text]})) == {"k": {text: [text]}}
    assert arguments_of(f"trl {shell_word(text)} end", folder) == ["trl", text, "end", ""]
    tomllib = pytest.importorskip("tomllib")
    assert tomllib.loads(f"k = {toml_value(text)}") == {"k": text}
    assert len("\n".join(comment((text,))).splitlines()) == 1


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a: 1 # one\nb: 2\n", ("a",)),
        ("b: 2\n", ("a",)),
        ("{a: 1, b: 2}\n", ("a",)),
        ("a:\n    - 1\nb: 2\n", ("a",)),
        ("b: 2\na:\n  c: 1\n", ("a", "c")),
    ],
)
def test_a_name_put_onto_a_file_changes_nothing_else(name: str, text: str, path: tuple[str, ...]) -> None:
    inner: Any = name
    for key in reversed(path[1:]):
        inner = {key: inner}
    assert yaml.safe_load(yaml_with(text, path, name, "file")) == {"a": inner, "b": 2}
    assert yaml.safe_load(yaml_with("b: 2\n", (name,), 1, "file")) == {name: 1, "b": 2}


@pytest.mark.parametrize("text", ["a\0b", "caf\udce9"])
def test_what_no_command_line_holds_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match="cannot stand in a shell script"):
        shell_word(text)
