"""Job -> Recipe: where every auto ends, and where each value's origin is written down."""

from memplan.errors import InvalidJob
from memplan.resolve import rollouts
from memplan.resolve.adapted_parts import beside_resting_tower
from memplan.resolve.adapters import adapted_model, check_ends, settled
from memplan.resolve.attention import attention_form
from memplan.resolve.choices import accumulated, batch, check_lengths, check_positions, hardware, remark_ignored
from memplan.resolve.classes import check_shared, in_units
from memplan.resolve.clusters import with_cluster
from memplan.resolve.deepspeed import replicated, with_stage, zero_settings
from memplan.resolve.freezing import frozen_model
from memplan.resolve.fsdp import divided, fsdp_settings
from memplan.resolve.heads import head
from memplan.resolve.images import as_seen, image_batch
from memplan.resolve.kernels import operators, with_offload
from memplan.resolve.megatron import check_card, megatron_settings, runs_in_megatron
from memplan.resolve.megatron_stages import with_stages
from memplan.resolve.models import other_models, what_trains
from memplan.resolve.notes import Notes
from memplan.resolve.optimizers import optimizer
from memplan.resolve.packing import kept_apart, packed, scoring_row
from memplan.resolve.parallel import parallel, with_framework
from memplan.resolve.phases import evaluated, moments
from memplan.resolve.plans import check_shared_products
from memplan.resolve.quantised import Base, quantised_base
from memplan.resolve.recompute import checkpointing, with_both_forwards
from memplan.resolve.router_loss import NOTHING_YET, provenance, router_loss
from memplan.resolve.stopping import searched, warned_of_stops
from memplan.resolve.storage import precision, sharding
from memplan.spec.groups import Checkpointing
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe
from memplan.tables.methods import METHODS
from memplan.tables.trainer import Trainer


def resolve(given: JobInput) -> Recipe:
    """A recipe with nothing left open. Raises InvalidJob for what cannot be, ModelError for an unknown model."""
    try:
        return _resolved(given)
    except InvalidJob as error:
        error.given = given
        raise


def _resolved(given: JobInput) -> Recipe:
    if METHODS[given.job.method].generates:
        from memplan.resolve.serving import plain, served  # which no training job loads

        return served(_trained(plain(given)), given)
    return _trained(given)


def resolve_training(given: JobInput) -> Recipe:
    """The recipe of a job that trains. Raises InvalidJob as ``resolve`` does, and for an engine alone."""
    if METHODS[given.job.method].generates:
        raise InvalidJob("method: generate trains nothing", "memplan estimate says what an engine alone needs")
    return resolve(given)


def _trained(given: JobInput) -> Recipe:
    """The recipe of a job that trains."""
    notes = Notes.of(given)
    job, nodes = with_cluster(rollouts.with_rollout_lengths(given.job, notes), notes)
    job = with_framework(with_stage(job, notes), notes)
    method, trainer, spec = what_trains(given, job, notes)
    check_lengths(job, method)
    said, job = packed(beside_resting_tower(job, spec, notes, trainer), method, spec, notes)
    images = image_batch(job, spec, notes)
    lora, spec = adapted_model(job, spec, notes, trainer)
    split, adapts = sharding(job, trainer, notes), lora is not None
    spec = as_seen(spec, images is not None, split.is_deepspeed, job.sequence_length)
    job = with_stages(job, trainer, spec, notes)
    degrees = replicated(job, split, parallel(job, trainer, split, spec, notes))
    base = quantised_base(job, trainer, spec, precision(job, trainer, spec, split, adapts, notes), split, notes)
    loss, entropy = head(job, method, trainer, base.stored, split, adapts, notes)
    rollouts.check_teacher(job, method, spec, split, base.stored.precision.dtype)
    others = other_models(job, method, trainer, base, split, spec, adapts, notes)
    whole, spec = spec, in_units(frozen_model(job, trainer, spec, notes), job, trainer, base.stored, split, notes)
    check_positions(said, spec, notes)
    attention = attention_form(job, trainer, spec, base.stored, notes)
    job = job if job.attention == attention else job.but(attention=attention)
    steps = accumulated(said, job.num_gpus // degrees.model, notes)
    in_megatron = runs_in_megatron(job, trainer, spec, degrees, split.name, steps, notes)
    job = kept_apart(job, attention, in_megatron, method, notes)
    again = checkpointing(job, trainer, spec, base, attention, notes)
    layers = operators(job, trainer, spec, again, base, lora, attention, notes)
    again = with_offload(job, trainer, split, again, layers.kernels, notes)
    chosen = optimizer(job, trainer, split, spec, steps, notes)
    check_shared(job, split, chosen.row, spec)
    fsdp = fsdp_settings(job, trainer, split, base.stored)
    adapter = check_shared_products(lora.resolved(base.stored, base, trainer, notes), degrees, spec) if lora else None
    check_ends(adapter, spec, loss.head, job, split, in_megatron)
    adapter = settled(adapter, split, fsdp, base.stored.precision.weights, notes)
    others = others._replace(critic=rollouts.critic(job, trainer, whole, base, split, adapter, notes))
    group = rollouts.completions_per_example(job, method, trainer, steps, notes)
    remark_ignored(given.ignored, method, notes)
    loss = rollouts.beside_teachers(loss, spec, others)._replace(
        router=router_loss(loss, job, trainer, method, spec, in_megatron, others.reference, notes)
    )
    zero = zero_settings(job, trainer, split, spec, base.stored, chosen.row, notes)
    shared = searched(divided(job, trainer, split, degrees, steps, zero, fsdp, notes), job, trainer, spec, again)
    scores = method.online and (trainer.rollouts.scored or others.reference in ("resident", "adapter", "offloaded"))
    row = scoring_row(
        job,
        in_megatron,
        scores,
        loss.code.scoring_entropy or (trainer.reference.beside and others.reference == "offloaded"),
        notes,
    )
    evaluation = evaluated(job, method, degrees, in_megatron, notes)
    found = Recipe(
        hardware=hardware(job, nodes, base.stored.precision.dtype, notes),
        model=spec,
        method=method,
        trainer=trainer,
        numerics=base.numerics,
        operators=layers,
        storage=base.storage(zero.communication if split.is_deepspeed else base.stored.reduce_itemsize),
        optimizer=chosen,
        batch=batch(job, trainer, spec, images, steps, group, evaluation, notes)._replace(
            longest=said.sequence_length if said.token_budget else 0, scoring=row
        ),
        checkpointing=again,
        loss=loss,
        others=others,
        adapter=adapter,
        quantised=base.quantised,
        sharding=shared,
        parallel=degrees,
        provenance=NOTHING_YET,
        megatron=megatron_settings(job),
        in_megatron=in_megatron,
    )
    found = rollouts.with_own_batch(
        said, with_both_forwards(found), _of_critic(said, trainer, spec, base, attention, again)
    )
    check_card(warned_of_stops(found, notes), notes)
    if method.online or method.teacher:
        from memplan.resolve.generation import generator, with_segments  # which no other job loads

        found = found._replace(generator=generator(said, found, whole.thawed, notes))
        found = with_segments(said, found, notes)
    found = found._replace(moments=moments(job, found, notes))
    return found._replace(provenance=provenance(said, found, entropy, base, notes))


def _of_critic(
    job: Job, trainer: Trainer, spec: ModelSpec, base: Base, attention: str, again: Checkpointing
) -> Checkpointing:
    """The critic's own checkpointing; the policy's (``again``) where it says none."""
    said = rollouts.of_critic(job)
    if said is None or said.gradient_checkpointing in (None, again.form):
        return again
    if said.gradient_checkpointing == "none":
        return Checkpointing(offload=again.offload)
    full = job.but(gradient_checkpointing="full")
    return checkpointing(full, trainer, spec, base, attention, Notes({}))._replace(offload=again.offload)
