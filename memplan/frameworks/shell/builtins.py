"""A shell's own commands, as far as variables, arguments and small files come of them."""

import itertools
import re
from collections.abc import Callable, Sequence

from memplan.frameworks.files.sourced import sourced_text
from memplan.frameworks.shell.fields import UNKNOWN, Value, shown, unknown
from memplan.frameworks.shell.nodes import Redirect
from memplan.frameworks.shell.reader import MAX_LINE, MAX_WORDS, Word
from memplan.frameworks.shell.syntax import Raw, Scanner
from memplan.frameworks.shell.words import Variables
from memplan.units import by_name

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^]=]*)\])?(\+?)=(.*)", re.DOTALL)
DECLARES = ("export", "local", "readonly", "declare", "typeset")
_SET = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEP = re.compile(r"\s*(?:(\+\+|--)\s*(\w+)|(\w+)\s*(\+\+|--))\s*")
_ECHO, ALL = "echo", "*"
MAX_FILES, MAX_FILE = 50, 64 * 1024


class Builtins:
    """What a shell's own commands do, for whoever goes through a script."""

    path: str
    variables: Variables
    status: bool | str | None
    files: dict[str, str]
    file_notes: dict[str, frozenset[str]]
    """What must be said of the values in each."""
    into: str
    """The file that a block's commands write to."""
    locals: list[dict[str, Value | None]]
    exported: set[str]
    """Names of variables that what this script starts has, too; ``ALL`` while all that are set are (``set -a``)."""

    def quoted(self, word: Word, around: tuple[Word, ...] = ()) -> str:
        """A script in quotes."""
        raise NotImplementedError

    def sourced(self, word: Word) -> str:
        """A script of another file, as if it stood here."""
        raise NotImplementedError

    def assign(self, raw: Raw) -> None:
        """``NAME=value``, ``NAME+=value``, ``NAME=(…)``, ``NAME[place]=value``."""
        match = ASSIGNED.match(raw.text)
        assert match is not None
        name, index, add, text = match.groups()
        before = self.variables.values.get(name) if add or index is not None else None
        notes = before.notes if before else frozenset()
        if text.startswith("(") and text.endswith(")"):
            items = (*_items(before), *self._array(text[1:-1], raw.line))[:MAX_WORDS]
            value = Value(items[0].text if items else "", items)
        elif index is not None:
            value = self._placed(_items(before), index, self.variables.text(text, raw.line), raw.line)
        elif before is not None and before.items is not None:
            items = (Word(before.text + self.variables.text(text, raw.line), raw.line), *before.items[1:])
            value = Value(items[0].text, items)
        else:
            value = Value(f"{before.text if before else ''}{self.variables.text(text, raw.line)}"[:MAX_LINE])
        self.variables.values[name] = value._replace(notes=notes | self.variables.used)
        self.variables.used.clear()
        self.exported |= {name} if ALL in self.exported else set()

    def _array(self, text: str, line: int) -> list[Word]:
        tokens = Scanner(text, self.path, line).scan().tokens
        return [
            word for token in tokens if token.kind == "word" for word in self.variables.words(token.text, token.line)
        ]

    def _placed(self, items: tuple[Word, ...], index: str, text: str, line: int) -> Value:
        """An array with one of its values set."""
        place = self.variables.sum(index)
        if place is None:
            items = (*items, Word(f"[{index.strip(chr(34))}]={text}", line))
        else:
            items = (*items[:place], Word(text, line), *items[place + 1 :])
        return Value(items[0].text, items[:MAX_WORDS])

    def declare(self, sign: str, words: Sequence[Raw]) -> None:
        """``export NAME=value``, ``local a=1 b``."""
        for raw in words:
            match = ASSIGNED.match(raw.text)
            name = match.group(1) if match else raw.text
            if sign == "export" or (sign == "declare" and words[0].text == "-x"):
                self.exported.add(name)
            if sign in ("local", "declare", "typeset") and self.locals and not name.startswith("-"):
                self.locals[-1].setdefault(name, self.variables.values.get(name))
            if match:
                self.assign(raw)

    def given(self, words: Sequence[Raw]) -> dict[str, str]:
        """Variables in front of a command."""
        found = {}
        for raw in words:
            name, _, text = raw.text.partition("=")
            found[name] = shown(self.variables.text(text, raw.line))
        return found

    def arithmetic(self, text: str, line: int) -> bool | None:
        """``((X = A * B))``, ``let``: names set; whether the last is other than nought."""
        value: int | None = None
        for part in text.split(",") if "(" not in text else [text]:
            set_, step = _SET.fullmatch(part), _STEP.fullmatch(part)
            if set_:
                name, sign, rest = set_.groups()
                value = self.variables.sum(f"{name} {sign} ({rest})" if sign else rest)
                self._number(name, value)
            elif step:
                name = step.group(2) or step.group(3)
                value = self.variables.sum(f"{name} {(step.group(1) or step.group(4))[0]} 1")
                self._number(name, value)
            else:
                value = self.variables.sum(part)
        return None if value is None else bool(value)

    def _number(self, name: str, value: int | None) -> None:
        text = unknown(f"${name}") if value is None else str(value)
        self.variables.values[name] = Value(text, None, frozenset(self.variables.used))


def _items(value: Value | None) -> tuple[Word, ...]:
    """What an array holds already; of a text the text."""
    if value is None:
        return ()
    return value.items if value.items is not None else (Word(value.text, 0),)


def _set(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    """``set -- a b``, ``set -a``; the shell's other options mean nothing here."""
    texts = [word.text for word in words]
    options = " ".join(itertools.takewhile("--".__ne__, texts))
    if of_all := re.findall(r"([-+])(?:[b-zA-Z]*a[a-zA-Z]*\b|o allexport)", options):
        (of.exported.add if of_all[-1] == "-" else of.exported.discard)(ALL)
    if "--" in texts:
        notes = frozenset(of.variables.used)
        of.variables.arguments = [Value(text, None, notes) for text in texts[texts.index("--") + 1 :]]


def _shift(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    count = words[0].text if words else "1"
    if of.variables.arguments is not None:
        of.variables.arguments = of.variables.arguments[int(count) if count.isdigit() and len(count) < 5 else 1 :]


def _unset(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    for word in words:
        of.variables.values.pop(word.text, None)


_GETOPT = re.compile(rf"set -- {UNKNOWN}?(?:\$\(|`)\W*getopt\b")


def _eval(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> str:
    """``eval set -- "$(getopt … -- "$@")"`` puts a value after its option, and ``--`` behind them all."""
    text = " ".join(word.text for word in words)
    if not _GETOPT.match(text):
        return of.quoted(Word(text, words[0].line)) if words else ""
    if of.variables.arguments is not None:
        texts = [value.text for value in of.variables.arguments]
        parts = [text.split("=", 1) if text.startswith("--") else [text] for text in texts]
        notes = frozenset(of.variables.used)
        of.variables.arguments = [Value(part, None, notes) for group in parts for part in group] + [Value("--")]
    return ""


def _source(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> str:
    """``source $HERE/models/small.sh``: a folder that is not known is taken for the script's own."""
    if not words:
        return ""
    known, sign, _ = words[0].text.rpartition(UNKNOWN)
    name = words[0].text[len(known + sign) :].partition("/")[2] if sign else words[0].text
    return of.sourced(words[0]._replace(text=name)) if name else ""


def _let(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    for word in words:
        of.status = of.arithmetic(word.text, word.line)


def _read(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    """``IFS=, read -ra NAMES <<< "a,b"``; what is read from elsewhere is not known."""
    text = of.variables.read(redirects) or UNKNOWN
    options = "".join(word.text for word in words if word.text.startswith("-"))
    names = [word for word in words if word.text and not word.text.startswith("-")]  # of -d '' not the delimiter
    text = text if "d" in options else text.partition("\n")[0]
    parts = text.split(own["IFS"]) if own.get("IFS") else text.split()
    parts = [text] if len(names) == 1 and "a" not in options else parts
    for place, word in enumerate(names):
        part = own.get("IFS", " ").join(parts[place:]) if word is names[-1] else "".join(parts[place : place + 1])
        part = unknown(f"${word.text}") if text == UNKNOWN or (UNKNOWN in text and len(parts) > 1) else part
        words_ = None
        if "a" in options and UNKNOWN not in text:
            part, words_ = parts[0] if parts else "", tuple(Word(each, word.line) for each in parts[:MAX_WORDS])
        of.variables.values[word.text] = Value(part, words_, frozenset(of.variables.used))


def _written(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    """``cat <<EOF > file``, ``echo '{…}' > file``: a file of the script's own."""
    bodies = [each for each in redirects if each.body]
    targets = [each for each in redirects if each.sign in (">", ">>", ">|")]
    names = [of.variables.text(each.target.text, each.target.line) for each in targets] or [
        word.text
        for word in words
        if bodies and not word.text.startswith("-")  # tee
    ]
    if bodies:
        text = of.variables.read(bodies[-1:]) or ""
    elif own.get(_ECHO):
        parts = [word.text for word in words if word.text not in ("-n", "-e", "-ne", "-en")]
        text = " ".join(parts) + ("\n" if not words or "n" not in words[0].text or words[0].text in parts else "")
    else:
        return
    names = [shown(each) for each in names or [of.into] if each]
    if len(names) == 1 and len(text) <= MAX_FILE and len(of.files) < MAX_FILES:
        more = (not targets and of.into) or any(each.sign == ">>" for each in targets)
        notes = of.file_notes.get(names[0], frozenset()) if more else frozenset()
        before = of.files.get(names[0]) if more else ""
        if before is None:  # echo "output_dir: $OUT" >> config.yaml, which lies here
            before = sourced_text(of.path, names[0])[1]
        of.files[names[0]] = before[:MAX_FILE] + shown(text)
        of.file_notes[names[0]] = notes | of.variables.used


def _echo(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    _written(of, words, redirects, {_ECHO: "yes"})


def _nothing(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    of.status = True


def _false(of: Builtins, words: list[Word], redirects: Sequence[Redirect], own: dict[str, str]) -> None:
    of.status = False


BUILTINS: dict[str, Callable[[Builtins, list[Word], Sequence[Redirect], dict[str, str]], str | None]] = {
    **by_name(_set, _shift, _unset, _eval, _source, _let, _read, _echo, _false),
    ".": _source,
    "cat": _written,
    "tee": _written,
    "printf": _nothing,
    **dict.fromkeys((":", "true", "trap", "shopt", "ulimit", "cd", "pushd", "popd", "wait", "sleep"), _nothing),
}
