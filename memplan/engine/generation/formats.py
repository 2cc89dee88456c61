"""Formats that an engine serves quantised weights in: what a matrix of a checkpoint's becomes on the card."""

from collections.abc import Callable

from memplan.errors import InvalidJob
from memplan.spec.generation import Generator
from memplan.tables.quantizations import EXCEPT, QUANTIZATIONS, USUAL
from memplan.units import ceil_div

GROUP = 128
"""Weights of a scale in four bits where a format says no other; and the side of the block that shares an fp32 scale."""
MXFP4_GROUP, NVFP4_GROUP = 32, 16
OWN_FORMATS = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "awq": "awq",
    "gptq": "int4",  # Marlin's kernel, where nobody asks for another: neither zeros nor g_idx
    "bitsandbytes": "nf4",
    "mxfp4": "mxfp4",
    "compressed-tensors fp8": "fp8",
    "compressed-tensors int8": "int8-channels",
    "compressed-tensors int4": "int4",
    "compressed-tensors nvfp4": "nvfp4",
    "modelopt nvfp4": "nvfp4",
}
"""Formats of checkpoints that are served as they are, by ``quant_method``, with the scheme where it has several. One in
four bits may have groups of its own: ``awq g32``."""


def _packed(name: str) -> Callable[[int, int, int], tuple[int, ...]]:
    scheme = QUANTIZATIONS[name]
    grouped = name.startswith(("awq", "gptq"))
    return lambda rows, columns, group: tuple(
        (scheme._replace(group=group) if grouped else scheme).tensors(rows, columns).values()
    )


FORMATS: dict[str, Callable[[int, int, int], tuple[int, ...]]] = {
    "mxfp4": lambda rows, columns, _: (rows * columns // 2, rows * ceil_div(columns, MXFP4_GROUP)),
    "nvfp4": lambda rows, columns, _: (rows * columns // 2, rows * ceil_div(columns, NVFP4_GROUP), 4),
    "int4": lambda rows, columns, group: (rows * columns // 2, rows * ceil_div(columns, group) * 2),
    "fp8": lambda rows, columns, _: (rows * columns, ceil_div(rows, GROUP) * ceil_div(columns, GROUP) * 4),
    "fp8-columns": lambda rows, columns, _: (rows * columns, rows * ceil_div(columns, GROUP) * 2),
    "int8-channels": lambda rows, columns, _: (rows * columns, rows * 4),
    "awq": _packed("awq-4bit"),
    "machete": lambda rows, columns, group: (rows * columns // 2, *(rows * ceil_div(columns, group) * 2,) * 2),
    "gptq": _packed("gptq-4bit"),
    "nf4": _packed("nf4-double"),
    "int8": _packed("int8"),
}
"""Of a packed matrix of so many rows and columns, in groups: weights, then their scales and zeros. Marlin has symmetric
groups (int4), NVFP4 an fp8 scale for 16 weights and one in fp32; Machete has AWQ's zeros in 16 bits. Where a card
multiplies no fp8, Marlin does, with a block's scale in 16 bits for each of its columns (vllm 0.10
layers/quantization/utils/marlin_utils_fp8.py)."""
EXPERTS_ALONE = frozenset({"mxfp4"})
"""Formats of routed experts, beside which all else is in 16 bits (gpt-oss)."""


def quantises(name: str) -> bool:
    """Whether a format is that of every linear."""
    kind = name.partition(" g")[0]
    return kind in FORMATS and kind not in EXPERTS_ALONE


def packed(name: str, rows: int, columns: int) -> tuple[int, ...]:
    """Bytes of what a matrix becomes: its weights, then their scales and zeros."""
    kind, _, group = name.partition(" g")
    return FORMATS[kind](rows, columns, int(group or GROUP))


def format_of(of: Generator) -> str:
    """The format that its weights are served in. Raises InvalidJob for a checkpoint's that is not modelled."""
    if of.quantization != "none" or of.model.quantization is None:
        return of.quantization
    kind, separator, group = of.model.quantization.partition(EXCEPT)[0].partition(" g")
    if kind not in OWN_FORMATS:
        raise InvalidJob(
            f"rollout.quantization: the checkpoint's own, {of.model.quantization[:40]}, is not modelled",
            "give rollout.quantization fp8, int8, awq, gptq or nf4 where it is one of these",
        )
    return OWN_FORMATS[kind] + separator + group


def plain_of(of: Generator) -> frozenset[str]:
    """Modules and linears that stay in 16 bits: by the checkpoint's config, or as published ones in NVFP4 have it."""
    kind, _, told = (of.model.quantization or "").partition(EXCEPT)
    if of.quantization not in ("none", OWN_FORMATS.get(kind)):
        return frozenset((USUAL,) if of.quantization == "nvfp4" else ())
    return frozenset(told.split(", ") if told else ())
