"""DeepSpeed's settings with nothing left open: what the engine reads."""

from typing import Any, NamedTuple

from memplan.tables.styles import Device, ZeroWrapper
from memplan.units import attributes_of

MOST = 10**13
"""Elements that are no limit."""


class Offloaded(NamedTuple):
    """Where states wait, resolved."""

    device: Device = "none"
    pinned: bool = True
    buffer_count: int = 0
    buffer_size: int = 0
    max_in_cpu: int = 0
    ratio: float = 1.0
    worker: bool = False
    """A process of its own steps on the host (SuperOffload)."""

    def __bool__(self) -> bool:
        return self.device != "none"


class Selective(NamedTuple):
    """ZenFlow: what the card steps on itself."""

    ratio: float
    on_host: bool
    """Its states wait on the host between steps."""
    overlaps: bool
    """The host's step runs beside the next one."""


class Zero(NamedTuple):
    """DeepSpeed's settings with nothing left open; sizes in elements."""

    wrapper: ZeroWrapper = ""
    groups: int = 1
    """Groups of parameters that the trainer makes: two where norms and biases do not decay."""
    reduce_bucket_size: int = 500_000_000
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = MOST
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    allgather_sequential: bool = False
    fetch_by_all_reduce: bool = False
    round_robin_gradients: bool = False
    immediate_grad_update: bool = False
    communication: int = 2
    """Bytes of an element in a reduction."""
    accumulation: int = 2
    """Bytes of an element of accumulated gradients, where stage 3 or BF16_Optimizer reads it."""
    hpz: int = 1
    quantised_weights: bool = False
    quantised_frozen: bool = False
    quantised_gradients: bool = False
    optimizer: Offloaded = Offloaded()
    parameters: Offloaded = Offloaded()
    selective: Selective | None = None

    @property
    def whole_gradients(self) -> bool:
        """The engine reduces them when all have come: stage 0, and BF16_Optimizer, which has a buffer of its own."""
        return self.wrapper in ("plain", "unfused", "fused", "bf16")

    def as_config(self) -> dict[str, Any]:
        """The sub-keys of ``zero_optimization`` that say the same."""
        config = attributes_of(
            self, "reduce_bucket_size overlap_comm contiguous_gradients reduce_scatter round_robin_gradients"
        )
        if self.wrapper == "zero3":
            config |= attributes_of(
                self,
                """sub_group_size stage3_prefetch_bucket_size=prefetch_bucket_size
                stage3_param_persistence_threshold=param_persistence_threshold
                stage3_max_live_parameters=max_live_parameters stage3_max_reuse_distance=max_reuse_distance
                stage3_allgather_sequential=allgather_sequential""",
            )
        for name, where in (("offload_optimizer", self.optimizer), ("offload_param", self.parameters)):
            if where:
                config[name] = {"device": where.device, "pin_memory": where.pinned}
        return config
