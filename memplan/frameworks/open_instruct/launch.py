"""How open-instruct is started: by accelerate or torchrun, behind ``mason.py`` on Beaker, with a YAML file first.

Source: allenai/open-instruct@e6c3044 mason.py, open_instruct/utils.py: ArgumentParserPlus, configs/ds_configs."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from memplan.errors import InvalidJob
from memplan.frameworks.base import Draft
from memplan.frameworks.commands.launch import Launch, launch_of, launches
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.open_instruct.keys import ELSEWHERE, METHODS, OWN_NAMES
from memplan.frameworks.shell.reader import Command, Word, options_of


def program_of(path: str) -> str:
    """'open_instruct/finetune.py' or 'open_instruct.finetune' -> 'finetune'; empty for what is not its own."""
    dotted = re.fullmatch(r"(?:[\w/.-]*/)?open_instruct[./]([\w-]+?)(?:\.py)?", path)
    name = dotted.group(1) if dotted else PurePosixPath(path).stem
    return name if name in (METHODS.keys() | ELSEWHERE if dotted else OWN_NAMES) else ""


def trainings(document: Document) -> Iterator[Launch]:
    """The starts of its programs, out of what submits them."""
    for launch in launches(document):
        inner = submitted(launch)
        if inner is not None and program_of(inner.program):
            yield inner


def submitted(launch: Launch) -> Launch | None:
    """``python mason.py --num_nodes 4 … -- accelerate launch …``: the command, with all nodes' processes (mason.py)."""
    mason = next((place for place, word in enumerate(launch.before) if word.text.endswith("mason.py")), None)
    handed = launch.program.endswith("mason.py")
    if mason is None and not handed:
        return launch
    own = launch.words if handed or mason is None else launch.before[mason + 1 :]
    texts = [word.text for word in own]
    if "--" not in texts:
        return None
    inner = _handed(launch, texts) if handed else launch
    options, lines, _ = options_of(own[: texts.index("--")])
    return inner and _on_nodes(inner, options.get("num_nodes"), lines)


def _handed(launch: Launch, texts: list[str]) -> Launch | None:
    """Of ``-- source env.sh \\&\\& python …`` the last command."""
    last = max((place for place, text in enumerate(texts) if text.startswith("&&")), default=texts.index("--"))
    glued = Word(texts[last].lstrip("&"), launch.words[last].line)  # ``\\&\\&python``
    words = launch.words[last + 1 :] if glued.text in ("", "--") else (glued, *launch.words[last + 1 :])
    return launch_of(Command(words, launch.command.environment), launch.path)


def _on_nodes(inner: Launch, nodes: object, lines: dict[str, int]) -> Launch:
    """mason.py puts --num_machines in, and makes --num_processes that of all."""
    if inner.launcher != "accelerate" or not isinstance(nodes, int) or nodes < 2:
        return inner
    each, options = inner.options.values.get("num_processes"), inner.options
    values = {**options.values, "num_machines": nodes}
    values |= {"num_processes": each * nodes} if isinstance(each, int) else {}
    lines = {**options.lines, "num_machines": lines["num_nodes"]}
    return replace(inner, options=replace(options, values=values, lines=lines))


def with_config(launch: Launch, draft: Draft) -> Settings:
    """``finetune.py config.yaml --x 1``: options over the file's, as ArgumentParserPlus has them."""
    arguments = launch.arguments()
    values = dict(arguments.values)
    for key in [key for key in values if key.startswith("no_") and key[3:] in SWITCHES]:
        values[key[3:]] = values.pop(key) is not True
    arguments = replace(arguments, values=values)
    first = launch.words[0].text if launch.words else ""
    if is_template(first) and "model_name_or_path" not in values:
        raise InvalidJob(f"{launch.where}: {first[:60]!r} names the file of arguments", "check that file in its place")
    if not first.endswith((".yaml", ".yml")):
        return arguments
    return draft.follow(arguments, "config", first).settings.under(arguments)


SWITCHES = ("use_flash_attn", "gradient_checkpointing", "use_lora", "use_qlora", "packing", "load_ref_policy",
             "concatenated_forward", "fused_optimizer")  # fmt: skip
