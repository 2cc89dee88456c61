"""Job and recipe -> what generates: the engine beside the trainer or on cards of its own, and the trainer's part."""

from memplan.errors import InvalidJob
from memplan.models import load_model
from memplan.resolve import engines
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import as_base
from memplan.spec.generation import Generator, indivisible
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.spec.rollout import Rollout
from memplan.tables import engine_defaults as defaults
from memplan.tables.engines import era_of, version_of
from memplan.tables.generation import RAY_KILLS, RAY_MOST, RAY_STORE, Engine, Generation, generation_of
from memplan.tables.trainers import NEWEST
from memplan.units import DTYPE_BYTES, ceil_div, format_bytes, words_of

NOTHING = Rollout.model_construct()
OF_ENGINES = frozenset(
    words_of(
        """engine_version placement process num_gpus tensor_parallel data_parallel pipeline_parallel expert_parallel
    gpu_memory_utilization mem_fraction_static kv_cache_memory max_model_len max_num_seqs max_num_batched_tokens
    kv_dtype draft enforce_eager logprobs_mode sampler sleep shared_weights
    language_model_only"""
    )
)
"""Keys of a rollout that nothing but an engine has."""
LONGEST = 40_960
"""Tokens of a model's context where its config does not say."""


def generator(job: Job, found: Recipe, whole: ModelSpec, notes: Notes) -> Generator | None:
    """What makes the completions of a job; None where there are none, or where that is not counted. ``whole``: the
    policy with nothing frozen. Raises InvalidJob for an engine that cannot be."""
    asked = job.rollout or NOTHING
    if not found.method.online and not (found.method.teacher and asked.engine):
        return None
    row = generation_of(found.trainer.name, job.trainer_version or NEWEST.get(found.trainer.name, ""))
    engine = _engine(asked, row)
    if engine in ("none", "hf") and any(extra.rollout for extra in job.extra_models):
        raise InvalidJob(
            f"extra_models: a reward model's engine beside rollout.engine {engine} is not modelled",
            "use rollout.engine vllm or sglang, or leave rollout of the reward model out",
        )
    if engine == "none":
        words = (
            "rollout: generation is not counted; what it made is scored at the update's micro-batch (rollout.engine: "
            "vllm, sglang or hf counts it)"
        )
        (notes.assume if asked.engine else notes.remark)(words)
        return None
    said = asked.engine is not None
    who = {"hf": "the policy itself (transformers' generate)", "vllm": "vLLM", "sglang": "SGLang"}[engine]
    notes.assume(f"rollout: {who} generates" + ("" if said else f", {found.trainer.title}'s default"))
    if engine == "hf":
        return _of_policy(job, found, whole, row.latent)
    return _of_engine(job, asked, found, whole, row._replace(engine=engine), notes)


def with_segments(job: Job, found: Recipe, notes: Notes) -> Recipe:
    """The recipe with the segments that its trainer asks the allocator for while it trains (verl 0.6 on:
    set_expandable_segments, whatever the environment says)."""
    of, gpu = found.generator, found.hardware.gpu
    if of is None or of.separate or (gpu is not None and gpu.vendor not in ("nvidia", "custom")):
        return found
    if not generation_of(found.trainer.name, job.trainer_version or NEWEST.get(found.trainer.name, "")).expands:
        return found
    notes.assume(f"allocator: expandable segments ({found.trainer.title} turns them on for training)")
    expanding = found.hardware.allocator.but(expandable_segments=True)
    return found._replace(hardware=found.hardware._replace(allocator=expanding))


def _engine(asked: Rollout, row: Generation) -> Engine:
    """The job's engine; of keys that only an engine has, the trainer's."""
    if asked.engine is not None:
        return asked.engine
    given = OF_ENGINES & asked.model_fields_set
    if asked.mem_fraction_static is not None:
        return "sglang"
    return row.colocated if given and row.engine in ("none", "hf") else row.engine


def _of_policy(job: Job, found: Recipe, whole: ModelSpec, latent: bool) -> Generator:
    """transformers' generate, with the policy's own weights and nothing beside them."""
    itemsize = found.numerics.autocast or found.numerics.itemsize
    prompt, completion = _lengths(job, found)
    asked = job.rollout or NOTHING
    return Generator(
        engine="hf",
        version="",
        model=whole,
        gpus=found.parallel.world,
        max_model_len=prompt + completion,
        prompt_length=prompt,
        completion_length=completion,
        rows=asked.max_num_seqs or found.rows * found.batch.accumulation,
        group=asked.group_size or 1,
        itemsize=itemsize,
        kv_itemsize=itemsize,
        latent=latent,
        margin=found.hardware.margin,
    )


def _lengths(job: Job, found: Recipe) -> tuple[int, int]:
    """Tokens of a prompt and of a completion."""
    asked = job.rollout or NOTHING
    if asked.prompt_length and asked.completion_length:
        return asked.prompt_length, asked.completion_length
    longest = found.batch.longest or found.batch.sequence_length
    completion = min(job.completion_length or longest, longest)
    return longest - completion, completion


def _of_engine(job: Job, asked: Rollout, found: Recipe, whole: ModelSpec, row: Generation, notes: Notes) -> Generator:
    version = asked.engine_version or defaults.taken_by(row.trainer, job.trainer_version or "", row.engine)
    era = era_of(row.engine, version)
    separate = _is_separate(asked, row)
    shared = engines.shares_weights(asked, found, separate)
    degrees = _degrees(asked, found, whole, row, separate)
    ranks, gpus = degrees[0] * degrees[2], degrees[3]
    prompt, completion = _lengths(job, found)
    all_of_it = row.whole_context and not shared  # Unsloth's takes max_seq_length, which is the job's
    length = asked.max_model_len or ((whole.max_positions or LONGEST) if all_of_it else prompt + completion)
    if length < prompt + completion:
        raise InvalidJob(
            f"rollout.max_model_len: {length} is shorter than prompt and completion, {prompt + completion} tokens",
            f"use rollout.max_model_len {prompt + completion}, or shorter lengths",
        )
    each = found.rows * found.batch.accumulation * (found.parallel.world // found.parallel.model)
    rows = ceil_div(each * ranks, gpus)
    adapters = row.adapters and found.adapter is not None
    sleep = engines.level_of(asked, row, adapters) if not separate else 0
    gpu = found.hardware.gpu
    sizes = (gpu.usable_bytes, gpu.memory_bytes, gpu.architecture) if gpu else (defaults.LARGE, defaults.LARGE, "")
    usual = defaults.defaults_of(row.engine, version, defaults.Card(*sizes), ranks)
    share = _share(asked, row, usual.share or era.default_share, separate, shared)
    seen = whole.but(tower=None) if asked.language_model_only else whole
    if row.engine == "sglang":
        share = engines.beside_images(share, share != usual.share, version, seen)
    if shared and sleep and gpu is not None:
        share = defaults.standby_share(gpu.usable_bytes, version_of(version) < (0, 11, 0))
        notes.assume(f"rollout: on standby Unsloth's share of the card is {share:g}, whatever is asked for")
    elif asked.gpu_memory_utilization is None and asked.mem_fraction_static is None and asked.kv_cache_memory is None:
        notes.assume(f"rollout: its share of the card is {share:g}")
    notes.assume(
        f"rollout: {row.engine} {version} on {'cards of its own' if separate else 'the cards that train'}, tensor "
        f"parallel {degrees[0]}, " + (f"sleep level {sleep}" if sleep else "awake throughout")
    )
    if separate and row.behind:
        notes.assume(
            "rollout: on cards of its own it generates while the trainer trains on the completions of the step before "
            f"({found.trainer.title}'s recipe one_step_off_policy)"
        )
    slots = found.adapter.rank if found.adapter is not None and (adapters or shared) else 0
    itemsize, away = _itemsize(asked.dtype, whole, row), engines.away_of(job, found, row, separate)
    base = found.quantised.scheme if found.quantised else None, found.trainer
    if sleep and not row.emptied and not any(away):
        notes.assume(
            f"rollout: {found.trainer.title} keeps its cache when the engine wakes: all that it has reserved stands "
            "against it (trainer_offload empties it)"
        )
    made = Generator(
        engine=row.engine,
        version=version,
        model=seen,
        separate=separate,
        own_process=asked.process == "own" if asked.process else row.own_process,
        first=row.engine_first and not separate,
        gpus=gpus,
        tensor_parallel=degrees[0],
        data_parallel=degrees[1],
        pipeline_parallel=degrees[2],
        expert_parallel=asked.expert_parallel or 1,
        share=share,
        kv_cache_memory=asked.kv_cache_memory or 0,
        max_model_len=length,
        max_num_seqs=asked.max_num_seqs
        or (defaults.UNSLOTH_SEQUENCES if shared else rows if row.rows else row.sequences)
        or usual.sequences,
        max_num_batched_tokens=asked.max_num_batched_tokens
        or row.tokens
        or engines.forward_tokens(
            era, usual.tokens, length, seen, slots or asked.draft or (gpu and gpu.vendor == "amd")
        ),
        prompt_length=prompt,
        completion_length=completion,
        rows=rows,
        group=asked.group_size or 1,
        itemsize=itemsize,
        kv_itemsize=1 if asked.kv_dtype == "fp8" else DTYPE_BYTES.get(asked.kv_dtype or "", itemsize),
        quantization=asked.quantization or as_base(*base, shared, row.four_bits and not separate),
        eager=row.eager if asked.enforce_eager is None else asked.enforce_eager,
        logprobs_mode=asked.logprobs_mode or row.logprobs,
        sampler=asked.sampler or "",
        sleep=sleep,
        shared_weights=shared,
        draft=engines.drafted(asked, whole, notes),
        adapter_rank=slots,
        syncing=engines.syncing(job, found, row, shared),
        away=away,
        empties=row.emptied,
        trainers=_processes(found) if row.process_each and not separate else 1,
        host_store=_store(row, found, notes),
        host_copy=row.host_copy,
        margin=found.hardware.margin,
    )
    made = engines.checked(made, gpu, found.hardware.expandable_segments, asked.dtype or ("bf16" if row.half else None))
    return made._replace(scorer=_scorer(job, found, notes))


def _scorer(job: Job, found: Recipe, notes: Notes) -> Generator | None:
    """The engine of a reward model, in processes of its own; asleep at level 1 but while it scores (verl 0.7
    experimental/reward_loop/reward_model.py; vllm_async_server.py: sleep)."""
    said = next((extra for extra in job.extra_models if extra.rollout is not None), None)
    gpu = found.hardware.gpu
    if said is None or gpu is None:
        return None
    from memplan.resolve.serving import generator as alone

    plain = {"tensor_parallel": 1, "pipeline_parallel": 1, "expert_parallel": 1, "lora": None, "rollout": said.rollout}
    of = alone(job.model_copy(update=plain), load_model(said.model or {}), gpu, Notes({}))
    level = 0 if said.rollout is not None and said.rollout.sleep == "none" else 1
    of = of._replace(separate=False, sleep=level, gpus=found.parallel.world)
    of = engines.checked(of, found.hardware.gpu, found.hardware.expandable_segments)
    notes.assume(
        f"reward: {of.model.name} in {of.engine} {of.version} on the cards that train, its share {of.share:g}, tensor "
        f"parallel {of.tensor_parallel}, " + ("asleep but while it scores" if level else "awake throughout")
    )
    return of


def _store(row: Generation, found: Recipe, notes: Notes) -> int:
    """Ray's object store, where the nodes' memory is known."""
    there = found.hardware.cluster.host_memory
    if not row.ray or not there:
        return 0
    store = min(int(RAY_STORE * there), RAY_MOST)
    notes.assume(
        f"host: Ray kills what runs where {RAY_KILLS:.0%} of a node's memory is used, and its object store may grow to "
        f"{format_bytes(store)} of it: tight where that is not left"
    )
    return store


def _processes(found: Recipe) -> int:
    """The policy's, the critic's, and one for each frozen model."""
    return 1 + (found.others.critic is not None) + len(found.others.residents)


def _is_separate(asked: Rollout, row: Generation) -> bool:
    """On cards of its own: as the job says, or means by keys that only make sense there or beside the trainer."""
    if asked.placement:
        return asked.placement == "separate"
    beside = asked.process is not None or asked.shared_weights is True or asked.sleep in ("1", "2")
    return not beside and (row.separate or asked.num_gpus is not None)


def _share(asked: Rollout, row: Generation, default: float, separate: bool, shared: bool) -> float:
    if row.engine == "sglang":
        return asked.mem_fraction_static or asked.gpu_memory_utilization or row.static or default
    own = defaults.UNSLOTH_SHARE if shared else row.separate_share if separate else row.share
    return asked.gpu_memory_utilization or own or default


def _degrees(
    asked: Rollout, found: Recipe, whole: ModelSpec, row: Generation, separate: bool
) -> tuple[int, int, int, int]:
    """(tensor, data, pipeline parallel, GPUs in all); where nobody says, the trainer's as far as it divides."""
    pipeline, data, usual = asked.pipeline_parallel or 1, asked.data_parallel or 1, row.tensor_parallel
    world = (asked.num_gpus or (asked.tensor_parallel or usual) * pipeline * data) if separate else 0
    world = world or found.parallel.world
    fits = (n for n in range(usual, 0, -1) if world % (n * pipeline) == 0 and not indivisible(whole, n))
    tensor = asked.tensor_parallel or next(fits, 1)
    if separate and asked.data_parallel is None:
        data = max(1, world // (tensor * pipeline))
    return tensor, data, pipeline, world


def _itemsize(dtype: str | None, whole: ModelSpec, row: Generation) -> int:
    """Bytes of an element of its weights: what the job says, what the trainer tells it, or the checkpoint's."""
    if dtype and dtype != "auto":
        return DTYPE_BYTES[dtype]
    if row.half and dtype is None:
        return 2
    return 2 if whole.dtype in (None, "fp32") else DTYPE_BYTES[whole.dtype]  # vLLM casts fp32 checkpoints to half
