"""Load, save and resume under Megatron: the buffers that weights are copied into, a distributed checkpoint's copies.

megatron-core 0.14 distributed/param_and_grad_buffer.py (_ParamAndGradBuffer: both buffers are made, then each weight is
copied into its place), optimizer/distrib_optimizer.py (main weights after that), dist_checkpointing/strategies/
filesystem_async.py (preload_tensors: what a rank writes is copied to the host first), strategies/fully_parallel.py
(ranks that hold the same weights share out who writes them)."""

from itertools import accumulate
from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.megatron.build import enter_references
from memplan.engine.megatron.states import buffers, enter_states, gradient_itemsize
from memplan.engine.phases.parts import Chosen
from memplan.spec.recipe import Recipe

POLICY, BUFFERED, MAIN, REFERENCE = (f"load.{point}" for point in ("policy", "buffers", "main", "reference"))
WRITTEN, READ = "save.shards", "resume.shards"
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
        ).told(max((buffer.elements for buffer in made), default=0), each)


class Save:
    """A distributed checkpoint as a phase, beside what lasts from step to step."""

    INSTANTS = (WRITTEN,)

    @staticmethod
    def enter(ledger: Ledger, parts: Any) -> None:
        """Every row of the phase."""
        recipe: Recipe = parts.recipe
        kept, weights = _kept_bytes(parts), _weight_bytes(parts)
        own_part = kept + weights // max(1, recipe.parallel.data * recipe.parallel.context)
        ledger.add(
            "this rank's part of the checkpoint",
            "optimizer_states",
            own_part,
            at=WRITTEN,
            place="host",
            high=kept + weights,
        ).told(own_part)


class Resume:
    """A distributed checkpoint is read into weights and states that are there already (optimizer/distrib_optimizer.py:
    ``sharded_state_dict`` makes the states before their first step), tensor by tensor by way of the host."""

    INSTANTS = (READ,)

    @staticmethod
    def enter(ledger: Ledger, parts: Any) -> None:
        """Every row of the phase."""
        received, source = _weight_bytes(parts), "megatron-core 0.15 dist_checkpointing/"
        ledger.add("weights that other ranks have read", "parameters", 0, at=READ, high=received).told(
            received, source=f"{source}exchange_utils.py: _get_empty_tensor_for_exchange"
        )
        own_part = received + _kept_bytes(parts)
        ledger.add("the checkpoint as it is read", "optimizer_states", 0, at=READ, place="host", high=own_part).told(
            own_part, source=f"{source}strategies/torch.py"
        )


def _kept_bytes(parts: Any) -> int:
    """Main weights and states of this rank."""
    states = Ledger((WRITTEN,))
    own: Any = Chosen(states, lambda category, place: WRITTEN if category in STATES else "")
    enter_states(own, parts.recipe, parts.shares, WRITTEN)
    return sum(row.bytes for row in states.rows)


def _weight_bytes(parts: Any) -> int:
    """Weights that a checkpoint holds: all, or those of the adapters."""
    recipe: Recipe = parts.recipe
    elements = sum(share.elements for share in parts.shares if share.trained or recipe.adapter is None)
    return int(elements * recipe.storage.precision.weights)
