"""memplan's own job files, as one framework among the others: told by keys that nobody else has."""

from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.base import FILE, Draft, Framework, Origin
from memplan.frameworks.files.documents import Document, words
from memplan.spec.job import Job
from memplan.spec.reading import canonical_key, normalise

SHARED = words(
    """gradient_checkpointing gradient_accumulation_steps optimizer deepspeed fsdp ddp precision dtype
    eval_batch_size temperature revision megatron compile images cluster gpu margin"""
)
"""Keys of a job that other frameworks' files have too."""
SECTIONS = ("lora", "rollout")
"""Mappings of a job, which a project's own file has too."""
FORMS = ("yaml", "json")
"""In which a job is written."""


OF_A_MODEL = {"model_type", "architectures", "hidden_size", "num_hidden_layers", "vocab_size"}


def _has_sections(values: Mapping[str, Any]) -> bool:
    """Whether ``model`` is a section of settings, and no model's config."""
    model = values.get("model")
    return isinstance(model, Mapping) and not OF_A_MODEL & {*model}


def marks(document: Document) -> tuple[str, ...]:
    """Keys of a memplan job that are words, numbers or LoRA's mapping; others use some of the names for sections."""
    values = document.settings.values
    if document.form == "json" and "schema_version" in document.keys:
        return tuple(key for key in ("plans", "per_gpu") if key in document.keys)
    if document.form not in FORMS or _has_sections(values):
        return ()
    own = [key for key in values if isinstance(key, str) and key in Job.model_fields and key not in SHARED]
    others = [key for key in values if canonical_key(str(key)) not in Job.model_fields]
    if 2 * len(others) > len(values) or any(isinstance(values[key], Mapping) for key in others):
        return ()  # a project's own file with a few of the names, or with sections of its own
    return tuple(key for key in own if not isinstance(values[key], Mapping) or (key in SECTIONS and not others))


def is_job(document: Document) -> bool:
    """Whether every key is one that a memplan job may have, and one at least is its own."""
    if not marks(document) or document.form not in FORMS:
        return False
    known = {canonical_key(str(key)) for key in document.settings.values}
    try:
        normalise(dict.fromkeys(known, 0))
    except InvalidJob:
        return False
    return True


def may_be(document: Document) -> bool:
    """Whether every key is one that a memplan job may have, where no other framework knows any: ``max_length: 512``."""
    if document.form not in FORMS or not document.settings.values or _has_sections(document.settings.values):
        return False
    try:
        normalise({str(key): 0 for key in document.settings.values})
    except InvalidJob:
        return False
    return True


def read(document: Document, draft: Draft) -> None:
    """The job's keys as they stand; of a plan the first, which is the best; of a report its job."""
    given = document.settings.values
    if document.form == "json" and "schema_version" in given:
        plans = given.get("plans")
        found = plans[0] if isinstance(plans, list) and plans else given
        job = found.get("job") if isinstance(found, Mapping) else None
        if not isinstance(job, Mapping):
            raise InvalidJob(f"{document.path}: there is no job in it", "give the JSON of memplan plan or estimate")
        given = {key: value for key, value in job.items() if value is not None}
    values, ignored = normalise(given, f"{document.path}: ")
    for key, value in values.items():
        draft.put(key, value, Origin(FILE, f"{document.settings.where(key)}: {key}"))
    draft.remarks += [f"{key} has no effect on memory" for key in ignored]


FRAMEWORK = Framework("memplan", "memplan", "", marks, read)
