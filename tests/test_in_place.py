"""Proves what naming a card changes in the figures: a real device adds and scatters in place."""

from typing import Any

import pytest

from memplan.engine.build import build_ledger
from memplan.resolve import resolve
from memplan.spec.reading import read_job


@pytest.mark.parametrize("method", ["sft", "dpo", "simpo", "orpo"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b"])
def test_a_real_device_adds_in_place(method: str, model: str) -> None:
    """A card's name adds cuBLAS's workspaces, and takes away sums and scatters that stood beside their parts."""
    job = {"model": model, "method": method, "gradient_checkpointing": "full", "sequence_length": 1024}
    traced, real = (build_ledger(resolve(read_job({**job, **more}))) for more in ({}, {"gpu": "h200"}))
    workspaces = sum(row.bytes for row in real.rows if row.category == "workspaces")
    more = [after - before - workspaces for before, after in zip(traced.totals(), real.totals(), strict=True)]
    assert max(more) <= 0
    if model == "llama-3.2-1b":
        tokens = 2 * 1024  # whose gradient is gone where the sum is another tensor, and not where it is in place
        assert min(more) <= -(128256 - tokens) * 2048 * 2, "the tied embedding's gradient is added to the head's"


def test_the_math_kernel_asks_each_score_whether_it_is_minus_infinity() -> None:
    """``_safe_softmax`` of fp32 grouped heads: on a real device a byte for each score, of both of a pair."""
    job: dict[str, Any] = {
        "model": "llama-3.2-1b",
        "precision": "fp32",
        "gradient_checkpointing": "full",
        "optimizer": "sgd",
    }
    job |= {"sequence_length": 8192, "batch_size": 1, "freeze": ["embed_tokens"], "method": "reward"}
    traced, real = (build_ledger(resolve(read_job({**job, **more}))) for more in ({}, {"gpu": "h200"}))
    workspaces = sum(row.bytes for row in real.rows if row.category == "workspaces")
    assert real.totals()[0] - traced.totals()[0] - workspaces == 2 * 32 * 8192**2
