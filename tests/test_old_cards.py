"""Cards older than the kernels of flash attention: what asks for it is refused, what falls back on another is told."""

import json
from pathlib import Path
from typing import Any

import pytest

import memplan
from memplan.cli.app import main
from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import check_file
from memplan.gpus import find_gpu
from memplan.remedies import on_card
from memplan.resolve import resolve
from memplan.spec.reading import read_job

JOB: dict[str, Any] = {"model": "smollm2-135m", "method": "sft", "dtype": "fp16", "sequence_length": 512}
OLD = ("t4", "v100-32gb", "p100", "p40", "rtx-2080-ti-11gb", "titan-rtx-24gb", "1080ti", "titan x", "1660")
LLAMA_FACTORY = """\
model_name_or_path: smollm2-135m
stage: sft
finetuning_type: lora
cutoff_len: 512
output_dir: out
fp16: true
flash_attn: fa2
"""
TRL = """\
model_name_or_path: smollm2-135m
dataset_name: x
max_length: 512
fp16: true
attn_implementation: flash_attention_2
"""


@pytest.mark.parametrize("gpu", OLD)
def test_flash_attention_is_refused(gpu: str) -> None:
    """flash-attn: "FlashAttention only supports Ampere GPUs or newer"."""
    with pytest.raises(InvalidJob, match=r"attention: flash does not run on .*it has [567]") as refused:
        resolve(read_job({**JOB, "gpu": gpu, "attention": "flash"}))
    assert refused.value.hint == "use attention: sdpa"


@pytest.mark.parametrize("gpu", ["a2", "rtx-3060-12gb", "h100-80gb", "mi300x", "24GB", None])
def test_later_cards_and_those_of_which_nothing_is_known_run_it(gpu: str | None) -> None:
    assert resolve(read_job({**JOB, "gpu": gpu, "attention": "flash"})).operators.attention == "flash"


def test_unsloth_takes_another_kernel_and_it_is_said() -> None:
    """unsloth models/_utils.py: HAS_FLASH_ATTENTION from major version 8 on, else xformers."""
    keys = {**JOB, "kernels": "unsloth", "lora": {"r": 8}, "attention": "flash"}
    old, new = (resolve(read_job({**keys, "gpu": gpu})) for gpu in ("t4", "a2"))
    assert (old.operators.attention, new.operators.attention) == ("sdpa", "flash")
    assert any(text.startswith("attention: sdpa (Unsloth takes") for text in old.provenance.assumptions)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [("sft.yaml", TRL, "line 5: attn_implementation: sdpa"), ("lf.yaml", LLAMA_FACTORY, "line 7: flash_attn: sdpa")],
)
def test_a_file_is_refused_in_its_own_words(
    name: str, text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["estimate", str(path), "--gpu", "t4"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: write {path}, {line}"
    found = check_file(str(path), {"gpu": "t4"})
    assert (found.fits, found.hint) == ("error", f"write {path}, {line}")
    path.write_text(text.replace("flash_attention_2", "sdpa").replace("fa2", "sdpa"))
    assert check_file(str(path), {"gpu": "t4"}).fits == "yes"


@pytest.mark.parametrize(("backend", "attention"), [("", "eager"), ("attention-backend: auto", "eager")])
def test_megatron_falls_back_on_its_own(backend: str, attention: str, tmp_path: Path) -> None:
    path = tmp_path / "pretrain.sh"
    arguments = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --micro-batch-size 1"
    option = f" --{backend.replace(':', '')}" if backend else ""
    path.write_text(f"torchrun pretrain_gpt.py {arguments} --fp16 --global-batch-size 1{option}\n")
    found = check_file(str(path), {"gpu": "v100-32gb", "num_gpus": 1})
    assert found.job["attention"] == attention, found.text
    path.write_text(path.read_text().strip() + " --attention-backend flash\n")
    assert "flash does not run on v100-32gb" in check_file(str(path), {"gpu": "v100-32gb", "num_gpus": 1}).text


def test_tables_leave_out_the_cards_that_refuse_it() -> None:
    cards = {card.gpu: card for card in memplan.estimate({**JOB, "attention": "flash"}).cards}
    assert cards["t4-16gb"].lacks == "flash attention"
    assert not cards["a2-16gb"].lacks
    report = memplan.estimate({**JOB, "attention": "flash"})
    assert on_card(report, find_gpu("t4")) is None
    assert on_card(report, find_gpu("a2")) is not None


def test_a_table_of_cards_counts_the_kernel_that_each_has() -> None:
    """Grouped heads make scores on a T4: the table of cards says so as the card alone does."""
    long = {**JOB, "sequence_length": 4096}
    row = next(card for card in memplan.estimate(long).cards if card.gpu == "t4-16gb")
    alone = memplan.estimate({**long, "gpu": "t4"}).verdict
    assert alone is not None
    assert (row.fits, row.headroom_bytes < 0) == (alone.fits, alone.headroom_bytes < 0)
    other = next(card for card in memplan.estimate(long).cards if card.gpu == "a2-16gb")
    assert row.headroom_bytes < other.headroom_bytes


@pytest.mark.parametrize("gpus", ["a2,t4", "t4,a2"])
def test_a_comparison_lists_what_cannot_be(gpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "smollm2-135m", "--methods", "sft,dpo", "--attention", "flash", "--sequence-length", "512"]
    assert main([*arguments, "--gpus", gpus, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["report"]["verdict"]["gpu"] for row in found["rows"]} == {"a2-16gb"}
    assert all("does not run on t4-16gb" in each["error"] for each in found["impossible"])
    assert len(found["impossible"]) == 2


def test_strategies_that_ask_for_it_run_on_none_of_the_old_cards() -> None:
    said = memplan.compare({**JOB, "method": "simpo", "attention": "flash"}).recommendation.splitlines()
    assert said[-1] == "less than 24 GB: none of these runs on T4 16GB, which has no flash attention."
    assert "fits" in said[0]


@pytest.mark.slow
def test_what_a_base_in_4_bits_computes_in_is_what_the_card_has() -> None:
    job = {"model": "llama-3.2-1b", "method": "dpo", "trainer": "trl"}
    for gpu, dtype in (("t4-16gb", "fp16"), ("a10-24gb", "bf16")):
        remedies = memplan.estimate({**job, "gpu": gpu, "batch_size": 8}).remedies
        assert [each.changes["lora"]["dtype"] if "dtype" in each.changes.get("lora", {}) else each.changes["dtype"]
                for each in remedies if "quantization" in each.changes] == [dtype]  # fmt: skip
