"""Fused kernels in place of a layer's own operations: whose, for which families, and what each writes over.

Sources: liger-kernel 0.8.5 (transformers/monkey_patch.py: what is patched by default; ops/rms_norm.py, ops/swiglu.py,
ops/geglu.py, ops/rope.py), unsloth 2026.10 (kernels/fast_lora.py, rms_layernorm.py, rope_embedding.py, swiglu.py);
torch 2.13 (_functorch/partitioners.py: min_cut_rematerialization_partition)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from memplan.tables.precisions import Float8


class Kernels(NamedTuple):
    """How the pieces of a layer run; empty: as the model's own code writes them.

    in-place: the gradient is written over what comes in or what was saved. fresh: it is a tensor of its own."""

    norm: str = ""
    product: str = ""
    """Of gate and up."""
    rotary: str = ""
    copies_chunks: bool = False
    """A fused gate-and-up projection is cut into contiguous copies."""
    adapters: str = ""
    """LoRA's projections as one function each (q, k, v; feed-forward; output): fused (Unsloth's) or foak."""
    compiled: bool = False
    """Pointwise chains are one kernel, which reads and writes the precision of its neighbours."""
    float8: Float8 | None = None
    """How the layers' linears multiply in float8; None: in the compute dtype."""


NO_KERNELS = Kernels()
_WHOLE = Kernels(norm="in-place", product="in-place", rotary="in-place")
_SANDWICHED = _WHOLE._replace(norm="fresh")

LIGER: Mapping[str, Kernels] = MappingProxyType(
    dict.fromkeys(("llama", "granite", "ministral", "mistral", "qwen2", "qwen3", "smollm3", "gemma"), _WHOLE)
    | dict.fromkeys(("gemma2", "gemma3_text", "olmo2", "olmo3"), _SANDWICHED)
    | {"phi3": _WHOLE._replace(copies_chunks=True)}
    | {"glm4": Kernels(norm="fresh", product="in-place", copies_chunks=True)}
)
"""By model type, where layers are softmax attention and a gated feed-forward. A norm whose gradient a residual shares
is not in place."""

FOAK: Mapping[str, Kernels] = MappingProxyType(
    dict.fromkeys(("llama", "mistral", "granite"), Kernels(norm="in-place", rotary="in-place"))
)
"""fms-acceleration-foak 0.7 (models/, kernels/unsloth/): RMSNorm and rotary embedding in place; adapters are fused over
a quantised base alone (framework_plugin_fast_kernels.py)."""

UNSLOTH: Mapping[str, Kernels] = MappingProxyType(
    dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), Kernels(norm="in-place", rotary="fresh", adapters="fused"))
)
"""By model type (unsloth 2026.8 models/). q and k are cloned, not contiguous by heads, then turned; norms rest."""

COMPILED = Kernels(norm="fresh", product="fresh", rotary="fresh", compiled=True)
"""torch.compile: pointwise operations are recomputed from what a product or a reduction leaves, or kept once where a
product of backward reads them."""
