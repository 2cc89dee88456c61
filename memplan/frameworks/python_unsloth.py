"""Unsloth's own: its length, its checkpointing, and its kernels where they are modelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.python_gathered import Gathered
from memplan.frameworks.python_models import TRAINERS
from memplan.frameworks.python_values import Thing, Unknown, truth
from memplan.models import load_model
from memplan.tables.kernels import UNSLOTH as FAMILIES


def put_unsloth(thing: Thing, trainer: Thing, config: Any, gathered: Gathered, draft: Draft) -> None:
    """Unsloth's own: its length, its kernels, its checkpointing."""
    length = thing.values.get("max_seq_length", 2048)
    place = thing.places.get("max_seq_length", thing.place)
    method = TRAINERS[trainer.last]
    if not any(key in gathered.places for key in ("max_length", "max_seq_length")):
        gathered.add("max_length", length, place)
    if method == "transformers":
        gathered.add("max_seq_length", length, place, over=False)
    said = thing.values.get("use_gradient_checkpointing", "unsloth")
    if isinstance(config, Thing):
        said = config.values.get("use_gradient_checkpointing", "unsloth")
        place = config.places.get("use_gradient_checkpointing", config.place)
    on = truth(said)
    gathered.add("gradient_checkpointing", Unknown("not known", place) if on is None else on, place)
    if truth(thing.values.get("fast_inference", False)) is not False:
        why = "the generation engine beside the trainer is not counted"
        draft.warn("fast_inference", str(thing.places["fast_inference"]), why, "engine")
    draft.facts["unsloth"] = (str(thing.place), said)
    draft.finishers["unsloth"] = kernels


def kernels(draft: Draft) -> None:
    """Unsloth's kernels where they are modelled for the job; elsewhere transformers' own layers, which hold more."""
    where, checkpointing = draft.facts["unsloth"]
    given = {**draft.values, **draft.options}
    modelled = given.get("method") == "sft" and given.get("lora") and int(given.get("num_gpus") or 1) == 1
    if modelled and _family(given) in (*FAMILIES, ""):
        draft.put("kernels", "unsloth", Origin(FILE, f"{where}: Unsloth"))
        if checkpointing is True:
            why = 'true is counted as "unsloth": layer inputs wait on the host'
            draft.warn("use_gradient_checkpointing", where, why, "")
        return
    family = _family(given) or "this model"
    what = f"{given.get('method')} of {family}{'' if given.get('lora') else ' without adapters'}"
    why = f"Unsloth's kernels are not modelled for {what}: transformers' own layers are counted, which hold no less"
    draft.warn("FastLanguageModel", where, why, "")


def _family(given: Mapping[str, Any]) -> str:
    """The model's type; empty where it is not to be had now, which the job's own reading then says."""
    try:
        return str(load_model(given["model"], given.get("revision")).family) if given.get("model") else ""
    except MemplanError:
        return ""
