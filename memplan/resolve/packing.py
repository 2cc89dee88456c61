"""Micro-batches that are packed up to a number of tokens, in place of so many sequences of one length.

A packed micro-batch is one row. Kernels of flash attention are told where its sequences end, and hold what they hold of
any row; elsewhere a mask of all tokens by all keeps them apart."""

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.tables.methods import Method
from memplan.units import ceil_div

INSTEAD = "give batch_size and sequence_length instead"


def packed(job: Job, method: Method, spec: ModelSpec, notes: Notes) -> tuple[Job, Job]:
    """(as it is said, with its packed micro-batch as one row). Raises InvalidJob where keys contradict each other."""
    _check_scoring(job, method)
    budget = job.token_budget
    if budget is None:
        return job, job
    if notes.is_given("batch_size") and job.batch_size != 1:
        raise InvalidJob(
            f"batch_size: {job.batch_size} contradicts token_budget {budget}: a packed micro-batch is one row",
            "leave one of them out",
        )
    for bad, what in ((spec.encoder, f"{spec.name}, an encoder-decoder"), (job.images, "images")):
        if bad:
            raise InvalidJob(f"token_budget: {what} in packed rows is not modelled", INSTEAD)
    halves = 2 if method.pairs else 1
    longest = job.sequence_length if notes.is_given("sequence_length") else min(job.sequence_length, budget // halves)
    if longest * halves > budget:
        pair = ", of which a pair has two" if halves > 1 else ""
        raise InvalidJob(
            f"token_budget: {budget} does not hold one sequence_length of {longest}{pair}",
            f"use token_budget {longest * halves} or more, or shorter sequences",
        )
    row = whole(job, ceil_div(budget, halves))
    scored = job.completion_length or longest
    count = max(1, row // longest)
    completions = min(row, count * scored + row - count * longest)
    one = {"batch_size": 1, "sequence_length": row, "completion_length": completions}
    return job.but(sequence_length=longest), job.model_copy(update=one)


def whole(job: Job, tokens: int) -> int:
    """Rounded up to what the GPUs that share a sequence divide it into."""
    parts = job.tensor_parallel * job.context_parallel * (2 if job.context_parallel > 1 else 1)
    return ceil_div(tokens, parts) * parts


def sequences_of(job: Job) -> int:
    """Sequences that a micro-batch holds at the least: the longest, or pairs of them."""
    if job.token_budget is None:
        return job.batch_size
    return max(1, job.token_budget // job.sequence_length)


def kept_apart(job: Job, attention: str, in_megatron: bool, method: Method, notes: Notes) -> Job:
    """The job with the mask that tells a row's sequences apart, where attention is not flash. Raises InvalidJob for
    pairs, whose halves are counted as two rows."""
    if job.token_budget is None:
        return job
    flash = attention == "flash" or in_megatron
    if method.pairs and not flash:
        raise InvalidJob(f"token_budget: packed pairs under {attention} attention are not modelled", "use flash")
    how = "by the kernel's lengths" if flash else "by a mask of all tokens by all"
    notes.assume(f"token_budget: a micro-batch is one row of {job.token_budget} tokens, full, its sequences kept apart "
                 f"{how}")  # fmt: skip
    return job if flash else job.but(padded=True)


def _check_scoring(job: Job, method: Method) -> None:
    if job.logprob_token_budget is None:
        return
    if not method.optional_reference or method.pairs:
        raise InvalidJob(
            f"logprob_token_budget: {method.name} scores no rollout before its update",
            "leave it out, or use grpo, rloo or ppo",
        )
    if job.logprob_token_budget < job.sequence_length:
        raise InvalidJob(
            f"logprob_token_budget: {job.logprob_token_budget} does not hold one sequence_length of "
            f"{job.sequence_length}",
            f"use {job.sequence_length} or more",
        )


def scoring_row(job: Job, in_megatron: bool, passes: bool, more: bool, notes: Notes) -> int:
    """Tokens of a row that is scored before the update; 0 where rows are the update's, or Megatron counts them within
    it. ``passes``: whether any is; ``more``: whether scores take what the update does not, the entropy or a reference
    beside the policy."""
    budget = job.logprob_token_budget
    if budget is not None and not passes:
        notes.remark("logprob_token_budget has no effect: nothing is scored before this trainer's update")
        return 0
    if budget and job.images:
        notes.assume("logprob_token_budget: rows with images are scored as whole sequences")
        budget = ceil_div(budget, job.sequence_length) * job.sequence_length
    if not in_megatron:
        return whole(job, budget) if budget else 0
    update = job.batch_size * job.sequence_length
    if not passes or ((budget or 0) <= update and not more):
        return 0
    notes.assume("logprob_token_budget: scores before the update are counted from above on Megatron")
    return whole(job, budget or update)
