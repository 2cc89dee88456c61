"""For one who names neither method nor trainer: three ways to train, each answer the one that its own command gives."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.api import estimate
from memplan.asked import asks_for_ways, with_usual_trainer
from memplan.cli.app import main
from memplan.errors import UsageError
from memplan.frameworks.checks.folders import lies_here
from memplan.render.text import screen_text
from memplan.render.ways_view import typed, ways_blocks
from memplan.spec.reading import read_job, with_changes
from memplan.ways import UNIT, Ways, ways

Run = Callable[..., tuple[int, str, str]]
TRL = "model_name_or_path: Qwen/Qwen3-0.6B\noutput_dir: out\nper_device_train_batch_size: 2\nmax_length: 512\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """A command on a machine without a card: exit code, output, what is said."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def found(**keys: object) -> Ways:
    """The ways of a job."""
    return ways(read_job({"model": "llama-3.2-1b", **keys}))


@pytest.mark.parametrize("gpu", ["rtx-3060-12gb", "rtx-2080-ti-11gb", "rtx-4060-laptop-8gb"])
@pytest.mark.slow
def test_what_is_said_to_fit_fits_as_its_own_command_says(gpu: str) -> None:
    """At the length that was asked for, and at the longest that is named; twice as long a one does not fit."""
    asked = found(gpu=gpu)
    assert [way.name for way in asked.rows] == ["full", "lora", "qlora"]
    for way in asked.rows:
        given = with_changes(asked.given, way.changes)
        verdict = estimate(given).verdict
        assert verdict is not None
        assert verdict.fits == way.fits
        if way.longest_sequence is None:
            assert way.fits != "yes"
            continue
        longest = estimate(with_changes(given, {"sequence_length": way.longest_sequence})).verdict
        assert longest is not None
        assert longest.fits == "yes"
        beyond = estimate(with_changes(given, {"sequence_length": 2 * way.longest_sequence})).verdict
        assert beyond is not None
        assert beyond.fits != "yes"
        assert way.longest_sequence % UNIT == 0


@pytest.mark.slow
def test_less_is_kept_from_way_to_way() -> None:
    asked = found(gpu="rtx-3090-24gb")
    needs = [way.device.expected for way in asked.rows if way.device]
    assert needs == sorted(needs, reverse=True)
    lengths = [way.longest_sequence or 0 for way in asked.rows]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize(("gpu", "half"), [("t4", "fp16"), ("v100-32gb", "fp16"), ("3060", "bf16"), ("24GB", "bf16")])
@pytest.mark.slow
def test_half_precision_is_what_the_card_multiplies_in(gpu: str, half: str) -> None:
    asked = found(gpu=gpu)
    for way in asked.rows:
        report = estimate(with_changes(asked.given, way.changes))
        assert report.job["dtype"] == half
        assert not any("no bf16" in text for text in report.warnings)


@pytest.mark.slow
def test_what_was_said_is_kept(run: Run) -> None:
    asked = found(gpu="rtx-3090-24gb", lora={"r": 64}, sequence_length=1024, batch_size=2)
    assert [way.name for way in asked.rows] == ["lora", "qlora"], "who says LoRA does not mean all weights"
    report = estimate(with_changes(asked.given, asked.rows[0].changes))
    assert report.job["lora"]["r"] == 64
    assert asked.sequence_length == 1024
    code, out, _ = run("estimate", "llama-3.2-1b", "--gpu", "3090", "--lora-r", "64", "-b", "2")
    assert code == 0
    text = " ".join(out.split())
    assert "--lora-r 64" in text
    assert "--batch-size 2" in text


@pytest.mark.slow
def test_over_several_cards_all_weights_are_sharded() -> None:
    asked = found(gpu="rtx-3090-24gb", num_gpus=4)
    assert asked.num_gpus == 4
    assert estimate(with_changes(asked.given, asked.rows[0].changes)).job["sharding"] == "zero3"


@pytest.mark.slow
def test_a_cluster_is_its_card_and_all_its_gpus() -> None:
    asked = found(cluster="kaggle-2xt4")
    assert (asked.gpu and asked.gpu.name, asked.num_gpus) == ("t4-16gb", 2)
    full = estimate(with_changes(asked.given, asked.rows[0].changes)).job
    assert (full["sharding"], full["dtype"]) == ("zero3", "fp16")


@pytest.mark.slow
def test_the_screen_has_the_answer_the_lines_and_what_to_type(run: Run) -> None:
    code, out, _ = run("estimate", "llama-3.1-8b", "--gpu", "3060")
    text = " ".join(out.split())
    assert code == 0
    assert out.startswith("QLoRA fits rtx-3060-12gb; full fine-tuning and LoRA do not\n")
    assert "--gpu 3060 --method sft --trainer trl --lora --precision bf16 --quantization nf4" in text
    assert "--method dpo" in text
    assert "TRL's trainer" in text
    assert run("estimate", "llama-3.1-8b", "--gpu", "3060", "-q")[1] == out.splitlines()[0] + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_nothing_spills(width: int) -> None:
    for asked in (found(gpu="4060 laptop"), found()):
        out = screen_text(list(ways_blocks(asked, typed("llama-3.2-1b", asked), width)), width)
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in out.splitlines()) <= width


@pytest.mark.slow
def test_without_a_card_the_smallest_are_named(run: Run) -> None:
    code, out, _ = run("estimate", "llama-3.1-8b")
    assert code == 0
    assert out.startswith("Smallest cards: full fine-tuning ")
    assert "--gpu 4090" in out
    smallest = {way.name: way.smallest_card for way in ways(read_job({"model": "llama-3.1-8b"})).rows}
    verdict = estimate({"model": "llama-3.1-8b", "method": "sft", "trainer": "trl", "gpu": smallest["full"]}).verdict
    assert verdict is not None
    assert verdict.fits == "yes"


@pytest.mark.slow
def test_data_is_the_report_of_the_contract_with_the_ways_beside_it(run: Run) -> None:
    report = json.loads(run("estimate", "llama-3.2-1b", "--gpu", "3060", "--json")[1])
    assert report["job"]["method"] == "simpo"
    names = {"name", "title", "changes", "fits", "longest_sequence", "device_bytes", "smallest_card", "why"}
    assert [set(way) for way in report["ways"]] == [names] * 3
    assert {way["name"]: way["fits"] for way in report["ways"]}["qlora"] == "yes"
    assert "ways" not in json.loads(run("estimate", "llama-3.2-1b", "--method", "sft", "--json")[1])


@pytest.mark.parametrize(
    ("keys", "asks"),
    [
        ({"gpu": "t4"}, True),
        ({"gpu": "t4", "lora": {"r": 8}}, True),
        ({"gpu": "t4", "method": "sft"}, False),
        ({"gpu": "t4", "trainer": "trl"}, False),
        ({"gpu": "t4", "pair_pass": "split"}, False),
        ({"gpu": "t4", "quantization": "nf4"}, False),
    ],
)
def test_who_says_more_than_a_model_and_a_machine_means_a_job(keys: dict[str, object], asks: bool) -> None:
    assert asks_for_ways(read_job({"model": "llama-3.2-1b", **keys})) is asks


@pytest.mark.parametrize(
    ("keys", "trainer"),
    [
        ({"model": "Qwen/Qwen3-0.6B", "method": "dpo"}, "trl"),
        ({"model": "Qwen/Qwen3-0.6B", "method": "dpo", "trainer": "llamafactory"}, "llamafactory"),
        ({"model": "Qwen/Qwen3-0.6B", "method": "sft"}, "pytorch"),
        ({"model": "Qwen/Qwen3-0.6B"}, "pytorch"),
        ({"model": "llama-3.2-1b", "method": "dpo"}, "pytorch"),
        ({"model": "./llama-3.2-1b", "method": "dpo"}, "pytorch"),
        ({"model": "Qwen/Qwen3-0.6B", "method": "simpo", "pair_pass": "split"}, "pytorch"),
    ],
)
def test_a_hub_models_preference_method_is_taken_to_be_trls(
    keys: dict[str, object], trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = with_usual_trainer(read_job(keys))
    assert given.job.trainer == trainer
    assumed = any(text.startswith("trainer: trl") for text in given.assumptions)
    assert assumed == (trainer == "trl" and "trainer" not in keys), "an assumption is said"


def test_the_assumed_trainer_is_said_in_the_report(run: Run) -> None:
    code, out, _ = run("estimate", "Qwen/Qwen3-0.6B", "--method", "dpo", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["job"]["trainer"] == "trl"
    assert any("--trainer pytorch is a bare loop" in text for text in report["assumptions"])


def in_folder(path: Path, files: dict[str, str]) -> Path:
    """The folder with these files."""
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
    return path


CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        ({"train.yaml": TRL, "data.json": "[]", "README.md": "", "notes.txt": ""}, "train.yaml"),
        ({"train.yaml": TRL, "run.sh": "trl sft --config train.yaml\n"}, "train.yaml"),
        ({"run.sh": "trl sft --model_name_or_path Qwen/Qwen3-0.6B --output_dir out\n"}, "run.sh"),
        ({"config.json": CONFIG, "tokenizer.json": "{}"}, "."),
        ({"out/config.json": CONFIG}, "out"),
    ],
)
def test_what_lies_in_the_folder_is_taken(
    files: dict[str, str], taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(in_folder(tmp_path, files))
    assert lies_here()[0] == taken


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        ({}, "no model named", "--total-params"),
        ({"a.yaml": "x: 1\n"}, "no model named", "--total-params"),
        (
            {"a.yaml": TRL, "b.yaml": TRL},
            "several training configs lie here: a.yaml, b.yaml",
            "memplan estimate a.yaml",
        ),
        ({"a/config.json": CONFIG, "b/config.json": CONFIG}, "several models lie here: a, b", "memplan estimate a"),
    ],
)
def test_nothing_or_several_are_told(
    files: dict[str, str], message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(in_folder(tmp_path, files))
    with pytest.raises(UsageError) as caught:
        lies_here()
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_estimate_alone_says_what_it_took(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(in_folder(tmp_path, {"train.yaml": TRL}))
    code, out, err = run("estimate", "--gpu", "3060")
    assert code == 0, err
    assert "note: took train.yaml, a file of " in err
    assert "rtx-3060-12gb" in out.splitlines()[0]
    os.remove("train.yaml")
    assert run("estimate")[0] == 2
