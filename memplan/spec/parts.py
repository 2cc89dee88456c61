"""What layers are made of: linears, norms, bare parameters; mixers and feed-forwards.

The linear modules of a part drive three things at once: its parameters, its LoRA targets and the activations that its
forward saves. No family's name is known here; ``memplan/arch`` writes these, ``memplan/engine`` reads them."""

from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import ClassVar, Literal

from memplan.spec.base import Described
from memplan.spec.routing import Routing


class Bare(Described):
    """A parameter of no Linear and no Norm: a convolution, a gate, a table of positions, a stack of experts."""

    name: str
    shape: tuple[int, ...]
    category: str = ""
    """Where its elements are counted; empty: with the module that holds it."""
    frozen: bool = False
    """Never trained by the loss."""
    itemsize: int = 0
    """Bytes of each element, where it is kept in fp32 beside half-precision weights; 0: as the model's."""

    @property
    def parameters(self) -> int:
        """Elements."""
        return prod(self.shape)


class Linear(Described):
    """One ``nn.Linear``: y = x Wᵀ + b, W of shape [outputs, inputs]."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    adds_bias: bool = False
    """The bias is added behind the product (``FalconLinear``)."""
    multiplies_view: bool = False
    """The product is with ``weight.T`` (``FalconLinear``), of which autocast keeps no copy: it is a view."""
    bypassed: bool = False
    """Its class reads the weight itself, past any adapter, which so never gets a gradient (Mamba's dt_proj)."""
    transposed: bool = False
    """Stored as [inputs, outputs] (``Conv1D`` of GPT-2)."""
    frozen: bool = False
    """Never trained by the loss: what it makes decides which tokens are attended to."""
    idle: int = 0
    """Modules like it that stand beside it and never run here; adapters come to them too (Zamba 2)."""

    @property
    def parameters(self) -> int:
        """Weight and bias elements."""
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


NormKind = Literal[
    "rms",
    "rms-plus-one",
    "rms-wide",
    "rms-wide-weight",
    "layer",
    "layer-plain",
    "layer-plus-one",
    "layer-wide",
    "layer-bare",
    "identity",
    "rms-t5",
    "rms-power",
    "rms-power-bare",
]
"""A key of ``engine.norms.NORMS``. rms: ``LlamaRMSNorm``, narrowed before it is multiplied by the weight; rms-plus-one:
times 1 + weight, all in fp32 (Gemma); rms-wide: narrowed after (OLMo 2); rms-wide-weight: so, by a weight cast to
fp32 (Helium); layer: ``nn.LayerNorm``; layer-plain: without parameters; layer-plus-one: with 1 + weight (Nemotron);
layer-wide: single operations in fp32 (Cohere); layer-bare: a fused one in fp32 without parameters (OLMo); identity:
none (ModernBERT); rms-t5: the product with x itself, of any dtype (T5); rms-power: as rms-wide-weight, by a power;
-bare: without a weight (Gemma 4)."""


class Norm(Described):
    """A normalisation over the last dimension, of ``width`` elements."""

    name: str
    width: int
    kind: NormKind = "rms"
    bias: bool = False
    groups: int = 1
    """Groups of ``width / groups`` elements, each normalised apart with weights of its own (Cohere's q and k)."""
    frozen: bool = False
    """Never trained by the loss."""
    itemsize: int = 0
    """Bytes of each element, where it is kept in fp32 beside half-precision weights; 0: as the model's."""

    @property
    def casts(self) -> bool:
        """Its result has the dtype of what goes in, whatever that of its weights."""
        return "wide" in self.kind or self.kind in ("rms-plus-one", "rms-power", "layer-bare")

    @property
    def parameters(self) -> int:
        """Weight and bias elements."""
        weightless = "bare" in self.kind or self.kind in ("layer-plain", "identity")
        return 0 if weightless else self.width * (2 if self.bias else 1)


class Part(Described):
    """What a layer, or a model outside its layers, is made of: linears, norms, and parameters that are neither."""

    linears: tuple[Linear, ...] = ()
    tensors: tuple[Bare, ...] = ()
    norms: tuple[Norm, ...] = ()
    category: str = "other"
    """Where its linears and bare parameters are counted; norms are always norms."""
    chooses: ClassVar[bool] = False
    """It chooses ``topk`` tokens for each query."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that it is made of."""
        linears, tensors, norms = ((each.name for each in kind) for kind in (self.linears, self.tensors, self.norms))
        return (*linears, *tensors, *norms)

    @property
    def by_category(self) -> dict[str, int]:
        """Parameter elements by category."""
        counts: dict[str, int] = {}
        add_counts(counts, ((self.category, linear.parameters) for linear in self.linears))
        add_counts(counts, ((bare.category or self.category, bare.parameters) for bare in self.tensors))
        add_counts(counts, (("norm", norm.parameters) for norm in self.norms))
        return counts


def add_counts(counts: dict[str, int], more: Iterable[tuple[str, int]], times: int = 1) -> None:
    """Add ``times`` each count to that of its category; nothing is nothing."""
    for name, count in more:
        if count:
            counts[name] = counts.get(name, 0) + times * count


class Mixer(Part):
    """What moves information between positions: attention of any kind, a state space, a convolution.

    A kind of mixer is a class here (or in a file of its own) with a ``kind``, and a program in
    ``engine/layers/mixers.py``. The properties below are what the rest of the engine asks of any of them."""

    kind: str
    category: str = "attn"
    num_heads: int = 0
    """Query heads; 0 where there are none."""
    eager_only: bool = False
    """Its class knows neither SDPA nor flash attention."""
    window: int | None = None
    """Sliding window in tokens; None attends to all."""
    softcap: float | None = None
    """tanh soft-cap on the attention scores (Gemma 2), which only eager attention computes."""
    dropout: bool = False
    """The probabilities pass through dropout, in whichever kernel."""

    @property
    def dropping(self) -> "Mixer":
        """The same, with dropout of its probabilities; what has none of them reads nothing of it."""
        return self.but(dropout=True)

    @property
    def masked(self) -> bool:
        """Whether it takes an attention mask."""
        return True

    @property
    def rotary_width(self) -> int:
        """Elements per position of the tables of cos and of sin; 0 without rotary embeddings."""
        return 0


class Attention(Mixer):
    """Softmax attention: ``num_heads`` query heads of ``head_dim``, grouped over ``num_kv_heads`` key/value heads.

    ``linears`` in the order of the forward: q_proj, k_proj, v_proj, o_proj, or one fused qkv_proj and o_proj.
    ``norms``: of q and of k, when the model has them; ``width`` is head_dim for a norm on each head."""

    kind: Literal["attention", "shared_kv"] = "attention"
    num_kv_heads: int
    head_dim: int
    rotary: Literal["none", "half", "concatenated"] = "half"
    """'none': no positions (NoPE); 'half': turns the head and keeps its layout; 'concatenated': ends in ``cat`` with
    the part that is not turned, so that q and k come out head-major (Phi-3). Whether pairs are half a head apart or
    neighbours makes no difference in size."""
    rotary_dim: int | None = None
    """Elements of each head that turn, where that is a part of it; None: the whole head."""
    rotary_tables: Literal["shared", "fp32", "repeated", "fp32-repeated", "own", "made"] = "shared"
    """cos and sin: shared by all layers in the residual's dtype, or in fp32 (OLMo); repeated: each layer interleaves
    them anew and keeps its own (GLM); own: each layer makes them of its positions, for keys and for queries (GPT-J);
    made: each layer makes them, in the values' dtype (RecurrentGemma)."""
    rotary_inline: bool = False
    """Its own forward cuts q and k in what turns and what passes: these locals live on (Phi, StableLM, Persimmon)."""
    rotary_wide: bool = False
    """q and k are cast to fp32 before they turn (Cohere); else they take the wider dtype of theirs and the tables'."""
    norms_last: bool = False
    """q and k are normalised after they turn (Hunyuan)."""
    unweighted_norms: bool = False
    """q and k are normalised after they turn, without weights (Llama 4)."""
    scaled_queries: bool = False
    """Queries are multiplied by a factor of their position (Ministral 3), which each layer computes and keeps."""
    scaled_keys: bool = False
    """Keys are multiplied by a number before they turn (Falcon-H1)."""
    clipped: bool = False
    """Projections are clamped in place (OLMo's clip_qkv), which keeps a copy of each."""
    split_qkv: bool = False
    """A fused qkv is cut by one ``split``, whose gradients are joined at once; else by three slices."""
    style: str = "standard"
    """'standard', or a key of ``engine.attention_styles.STYLES``."""
    mask_form: Literal["plain", "always", "boolean", "heads"] = "plain"
    """plain: as every class makes it; always: even where SDPA could do without (Falcon); boolean: one byte each in
    eager too, and kept for backward (MPT); heads: one for each head, slopes of distance within, kept too (Falcon)."""

    @property
    def rotary_width(self) -> int:
        """Elements of cos and of sin; 0 without positions."""
        return 0 if self.rotary == "none" or self.rotary_tables in ("own", "made") else self.rotary_dim or self.head_dim

    @property
    def fused_qkv(self) -> bool:
        """Whether one linear makes q, k and v."""
        return len(self.linears) == 2


class Experts(Described):
    """Routed experts held as stacked 3-D parameters: each a feed-forward of ``intermediate``."""

    count: int
    active: int
    intermediate: int
    stacked: tuple[Bare, ...]
    """All experts together, ``count`` being the first extent: gate_up_proj and down_proj, each before its bias."""
    router: Linear
    routing: Routing = Routing.model_construct()
    clamped: bool = False
    """Gate and up are clamped, and the gate is a product with its sigmoid (GPT-OSS, MiniMax)."""
    limited: bool = False
    """Gate and up are clamped before the activation (DeepSeek-V4)."""
    gated: bool = True
    """``down(act(gate) * up)``; else ``down(act(up))`` of ``activation`` (Nemotron-H)."""
    activation: str = "silu"

    @property
    def plain_router(self) -> bool:
        """The router's linear is a module like any other, which adapters find and a quantised base quantises."""
        return self.routing.program == "normed"

    @cached_property
    def parameters(self) -> int:
        """Elements of all experts, without the router."""
        return sum(bare.parameters for bare in self.stacked)

    @property
    def inactive_parameters(self) -> int:
        """Elements that one token does not visit."""
        return self.parameters // self.count * (self.count - self.active)


class FeedForward(Part):
    """A dense feed-forward, a mixture of experts, or both side by side. ``linears``: gate_proj, up_proj,
    down_proj; gate_up_proj, down_proj when fused; up and down when not ``gated``; empty when there are only experts."""

    category: str = "mlp"
    intermediate: int
    activation: str = "silu"
    gated: bool = True
    experts: Experts | None = None
    shared: tuple[Linear, ...] = ()
    """Shared experts, which every token visits, and their gate when they have one."""
    shared_first: bool = False
    """They run before the router; else after the experts."""
    shared_limited: bool = False
    """Their gate and up are clamped before the activation."""
    shared_average: bool = False
    """The sum with the experts' output is halved."""
    scaled: bool = False
    """The gate and the output are multiplied by numbers (Falcon-H1)."""
    sparse: bool = False
    """Of the gates only the largest pass, above a cut-off of each row's mean and deviation (Gemma 3n)."""
    dropout: bool = False
    """What goes into the last linear passes through dropout (T5, ModernBERT)."""

    @property
    def by_category(self) -> dict[str, int]:
        """Parameter elements: mlp, experts, router, shared_experts."""
        counts = super().by_category
        add_counts(counts, (("shared_experts", linear.parameters) for linear in self.shared))
        if self.experts:
            add_counts(counts, [("experts", self.experts.parameters), ("router", self.experts.router.parameters)])
        return counts
