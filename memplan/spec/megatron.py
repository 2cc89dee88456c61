"""Megatron's own settings, under their own names."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from memplan.errors import InvalidJob
from memplan.spec.base import Frozen
from memplan.spec.recompute import listed

RECOMPUTE_MODULES = ("core_attn", "mlp", "moe", "shared_experts", "layernorm", "moe_act", "mla_up_proj")
"""Megatron's (megatron-core 0.16 transformer/transformer_config.py)."""
LATER_MODULES = ("shared_experts", "layernorm", "moe_act", "mla_up_proj")
"""Not modelled yet; of all but the first, outputs are freed and made again (CheckpointWithoutOutput)."""


def _modules(value: object) -> tuple[str, ...]:
    names = listed("megatron.recompute_modules", value, RECOMPUTE_MODULES)
    for name in names:
        if name in LATER_MODULES:
            raise InvalidJob(
                f"megatron.recompute_modules: {name} is not modelled yet",
                "modelled: " + ", ".join(name for name in RECOMPUTE_MODULES if name not in LATER_MODULES),
            )
    return names


class Megatron(Frozen):
    """Megatron's own settings."""

    recompute_modules: Annotated[tuple[str, ...], BeforeValidator(_modules)] = ("core_attn",)
    """Modules that selective checkpointing makes again: core_attn, mlp, moe."""
