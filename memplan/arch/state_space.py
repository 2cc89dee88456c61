"""Mamba, Mamba 2 and Falcon Mamba as transformers 5.23 builds them, and the mixers that hybrids make of them."""

from collections.abc import Mapping
from typing import Any

from memplan.arch.config import Config
from memplan.arch.decoder import ACTIVATIONS, Family
from memplan.spec.layer import AnyMixer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, FeedForward, Linear, Norm
from memplan.spec.state_space import StateSpace, StateSpaceDual

KERNELS = (
    "its state spaces, linear attention and convolutions run as transformers' own PyTorch code, or as kernels of other "
    "packages (mixer_kernels)"
)
NO_NAMES: Mapping[str, str] = {}
PSCAN = "mambapy's parallel scan keeps other tensors"


def step_rank(config: Config, key: str) -> int:
    """The width of the step's low rank: a number, or ``auto``, a sixteenth of hidden_size."""
    return -(-config.integer("hidden_size") // 16) if config.value(key) == "auto" else config.integer(key)


def convolution(channels: int, kernel: int, bias: bool, name: str = "conv1d") -> tuple[Bare, ...]:
    """A convolution over each channel alone."""
    weight = Bare(name=name, shape=(channels, 1, kernel))
    return (weight, Bare(name=f"{name}.bias", shape=(channels,))) if bias else (weight,)


def selective(config: Config, inner: int, keys: Mapping[str, str] = NO_NAMES, **fields: Any) -> StateSpace:
    """Mamba's mixer; ``keys``: what the class calls a key of Mamba's."""

    def key(name: str) -> str:
        return keys.get(name, name)

    h, state, rank = (
        config.integer("hidden_size"),
        config.integer(key("state_size")),
        step_rank(config, key("time_step_rank")),
    )
    bias, kernel = config.flag(key("use_bias")), config.integer(key("conv_kernel"))
    config.choice("hidden_act", ACTIVATIONS)
    return StateSpace(
        inner=inner,
        state=state,
        kernel=kernel,
        rank=rank,
        linears=(
            Linear(name="in_proj", inputs=h, outputs=2 * inner, bias=bias),
            Linear(name="x_proj", inputs=inner, outputs=rank + 2 * state),
            Linear(name="dt_proj", inputs=rank, outputs=inner, bias=True, bypassed=True),
            Linear(name="out_proj", inputs=inner, outputs=h, bias=bias),
        ),
        tensors=(
            *convolution(inner, kernel, config.flag(key("use_conv_bias"))),
            Bare(name="A_log", shape=(inner, state)),
            Bare(name="D", shape=(inner,)),
        ),
        **fields,
    )


class DualKeys(dict[str, str]):
    """What a class calls the keys of Mamba 2's mixer; a key that is not here has Mamba 2's own name."""

    def __missing__(self, name: str) -> str:
        return name


MAMBA_PREFIX = DualKeys(
    num_heads="mamba_n_heads",
    head_dim="mamba_d_head",
    n_groups="mamba_n_groups",
    state_size="mamba_d_state",
    conv_kernel="mamba_d_conv",
    expand="mamba_expand",
    chunk_size="mamba_chunk_size",
    use_conv_bias="mamba_conv_bias",
    use_bias="mamba_proj_bias",
)
"""The names in Bamba, Granite 4 and Falcon-H1."""


def served_itemsize(config: Config, key: str, default: int) -> int:
    """Bytes of an element of a mixer's state as engines serve it: they read it in the config (vllm 0.33
    model_executor/models/config.py: mamba_ssm_cache_dtype)."""
    return {"float32": 4, "bfloat16": 2, "float16": 2}.get(str(config.keys.get(key)), default)


def dual(
    config: Config, heads: int, head_dim: int, keys: DualKeys, out_bias: bool | None = None, **fields: Any
) -> StateSpaceDual:
    """Mamba 2's mixer, with a norm of its gated output."""
    h, inner = config.integer("hidden_size"), heads * head_dim
    groups, state = config.integer(keys["n_groups"]), config.integer(keys["state_size"])
    kernel, bias = config.integer(keys["conv_kernel"]), config.flag(keys["use_bias"])
    if heads % groups:
        raise config.wrong(keys["num_heads"], f"a multiple of {keys['n_groups']} ({groups})", heads)
    config.choice("mamba_hidden_act" if "mamba_hidden_act" in config.defaults else "hidden_act", ACTIVATIONS)
    convolved = inner + 2 * groups * state
    return StateSpaceDual(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=state,
        kernel=kernel,
        chunk=config.integer(keys["chunk_size"]),
        linears=(
            Linear(name="in_proj", inputs=h, outputs=inner + convolved + heads, bias=bias),
            Linear(name="out_proj", inputs=inner, outputs=h, bias=bias if out_bias is None else out_bias),
        ),
        tensors=(
            Bare(name="dt_bias", shape=(heads,)),
            Bare(name="A_log", shape=(heads,)),
            Bare(name="D", shape=(heads,)),
            *convolution(convolved, kernel, config.flag(keys["use_conv_bias"])),
        ),
        **({"norms": (Norm(name="mixer_norm", width=inner, groups=groups),)} | fields),
    )


def prefixed_dual(config: Config, inner: int, **fields: Any) -> StateSpaceDual:
    """So, by the keys that begin with ``mamba_``: a width of its heads, or ``auto``."""
    heads = config.integer("mamba_n_heads")
    if inner % heads:
        raise config.wrong("mamba_n_heads", f"a divisor of the mixer's width ({inner})", heads)
    width = config.value("mamba_d_head")
    if width != "auto" and config.integer("mamba_d_head") != inner // heads:
        raise config.wrong("mamba_d_head", f"the mixer's width over mamba_n_heads ({inner // heads})", width)
    return dual(config, heads, inner // heads, MAMBA_PREFIX, **fields)


def everywhere(mixer: AnyMixer, config: Config) -> list[AnyMixer]:
    """The same mixer in every layer."""
    return [mixer] * config.integer("num_hidden_layers")


def mamba_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """A key that no class lists replaces the width that expand would give."""
    given = config.value("intermediate_size")
    inner = config.integer("expand") * config.integer("hidden_size") if given is None else 0
    normalised = family.model_type == "falcon_mamba"
    return everywhere(selective(config, inner or config.integer("intermediate_size"), normalised=normalised), config)


def mamba2_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Heads times their width must be expand times hidden_size."""
    heads, width = config.integer("num_heads"), config.integer("head_dim")
    inner = config.integer("expand") * config.integer("hidden_size")
    if heads * width != inner:
        raise config.wrong("num_heads", f"such that num_heads × head_dim is expand × hidden_size ({inner})", heads)
    return everywhere(dual(config, heads, width, DualKeys()), config)


def no_feed_forward(family: Family, config: Config) -> list[FeedForward | None]:
    """Layers of a mixer alone."""
    return [None] * config.integer("num_hidden_layers")


def finish_mamba(spec: ModelSpec, config: Config) -> ModelSpec:
    """residual_in_fp32 keeps the stream wide; logits are always cast."""
    wide, runs = config.flag("residual_in_fp32"), spec.runs
    if wide:
        layer, rest = runs[0].layer, runs[0].count - 1
        first = Run(count=1, layer=layer.but(narrow_input=True))
        runs = (first, Run(count=rest, layer=layer)) if rest else (first,)
    made = {"residual_fp32": wide, "logits_fp32": True, "runs": runs}
    return with_kernel_note(spec.model_copy(update=made), config)


def with_kernel_note(spec: ModelSpec, config: Config) -> ModelSpec:
    """Says by which code the mixers run."""
    return spec.but(notes=(*spec.notes, KERNELS))


def alone(model_type: str, mixers: Any) -> Family:
    """The row of a model whose layers are one mixer each."""
    return Family(
        model_type=model_type,
        feed_forward=no_feed_forward,
        norms=("norm",),
        form="single",
        mixers=mixers,
        not_counted=(("use_mambapy", PSCAN),),
        classifies=False,
        finish=finish_mamba,
    )


ROWS = (alone("mamba", mamba_mixers), alone("falcon_mamba", mamba_mixers), alone("mamba2", mamba2_mixers))
