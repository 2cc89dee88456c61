"""A program, or a script, that leaves its job to who starts it: trainings of the project around it that start it."""

import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from memplan.errors import MemplanError
from memplan.frameworks.asking import SHELLS
from memplan.frameworks.base import Framework
from memplan.frameworks.commands.launch import launch_of
from memplan.frameworks.draft import ASSUMED, FILE, NotKnown
from memplan.frameworks.files.documents import Document, document_of, open_document
from memplan.frameworks.files.following import found_at, program_at
from memplan.frameworks.parts import parts
from memplan.frameworks.project.starters import names, naming, runs, starters
from memplan.frameworks.trl.methods import method_of
from memplan.spec.reading import JobInput, Unread

CONFIGS = (".yaml", ".yml", ".json")
MOST_TRIED = 4
"""Scripts and commands that start one program, of which the first that says all is taken."""
OF_A_LAUNCHER = ("TRL", "transformers", "LLaMA-Factory")
SAID = ("model", "sequence_length", "batch_size", "sharding", "num_gpus")
"""Keys that are marked as the starter's."""


def first_started(
    document: Document,
    whose: Callable[[Document], Framework | None],
    stands: Callable[[Document], JobInput],
    alone: JobInput | None,
) -> JobInput | None:
    """The first training of the project that starts this document and leaves nothing open. ``alone``: what the document
    says by itself, whose model is the started one's too where it is a config. A config that a program of the project
    opens is read as that does, with what it asks for; raises NotKnown for one of no framework's, or with keys that its
    framework's parser refuses, of a program that asks for more or cannot start; and for a program whose command leaves
    the model alone open. A config of a framework that runs by itself is no other program's, which finds none of its
    keys in it."""
    config, here = document.path.endswith(CONFIGS), str(Path(document.path).resolve())
    own = whose(document) if config else None
    by_itself = own is not None and own.title not in (*OF_A_LAUNCHER, "memplan")

    def read(each: Document) -> JobInput | None:
        row = whose(each)
        return stands(each) if row and (row is own or not by_itself) else None

    named = alone.job.model if alone and config else None
    asked: NotKnown | None = None
    mine: JobInput | None = None
    for training, how in started_by_others(document):
        try:
            given = read(training)
        except NotKnown as error:
            asked = asked or error
            continue
        except MemplanError as error:
            asked = asked or (NotKnown(error.message, error.hint or "mend what starts it") if config else None)
            continue
        if given is not None and config and _reads_none(training, document, given):
            continue
        if config and given is not None:
            given = _of_its_name(given, document, how)
        if mine is None and given is not None and here in given.opened:
            mine = marked(given, how)
        left = {each.key for each in alone.unread} if alone and not config else set()
        decided = [each for each in given.unread if each.decides and not each.above] if given else []
        open_still = any(each.asks or each.key not in left for each in decided)  # what it leaves by itself stays open
        if given is None or open_still or given.job.model is None or named not in (None, given.job.model):
            continue
        if config and here not in given.opened:
            continue  # it reads another
        return marked(given, how)
    if config and mine is not None:
        return mine  # what the program that reads it leaves open, its config alone does not say
    if not config and alone is None and asked is not None and "; nor " not in asked.message:
        raise asked  # its command leaves nothing but the model
    if not config or asked is None or not (_is_foreign(alone) if alone else _is_nobodys(document, read)):
        return None
    raise asked


def _of_its_name(given: JobInput, document: Document, how: str) -> JobInput:
    """With a question, where a config's name speaks of a preference and what may open it is supervised fine-tuning: its
    program may be another, which is not here."""
    word = method_of(document.path)
    if word in ("", "sft", "distill") or given.job.method != "sft" or given.sources.get("method") == "option":
        return given
    why = f"the file's name speaks of {word}; {how}, it is supervised fine-tuning"
    asked = Unread("method", document.path, why, "method", "add --method sft, if it is", asks="method")
    return given._replace(unread=(*given.unread, asked))


_NAMED = re.compile(r"[\w.-]+/[\w./-]+")


def _reads_none(training: Document, document: Document, given: JobInput) -> bool:
    """Whether a program that may open any config has a model that this one does not name: its own, where the config's
    keys are another's."""
    if training.form != "shell" or not training.path.endswith(".py") or not isinstance(given.job.model, str):
        return False
    said = _NAMED.findall(given.origins.get("model", ""))  # as it was before it was settled
    return not any(name in document.text for name in (given.job.model.rpartition("/")[2], *said))


def _is_nobodys(document: Document, read: Callable[[Document], JobInput | None]) -> bool:
    try:
        return read(document) is None
    except MemplanError:
        return False


def _is_foreign(given: JobInput) -> bool:
    """Whether a config has a key that TrlParser and HfArgumentParser refuse, as they do any that is not theirs."""
    return given.framework.startswith(OF_A_LAUNCHER) and any(each.why == Unread("", "").why for each in given.unread)


def of_nobodys_program(document: Document, given: JobInput) -> JobInput:
    """A config with keys that its framework's parser refuses, whose program is not found, says so."""
    if not (document.path.endswith(CONFIGS) and _is_foreign(given)):
        return given
    said = f"{document.path}: the program that reads it is not known: it is counted as one without settings of its own"
    return given._replace(warnings=(*given.warnings, said))


def leaves_its_launcher(document: Document, given: JobInput) -> bool:
    """Whether a config of the Trainer's arguments names no model, says nothing of how several GPUs share the work
    (which is its launcher's to say), or is of a program's own keys."""
    told = (FILE, "option")
    one = given.job.num_gpus == 1 and given.sources.get("num_gpus") in told
    several = (not one and given.sources.get("sharding") not in told) or given.job.model is None
    return document.path.endswith(CONFIGS) and (
        _is_foreign(given) or (several and given.framework.startswith(OF_A_LAUNCHER))
    )


def _of_config(here: Path) -> Iterator[tuple[Document, str]]:
    """The trainings of the project that name a config: of its scripts, of its pages' commands, of its programs."""
    for name, command in islice(naming(here), MOST_TRIED):
        shown = os.path.relpath(name)
        try:
            found = parts(document_of(command, shown, "shell") if command else open_document(shown))
        except MemplanError:
            continue
        if name.endswith(".py") and not command:
            yield from started_by_others(document_of("", shown, "python"))
            yield from ((each, f"as {shown} reads it") for each in found)
            continue
        for each in found:
            words = (word for command in each.commands for word in command.words)
            if any(names(word.text, name, here) for word in words):
                yield each, f"as {shown} {'reads' if name.endswith('.py') else 'starts'} it"


def started_by_others(document: Document) -> Iterator[tuple[Document, str]]:
    """The trainings of the project that start this program, or this script, and where each stands."""
    here = Path(document.path).resolve()
    if here.suffix in CONFIGS and here.is_file():
        yield from _of_config(here)
    if here.suffix not in (".py", *SHELLS) or not here.is_file():
        return
    for name, text in islice(starters(str(here)), MOST_TRIED):
        shown = os.path.relpath(name) + (" (a comment)" if name == str(here) else "")  # or it would start itself
        try:
            script = document_of(text, shown, "shell") if text else open_document(shown)
            found = next((each for each in parts(script) if _starts(each, here, document)), None)
        except MemplanError:
            continue
        if found is not None:
            yield found, f"as {shown} starts it" if not text else f"by its command in {shown}"


def _starts(part: Document, here: Path, document: Document) -> bool:
    """Whether a training of a script is the program's, or stands in the script."""
    command = part.commands[0] if part.commands else None
    launch = launch_of(command, part.path) if command else None
    if command is None or launch is None:
        return False
    if here.suffix == ".py":
        return runs(found_at(command.within or part.path, program_at(part.path, launch.program)), here)
    own = launch_of(document.commands[0], document.path) if document.commands else None
    return command.within == str(here) and (own is None or own.program == launch.program)


def marked(given: JobInput, how: str) -> JobInput:
    """A job that says, at every key that the command may decide, how the program is started."""
    keys = [key for key in SAID if given.sources.get(key) in (FILE, ASSUMED)]
    origins = {**given.origins, **{key: f"{given.origins.get(key, key)}, {how}" for key in keys}}
    return given._replace(
        sources=given.sources | dict.fromkeys(keys, ASSUMED),
        origins=origins,
        assumptions=(*given.assumptions, f"the program is started {how}"),
    )
