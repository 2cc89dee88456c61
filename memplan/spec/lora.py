"""Low-rank adapters: as a job asks for them, and as the engine knows them."""

from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from memplan.spec.base import Frozen


def target_names(value: object) -> object:
    """'q_proj,v_proj' is a list, in brackets or not."""
    if isinstance(value, str) and value != "all-linear":
        bare = value[1:-1] if value[:1] + value[-1:] == "[]" else value
        return tuple(name.strip(" \"'") for name in bare.split(",") if name.strip())
    return value


def module_names(value: object) -> object:
    """'lm_head,embed_tokens' is a list; nothing is none of them."""
    return () if value in (None, False) else target_names(value)


ALL_LINEAR = "all-linear"
EMBEDDING = "embed_tokens"
"""The embedding's name, whatever the class calls it."""


class Lora(Frozen):
    """Low-rank adapters, in PEFT's words."""

    r: Annotated[int, Field(ge=1, le=65536)] = 8
    """Rank of the adapters."""
    alpha: float | None = None
    """Scaling; no effect on memory."""
    targets: Annotated[Literal["all-linear"] | tuple[str, ...], BeforeValidator(target_names)] = "all-linear"
    """Names of the linear modules that are adapted, or all-linear: every one but the head."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the adapters' inputs: above 0 it keeps a mask and a copy for each module."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Dtype of the adapters; PEFT upcasts half-precision adapters to fp32 by default."""
    rslora: bool = False
    """Rank-stabilised scaling; no effect on memory."""
    dora: bool = False
    """Magnitude vectors beside the two matrices: each forward needs the norm of the merged weight."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases that are trained: none, all, or those of adapted modules."""
    modules_to_save: Annotated[tuple[str, ...], BeforeValidator(module_names)] = ()
    """Modules with a trained copy beside the frozen original: embed_tokens, lm_head."""


class Adapter(NamedTuple):
    """LoRA, resolved: rank, names of the adapted linears, bytes per element."""

    rank: int
    targets: frozenset[str]
    itemsize: int
    dropout: bool
    dora: bool = False
    magnitude_itemsize: int = 4
    """Of DoRA's magnitude vectors, one element for each output."""
    bias: str = "none"
    """Which biases are trained: none, all, lora_only."""
    saved: frozenset[str] = frozenset()
    """Modules whose trained copy stands beside the frozen original (``modules_to_save``)."""
    experts: frozenset[str] = frozenset()
    """Parameters of stacked experts that are adapted too (PEFT's ``ParamWrapper``): gate_up_proj, down_proj."""
    router: bool = False
    """And so is the router's weight."""
    read_itemsize: int = 0
    """Element size that PEFT reads of lora_A, and casts inputs to, where the product has it in another; 0: its own."""

    def trains(self, name: str) -> bool:
        """Whether a module outside the layers is trained: adapted, or a copy of it."""
        return name in self.targets or name in self.saved
