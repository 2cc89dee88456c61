"""A dense decoder of a given size, when nothing but its number of parameters is known.

Width, depth and vocabulary are interpolated, by the logarithm of the size, between published dense decoders; the
feed-forward takes up what is left, so that the total comes out. What a step needs beside weights and states depends on
the shape: ``SPREAD`` says how far real models of the same size are off (``benchmarks/generic.py``)."""

from functools import lru_cache
from math import exp, log
from typing import NamedTuple

from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward, Linear, Norm

FAMILY = "generic"


class Shape(NamedTuple):
    """Of a published dense decoder."""

    preset: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool

    @property
    def total(self) -> int:
        """Parameters, but for norms and biases."""
        head_dim = self.hidden // self.heads
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * head_dim
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)


SHAPES = (
    Shape("smollm2-135m", 576, 30, 9, 3, 1536, 49152, True),
    Shape("qwen2.5-0.5b", 896, 24, 14, 2, 4864, 151936, True),
    Shape("llama-3.2-1b", 2048, 16, 32, 8, 8192, 128256, True),
    Shape("llama-3.2-3b", 3072, 28, 24, 8, 8192, 128256, True),
    Shape("llama-3.1-8b", 4096, 32, 32, 8, 14336, 128256, False),
    Shape("qwen2.5-14b", 5120, 48, 40, 8, 13824, 152064, False),
    Shape("qwen2.5-32b", 5120, 64, 40, 8, 27648, 152064, False),
    Shape("llama-3.1-70b", 8192, 80, 64, 8, 28672, 128256, False),
    Shape("llama-3.1-405b", 16384, 126, 128, 8, 53248, 128256, False),
)
"""By size. Each is a preset, and interpolated at its own size it is itself."""
SPREAD = (0.52, 1.26)
"""What comes and goes in a step of 90 of 100 real models, over that of the generic shape of their size."""
NARROWEST = 64
OFF = 0.005
"""Of the parameters asked for: what rounding the feed-forward may miss them by."""


def interpolate(total: int) -> Shape:
    """A shape of about ``total`` parameters: between two neighbours, or the first or last made shallower or deeper."""
    if not SHAPES[0].total <= total <= SHAPES[-1].total:
        return fitted(SHAPES[0] if total < SHAPES[0].total else SHAPES[-1], total)
    above = next(i for i, shape in enumerate(SHAPES) if total <= shape.total) or 1
    low, high = SHAPES[above - 1], SHAPES[above]
    share = log(total / low.total) / log(high.total / low.total)
    near = low if share < 0.5 else high
    width = near.hidden // near.heads
    hidden = between(low.hidden, high.hidden, share)
    heads = max(1, round(hidden / width / near.kv_heads)) * near.kv_heads
    made = near._replace(
        preset="",
        hidden=heads * width,
        heads=heads,
        layers=2 * round(between(low.layers, high.layers, share) / 2),
        vocabulary=128 * round(between(low.vocabulary, high.vocabulary, share) / 128),
    )
    return widened(made, total)


def between(low: float, high: float, share: float) -> float:
    """The geometric mean, weighted."""
    return exp(log(low) + share * (log(high) - log(low)))


def fitted(shape: Shape, total: int) -> Shape:
    """The shape with as many layers as ``total`` asks for, and at most half of it in the embedding."""
    layers = max(1, round(shape.layers * total / shape.total))
    vocabulary = min(shape.vocabulary, max(1, total // (2 * shape.hidden)))
    return widened(shape._replace(preset="", layers=layers, vocabulary=vocabulary), total)


def widened(shape: Shape, total: int) -> Shape:
    """The shape with the feed-forward that brings it nearest to ``total``, in multiples of 128 as published ones are,
    which tensor ranks divide it; of less where that would miss by more than ``OFF``."""
    bare = shape._replace(intermediate=0).total
    each = 3 * shape.hidden * shape.layers
    step = next((step for step in (128, 64, 32, 16, 8, 4, 2) if each * step / 2 <= OFF * total), 1)
    return shape._replace(intermediate=max(NARROWEST, step * round((total - bare) / each / step)))


@lru_cache(maxsize=64)
def generic_model(total: int) -> ModelSpec:
    """A dense decoder of about ``total`` parameters."""
    shape = interpolate(total)
    h, f, q = shape.hidden, shape.intermediate, shape.hidden
    kv = shape.kv_heads * (shape.hidden // shape.heads)
    attention = (("q_proj", h, q), ("k_proj", h, kv), ("v_proj", h, kv), ("o_proj", q, h))
    feed_forward = (("gate_proj", h, f), ("up_proj", h, f), ("down_proj", f, h))
    layer = Layer(
        mixer=Attention(
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim=shape.hidden // shape.heads,
            linears=tuple(Linear(name=name, inputs=i, outputs=o) for name, i, o in attention),
        ),
        feed_forward=FeedForward(
            intermediate=f, linears=tuple(Linear(name=name, inputs=i, outputs=o) for name, i, o in feed_forward)
        ),
        norms=(Norm(name="input_layernorm", width=h), Norm(name="post_attention_layernorm", width=h)),
    )
    return ModelSpec(
        name=f"generic {total / 1e9:g}B",
        family=FAMILY,
        hidden_size=h,
        vocab_size=shape.vocabulary,
        tied=shape.tied,
        runs=(Run(count=shape.layers, layer=layer),),
        final_norm=Norm(name="norm", width=h),
        head=Linear(name="lm_head", inputs=h, outputs=shape.vocabulary),
        source="interpolated between published dense shapes",
        spread=SPREAD,
    )
