"""Holds products in float8 against torchao's own linears on fake tensors, and reads the files that name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner_of

from memplan.api import estimate
from memplan.errors import InvalidJob
from memplan.report import Report

H, F, T, LAYERS = 256, 2048, 4096, 6
MODEL = {
    "model_type": "llama", "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": F, "vocab_size": 512, "head_dim": 64, "tie_word_embeddings": False,
}  # fmt: skip
JOB: dict[str, Any] = {"model": MODEL, "method": "sft", "trainer": "pytorch", "sequence_length": T}
TWO = {"num_gpus": 2, "sharding": "fsdp2"}
TRACED = [
    ({"precision": "bf16", "float8": "tensorwise"}, (689859584, 705296384, 108856832)),
    ({"precision": "bf16", "float8": "rowwise", "gradient_checkpointing": "full"}, (175477248, 273773568, 108856832)),
    ({"precision": "bf16", "float8": "rowwise-gw-hp"}, (689875456, 670183424, 108856832)),
    ({"precision": "bf16-amp", "float8": "tensorwise"}, (817019392, 839010304, 217679872)),
    (
        {"precision": "bf16-amp", "float8": "tensorwise", "gradient_checkpointing": "full", **TWO},
        (183066112, 283443712, 108856832),
    ),
    (
        {"precision": "bf16-amp", "float8": "tensorwise", "gradient_checkpointing": "full", **TWO}
        | {"fsdp": {"float8_all_gather": True}},
        (179548672, 279405056, 108878336),
    ),
    (
        {"precision": "bf16-amp", "float8": "tensorwise", "gradient_checkpointing": "full", **TWO}
        | {"fsdp": {"float8_all_gather": True}, "sequence_length": 256},
        (76268032, 100989952, 108847616),
    ),
]
"""memplan trace with torchao 0.18 on torch 2.13's fake tensors: forward, backward and step in bytes."""
TOML = """[model]
name = "llama3"
flavor = "8B"
converters = ["quantize.linear.float8"]
[training]
local_batch_size = 1
seq_len = 4096
[compile]
enable = true
[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
filter_fqns = ["output"]
"""


def of(**keys: Any) -> Report:
    return estimate({**JOB, **keys})


@pytest.mark.parametrize(("job", "traced"), TRACED)
def test_it_is_what_torchao_holds(job: dict[str, Any], traced: tuple[int, ...]) -> None:
    phases = of(**job).per_gpu.phases
    for name, size in zip(("forward", "backward", "step"), traced, strict=True):
        assert phases[name] / size == pytest.approx(1, abs=4e-4)


def test_compiled_casts_make_no_copies_in_fp32() -> None:
    """Over bf16, a step holds the two sides of one product in float8 at most."""
    plain, low = (of(precision="bf16", compile=True, float8=how) for how in ("none", "tensorwise"))
    more = low.per_gpu.phases["backward"] - plain.per_gpu.phases["backward"]
    assert 0 <= more <= 3 * T * F + 2 * H * F


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora": {"r": 8}}, "float8: tensorwise with adapters"),
        ({"num_gpus": 2, "sharding": "zero3"}, "float8: tensorwise under zero3"),
        ({"precision": "fp32"}, "float8: tensorwise outside bf16"),
        ({"gpu": "a100-80gb"}, "float8: tensorwise needs compute capability 8.9"),
        ({"float8": "none", **TWO, "fsdp": {"float8_all_gather": True}}, "fsdp.float8_all_gather: needs float8"),
        ({"float8": "rowwise", **TWO, "fsdp": {"float8_all_gather": True}}, "float8: rowwise with float8_all_gather"),
        ({"model": "llama-3.1-8b", "trainer": "megatron", "precision": "auto"}, "float8: tensorwise under Megatron-LM"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        of(**{"precision": "bf16", "float8": "tensorwise", **given})
    assert caught.value.message.startswith(message)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


def test_torchtitans_converter_is_read_and_written(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "train.toml"
    path.write_text(TOML)
    job = json.loads(run("estimate", str(path), "--json")[1])["job"]
    assert (job["float8"], job["fsdp"]["float8_all_gather"]) == ("tensorwise", True)
    written = run("emit", "torchtitan", str(path))[1]
    assert 'converters = ["quantize.linear.float8"]' in written
    assert "enable_fsdp_float8_all_gather = true" in written


def test_a_head_in_float8_is_unclear(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "train.toml"
    path.write_text(TOML.replace('filter_fqns = ["output"]\n', ""))
    assert run("check", str(path), "--gpu", "h100-80gb")[0] == 2


def test_accelerates_backend_is_read_and_written(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ("llama-3.1-8b", "--method", "sft", "--trainer", "transformers", "--num-gpus", "8", "--sharding", "fsdp2")
    length = ("--sequence-length", "2048")
    low = ("--float8", "tensorwise", "--set", "fsdp.float8_all_gather=true", "--precision", "bf16-amp")
    assert run("emit", "transformers", *job, *low, "-o", str(tmp_path))[0] == 0
    text = (tmp_path / "accelerate.yaml").read_text()
    assert "mixed_precision: fp8" in text
    monkeypatch.chdir(tmp_path)
    read = json.loads(
        run("estimate", "training_args.yaml", "--with", "accelerate.yaml", "--model", *job[:3], *length, "--json")[1]
    )["job"]
    assert (read["float8"], read["fsdp"]["float8_all_gather"]) == ("tensorwise", True)


def test_axolotls_switch_is_read_and_written(tmp_path: Path, run: Run) -> None:
    job = ("llama-3.1-8b", "--method", "sft", "--trainer", "transformers", "--num-gpus", "8", "--sharding", "fsdp2")
    low = ("--float8", "tensorwise", "--set", "fsdp.float8_all_gather=true", "--precision", "bf16-amp")
    assert run("emit", "axolotl", *job, *low, "--sequence-length", "2048", "-o", str(tmp_path))[0] == 0
    read = json.loads(run("estimate", str(tmp_path / "axolotl.yaml"), "--num-gpus", "8", "--json")[1])["job"]
    assert (read["float8"], read["fsdp"]["float8_all_gather"]) == ("tensorwise", True)
