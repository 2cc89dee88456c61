"""Which verl a file is of, by the settings that it has, and that version's defaults where they decide memory.

Source: verl 0.1 to 0.9 trainer/config/ppo_trainer.yaml, ppo_megatron_trainer.yaml, sft_trainer.yaml,
sft_trainer_engine.yaml at each release; workers/actor/dp_actor.py, trainer/fsdp_sft_trainer.py. Forks carry the verl
of their time: TinyZero and Search-R1 0.1, code-r1 0.2, POLARIS 0.3."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.frameworks.files.documents import words
from memplan.frameworks.project.copies import in_copy
from memplan.frameworks.verl.source import ENGINE, RL, SFT, Given
from memplan.tables.texts import settings_in, words_by_part
from memplan.tables.trainer import version_key

NEWEST = {RL: "0.9", ENGINE: "0.9", SFT: "0.7"}
VERSIONS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")
SINCE: Mapping[str, frozenset[str]] = words_by_part(__file__)
"""Settings by the version that brought them, where scripts name them; the middle of ``actor_rollout_ref`` left out."""
_OF_RL = words("data.truncation model.use_remove_padding data.shuffle")
"""Those that tell nothing of supervised fine-tuning."""
_FIRST = {name: version for version, names in SINCE.items() for name in names}
ENDED: Mapping[str, str] = {"actor.fsdp_config.grad_offload": "0.2", "critic.model.fsdp_config.grad_offload": "0.2",
                            "trainer.use_legacy_worker_impl": "0.7"}  # fmt: skip
"""The last version that has a setting."""
CHANGED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("0.8", settings_in("critic.model.use_remove_padding=false")),
    ("0.7", settings_in("actor_rollout_ref.model.use_remove_padding=false")),
    ("0.4", settings_in("""actor_rollout_ref.actor.entropy_coeff=0.001 model.strategy=fsdp
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 model.enable_gradient_checkpointing=false""")),
    ("0.2", settings_in("""actor_rollout_ref.actor.ppo_micro_batch_size=64 critic.ppo_micro_batch_size=64
    actor_rollout_ref.model.enable_gradient_checkpointing=false critic.model.enable_gradient_checkpointing=false""")),
)  # fmt: skip
"""Defaults of the versions before each."""


_NUMBERED = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(\.?dev)?")


def code_beside(path: str) -> str:
    """The version of the verl that lies in the project, as its ``verl/version/version`` says; empty where none does.
    Between two releases the next one's name stands there (0.3.1.dev: 0.4)."""
    match = _NUMBERED.match(in_copy(path, "verl/version/version")[:40].strip())
    if match is None:
        return ""
    major, minor, patch, unreleased = match.groups()
    return f"{major}.{int(minor) + (1 if unreleased and int(patch or 0) else 0)}"


def version_of(given: Given, code: str = "") -> str:
    """The oldest version that has every setting of the file, or the newest that lacks what it adds by a plus; the
    newest where nothing tells. ``code``: the version that lies in the project, which may be a later one."""
    found = _by_settings(given)
    told = code in VERSIONS and (given.kind == RL or version_key(code) <= version_key(NEWEST[given.kind]))
    return max(found, code, key=version_key) if told and found != NEWEST[given.kind] else code if told else found


def _by_settings(given: Given) -> str:
    values, sft = given.settings.values, given.kind != RL
    newest = NEWEST.get(given.kind, "0.9")
    if given.kind == ENGINE:
        return newest
    names = {key: key.removeprefix("actor_rollout_ref.") for key in values}
    usable = [name for key, name in names.items() if key not in given.added and (not sft or name not in _OF_RL)]
    if sft and {"trainer.save_freq", "trainer.test_freq"} & set(usable):
        usable.append("data.multiturn.enable")  # as old as these
    lowest = max((_FIRST[name] for name in usable if name in _FIRST), key=version_key, default="")
    last = min((ENDED[name] for name in usable if name in ENDED), key=version_key, default="")
    before = [_FIRST[name] for key, name in names.items() if key in given.added and name in _FIRST]
    if before:
        under = [each for each in VERSIONS if version_key(each) < min(map(version_key, before))]
        last = min(filter(None, (last, under[-1])), key=version_key)
    lowest = min(filter(None, (lowest, last)), key=version_key) if lowest else ""
    whole = [name for name in usable if name.endswith("micro_batch_size")]
    parts = [name for name in usable if name.endswith("micro_batch_size_per_gpu")]
    if whole and not parts and not sft and version_key(lowest or "0.1") <= version_key("0.2"):
        return "0.1"  # from 0.2 on each GPU's own is asked for
    # A setting that is gone is told by Hydra; one of a later version may be the fork's own.
    return min(filter(None, (lowest or last or newest, last, newest)), key=version_key)


def changed(defaults: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The defaults of a version, of those of the newest."""
    found = dict(defaults)
    for before, values in CHANGED:
        if version_key(version) < version_key(before):
            found |= values
    return found
