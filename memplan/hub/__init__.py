"""The Hugging Face Hub and its cache: the only network code.

``config`` fetches a config.json, ``weights`` verifies parameter totals; ``cache`` reads the cache without
huggingface_hub, ``network`` bounds every wait, ``refusal`` tells in two lines what went wrong. Names are loaded on
first use, so that a cached config costs only what it needs."""

from typing import TYPE_CHECKING, Any

__all__ = ["HubConfig", "Verification", "cached_models", "fetch_config", "verify_parameters"]

_HOMES = {
    "HubConfig": "memplan.hub.config",
    "Verification": "memplan.hub.weights",
    "cached_models": "memplan.hub.cache",
    "fetch_config": "memplan.hub.config",
    "verify_parameters": "memplan.hub.weights",
}

if TYPE_CHECKING:
    from memplan.hub.cache import cached_models
    from memplan.hub.config import HubConfig, fetch_config
    from memplan.hub.weights import Verification, verify_parameters


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'memplan.hub' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
