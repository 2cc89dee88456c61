"""The instants of a load."""

POLICY, PREPARE, REFERENCE, SHARD, STATES = (
    f"load.{point}" for point in ("policy", "prepare", "reference", "shard", "states")
)
INSTANTS = (POLICY, PREPARE, REFERENCE, SHARD, STATES)
"""The policy is read; its weights and adapters are cast; the other models are read; all is divided; DeepSpeed makes its
fp32 copies."""
