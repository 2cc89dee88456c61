"""Proves that trace and engine agree on what unseen jobs once showed: two graphs of one backward, reentrant or not;
dense layers of mixture families under LoRA; copies that products make in eager attention; trained copies of modules in
a loop over tensors.
"""

from typing import Any

import pytest
from traced_jobs import SMALL, agree_in_every_phase, job, name, traces

from memplan.errors import MemplanError
from memplan.trace.result import Trace

CLOSE = 0.003
COMMON: dict[str, Any] = {"batch_size": 2, "sequence_length": 512}
SHORT: dict[str, Any] = {"batch_size": 1, "sequence_length": 64}
"""So few tokens that gradients decide the peak."""
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
REENTRANT: dict[str, Any] = {**FULL, "gradient_checkpointing_reentrant": True}
TWICE: dict[str, Any] = {"gradient_accumulation_steps": 2}
TIED: dict[str, Any] = {"tie_word_embeddings": True}
EAGER: dict[str, Any] = {"attention": "eager", "lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}
PARTIAL: dict[str, Any] = {"num_key_value_heads": 16, "partial_rotary_factor": 0.5}
HEADS: dict[str, Any] = {"num_key_value_heads": 16}
DENSE: dict[str, Any] = {
    "n_routed_experts": 8, "moe_intermediate_size": 512, "num_experts_per_tok": 2, "first_k_dense_replace": 4,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
SAVED: dict[str, Any] = {"lora": {"r": 8, "modules_to_save": ["embed_tokens", "lm_head"]}}
JOBS = [
    *(job(SMALL, model, method="simpo", pair_pass="two-forward", **SHORT, **style, **precision, **steps)
      for model, style, precision, steps in (
          ({}, REENTRANT, {}, {}), ({}, REENTRANT, {}, TWICE), ({}, {}, {}, TWICE), ({}, {}, AMP, {}),
          (TIED, REENTRANT, {}, {}), (TIED, FULL, {}, TWICE), (TIED, REENTRANT, AMP, {}), (TIED, {}, AMP, {}),
      )),
    job(SMALL, {"model_type": "glm4_moe", **DENSE}, lora={"r": 64}),
    *(job(SMALL, {"model_type": family, **heads}, **EAGER, **style)
      for family, heads in (("helium", HEADS), ("phi", PARTIAL), ("stablelm", PARTIAL))
      for style in ({}, FULL)),
    *(job(SMALL, {"model_type": "phi3"}, attention="eager", precision="fp16", **style) for style in (FULL, REENTRANT)),
    *(job(SMALL, model, optimizer_impl="loop", **SAVED) for model in ({}, TIED)),
]  # fmt: skip
ALL = [{**COMMON, **each} for each in JOBS]
Answer = Trace | MemplanError


@pytest.fixture(scope="module")
def traced() -> dict[str, Answer]:
    return dict(zip(map(name, ALL), traces(ALL), strict=True))


@pytest.mark.parametrize("described", ALL, ids=name)
def test_trace_and_engine_agree_in_every_phase(described: dict[str, Any], traced: dict[str, Answer]) -> None:
    agree_in_every_phase(described, traced[name(described)], CLOSE)
