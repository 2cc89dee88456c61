"""Where fake tensors live: a CUDA device that need not exist, and what torch and transformers ask of it.

Nothing is a real card's but the compute capability: grouped matmuls and flash attention are there from 8.0.

``scaled_dot_product_attention`` as CUDA would run it: the kernel that its selector takes, by the kernel's own name.

The selector is C++ and asks the device; here the same questions are asked of the tensors alone (torch 2.13
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``): flash for half precision without a mask, heads of at most
256; memory-efficient where query and key have as many heads; math for the rest."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from math import sqrt
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import functional
from transformers import masking_utils
from transformers.integrations import sdpa_attention

from memplan.trace import known

FLASH_HEAD_DIM = 256
HALF = (torch.bfloat16, torch.float16)

own_kernel = {"flash": False}
"""Whether the job asks for that kernel itself, whose values are as wide as its queries (transformers 5.24)."""


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The output, from the operation whose saved tensors are those of CUDA's kernel."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = _cast(query, dtype), _cast(key, dtype), _cast(value, dtype)
        attn_mask = _cast(attn_mask, dtype) if attn_mask is not None else None
    with torch.autocast(device, enabled=False):
        width = value.shape[-1]
        if own_kernel["flash"] and attn_mask is None and width < query.shape[-1]:  # integrations/flash_attention.py
            value = functional.pad(value, (0, query.shape[-1] - width))
            return _flash(query, key, value, dropout_p, is_causal, scale)[..., :width]
        if _takes_flash(query, key, value, attn_mask):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if _takes_efficient(query, key, value):
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        out, _ = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, _as_float(attn_mask, query), dropout_p, is_causal, None, scale=scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip
        return out


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Autocast runs this operation in half precision."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _takes_flash(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    same_width = query.shape[-1] == key.shape[-1] == value.shape[-1] <= FLASH_HEAD_DIM
    return mask is None and query.dtype in HALF and same_width


def _takes_efficient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """No grouped heads; rows of 16 bytes."""
    aligned = 16 // query.element_size()
    return query.shape[1] == key.shape[1] == value.shape[1] and not query.shape[-1] % aligned and not (
        value.shape[-1] % aligned
    )  # fmt: skip


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
    """Heads are padded to a multiple of 8, with the scale of the true width."""
    width = query.shape[-1]
    scale = scale if scale is not None else 1 / sqrt(width)
    missing = -width % 8
    if missing:
        query, key, value = (functional.pad(tensor, (0, missing)) for tensor in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if missing else out


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> Tensor:
    """The log-sum-exp is computed where a gradient is needed; the mask becomes a bias, expanded over heads."""
    bias = _as_float(mask, query)
    if bias is not None:
        bias = _aligned(bias).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    logsumexp = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, logsumexp, dropout, causal, scale=scale
    )
    return out[0]


def _as_float(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask of booleans as a bias: 0 where allowed, minus infinity elsewhere."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=query.dtype, device=query.device))


def _aligned(bias: Tensor) -> Tensor:
    """Rows padded to a multiple of 16 and cut again, where they are not aligned to 8."""
    length = bias.shape[-1]
    return bias if length % 8 == 0 else functional.pad(bias, (0, -length % 16))[..., :length]


CAPABILITY = (9, 0)


class Mode(FakeTensorMode):
    """Fake tensors that never ask the device for anything, whatever ``torch.cuda.is_available`` is told to say."""

    @property
    def avoid_device_init(self) -> bool:
        """Constants are made on the host and moved through the dispatcher."""
        return True

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As ever, but for integers that the host knows, and for a size that the batch is made to have."""
        if func is torch.ops.aten.masked_scatter_backward.default:
            return args[0].new_empty(args[2])
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype is not torch.bfloat16:
            return _grouped_product(args[0], args[1], args[2])
        real = known.computed(self, func, args, kwargs or {})
        if isinstance(real, int):
            return real
        try:
            out = super().dispatch(func, types, args, kwargs or {})
        except (DynamicOutputShapeException, DataDependentOutputException):
            if real is None:
                raise
            return known.faked(self, real, args, kwargs or {})
        return known.noted(out, real)


@contextmanager
def fake_device(device: str) -> Iterator[None]:
    """Fake tensors on ``device``, with CUDA's choices, and with data-dependent questions answered."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for target, name, value in _answers(device):
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(Mode(allow_non_fake_inputs=True))
        yield


@contextmanager
def repeating_keys(repeats: bool) -> Iterator[None]:
    """transformers before 4.54 asks SDPA for no grouped heads."""
    with ExitStack() as stack:
        if repeats:
            stack.enter_context(mock.patch.object(sdpa_attention, "use_gqa_in_sdpa", _no))
        yield


@contextmanager
def whole_rows(padded: bool, encodes: bool = False, flash: bool = False) -> Iterator[None]:
    """A mask of the batch is all ones, unless the job is padded: what fake numbers do not say. ``encodes``: the batch's
    mask is the encoder's, and the decoder makes one of ones. ``flash``: that kernel, which SDPA runs here, is given no
    mask of whole rows, since a window is one of its arguments (``flash_attention_mask``)."""
    asked = ["_ignore_causal_mask_sdpa"] * (encodes or not padded) + ["_ignore_bidirectional_mask_sdpa"] * (not padded)
    with ExitStack() as stack:
        for name in asked:
            answer = partial(_without_padding, getattr(masking_utils, name))
            stack.enter_context(mock.patch.object(masking_utils, name, answer))
        if flash:
            made = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
            stack.enter_context(mock.patch.dict(made, sdpa=lambda *_, **__: None))
            stack.enter_context(mock.patch.dict(own_kernel, flash=True))
        if not padded:
            stack.enter_context(mock.patch.object(masking_utils, "is_tracing", _no))
            stack.enter_context(mock.patch.object(torch, "all", _all_of_a_mask))
        yield


def _no(*_: Any) -> bool:
    """Not a mock, which would remember the tensors that it was asked about."""
    return False


_all = torch.all


def _all_of_a_mask(asked: Any, *args: Any, **kwargs: Any) -> Any:
    return _all(asked, *args, **kwargs) if args or kwargs else True


def _without_padding(asked: Callable[..., Any], padding: Any, *args: Any) -> Any:
    return asked(None, *args)


@contextmanager
def real_device() -> Iterator[None]:
    """Real CPU tensors, with the same answers to data-dependent questions: what a trace is tested against."""
    with mock.patch.object(masking_utils, "find_packed_sequence_indices", _one_sequence):
        yield


def _answers(device: str) -> list[tuple[Any, str, Callable[..., Any]]]:
    """What is asked of the device or of the data, with the answer of a CUDA machine and a batch without packing."""
    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        (masking_utils, "find_packed_sequence_indices", _one_sequence),
        (torch, "tensor", _tensor),
        (torch.Tensor, "item", _some_number),
        (FakeTensor, "tolist", known.as_list),
        (torch, "_check_tensor_all_with", lambda *args: None),
        (torch.nn.functional, "scaled_dot_product_attention", scaled_dot_product_attention),
    ]
    if hasattr(torch, "_fused_sgd_"):
        # A kernel that writes in place, without a shape function of its own.
        answers.append((torch, "_fused_sgd_", lambda *args, **kwargs: None))
    if device == "cuda":
        answers += [
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True),
            (torch.cuda, "get_device_capability", lambda *args, **kwargs: CAPABILITY),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
        ]
    return answers


_make_tensor = torch.tensor


def _tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
    """A constant, made on the host and moved: in autograd's own threads torch would ask the device for room."""
    if device is None or torch.device(device).type == "cpu":
        return _make_tensor(data, device=device, **options)
    numbers = known.numbers(data)
    made = _make_tensor(numbers, device="cpu", **options).to(device)
    return known.remember(made, numbers, _make_tensor)


def _grouped_product(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The output of ``grouped_mm`` in fp32 or fp16: CUDA's operation takes them (``GroupedMMUtils.h``: one matmul for
    each group, into this tensor), while its shape function does not. Rows are padded to 16 bytes."""
    rows, columns = a.shape[0], b.shape[-1]
    padded = -(-columns * a.element_size() // 16) * 16 // a.element_size()
    if b.dim() == 3:
        return a.new_empty_strided((rows, columns), (padded, 1))
    return a.new_empty_strided((offsets.shape[0], rows, columns), (rows * padded, padded, 1))


def _one_sequence(*args: Any, **kwargs: Any) -> None:
    """Each row of the batch holds one sequence, so no mask keeps packed ones apart."""
    return


def _some_number(tensor: torch.Tensor) -> float:
    """What is read back from the device (Adafactor's step size): no shape depends on it. The host's is itself."""
    values = known.values(tensor)
    if values is not None:
        return known.read(values)
    return 1.0 if tensor.is_floating_point() else 1
