"""Load and save under Megatron: the buffers that weights are copied into, and a distributed checkpoint's copies.

megatron-core 0.14 distributed/param_and_grad_buffer.py (_ParamAndGradBuffer: both buffers are made, then each weight is
copied into its place), optimizer/distrib_optimizer.py (main weights after that), dist_checkpointing/strategies/
filesystem_async.py (preload_tensors: what a rank writes is copied to the host first), strategies/fully_parallel.py
(ranks that hold the same weights share out who writes them)."""

from itertools import accumulate
from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.megatron.build import enter_references
from memplan.engine.megatron.states import BUFFER, buffers, enter_states, gradient_itemsize
from memplan.engine.phases.parts import Chosen
from memplan.spec.recipe import Recipe

POLICY, BUFFERED, MAIN, REFERENCE = (f"load.{point}" for point in ("policy", "buffers", "main", "reference"))
WRITTEN = "save.shards"
BORN = {"parameters": POLICY, "adapters": POLICY, "gradients": BUFFERED, "optimizer_states": ""}
"""In a load; all else is made with the main weights, and the optimizer's states at its first step."""
STATES = ("master_weights", "optimizer_states")


class Load:
    """A load as a phase."""

    INSTANTS = (POLICY, BUFFERED, MAIN, REFERENCE)

    @staticmethod
    def enter(ledger: Ledger, parts: Any) -> None:
        """Every row of the phase."""
        recipe: Recipe = parts.recipe
        own: Any = Chosen(ledger, lambda category, place: BORN.get(category, MAIN))
        enter_states(own, recipe, parts.shares, MAIN)
        others: Any = Chosen(ledger, lambda category, place: REFERENCE)
        enter_references(others, recipe)
        if recipe.sharding.name != "distributed-optimizer":
            return
        made = buffers(recipe, parts.shares)
        each, grads = recipe.storage.precision.weights, gradient_itemsize(recipe)
        so_far = list(accumulate(buffer.elements * grads for buffer in made))
        most = max((buffer.elements * each + size for buffer, size in zip(made, so_far, strict=True)), default=0)
        ledger.add(
            "weights that are not in their buffer yet",
            "temporaries",
            max(0, most - so_far[-1]) if so_far else 0,
            at=BUFFERED,
        ).formula("elements × bytes", max((buffer.elements for buffer in made), default=0), each).since(
            "the model was built before its buffers, which are made whole before weights are copied into them", BUFFER
        )


class Save:
    """A distributed checkpoint as a phase, beside what lasts from step to step."""

    INSTANTS = (WRITTEN,)

    @staticmethod
    def enter(ledger: Ledger, parts: Any) -> None:
        """Every row of the phase."""
        recipe: Recipe = parts.recipe
        states = Ledger((WRITTEN,))
        own: Any = Chosen(states, lambda category, place: WRITTEN if category in STATES else "")
        enter_states(own, recipe, parts.shares, WRITTEN)
        weights = sum(share.elements for share in parts.shares if share.trained or recipe.adapter is None)
        weights *= recipe.storage.precision.weights
        kept = sum(row.bytes for row in states.rows)
        own_part = kept + weights // max(1, recipe.parallel.shards)
        ledger.add(
            "this rank's part of the checkpoint",
            "optimizer_states",
            own_part,
            at=WRITTEN,
            place="host",
            high=kept + weights,
        ).formula("states + weights / data ranks", own_part).since(
            "copied to the host whole before it is written, which ranks with the same weights share out",
            "megatron-core 0.14 dist_checkpointing/strategies/filesystem_async.py: preload_tensors",
        )
