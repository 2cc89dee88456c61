"""DeepSpeed and accelerate configs that a file names and that are not here: those that come with a framework and are
named by their path in it, else what the name tells, else a question.

Source: Axolotl 0.19 deepspeed_configs/, LLaMA-Factory 0.9.5 examples/deepspeed/, XTuner 0.1.23 configs/deepspeed/,
allenai/open-instruct@e6c3044 configs/ds_configs/."""

import re
from typing import Any

from memplan.frameworks.asking import SUCH
from memplan.frameworks.draft import ASSUMED, Draft, Origin
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import Missing
from memplan.tables.texts import parts_of, settings_in

_BF16 = {"bf16": {"enabled": True}}
ZERO: dict[str, tuple[str, dict[str, Any]]] = {}
for _heading, _text in parts_of(__file__).items():
    _own, _, _under = _heading.partition(" < ")
    _whose, _, _path = _own.partition(" ")
    ZERO[_path] = _whose, {**(ZERO[_under][1] if _under else {}), **settings_in(_text)}
"""``zero_optimization`` by path, and whose it is."""
_ADAMW = {"optimizer": {"type": "AdamW", "params": {}}}
_MORE = dict.fromkeys(("ds_configs/stage3_no_offloading.conf", "ds_configs/stage3_offloading.conf"), _ADAMW)


def shipped(reference: str) -> Document | None:
    """The config that comes with a framework under this path."""
    name = "/".join(reference.replace("\\", "/").split("/")[-2:])
    name = f"examples/{name}" if name.startswith("deepspeed/") else name
    name = f"ds_configs/{name.rpartition('/')[2]}" if name.endswith(".conf") else name
    if name not in ZERO:
        return None
    whose, zero = ZERO[name]
    path = f"{whose}'s {name}"
    dtypes = _BF16 if "bf16" in name else {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return Document(path, "json", Settings(path, {"zero_optimization": zero, **dtypes, **_MORE.get(name, {})}))


def is_shipped(path: str) -> bool:
    """Whether a config comes with a framework, so that it is not the user's to change."""
    return path.partition("'s ")[2].endswith((".json", ".yaml"))


_STAGE = re.compile(r"(?<![a-z])(?:deepspeed|ds|z|zero|stage|zero[-_]?stage|z[-_]?stage)[-_]?([0-3])(?![0-9])")
"""zero3.json, ds_z2_config.json, zero_stage1_config.json, deepspeed_config_stage3.json."""
_WHOLE = re.compile(r"(?<![a-z])(ddp|multi[-_]?gpu)(?![a-z])")
_OFFLOADED = re.compile(r"(?<!no[-_])(?<!without[-_])offload")


def open_config(draft: Draft, settings: Settings, key: str, reference: str, of: str) -> Document | None:
    """The config of ``of`` that a key names, the one given beside, or the one that comes with a framework; None where
    there is none: an option or the name tells the stage, or it is asked for."""
    try:
        return draft.follow(settings, key, reference)
    except Missing as missing:
        if of in draft.beside:
            return draft.take(of)
        known = shipped(reference) if of == "deepspeed" else None
        if known is not None:
            draft.remarks.append(f"{settings.where(key)}: {key} {reference[:80]} is not here: {known.path} is taken")
            return known
        _by_name(draft, settings, key, reference, missing)
        return None


def _by_name(draft: Draft, settings: Settings, key: str, reference: str, missing: Missing) -> None:
    if {"sharding", "zero_stage"} & draft.given:
        return
    where, name = settings.where(key), reference.rpartition("/")[2].lower()
    stage, whole = _STAGE.search(name), _WHOLE.search(name)
    if not (stage or whole):
        why = missing.message.removeprefix(f"{where}: ")
        draft.ask("sharding", where, why, f"{missing.hint}, or say --sharding, such as {SUCH['sharding']}")
        return
    kind = f"zero{stage.group(1)}" if stage else "ddp"
    origin = Origin(ASSUMED, f"{where}: {key} {reference[:80]} is not here, and its name says so; give it with --with")
    draft.put("sharding", kind, origin)
    if stage:
        draft.facts.setdefault("deepspeed dtype", ("auto", origin))
    if _OFFLOADED.search(name) and "offload" not in draft.given:
        usual = "optimizer,parameters" if kind == "zero3" else "optimizer"
        draft.bound(key, where, f"{reference[:80]} is not here: what it offloads is counted on the card", "parallelism",
                    hint=f"give the file with --with, or add --offload {usual}")  # fmt: skip
