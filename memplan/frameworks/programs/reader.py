"""Programs and notebooks that build their training themselves, with TRL's, transformers' or Unsloth's classes.

The program is gone through without being run (``python_run``); what its trainer is given goes to the readers of TRL's
and transformers' arguments. Where no argument says how long rows are, what its tokenizer cuts at does; where it asks
for options it has not, the command that its own text shows is taken, and said."""

import ast
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from memplan.errors import InvalidJob, NoTraining
from memplan.frameworks import asking
from memplan.frameworks.base import ASSUMED, FILE, Draft, Framework, Origin
from memplan.frameworks.commands.launch import Launch, put_allocator
from memplan.frameworks.common.local_models import is_folder
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import Document, document_of
from memplan.frameworks.programs.copied import mark_copy
from memplan.frameworks.programs.cuts import put_length
from memplan.frameworks.programs.follow import followed, known_of, trainings
from memplan.frameworks.programs.gathered import ASKS
from memplan.frameworks.programs.launch import started, with_options
from memplan.frameworks.programs.loops import BACKWARD, put_loop
from memplan.frameworks.programs.model import SENSES
from memplan.frameworks.programs.models import SHARDS, TRAINERS, things
from memplan.frameworks.programs.reading import read_training
from memplan.frameworks.programs.run import Known, Run
from memplan.frameworks.programs.text import Program, program_of
from memplan.frameworks.programs.values import OPTION, Thing, root_of
from memplan.frameworks.project.starters import commands_in, starter_of
from memplan.frameworks.transformers import read_launcher
from memplan.spec.allocator import VARIABLES
from memplan.spec.reading import unanswered

EVALUATES, TRAINS = {"?evaluate", "?predict"}, re.compile(r"\.(train|fit)\((?!\))|rainer\w*\.train\(")
"""What a trainer is asked for in place of a training; where one may be started nevertheless."""
NO_MODEL = f"{asking.MODEL}, or check the script that starts it"


def recognise(document: Document) -> tuple[str, ...]:
    """Every program: whether it trains is found when it is read. Of commands, one that starts a program here."""
    if document.form == "shell":
        found = started(document)
        return (found.launch.program,) if found else ()
    return ("a program",) if document.form == "python" else ()


def read(document: Document, draft: Draft) -> None:
    """The training that a program builds. Raises NoTraining where it builds none, InvalidJob for several."""
    if document.form == "shell":
        if (begun := started(document, known_of(draft))) is not None:
            draft.followed.append(str(Path(begun.document.path).resolve()))
            _read_program(begun.document, begun.known, draft)
            read_launcher(begun.launch, draft)
        return
    _read_program(document, known_of(draft), draft)


def _read_program(document: Document, known: Known, draft: Draft) -> None:
    program = program_of(document.text, document.path)
    run = followed(document, known)
    found = _trainers(run, document)
    draft.followed += run.files.read
    shown = shown_command(document, known) if len(found) == 1 and not known.arguments else None
    if shown is not None and wants_options(found[0]):
        known, launch = shown
        run = followed(document, known)
        found = _trainers(run, document)
        read_shown(launch, draft)
        draft.finishers["shown"] = lambda draft: mark_shown(known, draft)
    for place in program.faults:
        draft.warn("cell", place, "is no Python that can be read", "method" if not found else "")
    if not found:
        _without_trainer(document, program, run)
    elif len(found) > 1:
        first, second = found[:2]
        if first.place == second.place:
            raise NotKnown(f"{first.place}: several trainings run the same forward", asking.WRITE)
        problem = f"{second.place}: a second training, {second.last} (the first: {first.place})"
        raise InvalidJob(problem, "put each training in a file of its own")
    else:
        _read_one(found[0], run, program, document, draft)


def _trainers(run: Run, document: Document) -> list[Thing]:
    return [each for each in trainings(run) if document.place in (0, _place_of(each))]


def _read_one(trainer: Thing, run: Run, program: Program, document: Document, draft: Draft) -> None:
    _put_gpus(run, draft)
    if "?trained" not in trainer.values and EVALUATES & trainer.values.keys() and not TRAINS.search(document.text):
        raise NoTraining(
            f"{trainer.place}: no training of its own: it evaluates alone", "check the program that trains"
        )
    mark_copy(trainer)
    read_training(trainer, run, dict(program.pins), document.path, draft)
    put_loop(trainer, draft)
    draft.finishers["model"] = lambda draft: _need_model(draft, run, document)
    draft.finishers["sharded"] = lambda draft: _need_sharding(run, draft)
    draft.finishers["adapters"] = lambda draft: _need_adapters(str(trainer.place), draft)
    draft.finishers["lengths"] = lambda draft: put_length(run, TRAINERS[trainer.last], draft)
    if run.asked_card:
        has = "is taken as there" if run.known.bf16 else "the card does not have"
        draft.remarks.append(f"{document.path}: the program asks the card for bfloat16, which {has}")


def parts(document: Document) -> tuple[Document, ...]:
    """One document for each training of a program; for a notebook that trains by commands alone, one for each cell of
    them; the document itself where it has one, or none."""
    try:
        program = program_of(document.text, document.path)
        found = trainings(followed(document, Known()))
    except InvalidJob:
        return (document,)
    if len(places := dict.fromkeys(map(_place_of, found))) > 1:
        return tuple(replace(document, place=each) for each in places)
    shells = () if found else program.shells
    cells = [document_of(text, place, "shell") for place, text in shells]
    return tuple(cell for cell in cells if cell.commands) or (document,)


def _put_gpus(run: Run, draft: Draft) -> None:
    """What the program itself says of its processes, and of PyTorch's allocator."""
    said = {name: run.globals.names.get(f"os.environ.{name}") for name in VARIABLES}
    put_allocator({name: value for name, value in said.items() if isinstance(value, str)}, run.start, draft)
    processes = run.globals.names.get("?num_processes")
    if isinstance(processes, tuple):
        draft.put("num_gpus", processes[0], Origin(FILE, f"{processes[1]}: num_processes"))
        return
    devices = run.globals.names.get("os.environ.CUDA_VISIBLE_DEVICES")
    if isinstance(devices, str) and devices.strip().isdigit():
        draft.put("num_gpus", 1, Origin(FILE, f"{run.start}: CUDA_VISIBLE_DEVICES {devices}"))
    elif run.globals.names.get("os.environ.WORLD_SIZE") == "1" != run.known.environment.get("WORLD_SIZE"):
        draft.put("num_gpus", 1, Origin(FILE, f"{run.start}: WORLD_SIZE 1"))


def _place_of(trainer: Thing) -> int:
    """The line of a trainer; of a notebook its cell."""
    cell = trainer.place.path.rpartition(", cell ")
    return int(cell[2]) if cell[1] else trainer.place.line


def _without_trainer(document: Document, program: Program, run: Run) -> None:
    """A loop of the program's own is unclear; anything else trains nothing."""
    if program.faults:
        raise NotKnown(f"{program.faults[0]}: no Python that can be read", "name a notebook of Python 3")
    other = next(_others(program), None)
    if other is not None:
        why = "is made where nothing is followed to" if other[1] in TRAINERS else "is a trainer that is not read"
        raise NotKnown(f"{other[0]}: {other[1]} {why}", asking.WRITE)
    loop = next(_loops(program), None)
    if loop is None:
        raise NoTraining(f"{document.path}: no training in it", "name the file that makes the trainer")
    found = [each for each in run.things if each.name == BACKWARD]
    if found and all(each.values["uncalled"] for each in found) and "__main__" not in document.text:
        hint = starter_of(document.path) or "check the program that calls it"
        raise NoTraining(f"{loop}: no training of its own: nothing in this file calls its loop", hint)
    why = next((each.values.get("why", "") for each in found if str(each.place) == loop), "")
    raise NotKnown(f"{loop}: a training loop of the program's own, which is not read{why}", asking.WRITE)


def _need_sharding(run: Run, draft: Draft) -> None:
    """A program that speaks to DeepSpeed runs under it; how, its launcher says. FSDP's plugin is counted from above."""
    if run.sharded and not {"sharding", "zero_stage"} & {*draft.values, *draft.given}:
        draft.ask("sharding", str(run.sharded), "the program runs under DeepSpeed, and its launcher says how")
    plugin = next((each for each in run.things if each.last in (SHARDS, f"{SHARDS}Plugin")), None)
    if plugin and int(draft.said.get("num_gpus") or 1) > 1 and "sharding" not in draft.values:
        why = "it divides the model under several processes: whole copies are counted, which take no less"
        draft.bound(plugin.last, str(plugin.place), why, "parallelism")


def _need_adapters(where: str, draft: Draft) -> None:
    """Quantised weights are trained by adapters: where the text makes none, they come with a model of one's own."""
    said = {*draft.values, *draft.given, *(each.asks for each in draft.unread)}
    quantised = draft.values.get("quantization", "none") != "none"
    if quantised and "lora" not in said and is_folder(str(draft.values.get("model", "./"))):
        draft.ask("lora", where, "the quantised model is loaded with its adapters, if it is trained")


def _need_model(draft: Draft, run: Run, document: Document) -> None:
    """Raises NotKnown where nothing says which model is trained."""
    if not run.known.words and any(asking.OF_COMMAND.search(each.why) for each in draft.unread if each.asks):
        starter = starter_of(document.path)
        draft.unread[:] = asking.started_by(starter, draft.unread) if starter else draft.unread
    if not {"model", "total_params"} & {*draft.values, *draft.given}:
        asked = next((each for each in draft.unread if each.asks == "model"), None)
        others = ", ".join(dict.fromkeys(each.asks for each in draft.unread if each.asks not in ("model", "")))
        if asked and (run.uncalled or ", a parameter of " in asked.why):
            hint = starter_of(document.path) or "check the program that calls it"
            raise NoTraining(f"{asked.where}: no training of its own: {asked.why}", hint)
        text = f"{asked.where}: model is not known: {asked.why}" if asked else "model is not known"
        seen = next(filter(SENSES.search, run.known.arguments), "")
        if seen and "images" not in draft.given and all(each.asks != "images" for each in draft.unread):
            draft.ask("images", document.path, f"{seen}: how many images an example has, and how large")
        named = asking.ENCODES if draft.facts.get("encodes") else asking.SEES_TOKENS if seen else NO_MODEL
        hint = asked.hint if asked and asked.hint.startswith(asking.COMMANDS) else named
        hint = asking.model_hint(unanswered(draft.unread, draft.options), hint)
        raise NotKnown(f"{text}{f'; nor {others}' if others else ''}", hint)


def _others(program: Program) -> Iterator[tuple[str, str]]:
    """Trainers that a program makes, known or not."""
    for part in program.parts:
        for node in ast.walk(part.tree):
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if name.endswith(("Trainer", "tune_recipe", "train_recipe")):  # NeMo 2's, of nemo.collections.llm
                yield f"{part.path}, line {getattr(node, 'lineno', 1)}", name


def _loops(program: Program) -> Iterator[str]:
    """Where gradients are made, but in the steps of a trainer that the file defines and leaves to others."""
    for part in program.parts:
        classes = [node for node in ast.walk(part.tree) if isinstance(node, ast.ClassDef)]
        trainers = [node for node in classes if _of_trainer(node)]
        steps = {id(node) for each in trainers for node in ast.walk(each)}
        for node in ast.walk(part.tree):
            if id(node) in steps:
                continue
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
                yield f"{part.path}, line {node.lineno}"


def _of_trainer(node: ast.ClassDef) -> bool:
    """Whether a class is a trainer with a change, or a module that Lightning's steps."""
    named = any(ast.unparse(base).endswith("Trainer") for base in node.bases)
    return named or any(getattr(each, "name", "") == "training_step" for each in node.body)


FRAMEWORK = Framework("python", "Python", "", recognise, read, extends=("transformers", "trl"), follows=True)


TOP_LINES = 150


def wants_options(trainer: Thing) -> bool:
    """Whether what decides memory comes from options that the program's command has to give."""
    arguments = trainer.values.get("args")
    given = arguments.values if isinstance(arguments, Thing) else {}
    names = [model.values.get("model_name_or_path") for model in things(trainer.values.get("model"))]
    values = [trainer.values.get("model"), *names, *(given.get(key) for key in ASKS)]
    return given.get("?command") is False or any(root_of(value).startswith(OPTION) for value in values)


def shown_command(document: Document, known: Known) -> tuple[Known, Launch] | None:
    """What is known, under options of the first command at the top of a program that starts it, and that; or None."""
    top = "\n".join(document.text.split("\n")[:TOP_LINES])
    launch = next(commands_in(top, document.path, posixpath.basename(document.path)), None)
    return (with_options(launch, known), launch) if launch is not None else None


def read_shown(launch: Launch, draft: Draft) -> None:
    """What starts the program in its own example, but for one process: states that it shards are no plain copies."""
    if not launch.launcher:
        return
    try:
        read_launcher(launch, draft)
    except InvalidJob as error:
        why = f"the launcher of the command that the program shows is not read: {error.message}"
        draft.warn(launch.launcher, launch.where, why, "parallelism", error.hint)


def mark_shown(known: Known, draft: Draft) -> None:
    """That the command is the program's own example, at every key that it may decide."""
    first = min(known.places.values(), key=lambda place: place.line)
    for key in ("model", "sequence_length", "batch_size", "sharding", "num_gpus"):
        origin = draft.origins.get(key)
        if origin is not None and origin.kind == FILE:
            draft.origins[key] = Origin(ASSUMED, f"{origin.text}, by the command that the program shows, {first}")
