"""Proves the saved bytes of a layer, family by family, against closed formulas that were read off real models.

The formulas (bytes per token of one layer, after its forward) were fitted to transformers 5.23 modules traced with
torch 2.13 and PEFT 0.21, over 45 model types. Here the tape must give them for any shape, to the byte. Letters: h
hidden, q heads × head_dim, kv key/value heads × head_dim, F feed-forward, H heads, K key/value heads, s sequence
length, r rank.
"""

# A part that a layer does not have fails when the test runs.
# mypy: disable-error-code="union-attr"

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.arch import parse_config
from memplan.engine.layers.modules import Mode
from memplan.engine.traces import LayerTrace, trace_layer
from memplan.spec.groups import Numerics, Operators
from memplan.spec.layer import Layer
from memplan.spec.lora import Adapter
from memplan.tables.styles import PassStyle
from memplan.units import round_up

RANK = 16
BF16 = Mode(Numerics(2), Operators("sdpa"))
EAGER = Mode(Numerics(2), Operators("eager"))
PADDED = Mode(Numerics(2), Operators("sdpa"), padded=True)
UNPADDED = Mode(Numerics(2), Operators("flash"), padded=True)
MATH = Mode(Numerics(2), Operators("math"))
AUTOCAST = Mode(Numerics(4, autocast=2), Operators("sdpa"))
AUTOCAST_EAGER = Mode(Numerics(4, autocast=2), Operators("eager"))
FP32 = Mode(Numerics(4), Operators("sdpa"))


class Shape(NamedTuple):
    """The letters of one layer, and its tokens."""

    h: int
    H: int
    K: int
    head_dim: int
    F: int
    rows: int
    s: int

    @property
    def q(self) -> int:
        return self.H * self.head_dim

    @property
    def kv(self) -> int:
        return self.K * self.head_dim

    @property
    def tokens(self) -> int:
        return self.rows * self.s


Formula = Callable[[Shape], float]


def shapes(groups: tuple[int, ...] = (2, 4), kv_heads: tuple[int, ...] = (2, 4)) -> st.SearchStrategy[Shape]:
    """Shapes whose tensors are whole blocks of 512 bytes, so that nothing is rounded."""

    def build(h: int, group: int, kv: int, head_dim: int, width: int, tokens: tuple[int, int]) -> Shape:
        return Shape(h * 128, kv * group, kv, head_dim, width * 128, *tokens)

    lengths = st.sampled_from([(1, 512), (1, 1024), (2, 256), (4, 512)])
    sizes = st.integers(1, 12), st.sampled_from(groups), st.sampled_from(kv_heads)
    return st.builds(build, *sizes, st.sampled_from([32, 64, 128]), st.integers(1, 24), lengths)


def layer_of(family: str, x: Shape, **keys: Any) -> Layer:
    """A layer of this family and shape, described from a config as a real one is."""
    config = {"model_type": family, "hidden_size": x.h, "num_hidden_layers": 1, "num_attention_heads": x.H}
    config |= {"num_key_value_heads": x.K, "head_dim": x.head_dim, "intermediate_size": x.F, "vocab_size": 1024}
    if family == "phi3":
        config |= {"hidden_size": x.q}
        del config["head_dim"]
    return parse_config({**config, **keys}, family).runs[0].layer


def trace(layer: Layer, mode: Mode, x: Shape, style: PassStyle = "plain") -> LayerTrace:
    return trace_layer(layer, mode, x.rows, x.s, style)


def cast_weights(layer: Layer, x: Shape) -> float:
    """2 bytes per weight of every linear, spread over the tokens: what autocast's copies add to the saved bytes."""
    return 2 * sum(linear.inputs * linear.outputs for linear in layer.linears) / x.tokens


def attention_flash(x: Shape) -> int:
    return 4 * x.q + 4 * x.kv + 4 * x.H


def attention_eager(x: Shape) -> int:
    """fp32 softmax and its half-precision copy: 6 bytes for every pair of tokens and head."""
    return 8 * x.q + 6 * x.H * x.s


def qk_norm(x: Shape, elements: int) -> int:
    return elements * (x.q + x.kv) + 4 * (x.H + x.K)


LLAMA: dict[str, tuple[Mode, Formula]] = {
    "bf16 flash": (BF16, lambda x: 16 * x.h + attention_flash(x) + 8 * x.F + 8),
    "bf16 eager": (EAGER, lambda x: 16 * x.h + attention_eager(x) + 8 * x.F + 8),
    "bf16 padded": (PADDED, lambda x: 16 * x.h + 8 * x.q + 8 * x.F + 4 * x.H + 2 * x.s + 8),
    "bf16 padded flash": (UNPADDED, lambda x: 16 * x.h + attention_flash(x) + 2 * x.q + 8 * x.F + 8),
    "bf16 math": (MATH, lambda x: 16 * x.h + 14 * x.q + 8 * x.F + 4 * x.H * x.s + 8),
    "fp32 math": (FP32, lambda x: 24 * x.h + 16 * x.q + 16 * x.F + 4 * x.H * x.s + 8),
    "autocast flash": (AUTOCAST, lambda x: 26 * x.h + attention_flash(x) + 8 * x.F + 8),
    "autocast eager": (AUTOCAST_EAGER, lambda x: 26 * x.h + attention_eager(x) + 8 * x.F + 8),
}
FAMILIES: dict[str, tuple[str, Mode, Formula]] = {
    "mistral": ("mistral", BF16, lambda x: 16 * x.h + attention_flash(x) + 8 * x.F + 8),
    "qwen3": ("qwen3", BF16, lambda x: 16 * x.h + attention_flash(x) + 8 * x.F + 8 + qk_norm(x, 6)),
    "qwen3 fp32": ("qwen3", FP32, lambda x: 24 * x.h + 16 * x.q + 16 * x.F + 4 * x.H * x.s + 8 + qk_norm(x, 8)),
    "qwen3 autocast": ("qwen3", AUTOCAST, lambda x: 26 * x.h + attention_flash(x) + 8 * x.F + 8 + qk_norm(x, 6)),
    "phi3": ("phi3", BF16, lambda x: 16 * x.q + 8 * x.F + 8 * x.q + 6 * x.kv + 4 * x.H + 8),
    "phi3 eager": ("phi3", EAGER, lambda x: 16 * x.q + 8 * x.F + attention_eager(x) + 8),
    "phi3 autocast": ("phi3", AUTOCAST, lambda x: 20 * x.q + 8 * x.F + 8 * x.q + 6 * x.kv + 4 * x.H + 8),
    "gemma": ("gemma", BF16, lambda x: 20 * x.h + 8 * x.F + attention_flash(x) + 8 + 8 * x.h / x.tokens),
    "gemma autocast": ("gemma", AUTOCAST, lambda x: 26 * x.h + 8 * x.F + attention_flash(x) + 8 + 8 * x.h / x.tokens),
    "gemma2 eager": (
        "gemma2",
        EAGER,
        lambda x: 36 * x.h + 8 * x.F + 8 * x.q + 8 * x.H * x.s + 16 + 16 * x.h / x.tokens,
    ),
    "gemma3": (
        "gemma3_text",
        BF16,
        lambda x: 36 * x.h + 8 * x.F + attention_flash(x) + qk_norm(x, 8) + 16 + gemma3_weights(x),
    ),
    "gemma3 autocast": (
        "gemma3_text",
        AUTOCAST,
        lambda x: (32 + 10) * x.h + 8 * x.F + attention_flash(x) + qk_norm(x, 8) + 16 + gemma3_weights(x),
    ),
}


def gemma3_weights(x: Shape) -> float:
    """1 + weight in fp32, of the four norms of the layer and of those of q and k, whatever the number of tokens."""
    return (16 * x.h + 2 * round_up(4 * x.head_dim, 512)) / x.tokens


@pytest.mark.parametrize("case", LLAMA)
@given(x=shapes())
@examples(20)
def test_a_llama_layer_saves_what_the_formula_says(case: str, x: Shape) -> None:
    mode, formula = LLAMA[case]
    layer = layer_of("llama", x)
    copies = cast_weights(layer, x) if mode.numerics.autocast else 0
    assert trace(layer, mode, x).saved.size / x.tokens == formula(x) + copies


@pytest.mark.parametrize("case", FAMILIES)
@given(x=shapes())
@examples(20)
def test_a_layer_of_another_family_saves_what_its_formula_says(case: str, x: Shape) -> None:
    family, mode, formula = FAMILIES[case]
    layer = layer_of(family, x)
    copies = cast_weights(layer, x) if mode.numerics.autocast else 0
    assert trace(layer, mode, x).saved.size / x.tokens == pytest.approx(formula(x) + copies, rel=1e-12)


@given(x=shapes(groups=(1,)))
@examples(20)
def test_fp32_without_grouped_heads_runs_the_efficient_kernel(x: Shape) -> None:
    expected = 24 * x.h + 16 * x.q + 16 * x.F + 4 * x.H + 8
    assert trace(layer_of("llama", x), FP32, x).saved.size / x.tokens == expected


@given(x=shapes(groups=(4,), kv_heads=(1,)))
@examples(20)
def test_a_full_window_adds_a_bias_to_gemma3_layers(x: Shape) -> None:
    """One key/value head, as in Gemma 3 1B: it is repeated by a view, so the bias of 2 s is all that the mask adds."""
    windowed = layer_of("gemma3_text", x, sliding_window=x.s, sliding_window_pattern=2)
    wider = layer_of("gemma3_text", x, sliding_window=x.s + 1, sliding_window_pattern=2)
    assert windowed.mixer.window == x.s
    assert trace(windowed, BF16, x).saved.size - trace(wider, BF16, x).saved.size == 2 * x.s * x.tokens


@pytest.mark.parametrize(("mode", "itemsize"), [(BF16, 2), (AUTOCAST, 4), (FP32, 4)])
@given(x=shapes())
@examples(4)
def test_a_checkpoint_is_the_layers_input(mode: Mode, itemsize: int, x: Shape) -> None:
    assert trace(layer_of("llama", x), mode, x, "checkpoint").saved.size == itemsize * x.h * x.tokens


EXPERTS: dict[str, tuple[dict[str, int], Formula]] = {
    "mixtral": ({"num_local_experts": 8, "num_experts_per_tok": 2}, lambda x: 4 * 8 + 40 * 2 + 4),
    "qwen3_moe": (
        {"num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True, "decoder_sparse_step": 1},
        lambda x: 4 * 32 + 38 * 4 + 4 + qk_norm(x, 6),
    ),
}


@pytest.mark.parametrize("family", EXPERTS)
@given(x=shapes())
@examples(20)
def test_grouped_experts_save_each_tokens_row_once_for_each_expert(family: str, x: Shape) -> None:
    """To 8 bytes per token: the router's last few small tensors are not followed one by one."""
    keys, extra = EXPERTS[family]
    layer = layer_of(family, x, **keys, **({"moe_intermediate_size": x.F} if family == "qwen3_moe" else {}))
    k = keys["num_experts_per_tok"]
    expected = 16 * x.h + attention_flash(x) + 8 + k * (8 * x.F + 4 * x.h) + extra(x)
    assert abs(trace(layer, BF16, x).saved.size / x.tokens - expected) <= 8


def adapter(layer: Layer, itemsize: int, names: tuple[str, ...] = (), dropout: bool = False) -> Adapter:
    every = frozenset(linear.name for linear in layer.linears)
    return Adapter(RANK, frozenset(names) or every, itemsize, dropout)


def lora(x: Shape, layer: Layer, base: Mode, chosen: Adapter) -> float:
    """Saved bytes per token with LoRA on a frozen base."""
    mode = Mode(Numerics(2, autocast=base.numerics.autocast), Operators("sdpa"), trained=False, adapter=chosen)
    return trace(layer, mode, x).saved.size / x.tokens


def adapter_copies(layer: Layer, chosen: Adapter, x: Shape) -> float:
    """Autocast's copies of the fp32 adapters: 2 bytes per element, spread over the tokens."""
    widths = (linear.inputs + linear.outputs for linear in layer.linears if linear.name in chosen.targets)
    return 2 * RANK * sum(widths) / x.tokens


@given(x=shapes())
@examples(12)
def test_lora_on_a_frozen_llama(x: Shape) -> None:
    """Adapters in fp32 keep a copy of the input in fp32 for each module: more than full fine-tuning keeps."""
    layer, attention, r = layer_of("llama", x), attention_flash(x), RANK
    two = ("q_proj", "v_proj")
    wide, narrow, few = adapter(layer, 4), adapter(layer, 2), adapter(layer, 4, two)
    assert lora(x, layer, BF16, wide) == 28 * x.h + 4 * x.q + attention + 10 * x.F + 28 * r + 8
    assert lora(x, layer, BF16, narrow) == 12 * x.h + attention + 8 * x.F + 14 * r + 8
    assert lora(x, layer, BF16, few) == 16 * x.h + attention + 6 * x.F + 8 * r + 8
    under_autocast = lora(x, layer, AUTOCAST, wide) - adapter_copies(layer, wide, x)
    assert under_autocast == pytest.approx(18 * x.h + 2 * x.q + attention + 8 * x.F + 14 * r + 8, rel=1e-12)
    under_autocast = lora(x, layer, AUTOCAST, few) - adapter_copies(layer, few, x)
    assert under_autocast == pytest.approx(12 * x.h + attention + 6 * x.F + 4 * r + 8, rel=1e-12)
    dropout = lora(x, layer, BF16, adapter(layer, 4, dropout=True)) - lora(x, layer, BF16, wide)
    assert dropout == 5 * x.h + x.q + x.F, "a mask of one byte per element of each module's input"


# family: frozen norms of width h, frozen norms of q and k, attention in full fine-tuning, 1 + weight in fp32
FROZEN_PARTS: dict[str, tuple[int, Formula, Formula, Formula]] = {
    "mistral": (2, lambda x: 0, attention_flash, lambda x: 0),
    "qwen3": (2, lambda x: qk_norm(x, 4), attention_flash, lambda x: 0),
    "phi3": (2, lambda x: 0, lambda x: 8 * x.q + 6 * x.kv + 4 * x.H, lambda x: 0),
    "gemma": (2, lambda x: 0, attention_flash, lambda x: 8 * x.h / x.tokens),
    "gemma3_text": (4, lambda x: qk_norm(x, 4), attention_flash, gemma3_weights),
}
SAME_INPUT = {"q_proj": "norm", "k_proj": "norm", "v_proj": "norm", "qkv_proj": "norm"}
SAME_INPUT |= {"gate_proj": "second norm", "up_proj": "second norm", "gate_up_proj": "second norm"}


@pytest.mark.parametrize("family", FROZEN_PARTS)
@given(x=shapes())
@examples(12)
def test_lora_follows_one_rule_in_every_family(family: str, x: Shape) -> None:
    """fp32 adapters copy the input of each module; half-precision adapters share it, and attention's output is there.

    Phi-3 copies attention's output in half precision, which nothing keeps once the fp32 adapter has its own copy.
    """
    layer = layer_of(family, x)
    norms, of_q_and_k, attention, constants = FROZEN_PARTS[family]
    width = layer.norms[0].width
    frozen = norms * (4 * width + 4) + of_q_and_k(x) + attention(x) + 6 * x.F + constants(x)
    wide = sum(4 * linear.inputs + 4 * RANK for linear in layer.linears) - (2 * x.q if family == "phi3" else 0)
    shared = {SAME_INPUT.get(linear.name, linear.name): 2 * linear.inputs for linear in layer.linears}
    narrow = sum(shared.values()) - shared["o_proj"] + 2 * RANK * len(layer.linears)
    assert lora(x, layer, BF16, adapter(layer, 4)) == pytest.approx(frozen + wide, rel=1e-12)
    assert lora(x, layer, BF16, adapter(layer, 2)) == pytest.approx(frozen + narrow, rel=1e-12)


def test_autocast_keeps_no_copy_of_falcons_weights_which_are_multiplied_as_views() -> None:
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 64}
    autocast = Mode(Numerics(4, autocast=2), Operators("sdpa"))
    falcon, neox = (
        trace_layer(
            parse_config({"model_type": family, **sizes, **more}, "cut").runs[0].layer, autocast, 1, 64, "checkpoint"
        )
        for family, more in (("falcon", {"new_decoder_architecture": False}), ("gpt_neox", {"intermediate_size": 512}))
    )
    assert falcon.casts == 0
    assert neox.casts > 0
