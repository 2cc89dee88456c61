"""A model that memplan does not describe: transformers' own class on the meta device, counted and described.

``AutoConfig.for_model`` and ``from_config``: no weights, no network, and never code from beside a checkpoint. The
parameters are exact. The activations are derived from the modules found (``modules.py``), which is an assumption: the
spreads say how far that is from descriptions that agree with traces (``benchmarks/exact.py``)."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplan.arch import FAMILIES, parse_config
from memplan.errors import ModelError, UnknownArchitecture, nearest
from memplan.models import model_config
from memplan.spec.model import ModelSpec
from memplan.trace import require_extra

PACKAGES = ("torch", "transformers")
REMOTE = ("auto_map", "model_type", "dtype", "torch_dtype", "quantization_config", "transformers_version")
"""Keys of a config that choose code, or a dtype that is the job's: the class is built without them."""


@dataclass(frozen=True, slots=True)
class Exact:
    """A model as transformers builds it."""

    spec: ModelSpec
    """Described from its modules; for a type that memplan describes, that description."""
    class_name: str
    total: int
    """Parameters, tied ones once."""
    by_category: dict[str, int]
    described: bool
    """memplan describes this type."""

    @property
    def agrees(self) -> bool:
        """Whether the description counts what the class holds."""
        return self.spec.params.total == self.total

    @property
    def summary(self) -> str:
        """One line for people."""
        held = f"{self.class_name} of transformers holds {self.total:,} parameters"
        if self.agrees:
            return held + (", as memplan counts" if self.described else "")
        return f"{held}, and memplan counts {self.spec.params.total:,} ({self.spec.params.total - self.total:+,})"


def exact_model(model: str | os.PathLike[str] | Mapping[str, Any], revision: str | None = None) -> Exact:
    """The model of a preset, path, Hub id or config mapping, built by transformers' class on the meta device.

    Raises UsageError without the extra, UnknownArchitecture for a type that transformers does not know either, and
    ModelError for a config that its class refuses, or a model that has no layers of tokens."""
    config = model_config(model, revision)
    name = str(config.get("_name_or_path") or "inline config") if isinstance(model, Mapping) else os.fspath(model)
    require_extra("--exact", PACKAGES)
    built, parsed = build(config, name)
    from memplan.trace.modules import describe

    total = sum(parameter.numel() for parameter in built.parameters())
    found = describe(built, parsed, name)
    described = config.get("model_type") in FAMILIES
    spec = parse_config(config, name, str(model) if isinstance(model, str) else name) if described else found
    return Exact(spec, type(built).__name__, total, found.params.by_category, described)


def build(config: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """The class that predicts tokens, on the meta device, and its config."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING_NAMES:
        close = nearest(str(model_type)[:80], CONFIG_MAPPING_NAMES)
        raise UnknownArchitecture(
            f"model_type {str(model_type)[:80]!r} of {name}: transformers {transformers.__version__} knows none such",
            (f"nearest: {', '.join(close)}; " if close else "") + "or --total-params for a generic shape of that size",
        )
    settings = {key: value for key, value in config.items() if key not in REMOTE}
    try:
        with warnings.catch_warnings(), torch.device("meta"), no_init_weights():
            warnings.simplefilter("ignore")
            parsed = transformers.AutoConfig.for_model(model_type, **settings)
            maker = class_of(parsed, model_type, name)
            model = maker.from_config(parsed, attn_implementation="eager", trust_remote_code=False)
            model.tie_weights()
    except UnknownArchitecture:
        raise
    except Exception as error:  # a config may break its class in any way
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise ModelError(f"transformers cannot build {name}: {reason[:200]}", "correct its config.json") from None
    return model, parsed


def class_of(parsed: Any, model_type: str, name: str) -> Any:
    """The auto class of a type: of text, or of images and text. Raises UnknownArchitecture where there is none."""
    import transformers

    makers = [transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText]
    if parsed.sub_configs:
        makers.reverse()
    if getattr(parsed, "is_encoder_decoder", False):
        raise UnknownArchitecture(
            f"{name} ({model_type}) is an encoder-decoder, which --exact does not describe",
            "memplan describes T5 and mT5",
        )
    for maker in makers:
        if type(parsed) in maker._model_mapping:
            return maker
    raise UnknownArchitecture(
        f"transformers has no class of {model_type} that predicts the next token", "name a language model"
    )
