"""What an engine refuses before it looks at a card (degrees that divide nothing, sleep where it fails), what drafts its
tokens, and what passes between trainer and engine."""

from typing import Literal

from memplan.errors import InvalidJob
from memplan.models import load_model
from memplan.resolve.notes import Notes
from memplan.spec.generation import Away, Draft, Generator, Syncing, indivisible
from memplan.spec.gpu import Gpu
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.spec.rollout import Rollout
from memplan.tables.engine_defaults import LONGEST_WHOLE, WHOLE_VIDEO
from memplan.tables.engines import ERAS, LEAST_CAPABILITY, Era, era_of, version_of
from memplan.tables.generation import Generation
from memplan.units import DTYPE_BYTES


def shares_weights(asked: Rollout, found: Recipe, separate: bool) -> bool:
    """Whether the engine runs the trainer's own modules (Unsloth's). Raises InvalidJob where these are divided."""
    shared = bool(asked.shared_weights) and not separate
    if shared and found.sharding.name not in ("none", "ddp"):
        raise InvalidJob(
            f"rollout.shared_weights: the engine runs the trainer's own modules, which {found.sharding.name} divides",
            "use sharding: none, or leave shared_weights out",
        )
    return shared


def level_of(asked: Rollout, row: Generation, adapters: bool) -> int:
    """The level of sleep that is meant. Raises InvalidJob for none where there is no such choice."""
    if row.always_sleeps and asked.sleep == "none":
        raise InvalidJob(
            f"rollout.sleep: {row.trainer}'s engine sleeps whenever it shares the trainer's cards",
            "leave rollout.sleep out, or use rollout.placement: separate",
        )
    level = row.sleep if asked.sleep is None else 0 if asked.sleep == "none" else int(asked.sleep)
    return row.adapter_sleep if level and adapters and row.adapter_sleep else level


def forward_tokens(era: Era, usual: int, longest: int, spec: ModelSpec, otherwise: object) -> int:
    """max_num_batched_tokens where nobody says. V0 divides no prompt, however long, of a model with images, latents or
    windows, and ``otherwise``: an adapter, a draft, AMD's card (vllm 0.8 engine/arg_utils.py: _set_default_args_v0)."""
    if not era.whole_prompts:  # since 0.20 videos attend to themselves
        return max(usual, WHOLE_VIDEO * bool(spec.tower and spec.tower.masks_windows and era.counts_states))
    kept = any(getattr(mixer, "kind", "") == "latent" or getattr(mixer, "window", None) for mixer in spec.mixers)
    whole = spec.tower or kept or otherwise or longest <= LONGEST_WHOLE
    return max(5120 if spec.tower else 2048, longest if whole else 0)


def beside_images(share: float, given: bool, version: str, spec: ModelSpec) -> float:
    """SGLang's share of a model with a tower, the smaller the larger the tower: of its own default, before 0.4.9 of a
    given one too (0.4.8 model_executor/model_runner.py; 0.4.10 to 0.5.23: adjust_mem_fraction_for_vlm, which takes 24
    layers where the tower's config calls them depth, and Qwen2-VL's width from its projector)."""
    tower, found = spec.tower, version_of(version)
    if tower is None or (given and found >= (0, 4, 9)):
        return share
    if found < (0, 4, 10):
        return share * 0.9
    if not tower.runs:
        return share
    blocks = 24 if tower.rule.kind == "smart-resize" else sum(run.count for run in tower.runs)
    width = spec.hidden_size if spec.family == "qwen2_vl" else tower.width
    return share * 0.95 * min(1.05, max(0.8, 1.1 - 0.1 * blocks * width**2 / (24 * 1024**2)))


def checked(of: Generator, gpu: Gpu | None, expandable_segments: bool = False, dtype: str | None = None) -> Generator:
    """The engine, with why it fails as it is set; ``dtype``: what it is told (vllm 0.28 check_if_supports_dtype: where
    nothing is, it takes fp16 on cards without bf16, as SGLang does anyway). Raises InvalidJob for a version that is not
    modelled, and for degrees and formats that it refuses."""
    if of.engine == "hf":
        return of
    stored = of.model.quantization
    form = of.quantization if of.quantization != "none" or stored is None else stored.form
    least = next((capability for name, capability in LEAST_CAPABILITY.items() if name in form), 0.0)
    if gpu is not None and gpu.capability < least:
        raise InvalidJob(
            f"rollout.quantization: {of.engine} serves {form} from compute capability {least:g} on, and {gpu.name} has "
            f"{gpu.capability:g}",
            "use a newer card, or a checkpoint in 16 bits",
        )
    era, heads, ranks = era_of(of.engine, of.version), of.model.num_heads, of.tensor_parallel
    each = ranks * of.pipeline_parallel * of.data_parallel
    if of.gpus % (ranks * of.pipeline_parallel):
        more = of.gpus < ranks * of.pipeline_parallel and not of.separate
        raise InvalidJob(
            f"rollout.tensor_parallel: {ranks} × pipeline_parallel {of.pipeline_parallel} does not divide the "
            f"{of.gpus} GPUs of the engine",
            _degrees(of, of.gpus // of.pipeline_parallel) if of.gpus >= of.pipeline_parallel else f"num_gpus: {each}",
            {"num_gpus": ranks * of.pipeline_parallel} if more else None,
        )
    sharing = ranks * of.data_parallel
    if sharing % of.expert_parallel:
        raise InvalidJob(
            f"rollout.expert_parallel: {of.expert_parallel} does not divide the {sharing} ranks that may share experts "
            "(tensor_parallel × data_parallel)",
            "use " + " or ".join(str(n) for n in range(1, sharing + 1) if sharing % n == 0),
        )
    if what := indivisible(of.model, ranks, of.expert_parallel):
        raise InvalidJob(
            f"rollout.tensor_parallel: {ranks} does not divide {what} of {of.model.name}", _degrees(of, heads or ranks)
        )
    if of.pipeline_parallel > of.model.num_layers:
        raise InvalidJob(
            f"rollout.pipeline_parallel: {of.pipeline_parallel} stages of {of.model.num_layers} layers",
            f"use 1 to {of.model.num_layers}",
        )
    if dtype == "bf16" and of.engine == "vllm" and gpu is not None and not gpu.has_bf16:
        return of._replace(fails=(f"{gpu.name} has no bf16 (compute capability {gpu.architecture})", "dtype: fp16"))
    later = (row for row in ERAS if row.engine == of.engine and row.since > era.since)
    first = next((row for row in later if row.expandable_sleeps), None)
    if not of.sleep or not expandable_segments or era.expandable_sleeps:
        return of
    newer = f", or {of.engine} {'.'.join(map(str, first.since))} and later" if first else ""
    why = "it does not sleep where allocator.expandable_segments is true"
    return of._replace(fails=(why, f"add --set allocator.expandable_segments=false{newer}"))


def _degrees(of: Generator, number: int) -> str:
    """Degrees that divide the model and cards."""
    found = [n for n in range(1, number + 1) if number % n == 0 and not indivisible(of.model, n, of.expert_parallel)]
    return "use " + " or ".join(map(str, found[:8]))


OWN_SHAPE = {"mtp": 0, "eagle": 0, "eagle3": 32_000}
"""A layer of the served model's shape behind a projection of its hidden state and the next token's embedding (vllm
model_executor/models/deepseek_mtp.py, llama_eagle.py), and rows of a head of its own; else the served model's."""


def drafted(asked: Rollout, whole: ModelSpec, notes: Notes) -> Draft | None:
    """None where nothing drafts. Raises InvalidJob for what cannot be known."""
    if asked.draft is None:
        return None
    if not isinstance(asked.draft, str) or asked.draft not in OWN_SHAPE:
        spec = load_model(asked.draft)
        notes.assume(f"rollout.draft: {spec.name}, whose embedding and head are counted as its own")
        return Draft(model=spec, tokens=asked.draft_tokens or 1)
    if asked.draft != "mtp" and whole.routed:
        raise InvalidJob(
            f"rollout.draft: {asked.draft} beside the experts of {whole.name} is a layer of another shape",
            "name the draft model's folder or config.json",
        )
    rows = OWN_SHAPE[asked.draft]
    ends = f"an embedding and a head of {rows:,} words of its own" if rows else "its embedding and head"
    notes.assume(f"rollout.draft: {asked.draft}, one layer of the model's shape with {ends}")
    return Draft(layers=1, rows=rows, tokens=asked.draft_tokens or 1)


def syncing(job: Job, found: Recipe, row: Generation, shared: bool) -> Syncing:
    """How new weights reach the engine; nothing is sent where it has the trainer's own."""
    if shared:
        return Syncing()
    adapters = row.adapters and found.adapter is not None
    itemsize = (
        DTYPE_BYTES[job.sync.dtype] if job.sync.dtype else 2 if row.sends_half else found.storage.precision.weights
    )
    return Syncing(
        bucket_bytes=job.sync.bucket_bytes or row.bucket,
        buckets=row.buckets,
        itemsize=itemsize,
        gather=job.sync.gather or _gathered(found, row),
        from_host=row.from_host or (adapters and row.adapters_from_host),
        before_waking=adapters and row.adapters_first,
        again=adapters and row.adapters_again and not job.sync.gather and found.sharding.name == "fsdp",
        free_share=0.0 if job.sync.bucket_bytes else row.free_share,
    )


def _gathered(found: Recipe, row: Generation) -> Literal["", "tensor", "unit", "model"]:
    """What is whole at once on a card: under ZeRO-3 and FSDP2 a tensor, under FSDP1 a unit; with adapters under TRL's
    ZeRO-3 the whole model (trl 1.16 generation/vllm_generation.py: gather_if_zero3)."""
    if found.zero_stage == 3 and found.adapter is not None and found.trainer.name in ("trl", "swift"):
        return "model"
    if found.sharding.name == "fsdp" and found.several:
        own = row.adapter_gather if found.adapter is not None and row.adapters else ""
        return own or ("tensor" if row.sharded_state else "unit")
    divided = found.zero_stage == 3 or (found.sharding.name == "fsdp2" and found.several) or found.parallel.model > 1
    return "tensor" if divided else ""


def away_of(job: Job, found: Recipe, row: Generation, separate: bool) -> Away:
    """What of the trainer is on the host meanwhile."""
    if row.pauses and not separate and job.trainer_offload is None:
        return Away(True, True, True, whole=True)
    names = set(row.away if job.trainer_offload is None else job.trainer_offload) if not separate else set()
    if "parameters" in names:
        names.update(row.with_parameters)
    locked = tuple(name for name in dict(row.page_locked).get(found.wrapper, ()) if name in names)
    return Away("parameters" in names, "optimizer" in names, "gradients" in names, locked=locked)
