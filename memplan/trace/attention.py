"""``scaled_dot_product_attention`` as CUDA would run it: the kernel that its selector takes, by the kernel's own name.

The selector is C++ and asks the device; here the same questions are asked of the tensors alone (torch 2.13
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``): flash for half precision without a mask, heads of at most
256; memory-efficient where query and key have as many heads; math for the rest."""

from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional

FLASH_HEAD_DIM = 256
HALF = (torch.bfloat16, torch.float16)


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
