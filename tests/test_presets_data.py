"""Preset jobs are jobs, preset strategies are strategies, and a user's strategy file is read, or refused by line."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from memplan.errors import InvalidJob, UsageError
from memplan.gpus import gpu_names
from memplan.presets import presets_dir
from memplan.spec.job import Job
from memplan.spec.reading import read_job
from memplan.strategies import SCALABLE, StrategyFile, load_strategies
from memplan.yaml_lines import MAX_BYTES

JOBS = sorted((presets_dir() / "jobs").glob("*.yaml"))
STRATEGIES = load_strategies()


def job_of(path: Path) -> dict[str, Any]:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    return values


def job(name: str) -> dict[str, Any]:
    return job_of(presets_dir() / "jobs" / f"{name}.yaml")


def test_there_are_jobs_of_many_kinds() -> None:
    assert len(JOBS) >= 9
    assert {job_of(path)["method"] for path in JOBS} >= {"simpo", "reward", "dpo", "sft", "orpo", "kto"}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_preset_job_is_a_job(path: Path) -> None:
    values = job_of(path)
    read = read_job({}, values)
    assert set(values) == set(read.sources) | set(read.ignored), "keys are written by their own names, not by aliases"
    assert read.job.gpu in gpu_names()
    assert {"model", "method", "trainer", "batch_size", "sequence_length", "num_gpus"} <= set(values)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_preset_job_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("# ")
    assert len(header) >= 2
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_reward_jobs_on_64_gb_cards() -> None:
    full, lora = job("reward-mistral-7b-full-8x64gb"), job("reward-mistral-7b-lora-8x64gb")
    for values in (full, lora):
        assert (values["model"], values["method"], values["num_gpus"]) == ("mistral-7b-v0.1", "reward", 8)
        assert (values["sharding"], values["precision"], values["gpu"]) == ("ddp", "bf16", "ascend-910b-64gb")
        assert values["allocator"] == {"expandable_segments": True}
    shape = ("batch_size", "sequence_length", "gradient_accumulation_steps")
    assert [full[key] for key in shape] == [1, 256, 16]
    assert [lora[key] for key in shape] == [4, 512, 2]
    assert lora["lora"] == {"r": 16, "alpha": 32, "dropout": 0.1}
    assert "lora" not in full


def test_the_safe_dpo_job_has_four_models() -> None:
    values = job("safe-mm-dpo-mistral-7b-8x64gb")
    assert [(extra["role"], extra["model"]) for extra in values["extra_models"]] == [("reward", "mistral-7b-v0.1")] * 2
    assert (values["model"], values["reference"]) == ("mistral-7b-v0.1", "resident")
    assert (values["batch_size"], values["sequence_length"]) == (1, 512)
    assert 4 <= values["gradient_accumulation_steps"] <= 8


def test_the_other_jobs_of_the_guide() -> None:
    simpo, one_card, nodes = job("simpo-8b-8xh100"), job("dpo-lora-24gb"), job("dpo-70b-4nodes")
    assert (simpo["model"], simpo["sharding"], simpo["num_gpus"]) == ("llama-3.1-8b", "zero3", 8)
    assert (one_card["num_gpus"], one_card["gpu"]) == (1, "rtx-4090-24gb")
    assert one_card["lora"]["r"] > 0
    assert (nodes["num_gpus"], nodes["gpus_per_node"], nodes["sharding"]) == (32, 8, "zero3")


def test_the_seven_strategies_in_their_order() -> None:
    shown = [(row.set["sharding"], row.set["gradient_checkpointing"], dict(row.scale)) for row in STRATEGIES.strategies]
    assert shown == [
        ("zero0", "none", {}),
        ("zero0", "full", {}),
        ("zero1", "full", {}),
        ("zero2", "full", {}),
        ("zero3", "full", {}),
        ("zero2", "full", {"sequence_length": 0.5}),
        ("zero2", "full", {"num_gpus": 2}),
    ]
    assert not any("recommended" in row.title for row in STRATEGIES.strategies), "which one is, the figures say"


def test_strategies_set_values_that_a_job_takes() -> None:
    assert load_strategies(job_keys=Job.model_fields) == STRATEGIES
    for settings in [row.set for row in (*STRATEGIES.strategies, *STRATEGIES.more)]:
        assert set(read_job(settings).sources) == set(settings)
    assert set(SCALABLE) <= set(Job.model_fields)


def test_a_strategy_says_what_it_changes() -> None:
    base = {"sequence_length": 2049, "num_gpus": 4}
    half, twice = (row.changes(base) for row in STRATEGIES.strategies[5:])
    assert half == {"sharding": "zero2", "gradient_checkpointing": "full", "sequence_length": 1024}
    assert twice["num_gpus"] == 8
    assert STRATEGIES.strategies[5].changes({"sequence_length": 1})["sequence_length"] == 1


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_users_own_file(tmp_path: Path) -> None:
    text = "strategies:\n- name: a\n- {name: b, set: {lora: {r: 8}}, scale: {batch_size: 2}}\n"
    own = load_strategies(written(tmp_path, text), Job.model_fields)
    assert isinstance(own, StrategyFile)
    assert [row.name for row in own.strategies] == ["a", "b"]
    assert own.strategies[0].title == "a"
    assert own.strategies[1].changes({"batch_size": 3}) == {"lora": {"r": 8}, "batch_size": 6}
    assert (own.more, own.cards) == ((), ())
    with pytest.raises(UsageError, match="no strategy 'lora' to add"):
        own.chosen(["lora"])


def test_rows_are_added_by_name_or_all_together() -> None:
    names = {row.name for row in STRATEGIES.more}
    assert STRATEGIES.chosen(()) == STRATEGIES.strategies
    assert [row.name for row in STRATEGIES.chosen(["qlora"])[7:]] == ["qlora"]
    assert {row.name for row in STRATEGIES.chosen(None)[7:]} == names
    with pytest.raises(UsageError) as caught:
        STRATEGIES.chosen(["qlorra"])
    assert caught.value.hint == "did you mean qlora?"


ROW = "strategies:\n- name: a\n"
REFUSED = {
    "empty": ("", "the file is empty"),
    "no mapping": ("- a\n", "line 1: the file is not a set of"),
    "no strategies": ("cards: []\n", "no strategies"),
    "empty list": ("strategies: []\n", "no strategies"),
    "not a list": ("strategies: 3\n", "line 1: strategies: not a list"),
    "null list": ("strategies:\n", "line 1: strategies: not a list"),
    "unknown file key": (ROW + "strategy: []\n", "line 3: the file: unknown key 'strategy'"),
    "unknown row key": (ROW + "  sets: {}\n", "line 3: strategies 1: unknown key 'sets'"),
    "no name": ("strategies:\n- title: a\n", "line 2: strategies 1 has no 'name'"),
    "nothing in a row": ("strategies:\n- {}\n", "strategies 1 has no 'name'"),
    "name is no text": ("strategies:\n- name: 3\n", "line 2: name: not text: 3"),
    "name twice": (ROW + "- name: a\n", "line 3: name: 'a' is there twice"),
    "key twice": (ROW + "  name: b\n", "line 3: key 'name' is there twice"),
    "row is text": ("strategies:\n- a\n", "line 2: strategies 1 is not a set of"),
    "set is a list": (ROW + "  set: [1]\n", "line 3: set is not a set of"),
    "unknown job key": (ROW + "  set: {zero: 1}\n", "line 3: zero: no such job key: 'zero'"),
    "key is a number": (ROW + "  set: {1: 2}\n", "line 3: key 1 is not text"),
    "scale of text": (ROW + "  scale:\n    model: 2\n", "line 4: model: cannot be scaled"),
    "factor is text": (ROW + "  scale: {num_gpus: two}\n", "line 3: num_gpus: not a factor: 'two'"),
    "factor is true": (ROW + "  scale: {num_gpus: true}\n", "not a factor: True"),
    "factor is zero": (ROW + "  scale: {num_gpus: 0}\n", "not a factor: 0"),
    "factor is negative": (ROW + "  scale: {num_gpus: -1}\n", "not a factor: -1"),
    "factor is not a number": (ROW + "  scale: {num_gpus: .nan}\n", "not a factor: nan"),
    "factor is infinite": (ROW + "  scale: {num_gpus: .inf}\n", "not a factor: inf"),
    "no such card": (ROW + "cards:\n- {name: a101}\n", "line 4: name: gpu: no such card: 'a101'"),
    "in both lists": (ROW + "more:\n- name: a\n", "'a' is under both"),
    "broken YAML": ("strategies:\n- {name: a\n  title: b}\n", "line 3: not YAML"),
    "tab": ("strategies:\n\t- name: a\n", "line 2: not YAML"),
    "two documents": (ROW + "---\nb: 1\n", "not YAML"),
    "control character": ("strategies: \x07\n", "not YAML"),
    "language tag": (ROW + "  set: {lora: !!python/object/apply:os.system [ls]}\n", "line 3: a value of kind"),
    "own tag": (ROW + "  set: !mine {}\n", "line 3: a value of kind '!mine'"),
    "date": (ROW + "  set: {model: 2024-01-01}\n", "line 3: a value of kind 'timestamp'"),
    "merge of a word": (ROW + "  set: {<<: model}\n", "line 3: << merges no mapping"),
    "alias": ("strategies:\n- &x {name: a}\n- *x\n", "line 2: name: 'a' is there twice"),
    "alias to nothing": ("strategies:\n- *x\n", "line 2: not YAML: found undefined alias 'x'"),
    "alias to itself": ("strategies: &x [*x]\n", "line 1: an alias within what it names"),
    "deep": ("strategies: " + "[" * 5000 + "]" * 5000, "line 1: nested deeper than 20 levels"),
    "wrong integer": (ROW + "  set: {model: 0x_}\n", "line 3: '0x_' is no int"),
    "nested key twice": (ROW + "  set: {lora: {r: 1, r: 2}}\n", "line 3: key 'r' is there twice"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_not_understood_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidJob) as caught:
        load_strategies(path, Job.model_fields)
    assert caught.value.message.startswith(str(path))
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(InvalidJob, match="line 5: aliases stand for more than"):
        load_strategies(written(tmp_path, "\n".join(lines)))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="larger than 256 KiB"):
        load_strategies(written(tmp_path, ROW + "#" * MAX_BYTES))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="does not exist"):
        load_strategies(tmp_path / "none.yaml")
    with pytest.raises(InvalidJob, match="is no file"):
        load_strategies(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidJob, match="not UTF-8"):
        load_strategies(tmp_path / "binary.yaml")


def test_a_job_key_mistyped_brings_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob) as caught:
        load_strategies(written(tmp_path, ROW + "  set: {gradient_checkpoint: full}\n"), Job.model_fields)
    assert "gradient_checkpointing" in caught.value.hint


def test_the_catalogue_needs_no_yaml() -> None:
    import subprocess

    code = "import memplan.gpus, memplan.strategies, memplan.rule_of_thumb, sys; memplan.gpus.find_gpu('h100')"
    code += "; print([name for name in ('yaml', 'rich', 'memplan.local_gpu') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
