"""What a trainer of a program is given, as settings: keys, values and places, and values that only a run knows."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from memplan.frameworks.asking import beside
from memplan.frameworks.base import ASSUMED, Draft, Origin
from memplan.frameworks.common.local_models import is_folder
from memplan.frameworks.deciding import subject_of
from memplan.frameworks.files.documents import Settings, words
from memplan.frameworks.hugging_face.arguments import FIELDS
from memplan.frameworks.hugging_face.arguments import HARMLESS as TRAINER_HARMLESS
from memplan.frameworks.hugging_face.version import SIGNS
from memplan.frameworks.programs.operators import open_
from memplan.frameworks.programs.values import EVALUATES, Method, Place, Ref, Thing, Unknown, known, plain, root_of
from memplan.frameworks.trl.keys import HARMLESS, MARKS, METHOD_KEYS, METHODS, TRAINER
from memplan.frameworks.trl.online import COMPLETIONS
from memplan.spec.deepspeed import NO_EFFECT
from memplan.tables.texts import parts_of, rows_of

_PARTS = parts_of(__file__)

ASKS: Mapping[str, str] = rows_of(_PARTS["asks"])
"""A setting -> the job's key that an option gives in its place."""
BESIDE = {"teacher_model_name_or_path": "teacher", "reward_model_name_or_path": "reward", "reward_model_path": "reward"}
"""Models beside the trained one, and their roles."""
ATTENTION = ("flash_attention_3", "flash_attention_2", "sdpa", "eager")
"""Implementations of attention, each of which takes no less than those before it."""
LARGEST: Mapping[str, Any] = {
    **dict.fromkeys(
        words(
            """per_device_train_batch_size per_device_eval_batch_size max_length max_seq_length max_completion_length
            max_prompt_length beta"""
        ),
        max,
    ),
    "gradient_checkpointing": min,
    "attn_implementation": lambda several: max(several, key=ATTENTION.index),
}
"""Settings that need the more memory the larger they are, or the less: of several values that one may have, which."""
NO_BOUND = 1_000_000
"""A length from which on rows are as long as the data makes them."""
WITHOUT = words("num_generations temperature packing bf16_full_eval fp16_full_eval")
"""Settings that decide little where they are not known."""
OF_ONE_SIZE = ("dpo", "kto", "grpo", "rloo")
"""Methods whose losses of another name make the same tensors, as far as they are modelled."""
ONLINE = words("max_prompt_length beta")
"""Those that decide something where a policy generates, and little elsewhere."""
MODEL_HARMLESS = words(_PARTS["model-harmless"])
"""Arguments of ``from_pretrained`` without effect on memory, or with one that is read elsewhere."""


SEQ2SEQ = words("generation_max_length generation_num_beams generation_config sortish_sampler")
"""Of Seq2SeqTrainingArguments: how evaluation generates (transformers 5.23 training_args_seq2seq.py)."""


LIBRARY = FIELDS | HARMLESS | MARKS | {key for keys in METHOD_KEYS.values() for key in keys} | {*TRAINER, *ASKS}
LIBRARY |= {key for row in METHODS.values() for key in row}
LIBRARY |= {key for of, place, signs, _ in SIGNS if (of, place) == ("trl", "args") for key in signs.split()}
"""Arguments of the libraries' own: what a program adds to them, it reads itself."""


@dataclass
class Gathered:
    """Settings of one training on their way to a reader."""

    path: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    open: list[tuple[str, Unknown, Place]] = field(default_factory=list)
    """Settings whose values are not known."""
    bounds: dict[str, str] = field(default_factory=dict)
    """Job's keys whose value is the one of several that needs the most memory, and why."""

    def add(self, key: str, value: Any, place: Place, over: bool = True) -> None:
        """A setting; ``over``: in place of an earlier one."""
        if (key in self.places and not over) or key in SEQ2SEQ:
            return
        self.values.pop(key, None)
        self.open = [each for each in self.open if each[0] != key]
        self.places[key] = place
        if key == "gradient_accumulation_steps" and value == 0:  # batch // micro_batch // WORLD_SIZE
            value = Unknown("0 by the program's own sum", place)
        if ASKS.get(key) == "sequence_length" and type(value) is int and value >= NO_BOUND:
            value = Unknown(f"{value}, which cuts nothing", place)
        if key == "model_name_or_path" and value in (None, ""):
            value = Unknown("not in the text", place)
        if key == "model_name_or_path":
            value = self._of_hub(value)
        if key == "parallelism_config" and isinstance(value, Thing) and value.last == "ParallelismConfig":
            sizes = {f"{key}_{name}": size for name, size in value.values.items() if size is not None}
            value = sizes if all(type(size) is int for size in sizes.values()) else value
        if key == "deepspeed" and isinstance(value, dict):
            value = _deciding(value)
        if known(value):
            self.values[key] = plain(value)
        else:
            shown = value if isinstance(value, Unknown) else Unknown(described(value), place, (), root_of(value))
            self.open.append((key, shown, place))

    def _of_hub(self, value: Any) -> Any:
        """Of a folder that is not here and a name of the Hub, as a program falls back on it, the name; of one that its
        command leaves to a variable, which may be, nothing."""
        names = value.either if isinstance(value, Unknown) else ()
        if not all(isinstance(each, str) and not open_(each) for each in names):
            return value
        hub = [each for each in names if not is_folder(each)]
        if len(set(hub)) != 1 or len(hub) == len(names) or any(os.path.exists(each) for each in names):
            return value
        self.bounds["model"] = f"{value.place}: {verb(value)}: the folder is not here"
        return hub[0]

    def drop(self, key: str) -> None:
        """Take a setting out, which is read elsewhere."""
        self.values.pop(key, None)
        self.open = [each for each in self.open if each[0] != key]

    def settings(self) -> Settings:
        """As a reader takes them."""
        lines = {key: place.line for key, place in self.places.items()}
        paths = {key: place.path for key, place in self.places.items() if place.path != self.path}
        return Settings(self.path, self.values, lines, paths=paths)

    def where(self, key: str) -> str:
        """Place of a setting."""
        return str(self.places[key]) if key in self.places else self.path

    def ask(self, draft: Draft, method: str) -> None:
        """Ask for what is not known, by the job's key."""
        online = method in COMPLETIONS
        asked: set[str] = set()
        for key, unknown, place in self.open:
            if (key in ONLINE and not online) or self._bounded(key, unknown, place):
                continue
            if key == "per_device_eval_batch_size" and (online or not self.evaluates("steps")):
                continue
            job_key, what = ASKS.get(key, ""), f"{key} {verb(unknown)}"
            if key == "loss_type" and method in OF_ONE_SIZE:
                draft.remarks.append(f"{place}: {what}: {method}'s usual loss is counted")
            elif key == "gradient_accumulation_steps":
                draft.remarks.append(
                    f"{place}: {what}: gradients are accumulated over 1 step, which memory hardly feels"
                )
            elif job_key == "completion_length" and (longest := draft.options.get("sequence_length")):
                why = f"{what}: it is counted as long as the sequence"
                draft.bound(key, str(place), why, "lengths", job_key)
                draft.finishers[job_key] = partial(_as_long, longest)
            elif job_key and job_key not in asked:
                asked.add(job_key)
                draft.ask(job_key, str(place), what, beside(BESIDE[key]) if key in BESIDE else "")
            elif key == "model_init_kwargs":
                draft.ask("quantization", str(place), what)
            elif not job_key and key not in HARMLESS | TRAINER_HARMLESS | WITHOUT | MODEL_HARMLESS:
                draft.warn(key, str(place), f"its value {verb(unknown)}", subject_of(key))

    def evaluates(self, unknown: str) -> bool:
        """Whether there is an evaluation; ``unknown``: what a strategy is taken for that only a run knows."""
        given = [self.values.get(key, unknown) for key in EVALUATES if key in self.places]
        return any(str(each).rpartition(".")[2].lower() not in ("", "no", "false", "none") for each in given)

    def _bounded(self, key: str, unknown: Unknown, place: Place) -> bool:
        """Whether of several values the one that needs most is taken, which is said."""
        if key in EVALUATES:  # "steps" if eval_dataset is not None else "no"
            said = (each for each in unknown.either if isinstance(each, str) and each != "no")
            self.values[key] = next(said, "steps")
            self.bounds["eval_batch_size"] = f"{place}: {key} {verb(unknown)}: an evaluation is counted"
            return True
        if set(map(type, unknown.either)) == {type(None), int} and "model_max_length >" in unknown.text:
            (self.values[key],) = {each for each in unknown.either if each is not None}
            self.bounds[ASKS[key]] = f"{place}: {key} {verb(unknown)}: of a tokenizer that has no bound of its own"
            return True
        kind = {"gradient_checkpointing": bool, "attn_implementation": str, "beta": float}.get(key, int)
        if key not in LARGEST or not unknown.either or any(type(each) is not kind for each in unknown.either):
            return False
        if kind is str and not set(unknown.either) <= set(ATTENTION):
            return False
        self.values[key] = LARGEST[key](unknown.either)
        several = " and ".join(dict.fromkeys(str(each).lower() for each in unknown.either))
        self.bounds[ASKS[key]] = f"{place}: {key} {verb(unknown)}: of {several} what needs the most is counted"
        return True

    def mark(self, draft: Draft) -> None:
        """That of several values one is assumed, once the reader has taken it."""
        for key, why in self.bounds.items():
            if key in draft.origins:
                draft.origins[key] = Origin(ASSUMED, why)
            if key in ("attention", "gradient_checkpointing", "reference"):  # of which nobody says what was assumed
                draft.remarks.append(why)


def _deciding(config: dict[Any, Any]) -> dict[Any, Any]:
    """DeepSpeed's settings, without those that change no buffer and whose values only a run knows."""
    found = {key: each for key, each in config.items() if key not in NO_EFFECT or known(each)}
    optimizer = found.get("optimizer")
    if isinstance(optimizer, dict) and isinstance(optimizer.get("params"), dict):
        params = {key: each for key, each in optimizer["params"].items() if key == "torch_adam" or known(each)}
        found["optimizer"] = {**optimizer, "params": params}
    return found


def _as_long(longest: int, draft: Draft) -> None:
    """A completion of which nothing is known but the sequence's length, which bounds it."""
    draft.values["completion_length"] = longest


def described(value: Any) -> str:
    """What stands where a plain value is wanted."""
    if isinstance(value, Method):
        return f".{value.name} of something that the text does not hold"
    if isinstance(value, Ref):
        return f"{value.name}, which is not in this file"
    if isinstance(value, Thing) and value.last == "Path":
        return described(value.values.get("*0"))
    if isinstance(value, (list, tuple, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return next((described(each) for each in inner if not known(each)), "not known")
    return value.text if isinstance(value, Unknown) else "made by the program"


def verb(unknown: Unknown) -> str:
    """'is x.y', 'depends on n > 1'."""
    return unknown.why if unknown.text.startswith("depends on ") else f"is {unknown.why}"
