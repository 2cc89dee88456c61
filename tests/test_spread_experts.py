"""Holds experts that FSDP2's ranks hold different ones of, torchtitan's expert parallelism, against its own code on
fake tensors, and against hand counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner_of

from memplan.api import estimate
from memplan.engine import micro_step
from memplan.engine.allocator.events import step_events
from memplan.engine.build import build_ledger
from memplan.engine.layers.moe import experts
from memplan.engine.layers.moe.dispatched import dispatched
from memplan.engine.ranks import rank_class
from memplan.errors import InvalidJob
from memplan.planner.planning import question
from memplan.planner.space import layouts
from memplan.resolve import resolve
from memplan.spec.reading import read_job

H, F, E, K, V, LAYERS = 256, 512, 8, 2, 512, 4
MODEL = {
    "model_type": "qwen3_moe", "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "moe_intermediate_size": F, "num_experts": E,
    "num_experts_per_tok": K, "vocab_size": V, "head_dim": 64, "tie_word_embeddings": False, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
JOB: dict[str, Any] = {"model": MODEL, "method": "sft", "trainer": "pytorch", "sequence_length": 2048}
SPREAD: dict[str, Any] = {"num_gpus": 8, "sharding": "fsdp2", "precision": "bf16-amp", "expert_parallel": 4}


@pytest.mark.parametrize(
    ("checkpointing", "traced"), [("none", (256765952, 258846208)), ("full", (105903104, 154306048))]
)
def test_the_program_is_torchtitans(
    monkeypatch: pytest.MonkeyPatch, checkpointing: str, traced: tuple[int, int]
) -> None:
    """Its experts and what is around them put into transformers' block, their exchanges copies; torch 2.13."""
    monkeypatch.setattr(experts, "grouped", dispatched)
    phases = estimate({**JOB, "precision": "bf16", "gradient_checkpointing": checkpointing}).per_gpu.phases
    assert (phases["forward"], phases["backward"]) == pytest.approx(traced, rel=6e-4)


def rows(instant: str = "", **keys: Any) -> dict[str, int]:
    ledger = build_ledger(rank_class(resolve(read_job({**JOB, **SPREAD, **keys}))).recipe)
    return {row.name: row.bytes for row in (ledger.alive(instant) if instant else ledger.rows)}


def test_states_are_shared_as_before_and_weights_are_gathered_without_others_experts() -> None:
    spread, whole = rows(), rows(expert_parallel=1)
    assert spread["weights of the policy"] == whole["weights of the policy"]
    assert spread["AdamW states"] == whole["AdamW states"]
    dense = 2 * H * H + 2 * H * 128 + H * E + 2 * H + 2 * 64
    spread, whole = (rows("policy.layer-forward", expert_parallel=n) for n in (4, 1))
    layer, ahead = "gathered weights of layers", "all-gather output of layers"
    assert whole[layer] == whole[ahead] >= 2 * (dense + 3 * E * F * H)
    assert spread[layer] == pytest.approx(2 * (dense + 3 * E * F * H // 4), rel=0.001)
    assert spread[ahead] in (spread[layer], 2 * spread[layer]), "told what comes next, unless it is the last"


def test_uneven_routing_is_in_the_high_figure() -> None:
    """Twice the mean: three widths of hidden states and four of an expert, of each token's experts in each layer."""
    spread, whole = (estimate({**JOB, **SPREAD, "expert_parallel": n}).per_gpu.allocated_range for n in (4, 1))
    more = LAYERS * 2048 * K * (3 * H + 4 * F) * 2
    assert (spread.high - spread.low) - (whole.high - whole.low) == pytest.approx(more, rel=0.02)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor_parallel": 2, "expert_tensor_parallel": 4, "num_gpus": 32}, "tensor_parallel: inline config under"),
        ({"expert_parallel": 3, "num_gpus": 9}, "expert_parallel: 3 does not divide"),
        ({"fsdp": {"replicate": 4}}, "expert_parallel: inline config under FSDP2"),
        ({"lora": {"r": 8}}, "expert_parallel: 4 under FSDP2 is not modelled with lora"),
        ({"model": "gpt-oss-20b"}, "expert_parallel: 4 under FSDP2 is not modelled with eager"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        resolve(read_job({**JOB, **SPREAD, **given}))
    assert caught.value.message.startswith(message)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


def test_torchtitans_degree_is_read(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "train.toml"
    text = '[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[training]\nseq_len = 4096\n[parallelism]\n'
    path.write_text(text + "expert_parallel_degree = 8\n")
    job = json.loads(run("estimate", str(path), "--json")[1])["job"]
    assert (job["expert_parallel"], job["sharding"]) == (8, "fsdp2")
    path.write_text(
        text + "expert_parallel_degree = 4\nexpert_tensor_parallel_degree = 2\ntensor_parallel_degree = 2\n"
    )
    job = json.loads(run("estimate", str(path), "--json")[1])["job"]
    assert (job["tensor_parallel"], job["expert_tensor_parallel"]) == (2, 2)


MLA = {
    "model_type": "deepseek_v3", "hidden_size": H, "intermediate_size": 1024, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": V, "moe_intermediate_size": F,
    "n_routed_experts": E, "n_shared_experts": 2, "num_experts_per_tok": K, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}  # fmt: skip


@pytest.mark.parametrize("model", [MODEL, MLA], ids=["heads", "latent"])
@pytest.mark.parametrize(
    "keys",
    [
        {"tensor_parallel": 2},
        {"tensor_parallel": 2, "expert_tensor_parallel": 2},
        {"tensor_parallel": 2, "context_parallel": 2, "expert_parallel": 8},
    ],
    ids=str,
)
def test_states_are_whole_and_steps_are_played_whatever_is_divided(model: Any, keys: dict[str, int]) -> None:
    """Over all ranks: each expert and each product once, norms, latents and routers once for each tensor rank."""
    job = {**JOB, **SPREAD, "num_gpus": 16, "gpu": "h100-80gb", **keys, "model": model}
    found, alone = estimate(job), estimate({**JOB, **SPREAD, "num_gpus": 16, "model": model})
    states, before = (
        sum(row.bytes for row in each.per_gpu.ledger if row.name == "AdamW states") for each in (found, alone)
    )
    assert before <= states < 1.06 * before
    recorded = step_events(rank_class(resolve(read_job(job))).recipe)
    assert recorded is not None
    assert 0.99 < recorded.peak / found.per_gpu.allocated_bytes < 1.0005


def test_ranks_that_share_products_send_a_part_of_the_tokens_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchtitan's MoE.forward with ReordererSequenceParallel of two ranks in transformers' block; torch 2.13."""
    monkeypatch.setattr(experts, "grouped", dispatched)
    mode = micro_step.policy_mode
    monkeypatch.setattr(micro_step, "policy_mode", lambda recipe, recompute: mode(recipe, recompute)._replace(slices=2))
    phases = estimate({**JOB, "precision": "bf16"}).per_gpu.phases
    assert (phases["forward"], phases["backward"]) == pytest.approx((218853376, 220933632), rel=6e-4)


SELECTIVE = [
    (MODEL, (118636032, 150740480)),
    ({**MLA, "vocab_size": 2048, "moe_intermediate_size": 256, "num_experts_per_tok": 3}, (184770048, 215359488)),
]


@pytest.mark.parametrize(("model", "traced"), SELECTIVE, ids=["heads", "latent"])
def test_selective_checkpointing_keeps_products_of_routed_layers(model: Any, traced: tuple[int, int]) -> None:
    """memplan trace, torch 2.13: neither grouped products nor what experts are given is among what is kept."""
    job = {**JOB, "model": model, "precision": "bf16", "gradient_checkpointing": "selective"}
    phases = estimate(job).per_gpu.phases
    assert (phases["forward"], phases["backward"]) == pytest.approx(traced, rel=1e-3)


def test_plans_have_it_beside_fsdp2() -> None:
    space = question(read_job({**JOB, "num_gpus": 8, "gpu": "h100-80gb", "global_batch_size": 8, "sharding": "fsdp2"}))
    found = {layout.get("expert_parallel", 1) for layout in layouts(space.space)}
    assert found == {1, 2, 4, 8}
    assert any("tensor_parallel" in layout and "expert_parallel" in layout for layout in layouts(space.space))
