"""FSDP's settings, as accelerate's config and TrainingArguments spell them, and settings of DDP.

Source: accelerate 1.15 commands/launch.py, utils/dataclasses.py (FullyShardedDataParallelPlugin), transformers 5.23
training_args.py (_process_fsdp_args)."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.base import DEFAULT, FILE, Keys, Origin
from memplan.frameworks.files.documents import words
from memplan.frameworks.hugging_face.switches import mapping
from memplan.spec.fsdp import STRATEGIES
from memplan.spec.job import Job
from memplan.tables.texts import settings_in
from memplan.tables.trainer import version_key

HARMLESS = words(
    """transformer_layer_cls_to_wrap transformer_cls_to_wrap transformer_cls_names_to_wrap
    sync_module_states xla xla_fsdp_settings xla_fsdp_grad_ckpt
    xla_fsdp_v2 min_num_params"""
)
LAUNCH: dict[str, Any] = settings_in(
    """version=1 sharding_strategy=FULL_SHARD auto_wrap_policy=NO_WRAP forward_prefetch=false use_orig_params=true
    reshard_after_forward=true"""
)
"""accelerate launch."""
TRAINER: dict[str, Any] = LAUNCH | {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
"""transformers 5's TrainingArguments."""
OLD_TRAINER: dict[str, Any] = TRAINER | {"version": 1, "auto_wrap_policy": "NO_WRAP"}
"""transformers 4's: layers are wrapped where ``auto_wrap`` stands among the options."""
ONE = ("auto_wrap_policy", "backward_prefetch", "forward_prefetch", "use_orig_params", "limit_all_gathers")


def put_inner(keys: Keys, job_key: str, inner: str, value: Any, key: str) -> None:
    """``fsdp.inner`` where the job has it and takes the value; else a warning that names the key and says why."""
    if value is None:
        return
    why = refusal(job_key, inner, value)
    if why:
        keys.warn(key, why)
        return
    keys.draft.values[job_key] = {**(keys.draft.values.get(job_key) or {}), inner: value}
    there = keys.has(key)
    where = f"{keys.settings.where(key)}: {keys.settings.prefix}{key}" if there else f"{keys.framework.label}: {key}"
    before = keys.draft.origins.get(job_key)
    if before is None or (there and before.kind != FILE):
        keys.draft.origins[job_key] = Origin(FILE if there else DEFAULT, where)


def refusal(job_key: str, inner: str, value: Any) -> str:
    """Why a job's mapping does not take this key with this value; empty where it does."""
    try:
        Job.model_validate({job_key: {inner: value}})
    except InvalidJob as error:
        return error.message.removeprefix(f"{job_key}: ")
    except ValueError:
        return f"{str(value)[:40]} is not modelled"
    return ""


class Prefixed(Keys):
    """Settings whose names may begin with ``fsdp_``."""

    def named(self, short: str) -> str:
        """The spelling that the file has."""
        long = f"fsdp_{short}"
        return long if self.settings.values.get(long) is not None else short

    def get(self, key: str) -> Any:
        """By either spelling."""
        self._taken.update((key, f"fsdp_{key}"))
        value = self.raw(self.named(key))
        return self.defaults.get(key) if value is None else value

    def has(self, key: str) -> bool:
        """By either spelling."""
        return self.raw(self.named(key)) is not None


def read_fsdp(keys: Keys, defaults: Mapping[str, Any]) -> None:
    """``fsdp_config`` of accelerate or of the Trainer into the draft."""
    found = Prefixed(keys.draft, keys.settings, keys.framework, defaults)
    version = found.whole("version")
    if version not in (1, 2):
        raise found.settings.error("fsdp_version", f"{version} is no version of FSDP", "use 1 or 2")
    found.put("sharding", "fsdp" if version == 1 else "fsdp2", found.named("version"))
    (_first_version if version == 1 else _second_version)(found)
    for name in ("offload_params", "cpu_offload"):
        if found.flag(name):
            put_inner(found, "fsdp", "cpu_offload", True, found.named(name))
    if found.flag("cpu_ram_efficient_loading"):
        put_inner(found, "fsdp", "cpu_ram_efficient_loading", True, found.named("cpu_ram_efficient_loading"))
    saved = found.get("state_dict_type")
    if saved is not None and str(saved).upper() not in ("FULL_STATE_DICT", "1"):
        put_inner(found, "fsdp", "state_dict_type", saved, found.named("state_dict_type"))
    if found.flag("activation_checkpointing"):
        keys.draft.forget("gradient_checkpointing")
        found.put("gradient_checkpointing", "full", found.named("activation_checkpointing"))
    if found.flag("activation_cpu_offload"):  # ms-swift's
        key = found.named("activation_cpu_offload")
        why = "activations that wait on the host are counted on the GPU"
        keys.draft.bound(keys.settings.prefix + key, keys.settings.where(key), why, "activations")
    if found.has("ignored_modules"):
        found.warn(found.named("ignored_modules"), "modules that FSDP leaves alone are counted as split")
    classes = found.names("transformer_layer_cls_to_wrap") or ()
    parts = [name for name in classes if name and not re.search(r"(Layer|VisionBlock|[a-z\d](?<!Moe)Block)$", name)]
    if parts:
        found.warn(found.named("transformer_layer_cls_to_wrap"), f"{parts[0][:40]}: units are counted as whole layers")
    found.close({*HARMLESS, *(f"fsdp_{name}" for name in HARMLESS)})


def _first_version(found: Prefixed) -> None:
    """FSDP1: the strategy by its name or number, which ``reshard_after_forward`` may hold too."""
    given = "sharding_strategy" if found.has("sharding_strategy") else "reshard_after_forward"
    value = found.get(given) if found.has(given) else None
    found.skip(
        *(f"{prefix}{key}" for prefix in ("", "fsdp_") for key in ("sharding_strategy", "reshard_after_forward"))
    )
    if value is not None:
        words = {"TRUE": "FULL_SHARD", "FALSE": "SHARD_GRAD_OP"} | {
            str(n): name for n, name in enumerate(STRATEGIES, 1)
        }
        word = words.get(str(value).strip().upper(), str(value).strip().upper())
        if word not in STRATEGIES:
            raise found.settings.error(found.named(given), f"{str(value)[:40]!r} is no strategy", "use FULL_SHARD")
        if word != "FULL_SHARD":
            put_inner(found, "fsdp", "sharding_strategy", word, found.named(given))
    for name in ONE:
        value = found.flag(name) if name in ("forward_prefetch", "use_orig_params", "limit_all_gathers") else None
        text = found.text(name) if value is None else None
        usual = {"forward_prefetch": False, "limit_all_gathers": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        shown = text.upper() if text is not None else value
        if shown is not None and shown != usual.get(name):
            put_inner(found, "fsdp", name, shown, found.named(name))


def _second_version(found: Prefixed) -> None:
    """FSDP2: whether weights are freed after forward."""
    found.skip(*(f"fsdp_{name}" for name in ONE), *ONE, "sharding_strategy", "fsdp_sharding_strategy")
    value = found.get("reshard_after_forward")
    word = str(value).strip().upper()
    answers = {"TRUE": True, "FULL_SHARD": True, "FALSE": False, "SHARD_GRAD_OP": False}
    if word not in answers and not word.isdigit():
        name = found.named("reshard_after_forward")
        raise found.settings.error(name, f"{str(value)[:40]!r} is neither true nor false", "use true or false")
    if not answers.get(word, False):
        found.put("reshard_after_forward", answers.get(word, word), found.named("reshard_after_forward"))
    policy = found.text("auto_wrap_policy") or ""
    if policy.upper() not in ("", "TRANSFORMER_BASED_WRAP"):
        put_inner(found, "fsdp", "auto_wrap_policy", policy.upper(), found.named("auto_wrap_policy"))


def read_trainer_fsdp(keys: Keys) -> None:
    """``fsdp: true`` or ``fsdp: full_shard auto_wrap``, and ``fsdp_config``, of TrainingArguments."""
    value = keys.get("fsdp")
    words = [str(word) for word in value] if isinstance(value, list) else str(value or "").replace(",", " ").split()
    on = [word.lower().removeprefix("fsdpoption.") for word in words]
    config = keys.get("fsdp_config")
    keys.skip("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
    if not on or on in (["false"], ["none"], ["no"]):
        return
    inner = Keys(keys.draft, keys.settings.section("fsdp_config") if not isinstance(config, str) else keys.settings,
                 keys.framework)  # fmt: skip
    if isinstance(config, str):
        text = config.strip().startswith("{")
        followed = keys.draft.follow(keys.settings, "fsdp_config", config) if not text else None
        inner = Keys(keys.draft, followed.settings, keys.framework) if followed else mapping(keys, "fsdp_config")
    wraps = keys.text("fsdp_transformer_layer_cls_to_wrap")  # of transformers before 5
    defaults = dict(OLD_TRAINER if _is_old(keys, bool(wraps)) else TRAINER)
    for word in on:
        if word.upper() in STRATEGIES:
            defaults["reshard_after_forward"] = word.upper()
            defaults["sharding_strategy"] = word.upper()
        elif word == "auto_wrap":
            defaults["auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP"
        elif word not in ("offload", "true", "fsdp"):
            keys.warn("fsdp", f"{word[:40]} is not read")
    read_fsdp(inner, defaults)
    if "offload" in on:
        put_inner(keys, "fsdp", "cpu_offload", True, "fsdp")


FIRST_TRL_ON_5 = (0, 27)
"""TRL's first version that runs on transformers 5."""


def _is_old(keys: Keys, wraps: bool) -> bool:
    """Whether transformers before 5 reads them, whose FSDP is the first one unless told otherwise."""
    name, version = keys.framework.name, version_key(str(keys.draft.options.get("trainer_version") or ""))
    return (name in ("transformers", "trl") and (wraps or keys.draft.facts.get("transformers", 5) == 4)) or (
        name == "trl" and bool(version) and version < FIRST_TRL_ON_5
    )
