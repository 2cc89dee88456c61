"""What a report says of steps that are drawn from the lengths of the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False, repr=False)
class MicroBatch:
    """The fullest micro-batch of a step, and what the step then needs."""

    rows: int
    length: int
    """Tokens of each row, padding included."""
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class Played:
    """One drawn run through the caching allocator, step after step."""

    steps: int
    """Steps that ran; the next one died, where ``died``."""
    allocated_bytes: int
    """The most in any of them."""
    reserved_bytes: tuple[int, ...]
    """Held after each step: what changing lengths leave behind grows with time."""
    retries: int
    """Times that the cache was given back to make room."""
    died: bool


@dataclass(slots=True, eq=False, repr=False)
class Lengths:
    """What the job needs of batches drawn from the lengths of its data, the worst rank of each step."""

    drawn: str
    """What is known of the lengths."""
    batches: str
    """How the trainer makes micro-batches of them."""
    steps: int
    """Optimizer steps of a run."""
    runs: int
    """Runs that were drawn, each with a seed of its own."""
    p50: MicroBatch
    """The step that half of all steps do not exceed."""
    p99: MicroBatch
    worst: MicroBatch
    """The fullest step of any run."""
    p_oom: float | None
    """Share of runs that a step does not fit the card in (the expected device figure); null where no card is named."""
    p_oom_low: float | None
    """Wilson's interval, 95 %."""
    p_oom_high: float | None
    fatal_length: int | None
    """Tokens of the shortest micro-batch that does not fit; null where the longest fits, or no card is named."""
    fatal_share: float | None
    """Share of the data's sequences that are that long."""
    cut_share: float
    """Share of sequences that sequence_length cuts."""
    notes: tuple[str, ...]
    played: Played | None
    unplayed: str
    """Why the allocator was not played through."""
