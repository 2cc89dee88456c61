"""Segments that FSDP2's other streams keep to themselves: on the reserved meter alone.

The allocator gives a freed block only to the stream that it came from. FSDP2 makes the outputs of all-gathers and of
reduce-scatters on streams of their own (torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py:
all_gather_copy_in, foreach_reduce): what the largest of them took stays reserved when it is freed, and the compute
stream's peak stands beside it."""

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp2.frame import Frame

SOURCE = "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py; c10/cuda/CUDACachingAllocator.cpp"


def enter_pools(ledger: Ledger, own: Frame, gather: str, before_layers: str, accumulates: bool) -> None:
    """What waits in both pools while it is not in use: the root's all-gather output after ``gather``, and the shards of
    gradients (outputs of reductions) until backward makes them, or the step where micro-steps leave them for it."""
    ledger.add(
        "segments of all-gathers",
        "stream_segments",
        max((own.ahead(unit) for unit in own.ends), default=0),
        ledger.after(gather),
        "",
        meter="reserved",
    ).formula("largest padded elements × bytes").since(
        "the all-gather's stream keeps the segments of its largest output", SOURCE
    )
    ledger.add(
        "segments of gradient shards",
        "stream_segments",
        sum(unit.shard for unit in (*own.layers, *own.ends)),
        "",
        ledger.before(ledger.schedule[-1]) if accumulates else before_layers,
        meter="reserved",
    ).formula("padded elements / ranks × bytes").since(
        "the reduction's stream keeps the segments of last step's gradients", SOURCE
    )
