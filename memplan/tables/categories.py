"""Kinds of memory in the order in which a picture stacks them: at the bottom what stays, at the top what passes."""

from memplan.units import words_of

STACK = words_of(
    """parameters adapters reference extra_models master_weights optimizer_states buffers batch workspaces kv_cache
    gathered_parameters autocast_weights gradients activations recomputation logits temporaries
    optimizer_temporaries communication stream_segments context trainer trainer_cache trainer_context engine"""
)
"""Categories of the ledger's rows, then the processes on one card."""


def stacked(there: set[str]) -> list[str]:
    """Those that are there, from the bottom to the top; one that no list knows stands above all."""
    return [name for name in STACK if name in there] + sorted(there.difference(STACK))
