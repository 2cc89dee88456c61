"""What a framework is here: one row in a file of its own, with how it is told, read and written.

A reader takes settings one by one with ``Keys``, which writes the job into a ``Draft`` and keeps account: what came
from the file, what is the framework's default, what was not understood. To add a framework, add a file to this folder
with a ``FRAMEWORK`` row; nothing else lists it."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from memplan.frameworks.asking import MODEL
from memplan.frameworks.deciding import ROWS, no_less, subject_of, subject_of_section
from memplan.frameworks.draft import ASSUMED, DEFAULT, FILE, OFF, UNSET, Draft, Origin, short
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.spec.plain import Odd
from memplan.spec.reading import Unread

__all__ = ["ASSUMED", "DEFAULT", "FILE", "Draft", "File", "Framework", "Keys", "Origin", "Writing"]

if TYPE_CHECKING:
    from memplan.spec.job import Job
    from memplan.spec.recipe import Recipe


class Framework(NamedTuple):
    """One framework."""

    name: str
    """As it is typed: memplan emit NAME."""
    title: str
    version: str
    """Whose defaults are taken where a file does not say."""
    recognise: Callable[[Document], Iterable[str]]
    """The marks of this framework in a document: keys or words that tell it from the others. None: not its own."""
    read: "Callable[[Document, Draft], None]"
    """Puts what a document says into a draft. Raises InvalidJob."""
    write: "Callable[[Job, Writing], list[File]] | None" = None
    """Files that make this job, the main one first. What they cannot say is found by reading them (``writing``)."""
    trainer: str = ""
    """The job's ``trainer`` that its files run; empty where any may."""
    trainer_of: "Callable[[Job], Mapping[str, Any]] | None" = None
    """Where it depends on the job: its ``trainer`` and ``trainer_version``."""
    writes: tuple[str, ...] = ()
    """Keys of a job that its files say, where the rest is said elsewhere; empty for all."""
    onto: "Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] | None" = None
    """What its file would say, in the words of one that is there: (what that says now, what would be said)."""
    beside: "Callable[[Job], tuple[str, ...]]" = lambda job: ()
    """Further keys that its files do not say of a job: those of the data, or of the command line."""
    generates: bool = False
    """Its files say what generates the completions of online methods, and on which cards."""
    extends: tuple[str, ...] = ()
    """Frameworks whose keys are in its files too, such as transformers for TRL."""
    same_model: Callable[[Any], Any] | None = None
    """What of a ModelSpec its files say, where they describe the model instead of naming it."""
    follows: bool = False
    """Its marks are found by going through programs: asked for where no other's are there that say it all."""
    launches: bool = False
    """Its files say how another framework's training runs (accelerate, DeepSpeed): read after that one's."""

    @property
    def label(self) -> str:
        """'TRL 1.16'."""
        return f"{self.title} {self.version}".strip()


class File(NamedTuple):
    """A file to write: settings, or a text."""

    name: str
    values: Mapping[str, Any] | None = None
    """YAML or JSON, by the name's end."""
    text: str = ""
    comment: tuple[str, ...] = ()
    placeholders: Mapping[str, str] = MappingProxyType({})
    """Settings that only the user knows, and what stands in their place."""


class Writing(NamedTuple):
    """What a writer is told beside the job, in which every key has its value."""

    expects: tuple[str, ...]
    """Lines of the comment that says what memplan expects of the job."""
    model: str
    """The Hub id or path that the job's model stands for."""
    recipe: "Recipe"
    """The job, resolved."""


class Keys:
    """Takes the settings of one file or section one by one."""

    def __init__(
        self, draft: Draft, settings: Settings, framework: Framework, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.draft, self.settings, self.framework = draft, settings, framework
        self.defaults = defaults or {}
        self._taken: set[str] = set()
        self._open: dict[str, Unread] = {}
        """Keys whose value stands for something that the file does not hold."""

    def raw(self, key: str) -> Any:
        """What the file says, or what is tried in its place (``own_words``)."""
        name = f"{self.settings.prefix}{key}"
        self.draft.asked.setdefault(name, self.settings)
        return self.draft.tried.get(name, self.settings.values.get(key))

    def has(self, key: str) -> bool:
        """Whether the file says it, other than null."""
        return self.raw(key) is not None

    def get(self, key: str) -> Any:
        """The file's value, else the framework's default, else None; the key counts as understood."""
        self._taken.add(key)
        value = self.raw(key)
        return self.defaults.get(key) if value is None else value

    def text(self, key: str) -> str | None:
        """A word. Raises InvalidJob for a list or a mapping."""
        value = self._plain(key)
        if isinstance(value, (list, Mapping)):
            raise self.settings.error(key, f"{short(value)!r} is not one word", "write one value")
        return None if value is None else str(value).strip()

    def flag(self, key: str) -> bool | None:
        """True or false. Raises InvalidJob for what is neither."""
        value = self._plain(key)
        word = str(value).strip().lower()
        if isinstance(value, bool) or word in ("none", "null", ""):
            return value if isinstance(value, bool) else None
        if word not in ("true", "yes", "on", "1", "false", "no", "off", "0", "t", "f", "y", "n"):
            raise self.settings.error(key, f"{short(value)!r} is neither true nor false", "write true or false")
        return word in ("true", "yes", "on", "1", "t", "y")

    def number(self, key: str) -> float | None:
        """A number. Raises InvalidJob for what is none; of a variable that a script leaves empty nobody knows it."""
        value = self._plain(key, "")
        if value is None:
            return None
        if isinstance(value, Odd):  # the framework's own PyYAML reads it so
            self.remark(f"{key}: {value.meaning}", key)
        try:
            if isinstance(value, (bool, list, Mapping)):
                raise ValueError
            return float(value)
        except ValueError:
            raise self.settings.error(key, f"{short(value)!r} is no number", "write a number") from None

    @overload
    def whole(self, key: str) -> int | None: ...
    @overload
    def whole(self, key: str, usual: int) -> int: ...
    def whole(self, key: str, usual: int | None = None) -> int | None:
        """A whole number, or what is ``usual`` (0 is not). Raises InvalidJob for none, below -1, and no rows at all."""
        if (number := self.number(key)) is None:
            return usual
        small = number < -1 or (number == 0 and (bool(usual) or ROWS.search(key) is not None))
        if small or not math.isfinite(number) or number != int(number):
            what = "too small" if small else "no whole number"
            raise self.settings.error(key, f"{short(self.get(key))!r} is {what}", "write a whole number")
        return int(number)

    def names(self, key: str) -> tuple[str, ...] | None:
        """A list of words: of YAML, of a command line, or with commas."""
        value = self._plain(key)
        items = value if isinstance(value, list) else str(value).replace(",", " ").split()
        return None if value is None else tuple(str(item).strip() for item in items)

    def _plain(self, key: str, *unset: str) -> Any:
        """The value, where the file holds it; of a variable that it never sets the framework's default, and the key is
        not understood until ``put`` knows which of the job's it is. ``unset``: words that are as good as one."""
        value = self.get(key)
        if not any(is_template(item) or item in unset for item in (value if isinstance(value, list) else (value,))):
            return value
        if key not in self._open:
            why = f"{short(value)!r} {UNSET}"
            name = f"{self.settings.prefix}{key}"
            self._open[key] = Unread(name, self.settings.where(key), why, subject_of(name))
            self.draft.unread.append(self._open[key])
        return self.defaults.get(key)

    def _ask(self, job_key: str, key: str, value: Any) -> None:
        """For a job's key that the file leaves to a variable: gradient accumulation is assumed, since memory depends on
        whether there is any and no more; the rest is asked for."""
        found = self._open[key]
        self.draft.unread[:] = [each for each in self.draft.unread if each is not found]
        what = f"{found.key}: {found.why}"
        if job_key == "gradient_accumulation_steps":
            self.assume(job_key, 2, f"{found.where}: {what}; memory depends on whether there is more than one step")
        else:
            self.draft.ask(job_key, found.where, what, MODEL if job_key == "model" else "")
            if value is not None and job_key != "model":
                self.assume(job_key, value, f"{found.where}: {what}")

    def ask_open(self, job_key: str, key: str) -> None:
        """Ask for a job's key where the file leaves this one of its own to a variable."""
        if key in self._open:
            self._ask(job_key, key, None)

    def took(self, key: str) -> bool:
        """Whether the reader has asked for it."""
        return key in self._taken

    def section(self, key: str, defaults: Mapping[str, Any] | None = None) -> "Keys":
        """A nested mapping, with keys of its own to take."""
        self._taken.add(key)
        tried = self.draft.tried.get(f"{self.settings.prefix}{key}")
        settings = Settings(self.settings.path, {key: tried}, {}, self.settings.prefix) if tried else self.settings
        return Keys(self.draft, settings.section(key), self.framework, defaults)

    def put(self, job_key: str, value: Any, *keys: str) -> None:
        """Set a job's key, of these keys of the file: where it came from is where the first of them that is there is,
        else the framework's default. Without keys it follows from what the file is."""
        said = next((key for key in keys if self.has(key)), None)
        lora = job_key == "lora"
        if rank := next((key for key in keys if lora and key in self._open and key.endswith(("_r", "rank"))), ""):
            self._ask("lora.r", rank, None)  # the rest of the adapters is known
        elif said in self._open:
            self._ask(job_key, said or "", value)
            return
        if said is not None or not keys:
            self.draft.put(job_key, value, Origin(FILE, self._said(said)))
            return
        text = ", ".join(f"{key} {self._shown(key)}" for key in keys)
        self.draft.put(job_key, value, Origin(DEFAULT, f"{self.framework.label}: {text}"))

    def put_on(self, key: str, job_key: str, value: Any) -> None:
        """Set a job's key where this flag is on."""
        if self.flag(key):
            self.put(job_key, value, key)

    def remark(self, text: str, key: str = "") -> None:
        """A sentence that the report's reader must know, of the file or of a key in it."""
        self.draft.remarks.append(f"{self.settings.where(key) if key else self.settings.path}: {text}")

    def _said(self, key: str | None) -> str:
        return self.settings.path if key is None else f"{self.settings.where(key)}: {self.settings.prefix}{key}"

    def _shown(self, key: str) -> str:
        value = self.defaults.get(key)
        return "not set" if value is None else str(value).lower() if isinstance(value, bool) else short(value)

    def assume(self, job_key: str, value: Any, why: str) -> None:
        """Set a job's key to what nobody said."""
        self.draft.put(job_key, value, Origin(ASSUMED, why))

    def copy(self, job_key: str, key: str, kind: str = "text") -> Any:
        """Put a key's value as it is: text, whole, number, flag or names. Nothing where it is absent; the value."""
        if job_key in self.draft.given:
            self.skip(key)
            return None
        if job_key == "model" and isinstance(self.raw(key), list):
            self.skip(key)
            self.draft.ask("model", self.settings.where(key), f"{key} is {short(self.raw(key))}, several words", MODEL)
            return None
        value = getattr(self, kind)(key)
        if value is not None or key in self._open:
            self.put(job_key, value, key)
        return value

    def skip(self, *keys: str) -> None:
        """These are understood, and memory does not feel them."""
        self._taken.update(keys)

    def warn(self, key: str, why: str = "not understood", decides: str | None = None, hint: str = "") -> None:
        """This one bears on memory and is not understood, where the file says it (``Draft.warn``)."""
        self._taken.add(key)
        if self.has(key) and key not in self._open:
            name = f"{self.settings.prefix}{key}"
            if decides is None:
                value = self.raw(key)
                decides = subject_of_section(name, value) if isinstance(value, Mapping) else subject_of(name, value)
            self.draft.warn(name, self.settings.where(key), why, decides, hint)

    def is_on(self, key: str, *off: str) -> bool:
        """Whether it is neither false, 0, none nor empty, nor, as it is written, one of ``off``."""
        return str(self.get(key)).strip().lower() not in {*OFF, *off}

    def warn_on(self, table: Mapping[str, str], *off: str) -> None:
        """Keys that bear and are not understood, where they are on."""
        for key, why in table.items():
            if self.is_on(key, *off):
                self.warn(key, why)

    def bound(self, key: str, why: str, decides: str = "", asks: str = "") -> None:
        """This one is not modelled, and no less is counted than it can take (``Draft.bound``)."""
        self._taken.add(key)
        self.draft.bound(f"{self.settings.prefix}{key}", self.settings.where(key), why, decides, asks)

    def close(self, harmless: Iterable[str] = ()) -> None:
        """What nobody took and what is not known as harmless is warned about, by name; what takes no more than is
        counted without it is a bound. An empty list says nothing."""
        left = [key for key in self.settings.values if key not in {*self._taken, *harmless}]
        for key, value in [(key, self.raw(key)) for key in left if self.raw(key) not in ([], {})]:
            subject = "" if isinstance(value, Mapping) else subject_of(f"{self.settings.prefix}{key}", value)
            why = no_less(subject, key, value, self.draft.values)
            if why and self.has(key) and key not in self._open:
                self.bound(key, why, subject)
            else:
                self.warn(key, decides=None if why is None else "")
