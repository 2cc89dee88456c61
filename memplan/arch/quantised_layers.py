"""Which format each linear of a checkpoint is in, where its files tell them apart: ``quantized_layers`` of ModelOpt,
several ``config_groups`` of compressed-tensors, the names of its tensors.

What none of them names is in 16 bits (vllm 0.20 layers/quantization/modelopt.py: ModelOptMixedPrecisionConfig)."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain

from memplan.arch.unquantised import EVERY, Left, layer_of, met, pattern_of, whole
from memplan.arch.unquantised import linears as linears_in
from memplan.tables.quantizations import DRAFT, Stored

ALGORITHMS = {
    **dict.fromkeys(("NVFP4", "W4A16_NVFP4"), "modelopt nvfp4"),
    "FP8": "modelopt fp8",
    "FP8_PB_WO": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "compressed-tensors fp8",
}
"""By ``quant_algo`` (vllm 0.20 modelopt.py: QUANT_ALGOS)."""
SUFFIXES = {
    "weight_global_scale": "compressed-tensors nvfp4",
    "weight_scale_2": "modelopt nvfp4",
    "weight_scale_inv": "fp8",
    **dict.fromkeys(("weight_packed", "weight_scale", "qweight"), ""),
}
"""Of the tensors that a quantised linear has, the most telling first: its format; empty: that of the config."""
UNNUMBERED = re.compile(r"\.layers\.\D")
"""A path of every layer at once."""
ENDS = re.compile(r"\.(weight|bias|" + "|".join(SUFFIXES) + ")$")
TENSORS = "names of tensors"
"""Key of a section: the checkpoint's, from the index or the header beside its config."""
Forms = Mapping[str, str]
"""Formats of linears, by the path or the name of each; those in 16 bits have none."""


def listed(section: Mapping[str, object]) -> Forms | None:
    """Of ModelOpt's list; None where there is none."""
    found = section.get("quantized_layers")
    if not isinstance(found, Mapping) or not found:
        return None
    told = {str(path): each.get("quant_algo") for path, each in found.items() if isinstance(each, Mapping)}
    return {path: ALGORITHMS.get(str(each), "") for path, each in told.items() if each != "UNQUANTIZED"}


def by_suffix(names: Iterable[str], method: str, scheme: str) -> Forms:
    """Of a checkpoint's tensors; ``scheme``: the config's, where it has one for all. Beside others it is fp8 that has a
    scale alone."""
    ends: dict[str, set[str]] = {}
    for path, _, end in (name.rpartition(".") for name in names):
        ends.setdefault(path, set()).add(end)
    own = scheme or method
    alone = own if scheme.endswith(("8", "s")) else f"{method} fp8" if method != "fp8" else own
    found = {path: next((each for each in SUFFIXES if each in its), "") for path, its in ends.items()}
    return {path: SUFFIXES[end] or (alone if end == "weight_scale" else own) for path, end in found.items() if end}


def by_target(groups: Iterable[tuple[str, int, list[str]]], left: Left, count: int) -> Forms:
    """Of groups of compressed-tensors, with their targets: names and patterns before a class of modules, the first that
    meets a linear (compressed_tensors/utils.py: find_matched_target); what is ``left`` is in none."""
    told = [(target, scheme, pattern_of(target)) for scheme, _, targets in groups for target in targets]
    drafts = DRAFT not in left.everywhere and any(target == "Linear" for target, *_ in told)
    forms = {"mtp": told[0][1]} if drafts else {}
    for number in range(count):
        names = left.everywhere | dict(left.layers).get(number, frozenset())
        rest = frozenset(each for each in EVERY if not {each, each.rpartition(".")[0]} & names)
        for target, scheme, pattern in sorted(told, key=lambda each: each[0] == "Linear"):
            found = rest if target == "Linear" else rest & met(target, pattern, number) if pattern else frozenset()
            forms |= dict.fromkeys((f"layers.{number}.{each}" for each in found), scheme)
            rest = rest - found
    return forms


def stored_by_path(forms: Forms, count: int, group: int, names: Iterable[str] = ()) -> Stored | None:
    """Of paths in a checkpoint, of a model of ``count`` layers, in groups; None where one is not understood. ``names``:
    all its tensors, where they are known."""
    layers: dict[int, dict[str, str]] = {number: {} for number in range(count)}
    linears, drafts = cache(linears_in), False
    for path, form in forms.items():
        if UNNUMBERED.search(path):
            return None
        number, inner = layer_of(path) or (-1, "")
        drafts |= path.startswith("mtp") or number >= count
        if 0 <= number < count and ".indexer." not in inner:
            layers[number] |= dict.fromkeys(linears(inner), form)
    counts = Counter(form for each in layers.values() for form in each.values())
    if not counts or "" in counts or any("?" in each for each in layers.values()):
        return None
    paths = {found[1] for name in names if (found := layer_of(name))}
    every = frozenset(chain.from_iterable(linears(ENDS.sub("", path)) for path in paths)) - {"?"} or EVERY
    main = counts.most_common(1)[0][0]
    plain = {number: whole(every.difference(each), every) for number, each in layers.items()}
    everywhere = frozenset.intersection(*plain.values())
    others = {at: frozenset((name, form) for name, form in each.items() if form != main) for at, each in layers.items()}
    return Stored(
        main,
        group,
        everywhere if drafts else everywhere | {DRAFT},
        tuple((number, each - everywhere) for number, each in plain.items() if each - everywhere),
        tuple((number, each) for number, each in others.items() if each),
    )
