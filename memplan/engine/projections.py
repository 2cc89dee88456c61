"""The projectors by name."""

from __future__ import annotations

from memplan.engine.projection import Projection, linear, llava, merged, pooled, shuffled
from memplan.engine.tile_projection import anyres

PROJECTIONS: dict[str, Projection] = {
    "llava": llava,
    "anyres": anyres,
    "pooled": pooled,
    "linear": linear,
    "shuffled": shuffled,
    "merged": merged,
}
"""A program for each ``Tower.projection``."""
