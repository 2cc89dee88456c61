"""Proves what foak's functions over a quantised base keep, by formulas of their source, and what is refused by name."""

from typing import Any

import pytest

from memplan.engine.build import build_ledger
from memplan.engine.micro_step import policy_plan
from memplan.engine.traces import trace_layer
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

HIDDEN, WIDE, HEADS, GROUPS, VOCABULARY = 512, 1024, 8, 4, 4096
LLAMA = {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": HEADS}
LLAMA |= {"num_key_value_heads": GROUPS, "intermediate_size": WIDE, "vocab_size": VOCABULARY}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ROWS, LENGTH = 2, 640
TOKENS = ROWS * LENGTH
BASE: dict[str, Any] = {"model": LLAMA, "method": "sft", "precision": "bf16", "autocast": True, "kernels": "foak"}
BASE |= {"quantization": "nf4-double", "trainer": "transformers", "trainer_version": "4.48", "kbit_upcast": False}


def recipe(dropout: float = 0.0, **keys: Any) -> Recipe:
    lora = {"r": 8, "targets": ATTENTION, "dropout": dropout}
    return resolve(read_job({**BASE, "lora": lora, "batch_size": ROWS, "sequence_length": LENGTH, **keys}))


def saved(found: Recipe) -> int:
    plan = policy_plan(found, "policy", found.rows)
    layer = plan.spec.runs[0].layer
    return trace_layer(layer, plan.mode, plan.rows, plan.length, plan.style, plan.gradients).saved.size


def test_a_layer_keeps_what_its_functions_save() -> None:
    streams = 2 * (2 * HIDDEN + 4) + 2 * HIDDEN  # norms' inputs and statistics; the input of q, k and v
    # q, keys and values as repeated to all heads, the output, which the product keeps too, log-sum-exp
    attention = 4 * HIDDEN * 2 + HEADS * 4
    assert saved(recipe()) == TOKENS * (streams + attention + 3 * WIDE * 2)


def test_inputs_after_dropout_are_kept_whole_for_each_projection() -> None:
    assert saved(recipe(dropout=0.1)) - saved(recipe()) == 4 * TOKENS * HIDDEN * 2


def test_without_a_quantised_base_adapters_are_pefts() -> None:
    plain = recipe(quantization="none", kbit_upcast=None)
    assert (plain.operators.kernels.adapters, recipe().operators.kernels.adapters) == ("", "foak")


def test_its_cross_entropy_makes_two_fp32_copies_of_the_logits_and_no_gradient_beside_them() -> None:
    """Per logit: 2 bf16, 4 fp32, 4 of all but each row's last position; the last becomes its own gradient."""
    logits = [row for row in build_ledger(recipe()).rows if row.category == "logits"]
    backward = sum(row.bytes for row in logits if row.name.endswith("loss backward"))
    forward = sum(row.bytes for row in logits if row.name.endswith(", loss"))
    copy = (TOKENS - ROWS) * VOCABULARY * 4
    assert forward == TOKENS * VOCABULARY * 6 + copy
    assert backward == copy + TOKENS * VOCABULARY * 4  # and the slice's gradient, in zeros of the whole's size


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"quantization": "nf4"}, "unpack NF4 whose scales"),
        ({"quantization": "gptq-4bit", "kbit_upcast": None}, "GPTQ's are not modelled"),
        ({"autocast": False}, "without mixed precision"),
        ({"kbit_upcast": True}, "beside norms in fp32"),
        ({"trainer": "trl", "trainer_version": "0.13", "kbit_upcast": None}, "beside norms in fp32"),
        ({"lora": {"r": 8, "targets": ATTENTION, "dora": True}}, "with DoRA"),
        ({"lora": {"r": 8}}, "with an adapted feed-forward"),
    ],
)
def test_what_its_functions_cannot_do_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        recipe(**keys)
