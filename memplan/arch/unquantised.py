"""Which linears a quantised checkpoint leaves in 16 bits, from the lists of its config: names of modules, regular
expressions (``re:…`` of compressed-tensors) and wildcards (ModelOpt), as engines match them.

A list is understood where each of its entries is; what is never quantised in any format (head, embedding, tower,
routers, norms, convolutions) goes without saying."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from fnmatch import translate
from typing import NamedTuple

from memplan.tables.quantizations import DRAFT, LEAVES

KEYS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
PLAIN = re.compile(
    r"(^|[._])(lm_head|head|embed\w*|visual|vision\w*|audio\w*|\w*projector|merger|router|\w*norm\d?)([._]|$)"
)
GATES = ("gate", "shared_expert_gate", "router", "conv1d", "A_log", "dt_bias", "norm")
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
SAMPLES = (0, 1, 2, 3, 5, 8)
ALIKE = {"feed_forward": "mlp", "block_sparse_moe": "mlp", "shared_experts": "shared_expert"}
"""Modules of other families' names."""
NAMED = {"mlp.experts": ("mlp.experts.0",), "mlp.shared_expert": ("mlp.shared_expert", "mlp.shared_experts")}
"""Names that a pattern is held against."""
ONE_EACH = ("mamba", "self_attn", "mlp")
"""Modules that are a layer's ``mixer`` where each layer has one of them (Nemotron-H)."""
MOST_LAYERS = 1000
EVERY = frozenset(f"{module}.{leaf}" for module, leaves in LEAVES.items() for leaf in leaves)
Names = frozenset[str]


class Left(NamedTuple):
    """Modules, and linears of modules, that stay in 16 bits: in every layer, and beside them in single ones."""

    everywhere: Names = frozenset()
    layers: tuple[tuple[int, Names], ...] = ()


def left(section: Mapping[str, object], keys: Mapping[str, object]) -> Left | None:
    """By the lists of a section; None where one is not understood. ``keys``: the config's."""
    entries: list[object] = []
    for key in KEYS:
        given = section.get(key)
        entries += given if isinstance(given, list) else [None] if given else []
    count = layers_of(keys)
    everywhere: set[str] = set()
    single: dict[int, set[str]] = {}
    for entry in dict.fromkeys(each if isinstance(each, str) and len(each) < 500 else None for each in entries):
        if entry is None:
            return None
        if re.search(r"(^|[.*:])mtp", entry):
            everywhere.add(DRAFT)
        elif layer := layer_of(entry.rstrip("*")) if re.fullmatch(r"[\w.]+\*?", entry) else None:
            names = linears(layer[1]) if not entry.endswith("gate*") else ("?",)
            single.setdefault(layer[0], set()).update(names)
        elif (matched := matches(entry, count)) is None:
            return None
        else:
            for number, found in enumerate(matched[1:]):
                single.setdefault(number, set()).update(found)
            everywhere |= matched[0]
    everywhere |= {DRAFT} if any(number >= count for number in single) else set()
    told = tuple(sorted((number, whole(names)) for number, names in single.items() if names and number < count))
    return None if any("?" in names for _, names in told) else Left(whole(everywhere), told)


def layer_of(path: str) -> tuple[int, str] | None:
    """The number of a layer and the path within it; None for what is in no layer of the language model: a tower's."""
    found = LAYER.search(path)
    return (int(found[1]), found[2]) if found and not PLAIN.search(path[: found.start()]) else None


def layers_of(keys: Mapping[str, object]) -> int:
    """How many the config tells."""
    text = keys.get("text_config")
    keys = text if isinstance(text, Mapping) else keys
    given = (keys.get(key) for key in ("num_hidden_layers", "layer_types", "hybrid_override_pattern"))
    counts = (len(each) if isinstance(each, (list, str)) else each for each in given)
    return next((each for each in counts if isinstance(each, int) and 0 < each <= MOST_LAYERS), 0)


def linears(path: str) -> tuple[str, ...]:
    """Of a module behind its layer's number; empty where it is never quantised, ``?`` where nobody knows it."""
    parts = [ALIKE.get(part, part) for part in path.split(".") if not part.isdigit()]
    if parts[-1] in GATES or PLAIN.search(path):
        return ()
    if parts[0] == "mixer":
        one = [module for module in ONE_EACH if len(parts) == 1 or parts[-1] in LEAVES[module]]
        return tuple(name for module in one for name in linears(".".join((module, *parts[1:])))) or ("?",)
    name = ".".join(parts)
    if name in LEAVES:
        return tuple(f"{name}.{leaf}" for leaf in LEAVES[name])
    module, _, leaf = name.rpartition(".")
    return (name,) if leaf in LEAVES.get(module, ()) else ("?",)


def matches(entry: str, layers: int) -> list[Names] | None:
    """Linears that a pattern leaves in all layers; then each layer's, where they differ; None for nothing known."""
    if PLAIN.search(entry.removeprefix("re:").replace("\\", "").strip("^$*.")):
        return [frozenset()]
    if (pattern := pattern_of(entry)) is None:
        return None
    told = [met(entry, pattern, number) for number in SAMPLES if number < max(layers, 1)]
    if told[0] and all(each == told[0] for each in told):
        return [told[0]]
    told = [met(entry, pattern, number) for number in range(layers)]
    known = any(told) or entry.rsplit(".", maxsplit=1)[-1].strip("$*") in GATES
    return [frozenset(), *told] if known else None


def pattern_of(entry: str) -> "re.Pattern[str] | None":
    """An entry as what names are held against; None for one that is no pattern."""
    try:
        return re.compile(entry[3:] if entry.startswith("re:") else translate(entry))
    except re.error:
        return None


def met(entry: str, pattern: "re.Pattern[str]", number: int) -> Names:
    """Linears of one layer that a pattern meets: as the name of the module, or as a part of it (AWQ, fp8)."""
    return frozenset(
        f"{module}.{leaf}"
        for module, leaves in LEAVES.items()
        for leaf in leaves
        for path in (f"layers.{number}.{name}.{leaf}" for name in NAMED.get(module, (module,)))
        if any(pattern.match(before + path) for before in ("model.", "model.language_model."))
        or f".{entry}." in f".{path}."
    )


def whole(names: AbstractSet[str], every: Names = EVERY) -> Names:
    """A module in place of all its linears, of those that there are."""
    found = frozenset(names)
    for module in LEAVES:
        linears_of = {each for each in every if each.rpartition(".")[0] == module}
        found = found - linears_of | {module} if linears_of and linears_of <= found else found
    return found
