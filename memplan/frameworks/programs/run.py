"""A program gone through without being run: functions where they are called, classes, and modules beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import Document
from memplan.frameworks.programs.files import Files
from memplan.frameworks.programs.operators import joined, spread, written
from memplan.frameworks.programs.statements import Statements
from memplan.frameworks.programs.text import SHORTER, NotPython, Part, program_of
from memplan.frameworks.programs.tracing import Names
from memplan.frameworks.programs.values import Class, Frame, Function, Place, Ref, Thing, Unknown, is_open, overlay
from memplan.frameworks.shell.reader import Word

MAX_STEPS = 150_000
MAX_CALLS = 14
"""Functions of the program within one another."""
AGAIN = 4
"""How often one may call itself: a merge of nested settings does; not where nobody calls it here, nor under a doubt."""
PYDANTIC = ("BaseModel", "BaseSettings")
CUTS = re.compile(
    r"max_?(seq_?|sequence_?|input_?|source_?|text_?|token_?)?len|cutoff|block_?size|context_len|max_tokens",
    re.IGNORECASE,
)
"""Names of lengths that rows are cut to."""


@dataclass(frozen=True)
class Known:
    """What the options of memplan, or a command, say of the run."""

    bf16: bool = True
    """Whether the card has bfloat16."""
    capability: tuple[int, int] = (8, 0)
    memory: int = 0
    """Bytes of the card, where it is named."""
    num_gpus: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Options of the command that starts the program."""
    places: Mapping[str, Place] = field(default_factory=dict)
    words: tuple[Word, ...] = ()
    """All that stands behind the program there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its script sets."""

    @property
    def machine(self) -> tuple[Any, ...]:
        """What of it is the machine's."""
        return self.bf16, self.capability, self.memory, self.num_gpus


class Run(Statements):
    """One way through a program."""

    def __init__(self, known: Known, calls: Any, files: Files) -> None:
        self.known, self.calls, self.files = known, calls, files
        self.path, self.start, self.steps, self.loops = "", "", 0, 0
        self.argv = [files.path, *(word.text for word in known.words)] if known.words else []
        self.doubts: list[str] = []
        self.left, self.turning, self.hopeful = [], 0, False
        self.asked_machine = self.asked_card = False  # which card it has, or how many; for bfloat16
        self.refusal: InvalidJob | None = None  # why it is not gone through to its end
        self.trainers: list[Thing] = []
        self.things: list[Thing] = []
        """Objects of libraries, but models and trainers, and of the program's own classes, in their order."""
        self.stack: list[tuple[ast.AST, int]] = []  # the functions that are gone through, and the doubts of each
        self.uncalled = self.gone_aside = self.differentiates = False
        """Whether trainers are made where nothing calls; whether that was gone through; whether the rest runs back."""
        self.mapped: list[Any] = []
        """Calls of ``map``, in their order: of data sets, most of them."""
        self.done: set[int] = set()
        """Functions that were called, by their node."""
        self.frame = self.globals = Frame({"__name__": "__main__", "__file__": files.path.partition(", cell ")[0]})
        self.modules = Names(self.globals)
        self.globals.names |= {f"os.environ.{name}": value for name, value in known.environment.items()}
        self.saved_by: Callable[[Document], dict[str, tuple[Thing, Any]]] = lambda document: {}
        self.saved: dict[str, tuple[Thing, Any]] = {}
        """Models that the program saves, by their folders, with the adapters that are saved by themselves."""
        self.sharded: Place | None = None
        """Where the program speaks to DeepSpeed, whose settings its launcher has."""
        self.functions: list[Function] = []
        """All that were defined, for what is done in those that are handed on: to ``map`` of a data set."""
        self.lengths: list[tuple[Any, Place, str]] = []
        """Where tokenizers cut, and how the bound is written."""
        self.imported: list[str] = []  # unsloth, trl.SFTConfig: in the order of their imports
        self.aside = False
        """Whether a function is gone through that nobody calls here: it changes nothing but ``lengths``."""

    def step(self, node: ast.AST) -> None:
        """Count one more step. Raises NotKnown beyond what a training's script takes."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise NotKnown(f"{self.place(node)}: more than is followed of one program", SHORTER)

    def cut(self, node: ast.Slice, bound: Any) -> None:
        """``ids[:MAX_LENGTH]``, ``ids[at : at + block_size]``: a row is cut here, by the bound's name."""
        upper = node.upper
        if isinstance(upper, ast.BinOp) and node.lower and ast.dump(upper.left) == ast.dump(node.lower):
            bound, upper = self.evaluate(upper.right, self.frame), upper.right
        if upper is not None and not isinstance(upper, ast.Constant) and CUTS.search(written(upper)):
            self.lengths.append((bound, self.place(node), f"[:{written(upper)}]"))

    def program(self, parts: Sequence[Part]) -> None:
        """All parts in their order. Raises NotKnown."""
        self.start = parts[0].path if parts else ""
        try:
            for part in parts:
                self.path = part.path
                self.block(part.tree.body, self.globals)
            if not (self.trainers or self.differentiates):
                self.uncalled = True
                self._uncalled(parts)
        except RecursionError:
            raise NotKnown(f"{self.path}: nested deeper than is followed", SHORTER) from None

    @property
    def machine(self) -> Known:
        """What is known, of the machine that the program asks about."""
        self.asked_machine = True
        return self.known

    def _uncalled(self, parts: Sequence[Part]) -> None:
        """Functions and classes that the file defines and leaves to others."""
        for part in parts:
            self.path = part.path
            for node in part.tree.body:
                found = self.globals.names.get(getattr(node, "name", ""))
                if isinstance(found, Function) and id(node) not in self.done:
                    self.invoke(found, [], {}, self.place(node))
                elif isinstance(found, Class) and not self.calls.is_trainer(found) and isinstance(node, ast.ClassDef):
                    self._methods(found, node)

    def _methods(self, found: Class, node: ast.ClassDef) -> None:
        thing = self.made(found, [], {}, {}, self.place(node))
        for name in found.methods if isinstance(thing, Thing) else ():
            if name != "__init__" and id(found.methods[name].node) not in self.done:
                method = found.methods[name]
                self.invoke(method.on(thing), [], {}, self.place(node))

    def put(self, owner: Any, name: str, value: Any, place: Place) -> None:
        """``owner.name = value``: under a condition that is not known, either the old or the new."""
        if self.aside:
            return
        if name == "model_max_length" and not (isinstance(value, int) and value >= 10**5):  # which is no bound
            self.lengths.append((value, place, name))
        owner = self.calls.part(owner)
        if not isinstance(owner, Thing):
            self.calls.assigned(self, owner, name, value, place)
            return
        if len(self.doubts) > owner.depth and name in owner.values:
            value = joined([owner.values[name], value], self.doubts[-1], place)
        elif len(self.doubts) > owner.depth and owner.own is None:
            value = joined([None, value], self.doubts[-1], place)
        owner.set(name, value, place)
        self.calls.assigned(self, owner, name, value, place)

    def _import(self, node: ast.Import, frame: Frame) -> None:
        for name in node.names:
            self.imported.append(name.name)
            first = name.name if name.asname else name.name.partition(".")[0]
            inner = self.module(first)
            frame.bind(name.asname or first, Thing("module", self.place(node), inner) if inner else Ref(first))

    def _importfrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        module = "." * node.level + (node.module or "")
        found = self.module(node.module or "", node.level)
        self.imported += [f"{module}.{name.name}" for name in node.names]
        for name in node.names:
            if name.name == "*":
                frame.names |= {key: value for key, value in found.items() if key[:1] not in "_?"}
            elif name.name in found:
                frame.bind(name.asname or name.name, found[name.name])
            else:
                inner = self.module(f"{node.module or ''}.{name.name}".strip("."), node.level)
                value = Thing("module", self.place(node), inner) if inner else Ref(f"{module}.{name.name}")
                frame.bind(name.asname or name.name, value)

    def module(self, name: str, level: int = 0) -> dict[str, Any]:
        """The names of a module of the program's own that lies beside it; none of any other."""
        key = (name, level)
        if key not in self.modules:
            self.modules[key] = made = Frame({"__name__": name})
            document = self.files.module(name, level, self.path)
            if document is not None:
                made.names["__file__"] = document.path
                self._imported(document, made)
        names = self.modules[key].names
        return names if len(names) > 2 else {}

    def _imported(self, document: Document, frame: Frame) -> None:
        before, doubts, loops = self.path, self.doubts, self.loops
        self.doubts, self.loops = [], 0
        try:
            for part in program_of(document.text, document.path).parts:
                self.path = part.path
                self.block(part.tree.body, frame)
        except NotPython:
            frame.names = {}
        self.path, self.doubts, self.loops = before, doubts, loops

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
        self.functions.append(Function(node, frame, self.path))
        frame.bind(node.name, self.functions[-1])

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, frame: Frame) -> None:
        made = Class(node, frame, self.path, tuple(self.evaluate(base, frame) for base in node.bases))
        for each in node.body:
            target = each.target if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [None])[0]
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                made.methods[each.name] = Function(each, frame, self.path)
            elif isinstance(each, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name):
                inner = Frame(made.fields, frame)
                value = self.unknown(target) if each.value is None else self.evaluate(each.value, inner)
                made.fields[target.id], made.places[target.id] = self.calls.default(self, value), self.place(each)
        frame.bind(node.name, made)

    def call(self, node: ast.Call, frame: Frame) -> Any:
        """What a call comes to: of a function of the program, gone through; of a library's, by what it is."""
        callee = self.calls.one_of(self.evaluate(node.func, frame))
        args, named, places = self._arguments(node, frame)
        place = self.place(node)
        if isinstance(callee, Function):
            made = self.calls.function(self, callee, args, named, place)
            factory = node.func.value if isinstance(node.func, ast.Attribute) else None
            if not (is_open(made) and callee.node.name == "from_pretrained" and isinstance(factory, ast.Name)):
                return made
            callee = Ref(f"{factory.id}.from_pretrained")  # which class it loads, the checkpoint says
        if isinstance(callee, Class):
            return self.made(callee, args, named, places, place)
        return self.calls.library(self, callee, args, named, places, place, node)

    def _arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Any], dict[str, Any], dict[str, Place]]:
        args: list[Any] = []
        for each in node.args:
            value = self.evaluate(each.value if isinstance(each, ast.Starred) else each, frame)
            several = isinstance(each, ast.Starred) and isinstance(value, (list, tuple))
            args += value if several else [value]
        named: dict[str, Any] = {}
        places: dict[str, Place] = {}
        for word in node.keywords:
            value = self.evaluate(word.value, frame)
            given = {word.arg: value} if word.arg else spread(value, self.unknown(word.value))
            named |= given
            places |= dict.fromkeys(given, self.place(word.value))
        return args, named, places

    def made(self, own: Class, args: list[Any], named: dict[str, Any], places: dict[str, Place], place: Place) -> Any:
        """An object of a class of the program."""
        root = own.root
        thing = Thing(root.name if root else own.node.name, place, own=own, depth=len(self.doubts))
        for name, (value, where) in own.all_fields().items():
            thing.set(name, value, where)
        begin = own.method("__init__")
        named = {name: self._checked(own, name, value, place) for name, value in named.items()}
        if begin is None and isinstance(named.get("**"), Unknown):
            overlay(thing.values, named["**"])
        if begin is not None:
            self.invoke(begin.on(thing), args, named, place)
        for name, value in () if begin else [*zip(own.all_fields(), args, strict=False), *named.items()]:
            thing.set(name, value, places.get(name, place))
        after = own.method("__post_init__")
        if begin is None and after is not None:
            self.invoke(after.on(thing), [], {}, place)
        return self.calls.constructed(self, thing, args, named, places)

    def _checked(self, own: Class, name: str, value: Any, place: Place) -> Any:
        """A field's value; where pydantic makes an object of a mapping, by the field's annotation, that object."""
        if not isinstance(value, dict) or own.root is None or own.root.last not in PYDANTIC:
            return value
        wanted = next((each.annotation for each in own.node.body if isinstance(each, ast.AnnAssign)
                       and getattr(each.target, "id", "") == name), None)  # fmt: skip
        found = self.evaluate(wanted, own.frame) if isinstance(wanted, ast.Name) else None
        return self.made(found, [], value, {}, place) if isinstance(found, Class) else value

    def invoke(self, function: Function, args: list[Any], named: dict[str, Any], place: Place) -> Any:
        """Go through a function of the program; what it returns."""
        node = function.node
        within = [doubts for each, doubts in self.stack if each is node]
        doubted = bool(within) and within[-1] < len(self.doubts)
        if doubted or len(within) > (0 if self.aside else AGAIN) or len(self.stack) >= MAX_CALLS:
            return Unknown(f"{node.name}()", place)
        frame = Frame(outer=function.frame, caller=self.frame)
        self.done.add(id(node))
        before, self.path = self.path, function.path
        self.calls.bind(self, function, frame, args, named)
        self.stack.append((node, len(self.doubts)))
        ended = self.block(node.body, frame)
        self.stack.pop()
        self.path = before
        values = frame.returns if ended or not frame.returns else [*frame.returns, None]
        return joined(values, f"what {node.name}() returns", place) if values else None
