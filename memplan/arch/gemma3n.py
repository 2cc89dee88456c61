"""Gemma 3n's language model as transformers 5.23 builds it (``models/gemma3n/configuration_gemma3n.py``): layers that
share keys and values, inputs of each layer's own, and several streams of which each layer runs one (AltUp).

Its towers (an image model of another library, and a conformer) are not described: a config that has them is read as
its language model, with a note."""

from collections.abc import Callable
from functools import partial

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import ACTIVATIONS, SANDWICH_NORMS, Family, build, gated
from memplan.arch.shared_kv import Heads, kinds_of, layer_input, shared_kv_mixers, with_own_inputs
from memplan.arch.vision import section
from memplan.spec.layer import AnyMixer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, FeedForward, Linear, Norm, NormKind, Part

SPARSE_LAYERS = 10
POWER: NormKind = "rms-power"


def mixers(family: Family, config: Config) -> list[AnyMixer]:
    """Every fifth layer attends to all."""
    heads = Heads(config.integer("head_dim"), attention.num_kv_heads(config, nullable=False))
    sizes = {attention.SLIDING: heads, attention.FULL: heads}
    kinds = kinds_of(config, 5, last_is_full=False)
    return list(shared_kv_mixers(family, config, kinds, sizes, config.integer("sliding_window")))


def feed_forwards(family: Family, config: Config) -> list[FeedForward]:
    """One width for all, or a list of one for each layer."""
    layers, given = config.integer("num_hidden_layers"), config.value("intermediate_size")
    widths = list(given) if isinstance(given, (list, tuple)) else [given] * layers
    if len(widths) != layers:
        raise config.wrong("intermediate_size", f"one width, or num_hidden_layers ({layers}) of them", given)
    made = {}
    for key in zip(widths, sparsity(config, layers), strict=True):
        if key not in made:
            read = Config({"intermediate_size": key[0]}, config.name, config.source)
            dense = gated(family, config, read.integer("intermediate_size"))
            made[key] = dense.but(sparse=key[1])
    return [made[key] for key in zip(widths, sparsity(config, layers), strict=True)]


def sparsity(config: Config, layers: int) -> list[bool]:
    """Whether each layer's feed-forward keeps its largest gates alone: the first ten of more than ten, or as given."""
    given = config.value("activation_sparsity_pattern")
    if given is None:
        return [layers > SPARSE_LAYERS and i < SPARSE_LAYERS for i in range(layers)]
    shares = list(given) if isinstance(given, (list, tuple)) else []
    if len(shares) != layers or not all(isinstance(share, (int, float)) for share in shares):
        raise config.wrong("activation_sparsity_pattern", f"num_hidden_layers ({layers}) numbers", given)
    return [share > 0 for share in shares]


def streams(config: Config, hidden: int) -> Part:
    """Of each layer: how the streams are predicted and corrected, and a low-rank branch beside attention."""
    count, rank = config.integer("altup_num_inputs"), config.integer("laurel_rank")
    return Part(
        linears=(
            Linear(name="correction_coefs", inputs=count, outputs=count),
            Linear(name="prediction_coefs", inputs=count, outputs=count**2),
            Linear(name="modality_router", inputs=hidden, outputs=count),
            Linear(name="linear_left", inputs=hidden, outputs=rank),
            Linear(name="linear_right", inputs=rank, outputs=hidden),
        ),
        tensors=(Bare(name="correct_output_scale", shape=(hidden,)),),
        norms=tuple(Norm(name=name, width=hidden, kind=POWER) for name in ("router_norm", "post_laurel_norm")),
    )


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Streams of every layer, its own input, and the projections into the streams and out of them."""
    own = layer_input(POWER, config, config.choice("hidden_activation", ACTIVATIONS))
    part, hidden = streams(config, spec.hidden_size), spec.hidden_size
    count, window = config.integer("altup_num_inputs"), config.integer("sliding_window")
    if not config.flag("altup_correct_scale"):
        raise config.wrong("altup_correct_scale", "true: memplan describes streams whose correction is scaled", False)
    update = {"extra": (part,), "streams": count}
    runs = tuple(Run(count=run.count, layer=run.layer.model_copy(update=update)) for run in spec.runs)
    names = ("altup_projections", "altup_unembed_projections")
    others = count - 1
    into = tuple(Linear(name=name, inputs=hidden, outputs=hidden) for name in names for _ in range(others))
    kinds = {mixer.window: mixer.rotary_width for mixer in spec.mixers}
    tables = {"rotary_elements": sum(kinds.values()), "rotary_sets": len(kinds)}
    masks = frozenset({None, window})
    spec = spec.model_copy(update={"runs": runs, "extra": (Part(linears=into),), "more_masks": masks, **tables})
    return with_own_inputs(spec, config, own, POWER)


FAMILY = Family(
    model_type="gemma3n_text",
    feed_forward=feed_forwards,
    mixers=mixers,
    norms=SANDWICH_NORMS,
    norm_kind=POWER,
    form="streams",
    activation_key="hidden_activation",
    scaled_embedding=True,
    logits_softcap=True,
    heads_divide_hidden=True,
    classifies=False,
    finish=finish,
)

TEXT_ALONE = (
    "gemma3n is described as its language model alone, as Gemma3nForCausalLM loads it: its towers of images and sounds "
    "are not counted"
)


def language_model(raw: Config) -> ModelSpec:
    """The language model of text_config, which an outer tie_word_embeddings ties."""
    raw.model_type = "gemma3n"
    spec = build(FAMILY, Config(section(raw, "text_config") or {}, raw.name, raw.source))
    outer = raw.with_defaults("gemma3n")
    dtype, quantization = outer.dtype(), outer.quantization()
    notes = dict.fromkeys((*outer.notes, *spec.notes, TEXT_ALONE))
    return spec.but(
        tied=spec.tied and outer.flag("tie_word_embeddings"),
        dtype=dtype or spec.dtype,
        quantization=quantization or spec.quantization,
        notes=tuple(notes),
    )


FAMILIES: dict[str, Callable[[Config], ModelSpec]] = {
    FAMILY.model_type: partial(build, FAMILY),
    "gemma3n": language_model,
}
