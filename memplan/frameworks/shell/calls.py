"""The commands that a script would run, functions that it calls, and scripts in quotes that it starts shells with."""

import itertools
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence

from memplan.errors import InvalidJob
from memplan.frameworks.commands.slurm import slurm_variables
from memplan.frameworks.shell.children import MAX_CALLS, SHELLS, Children, asked
from memplan.frameworks.shell.fields import UNKNOWN, Value, shown
from memplan.frameworks.shell.filters import SUBMITS
from memplan.frameworks.shell.nodes import Chain, Function, Node, Simple
from memplan.frameworks.shell.reader import MAX_KEPT, MAX_TEXT, MAX_WORDS, SHORTER, Command, Word
from memplan.frameworks.shell.syntax import Raw
from memplan.frameworks.shell.words import Variables

_SCRIPT = ("-c", "-lc", "-ic", "-xc", "-ec")
_UNSET = re.compile(rf"{UNKNOWN}\$\{{?[A-Za-z_]\w*(\[[@*]\])?\}}?")
_EXTRAS = re.compile(r"\[[@*]\]|(args|opts|options?|extras?|flags)\}?$|^\W*extra_", re.IGNORECASE)
_VALUE = re.compile(r"[-+]?[\d.]+(e-?\d+)?|true|false|[^-\s]\S*=\S+", re.IGNORECASE)
"""What no list of words begins with."""


def in_container(words: Sequence[Word]) -> dict[str, str]:
    """What ``docker run -e NAME=value`` and ``apptainer exec --env NAME=value`` set for the shell within."""
    pairs = [(one.text, two.text) for one, two in itertools.pairwise(words) if one.text in ("-e", "--env")]
    return {name: text for _, pair in pairs for name, sign, text in [pair.partition("=")] if sign}


def takes_script(words: Sequence[Word | Raw]) -> bool:
    """Whether a command starts a shell that reads its script: ``bash``, ``kubectl exec -i pod -- /bin/bash -s``."""
    names = [word.text.rsplit("/", 1)[-1] for word in words if word.text not in ("-s", "-", "-l", "-e", "-x", "-ex")]
    return bool(names) and (names[-1] in SHELLS or names[0] in ("ssh", *SUBMITS))


def extras(words: Sequence[Word]) -> list[int]:
    """Where words stand behind a program or an option that a shell takes as nothing, since nothing sets them: arrays,
    ``$EXTRA_ARGS`` and its kind by their names, and what follows an option's number."""
    texts = [word.text for word in words]
    modules = [at + 1 for at, text in enumerate(texts) if text in ("-m", "--module")]
    options = (at for at, text in enumerate(texts) if text.startswith("--"))
    begin = next((at for at, text in enumerate(texts) if text.endswith((".py", ".pyz"))), max(modules, default=-1))
    begin = next(options, len(texts)) if begin < 0 else begin
    return [
        at
        for at in range(begin + 1, len(texts))
        if _UNSET.fullmatch(texts[at]) and (_EXTRAS.search(texts[at]) or _VALUE.fullmatch(texts[at - 1]))
    ]


class Calls(Children):
    """Commands, and what they call."""

    def __init__(self, path: str) -> None:
        text = {"HOME": "~", "PWD": ".", "BASH_SOURCE": path}
        self.path = path
        self.variables = Variables(path, {name: Value(value) for name, value in text.items()})
        self._preset = dict(self.variables.values)
        self.functions: dict[str, Function] = {}
        self.called: set[str] = set()
        self.variables.submit, self.variables.decide = self.submitted, self.decided
        self.files, self.file_notes = {}, {}
        self.into = ""
        self.begun: set[str] = set()
        """Files of its own that it starts."""
        self.noted: frozenset[str] = frozenset()
        """What must be said with every command of a text that others were put into."""
        self.commands: list[Command] = []
        self.calls: list[int] = []
        """Lines of the calls of functions that are open."""
        self.locals = []
        self.returned: list[bool] = []
        """Of each function that is open, whether it may have ended: ``[[ -e $1 ]] && return; exit 1`` gives up on
        what a run has."""
        self.exported = set()
        self.children: list[str] = []
        """Scripts that are gone through, one started by another."""
        self.joined: list[int] = []
        self.around: tuple[Word, ...] = ()
        """What starts the shell whose script is gone through: srun and its options."""
        self._size = self._kept = 0

    @abstractmethod
    def body(self, nodes: Iterable[Node]) -> str:
        """Commands one after the other; the word that ends them early, if one does."""

    @abstractmethod
    def simple(self, node: Simple) -> str:
        """A command, an assignment, a test, after which ``status`` says whether it held."""

    def decided(self, node: Simple) -> bool | None:
        """Whether a test within ``$( … )`` holds; notes of the word around it stay."""
        before, used = self.status, frozenset(self.variables.used)
        self.simple(node)
        found, self.status = self.status, before
        self.variables.used |= used
        return found if isinstance(found, bool) else None

    @abstractmethod
    def inner(self, text: str, line: int) -> str:
        """A script, or one in quotes."""

    def emit(self, words: list[Word], own: dict[str, str]) -> str:
        """A command that would run; of one that starts a shell with a script in quotes, that script's."""
        for place in (at for at, word in enumerate(words) if word.text.rsplit("/", 1)[-1] in SHELLS):
            options = list(itertools.takewhile(lambda word: word.text.startswith("-"), words[place + 1 : -1]))
            if any(word.text in _SCRIPT for word in options):
                return self.quoted(words[place + 1 + len(options)], tuple(words[:place]))
        if words[0].text.rsplit("/", 1)[-1] in SUBMITS:
            for one, two in itertools.pairwise((*words, Word("", 0))):
                name, equals, text = one.text.partition("=")
                if name == "--wrap":
                    return self.quoted(Word(text if equals else two.text, one.line), tuple(words))
        child = self.child(words, own)
        if child is not None:
            return child
        places = extras(words)
        unset, words = [words[at] for at in places], [word for at, word in enumerate(words) if at not in places]
        self._size += sum(len(word.text) for word in words)
        passed = [name for name in self.variables.values if name in self.exported or name in self._preset]
        set_ = {name: value for name in passed if self._preset.get(name) is not (value := self.variables.values[name])}
        environment = {name: shown(value.text) for name, value in set_.items()} | own
        self._kept += len(environment)
        line = words[0].line
        if len(self.commands) >= MAX_WORDS or self._size > MAX_TEXT:
            raise InvalidJob(f"{self.path}, line {line}: more than {MAX_WORDS} commands, or words in them", SHORTER)
        if self._kept > MAX_KEPT:
            raise InvalidJob(f"{self.path}, line {line}: too many commands and variables", SHORTER)
        place = self.calls[0] if self.calls else line
        texts = tuple(Word(shown(word.text), place if self.children else word.line) for word in words)
        within = self.children[-1] if self.children else ""
        around = tuple(word._replace(text=shown(word.text)) for word in self.around)
        self.commands.append(Command(texts, environment, place, self._remarks(words, unset, len(own)), around, within))
        return ""

    def fed(self, node: Chain) -> Word | None:
        """The script that a pipe gives to the shell at its end: ``echo "$JOB" | kubectl exec -i pod -- bash``."""
        last = node.parts[-1][1]
        joined = isinstance(last, Simple) and takes_script(last.words) and {sign for sign, _ in node.parts[1:]} == {"|"}
        text = self.variables.piped([part for _, part in node.parts[:-1]]) if joined else ""
        return Word(text, last.words[-1].line) if text and isinstance(last, Simple) else None

    def _remarks(self, words: list[Word], unset: list[Word], above: int) -> tuple[str, ...]:
        """What must be said with a command, before which so many variables are set for it."""
        used = sorted(self.variables.used | self.noted)
        names = [note[1:] for note in used if note[0] == "?"]
        found = [f"{self.path}: a loop over {note[1:]} is taken, the first value" for note in used if note[0] == "@"]
        if names:
            more = ", …" if names[6:] else ""
            found.append(f"{self.path}: set under a condition, of which the value before it or the first is taken: "
                         f"{', '.join(names[:6])}{more}")  # fmt: skip
        if unset:
            said = ", ".join(dict.fromkeys(shown(word.text) for word in unset[:6]))
            found.append(f"{self.path}: never set, and taken as empty: {said}")
        first, last = min(word.line for word in words) - above, max(word.line for word in words)
        broken = next((line for line in self.joined if first <= line <= last), 0)
        if broken:
            found.append(
                f"{self.path}, line {broken}: a shell ends the command here; the options behind it are counted"
            )
        return tuple(found)

    def call(self, name: str, words: list[Word], line: int, passes: bool) -> str:
        """A function with its arguments; ``passes``: with those that the script itself is given."""
        if len(self.calls) >= MAX_CALLS:
            raise InvalidJob(f"{self.path}, line {line}: functions call each other without an end", SHORTER)
        arguments, notes = self.variables.arguments, frozenset(self.variables.used)
        self.called.add(name)
        self.calls.append(line)
        self.locals.append({})
        self.returned.append(False)
        if not (passes and arguments is None):
            self.variables.arguments = [Value(word.text, None, notes) for word in words]
        stop = self.body(self.functions[name].body)
        for key, before in self.locals.pop().items():
            if before is None:
                self.variables.values.pop(key, None)
            else:
                self.variables.values[key] = before
        self.variables.arguments = arguments
        self.calls.pop()
        self.status = "ran"
        return "" if self.returned.pop() or stop != "exit" else stop

    def quoted(self, word: Word, around: tuple[Word, ...] = ()) -> str:
        """A script in quotes, for another shell or for ``eval``."""
        if len(self.calls) >= MAX_CALLS:
            raise InvalidJob(f"{self.path}, line {word.line}: scripts in quotes without an end", SHORTER)
        self.calls.append(self.calls[0] if self.calls else word.line)
        outer, noted, before = self.around, self.noted, dict(self.variables.values)
        self.noted |= self.variables.used
        if around and around[0].text.rsplit("/", 1)[-1] in SUBMITS:
            self.know(slurm_variables(shown(word.text) + asked(around[1:])))
        else:
            self.around = (*outer, *around)
            self.know(in_container(around))
        stop = self.inner(shown(word.text), word.line)
        self.around, self.noted = outer, noted
        if around:
            self.variables.values = before
        self.calls.pop()
        self.status = "ran"
        return "" if stop in ("exit", "return") else stop
