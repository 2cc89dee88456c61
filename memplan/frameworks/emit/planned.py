"""The JSON of ``memplan plan``: several jobs, the fastest first, of which a framework may have words for some."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks import ownjob
from memplan.frameworks.base import Framework
from memplan.frameworks.emit.writing import Emission, emit
from memplan.frameworks.files.documents import Document, open_document
from memplan.frameworks.reading import read_documents
from memplan.spec.reading import JobInput


def plans_of(path: str | None) -> list[Document]:
    """A document for each plan of a file; none where it is no plan."""
    if path is None or not path.lower().endswith(".json") or not os.path.isfile(path):
        return []
    document = open_document(path)
    values = document.settings.values
    plans = values.get("plans")
    if "plans" not in ownjob.marks(document) or not isinstance(plans, list):
        return []
    return [replace(document, settings=replace(document.settings, values={**values, "plans": [p]})) for p in plans]


def emit_plan(plans: Sequence[Document], options: Mapping[str, Any], row: Framework) -> tuple[Emission, JobInput, str]:
    """The files of the first plan that the framework can say, its job, and why those before it are passed over.

    Raises InvalidJob, of the first plan, where it can say none."""
    refused: list[InvalidJob] = []
    for number, document in enumerate(plans, start=1):
        try:
            given = read_documents([(document, ownjob.FRAMEWORK)], options)
            found = emit(given, row)
        except InvalidJob as error:
            refused.append(error)
            continue
        why = f"plan {number} of {len(plans)}: {refused[0].message}" if refused else ""
        return found, given, why
    if not refused:
        raise InvalidJob("there is no plan in the file", "plan for a larger card, or more GPUs")
    hint = refused[0].hint
    fixed = "".join(f" --fix {each}" for each in re.findall(r"[\w.]+=[^\s,]+", hint) if hint.startswith("use "))
    raise InvalidJob(f"none of {len(plans)} plans: {refused[0].message}", f"plan again{fixed or f': {hint}'}")
