"""DeepSpeed's settings under its own names: flat, or as they stand in a DeepSpeed file; and what they come to."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from memplan.errors import KEYS_ARE_LISTED, InvalidJob, did_you_mean
from memplan.spec.base import Frozen
from memplan.tables.texts import parts_of, rows_of
from memplan.units import words_of

_PARTS = parts_of(__file__)
NO_EFFECT = frozenset(words_of(_PARTS["no-effect"]))
"""Keys of a DeepSpeed file that change no buffer, or that are keys of the job."""
REFUSED = rows_of(_PARTS["refused"])
"""Keys that DeepSpeed has and whose memory is not known here."""

AUTO = "auto"
MOST = 10**13


def _elements(value: object, info: ValidationInfo) -> object:
    """A number of elements: 500000000, 5e8, "5e8"; auto as the trainer's integration fills it in."""
    if value is None or value == AUTO:
        return value
    try:
        number = float(str(value)) if not isinstance(value, bool) else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number <= MOST:
        raise InvalidJob(
            f"deepspeed: {info.field_name}: {str(value)[:40]!r} is no number of elements",
            "write a whole number, such as 500000000",
        )
    return int(number)


def _switch(value: object, info: ValidationInfo) -> object:
    """true or false; auto is left to DeepSpeed."""
    words: dict[object, bool | None] = {"true": True, "false": False, AUTO: None, "none": None, 0: False, 1: True}
    number = value if isinstance(value, (int, float)) else None
    found = words.get(str(value).lower(), words.get(number)) if value is not None else None
    if value is not None and found is None and str(value).lower() not in (AUTO, "none"):
        raise InvalidJob(
            f"deepspeed: {info.field_name}: {str(value)[:40]!r} is neither true nor false", "write true or false"
        )
    return found


def _dtype(value: object, info: ValidationInfo) -> object:
    """fp32, bf16 or fp16, in DeepSpeed's spellings too."""
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", AUTO: None}
    text = str(value).lower().removeprefix("torch.")
    found = names.get(text, text) if value is not None else None
    if found not in (None, "fp32", "bf16", "fp16"):
        raise InvalidJob(f"deepspeed: {info.field_name}: unknown dtype {text[:40]!r}", "use fp32, bf16 or fp16")
    return found


Elements = Annotated[int | Literal["auto"] | None, BeforeValidator(_elements)]
Switch = Annotated[bool | None, BeforeValidator(_switch)]
Dtype = Annotated[str | None, BeforeValidator(_dtype)]


class Offload(Frozen):
    """``offload_optimizer`` or ``offload_param``: where, and through which buffers."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """Where the states live."""
    pin_memory: bool = True
    """In page-locked memory (DeepSpeed's default since 0.19; false before)."""
    nvme_path: str | None = None
    """Folder of the swap files."""
    buffer_count: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Buffers of the NVMe pool: 4 of the optimizer, 5 of the parameters."""
    buffer_size: Elements = None
    """Elements of one parameter buffer: 1e8."""
    max_in_cpu: Elements = None
    """Elements of parameters that stay in host memory when others are on NVMe: 1e9."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the optimizer's sub-groups that is offloaded (stage 3)."""
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    super_offload: bool = False
    cpuadam_cores_perc: float = 0.8


class ZenFlow(Frozen):
    """``zenflow``: the card steps on the most important columns, the host on the rest."""

    topk_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of each matrix's columns that the card steps on."""
    offload: bool = False
    """Their states wait on the host."""
    overlap_step: bool = False
    """The host steps beside the next forward and backward."""
    select_strategy: str = "auto"
    select_interval: int | str = "auto"
    update_interval: int | str = "auto"
    auto_ratio: float = 0.99
    full_warm_up_rounds: int = 0
    pt_reserved_cores_perc: float = 0.5
    steps_per_epoch: int | None = None


class DeepSpeed(Frozen):
    """DeepSpeed's settings. What is left out is ``auto`` with a Hugging Face trainer, else DeepSpeed's default."""

    stage: Annotated[int, Field(ge=0, le=3)] | None = None
    """zero_stage, as a DeepSpeed file says it."""
    reduce_bucket_size: Elements = None
    """Elements of the reduction bucket: auto is hidden², DeepSpeed's default 5e8."""
    allgather_bucket_size: Elements = None
    """No effect: updated weights are gathered in place."""
    overlap_comm: Switch = None
    """Reductions run beside backward: a second bucket in stages 1 and 2. True in stage 3."""
    contiguous_gradients: Switch = None
    """Gradients are copied into a bucket as they come: true."""
    reduce_scatter: Switch = None
    """Each rank receives its part alone: true."""
    use_multi_rank_bucket_allreduce: Switch = None
    """One all-reduce for the parts of several ranks: true."""
    round_robin_gradients: Switch = None
    """Partitions take the parameters in turn: false."""
    sub_group_size: Elements = None
    """Elements that stage 3 steps on at once: 1e9."""
    stage3_prefetch_bucket_size: Elements = None
    """Elements that are fetched ahead: auto is 0.9 hidden², DeepSpeed's default 5e7."""
    stage3_param_persistence_threshold: Elements = None
    """Parameters of so many elements or fewer stay gathered: auto is 10 hidden, DeepSpeed's default 1e5."""
    stage3_model_persistence_threshold: Elements = None
    """Elements that may stay gathered in all: no limit."""
    stage3_max_live_parameters: Elements = None
    """Elements beyond which nothing is fetched ahead: 1e9."""
    stage3_max_reuse_distance: Elements = None
    """Parameters that are used again within so many elements are not released: 1e9."""
    stage3_allgather_sequential: Switch = None
    """Parameters are gathered one by one, each into its own buffer: false."""
    stage3_use_all_reduce_for_fetch_params: Switch = None
    """Parameters are views of the buffer that is reduced: false."""
    stage3_gather_16bit_weights_on_model_save: Switch = None
    """Weights are gathered by the first process when a checkpoint is saved: true; false: partitions alone are."""
    zero_init: Switch = None
    """The model is built under zero.Init, a part on each card: true; false: whole on each, and then divided."""
    zero_hpz_partition_size: Elements = None
    """Ranks that share a secondary copy of the weights (ZeRO++ hpZ): 1."""
    zero_quantized_weights: Switch = None
    """Weights travel as 8-bit integers (ZeRO++ qwZ): false."""
    zero_quantized_nontrainable_weights: Switch = None
    """Frozen weights are stored as 8-bit integers: false."""
    zero_quantized_gradients: Switch = None
    """Gradients travel as 4-bit integers (ZeRO++ qgZ): false."""
    mics_shard_size: Annotated[int, Field(ge=-1, le=100_000)] | None = None
    """Ranks that share the states (MiCS); each such group holds a copy."""
    offload_optimizer: Offload | None = None
    """The optimizer's states and step on the host."""
    offload_param: Offload | None = None
    """Stage 3: parameters wait on the host."""
    zenflow: ZenFlow | None = None
    """Stages 1 and 2 with the optimizer on the host: ZenFlow's selective step."""
    communication_data_type: Dtype = None
    """Dtype of the reductions; that of the model when not given."""
    grad_accum_dtype: Dtype = None
    """Dtype that gradients accumulate in (``data_types``); that of the model when not given."""
    immediate_grad_update: Switch = None
    """BF16_Optimizer adds each gradient to its fp32 buffer as it comes: false."""
    zero_force_ds_cpu_optimizer: Switch = None
    """Refuse other optimizers than DeepSpeed's own on the host: true."""
    zero_allow_untested_optimizer: Switch = None
    """Run optimizers that DeepSpeed does not know; Hugging Face's integration sets it."""
    ds_optimizer: Switch = None
    """The file's ``optimizer`` makes DeepSpeed's own fused AdamW; else the trainer makes torch's."""
    own_defaults: bool = False
    """What is left out is DeepSpeed's default, not ``auto``: so where a whole ``zero_optimization`` is given."""

    @model_validator(mode="before")
    @classmethod
    def _flattened(cls, values: Any) -> Any:
        return flattened(values) if isinstance(values, Mapping) else values


STAGE3 = frozenset(name.removeprefix("stage3_") for name in DeepSpeed.model_fields if name.startswith("stage3_"))
"""Keys that DeepSpeed takes with and without their prefix."""


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a DeepSpeed file as one flat mapping. Raises InvalidJob for a key that it does not have."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key)
        name = f"stage3_{name}" if name in STAGE3 else name
        if name == "zero_optimization" and isinstance(value, Mapping):
            flat |= {"own_defaults": True, **flattened(value)}
        elif name == "data_types" and isinstance(value, Mapping):
            flat |= {inner: each for inner, each in value.items() if inner == "grad_accum_dtype"}
        elif name in ("bf16", "fp16") and isinstance(value, Mapping):
            flat |= _half(name, value)
        elif name == "optimizer":
            flat["ds_optimizer"] = True
        elif name in ("cpu_offload", "cpu_offload_param"):
            inner = "offload_optimizer" if name == "cpu_offload" else "offload_param"
            flat |= {inner: {"device": "cpu"}} if value else {}
        elif name in DeepSpeed.model_fields:
            flat[name] = value
        elif name in REFUSED and value not in (None, False, {}):
            raise InvalidJob(f"deepspeed: {name}: {REFUSED[name]}", f"leave {name} out")
        elif name not in NO_EFFECT and name not in REFUSED:
            known = [*DeepSpeed.model_fields, *NO_EFFECT, "zero_optimization", "data_types", "bf16", "fp16"]
            raise InvalidJob(f"deepspeed: unknown key {name[:80]!r}", did_you_mean(name, known, KEYS_ARE_LISTED))
    return flat


JOBS_OWN = {
    "train_micro_batch_size_per_gpu": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "global_batch_size",
}
"""Keys of a DeepSpeed file that are the job's under other names."""


def lift_shared(job: dict[str, Any], where: str = "") -> None:
    """What DeepSpeed's settings say of the stage, the batch and the dtype becomes the job's own, so that an option
    replaces it. Raises InvalidJob where the same mapping says something else."""
    given = job.get("deepspeed")
    if not isinstance(given, Mapping):
        return
    rest = dict(given)
    for name, key in JOBS_OWN.items():
        _lift(job, rest.pop(name, None), key, f"{where}deepspeed: {name}")
    for dtype in ("bf16", "fp16"):
        section = rest.get(dtype)
        if isinstance(section, Mapping) and section.get("enabled") is True and "precision" not in job:
            _lift(job, dtype, "dtype", f"{where}deepspeed:")
    stage = rest.pop("stage", None)
    inner = rest.get("zero_optimization")
    if isinstance(inner, Mapping):
        stage = inner.get("stage", stage)
        rest["zero_optimization"] = {key: value for key, value in inner.items() if key != "stage"}
    if "sharding" in job and stage not in (None, AUTO):
        if str(job["sharding"]).strip().lower() not in (f"zero{stage}", f"zero-{stage}", f"zero_{stage}"):
            raise InvalidJob(
                f"{where}deepspeed: stage {stage} contradicts sharding {job['sharding']}", "give one of them"
            )
    else:
        _lift(job, stage, "zero_stage", f"{where}deepspeed: stage")
    job["deepspeed"] = rest
    given = {**rest, **(inner if isinstance(inner, Mapping) else {})}
    third = "3" in (str(job.get("zero_stage")), str(job.get("sharding"))[-1:])
    if third and given.get("memory_efficient_linear") is False:
        raise InvalidJob(
            "deepspeed: memory_efficient_linear: false: torch's own linear keeps whole weights to their backward, "
            "which is not modelled",
            "leave memory_efficient_linear out",
        )


def _lift(job: dict[str, Any], value: Any, key: str, said: str) -> None:
    """One value, where there is one; ``auto`` is the trainer's."""
    if value is None or value == AUTO:
        return
    if job.get(key) is not None and str(job[key]) != str(value):
        raise InvalidJob(f"{said} {value} contradicts {key} {job[key]}", "give one of them")
    job[key] = value


def _half(name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """What ``bf16`` or ``fp16`` says beside ``enabled``, which is the job's dtype."""
    for key in ("bf16_master_weights_and_grads", "fp16_master_weights_and_grads", "bf16_optimizer_states"):
        if section.get(key):
            raise InvalidJob(f"deepspeed: {name}.{key} is not modelled", f"leave {key} out")
    return {key: value for key, value in section.items() if key == "immediate_grad_update"}
