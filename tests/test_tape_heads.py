"""Proves what norm, head and loss keep, and what a layer's backward holds, against coefficients read off real models.

Coefficients of the loss are in bytes per token and vocabulary entry: the most in forward, the most in backward, and
what is kept between. They were measured on transformers 5.23 and trl 1.16 code (torch 2.13, fake tensors), as were the
bytes per token of real layers at the end.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from memplan.api import estimate
from memplan.arch import parse_config
from memplan.engine.layers.modules import Mode
from memplan.engine.losses.heads import Head
from memplan.engine.tail_trace import TailTrace, trace_tail
from memplan.engine.traces import Alive, trace_layer
from memplan.spec.groups import Loss, Numerics, Operators
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.tables.styles import PassStyle
from memplan.units import MiB

VOCABULARY, TOKENS = 32768, 1024
BF16 = Mode(Numerics(2), Operators("sdpa"))
EAGER = Mode(Numerics(2), Operators("eager"))
AUTOCAST = Mode(Numerics(4, autocast=2), Operators("sdpa"))
FP32 = Mode(Numerics(4), Operators("sdpa"))
FROZEN = Mode(Numerics(2), Operators("sdpa"), trained=False)


def model(family: str = "llama", **keys: Any) -> ModelSpec:
    """A model whose logits dwarf everything else."""
    config = {"model_type": family, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": VOCABULARY}
    return parse_config({**config, **keys}, family)


def logits(alive: Alive) -> float:
    """Bytes of tensors as large as the logits, per token and vocabulary entry."""
    return sum(size for tag, size in alive.tags.items() if tag.category == "logits") / (TOKENS * VOCABULARY)


def largest(by_point: Mapping[str, Alive]) -> Alive:
    return max(by_point.values(), key=lambda alive: alive.size)


def tail(head: Head, mode: Mode, rows: int = 4, spec: ModelSpec | None = None) -> TailTrace:
    return trace_tail(spec or model(), mode, rows, TOKENS // rows, head)


def coefficients(head: Head, mode: Mode, rows: int, spec: ModelSpec | None = None) -> tuple[float, float, float]:
    found = tail(head, mode, rows, spec)
    return logits(largest(found.forward)), logits(largest(found.backward)), logits(found.saved)


CROSS_ENTROPY, SELECTIVE, LOG_SOFTMAX = Head(Loss("cross-entropy")), Head(Loss("selective")), Head(Loss("log-softmax"))
LOSSES = {
    "labels, bf16": (CROSS_ENTROPY, BF16, 4, (10, 12, 4)),
    "labels, autocast": (CROSS_ENTROPY, AUTOCAST, 4, (10, 12, 4)),
    "labels, fp32": (CROSS_ENTROPY, FP32, 4, (8, 12, 4)),
    "labels, outputs kept by the caller": (Head(Loss("cross-entropy", keeps_outputs=True)), BF16, 4, (10, 14, 6)),
    "selective, one row": (SELECTIVE, BF16, 1, (4, 6, 2)),
    "selective, two rows": (SELECTIVE, BF16, 2, (4, 4, 2)),
    "selective, eight rows": (SELECTIVE, BF16, 8, (4, 4, 2)),
    "selective under autocast, four rows": (SELECTIVE, AUTOCAST, 4, (6 + 4 / 4, 6, 4)),
    "selective in fp32": (SELECTIVE, FP32, 4, (4, 16, 4)),
    "log-softmax, bf16": (LOG_SOFTMAX, BF16, 4, (4, 6, 2)),
    "log-softmax after float()": (Head(Loss("log-softmax", to_fp32=True)), BF16, 4, (10, 12, 4)),
    "log-softmax under autocast": (LOG_SOFTMAX, AUTOCAST, 4, (10, 12, 4)),
    "log-softmax, fp32": (LOG_SOFTMAX, FP32, 4, (8, 12, 4)),
}


@pytest.mark.parametrize(
    ("program", "mode", "expected"),
    [
        ("shifted-cross-entropy", BF16, (14, 12, 4)),
        ("shifted-cross-entropy", AUTOCAST, (14, 12, 4)),
        ("foak-cross-entropy", BF16, (10, 8, 4)),
    ],
)
def test_losses_that_shift_the_logits_make_a_second_copy(program: str, mode: Mode, expected: tuple[int, ...]) -> None:
    """All but each row's last position; a single row needs no copy."""
    found = coefficients(Head(Loss(program)), mode, 4)
    assert found == pytest.approx(expected, rel=4 / TOKENS)
    assert coefficients(Head(Loss(program)), mode, 1)[0] < found[0] - 3


@pytest.mark.parametrize("case", LOSSES)
def test_bytes_per_logit_of_each_loss(case: str) -> None:
    head, mode, rows, expected = LOSSES[case]
    assert coefficients(head, mode, rows) == expected


def test_a_final_soft_cap_adds_two_bytes_per_logit() -> None:
    assert coefficients(CROSS_ENTROPY, BF16, 4, model("gemma2")) == (12, 14, 6)


def test_an_sft_term_beside_the_loss_never_costs_less() -> None:
    for head in (SELECTIVE, LOG_SOFTMAX):
        alone, both = (tail(Head(Loss(head.program, sft_term=term)), BF16) for term in (False, True))
        assert both.saved.size > alone.saved.size
        assert largest(both.backward).size >= largest(alone.backward).size


def test_a_loss_of_all_but_each_rows_last_position_is_scattered_into_zeros() -> None:
    """``logits[:, :-1].log_softmax(-1)`` keeps the scored positions; the slice's gradient is of the logits' size."""
    spec, rows, length = model(), 4, 16
    head = Head(Loss("log-softmax"), sliced=length - 1)
    found = trace_tail(spec, FP32, rows, length, head)
    scored, whole = 4 * VOCABULARY * rows * (length - 1), 4 * VOCABULARY * rows * length
    for alive, expected in ((found.saved, scored), (largest(found.forward), whole + scored)):
        assert sum(size for tag, size in alive.tags.items() if tag.category == "logits") == expected
    labels = {tag.label: size for tag, size in found.backward["loss"].tags.items() if tag.category == "logits"}
    assert sum(labels.values()) == 3 * scored, "the log-softmax, the zeros of the gather, and its gradient"
    assert largest(found.backward).size >= whole


def test_a_score_head_has_no_logits() -> None:
    found = tail(Head(Loss("score")), BF16, spec=model().as_reward_model())
    assert logits(largest(found.forward)) == logits(largest(found.backward)) == 0


def test_a_value_head_beside_the_vocabularys_makes_logits_that_nobody_reads() -> None:
    """LLaMA-Factory's rewards: trl 0.9 models/modeling_value_head.py casts all logits to fp32 and returns them."""
    found = tail(Head(Loss("value-head")), BF16)
    assert (logits(largest(found.forward)), logits(largest(found.backward))) == (6, 0)


def test_a_fused_head_has_a_tile_and_fp32_gradients_in_place_of_logits() -> None:
    """trl 1.16: a tile of 4096 × 32768 elements, 4 h per token, the head's gradient in fp32 and in half precision."""
    spec = model(hidden_size=1024, head_dim=256, vocab_size=65536)
    found = trace_tail(spec, BF16, 8, 1024, Head(Loss("fused"), scored_tokens=8192))
    by_label = {tag.label: size for tag, size in found.backward["loss"].tags.items()}
    assert by_label["logits tile"] == 256 * MiB
    assert by_label["hidden gradient in fp32"] == 4 * 1024 * 8192
    assert by_label["head gradient in fp32"] == 4 * 65536 * 1024
    assert by_label["weight gradients"] == 2 * 65536 * 1024
    assert logits(found.saved) == 0


@pytest.mark.parametrize(("mode", "per_hidden"), [(BF16, 8), (AUTOCAST, 10), (FP32, 12), (FROZEN, 4)])
def test_final_norm_and_head_input(mode: Mode, per_hidden: int) -> None:
    """Beside the logits and autocast's copy of the head; 4 bytes per token more for the norm's statistics."""
    saved = tail(CROSS_ENTROPY, mode).saved.tags
    rest = sum(size for tag, size in saved.items() if tag.category == "activations")
    assert rest / TOKENS == pytest.approx(per_hidden * 64 + 4, abs=8), "labels' indices beside it"


@pytest.mark.parametrize("mode", [BF16, FROZEN, FP32])
def test_final_norm_backward(mode: Mode) -> None:
    """24 h per token in all: the norm's input, both its gradients, and three tensors of pow's own, all in fp32."""
    alive = tail(CROSS_ENTROPY, mode).backward["final-norm"]
    weights = sum(size for tag, size in alive.tags.items() if tag.category == "gradients")
    assert (alive.size - weights) / TOKENS / 64 == pytest.approx(24, abs=0.2)


LAYER: dict[str, Any] = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1024,
}


@pytest.mark.parametrize(("mode", "per_ffn", "per_hidden"), [(BF16, 4, 2), (FP32, 8, 4)])
def test_feed_forward_backward_beyond_what_is_saved(mode: Mode, per_ffn: int, per_hidden: int) -> None:
    """Three gradients of the width of the feed-forward less the product, which is freed; the down projection's own."""
    layer = model(intermediate_size=8192, **LAYER).runs[0].layer
    found = trace_layer(layer, mode, 1, TOKENS, "plain")
    alive = found.backward["feed-forward"]
    weights = sum(size for tag, size in alive.tags.items() if tag.category == "gradients")
    assert alive.size - found.saved.size - weights == (per_ffn * 8192 + per_hidden * 1024) * TOKENS


def test_eager_attention_doubles_its_probabilities_in_backward() -> None:
    """12 bytes per pair of tokens and head in place of the 6 that are saved."""
    layer = model(intermediate_size=1024, **LAYER).runs[0].layer
    found = trace_layer(layer, EAGER, 1, TOKENS, "plain")
    pairs = 16 * TOKENS * TOKENS

    def scores(alive: Alive) -> float:
        return sum(size for tag, size in alive.tags.items() if tag.symbol == "T·H·s") / pairs

    assert scores(found.saved) == 6
    assert scores(found.backward["attention"]) == 12


def test_reentrant_checkpointing_keeps_one_more_layer_input_in_backward() -> None:
    layer = model(intermediate_size=1024, **LAYER).runs[0].layer
    new, old = (trace_layer(layer, BF16, 1, TOKENS, style).backward for style in ("checkpoint", "reentrant"))
    assert largest(old).size - largest(new).size == 2 * 1024 * TOKENS
    assert all(old[point].size > new[point].size for point in new)


def test_a_frozen_embedding_spares_the_first_layer_its_norm_input() -> None:
    layer = model(intermediate_size=1024, **LAYER).runs[0].layer
    names = frozenset(linear.name for linear in layer.linears)
    mode = Mode(Numerics(2), Operators("sdpa"), trained=False, adapter=Adapter(16, names, 4, False))
    usual, first = (trace_layer(layer, mode, 1, TOKENS, "plain", "keep", needs) for needs in (True, False))
    assert (usual.saved.size - first.saved.size) / TOKENS == 4 * 1024 + 4, "in fp32, and its statistics"


LLAMA_3_8B = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
MIXTRAL = {**LLAMA_3_8B, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_30B = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
QWEN3_30B |= {"intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
GEMMA_2_2B = {"hidden_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
GEMMA_2_2B |= {"intermediate_size": 9216}
ALL_LINEAR = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
LORA = Mode(Numerics(2), Operators("sdpa"), trained=False, adapter=Adapter(16, ALL_LINEAR, 4, False))
AUTOCAST_EAGER = Mode(Numerics(4, autocast=2), Operators("eager"))
MEASURED: dict[str, tuple[str, dict[str, Any], Mode, int, PassStyle, int, float]] = {
    "Llama-3-8B, flash": ("llama", LLAMA_3_8B, BF16, 1024, "plain", 200_840, 0),
    "Llama-3-8B, eager": ("llama", LLAMA_3_8B, EAGER, 1024, "plain", 409_608, 0),
    "Llama-3-8B, checkpointed": ("llama", LLAMA_3_8B, BF16, 1024, "checkpoint", 8_192, 0),
    "Llama-3-8B, LoRA in fp32": ("llama", LLAMA_3_8B, LORA, 1024, "plain", 295_496, 0),
    "Mixtral-8x7B": ("mixtral", MIXTRAL, BF16, 1024, "plain", 348_414, 8),
    "Gemma-2-2B, eager under autocast": ("gemma2", GEMMA_2_2B, AUTOCAST_EAGER, 512, "plain", 219_700, 40),
    "Qwen3-30B-A3B, autocast": ("qwen3_moe", QWEN3_30B, AUTOCAST, 1024, "plain", 325_710, 24),
}
"""family, config, mode, tokens, style, bytes per token and layer without autocast's copies of weights, tolerance.
Experts under autocast were measured with torch's check of their dtype lifted."""


@pytest.mark.parametrize("case", MEASURED)
def test_measured_bytes_of_real_layers(case: str) -> None:
    family, config, mode, tokens, style, measured, tolerance = MEASURED[case]
    spec = parse_config({"model_type": family, "num_hidden_layers": 1, "vocab_size": 32000, **config}, case)
    saved = trace_layer(spec.runs[0].layer, mode, 1, tokens, style).saved.tags
    bytes_without_copies = sum(size for tag, size in saved.items() if tag.category != "autocast_weights")
    assert abs(bytes_without_copies / tokens - measured) <= tolerance


def test_trls_forward_casts_one_tile_of_the_head_at_a_time() -> None:
    hidden, tile = 256, 32768
    config = {"model_type": "llama", "hidden_size": hidden, "num_attention_heads": 4, "num_key_value_heads": 4}
    config |= {"num_hidden_layers": 1, "intermediate_size": 512, "tie_word_embeddings": False}
    job = {"trainer": "trl", "method": "sft", "precision": "bf16-amp", "optimizer": "sgd", "sequence_length": 512}
    peaks = [
        estimate({**job, "model": config | {"vocab_size": tiles * tile}}).per_gpu.phases["forward"]
        for tiles in (1, 2, 3)
    ]
    weights = 2 * tile * hidden * 4
    assert [b - a for a, b in itertools.pairwise(peaks)] == [weights, weights]
