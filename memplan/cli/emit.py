"""memplan emit: the files that run a job, for one framework."""

import difflib
import os
from collections.abc import Mapping
from typing import Any

from memplan.cli import options
from memplan.cli.edge import note, warn
from memplan.cli.output import print_text
from memplan.errors import EXIT_DONE, EXIT_USAGE, UsageError

HELP = """Ready-to-run files of a job for a framework: its arguments, how it is launched, the environment.

JOB is a job, a preset, a plan's JSON, or another framework's file. What the framework cannot say is an error.
Example: memplan emit trl simpo-8b-8xh100 --trainer trl -o run/; memplan emit trl job.yaml --onto train.yaml
"""


def emit(values: Mapping[str, Any]) -> int:
    """Resolve, write, read back; files, a diff, or text on the screen."""
    from memplan.frameworks.accelerate.write import SCRIPT
    from memplan.frameworks.emit.onto import changed
    from memplan.frameworks.emit.read_back import asked
    from memplan.frameworks.emit.writing import emit as emit_files
    from memplan.frameworks.emit.writing import emit_plan, not_fitting, plans_of, write_files
    from memplan.frameworks.registry import find_framework, frameworks
    from memplan.spec.option_words import option_words

    if values.get("framework_") is None:
        known = ", ".join(name for name, row in frameworks().items() if row.write)
        raise UsageError("emit for which framework?", f"one of {known}")
    row = find_framework(values["framework_"])
    model, keys = options.collect(values)
    plans = plans_of(model) if not values.get("with_") and not values.get("framework") else []
    if plans:
        found, given, passed = emit_plan(plans, keys, row)
        note(passed) if passed else None
    else:
        given = options.read_given(values)
        found = emit_files(given, row)
    folder, onto, force = values.get("folder"), values.get("onto"), bool(values.get("force"))
    if onto is not None:
        _onto(onto, changed(onto, found, given.job), folder, force)
    elif folder is None:
        print_text("".join(f"# --- {name}\n{text}\n" for name, text in found.texts.items()), False)
    else:
        for path in write_files(found.texts, folder, force):
            note(f"wrote {path}")
            if os.path.basename(path) == SCRIPT:
                note(f"memplan check {path} {option_words(asked(found.given, row, path))}".rstrip() + " reads them all")
    for text in (*found.report.warnings, *not_fitting(found.report)):
        warn(text)
    return EXIT_USAGE if found.report.unclear else EXIT_DONE


def _onto(path: str, text: str, folder: str | None, force: bool) -> None:
    """The changed file: into a folder, over the old one with --force, else the difference on the screen."""
    from memplan.frameworks.emit.writing import write_files

    if folder is not None or force:
        target = folder if folder is not None else os.path.dirname(path) or "."
        for written in write_files({os.path.basename(path): text}, target, force):
            note(f"wrote {written}")
        return
    with open(path, encoding="utf-8") as file:
        before = file.read()
    lines = difflib.unified_diff(before.splitlines(True), text.splitlines(True), path, path)
    print_text("".join(lines) or f"{path} says this job already\n", False)
