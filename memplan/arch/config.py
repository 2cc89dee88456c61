"""Reading the keys of a config.json: each one typed, in range, and with the default of its transformers class.

A missing key is not a null key. A missing key takes the default of the config class (LlamaConfig has 32 layers,
Qwen3Config a head_dim of 128), because that is what transformers builds; a null key is a value of its own, which only
some keys may have. So a family brings the defaults of its class, and nothing is read that has none.

A config with a key that belongs to another kind of model is not what its model_type says (``refuse_foreign``).
transformers ignores a key that its class does not read, and so builds a plain model; the checkpoint, or the remote code
beside it, is another. A figure for the plain model would be silently wrong: it is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from memplan.arch.quantised import OTHERS, TODAY, method_of, note_of, stored
from memplan.errors import ModelError, UnknownArchitecture
from memplan.tables.quantizations import Stored
from memplan.tables.texts import texts_by_name
from memplan.units import words_of

Scalar = int | float | bool | str | None
Dtype = Literal["bf16", "fp16", "fp32"]

CLASSES: dict[str, dict[str, Scalar]] = json.loads(
    Path(__file__).with_name("config_classes.json").read_text(encoding="utf-8")
)
"""By model_type: the keys that decide the structure, with the defaults of the config class (transformers 5.23,
``models/<type>/configuration_<type>.py``). A key that stands for another name is null here. "llava vision_config": what
a class takes where its config has no such section."""

NAMES = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
LARGEST = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "head_dim": 100_000,
    "hidden_size": 1_000_000,
    "num_experts": 100_000,
    "num_local_experts": 100_000,
    "num_experts_per_tok": 100_000,
    "vocab_size": 100_000_000,
    "intermediate_size": 100_000_000,
    "moe_intermediate_size": 100_000_000,
}
"""Far above any model, far below what would take long to describe; other keys may go to ``LARGEST_OTHER``."""
LARGEST_OTHER = 10**12

DTYPES: dict[str, Dtype] = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""Names of torch dtypes that training computes in."""
STORAGE_DTYPES = ("float64", "double", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")
"""Names of torch dtypes that a config may carry, but that say nothing about training."""


def sizes(**given: int) -> dict[str, int]:
    """Sizes under the keys that nearly every config class has for them: ``layers=32`` is num_hidden_layers."""
    return {NAMES[name]: value for name, value in given.items()}


def shown(value: object) -> str:
    """A value as an error message shows it: one short line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        text = "null" if value is None else repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


class Config:
    """The keys of one config.json, with the defaults of the class that reads them."""

    def __init__(self, keys: Mapping[str, object], name: str, source: str = "") -> None:
        self.keys = keys
        self.name = name
        self.source = source
        self.model_type = "the config"
        self.defaults: Mapping[str, Scalar] = {}
        self.notes: list[str] = []

    def with_defaults(self, model_type: str, names: Mapping[str, str] | None = None) -> "Config":
        """The same keys, read as a model type, with the defaults of its class.

        ``names``: what the class calls a key, where that is not the common name (its ``attribute_map``: GPT-2 has
        n_embd for hidden_size). A config may use either; of both, the common one holds."""
        keys = dict(self.keys)
        for common, own in (names or {}).items():
            if own in keys:
                keys.setdefault(common, keys.pop(own))
        config = Config(keys, self.name, self.source)
        config.model_type = model_type
        config.defaults = CLASSES.get(model_type, {})
        return config

    def wrong(self, key: str, expected: str, value: object) -> ModelError:
        """The error of a key whose value cannot be; the caller raises it."""
        return ModelError(
            f"{key} of {self.model_type} must be {expected}, not {shown(value)}",
            f"correct {key} in {self.source or self.name}",
        )

    def note_defaults(self, keys: tuple[str, ...]) -> None:
        """Say which of these keys are missing, and what the class takes instead."""
        missing = [key for key in keys if key not in self.keys and self.defaults.get(key) is not None]
        if missing:
            taken = ", ".join(f"{key} {self.defaults[key]}" for key in missing)
            self.notes.append(f"missing in the config, so taken from transformers' {self.model_type} defaults: {taken}")

    def value(self, key: str) -> object:
        """What the config says, or the default of the class."""
        return self.keys[key] if key in self.keys else self.defaults[key]

    def integer(self, key: str, smallest: int = 1) -> int:
        """An integer in range; bool, float and text are none."""
        counted = "num_hidden_layers" if "layers" in key or "depth" in key else key
        value, largest = self.value(key), LARGEST.get(counted, LARGEST_OTHER)
        if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
            raise self.wrong(key, f"an integer from {smallest} to {largest}", value)
        return value

    def integers(self, *keys: str) -> tuple[int, ...]:
        """Several integers in range."""
        return tuple(map(self.integer, keys))

    def optional_integer(self, key: str) -> int | None:
        """An integer in range, or None for null."""
        return None if self.value(key) is None else self.integer(key)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.value(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def optional_positive(self, key: str) -> float | None:
        """A finite number above zero, or None for null."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
            raise self.wrong(key, "a positive number or null", value)
        return float(value)

    def choice(self, key: str, known: Mapping[str, str]) -> str:
        """A text that ``known`` translates."""
        value = self.value(key)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(key, "one of " + ", ".join(known), value)
        return known[value]

    def drops(self, key: str, nullable: bool = False) -> bool:
        """Whether a probability of dropout is above zero."""
        value = self.value(key)
        if value is None and nullable:
            return False
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
            raise self.wrong(key, "a probability from 0 to below 1", value)
        return value > 0

    def require_off(self, key: str, why: str) -> None:
        """Refuse a value that would add memory that nothing here counts."""
        value = self.value(key)
        if value is None or (isinstance(value, (bool, int, float)) and value == 0):
            return
        raise ModelError(
            f"{key} of {self.model_type} is {shown(value)}, which memplan does not describe: {why}",
            f"set it to {'false' if isinstance(value, bool) else '0'} in a copy of the config to estimate without it",
        )

    def dtype(self) -> Dtype | None:
        """The dtype that the checkpoint names: ``dtype``, or ``torch_dtype`` of older files, which yields to it."""
        value = self.keys.get("dtype")
        key = "torch_dtype" if value is None else "dtype"
        value = self.keys.get(key)
        name = value.removeprefix("torch.") if isinstance(value, str) else None
        if value is None or name == "auto":
            return None
        if name in STORAGE_DTYPES:
            self.notes.append(f"{key} {name} is not a dtype that training computes in: the job's precision decides")
            return None
        if name not in DTYPES:
            raise self.wrong(key, "one of " + ", ".join(DTYPES), value)
        return DTYPES[name]

    def quantization(self) -> Stored | None:
        """How the checkpoint is quantised; parameters are counted as they were before it."""
        given = self.keys.get(TODAY)
        if given is not None and not isinstance(given, Mapping):
            raise self.wrong(TODAY, "an object", given)
        if given is not None and method_of(given) is None:
            raise self.wrong(f"{TODAY}.quant_method", "the name of a method", given.get("quant_method"))
        for section in (given, *(self.keys.get(key) for key in OTHERS)):
            if isinstance(section, Mapping) and (method := method_of(section)) is not None:
                self.notes.append(note_of(method, section))
                return stored(method, section, self.keys)
        return None


def unknown_architecture(model_type: str, config: Config, why: str) -> UnknownArchitecture:
    """The error of a config that names a known type and yet describes another kind of model."""
    return UnknownArchitecture(
        f"{config.name} is not a plain {model_type}: {why}",
        "use a preset of the same shape, or --total-params for a generic one",
    )


STRUCTURAL = {why: words_of(keys) for why, keys in texts_by_name(__file__).items()}
"""Why a config is refused, and the keys that say so when they hold anything but null, false, zero or nothing."""

UNREAD = ("sliding_window", "use_sliding_window", "num_nextn_predict_layers")
"""Keys that copied configs carry for a class that never reads them: noted, since transformers' model is without."""


def is_off(value: object) -> bool:
    """Whether a key holds null, false, zero or nothing."""
    if isinstance(value, (str, list, tuple, Mapping)):
        return not value
    return value is None or (isinstance(value, (bool, int, float)) and value == 0)


def refuse_foreign(config: Config, harmless: tuple[str, ...] = ()) -> None:
    """Refuse a config with a structural key that the class of its model_type does not read."""
    for why, keys in STRUCTURAL.items():
        for key in keys:
            if (
                key in config.keys
                and key not in config.defaults
                and key not in harmless
                and not is_off(config.keys[key])
            ):
                value = config.keys[key]
                raise unknown_architecture(config.model_type, config, f"{why} ({key}: {shown(value)})")


def note_unread(config: Config) -> None:
    """Say which keys of the config have no effect, though one would expect one."""
    for key in UNREAD:
        if key not in config.defaults and not is_off(config.keys.get(key)):
            config.notes.append(f"{key} is no key of {config.model_type}: transformers ignores it, and so does memplan")
    if config.keys.get("auto_map"):
        config.notes.append("the config names code of its own; described is transformers' class of the same model_type")
