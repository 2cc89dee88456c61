"""How Axolotl starts: ``axolotl train config.yaml``, a launcher's options behind ``--``, or its module by a launcher.

axolotl 0.19 src/axolotl/cli/main.py: train, --launcher, launcher_args.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memplan.errors import InvalidJob
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.documents import Document, Settings
from memplan.frameworks.launch import Launch, launches
from memplan.frameworks.own_names import config_of
from memplan.frameworks.shell import options_of
from memplan.frameworks.transformers import only_launch, read_launcher

PROGRAM, MODULES = "axolotl", ("axolotl.cli.train", "axolotl.cli")
COUNTS = ("num_processes", "nproc_per_node", "nproc-per-node")
"""GPUs, as accelerate and torchrun are told."""


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
    for key in COUNTS:
        if key in values:
            if not str(values[key]).isdigit():
                raise InvalidJob(f"{launch.where}: {key} {str(values[key])[:20]} is no number", "write how many GPUs")
            draft.put("num_gpus", int(values[key]), Origin(FILE, f"{launch.path}, line {lines[key]}: {key}"))
    read_launcher(launch, draft)
    found = config_of(replace(launch, program="train.py", words=tuple(words[:cut])), draft)
    return replace(found, values={key: value for key, value in found.values.items() if key != "launcher"})
