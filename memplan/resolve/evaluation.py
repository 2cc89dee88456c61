"""Evaluation between steps: what of it is modelled."""

from __future__ import annotations

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.parallel import Parallel
from memplan.tables.methods import Method


def evaluated(job: Job, method: Method, degrees: Parallel, in_megatron: bool, notes: Notes) -> int:
    """Examples per GPU of an evaluation; 0 where nothing is evaluated. Raises InvalidJob for what is not modelled."""
    if job.eval_batch_size is None or (job.phases is not None and "evaluate" not in job.phases):
        return 0
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
    notes.assume("evaluation: without compute_metrics, so that the loss alone is kept of each batch")
    return job.eval_batch_size
