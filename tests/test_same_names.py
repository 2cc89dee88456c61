"""A framework's word means here what it means there: dtype, 32-bit states, versions, keys given twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memplan
from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import Checked, check_file
from memplan.gpus import find_gpu
from memplan.planner import plan, questions
from memplan.render.estimate_view import estimate_blocks
from memplan.render.text import plain
from memplan.resolve import resolve
from memplan.spec.reading import read_job

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096, "max_position_embeddings": 4096,
}  # fmt: skip
LORA = {"r": 8, "targets": ["q_proj"]}


def resolved(**keys: Any) -> Any:
    return resolve(read_job({"model": TINY, "method": "sft", "sequence_length": 64, **keys}))


def checked(folder: Path, name: str, text: str, **options: Any) -> Checked:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return check_file(str(path), {"gpu": "80GB", "num_gpus": 1, **options})


# -- dtype ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "precision", "autocast"),
    [
        ({"trainer": "trl", "dtype": "bfloat16"}, "bf16", True),
        ({"trainer": "trl"}, "bf16-amp", True),
        ({"trainer": "trl", "dtype": "float32"}, "fp32", False),
        ({"trainer": "transformers", "trainer_version": "4.50", "dtype": "bf16"}, "bf16", True),
        ({"trainer": "transformers", "trainer_version": "4.50", "dtype": "fp16"}, "fp16-amp", True),
        ({"trainer": "trl", "dtype": "bf16", "num_gpus": 4, "sharding": "ddp"}, "bf16", True),
        ({"trainer": "trl", "dtype": "bf16", "num_gpus": 4, "sharding": "fsdp2"}, "bf16-amp", True),
        ({"trainer": "trl", "dtype": "bf16", "num_gpus": 4, "sharding": "fsdp2", "lora": LORA}, "bf16", True),
        ({"trainer": "trl", "dtype": "bf16", "num_gpus": 4, "zero_stage": 2}, "bf16-master", False),
        ({"trainer": "llamafactory", "dtype": "bf16"}, "bf16-amp", True),
        ({"trainer": "openrlhf", "dtype": "bf16"}, "bf16-master", False),
    ],
)
def test_dtype_is_what_the_trainers_own_dtype_is(keys: dict[str, Any], precision: str, autocast: bool) -> None:
    found = resolved(**keys).provenance.job
    assert (found["precision"], found["autocast"]) == (precision, autocast)


def test_bf16_weights_take_their_states_with_them() -> None:
    """Half of the fp32 scheme's, as the optimizer steps on the weights that were loaded."""
    half, whole = (
        memplan.estimate({"model": TINY, "method": "sft", "trainer": "trl", "sequence_length": 64, **dtype})
        for dtype in ({"dtype": "bfloat16"}, {})
    )
    states = [
        sum(row.bytes for row in found.per_gpu.ledger if row.category == "optimizer_states") for found in (half, whole)
    ]
    assert states[0] * 2 == states[1] > 0


# -- states of 32 bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "library", "states"), [("paged-adamw", "", 2), ("paged-lion", "", 1), ("adamw", "bitsandbytes", 2)]
)
def test_states_of_32_bits_are_fp32_beside_bf16_weights(optimizer: str, library: str, states: int) -> None:
    settings = {"optimizer_args": {"library": library}} if library else {}
    found = memplan.estimate({"model": TINY, "precision": "bf16", "sequence_length": 64, "optimizer": optimizer,
                              **settings})  # fmt: skip
    rows = [row for row in found.per_gpu.ledger if row.category == "optimizer_states"]
    assert sum(row.bytes for row in rows) == 4 * states * found.model.params.total


def test_managed_memory_is_on_the_card_while_there_is_room() -> None:
    """Beyond it the driver moves it to the host: a card is never too small for paged states."""
    deep = {**TINY, "num_hidden_layers": 12}
    job = {"model": deep, "precision": "bf16", "sequence_length": 64, "optimizer": "paged-adamw"}
    plain, tight, roomy = (
        memplan.estimate({**job, **more}, play=False) for more in ({}, {"gpu": "1GiB"}, {"gpu": "80GB"})
    )
    managed = sum(row.bytes for row in plain.per_gpu.ledger if row.meter == "managed")
    assert managed > 50_000_000
    bare = roomy.per_gpu.device_bytes.expected - managed
    assert bare < tight.per_gpu.device_bytes.expected < bare + managed
    assert tight.verdict is not None
    assert tight.verdict.fits == "tight"


# -- what is said twice, or cannot be ---------------------------------------------------------------------------------


def test_a_model_is_loaded_in_one_quantisation() -> None:
    with pytest.raises(InvalidJob, match="given twice: nf4 and int8"):
        read_job({"model": "x", "load_in_4bit": True, "load_in_8bit": True})
    assert read_job({"model": "x", "load_in_4bit": True, "quantization": "nf4-double"}).job.quantization == "nf4-double"
    assert read_job({"model": "x", "load_in_4bit": True, "load_in_8bit": False}).job.quantization == "nf4"


def test_another_model_is_not_at_the_files_revision() -> None:
    file = {"model": "a/b", "revision": "abc"}
    assert read_job({"model": "c/d"}, file).job.revision is None
    assert read_job({"model": "c/d", "revision": "e"}, file).job.revision == "e"
    assert read_job({}, file).job.revision == "abc"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"trainer": "trl", "trainer_version": "99"}, "99 is later than TRL 1.16"),
        ({"gpu": "v100-32gb"}, "v100-32gb has no bf16 matmuls (compute capability 7.0)"),
    ],
)
def test_what_cannot_run_so_is_said(keys: dict[str, Any], said: str) -> None:
    assert any(said in text for text in resolved(**keys).provenance.warnings)


@pytest.mark.parametrize(
    "keys", [{"trainer": "trl", "trainer_version": "1.16.2"}, {"gpu": "t4", "dtype": "fp16"}, {"gpu": "a100-80gb"}]
)
def test_what_can_run_is_not_warned_about(keys: dict[str, Any]) -> None:
    said = resolved(**keys).provenance.warnings
    assert not any("later than" in text or "matmuls" in text or "older than" in text for text in said)


def test_flash_attention_caps_scores_itself() -> None:
    capped = {**TINY, "model_type": "gemma2", "head_dim": 64, "attn_logit_softcapping": 50.0}
    assert resolved(model=capped, attention="flash").operators.attention == "flash"
    assert resolved(model=capped).operators.attention == "eager"
    with pytest.raises(InvalidJob, match="sdpa cannot soft-cap"):
        resolved(model=capped, attention="sdpa")


# -- files as their own readers have them -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_last_of_two_equal_keys_counts(tmp_path: Path) -> None:
    """As PyYAML and json have it; memplan's own job files have each key once."""
    trl = "model_name_or_path: smollm2-135m\nuse_peft: false\nmax_length: 64\n{}dtype: bfloat16\nmax_length: 128\n"
    found = checked(tmp_path, "sft.yaml", trl.format(""))
    assert found.job["sequence_length"] == 128
    assert any("line 5: key 'max_length' is there twice, and the last one counts" in text for text in found.warnings)
    nested = checked(tmp_path, "sft.yaml", trl.format("x: {a: 1, a: 2}\n"))
    assert any("line 4: key 'a' is there twice" in text for text in nested.warnings)
    config = '{"model_name_or_path": "smollm2-135m", "use_peft": false,\n"max_length": 64,\n"max_length": 128}'
    found = checked(tmp_path, "sft.json", config)
    assert found.job["sequence_length"] == 128
    assert any("line 3: key 'max_length' is there twice" in text for text in found.warnings)
    own = checked(tmp_path, "job.yaml", "model: smollm2-135m\nbatch_size: 1\nbatch_size: 2\n")
    assert (own.fits, own.text) == ("error", "key 'batch_size' is there twice")


@pytest.mark.slow
def test_many_equal_keys_are_few_remarks(tmp_path: Path) -> None:
    text = "model_name_or_path: smollm2-135m\nuse_peft: false\n" + "max_length: 64\n" * 5000
    assert len(checked(tmp_path, "sft.yaml", text).warnings) < 30


def test_a_date_is_a_text(tmp_path: Path) -> None:
    text = "model_name_or_path: smollm2-135m\nuse_peft: false\nmax_length: 64\nrun_name: 2024-01-31\n"
    found = checked(tmp_path, "sft.yaml", text)
    assert found.fits == "yes"
    assert not any("run_name" in text for text in found.warnings)


# -- lengths that nobody says -----------------------------------------------------------------------------------------

TRL = "model_name_or_path: smollm2-135m\nuse_peft: false\n"


@pytest.mark.parametrize(
    ("name", "text", "options", "length"),
    [
        ("dpo.yaml", TRL, {}, 1024),
        ("dpo.yaml", TRL, {"trainer_version": "0.11"}, 512),
        ("dpo.yaml", TRL, {"trainer_version": "0.13"}, None),
        ("kto.yaml", TRL, {"trainer_version": "0.13"}, 512),
        ("sft.yaml", TRL, {"trainer_version": "0.11"}, 1024),
        ("sft.yaml", TRL + "max_length: null\n", {}, None),
        ("sft.yaml", TRL + "max_length: null\n", {"sequence_length": 64}, 64),
        ("sft.yaml", TRL + "max_length: null\nmax_seq_length: 96\n", {}, 96),
    ],
)
def test_a_length_that_no_file_says_is_the_trainers_or_asked_for(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], length: int | None
) -> None:
    found = checked(tmp_path, name, text, **options)
    asked = any(each["key"] == "sequence_length" for each in found.unread)
    assert (None if asked else found.job["sequence_length"]) == length
    assert (found.fits == "unclear") == asked


def test_a_base_is_quantised_once(tmp_path: Path) -> None:
    both = "load_in_4bit: true\nload_in_8bit: true\n"
    axolotl = f"base_model: smollm2-135m\nmicro_batch_size: 1\ndatasets: []\nadapter: lora\n{both}"
    for name, text in (("sft.yaml", TRL + both), ("axolotl.yaml", axolotl)):
        found = checked(tmp_path, name, text)
        assert (found.fits, "keep one of them" in found.hint) == ("error", True)


@pytest.mark.parametrize(("dtype", "held"), [("bf16", False), ("fp16", True)])
def test_a_card_without_bf16_matmuls_is_set_apart_of_those_that_hold_a_job(dtype: str, held: bool) -> None:
    job = {"model": "smollm2-135m", "method": "sft", "dtype": dtype, "padded": True}
    cards = {card.gpu: card for card in memplan.estimate(job).cards}
    assert cards["v100-32gb"].fits == cards["l4-24gb"].fits == "yes"
    assert (cards["v100-32gb"].lacks, cards["l4-24gb"].lacks) == ("" if held else "bf16", "")
    said = plain(estimate_blocks(memplan.estimate(job), 100))
    assert ("Without bf16 matmuls (use dtype fp16): " in said) != held
    assert ("rtx-2060-6gb" in said.split("Cards that hold it")[1].split("larger ones")[0]) == held


@pytest.mark.slow
def test_the_smallest_card_computes_in_the_jobs_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"model": "smollm2-135m", "method": "sft", "gpu": "h100-80gb"}
    monkeypatch.setattr(questions, "listed", lambda: [find_gpu("v100-16gb"), find_gpu("l4-24gb")])
    found = [
        plan(read_job({**job, "dtype": dtype}), ask=["smallest_card"], wanted=1).answers[0].value
        for dtype in ("bf16", "fp16")
    ]
    assert found == ["l4-24gb", "v100-16gb"]
