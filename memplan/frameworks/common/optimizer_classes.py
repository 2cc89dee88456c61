"""Optimizers by the class that a config names, whichever framework imports it."""

from collections.abc import Mapping
from typing import Any

from memplan.frameworks.base import Keys
from memplan.units import pairs_of

TORCHAO = ("torchao.optim", "torchao.prototype.low_bit_optim")
CLASSES: dict[str, tuple[str, str]] = {
    path: (word, library)
    for path, found in pairs_of(
        """torch.optim.AdamW=adamw torch.optim.Adam=adamw torch.optim.SGD=sgd torch.optim.Adafactor=adafactor
        torch.optim.Muon=muon bitsandbytes.optim.AdamW=adamw,bitsandbytes bitsandbytes.optim.Adam=adamw,bitsandbytes
        bitsandbytes.optim.AdamW8bit=adamw-8bit bitsandbytes.optim.Adam8bit=adamw-8bit
        bitsandbytes.optim.PagedAdamW=paged-adamw bitsandbytes.optim.PagedAdam=paged-adamw
        bitsandbytes.optim.PagedAdamW8bit=paged-adamw-8bit bitsandbytes.optim.PagedAdam8bit=paged-adamw-8bit
        bitsandbytes.optim.Lion8bit=lion-8bit bitsandbytes.optim.PagedLion8bit=paged-lion-8bit transformers.AdamW=adamw
        transformers.optimization.AdamW=adamw deepspeed.ops.adam.FusedAdam=adamw
        deepspeed.ops.adam.DeepSpeedCPUAdam=adamw verl.utils.torch_functional.AnyPrecisionAdamW=adamw-kahan"""
    ).items()
    for word, _, library in [found.partition(",")]
} | {
    f"{place}.{name}": (word, "torchao" if word == "adamw-8bit" else "")
    for place in TORCHAO
    for name, word in pairs_of("AdamW8bit=adamw-8bit AdamW4bit=adamw-4bit AdamWFp8=adamw-fp8 _AdamW=adamw").items()
}
"""Class -> the job's word, and the library where there are several. bitsandbytes' AdamW and AdamW32bit keep fp32;
torchao's ``_AdamW`` keeps states of the weight's dtype, and steps on one weight at a time."""
STEPS = ("adamw", "sgd", "sgd-momentum")
"""Of which torch has three ways to step."""


def way_of(path: str, arguments: Mapping[str, Any]) -> str:
    """How an optimizer steps that a program makes: torch's with foreach where nothing says otherwise (torch 2.13
    optim/optimizer.py: _default_to_fused_or_foreach), transformers' on one weight at a time, DeepSpeed's fused."""
    if path.startswith("deepspeed.") or arguments.get("fused") is True:
        return "fused"
    return "loop" if path.startswith("transformers.") or arguments.get("foreach") is False else "foreach"


def found_class(path: str, module: str = "torch.optim") -> tuple[str, str] | None:
    """The word and the library of ``torch.optim.adamw.AdamW``, or of ``AdamW`` in a module; None for an unknown one."""
    before, _, name = path.rpartition(".")
    before = before or module
    name = name.removesuffix("32bit") if before.startswith("bitsandbytes") else name
    whole = f"torch.optim.{name}" if before.startswith("torch.optim.") else f"{before}.{name}"
    return CLASSES.get(whole)


def put_class(keys: Keys, key: str, path: str, arguments: Mapping[str, Any], module: str = "torch.optim") -> bool:
    """Read a class and its arguments; False, and said, where it is not modelled. ``key``: what names it."""
    found = found_class(path, module)
    if found is None:
        whole = path if "." in path else f"{module}.{path}"
        keys.warn(key, f"{whole[:60]} is not modelled: adamw is counted in its place", "optimizer")
        return False
    name, library = found
    keys.put("optimizer", "sgd-momentum" if name == "sgd" and arguments.get("momentum") else name, key)
    if library:
        keys.put("optimizer_args", {"library": library}, key)
    elif name in STEPS:
        way = "loop" if path.startswith(TORCHAO) or module in TORCHAO or arguments.get("foreach") is False else ""
        way = next((each for each in ("fused", "foreach") if arguments.get(each)), way)
        if way:
            keys.put("optimizer_impl", way, key)
    return True
