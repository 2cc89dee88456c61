"""The examples of an optimizer step that plans share, and when there are more than anybody trains on."""

from typing import Any

from memplan.resolve.packing import sequences_of
from memplan.spec.reading import JobInput
from memplan.units import ceil_div

GLOBAL_BATCH = 64
"""Examples of an optimizer step where the job says nothing, or the next more that all GPUs share: SimPO's and zephyr's
DPO recipes use 128 and 64."""
LARGEST_BATCH = 15_360 * 4_096
"""Tokens of the largest global batch that is published: DeepSeek-V3's (arXiv:2412.19437, section 4.2)."""


def global_batch(given: JobInput, fixed: dict[str, Any], assumptions: list[str]) -> int:
    """The examples of an optimizer step: given, what a job file's own batch makes, or the default; 0 where micro-batch
    and accumulation are both fixed."""
    job, sources = given.job, given.sources
    if job.token_budget is not None:
        rows = ceil_div(job.global_batch_size or GLOBAL_BATCH, sequences_of(job) * job.num_gpus) * job.num_gpus
        assumptions.append(f"token_budget: an optimizer step is counted as {rows} packed rows")
        fixed.setdefault("batch_size", 1)
        return rows
    if job.global_batch_size is not None:
        return job.global_batch_size
    if "batch_size" in fixed and "gradient_accumulation_steps" in fixed:
        return 0
    if "batch_size" in sources and "gradient_accumulation_steps" in sources and "num_gpus" in sources:
        ranks = job.num_gpus // (job.tensor_parallel * job.pipeline_parallel * job.context_parallel)
        return job.batch_size * job.gradient_accumulation_steps * max(ranks, 1)
    batch = ceil_div(GLOBAL_BATCH, job.num_gpus) * job.num_gpus
    why = (
        "none given" if batch == GLOBAL_BATCH else f"none given; {GLOBAL_BATCH} or more that {job.num_gpus} GPUs share"
    )
    assumptions.append(f"global_batch_size: {batch} ({why})")
    return batch


def too_large(tokens: int) -> list[str]:
    """A word where a batch is beyond all that is published, and more cards only make it larger."""
    if tokens <= LARGEST_BATCH:
        return []
    return [
        f"global_batch_size: {tokens / 1e6:,.0f} million tokens an optimizer step, more than any published run has "
        "(DeepSeek-V3's 63): tokens per second are no measure of training there; fewer GPUs may train as far"
    ]
