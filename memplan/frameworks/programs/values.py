"""What expressions of a program come to without running it: plain values, names and things of libraries, functions of
the program's own, and what nobody knows before it runs."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

from memplan.units import words_of

LIBRARIES = frozenset(
    words_of(
        """trl transformers peft unsloth accelerate torch bitsandbytes deepspeed datasets os pathlib argparse
        dataclasses optimum liger_kernel huggingface_hub yaml omegaconf toml tomllib torchvision numpy pandas fire
        typer click pydantic pydantic_settings packaging functools copy json typing types modelscope megatron"""
    )
)
"""Packages whose names mean what they say; a name of any other is the project's own."""
MAX_TEXT = 20_000
OPTION = "the option --"
"""How the origin of a value begins that the program's command gives."""


LEFT_OUT = {"fp16": False, "bf16": False, "gradient_checkpointing": False}
"""Switches of transformers' TrainingArguments, as they are where a command leaves them out."""
EVALUATES = ("eval_strategy", "evaluation_strategy")
"""How TrainingArguments name when to evaluate."""
ANSWERS = re.compile(r"(is|has|can|get|use|needs|should|find|check|any|all|getenv|environ|which)(_|dir|file|$)|exists")
"""How functions of libraries are called that answer a question."""


class Place(NamedTuple):
    """Where something stands."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"


@dataclass(frozen=True, eq=False)
class Unknown:
    """A value that only a run knows."""

    text: str
    """How it is written, or whose it is."""
    place: Place
    either: tuple[Any, ...] = ()
    """The values that it may have, where these are known."""
    root: str = ""
    """What it comes from in the end: an option of the command, a parameter of a function that nobody calls here."""

    @property
    def why(self) -> str:
        """'cfg["model"] (of the option --config of its command)'."""
        return self.text if not self.root or self.root in self.text else f"{self.text} (of {self.root})"


def unknown_option(name: str, place: Place) -> Unknown:
    """What an option of the program's command says, which nobody gave."""
    whose = f"{OPTION}{name} of its command"
    return Unknown(whose, place, (), whose)


def is_open(value: Any) -> bool:
    """Whether nothing at all is known of a value."""
    return isinstance(value, Unknown) and not value.either


class Ref(NamedTuple):
    """A name of a library, or of nobody: ``trl.SFTTrainer``, ``torch.bfloat16``."""

    name: str

    @property
    def last(self) -> str:
        """Its last word."""
        return self.name.rpartition(".")[2]

    @property
    def known(self) -> bool:
        """Whether it is of a library that is known, or of no module at all."""
        return "." not in self.name or self.name.partition(".")[0] in LIBRARIES


@dataclass(eq=False)
class Function:
    """A function of the program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    frame: Frame
    path: str
    bound: Any = None
    """The object that it is a method of."""

    def on(self, owner: Any) -> Function:
        """The method of an object."""
        return Function(self.node, self.frame, self.path, owner)


MODEL = re.compile(r"(PreTrainedModel|ForCausalLM|LMHeadModel|ForConditionalGeneration|ForSequenceClassification)$")
"""How the names of a library's classes end that are models for whom ``from_pretrained`` loads a checkpoint."""


@dataclass(eq=False)
class Class:
    """A class of the program."""

    node: ast.ClassDef
    frame: Frame
    path: str
    bases: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    methods: dict[str, Function] = field(default_factory=dict)

    @property
    def root(self) -> Ref | None:
        """The library's class that it comes from."""
        for base in self.bases:
            found = base if isinstance(base, Ref) else base.root if isinstance(base, Class) else None
            if found is not None:
                return found
        return None

    @property
    def is_model(self) -> bool:
        """Whether a library's model is among those that it comes from."""
        return any(
            base.is_model if isinstance(base, Class) else MODEL.search(getattr(base, "last", "")) for base in self.bases
        )

    def inherited(self, name: str) -> Ref | None:
        """``from_pretrained`` of a model of its own, as the library's class has it."""
        own = name != "from_pretrained" or not self.is_model or self.method(name)
        return None if own else Ref(f"{PurePath(self.path).stem}.{self.node.name}.{name}")

    def method(self, name: str) -> Function | None:
        """A method, its own or of a class that it comes from."""
        own = self.methods.get(name)
        inherited = (base.method(name) for base in self.bases if isinstance(base, Class))
        return own or next((found for found in inherited if found), None)

    def all_fields(self) -> dict[str, tuple[Any, Place]]:
        """Names at its top with their values, those of its bases among them."""
        found: dict[str, tuple[Any, Place]] = {}
        for base in reversed(self.bases):
            found |= base.all_fields() if isinstance(base, Class) else {}
        return found | {name: (value, self.places[name]) for name, value in self.fields.items()}


@dataclass(eq=False)
class Thing:
    """An object: of a library, by the call that made it, or of a class of the program."""

    name: str
    place: Place
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    own: Class | None = None
    depth: int = 0
    """Conditions that it was made under."""

    @property
    def last(self) -> str:
        """The last word of its name."""
        return self.name.rpartition(".")[2]

    def set(self, key: str, value: Any, place: Place) -> None:
        """A value and where it stands."""
        self.values[key], self.places[key] = value, place


class Method(NamedTuple):
    """A method of a value that is no function of the program: ``model.to``, ``parser.add_argument``."""

    owner: Any
    name: str
    place: Place


@dataclass(eq=False)
class Frame:
    """The names of a function, or of the program."""

    names: dict[str, Any] = field(default_factory=dict)
    outer: Frame | None = None
    returns: list[Any] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    """Names that are the program's (``global``)."""
    caller: Frame | None = None
    """Where the function was called: its names live on."""

    def find(self, name: str) -> Any:
        """A name's value here or further out. Raises KeyError."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.names:
                return frame.names[name]
            frame = frame.outer
        raise KeyError(name)

    def bind(self, name: str, value: Any) -> None:
        """Give a name a value."""
        frame = self
        while name in self.shared and frame.outer is not None:
            frame = frame.outer
        frame.names[name] = value


def root_of(value: Any) -> str:
    """What a value that only a run knows comes from; empty where that is no one thing."""
    for _ in range(20):
        if not isinstance(value, Method):
            break
        value = value.owner
    if isinstance(value, Unknown):
        return value.root or next((root for root in map(root_of, value.either) if root), "")
    if isinstance(value, Thing) and value.last in ("Path", "file"):
        return next((root for root in map(root_of, value.values.values()) if root), "")
    return root_of(value[0]) if isinstance(value, (list, tuple)) and type(value) in (list, tuple) and value else ""


def overlay(values: dict[Any, Any], by: Unknown, end: str = "") -> None:
    """Put settings that nobody knows over these: any of them may be another one now, whose name ends so."""
    values.update(dict.fromkeys([key for key in values if str(key)[:1] != "?" and str(key).endswith(end)], by))
    values.update({} if end else {"**": by})


def is_plain(value: Any) -> bool:
    """Whether it is a value that could stand in a file of settings."""
    return value is None or isinstance(value, (str, int, float, bool))


def known(value: Any, depth: int = 0) -> bool:
    """Whether all of it is known."""
    if depth > 20:
        return False
    if isinstance(value, dict):
        return all(known(key, depth + 1) and known(each, depth + 1) for key, each in value.items())
    if isinstance(value, (list, tuple, set)) and not isinstance(value, (Ref, Method)):
        return all(known(each, depth + 1) for each in value)
    if isinstance(value, Thing) and value.last == "Path":
        return known(value.values.get("*0"), depth + 1)
    return is_plain(value) or (isinstance(value, Ref) and "." in value.name and value.known)


def plain(value: Any) -> Any:
    """A known value as a file of settings has it: ``torch.bfloat16`` and ``IntervalStrategy.STEPS`` are words."""
    if isinstance(value, Thing):
        return plain(value.values.get("*0"))
    if isinstance(value, Ref):
        return value.last.lower() if value.last.isupper() else value.last
    if isinstance(value, dict):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    return value


UNSET = re.compile(r"the environment's (?!ACCELERATE|FSDP|WORLD|RANK|LOCAL|MASTER|SLURM|DEEPSPEED|CUDA|NPROC|OMPI)")
"""A variable that nobody is seen to set, where a program asks whether one did; but what a launcher sets."""


def unset(value: Any) -> bool:
    """Whether a value is a variable's that nobody sets."""
    return isinstance(value, Unknown) and value.text == value.root and UNSET.match(value.root) is not None


def truth(value: Any) -> bool | None:
    """Whether a value is true; None where nobody knows."""
    if unset(value):
        return False
    if isinstance(value, (Unknown, Method)):
        answers = {truth(each) for each in value.either} if isinstance(value, Unknown) and value.either else {None}
        return answers.pop() if len(answers) == 1 else None
    if isinstance(value, Thing) and ANSWERS.match(value.last):
        return None  # a library's answer, which only a run knows
    if isinstance(value, (Ref, Thing, Function, Class)):
        return True
    return bool(value)
