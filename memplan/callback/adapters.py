"""The adapters that PEFT has put into a live model, read from the modules that really have one."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.tables.peft_fields import FIELDS, NO_EFFECT

DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
EMBEDDING, HEAD = "embed_tokens", "lm_head"


class _Adapted(NamedTuple):
    """A module with an adapter."""

    path: str
    name: str
    rank: int


def read_lora(model: Any) -> dict[str, Any]:
    """``lora`` of a job; nothing where the model has no adapters. Raises InvalidJob for what is not modelled."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return {}
    names = list(getattr(model, "active_adapters", None) or configs)
    config = configs[names[0]]
    if len(names) > 1:
        raise InvalidJob(f"lora: {len(names)} adapters at once are not modelled", "activate one of them")
    if str(getattr(config.peft_type, "value", config.peft_type)) != "LORA":
        raise InvalidJob(f"lora: {config.peft_type} adapters are not modelled", "leave the callback out for this run")
    _check_fields(config)
    adapted = list(_adapted(model, names[0]))
    weights = [weight for name, weight in model.named_parameters() if ".lora_A." in name or "lora_embedding_A" in name]
    lora: dict[str, Any] = {
        "r": config.r,
        "alpha": config.lora_alpha,
        "targets": sorted({each.name for each in adapted}),
        "dropout": config.lora_dropout,
        "dtype": DTYPES.get(str(weights[0].dtype), "fp32") if weights else "fp32",
        "rslora": bool(config.use_rslora),
        "bias": config.bias,
    }
    lora |= {
        key: True for key, own in (("dora", "use_dora"), ("lora_bias", "lora_bias")) if getattr(config, own, False)
    }
    lora |= _layers(model, adapted) | _ranks(adapted, config.r) | _tokens(model, names[0])
    if config.modules_to_save:
        lora["modules_to_save"] = [_end_name(model, name) for name in config.modules_to_save]
    return {"lora": lora}


def _check_fields(config: Any) -> None:
    """Raise InvalidJob for a field of LoraConfig that is set, bears on memory and is not modelled, or is not known."""
    for field in fields(config) if is_dataclass(config) else ():
        if field.name in FIELDS or field.name in NO_EFFECT:
            continue
        usual = field.default_factory() if field.default_factory is not MISSING else field.default
        value = getattr(config, field.name, usual)
        tying = field.name == "ensure_weight_tying" and not (config.modules_to_save or _names_ends(config))
        if value and value != usual and not tying:
            raise InvalidJob(f"lora: {field.name} of PEFT's LoraConfig is not modelled", "leave it out")


def _names_ends(config: Any) -> bool:
    """Whether targets may hold what is tied: names of embeddings and heads, or an expression."""
    targets = config.target_modules or ()
    return isinstance(targets, str) or any(not name.endswith(("proj", "query", "key", "value")) for name in targets)


def _adapted(model: Any, adapter: str) -> Iterator[_Adapted]:
    ends = {id(end): own for side, own in (("input", EMBEDDING), ("output", HEAD)) if (end := _end(model, side))}
    for path, part in model.named_modules():
        ranks: Mapping[str, int] = getattr(part, "r", None) or {}
        if not isinstance(ranks, Mapping) or adapter not in ranks or not hasattr(part, "lora_A"):
            continue
        yield _Adapted(path, ends.get(id(part), path.rsplit(".", 1)[-1]), ranks[adapter])


def _end(model: Any, side: str) -> Any:
    found = getattr(model, f"get_{side}_embeddings", None)
    return found() if found else None


def _end_name(model: Any, name: str) -> str:
    """A module's name in the job's words: embed_tokens and lm_head, whatever the class calls them."""
    for side, own in (("input", EMBEDDING), ("output", HEAD)):
        table = _end(model, side)
        paths = [path for path, module in model.named_modules() if module is table and path]
        if any(path.rsplit(".", 1)[-1] == name for path in paths):
            return own
    return name


def _place(path: str) -> tuple[str, int | None, str]:
    """What stands before a module's layer, the number of the layer, and the module's name."""
    segments = path.split(".")
    at = next((i for i, segment in enumerate(segments) if segment.isdigit()), None)
    if at is None:
        return "", None, segments[-1]
    return ".".join(segments[:at]), int(segments[at]), segments[-1]


def _layers(model: Any, adapted: list[_Adapted]) -> dict[str, Any]:
    """The layers that have adapters, where not all with such modules have. InvalidJob where modules differ in that."""
    with_adapters: dict[tuple[str, str], set[int]] = {}
    for each in adapted:
        stack, layer, name = _place(each.path)
        if layer is not None:
            with_adapters.setdefault((stack, name), set()).add(layer)
    holders: dict[tuple[str, str], set[int]] = {key: set() for key in with_adapters}
    for path, _ in model.named_modules():
        stack, layer, name = _place(path)
        if layer is not None and (stack, name) in holders:
            holders[stack, name].add(layer)
    if with_adapters == holders:
        return {}
    chosen = set().union(*with_adapters.values())
    if any(with_adapters[key] != holders[key] & chosen for key in holders):
        raise InvalidJob(
            "lora: modules that are adapted in different layers are not modelled",
            "name layers that all targets share (layers_to_transform)",
        )
    return {"layers_to_transform": sorted(chosen)}


def _ranks(adapted: list[_Adapted], usual: int) -> dict[str, Any]:
    """Ranks of modules' own. Raises InvalidJob where one name has several."""
    found: dict[str, set[int]] = {}
    for each in adapted:
        found.setdefault(each.name, set()).add(each.rank)
    for name, ranks in found.items():
        if len(ranks) > 1:
            raise InvalidJob(
                f"lora.rank_pattern: {name} with ranks {', '.join(map(str, sorted(ranks)))}, by layer, is not modelled",
                "give each name one rank",
            )
    own = {name: rank for name, (rank,) in found.items() if rank != usual}
    return {"rank_pattern": own} if own else {}


def _tokens(model: Any, adapter: str) -> dict[str, Any]:
    """Rows that are trained, by the table that has them as its own; a tied head follows."""
    counts = {}
    for path, part in model.named_modules():
        indices = getattr(part, "token_indices", None)
        if isinstance(indices, Mapping) and adapter in indices and getattr(part, "tied_adapter", None) is None:
            name = path.split(".")[-2] if path.endswith("token_adapter") else path.split(".")[-1]
            counts[_end_name(model, name)] = len(indices[adapter])
    return {"trainable_token_indices": counts} if counts else {}
