"""Why a head's program costs what it costs, in a line, and where that can be read."""

from memplan.tables.texts import texts_by_name

LOSS_HEADS = {head: tuple(text.split(" | ")) for head, text in texts_by_name(__file__).items()}

READS_WEIGHT = ("fused", "chunked", "cut-cross-entropy")
"""Losses that multiply by the head's weight themselves."""
