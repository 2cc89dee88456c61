"""How ``trl dpo …`` starts: accelerate, with the options that TRL does not know and one of its own configs."""

from dataclasses import replace
from typing import Any

from memplan.frameworks.accelerate import reader as accelerate
from memplan.frameworks.base import Draft, Keys
from memplan.frameworks.commands.launch import Launch
from memplan.frameworks.files.documents import Settings, words
from memplan.frameworks.shell.reader import Command

LAUNCHER = words(
    """num_processes num_machines mixed_precision use_deepspeed use_fsdp multi_gpu zero_stage machine_rank
    main_process_port main_process_ip gpu_ids"""
)
"""Options that ``trl`` hands on to accelerate."""


def read_trl_file(settings: Settings, draft: Draft) -> None:
    """What a file of arguments says of how it starts: ``accelerate_config: zero3`` (trl 1.16 cli/commands/training.py
    hands on what a file has and TRL does not know)."""
    keys = Keys(draft, settings, accelerate.FRAMEWORK)
    if accelerate.FRAMEWORK.name in draft.beside:
        return
    said = {name: keys.raw(name) for name in ("accelerate_config", "num_processes", "num_machines")}
    given = {name: value for name, value in said.items() if value is not None}
    if given:
        launch = Launch("accelerate", settings, "trl", (), Command((), {}), settings.path)
        read_trl_launcher(replace(settings, values={**settings.values, **given}), launch, draft)


def read_trl_launcher(arguments: Settings, launch: Launch, draft: Draft) -> None:
    """``trl dpo --accelerate_config zero3 --num_processes 4``: it starts accelerate with what it does not know."""
    known = ("num_processes", "num_machines", "mixed_precision", "use_deepspeed", "use_fsdp", "multi_gpu", "zero_stage")
    options = {key: value for key, value in arguments.values.items() if key in known}
    config = arguments.values.get("accelerate_config")
    if isinstance(config, str) and config in BUILT_IN:
        kind, inner = BUILT_IN[config]
        values = {"distributed_type": kind, "num_processes": 8, "mixed_precision": "bf16", **inner}
        values["num_processes"] = 1 if kind == "NO" else 8
        accelerate.read_settings(
            Settings(f"TRL's {config}.yaml", values, {}), draft, Settings(arguments.path, options, arguments.lines)
        )
        return
    path = config if isinstance(config, str) else arguments.values.get("config_file")
    found = Settings(arguments.path, {**options, **({"config_file": path} if path else {})}, arguments.lines)
    accelerate.read_launch(Launch("accelerate", found, "trl", (), launch.command, arguments.path), draft)


_FSDP = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
BUILT_IN: dict[str, tuple[str, dict[str, Any]]] = {
    "single_gpu": ("NO", {}),
    "multi_gpu": ("MULTI_GPU", {}),
    "zero1": ("DEEPSPEED", {"deepspeed_config": {"zero_stage": 1, "gradient_accumulation_steps": "auto"}}),
    "zero2": ("DEEPSPEED", {"deepspeed_config": {"zero_stage": 2}}),
    "zero3": ("DEEPSPEED", {"deepspeed_config": {"zero_stage": 3}}),
    "fsdp1": (
        "FSDP",
        {"fsdp_config": _FSDP | {"fsdp_version": 1, "fsdp_backward_prefetch": "BACKWARD_PRE",
                                 "fsdp_forward_prefetch": True}},
    ),
    "fsdp2": ("FSDP", {"fsdp_config": _FSDP | {"fsdp_version": 2}}),
}  # fmt: skip
"""Configs that come with TRL (trl 1.16 accelerate_configs/)."""
