"""What PYTORCH_CUDA_ALLOC_CONF says, and how it rounds requests.

Source: ``round_size`` and ``get_allocation_size`` of c10/cuda/CUDACachingAllocator.cpp, torch 2.13."""

from typing import NamedTuple

from memplan.spec.allocator import INTERVALS, Allocator, divisions_of
from memplan.units import MiB, round_up

MIN_BLOCK_BYTES = 512
SMALL_BYTES = 1 * MiB
SMALL_SEGMENT_BYTES = 2 * MiB
LARGE_SEGMENT_BYTES = 20 * MiB
OWN_SEGMENT_BYTES = 10 * MiB
"""kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer and kMinLargeAlloc; kRoundLarge is kSmallBuffer's 2 MiB."""


class Settings(NamedTuple):
    """Of one process."""

    expandable_segments: bool = False
    divisions: tuple[int, ...] = ()
    """Of each power of two, as ``divisions_of`` reads them; empty where nothing but 512 bytes is rounded to."""
    max_split_size: int | None = None
    collect_above: int | None = None
    """Reserved bytes above which cached segments are given back before another is asked for: the threshold's share of
    what the process may use, and nothing unless that was set (``set_per_process_memory_fraction``)."""

    def round_size(self, size: int) -> int:
        """Bytes of the block for a request: a multiple of 512, or of a power of two's share."""
        if size < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        if self.divisions:
            at = min(max(size.bit_length() - SMALL_BYTES.bit_length(), 0), INTERVALS - 1)
            divisions = self.divisions[at]
            if divisions > 1 and size > MIN_BLOCK_BYTES * divisions:
                return round_up(size, (1 << (size.bit_length() - 1)) // divisions)
        return round_up(size, MIN_BLOCK_BYTES)


def settings_of(conf: Allocator, card_bytes: int | None = None) -> Settings:
    """Of a job's ``allocator`` key, on a card of which the process may have so many bytes."""
    above = conf.garbage_collection_threshold if conf.per_process_memory_fraction else None
    return Settings(
        conf.expandable_segments,
        divisions_of(conf.roundup_power2_divisions) if conf.roundup_power2_divisions else (),
        conf.max_split_size_mb * MiB if conf.max_split_size_mb else None,
        int(above * card_bytes) if above and card_bytes else None,
    )


def segment_size(size: int) -> int:
    """Bytes asked of the driver for a block of ``size`` (``get_allocation_size``)."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size < OWN_SEGMENT_BYTES else round_up(size, SMALL_SEGMENT_BYTES)


def pinned(size: int) -> int:
    """Bytes of page-locked memory: torch's host allocator rounds up to a power of two (2.13 CachingHostAllocator.h)."""
    return 1 << (size - 1).bit_length() if size > 1 else size
