"""What a checkpoint that is quantised can be trained as: the method that its config names, and what to type for it.

transformers 5.23 refuses to train quantised weights themselves (``validate_quantization_for_training``), and takes
adapters over those whose quantizer has ``is_trainable``. memplan counts the parameters as they were before they were
quantised, and a base of some formats by the job's ``quantization``."""

from collections.abc import Mapping

from memplan.arch.quantised_layers import ALGORITHMS, TENSORS, by_suffix, by_target, listed, stored_by_path
from memplan.arch.unquantised import layers_of, left
from memplan.tables.quantizations import Stored

TODAY, OTHERS = "quantization_config", ("compression_config", "quantization")
"""Keys of the section: transformers'; that of older compressed-tensors files, and that of MLX."""

NO_ADAPTERS = frozenset({"fbgemm_fp8", "mxfp4", "nvfp4", "modelopt", "mlx", "quark", "spqr", "vptq", "higgs", "gguf"})
"""Methods over whose weights transformers trains no adapters either, or that it cannot load."""
DEQUANTISED = frozenset({"fp8", "mxfp4", "compressed-tensors"})
"""Methods whose config class has ``dequantize``: the model loads with plain weights."""

SCHEMES = {
    ("float", "8", ""): "fp8",
    ("int", "8", ""): "int8",
    ("int", "4", ""): "int4",
    ("float", "4", "16"): "nvfp4",
}
"""Of compressed-tensors: weights' type, bits and group where it is the format's own, and how they are served (vLLM 0.33
model_executor/layers/quantization/compressed_tensors/schemes/)."""
STRATEGIES = {"block": " in blocks", "tensor": " of tensors"}
"""Of fp8: what shares a scale, where it is not a row."""


def method_of(section: Mapping[str, object]) -> str | None:
    """The method's name: ``quant_method``; of files without one, by what else they hold. None where nothing says it."""
    method = section.get("quant_method")
    if method is None and (section.get("load_in_4bit") is True or section.get("load_in_8bit") is True):
        return "bitsandbytes"
    if method is None and isinstance(section.get("quant_algo"), str):
        return "modelopt"
    if method is None and "config_groups" in section:
        return "compressed-tensors"
    if method is None and {"group_size", "bits"} <= set(section):
        return "mlx"
    if not isinstance(method, str) or not method.isprintable() or not 0 < len(method) <= 40:
        return None
    return method


def note_of(method: str, section: Mapping[str, object]) -> str:
    """What the estimate counts, what transformers would do, and what to type for adapters over the file as it is."""
    counted = f"the checkpoint is quantised ({method}); parameters are counted unquantised"
    base = format_of(method, section)
    if base is not None:
        return f"{counted}: its weights cannot be trained, only adapters over them: --quantization {base} --lora-r 16"
    if method in DEQUANTISED:
        return f"{counted}, as it loads with dequantize: true; its quantised weights cannot be trained"
    if method in NO_ADAPTERS:
        return f"{counted}: transformers trains neither its weights nor adapters over them; train the unquantised model"
    return f"{counted}: at most adapters can be trained over it, on a base that is smaller than the one counted"


def format_of(method: str, section: Mapping[str, object]) -> str | None:
    """The job's ``quantization`` that such a file is, where memplan describes it."""
    bits = section.get("bits", section.get("w_bit", 4))
    if method in ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit"):
        if section.get("load_in_8bit") is True or section.get("_load_in_8bit") is True:
            return "int8"
        kind = "fp4" if section.get("bnb_4bit_quant_type", "fp4") == "fp4" else "nf4"
        return kind + ("-double" if kind == "nf4" and section.get("bnb_4bit_use_double_quant") is True else "")
    if method in ("gptq", "awq") and bits == 4 and section.get("group_size", 128) == 128:
        return f"{method}-4bit"
    return None


def stored(method: str, section: Mapping[str, object], keys: Mapping[str, object]) -> Stored:
    """The method, with the scheme of its weights, and what it leaves in 16 bits or has in other formats: by the list or
    the names of its linears, else by what it leaves. Of files that are not understood, the method alone."""
    (scheme, group), plain, count = _scheme(method, section), left(section, keys), layers_of(keys)
    names = section.get(TENSORS)
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    forms = listed(section) or by_suffix(names, method, scheme)
    if not forms and not scheme and plain and method == "compressed-tensors":
        groups = _groups(section)
        group, forms = max((each[1] for each in groups), default=0), by_target(groups, plain, count)
    found = stored_by_path(forms, count, group, names) if forms else None
    if found or plain is None:
        return found or Stored(method)
    return Stored(scheme or method, group, *plain)


def _groups(section: Mapping[str, object]) -> list[tuple[str, int, list[str]]]:
    """The scheme, its group and the targets of each of compressed-tensors' groups; empty where one is another."""
    groups = section.get("config_groups")
    found = []
    for each in groups.values() if isinstance(groups, Mapping) else ():
        weights, targets = (each.get("weights"), each.get("targets")) if isinstance(each, Mapping) else (None, None)
        scheme, group = _scheme_of(weights) if isinstance(weights, Mapping) else ("", 0)
        if not scheme or not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            return []
        found.append((scheme, group, targets))
    return found


def _scheme(method: str, section: Mapping[str, object]) -> tuple[str, int]:
    """The scheme of the weights, and their group; empty where it is not one alone."""
    if method in ("gptq", "awq"):
        bits = section.get("bits", section.get("w_bit", 4))
        return (method, _group(section)) if bits == 4 else (f"{method} of {bits} bits", 0)
    if method == "bitsandbytes" and format_of(method, section) == "nf4-double":
        return f"{method} nested", 0
    if method == "modelopt":
        return ALGORITHMS.get(str(section.get("quant_algo")), ""), 0
    groups = _groups(section) if method == "compressed-tensors" else []
    return groups[0][:2] if len(groups) == 1 and groups[0][2] == ["Linear"] else ("", 0)


def _scheme_of(weights: Mapping[str, object]) -> tuple[str, int]:
    """Of compressed-tensors' weights."""
    kind, bits, group = (weights.get(key) for key in ("type", "num_bits", "group_size"))
    scheme = SCHEMES.get((str(kind), str(bits), str(group) if str(kind) == "float" and bits == 4 else ""))
    if scheme is None or weights.get("symmetric") is False:
        return "", 0
    strategy = STRATEGIES.get(str(weights.get("strategy")), "") if scheme == "fp8" else ""
    return f"compressed-tensors {scheme}{strategy}", _group(weights) if scheme == "int4" else 0


def _group(section: Mapping[str, object]) -> int:
    """Weights that share a scale, where it is not the usual number. A scale for a whole column (-1, or no number) is no
    more than one for every 128: the usual group is the upper bound."""
    group = section.get("group_size", section.get("q_group_size", 128))
    return group if isinstance(group, int) and 0 < group != 128 else 0
