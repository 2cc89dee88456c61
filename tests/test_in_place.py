"""Proves what naming a card changes in the figures: a real device adds and scatters in place."""

import pytest

from memplan.engine.build import ledger
from memplan.resolve import resolve
from memplan.spec.reading import read_job


@pytest.mark.parametrize("method", ["sft", "dpo", "simpo", "orpo"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b"])
def test_a_real_device_adds_in_place(method: str, model: str) -> None:
    """A card's name adds cuBLAS's workspaces, and takes away sums and scatters that stood beside their parts."""
    job = {"model": model, "method": method, "gradient_checkpointing": "full", "sequence_length": 1024}
    traced, real = (ledger(resolve(read_job({**job, **more}))) for more in ({}, {"gpu": "h200"}))
    workspaces = sum(row.bytes for row in real.rows if row.category == "workspaces")
    more = [after - before - workspaces for before, after in zip(traced.totals(), real.totals(), strict=True)]
    assert max(more) <= 0
    if model == "llama-3.2-1b":
        assert min(more) <= -128256 * 2048 * 2, "the tied embedding's gradient is added to the head's"
