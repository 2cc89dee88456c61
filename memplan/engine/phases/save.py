"""Save: a checkpoint with the optimizer's states, as a trainer writes it between steps.

transformers 5.23 trainer.py (_save_checkpoint, save_model, _save_optimizer_and_scheduler), modeling_utils.py
(save_pretrained); accelerate 1.15 accelerator.py (get_state_dict), utils/fsdp_utils.py (save_fsdp_model,
save_fsdp_optimizer); torch 2.13 distributed/fsdp (_state_dict_utils.py, _optim_utils.py), distributed/checkpoint
(state_dict.py); deepspeed 0.19 runtime/engine.py (_zero3_consolidated_16bit_state_dict, _save_zero_checkpoint),
checkpoint/utils.py (clone_tensors_for_torch_save); safetensors 0.8."""

from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.model_states import stepped_tensors
from memplan.engine.optimizer.states import Stepped, state_bytes
from memplan.engine.parallel.sharding import held
from memplan.engine.parallel.zero.flat_groups import groups_of
from memplan.engine.phases.parts import NODE, experts_bytes, largest_bytes, units, whole_bytes
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

MODEL, OPTIMIZER = "save.model", "save.optimizer"
INSTANTS = (MODEL, OPTIMIZER)
"""The model's files, then the optimizer's."""
FP32 = 4


def enter(ledger: Ledger, parts: Any) -> None:
    """Every row of the phase, beside what lasts from step to step."""
    recipe: Recipe = parts.recipe
    weights: list[Weight] = [*parts.weights, *parts.critic_weights]
    WAYS[recipe.moments.saving.way](ledger, recipe, weights)


def _plain(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """One process writes what is on its card: a file's weights are copied to the host, and written."""
    save = recipe.moments.saving
    written = [weight for weight in weights if weight.trained] if save.adapters else weights
    size = whole_bytes(recipe, written)
    ledger.add(
        "weights of the file that is written", "parameters", min(size, save.largest_file), at=MODEL, place=NODE
    ).told(min(size, save.largest_file))
    if save.splits and not save.adapters:
        halves = experts_bytes(written, recipe.storage.precision.weights, fused=True)[0]
        ledger.add("gate and up of the experts, apart", "temporaries", halves, at=MODEL).told(halves)
    _one_state(ledger, recipe, _tensors(recipe, weights))


def _cloned(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """DeepSpeed below stage 3: every process clones the whole state dict to the host."""
    size = whole_bytes(recipe, weights)
    ledger.add("clones of all weights", "parameters", size, at=MODEL, place="host").told(size)
    parts = sum(group.partition for group in groups_of(recipe, weights)) if recipe.zero_stage else 0
    _partition(ledger, recipe, parts)


def _gathered(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """ZeRO-3: module by module whole on every card, and to the first process's host memory."""
    largest, adapters = largest_bytes(recipe, weights), recipe.moments.saving.adapters
    ledger.add("the largest module's weights, gathered", "gathered_parameters", largest, at=MODEL).told(largest)
    size = whole_bytes(recipe, [weight for weight in weights if weight.trained] if adapters else weights)
    ledger.add("the whole state dict", "parameters", size, at=MODEL, place=NODE).told(size)
    _partitions(ledger, recipe, weights)


def _partitions(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """Every process writes its partition of the optimizer."""
    groups, ranks = groups_of(recipe, weights), recipe.sharding.ranks
    elements = sum(-(-group.elements // ranks) for group in groups)
    _partition(ledger, recipe, min(elements, recipe.sharding.deepspeed.sub_group_size))


def _partition(ledger: Ledger, recipe: Recipe, elements: int) -> None:
    ledger.add(
        "the optimizer's tensor that is written",
        "optimizer_states",
        0 if recipe.sharding.deepspeed.optimizer else elements * FP32,
        at=OPTIMIZER,
        place="host",
    ).told(elements, FP32)


def _whole(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """FSDP's full state dicts: gathered on every card, kept by the first process on its host."""
    one = recipe.sharding.name == "fsdp"
    gathered = max(units(recipe, weights).values()) if one else largest_bytes(recipe, weights)
    what = "unit" if one else "tensor"
    how = "distributed/fsdp/_state_dict_utils.py" if one else "distributed/checkpoint/state_dict.py: full_state_dict"
    gathering(ledger, f"the largest {what}, gathered", gathered, MODEL, f"torch 2.13 {how}")
    root = units(recipe, weights)["root"] if one else 0
    _kept(ledger, "the whole state dict", "parameters", whole_bytes(recipe, weights) + root, MODEL)
    trained = [weight for weight in weights if weight.trained]
    states, ranks = own_states(recipe, weights), recipe.sharding.ranks
    state = max(units(recipe, trained).values()) if one else largest_bytes(recipe, trained)
    where = "_optim_utils.py: _optim_state_dict" if one else "distributed/checkpoint/state_dict.py"
    gathering(ledger, f"a state of the largest {what}, gathered", state, OPTIMIZER, f"torch 2.13 {where}")
    _kept(ledger, "the whole optimizer's states", "optimizer_states", states * ranks, OPTIMIZER)


def gathering(ledger: Ledger, name: str, size: int, at: str, source: str) -> None:
    """A unit or tensor that is whole on every card for a moment."""
    ledger.add(name, "gathered_parameters", size, at=at, high=2 * size).told(
        size, of="a unit or tensor, gathered", source=source
    )


def _kept(ledger: Ledger, name: str, category: str, size: int, at: str) -> None:
    ledger.add(name, category, size, at=at, place=NODE).told(size, of="all of it on the first host")


def _shards(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """Sharded state dicts: each process copies its own to the host; FSDP1 gathers units to cut them anew."""
    if recipe.sharding.name == "fsdp":
        found = units(recipe, weights)
        ledger.add(
            "root and the largest unit, gathered", "gathered_parameters", found["root"] + found["layer"], at=MODEL
        ).told(found["root"] + found["layer"])
    shards = recipe.sharding.ranks
    own = ((MODEL, "this rank's weights", "parameters", -(-whole_bytes(recipe, weights) // shards)),)
    states = own_states(recipe, weights)
    for at, name, category, size in (*own, (OPTIMIZER, "this rank's states", "optimizer_states", states)):
        ledger.add(name, category, 0 if recipe.sharding.fsdp.cpu_offload else size, at=at, place="host").told(
            size, of="this rank's part"
        )


def _tensors(recipe: Recipe, weights: list[Weight]) -> list[tuple[Stepped, int]]:
    return stepped_tensors(recipe, [weight for weight in weights if weight.trained], held(recipe))


def own_states(recipe: Recipe, weights: list[Weight]) -> int:
    """Bytes of the states that one rank's optimizer keeps."""
    return sum(sum(state_bytes(recipe, tensor)) * copies for tensor, copies in _tensors(recipe, weights))


def _one_state(ledger: Ledger, recipe: Recipe, tensors: list[tuple[Stepped, int]]) -> None:
    largest = max((size for tensor, _ in tensors for size in state_bytes(recipe, tensor)), default=0)
    ledger.add("the optimizer's tensor that is written", "optimizer_states", largest, at=OPTIMIZER, place=NODE).told(
        largest, of="the optimizer's tensor that is written (save)"
    )


WAYS = {
    "plain": _plain,
    "cloned": _cloned,
    "gathered": _gathered,
    "whole": _whole,
    "shards": _shards,
    "partitions": _partitions,
}
