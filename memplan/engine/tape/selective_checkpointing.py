"""Which results torch's selective checkpointing keeps, so that the recomputation takes them instead of computing.

Source: torch 2.13 ``torch/utils/checkpoint.py``, create_selective_checkpoint_contexts: the results of the operations
that a policy saves are held from forward on, each until the recomputation has taken it; what comes after the last
saved tensor is never taken, and waits for the end of the layer's backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.tables.styles import SavedBy

if TYPE_CHECKING:
    from memplan.engine.tape.graph import Storage

SAVED: dict[str, frozenset[str]] = {
    "products": frozenset(["mm", "addmm", "bmm", "attention", "topk", "convolution", "all-to-all", "reduce-scatter"]),
    "attention": frozenset(["attention"]),
    "matmuls": frozenset(["mm", "addmm", "bmm", "attention", "topk", "convolution"]),
}
"""Operations by policy. products: torchtitan 0.3 (distributed/activation_checkpoint.py) and the partitioner's
``compute_intensive_ops``, of products without a bias every second one alone. attention: trl 1.16
(models/selective_activation_checkpointing.py). matmuls: the partitioner's list, every product kept."""


class Policy:
    """One layer's results that are kept, in the order in which they were made."""

    __slots__ = ("alternates", "kept", "operations", "products", "read")

    def __init__(self, name: SavedBy) -> None:
        self.operations = SAVED[name]
        self.alternates = name == "products"
        self.products = 0
        self.kept: list[Storage] = []
        self.read = 0
        """So many of them were made before the last tensor that a node saves."""

    def saves(self, operation: str) -> bool:
        """Whether the next result of this operation is kept: of matmuls the first, the third and so on, or all."""
        if operation not in self.operations:
            return False
        if operation == "mm" and self.alternates:
            self.products += 1
            return self.products % 2 == 1
        return True

    def drop_unread(self) -> None:
        """What no recomputation takes goes."""
        del self.kept[self.read :]

    def rewind(self) -> None:
        """The recomputation begins: what was made first is taken first."""
        self.products = 0
        self.kept.reverse()
