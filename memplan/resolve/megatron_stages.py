"""The stages of Megatron's pipelines: chunks that a layout names, layers that divide by stages and chunks, and the
layout that is assumed where they do not.

megatron-core 0.16 transformer/transformer_block.py: get_num_layers_to_build; pipeline_parallel_layer_layout.py."""

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel, evenest, layout, rows
from memplan.tables.trainer import Trainer
from memplan.units import divisor

LAYOUT = "megatron.pipeline_model_parallel_layout"
OTHER_WAYS = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Settings that a layout takes the place of."""


def with_stages(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> Job:
    """The job with the most even layout where layers do not divide by stages, as Megatron does not guess."""
    settings, stages = job.megatron, job.pipeline_parallel
    parts = stages * job.virtual_pipeline
    told = settings.pipeline_model_parallel_layout or any(getattr(settings, name) for name in OTHER_WAYS)
    if not trainer.megatron or told or not spec.num_layers % stages or spec.num_layers < parts:
        return job
    found = evenest(spec.num_layers, parts, settings.mtp_num_layers)
    notes.remark(
        f"pipeline_parallel: {stages} does not divide {spec.num_layers} layers, and Megatron needs to be told how they "
        f"fall: {LAYOUT} {found} is assumed"
    )
    update = {"megatron": settings.but(pipeline_model_parallel_layout=layout(found))}
    return job.model_copy(update=update)


def chunks(job: Job, notes: Notes) -> int:
    """Chunks of each stage: as the job says, or as its layout has them. Raises InvalidJob where they differ."""
    parts = rows(job.megatron.pipeline_model_parallel_layout)
    if not parts:
        return job.virtual_pipeline
    found, rest = divmod(len(parts), job.pipeline_parallel)
    if rest:
        raise InvalidJob(
            f"{LAYOUT}: {len(parts)} parts are no multiple of pipeline_parallel {job.pipeline_parallel}",
            "separate as many parts by |",
        )
    if job.virtual_pipeline not in (1, found):
        raise InvalidJob(
            f"virtual_pipeline: {job.virtual_pipeline}, and the layout has {found} chunks for each stage",
            "leave it out",
        )
    if found != job.virtual_pipeline:
        notes.fill("virtual_pipeline", found, "default", "as many as the layout has for each stage")
    return found


def _check_layout(spec: ModelSpec, settings: Megatron) -> None:
    text = settings.pipeline_model_parallel_layout
    other = next((name for name in OTHER_WAYS if getattr(settings, name)), "")
    if other:
        raise InvalidJob(f"{LAYOUT}: stands beside {other}", "give one of them")
    for letter, wanted, what in (("t", spec.num_layers, "layers"), ("m", settings.mtp_num_layers, "MTP layers")):
        if text.count(letter) != wanted:
            raise InvalidJob(f"{LAYOUT}: {text.count(letter)} {what}, and the model has {wanted}", "name each of them")
    behind = text[text.find("m") :].rstrip("L") if "m" in text else ""
    if behind.strip("m").strip("|"):
        raise InvalidJob(f"{LAYOUT}: MTP layers in several stages", "put all of them into one")
    if "m" in text and "m" not in rows(text)[-1]:
        raise InvalidJob(f"{LAYOUT}: MTP on a stage of its own is not modelled", "put it before L")


def check_stages(spec: ModelSpec, degrees: Parallel, settings: Megatron) -> None:
    """Raise InvalidJob for layers that do not fall into stages and chunks."""
    stages, layers = degrees.pipeline, spec.num_layers
    if settings.pipeline_model_parallel_layout:
        _check_layout(spec, settings)
        return
    first, last = settings.num_layers_in_first_pipeline_stage, settings.num_layers_in_last_pipeline_stage
    accounts = settings.account_for_embedding_in_pipeline_split + settings.account_for_loss_in_pipeline_split
    if (first or last) and accounts:
        raise InvalidJob(
            "megatron: num_layers_in_first/last_pipeline_stage with account_for_embedding/loss_in_pipeline_split",
            "use one or the other",
        )
    if first or last:
        others = stages - (first > 0) - (last > 0)
        left = layers - first - last
        if left < 0 or (others and left % others) or (not others and left):
            raise InvalidJob(
                f"megatron.num_layers_in_first_pipeline_stage: {left} layers are left for {others} stages",
                "they must divide evenly",
            )
        counts = {first or left // max(others, 1), last or left // max(others, 1), left // others if others else first}
    else:
        if (layers + accounts) % stages:
            raise InvalidJob(
                f"pipeline_parallel: {stages} does not divide {layers + accounts} layers of {spec.name}",
                f"use {divisor(layers + accounts, stages)}, or megatron.pipeline_model_parallel_layout",
            )
        counts = {(layers + accounts) // stages}
    for count in counts:
        if count % degrees.virtual:
            raise InvalidJob(
                f"virtual_pipeline: {degrees.virtual} does not divide the {count} layers of a stage",
                f"use {divisor(count, degrees.virtual)}",
            )


def check_interleaved(degrees: Parallel, micro_batches: int) -> None:
    """Megatron's interleaved schedule takes micro-batches in groups of as many as there are stages."""
    if degrees.virtual > 1 and micro_batches % degrees.pipeline:
        raise InvalidJob(
            f"gradient_accumulation_steps: {micro_batches} micro-batches are no multiple of pipeline_parallel "
            f"{degrees.pipeline}, which the interleaved schedule needs",
            f"use gradient_accumulation_steps {max(1, round(micro_batches / degrees.pipeline)) * degrees.pipeline}",
        )


def instances(degrees: Parallel, settings: Megatron, sharding: str) -> Parallel:
    """With copies of the distributed optimizer's states, each shared within a group of ranks (megatron-core 0.14
    parallel_state.py: intra_distributed_optimizer_instance). Raises InvalidJob where they do not divide."""
    copies = settings.num_distributed_optimizer_instances
    if copies > 1 and (sharding == "ddp" or degrees.shards % copies or degrees.expert_shards % copies):
        raise InvalidJob(
            f"megatron.num_distributed_optimizer_instances: {copies} copies over {degrees.shards} data-parallel ranks "
            f"({degrees.expert_shards} of experts), {sharding}",
            "use sharding: distributed-optimizer, and a divisor of the ranks",
        )
    if copies > 1 and settings.reduce_scatter_with_fp32_accumulation:
        raise InvalidJob(
            "megatron.reduce_scatter_with_fp32_accumulation: megatron-core refuses it beside copies of the states",
            "leave num_distributed_optimizer_instances out",
        )
    return degrees._replace(replicas=copies)
