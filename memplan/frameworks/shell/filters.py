"""``$( … )`` where its output is plain: ``echo``, ``expr``, ``basename``, ``seq`` and the filters behind them.

A table of what is worked out here; everything else is not known, and nothing is ever run."""

import math
import posixpath
import re
import string
from collections.abc import Callable, Sequence

from memplan.frameworks.files.sourced import folder_of
from memplan.frameworks.shell.fields import UNKNOWN, shown
from memplan.frameworks.shell.nodes import Chain, Node, Redirect, Simple
from memplan.frameworks.shell.parts import parse
from memplan.frameworks.shell.sums import whole_sum
from memplan.frameworks.shell.syntax import Scanner
from memplan.units import by_name

MAX_CODE = 16 * 1024
SUBMITS = ("sbatch", "qsub", "bsub", "msub")
"""What hands a script to a cluster, by its name or as it reads it."""


NO_GPUS = re.compile(r"\bimport torch_npu\b|^(?:command -v|which|type|hash) (?:npu|hl)-smi\b")
"""Commands that find out whether accelerators are there that are no GPUs: here they are not."""


class Filtered:
    """What ``$( … )`` is, for whoever knows the words of its commands."""

    path: str
    line: int
    depth: int
    submit: Callable[[list[str], str, int], None] | None = None
    """Called with a command that hands a script to a cluster, the script that it reads, and its line."""
    decide: Callable[[Simple], bool | None] | None = None
    """Whether a test holds; None where that is not known."""

    def text(self, raw: str, line: int = 0) -> str:
        """A written word as one text."""
        raise NotImplementedError

    def document(self, raw: str, line: int) -> str:
        """A here-document's text."""
        raise NotImplementedError

    def output(self, code: str) -> str | None:
        """What a substituted command writes; None where that is not known."""
        if len(code) > MAX_CODE or self.depth > 15:
            return None
        self.depth += 1
        try:
            nodes = parse(Scanner(code, self.path, self.line or 1).scan())
            return self._written(nodes)
        finally:
            self.depth -= 1

    def _written(self, nodes: tuple[Node, ...]) -> str | None:
        node = nodes[-1] if nodes else None
        if isinstance(node, Chain) and all(sign in ("", "&&", "||") for sign, _ in node.parts):
            node = self._reached(node)
            if node is None:
                return ""
        stages = node.parts if isinstance(node, Chain) else (("", node),)
        found: str | None = ""
        for _, stage in stages:
            found = None if found is None else self.stage(stage, found)
        within = isinstance(node, Simple) and any(each.body for each in node.redirects)  # names in a script are its own
        return None if found is None or (UNKNOWN in found and not within) else found.rstrip("\n")

    def _reached(self, chain: Chain) -> Node | None:
        """The command that writes, of ``[ -n "$X" ] && echo … || echo …``; None where none does. What a test depends on
        that nobody knows is taken to hold, and ``cd "$(dirname "$0")" && pwd`` is told by its ``cd``.
        ``python -c "import torch_npu"`` fails."""
        found, runs = None, True
        for sign, node in chain.parts:
            if sign and runs is not (sign == "&&"):
                continue
            words = node.words if isinstance(node, Simple) else ()
            if isinstance(node, Simple) and (node.form == "test" or (words and words[0].text in ("[", "test"))):
                runs = self.decide is None or self.decide(node) is not False
            elif NO_GPUS.search(" ".join(each.text for each in words)):
                runs = False
            else:
                found, runs = node, True
                if words and words[0].text == "cd":
                    break
        return found

    def piped(self, stages: Sequence[Node]) -> str:
        """What commands before the last of a pipe write, unknown variables by name; empty if unknown."""
        found: str | None = ""
        for stage in stages:
            found = None if found is None else self.stage(stage, shown(found))
        return shown(found or "")

    def stage(self, stage: Node | None, before: str) -> str | None:
        """What one command writes, of what the one before it did, ``<<< "…"`` or a here-document."""
        if not isinstance(stage, Simple) or stage.form or not stage.words:
            return None
        words = [self.text(word.text, word.line) for word in stage.words]
        given = self.read(stage.redirects)
        name, rest = posixpath.basename(words[0]), words[1:]
        if name in SUBMITS and self.submit is not None:
            self.submit(words, before if given is None else given, stage.words[0].line)
            return None
        run = _COMMANDS.get(name)
        if run is None or (name not in PLAIN and any(UNKNOWN in word for word in (given or before, *rest))):
            return None
        return run(rest, before if given is None else given, self)

    def read(self, redirects: Sequence[Redirect]) -> str | None:
        """What a command is given to read, where the script itself holds it."""
        for each in redirects:
            if each.sign == "<<<":
                return self.text(each.target.text, each.target.line) + "\n"
            if each.body:
                return each.body[0] if each.quoted else self.document(each.body[0], each.target.line + 1)
        return None


def _echo(words: list[str], given: str, of: Filtered) -> str | None:
    while words and words[0] in ("-n", "-e", "-ne"):
        words = words[1:]
    return " ".join(words) + "\n"


def _printf(words: list[str], given: str, of: Filtered) -> str | None:
    return words[1] if len(words) == 2 and words[0] in ("%s", "%s\\n", "%d", "%d\\n") else None


def _expr(words: list[str], given: str, of: Filtered) -> str | None:
    value = whole_sum(" ".join(words))
    return None if value is None else f"{value}\n"


def _bc(words: list[str], given: str, of: Filtered) -> str | None:
    text = re.sub(r"scale\s*=\s*0\s*;", "", given).strip()
    return None if "scale" in text or words not in ([], ["-l"]) else _expr([text], "", of)


def _python(words: list[str], given: str, of: Filtered) -> str | None:
    """``python -c "print(64 // 8)"``: a sum of whole numbers and no more."""
    printed = re.fullmatch(r"\s*print\((.*)\)\s*;?\s*", words[1], re.DOTALL) if words[:1] == ["-c"] else None
    if printed is None or len(words) != 2:
        return None
    inner = re.fullmatch(r"\s*(?:int|(?:math\.)?floor)\((.*)\)\s*", printed.group(1)) or printed
    text = inner.group(1)
    if inner is printed and re.search(r"(?<!/)/(?!/)", text):
        return None  # a fraction
    return _expr([text.replace("//", "/")], "", of)


def _dirname(words: list[str], given: str, of: Filtered) -> str | None:
    words = [word for word in words if word != "--"]
    if len(words) != 1:
        return None
    return folder_of(of.path) if words[0] == of.path else posixpath.dirname(words[0]) or "."


def _basename(words: list[str], given: str, of: Filtered) -> str | None:
    words = [word for word in words if word not in ("-s", "--")]
    if not 1 <= len(words) <= 2:
        return None
    return posixpath.basename(words[0].rstrip("/")).removesuffix(words[1] if words[1:] else "")


def _seq(words: list[str], given: str, of: Filtered) -> str | None:
    if not words or not all(re.fullmatch(r"-?\d{1,6}", word) for word in words):
        return None
    first, step, last = (1, 1, *map(int, words))[-3:] if len(words) != 2 else (int(words[0]), 1, int(words[1]))
    if step == 0 or abs(math.ceil((last - first) / step)) > 1000:
        return None
    return "".join(f"{each}\n" for each in range(first, last + (1 if step > 0 else -1), step))


def _tr(words: list[str], given: str, of: Filtered) -> str | None:
    if len(words) != 2:
        return None
    old, new = (_characters(word) for word in words)
    if words[0] == "-d":
        return "".join(char for char in given if char not in new)
    return given.translate(str.maketrans(old, new)) if len(old) == len(new) else None


_CLASSES = {
    **dict.fromkeys(("[:upper:]", "A-Z", "[A-Z]"), string.ascii_uppercase),
    **dict.fromkeys(("[:lower:]", "a-z", "[a-z]"), string.ascii_lowercase),
    **dict.fromkeys(("[:space:]", "[:blank:]"), " \t\n"),
}


def _characters(word: str) -> str:
    """A set of ``tr``: a class, or characters that stand for themselves."""
    return _CLASSES.get(word, word.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t"))


def _wc(words: list[str], given: str, of: Filtered) -> str | None:
    count = {"-l": given.count("\n"), "-w": len(given.split())}.get(words[0]) if len(words) == 1 else None
    return None if count is None else f"{count}\n"


def _awk(words: list[str], given: str, of: Filtered) -> str | None:
    """``awk -F',' '{print NF}'``: how many there are."""
    joined = " ".join(words)
    match = re.fullmatch(r"-F\s*(.)\s+\{\s*print\s+(NF|\$(\d))\s*;?\s*\}", joined)
    if match is None or given.count("\n") > 1:
        return None
    parts = given.strip().split(match.group(1))
    place = int(match.group(3) or 0)
    return str(len(parts)) if not match.group(3) else parts[place - 1] if 0 < place <= len(parts) else None


def _cut(words: list[str], given: str, of: Filtered) -> str | None:
    match = re.fullmatch(r"-d\s*(.)\s+-f\s*(\d)", " ".join(words))
    if match is None:
        return None
    parts = given.strip().split(match.group(1))
    place = int(match.group(2))
    return parts[place - 1] if 0 < place <= len(parts) else None


def _grep(words: list[str], given: str, of: Filtered) -> str | None:
    """``grep -o ,``: a line for each."""
    return f"{words[1]}\n" * given.count(words[1]) if len(words) == 2 and words[0] == "-o" and words[1] else None


def _path(words: list[str], given: str, of: Filtered) -> str | None:
    names = [word for word in words if not word.startswith("-")]
    if len(names) != 1:
        return None
    return posixpath.normpath(names[0]) if names[0].startswith("/") else names[0]


def _sed(words: list[str], given: str, of: Filtered) -> str | None:
    """``sed 's#old#new#'`` of plain texts."""
    match = re.fullmatch(r"s([^\w\s])([\w/ .-]+)\1([\w/ .-]*)\1(g?)", words[-1]) if words else None
    if match is None or len(words) != 1:
        return None
    return given.replace(match.group(2), match.group(3), -1 if match.group(4) else 1)


PLAIN = ("echo", "cat")
"""What hands on whatever it is given."""
_COMMANDS: dict[str, Callable[[list[str], str, Filtered], str | None]] = {
    **by_name(_echo, _printf, _expr, _bc, _dirname, _basename, _seq, _tr, _wc, _awk, _cut, _sed, _grep),
    "cat": lambda words, given, of: None if words else given,
    **dict.fromkeys(("python", "python3"), _python),
    **dict.fromkeys(("realpath", "readlink", "which", "command", "cd"), _path),
    "pwd": lambda words, given, of: ".",
    "xargs": lambda words, given, of: None if words else " ".join(given.split()),
}
