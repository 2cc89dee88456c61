"""memplan: what will a training job use, will it fit, and what should I change?

The public face. Names are loaded on first use, so that ``import memplan`` costs next to nothing."""

TYPE_CHECKING = False
"""As typing's: importing that is long enough for Ctrl-C to come before anybody could answer it."""
__version__ = "0.1.0"

__all__ = ["Job", "ModelSpec", "Report", "__version__", "compare", "estimate", "load_model", "plan"]

_HOMES = {
    "Job": "memplan.spec.job",
    "ModelSpec": "memplan.spec.model",
    "Report": "memplan.report",
    "compare": "memplan.api",
    "estimate": "memplan.api",
    "load_model": "memplan.api",
    "plan": "memplan.api",
}

if TYPE_CHECKING:
    from memplan.api import compare, estimate, load_model, plan
    from memplan.report import Report
    from memplan.spec.job import Job
    from memplan.spec.model import ModelSpec


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'memplan' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
