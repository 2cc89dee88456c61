"""Pre-norm decoders close to Llama, as transformers 5.23 builds them: RMSNorm before a gated feed-forward or a plain
one; and models of remote code that are Llama in all but names.

One row a family; see ``dense.py``.
"""

from functools import partial

from memplan.arch import attention
from memplan.arch.config import Config, Scalar
from memplan.arch.decoder import ACTIVATIONS, Family, activation, build, softmax_attention
from memplan.arch.dense import LLAMA, MISTRAL, QWEN2, fused_everywhere, gated_everywhere
from memplan.arch.turning import rotary_dim, turned
from memplan.spec.model import AnyMixer, Dropped, ModelSpec, Run
from memplan.spec.parts import Bare, FeedForward, Linear

GRANITE: dict[str, Scalar] = {key: value for key, value in LLAMA.items() if key != "head_dim"}

SMOLLM3: dict[str, Scalar] = GRANITE | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
}

GLM: dict[str, Scalar] = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "partial_rotary_factor": 0.5,
}

SEED_OSS: dict[str, Scalar] = LLAMA | {
    "vocab_size": 155136,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524288,
    "attention_bias": True,
    "attention_out_bias": False,
    "attention_dropout": 0.1,
    "residual_dropout": 0.1,
}

ERNIE: dict[str, Scalar] = {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "use_bias": False,
}

HELIUM: dict[str, Scalar] = LLAMA | {
    "vocab_size": 48000,
    "hidden_size": 2560,
    "intermediate_size": 7040,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}

ARCEE: dict[str, Scalar] = LLAMA | {
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
}

APERTUS: dict[str, Scalar] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "xielu",
    "max_position_embeddings": 65536,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
}

HUNYUAN: dict[str, Scalar] = {key: value for key, value in LLAMA.items() if key != "mlp_bias"} | {"vocab_size": 290943}

MINISTRAL3: dict[str, Scalar] = MISTRAL | {
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "sliding_window": None,
}

CWM: dict[str, Scalar] = {key: value for key, value in LLAMA.items() if key != "attention_bias"} | {
    "vocab_size": 128256,
    "hidden_size": 6144,
    "intermediate_size": 21504,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 8192,
}

INTERNLM3: dict[str, Scalar] = LLAMA | {
    "vocab_size": 128512,
    "intermediate_size": 10240,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}


def smollm3_mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Every fourth layer has no positions, and those alone may have a window."""
    layers = config.integer("num_hidden_layers")
    turns = rope_layers(config, layers)
    size = attention.switched_size(config)
    kinds = [attention.SLIDING if size is not None and not turn else attention.FULL for turn in turns]
    listed = attention.layer_types(config, layers) or kinds
    windows = [size if kind == attention.SLIDING else None for kind in listed]
    made = {key: one(family, config, *key) for key in set(zip(windows, turns, strict=True))}
    return [made[key] for key in zip(windows, turns, strict=True)]


def one(family: Family, config: Config, window: int | None, turns: bool) -> AnyMixer:
    """Attention with or without positions."""
    made = softmax_attention(family, config, window)
    return made if turns else made.model_copy(update={"rotary": "none"})


def rope_layers(config: Config, layers: int) -> list[bool]:
    """Which layers turn q and k: no_rope_layers holds 1 for those that do, whatever its name says."""
    listed = config.value("no_rope_layers")
    if listed is None:
        interval = config.integer("no_rope_layer_interval")
        return [(i + 1) % interval != 0 for i in range(layers)]
    if not isinstance(listed, (list, tuple)) or len(listed) < layers or any(flag not in (0, 1) for flag in listed):
        raise config.wrong("no_rope_layers", f"a list of num_hidden_layers ({layers}) zeros and ones", listed)
    return [bool(flag) for flag in listed[:layers]]


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


def whole_width(spec: ModelSpec, config: Config) -> ModelSpec:
    """Helium's output projection takes hidden_size, whatever the heads make of it."""
    if attention.head_dim(config) * config.integer("num_attention_heads") != spec.hidden_size:
        raise config.wrong("head_dim", "hidden_size / num_attention_heads", config.value("head_dim"))
    return spec


def both_masks(spec: ModelSpec, config: Config) -> ModelSpec:
    """The class makes a mask with the window and one without, whatever its layers take."""
    return spec.model_copy(update={"more_masks": frozenset((None, config.optional_integer("sliding_window")))})


def ministral(spec: ModelSpec, config: Config) -> ModelSpec:
    """Both masks, and a width of heads that must be given."""
    return both_masks(given_head_dim(spec, config), config)


def given_head_dim(spec: ModelSpec, config: Config) -> ModelSpec:
    """The rotary embedding of these classes fails without head_dim, though attention does not."""
    if config.value("head_dim") is None:
        raise config.wrong("head_dim", "given, since its class has no default", None)
    return spec


def with_dropout(spec: ModelSpec, config: Config) -> ModelSpec:
    """Seed-OSS drops out probabilities, and the outputs of attention and feed-forward."""
    branches: tuple[Dropped, ...] = ("mixer", "feed-forward") if config.value("residual_dropout") else ()
    drops = bool(config.value("attention_dropout"))
    runs = []
    for run in spec.runs:
        mixer = run.layer.mixer and run.layer.mixer.model_copy(update={"dropout": drops})
        layer = run.layer.model_copy(update={"mixer": mixer, "dropout": branches})
        runs.append(Run(count=run.count, layer=layer))
    return spec.model_copy(update={"runs": tuple(runs)})


def scaled_outside(spec: ModelSpec, config: Config) -> ModelSpec:
    """Granite's forward scales what the embedding gives it."""
    return spec.model_copy(update={"scaled_outside": True})


def equal_biases(spec: ModelSpec, config: Config) -> ModelSpec:
    """InternLM3 refuses a bias of one kind of projections alone."""
    if config.flag("attention_bias") != config.flag("mlp_bias"):
        raise config.wrong("bias", f"equal to qkv_bias ({config.value('attention_bias')})", config.value("mlp_bias"))
    return spec


FROM_REMOTE = "{} is code of its own, not in transformers: described as transformers' {} of the same sizes"


def as_class(spec: ModelSpec, config: Config, name: str, cls: str, more: tuple[str, ...] = ()) -> ModelSpec:
    """A model of remote code, which transformers' nearest class stands for."""
    return spec.model_copy(update={"notes": (*spec.notes, FROM_REMOTE.format(name, cls), *more)})


def baichuan(spec: ModelSpec, config: Config) -> ModelSpec:
    """The 13B models have ALiBi, and no max_position_embeddings to say so."""
    if "max_position_embeddings" in config.keys or "model_max_length" not in config.keys:
        return as_class(spec, config, "Baichuan", "Llama")
    remark = "Baichuan without max_position_embeddings has ALiBi: its bias of heads × s × s is not counted"
    return as_class(spec, config, "Baichuan", "Llama", (remark,))


REMOTE: dict[str, Scalar] = {key: value for key, value in LLAMA.items() if key not in ("mlp_bias", "attention_bias")}
PLAIN_ACTIVATIONS = ACTIVATIONS | {"relu2": "relu2", "xielu": "xielu"}

ROWS = (
    Family(
        model_type="granite",
        defaults=GRANITE,
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        qkv_bias="by attention_bias",
        form="pre-scaled",
        scaled_embedding=True,
        scaled_logits=True,
        finish=scaled_outside,
        classifies=False,
    ),
    Family(
        model_type="smollm3",
        defaults=SMOLLM3,
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        mixers=smollm3_mixers,
        null_kv_heads=True,
        qkv_bias="by attention_bias",
    ),
    Family(
        model_type="glm",
        defaults=GLM,
        feed_forward=fused_everywhere,
        windows=attention.no_windows,
        bias_keys=("attention_bias", ""),
        mixer=turned(rotary="concatenated", rotary_tables="repeated", rotary_dim=rotary_dim),
    ),
    Family(
        model_type="seed_oss",
        defaults=SEED_OSS,
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        null_head_dim=True,
        bias_keys=("attention_bias", "attention_out_bias"),
        not_counted=(),
        finish=with_dropout,
    ),
    Family(
        model_type="ernie4_5",
        defaults=ERNIE,
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        null_head_dim=True,
        bias_keys=("use_bias", "use_bias"),
        mlp_bias_key="use_bias",
        mixer=turned(rotary_tables="fp32-repeated", rotary_wide=True),
        not_counted=(),
        classifies=False,
    ),
    Family(
        model_type="helium",
        defaults=HELIUM,
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        bias_keys=("attention_bias", ""),
        norm_kind="rms-wide-weight",
        mixer=turned(rotary_tables="repeated"),
        finish=whole_width,
    ),
    Family(
        model_type="arcee",
        defaults=ARCEE,
        feed_forward=ungated,
        windows=attention.no_windows,
        null_kv_heads=True,
        qkv_bias="by attention_bias",
        heads_divide_hidden=True,
        activations=PLAIN_ACTIVATIONS,
    ),
    Family(
        model_type="apertus",
        defaults=APERTUS,
        feed_forward=ungated,
        windows=attention.no_windows,
        null_kv_heads=True,
        qkv_bias="by attention_bias",
        qk_norm=True,
        norms=("attention_layernorm", "feedforward_layernorm"),
        activations=PLAIN_ACTIVATIONS,
        harmless=("qk_norm",),
        classifies=False,
    ),
    Family(
        model_type="hunyuan_v1_dense",
        defaults=HUNYUAN,
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        qkv_bias="by attention_bias",
        qk_norm=True,
        mixer=turned(norms_last=True),
        harmless=("use_qk_norm", "qk_norm"),
        finish=given_head_dim,
    ),
    Family(
        model_type="ministral",
        defaults=MISTRAL,
        feed_forward=gated_everywhere,
        windows=ministral_windows,
        finish=ministral,
    ),
    Family(
        model_type="ministral3",
        defaults=MINISTRAL3,
        feed_forward=gated_everywhere,
        windows=attention.one_window,
        mixer=turned(scaled_queries=True),
    ),
    Family(
        model_type="cwm",
        defaults=CWM,
        feed_forward=gated_everywhere,
        windows=cwm_windows,
        finish=both_masks,
        heads_divide_hidden=True,
        classifies=False,
    ),
    Family(
        model_type="internlm3",
        defaults=INTERNLM3,
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        null_head_dim=True,
        qkv_bias="by attention_bias",
        heads_divide_hidden=True,
        names={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
        finish=equal_biases,
        classifies=False,
    ),
    Family(
        model_type="internlm2",
        defaults=LLAMA | {"vocab_size": 103168},
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        qkv_bias="by attention_bias",
        names={"attention_bias": "bias"},
        finish=partial(as_class, name="InternLM2", cls="Llama"),
    ),
    Family(
        model_type="baichuan",
        defaults=REMOTE | {"vocab_size": 64000, "max_position_embeddings": 4096},
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        finish=baichuan,
    ),
    Family(
        model_type="minicpm",
        defaults=REMOTE | {"tie_word_embeddings": True},
        feed_forward=gated_everywhere,
        windows=attention.no_windows,
        null_kv_heads=True,
        form="pre-scaled",
        scaled_embedding=True,
        scaled_logits=True,
        finish=partial(as_class, name="MiniCPM", cls="Granite"),
        classifies=False,
    ),
    Family(
        model_type="mimo",
        defaults=QWEN2,
        feed_forward=gated_everywhere,
        windows=attention.late_windows,
        null_kv_heads=True,
        qkv_bias="always",
        finish=partial(as_class, name="MiMo", cls="Qwen2"),
    ),
)

FAMILIES = {row.model_type: partial(build, row) for row in ROWS}
