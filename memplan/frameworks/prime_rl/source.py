"""Where prime-rl's settings stand: one TOML of all its parts, a part's own, or ``uv run rl @ rl.toml --a.b value``.

Whatever the file, the settings come out under the names of ``rl``'s config: ``trainer.model.name``, ``inference.…``."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memplan.errors import InvalidJob, NoTraining
from memplan.frameworks.base import Draft
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.commands.processes import put_gpus
from memplan.frameworks.files.documents import Document, Settings, words
from memplan.frameworks.shell.reader import Word, scalar
from memplan.frameworks.transformers import only_launch
from memplan.frameworks.verl.source import flat

PARTS = ("trainer", "orchestrator", "inference")
MOST = 8
"""Files under one another."""
PROGRAM = re.compile(
    r"(?:\S*/)?(?P<command>rl|sft|trainer)|\S*prime_rl[./]trainer[./](?P<module>rl|sft)[./]train(?:\.py)?"
)
PACKS = {"seq_len": 2048, "micro_batch_size": 1}
"""Of an orchestrator, with defaults: tokens of a sample, and how many a packed row has (until October 2025)."""
OF_TRAINER = words(
    """optim loss scheduler max_async_level max_concurrent_runs ckpt weights weight_broadcast rollout_transport
    max_steps wandb monitors data"""
)
OF_SFT = words("name seq_len micro_batch_size batch_size pack_function subsets splits loss_mask type")
GPUS = {"trainer_gpus": "deployment.num_train_gpus", "inference_gpus": "deployment.num_infer_gpus"}
"""How many train and generate, until October 2025."""
BESIDE = ("orch.toml", "orchestrator.toml")
"""What the orchestrator's file is called beside ``train.toml``."""
_PATH = re.compile(r"--(?:" + "|".join(PARTS) + r")$")


def form_of(values: Mapping[str, Any]) -> str:
    """rl (all parts), sft or trainer (the trainer's alone), another part, or nothing of prime-rl's."""
    model, data, keys = values.get("model"), values.get("data"), set(values)
    if "orchestrator" in keys and {"trainer", "inference", "model"} & keys:
        return "rl"
    if "train" in keys and isinstance(values["train"], Mapping) and "source" in values["train"]:
        return "orchestrator"
    if not isinstance(model, Mapping) or {"job", "training", "parallelism"} & keys:
        return ""
    if isinstance(data, Mapping) and OF_SFT & set(data) and {"name", "seq_len", "impl", "ac", "lora"} & set(model):
        return "sft"
    if "trainer" not in keys and {"rollouts_per_example", "group_size", "batch_size"} & keys:
        return "orchestrator"
    if {"vllm", "parallel", "server"} & keys or "max_model_len" in model:
        return "inference"
    return "trainer" if "name" in model and OF_TRAINER & keys else ""


def trainings(document: Document) -> Iterator[Launch]:
    """The commands of a script that start its trainer: a file stands behind ``@``."""
    for launch in launches(document):
        if PROGRAM.fullmatch(launch.program) and any(word.text == "@" for word in launch.words):
            yield launch


def of_document(document: Document, draft: Draft) -> tuple[Settings, str]:
    """Everything by dotted name, and the form of the file."""
    if document.form != "shell":
        form = form_of(document.settings.values)
        return _whole(_packed_beside(_below(document, draft, 0), document.path, form, draft), form)
    launch = only_launch(list(trainings(document)))
    match = PROGRAM.fullmatch(launch.program)
    command = (match and (match["command"] or {"rl": "trainer", "sft": "sft"}[match["module"]])) or "rl"
    own = here = Settings(launch.path, {}, {"config": launch.command.line})
    for at, path in _files(launch.words):
        below = _below(draft.follow(here, "config", path), draft, 0)
        values = {f"{at}{key}": value for key, value in below.values.items()}
        own = own.under(Settings(below.path, values, {f"{at}{key}": line for key, line in below.lines.items()}))
    said = dict(_options(launch.words))
    values = {name: scalar(word.text) for name, word in said.items()}
    own = own.under(Settings(launch.path, values, {name: word.line for name, word in said.items()}))
    if launch.launcher == "torchrun":
        put_gpus(launch, draft)
    return _whole(_packed_beside(own, own.paths.get("model.name", launch.path), command, draft), command)


def _packed_beside(own: Settings, path: str, form: str, draft: Draft) -> Settings:
    """With the lengths of the orchestrator's file in the trainer's folder, where the trainer's own says none: until
    December 2025 the orchestrator alone packed rows, and said how long they are (orchestrator/batch.py:
    prepare_batch)."""
    said = {"model.seq_len", "trainer.model.seq_len", "orchestrator.seq_len"} & set(own.values)
    name = next((name for name in BESIDE if Path(path).with_name(name).is_file()), "")
    if form != "trainer" or said or not name or "sequence_length" in draft.given:
        return own
    beside = draft.follow(Settings(path, {}, {}), "orchestrator", name)
    found = {f"orchestrator.{key}": beside.settings.values.get(key, default) for key, default in PACKS.items()}
    draft.remarks.append(f"{own.path}: rows are as long as {beside.path} beside it packs them")
    lines = {key: beside.settings.lines.get(key.removeprefix("orchestrator."), 1) for key in found}
    return own.under(Settings(beside.path, found, lines))


def _files(given: tuple[Word, ...]) -> Iterator[tuple[str, str]]:
    """``@ FILE`` of the whole, ``--trainer @ FILE`` of a part: what stands before its names, and its path."""
    for place, word in enumerate(given[:-1]):
        if word.text == "@":
            before = given[place - 1].text if place else ""
            yield (f"{before[2:]}." if _PATH.match(before) else ""), given[place + 1].text


def _options(given: tuple[Word, ...]) -> Iterator[tuple[str, Word]]:
    """``--trainer.model.name X``, ``--a.b=c``, ``--no-a.b``; dashes are underscores."""
    for place, word in enumerate(given):
        name, equals, text = word.text.partition("=")
        follows = given[place + 1] if place + 1 < len(given) else None
        if not name.startswith("--") or (follows is not None and follows.text == "@"):
            continue
        key = name[2:].replace("-", "_")
        if equals:
            yield key, Word(text, word.line)
        elif follows is not None and not follows.text.startswith("--"):
            yield key, follows
        else:
            yield key.removeprefix("no_"), Word("false" if key.startswith("no_") else "true", word.line)


def _below(document: Document, draft: Draft, depth: int) -> Settings:
    """A file over those of its ``toml_files``; the sections that it has, by name, whatever they hold."""
    own = document.settings
    if depth > MOST:
        raise own.error("toml_files", f"more than {MOST} files over one another", "name the one that is meant")
    base, named = Settings(document.path, {}), own.values.get("toml_files")
    for path in named if isinstance(named, list) else ():
        base = base.under(_below(draft.follow(own, "toml_files", str(path)), draft, depth + 1))
    mine = {key: value for key, value in flat(own.values) if key != "toml_files"}
    return base.under(replace(own, values=mine))


def _whole(own: Settings, form: str) -> tuple[Settings, str]:
    """A part's own file under the names of the whole; what all parts share under the trainer's, where it is silent."""
    if form in ("orchestrator", "inference"):
        raise NoTraining(
            f"{own.path}: prime-rl's {form} alone trains nothing", "name the file of its trainer, or the command"
        )
    values, lines, paths = dict(own.values), dict(own.lines), dict(own.paths)
    packs, longest = values.get("orchestrator.seq_len"), "trainer.model.seq_len"
    if isinstance(packs, int) and not {"seq_len", longest, "model.seq_len"} & set(values):  # as long as it packs them
        several = values.get("orchestrator.micro_batch_size")
        values[longest] = packs * several if isinstance(several, int) and several > 1 else packs
        lines[longest] = lines.get("orchestrator.seq_len", 1)
        paths[longest] = paths.get("orchestrator.seq_len", own.path)
    shared = {"model.name": "trainer.model.name", "seq_len": "trainer.model.seq_len", "model.vlm": "trainer.model.vlm"}
    shared |= GPUS
    if form != "rl":
        apart = ("trainer.", "deployment.", "orchestrator.")
        shared = {key: f"trainer.{key}" for key in values if not key.startswith(apart)}
        if form == "sft" and "data.seq_len" in values:
            shared["data.seq_len"] = "trainer.model.seq_len"
    for key, name in shared.items():
        for inner in [each for each in values if each == key or (form == "rl" and each.startswith(f"{key}."))]:
            full = f"{name}{inner.removeprefix(key)}"
            value = values.pop(inner)
            if full not in values:
                values[full] = value
                lines[full] = lines.get(inner, 1)
                paths[full] = paths.get(inner, own.path)
    if not any(key.startswith(("trainer.", "orchestrator.")) for key in values):
        raise InvalidJob(f"{own.path}: no settings of prime-rl's trainer", "name the file of its trainer")
    return Settings(own.path, values, lines, paths=paths), form
