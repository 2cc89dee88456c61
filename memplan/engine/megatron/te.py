"""Transformer Engine's modules: what their autograd functions save, and what they hold for a moment.

TransformerEngine 2.11 pytorch/module/linear.py (_Linear), layernorm_linear.py (_LayerNormLinear), ops/basic/rmsnorm.py.
Weights are never counted here. With ``gradient_accumulation_fusion`` a weight's gradient goes into its fp32 buffer
inside the product; without it, there is one of the weight's size and dtype for a moment.

Dense feed-forwards: norm and first matmul in one, the activation, the second matmul (megatron-core 0.14
transformer/mlp.py, fusions/fused_bias_swiglu.py)."""

from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import WHOLE, Held, Product, Step, Steps, made_again, size, summed, with_source
from memplan.engine.megatron.steps import kept as kept_by_adapter
from memplan.spec.parts import FeedForward

FP32 = 4
NORM_FORWARD, NORM_BACKWARD = 2, 4
"""Tensors in fp32 for a moment: squares, then the product with 1/rms, each beside nothing else; the gradient of that
product, those by way of it and of the squares, and their sum."""
LINEAR = "TransformerEngine 2.11 pytorch/module/linear.py: _Linear"
LAYER_NORM_LINEAR = "TransformerEngine 2.11 pytorch/module/layernorm_linear.py: _LayerNormLinear"
NORM = "TransformerEngine 2.11 pytorch/ops/basic/rmsnorm.py: RMSNorm"
PLAIN_NORM = "Megatron-LM@00caa53 megatron/legacy/model/rms_norm.py: RMSNorm"
STREAM_GRADIENT = "gradient of the residual stream"


def stream(s: Shape, name: str) -> Held:
    """A tensor of the residual stream: [t, h]."""
    return Held(name, "t·h·e", (s.local, s.hidden, s.itemsize))


def of_tokens(s: Shape, name: str, width: int, letters: str = "w") -> Held:
    """A tensor between a column-parallel and a row-parallel product: [T, width on this rank]."""
    return Held(name, f"T·{letters}·e", (s.tokens, width, s.itemsize))


def read(s: Shape, name: str, width: int) -> Held:
    """What a row-parallel product saves of its input."""
    return Held(name, "T·w·e", (s.tokens, width, s.saved), doubt=s.doubt)


def quantised(s: Shape, gradient: Held) -> tuple[Held, ...]:
    """A gradient's copies in FP8 or FP4, of both layouts that backward reads."""
    if s.fp8 is None:
        return ()
    name = f"{gradient.name}, in {s.fp8.name}"
    return (gradient._replace(name=name, factors=(*gradient.factors[:-1], s.fp8.gradient)),)


def entering(s: Shape, product: Product, source: Held) -> tuple[Held, ...]:
    """A frozen product's input in FP8 or FP4, which nothing keeps."""
    if s.fp8 is None or product.whole:
        return ()
    return (source._replace(name=f"{source.name}, in {s.fp8.name}", factors=(*source.factors[:-1], s.fp8.saved)),)


def statistics(s: Shape, name: str) -> Held:
    """Of a norm, in fp32: 1/rms, or mean and 1/std, of each token."""
    return Held(name, "t·statistics·4", (s.local, 2 if s.layer_norm else 1, FP32))


def read_by_norm(s: Shape, label: str) -> tuple[Held, ...]:
    """What a norm keeps of its input, beside its statistics: itself; norms of PyTorch's operations, an fp32 copy, and
    in half precision what their weight multiplies."""
    return kept_of(s, stream(s, f"input of {label}"))


def kept_of(s: Shape, read: Held) -> tuple[Held, ...]:
    """What a norm keeps of this input."""
    if s.settings.norm_fusion:
        return (read,)
    wide = read._replace(template=f"{read.template.rpartition('·')[0]}·4", factors=(*read.factors[:-1], FP32))
    return wide, read._replace(name=f"{read.name} before its norm's weight")


def within_norm(s: Shape, count: int) -> tuple[Held, ...]:
    """So many fp32 tensors that norms of PyTorch's operations hold for a moment."""
    if s.settings.norm_fusion:
        return ()
    return (Held("within the norm, in fp32", "tensors·t·h·4", (count, s.local, s.hidden, FP32)),)


def weight_gradient(s: Shape, rows: int, columns: int) -> tuple[Held, ...]:
    """What a weight's gradient takes where it is not added to its buffer inside the product."""
    if s.settings.gradient_accumulation_fusion:
        return ()
    return (Held("gradient of the weight", "rows·columns·e", (rows, columns, s.itemsize)),)


def norm(s: Shape, name: str, label: str) -> Step:
    """A norm by itself: its input and its statistics; its output is kept by what reads it."""
    return Step(
        name,
        kept=(*read_by_norm(s, label), statistics(s, f"statistics of {label}")),
        forward=within_norm(s, NORM_FORWARD),
        backward=(
            stream(s, STREAM_GRADIENT),
            stream(s, f"gradient of {label}'s output"),
            stream(s, "its gradient"),
            *within_norm(s, NORM_BACKWARD),
        ),
        source=NORM if s.settings.norm_fusion else PLAIN_NORM,
    )


def layernorm_linear(s: Shape, name: str, label: str, width: int, product: Product = WHOLE) -> Step:
    """Norm and column-parallel product in one: input, norm's output and statistics are kept, all of them along the
    sequence-parallel part; what was gathered for the product is freed after it, and gathered again in backward. Where
    the weight is frozen the norm's output is kept by an adapter alone, and nothing is gathered again.

    Backward, with sequence parallelism: the gathered input, the product of [T, h] and its reduce-scattered part stand
    beside the gradients of output and residual stream; without: the product and the norm's own gradient."""
    gathered = Held("input gathered along the sequence", "T·h·e", (s.tokens, s.hidden, s.saved))
    gradient = of_tokens(s, f"gradient of {label}'s output", width)
    whole = Held("gradient of the norm's output", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    normed = Held(f"normalised input of {label}", "t·h·e", (s.local, s.hidden, s.saved), doubt=s.doubt)
    keeps = product.rank and product.gathers and s.gathers  # an adapter, its input as it was gathered
    branch = gathered._replace(name=f"gathered normalised input of {label}") if keeps else normed
    tail = [whole, stream(s, "its scattered part") if s.gathers else stream(s, "norm's gradient")]
    tail += within_norm(s, NORM_BACKWARD)
    tail[:0] = [gathered] if s.gathers and product.whole else []
    return with_source(
        Step(
            name,
            kept=(
                *read_by_norm(s, label),
                *((normed,) if product.whole else kept_by_adapter(product, branch, int(branch.factors[0]))),
                statistics(s, f"statistics of {label}"),
            ),
            forward=max(
                (gathered,) if s.gathers else (),
                summed(product, of_tokens(s, "the product", width)),
                within_norm(s, NORM_FORWARD),
                key=size,
            )
            + entering(s, product, gathered),
            backward=(
                stream(s, STREAM_GRADIENT),
                gradient,
                *quantised(s, gradient),
                *_through_adapter(product, gradient, (*tail, branch._replace(name="gradient of the adapter's input"))),
                *(tail if not product.rank else ()),
                *(weight_gradient(s, width, s.hidden) if product.whole else ()),
            ),
            source=LAYER_NORM_LINEAR,
        ),
        product,
    )


def row_linear(s: Shape, name: str, label: str, width: int, keeps_input: bool = True, product: Product = WHOLE) -> Step:
    """A row-parallel product: its input is kept (``keeps_input``: nothing else does); its [T, h] output is reduced."""
    whole = Held("product before its reduction", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    reduced = stream(s, "its reduced part")
    gathered = Held("gradient gathered along the sequence", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    narrow = quantised(s, gathered)
    source, grad = read(s, f"input of {label}", width), of_tokens(s, f"gradient of {label}'s input", width)
    branch = kept_by_adapter(product, source, s.tokens if product.divided else s.local)
    if not keeps_input and branch and not product.dropout:
        branch = branch[1:]
    sums = summed(product, reduced)
    if product.divided and s.tensor > 1:
        sums = (
            reduced,
            whole._replace(
                name="the adapter's product, gathered twice over", template="2·T·h·e", factors=(2, *whole.factors)
            ),
        )
    return with_source(
        Step(
            name,
            kept=branch if not product.whole else (source,) if keeps_input or (s.fp8 and s.fp8.projection) else (),
            forward=max((whole, reduced) if s.gathers else (whole,), sums, key=size) + entering(s, product, source),
            backward=(
                stream(s, STREAM_GRADIENT),
                *(narrow or ((gathered,) if s.gathers else ())),
                grad,
                *((grad._replace(name=f"{grad.name}, through the adapter"),) if product.rank else ()),
                *(weight_gradient(s, s.hidden, width) if product.whole else ()),
            ),
            source=LINEAR,
        ),
        product,
    )


def _through_adapter(product: Product, gradient: Held, behind: tuple[Held, ...]) -> tuple[Held, ...]:
    """Of backward, beside the gradient of the output: the scaled gradient that the adapter begins with, or what stands
    when its input's gradient waits for the base's."""
    return max((gradient._replace(name="scaled gradient"),), behind, key=size) if product.rank else ()


SWIGLU = "megatron-core 0.14 fusions/fused_bias_swiglu.py: SwiGLUFunction"
UNFUSED = "megatron-core 0.14 transformer/mlp.py: glu"


def dense(s: Shape, part: FeedForward) -> Steps:
    """Its norm is part of the first matmul."""
    width = part.intermediate // s.tensor
    *inputs, down = part.linears
    first = layernorm_linear(s, "fc1", "the first matmul", width * (2 if part.gated else 1), s.product(inputs))
    steps: Steps = (
        first,
        activation(s, s.tokens, width, part.gated),
        row_linear(s, "fc2", "the second matmul", width, product=s.product([down])),
    )
    if "mlp" in s.recomputed:
        inner = [each.name for step in steps for each in step.kept]
        steps = made_again(steps, [name for name in inner if name != "input of the first matmul"], "fc2")
    return steps


def activation(
    s: Shape, tokens: int, width: int, gated: bool, name: str = "activation", weighted: bool = False
) -> Step:
    """SwiGLU fused: only its input, gate and up side by side, is kept, and its gradient is one tensor of that size.
    Unfused: silu keeps gate, the product silu(gate) and up. Its output is kept by the product that follows."""
    both = Held(
        "gate and up" if gated else "the activation's input", "T·F·e", (tokens, width * (2 if gated else 1), s.itemsize)
    )
    kept = [both]
    if gated and not s.settings.bias_swiglu_fusion and not weighted:
        kept.append(Held("the activated gate", "T·F·e", (tokens, width, s.itemsize)))
    return Step(
        name,
        kept=tuple(kept),
        backward=(
            stream(s, STREAM_GRADIENT),
            Held("gradient of the activation", "T·F·e", (tokens, width, s.itemsize)),
            both._replace(name="gradient of its input"),
        ),
        source=SWIGLU if s.settings.bias_swiglu_fusion else UNFUSED,
    )
