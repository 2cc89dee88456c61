"""Settings of FSDP and DDP beside the job's own keys, under torch's and accelerate's names."""

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from memplan.errors import InvalidJob, did_you_mean
from memplan.spec.base import Frozen

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""FSDP1's ShardingStrategy (torch 2.13 distributed/fsdp/api.py), in accelerate's order of numbers 1 to 5."""
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
WRAPS = ("TRANSFORMER_BASED_WRAP", "NO_WRAP")
HOOKS = ("none", "fp16_compress_hook", "bf16_compress_hook", "powerSGD_hook")
"""DDP's communication hooks (torch 2.13 distributed/algorithms/ddp_comm_hooks)."""
PREFIX = "fsdp_"
STATE_DICTS = ("FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT")
"""FSDP's StateDictType (torch 2.13 distributed/fsdp/api.py), in accelerate's order of numbers 1, 3, 2."""
NO_EFFECT = ("sync_module_states", "transformer_layer_cls_to_wrap")
OTHER_NAMES = {
    "offload_params": "cpu_offload",
    "backward_prefetch_policy": "backward_prefetch",
    "data_parallel_replicate_degree": "replicate",
    "dp_replicate_size": "replicate",
    "enable_fsdp_float8_all_gather": "float8_all_gather",
}
"""accelerate's and torchtitan's names of the same settings."""
OWN_KEYS = {
    "version": "sharding: fsdp or fsdp2",
    "reshard_after_forward": "reshard_after_forward",
    "reduce_dtype": "reduce_dtype",
    "param_dtype": "precision",
    "activation_checkpointing": "gradient_checkpointing",
    "min_num_params": "fsdp: {auto_wrap_policy: TRANSFORMER_BASED_WRAP}",
}
"""What the frameworks say here and a job says in a key of its own."""


def _named(key: str, value: object, known: tuple[str, ...], prefix: str = "fsdp") -> str:
    """One of the names, in any case. Raises InvalidJob for another."""
    text = str(value).strip()
    if text in ("1", "2", "3", "4", "5") and known is STRATEGIES:
        return known[int(text) - 1]
    for name in known:
        if text.lstrip("_").lower() == name.lower():
            return name
    raise InvalidJob(f"{prefix}.{key}: unknown value {text[:80]!r}", did_you_mean(text.upper(), known))


def _strategy(value: object) -> object:
    return None if value is None else _named("sharding_strategy", value, STRATEGIES)


def _prefetch(value: object) -> object:
    return None if value is None else _named("backward_prefetch", value, PREFETCHES)


def _state_dict(value: object) -> object:
    return None if value is None else _named("state_dict_type", value, STATE_DICTS)


def _wrap(value: object) -> object:
    if str(value).upper() == "SIZE_BASED_WRAP":
        raise InvalidJob(
            "fsdp.auto_wrap_policy: SIZE_BASED_WRAP is not modelled: its units follow from sizes of submodules",
            "use auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        )
    return _named("auto_wrap_policy", value, WRAPS)


def _hook(value: object) -> object:
    known = {name.lower().removesuffix("_hook"): name for name in HOOKS}
    text = str(value or "none").strip().lower().removesuffix("_hook").removesuffix("_compress")
    return known.get(text) or known.get(f"{text}_compress") or _named("comm_hook", value, HOOKS, "ddp")


def _flag(value: object, info: ValidationInfo) -> object:
    """true and false, also as text."""
    text = str(value).strip().lower()
    if value is None or text not in ("true", "false"):
        raise InvalidJob(f"{info.field_name}: {str(value)[:40]!r} is neither true nor false", "write true or false")
    return text == "true"


Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, Field(ge=1, le=100_000)]


class Fsdp(Frozen):
    """FSDP's own settings."""

    replicate: Count | None = None
    """Copies of the sharded states (hybrid sharding): ranks share within a group of num_gpus / replicate."""
    cpu_offload: Flag = False
    """Sharded weights, gradients and optimizer states wait on the host (CPUOffloadPolicy, CPUOffload)."""
    pin_memory: Flag = True
    """FSDP2: what waits on the host is pinned."""
    sharding_strategy: Annotated[str | None, BeforeValidator(_strategy)] = None
    """FSDP1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2."""
    backward_prefetch: Annotated[str | None, BeforeValidator(_prefetch)] = None
    """FSDP1: BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH; torch's default, or accelerate's, where not given."""
    forward_prefetch: Flag = False
    """FSDP1: the next unit is gathered before this one's forward."""
    limit_all_gathers: Flag = True
    """FSDP1: the host waits so that at most two gathers are in flight."""
    use_orig_params: Flag | None = None
    """FSDP1: the optimizer steps on views of the flat parameters, each aligned to 16 bytes."""
    keep_low_precision_grads: Flag = False
    """FSDP1: reduced gradients stay in the reduction's dtype after backward."""
    auto_wrap_policy: Annotated[str, BeforeValidator(_wrap)] = "TRANSFORMER_BASED_WRAP"
    """TRANSFORMER_BASED_WRAP: a unit for each decoder layer; NO_WRAP: one for the whole model."""
    cpu_ram_efficient_loading: Flag | None = None
    """The first process of each node reads the checkpoint, the others get their weights from it."""
    packs_on_host: Flag = False
    """A quantised base is packed in the memory of the host, by the process that reads it, not on cards."""
    float8_all_gather: Flag = False
    """FSDP2 with float8 tensorwise: weights are gathered in float8 (torchao's enable_fsdp_float8_all_gather)."""
    own_ends: Flag | None = None
    """FSDP2: input embedding, and final norm with the head, are units of their own; accelerate's default."""
    checkpoints_within: Flag | None = None
    """FSDP1: checkpoints are within the units (torch's apply_activation_checkpointing behind the wrapping), not around
    them, as those of transformers before 5 are."""
    state_dict_type: Annotated[str | None, BeforeValidator(_state_dict)] = None
    """What is saved: FULL_STATE_DICT, gathered by the first process; SHARDED_STATE_DICT, LOCAL_STATE_DICT: parts."""

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, given: Any) -> Any:
        """accelerate's names (``fsdp_…``) without their prefix; what has no effect on memory is left out."""
        if not isinstance(given, dict):
            return given
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = str(key).removeprefix(PREFIX)
            name = OTHER_NAMES.get(name, name)
            if name in OWN_KEYS:
                raise InvalidJob(f"fsdp.{key}: said in a key of its own", f"use {OWN_KEYS[name]}")
            if name not in NO_EFFECT:
                found[name] = value
        for name in found:
            if name not in cls.model_fields:
                raise InvalidJob(f"fsdp: unknown key {str(name)[:80]!r}", did_you_mean(name, cls.model_fields))
        return found


class Ddp(Frozen):
    """DDP's own settings."""

    bucket_cap_mb: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Largest bucket in MiB: 25 where not given, with a first one of 1 MiB."""
    comm_hook: Annotated[str, BeforeValidator(_hook)] = "none"
    """none, fp16_compress_hook, bf16_compress_hook, powerSGD_hook (of rank powersgd_rank)."""
    powersgd_rank: Annotated[int, Field(ge=1, le=4096)] = 1
    """PowerSGD: matrix_approximation_rank."""
    broadcast_buffers: Flag = True
    """Buffers of the model are the same on all ranks; sent in place, in buckets of 250 MiB."""
    static_graph: Flag = False
    """The set of used parameters is the same in every step."""
    find_unused_parameters: Flag | None = None
    """The graph is searched before each backward for what has no part in it; where not given, as the trainer does."""

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, given: Any) -> Any:
        for key in given if isinstance(given, dict) else ():
            if key == "gradient_as_bucket_view":
                raise InvalidJob("ddp.gradient_as_bucket_view: said in a key of its own", f"use {key}")
            if key not in cls.model_fields:
                raise InvalidJob(f"ddp: unknown key {str(key)[:80]!r}", did_you_mean(str(key), cls.model_fields))
        return given


class FsdpSettings(NamedTuple):
    """FSDP's settings, resolved."""

    replicas: int = 1
    """Copies of the sharded states."""
    cpu_offload: bool = False
    pin_memory: bool = True
    keeps_gathered: bool = False
    """FSDP1: weights stay gathered from forward to backward (SHARD_GRAD_OP)."""
    backward_prefetch: str = "BACKWARD_PRE"
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    use_orig_params: bool = False
    keep_low_precision_grads: bool = False
    wraps_layers: bool = True
    """A unit for each decoder layer."""
    own_ends: bool = False
    """FSDP2: input embedding, and final norm with the head, are units of their own (accelerate, torchtitan)."""
    checkpoints_around: bool = False
    """FSDP1: a checkpoint calls the unit, whose hooks so run again where the layer is made again."""
    wraps_adapters: bool = False
    """FSDP1: trained linears are units of their own (peft 0.21 utils/other.py: fsdp_auto_wrap_policy; verl 0.9
    utils/fsdp_utils.py: get_fsdp_wrap_policy)."""
    root_reshards: bool = False
    """verl with FSDP2: the root is told to reshard after forward like every unit, and an untied input embedding is a
    unit of its own (verl 0.9 utils/fsdp_utils.py: apply_fsdp2)."""
    reference_whole: bool = False
    """FSDP2: the reference is one unit, as TRL prepares it."""
    casts: bool = False
    """Units are gathered in the compute dtype, whatever they are stored in (MixedPrecision's param_dtype)."""
