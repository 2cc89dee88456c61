"""A model as Megatron-LM's arguments describe it: what they say of its layers, and whether they can.

Two models of one shape are one to Megatron, whatever their families are called. Rotary bases and their scalings,
epsilons and routing factors have no effect on memory, and are not part of it. And which settings have one."""

from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.spec.attention_kinds import LatentAttention
from memplan.spec.layer import Layer
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention, FeedForward, Norm
from memplan.spec.recipe import Recipe

HINT = "emit for another framework, or name another model"


class Mixture(NamedTuple):
    """Routed experts, and the shared one beside them."""

    experts: int
    active: int
    width: int
    shared: int
    """Width of the shared experts together; 0 without."""
    gate: bool
    """The shared expert has a gate."""
    sigmoid: bool
    corrected: bool
    groups: int
    kept_groups: int


class Shape(NamedTuple):
    """What the arguments say of a model."""

    hidden: int
    vocabulary: int
    layers: int
    tied: bool
    rms: bool
    positions: int
    """Learned ones; 0 without."""
    heads: int
    groups: int
    head: int
    """Elements of a head; of latent attention its parts (nope, rope, value) are in ``latent``."""
    rotary: int
    """Elements of a head that turn."""
    qk_norm: bool
    qkv_bias: bool
    bias: bool
    """Every matmul has a bias."""
    latent: tuple[int, int, int, int, int] | None
    """Ranks of queries (0: without) and of keys and values, nope, rope, value."""
    gated: bool
    activation: str
    width: int
    """Of the dense feed-forward; 0 without one."""
    dense: int
    """Layers before the first mixture."""
    mixture: Mixture | None


def shape_of(spec: ModelSpec) -> Shape:
    """The model's shape. Raises InvalidJob, with the reason, where no arguments describe it."""
    layers = list(spec.layers())
    mixed = [layer for layer in layers if layer.experts is not None]
    plain = [layer for layer in layers if layer.experts is None]
    if mixed and (layers[len(plain) :] != mixed or any(layer != mixed[0] for layer in mixed)):
        raise _cannot(spec, "mixtures of experts among dense layers")
    around = [(layer.mixer, layer.norms) for layer in plain[:1] + mixed[:1]]
    if any(layer != plain[0] for layer in plain) or any(each != around[0] for each in around):
        raise _cannot(spec, "layers of several kinds")
    first = layers[0]
    found = _attention(spec, first)
    dense = plain[0].feed_forward if plain else None
    if dense is not None and dense.experts is None and not dense.linears:
        raise _cannot(spec, "layers without a feed-forward")
    model = mixed[0].feed_forward if mixed else dense
    assert model is not None
    _check_around(spec, layers)
    return Shape(
        hidden=spec.hidden_size,
        vocabulary=spec.vocab_size,
        layers=len(layers),
        tied=spec.tied,
        rms=_is_rms(spec, spec.final_norm),
        positions=_positions(spec),
        gated=model.experts.gated if model.experts is not None else model.gated,
        activation=_activation(spec, model),
        width=dense.intermediate if dense is not None else 0,
        dense=len(plain) if mixed else 0,
        mixture=_mixture(model),
        **found,
    )


def effective(recipe: Recipe) -> Megatron:
    """Megatron's settings, those of what is off at their defaults, and without memplan's own."""
    kind, settings = recipe.provenance.job["gradient_checkpointing"], recipe.megatron
    off = ["moe_expert_imbalance", "norm_fusion"]
    off += ["recompute_method", "recompute_num_layers", "distribute_saved_activations"] if kind != "full" else []
    off += ["recompute_modules"] if kind != "selective" else []
    off += ["attention_backend"] if settings.attention_backend == "direct" else []
    off += ["cp_comm_type"] if recipe.parallel.context == 1 else []
    off += ["cross_entropy_fusion_impl"] if not settings.cross_entropy_loss_fusion else []
    if not any(run.layer.experts is not None for run in recipe.model.runs):
        off += [name for name in Megatron.model_fields if name.startswith("moe_")]
    return settings.model_copy(update={name: Megatron.model_fields[name].default for name in off})


def _cannot(spec: ModelSpec, what: str) -> InvalidJob:
    return InvalidJob(f"model: {spec.name} has {what}, which Megatron-LM's arguments do not describe", HINT)


def _attention(spec: ModelSpec, layer: Layer) -> dict[str, Any]:
    """The part of the shape that attention is."""
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        ranks = [linear.outputs for linear in mixer.linears if linear.name.startswith("q_a")]
        latent = (ranks[0] if ranks else 0, mixer.latent, mixer.nope, mixer.rope, mixer.value)
        return {"heads": mixer.num_heads, "groups": mixer.num_heads, "head": 0, "rotary": mixer.rope,
                "qk_norm": True, "qkv_bias": False, "bias": False, "latent": latent}  # fmt: skip
    if not isinstance(mixer, Attention):
        raise _cannot(spec, f"{mixer.kind} layers" if mixer is not None else "layers without attention")
    if mixer.window is not None:
        raise _cannot(spec, f"a sliding window of {mixer.window}")
    if mixer.norms and any(norm.width != mixer.head_dim for norm in mixer.norms):
        raise _cannot(spec, "norms of q and k over all heads")
    *inputs, output = mixer.linears
    part = layer.feed_forward
    linears = part.linears if part is not None else ()
    whole = output.bias and all(linear.bias for linear in (*inputs, *linears))
    qkv = any(linear.bias for linear in inputs)
    if not whole and (output.bias or any(linear.bias for linear in linears)):
        raise _cannot(spec, "biases of some matmuls, and not of q, k and v alone")
    return {"heads": mixer.num_heads, "groups": mixer.num_kv_heads, "head": mixer.head_dim,
            "rotary": mixer.rotary_width, "qk_norm": bool(mixer.norms), "qkv_bias": qkv and not whole, "bias": whole,
            "latent": None}  # fmt: skip


def _mixture(part: FeedForward) -> Mixture | None:
    experts = part.experts
    if experts is None:
        return None
    routing = experts.routing
    groups = (routing.groups, routing.kept_groups) if routing.groups > 1 else (0, 0)
    down = [linear for linear in part.shared if linear.name.endswith("down_proj")]
    gate = any(linear.outputs == 1 for linear in part.shared)
    width = down[0].inputs if down else 0
    sigmoid = routing.scores == "sigmoid"
    return Mixture(
        experts.count, experts.active, experts.intermediate, width, gate, sigmoid, routing.corrected, *groups
    )


def felt_shape(spec: ModelSpec) -> Shape:
    """The shape without how experts are chosen, which memory does not feel."""
    shape = shape_of(spec)
    found = shape.mixture
    alike = found._replace(sigmoid=False, corrected=False, groups=0, kept_groups=0) if found else None
    return shape._replace(mixture=alike)


def _is_rms(spec: ModelSpec, norm: Norm | None) -> bool:
    if norm is None or norm.kind not in ("rms", "layer"):
        raise _cannot(spec, "norms of another kind than RMSNorm and LayerNorm")
    return norm.kind == "rms"


def _positions(spec: ModelSpec) -> int:
    """Learned positions, the only thing outside the layers that the arguments have."""
    bare = [tensor for part in spec.extra for tensor in part.tensors]
    others = any(part.linears or part.norms for part in spec.extra)
    if others or len(bare) > 1 or (bare and bare[0].shape[-1] != spec.hidden_size):
        raise _cannot(spec, "parameters outside its layers")
    return bare[0].shape[0] if bare else 0


def _activation(spec: ModelSpec, part: FeedForward) -> str:
    name = part.experts.activation if part.experts is not None else part.activation
    gated = part.experts.gated if part.experts is not None else part.gated
    kinds = {"silu": "silu", "swish": "silu"} if gated else {"gelu_new": "gelu", "gelu": "gelu", "relu2": "relu2"}
    if name not in kinds:
        raise _cannot(spec, f"{name} in its feed-forward")
    return kinds[name]


def _check_around(spec: ModelSpec, layers: list[Layer]) -> None:
    """What stands around the layers and in them: two norms, a plain head."""
    rms = _is_rms(spec, spec.final_norm)
    if any(len(layer.norms) != 2 or any(_is_rms(spec, norm) is not rms for norm in layer.norms) for layer in layers):
        raise _cannot(spec, "layers with other norms than two")
    if spec.head.bias or spec.head.outputs != spec.vocab_size or spec.embedding_width not in (None, spec.hidden_size):
        raise _cannot(spec, "a head or an embedding of another form")
    if spec.logits_softcap is not None or spec.embedding_multiplier:
        raise _cannot(spec, "scaled embeddings or capped logits")
