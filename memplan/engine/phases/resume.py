"""Resume: a checkpoint's weights and states are read into a model that is there already.

transformers 5.23 trainer.py (_load_from_checkpoint: the weights' file to the host; _load_optimizer_and_scheduler: the
optimizer's to the host of one process, to the card of each of several); accelerate 1.15 utils/fsdp_utils.py
(load_fsdp_model, load_fsdp_optimizer); torch 2.13 optim/optimizer.py (load_state_dict takes tensors of its device as
they are), distributed/checkpoint/state_dict.py (_init_optim_state: a step on zeros); deepspeed 0.19 runtime/engine.py
(_get_all_zero_checkpoint_state_dicts: to the host, each process its own partition); bitsandbytes 0.50
optim/optimizer.py (load_state_dict copies what it is given)."""

from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.zero.flat_groups import groups_of
from memplan.engine.phases.parts import NODE, largest_bytes, units, whole_bytes
from memplan.engine.phases.save import FP32, gathering, own_states
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

MODEL, OPTIMIZER = "resume.model", "resume.optimizer"
INSTANTS = (MODEL, OPTIMIZER)
"""The weights are read; the optimizer's states are."""
WEIGHTS, STATES = "the checkpoint's weights", "states as they are read"
CATEGORIES = {WEIGHTS: "parameters", STATES: "optimizer_states", "gradients of zeros": "gradients"}
FSDP = "accelerate 1.15 utils/fsdp_utils.py: load_fsdp_model, load_fsdp_optimizer"


def enter(ledger: Ledger, parts: Any) -> None:
    """Every row of the phase, beside what lasts from step to step: the states are counted while weights are read, too,
    and are then no less than what reading the states needs."""
    recipe: Recipe = parts.recipe
    weights: list[Weight] = [*parts.weights, *parts.critic_weights]
    save = recipe.moments.saving
    size = whole_bytes(recipe, [weight for weight in weights if weight.trained] if save.adapters else weights)
    if save.way == "plain":
        _plain(ledger, recipe, weights, size)
    elif save.way in ("whole", "shards"):
        _fsdp(ledger, recipe, weights, size)
    else:
        _zero(ledger, recipe, weights, size)


def _plain(ledger: Ledger, recipe: Recipe, weights: list[Weight], size: int) -> None:
    """Weights by way of the host; a loop of one's own may have them, and every rank's, on the card."""
    own, copied = recipe.trainer.name == "pytorch", recipe.optimizer.row.library == "bitsandbytes"
    states = own_states(recipe, weights)
    if own:
        _enter(ledger, WEIGHTS, size, MODEL, "gpu", "weights by torch.load", dies=OPTIMIZER)
    else:
        _enter(ledger, WEIGHTS, 0, MODEL, NODE, "weights by safetensors", high=size)
    if own or recipe.parallel.world > 1:
        _enter(ledger, STATES, states * copied, OPTIMIZER, "gpu", "states that bitsandbytes copies on the card")
    else:
        how = "states of one process, copied" if copied else "states of one process"
        _enter(ledger, STATES, states * (1 + copied), OPTIMIZER, "host", how)


def _zero(ledger: Ledger, recipe: Recipe, weights: list[Weight], size: int) -> None:
    """DeepSpeed: below stage 3 all weights, and each partition, by way of every process's host memory."""
    if recipe.zero_stage < 3:
        _enter(ledger, WEIGHTS, size, MODEL, "host", "all weights to every process")
    groups, ranks = groups_of(recipe, weights), max(1, recipe.sharding.ranks)
    masters = sum(-(-group.elements // ranks) for group in groups) * FP32
    _enter(ledger, STATES, own_states(recipe, weights) + masters, OPTIMIZER, "host", "a partition to every process")


def _fsdp(ledger: Ledger, recipe: Recipe, weights: list[Weight], size: int) -> None:
    """FSDP: whole files tensor by tensor, or each process its own part."""
    one, whole, ranks = recipe.sharding.name == "fsdp", recipe.moments.saving.way == "whole", recipe.sharding.ranks
    trained, states = [weight for weight in weights if weight.trained], own_states(recipe, weights)
    first, every = "a whole file to the first process", "a whole file to every process"
    how, place, part = (every, "host", size) if one else (first, NODE, size)
    if not whole:
        how, place, part = "its own part to every process", "host", -(-size // ranks)
    _enter(ledger, WEIGHTS, part, MODEL, place, how)
    how, place, part = (first, NODE, states * ranks) if whole else (how, place, states)
    _enter(ledger, STATES, part, OPTIMIZER, place, how)
    if whole or one:
        what = "unit" if one else "tensor"
        for name, at, those in (("the largest", MODEL, weights), ("a state of the largest", OPTIMIZER, trained)):
            largest = max(units(recipe, those).values()) if one else largest_bytes(recipe, those)
            gathering(ledger, f"{name} {what}, gathered", largest, at, FSDP)
    if not one:
        zeros = -(-whole_bytes(recipe, trained) // ranks)
        place = "host" if recipe.sharding.fsdp.cpu_offload else "gpu"
        _enter(ledger, "gradients of zeros", zeros, OPTIMIZER, place, "a step on gradients of zeros", high=2 * zeros)


def _enter(
    ledger: Ledger, name: str, size: int, at: str, place: str, how: str, dies: str = "", *, high: int = -1
) -> None:
    """A row that is read ``how`` the text of the ledger says."""
    category = CATEGORIES[name] if size or place != NODE else "file_pages"
    low = 0 if dies else -1
    ledger.add(name, category, size, at, dies or at, place=place, low=low, high=high).told(max(size, high), of=how)
