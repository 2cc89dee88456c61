"""Where torchtune's settings stand: a config, ``tune run RECIPE --config … key=value``, or the command in a comment."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.frameworks.base import Draft
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.files.documents import Document, Settings, document_of
from memplan.frameworks.shell.reader import Word, options_of, scalar
from memplan.frameworks.torchtune.keys import COMPONENT, LINEAR_LOSS, NO_TRAINING, RECIPES
from memplan.frameworks.torchtune.own import OWN_NAME, own_config
from memplan.frameworks.transformers import only_launch
from memplan.frameworks.verl.source import flat, referred

ALONE = ("--standalone", "--no-python", "--use-env", "--no_python")
"""torchrun's options without a value."""


class Run(NamedTuple):
    """A recipe as it is started."""

    recipe: str
    """Name of a recipe, or path of a script."""
    gpus: Any = None
    nodes: Any = 1
    config: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        """lora_finetune_distributed, whatever path or ending stands around it."""
        return self.recipe.rsplit("/", 1)[-1].removesuffix(".py")


def runs(document: Document) -> Iterator[tuple[Run, Launch, list[Word]]]:
    """Each ``tune run``, or torchrun with a recipe's file: the run, the launch, and the recipe's own words."""
    for launch in launches(document):
        words = list(launch.words)
        if launch.program.lstrip("!").rsplit("/", 1)[-1] == "tune" and words[:1] and words[0].text == "run":
            place = _recipe_at(words)
            if place is not None:
                yield _run(words[place], options_of(words[1:place])[0], words[place + 1 :]), launch, words[place + 1 :]
        elif launch.program.rsplit("/", 1)[-1].removesuffix(".py") in RECIPES and launch.program.endswith(".py"):
            yield _run(Word(launch.program, launch.command.line), launch.options.values, words), launch, words


def _recipe_at(words: list[Word]) -> int | None:
    """The first word that is neither an option nor the value of one."""
    place = 1
    while place < len(words):
        text = words[place].text
        if not text.startswith("-"):
            return place
        place += 1 if "=" in text or text in ALONE else 2
    return None


def _run(recipe: Word, options: Mapping[str, Any], words: list[Word]) -> Run:
    texts = [word.text for word in words]
    config = next((after for word, after in pairwise(texts) if word == "--config"), "")
    config = config or next((text.partition("=")[2] for text in texts if text.startswith("--config=")), "")
    return Run(recipe.text, options.get("nproc_per_node"), options.get("nnodes", 1), config, recipe.line)


def of_script(document: Document, draft: Draft) -> tuple[Settings, Run]:
    """The settings of the training that a script starts: its config's, under what the command says."""
    found = [each for each in runs(document) if each[0].name not in NO_TRAINING]
    if not found:
        raise InvalidJob(f"{document.path}: no training of torchtune's in it", "name the config that it trains with")
    only_launch([launch for _, launch, _ in found])
    run, launch, words = found[0]
    here = Settings(launch.path, {}, {"config": run.line})
    inner = _config(here, run, draft)
    values, lines = dict(inner.values), dict(inner.lines)
    for word in words:
        key, equals, text = word.text.partition("=")
        if equals and not key.startswith("-"):
            name = key.lstrip("+")
            values = {old: value for old, value in values.items() if not old.startswith(f"{name}.")}
            name = f"{name}._component_" if f"{name}._component_" in inner.values else name
            values[name], lines[name] = scalar(text), word.line
        elif key.startswith("~"):
            gone = key[1:]
            values = {old: value for old, value in values.items() if old != gone and not old.startswith(f"{gone}.")}
    paths = {name: launch.path for name in lines if name not in inner.lines or lines[name] != inner.lines[name]}
    return Settings(inner.path, referred(values), lines, paths=paths), run


def _config(here: Settings, run: Run, draft: Draft) -> Settings:
    """The config that a command names, here or in a checkout of torchtune's; else one of torchtune's own."""
    if not run.config:
        raise here.error("config", f"{run.recipe[:60]} is started without one", "add --config FILE to the command")
    if OWN_NAME.fullmatch(run.config) is None or run.config.endswith((".yaml", ".yml")):
        return of_config(draft.follow(here, "config", run.config))
    for folder in ("", "recipes/configs/"):
        with suppress(InvalidJob):
            return of_config(draft.follow(here, "config", f"{folder}{run.config}.yaml"))
    known = own_config(run.config)
    if known is None:
        hint = f"tune cp {run.config} config.yaml, and name that file"
        raise here.error("config", f"{run.config} is one of torchtune's own, which is not here", hint)
    version = "0.7" if known[f"loss{COMPONENT}"] == LINEAR_LOSS else "0.6.1"
    draft.remarks.append(f"{here.where('config')}: {run.config} is taken as torchtune {version} has it")
    return Settings(f"torchtune's {run.config}.yaml", known)


def of_config(document: Document) -> Settings:
    """A config by dotted names, references put in."""
    return Settings(document.path, referred(dict(flat(document.settings.values))), document.settings.lines)


def of_comment(document: Document) -> Run | None:
    """The command of a config's comment, else the recipe that a comment, the file's name or folder of results tells."""
    comments = "\n".join(line for line in document.text[:20_000].splitlines() if line.startswith("#"))
    for line in re.sub(r"\\\s*\n#", " ", comments).splitlines():
        place = line.find("tune run ")
        try:
            bare = re.sub(r"[<>\"']", "", line[place:]) if place >= 0 else ""
            found = [run for run, _, _ in runs(document_of(bare, document.path, "shell"))]
        except InvalidJob:
            continue
        if found and found[0].name in RECIPES:
            return found[0]
    named = re.search("|".join(RECIPES), comments)
    if named:
        return Run(named.group())
    names = (document.path.rsplit("/", 1)[-1].lower(), str(document.settings.values.get("output_dir")))
    kind = next(filter(None, (re.search("single_device|distributed|multinode", name) for name in names)), None)
    return Run(f"full_finetune_{kind.group()}") if kind else None
