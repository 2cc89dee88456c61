"""A job in the making: its values, where each came from, what was not understood and what has to be asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.frameworks.asking import option_of
from memplan.frameworks.deciding import NO_LESS, subject_of
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import open_reference, open_written
from memplan.frameworks.project.pinned import OF_LISTS
from memplan.spec.reading import Unread
from memplan.tables.trainer import version_key

FILE, DEFAULT, ASSUMED = "file", "trainer", "default"
"""Kinds of origin, in the words of the report's ``sources``."""
_RANK = {FILE: 2, DEFAULT: 1, ASSUMED: 0}


OFF = ("none", "null", "false", "0", "0.0", "", "[]", "{}")
UNTIL = "; until "
"""Of a default that the framework changed, where nothing says the version: what it was before."""
UNSET = "stands for something that is not in the file"
"""Of a variable, a template, a command."""


class Origin(NamedTuple):
    """Where the value of a job's key came from."""

    kind: str
    """FILE, DEFAULT (the framework's own) or ASSUMED."""
    text: str
    """'train.yaml, line 3: max_length', 'TRL 1.16: max_length 1024', or why it is assumed."""


class NotKnown(InvalidJob):
    """A value without which there is no job, and which the text does not hold: ``--model_name_or_path $1``."""


SETTLED = ("model", "num_gpus", "batch_size", "eval_batch_size")
"""Keys whose options a file may make something else of: a batch of pairs is one of twice as many rows."""


@dataclass
class Draft:
    """A job in the making: its values, where each came from, what was not understood."""

    given: frozenset[str] = frozenset()
    """Job keys that options give, whatever the files say."""
    options: Mapping[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Sentences that the report's reader must know."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What one framework's reader tells the next and no key of a job says (a launcher's 'mixed_precision')."""
    read: list[str] = field(default_factory=list)
    """Labels of the frameworks that were read: 'TRL 1.16 (train.yaml)'."""
    finishers: "dict[str, Callable[[Draft], None]]" = field(default_factory=dict)
    """Run when every file is read, for what several of them decide together."""
    script: Document | None = None
    """The script that is read, which may write files of its own."""
    followed: list[str] = field(default_factory=list)
    """Paths of the documents that were opened, so that none is read twice."""
    asked: dict[str, Settings] = field(default_factory=dict)
    """Every key that a reader asked for, as its file spells it, and where it asked."""
    tried: Mapping[str, Any] = field(default_factory=dict)
    """Values that stand in the place of a file's own, by the same names."""
    beside: dict[str, Document] = field(default_factory=dict)
    """Files given beside the training's, by their framework."""

    @property
    def said(self) -> dict[str, Any]:
        """The job as far as it is read; options stand above files."""
        return {**self.values, **self.options}

    @property
    def environment(self) -> tuple[Mapping[str, str], str]:
        """Variables of the command that is read, and where it stands; nothing of one that Ray starts from afar."""
        command = next(iter(self.script.commands), None) if self.script is not None else None
        if self.script is None or command is None or command.texts[0].endswith("ray"):
            return {}, ""
        return command.environment, f"{self.script.path}, line {command.line}"

    @property
    def version(self) -> tuple[int, ...]:
        """The trainer's version where an option says it, else later than any."""
        return version_key(str(self.options.get("trainer_version") or "")) or (99,)

    def now(self, key: str) -> Any:
        """What an option gives, or a file says."""
        return self.options.get(key) or self.values.get(key)

    def forget(self, *keys: str) -> None:
        """Nothing was said of these."""
        for key in keys:
            self.values.pop(key, None)
            self.origins.pop(key, None)

    def put(self, key: str, value: Any, origin: Origin) -> None:
        """Set a job's key; a file is stronger than a default, a later value than one of its kind. Raises InvalidJob."""
        before = self.origins.get(key)
        if before is not None and _RANK[before.kind] > _RANK[origin.kind]:
            return
        both = before is not None and before.kind == FILE == origin.kind
        if both and before is not None and self.values[key] != value and key not in self.given:
            raise InvalidJob(
                f"{origin.text} says {key} {short(value)}, and {before.text} says {short(self.values[key])}",
                f"keep one of them, or add --{key.replace('_', '-')} {short(self.values[key])}",
            )
        self.values[key], self.origins[key] = value, origin

    def of_version(self, version: str, why: str) -> None:
        """The trainer's version; that of an option is stronger."""
        self.options = {"trainer_version": version, **self.options}
        self.put("trainer_version", version, Origin(DEFAULT, why))
        self.remarks += [why] * (OF_LISTS in why or "README.md pins" in why)

    def warn(
        self, key: str, where: str, why: str = "not understood", decides: str | None = None, hint: str = ""
    ) -> None:
        """A key that bears on memory, or may, is not understood. ``decides``: what of memory, of ``SUBJECTS``; empty
        where it is little; None to tell it from the key's name. A bound where the reason says that it is."""
        subject = subject_of(key) if decides is None else decides
        self.unread.append(Unread(key, where, why, subject, hint, above=NO_LESS.search(why) is not None))

    def ask(self, key: str, where: str, what: str, hint: str = "") -> None:
        """A job's key that memory depends on, whose value the text does not hold (``$N``): unclear without an option.

        ``what``: what stands there instead, in words."""
        self.unread.append(Unread(key, where, what, subject_of(key) or key, hint or option_of(key), asks=key))

    def bound(self, key: str, where: str, why: str, decides: str = "", asks: str = "", hint: str = "") -> None:
        """What is not known, or not modelled, and counted as no less than it can take: a fit stands, and where it does
        not fit the file is unclear. ``asks``: the job's key that would say it."""
        decides = decides or subject_of(asks or key) or asks
        hint = hint or (option_of(asks) if asks else "")
        self.unread.append(Unread(key, where, why, decides, hint, asks, above=True))

    def follow(self, settings: Settings, key: str, reference: str) -> Document:
        """Open a file that another refers to, within that file's folder or the working directory around it; or that the
        script which refers to it writes.

        Raises InvalidJob for a reference out of these, to the network, or to nothing."""
        written = open_written(self.script, reference) if self.script is not None else None
        document = written or open_reference(settings, key, reference)
        self.followed.append(str(Path(document.path).resolve()))
        self.remarks += document.remarks
        return document

    def trains_on(self, gpus: int, path: str) -> None:
        """Where what generates has cards of its own, so many train as the file says: an option that names more, which
        are those of both, does not spread the training over them."""
        named = str(self.options.get("num_gpus"))
        if not named.isdecimal() or int(named) <= gpus:
            return
        self.options = {key: value for key, value in self.options.items() if key != "num_gpus"}
        self.given -= {"num_gpus"}
        self.facts["trains_on"] = gpus
        self.remarks.append(f"{path}: {gpus} of {named} GPUs train, as it says; what generates has cards of its own")

    def activations_stay(self) -> None:
        """Activations that a file sends to the host are counted on the card where that is not modelled."""
        said = self.said
        trainer, several = str(said.get("trainer")), str(said.get("num_gpus") or 1) != "1"
        if "offload" in self.given or self.values.get("offload") != ["activations"] or trainer == "prime-rl":
            return
        if several or said.get("images") or trainer == "transformers":
            del self.values["offload"]
            where, why = self.origins.pop("offload").text.partition(": ")[0], "activations are counted as on the card"
            self.bound("activation_offloading", where, why, "checkpointing")

    def engine_apart(self) -> None:
        """Processes that a launcher starts beside an engine on cards of its own train alone (``trains_on``)."""
        said, told = self.values.get("num_gpus"), self.origins.get("num_gpus")
        separate = (self.values.get("rollout") or {}).get("placement") == "separate"
        if separate and told is not None and told.kind == FILE and isinstance(said, int):
            self.trains_on(said, told.text)

    def say_replaced(self, options: Mapping[str, Any]) -> None:
        """Where a file runs on another number of GPUs, or trains by another method, than the option counts."""
        for key, told in [(key, self.origins[key]) for key in ("num_gpus", "method") if key in self.origins]:
            said, given = self.values[key], options.get(key)
            if told.kind == FILE and given is not None and str(said) != str(given):
                trains = f"the file trains by {said}: {given} is counted, as the option says"
                runs = f"the file runs on {said} GPU{'s' * (said != 1)}: {given} are counted, as the option says"
                self.remarks.append(f"{told.text}: {trains if key == 'method' else runs}")

    def take(self, framework: str) -> Document:
        """The file of a framework that was given beside the training's, to be read where that names one."""
        document = self.beside.pop(framework)
        self.followed.append(str(Path(document.path).resolve()))
        return document


def short(value: object) -> str:
    """A value as a sentence shows it."""
    return str(value)[:60]
