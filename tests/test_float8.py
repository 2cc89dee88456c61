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


def test_compiled_casts_to_mxfp8_hold_two_sides_with_their_scales() -> None:
    """A byte for 32 elements: mx_mm of torchao 0.15; nothing is saved in it."""
    plain, low = (of(precision="bf16", compile=True, float8=how) for how in ("none", "mxfp8"))
    assert low.per_gpu.phases["forward"] - plain.per_gpu.phases["forward"] <= (T * F + H * F) * 33 // 32
    more = low.per_gpu.phases["backward"] - plain.per_gpu.phases["backward"]
    assert 0 <= more <= (2 * T * F + 2 * H * F) * 33 // 32


TITAN: dict[str, Any] = {
    "method": "sft", "trainer": "pytorch", "sharding": "fsdp2", "precision": "bf16-amp", "compile": True,
    "gradient_checkpointing": "full", "gpu": "h100-nvl-94gb", "float8": "tensorwise", "sequence_length": 8192,
    "fsdp": {"float8_all_gather": True}, "tensor_parallel": 8,
}  # fmt: skip
PIPE = {"model": "llama-3.1-405b", "num_gpus": 512, "pipeline_parallel": 8, "gradient_accumulation_steps": 8}


@pytest.mark.parametrize(
    ("job", "reserved"),
    [
        ({"model": "llama-3.1-70b", "num_gpus": 256, "batch_size": 16}, 71.9),
        (PIPE | {"batch_size": 4}, 82.5),
        (PIPE | {"batch_size": 1, "sequence_length": 32768}, 75.3),
    ],
)
def test_torchtitans_published_runs_over_ranks_lie_within_their_bands(job: dict[str, Any], reserved: float) -> None:
    """Its benchmarks of December 2024 (llama3_h100_202412_torchtitan.md, tables 4 to 6), on H100 of 96 GB."""
    found = estimate(TITAN | job).per_gpu.reserved_bytes
    assert found.low <= reserved * 2**30 <= found.high


WEIGHTS = LAYERS * (H * 256 * 2 + H * 128 * 2 + 3 * H * F)
INPUTS = LAYERS * T * (6 * H + F)
"""Of attention's four products, gate, up and down, each its own."""


def held(name: str, **keys: Any) -> int:
    """Bytes at the end of forward."""
    report = of(precision="bf16", float8="te", **keys)
    turns = {each.name: i for i, each in enumerate(report.per_gpu.instants)}
    at = turns["policy.forward"]
    rows = [row for row in report.per_gpu.ledger if row.name.startswith(name) and turns[row.born] <= at]
    return sum(row.bytes for row in rows if at <= turns[row.dies])


def test_transformer_engines_linears_save_copies() -> None:
    """One byte of each product's input, and all layouts of every weight from forward to backward; of the head too."""
    assert held("inputs of products in float8, layer") == INPUTS
    assert held("weights in float8, layer") == 2 * WEIGHTS
    assert held("weights in float8, head") == 2 * 512 * H
    assert held("norm outputs, layer") == held("feed-forward product") == 0, "nothing else keeps them"
    assert held("weights in float8, layer", gpu="b200") == WEIGHTS


@pytest.mark.parametrize("sharding", ["ddp", "fsdp2", "zero2", "zero3"])
def test_transformer_engines_copies_come_on_top(sharding: str) -> None:
    """Never below bf16 by more than what bf16 keeps of weights and inputs in half precision."""
    two = {"num_gpus": 2, "sharding": sharding, "gradient_checkpointing": "full", "trainer": "transformers"}
    plain, low = (of(**two, float8=how).per_gpu for how in ("none", "te"))
    assert low.phases["step"] == plain.phases["step"]
    assert low.allocated_bytes > 0.9 * plain.allocated_bytes


def test_compiled_casts_make_no_copies_in_fp32() -> None:
    """Over bf16, a step holds the two sides of one product in float8 at most."""
    plain, low = (of(precision="bf16", compile=True, float8=how) for how in ("none", "tensorwise"))
    more = low.per_gpu.phases["backward"] - plain.per_gpu.phases["backward"]
    assert 0 <= more <= 3 * T * F + 2 * H * F


@pytest.mark.parametrize(("word", "hint"), [("ms-amp", "--set float8=te"), ("NVFP4", "--set megatron.fp4_format=e2m1")])
def test_what_is_no_recipe_says_what_to_type(word: str, hint: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        of(float8=word)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora": {"r": 8}}, "float8: tensorwise with adapters"),
        ({"num_gpus": 2, "sharding": "zero3"}, "float8: tensorwise under zero3"),
        ({"precision": "fp32"}, "float8: tensorwise outside bf16"),
        ({"gpu": "a100-80gb"}, "float8: tensorwise needs compute capability 8.9"),
        ({"float8": "none", **TWO, "fsdp": {"float8_all_gather": True}}, "fsdp.float8_all_gather: needs float8"),
        ({"float8": "rowwise", **TWO, "fsdp": {"float8_all_gather": True}}, "float8: rowwise with float8_all_gather"),
        ({"float8": "mxfp8"}, "float8: mxfp8 without compile"),
        ({"float8": "mxfp8", "compile": True, "gpu": "h100-80gb"}, "float8: mxfp8 needs compute capability 10.0"),
        ({"float8": "te", "lora": {"r": 16}}, "float8: te with adapters or a quantised base, which accelerate's"),
        ({"float8": "te", "num_gpus": 2, "sharding": "fsdp"}, "float8: te under fsdp"),
        ({"float8": "te", "sequence_length": 1001}, "float8: te in rows that are no multiple of 8"),
        (
            {"float8": "te", "model": "llama-3.2-1b"},
            "float8: te with a tied head, which accelerate's conversion unties",
        ),
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


TE = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: fp8\nnum_processes: 2\n"
ARGS = "model_name_or_path: llama-3.1-8b\ndataset_name: a/b\nmax_length: 2048\nper_device_train_batch_size: 1\n"


@pytest.mark.parametrize(
    ("backend", "args", "found"),
    [
        ("fp8_config:\n  backend: TE\n", "", ("te", "")),
        ("fp8_config:\n  backend: AO\n", "bf16: false\n", ("tensorwise", "")),
        ("fp8_config:\n  backend: AO\n", "", ("", "fp8 by torchao beside the trainer's own bf16 makes no recipe")),
        ("fp8_config:\n  backend: MSAMP\n", "", ("none", "weights and states in fp8 (MS-AMP) are not modelled")),
        ("", "", ("none", "fp8 does nothing beside the trainer's own bf16")),
        ("", "bf16: false\n", ("none", "accelerate takes torchao where it is installed")),
    ],
)
def test_accelerates_backends(
    tmp_path: Path, run: Run, backend: str, args: str, found: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against accelerate 1.15 with torchao 0.18: beside bf16 its Accelerator has no recipe for AO, and stops."""
    (tmp_path / "acc.yaml").write_text(TE + backend)
    (tmp_path / "train.yaml").write_text(ARGS + args)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(
        "estimate", "train.yaml", "--with", "acc.yaml", "--method", "sft", "--trainer", "trl", "--json"
    )
    assert found[1] in err + out
    if found[0]:
        assert json.loads(out)["job"]["float8"] == found[0]
    else:
        assert code == 2


def test_emitted_arguments_leave_fp8_to_accelerate(tmp_path: Path, run: Run) -> None:
    """bf16 beside torchao's recipe would stop it."""
    job = ("llama-3.1-8b", "--method", "sft", "--trainer", "transformers", "--num-gpus", "8", "--sharding", "fsdp2")
    for name, backend in (("tensorwise", "AO"), ("te", "TE")):
        folder = tmp_path / name
        assert run("emit", "transformers", *job, "--float8", name, "--precision", "bf16-amp", "-o", str(folder))[0] == 0
        assert "bf16: false" in (folder / "training_args.yaml").read_text()
        assert f"backend: {backend}" in (folder / "accelerate.yaml").read_text()


PROGRAM = """
import torch
from accelerate import Accelerator
from accelerate.utils import {name}
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
accelerator = Accelerator(mixed_precision="fp8", kwargs_handlers=[{name}({args})])
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", dtype=torch.bfloat16)
loader = DataLoader(rows, batch_size=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    out = model(**batch)
    accelerator.backward(out.loss)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("name", "args", "float8"),
    [
        ("TERecipeKwargs", "", "te"),
        ("FP8RecipeKwargs", 'backend="te"', "te"),
        ("TERecipeKwargs", "use_mxfp8_block_scaling=True", "te-mxfp8"),
        ("AORecipeKwargs", "", "tensorwise"),
    ],
)
def test_a_programs_recipe_is_read(tmp_path: Path, run: Run, name: str, args: str, float8: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(name=name, args=args))
    found = run("estimate", str(path), "--sequence-length", "2048", "--num-gpus", "1", "--json")[1]
    assert json.loads(found)["job"]["float8"] == float8


def test_a_programs_recipe_of_ms_amp_is_unclear(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(name="FP8RecipeKwargs", args='backend="msamp"'))
    assert run("check", str(path), "--sequence-length", "2048", "--num-gpus", "1", "--gpu", "h200")[0] == 2


def test_torchtitans_mx_converter_is_read_and_written(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "train.toml"
    path.write_text(TOML.replace("linear.float8", "linear.mx").replace("enable_fsdp_float8_all_gather = true\n", ""))
    assert json.loads(run("estimate", str(path), "--json")[1])["job"]["float8"] == "mxfp8"
    assert 'recipe_name = "mxfp8_cublas"' in run("emit", "torchtitan", str(path))[1]
