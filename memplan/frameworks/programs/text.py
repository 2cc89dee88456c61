"""The text of a Python program or of a notebook: its syntax tree, cell by cell, and the commands of a notebook's cells.

Nothing is imported or run. A notebook's magics are taken out; what is written after ``!`` or under ``%%bash`` is a
shell's. What is nested deeper, or longer, than a person writes is refused before it is parsed."""

import ast
import json
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from memplan.errors import InvalidJob

MAX_NESTED = 90
MAX_CHAIN = 1500
"""Operators, dots and calls of one expression: a tree as deep as this one is long."""
MAX_LINES = 60_000
MOST_PARSED = 160
"""Trees kept: twice the modules that one program reads (``files.MOST_TELLING``), which its neighbours read too."""
SHORTER = "leave its training alone"
_TEXT = r"'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
_PIECE = re.compile(
    rf"(?P<text>{_TEXT})|(?P<note>#[^\n]*)|(?P<open>[(\[{{])|(?P<close>[)\]}}])|(?P<end>[,;\n])"
    r"|(?P<sign>[-+*/%@&|^<>=.~]|\b(?:and|or|if|elif)\b)",
    re.DOTALL,
)
_WORDS, _UNOPENED = re.compile(rf"{_TEXT}|#[^\n]*", re.DOTALL), re.compile(r"[^()\[\]{}]+")
_DEEPER = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)
_MAGIC = re.compile(r"^(?P<before>\s*(?:[\w, ]+=\s*)?)(?P<sign>!!?|%%?|\?)(?P<rest>.*)$")
_PIN = re.compile(r"\b(trl|transformers|peft|unsloth|accelerate)(?:\[[\w,]+\])?\s*==\s*v?(\d+(?:\.\d+)*)")
_PINNED = re.compile(r"==\s*v?\d")
SHELLS = ("bash", "sh", "script", "shell")
PYTHON_CELLS = ("capture", "time", "timeit", "python", "python3", "px", "matplotlib")
_TRAINS = re.compile(r"Trainer\b|TrainingArguments|(SFT|DPO|GRPO)Config|from_pretrained|get_peft_model")


class NotPython(InvalidJob):
    """A text that is no Python, or deeper than is read."""


class Part(NamedTuple):
    """A file's Python, or a cell's."""

    path: str
    """What stands before a line's number: ``train.py``, ``notebook.ipynb, cell 5``."""
    tree: ast.Module


class Program(NamedTuple):
    """What a file comes to before anything is understood."""

    parts: tuple[Part, ...]
    shells: tuple[tuple[str, str], ...] = ()
    """(path, text) of the cells that hold commands."""
    written: tuple[tuple[str, Part], ...] = ()
    """Files that cells write: name and Python."""
    pins: tuple[tuple[str, str], ...] = ()
    """Versions that the text installs: ('trl', '0.9.6')."""
    faults: tuple[str, ...] = ()
    """Places of cells that speak of a training and are no Python."""


@lru_cache(maxsize=MOST_PARSED)
def program_of(text: str, path: str) -> Program:
    """The parts of a file. Raises NotPython for other text, and for what is nested or long beyond reason."""
    pins = tuple(dict.fromkeys(_PIN.findall(text[:4_000_000]))) if _PINNED.search(text) else ()
    if path.lower().endswith(".ipynb"):
        return _notebook(text, path)._replace(pins=pins)
    try:
        return Program((Part(path, parsed(text, path)),), pins=pins)
    except SyntaxError as error:
        cleared = without_magics(text)[0]
        if cleared == text:
            raise _fault(path, error) from None
    try:
        return Program((Part(path, parsed(cleared, path)),), pins=pins)
    except SyntaxError as error:
        raise _fault(path, error) from None


def _fault(path: str, error: SyntaxError) -> NotPython:
    said = re.split(r"\. |\(", str(error.msg))[0].strip()
    return NotPython(f"{path}, line {error.lineno or 1}: not Python 3: {said[:80]}", "name a file that Python 3 reads")


def parsed(text: str, path: str) -> ast.Module:
    """The syntax tree. Raises SyntaxError, or InvalidJob for what is deeper than a person nests."""
    _refuse_deep(text, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are none
            return _tree(text)
    except (ValueError, RecursionError, MemoryError):
        raise NotPython(f"{path}: not Python that can be read", SHORTER) from None


def _tree(text: str) -> ast.Module:
    """The tree; of a text that a Python before 3.12 does not read, without the f-strings that it does not."""
    try:
        return ast.parse(text)
    except SyntaxError:
        older = _older(text)
        if older == text:
            raise
    return ast.parse(older)


_FORMATTED = re.compile(r"(?<![\w'\"])(?:[fF][rR]?|[rR][fF])('''|\"\"\"|'|\")")


def _older(text: str) -> str:
    """``f"{d["a"]}"``, which Python reads from 3.12 on (PEP 701), as a name that nobody knows; each keeps its lines."""
    found, at = [], 0
    for match in _PIECE.finditer(text):
        start = _FORMATTED.match(text, max(match.start() - 2, at)) or _FORMATTED.match(text, match.start() - 1)
        if match.lastgroup != "text" or match.start() < at or start is None or start.end() > match.end():
            continue
        end = _end(text, start.end(), start[1])
        whole = text[start.start() : end]
        try:
            ast.parse(f"({whole})")
        except SyntaxError:
            lines = "\n" * whole.count("\n")
            found += [text[at : start.start()], f"(__text__{lines})"]
            at = end
    return "".join([*found, text[at:]])


def _end(text: str, at: int, quote: str) -> int:
    """Where an f-string ends: quotes within its braces are other texts'."""
    depth = 0
    while at < len(text) and (depth or not text.startswith(quote, at)):
        inner = _FORMATTED.match(text, at) if depth else None
        other = _WORDS.match(text, at) if depth and text[at] != "#" else None
        double = not depth and (text[at] == "\\" or text.startswith("{{", at))
        depth += (text[at] in "{[(") * (depth > 0 or text[at] == "{") * (not double) - (depth > 0 and text[at] in "}])")
        at = _end(text, inner.end(), inner[1]) if inner else other.end() if other else at + 1 + double
    return at + len(quote)


def _refuse_deep(text: str, path: str) -> None:
    """Brackets within brackets, and chains of operators, before a tree is built of them."""
    depth = chain = 0
    if text.count("\n") > MAX_LINES:
        raise NotPython(f"{path}: more than {MAX_LINES} lines", SHORTER)
    for match in _PIECE.finditer(text) if _may_be_deep(text) else ():
        kind = match.lastgroup
        depth += (kind == "open") - (kind == "close")
        if kind in ("sign", "close"):
            chain += 1
        elif kind == "end" and (match.group() != "\n" or depth <= 0):
            chain, depth = 0, max(depth, 0)
        if depth > MAX_NESTED or chain > MAX_CHAIN:
            line = text.count("\n", 0, match.start()) + 1
            raise NotPython(f"{path}, line {line}: an expression nested too deep to be read", SHORTER)


def _may_be_deep(text: str) -> bool:
    """Of code without strings and notes, by all brackets as one line has them, and what stands between two commas."""
    code = "".join(_WORDS.sub("", text).split())
    depths = [*accumulate(map(_DEEPER.__getitem__, _UNOPENED.sub("", code)), initial=0)]
    return max(depths) - min(depths) > MAX_NESTED or max(map(len, code.replace(";", ",").split(","))) > MAX_CHAIN


def _notebook(text: str, path: str) -> Program:
    try:
        cells = json.loads(text).get("cells")
    except (ValueError, RecursionError, AttributeError):
        raise InvalidJob(f"{path}: no notebook that can be read", "name a notebook of Jupyter's format 4") from None
    found: dict[str, list[Any]] = {"parts": [], "shells": [], "written": [], "faults": []}
    for place, source in _code(cells if isinstance(cells, list) else [], path):
        for kind, value in _cell(source, place):
            found[kind].append(value)
    return Program(**{kind: tuple(values) for kind, values in found.items()})


def _code(cells: list[Any], path: str) -> Iterator[tuple[str, str]]:
    """(path with the cell's number, text) of cells of code."""
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source") if isinstance(cell, dict) and cell.get("cell_type") == "code" else None
        lines = [line for line in source if isinstance(line, str)] if isinstance(source, list) else [source or ""]
        text = "".join(line for line in lines if isinstance(line, str))
        if text.strip():
            yield f"{path}, cell {number}", text


def _cell(text: str, place: str) -> Iterator[tuple[str, Any]]:
    """What a cell holds, by the field of ``Program`` that it belongs to."""
    first, _, rest = text.lstrip().partition("\n")
    head = re.match(r"%%(\w+)\s*(.*)", first)
    above = "\n" * (text[: len(text) - len(text.lstrip())].count("\n") + 1)
    if head and head.group(1) in SHELLS:
        yield "shells", (place, above + rest)
        return
    if head and head.group(1) in ("writefile", "file"):
        yield from _written(head.group(2).split()[-1:], above + rest, place)
        return
    if head and head.group(1) not in PYTHON_CELLS:
        return
    try:
        cleared, shell = without_magics(above + rest if head else text)
        if shell.strip():
            yield "shells", (place, shell)
        yield "parts", Part(place, parsed(cleared, place))
    except SyntaxError as error:
        if _TRAINS.search(text):
            yield "faults", f"{place}, line {error.lineno or 1}"


def _written(names: list[str], text: str, place: str) -> Iterator[tuple[str, Any]]:
    if names and names[0].endswith(".py"):
        try:
            yield "written", (names[0], Part(place, parsed(text, place)))
        except SyntaxError:
            return


def without_magics(text: str) -> tuple[str, str]:
    """(the Python, the commands of a shell) of a text with lines that begin with !, % or ?; each keeps its line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text) if len(text) < 200_000 and not re.search(r"^[ \t]*[!%?]", text, re.MULTILINE) else _no()
        return text, ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    python: list[str] = []
    shell: list[str] = []
    within = False
    for line in text.split("\n"):
        match = None if within else _MAGIC.match(line)
        command = within or (match is not None and match["sign"].startswith("!"))
        shell.append((line if within else match["rest"] if match else "") if command else "")
        within = command and line.rstrip().endswith("\\")
        python.append(_in_place(match, line) if match or command else line.rstrip("?") if line[-1:] == "?" else line)
    return "\n".join(python), "\n".join(shell)


def _no() -> None:
    raise SyntaxError


def _in_place(match: re.Match[str] | None, line: str) -> str:
    """What stands for a magic: nothing, or a name that nobody knows."""
    if match is None:
        return ""
    return f"{match['before']}__shell__" if "=" in match["before"] else f"{match['before']}pass"
