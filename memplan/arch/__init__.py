"""From a Hugging Face config.json to a ModelSpec, exactly as transformers 5.23 builds the model.

Files group families by what their layers are made of, which each says in its first line; a family is one row of data
(``ROWS``) of a file that ``FILES`` names, and stands in ``FAMILIES`` where more than ``build`` makes a model of it.
``config`` reads a key, ``attention`` heads and windows, ``decoder`` makes a spec of a row and a config; parts that rows
share are in ``layer_norm``, ``routed``, ``towers``. Another kind of layer is another file."""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from importlib import import_module

from memplan.arch.config import Config, shown
from memplan.errors import ModelError, UnknownArchitecture
from memplan.spec.model import ModelSpec
from memplan.units import words_of

__all__ = ["FAMILIES", "parse_config"]

Parser = Callable[[Config], ModelSpec]
"""What turns a config into a spec."""


class Families(MutableMapping[str, Parser]):
    """Parsers by model_type. Files are asked one after the other, and imported then: a type costs those before it."""

    def __init__(self, *files: Callable[[], Mapping[str, Parser]]) -> None:
        self._files, self._asked = files, 0
        self._parsers: dict[str, Parser] = {}

    def _ask(self, model_type: str | None) -> dict[str, Parser]:
        """What is known once a file has this type, or all have been asked."""
        for number, families in enumerate(self._files):
            if model_type in self._parsers:
                break
            if number >= self._asked:
                self._parsers |= families()
                self._asked = number + 1
        return self._parsers

    def __getitem__(self, model_type: str) -> Parser:
        return self._ask(model_type)[model_type]

    def __setitem__(self, model_type: str, parser: Parser) -> None:
        self._parsers[model_type] = parser

    def __delitem__(self, model_type: str) -> None:
        del self._parsers[model_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ask(None))

    def __len__(self) -> int:
        return len(self._ask(None))


def _of(file: str) -> Mapping[str, Parser]:
    from memplan.arch.decoder import build

    found = import_module(f"memplan.arch.{file}")
    families: dict[str, Parser] = {row.model_type: partial(build, row) for row in getattr(found, "ROWS", ())}
    families.update(getattr(found, "FAMILIES", {}))
    return families


def _with_towers() -> Mapping[str, Parser]:
    """Vision-language types, whose language models may be of any other type."""
    from memplan.arch import vision, vision_texts

    return vision.families(ChainMap(dict(vision_texts.TEXTS), DECODERS))


FILES = tuple(
    partial(_of, file)
    for file in words_of(
        """dense moe llama_like mla shared_moe post_norm gated_delta learned_positions layer_norm parallel_branches
        alibi falcon deepseek_v4 state_space hybrid nemotron_h lfm2 gemma4 gemma3n recurrent_gemma zamba2
        linear_attention encoders deberta modernbert t5 bart albert"""
    )
)
DECODERS = Families(*FILES)
"""Language models by their model_type."""
FAMILIES = Families(*FILES, _with_towers)
"""Every model_type that memplan describes."""

SHOWN = "such as llama, mistral, qwen3 (memplan show models has all)"
BY_CLASS = {"DeepseekV3ForCausalLM": "deepseek_v3"}
"""Classes that configs of other model_types name in ``architectures`` (Kimi-K2), and the type whose class it is."""


def parse_config(config: Mapping[str, object], name: str, source: str = "") -> ModelSpec:
    """The ModelSpec of a config.json's keys.

    Raises UnknownArchitecture for a config of a kind not described, ModelError for an impossible value."""
    if not isinstance(config, Mapping):
        raise ModelError(f"the config of {name} must be an object, not {shown(config)}", "pass a config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise UnknownArchitecture(
            f"the config of {name} names no model_type" + classes(config), f'add "model_type", {SHOWN}'
        )
    if model_type not in FAMILIES and (known := by_class(config)):
        spec = FAMILIES[known](Config(config, name, source))
        note = f"model_type {shown(model_type)} is read as {known}, whose class its architectures name"
        return spec.but(notes=(*spec.notes, note))
    if model_type not in FAMILIES:
        raise UnknownArchitecture(
            f"model_type {shown(model_type)}{classes(config)} is not one that memplan describes", hint(model_type)
        )
    return FAMILIES[model_type](Config(config, name, source))


def by_class(config: Mapping[str, object]) -> str | None:
    """The known model_type whose class a config of an unknown one names."""
    names = config.get("architectures")
    named = names[0] if isinstance(names, (list, tuple)) and names else None
    return BY_CLASS.get(named) if isinstance(named, str) else None


def classes(config: Mapping[str, object]) -> str:
    """The class names of the config in brackets, when it gives any."""
    names = config.get("architectures")
    if not isinstance(names, (list, tuple)):
        return ""
    texts = [name for name in names[:3] if isinstance(name, str) and name.isidentifier()]
    return f" ({', '.join(texts)[:80]})" if texts else ""


def hint(model_type: str) -> str:
    """The nearest known types, or all, and the way out."""
    from difflib import get_close_matches

    close = get_close_matches(model_type[:80], FAMILIES, 3)  # another number is the family's next version
    known = "nearest: " + ", ".join(close) if close else f"known: {SHOWN}"
    return known + "; or memplan estimate … --exact, if transformers knows it; or --total-params for a generic shape"
