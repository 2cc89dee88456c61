"""The classes of ranks of a job, and what each needs."""

from collections.abc import Iterator

from memplan.render.blocks import Block, Column, Heading, Table
from memplan.render.instants import instant_words
from memplan.report import Report
from memplan.units import format_bytes


def ranks_blocks(report: Report) -> Iterator[Block]:
    """One row for each class, the fullest first."""
    columns = (
        Column("GPUs", right=True),
        Column("which", wrap=True),
        Column("allocated", right=True),
        Column("device", right=True),
        Column("peak at", wrap=True),
    )
    yield Heading("Ranks")
    yield Table(
        columns,
        tuple(
            (
                f"{rank.count:,}",
                rank.name,
                format_bytes(rank.allocated_bytes),
                format_bytes(rank.device_bytes.expected),
                instant_words(rank.peak_instant)[0],
            )
            for rank in report.ranks
        ),
    )
