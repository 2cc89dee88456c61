"""What an answer assumes: what decides memory and is nobody's word."""

from collections.abc import Iterator

from memplan.frameworks.draft import UNTIL
from memplan.report import Report
from memplan.spec.reading import LEFT_OUT, JobInput

HOW_MANY = ("sequence_length", "images", "batch_size", "eval_batch_size")
DECIDING = ("method", "model", "gpu", "num_gpus", *HOW_MANY, "sharding")


def assumed(given: JobInput, report: Report) -> Iterator[str]:
    """What decides memory and is nobody's word: 'sequence_length 1024 (TRL 1.16: max_length 1024)'."""
    for key in DECIDING:
        alone = key == "sharding" and report.job.get("num_gpus") == 1
        if report.sources.get(key) not in ("file", "option") and report.job.get(key) is not None and not alone:
            cluster = given.job.cluster if key in ("gpu", "num_gpus") else None
            whose = given.origins.get(key) or ("of the cluster" if cluster else "memplan's default")
            value = report.job[key]
            named = value.get("_name_or_path", value) if key == "model" and isinstance(value, dict) else value
            yield f"{key} {named} ({whose})"
    for key, origin in given.origins.items():
        if UNTIL in origin and report.sources.get(key) not in ("file", "option"):
            yield f"{key} {report.job[key]} ({origin})"
    yield from (f"without {each.key} (--without)" for each in given.unread if each.why == LEFT_OUT)
    short = report.verdict is not None and report.verdict.fits == "no"
    if short and given.job.lengths is None and report.job.get("completion_length"):
        yield "lengths at their longest (each prompt and answer as long as the file lets it be: shorter ones take less)"
