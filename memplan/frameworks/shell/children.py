"""Scripts that a script starts: beside it, written by itself, or handed to a cluster."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from memplan.errors import InvalidJob
from memplan.frameworks.commands.slurm import TASK, slurm_variables
from memplan.frameworks.files.sourced import sourced_text
from memplan.frameworks.shell.builtins import Builtins
from memplan.frameworks.shell.fields import Value, shown
from memplan.frameworks.shell.filters import SUBMITS
from memplan.frameworks.shell.nodes import Function, Redirect
from memplan.frameworks.shell.reader import SHORTER, Word
from memplan.frameworks.shell.syntax import Raw

MAX_CALLS = 20
"""Functions that call each other, and scripts in quotes."""
SHELLS = ("bash", "sh", "zsh")
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_SHEBANG = re.compile(r"#!\S*(?:/env\s+)?\b(?:ba|z|k)?sh\b")
_JOB = re.compile(r"^#(?:SBATCH|PBS|BSUB|COBALT)\s", re.MULTILINE)
"""The head of a script that waits to be handed to a cluster."""
TERMINALS = ("tmux", "screen")
OWN_NAME = re.compile(r"\$(0|\{0\}|\{?BASH_SOURCE)")
OWN_WORD = re.compile(r"\"?\$(0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(\[0\])?\})\"?")
OWN_LINE = re.compile(rf"\"(?:ba|z)?sh (?:\\?{OWN_WORD.pattern})( .*)?\"")


def asked(words: Sequence[Word]) -> str:
    """The options of sbatch as the lines of a script that say the same."""
    return "".join(f"\n#SBATCH {word.text}" if word.text.startswith("-") else f" {word.text}" for word in words)


class Children(Builtins):
    """Scripts that are started."""

    functions: dict[str, Function]
    called: set[str]
    _preset: dict[str, Value]
    children: list[str]
    """Scripts that are gone through, one started by another."""
    calls: list[int]
    around: tuple[Word, ...]
    begun: set[str]
    """Files of its own that it starts."""
    noted: frozenset[str]
    """What must be said with every command of a text that others were put into."""

    def inner(self, text: str, line: int) -> str:
        """A script, or one in quotes."""
        raise NotImplementedError

    def emit(self, words: list[Word], own: dict[str, str]) -> str:
        """A command that would run."""
        raise NotImplementedError

    def know(self, values: Mapping[str, str]) -> None:
        """Variables of the environment, which something else sets."""
        first = frozenset({f"@{TASK}"})
        self.variables.values |= {
            name: Value(value, None, first if name == TASK else frozenset()) for name, value in values.items()
        }
        self.exported |= values.keys()

    def script_read(self, redirects: Sequence[Redirect]) -> str | None:
        """What a shell reads its commands from: a text of the script's, or a file that it wrote (``bsub < job.sh``)."""
        files = (each for each in redirects if each.sign == "<")
        names = (self.written(self.variables.text(each.target.text, each.target.line)) for each in files)
        if name := next(filter(None, names), ""):
            self.begun.add(name)
            self.variables.used |= self.file_notes.get(name, frozenset())
        return self.files[name] if name else self.variables.read(redirects)

    def written(self, reference: str) -> str:
        """The name of a file of the script's own, here or in a folder that it went to; empty for none."""
        name, found = posixpath.normpath(shown(reference)), list(self.files)
        same = [each for each in found if posixpath.normpath(each) == name]
        gone = [] if "/" in name else [each for each in found if posixpath.basename(each) == name]
        return next(reversed((gone if len(gone) == 1 else []) + same), "") if reference else ""

    def _script_of(self, words: list[Word]) -> tuple[int, str]:
        """Where a command names a script that it starts, and the script's name among the files that this one wrote."""
        names = [word.text.rsplit("/", 1)[-1] for word in words]
        submits = names[0] in SUBMITS
        shells = [place for place, name in enumerate(names) if name in SHELLS and not submits]
        for place, word in enumerate(words if self.files else ()):
            own = self.written(word.text)
            script = own and (own.endswith(SCRIPTS) or _SHEBANG.match(self.files[own]) is not None)
            begins = place == 0 or (place - 1 in shells and not word.text.startswith("-"))
            if own and (submits or begins or (script and (shells or names[0] in ("srun", "nohup", "exec")))):
                return place, own
        place = shells[0] + 1 if shells else names.index("--") + 1 if names[0] == "ray" and "--" in names else 0
        while shells and place < len(words) and words[place].text.startswith(("-", "+")):
            place += 1
        if submits:
            place = next((place for place, word in enumerate(words) if word.text.endswith(SCRIPTS)), len(words))
        name = words[place].text if place < len(words) else ""
        return (place, "") if name.endswith(SCRIPTS) and (shells or submits or "/" in name) else (-1, "")

    def child(self, words: list[Word], own: dict[str, str]) -> str | None:
        """``bash train.sh 8 qwen``, ``sbatch -N 2 train.slurm qwen``: a script beside this one, or that this one wrote,
        under its arguments and what is exported; None for another command, or a script that is not here, or that is
        gone through already."""
        place, name = self._script_of(words)
        if place < 0 or len(self.children) >= MAX_CALLS:
            return None
        here = self.children[-1] if self.children else str(Path(self.path).resolve())
        path, text = (here, self.files.pop(name)) if name else sourced_text(self.path, words[place].text)
        if not name and (not text or path in (*self.children, here)):
            return None
        before, arguments, functions = self.variables.values, self.variables.arguments, self.functions
        called, around, notes, noted = self.called, self.around, frozenset(self.variables.used), self.noted
        inherited = {key: value for key, value in before.items() if key in self.exported or key in self._preset}
        self.variables.values = inherited | {key: Value(value, None, notes) for key, value in own.items()}
        submits = words[0].text.rsplit("/", 1)[-1] in SUBMITS
        self.know(slurm_variables(text + asked(words[1:place])) if submits else {})
        self.variables.arguments = [Value(word.text, None, notes) for word in words[place + 1 :]]
        if name:  # what this script does not know stands there by its name, such as $1
            self.variables.arguments = self.variables.arguments or None
            self.noted |= self.file_notes.get(name, frozenset())
            self.begun.add(name)
        else:
            self.variables.values["BASH_SOURCE"] = Value(path)
        self.functions, self.called = {}, set()
        shells = [at for at, word in enumerate(words[:place]) if word.text.rsplit("/", 1)[-1] in SHELLS]
        self.around = (*around, *words[: shells[0] if shells else 0 if submits else place])
        self.children.append(path)
        self.calls.append(self.calls[0] if self.calls else words[0].line)
        self.inner(text, words[0].line)
        self.calls.pop()
        self.children.pop()
        if name:
            self.files.setdefault(name, text)
        self.variables.values, self.variables.arguments, self.functions = before, arguments, functions
        self.called, self.around, self.noted, self.status = called, around, noted, "ran"
        return ""

    def merge_files(self, found: Sequence[Mapping[str, str]], whole: bool) -> None:
        """Files that arms of a condition write: of each the text before, unless all arms write it; else the first."""
        for name in dict.fromkeys(name for files in found for name in files):
            before, texts = self.files.get(name), [files.get(name) for files in found]
            new = [text for text in texts if text is not None and text != before]
            if new and (before is None or (whole and len(new) == len(texts))):
                self.files[name] = new[0]
            if len({*texts, before} - {None}) > 1:
                self.file_notes[name] = self.file_notes.get(name, frozenset()) | {f"?{name}"}

    def left(self) -> None:
        """Scripts with a cluster's head that are written here and handed to it by another."""
        jobs = [name for name, text in self.files.items() if name.endswith(SCRIPTS[2:]) or _JOB.search(text)]
        for name in [name for name in jobs if name not in self.begun]:
            self.child([Word(SUBMITS[0], 1), Word(name, 1)], {})

    def submitted(self, words: list[str], text: str, line: int) -> None:
        """``JOB=$(sbatch --parsable train.sh)``, with the script that it reads."""
        parts = [Word(word, line) for word in words]
        if text:
            self.quoted(Word(text, line), tuple(parts))
        else:
            self.emit(parts, {})

    def sourced(self, word: Word) -> str:
        """A script beside this one, as if it stood here. Raises InvalidJob for those that source each other."""
        if len(self.calls) >= MAX_CALLS:
            raise InvalidJob(f"{self.path}, line {word.line}: files that source each other without an end", SHORTER)
        own = self.written(word.text)
        path, text = (own, self.files[own]) if own else sourced_text(self.path, word.text)
        before = self.variables.values["BASH_SOURCE"]
        self.variables.values["BASH_SOURCE"] = Value(path)
        self.calls.append(self.calls[0] if self.calls else word.line)
        stop = self.inner(text, word.line)
        self.calls.pop()
        self.variables.values["BASH_SOURCE"] = before
        self.status = "ran"
        return stop if stop == "exit" else ""

    def again(self, name: str, words: Sequence[Word], raws: Sequence[Raw]) -> bool:
        """Whether a command starts this script once more: ``sbatch "$0"``, ``nohup bash "$0" "$@"``, ``tmux new "bash
        $0"``."""
        if any(OWN_LINE.fullmatch(raw.text) for raw in raws) and name in TERMINALS:
            return True
        if name in SUBMITS:
            return any(OWN_NAME.search(raw.text) for raw in raws)
        shells = any(word.text.rsplit("/", 1)[-1] in SHELLS for word in words)
        return shells and any(OWN_WORD.fullmatch(raw.text) for raw in raws)
