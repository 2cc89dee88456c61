"""The projectors by name."""

from __future__ import annotations

from memplan.engine.towers.perceiver import perceived
from memplan.engine.towers.position_tower import averaged_by_position
from memplan.engine.towers.projection import Projection, linear, llava, merged, pooled, shuffled
from memplan.engine.towers.tile_projection import adapted, anyres, averaged, connected, connected_held, patch_merger

PROJECTIONS: dict[str, Projection] = {
    "llava": llava,
    "anyres": anyres,
    "adapted": adapted,
    "averaged": averaged,
    "averaged by position": averaged_by_position,
    "connected": connected,
    "connected, held": connected_held,
    "patch-merger": patch_merger,
    "perceived": perceived,
    "pooled": pooled,
    "linear": linear,
    "shuffled": shuffled,
    "merged": merged,
}
"""A program for each ``Tower.projection``."""
