"""FSDP's settings, resolved: who wraps what, how states are divided, and what torch or accelerate refuse."""

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.resolve.storage import Split, Stored
from memplan.spec.fsdp import Fsdp, FsdpSettings
from memplan.spec.groups import Sharding
from memplan.spec.job import Job
from memplan.spec.lora import Adapter
from memplan.spec.parallel import Parallel
from memplan.spec.zero import Zero
from memplan.tables.trainer import Trainer
from memplan.units import DTYPE_BYTES

FP32 = DTYPE_BYTES["fp32"]
ONE = ("sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")
"""Settings of FSDP1 alone."""
TWO = ("pin_memory", "own_ends")
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


def replicas(job: Job, split: Split) -> int:
    """Copies of the sharded states over the GPUs. Raises InvalidJob where they do not divide."""
    given = job.fsdp
    if not split.is_fsdp:
        if given.model_fields_set:
            raise InvalidJob("fsdp: settings without FSDP", "add sharding: fsdp or fsdp2, or leave fsdp out")
        return 1
    _check_version(given, split)
    if given.sharding_strategy in HYBRID:
        copies = given.replicate or max(1, job.num_gpus // job.gpus_per_node)
    elif given.sharding_strategy == "NO_SHARD":
        raise InvalidJob(
            "fsdp.sharding_strategy: NO_SHARD splits nothing, and torch has deprecated it", "use sharding: ddp"
        )
    else:
        copies = given.replicate or 1
        if copies > 1 and split.name == "fsdp":
            raise InvalidJob(
                f"fsdp.replicate: {copies} with sharding_strategy {given.sharding_strategy or 'FULL_SHARD'}",
                "use sharding_strategy: HYBRID_SHARD",
            )
    ranks = job.num_gpus // (job.tensor_parallel * job.pipeline_parallel) or 1
    if ranks % copies:
        of = f"num_gpus {job.num_gpus}" if ranks == job.num_gpus else f"the {ranks} ranks beside tensors and stages"
        raise InvalidJob(
            f"fsdp.replicate: {copies} does not divide {of}",
            f"use {next(n for n in range(min(copies, ranks), 0, -1) if ranks % n == 0)}",
        )
    if copies == job.num_gpus > 1:
        raise InvalidJob(
            f"fsdp.replicate: {copies} of {job.num_gpus} GPUs leaves nothing to share", "use sharding: ddp"
        )
    return copies


def _check_version(given: Fsdp, split: Split) -> None:
    for key in (*ONE, "checkpoints_within") if split.name == "fsdp2" else TWO:
        if key in given.model_fields_set and getattr(given, key) is not None:
            other = "fsdp" if split.name == "fsdp2" else "fsdp2"
            raise InvalidJob(f"fsdp.{key}: {split.name} has no such setting", f"leave it out, or use sharding: {other}")


def divided(
    job: Job,
    trainer: Trainer,
    split: Split,
    degrees: Parallel,
    accumulation: int,
    zero: Zero,
    fsdp: FsdpSettings,
    notes: Notes,
) -> Sharding:
    """How model states are divided, with everybody's settings. Raises InvalidJob for gradients that keep what they have
    been views of: FSDP1 gives them other data in place (torch 2.13 _flat_param.py: _use_sharded_grad_views)."""
    sync = _syncs(job, trainer, split, accumulation, notes)
    views = split.name == "fsdp" and fsdp.use_orig_params and accumulation > 1 and not sync
    if views and fsdp.keep_low_precision_grads:
        raise InvalidJob(
            "fsdp.keep_low_precision_grads: true with original parameters under no_sync: each layer's whole gradient "
            "stays until the step is done, which is not modelled",
            "leave it out, or use sync_each_batch true",
        )
    return Sharding(
        name=split.name,
        ranks=degrees.shards,
        reshard_after_forward=resharding(job, split, degrees),
        sync_each_batch=sync,
        gradient_as_bucket_view=job.gradient_as_bucket_view,
        deepspeed=zero,
        fsdp=fsdp,
        ddp=job.ddp,
    )


def _syncs(job: Job, trainer: Trainer, split: Split, accumulation: int, notes: Notes) -> bool:
    """Whether gradients are reduced at every micro-step."""
    sync = trainer.parallelism.syncs_each_batch if job.sync_each_batch is None else job.sync_each_batch
    if job.sync_each_batch is None and accumulation > 1 and split.name == "fsdp2" and not sync:
        why = f"{trainer.title} accumulates under no_sync: whole gradients stay"
        notes.fill("sync_each_batch", sync, "trainer", why)
    return sync


def resharding(job: Job, split: Split, degrees: Parallel) -> bool | int:
    """Whether FSDP2 frees gathered layers after forward, or shares them among so many ranks. Raises InvalidJob for a
    number that does not divide the shards (torch 2.13 _fsdp_init.py: _get_post_forward_mesh_info)."""
    wanted = job.reshard_after_forward
    if wanted is None or isinstance(wanted, bool):
        return wanted is not False
    if split.name != "fsdp2":
        raise InvalidJob(f"reshard_after_forward: {wanted} needs FSDP2", "use sharding: fsdp2, or leave it out")
    if degrees.shards % wanted:
        fits = next(n for n in range(min(wanted, degrees.shards), 0, -1) if degrees.shards % n == 0)
        raise InvalidJob(
            f"reshard_after_forward: {wanted} does not divide the {degrees.shards} ranks that share the states",
            f"use true, false, or {fits}",
        )
    return {1: False, degrees.shards: True}.get(wanted, wanted)


def fsdp_settings(job: Job, trainer: Trainer, split: Split, stored: Stored) -> FsdpSettings:
    """The settings, with the defaults of whoever wraps the model: accelerate, or torch. Raises InvalidJob."""
    if not split.is_fsdp:
        return FsdpSettings()
    given, by_accelerate, by_verl = job.fsdp, trainer.runs_on == "accelerate", trainer.name == "verl"
    wraps = given.auto_wrap_policy != "NO_WRAP"
    if split.name == "fsdp2" and not wraps:
        raise InvalidJob(
            "fsdp.auto_wrap_policy: NO_WRAP under FSDP2 is not modelled: the root alone",
            "leave it out, or use sharding: fsdp",
        )
    _check_low(given.keep_low_precision_grads, stored.precision.weights, stored.compute_itemsize)
    prefetch = given.backward_prefetch or ("NO_PREFETCH" if by_accelerate else "BACKWARD_PRE")
    offload = given.cpu_offload or "parameters" in job.offload
    original = given.use_orig_params
    return FsdpSettings(
        replicas=replicas(job, split),
        cpu_offload=offload,
        pin_memory=given.pin_memory,
        keeps_gathered=given.sharding_strategy in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"),
        backward_prefetch=prefetch,
        forward_prefetch=given.forward_prefetch,
        limit_all_gathers=given.limit_all_gathers,
        use_orig_params=((job.lora is not None and not by_verl) or by_accelerate) if original is None else original,
        keep_low_precision_grads=given.keep_low_precision_grads,
        wraps_layers=wraps,
        own_ends=split.name == "fsdp2" and (by_accelerate if given.own_ends is None else given.own_ends),
        checkpoints_around=trainer.models.transformers_4 and not given.checkpoints_within,
        wraps_adapters=by_accelerate or by_verl,
        root_reshards=trainer.parallelism.reshards_root
        and split.name == "fsdp2"
        and job.reshard_after_forward in (None, True),
        reference_whole=trainer.name == "trl" and split.name == "fsdp2",
        casts=by_accelerate and stored.autocast > 0,
    )


def _check_low(keeps: bool, stored: int, used: int) -> None:
    """Raises InvalidJob where gradients stay in another dtype than what is stepped on (prepare_gradient_for_optim)."""
    if keeps and used < stored:
        raise InvalidJob(
            "fsdp.keep_low_precision_grads: true over fp32 weights: torch's AdamW takes no gradients of another dtype "
            "(lerp), and what other optimizers make of them is not modelled",
            "leave it out",
        )


def check_flat(adapter: Adapter, split: Split, settings: FsdpSettings, weights: int) -> None:
    """FSDP1 puts a layer's adapters into its flat parameter, beside its frozen weights of ``weights`` bytes each; under
    accelerate they are units of their own (PEFT's fsdp_auto_wrap_policy). Raises InvalidJob for what torch cannot
    flatten together (torch 2.13 _flat_param.py: _validate_tensors_to_flatten)."""
    if split.name != "fsdp" or settings.wraps_adapters:
        _check_low(settings.keep_low_precision_grads and settings.casts, adapter.itemsize, weights)
        return
    if adapter.itemsize != weights:
        same = next(name for name, size in DTYPE_BYTES.items() if size == weights)
        raise InvalidJob(
            f"sharding: fsdp: adapters of {adapter.itemsize} bytes beside weights of {weights} in one flat parameter "
            "(torch: Must flatten tensors with uniform dtype)",
            f"use lora.dtype: {same}, sharding: fsdp2, or trainer: transformers, which wraps adapters by themselves",
        )
    if not settings.use_orig_params:
        raise InvalidJob(
            "fsdp.use_orig_params: false: adapters share a flat parameter with frozen weights "
            "(torch: Must flatten tensors with uniform requires_grad)",
            "leave it out",
        )


def upcast(adapter: Adapter, settings: FsdpSettings, notes: Notes) -> Adapter:
    """Adapters as accelerate stores them under FSDP with mixed precision: every trained weight in fp32."""
    if not settings.casts or adapter.itemsize == FP32:
        return adapter
    notes.assume("lora.dtype: fp32 (accelerate upcasts trained weights under FSDP's mixed precision)")
    return adapter._replace(itemsize=FP32, magnitude_itemsize=FP32)
