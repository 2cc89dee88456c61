"""The commands that a script comes to: variables, conditions, loops and functions are followed, and nothing is run.

Where a condition cannot be known, each of its arms is gone through on its own, and of a name that is set there the
value before it, else the first, is what comes after. Of a loop the first value is taken. Both are said."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from memplan.errors import InvalidJob
from memplan.frameworks.commands.slurm import slurm_variables
from memplan.frameworks.shell.builtins import ASSIGNED, BUILTINS, DECLARES
from memplan.frameworks.shell.calls import Calls, takes_script
from memplan.frameworks.shell.fields import UNKNOWN, Value, first_of, shown, unknown
from memplan.frameworks.shell.filters import NO_GPUS
from memplan.frameworks.shell.nodes import Block, Branch, Chain, Choice, Function, Loop, Node, Simple
from memplan.frameworks.shell.parts import parse
from memplan.frameworks.shell.patterns import braced
from memplan.frameworks.shell.reader import SHORTER, Command, Given, Word
from memplan.frameworks.shell.syntax import Raw, Scanner
from memplan.frameworks.shell.tests import holds

MAX_STEPS = 30_000
"""Commands, and arms of conditions, that are gone through."""
MAX_TURNS, MOST_KEPT = 200, 512
"""Turns of one loop over arguments; scripts of a project whose commands are kept: each of its files asks for them."""
STOPS = ("exit", "return", "break", "continue")


@dataclass(frozen=True)
class Script:
    """What a script comes to."""

    commands: tuple[Command, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    """Files that it writes from text of its own, by the name that it gives them."""


def run_script(text: str, path: str, given: Given | None = None) -> Script:
    """All commands of a script. Raises InvalidJob for quotes that do not close, and for more than a person writes."""
    return gone_through(text, path, given, os.getcwd())


@lru_cache(maxsize=MOST_KEPT)
def gone_through(text: str, path: str, given: Given | None, folder: str) -> Script:
    """The same, in a working directory."""
    running = _Running(path)
    running.know(slurm_variables(text))
    if given:
        running.know(dict(given.variables))
        running.variables.arguments = [Value(word) for word in given.arguments]
    running.script(text, 1)
    return Script(tuple(running.commands), running.files)


class _Running(Calls):
    """A script, gone through once."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._steps = 0
        self.gives_up = self.resubmits = False

    def script(self, text: str, line: int) -> None:
        """A whole script, and the functions in it that nobody calls."""
        self.inner(text, line)
        for name in [name for name in self.functions if name not in self.called]:
            self.variables.arguments = None
            self.body(self.functions[name].body)
        self.left()

    def inner(self, text: str, line: int) -> str:
        """A script, or one in quotes."""
        scanner = Scanner(text, self.path, line).scan()
        self.joined = [*self.joined, *scanner.joined]
        return self.body(parse(scanner))

    def body(self, nodes: Iterable[Node]) -> str:
        """Commands one after the other; the word that ends them early, if one does."""
        self.status: bool | str | None = True
        for node in nodes:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise InvalidJob(f"{self.path}: more than {MAX_STEPS} commands", SHORTER)
            if stop := self.node(node):
                return stop
        return ""

    def node(self, node: Node) -> str:
        """One command or block, after which ``status`` is true, false, unknown or 'ran'."""
        if isinstance(node, Simple):
            return self.simple(node)
        if isinstance(node, Chain):
            return self.chain(node)
        if isinstance(node, Block):
            return self.block(node)
        if isinstance(node, Function):
            self.functions[node.name] = node
            self.called.discard(node.name)
            self.status = True
            return ""
        arms = self.choice if isinstance(node, Choice) else self.loop
        stop = self.branch(node) if isinstance(node, Branch) else arms(node)  # type: ignore[arg-type]
        self.status = "ran"
        return stop

    def block(self, node: Block) -> str:
        """``{ … }``, whose commands may write to one file: ``{ echo …; } > job.sh``."""
        outer = self.into
        for each in node.redirects:
            if each.sign in (">", ">>", ">|"):
                self.into = self.variables.text(each.target.text, each.target.line)
                self.files |= {shown(self.into): ""} if each.sign != ">>" else {}
        stop = self.body(node.body)
        self.into, self.status = outer, "ran"
        return stop

    def chain(self, node: Chain) -> str:
        """``&&``, ``||`` and pipes: a command is taken to go well."""
        if script := self.fed(node):
            return self.quoted(script)
        stop = ""
        for sign, part in node.parts:
            if (sign == "&&" and self.status is False) or (sign == "||" and self.status in (True, "ran")):
                continue
            if sign in ("&&", "||") and self.status is None:
                stop = self.undecided([(part,)], whole=False)
                self.status = None
            else:
                stop = self.known((part,)) if sign in ("&&", "||") else self.node(part)
            if stop:
                return stop
        if node.negated:
            self.status = None if isinstance(self.status, str) or self.status is None else not self.status
        return ""

    def branch(self, node: Branch) -> str:
        """``if``: the arm that is known to hold, or all that may."""
        may: list[tuple[Node, ...]] = []
        for condition, body in node.arms:
            known: bool | str | None = True
            if condition:
                self.body(condition)
                known = self.status
            if known is True:
                return self.undecided([*may, body], whole=True) if may else self.known(body)
            if known is not False:
                may.append(body)
        return self.undecided(may, whole=False) if may else ""

    def known(self, body: tuple[Node, ...]) -> str:
        """The arm that holds; one that gives up (``exit 1``) asks for a variable a run is given."""
        stop = self.body(body)
        return "" if stop == "exit" and self.gives_up else stop

    def choice(self, node: Choice) -> str:
        """``case``: the arm whose pattern the word has, or all of them."""
        word = self.variables.text(node.word.text, node.word.line)
        every = any(pattern.text == "*" for patterns, _ in node.arms for pattern in patterns)
        if UNKNOWN in word:
            return self.undecided([body for _, body in node.arms], whole=every)
        for patterns, body in node.arms:
            if any(self.variables.matches(word, self.variables.text(each.text, each.line)) for each in patterns):
                return self.body(body)
        return ""

    def undecided(self, bodies: Sequence[tuple[Node, ...]], whole: bool, optional: bool = False) -> str:
        """Arms of which nobody knows which one runs; ``whole``: one of them does; ``optional``: what they take from the
        arguments, a script without any does without."""
        before, arguments, files = self.variables.values, self.variables.arguments, self.files
        after, written = list[dict[str, Value]](), list[dict[str, str]]()
        for body in bodies:
            self.variables.spend(len(before))
            self.variables.values, self.variables.arguments, self.files = dict(before), arguments, dict(files)
            written.append(self.files)
            if (stop := self.body(body)) not in ("exit", "return"):
                after.append(self.variables.values)
            self.returned[-1:] = [stop == "return" or each for each in self.returned[-1:]]
        self.variables.values, self.variables.arguments, self.files = before, arguments, files
        self.merge_files(written, whole)
        if whole and len(after) == 1:
            self.variables.values = after[0]
            return ""
        names = dict.fromkeys(name for values in after for name in values if values[name] is not before.get(name))
        for name in names:
            found = [values.get(name) for values in after]
            if not (optional and name not in before and all(each is None or UNKNOWN in each.text for each in found)):
                self._merge(name, found, whole)
        return ""

    def _merge(self, name: str, found: list[Value | None], whole: bool) -> None:
        """One value of a name that arms set: the one before, unless all of them set it; else the first."""
        before = self.variables.values.get(name)
        new = [value for value in found if value is not None and value is not before]
        stays = before is not None and not (whole and len(new) == len(found))
        told = before is None or UNKNOWN not in before.text  # ``if [ "$2" == "" ]; then STAGE=3; fi`` is a default
        kept = before if before is not None and stays and told else first_of(new)
        others = {value.text for value in new} | ({before.text} if before is not None and stays else set())
        note = set() if len(others) == 1 and kept.items is None else {f"?{name}"}
        self.variables.values[name] = kept._replace(notes=kept.notes | note)

    def loop(self, node: Loop) -> str:
        """A loop's body once, with the first value of its name."""
        if not node.name:
            return self.turns(node)
        if node.words is None:
            self.arithmetic(node.name.partition(";")[0], node.line)
        else:
            values = self._values(node)
            if not values:
                return ""
            first = values[0]
            text = first if UNKNOWN not in first and "*" not in first else unknown(f"${node.name}")
            note = {f"@{node.name}, line {node.line}: {shown(text)}"} if len(values) > 1 else set()
            self.variables.values[node.name] = Value(text, None, frozenset(note | self.variables.used))
            self.variables.used.clear()
        stop = self.body(node.body)
        return "" if stop in ("break", "continue") else stop

    def turns(self, node: Loop) -> str:
        """``while``: as often as its condition is known to hold, as over the arguments that a script is given; once
        where it always does."""
        for _ in range(MAX_TURNS):
            before = list(self.variables.arguments or ())
            self.body(node.condition)
            if self.status is False:
                return ""
            if self.status is not True:
                return self.undecided([node.body], whole=False, optional=True)
            stop = self.body(node.body)
            if stop and stop != "continue":
                return "" if stop == "break" else stop
            if list(self.variables.arguments or ()) == before:
                return ""  # its turns differ by nothing that is followed
        return ""

    def _values(self, node: Loop) -> list[str]:
        self.variables.used.clear()
        written = [(part, raw.line) for raw in node.words or () for part in braced(raw.text)]
        return [word.text for part, line in written for word in self.variables.words(part, line)]

    def simple(self, node: Simple) -> str:
        """A command, an assignment, a test."""
        if node.form == "sum":
            self.status = self.arithmetic(node.words[0].text, node.words[0].line)
            return ""
        if node.form == "test":
            self.status = holds(self._tested(node.words[0]), self.variables, self.files)
            return ""
        start = 0
        while start < len(node.words) and ASSIGNED.match(node.words[start].text):
            start += 1
        self.variables.used.clear()
        if start == len(node.words):
            for raw in node.words:
                self.assign(raw)
            self.status = True
            return ""
        if node.words[start].text in DECLARES:
            self.declare(node.words[start].text, node.words[start + 1 :])
            self.status = True
            return ""
        return self.started(node, start)

    def started(self, node: Simple, start: int) -> str:
        """A command with variables in front of it."""
        words = [word for raw in node.words[start:] for word in self.variables.words(raw.text, raw.line)]
        while words and not words[0].text:
            words = words[1:]
        if not words:
            self.status = "ran"
            return ""
        own = self.given(node.words[:start])
        name, rest = words[0].text, words[1:]
        self.status = False if NO_GPUS.search(" ".join(each.text for each in words)) else "ran"
        if name in STOPS:
            self.gives_up = self.resubmits or any(word.text not in ("0", "$?") for word in rest)
            return name
        if self.again(name, words, node.words[start + 1 :]):
            self.resubmits = True  # what runs then is the script, without this arm
            return ""
        if name in self.functions:
            passes = any(raw.text in ('"$@"', "$@", '"${@}"') for raw in node.words[start + 1 :])
            return self.call(name, rest, words[0].line, passes)
        if name in ("[", "test"):
            tested = [word.text for word in rest]
            self.status = holds(tested[:-1] if name == "[" else tested, self.variables, self.files)
            return ""
        builtin = BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, rest, node.redirects, own) or ""
        script = self.script_read(node.redirects) if takes_script(words) else None
        return self.quoted(Word(script, words[0].line), tuple(words)) if script else self.emit(words, own)

    def _tested(self, raw: Raw) -> list[str]:
        tokens = Scanner(raw.text, self.path, raw.line).scan().tokens
        return [self.variables.text(token.text, token.line) if token.kind == "word" else token.text for token in tokens]
