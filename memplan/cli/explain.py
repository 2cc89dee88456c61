"""memplan explain: what a term is; with a job, its numbers."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.cli import options, output
from memplan.cli.estimate import report_of
from memplan.cli.output import Result
from memplan.errors import EXIT_DONE, UsageError
from memplan.spec.job import Job
from memplan.spec.reading import canonical_key

HELP = """What a term of a report is: formula, lifetime, what divides it, source. With a job, its numbers.

Examples: memplan explain optimizer-states; memplan explain logits llama-3.1-8b --method simpo
"""


def explain(values: Mapping[str, Any]) -> int:
    """Find the term, estimate the job if there is one, write both."""
    from memplan.render.ledger_view import term_blocks, term_data, term_rows
    from memplan.tables.terms import find_term

    if values.get("term") is None:
        raise UsageError("explain which term?", "memplan explain optimizer-states, say; memplan show terms lists them")
    word = values["term"]
    try:
        term = find_term(word)
    except UsageError as error:
        raise _no_term(word) or error from None
    to = output.read_output(values)
    model, keys = options.collect(values)
    report = report_of(values) if model is not None or keys else None
    to.write(
        Result(
            lambda: term_data(term, report),
            lambda width: term_blocks(term, report),
            (lambda: term_rows(term, report)) if report else None,
        )
    )
    return EXIT_DONE


def _no_term(word: str) -> UsageError | None:
    """The error of a word that is no term and yet something known: an out-of-memory message, or a key of a job."""
    if _OOM.search(word):
        hint = "memplan diagnose reads it: memplan diagnose train.log, or paste the text after memplan diagnose -"
        return UsageError(f"{word[:80]!r} is an error, no term", hint)

    key = canonical_key(word.lstrip("-"))
    if key not in Job.model_fields:
        return None
    from memplan.cli.helps import attribute_docstrings

    said = " ".join(attribute_docstrings(Job).get(key, "").split())
    return UsageError(f"{word[:80]!r} is a key of a job, no term", f"{key}: {said} memplan estimate --help-all has all")


_OOM = re.compile(r"out.?of.?memory|oom.?kill|tried to allocate", re.IGNORECASE)
"""What an out-of-memory error says of itself, beside the word alone."""
