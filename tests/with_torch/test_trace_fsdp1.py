"""Proves FSDP1's rows: what torch's flat parameters allocate on a pretended group, phase by phase."""

from typing import Any

import pytest
from traced_jobs import TINY, job, name, phases, traces

from memplan.api import estimate
from memplan.engine.allocator.events import step_events
from memplan.engine.build import build_ledger
from memplan.errors import MemplanError
from memplan.moments import phase_of
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.trace.result import Trace

pytestmark = pytest.mark.filterwarnings("ignore")

COMMON = {"batch_size": 2, "sequence_length": 48, "optimizer_impl": "fused", "sharding": "fsdp", "num_gpus": 8}
WIDE = {"hidden_size": 512, "intermediate_size": 1408, "vocab_size": 8000}
"""So wide that blocks of 512 bytes weigh little."""
POST = "BACKWARD_POST"
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}


def fsdp1(changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return job(TINY, WIDE | (changes or {}), **{**COMMON, **keys})


JOBS = [
    *(fsdp1(reduce_dtype=dtype, **full) for dtype in ("bf16", "fp32") for full in ({}, FULL)),
    *(fsdp1(fsdp={"backward_prefetch": how}, **FULL) for how in ("BACKWARD_POST", "NO_PREFETCH")),
    fsdp1(fsdp={"sharding_strategy": "SHARD_GRAD_OP"}),
    fsdp1(fsdp={"sharding_strategy": "HYBRID_SHARD", "replicate": 2}),
    *(fsdp1(gradient_accumulation_steps=3, sync_each_batch=sync) for sync in (True, False)),
    fsdp1(precision="bf16", **FULL),
    fsdp1({"tie_word_embeddings": True}),
    *(
        fsdp1(trainer="transformers", lora={"r": 8}, **FULL, **how)
        for how in ({}, {"fsdp": {"backward_prefetch": POST}})
    ),
    *(
        fsdp1(trainer="transformers", lora={"r": 8, "modules_to_save": saved}, **how)
        for saved, how in (
            (["embed_tokens", "lm_head"], FULL),
            (["lm_head"], {}),
            (["embed_tokens", "lm_head"], {"gradient_accumulation_steps": 3, "sync_each_batch": False}),
        )
    ),
    fsdp1(trainer="transformers", lora={"r": 64}, reduce_dtype="fp32"),
    fsdp1(lora={"r": 8}, precision="bf16-amp"),
    fsdp1(
        lora={"r": 8, "modules_to_save": ["lm_head"]},
        precision="bf16-amp",
        gradient_accumulation_steps=3,
        sync_each_batch=False,
    ),
    fsdp1(freeze=["embed_tokens", "layers.0"], fsdp={"use_orig_params": True}),
    fsdp1({"num_hidden_layers": 4, "vocab_size": 1000}, method="cpo", pair_pass="two-forward", **FULL),
    fsdp1(fsdp={"sharding_strategy": "SHARD_GRAD_OP"}, gradient_accumulation_steps=3, sync_each_batch=False, **FULL),
]


@pytest.fixture(scope="module")
def traced() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, JOBS), traces(JOBS), strict=True))


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_an_estimate_equals_the_trace(described: dict[str, Any], traced: dict[str, Trace | MemplanError]) -> None:
    ledger = build_ledger(resolve(read_job(described)))
    found: dict[str, int] = {}
    for instant, size in zip(ledger.schedule, ledger.totals(), strict=True):
        found[phase_of(instant)] = max(size, found.get(phase_of(instant), 0))
    assert found == pytest.approx(phases(traced[name(described)]), rel=0.013)


AHEAD = [
    fsdp1(
        {"num_hidden_layers": 4},
        precision="bf16-amp",
        fsdp={"forward_prefetch": True, "backward_prefetch": how},
        **full,
    )
    for how, full in ((POST, FULL), (POST, {}), ("BACKWARD_PRE", FULL))
]


def test_a_gather_ahead_in_forward_holds_gradients_for_a_layer_longer() -> None:
    """Its views are older than the layer before it, and autograd runs the latest node first."""
    for described, found in zip(AHEAD, map(phases, traces(AHEAD)), strict=True):
        events = step_events(resolve(read_job(described)))
        assert events is not None
        assert events.peak == pytest.approx(max(found.values()), rel=0.002)
        assert max(estimate(described).per_gpu.phases.values()) == pytest.approx(max(found.values()), rel=0.03)


def test_two_forwards_are_played_as_they_run_back(traced: dict[str, Trace | MemplanError]) -> None:
    """Each layer stays whole from the one to the other, and its first flat gradient waits for the second."""
    described = next(each for each in JOBS if each.get("pair_pass"))
    events = step_events(resolve(read_job(described)))
    assert events is not None
    assert events.peak == pytest.approx(max(phases(traced[name(described)]).values()), rel=0.002)
