"""The version of TRL or of transformers that a program is of: what its file or its project pins, names and arguments
that went, methods that it replaces; and the attention that transformers takes in it."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from memplan.frameworks.base import DEFAULT, Draft, Origin
from memplan.frameworks.common.checkpoints import family_of
from memplan.frameworks.hugging_face.version import OF_SEVERAL, STILL_TAKEN, told
from memplan.frameworks.programs.copied import COPY
from memplan.frameworks.programs.own_losses import until
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Ref, Thing
from memplan.frameworks.project.pinned import pinned
from memplan.tables.families import SDPA_SINCE
from memplan.tables.trainer import version_key

OF_UNSLOTH = "0.23"
"""The newest TRL that Unsloth takes (unsloth 2025.10 pyproject.toml: trl<=0.23.0): its logits are whole."""
LAST_WITHOUT_SDPA = max(map(version_key, SDPA_SINCE.values()))
CAPPED = ("gemma2",)
"""Families whose attention caps its scores."""
GONE: Mapping[str, str] = {"trl.DataCollatorForCompletionOnlyLM": "0.19", "trl.PPOv2Trainer": "0.12"}
"""Names of TRL's that went, and the last version that had them."""


def telling(thing: Thing, draft: Draft) -> Collection[str]:
    """Arguments that may tell a version: not those of a program that asks its library for what it takes (``if
    "tokenizer" in signature(SFTTrainer).parameters``, ``hasattr``), or makes it anew where that failed."""
    path = Path(thing.place.path.partition(", cell ")[0])
    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    asks = rf"signature\((?:\w+\.)?{thing.last}\b|{thing.last}\.__dataclass_fields__|hasattr\((?:\w+\.)?{thing.last},"
    sifts = r"signature\([a-z]\w*(?:\.__init__)?\)[\s\S]{,400}?\.items\(\)\s*if \w+ in\b"
    anew = rf"^( *)except\b.*\n(?:\1 +\S.*\n|[ \t]*\n)*?\1 .*\b{thing.last}\("
    if not re.search(f"{asks}|{sifts}|{anew}", text, re.MULTILINE):
        return thing.values
    draft.facts[OF_SEVERAL] = {*thing.values, *draft.facts.get(OF_SEVERAL, ())}
    return ()


def version_of(
    package: str, holders: Mapping[str, Any], pins: Mapping[str, str], run: Run, draft: Draft
) -> tuple[str, str]:
    """(version, why) whose defaults are taken; empty for the newest."""
    trainer, start = holders["trainer"], run.start.partition(", cell ")[0]
    if COPY in trainer.values:
        return trainer.values[COPY], f"{trainer.place}: a copy of TRL's, counted by its code"
    if package in pins:
        return pins[package], f"the file installs {package}=={pins[package]}"
    pin, whose = pinned(start, package)
    found = [(version_key(pin), pin, f"{whose} pins {package} {pin}")] if pin else []
    least = pinned(start, f"{package}>=")[0]
    for where, thing in [each for each in holders.items() if isinstance(each[1], Thing)]:
        version, name = told(package, where, telling(thing, draft))
        if name in STILL_TAKEN and version_key(version) < version_key(least):
            version = least  # which takes it still
        if version and not (pin and name in STILL_TAKEN):
            why = f"{thing.places[name]}: {package.replace('trl', 'TRL')} has {name} there until {version}"
            found.append((version_key(version), version, why))
    named = {each.name for each in run.globals.names.values() if isinstance(each, Ref)} if package == "trl" else set()
    gone = {name: GONE[name] for name in named & GONE.keys()}
    found += [(version_key(last), last, f"{run.start}: TRL has {name[4:]} until {last}") for name, last in gone.items()]
    last = until(trainer) if package == "trl" else ""
    if last:
        found.append((version_key(last), last, f"{trainer.place}: it replaces methods that TRL has until {last}"))
    return min(found)[1:] if found else ("", "")


def before_sdpa(version: str, draft: Draft) -> None:
    """A class that has no SDPA in the version of transformers beneath the trainer takes eager attention; one that caps
    its scores runs SDPA without the cap where a program asks for it (transformers 4.48 on, sdpa_attention_forward), and
    flash casts the fp32 of a base prepared for few bits (modeling_flash_attention_utils.py)."""
    given = draft.said
    asked, why = given.get("attention") if "attention" not in draft.given else None, ""
    if asked == "sdpa" and family_of(given) in CAPPED:
        kernel, why = "eager", "sdpa leaves out what caps its scores: eager is counted, which takes more"
    elif asked == "flash" and given.get("kbit_upcast") and given.get("autocast") is False:
        kernel, why = "sdpa", "flash casts what comes in fp32 to 16 bits: sdpa in fp32 is counted, which takes more"
    if why:
        draft.values["attention"] = kernel
        draft.bound("attn_implementation", draft.origins["attention"].text.rpartition(": ")[0], why, "attention")
    if "attention" in given or not () < version_key(version) < LAST_WITHOUT_SDPA:
        return
    family = family_of(given)
    since = SDPA_SINCE.get(family, "")
    if since and version_key(version) < version_key(since):
        why = f"transformers {version} has no sdpa for {family}: {since} is the first that has"
        draft.put("attention", "eager", Origin(DEFAULT, why))
