"""Proves that FSDP's hooks, played over layers that are black boxes, hold the same where most of equal layers are left
out, and that what they hold depends on no batch."""

from typing import Any

import pytest

from memplan.engine.build import build_ledger
from memplan.engine.play import boxes, folded_boxes
from memplan.resolve import resolve
from memplan.spec.reading import read_job

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 14, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 704, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v2", "first_k_dense_replace": 3, "moe_intermediate_size": 352, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "q_lora_rank": None, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip
JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kept from forward": {"reshard_after_forward": False},
    "parts": {"reshard_after_forward": 4},
    "tied": {"model": LLAMA | {"tie_word_embeddings": True}, "trainer": "trl"},
    "layers of two kinds": {"model": DEEPSEEK},
    "waiting": {"gradient_accumulation_steps": 4, "sync_each_batch": False, "reduce_dtype": "fp32"},
    "offloaded": {"fsdp": {"cpu_offload": True, "replicate": 2}},
    "a sharded reference": {"method": "dpo", "trainer": "trl"},
    "two forwards": {"method": "cpo", "pair_pass": "two-forward"},
    "half by half": {"method": "dpo", "pair_pass": "split"},
    "evaluated": {"eval_batch_size": 4, "trainer": "trl"},
    "adapters": {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}, "gradient_checkpointing": "none"},
}
FLAT: dict[str, dict[str, Any]] = {
    "gathered ahead": {"fsdp": {"forward_prefetch": True}},
    "after": {"fsdp": {"backward_prefetch": "BACKWARD_POST"}},
    "not ahead": {"fsdp": {"backward_prefetch": "NO_PREFETCH"}},
    "kept": {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}},
    "adapters apart": {"trainer": "trl", "lora": {"r": 8}},
    "waiting": {"gradient_accumulation_steps": 4, "sync_each_batch": False},
    "two forwards": {"method": "cpo", "pair_pass": "two-forward"},
}
ALL = [("fsdp2", name, keys) for name, keys in JOBS.items()] + [("fsdp", name, keys) for name, keys in FLAT.items()]


def totals(sharding: str, keys: dict[str, Any], **more: Any) -> list[int]:
    job = {"model": LLAMA, "method": "sft", "num_gpus": 8, "batch_size": 1, "sequence_length": 64, "sharding": sharding}
    job |= {"precision": "bf16-amp", "gradient_checkpointing": "full"} | keys | more
    return build_ledger(resolve(read_job(job))).totals()


@pytest.mark.parametrize(("sharding", "name", "keys"), ALL, ids=[f"{sharding}-{name}" for sharding, name, _ in ALL])
def test_layers_that_are_left_out_change_nothing(
    sharding: str, name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folded_boxes.moments_of.cache_clear()
    short, found = totals(sharding, keys), list[int]()
    folded_boxes.moments_of.cache_clear()
    run = folded_boxes._run

    def whole(question: boxes.Question) -> tuple[int, int]:
        found.append(run(question)[1])
        return 0, 0

    monkeypatch.setattr(folded_boxes, "_run", whole)
    assert totals(sharding, keys) == short
    assert min(found) > 1, "some are left out"
    folded_boxes.moments_of.cache_clear()


@pytest.mark.parametrize("sharding", ["fsdp", "fsdp2"])
def test_another_batch_asks_nothing_anew(sharding: str) -> None:
    totals(sharding, {})
    before = folded_boxes.moments_of.cache_info()
    totals(sharding, {}, batch_size=4, sequence_length=512)
    after = folded_boxes.moments_of.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)
