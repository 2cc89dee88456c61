"""Proves that a report says of every key whether a file, a framework's default (which version) or memplan said it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from framework_cases import FILES

from memplan.api import estimate
from memplan.cli.app import main
from memplan.frameworks.reading import framework_of, read_target
from memplan.report import Report

MORE = {
    "trl": (
        "dpo.yaml",
        "# trl dpo --config dpo.yaml\nmodel_name_or_path: smollm2-135m\nuse_peft: true\nbeta: 0.1\n"
        "dataset_name: x\nmax_length: 512\n",
    ),
    "transformers": ("args.yaml", "output_dir: x\nper_device_train_batch_size: 2\nbf16: true\n"),
    "axolotl": (
        "axolotl.yaml",
        "base_model: HuggingFaceTB/SmolLM2-135M\nsequence_len: 512\nmicro_batch_size: 2\nadapter: lora\nlora_r: 8\n"
        "lora_target_linear: true\ndatasets: [{path: x, type: alpaca}]\noptimizer: adamw_torch\nbf16: true\n",
    ),
}
CASES = {**FILES, **MORE}
QUIET = ("accelerate", "deepspeed", "memplan")
"""Frameworks without defaults of a training's: they say how it runs."""


def report_of(name: str, tmp_path: Path, **options: Any) -> tuple[Report, str]:
    """The report of a framework's file, its own model or a small one, and the file's path."""
    file, text = CASES[name]
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    known = {} if name in ("megatron", "mindspeed") else {"model": "qwen3-0.6b"}
    given = read_target(str(path), {**known, **options})
    assert framework_of(str(path)).name == name
    return estimate(given), str(path)


@pytest.mark.parametrize("name", CASES)
def test_every_key_says_where_it_is_from(name: str, tmp_path: Path) -> None:
    found, path = report_of(name, tmp_path)
    label = framework_of(path).label
    data = json.loads(json.dumps(found.to_dict()))
    sources, origins = data["sources"], data["origins"]
    assert set(data["job"]) <= set(sources), "no key is without a source"
    from_file = {key for key in origins if sources[key] == "file"}
    assert {"trainer", "batch_size"} <= set(origins)
    assert all(path in origins[key] for key in from_file)
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    for key in from_file:
        place = re.search(r", line (\d+): ([\w.\[\]]+)$", origins[key])
        if place is None:
            continue  # of the file as a whole, such as the trainer
        line, named = int(place[1]), place[2].rpartition(".")[2]
        assert named.replace("_", "-") in lines[line - 1].replace("_", "-"), (key, origins[key])
    defaults = {key for key in origins if sources[key] == "trainer"}
    assert any(origins[key].startswith(label) for key in defaults), "a default says whose it is, with the version"
    assert not {key for key in origins if sources[key] == "option"}


def test_an_option_has_no_other_origin(tmp_path: Path) -> None:
    found, _ = report_of("trl", tmp_path, batch_size=3, gradient_checkpointing="none")
    for key in ("batch_size", "gradient_checkpointing", "model"):
        assert (found.sources[key], key in found.origins) == ("option", False)


def test_a_job_of_memplan_s_says_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: smollm2-135m\nmethod: sft\nmax_length: 512\nuse_lora: true\n", encoding="utf-8")
    found = estimate(read_target(str(path), {}))
    assert found.origins["sequence_length"] == f"{path}, line 3: max_length"
    assert found.sources["batch_size"] == "default"
    assert "batch_size" not in found.origins


def test_the_text_shows_it_with_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dpo.yaml"
    path.write_text(MORE["trl"][1], encoding="utf-8")
    assert main(["estimate", str(path), "--explain", "--batch-size", "2"]) == 0
    text = capsys.readouterr().out
    table = text.partition("Where each value came from")[2]
    assert re.search(r"batch_size +2 +an option", table)
    assert re.search(r"gradient_checkpointing +full +TRL 1.16: gradient_checkpointing", table)
    assert re.search(r"num_gpus +1 +assumed: ", table)
    assert "memplan's defaults: " in table
