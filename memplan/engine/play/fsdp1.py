"""FSDP1's hooks on the play: one flat parameter for each unit, gathered whole, and a flat gradient that is reduced.

torch 2.13 distributed/fsdp/_runtime_utils.py (``_pre_forward``, ``_pre_backward_hook``, ``_post_backward_hook``,
``_reduce_grad``) and _flat_param.py (``_alloc_padded_unsharded_flat_param``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.play.fsdp2 import GATHERING, REDUCING, Fsdp2
from memplan.engine.play.group import Group

if TYPE_CHECKING:
    from memplan.engine.play.model import PassRun
    from memplan.engine.tape.graph import Tensor


class Fsdp1(Fsdp2):
    """Units whose weights are views of one tensor, so that their gradients wait for one another."""

    @property
    def keeps(self) -> bool:
        """SHARD_GRAD_OP: what is gathered stays to its backward."""
        return self.recipe.sharding.fsdp.keeps_gathered

    def before(self, run: PassRun, layer: int, x: Tensor) -> Tensor:
        """``_pre_forward``; with forward_prefetch the next unit is gathered too."""
        x = super().before(run, layer, x)
        if self.recipe.sharding.fsdp.forward_prefetch and layer + 1 < len(self.layers):
            self._unshard(self.layers[layer + 1])
        return x

    def _unshard(self, group: Group) -> None:
        """The shard in low precision, while the gather into the flat parameter runs."""
        if group.is_whole or not group.sizes:
            return
        copied = self._new(group.unit.cast, "shard in low precision", "buffers", GATHERING)
        group.whole = [self._new(group.unit.gathered, "gathered flat parameter", "gathered_parameters", GATHERING)]
        del copied

    def _wait(self, group: Group, *, forward: bool) -> None:
        """It is gathered straight into place."""

    def _leave(self, group: Group, y: Tensor) -> Tensor:
        if not self.keeps:
            group.whole.clear()
        self._record(group)
        return self._then(y, group, self._pre_backward)

    def _pre_backward(self, group: Group) -> None:
        self._unshard(group)
        if self.recipe.sharding.fsdp.backward_prefetch == "BACKWARD_PRE":
            self._prefetch(group)

    def _prefetch(self, group: Group) -> None:
        """The unit before it in forward."""
        ahead = group.forwards.pop() - 1 if group.forwards else -1
        if ahead >= 0:
            self._unshard(self.order[ahead])

    def _post_backward(self, group: Group) -> None:
        """The gradients of all views are put together; the unit is freed; then what is whole is cast and scattered."""
        flat = self._flat(group)
        if self.reduces or not self.keeps:
            group.whole.clear()
        if self.recipe.sharding.fsdp.backward_prefetch == "BACKWARD_POST":
            self._prefetch(group)
        if flat is None:
            return
        waiting = group.waiting.pop() if group.waiting else None
        if not self.reduces:
            group.waiting.append(waiting or flat)
            return
        if waiting is not None:
            flat = waiting
        unit, reduce = group.unit, self.recipe.storage.reduce_itemsize
        cast = self._new(unit.reduced * (reduce != self.recipe.numerics.itemsize), "cast", "buffers", REDUCING)
        shard = self._new(unit.reduced // self.recipe.sharding.ranks, "reduced gradients", "gradients", REDUCING)
        if unit.scattered > shard.dim.elements:
            shard = self._new(unit.shard, "shards of gradients", "gradients", REDUCING)
        if group.shard is None and not self.recipe.sharding.fsdp.cpu_offload:
            group.shard = shard
        del cast, flat  # ``autograd_computed_grad`` lives until the hook returns

    def _flat(self, group: Group) -> Tensor | None:
        """``SplitWithSizesBackward0``: one gradient of all views; None where nothing has come."""
        arrived, group.arrived = group.arrived, []
        grads = [self.tape.stored.pop(param) for param in arrived]
        if not grads:
            return None
        flat = self._new(group.unit.gradients + group.unit.zeros, "flat gradient", "gradients")
        grads.clear()
        return flat
