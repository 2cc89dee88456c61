"""Pre-norm decoders close to Llama, as transformers 5.23 builds them: RMSNorm before a feed-forward. And models whose
code is not in transformers, only beside their weights, and which a class of transformers is equal to in all but the
names of modules: their defaults are those of the remote config classes, the class is named in a note.

One row a family; see ``dense.py``."""

from functools import partial

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import ACTIVATIONS, Family, activation, rotary_dim, softmax_attention, turned
from memplan.arch.dense import fused_everywhere
from memplan.spec.layer import AnyMixer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, FeedForward, Linear


def smollm3_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Every fourth layer has no positions, and those alone may have a window."""
    layers = config.integer("num_hidden_layers")
    turns = rope_layers(config, layers)
    size = attention.switched_size(config)
    kinds = [attention.SLIDING if size is not None and not turn else attention.FULL for turn in turns]
    listed = attention.layer_types(config) or kinds
    windows = [size if kind == attention.SLIDING else None for kind in listed]
    made = {key: one(family, config, *key) for key in set(zip(windows, turns, strict=True))}
    return [made[key] for key in zip(windows, turns, strict=True)]


def one(family: Family, config: Config, window: int | None, turns: bool) -> AnyMixer:
    """Attention with or without positions."""
    made = softmax_attention(family, config, window)
    return made if turns else made.but(rotary="none")


def rope_layers(config: Config, layers: int, empty: bool = False) -> list[bool]:
    """Which layers turn q and k: no_rope_layers holds 1 for those that do, whatever its name says; without it all but
    each no_rope_layer_interval-th. ``empty``: an empty list is none."""
    listed = config.value("no_rope_layers")
    if listed is None or (empty and not listed):
        interval = config.integer("no_rope_layer_interval")
        return [(i + 1) % interval != 0 for i in range(layers)]
    if not isinstance(listed, (list, tuple)) or len(listed) < layers or any(flag not in (0, 1) for flag in listed):
        raise config.wrong("no_rope_layers", f"a list of num_hidden_layers ({layers}) zeros and ones", listed)
    return [bool(flag) for flag in listed[:layers]]


def scaled_outside(spec: ModelSpec, config: Config) -> ModelSpec:
    """Granite's forward scales what the embedding gives it."""
    return spec.but(scaled_outside=True)


def equal_biases(spec: ModelSpec, config: Config) -> ModelSpec:
    """InternLM3 refuses a bias of one kind of projections alone."""
    if config.flag("attention_bias") != config.flag("mlp_bias"):
        raise config.wrong("bias", f"equal to qkv_bias ({config.value('attention_bias')})", config.value("mlp_bias"))
    return spec


PLAIN_ACTIVATIONS = ACTIVATIONS | {"relu2": "relu2", "xielu": "xielu"}


def both_masks(spec: ModelSpec, config: Config) -> ModelSpec:
    """The class makes a mask with the window and one without, whatever its layers take."""
    return spec.but(more_masks=frozenset((None, config.optional_integer("sliding_window"))))


def ministral_windows(config: Config) -> attention.Windows:
    """Every layer has the window, if any, unless layer_types says otherwise."""
    layers, size = config.integer("num_hidden_layers"), config.optional_integer("sliding_window")
    return attention.layered(config, [attention.FULL if size is None else attention.SLIDING] * layers, size)


def cwm_windows(config: Config) -> attention.Windows:
    """The first of each four layers attends to all."""
    layers = config.integer("num_hidden_layers")
    kinds = [attention.SLIDING if i % 4 else attention.FULL for i in range(layers)]
    return attention.layered(config, kinds, config.integer("sliding_window"))


def ungated(family: Family, config: Config) -> list[FeedForward]:
    """up, activation, down in every layer."""
    h, f = config.integer("hidden_size"), config.integer("intermediate_size")
    bias = config.flag("mlp_bias") if "mlp_bias" in family.defaults else False
    linears = (
        Linear(name="up_proj", inputs=h, outputs=f, bias=bias),
        Linear(name="down_proj", inputs=f, outputs=h, bias=bias),
    )
    act = activation(family, config)
    tensors = (
        tuple(Bare(name=f"act_fn.{name}", shape=(1,)) for name in ("alpha_p", "alpha_n")) if act == "xielu" else ()
    )
    layer = FeedForward(intermediate=f, activation=act, gated=False, linears=linears, tensors=tensors)
    return [layer] * config.integer("num_hidden_layers")


def ministral(spec: ModelSpec, config: Config) -> ModelSpec:
    """Both masks, and a width of heads that must be given."""
    return both_masks(given_head_dim(spec, config), config)


def given_head_dim(spec: ModelSpec, config: Config) -> ModelSpec:
    """The rotary embedding of these classes fails without head_dim, though attention does not."""
    if config.value("head_dim") is None:
        raise config.wrong("head_dim", "given, since its class has no default", None)
    return spec


def whole_width(spec: ModelSpec, config: Config) -> ModelSpec:
    """Helium's output projection takes hidden_size, whatever the heads make of it."""
    if attention.head_dim(config) * config.integer("num_attention_heads") != spec.hidden_size:
        raise config.wrong("head_dim", "hidden_size / num_attention_heads", config.value("head_dim"))
    return spec


FROM_REMOTE = "{} is code of its own, not in transformers: described as transformers' {} of the same sizes"


def as_class(spec: ModelSpec, config: Config, name: str, cls: str, more: tuple[str, ...] = ()) -> ModelSpec:
    """A model of remote code, which transformers' nearest class stands for."""
    return spec.but(notes=(*spec.notes, FROM_REMOTE.format(name, cls), *more))


def baichuan(spec: ModelSpec, config: Config) -> ModelSpec:
    """The 13B models have ALiBi, and no max_position_embeddings to say so."""
    if "max_position_embeddings" in config.keys or "model_max_length" not in config.keys:
        return as_class(spec, config, "Baichuan", "Llama")
    remark = "Baichuan without max_position_embeddings has ALiBi: its bias of heads × s × s is not counted"
    return as_class(spec, config, "Baichuan", "Llama", (remark,))


ROWS = (
    Family(model_type="granite", form="pre-scaled", scaled_embedding=True, scaled_logits=True, finish=scaled_outside,
        classifies=False),
    Family(model_type="smollm3", mixers=smollm3_mixers, null_kv_heads=True),
    Family(model_type="glm", feed_forward=fused_everywhere, bias_keys=("attention_bias", ""),
        mixer=turned(rotary="concatenated", rotary_tables="repeated", rotary_dim=rotary_dim)),
    Family(model_type="seed_oss", null_kv_heads=True, null_head_dim=True,
        bias_keys=("attention_bias", "attention_out_bias"), dropout_key="residual_dropout"),
    Family(model_type="ernie4_5", null_kv_heads=True, null_head_dim=True, bias_keys=("use_bias", "use_bias"),
        mlp_bias_key="use_bias", mixer=turned(rotary_tables="fp32-repeated", rotary_wide=True), classifies=False),
    Family(model_type="internlm3", null_kv_heads=True, null_head_dim=True, heads_divide_hidden=True,
        names={"attention_bias": "qkv_bias", "mlp_bias": "bias"}, finish=equal_biases, classifies=False),
    Family(model_type="helium", bias_keys=("attention_bias", ""), norm_kind="rms-wide-weight",
        mixer=turned(rotary_tables="repeated"), finish=whole_width),
    Family(model_type="arcee", feed_forward=ungated, heads_divide_hidden=True, activations=PLAIN_ACTIVATIONS),
    Family(model_type="apertus", feed_forward=ungated, qk_norm=True,
        norms=("attention_layernorm", "feedforward_layernorm"), activations=PLAIN_ACTIVATIONS, harmless=("qk_norm",),
        classifies=False),
    Family(model_type="hunyuan_v1_dense", qk_norm=True, mixer=turned(norms_last=True),
        harmless=("use_qk_norm", "qk_norm"), finish=given_head_dim),
    Family(model_type="ministral", windows=ministral_windows, finish=ministral),
    Family(model_type="ministral3", windows=attention.one_window, mixer=turned(scaled_queries=True)),
    Family(model_type="cwm", windows=cwm_windows, finish=both_masks, heads_divide_hidden=True, classifies=False),
    Family(model_type="internlm2", names={"attention_bias": "bias"},
        finish=partial(as_class, name="InternLM2", cls="Llama")),
    Family(model_type="baichuan", finish=baichuan),
    Family(model_type="minicpm", form="pre-scaled", scaled_embedding=True, scaled_logits=True,
        finish=partial(as_class, name="MiniCPM", cls="Granite"), classifies=False),
    Family(model_type="mimo", windows=attention.late_windows, null_kv_heads=True, qkv_bias="always",
        finish=partial(as_class, name="MiMo", cls="Qwen2")),
)  # fmt: skip
