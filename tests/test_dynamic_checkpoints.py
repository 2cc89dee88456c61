"""Linears that a quantised checkpoint leaves in 16 bits: the job's share, Unsloth's checkpoints by name, the chunks of
its loss on a card that is nearly full, and models that came with transformers 5 beside an older trainer."""

from pathlib import Path
from typing import Any

import pytest

from memplan import Report, estimate
from memplan.engine.losses.unsloth import CHUNK_BYTES, chunk_count
from memplan.errors import InvalidJob
from memplan.frameworks.common import dynamic_checkpoints
from memplan.frameworks.common.dynamic_checkpoints import MOST
from memplan.frameworks.reading import read_target
from memplan.spec.reading import JobInput
from memplan.tables.texts import parts_of, rows_of

GB = 10**9
PARTS = parts_of(dynamic_checkpoints.__file__)
SIZES = {name: text.split() for name, text in rows_of(PARTS["known"]).items()}
HUB = {
    "llama-3.1-8b-instruct": "llama-3.1-8b",
    "llama-3.2-3b-instruct": "llama-3.2-3b",
    "qwen2.5-3b-instruct": "qwen2.5-3b",
    "gemma-3-4b-it": "gemma-3-4b",
    "qwen3-vl-8b-instruct": "qwen3-vl-8b",
    "qwen2.5-vl-7b-instruct": "qwen2.5-vl-7b",
    "llama-3.3-70b-instruct": "llama-3.3-70b",
    "meta-llama-3.1-8b-instruct": "llama-3.1-8b",
    "qwen3-14b-base": "qwen3-14b",
}
"""Presets of the same shape."""
QLORA: dict[str, Any] = {"precision": "bf16", "quantization": "nf4-double", "lora": {"r": 8}, "gpu": "a100-80gb"}


def made(model: str, **more: Any) -> Report:
    return estimate({"model": model, **more})


def weights(report: Report) -> int:
    return report.per_gpu.by_category["parameters"]


@pytest.mark.parametrize("name", SIZES)
def test_a_share_makes_the_published_size(name: str) -> None:
    share, _, size, unit = SIZES[name]
    assert unit == "GB"
    held = weights(made(HUB.get(name, name), unquantized_share=float(share), **QLORA))
    assert held / GB == pytest.approx(float(size), abs=0.015)


def test_what_is_not_known_is_counted_as_no_less_than_what_is() -> None:
    seeing = {name for name in SIZES if "-vl-" in name or name.startswith("gemma-3-4b")}
    largest = {kind: max(float(SIZES[name][0]) for name in names) for kind, names in (
        ("images", seeing), ("text", SIZES.keys() - seeing))}  # fmt: skip
    assert all(MOST[kind] >= largest[kind] > 0.8 * MOST[kind] for kind in MOST)
    named = [name for kind in MOST for name in PARTS[kind].split()]
    assert len(named) == len(set(named))
    assert not SIZES.keys() & set(named)


def test_a_share_is_of_a_quantised_base_that_stays_whole() -> None:
    with pytest.raises(InvalidJob, match=r"unquantized_share: 0\.1 without quantization"):
        made("llama-3.2-1b", unquantized_share=0.1)
    with pytest.raises(InvalidJob, match="not modelled"):
        made("llama-3.2-1b", unquantized_share=0.1, num_gpus=2, sharding="fsdp", **QLORA)
    held = [made("llama-3.2-1b", unquantized_share=share, **QLORA) for share in (0, 0.5, 1)]
    plain = made("llama-3.2-1b", **{**QLORA, "quantization": "none"})
    assert weights(held[1]) - weights(held[0]) == pytest.approx(weights(held[2]) - weights(held[1]), rel=1e-4)
    assert weights(held[2]) == pytest.approx(weights(plain), rel=1e-3)
    assert all(each.per_gpu.reserved_bytes.played for each in held)


PROGRAM = """
import torch
from unsloth import FastLanguageModel, FastVisionModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
{load}
SFTTrainer(model=model, args=SFTConfig(max_length=512, bf16=True), train_dataset=data{more}).train()
"""
FAST = "model, t = FastLanguageModel.from_pretrained({}, max_seq_length=512)\nmodel = {}.get_peft_model(model, r=8)"
BITS = """config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules={})
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", quantization_config=config, dtype=torch.bfloat16)"""


def read(folder: Path, load: str, more: str = "") -> JobInput:
    (folder / "train.py").write_text(PROGRAM.format(load=load, more=more))
    return read_target(str(folder / "train.py"), {"num_gpus": 1, "gpu": "l4-24gb"})


def fast(name: str, more: str = "") -> str:
    return FAST.format(f"{name!r}{more}", "FastLanguageModel")


@pytest.mark.parametrize(
    ("name", "share", "bounded"),
    [
        ("unsloth/Qwen3-14B", 0.0607, False),
        ("Qwen/Qwen3-14B", 0.0607, False),
        ("unsloth/Qwen3-14B-unsloth-bnb-4bit", 0.0607, False),
        ("unsloth/Qwen3-32B", 0, False),
        ("unsloth/Qwen2.5-7B-Instruct", MOST["text"], True),
        ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", 0, False),
        ("unsloth/llama-3-8b-bnb-4bit", 0, False),
        ("unsloth/Qwen2.5-VL-3B-Instruct", MOST["images"], True),
    ],
)
def test_unsloth_loads_its_own_checkpoints(tmp_path: Path, name: str, share: float, bounded: bool) -> None:
    given = read(tmp_path, fast(name))
    assert given.job.unquantized_share == share
    assert any("leaves some linears in 16 bits" in each.why and each.above for each in given.unread) is bounded
    assert read(tmp_path, fast(name, ", load_in_4bit=False")).job.unquantized_share == 0


@pytest.mark.parametrize(
    ("left", "asks"),
    [("None", False), ('["lm_head", "vision_tower"]', False), ('["mlp.down_proj"]', True), ("X", True)],
)
def test_modules_that_a_program_leaves_unquantised(tmp_path: Path, left: str, asks: bool) -> None:
    given = read(tmp_path, BITS.format(left), ", peft_config=LoraConfig(r=8)")
    assert ("unquantized_share" in {each.asks for each in given.unread}) is asks


def test_quantisation_that_is_trained_for_is_not_counted(tmp_path: Path) -> None:
    given = read(tmp_path, FAST.format("'Qwen/Qwen3-4B', load_in_4bit=False", "FastLanguageModel").replace(
        "r=8", "r=8, qat_scheme='int4'"))  # fmt: skip
    assert {each.key: each.decides for each in given.unread}["qat_scheme"] == "quantisation"


@pytest.mark.parametrize("name", ["unsloth/gemma-4-E2B-it", "google/gemma-3-4b-it", "unsloth/Llama-3.2-11B-Vision"])
def test_images_of_a_vision_model_fill_the_sequence(tmp_path: Path, name: str) -> None:
    load = FAST.format(f"{name!r}", "FastVisionModel").replace("FastLanguageModel", "FastVisionModel")
    given = read(tmp_path, load)
    assert given.job.images is not None
    assert estimate(given).per_gpu.allocated_bytes > 0


def test_chunks_go_by_what_is_free() -> None:
    tokens, vocabulary = 4096, 151936
    assert chunk_count(tokens, vocabulary) == chunk_count(tokens, vocabulary, 2 * CHUNK_BYTES) == 1
    assert chunk_count(tokens, vocabulary, 4 * 10**9) == 4
    assert chunk_count(tokens, vocabulary, 4 * 10**8) == 16
    cards = [
        made("qwen3-14b", method="sft", trainer="trl", kernels="unsloth", sequence_length=2048, batch_size=2,
                 unquantized_share=0.0607, **{**QLORA, "gpu": gpu}) for gpu in ("t4-16gb", "a100-80gb")
    ]  # fmt: skip
    logits = [sum(row.bytes for row in each.per_gpu.ledger if row.category == "logits") for each in cards]
    assert logits[0] < logits[1] / 2


def test_a_model_of_transformers_5_runs_beside_it() -> None:
    old, new = (made("gemma-4-26b-a4b", method="sft", trainer="trl", trainer_version=version,
                     kbit_upcast=False, **QLORA) for version in ("0.23", "1.0"))  # fmt: skip
    assert weights(old) == pytest.approx(weights(new), rel=0.001)
    assert weights(old) > 40 * GB  # stacked experts, which bitsandbytes leaves alone
    older = made("qwen3-30b-a3b", method="sft", trainer="trl", trainer_version="0.23", **QLORA)
    assert weights(older) < 20 * GB
