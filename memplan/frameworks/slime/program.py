"""slime's and miles' programs that start ``train.py``: the text of its arguments, put together in Python.

``execute_train(train_args=f"{rollout_args} …", megatron_model_type="qwen3-4B")`` is found by going through the program;
what a text takes from elsewhere stands in it as a variable. Source: THUDM/slime@2026-08-21
slime/utils/external_utils/command_utils.py, radixark/miles miles/utils/external_utils/command_utils.py."""

import ast
import re
import shlex
from typing import Any, NamedTuple

from memplan.errors import NoTraining
from memplan.frameworks.files.documents import Document
from memplan.frameworks.programs import calls as python_calls
from memplan.frameworks.programs.files import Files
from memplan.frameworks.programs.operators import written
from memplan.frameworks.programs.run import Known, Run
from memplan.frameworks.programs.text import program_of
from memplan.frameworks.programs.values import MAX_TEXT, Class, Frame, Function, Place, Unknown, is_plain, known, plain
from memplan.frameworks.shell.reader import Word

STARTS = "execute_train"
_LITTLE = re.compile(r"(?i)wandb|eval|tensorboard|swanlab|save|log_|dump|extra|debug|ckpt_args|router|ci_|test")
"""In a name of arguments that memory hardly feels."""


class Started(NamedTuple):
    """What a program starts."""

    words: tuple[Word, ...]
    """Its arguments."""
    model: str
    """The script of the model's arguments, by its name."""
    lost: str
    """Arguments that the program takes from elsewhere, all of them."""
    line: int


class _Texts(Run):
    """One way through a program, on which a text holds what is known of it."""

    def __init__(self, files: Files) -> None:
        super().__init__(Known(), python_calls, files)
        self.started: list[tuple[dict[str, Any], Place]] = []

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        parts = []
        for each in node.values:
            value = self.evaluate(each.value if isinstance(each, ast.FormattedValue) else each, frame)
            parts.append(_text(value))
        return "".join(parts)[:MAX_TEXT]

    def combined(self, op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
        """A sum of texts keeps that which is known."""
        if isinstance(op, ast.Add) and isinstance(left, str) and isinstance(right, Unknown):
            return left + _text(right)
        return super().combined(op, left, right, node)

    def call(self, node: ast.Call, frame: Frame) -> Any:
        """Of the call that starts the training, what it is given."""
        if written(node.func).rpartition(".")[2] == STARTS:
            args, named, _ = self._arguments(node, frame)
            names = ("train_args", "num_gpus_per_node", "megatron_model_type")
            self.started.append((dict(zip(names, args, strict=False)) | named, self.place(node)))
            return None
        return super().call(node, frame)

    def invoke(self, function: Function, args: list[Any], named: dict[str, Any], place: Place) -> Any:
        """A function whose arguments nobody gives has the settings that it names, as they are by default."""
        rest = function.node.args.args[len(args) + (function.bound is not None) :]
        for each in rest:
            own = self.evaluate(each.annotation, function.frame) if each.annotation and each.arg not in named else None
            if isinstance(own, Class):
                named = {**named, each.arg: self.made(own, [], {}, {}, place)}
        return super().invoke(function, args, named, place)


def _text(value: Any) -> str:
    """A plain value as a text has it; of another what stands there, as a variable."""
    if known(value) and is_plain(plain(value)):
        return str(plain(value))
    what = value.text if isinstance(value, Unknown) else "…"
    return "${" + re.sub(r"[\s'\"{}]+", "_", what)[:60] + "}"


def starts(document: Document) -> bool:
    """Whether a program starts slime's training so, by its text."""
    text = document.text
    return document.form == "python" and f"{STARTS}(" in text and "--actor-num-gpus-per-node" in text


def started(document: Document) -> Started:
    """The training that a program starts, its last. Raises NoTraining where it starts none."""
    program, run = program_of(document.text, document.path), _Texts(Files(document.path))
    run.program(program.parts or [part for _, part in program.written])
    if not run.started:
        raise NoTraining(f"{document.path}: no {STARTS}() with its arguments", "name the script that starts one")
    named, place = run.started[-1]
    text = _text(named.get("train_args", ""))
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    model = _text(named.get("megatron_model_type", named.get("model_type")))
    lost = [word for at, word in enumerate(words) if _whole(words, at) and not _LITTLE.search(word)]
    kept = [word for at, word in enumerate(words) if not _whole(words, at)]
    return Started(
        tuple(Word(word, place.line) for word in kept),
        "" if model in ("None", "${…}") or "$" in model else model,
        ", ".join(lost[:4]),
        place.line,
    )


def _whole(words: list[str], at: int) -> bool:
    """Whether a word stands for arguments, rather than for the value of one."""
    before = words[at - 1] if at else ""
    template = words[at].startswith("${") and words[at].endswith("}")
    return template and (not before.startswith("--") or _LITTLE.search(words[at]) is not None)
