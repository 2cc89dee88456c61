"""DeepSpeed's settings, resolved: ``auto`` as Hugging Face's integration fills it in, and what DeepSpeed refuses.

Read in deepspeed 0.19 (runtime/engine.py, runtime/zero/config.py, offload_config.py, stage3.py) and transformers 5.23
(integrations/deepspeed.py: trainer_config_finalize)."""

from typing import Any

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.resolve.storage import Split, Stored
from memplan.spec.deepspeed import AUTO, DeepSpeed, Offload
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.spec.zero import Offloaded, Selective, Zero
from memplan.tables.styles import Optimizer, ZeroWrapper
from memplan.tables.trainer import Trainer
from memplan.units import DTYPE_BYTES, pairs_of

ON_HOST = ("adamw", "lion")
"""Optimizers that DeepSpeed steps on the host itself: DeepSpeedCPUAdam, DeepSpeedCPULion."""
NEEDS_3 = {
    "offload_param": "parameters are offloaded in stage 3 alone",
    "zero_hpz_partition_size": "hpZ is a second partition of ZeRO-3's",
    "zero_quantized_weights": "weights travel in stage 3 alone",
    "zero_quantized_nontrainable_weights": "partitions of weights are ZeRO-3's",
    "zero_quantized_gradients": "quantised reductions are ZeRO-3's",
    "mics_shard_size": "MiCS is a form of ZeRO-3",
}

SIZES = pairs_of(
    """reduce_bucket_size prefetch_bucket_size=stage3_prefetch_bucket_size sub_group_size
    param_persistence_threshold=stage3_param_persistence_threshold
    model_persistence_threshold=stage3_model_persistence_threshold max_live_parameters=stage3_max_live_parameters
    max_reuse_distance=stage3_max_reuse_distance"""
)
"""Numbers of elements -> their names in a file; of what is not named ``Zero`` has DeepSpeed's own."""
SWITCHES = pairs_of(
    """allgather_sequential=stage3_allgather_sequential fetch_by_all_reduce=stage3_use_all_reduce_for_fetch_params
    round_robin_gradients immediate_grad_update quantised_weights=zero_quantized_weights
    quantised_frozen=zero_quantized_nontrainable_weights quantised_gradients=zero_quantized_gradients"""
)
"""Those that are off where nobody says."""


def with_stage(job: Job, notes: Notes) -> Job:
    """The job with ``zero_stage`` of its DeepSpeed settings. InvalidJob where two are named, or none with settings."""
    given = job.deepspeed
    named = job.zero_stage is not None or job.sharding is not None
    if given.stage is None:
        zero = job.zero_stage is not None or (job.sharding or "").startswith("zero")
        if given.model_fields_set and not zero:
            raise InvalidJob("deepspeed: settings without a ZeRO stage", "add zero_stage: 0 to 3")
        return job
    if named and f"zero{given.stage}" not in (f"zero{job.zero_stage}", job.sharding):
        said = f"zero_stage {job.zero_stage}" if job.zero_stage is not None else f"sharding {job.sharding}"
        raise InvalidJob(f"deepspeed: stage {given.stage} contradicts {said}", "give one of them")
    if named:
        return job
    notes.sources.setdefault("zero_stage", notes.sources.get("deepspeed", "option"))
    return job.but(zero_stage=given.stage)


def replicated(job: Job, split: Split, degrees: Parallel) -> Parallel:
    """MiCS: groups of so many ranks share the states, and each group holds a copy (runtime/zero/mics.py)."""
    size = job.deepspeed.mics_shard_size or -1
    if not split.is_deepspeed or size < 1:
        return degrees
    _needs_stage_3(job.deepspeed, split)
    if degrees.data % size:
        raise InvalidJob(
            f"deepspeed: mics_shard_size: {size} does not divide {degrees.data} data-parallel GPUs",
            "use a divisor of them",
        )
    return degrees._replace(replicas=degrees.data // size)


def zero_settings(
    job: Job, trainer: Trainer, split: Split, spec: ModelSpec, stored: Stored, row: Optimizer, notes: Notes
) -> Zero:
    """Every setting with a value. Raises InvalidJob with the reason for what DeepSpeed refuses."""
    if not split.is_deepspeed:
        return Zero()
    given, stage = job.deepspeed, int(split.name[4])
    _needs_stage_3(given, split)
    optimizer = _offloaded("optimizer", given.offload_optimizer, "optimizer" in job.offload)
    parameters = _offloaded("parameters", given.offload_param, "parameters" in job.offload)
    _check_offload(given, stage, row, optimizer, parameters)
    _check_tested(given, stage, row, trainer, notes)
    accumulate = DTYPE_BYTES[given.grad_accum_dtype] if given.grad_accum_dtype else stored.gradient_itemsize
    wrapper = _wrapper(given, stage, stored, accumulate, optimizer)
    integrated, hidden = trainer.name != "pytorch", spec.hidden_size
    _check_types(given, stored)

    def size(name: str, own: int, filled: int | None = None) -> int:
        value = getattr(given, name)
        if value not in (None, AUTO):
            return int(value)
        fills = integrated and (value == AUTO or not given.own_defaults)
        return filled if fills and filled is not None else own

    def switch(name: str, default: bool) -> bool:
        value = getattr(given, name)
        return default if value is None else bool(value)

    if stage and stored.precision.weights == 2 and not stored.precision.master:
        notes.remark(
            f"precision: {stored.precision.name} with {split.name}: DeepSpeed keeps fp32 master weights and states "
            f"all the same, as {stored.precision.dtype}-master says"
        )
    filled = {"reduce_bucket_size": hidden * hidden, "prefetch_bucket_size": int(0.9 * hidden * hidden)}
    filled["param_persistence_threshold"] = 10 * hidden
    sizes: dict[str, Any] = {
        field: size(name, Zero._field_defaults[field], filled.get(field)) for field, name in SIZES.items()
    }
    _say_bucket(given, stage, integrated, sizes["reduce_bucket_size"], notes)
    switches = {field: switch(name, False) for field, name in SWITCHES.items()}
    if switches["allgather_sequential"]:
        sizes["prefetch_bucket_size"] = 1
    return Zero(
        wrapper=wrapper,
        groups=1 if trainer.name == "pytorch" else 2,
        overlap_comm=switch("overlap_comm", stage == 3),
        contiguous_gradients=switch("contiguous_gradients", True) or bool(optimizer),
        reduce_scatter=switch("reduce_scatter", True),
        communication=_communicates_in(job, stored),
        accumulation=accumulate,
        hpz=size("zero_hpz_partition_size", 1) or 1,
        optimizer=optimizer,
        parameters=parameters,
        selective=_selective(given, stage, stored, row, optimizer, notes),
        **(sizes | {"sub_group_size": max(1, sizes["sub_group_size"])}),
        **switches,
    )


def _say_bucket(given: DeepSpeed, stage: int, integrated: bool, elements: int, notes: Notes) -> None:
    """Buckets that nobody named: a gigabyte where a config leaves them out, little where it says auto.

    accelerate's plugin (``zero_stage`` in its config, no JSON) writes no sizes either, and the integration fills in
    only what says auto (accelerate 1.15 utils/dataclasses.py; transformers 5.23 integrations/deepspeed.py)."""
    if not stage or not integrated or given.reduce_bucket_size not in (None, AUTO):
        return
    own = given.own_defaults and given.reduce_bucket_size is None
    why = (
        "DeepSpeed's own default, as the config names none; auto would be hidden²"
        if own
        else "hidden², what the trainer puts for auto; a config that leaves it out has DeepSpeed's 500000000"
    )
    notes.assume(f"deepspeed.reduce_bucket_size: {elements} elements ({why})")


def _wrapper(given: DeepSpeed, stage: int, stored: Stored, accumulate: int, optimizer: Offloaded) -> ZeroWrapper:
    """Whose step it is (engine.py: ``_do_optimizer_sanity_check``, ``_configure_fp16_optimizer``)."""
    weights = stored.precision.weights
    if stage == 3:
        return "zero3"
    if stage == 0:
        if accumulate != weights:
            raise InvalidJob(
                "grad_dtype: DeepSpeed's stage 0 accumulates in the dtype of the model",
                "use zero_stage 1, or leave out",
            )
        return "plain" if not stored.precision.master else "fused" if given.ds_optimizer else "unfused"
    separate = stored.precision.dtype == "bf16" and accumulate == DTYPE_BYTES["fp32"] and weights == 2
    return "bf16" if stage == 1 and separate and not optimizer else "zero"


def _communicates_in(job: Job, stored: Stored) -> int:
    """Bytes of an element in a reduction: ``communication_data_type``, else the model's."""
    named = job.deepspeed.communication_data_type
    if named and job.reduce_dtype not in ("auto", named):
        raise InvalidJob(
            f"deepspeed: communication_data_type: {named} contradicts reduce_dtype {job.reduce_dtype}", "keep one"
        )
    named = named or (job.reduce_dtype if job.reduce_dtype != "auto" else None)
    return DTYPE_BYTES[named] if named else stored.precision.weights


def _check_tested(given: DeepSpeed, stage: int, row: Optimizer, trainer: Trainer, notes: Notes) -> None:
    """ZeRO knows a few optimizers and refuses others unless it is told to try (engine.py; zero/utils.py)."""
    if stage == 0 or row.name == "adamw" or given.zero_allow_untested_optimizer:
        return
    if given.zero_allow_untested_optimizer is False:
        raise InvalidJob(
            f"optimizer: {row.name} is one that DeepSpeed's ZeRO has not tested (zero_allow_untested_optimizer false)",
            "use adamw, or deepspeed.zero_allow_untested_optimizer=true",
        )
    if trainer.name == "pytorch":
        notes.assume(f"deepspeed.zero_allow_untested_optimizer: true (ZeRO refuses {row.name} without it)")


def _needs_stage_3(given: DeepSpeed, split: Split) -> None:
    """Settings that belong to stage 3."""
    for key, why in NEEDS_3.items() if split.name != "zero3" else ():
        value = getattr(given, key)
        if value in (None, False, 0, 1, -1, AUTO) or (isinstance(value, Offload) and value.device == "none"):
            continue
        raise InvalidJob(f"deepspeed: {key} with {split.name}: {why}", "use zero_stage 3, or leave it out")


def _check_types(given: DeepSpeed, stored: Stored) -> None:
    """What quantised weights ask for."""
    if given.zero_quantized_nontrainable_weights and stored.precision.dtype != "fp16":
        raise InvalidJob(
            "deepspeed: zero_quantized_nontrainable_weights: DeepSpeed quantises fp16 weights alone "
            f"(stage3.py: quantize_nontrainable_params), not {stored.precision.dtype}",
            "use dtype fp16, or leave it out",
        )
    if given.zero_quantized_gradients and given.reduce_scatter is False:
        raise InvalidJob("deepspeed: zero_quantized_gradients needs reduce_scatter", "leave reduce_scatter out")


def _offloaded(name: str, given: Offload | None, wanted: bool) -> Offloaded:
    """Where states wait: what the settings say, else host memory where ``offload`` names them."""
    if given is None or given.device == "none":
        if given is not None and given.device == "none" and wanted and "device" in given.model_fields_set:
            raise InvalidJob(f"deepspeed: device none contradicts offload: {name}", "give one of them")
        return Offloaded("cpu") if wanted else Offloaded()
    if given.device == "cpu":  # buffers are what partitions pass through on their way to NVMe
        return Offloaded("cpu", given.pin_memory, ratio=given.ratio, worker=given.super_offload)
    count = given.buffer_count if given.buffer_count is not None else 4 if name == "optimizer" else 5

    def size(value: int | str | None, default: int) -> int:
        return default if value in (None, AUTO) else int(value or 0)

    return Offloaded(
        given.device,
        given.pin_memory,
        count,
        size(given.buffer_size, 100_000_000),
        size(given.max_in_cpu, 1_000_000_000),
        given.ratio,
        given.super_offload,
    )


def _selective(
    given: DeepSpeed, stage: int, stored: Stored, row: Optimizer, optimizer: Offloaded, notes: Notes
) -> Selective | None:
    """ZenFlow's. Raises InvalidJob for what it does not run with, or is not modelled with."""
    if given.zenflow is None:
        return None
    for bad, what, hint in (
        (stage not in (1, 2), f"zero{stage} is not modelled", "use zero_stage 2, or leave zenflow out"),
        (not optimizer, "an optimizer on the card: ZenFlow must be used with CPU offload", "add offload: optimizer"),
        (row.name != "adamw", f"{row.name}: it steps by AdamW", "use adamw, or leave zenflow out"),
        (stored.precision.weights != 2, "fp32 weights is not modelled", "use dtype bf16"),
    ):
        if bad:
            raise InvalidJob(f"deepspeed: zenflow with {what}", hint)
    notes.assume("deepspeed.zenflow: read from DeepSpeed's code, and not measured")
    return Selective(given.zenflow.topk_ratio, given.zenflow.offload, given.zenflow.overlap_step)


def _check_offload(given: DeepSpeed, stage: int, row: Optimizer, optimizer: Offloaded, parameters: Offloaded) -> None:
    """What DeepSpeed refuses to offload, or does not."""
    if parameters and stage != 3:
        raise InvalidJob(f"offload: parameters with zero{stage}: {NEEDS_3['offload_param']}", "use zero_stage 3")
    if not optimizer:
        return
    if stage == 0:
        raise InvalidJob("offload: optimizer with zero0: stage 0 has no partitions to offload", "use zero_stage 1 to 3")
    if stage < 3 and optimizer.device == "nvme":
        raise InvalidJob(
            f"deepspeed: offload_optimizer.device nvme with zero{stage}: states go to NVMe in stage 3 alone",
            "use zero_stage 3, or device cpu",
        )
    if stage < 3 and optimizer.ratio < 1:
        raise InvalidJob(
            f"deepspeed: offload_optimizer.ratio {optimizer.ratio} with zero{stage}: partial offload is stage 3's",
            "use zero_stage 3, or leave ratio out",
        )
    if optimizer.worker and (stage != 3 or optimizer.device != "cpu" or row.name != "adamw"):
        raise InvalidJob(
            f"deepspeed: offload_optimizer.super_offload with zero{stage}, {optimizer.device} and {row.name}: it is "
            "stage 3's, on the host, and steps by Adam (runtime/superoffload)",
            "use zero_stage 3, device cpu and adamw, or leave super_offload out",
        )
    if row.name not in ON_HOST and given.zero_force_ds_cpu_optimizer is not False:
        raise InvalidJob(
            f"optimizer: {row.name} with an offloaded optimizer: DeepSpeed steps on the host by its own Adam or Lion "
            "(zero_force_ds_cpu_optimizer)",
            "use adamw or lion, or deepspeed.zero_force_ds_cpu_optimizer=false",
        )
