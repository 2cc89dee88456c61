"""What a report says of steps that are drawn from the lengths of the data."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.units import format_bytes


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

    @property
    def words(self) -> str:
        """How many of the runs die, in a few words; what the steps need where no card is named."""
        if self.p_oom is None:
            median, worst = format_bytes(self.p50.device_bytes), format_bytes(self.worst.device_bytes)
            return f"drawn from its lengths: {median} for the median step, {worst} for the worst"
        if not self.p_oom:
            return f"none of {self.runs:,} runs drawn from its lengths dies"
        dying = f"{share(self.p_oom)} of {self.runs:,} runs drawn from its lengths die"
        return f"{dying}, of rows of {self.fatal_length:,} tokens and more"


def share(part: float) -> str:
    """'4 %'; '0.3 %' of what is little; '<0.1 %' of what is less."""
    percent = 100 * part
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.0f} %" if percent >= 10 or percent == int(percent) else f"{percent:.1f} %"
