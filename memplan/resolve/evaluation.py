"""Evaluation between steps: what of it is modelled."""

from __future__ import annotations

from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.evaluation import Evaluation
from memplan.spec.job import Job
from memplan.spec.parallel import Parallel
from memplan.tables.methods import Method
from memplan.units import ceil_div


class EvalSizes(NamedTuple):
    """Examples of an evaluation's batch per GPU, and what it keeps; all 0 where nothing is evaluated."""

    size: int = 0
    kept: int = 0
    """Batches whose logits wait on the card at once."""
    examples: int = 0


def evaluated(job: Job, method: Method, degrees: Parallel, in_megatron: bool, notes: Notes) -> EvalSizes:
    """The evaluation's batch. Raises InvalidJob for what is not modelled."""
    if job.eval_batch_size is None or (job.phases is not None and "evaluate" not in job.phases):
        return EvalSizes()
    if method.optional_reference or method.teacher:
        what = "generates" if method.optional_reference else "runs a teacher"
        raise InvalidJob(
            f"eval_batch_size: an evaluation of {method.name} {what}, which is not modelled",
            "leave eval_batch_size out",
        )
    if in_megatron or degrees.pipeline > 1:
        what = "Megatron-LM" if in_megatron else "a pipeline"
        raise InvalidJob(
            f"eval_batch_size: {what} evaluates in micro-batches of the training's size", "leave eval_batch_size out"
        )
    if job.evaluation.keeps_logits:
        return _keeping(job.eval_batch_size, job.evaluation, method, degrees)
    notes.assume("evaluation: without compute_metrics, so that the loss alone is kept of each batch")
    return EvalSizes(job.eval_batch_size)


def _keeping(size: int, said: Evaluation, method: Method, degrees: Parallel) -> EvalSizes:
    """With compute_metrics. Raises InvalidJob where nobody says of how many batches."""
    if method.name != "sft":
        raise InvalidJob(
            f"evaluation.keeps_logits: an evaluation of {method.name} keeps scores, not logits",
            "leave keeps_logits out",
        )
    batches = ceil_div(said.examples, size * degrees.data) if said.examples else 0
    kept = min(filter(None, (said.accumulation_steps, batches)), default=0)
    if not kept:
        raise InvalidJob(
            "evaluation.keeps_logits: of how many batches?", "add evaluation.examples, or evaluation.accumulation_steps"
        )
    return EvalSizes(size, kept, said.examples or 0)
