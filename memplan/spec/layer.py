"""A layer: a mixer and a feed-forward with what stands around them; and runs of equal layers. The words for how a
layer, and a model outside its layers, is put together are keys of a table of programs each."""

from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from memplan.spec.base import Described
from memplan.spec.parts import Attention, Experts, FeedForward, Linear, Mixer, Norm, Part, add_counts

if TYPE_CHECKING:
    from memplan.spec.attention_kinds import CompressedAttention, LatentAttention, LayerInput, SharedKVAttention
    from memplan.spec.encoders import DisentangledAttention
    from memplan.spec.state_space import (
        BothMixers,
        GatedDelta,
        GatedRecurrence,
        Lightning,
        ShortConvolution,
        StateSpace,
        StateSpaceDual,
        TimeMix,
    )
    from memplan.spec.vision import ImageCross

    AnyMixer: TypeAlias = (
        Attention
        | SharedKVAttention
        | LatentAttention
        | CompressedAttention
        | DisentangledAttention
        | ImageCross
        | StateSpace
        | StateSpaceDual
        | GatedDelta
        | GatedRecurrence
        | ShortConvolution
        | Lightning
        | TimeMix
        | BothMixers
    )
    """Every kind of mixer."""
else:  # a kind is imported by the families that have it
    AnyMixer, LayerInput = Mixer, Part


Form = Literal[
    "pre",
    "sandwich",
    "post",
    "parallel",
    "pre-scaled",
    "after-sum",
    "parallel-branches",
    "gated",
    "single",
    "normed-residual",
    "rwkv",
    "encoder",
    "t5",
    "layer-inputs",
    "streams",
    "hyper",
    "shared-block",
]
"""How norms and residuals stand around mixer and feed-forward, a key of ``engine.layers.FORMS``.

pre: a norm before mixer and feed-forward; sandwich: before and after each (Gemma 2 and 3); post: one after each (OLMo
2); parallel: one norm, whose output both take, and one sum (Cohere); pre-scaled: as pre, each output multiplied by a
number before it is added (Granite); after-sum: a norm of each sum with the residual (opt-350m); parallel-branches:
both read the same input, through one norm or one each, and are added to each other first (GPT-J, GPT-NeoX, Phi,
Falcon); gated: as pre, each output weighed by the tanh of a scalar (Llama 3.2 Vision); single: one norm and either a
mixer or a feed-forward (Mamba, Nemotron-H); normed-residual: a norm before each, whose output is also the residual, and
both summands multiplied by a number (MiniMax); rwkv: as pre, one more norm before all in the first layer; encoder: as
after-sum, what is added held while the sum is normalised (BERT); t5: as pre, with attention to the encoder in between;
layer-inputs: as sandwich, with experts beside the feed-forward and an input of the layer's own after it (Gemma 4);
streams: as sandwich, in one of several stacked streams (Gemma 3n); hyper: streams collapsed before each block and mixed
after it (DeepSeek-V4); shared-block: a state space, before it a transformer block whose weights other layers have too
(Zamba 2)."""

Dropped = Literal["mixer", "feed-forward", "branches"]
"""A branch whose output passes through dropout before it joins the residual; 'branches': the sum of both."""

Front = Literal[
    "project",
    "map",
    "scale",
    "positions",
    "row-positions",
    "token-types",
    "norm",
    "mask",
    "dropout",
    "return",
    "streams",
]
"""A step between the embedding and the first layer, a key of ``engine.front.STEPS``.

project: a linear to hidden_size (opt-350m); map: the same, beside what went in (ALBERT); scale: times a number, beside
what went in (RecurrentGemma); positions: learned ones, one set for all rows; row-positions: one for each row (OPT);
norm: a norm of the embeddings (Bloom); token-types: one of two vectors (BERT); mask: a product with the padding mask
(DeBERTa); return: all but the result was local to the embeddings' own forward; streams: once for each residual stream
(DeepSeek-V4)."""


class Layer(Described):
    """A mixer and a feed-forward, with the norms around them. Either may be missing."""

    mixer: AnyMixer | None
    feed_forward: FeedForward | None
    norms: tuple[Norm, ...]
    """In order of the forward."""
    form: Form = "pre"
    cross: Attention | None = None
    """Attention to the encoder's output, between mixer and feed-forward."""
    extra: tuple[Part, ...] = ()
    """Whatever else the layer holds."""
    streams: int = 1
    """Tensors of its width that come in and go out, stacked (Gemma 3n, DeepSeek-V4)."""
    stream_rounds: int = 0
    """Sinkhorn rounds that make what mixes the streams doubly stochastic (``hc_sinkhorn_iters``)."""
    repeats: bool = False
    """Its weights, but those in ``extra``, are an earlier layer's (Zamba 2, ALBERT)."""
    recurs: bool = False
    """A later layer applies these weights again."""
    own_modules: bool = False
    """Modules are its own even where their weights are not: adapters come to each (Zamba 2)."""
    own_input: LayerInput | None = None
    """An embedding of each token that is this layer's own (Gemma 3n and 4)."""
    locals_held: tuple[Literal["mixer", "norm", "inner", "states"], ...] = ()
    """What the layer's forward still names while its feed-forward runs: the mixer's output, the first norm's. Of
    encoders, until the norm is done: what goes into the last linear (inner); queries, keys and values (states)."""
    dropout: tuple[Dropped, ...] = ()
    """Where dropout stands; in training it keeps a mask of one byte per element."""
    projected_input: bool = False
    """Its input comes out of a linear, in autocast's precision (ELECTRA's first)."""
    narrow_input: bool = False
    """It takes the embedding's output as it is, and widens the residual stream to fp32 (Mamba's first)."""
    leaf_input: bool = False
    """It takes the embedding's output as it is, a leaf of the graph that its products read (OLMo's first)."""
    frozen: frozenset[str] = frozenset()
    """Names of its weights that are not trained (``freeze``)."""
    unadapted: bool = False
    """No adapter stands in it (``lora.layers_to_transform``)."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Mixer, feed-forward and the rest, without what is missing."""
        return tuple(
            part
            for part in (self.mixer, self.cross, self.feed_forward, self.own_input, *self.extra)
            if part is not None
        )

    @property
    def attends_to_images(self) -> bool:
        """Whether it is one of the layers that read images (Llama 3.2 Vision)."""
        return self.mixer is not None and self.mixer.kind == "image-cross"

    @property
    def own_parts(self) -> tuple[Part, ...]:
        """Those whose weights are its own."""
        return self.extra if self.repeats else self.parts

    @cached_property
    def shared_names(self) -> frozenset[str]:
        """Its modules whose weights other layers apply too."""
        if not (self.repeats or self.recurs):
            return frozenset()
        own = {name for part in self.extra for name in part.names}
        found = {name for part in self.parts if part not in self.extra for name in part.names}
        return frozenset(found | {norm.name for norm in self.norms}) - own

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every nn.Linear of the layer that is not a routed expert's."""
        found: list[Linear] = []
        for part in self.parts:
            found += part.linears
            if isinstance(part, FeedForward):
                found += part.shared
                found += [part.experts.router] if part.experts else []
        return tuple(found)

    @property
    def experts(self) -> Experts | None:
        """The routed experts, when the layer has any."""
        return self.feed_forward.experts if self.feed_forward else None

    @cached_property
    def width(self) -> int:
        """Elements per token of what comes in and goes out, in one stream."""
        return self.norms[0].width

    @cached_property
    def by_category(self) -> dict[str, int]:
        """Parameter elements: attn, mlp, norm, experts, router and so on."""
        counts: dict[str, int] = {}
        for part in self.own_parts:
            add_counts(counts, part.by_category.items())
        add_counts(counts, (("norm", norm.parameters) for norm in self.norms if not self.repeats))
        return counts

    @cached_property
    def parameters(self) -> int:
        """All parameter elements."""
        return sum(self.by_category.values())

    @cached_property
    def inactive_parameters(self) -> int:
        """Elements of the experts that one token does not visit."""
        return self.experts.inactive_parameters if self.experts else 0


class Run(Described):
    """``count`` equal layers in a row."""

    count: int
    layer: Layer
    blocks: tuple[int, ...] = ()
    """For each, the block whose weights it shares with other layers, where it does."""

    @property
    def halves(self) -> "tuple[Run, ...]":
        """The first layer, and the rest where there is one."""
        first, rest = self.piece(0, 1, self.layer), self.piece(1, self.count - 1, self.layer)
        return (first, rest) if self.count > 1 else (first,)

    def piece(self, first: int, count: int, layer: Layer) -> "Run":
        """So many of its layers, as ``layer`` has them."""
        return Run(count=count, layer=layer, blocks=self.blocks[first : first + count])
