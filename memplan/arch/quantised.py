"""What a checkpoint that is quantised can be trained as: the method that its config names, and what to type for it.

transformers 5.23 refuses to train quantised weights themselves (``validate_quantization_for_training``), and takes
adapters over those whose quantizer has ``is_trainable``. memplan counts the parameters as they were before they were
quantised, and a base of some formats by the job's ``quantization``."""

from collections.abc import Mapping

from memplan.arch.unquantised import left
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
MODELOPT = {"NVFP4": "modelopt nvfp4", "FP8": "modelopt fp8"}
"""By ``quant_algo``."""


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
    """The method, with the scheme of its weights where every linear has the same, and what it leaves in 16 bits. Of
    other files, and of those whose lists are not understood, the method alone."""
    plain = left(section, keys)
    if plain is None:
        return Stored(method)
    scheme, group = _scheme(method, section)
    return Stored(scheme or method, group, *plain)


def _scheme(method: str, section: Mapping[str, object]) -> tuple[str, int]:
    """The scheme of the weights, and their group; empty where it is not one alone."""
    if method in ("gptq", "awq"):
        bits = section.get("bits", section.get("w_bit", 4))
        return (method, _group(section)) if bits == 4 else (f"{method} of {bits} bits", 0)
    if method == "modelopt":
        return MODELOPT.get(str(section.get("quant_algo")), ""), 0
    groups = section.get("config_groups")
    only = next(iter(groups.values())) if isinstance(groups, Mapping) and len(groups) == 1 else None
    weights = only.get("weights") if isinstance(only, Mapping) and only.get("targets") == ["Linear"] else None
    if method != "compressed-tensors" or not isinstance(weights, Mapping) or weights.get("symmetric") is False:
        return "", 0
    kind, bits, group = (weights.get(key) for key in ("type", "num_bits", "group_size"))
    scheme = SCHEMES.get((str(kind), str(bits), str(group) if str(kind) == "float" and bits == 4 else ""))
    return (f"{method} {scheme}", _group(weights) if scheme == "int4" else 0) if scheme else ("", 0)


def _group(section: Mapping[str, object]) -> int:
    """Weights that share a scale, where it is not the usual number. A scale for a whole column (-1, or no number) is no
    more than one for every 128: the usual group is the upper bound."""
    group = section.get("group_size", section.get("q_group_size", 128))
    return group if isinstance(group, int) and 0 < group != 128 else 0
