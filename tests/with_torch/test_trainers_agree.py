"""Proves that the engine's programs of trainers' losses hold what the same code holds in torch, in every phase.

The code is that of ``memplan.trace.loops`` and ``kernels``, line by line after the trainers' own; the engine's programs
were written from the same sources, apart. Batches of two, so that no slice of a batch is the whole.
"""

from typing import Any

import pytest
from traced_jobs import SMALL, agree_in_every_phase, job, name, traces

from memplan.api import estimate
from memplan.errors import MemplanError
from memplan.tables.trainer import by_method, names_method
from memplan.tables.trainers import TRAINERS
from memplan.trace.result import Trace
from memplan.trace.support import TRAINERS as TRACED

CLOSE = 0.003
TILES = 0.009
"""Of a head without logits, hidden states are a larger share."""
MODEL = SMALL | {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2, "intermediate_size": 1408}
COMMON = {"batch_size": 2, "sequence_length": 1024, "gradient_checkpointing": "none", "sharding": "none"}
BF16: dict[str, Any] = {"precision": "bf16", "autocast": False}
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
MIXED: dict[str, Any] = {"precision": "bf16", "autocast": True}
METHODS = ("sft", "dpo", "kto", "simpo", "orpo")


def jobs_of_the_table() -> list[dict[str, Any]]:
    """Every era with the methods that differ in code, each in one of the ways to store weights."""
    found: list[dict[str, Any]] = []
    for trainer, eras in TRAINERS.items():
        for era in eras if trainer in TRACED else ():
            ways = (BF16,) if era.megatron else (AMP, BF16, MIXED)
            for number, method in enumerate(method for method in METHODS if method in (era.methods.names or METHODS)):
                head = by_method(era.loss.heads, method, "")
                if head == "shifted-cross-entropy" and names_method(era.logits.fp32, method):
                    continue  # its models cast their logits in place: refused by the trace
                keys = {"trainer": era.name, "method": method} | ways[number % len(ways)]
                found.append({**COMMON, **job(MODEL), **keys} | ({"trainer_version": era.since} if era.since else {}))
    return found


def bare(**keys: Any) -> dict[str, Any]:
    return {**COMMON, **job(MODEL, **keys)}


LARGE_VOCABULARY = job(MODEL, {"vocab_size": 80000}, method="sft", trainer="trl", **AMP)
"""More than two of TRL's tiles, each a cast of fp32 weights."""
MORE = [
    LARGE_VOCABULARY | {"lora": {"r": 8}},
    LARGE_VOCABULARY | {"sequence_length": 3000, "completion_length": 3000},
    bare(method="dpo", loss_head="chunked"),
    bare(method="dpo", loss_head="chunked", **AMP),
    bare(method="sft", loss_head="chunked"),
    bare(method="sft", loss_head="chunked", **MIXED),
    bare(method="sft", loss_head="fused", lora={"r": 8}),
    bare(method="sft", kernels="liger"),
    bare(method="sft", kernels="liger", **AMP),
    bare(method="simpo", temperature=0.5, logits_dtype="fp32"),
    bare(method="simpo", recompute_loss=True),
    bare(method="simpo", recompute_loss=True, loss_head="log-softmax", logits_dtype="fp32"),
    bare(method="simpo", entropy="metric"),
    bare(method="simpo", entropy="loss"),
    bare(method="simpo", entropy="loss", logits_dtype="fp32"),
    bare(method="dpo", trainer="trl", trainer_version="0.14", sft_term=True, **AMP),
    bare(method="dpo", trainer="trl", trainer_version="0.24", sft_term=True, lora={"r": 8}, **MIXED),
    bare(method="sft", trainer="openrlhf", gradient_checkpointing="full", **AMP),
    bare(method="dpo", trainer="trl", trainer_version="1.13", lora={"r": 8}, **MIXED),
    bare(method="dpo", trainer="trl", trainer_version="1.14", completion_length=300, **AMP),
    bare(method="dpo", trainer="trl", gradient_checkpointing="full", **AMP),
    bare(method="sft", trainer="transformers", gradient_checkpointing="full", sequence_length=128, **AMP),
    bare(method="sft", trainer="transformers", gradient_checkpointing="full", sequence_length=256, optimizer="sgd"),
    bare(method="cpo", trainer="trl", batch_size=1),
    bare(method="orpo", trainer="trl", batch_size=1, padded=True, lora={"r": 8}),
    bare(method="dpo", trainer="openrlhf", entropy="loss"),
    bare(method="sft", trainer="litgpt", lora={"r": 8}, **AMP),
    bare(method="sft", trainer="slime", trainer_version="0.2", entropy="metric"),
    bare(method="sft", trainer="slime", trainer_version="0.3", entropy="metric"),
    bare(method="sft", trainer="slime", trainer_version="0.3", entropy="loss"),
    bare(method="sft", trainer="slime", trainer_version="0.3", recompute_loss=True),
    bare(method="sft", trainer="slime", trainer_version="0.3", temperature=0.8),
]
ALL = [{**COMMON, **each} for each in (*jobs_of_the_table(), *MORE)]


@pytest.fixture(scope="module")
def traced() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, ALL), traces(ALL), strict=True))


@pytest.mark.parametrize("described", ALL, ids=name)
def test_a_trainers_loss_holds_what_its_code_holds(
    described: dict[str, Any], traced: dict[str, Trace | MemplanError]
) -> None:
    without_logits = estimate(described).job["loss_head"] in ("fused", "chunked")
    agree_in_every_phase(described, traced[name(described)], TILES if without_logits else CLOSE)
