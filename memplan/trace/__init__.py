"""The project's own truth: the real model of a job on fake tensors, every storage tracked. Needs ``memplan[trace]``.

torch, transformers and peft are imported here and nowhere else, and only when something is traced."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memplan.errors import InternalError, UsageError
from memplan.trace.result import Trace, read_answer

if TYPE_CHECKING:
    from memplan.spec.job import Job
    from memplan.spec.reading import JobInput

PACKAGES = ("torch", "transformers", "peft")


def require_extra(what: str = "memplan trace", packages: Iterable[str] = PACKAGES) -> None:
    """Raise UsageError, saying what to install, where a package of the extra is missing."""
    from importlib.util import find_spec

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{what} needs {(', ' if len(missing) > 2 else ' and ').join(missing)}", 'pip install "memplan[trace]"'
        )


def trace(job: Job | Mapping[str, Any] | JobInput, progress: Callable[[str], None] = lambda text: None) -> Trace:
    """Run two steps of the job on fake tensors; what the second allocated. No GPU, no weights, no memory.

    Where torch is in the process already, and was not prepared, another process traces. Raises UsageError without the
    extra, InvalidJob for what cannot be traced, ModelError for an unknown model."""
    from memplan.api import as_input
    from memplan.models import model_config
    from memplan.resolve import resolve_training
    from memplan.trace.shim import is_too_late, load_shim
    from memplan.trace.support import check, check_fallback

    given = as_input(job)
    recipe = resolve_training(given)
    check(recipe)
    assert given.job.model is not None
    config = model_config(given.job.model, given.job.revision)
    require_extra()
    if is_too_late():
        return next(trace_apart([given.job.model_dump(mode="json", exclude_unset=True)]))
    progress("preparing fake CUDA tensors")
    shim = load_shim()
    if not shim.works:
        check_fallback(recipe, shim.reason)
    progress("importing torch and transformers")
    from memplan.trace.run import run

    return run(given.job, recipe, config, "cuda" if shim.works else "cpu", progress)


def trace_apart(jobs: Iterable[Mapping[str, Any]]) -> Iterator[Trace]:
    """Trace jobs one after another in another process. Raises what it raised, at that job."""
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run(
        [sys.executable, "-m", "memplan.trace.worker"], input=lines, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InternalError(f"the tracing process ended with {done.returncode}: {done.stderr[-200:]}")
    return map(read_answer, done.stdout.splitlines())
