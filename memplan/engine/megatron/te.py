"""Transformer Engine's modules: what their autograd functions save, and what they hold for a moment.

TransformerEngine 2.11 pytorch/module/linear.py (_Linear), layernorm_linear.py (_LayerNormLinear), ops/basic/rmsnorm.py.
Weights are never counted here. With ``gradient_accumulation_fusion`` a weight's gradient goes into its fp32 buffer
inside the product; without it, there is one of the weight's size and dtype for a moment.
"""

from __future__ import annotations

from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import Held, Step

FP32 = 4
LINEAR = "TransformerEngine 2.11 pytorch/module/linear.py: _Linear"
LAYER_NORM_LINEAR = "TransformerEngine 2.11 pytorch/module/layernorm_linear.py: _LayerNormLinear"
NORM = "TransformerEngine 2.11 pytorch/ops/basic/rmsnorm.py: RMSNorm"
STREAM_GRADIENT = "gradient of the residual stream"


def stream(s: Shape, name: str) -> Held:
    """A tensor of the residual stream: [t, h]."""
    return Held(name, "t·h·e", (s.local, s.hidden, s.itemsize))


def of_tokens(s: Shape, name: str, width: int, letters: str = "w") -> Held:
    """A tensor between a column-parallel and a row-parallel product: [T, width on this rank]."""
    return Held(name, f"T·{letters}·e", (s.tokens, width, s.itemsize))


def statistics(s: Shape, name: str) -> Held:
    """Of a norm, in fp32: 1/rms, or mean and 1/std, of each token."""
    return Held(name, "t·statistics·4", (s.local, 2 if s.layer_norm else 1, FP32))


def weight_gradient(s: Shape, rows: int, columns: int) -> tuple[Held, ...]:
    """What a weight's gradient takes where it is not added to its buffer inside the product."""
    if s.settings.gradient_accumulation_fusion:
        return ()
    return (Held("gradient of the weight", "rows·columns·e", (rows, columns, s.itemsize)),)


def norm(s: Shape, name: str, label: str) -> Step:
    """A norm by itself: its input and its statistics; its output is kept by what reads it."""
    return Step(
        name,
        kept=(stream(s, f"input of {label}"), statistics(s, f"statistics of {label}")),
        backward=(stream(s, STREAM_GRADIENT), stream(s, f"gradient of {label}'s output"), stream(s, "its gradient")),
        source=NORM,
    )


def layernorm_linear(s: Shape, name: str, label: str, width: int) -> Step:
    """Norm and column-parallel product in one: input, norm's output and statistics are kept, all of them along the
    sequence-parallel part; what was gathered for the product is freed after it, and gathered again in backward.

    Backward, with sequence parallelism: the gathered input, the product of [T, h] and its reduce-scattered part stand
    beside the gradients of output and residual stream; without: the product and the norm's own gradient.
    """
    gathered = Held("input gathered along the sequence", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    product = Held("gradient of the norm's output", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    tail = (
        (gathered, product, stream(s, "its scattered part")) if s.gathers else (product, stream(s, "norm's gradient"))
    )
    return Step(
        name,
        kept=(
            stream(s, f"input of {label}"),
            stream(s, f"normalised input of {label}"),
            statistics(s, f"statistics of {label}"),
        ),
        forward=(gathered,) if s.gathers else (),
        backward=(
            stream(s, STREAM_GRADIENT),
            of_tokens(s, f"gradient of {label}'s output", width),
            *tail,
            *weight_gradient(s, width, s.hidden),
        ),
        source=LAYER_NORM_LINEAR,
    )


def row_linear(s: Shape, name: str, label: str, width: int, keeps_input: bool = True) -> Step:
    """A row-parallel product: its input is kept; its output of [T, h] is reduce-scattered or all-reduced."""
    whole = Held("product before its reduction", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    gathered = Held("gradient gathered along the sequence", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    return Step(
        name,
        kept=(of_tokens(s, f"input of {label}", width),) if keeps_input else (),
        forward=(whole, stream(s, "its reduced part")) if s.gathers else (whole,),
        backward=(
            stream(s, STREAM_GRADIENT),
            *((gathered,) if s.gathers else ()),
            of_tokens(s, f"gradient of {label}'s input", width),
            *weight_gradient(s, s.hidden, width),
        ),
        source=LINEAR,
    )
