"""What an engine's weights take once they are loaded: PyTorch's allocator played over their tensors.

A block that is left over in a segment and is no larger than 1 MiB is not split off: it counts with its neighbour, so
that a model of 0.5B holds 0.3 % more than its tensors (c10/cuda/CUDACachingAllocator.cpp: should_split)."""

from functools import lru_cache
from typing import Literal

from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.allocator.settings import Settings, pinned
from memplan.units import MiB

Loads = Literal["blocks", "unsplit", "grown", "segments"]
"""What a log's figure counts: PyTorch's blocks; those of vLLM from 0.20.2, which splits none of 20 MiB while it loads
(max_split_size_mb, vllm pull/41268); those of expandable segments, which are always split; or the fall of free
memory."""
UNSPLIT = 20 * MiB


@lru_cache(maxsize=256)
def loaded_bytes(tensors: tuple[int, ...], loads: Loads) -> int:
    """Of tensors of so many bytes, in the order in which they are made."""
    allocator, segments = _loaded(tensors, loads)
    return sum(segments) if loads == "segments" else allocator.allocated


@lru_cache(maxsize=256)
def copied_bytes(tensors: tuple[int, ...], loads: Loads) -> int:
    """Page-locked memory for a copy of each segment (vllm 0.8 to 0.29 device_allocator/cumem.py: ``sleep`` makes an
    empty tensor of ``handle[1]`` bytes for each), up to twice their bytes."""
    return sum(map(pinned, _loaded(tensors, loads)[1]))


def _loaded(tensors: tuple[int, ...], loads: Loads) -> tuple[CachingAllocator, list[int]]:
    """The allocator once they are made, and the segments that it has reserved."""
    settings = Settings(max_split_size=UNSPLIT if loads == "unsplit" else None, expandable_segments=loads == "grown")
    allocator, segments = CachingAllocator(settings), []
    for size in filter(None, tensors):
        before = allocator.reserved
        allocator.malloc(size)
        if allocator.reserved > before:
            segments.append(allocator.reserved - before)
    return allocator, segments
