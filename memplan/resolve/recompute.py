"""Checkpointing and offloading of a job, resolved: what each trainer means by them."""

from collections.abc import Mapping

from memplan.errors import InvalidJob
from memplan.resolve.classes import check_checkpoints
from memplan.resolve.freezing import tower_rests
from memplan.resolve.notes import Notes
from memplan.resolve.quantised import Base
from memplan.spec.groups import Checkpointing
from memplan.spec.job import Job
from memplan.spec.layer import Layer
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention
from memplan.spec.recipe import Recipe
from memplan.spec.recompute import EVERY, Recompute, counts_of, every_nth, is_by_layer
from memplan.tables.styles import SavedBy
from memplan.tables.trainer import Trainer, version_key

POLICIES = {
    "products": "torch's selective checkpointing by torchtitan's policy: of each layer the attention output and every "
    "second matmul are kept",
    "attention": "TRL's selective checkpointing, which its SFT trainer has: of each layer the attention output is kept",
}
OF_EXPERTS = ("moe", "moe_act", "shared_experts")
REFERENCE_OFFLOADS = "reference: offloaded"


def checkpointing(
    job: Job, trainer: Trainer, spec: ModelSpec, base: Base, attention: str, notes: Notes
) -> Checkpointing:
    """What is made again in backward, but for what waits on the host. Raises InvalidJob for what cannot be."""
    form = _form(job, trainer, base.upcast, notes)
    check_checkpoints(job, spec, form)
    wide = base.stored.precision.dtype == "fp32" and not job.padded
    again = _recompute(job, trainer, spec, base.quantised is not None, attention == "sdpa" and wide, notes)
    if attention == "eager" and any(policy == "matmuls" for policy, _ in again.counts):
        raise InvalidJob(
            f"gradient_checkpointing: {job.gradient_checkpointing} is not modelled with eager attention",
            "use attention: sdpa, or full, keep-attention and selective layers",
        )
    if form == "full" and trainer.checkpointing.modules:
        notes.assume(
            f"gradient_checkpointing: {trainer.title} checkpoints norms, attention and feed-forward by themselves"
        )
        again = Recompute(modules=frozenset(trainer.checkpointing.modules))
    found = Checkpointing(form, recompute=again)
    return found._replace(reentrant=_reentrant(job, trainer, spec, again, found.layers, notes))


def _form(job: Job, trainer: Trainer, upcast: str, notes: Notes) -> str:
    """What is checkpointed: none, full, selective or every:N; ``upcast`` is what is cast beside a quantised base."""
    checkpoints = trainer.checkpointing.on or (trainer.checkpointing.on_if_quantised and upcast == "all")
    given = job.gradient_checkpointing if job.gradient_checkpointing != "none" else ""
    return notes.default("gradient_checkpointing", given, "full" if checkpoints else "", job.trainer) or "none"


def _recompute(
    job: Job, trainer: Trainer, spec: ModelSpec, quantised: bool, wide_attention: bool, notes: Notes
) -> Recompute:
    """What ``gradient_checkpointing`` beside none and full means. Raises InvalidJob where the trainer has none."""
    how = job.gradient_checkpointing
    if "recompute_modules" in job.megatron.model_fields_set and not (trainer.megatron and how == "selective"):
        raise InvalidJob(
            "megatron.recompute_modules: belongs to selective checkpointing in Megatron",
            "use gradient_checkpointing: selective with a trainer of Megatron's, or leave it out",
        )
    if how in ("none", "full"):
        return Recompute()
    if how.startswith(EVERY):
        if trainer.megatron:
            raise InvalidJob(
                f"gradient_checkpointing: Megatron recomputes chunks or the first layers, not {how}",
                "use full or selective",
            )
        every = every_nth(how)
        first = 1 if trainer.checkpointing.from_first else every
        notes.assume(f"gradient_checkpointing: {how}: layers {first}, {first + every}, … are checkpointed, others not")
        return Recompute(every=every, from_first=trainer.checkpointing.from_first, numbers=spec.numbers)
    if is_by_layer(how):
        counts = _counts(job, trainer, spec, counts_of(how))
        policies = [_policy(word, trainer, job) for word in counts]
        for policy in policies:
            _check_policy(policy, job, spec, quantised, wide_attention)
        notes.assume(f"gradient_checkpointing: {how}: {_said(counts, spec.num_layers)}")
        return Recompute(counts=tuple(zip(policies, counts.values(), strict=True)), numbers=spec.numbers)
    if trainer.megatron:
        return _megatron(job, spec, notes)
    if job.gradient_checkpointing_reentrant:
        raise InvalidJob(
            "gradient_checkpointing_reentrant: selective checkpointing is non-reentrant (torch refuses a policy there)",
            "leave gradient_checkpointing_reentrant out",
        )
    policy = _policy("selective", trainer, job)
    _check_policy(policy, job, spec, quantised, wide_attention)
    notes.assume(f"gradient_checkpointing: {POLICIES[policy]}")
    return Recompute(policy=policy)


def _counts(job: Job, trainer: Trainer, spec: ModelSpec, counts: Mapping[str, int]) -> Mapping[str, int]:
    """Layers by number. Raises InvalidJob where there are fewer, or where nobody can say it so."""
    how, layers = job.gradient_checkpointing, spec.num_layers
    if sum(counts.values()) > layers:
        hint = f"use {layers} or fewer together"
        raise InvalidJob(f"gradient_checkpointing: {how}: {spec.family} has {layers} layers", hint)
    for cannot, what, hint in (
        (trainer.megatron, "in Megatron", "use full with megatron.recompute_method: block"),
        (trainer.checkpointing.modules, f"by {trainer.title}, which checkpoints modules", "use full or none"),
        (job.gradient_checkpointing_reentrant, "with reentrant checkpoints", "leave the reentrant key out"),
        (spec.encoder or job.images is not None, "with an encoder or a tower", "use full or none"),
        (job.pipeline_parallel > 1, "in a pipeline, whose stages count their own layers", "use full, none or every:N"),
    ):
        if cannot:
            raise InvalidJob(f"gradient_checkpointing: {how} is not modelled {what}", hint)
    return counts


KEPT = {
    "full": "are made again whole",
    "keep-attention": "keep attention's output",
    "selective": "keep what the policy does",
    "keep-matmuls": "keep attention's output and every matmul's",
}


def _said(counts: Mapping[str, int], layers: int) -> str:
    """Of 32 layers the first 12 are made again whole, the next 8 keep …, the others keep everything."""
    parts = [f"{'the next' if n else 'the first'} {counts[word]} {KEPT[word]}" for n, word in enumerate(counts)]
    others = ["the others keep everything"] if sum(counts.values()) < layers else []
    return f"of {layers} layers {', '.join([*parts, *others])}"


REPLAY = "use gradient_checkpointing_reentrant: false"


def _reentrant(
    job: Job, trainer: Trainer, spec: ModelSpec, again: Recompute, checkpointing: bool, notes: Notes
) -> bool:
    """Whether checkpoints run an own backward: as job, else trainer say, where torch and the model allow."""
    key, given = "gradient_checkpointing_reentrant", job.gradient_checkpointing_reentrant
    able = checkpointing and spec.task == "causal" and not again.policy and not again.counts
    since = trainer.checkpointing.forced_from.get(job.method, "")
    third = job.lora is not None and "zero3" in (job.sharding, f"zero{job.zero_stage}")
    forced = able and third and not given and bool(since) and is_from(job, since)
    if able and (given or forced or (trainer.checkpointing.reentrant and not notes.is_given(key))):
        rests = trainer.models.freezes_tower and job.lora is None and not notes.is_given("freeze")
        _check_shared_states(spec, again, rests or tower_rests(spec), "use a sharding but zero3" if forced else REPLAY)
    if forced:
        return notes.fill(key, True, "trainer", f"{trainer.title} {since} forces it beside adapters under ZeRO-3")
    if notes.is_given(key) or not trainer.checkpointing.reentrant or not able:
        return notes.plain(key, given)
    return notes.fill(key, True, "trainer", f"transformers before 5 asks for it, beside this {trainer.title}")


def with_both_forwards(recipe: Recipe) -> Recipe:
    """The same. Raises InvalidJob where DeepSpeed refuses that checkpoints of both forwards of a pair hand gradients of
    the same weights over: stage 2 always, stage 3 where a bucket holds both (deepspeed 0.19 runtime/zero:
    stage_1_and_2.py, reduce_ready_partitions_and_remove_grads; stage3.py, __reduce_and_partition_ipg_grads)."""
    stage, adapter = recipe.zero_stage, recipe.adapter
    if stage < 2 or recipe.loss.pair_pass != "two-forward" or not recipe.checkpointing.reentrant:
        return recipe
    layers = recipe.model.layers()
    trained = sum(_adapters(layer, adapter) if adapter else layer.parameters for layer in layers)
    if stage == 2 or trained <= recipe.sharding.deepspeed.reduce_bucket_size:
        why = "already been reduced" if stage == 2 else "a bucket has each parameter once"
        raise InvalidJob(
            f"gradient_checkpointing_reentrant: true cannot run pair_pass: two-forward under ZeRO-{stage} here: each "
            f"forward's checkpoints hand their gradients over, and DeepSpeed refuses the second time ({why})",
            f"{REPLAY}, or pair_pass: concatenated",
        )
    return recipe


def _adapters(layer: Layer, adapter: Adapter) -> int:
    """Elements of a layer's adapters."""
    adapted = (linear for linear in layer.linears if linear.name in adapter.targets)
    return sum(adapter.rank_of(linear.name) * (linear.inputs + linear.outputs) for linear in adapted)


def _check_shared_states(spec: ModelSpec, again: Recompute, rests: bool, hint: str) -> None:
    """Raise InvalidJob where several layers read one tensor with a graph: each checkpoint's backward would run it.
    What a tower that ``rests`` makes has none. And where keys that a layer hands on lead back to a checkpoint, which
    holds what they are handed on in (its ``run_function``): no collector sees such a cycle through autograd's nodes
    (transformers 5.24 modeling_gemma4.py: shared_kv_states; torch 2.13 utils/checkpoint.py)."""
    if again.is_partial and any(getattr(mixer, "reads", "") for mixer in spec.mixers):
        raise InvalidJob(
            f"gradient_checkpointing_reentrant: true cannot run {spec.family} with some of its layers checkpointed: "
            "each that reads keys of a layer that is not would run that one's backward, which torch refuses the second "
            "time",
            f"{hint}, or gradient_checkpointing: full",
        )
    covered = [again.covers(i) for i in range(spec.num_layers)]
    if any(
        getattr(layer.mixer, "makes_kv", "") and not covered[i] and any(covered[:i])
        for i, layer in enumerate(spec.layers())
    ):
        raise InvalidJob(
            f"gradient_checkpointing_reentrant: true frees no step of {spec.family} with some of its layers "
            "checkpointed: keys of a layer that is not, and the checkpoints below it, hold each other for good",
            f"{hint}, or gradient_checkpointing: full",
        )
    if not rests and any(mixer.kind == "image-cross" for mixer in spec.mixers):
        raise InvalidJob(
            f"gradient_checkpointing_reentrant: true cannot run {spec.family} with images: each of its layers that "
            "attend to them would run the backward of its tower, which torch refuses the second time",
            hint,
        )


def _megatron(job: Job, spec: ModelSpec, notes: Notes) -> Recompute:
    modules = job.megatron.recompute_modules
    kinds = [run.layer for run in spec.runs]
    experts = any(layer.feed_forward is not None and layer.feed_forward.experts for layer in kinds)
    mixers = [layer.mixer for layer in kinds]
    latent = any(mixer is not None and mixer.kind == "latent" for mixer in mixers)
    for module in modules:
        lacks = "" if experts else "experts" if module in OF_EXPERTS else ""
        lacks = "latent attention" if module == "mla_up_proj" and not latent else lacks
        if lacks:
            raise InvalidJob(f"megatron.recompute_modules: {spec.family} has no {lacks} for {module}", "leave it out")
    if any(not isinstance(mixer, Attention) and (mixer is None or mixer.kind != "latent") for mixer in mixers):
        raise InvalidJob(
            f"gradient_checkpointing: selective is not modelled for the mixers of {spec.family}", "use full"
        )
    notes.assume("gradient_checkpointing: Megatron's selective checkpointing makes " + ", ".join(modules) + " again")
    return Recompute(modules=frozenset(modules))


def is_from(job: Job, since: str) -> bool:
    """Whether the trainer is of this version or newer; the newest, where nobody says."""
    return not job.trainer_version or version_key(job.trainer_version) >= version_key(since)


def _policy(word: str, trainer: Trainer, job: Job) -> SavedBy:
    """What a word of a job keeps; the trainer's own policy where that is not said."""
    own: SavedBy = "attention" if trainer.name == "trl" and is_from(job, "1.16") else "products"
    words: dict[str, SavedBy] = {"full": "", "keep-attention": "attention", "keep-matmuls": "matmuls"}
    return words.get(word, own)


def _check_policy(policy: SavedBy, job: Job, spec: ModelSpec, quantised: bool, wide_attention: bool) -> None:
    """Raise InvalidJob for layers whose operations are not followed one by one, where a policy goes by these."""
    if policy in ("", "attention"):
        return
    said, kinds = None, [run.layer for run in spec.runs]
    if quantised:
        said = f"over linears in {job.quantization}"
    elif job.lora is not None and job.lora.dora:
        said = "with DoRA"
    elif any(not isinstance(each.mixer, Attention) and getattr(each.mixer, "kind", "") != "latent" for each in kinds):
        said = f"of {spec.family}, whose layers are not softmax attention and a feed-forward"
    elif any(layer.experts and layer.experts.routing.program == "scatter" for layer in kinds):
        said = f"of {spec.family}, whose experts see every token"
    elif wide_attention and any(
        isinstance(each.mixer, Attention) and each.mixer.num_kv_heads != each.mixer.num_heads for each in kinds
    ):
        said = "with fp32 sdpa and grouped heads, which run as single operations (attention: eager is)"
    if said:
        how = job.gradient_checkpointing
        raise InvalidJob(f"gradient_checkpointing: {how} is not modelled {said}", "use full")
