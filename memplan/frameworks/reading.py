"""From the files that a user names to one job: whose each is, in which order they are read, what the report says."""

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from memplan.errors import InvalidJob, NoTraining, UsageError
from memplan.files import instead_of_missing
from memplan.frameworks import ownjob
from memplan.frameworks.asking import set_in
from memplan.frameworks.base import ASSUMED, DEFAULT, FILE, Draft, Framework, Origin
from memplan.frameworks.commands.launch import LAUNCHERS, PROGRAMS, WRAPPERS, launch_of, put_allocator
from memplan.frameworks.common.dynamic_checkpoints import put_share_left
from memplan.frameworks.common.image_bounds import IMAGES
from memplan.frameworks.common.local_models import settle_model
from memplan.frameworks.deciding import subject_of
from memplan.frameworks.draft import SETTLED, UNSET, NotKnown
from memplan.frameworks.files.documents import FORMS, Document, of_command, open_document
from memplan.frameworks.parts import parts, the_part, whose
from memplan.frameworks.programs.follow import forget
from memplan.frameworks.programs.launch import put_trainer
from memplan.frameworks.project.as_started import first_started, leaves_its_launcher, of_nobodys_program
from memplan.frameworks.project.starters import starter_of
from memplan.frameworks.registry import find_framework, frameworks
from memplan.frameworks.transformers import read_launcher
from memplan.jobs import read_target as read_own_target
from memplan.spec.reading import JobInput, Unread, build_job, merged, normalise, unanswered, with_numbers, without

NONE: Mapping[str, Any] = MappingProxyType({})


def read_target(
    model: str | None, options: Mapping[str, Any], beside: Sequence[str] = (), framework: str = ""
) -> JobInput:
    """A job from MODEL and options: a framework's file, a command line, or whatever ``memplan.jobs`` knows.

    ``beside``: files that say more of the same job, such as an accelerate config. ``framework``: whose file MODEL is,
    where its content does not say. Raises InvalidJob or ModelError with what to type instead."""
    document = _document(model) if model is not None else None
    if document is not None:
        given = read_opened(document, options, beside, framework)
        unset = next((each for each in given.unread if each.decides and each.why.endswith(UNSET)), None)
        if unset is not None:
            what = f"{unset.asks} is not known: " if unset.asks else f"{unset.key}: "
            raise NotKnown(f"{unset.where}: {what}{unset.why}", unset.hint or "write the value out")
        return given
    if framework:
        what = f"--framework {framework} says whose file MODEL is, and {model or 'there'} is none"
        raise UsageError(what, "leave it out; --trainer says what trains it")
    if not beside:
        return read_own_target(model, options)
    return read_documents([_beside(path) for path in beside], options if model is None else {**options, "model": model})


def read_opened(
    document: Document, options: Mapping[str, Any], beside: Sequence[str] = (), framework: str = ""
) -> JobInput:
    """The job of a file that is open, or of one training of a script (``documents_of``).

    What a program, a script or a config leaves to who starts it is taken from there (``as_started``), which is said.
    ``options["without"]``: keys of the file that take no memory, as the user knows."""
    if "without" in options:
        rest = {key: value for key, value in options.items() if key != "without"}
        return without(read_opened(document, rest, beside, framework), options["without"])
    try:
        given = _as_it_stands(document, options, beside, framework)
    except (NotKnown, NoTraining):
        started = as_started(document, options, beside)
        if started is None:
            raise
        return started
    asked = any(each.asks and each.decides and not each.above for each in given.unread)
    if asked or leaves_its_launcher(document, given):
        return as_started(document, options, beside, given) or of_nobodys_program(document, given)
    return given


def as_started(
    document: Document, options: Mapping[str, Any], beside: Sequence[str], alone: JobInput | None = None
) -> JobInput | None:
    """The job of a program, a script or a config as the first of its project starts it that leaves nothing open."""
    return first_started(
        document, lambda each: _whose(each)[0], lambda each: _as_it_stands(each, options, beside, ""), alone
    )


def _as_it_stands(document: Document, options: Mapping[str, Any], beside: Sequence[str], framework: str) -> JobInput:
    row, document = (find_framework(framework), document) if framework else _whose(document)
    if row is None or (row is ownjob.FRAMEWORK and document.form == "yaml" and not beside):
        if beside:
            raise InvalidJob(f"{document.path}: no framework's file that is known", "name it with --framework")
        return read_own_target(document.path, options)
    return read_documents([(document, row), *(_beside(path) for path in beside)], options)


def documents_of(path: str, fresh: bool = True) -> tuple[Document, ...]:
    """The file, or of a script each of its trainings; of ``train.sh:40`` the one in that line.

    ``fresh``: its project is read anew. Raises UsageError where the file does not exist or cannot be read."""
    if fresh:
        forget()
    place = _place(path)
    if place:
        return (the_part(open_document(place[0]), place[1]),)
    if not os.path.exists(path):
        if " " in path and _is_command(path):
            return parts(of_command(path))
        raise InvalidJob(
            f"{path} does not exist", instead_of_missing(path, "name a training config, a script or a job")
        )
    return parts(open_document(path))


def framework_of(file: str | Document) -> Framework:
    """Whose file, or command, this is. Raises InvalidJob where it is none that memplan knows."""
    document = documents_of(file)[0] if isinstance(file, str) else file
    row = _whose(document)[0] or (ownjob.FRAMEWORK if ownjob.marks(document) else None)
    if row is None:
        raise InvalidJob(f"{document.path}: no training config that memplan knows", f"known: {', '.join(frameworks())}")
    return row


def _whose(document: Document) -> tuple[Framework | None, Document]:
    """memplan's own where it may be, else whose its content says; of a command that names a config, the config."""
    if ownjob.is_job(document):
        return ownjob.FRAMEWORK, document
    row, document = whose(document)
    return row or (ownjob.FRAMEWORK if ownjob.may_be(document) else None), document


_PLACE = re.compile(r"(.+):(\d{1,7})")


def _place(name: str) -> tuple[str, int] | None:
    """(path, line) of ``train.sh:40``, where that is no file's name of its own."""
    match = None if os.path.exists(name) else _PLACE.fullmatch(name)
    return (match.group(1), int(match.group(2))) if match and os.path.isfile(match.group(1)) else None


def _document(model: str) -> Document | None:
    """The file that MODEL names, or the command line that it is; None for a model's or a preset's name."""
    forget()
    place = _place(model)
    if os.path.isfile(model) or place:
        path, line = place or (model, 0)
        ending = os.path.splitext(path)[1].lower()
        return the_part(open_document(path), line) if ending in FORMS or not ending else None
    if " " in model and _is_command(model):
        return the_part(of_command(model))
    return None


def _is_command(text: str) -> bool:
    """Whether a text begins with a launcher, behind variables that it sets."""
    first = next((word for word in text.split() if not re.match(r"[A-Za-z_]\w*=", word)), "")
    return first in {*LAUNCHERS, *PROGRAMS, *WRAPPERS}


def _beside(path: str) -> tuple[Document, Framework]:
    """A file given with --with, and whose it is. Raises InvalidJob where nobody knows it."""
    row, document = _whose(open_document(path))
    if row is None:
        raise InvalidJob(f"{path}: no framework's file that is known", f"known: {', '.join(frameworks())}")
    return document, row


def read_documents(
    files: Sequence[tuple[Document, Framework]], options: Mapping[str, Any], tried: Mapping[str, Any] = NONE
) -> JobInput:
    """One job of several files: the trainer's first, then those that say how it runs. ``tried``: values in the place of
    the files' own."""
    draft = draft_of(files, options, tried)
    return job_input(draft, options)._replace(source=(tuple(files), dict(options)))


def draft_of(
    files: Sequence[tuple[Document, Framework]], options: Mapping[str, Any], tried: Mapping[str, Any] = NONE
) -> Draft:
    """The draft that the files make. Raises InvalidJob where two of them describe a training."""
    trainers = [(document, row) for document, row in files if not row.launches]
    if len(trainers) > 1:
        (one, a), (two, b) = trainers[:2]
        raise UsageError(
            f"two trainings: {one.path} is a file of {a.title}, {two.path} of {b.title}", "give them one by one"
        )
    from_options = with_numbers(normalise(options)[0])
    draft = Draft(given=frozenset(from_options), options=from_options, tried=tried)
    beside = [(document, row) for document, row in files if row.launches]
    draft.beside = {row.name: document for document, row in beside} if trainers else {}
    for document, row in [*trainers, *beside]:
        if row.launches and str(Path(document.path).resolve()) in draft.followed:
            continue
        draft.read.append(f"{row.label} ({document.path})")
        draft.remarks += document.remarks
        config = document.settings.path  # of a command's options, where it names one
        draft.followed += [str(Path(each).resolve()) for each in dict.fromkeys((document.path, config))]
        _read(document, row, draft)
    last = (IMAGES, "model")  # images need lengths that are settled, and a missing model is asked for with all else
    for name in sorted(draft.finishers, key=lambda name: last.index(name) if name in last else -1):
        draft.finishers[name](draft)
    put_share_left(draft)
    draft.unread[:] = [_spelt(each, draft) for each in draft.unread]
    settle_model(draft, from_options)
    _within_the_sequence(draft)
    draft.activations_stay()
    draft.engine_apart()
    return draft


def _within_the_sequence(draft: Draft) -> None:
    """A completion of the file's is no longer than the sequence that an option names: it is a part of it."""
    said, completion = str(draft.options.get("sequence_length")), draft.values.get("completion_length")
    if said.isdecimal() and isinstance(completion, int) and int(said) < completion:  # an option's value is text
        draft.values["completion_length"] = int(said)
        cut = f"are cut to the {int(said):,} of --sequence-length"
        why = f"completions of {completion:,} tokens, as the file has it, {cut}"
        draft.remarks.append(f"{draft.origins['completion_length'].text}: {why}")
        draft.origins["completion_length"] = Origin(FILE, "the sequence that --sequence-length names")


A_SLIP = 0.85
"""How much of a key is that which is meant: micro_batchsize, and not think_mode for train_mode."""


def _spelt(unread: Unread, draft: Draft) -> Unread:
    """With a hint: how a variable that nothing sets is set; the key that was looked for in vain and looks like this."""
    script = unread.where.partition(", line ")[0]
    if unread.asks != "num_gpus" and set_in(script, [unread]):
        command = set_in(script, [each for each in draft.unread if each.asks != "num_gpus"])
        return unread._replace(hint=(command.endswith('…"') and starter_of(script)) or command)
    if unread.hint or unread.asks or unread.why != Unread._field_defaults["why"]:
        return unread
    at, _, last = unread.key.rpartition(".")
    names = [name.rpartition(".") for name, of in draft.asked.items() if name.removeprefix(of.prefix) not in of.values]
    close = get_close_matches(last, [name for before, _, name in names if before == at], 1, A_SLIP)
    decides = unread.decides or subject_of(close[0]) if close else ""
    return unread._replace(hint=f"did you mean {close[0]}?", decides=decides) if close else unread


def _read(document: Document, row: Framework, draft: Draft) -> None:
    """One file; of a config that a command names also what starts it, and what is to be said of the command."""
    command = document.commands[0] if len(document.commands) == 1 else None
    if command is not None:
        draft.script = document
        draft.remarks += command.remarks
        put_allocator(command.environment, f"{document.path}, line {command.line}", draft)
    put_trainer(document, row.name, draft)
    row.read(document, draft)
    if command is not None and document.form != "shell" and (launch := launch_of(command, document.path)):
        read_launcher(launch, draft)


def job_input(draft: Draft, options: Mapping[str, Any]) -> JobInput:
    """The job of a draft under the options, with what the report says of its keys."""
    apart = ("num_gpus",) if "trains_on" in draft.facts else ()
    from_options, ignored = normalise({key: value for key, value in options.items() if key not in apart})
    values = merged(draft.values, from_options)
    settled: dict[str, Any] = {key: draft.facts[key] for key in SETTLED if key in draft.facts}
    values |= settled
    sources = {key: origin.kind for key, origin in draft.origins.items()} | dict.fromkeys(from_options, "option")
    over = {"num_gpus"} & settled.keys()
    sources |= dict.fromkeys(over, ASSUMED)
    free = values.keys() - (from_options.keys() - over)
    said = {key: origin for key, origin in draft.origins.items() if key in free}
    defaults = [f"{key}: {shown(values[key])} ({said[key].text})" for key in said if said[key].kind == DEFAULT]
    assumed = [f"{key}: {shown(values[key])} ({said[key].text})" for key in said if said[key].kind == ASSUMED]
    where = next((origin.text.partition(",")[0] for origin in said.values() if origin.kind == FILE), "")
    job = build_job(values, f"{where}: " if where else "")
    unread = unanswered(draft.unread, from_options)
    draft.say_replaced(from_options)
    return JobInput(
        job,
        sources,
        ignored,
        assumptions=(*defaults, *assumed),
        warnings=(*(each.text for each in unread), *draft.remarks),
        origins={key: origin.text for key, origin in said.items()},
        unread=unread,
        framework=draft.read[0].partition(" (")[0] if draft.read else "",
        opened=tuple(draft.followed),
    )


def shown(value: object) -> str:
    """A value in a sentence."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
