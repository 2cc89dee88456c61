"""How one rank of an engine holds matrices: how they are divided, in which format, padded for which card's kernels."""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from memplan.engine.generation.formats import FORMATS, quantises
from memplan.spec.attention_kinds import SharedKVAttention
from memplan.spec.layer import Layer
from memplan.spec.parts import FeedForward, Linear, Part
from memplan.tables.engines import BEFORE_HOPPER, HOPPER, ROCM, version_of
from memplan.tables.quantizations import MODULES

Tensors = tuple[int, ...]
"""Bytes of tensors, in the order in which they are made."""


class Padding(NamedTuple):
    """Multiples that a card's kernels have experts' matrices padded to."""

    hidden: int = 1
    inner: int = 1
    scales: int = 1
    """Of the rows of scales alone."""
    values: int = 1
    """Of the columns of weights alone."""


MXFP4 = {
    **dict.fromkeys((*BEFORE_HOPPER, "12.0", "12.1"), Padding(256, 128)),
    "9.0": Padding(inner=64, scales=256),
    **dict.fromkeys(("10.0", "10.3", *ROCM), Padding(256, 256)),
}
"""By compute capability: Marlin's kernels, after 10.3 too, Triton's, FlashInfer's and ROCm's (vllm 0.10
layers/quantization/mxfp4.py: create_weights, get_mxfp4_backend; 0.20 layers/fused_moe/oracle/mxfp4.py; triton_kernels
hopper_scale.py, of 8 warps)."""
BY_TRITON, UNPADDED = (0, 10, 2), (0, 25, 0)
"""On Hopper since, with PyTorch 2.8; before, Marlin there too (vllm 0.10.1 mxfp4.py: _should_use_marlin). Triton's of
then pads the weights without their scales: 13.47 GiB of gpt-oss 20b and 64.38 of 120b under 0.14, 61.29 under 0.25; a
version between, which nobody told, is counted from above."""
PADDED_VALUES = Padding(inner=64, values=256)
UNGATED = Padding(inner=128)
"""In NVFP4, after Hopper: scales are swizzled by so many rows, and weights padded to them where nothing is gated (vllm
0.21 layers/quantization/utils/flashinfer_fp4_moe.py: prepare_nvfp4_moe_layer_for_fi_or_cutlass)."""


def of_mxfp4(engine: str, version: str, architecture: str) -> Padding:
    """Of gpt-oss' experts."""
    known = version_of(version) if engine == "vllm" and architecture == HOPPER else UNPADDED
    if BY_TRITON <= known < UNPADDED:
        return PADDED_VALUES
    told = architecture if known >= BY_TRITON and architecture in MXFP4 else BEFORE_HOPPER[0]
    return MXFP4[told]


class Rank(NamedTuple):
    """How a rank holds matrices."""

    tensor: int
    experts: int
    """Ranks that the experts are divided over."""
    itemsize: int
    format: str
    group: int = 0
    """Weights of a scale, where its format has groups."""
    tensor_of_experts: int = 1
    """Of them, those that divide each expert's inner features."""
    padding: Padding = Padding()
    """Of experts."""
    ungated: Padding = Padding()
    """Of those without a gate."""
    sets_apart: bool = False
    """Rows of experts in 16 bits are set apart."""
    router_itemsize: int = 0
    """Of routers' weights; 0: as the model's class stores them."""
    plain: frozenset[str] = frozenset()
    """Modules and linears in 16 bits beside those of its format."""
    others: frozenset[tuple[str, str]] = frozenset()
    """Linears in another format."""
    absorbs: bool = False
    """The latent's matrix is copied for attention where it is not quantised too: its two halves, turned round (sglang
    0.5.5 models/deepseek_v2.py: w_kc, w_vc; vLLM has views)."""

    products: bool = False
    """Attention's products with the latent's matrix stand beside it (``Era.absorbs``)."""

    unread: bool = False
    """Layers that read the keys and values of another have matrices for their own, too."""

    def linears_of(self, part: Part) -> tuple[Linear, ...]:
        """Of a part; with values of their own where the checkpoint's are its keys (vllm 0.23 gemma4.py:
        attention_k_eq_v loads k_proj into both of QKVParallelLinear)."""
        named = {linear.name: linear for linear in part.linears}
        if not isinstance(part, SharedKVAttention) or "v_proj" in named:
            return part.linears
        if "k_proj" in named:
            return *part.linears, named["k_proj"]
        keys = named["q_proj"].but(name="k_proj", outputs=part.num_kv_heads * part.head_dim)
        return (*part.linears, keys, keys) if self.unread else part.linears

    def of_module(self, part: Part) -> str:
        """The name of a part's module in a checkpoint."""
        return "mlp" if isinstance(part, FeedForward) else MODULES.get(getattr(part, "kind", ""), "")

    def form_of(self, module: str, linear: str) -> str:
        """The format of a linear of a module."""
        name = f"{module}.{linear}"
        return "none" if {module, name} & self.plain else dict(self.others).get(name, self.format)

    def of(self, module: str, linears: Iterable[str]) -> "Rank":
        """The same with the format of linears that are one tensor: 16 bits where theirs differ."""
        forms = {self.form_of(module, linear) for linear in linears}
        return self._replace(format=forms.pop() if len(forms) == 1 else "none")

    def packed(self, rows: int, columns: int) -> Tensors:
        """What a quantised matrix becomes: its weights, then their scales and zeros."""
        return FORMATS[self.format](rows, columns, self.group)

    def matrix(self, linear: Linear, ranks: int, rows: int = 0) -> Tensors:
        """Of a linear in parts on ``ranks`` ranks; ``rows`` of them here, where given: weights, scales and a bias."""
        rows = rows or linear.outputs // ranks or 1
        bias = (rows * self.itemsize,) if linear.bias else ()
        if quantises(self.format):
            return *self.packed(rows, linear.inputs), *bias
        return rows * linear.inputs * self.itemsize, *bias


def stages_of(layers: int, stages: int) -> list[slice]:
    """Layers of each pipeline stage: those left over go to the last but one and those before (vllm
    distributed/utils.py: get_pp_indices). One stage has all, and what rests among them."""
    if stages == 1:
        return [slice(None)]
    each, over = divmod(layers, stages)
    ends = list(accumulate(each + (stages - 1 - over <= number < stages - 1) for number in range(stages)))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def products(mixer: Any, rank: Rank, ranks: int) -> Tensors:
    """W_Q_UK, W_UV_O and W_QR: of the queries' and the output's matrix with the latent's, and a copy of what turns."""
    queries = next(linear.inputs for linear in mixer.linears if linear.name in ("q_proj", "q_b_proj"))
    heads, form = mixer.num_heads // ranks, rank.form_of("self_attn", "kv_b_proj")
    each = heads * mixer.latent * (1 if form.startswith("fp8") else rank.itemsize)
    return each * queries, each * mixer.linears[-1].outputs, queries * heads * mixer.rope * rank.itemsize


def of_eagle3(layer: Layer, hidden: int, words: int, rows: int, rank: Rank) -> Tensors:
    """Beside a layer of the model's shape: its attention reads the embedding too, twice as wide; three hidden states
    are projected to one; an embedding of ``words`` and a head of ``rows`` are its own, with the words that these are
    (vllm model_executor/models/llama_eagle3.py)."""
    wide = sum(linear.outputs for linear in layer.mixer.linears[:-1]) if layer.mixer else 0
    divided = wide * hidden, words * hidden, rows * hidden
    norms = (hidden * rank.itemsize,) * 2
    return (
        3 * hidden * hidden * rank.itemsize,
        *(each * rank.itemsize // rank.tensor for each in divided),
        *norms,
        rows * 8,
    )
