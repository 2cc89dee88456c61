"""What is asked of a job, and the answer as JSON: one way for the command line, for agents and for the page.

What a job is taken to be where a user has named a model and little else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memplan.errors import InvalidJob, UsageError
from memplan.spec.reading import JobInput
from memplan.tables.methods import METHODS
from memplan.units import words_of

if TYPE_CHECKING:
    from memplan.diagnose.diagnosis import Diagnosis
    from memplan.report import Report
    from memplan.ways import Ways


def given_job(keys: Mapping[str, Any], file: str | None = None, beside: Sequence[str] = ()) -> JobInput:
    """The job of a file under the keys, or of the keys alone. Raises UsageError where neither is there."""
    from memplan.frameworks.reading import read_target

    keys = dict(keys)
    if not keys and file is None:
        raise UsageError("which job?", 'give job, such as {"model": "qwen3-8b", "method": "dpo"}, or file')
    model = keys.get("model") if file is None else None
    if isinstance(model, str):
        del keys["model"]
    return read_target(file or (model if isinstance(model, str) else None), keys, beside)


def report_of(given: JobInput, play: bool | None = None) -> Report:
    """The report of a job; of one that a file describes, with the remedies in the file's words."""
    from memplan.api import estimate

    report = estimate(given, play=play)
    if given.source is None:
        return report
    from memplan.frameworks.own_words.words import in_own_words

    return in_own_words(given, report)


def ways_of(given: JobInput) -> Ways | None:
    """The ways to train a model, where neither method nor trainer is named."""

    if not asks_for_ways(given):
        return None
    from memplan.ways import ways

    return ways(given)


def report_data(report: Report, ways: Ways | None = None) -> dict[str, Any]:
    """What ``estimate --json`` holds."""
    return report.to_dict() | ({"ways": [way.to_dict() for way in ways.rows]} if ways else {})


def without_searches(report: Report) -> Report:
    """The report without what a search finds, which takes most of its time: remedies, cards, shares."""
    from dataclasses import replace

    return replace(report, remedies=(), cards=(), from_sft=(), shares=())


def diagnosis_of(text: str, given: JobInput | None = None) -> Diagnosis:
    """What an out-of-memory text says; with the job behind it, the changes with which it fits, in its file's words."""
    from memplan.diagnose.diagnosis import diagnose, diagnose_job

    if given is None:
        return diagnose(text)
    found = diagnose_job(text, given)
    if given.source is None:
        return found
    from memplan.frameworks.own_words.words import worded

    return found._replace(remedies=tuple(worded(given, found.remedies)))


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

    usual = given._replace(job=given.job.but(trainer="trl"))
    try:
        resolve(usual)
    except InvalidJob:
        return given
    why = f"trainer: trl, which trains most models of the Hub by {method}; --trainer pytorch is a bare loop"
    return usual._replace(assumptions=(*given.assumptions, why))
