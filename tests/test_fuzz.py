"""Proves of a small share of what ``fuzz.py`` draws that it is priced or refused by name, and that its figures hold
together; and that a loop played in part gives what the whole loop gives."""

from pathlib import Path
from random import Random

import pytest
from any_jobs import MODELS, Keys
from fuzz import check_config, check_job, check_text, config_of, file_of, job_of

from memplan.engine.tail_trace import tail_trace
from memplan.engine.tape.tape import Tape
from memplan.engine.totals import forget
from memplan.engine.traces import layer_trace
from memplan.errors import InvalidJob
from memplan.frameworks.files.documents import document_of
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job


@pytest.mark.parametrize("many", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_drawn_jobs_are_priced_or_refused(many: int) -> None:
    random = Random(3)
    assert sum(check_job(random, job_of(random)) for _ in range(many)) > many / 4


@pytest.mark.parametrize("many", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_drawn_configs_are_described_or_refused(many: int) -> None:
    random = Random(2)
    assert sum(check_config(config_of(random)) for _ in range(many)) > many / 12


@pytest.mark.slow
def test_drawn_files_are_judged_or_refused(tmp_path: Path) -> None:
    many, random = 200, Random(3)
    assert sum(check_text(tmp_path, *file_of(random)) for _ in range(many)) > many / 12


def _report(keys: Keys) -> str:
    for trace in (layer_trace, tail_trace):
        trace.cache_clear()
    forget()
    return str(build_report(resolve(read_job(keys))).to_dict())


ROWS: dict[str, Keys] = {
    "bf16": {"method": "dpo"},
    "fp32": {"method": "dpo", "dtype": "fp32"},
    "autocast": {"method": "simpo", "autocast": True},
    "without a graph": {"method": "dpo", "reference": "resident"},
    "made again": {"method": "grpo", "recompute_loss": True},
    "on the host": {"method": "dpo", "trainer": "trl", "offload": ["activations"]},
    "in place": {"method": "dpo", "gpu": "h100-80gb"},
    "a piece for each pair": {
        "method": "dpo",
        "trainer": "trl",
        "trainer_version": "1.10",
        "kernels": "liger",
        "loss_head": "auto",
    },
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("batch_size", [7, 20])
def test_rows_played_in_part_are_all_rows_to_the_byte(
    name: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"model": MODELS["untied"], "sequence_length": 100, "loss_head": "selective", "batch_size": batch_size}
    keys |= ROWS[name]
    in_part = _report(keys)
    monkeypatch.setattr(Tape, "plays_all", True)
    assert _report(keys) == in_part


def test_a_batch_of_any_size_is_priced() -> None:
    keys: Keys = {"model": MODELS["untied"], "sequence_length": 64, "loss_head": "selective"}
    small, large = (
        build_report(resolve(read_job(keys | {"batch_size": size}))).per_gpu.by_category for size in (10**6, 10**9)
    )
    assert large["activations"] == 1000 * small["activations"]


LISTED = ",".join(["1"] * 120_000)


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("toml", f"{'.'.join(['a'] * 60_000)} = 1\n", "line 1: nested deeper than 20 levels"),
        ("toml", f"x = 1\na = [{LISTED}]\n", "line 2: more than 20000 values"),
        ("toml", f'x = """\n[{" " * 200_000}\n"""\n', ""),
        ("json", f'{{"a": [{LISTED}]}}', "line 1: more than 20000 values"),
        ("json", f'{{"{"k" * 2000}": 1}}', "is longer than 1000 characters"),
        ("yaml", f"a: 1\nb: [{LISTED}]\n", "line 2: more than 20000 values"),
        ("yaml", f"a: &a {'z' * 150_000}\nb: [{','.join(['*a'] * 999)}]\n", "aliases stand for more than 20000 values"),
        ("yaml", f"{'k' * 1001}:\n  a: 1\n", "is longer than 1000 characters"),
        ("shell", "x='\n" + "a b\n" * 60_000 + "'\n", "of more than 65536 characters"),
        ("shell", "A=" + "x" * 3900 + "\n" + "a $A $A $A $A\n" * 4000, "more than 5000 commands, or words in them"),
        ("shell", "".join(f"export A{i}=1\na\n" for i in range(2000)), "too many commands and variables"),
    ],
)
def test_a_file_that_would_grow_is_refused_before_it_does(form: str, text: str, said: str) -> None:
    try:
        document_of(text, "file", form)
        found = ""
    except InvalidJob as error:
        found = error.message
    assert said in found
    assert bool(said) == bool(found)
