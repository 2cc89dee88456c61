"""What a job is taken to be where a user has named a model and little else."""

from __future__ import annotations

import os

from memplan.errors import InvalidJob
from memplan.spec.reading import JobInput
from memplan.tables.methods import METHODS
from memplan.units import words_of

SAID_FREELY = frozenset(
    words_of(
        """model revision total_params gpu num_gpus gpus_per_node cluster margin batch_size global_batch_size
        gradient_accumulation_steps sequence_length dtype optimizer gradient_checkpointing lora quantization sharding
        zero_stage"""
    )
)
"""Keys that may be given before the training is told; any other means a job, with memplan's default method."""
OF_A_LOOP = frozenset(words_of("pair_pass loss_head logits_dtype autocast grad_dtype recompute_loss hold_outputs"))
"""Keys that a loop of one's own sets, and TRL has no switch for."""
NO_PREFERENCE = frozenset({"sft", "distill", "generate"})
"""Methods that learn from no preference."""


def asks_for_ways(given: JobInput) -> bool:
    """Whether a job is but a model and what it is to run on."""
    said = {key for key, source in given.sources.items() if source == "option"}
    if given.job.quantization != "none" and given.job.lora is None:  # which no training can be
        return False
    return not given.framework and "file" not in given.sources.values() and said <= SAID_FREELY and bool(said)


def with_usual_trainer(given: JobInput) -> JobInput:
    """A preference method of a model that is named by its Hub id, without a trainer, is taken to be run by TRL, where
    TRL can; a bare loop otherwise, as for any other job."""
    model, method = given.job.model, given.job.method
    if "trainer" in given.sources or given.framework or given.sources.get("method") != "option":
        return given
    named = isinstance(model, str) and "/" in model and model[0] not in "./~" and not os.path.exists(model)
    if not named or OF_A_LOOP & set(given.sources) or method in NO_PREFERENCE or METHODS[method].generates:
        return given
    from memplan.resolve import resolve

    usual = given._replace(job=given.job.model_copy(update={"trainer": "trl"}))
    try:
        resolve(usual)
    except InvalidJob:
        return given
    why = f"trainer: trl, which trains most models of the Hub by {method}; --trainer pytorch is a bare loop"
    return usual._replace(assumptions=(*given.assumptions, why))
