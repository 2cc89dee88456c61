"""Proves what layers of encoders and encoder-decoders keep for backward, and what cannot be asked of them."""

from typing import Any

import pytest
from any_jobs import step_peak
from stacks import shared, stack

from memplan.api import estimate
from memplan.engine.layers.modules import Mode
from memplan.errors import InvalidJob
from memplan.spec.groups import Numerics, Operators

BERT = {"model_type": "bert", "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
T5 = {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "d_ff": 1024, "num_layers": 3}
DEBERTA = BERT | {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "position_buckets": 128,
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "max_position_embeddings": 512,
}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ROWS, LENGTH = 4, 256
TOKENS = ROWS * LENGTH


def mode(attention: str = "sdpa", **fields: Any) -> Mode:
    """Pure bf16, all weights trained."""
    return Mode(**{"numerics": Numerics(2), "operators": Operators(attention)} | fields)


def saved(config: dict[str, Any], attention: str = "sdpa", memory: int = 0) -> int:
    """Bytes that the last layer keeps of a pass of ROWS × LENGTH tokens."""
    return stack(config, mode(attention), ROWS, LENGTH, memory=memory).layers[-1].saved.size


def near(found: int, expected: int) -> bool:
    """Equal, but for statistics and rounding to 512 bytes."""
    return 0 <= found - expected <= 8 * TOKENS * 4 + 16 * 512


# Bytes per token, in multiples of h = 512: what the nodes of a layer hold in bf16.


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        # x, q, k, v, attention output, two sums before norms, the middle; up and its activation
        (BERT | OFF, 2 * 512 * 8 + 2 * 2048 * 2 + 4 * 8),
        # with a mask for each of two outputs; the kernel drops without one
        (BERT, 2 * 512 * 8 + 2 * 2048 * 2 + 4 * 8 + 2 * 512),
    ],
    ids=["no dropout", "dropout"],
)
def test_bert_keeps(config: dict[str, Any], bytes_per_token: int) -> None:
    assert near(saved(config), TOKENS * bytes_per_token)


def test_berts_eager_attention_keeps_its_probabilities_once() -> None:
    sdpa, eager = saved(BERT | OFF), saved(BERT | OFF, "eager")
    pairs = TOKENS * LENGTH * 8
    assert abs(eager - (sdpa - 4 * 8 * TOKENS + 2 * pairs)) <= 512 * 16


def test_debertas_scores_keep_those_of_the_whole_table() -> None:
    pairs, table, rows = TOKENS * LENGTH * 8, TOKENS * 256 * 8, 256
    # x, q, k and its scaled copy, v, context, two sums, the middle; up and its activation
    states = TOKENS * (2 * 512 * 9 + 2 * 2048 * 2)
    positions = 2 * 2 * ROWS * rows * 512 + 2 * 8 * LENGTH * LENGTH
    expected = states + positions + 2 * 2 * table + 2 * pairs + TOKENS * LENGTH
    assert near(saved(DEBERTA | OFF, "eager"), expected)


def test_t5_encoder_keeps_its_bias_as_a_mask_in_every_layer() -> None:
    kept = stack(T5 | {"dropout_rate": 0.0}, mode(), ROWS, LENGTH, memory=LENGTH).layers
    bias = 2 * 8 * LENGTH * LENGTH
    norms = 2 * (4 + 2 + 2 + 2) * 512  # fp32 and bf16 of what comes in, normalised, its product with the weight
    inside = norms + 2 * 4 * 512 + 2 * 1024 + 4 * 8
    assert near(kept[1].saved.size, TOKENS * inside + bias)
    assert kept[0].saved.size - kept[1].saved.size == 8 * LENGTH * LENGTH  # int64 buckets
    assert kept[0].gradients - kept[1].gradients == 2 * 32 * 8


ALBERT = BERT | {"model_type": "albert", "num_hidden_layers": 5, "vocab_size": 512, "embedding_size": 64}
OF_A_LAYER = 4 * 512 * 512 + 2 * 512 * 2048 + 9 * 512 + 2048


@pytest.mark.parametrize("gradients", ["keep", "add"])
def test_shared_weights_have_one_gradient_that_waits_for_the_first_layer(gradients: str) -> None:
    found = stack(ALBERT, mode(), ROWS, LENGTH, gradients=gradients)
    whole = 2 * OF_A_LAYER
    waiting = [shared(found, ("reduced", i, "")) for i in range(5)]
    assert waiting == [0, *[pytest.approx(whole, abs=8192)] * 4]
    assert [trace.gradients for trace in found.layers[1:]] == [0] * 4
    assert found.layers[0].gradients == (whole if gradients == "keep" else 0)


def test_shared_weights_are_cast_once_and_their_casts_gradients_wait() -> None:
    found = stack(ALBERT, mode(numerics=Numerics(4, autocast=2)), ROWS, LENGTH)
    of_linears = 2 * (OF_A_LAYER - 4 * 512)
    tags = [trace.saved.tags.items() for trace in found.layers]
    held = [sum(size for tag, size in each if tag.category == "autocast_weights") for each in tags]
    assert held == [2 * (4 * 512 * 512 + 2 * 512 * 2048), 0, 0, 0, 0]
    waiting = shared(found, ("reduced", 4, ""))
    assert waiting == of_linears + 4 * 4 * 512  # the norms' are whole in fp32
    assert found.layers[0].gradients == 4 * OF_A_LAYER


def test_gradients_of_the_shared_bias_are_summed_below_the_last_layer() -> None:
    found = stack(T5, mode("eager"), ROWS + 1, LENGTH, memory=LENGTH)
    top, other = found.layers[2], found.layers[1]
    assert top.saved.size == other.saved.size
    of_bias = 2 * 8 * LENGTH * LENGTH
    assert [shared(found, ("reduced", i, "")) for i in (2, 1, 0)] == [of_bias, of_bias, 0]


def test_the_decoder_reads_what_the_encoder_gave() -> None:
    short, long = (saved(T5, memory=memory) for memory in (LENGTH, 2 * LENGTH))
    keys_and_values = 2 * ROWS * LENGTH * 8 * 64 * 2
    assert long - short == keys_and_values
    found = stack(T5, mode(), ROWS, LENGTH, memory=LENGTH)
    tail = ("tail", len(found.layers), "")
    assert shared(found, tail, "encoder's output") == 2 * TOKENS * 512
    kept = {tag.label: size for tag, size in found.layers[4].saved.tags.items()}
    assert kept["bias of the attention to the encoder"] == 2 * 8 * LENGTH * LENGTH


# What cannot be asked.


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ("bert-base", {"method": "sft"}, "method: sft needs a model that predicts the next token"),
        ("modernbert-base", {"method": "dpo"}, "method: dpo needs a model that predicts the next token"),
        ("albert-base-v2", {"method": "sft"}, "method: sft needs a model that predicts the next token"),
        (
            "albert-base-v2",
            {"method": "reward", "gradient_checkpointing": "full"},
            "gradient_checkpointing: full is refused by transformers' albert",
        ),
        (
            "albert-base-v2",
            {"method": "reward", "sharding": "fsdp2", "num_gpus": 2},
            "sharding: fsdp2 is not modelled for albert",
        ),
        ("t5-small", {"method": "dpo"}, "method: dpo is not modelled for t5"),
        ("t5-small", {"method": "reward"}, "method: reward is not modelled for t5"),
        ("flan-t5-base", {"method": "sft", "trainer": "trl"}, "trainer: TRL is not modelled for t5"),
        ("flan-t5-base", {"method": "sft", "attention": "flash"}, "attention: flash cannot add"),
        ("flan-t5-base", {"method": "sft", "sharding": "fsdp2", "num_gpus": 2}, "sharding: fsdp2 is not modelled"),
        (
            "deberta-v3-base",
            {"method": "reward", "gradient_checkpointing": "full", "gradient_checkpointing_reentrant": True},
            "gradient_checkpointing_reentrant: true cannot run deberta-v2",
        ),
        ("bert-base", {"method": "reward", "sequence_length": 1024}, "longer than the 512 positions"),
        ("roberta-base", {"method": "reward", "sequence_length": 514}, "longer than the 512 positions"),
    ],
)
def test_refusals(model: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message) as caught:
        estimate({"model": model, **keys})
    assert caught.value.hint


def test_answers_are_the_decoders_tokens() -> None:
    keys = {"model": "flan-t5-base", "method": "sft", "sequence_length": 512, "optimizer": "sgd", "batch_size": 16}
    short, long = (dict(estimate(keys | {"completion_length": n}).per_gpu.phases) for n in (64, 256))
    assert long["forward"] > short["forward"]
    report = estimate(keys | {"completion_length": 64})
    assert any("its decoder completion_length tokens" in text for text in report.assumptions)


@pytest.mark.parametrize("model", ["bert-base", "roberta-base", "electra-small", "distilbert-base", "deberta-v3-base"])
def test_reward_models_of_encoders_have_a_score_for_each_sequence(model: str) -> None:
    report = estimate({"model": model, "method": "reward", "sequence_length": 256, "batch_size": 4})
    assert report.per_gpu.allocated_bytes == step_peak(report.per_gpu)
