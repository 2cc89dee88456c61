"""Selective checkpointing, every n-th layer, saved tensors on the host, and Liger's layers: engine and torch agree.

Small vocabularies, so that a layer and not the loss is at the peak of backward.
"""

from typing import Any

import pytest
from traced_jobs import SMALL, agree_in_every_phase, job, name, traces

from memplan.errors import MemplanError
from memplan.trace.result import Trace

CLOSE = 0.0005
COMMON: dict[str, Any] = {"batch_size": 2, "sequence_length": 1024, "optimizer": "sgd"}
LEAN = {"vocab_size": 1000}
SELECTIVE: dict[str, Any] = {"gradient_checkpointing": "selective"}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
AWAY: dict[str, Any] = {"offload": ["activations"]}
LIGER: dict[str, Any] = {"kernels": "liger", "loss_head": "cross-entropy"}
AMP: dict[str, Any] = {"precision": "bf16-amp"}
EAGER: dict[str, Any] = {"attention": "eager"}
JOBS = [
    *(job(SMALL, LEAN, **SELECTIVE, **keys) for keys in (
        {}, AMP, EAGER, {"padded": True}, {"precision": "fp16"}, {"lora": {"r": 16}}, {"method": "dpo"},
        {"lora": {"r": 16, "dropout": 0.1}}, {"trainer": "trl"},
    )),
    *(job(SMALL, LEAN | {"model_type": family}, **SELECTIVE) for family in ("qwen2", "qwen3", "gemma", "phi3")),
    *(job(SMALL, LEAN | {"model_type": family}, gradient_checkpointing="full:1,keep-matmuls:2") for family in (
        "qwen2", "gemma", "phi3", "gemma3_text",
    )),
    job(SMALL, LEAN | {"num_hidden_layers": 1}, **SELECTIVE),
    *(job(SMALL, LEAN, gradient_checkpointing=how, **keys) for how, keys in (
        ("every:2", {}), ("every:3", AMP), ("every:2", {"lora": {"r": 16}}),
        ("every:2", {"gradient_checkpointing_reentrant": True}), ("every:3", {"trainer": "transformers"}),
        ("full:1", {}), ("full:3", AMP), ("full:2", {"lora": {"r": 16}}), ("selective:2", {}),
        ("full:2", {"method": "dpo"}), ("full:2", {"gradient_accumulation_steps": 2}), ("full:1,selective:2", {}),
        ("full:1,keep-attention:1,selective:1,keep-matmuls:1", AMP), ("keep-matmuls:4", {}), ("keep-matmuls:2", LIGER),
        ("keep-matmuls:3", {"lora": {"r": 16}}), ("keep-attention:3", {"lora": {"r": 16, "dropout": 0.1}}),
        ("keep-matmuls:3", {"method": "dpo"}),
    )),
    *(job(SMALL, LEAN, **AWAY, **keys) for keys in (
        {}, AMP, {"padded": True}, {"padded": True, **EAGER}, {"lora": {"r": 16}}, {"method": "dpo"}, SELECTIVE, FULL,
        {"gradient_checkpointing_reentrant": True, **FULL}, {"lora": {"r": 16}, **FULL}, {"eval_batch_size": 2},
    )),
    *(job(SMALL, LEAN, **LIGER, **keys) for keys in ({}, AMP, EAGER, FULL, SELECTIVE, {"lora": {"r": 16}})),
    *(job(SMALL, LEAN | {"model_type": family}, **LIGER) for family in ("qwen3", "phi3", "gemma3_text", "olmo2")),
    job(SMALL, LEAN | {"model_type": "glm4"}, **LIGER),
    job(SMALL, LEAN, kernels="foak"),
    *(job(SMALL, LEAN, **EAGER, precision=precision) for precision in ("fp16", "fp16-amp", "bf16-amp")),
]  # fmt: skip
ALL = [{**COMMON, **each} for each in JOBS]
REFUSED = [
    ({**SELECTIVE, "trainer": "mindspeed"}, "gradient_checkpointing: Megatron's modules cannot be traced"),
    ({**AWAY, "trainer": "trl"}, "offload: TRL's streams and halves of pairs cannot be traced"),
    ({"compile": True}, "compile: what a compiler makes cannot be traced"),
]


@pytest.fixture(scope="module")
def traced() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, ALL), traces(ALL), strict=True))


@pytest.mark.parametrize("described", ALL, ids=name)
def test_trace_and_engine_agree_in_every_phase(
    described: dict[str, Any], traced: dict[str, Trace | MemplanError]
) -> None:
    agree_in_every_phase(described, traced[name(described)], CLOSE)


def test_what_cannot_be_run_is_refused() -> None:
    answers = traces([{**COMMON, **job(SMALL, LEAN), **keys} for keys, _ in REFUSED])
    assert [getattr(answer, "message", "") for answer in answers] == [message for _, message in REFUSED]
