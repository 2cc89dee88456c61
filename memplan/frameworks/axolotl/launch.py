"""How Axolotl starts: ``axolotl train config.yaml``, a launcher's options behind ``--``, or its module by a launcher.

axolotl 0.19 src/axolotl/cli/main.py: train, --launcher, launcher_args."""

from collections.abc import Iterator
from dataclasses import replace

from memplan.frameworks.base import Draft
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.own_words.names import config_of
from memplan.frameworks.shell.reader import options_of
from memplan.frameworks.transformers import only_launch, read_launcher

PROGRAM, MODULES = "axolotl", ("axolotl.cli.train", "axolotl.cli")
OF_THE_LAUNCHER = ("launcher", "num_processes")


def starts(document: Document) -> Iterator[Launch]:
    """The commands of a script that train with Axolotl."""
    for launch in launches(document):
        by_name = launch.program == PROGRAM and bool(launch.words) and launch.words[0].text == "train"
        if by_name or launch.program in MODULES:
            yield launch


def read_start(document: Document, draft: Draft) -> Settings:
    """The config that a script's only training names, the options of its launcher put in."""
    launch = only_launch(list(starts(document)))
    words = list(launch.words if launch.program != PROGRAM else launch.words[1:])
    texts = [word.text for word in words]
    cut = texts.index("--") if "--" in texts else len(words)
    values, lines, _ = options_of(words[cut + 1 :])
    before, _, _ = options_of(words[:cut])
    if launch.program == PROGRAM:
        named = before.get("launcher", "accelerate")
        more = {key: before[key] for key in ("num_processes",) if key in before}
        options = Settings(launch.path, {**values, **more}, {**lines, **dict.fromkeys(more, launch.command.line)})
        launch = replace(launch, launcher=str(named), options=options, words=())
    read_launcher(launch, draft)
    found = config_of(replace(launch, program="train.py", words=tuple(words[:cut])), draft)
    return replace(found, values={key: value for key, value in found.values.items() if key not in OF_THE_LAUNCHER})
