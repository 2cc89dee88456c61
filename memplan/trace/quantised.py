"""A base in four bits, as transformers' quantizer makes it: bitsandbytes' own linears over packed weights.

bitsandbytes' Python code runs as it is; its CUDA kernels are torch.library operations with shape functions. The one
that would choose between a fused kernel and a dequantised matrix takes the matrix, as above 1536 tokens (bitsandbytes
0.50 backends/cuda/ops.py: ``_dequant_linear_fallback``). And linears as torchao converts them to float8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memplan.errors import InvalidJob
from memplan.spec.groups import Quantised
from memplan.tables.precisions import FLOAT8, Float8, fits

STATES = ("absmax", "code", "offset")


def quantise(model: Any, base: Quantised, device: str) -> None:
    """Linears of the layers become ``Linear4bit``: all but the head, what is tied to it, and the last module."""
    bnb = _bitsandbytes()
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = get_keys_to_not_convert(model)
    dtypes = {4: torch.float32, 2: torch.float16 if base.fp16 else torch.bfloat16}
    for name, module in list(model.named_modules()):
        if not (type(module) is torch.nn.Linear or isinstance(module, Conv1D)) or not should_convert_module(name, kept):
            continue
        rows, columns = module.weight.shape if isinstance(module, torch.nn.Linear) else module.weight.shape[::-1]
        options = {"compress_statistics": base.scheme.nested, "quant_type": base.scheme.name.split("-")[0]}
        with unset_fake_temporarily(), torch.device("meta"):
            made = bnb.nn.Linear4bit(
                columns, rows, module.bias is not None, compute_dtype=dtypes[base.compute_itemsize], **options
            )
        whole = torch.empty((rows, columns), dtype=dtypes[base.original_itemsize], device=device)
        packed, state = bnb.functional.quantize_4bit(whole, **options)
        made.weight = _packed(packed, options)
        made.weight.quant_state = made.quant_state = state
        made.bias = module.bias
        model.set_submodule(name, made)
    model.is_loaded_in_4bit = True


def _packed(data: Tensor, options: dict[str, Any]) -> Any:
    """The packed weight, under the name that PEFT knows it by: bitsandbytes' own class cannot hold a fake tensor."""
    weight = torch.nn.Parameter(data, requires_grad=False)
    # PEFT's DoRA copies the linear deeply for the first norm (tuners/lora/dora.py: update_layer).
    weight.__class__ = type("Params4bit", (type(weight),), {"__deepcopy__": lambda self, memo: self})
    for key, value in options.items():
        setattr(weight, key, value)
    return weight


def upcast_norms(model: Any) -> None:
    """What TRL leaves in fp32 (trl 0.14 ``peft_module_casting_to_bf16``): modules with norm in their names."""
    for name, parameter in model.named_parameters():
        if "norm" in name and parameter.is_floating_point():
            parameter.data = parameter.data.float()


def narrow_adapters(model: Any) -> None:
    """TRL's cast of what is trained over a quantised base, but for DoRA's magnitudes (trl 1.16 dpo_trainer.py)."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_magnitude_vector" not in name:
            parameter.data = parameter.data.to(torch.bfloat16)


def states_of(model: Any) -> Iterator[Tensor]:
    """Scales and codes beside the packed weights."""
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        for each in (state, getattr(state, "state2", None)):
            yield from (getattr(each, name) for name in STATES if isinstance(getattr(each, name, None), Tensor))


@contextmanager
def dequantising() -> Iterator[None]:
    """Products with dequantised matrices, and a map of codes that is made anew."""
    bnb = _bitsandbytes()
    kernel = SimpleNamespace(default=_product)
    with (
        mock.patch.object(torch.ops.bitsandbytes, "gemm_4bit", kernel, create=True),
        mock.patch.dict(bnb.functional.name2qmap, clear=True),
    ):
        yield


def _product(
    x: Tensor, packed: Tensor, shape: Sequence[int], absmax: Tensor, *options: Any, bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None, absmax_offset: Tensor | None = None, **others: Any,
) -> Tensor:  # fmt: skip
    """``_dequant_linear_fallback``, with its locals."""
    if absmax_8bit is not None:
        nested = torch.empty_like(absmax_8bit, dtype=torch.float32)
        absmax = nested + absmax_offset
    matrix = torch.empty(tuple(shape), dtype=x.dtype, device=x.device)
    result = torch.nn.functional.linear(x, matrix, bias)
    del absmax
    return result


def _bitsandbytes() -> Any:
    """The library. Raises InvalidJob where it is not installed."""
    try:
        import bitsandbytes
    except ImportError:
        raise InvalidJob(
            "quantization: bitsandbytes, which quantises, is not installed", "pip install bitsandbytes"
        ) from None
    return bitsandbytes


def to_float8(model: torch.nn.Module, how: Float8 | None) -> None:
    """Every linear of the layers that torchao's recipe converts. Raises InvalidJob without torchao."""
    if how is None:
        return
    if how.layouts or how.block:
        raise InvalidJob("float8: TransformerEngine's products and MXFP8 run on a card alone", "use float8 tensorwise")
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise InvalidJob("float8: tracing it needs torchao", "pip install torchao") from None
    plain = how._replace(gathered=False, fused=False)
    name = next(name for name, row in FLOAT8.items() if row == plain)
    recipe = name.replace("-", "_").replace("rowwise_gw", "rowwise_with_gw")
    gathers = {"enable_fsdp_float8_all_gather": True}
    config = Float8LinearConfig(**gathers) if how.gathered else Float8LinearConfig.from_recipe_name(recipe)

    def wanted(module: Any, path: str) -> bool:
        return "layers." in path and fits(module.out_features, module.in_features)

    convert_to_float8_training(model, config=config, module_filter_fn=wanted)
