"""How ms-swift starts: ``swift VERB``, ``megatron VERB``, its scripts by path; options, a file of them; its processes.

Source: ms-swift 4.5 swift/cli/main.py: NPROC_PER_NODE or NNODES start torchrun, otherwise one process runs; a first
argument that is a YAML or JSON file stands for options, its ENV for variables."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.commands.launch import Launch
from memplan.frameworks.commands.processes import divided, number
from memplan.frameworks.files.documents import Settings, is_template
from memplan.frameworks.files.following import found_at, program_at, told_of
from memplan.frameworks.files.sourced import MAX_BYTES
from memplan.frameworks.swift.keys import MARKS, METHODS, MODELS
from memplan.frameworks.transformers import read_launcher

_SCRIPT = re.compile(
    r"(?:^|/)swift/cli/(?P<megatron>_megatron/)?(?P<verb>sft|pt|rlhf)\.py$|(?:^|/)llm_(?P<old>sft|dpo|orpo|pt|simpo)\.py$"
    r"|^swift\.cli\.(?P<inner>_megatron\.)?(?P<module>sft|pt|rlhf)$"
)
_MAIN = re.compile(r"(?:.*/)?swift(?:[./]cli[./](?P<megatron>_megatron[./])?main(?:\.py)?)?|megatron")
"""Its command, or what ``python -m`` or a path starts in its place; the verb is the first word."""
VERBS = ("sft", "pt", "rlhf", *(word for word in METHODS if word not in ("sft", "pt")))


def verb_of(launch: Launch) -> tuple[str, bool]:
    """(its verb, whether Megatron runs it); an empty verb for what is no training of ms-swift's."""
    main = _MAIN.fullmatch(launch.program)
    if main:
        word = launch.words[0].text if launch.words else ""
        return (word if word in VERBS else ""), launch.program == "megatron" or bool(main["megatron"])
    found = _SCRIPT.search(launch.program)
    if not found:
        return _by_words(launch), False
    word = found["verb"] or found["old"] or found["module"]
    return word, bool(found["megatron"] or found["inner"])


def told_of_own(launch: Launch, draft: Draft) -> None:
    """A program of somebody's own is not ms-swift's, but where all that it does is to call ms-swift's main."""
    if _MAIN.fullmatch(launch.program) or _SCRIPT.search(launch.program):
        return
    path = found_at(launch.path, program_at(launch.path, launch.program))
    text = path.read_text("utf-8", "replace") if path is not None and path.stat().st_size <= MAX_BYTES else ""
    if not _CALLS.search(text) or "class " in text:
        told_of(launch.path, launch.program, launch.where, draft)


_CALLS = re.compile(r"\b(?:sft|pt|rlhf)_main\(")


def _by_words(launch: Launch) -> str:
    """Of a program of somebody's own with ms-swift's arguments: a tuner or a method of its words beside its model."""
    said = {word.text.partition("=")[0].lstrip("-") for word in launch.words if word.text.startswith("--")}
    if not (launch.program.endswith(".py") and said & OWN and {"torch_dtype", "dataset"} <= said and said & MODELS):
        return ""
    return "rlhf" if "rlhf_type" in said else "sft"


OWN = MARKS - {"swift_version"}


def settings_of(launch: Launch, draft: Draft) -> tuple[Settings, dict[str, str]]:
    """The options, over the file that they begin with; and the variables, of the shell before the file's."""
    skip = 1 if _MAIN.fullmatch(launch.program) else 0
    first = launch.words[skip].text if len(launch.words) > skip else ""
    options = launch.arguments(skip)
    name = options.values.get("config") if not first.endswith((".yaml", ".yml", ".json")) else first
    if not isinstance(name, str) or not name.endswith((".yaml", ".yml", ".json")):
        return options, dict(launch.command.environment)
    document = draft.follow(options, "config", name)
    settings, inner = with_environment(document.settings)
    options = replace(options, values={key: value for key, value in options.values.items() if key != "config"})
    return settings.under(options), {**inner, **launch.command.environment}


def with_environment(settings: Settings) -> tuple[Settings, dict[str, str]]:
    """A file's settings without ``ENV``, and what that says; a Ray pipeline's ``train`` section is of the trainer."""
    values: dict[str, Any] = dict(settings.values)
    inner, section = values.pop("ENV", None), values.get("train")
    if isinstance(section, Mapping) and "gpus" in section:
        kept = {key: value for key, value in values.items() if key not in ("train", "rollout", "teacher")}
        values = {**kept, **section}
    environment = {str(key): str(value) for key, value in inner.items()} if isinstance(inner, Mapping) else {}
    return replace(settings, values=values), environment


def put_processes(draft: Draft, environment: Mapping[str, str], where: str, launch: Launch | None = None) -> None:
    """NPROC_PER_NODE × NNODES; without them one process, over whose cards transformers divides the layers."""
    if launch is not None and launch.launcher in ("torchrun", "deepspeed", "accelerate"):
        read_launcher(launch, draft)
        return
    each, nodes = (environment.get(key, "") for key in ("NPROC_PER_NODE", "NNODES"))
    if not each and not nodes:
        _one_process(draft, environment, where)
        return
    processes, machines = number(each or 1), number(nodes or 1)
    if processes is None or machines is None:
        said = f"NPROC_PER_NODE {each[:40]!r}" if processes is None else f"NNODES {nodes[:40]!r}"
        if "num_gpus" not in draft.given:
            draft.ask("num_gpus", where, f"{said} is no number")
        return
    cards = _visible(environment)
    draft.facts["spare cards"] = len(cards) - processes
    if len(cards) >= 2 * processes:
        why = f"{len(cards)} GPUs for {processes} processes: {DIVIDED}"
        draft.bound("CUDA_VISIBLE_DEVICES", where, why, "parallelism")
    elif 0 < len(cards) < processes:
        draft.warn("NPROC_PER_NODE", where, f"{processes} processes see {len(cards)} GPUs", "processes")
    draft.put("num_gpus", processes * machines, Origin(FILE, f"{where}: NPROC_PER_NODE"))
    if machines > 1:
        draft.put("gpus_per_node", processes, Origin(FILE, f"{where}: NPROC_PER_NODE"))


DIVIDED = "each process divides the layers over its GPUs (device_map), of which none holds more than all of them"


def _visible(environment: Mapping[str, str]) -> list[str]:
    """The cards that a command names; none where it leaves them to something else."""
    text = environment.get("CUDA_VISIBLE_DEVICES", environment.get("ASCEND_RT_VISIBLE_DEVICES", ""))
    return [] if is_template(text) else [card for card in text.split(",") if card.strip()]


def _one_process(draft: Draft, environment: Mapping[str, str], where: str) -> None:
    cards = _visible(environment)
    if len(cards) > 1 or (not cards and int(draft.options.get("num_gpus") or 1) > 1):
        hint = "set NPROC_PER_NODE, or see one GPU"
        divided(draft, "CUDA_VISIBLE_DEVICES", where, f"without NPROC_PER_NODE {DIVIDED}", hint)
    if cards:
        draft.put("num_gpus", 1, Origin(FILE, f"{where}: CUDA_VISIBLE_DEVICES, and no NPROC_PER_NODE"))
