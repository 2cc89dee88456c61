"""DeepSpeed and accelerate configs that a file names and that are not here: those that come with a framework and are
named by their path in it, else what the name tells, else a question.

Source: Axolotl 0.19 deepspeed_configs/, LLaMA-Factory 0.9.5 examples/deepspeed/, XTuner 0.1.23 configs/deepspeed/,
allenai/open-instruct@e6c3044 configs/ds_configs/."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.frameworks.asking import SUCH
from memplan.frameworks.documents import Document, Settings
from memplan.frameworks.draft import ASSUMED, Draft, Origin
from memplan.frameworks.following import Missing

_AUTO = dict.fromkeys(
    ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
)
_CPU: dict[str, Any] = {"device": "cpu", "pin_memory": True}
_AXOLOTL: dict[str, Any] = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, **_AUTO,
                            "sub_group_size": 0}  # fmt: skip
_FACTORY: dict[str, Any] = {"stage": 3, "overlap_comm": False, "contiguous_gradients": True, **_AUTO,
                            "sub_group_size": 1e9}  # fmt: skip
_FLAT: dict[str, Any] = {"allgather_bucket_size": 5e8, "reduce_bucket_size": 5e8, "overlap_comm": False,
                         "contiguous_gradients": True, "round_robin_gradients": True}  # fmt: skip
_ZERO2: dict[str, Any] = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "contiguous_gradients": True,
                          "overlap_comm": True}  # fmt: skip
_XTUNER: dict[str, Any] = {"overlap_comm": True}
_OPEN: dict[str, Any] = {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto"}
_OPEN_3: dict[str, Any] = {**_OPEN, **_AUTO, "stage": 3, "sub_group_size": 1e9, "stage3_max_live_parameters": 1e9,
                           "stage3_max_reuse_distance": 1e9}  # fmt: skip
_BF16 = {"bf16": {"enabled": True}}
ZERO: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "deepspeed_configs/zero1.json": ("Axolotl", {"stage": 1, "overlap_comm": True}),
    "deepspeed_configs/zero1_torch_compile.json": ("Axolotl", {"stage": 1, "overlap_comm": True}),
    "deepspeed_configs/zero2.json": ("Axolotl", _ZERO2),
    "deepspeed_configs/zero2_torch_compile.json": ("Axolotl", _ZERO2),
    "deepspeed_configs/zero3.json": ("Axolotl", _AXOLOTL),
    "deepspeed_configs/zero3_bf16.json": ("Axolotl", _AXOLOTL),
    "deepspeed_configs/zero3_bf16_cpuoffload_all.json": (
        "Axolotl", {**_AXOLOTL, "offload_optimizer": _CPU, "offload_param": _CPU}),
    "deepspeed_configs/zero3_bf16_cpuoffload_params.json": ("Axolotl", {**_AXOLOTL, "offload_param": _CPU}),
    "examples/deepspeed/ds_z0_config.json": ("LLaMA-Factory", {"stage": 0, **_FLAT}),
    "examples/deepspeed/ds_z2_config.json": ("LLaMA-Factory", {"stage": 2, **_FLAT}),
    "examples/deepspeed/ds_z2_offload_config.json": (
        "LLaMA-Factory", {"stage": 2, **_FLAT, "offload_optimizer": _CPU}),
    "examples/deepspeed/ds_z3_config.json": ("LLaMA-Factory", _FACTORY),
    "examples/deepspeed/ds_z3_offload_config.json": (
        "LLaMA-Factory", {**_FACTORY, "offload_optimizer": _CPU, "offload_param": _CPU}),
    "xtuner/deepspeed_zero1.json": ("XTuner", {"stage": 1, **_XTUNER}),
    "xtuner/deepspeed_zero2.json": ("XTuner", {"stage": 2, **_XTUNER}),
    "xtuner/deepspeed_zero2_offload.json": ("XTuner", {"stage": 2, **_XTUNER, "offload_optimizer": _CPU}),
    "xtuner/deepspeed_zero3.json": ("XTuner", {"stage": 3, **_XTUNER}),
    "xtuner/deepspeed_zero3_offload.json": (
        "XTuner", {"stage": 3, **_XTUNER, "offload_optimizer": _CPU, "offload_param": _CPU}),
    "ds_configs/stage2_no_offloading_accelerate.conf": ("open-instruct", {"stage": 2, **_OPEN}),
    "ds_configs/stage3_no_offloading_accelerate.conf": ("open-instruct", _OPEN_3),
    "ds_configs/stage3_no_offloading.conf": ("open-instruct", _OPEN_3),
    "ds_configs/stage3_offloading_accelerate.conf": (
        "open-instruct", {**_OPEN_3, "offload_optimizer": _CPU, "offload_param": _CPU}),
    "ds_configs/stage3_offloading.conf": (
        "open-instruct", {**_OPEN_3, "offload_optimizer": _CPU, "offload_param": _CPU}),
}  # fmt: skip
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
