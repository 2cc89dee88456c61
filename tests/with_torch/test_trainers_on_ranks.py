"""Proves that trainers' own losses hold on several ranks what the same code holds in torch, in every phase.

Heads that read their weight without calling the module meet the hooks of FSDP and DDP at the model's own forward; with
adapters, accelerate's last unit is the head alone, which no hook gathers.
"""

from typing import Any

import pytest
from traced_jobs import TINY, agree_in_every_phase, job, name, traces

from memplan.errors import MemplanError
from memplan.trace.result import Trace

CLOSE = 0.003
MODEL = TINY | {
    "hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1408, "vocab_size": 8192, "head_dim": 64,
}  # fmt: skip
OPT = {"model_type": "opt", "ffn_dim": 1408, "word_embed_proj_dim": 256, "do_layer_norm_before": False}
"""Norms stand in its residual stream, which autocast widens, and FSDP2 narrows again where it casts."""
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LORA: dict[str, Any] = {"lora": {"r": 8}}


def ranks(trainer: str, method: str, sharding: str, changes: dict[str, Any] | None = None, **keys: Any) -> Any:
    """A job on four GPUs at the trainer's own precision."""
    described = job(MODEL, changes, batch_size=1, sequence_length=256, num_gpus=4)
    del described["precision"]
    return described | {"trainer": trainer, "method": method, "sharding": sharding, **keys}


JOBS = [
    ranks("trl", "dpo", "fsdp2", **LORA),
    ranks("trl", "dpo", "fsdp2", **LORA, reference="resident", gradient_checkpointing="none"),
    ranks("trl", "dpo", "fsdp2", {"tie_word_embeddings": True}, **LORA),
    ranks("trl", "sft", "fsdp2", **LORA, eval_batch_size=16),
    ranks("trl", "kto", "fsdp2", **LORA, eval_batch_size=32),
    ranks("trl", "sft", "fsdp2", {"tie_word_embeddings": True}, eval_batch_size=1),
    ranks("pytorch", "sft", "fsdp2", eval_batch_size=1, precision="bf16"),
    ranks("trl", "sft", "fsdp2", OPT, **LORA),
    ranks("transformers", "sft", "fsdp2", OPT, precision="bf16-amp"),
    ranks("trl", "sft", "fsdp2", MIXTRAL),
    ranks("trl", "grpo", "fsdp2", **LORA),
    ranks("trl", "grpo", "ddp", **LORA),
    ranks("trl", "sft", "fsdp", **LORA),
    ranks("llamafactory", "dpo", "fsdp2", **LORA, eval_batch_size=16),
    ranks("llamafactory-v1", "sft", "fsdp2"),
    ranks("llamafactory-v1", "sft", "fsdp2", **LORA, autocast=True, sequence_length=1536),
    ranks("openrlhf", "sft", "fsdp2"),
    ranks("verl", "sft", "fsdp2"),
    ranks("simpo-repo", "simpo", "ddp"),
]
"""The head gathered by the loss, of policy and reference, and casts of it tile after tile; evaluations in their
trainer's order; losses outside of the root's forward; a root that reshards."""


@pytest.fixture(scope="module")
def found() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, JOBS), traces(JOBS), strict=True))


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_a_trainer_on_ranks_agrees(described: dict[str, Any], found: dict[str, Trace | MemplanError]) -> None:
    agree_in_every_phase(described, found[name(described)], CLOSE)
