"""Formats that an engine serves quantised weights in: what a matrix of a checkpoint's becomes on the card."""

from collections.abc import Callable
from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.spec.generation import Generator
from memplan.tables.engines import BEFORE_ADA, HOPPER, ROCM, version_of
from memplan.tables.quantizations import QUANTIZATIONS, USUAL
from memplan.tables.texts import texts_by_name
from memplan.units import ceil_div

GROUP = 128
"""Weights of a scale in four bits where a format says no other; and the side of the block that shares an fp32 scale."""
MXFP4_GROUP, NVFP4_GROUP = 32, 16
APART = 512
OWN_FORMATS = texts_by_name(__file__)
"""Formats of checkpoints that are served as they are, by ``quant_method``, with the scheme where it has several."""


def set_apart(size: int) -> int:
    """Rows of so many bytes, set apart by 256 on AMD's cards where they are a multiple of 512 (vllm 0.20
    layers/quantization/utils/fp8_utils.py: _maybe_pad_fp8_weight; 0.8 to 0.33 layers/fused_moe: _maybe_pad_weight, of
    experts in 16 bits; where VLLM_ROCM_FP8_PADDING and VLLM_ROCM_MOE_PADDING are not off)."""
    return size + (size % APART == 0) * APART // 2


def _symmetric(rows: int, columns: int, group: int) -> tuple[int, ...]:
    return rows * columns // 2, rows * ceil_div(columns, group) * 2


def _packed(name: str) -> Callable[[int, int, int], tuple[int, ...]]:
    scheme = QUANTIZATIONS[name]
    grouped = name.startswith(("awq", "gptq"))
    return lambda rows, columns, group: tuple(
        (scheme._replace(group=group) if grouped else scheme).tensors(rows, columns).values()
    )


FORMATS: dict[str, Callable[[int, int, int], tuple[int, ...]]] = {
    "mxfp4": lambda rows, columns, _: (rows * columns // 2, rows * ceil_div(columns, MXFP4_GROUP)),
    "nvfp4": lambda rows, columns, _: (rows * columns // 2, rows * ceil_div(columns, NVFP4_GROUP), 4),
    "int4": _symmetric,
    "fp8": lambda rows, columns, _: (rows * columns, ceil_div(rows, GROUP) * ceil_div(columns, GROUP) * 4),
    "fp8-apart": lambda rows, columns, _: (
        rows * set_apart(columns),
        ceil_div(rows, GROUP) * ceil_div(columns, GROUP) * 4,
    ),
    "fp8-columns": lambda rows, columns, _: (rows * columns, rows * ceil_div(columns, GROUP) * 2),
    "fp8-channels": lambda rows, columns, _: (rows * columns, rows * 4),
    "fp8-tensors": lambda rows, columns, _: (rows * columns, 4),
    "fp8-rows": lambda rows, columns, _: (rows * columns, rows * 2),
    "int8-channels": lambda rows, columns, _: (rows * columns, rows * 4),
    "awq": _packed("awq-4bit"),
    "machete": lambda rows, columns, group: (rows * columns // 2, *(rows * ceil_div(columns, group) * 2,) * 2),
    "gptq": _symmetric,
    "nf4": _packed("nf4"),
    "nf4-double": _packed("nf4-double"),
    "int8": _packed("int8"),
}
"""Of a packed matrix of so many rows and columns, in groups: weights, then their scales and zeros. Marlin has symmetric
groups (int4, and GPTQ's, whose zeros and order ExLlama's kernel keeps, which ``--quantization gptq`` asks for by name:
3.88 GiB of a Mistral 7B where this says 3.86), NVFP4 an fp8 scale for 16 weights and one in fp32; Machete has AWQ's
zeros in 16 bits. In fp8 a block, a row or all of a matrix has one in fp32 (vllm 0.20
compressed_tensors/schemes/compressed_tensors_w8a8_fp8.py)."""
BY_MARLIN = {"fp8": "fp8-columns", "fp8-channels": "fp8-rows", "fp8-tensors": "fp8-rows"}
"""Where a card multiplies no fp8, Marlin does: with a block's scale in 16 bits for each of its columns, any other for
each row (vllm 0.10 layers/quantization/utils/marlin_utils_fp8.py: prepare_fp8_layer_for_marlin)."""
MACHETE, UNNESTED = (0, 19, 0), (0, 9, 2)
"""AWQ's linears take it on Hopper since (vllm 0.19 awq_marlin.py: choose_mp_linear_kernel); bitsandbytes' scales that
are quantised too are multiplied out as they load since (vllm 0.9.2 bitsandbytes_loader.py: _dequantize_dq)."""
WHILE_LOADING = {"nf4": "nf4-double"}
"""What is quantised as it loads has its scales quantised too (vllm 0.8 bitsandbytes_loader.py: compress_statistics)."""
EXPERTS_ALONE = frozenset({"mxfp4"})
"""Formats of routed experts, beside which all else is in 16 bits (gpt-oss)."""


def quantises(name: str) -> bool:
    """Whether a format is that of every linear."""
    return name in FORMATS and name not in EXPERTS_ALONE


def kernels_of(of: Generator, architecture: str) -> dict[str, str]:
    """What a card's kernels make of a format, where that is another one's layout."""
    if of.engine != "vllm":
        return BY_MARLIN if architecture in BEFORE_ADA else {}
    version = version_of(of.version)
    found = BY_MARLIN if architecture in BEFORE_ADA else {"fp8": "fp8-apart"} if architecture in ROCM else {}
    if architecture == HOPPER and not of.model.routed and version >= MACHETE:
        found = {"awq": "machete"}
    return found | ({"nf4-double": "nf4"} if version >= UNNESTED else {})


class Served(NamedTuple):
    """What its weights are served in."""

    format: str = "none"
    group: int = GROUP
    """Weights of a scale, where its format has groups."""
    plain: frozenset[str] = frozenset()
    """Modules and linears that stay in 16 bits: by the checkpoint's config, or as published ones in NVFP4 have it."""
    layers: tuple[tuple[int, frozenset[str]], ...] = ()
    """Those of single layers."""
    others: tuple[tuple[int, frozenset[tuple[str, str]]], ...] = ()
    """Linears of single layers in another format, which is one of these."""


def served(of: Generator) -> Served:
    """The format that a job names, else the checkpoint's. Raises InvalidJob for one that is not modelled."""
    asked, stored = of.quantization, of.model.quantization
    own = OWN_FORMATS.get(stored.form) if stored else "none"
    if asked != "none" and asked != (own or "").partition("-")[0]:
        return Served(WHILE_LOADING.get(asked, asked), plain=frozenset((USUAL,) if asked == "nvfp4" else ()))
    if stored is None:
        return Served()
    if own is None:
        raise InvalidJob(
            f"rollout.quantization: the checkpoint's own, {stored.form[:40]}, is not modelled",
            "give rollout.quantization fp8, int8, awq, gptq or nf4 where it is one of these",
        )
    told = ((number, ((name, OWN_FORMATS.get(form, own)) for name, form in each)) for number, each in stored.others)
    others = tuple((number, frozenset(each)) for number, each in told)
    return Served(own, stored.group or GROUP, stored.plain, stored.layers, others)
