"""Proves that a file with anchors, aliases and merges is changed in place, and what others share is not."""

from pathlib import Path

import pytest
import yaml

from memplan.errors import InvalidJob
from memplan.frameworks.emit.onto import changed
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.files.yaml_edit import yaml_with
from memplan.frameworks.registry import find_framework
from memplan.spec.reading import read_job

MINE = """# mine
x-base: &base
  max_length: 2048  # long
  gradient_checkpointing: true
  accelerator_config: {split_batches: false}
<<: *base
model_name_or_path: HuggingFaceTB/SmolLM2-135M
per_device_train_batch_size: &size 8
gradient_accumulation_steps: &steps 2
save_steps: *steps
logging_steps: 10
use_peft: false  # full
bf16: true
output_dir: out
"""
JOB = {"model": "smollm2-135m", "method": "sft", "trainer": "trl", "precision": "bf16-amp", "dtype": "bf16"}


def put_onto(tmp_path: Path, text: str, **keys: object) -> str:
    """The file's text after the job was put onto it."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    given = read_job({**JOB, "gradient_checkpointing": "full", **keys})
    return changed(str(path), emit(given, find_framework("trl")), given.job)


@pytest.mark.slow
def test_what_a_merge_gives_is_written_beside_it(tmp_path: Path) -> None:
    after = put_onto(tmp_path, MINE, batch_size=4, gradient_accumulation_steps=2, sequence_length=1024)
    before = MINE.splitlines()
    new = [line for line in after.splitlines() if line not in before]
    assert new == ["per_device_train_batch_size: 4", "max_length: 1024"]
    assert "x-base: &base\n  max_length: 2048  # long\n" in after
    assert yaml.safe_load(after)["max_length"] == 1024


@pytest.mark.slow
def test_an_alias_is_replaced_and_its_anchor_stays(tmp_path: Path) -> None:
    text = MINE.replace("gradient_accumulation_steps: &steps 2\nsave_steps: *steps", "save_steps: &steps 2\n"
                        "gradient_accumulation_steps: *steps  # as often")  # fmt: skip
    after = put_onto(tmp_path, text, batch_size=8, gradient_accumulation_steps=4, sequence_length=2048)
    assert "save_steps: &steps 2\ngradient_accumulation_steps: 4  # as often\n" in after


def test_a_value_that_others_use_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"mine.yaml, line 9: gradient_accumulation_steps: other lines use this value"):
        put_onto(tmp_path, MINE, batch_size=8, gradient_accumulation_steps=4, sequence_length=2048)


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ("a: &a {x: 1, y: 2}\nb: *a # b\n", ("b", "x"), "a: &a {x: 1, y: 2}\nb: {x: 5, y: 2} # b\n"),
        ("a: &a\n  b: {x: 1, y: 2}\nc:\n  <<: *a\n", ("c", "b", "x"), "  <<: *a\n  b: {x: 5, y: 2}\n"),
        ("a: &a {b: {x: 1, y: 2}}\n<<: *a\n", ("b", "x"), "<<: *a\nb: {x: 5, y: 2}\n"),
        ("b: &b\n  x: 1 # one\n  y: 2\n", ("b", "x"), "b: &b\n  x: 5 # one\n  y: 2\n"),
        ("b: &b\n  y: 2\n", ("b", "x"), "b: &b\n  y: 2\n  x: 5\n"),
        ("b: &x 1\n", ("b",), "b: 5\n"),
    ],
)
def test_one_value(text: str, path: tuple[str, ...], after: str) -> None:
    assert yaml_with(text, path, 5, "f.yaml").endswith(after)


def test_a_key_of_a_shared_mapping_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"f\.yaml, line 1: a\.x: other lines use"):
        yaml_with("a: &a\n  x: 1\nb: *a\n", ("a", "x"), 5, "f.yaml")
