"""What is asked of a job, and the answer as JSON: one way for the command line, for agents and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memplan.errors import UsageError

if TYPE_CHECKING:
    from memplan.diagnose.diagnosis import Diagnosis
    from memplan.report import Report
    from memplan.spec.reading import JobInput
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
    from memplan.usual import asks_for_ways

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

    return found._replace(remedies=worded(given, found.remedies))
