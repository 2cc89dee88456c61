"""Holds DeepSpeed's newer steps on the host, ZenFlow and SuperOffload, against hand counts from its code."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.engine.build import build_ledger
from memplan.engine.ledger import Ledger
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job

H, F, V, LAYERS, KV = 256, 1024, 512, 4, 128
MODEL = {
    "model_type": "llama", "hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": F, "vocab_size": V, "head_dim": 64, "tie_word_embeddings": False,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": MODEL, "method": "sft", "trainer": "pytorch", "sequence_length": 64, "dtype": "bf16", "num_gpus": 2,
    "zero_stage": 2, "offload": ["optimizer"],
}  # fmt: skip
ROWS_OF_HIDDEN = 2 * V + LAYERS * (H + 2 * KV + 2 * F)
"""Rows of matrices that have H columns: both tables, q, k, v, gate, up."""
HALF = (ROWS_OF_HIDDEN * H + LAYERS * H * (H + F) + (2 * LAYERS + 1) * H) // 2
"""Elements of a rank's part."""


def ledger(**keys: Any) -> Ledger:
    return build_ledger(resolve(read_job({**JOB, **keys})))


def sizes(of: Ledger) -> dict[str, int]:
    return {row.name: row.bytes for row in of.rows}


def selected(ratio: float) -> int:
    """int(ratio × columns) of each matrix, whole vectors."""
    from_hidden, from_heads, from_inner = (int(ratio * columns) for columns in (H, H, F))
    return ROWS_OF_HIDDEN * from_hidden + LAYERS * H * (from_heads + from_inner) + (2 * LAYERS + 1) * H


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_zenflows_states_are_of_the_selected_columns_of_the_whole_model(ratio: float) -> None:
    rows = sizes(ledger(deepspeed={"zenflow": {"topk_ratio": ratio}}))
    assert rows["states of what ZenFlow selects"] == 2 * 2 * selected(ratio)
    assert rows["gradients and weights of what ZenFlow selects"] == 2 * 2 * selected(ratio)


def test_its_states_may_wait_on_the_host_and_the_host_step_beside_the_next() -> None:
    found = ledger(deepspeed={"zenflow": {"offload": True, "overlap_step": True}, "overlap_comm": True})
    places = {row.name: row.place for row in found.rows}
    assert places["states of what ZenFlow selects"] == "host"
    assert sizes(found)["second gradients and weights before the step"] == pytest.approx(8 * HALF, abs=64)


def test_superoffloads_worker_has_a_page_locked_gradient_of_its_largest_sub_group() -> None:
    keys = {
        "zero_stage": 3,
        "offload": [],
        "deepspeed": {"offload_optimizer": {"device": "cpu", "super_offload": True}},
    }
    plain = {"zero_stage": 3}
    worker = sizes(ledger(**keys))["gradients of the worker that steps"]
    assert worker == 1 << (4 * HALF - 1).bit_length()
    card = [row.bytes for row in ledger(**plain).rows if row.place == "gpu"]
    assert [row.bytes for row in ledger(**keys).rows if row.place == "gpu"] == card


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zero_stage": 3}, "deepspeed: zenflow with zero3 is not modelled"),
        ({"offload": []}, "deepspeed: zenflow with an optimizer on the card"),
        ({"optimizer": "lion"}, "deepspeed: zenflow with lion"),
    ],
)
def test_what_zenflow_does_not_run_with(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        ledger(deepspeed={"zenflow": {"topk_ratio": 0.1}}, **given)
    assert caught.value.message.startswith(message)
