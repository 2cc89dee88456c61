"""Keys for what is made again in backward, and for what waits on the host."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from memplan.errors import InvalidJob, did_you_mean
from memplan.spec.base import Frozen

EVERY = "every:"
"""``every:N`` checkpoints every n-th layer."""
OFFLOADABLE = ("activations", "optimizer", "parameters", "reference")
RECOMPUTE_MODULES = ("core_attn", "mlp", "moe", "shared_experts", "layernorm", "moe_act", "mla_up_proj")
"""Megatron's (megatron-core 0.16 transformer/transformer_config.py)."""
LATER_MODULES = ("shared_experts", "layernorm", "moe_act", "mla_up_proj")
"""Not modelled yet; of all but the first, outputs are freed and made again (CheckpointWithoutOutput)."""


def every_nth(value: str) -> int:
    """N of every:N; 1 for full. Raises InvalidJob where N is no count."""
    if not value.startswith(EVERY):
        return 1
    digits = value.removeprefix(EVERY).strip()
    if not digits.isdecimal() or not 1 <= int(digits) <= 10_000:
        raise InvalidJob(
            f"gradient_checkpointing: {value[:40]!r} names no number of layers", "write every:2 for every second layer"
        )
    return int(digits)


def _listed(key: str, value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    """'a,b' and [a, b] are lists; nothing is none of them. Raises InvalidJob for an unknown name."""
    if value in (None, False, "none", "", {}):
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise InvalidJob(f"{key}: {str(value)[:40]!r} is no list", "known: " + ", ".join(known))
    names = [str(item).strip() for item in items if str(item).strip()]
    for name in names:
        if name not in known:
            raise InvalidJob(f"{key}: unknown value {name[:80]!r}", did_you_mean(name, known))
    return tuple(name for name in known if name in names)


def _offloaded(value: object) -> tuple[str, ...]:
    return _listed("offload", value, OFFLOADABLE)


def _modules(value: object) -> tuple[str, ...]:
    names = _listed("megatron.recompute_modules", value, RECOMPUTE_MODULES)
    for name in names:
        if name in LATER_MODULES:
            raise InvalidJob(
                f"megatron.recompute_modules: {name} is not modelled yet",
                "modelled: " + ", ".join(name for name in RECOMPUTE_MODULES if name not in LATER_MODULES),
            )
    return names


Offloaded = Annotated[tuple[str, ...], BeforeValidator(_offloaded)]


class Megatron(Frozen):
    """Megatron's own settings."""

    recompute_modules: Annotated[tuple[str, ...], BeforeValidator(_modules)] = ("core_attn",)
    """Modules that selective checkpointing makes again: core_attn, mlp, moe."""


class Recompute(NamedTuple):
    """Checkpointing, resolved."""

    every: int = 1
    """Of so many layers the last is checkpointed."""
    policy: str = ""
    """What selective checkpointing of whole layers keeps: products or attention."""
    modules: frozenset[str] = frozenset()
    """Modules that are checkpointed by themselves."""
