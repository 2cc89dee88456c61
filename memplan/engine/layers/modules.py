"""What every module of a layer is built with: the mode, the pass, linear projections with their adapters, and norms.

Variables live exactly as long as in ``modeling_llama.py`` and its kin (transformers 5.23): as a local there, so here.
Symbols in formulas, per token: h hidden, q = heads × head_dim, kv = key/value heads × head_dim, F feed-forward width, H
heads, K key/value heads, s sequence length, E experts, k experts per token, r LoRA rank."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from memplan.engine.layers.low_linear import in_float8, runs_in_float8
from memplan.engine.layers.quantised_linear import quantised_linear
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.groups import Numerics, Operators, Quantised
from memplan.spec.lora import EMBEDDING, Adapter
from memplan.spec.parts import Linear, Norm
from memplan.spec.recompute import Recompute
from memplan.tables.styles import FlatAdapters, KeyRepeats, OffloadStyle, RouterUse, SharedCasts


class Widths(NamedTuple):
    """Element sizes that differ from the weights'; 0 where they do not."""

    buffer: int = 0
    """Buffers: FSDP casts weights for use, and buffers seldom."""
    stream: int = 0
    """The residual stream where norms that autocast widens stand in it (Bloom, opt-350m)."""
    product: int = 0
    """What quantised linears give back where it is that of autocast's LayerNorms before them."""
    narrow: int = 0
    """The residual stream where narrower than the weights: behind autocast's convolution over patches."""
    casts_all: bool = False
    """DeepSpeed: no weight keeps a dtype of its own."""
    input: int = 0
    """What FSDP2 casts to what a layer is given (``MixedPrecisionPolicy.cast_forward_inputs``)."""
    output: int = 0
    """What FSDP2 casts to what a layer gives back (``MixedPrecisionPolicy.output_dtype``)."""
    norms_cast: bool = False
    """Norms give back the dtype of what they are given, whatever that of their weights (``Norm.casts``)."""


class RouterLogits(NamedTuple):
    """Routers hand their logits to a load-balancing loss."""

    how: RouterUse = ""
    stacked: bool = False
    """That loss is made over all layers at once."""
    detached: bool = False
    """They have no graph: layers are checkpointed by reentrant autograd."""
    masked: bool = False
    """That loss is given the batch's mask, whether or not anything is padded."""


class Mode(NamedTuple):
    """How modules run: everything beside the layer and the number of tokens that decides what they keep."""

    numerics: Numerics
    operators: Operators
    trained: bool = True
    """The model's own weights receive gradients."""
    padded: bool = False
    """A padding mask reaches attention."""
    adapter: Adapter | None = None
    quantised: Quantised | None = None
    """The format of the linears in the layers."""
    widths: Widths = Widths()
    recompute: Recompute = Recompute()
    """What selective checkpointing keeps, and the modules that are checkpointed by themselves."""
    offload: OffloadStyle = ""
    router: RouterLogits = RouterLogits()
    shared_casts: SharedCasts = ""
    frozen: frozenset[str] = frozenset()
    """Names of weights that are not trained though the others are."""
    flat: FlatAdapters = ""
    in_place: bool = False
    """A real device: gradients are added and scattered in place, which torch does not do under a dispatch mode."""
    lacks_flash: bool = False
    """The card is older than flash attention's kernel."""
    loops_experts: bool = False
    """Frozen experts run one after another, as modules of their own."""
    saves_inputs: bool = False
    """Weights are gathered module by module (ZeRO-3), and ``F.linear`` keeps its input whether its weight trains or not
    (deepspeed 0.19 runtime/zero/linear.py: LinearFunctionForZeroStage3, which zero.Init puts in its place for good)."""
    orders_experts: bool = False
    """Experts' rows lie in their order, and each projection is a product of its own (prime-rl's own classes)."""
    repeats_keys: KeyRepeats = ""
    """Who repeats keys and values to all heads before flash attention."""
    tensor: int = 1
    """Ranks that share each product, and the sequence of the residual stream between them (torch's DTensor)."""
    summed: int = 1
    """Ranks that share each product where each has the whole residual stream (transformers' plans)."""
    context: int = 1
    """Ranks that share each sequence."""
    expert: int = 1
    """Ranks that the experts are spread over (torchtitan's expert parallelism)."""
    slices: int = 1
    """Parts of the tokens that tensor-parallel ranks send to experts, each its own."""
    shares: Literal["ring", "ulysses", "gathered"] = "ring"
    """How they do in attention: partial results on torch's ring, heads for sequence, all keys and values gathered."""

    @property
    def residual_itemsize(self) -> int:
        """Element size of the residual stream: wider norms widen what the feed-forward adds to it, and so do quantised
        linears whose input is wider, and DoRA's fp32 magnitudes where PEFT does not cast its result back (over
        bitsandbytes' linears, under autocast)."""
        if self.widths.narrow:
            return self.widths.narrow
        adapter, base = self.adapter, self.quantised
        uncast = adapter is not None and adapter.dora and base is not None and base.scheme.product.startswith("bnb")
        magnitude = adapter.magnitude_itemsize if adapter and uncast and self.numerics.autocast else 0
        norm = 0 if self.widths.norms_cast else self.numerics.norm_itemsize
        return max(self.numerics.itemsize, norm, self.widths.stream, self.widths.product, magnitude)

    @property
    def widens_stream(self) -> bool:
        """The first layer adds what is wider than the embedding's output that comes in: fp32 norms, 4-bit base."""
        return self.quantised is not None and self.residual_itemsize > max(self.numerics.itemsize, self.widths.stream)

    @property
    def unpads(self) -> bool:
        """Flash attention runs over what is not padding; but Unsloth's own attention is given no mask."""
        return self.padded and self.operators.attention == "flash" and self.operators.kernels.adapters != "fused"

    @property
    def adapts_embedding(self) -> bool:
        """Adapters beside the embedding, or rows of it that are trained."""
        adapter = self.adapter
        return adapter is not None and (EMBEDDING in adapter.targets or adapter.tokens_of(EMBEDDING) > 0)

    @property
    def embedding_rests(self) -> bool:
        """Nothing of the embedding is trained: where its output needs a gradient it is a leaf, which autograd holds."""
        return not self.trained and (self.adapter is None or not self.adapter.trains(EMBEDDING))


class Pass:
    """A pass of ``rows`` sequences of ``length`` tokens through modules, on one tape."""

    __slots__ = (
        *("checkpointed", "held", "length", "memory", "mode", "params"),
        *("ended", "entering", "leaving", "returned", "routers", "rows", "shared", "tape", "tokens"),
    )

    def __init__(self, tape: Tape, mode: Mode, rows: int, length: int) -> None:
        self.tape, self.mode, self.rows, self.length = tape, mode, rows, length
        self.tokens = rows * length
        tape.half_to_float = mode.numerics.half_to_float
        self.checkpointed = False
        self.held: list[Tensor] | None = None
        """Where a mixer leaves locals that its caller holds on."""
        self.returned: list[Tensor] | None = None
        """Where mixers leave the probabilities that their layer's class returns beside its output."""
        self.shared: dict[str, Tensor] = {}
        """What all layers of a stack read beside the residual stream, by name: an encoder's output, tables of
        relative positions. Their bytes are counted elsewhere."""
        self.entering: Callable[[Tensor], Tensor] = lambda hidden: hidden
        """What wraps the head does to what it is given, behind the final norm."""
        self.leaving: Callable[[Tensor], Tensor] | None = None
        """What wraps the model does to its logits."""
        self.ended: Callable[[], None] = lambda: None
        """And what when its forward has returned, the loss with it."""
        self.params: dict[str, Param] | None = None
        """Weights that several calls of one module share, while there are any."""
        self.memory = 0
        """Tokens of each row that the encoder read."""
        self.routers: list[Tensor] = []
        """The logits of every router, in the tail of a model with a load-balancing loss."""

    def part(self, rows: int, length: int) -> "Pass":
        """A pass over other tokens through the same modules."""
        made = Pass(self.tape, self.mode, rows, length)
        made.ended = self.ended
        return made

    def enter(self, number: int) -> None:
        """This part of a vision tower begins (``tensors.tower_in_order``)."""

    def remember(self, state: Tensor | None) -> None:
        """What a module names as an attribute, until it runs again: that of a layer by itself is let go of."""

    def dim(self, symbol: str, width: int) -> Dim:
        """``width`` elements per token."""
        return Dim("T·" + symbol, self.tokens * width)

    def stream(self, width: int) -> Dim:
        """``width`` elements for each token of the residual stream, of which the rank may hold a part."""
        return Dim("T·h", self.tokens // self.mode.tensor * width)

    def param(self, name: str, elements: int, itemsize: int = 0) -> Param:
        """One of the model's own weights; beside adapters, those of ``modules_to_save`` are trained copies, and biases
        may be trained too."""
        mode, adapter = self.mode, self.mode.adapter
        own = mode.trained and name not in mode.frozen
        trained = own or (adapter is not None and (name in adapter.saved or adapter.trains_bias(name)))
        own_itemsize = 0 if mode.widths.casts_all else itemsize
        return self._weight(name, elements, own_itemsize or mode.numerics.itemsize, trained)

    def adapter(self, name: str, elements: int, itemsize: int) -> Param:
        """One of an adapter's weights."""
        return self._weight(name, elements, itemsize, trained=True)

    def _weight(self, name: str, elements: int, itemsize: int, trained: bool) -> Param:
        if self.params is not None and name in self.params:
            return self.params[name]
        made = Param(self.tape, name, elements, itemsize, trained)
        self.tape.use(made)
        if self.params is not None:
            self.params[name] = made
        return made


def project(p: Pass, x: Tensor, linear: Linear, symbol: str, label: str, quantised: bool = True) -> Tensor:
    """A linear module, with its LoRA branch when it is a target; the head is never ``quantised``."""
    mode = p.mode
    out = p.dim(symbol, linear.outputs)
    results = [_base(p, x, linear, out, label, quantised)]
    if mode.adapter and linear.name in mode.adapter.targets:
        base = mode.quantised if quantised else None
        from memplan.engine.layers.lora import adapted, cloned

        results.append(cloned(p.tape, results.pop(), base))
        return adapted(p, x, results, linear, out, mode.adapter, base)
    return results.pop()


def _base(p: Pass, x: Tensor, linear: Linear, out: Dim, label: str, quantised: bool) -> Tensor:
    """``base_layer(x)``."""
    if quantised and p.mode.quantised is not None:
        return quantised_linear(p.tape, x, linear, p.mode.quantised, out, label)
    weight = weight_of(p, linear, cast=True)
    if runs_in_float8(p.mode.operators.kernels.float8, linear, quantised):
        return in_float8(p, x, linear, weight, out, label)
    if linear.multiplies_view:
        weight = _cast_of_view(p.tape, weight)
    bias = p.param(linear.name + ".bias", linear.outputs) if linear.bias else None
    if bias is not None and linear.adds_bias:
        from memplan.engine.layers.norms import add_bias

        return add_bias(p.tape, ops.linear(p.tape, x, weight, out, label), bias, label)
    keeps = p.mode.saves_inputs and not linear.transposed
    return ops.linear(p.tape, x, weight, out, label, bias, keeps=keeps)


def _cast_of_view(tape: Tape, weight: Param) -> Param:
    """Autocast's copy of a view, which only what multiplies by it holds (torch 2.13 aten/src/ATen/autocast_mode.cpp:
    cached_cast keeps those of leaves that are no views)."""
    size = weight.dim, weight.itemsize
    if not tape.autocast or weight.itemsize == tape.autocast:
        return weight
    node = tape.node((weight,), (), lambda t, g: (t.gradient(size, "weight gradients"),))
    label = "autocast copies of weights"
    copy = tape.new(weight.dim, tape.autocast, label, node, category="autocast_weights")
    cast = Param(tape, weight.name, weight.dim.elements, tape.autocast, trained=False)
    cast.storage, cast.node, cast.needs_grad = copy.storage, copy.node, copy.needs_grad
    return cast


def weight_of(p: Pass, linear: Linear, *, cast: bool = False) -> Param:
    """A linear's weight, or a copy of it with its trained rows (``merged_rows``)."""
    adapter, elements = p.mode.adapter, linear.inputs * linear.outputs
    if adapter is not None and adapter.tokens and adapter.tokens_of(linear.name):
        from memplan.engine.layers.lora import merged_rows

        return merged_rows(p, linear.name, elements, linear.inputs, cast=cast)
    return p.param(linear.name, elements)


def norm(p: Pass, spec: Norm, x: Tensor, symbol: str, rows_symbol: str = "", rows: int = 1) -> Tensor:
    """RMSNorm as Llama writes it, or as Gemma does (all in fp32, weight + 1); others stand in ``norms.py``."""
    tape = p.tape
    per_row = p.dim(rows_symbol or "1", rows)
    if p.mode.tensor > 1:
        per_row = Dim(per_row.symbol, x.dim.elements // spec.width)
    if p.mode.operators.kernels.norm:
        from memplan.engine.layers.fused_kernels import FUSED_NORMS, fused_norm

        if spec.kind in FUSED_NORMS:
            return fused_norm(p, spec, x, per_row)
    if spec.kind not in ("rms", "rms-plus-one"):
        from memplan.engine.layers.norms import NORMS

        return NORMS[spec.kind](p, spec, x, per_row)
    weight = p.param(spec.name, spec.width, p.mode.numerics.norm_itemsize)
    before = x.itemsize
    wide = ops.cast(tape, x, ops.FP32, "norm inputs in fp32")
    normed = ops.normalise(tape, wide, per_row, "normalised")
    if spec.kind == "rms-plus-one":
        del wide  # ``self._norm(x.float())``: the argument ends with the call (Gemma2RMSNorm.forward)
        shifted = ops.scale(tape, ops.cast(tape, weight, ops.FP32, "norm weights"), "norm weights")
        product = ops.mul(tape, normed, shifted, "norm products in fp32")
        del normed  # ``output = output * (1.0 + self.weight.float())`` rebinds it (Gemma2RMSNorm.forward)
        return ops.cast(tape, product, before, "norm outputs")
    del wide  # ``hidden_states = hidden_states * torch.rsqrt(…)`` rebinds the fp32 copy (LlamaRMSNorm.forward)
    return ops.mul(tape, ops.cast(tape, normed, before, "normalised"), weight, "norm outputs")
