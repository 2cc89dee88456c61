"""Proves adapters against PEFT itself, run on fake tensors: every phase of the step, and trained counts."""

from typing import Any

import pytest
from traced_jobs import SMALL, agree_in_every_phase, job, name, traces

from memplan.api import estimate
from memplan.errors import MemplanError
from memplan.trace.result import Trace

CLOSE = 0.002
COMMON = {"batch_size": 2, "sequence_length": 512}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
SECOND: dict[str, Any] = {"reference": "second-adapter"}
DORA = {"r": 16, "dora": True}
ENDS = {"r": 16, "targets": ["q_proj", "v_proj", "embed_tokens", "lm_head"]}
SOME = {"r": 16, "targets": ["q_proj", "v_proj", "down_proj"]}
TIED: dict[str, Any] = {"tie_word_embeddings": True}
MIXTRAL: dict[str, Any] = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
MIXTRAL |= {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
QWEN3: dict[str, Any] = {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 512}
ALL = [
    {**COMMON, **each}
    for each in (
        job(SMALL, lora=DORA),
        job(SMALL, lora=DORA | {"dropout": 0.1}),
        job(SMALL, lora=DORA | {"dropout": 0.1}, **FULL),
        job(SMALL, lora=DORA | {"dtype": "bf16", "targets": ["q_proj", "v_proj"]}),
        job(SMALL, {"model_type": "qwen2"}, lora=DORA),
        job(SMALL, lora=DORA, autocast=True),
        job(SMALL, {"model_type": "qwen2"}, lora=DORA, precision="bf16-amp", autocast=True),
        job(SMALL, lora=DORA | {"dropout": 0.1}, precision="bf16-amp", autocast=True, **FULL),
        job(SMALL, lora={"r": 16, "modules_to_save": ["embed_tokens", "lm_head"]}),
        job(SMALL, lora={"r": 16, "modules_to_save": ["embed_tokens"]}, **FULL),
        job(SMALL, lora=ENDS),
        job(SMALL, TIED, lora=ENDS, **FULL),
        job(SMALL, lora=ENDS | {"dropout": 0.1}, method="dpo", reference="adapter", autocast=True),
        job(SMALL, lora={"r": 64, "dropout": 0.1}, method="dpo", **SECOND, autocast=True),
        job(SMALL, lora=ENDS | {"targets": ["q_proj", "embed_tokens"]}, method="dpo", **SECOND, trainer="trl", **FULL),
        job(SMALL, lora={"r": 64}, method="kto", **SECOND, num_gpus=4, sharding="ddp", **FULL),
        job(
            SMALL, lora={"r": 64, "dtype": "bf16"}, method="dpo", **SECOND, num_gpus=4, sharding="fsdp2", trainer="trl"
        ),
        job(SMALL, lora=ENDS, method="kto", reference="adapter", precision="bf16-amp", **FULL),
        job(SMALL, lora=ENDS, method="simpo"),
        job(SMALL, lora=ENDS, method="orpo", trainer="trl", **FULL),
        job(SMALL, lora={"r": 16, "targets": ["q_proj", "score", "embed_tokens"]}, method="reward"),
        job(SMALL, lora={"r": 16, "dora": True, "targets": ["q_proj", "lm_head"]}),
        job(SMALL, {"model_type": "gemma"} | TIED, lora=ENDS),
        job(SMALL, lora=ENDS | {"dtype": "bf16"}, num_gpus=4, sharding="fsdp2", trainer="transformers"),
        job(SMALL, TIED, lora=ENDS | {"dtype": "bf16"}, num_gpus=4, sharding="fsdp2", method="simpo", **FULL),
        job(SMALL, lora=SOME | {"rank_pattern": {"q_proj": 64}, "layers_to_transform": [1, 3], "lora_bias": True}),
        job(SMALL, lora=SOME | {"layers_to_transform": [2], "exclude_modules": ["v_proj"]}, **FULL),
        job(SMALL, lora=SOME | {"trainable_token_indices": {"embed_tokens": 100, "lm_head": 2000}}, autocast=True),
        job(SMALL, TIED, lora=SOME | {"trainable_token_indices": 1000}, precision="bf16-amp", **FULL),
        job(SMALL, TIED, lora=SOME | {"trainable_token_indices": 1000}, trainer="trl", method="dpo"),
        job(SMALL, MIXTRAL, lora={"r": 16}),
        job(SMALL, MIXTRAL, lora={"r": 16}, **FULL),
        job(SMALL, MIXTRAL, lora={"r": 16, "dtype": "bf16"}),
        job(SMALL, QWEN3, lora={"r": 16, "targets": ["q_proj", "down_proj"]}),
    )
]


@pytest.fixture(scope="module")
def traced() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, ALL), traces(ALL), strict=True))


@pytest.mark.parametrize("described", ALL, ids=name)
def test_the_engine_says_what_peft_does(described: dict[str, Any], traced: dict[str, Trace | MemplanError]) -> None:
    answer = traced[name(described)]
    agree_in_every_phase(described, answer, CLOSE)
    assert isinstance(answer, Trace)
    assert answer.trainable == estimate(described).model.params.trainable
