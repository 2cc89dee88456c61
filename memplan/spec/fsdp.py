"""Settings of FSDP and DDP beside the job's own keys, under torch's names."""

from __future__ import annotations

from memplan.spec.base import Frozen


class Fsdp(Frozen):
    """FSDP's own settings."""


class Ddp(Frozen):
    """DDP's own settings."""
