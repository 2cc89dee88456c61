"""Zamba 2 as transformers 5.23 builds it (``models/zamba2/configuration_zamba2.py``, ``modeling_zamba2.py``): layers of
Mamba 2, some of which a transformer block precedes whose weights are one of a few that all of them share."""

from itertools import groupby

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import Family, activation
from memplan.arch.reading import kinds_of_layers
from memplan.arch.state_space import convolution, no_feed_forward
from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, Bare, FeedForward, Linear, Norm, Part
from memplan.spec.state_space import StateSpaceDual

MAMBA, HYBRID = "linear_attention", "hybrid"
KINDS = {"mamba": MAMBA, MAMBA: MAMBA, HYBRID: HYBRID}
DEFAULT = [MAMBA, *([MAMBA] * 5 + [HYBRID]) * 7, *[MAMBA] * 4, HYBRID, *[MAMBA] * 3, HYBRID, *[MAMBA] * 2]


def kinds_of(config: Config) -> list[str]:
    """The kind of each layer; null is the default for 54."""
    given = config.value("layers_block_type")
    return kinds_of_layers(config, "layers_block_type", DEFAULT if given is None else given, KINDS)


def state_space(config: Config) -> StateSpaceDual:
    """The Mamba 2 of every layer."""
    h, heads, groups = (config.integer(key) for key in ("hidden_size", "n_mamba_heads", "mamba_ngroups"))
    state, inner, bias = (
        config.integer("mamba_d_state"),
        config.integer("mamba_expand") * h,
        config.flag("add_bias_linear"),
    )
    if inner % heads or inner % groups:
        raise config.wrong("n_mamba_heads", f"a divisor of mamba_expand × hidden_size ({inner})", heads)
    convolved = inner + 2 * groups * state
    numbers = tuple(Bare(name=name, shape=(heads,)) for name in ("dt_bias", "A_log", "D"))
    return StateSpaceDual(
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state=state,
        kernel=config.integer("mamba_d_conv"),
        chunk=config.integer("chunk_size"),
        linears=(
            Linear(name="in_proj", inputs=h, outputs=inner + convolved + heads, bias=bias),
            Linear(name="out_proj", inputs=inner, outputs=h, bias=bias),
        ),
        tensors=(*convolution(convolved, config.integer("mamba_d_conv"), True), *numbers),
        norms=(Norm(name="norm", width=inner, groups=groups),),
    )


def adapters(sizes: list[tuple[int, int]], category: str, idle: int) -> Part:
    """Low-rank products beside the shared block's linears, each layer's own; a block has those of all its layers."""
    numbered = ((str(place % 2), size) for place, size in enumerate(sizes))
    linears = (Linear(name=name, inputs=i, outputs=o, idle=idle) for name, (i, o) in numbered)
    return Part(linears=tuple(linears), category=category)


def hybrid(family: Family, config: Config, mamba: StateSpaceDual, uses: int) -> Layer:
    """A layer with the shared block before it: its own are adapters, a linear, the state space and its norm.

    ``uses``: how many layers have the weights of this one's block."""
    h, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    f, rank, bias = (
        config.optional_integer("intermediate_size") or 4 * h,
        config.integer("adapter_rank"),
        config.flag("add_bias_linear"),
    )
    if 2 * h % heads:
        raise config.wrong("num_attention_heads", f"a divisor of 2 × hidden_size ({2 * h})", heads)
    width, kv_heads = 2 * h // heads, attention.num_kv_heads(config, nullable=True)
    into = tuple(
        Linear(name=name, inputs=2 * h, outputs=count * width)
        for name, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads))
    )
    of_attention = [(2 * h, rank), (rank, 2 * h)] * 3 if config.flag("use_shared_attention_adapter") else []
    extra = (
        Part(
            linears=(Linear(name="linear", inputs=h, outputs=h),),
            norms=(Norm(name="mamba_decoder.input_layernorm", width=h),),
        ),
        adapters(of_attention, "attn", uses - 1),
        adapters([(h, rank), (rank, 2 * f)], "mlp", uses - 1),
        mamba,
    )
    return Layer(
        mixer=Attention(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=width,
            linears=(*into, Linear(name="o_proj", inputs=heads * width, outputs=h)),
            rotary="half" if config.flag("use_mem_rope") else "none",
        ),
        feed_forward=FeedForward(
            intermediate=f,
            activation=activation(family, config),
            linears=(
                Linear(name="gate_up_proj", inputs=h, outputs=2 * f, bias=bias),
                Linear(name="down_proj", inputs=f, outputs=h, bias=bias),
            ),
        ),
        norms=(Norm(name="pre_ff_layernorm", width=h), Norm(name="input_layernorm", width=2 * h)),
        extra=extra,
        form="shared-block",
        own_modules=True,
    )


def hybrids(config: Config, mamba: StateSpaceDual, count: int) -> list[tuple[Layer, int]]:
    """The layers with shared blocks, in order, and the number of each one's block: blocks take turns."""
    blocks = config.integer("num_mem_blocks")
    order = [i % blocks for i in range(count)]
    kinds = [(order.count(order[i]), i >= blocks, i + blocks < count) for i in range(count)]
    made = {uses: hybrid(FAMILY, config, mamba, uses) for uses in {kind[0] for kind in kinds}}
    names = ("repeats", "recurs")
    layers = {kind: made[kind[0]].model_copy(update=dict(zip(names, kind[1:], strict=True))) for kind in set(kinds)}
    return [(layers[kind], block) for kind, block in zip(kinds, order, strict=True)]


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """The layers in order: of the blocks before them, the first ``num_mem_blocks`` have weights of their own."""
    mamba, kinds = state_space(config), kinds_of(config)
    norm = Norm(name="input_layernorm", width=spec.hidden_size)
    plain = Layer(mixer=mamba, feed_forward=None, norms=(norm,), form="single")
    blocks = iter(hybrids(config, mamba, kinds.count(HYBRID)))
    places = [next(blocks) if kind == HYBRID else (plain, None) for kind in kinds]
    runs = []
    for _, group in groupby(places, key=lambda place: id(place[0])):
        found = list(group)
        numbers = tuple(block for _, block in found if block is not None)
        runs.append(Run(count=len(found), layer=found[0][0], blocks=numbers))
    return spec.but(runs=tuple(runs))


def first_of(family: Family, config: Config) -> list[StateSpaceDual]:
    """The same."""
    return [state_space(config)] * config.integer("num_hidden_layers")


FAMILY = Family(
    model_type="zamba2",
    feed_forward=no_feed_forward,
    mixers=first_of,
    norms=("input_layernorm",),
    form="single",
    names={"layers_block_type": "layer_types"},
    finish=finish,
)

ROWS = (FAMILY,)
