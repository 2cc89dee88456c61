"""From a tree of modules to a ModelSpec: runs of equal layers by their linears, norms and other parameters.

Nothing is known of the class but its modules: names say what is attention, feed-forward, router and expert, shapes say
how they are joined. Every parameter stands in the spec once. What does not fit a program is counted all the same
(``Layer.extra``), only its activations are missing, for which the band is widened."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import torch

from memplan.errors import ModelError
from memplan.spec.layer import Layer, Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Linear, Norm, Part
from memplan.trace.roles import SPREADS, attention_of, feed_forward_of, number

FOREIGN = ("vision", "visual", "image", "audio", "speech", "tower", "sam_model")
PROJECTORS = ("project", "connector", "merger", "aligner")
MIXING = ("attn", "attention", "mixer", "mamba", "temporal", "conv", "recurrent", "delta", "ssm", "rnn", "kda")
FEEDING = ("mlp", "ffn", "feed_forward", "feedforward", "moe", "expert", "fc", "dense", "ff", "router")


class Found(NamedTuple):
    """The modules of one layer that hold parameters, each a linear, a norm or neither."""

    linears: dict[str, Linear]
    norms: dict[str, Norm]
    tensors: dict[str, Bare]


def describe(model: Any, parsed: Any, name: str) -> ModelSpec:
    """The spec of a built model. Raises ModelError where it has no embedding, no head or no list of layers."""
    text = parsed.get_text_config()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    path, layers = layer_list(model)
    if not isinstance(embedding, torch.nn.Embedding) or not isinstance(head, torch.nn.Linear) or not layers:
        raise ModelError(
            f"{type(model).__name__} has no embedding of tokens, list of layers and head that --exact could describe",
            "use a preset of the same shape, or --total-params",
        )
    outside = Found(*inventory(model, skip=path))
    own = {embedding.weight, head.weight, *([head.bias] if head.bias is not None else [])}
    last = final_norm(outside.norms, path)
    hidden = head.in_features
    made = runs(layers, text, hidden, not model._supports_sdpa)
    kind = kind_of(made)
    spec = ModelSpec(
        name=name,
        family=parsed.model_type,
        hidden_size=hidden,
        vocab_size=embedding.num_embeddings,
        embedding_width=None if embedding.embedding_dim == hidden else embedding.embedding_dim,
        tied=head.weight is embedding.weight,
        runs=made,
        final_norm=outside.norms[last].but(width=hidden) if last else None,
        head=Linear(name="lm_head", inputs=head.in_features, outputs=head.out_features, bias=head.bias is not None),
        extra=rest(model, path, own, last),
        logits_softcap=getattr(text, "final_logit_softcapping", None),
        classifies=classifies(parsed.model_type),
        max_positions=number(text, "max_position_embeddings") or None,
        source=f"modules of transformers' {type(model).__name__}",
        spread=SPREADS[kind],
        notes=(assumption(parsed.model_type, type(model).__name__, kind),),
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    if spec.params.total != total:
        raise ModelError(
            f"{type(model).__name__} shares weights between layers ({total:,} parameters, {spec.params.total:,} in all "
            "uses), which --exact does not describe",
            "use --total-params",
        )
    return spec


def assumption(model_type: str, class_name: str, kind: str) -> str:
    """What is taken as given."""
    also = ", also where something else mixes positions" if kind == "other mixers" else ""
    return (
        f"{model_type} is not described: its parameters are those of transformers' {class_name}; its activations are "
        f"assumed to be those of pre-norm layers of softmax attention{also}, and of the feed-forwards found, "
        "in a wider range"
    )


def kind_of(made: tuple[Run, ...]) -> str:
    """What the layers are made of: a key of ``SPREADS``."""
    if not all(run.layer.mixer and not any(part.category == "attn" for part in run.layer.extra) for run in made):
        return "other mixers"
    if any(run.layer.experts or "experts" in run.layer.by_category for run in made):
        return "experts"
    return "more modules" if any(run.layer.extra for run in made) else "attention"


def is_foreign(path: str) -> bool:
    """Whether a path lies in a part that reads images or sound."""
    return any(word in path.lower() for word in (*FOREIGN, *PROJECTORS))


def layer_list(model: Any) -> tuple[str, list[Any]]:
    """The list of modules that holds most parameters, outside towers and outside other such lists."""
    lists = [(path, each) for path, each in model.named_modules() if isinstance(each, torch.nn.ModuleList)]
    inner = [path for path, _ in lists if any(path.startswith(other + ".") for other, _ in lists)]
    outer = [(path, each) for path, each in lists if path not in inner]
    own = [(path, each) for path, each in outer if not is_foreign(path) and len(each)]
    if not own:
        return "", []
    path, chosen = max(own, key=lambda pair: sum(parameter.numel() for parameter in pair[1].parameters()))
    return path, list(chosen)


def inventory(root: Any, skip: str = "") -> tuple[dict[str, Linear], dict[str, Norm], dict[str, Bare]]:
    """Linears, norms and other parameters below a module, by path; not those below ``skip``."""
    linears: dict[str, Linear] = {}
    norms: dict[str, Norm] = {}
    tensors: dict[str, Bare] = {}
    for path, module in root.named_modules():
        if skip and (path == skip or path.startswith(skip + ".")):
            continue
        own = dict(module.named_parameters(recurse=False))
        if linear := as_linear(path, module, own):
            linears[path] = linear
        elif norm := as_norm(path, module, own):
            norms[path] = norm
        else:
            for key, parameter in own.items():
                at = f"{path}.{key}" if path else key
                tensors[at] = Bare(name=at, shape=tuple(parameter.shape) or (1,))
    return linears, norms, tensors


def as_linear(path: str, module: Any, own: dict[str, Any]) -> Linear | None:
    """An nn.Linear, or GPT-2's Conv1D, which stores its weight transposed."""
    if not own or set(own) - {"weight", "bias"} or "weight" not in own or own["weight"].dim() != 2:
        return None
    turned = type(module).__name__ == "Conv1D" and hasattr(module, "nf")
    if not turned and not isinstance(module, torch.nn.Linear):
        return None
    first, second = own["weight"].shape
    inputs, outputs = (first, second) if turned else (second, first)
    name = path.rpartition(".")[2]
    return Linear(name=name, inputs=inputs, outputs=outputs, bias="bias" in own, transposed=turned)


def as_norm(path: str, module: Any, own: dict[str, Any]) -> Norm | None:
    """A module with norm in its class's name and one vector, or a vector and its bias; or none of its own."""
    if "norm" not in type(module).__name__.lower() or set(own) - {"weight", "bias"} or next(module.children(), None):
        return None
    name, bias = path.rpartition(".")[2], "bias" in own
    if not own:
        width = getattr(module, "normalized_shape", None)
        return Norm(name=name, width=int(width[-1]) if width else 0, kind="layer-plain" if width else "layer-bare")
    if own.get("weight") is None or own["weight"].dim() != 1:
        return None
    kind = "layer" if isinstance(module, torch.nn.LayerNorm) or bias else "rms"
    return Norm(name=name, width=own["weight"].numel(), kind=kind, bias=bias)


def role(path: str) -> str:
    """mixer or feed-forward, by the first part of the path that says."""
    for part in path.lower().split("."):
        if any(word in part for word in MIXING):
            return "mixer"
        if any(word in part for word in FEEDING):
            return "feed-forward"
    return "other"


def runs(layers: list[Any], text: Any, hidden: int, eager_only: bool) -> tuple[Run, ...]:
    """The layers, consecutive equal ones in one run."""
    kinds = getattr(text, "layer_types", None) or [""] * len(layers)
    made = [
        make_layer(Found(*inventory(layer)), text, hidden, window(text, kind), eager_only)
        for layer, kind in zip(layers, (*kinds, *[""] * len(layers)), strict=False)
    ]
    grouped = [list(group) for _, group in groupby(made)]
    return tuple(Run(count=len(group), layer=group[0]) for group in grouped)


def window(text: Any, kind: str) -> int | None:
    """The window of a layer that its type calls sliding."""
    return number(text, "sliding_window") or None if "sliding" in str(kind) else None


def make_layer(found: Found, text: Any, hidden: int, window: int | None, eager_only: bool) -> Layer:
    """One layer: a mixer and a feed-forward where linears make one, norms around them, and whatever else it holds."""
    mixing = {path: linear for path, linear in found.linears.items() if role(path) == "mixer"}
    feeding = {path: linear for path, linear in found.linears.items() if role(path) != "mixer"}
    mixer, used = attention_of(mixing, found.norms, text, hidden, window, eager_only)
    feed_forward, more = feed_forward_of(feeding, found.tensors, text, hidden)
    used |= more
    direct = [path for path, norm in found.norms.items() if norm.width in (0, hidden) and path not in used]
    direct = [path for path in direct if "." not in path] or direct
    single = (mixer is None) != (feed_forward is None)
    wanted = 1 if single else 4 if len(direct) == 4 else 2
    around = [found.norms[path].but(width=hidden) for path in direct[:wanted]]
    used |= set(direct[:wanted])
    plain = Norm(name="", width=hidden, kind="layer-plain")
    form = "single" if single else "sandwich" if wanted == 4 else "pre"
    if mixer is None and feed_forward is None:
        raise ModelError(
            "a layer has neither attention nor feed-forward that --exact could describe", "use --total-params"
        )
    return Layer(
        mixer=mixer,
        feed_forward=feed_forward,
        norms=(*around, *[plain] * (wanted - len(around))),
        form=form,
        extra=tuple(unused(found, used)),
    )


def unused(found: Found, used: set[str]) -> Iterator[Part]:
    """What no program takes, by category."""
    for category, of_role in (("attn", "mixer"), ("mlp", "feed-forward"), ("other", "other")):
        linears = tuple(each for path, each in found.linears.items() if path not in used and role(path) == of_role)
        tensors = [each for path, each in found.tensors.items() if path not in used and role(path) == of_role]
        named = tuple(each.but(category="experts" if "expert" in each.name else "") for each in tensors)
        if linears or named:
            yield Part(category=category, linears=linears, tensors=named)
    norms = tuple(norm for path, norm in found.norms.items() if path not in used)
    if norms:
        yield Part(norms=norms)


def final_norm(norms: dict[str, Norm], layers: str) -> str:
    """The path of the norm after the layers: the last one in the module that holds them."""
    home = layers.rpartition(".")[0]
    beside = [path for path in norms if path.rpartition(".")[0] == home and "embed" not in path]
    return beside[-1] if beside else ""


def rest(model: Any, layers: str, own: set[Any], last: str) -> tuple[Part, ...]:
    """Every parameter outside layers, embedding, head and final norm; those of a tower or its projector rest."""
    tables = {path for path, module in model.named_modules() if isinstance(module, torch.nn.Embedding)}
    tensors = []
    for path, parameter in model.named_parameters():
        holder = path.rpartition(".")[0]
        if path.startswith(layers + ".") or any(parameter is each for each in own) or (last and holder == last):
            continue
        foreign = is_foreign(path)
        category = (
            ("projector" if any(word in path.lower() for word in PROJECTORS) else "vision")
            if foreign
            else "pos_or_other_embed"
            if holder in tables
            else "norm"
            if "norm" in holder.lower()
            else "other"
        )
        tensors.append(Bare(name=path, shape=tuple(parameter.shape) or (1,), category=category, frozen=foreign))
    return (Part(tensors=tuple(tensors)),) if tensors else ()


def classifies(model_type: str) -> bool:
    """Whether transformers has a sequence-classification class of this type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

    return model_type in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
