"""Which linears a quantised checkpoint leaves in 16 bits, from the lists of its config: names of modules, regular
expressions (``re:…`` of compressed-tensors) and wildcards (ModelOpt), as engines match them.

A list is understood where each of its entries is, and where what it leaves is the same in all layers of a kind; what
is never quantised in any format (head, embedding, tower, routers, norms, convolutions) goes without saying.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from itertools import groupby

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


def left(section: Mapping[str, object], keys: Mapping[str, object]) -> tuple[str, ...] | None:
    """Modules, or linears, that stay in 16 bits; None where a list is not understood. ``keys``: the config's."""
    entries: list[object] = []
    for key in KEYS:
        given = section.get(key)
        entries += given if isinstance(given, list) else [None] if given else []
    text = keys.get("text_config")
    kinds = kinds_of_layers(text if isinstance(text, Mapping) else keys)
    found: set[str] = set()
    numbered: dict[str, set[int]] = {}
    for entry in dict.fromkeys(each if isinstance(each, str) and len(each) < 500 else None for each in entries):
        if entry is None:
            return None
        if re.search(r"(^|[.*:])mtp", entry):
            found.add(DRAFT)
        elif layer := LAYER.search(entry.rstrip("*")) if re.fullmatch(r"[\w.]+\*?", entry) else None:
            for name in linears(layer[2]) if not entry.endswith("gate*") else ("?",):
                numbered.setdefault(name, set()).add(int(layer[1]))
        elif (matched := matches(entry, len(kinds))) is None:
            return None
        else:
            found |= matched
    for name, layers in numbered.items():
        inside = {number for number in layers if number < len(kinds)}
        found |= {DRAFT} if layers - inside else set()
        if any({number in inside for number in of} != {True} for of in groups(kinds) if inside & of):
            return None
        found |= {name} if inside else set()
    return None if "?" in found else tuple(sorted(whole(found)))


def kinds_of_layers(keys: Mapping[str, object]) -> Sequence[str]:
    """A word for each layer: its type where the config names types."""
    types, count, every = (keys.get(key) for key in ("layer_types", "num_hidden_layers", "full_attention_interval"))
    if isinstance(types, list):
        return [str(each) for each in types]
    size = count if isinstance(count, int) and 0 < count <= 1000 else 0
    step = every if isinstance(every, int) and every > 0 else 1
    return ["linear" if (i + 1) % step else "full" for i in range(size)]


def groups(kinds: Sequence[str]) -> Iterable[set[int]]:
    """Numbers of the layers of each kind."""
    order = sorted(range(len(kinds)), key=lambda i: kinds[i])
    return (set(of) for _, of in groupby(order, key=lambda i: kinds[i]))


def linears(path: str) -> tuple[str, ...]:
    """Of a module behind its layer's number; empty where it is never quantised, ``?`` where nobody knows it."""
    parts = [ALIKE.get(part, part) for part in path.split(".") if not part.isdigit()]
    name = ".".join(parts)
    if parts[-1] in GATES or PLAIN.search(path):
        return ()
    if name in LEAVES:
        return tuple(f"{name}.{leaf}" for leaf in LEAVES[name])
    module, _, leaf = name.rpartition(".")
    return (name,) if leaf in LEAVES.get(module, ()) else ("?",)


def matches(entry: str, layers: int) -> set[str] | None:
    """Linears that a pattern leaves in every layer; None where it tells layers apart, or meets nothing known."""
    if PLAIN.search(entry.removeprefix("re:").replace("\\", "").strip("^$*.")):
        return set()
    try:
        pattern = re.compile(entry[3:] if entry.startswith("re:") else translate(entry))
    except re.error:
        return None
    told = [met(entry, pattern, number) for number in SAMPLES if number < max(layers, 1)]
    same = all(each == told[0] for each in told)
    known = told[0] or entry.rsplit(".", maxsplit=1)[-1].strip("$*") in GATES
    return told[0] if same and known else None


def met(entry: str, pattern: "re.Pattern[str]", number: int) -> set[str]:
    """Linears of one layer that a pattern meets: as the name of the module, or as a part of it (AWQ, fp8)."""
    return {
        f"{module}.{leaf}"
        for module, leaves in LEAVES.items()
        for leaf in leaves
        for path in (f"layers.{number}.{module}.{leaf}".replace("mlp.experts", "mlp.experts.0"),)
        if any(pattern.match(before + path) for before in ("model.", "model.language_model."))
        or f".{entry}." in f".{path}."
    }


def whole(found: set[str]) -> set[str]:
    """A module in place of all its linears."""
    for module, leaves in LEAVES.items():
        names = {f"{module}.{leaf}" for leaf in leaves}
        found = found - names | {module} if names <= found else found
    return found
