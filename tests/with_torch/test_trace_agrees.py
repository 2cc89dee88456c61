"""Proves that trace and engine, made apart, say the same; and that a trace gives the measured rows again.

Both within 0.2 % in every phase. A job on which they differ has no place in these lists before one of them is shown
to be wrong.
"""

from typing import Any

import pytest
from traced_jobs import SMALL, agree_in_every_phase, job, name, phases, traces

from memplan.errors import MemplanError
from memplan.trace.result import Trace
from memplan.truth import TruthRow, default_folder, read_sets

CLOSE = 0.002
COMMON = {"batch_size": 2, "sequence_length": 512}
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
JOBS = [
    *(job(SMALL, {"model_type": family}) for family in ("qwen2", "qwen3", "mistral", "gemma", "phi3", "gemma3_text")),
    job(SMALL, {"model_type": "gemma2"}, attention="eager"),
    job(SMALL, {"model_type": "mixtral"}),
    job(SMALL, {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 512}),
    job(SMALL, precision="fp32"),
    job(SMALL, {"num_key_value_heads": 16}, precision="fp32"),
    job(SMALL, **AMP),
    job(SMALL, **AMP, attention="eager"),
    job(SMALL, padded=True),
    job(SMALL, {"head_dim": 288}),
    *(
        job(SMALL, {"model_type": "mistral", "sliding_window": 128}, **FULL, attention=each)
        for each in ("sdpa", "flash")
    ),
    *(job(SMALL, method=method) for method in ("reward", "dpo", "kto", "orpo", "simpo")),
    *(job(SMALL, method="dpo", pair_pass=schedule) for schedule in ("two-forward", "split", "gradcache")),
    job(SMALL, method="simpo", pair_pass="split", gradient_accumulation_steps=2, **FULL),
    job(SMALL, method="simpo", pair_pass="gradcache", **AMP),
    job(SMALL, method="kto", **AMP),
    job(SMALL, optimizer="adafactor"),
    job(SMALL, optimizer="adafactor", optimizer_impl="foreach"),
    *(job(SMALL, optimizer="adafactor", trainer="transformers", precision=each) for each in ("bf16", "fp32")),
    *(job(SMALL, optimizer="muon", precision=each) for each in ("bf16", "fp32")),
    job(SMALL, optimizer="muon", lora={"r": 16}),
    job(SMALL, {"vocab_size": 1000}, optimizer_impl="loop"),
    *(job(SMALL, freeze=each) for each in (["embed_tokens"], ["lm_head", "norm"], ["layers.*.mlp", "k_proj"])),
    *(job(SMALL, freeze=["embed_tokens", "layers.0-1"], **each) for each in ({}, FULL, AMP, {"method": "dpo"})),
    job(SMALL, {"tie_word_embeddings": True}, freeze=["layers.0-2"]),
    job(SMALL, {"model_type": "mixtral"}, freeze=["layers.*.mlp.experts"]),
    job(SMALL, freeze=["layers", "embed_tokens"], gradient_checkpointing="full"),
    job(SMALL, method="dpo", lora={"r": 16}),
    job(SMALL, method="dpo", lora={"r": 16}, reference="resident", autocast=True),
    job(SMALL, lora={"r": 16, "dropout": 0.05}, gradient_checkpointing_reentrant=True, **FULL),
    job(SMALL, {"tie_word_embeddings": True}, gradient_accumulation_steps=2, **FULL),
]
RANKS: dict[str, Any] = {"sharding": "fsdp2", "num_gpus": 4}
SHORT: dict[str, Any] = {"batch_size": 4, "sequence_length": 64}
"""So few tokens that what is gathered and reduced decides the peak."""
FP32_REDUCE: dict[str, Any] = {"precision": "bf16-amp", "reduce_dtype": "fp32"}
LATE: dict[str, Any] = {"gradient_accumulation_steps": 3, "sync_each_batch": False}
SPLIT: dict[str, Any] = {"method": "simpo", "pair_pass": "split", "sync_each_batch": False}
SHARDED = [
    *(job(SMALL, **{**RANKS, **size, **keys}) for size in ({}, SHORT) for keys in (
        {}, FP32_REDUCE | FULL, FP32_REDUCE | LATE, LATE, {"reshard_after_forward": False}, SPLIT, FP32_REDUCE | SPLIT,
        {"method": "dpo"}, {"method": "dpo", "pair_pass": "two-forward"}, {"method": "dpo", "lora": {"r": 16}, **FULL},
    )),
    *(job(SMALL, **{**RANKS, **SHORT, **FP32_REDUCE, "num_gpus": ranks}) for ranks in (2, 3)),
    *(job(SMALL, optimizer_args={"in_backward": True}, **{**RANKS, **SHORT, **keys})
      for keys in ({}, FP32_REDUCE | FULL, {"optimizer_impl": "foreach"})),
    job(SMALL, {"num_hidden_layers": 2, "num_local_experts": 4, "model_type": "mixtral"}, **RANKS | {"num_gpus": 8}),
    *(job(SMALL, sharding="ddp", num_gpus=2, gradient_as_bucket_view=view, **keys)
      for view in (False, True) for keys in (LATE, SPLIT, {"sync_each_batch": True})),
]  # fmt: skip
ALL = [{**COMMON, **each} for each in (*JOBS, *SHARDED)]

(TRACED,) = read_sets([default_folder() / "traced-transformers-5.23.json"])
CHOSEN = (3, 37, 53, 62, 66, 82, 84, 95, 107, 110, 114, 131, 133, 137, 139, 151)
"""One of every kind: families, autocast, fp32, eager, pairs, each schedule, adapters, optimizers, experts. All rows are
held against the engine by ``memplan accuracy``; the tracer is, above, in more kinds than these."""
ROWS = [row for row in TRACED.rows if row.id in {f"step-{number:03}" for number in CHOSEN}]

Answer = Trace | MemplanError


@pytest.fixture(scope="module")
def traced() -> dict[str, Answer]:
    return dict(zip(map(name, ALL), traces(ALL), strict=True))


@pytest.fixture(scope="module")
def traced_rows() -> dict[str, Answer]:
    return dict(zip((row.id for row in ROWS), traces([row.job for row in ROWS]), strict=True))


@pytest.mark.parametrize("described", ALL, ids=name)
def test_trace_and_engine_agree_in_every_phase(described: dict[str, Any], traced: dict[str, Answer]) -> None:
    agree_in_every_phase(described, traced[name(described)], CLOSE)


def test_the_chosen_rows_are_there() -> None:
    assert len(ROWS) == len(CHOSEN)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_trace_gives_a_measured_row_again(row: TruthRow, traced_rows: dict[str, Answer]) -> None:
    found = traced_rows[row.id]
    assert phases(found) == pytest.approx({phase: row.phases[phase] for phase in phases(found)}, rel=CLOSE)
    assert isinstance(found, Trace)
    assert {"params": found.parameters, "trainable": found.trainable} == row.parameters
