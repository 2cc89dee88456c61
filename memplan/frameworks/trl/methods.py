"""Which of TRL's trainers a file or a command means, and that trainer's defaults by version."""

import re
from pathlib import Path
from typing import Any

from memplan.frameworks.base import ASSUMED, DEFAULT, FILE, Draft, Origin
from memplan.frameworks.draft import UNTIL, NotKnown
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.files.sourced import project_of
from memplan.frameworks.hugging_face.arguments import DEFAULTS
from memplan.frameworks.trl.keys import COMMANDS, LOSSES, METHOD_KEYS, METHODS, MODEL, NOT_MODELLED
from memplan.frameworks.trl.keys import TRAINER as TRL_TRAINER
from memplan.tables.trainer import version_key


def method_of(name: str) -> str:
    """'examples/scripts/dpo_vlm.py' -> 'dpo'; empty where no word of it is a method."""
    words = re.split(r"[^a-z0-9]+", name.rsplit("/", 1)[-1].lower())
    if "online" in words and "dpo" in words:
        return "online-dpo"
    for word in words:
        if word in COMMANDS or word in NOT_MODELLED:
            return COMMANDS.get(word, word)
    return ""


_WORDS = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?=[A-Z][a-z])|(?<=GRPO)(?=VLLM)"
    r"|(?<=[A-Z])(?=(?:GRPO|RLOO|ORPO|DPO|PPO|KTO)(?:[A-Z][a-z]|VLLM|_|$))"
)
"""Where a class's name has a new word: `VLGRPOTrainer` is VL, GRPO and Trainer."""


def method_of_class(name: str) -> str:
    """'ORPOLoss' -> 'orpo'; empty where no word of it is a method."""
    return method_of(_WORDS.sub("_", name))


def method_of_file(settings: Settings, draft: Draft, text: str) -> tuple[str, Origin]:
    """The trainer that a file of arguments is for. Raises NotKnown where nothing says it."""
    if "method" in draft.options:
        return str(draft.options["method"]), Origin(FILE, "--method")
    trains_by, origin = draft.facts.get("trainer", ("", Origin(FILE, "")))
    if trains_by in METHODS:
        return by_loss(settings, trains_by, draft), origin
    named = str(settings.values.get("trainer") or "")
    if named.endswith("Trainer") and named.removesuffix("Trainer").lower() not in COMMANDS:
        problem = f"{settings.where('trainer')}: trainer: {named} is none of TRL's"  # HALOs' own have TRL's keys
        raise NotKnown(problem, "add --method, such as --method dpo, if it takes the memory of that one")
    found = {
        method: key for method, keys in METHOD_KEYS.items() for key in keys if settings.values.get(key) is not None
    }
    loss = _losses(settings)
    if not found and loss and LOSSES.get(loss[0]):
        found = {LOSSES[loss[0]]: "loss_type"}
    said = re.search(r"\btrl (\w+)|(\w*(?:dpo|sft|kto|grpo|rloo|orpo|cpo|reward)\w*)\.py\b", text)
    word = method_of(said.group(1) or said.group(2)) if said else ""
    if not found and settings.values.get("num_generations") is not None:
        found = {"rloo" if "rloo" in (word, _of_path(settings.path)) else "grpo": "num_generations"}
    if len(found) == 1:
        method, key = next(iter(found.items()))
        named = method_of(settings.path)
        if method == "sft" and named not in ("", "sft", "distill") and not word:
            problem = f"{settings.where(key)}: {key} is of TRL's sft, and the file's name speaks of {named}"
            raise NotKnown(problem, f"add --method {named}, if it is")
        return by_loss(settings, method, draft), Origin(FILE, f"{settings.where(key)}: {key}")
    if word in METHODS:
        return by_loss(settings, word, draft), Origin(FILE, f"{settings.path}: {said.group() if said else ''}")
    of_path = _of_path(settings.path)
    if not found and of_path:
        return by_loss(settings, of_path, draft), Origin(ASSUMED, f"the file's path says it: {settings.path}")
    if len(found) > 1:
        (one, a), (two, b) = list(found.items())[:2]
        problem = f"{settings.where(a)}: {a} is of TRL's {one}, and {b} of its {two}"
    else:
        problem = f"{settings.path}: nothing says which of TRL's trainers reads it"
    raise NotKnown(problem, "add --method, such as --method dpo")


def _of_path(path: str) -> str:
    """The one method that a file's name, or the nearest folder of its project with any, has a word of:
    recipes/dpo/config.yaml; empty where there are two. What the project around a folder is called says nothing."""
    here = Path(path).resolve()
    top = project_of(here.parent)
    for part in reversed(here.relative_to(top.parent if top == here.parent else top).parts):
        words = re.split(r"[^a-z0-9]+", part.lower())
        found = {COMMANDS[word] for word in words if word in COMMANDS}
        if found:
            return found.pop() if len(found) == 1 and "online" not in words else ""
    return ""


def _losses(settings: Settings) -> list[str]:
    value = settings.values.get("loss_type")
    return [str(item) for item in value] if isinstance(value, list) else [str(value)] if value is not None else []


def by_loss(settings: Settings, method: str, draft: Draft) -> str:
    """IPO is a loss of DPOTrainer, SimPO one of CPOTrainer."""
    losses = _losses(settings)
    if method == "dpo" and losses == ["ipo"]:
        return "ipo"
    if method == "cpo" and losses and losses[0] in ("simpo", "alphapo"):
        return "simpo"
    return method


def defaults_of(method: str, version: str) -> dict[str, Any]:
    """TRL's defaults by method and version; the newest where none is named."""
    row = METHODS.get({"ipo": "dpo"}.get(method, method), {})
    found = DEFAULTS | TRL_TRAINER | MODEL | row
    since = version_key(version) or (99,)
    if since < (1, 10) and "max_completion_length" in row:
        found["max_completion_length"] = 256
    if since < (0, 22):
        found["gradient_checkpointing"] = False
    if since < (0, 18):
        found["bf16"] = False
    if since < (0, 14) and method in ("dpo", "ipo", "kto", "orpo", "cpo", "simpo", "reward"):
        found["max_length"] = None if method in ("dpo", "ipo") and since >= (0, 12) else 512
    if since >= (0, 29) and method in ("cpo", "simpo", "orpo"):
        found["dtype"] = "auto"  # cpo.py and orpo.py read no ModelConfig.dtype, nor does their trainer (trl 1.16)
    if since < (0, 29) and method in ("dpo", "ipo", "kto", "orpo", "cpo", "simpo"):
        found["max_prompt_length"] = 512
    if since < (0, 18) and method == "grpo":
        found["beta"] = 0.04
    return found


ERAS = (("gradient_checkpointing", (0, 22), "0.21 false"), ("reference", (0, 18), "0.17 beta 0.04"))
"""Keys of a job whose default took more before, since when it is as now, and what it was (``defaults_of``)."""

HEADS = {"sft": "1.6", **dict.fromkeys(("dpo", "ipo", "kto", "grpo", "rloo"), "1.14")}
"""Until when a method's loss made all its logits (tables/trainers.txt); from 1.15 on it makes none."""
_PINNED = re.compile(r"\b(pins|installs)\b")


def of_no_version(draft: Draft) -> None:
    """Says of a default that TRL changed what it was, where nothing pins the version."""
    told = draft.origins.get("trainer_version")
    if "trainer_version" in draft.given or (told is not None and _PINNED.search(told.text)):
        return
    version = draft.version
    for key, since, before in ERAS:
        origin = draft.origins.get(key)
        if origin is not None and origin.kind == DEFAULT and origin.text.startswith("TRL") and version >= since:
            draft.origins[key] = Origin(DEFAULT, f"{origin.text}{UNTIL}{before}")
    given = draft.said
    last = HEADS.get(str(given.get("method")))
    if last and not {"trainer_version", "loss_head", "kernels"} & given.keys():
        draft.put("loss_head", "auto", Origin(DEFAULT, f"TRL's newest: no logits are made{UNTIL}{last} all were"))
