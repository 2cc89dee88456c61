"""Low-rank adapters: as a job asks for them, and as the engine knows them."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, WithJsonSchema

from memplan.errors import InvalidJob
from memplan.spec.base import Frozen
from memplan.tables.peft_fields import FIELDS, NO_EFFECT, NOT_MODELLED

ALL_LINEAR = "all-linear"


def target_names(value: object) -> object:
    """'q_proj,v_proj' is a list, in brackets or not; all is what LLaMA-Factory calls all-linear."""
    if value in ("all", "all_linear", ["all"], ["all-linear"]):
        return ALL_LINEAR
    if isinstance(value, str) and value != ALL_LINEAR:
        bare = value[1:-1] if value[:1] + value[-1:] == "[]" else value
        return tuple(name.strip(" \"'") for name in bare.split(",") if name.strip())
    return value


def module_names(value: object) -> object:
    """'lm_head,embed_tokens' is a list; nothing is none of them."""
    return () if value in (None, False) else target_names(value)


EMBEDDING = "embed_tokens"
"""The embedding's name, whatever the class calls it."""


MOST_RANGES = 1000
_LAYERS = re.compile(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?")


def layer_numbers(value: object) -> object:
    """One number, a list, or ``0-3,7``."""
    if isinstance(value, str):
        found = [_LAYERS.fullmatch(part) for part in value.strip("[] ").split(",")]
        ends = [(int(part[1]), int(part[2] or part[1])) for part in found if part]
        if None in found or len(found) > MOST_RANGES:
            raise InvalidJob(f"lora.layers_to_transform: {value[:40]!r} are no layers", "write such as 0-3,7")
        return tuple(dict.fromkeys(number for first, last in ends for number in range(first, last + 1)))
    return () if value is None else (value,) if isinstance(value, int) and not isinstance(value, bool) else value


def _pairs(value: object, info: ValidationInfo) -> object:
    """``{q_proj: 32}``, or ``q_proj=32,v_proj=8``, as pairs in the order of their names."""
    if isinstance(value, str):
        parts = [part.replace(":", "=").split("=") for part in value.strip("{} ").split(",") if part.strip()]
        if any(len(part) != 2 for part in parts):
            raise InvalidJob(
                f"lora.{info.field_name}: {value[:40]!r} names no module with its number", "write such as q_proj=32"
            )
        return _pairs(dict(parts), info)
    if isinstance(value, Mapping):
        return tuple(sorted((str(key).strip(), each) for key, each in value.items()))
    return value or ()


def token_counts(value: object, info: ValidationInfo) -> object:
    """How many tokens of each module: of a list how many it has; a list alone, or a number, is of the embedding."""
    if isinstance(value, (list, tuple)) and all(isinstance(each, int) for each in value):
        value = len(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return ((EMBEDDING, value),) if value else ()
    if isinstance(value, str) and value.strip().isdecimal():
        return token_counts(int(value), info)
    pairs = _pairs(value, info)
    if not isinstance(pairs, tuple):
        return pairs
    return tuple((name, len(each) if isinstance(each, (list, tuple)) else each) for name, each in pairs)


Count = Annotated[int, Field(ge=1, le=65536)]
Rows = Annotated[int, Field(ge=1, le=10**7)]
_MAPPING = WithJsonSchema({"type": "object", "additionalProperties": {"type": "integer"}})


class Lora(Frozen):
    """Low-rank adapters, in PEFT's words."""

    r: Annotated[int, Field(ge=1, le=65536)] = 8
    """Rank of the adapters."""
    alpha: float | None = None
    """Scaling; no effect on memory."""
    targets: Annotated[Literal["all-linear"] | tuple[str, ...], BeforeValidator(target_names)] = "all-linear"
    """Names of the modules that are adapted (lm_head and embed_tokens too), or all-linear: all linears but the head."""
    exclude_modules: Annotated[tuple[str, ...], BeforeValidator(module_names)] = ()
    """Names that are left out of the targets; vision_tower and multi_modal_projector are all that stands in these."""
    modules_to_train: Annotated[tuple[str, ...], BeforeValidator(module_names)] = ()
    """Parts that are trained whole and in place beside the adapters: vision_tower, multi_modal_projector."""
    layers_to_transform: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(layer_numbers)] = ()
    """Numbers of the layers that are adapted, from 0; all where none is named."""
    rank_pattern: Annotated[
        tuple[tuple[str, Count], ...], BeforeValidator(_pairs), PlainSerializer(dict), _MAPPING
    ] = ()
    """Ranks of modules that have one of their own, by name."""
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
    lora_bias: bool = False
    """A bias in each lora_B."""
    trainable_token_indices: Annotated[
        tuple[tuple[str, Rows], ...], BeforeValidator(token_counts), PlainSerializer(dict), _MAPPING
    ] = ()
    """Rows of the embedding (and of a head of its own) that are trained: indices, or how many; of embed_tokens where no
    module is named."""


OTHER_NAMES = FIELDS | {"rank": "r", "lora_r": "r", "lora_rank": "r"}


def in_own_words(given: Mapping[str, object]) -> dict[str, object]:
    """``lora`` with PEFT's names, or other tools', as a job has them. Raises InvalidJob for what is not modelled."""
    found: dict[str, object] = {}
    for key, value in given.items():
        name = OTHER_NAMES.get(str(key), str(key))
        if name in NOT_MODELLED and value:
            raise InvalidJob(f"lora.{name}: PEFT's {name} is not modelled", "leave it out")
        if name not in NO_EFFECT | NOT_MODELLED:
            found[name] = value
    return found


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
    crossed: bool = False
    """What PEFT reads of it is the other half precision than that of the products: what is cast is as large."""

    ranks: tuple[tuple[str, int], ...] = ()
    """Of modules that have a rank of their own."""
    lora_bias: bool = False
    tokens: tuple[tuple[str, int], ...] = ()
    """Rows that are trained, by the name of their table."""
    idle_dropout: bool = False
    """A dropout that the trainer has set to 0 stands before the adapters: DoRA makes the base's result again."""
    second_itemsize: int = 0
    """Bytes per element of a second set of adapters, the reference's, which nobody trains; 0: there is none."""

    def rank_of(self, name: str) -> int:
        """The rank of a module's adapters."""
        return next((rank for module, rank in self.ranks if module == name), self.rank)

    def tokens_of(self, name: str) -> int:
        """How many rows of a table are trained."""
        return next((count for module, count in self.tokens if module == name), 0)

    @property
    def biased(self) -> bool:
        """Whether biases are trained, the base's or its own."""
        return self.bias != "none" or self.lora_bias

    def trains(self, name: str) -> bool:
        """Whether a module outside the layers is trained: adapted, a copy of it, or some of its rows."""
        return name in self.targets or name in self.saved or self.tokens_of(name) > 0

    def trains_bias(self, name: str) -> bool:
        """Whether a weight is a bias that is trained though no adapter stands beside it."""
        return self.bias == "all" and name.endswith(".bias")

    @property
    def nowhere(self) -> "Adapter":
        """As a layer sees it that no adapter stands in."""
        return self._replace(targets=frozenset(), experts=frozenset(), router=False)
