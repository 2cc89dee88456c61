"""method: generate: an engine alone. The job's model and card, and the engine's own defaults where nobody says."""

from typing import Any

from memplan.errors import InvalidJob
from memplan.resolve.engines import beside_images, checked, drafted, forward_tokens
from memplan.resolve.models import policy_model
from memplan.resolve.notes import Notes
from memplan.spec.generation import Generator
from memplan.spec.gpu import Gpu
from memplan.spec.groups import Provenance
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe
from memplan.spec.rollout import Rollout, share_key
from memplan.tables.engine_defaults import Card, defaults_of
from memplan.tables.engines import LATEST, era_of
from memplan.tables.methods import METHODS
from memplan.tables.quantizations import PLAIN_IN_NVFP4
from memplan.units import DTYPE_BYTES

KEPT = ("model", "revision", "total_params", "gpu", "margin", "cluster", "gpus_per_node", "calibration")
"""Keys that training and an engine alone both have."""
OF_CARD = ("calibration:", "gpu ", "usable memory")
"""How assumptions of the card begin, which hold for both."""
OF_TRAINING = ("the checkpoint is quantised", "its state spaces, linear attention")
"""How assumptions begin that no engine makes."""
READ = (
    *KEPT,
    "method",
    "rollout",
    "num_gpus",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "lora",
    "allocator",
    "images",
)
"""Keys that an engine alone reads; images say nothing that its profile run does not."""
LONGEST = 4096
"""Where a config names no longest sequence."""


def plain(given: JobInput) -> JobInput:
    """The job of the same model and card that trains, and is estimated nowhere: what else a recipe holds.

    Raises InvalidJob for keys that only training has."""
    for key in given.sources:
        if key in Job.model_fields and key not in READ:
            raise InvalidJob(f"{key}: method generate trains nothing", f"leave {key} out, or name a training method")
    spec = policy_model(given, given.job, Notes.of(given))
    if spec.task != "causal":
        raise InvalidJob(
            f"method: generate needs a model that predicts the next token alone, and {spec.family} does not",
            "name a decoder, such as qwen2.5-7b",
        )
    kept = {key: getattr(given.job, key) for key in KEPT}
    job = Job(**kept, method="sft", sequence_length=1, phases=())
    sources = {key: given.sources[key] for key in KEPT if key in given.sources}
    return given._replace(job=job, sources=sources)


def served(base: Recipe, given: JobInput) -> Recipe:
    """The recipe of the engine alone, over that of the plain job. Raises InvalidJob for an engine that cannot be."""
    gpu, job = base.hardware.gpu, given.job
    if gpu is None:
        raise InvalidJob("gpu: method generate needs a card, whose share the engine takes", "add gpu: h100-80gb")
    notes = Notes.of(given)
    model = policy_model(given, job, notes)
    notes.assumptions[:] = [each for each in notes.assumptions if not each.startswith(OF_TRAINING)]
    expandable = base.hardware.expandable_segments or job.allocator.expandable_segments
    asked = job.rollout.dtype if job.rollout else None
    of = checked(generator(job, model, gpu, notes)._replace(expandable=expandable), gpu, expandable, asked)
    told = base.provenance
    shown = {key: told.job[key] for key in (*KEPT, "num_gpus") if key in told.job}
    shown |= {"method": job.method, "num_gpus": of.gpus, "rollout": resolved(of)}
    said = Provenance(
        job=shown,
        sources=dict(given.sources) | {"rollout": given.sources.get("rollout", "default")},
        origins=told.origins,
        assumptions=(*(each for each in told.assumptions if each.startswith(OF_CARD)), *notes.assumptions),
        warnings=told.warnings,
    )
    return base._replace(method=METHODS[job.method], generator=of, provenance=said, model=of.model)


def generator(job: Job, spec: ModelSpec, gpu: Gpu, notes: Notes) -> Generator:
    """The engine with its own defaults."""
    rollout = job.rollout or Rollout()
    if spec.published is not None and rollout.quantization is None:
        spec = spec.but(quantization=spec.published)
    engine: Any = rollout.engine or ("vllm" if rollout.mem_fraction_static is None else "sglang")
    if engine not in LATEST:
        raise InvalidJob(f"rollout.engine: {engine} alone is not an engine", "use vllm or sglang")
    version = rollout.engine_version or LATEST[engine]
    if rollout.engine_version is None:
        notes.assume(f"rollout.engine_version: {version}, the newest that is modelled")
    era = era_of(engine, version)
    tensor = rollout.tensor_parallel or job.tensor_parallel
    stages = rollout.pipeline_parallel or job.pipeline_parallel
    copies = rollout.data_parallel or 1
    longest = rollout.max_model_len or (spec.max_positions or LONGEST)
    if rollout.max_model_len is None:
        notes.assume(f"rollout.max_model_len: {longest}, the longest of the model's config")
    card = Card(gpu.usable_bytes, gpu.memory_bytes, gpu.architecture)
    usual = defaults_of(engine, version, card, tensor * stages, server=True)
    rows = rollout.max_num_seqs or usual.sequences
    seen = spec.but(tower=None) if rollout.language_model_only else spec
    whole = forward_tokens(era, usual.tokens, longest, seen, job.lora or rollout.draft or gpu.vendor == "amd")
    tokens = rollout.max_num_batched_tokens or min(whole, rows * longest)
    given = rollout.mem_fraction_static if engine == "sglang" else rollout.gpu_memory_utilization
    share = given or usual.share or era.default_share
    if engine == "sglang":
        share = beside_images(share, given is not None, version, seen)
    if given is None and rollout.kv_cache_memory is None:
        notes.assume(f"rollout.{share_key(engine)}: {share:g}, {engine}'s own default")
    dtype = rollout.dtype if rollout.dtype not in (None, "auto") else spec.dtype
    itemsize = DTYPE_BYTES["bf16" if dtype in (None, "fp32") and rollout.dtype != "fp32" else dtype or "bf16"]
    said = rollout.num_gpus or (job.num_gpus if notes.is_given("num_gpus") else 0)
    return Generator(
        engine=engine,
        version=version,
        model=seen,
        separate=True,
        own_process=True,
        gpus=said or tensor * stages * copies,
        tensor_parallel=tensor,
        data_parallel=copies,
        pipeline_parallel=stages,
        expert_parallel=rollout.expert_parallel or job.expert_parallel,
        share=share,
        kv_cache_memory=rollout.kv_cache_memory or 0,
        max_model_len=longest,
        max_num_seqs=rollout.max_num_seqs or min(rows, tokens),
        max_num_batched_tokens=tokens,
        prompt_length=rollout.prompt_length or 0,
        completion_length=rollout.completion_length or 0,
        itemsize=itemsize,
        kv_itemsize={"fp8": 1, "fp32": 4}.get(rollout.kv_dtype or "auto", itemsize if itemsize < 4 else 4),
        quantization=_quantization(rollout, spec, notes),
        eager=bool(rollout.enforce_eager),
        logprobs_mode=rollout.logprobs_mode or "raw_logprobs",
        sampler=rollout.sampler or "",
        sleep=int(rollout.sleep) if rollout.sleep in ("1", "2") else 0,
        draft=drafted(rollout, spec, notes),
        adapter_rank=job.lora.r if job.lora else 0,
        margin=job.margin,
    )


def _quantization(rollout: Rollout, spec: ModelSpec, notes: Notes) -> str:
    """As the job says; of gpt-oss MXFP4, as it is published, which training takes apart."""
    if rollout.quantization is None and spec.family == "gpt_oss" and spec.quantization is None:
        notes.assume("rollout.quantization: mxfp4, as the checkpoint is published (none: in 16 bits)")
        return "mxfp4"
    if spec.quantization is not None and rollout.quantization in (None, "none"):
        other = " (none: in 16 bits)" if spec.published else ""
        notes.assume(f"rollout.quantization: the checkpoint's own, {spec.quantization.words[:120]}{other}")
    if rollout.quantization not in (None, "none", "mxfp4"):
        mixed = rollout.quantization == "nvfp4" and any(part.kind in PLAIN_IN_NVFP4 for part in spec.mixers)
        left = "linear and latent attention, embedding and head" if mixed else "embedding and head"
        told = "one that leaves others so, or has other groups, differs: name it as the model, its config says what"
        notes.assume(f"rollout.quantization: {left} stay in 16 bits; {told}")
    return rollout.quantization or "none"


def resolved(of: Generator) -> dict[str, Any]:
    """The job's rollout with every value filled in."""
    names = ("tensor_parallel", "data_parallel", "pipeline_parallel", "expert_parallel", "max_model_len")
    more = ("max_num_seqs", "max_num_batched_tokens", "quantization", "logprobs_mode")
    found = {name: getattr(of, name) for name in (*names, *more)}
    taken = {"kv_cache_memory": of.kv_cache_memory} if of.kv_cache_memory else {share_key(of.engine): of.share}
    dtypes = {"kv_dtype": {1: "fp8", 4: "fp32"}.get(of.kv_itemsize, "auto"), "enforce_eager": of.eager}
    return (
        {"engine": of.engine, "engine_version": of.version}
        | found
        | taken
        | dtypes
        | {"sleep": str(of.sleep or "none")}
    )
