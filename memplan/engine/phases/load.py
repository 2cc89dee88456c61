"""Load: from the checkpoint to the first forward, on the card and in the memory of the host. What is there
of the optimizer comes with its first step.

transformers 5.23 modeling_utils.py (from_pretrained, _load_pretrained_model), core_model_loading.py; peft 0.21
utils/other.py; accelerate 1.15 accelerator.py, utils/fsdp_utils.py (fsdp2_prepare_model, fsdp2_load_full_state_dict);
torch 2.13 distributed/fsdp (_init_utils.py, _flat_param.py, _fully_shard); deepspeed 0.19 runtime/zero
(stage_1_and_2.py, stage3.py, partition_parameters.py)."""

from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.model_states import enter_states
from memplan.engine.overhead import warm_up_bytes
from memplan.engine.parallel.sharding import held
from memplan.engine.phases.parts import (
    INSTANTS,
    NODE,
    POLICY,
    PREPARE,
    REFERENCE,
    SHARD,
    STATES,
    WARM,
    Chosen,
    experts_bytes,
    largest_bytes,
    units,
    whole_bytes,
)
from memplan.engine.resident_models import enter_residents
from memplan.engine.rows.kernels import enter_rotary_tables
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

MODELING = "transformers 5.23 modeling_utils.py: _load_pretrained_model"


def enter_host(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """The checkpoint in the memory of the host: copies of each process that reads it, or pages of the file alone."""
    load = recipe.moments.loading
    own = [weight for weight in weights if not weight.adapter]
    elements = sum(weight.elements * weight.copies for weight in own)
    place = "host" if load.way == "host" else NODE
    read = elements * load.itemsize if load.way in ("host", "rank0") and load.copied else 0
    if load.way in ("host", "rank0") and load.stacks and not load.copied:
        read = experts_bytes(own, load.itemsize)[0]
    factors: tuple[int, ...] = (elements, load.itemsize)
    if load.way == "rank0" and recipe.quantised is not None:
        read = whole_bytes(recipe, own)
        factors = (read,)  # each matrix leaves the card, or is handed to the others, packed
    ledger.add("weights as they are read", "parameters", read, POLICY, SHARD, place=place).formula(
        "elements × bytes", *factors
    ).since(
        "cast or stacked, so copies in host memory until they are on the card"
        + ("" if load.way == "rank0" else ", of every process"),
        MODELING,
    )
    ledger.add(
        "pages of the checkpoint's files", "file_pages", 0, POLICY, SHARD, place=NODE, high=elements * load.itemsize
    ).told()
    trained = sum(weight.elements * weight.copies for weight in own if weight.trained)
    ledger.add(
        "fp32 copies of trained weights",
        "parameters",
        trained * (load.upcast - (load.itemsize if read else 0)) if load.upcast else 0,
        at=SHARD,
        place=place,
    ).told(trained, load.upcast)
    _enter_others_on_host(ledger, recipe, place)


def _enter_others_on_host(ledger: Ledger, recipe: Recipe, place: str) -> None:
    """The reference and its like are read as the policy was."""
    load = recipe.moments.loading
    if not load.copied or load.way in ("card", "partitioned"):
        return
    apart = recipe.generator is not None and recipe.generator.trainers > 1  # each in a process of its own, all at once
    life = (POLICY, SHARD) if apart else (REFERENCE, REFERENCE)
    for model in recipe.others.residents:
        elements = model.spec.params.total
        ledger.add(
            f"{model.role} model as it is read",
            model.role if model.role == "reference" else "extra_models",
            elements * model.itemsize,
            *life,
            place=place,
        ).told(elements, model.itemsize, of="model as it is read")


LATER = ("optimizer_states", "optimizer_temporaries")
"""Of DeepSpeed too: since 0.16 its start makes no step on zeros (stage3.py: initialize_optimizer_states)."""


def enter(ledger: Ledger, parts: Any) -> None:
    """Every row of the phase."""
    recipe: Recipe = parts.recipe
    weights: list[Weight] = [*parts.weights, *parts.critic_weights]
    _enter_kept(ledger, recipe, parts.weights, parts.critic_weights)
    _enter_reading(ledger, recipe, weights)
    enter_rotary_tables(ledger, recipe)
    if recipe.zero_stage >= 0:
        from memplan.engine.phases.load_under_zero import enter_deepspeed

        enter_deepspeed(ledger, recipe, weights)
    elif recipe.several and recipe.sharding.name in ("fsdp", "fsdp2"):
        _enter_fsdp(ledger, recipe, weights)
    enter_host(ledger, recipe, weights)


def _enter_kept(ledger: Ledger, recipe: Recipe, weights: list[Weight], critic: list[Weight]) -> None:
    """What stays: weights from where each is made, the other models, DeepSpeed's fp32 copies."""
    divided = recipe.sharding.name in ("fsdp", "fsdp2") and recipe.several
    first = SHARD if divided or (recipe.zero_stage == 3 and recipe.moments.loading.way != "partitioned") else POLICY
    chosen: Any = Chosen(
        ledger,
        lambda category, place: (
            ""
            if category in LATER and (place == "gpu" or recipe.optimizer.row.paged)
            else first
            if category in ("parameters", "adapters", "reference") and place == "gpu"
            else STATES
        ),
    )
    enter_own: Any = enter_states
    if recipe.zero_stage >= 0:
        from memplan.engine.parallel.zero.states import enter_zero_states

        enter_own = enter_zero_states
    enter_own(chosen, recipe, weights, held(recipe))
    if critic:
        enter_own(chosen, recipe, critic, held(recipe), "critic")
    others: Any = Chosen(ledger, lambda category, place: REFERENCE)
    enter_residents(others, recipe)


def _enter_reading(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """What reading the checkpoint needs on the card beside what stays."""
    load, base = recipe.moments.loading, recipe.quantised
    ledger.add("the allocator's warm-up", "temporaries", warm_up_bytes(recipe), at=WARM).told()
    if base is not None and load.way == "card":
        packed = [weight for weight in weights if not weight.trained and weight.quantised_by(base)]
        largest = max(
            (weight.elements if base.stacks else weight.rows * weight.columns for weight in packed), default=0
        )
        ledger.add("the matrix that is being packed, unpacked", "temporaries", largest * load.itemsize, at=POLICY).told(
            largest, load.itemsize
        )
        rest = [weight for weight in weights if not (weight.trained or weight.quantised_by(base)) and not weight.norm]
        widest = max((weight.elements for weight in rest), default=0)
        ledger.add(
            "the largest tensor that is cast, as it was",
            "temporaries",
            widest * load.itemsize if held(recipe).parameter_itemsize > load.itemsize else 0,
            at=PREPARE,
        ).told(widest, load.itemsize)
    if load.way == "card" and load.stacks:
        whole, layer = experts_bytes(weights, load.itemsize)
        ahead = whole if base is None else layer
        ledger.add("experts' matrices before they are stacked", "temporaries", layer, at=POLICY, high=ahead).told(layer)


def _enter_fsdp(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """FSDP divides unit by unit, from the host; a quantised base is on the card before."""
    load = recipe.moments.loading
    if recipe.quantised is not None and load.way == "card":
        size = whole_bytes(recipe, weights)
        ledger.add("the whole model, before it is divided", "temporaries", size, POLICY, SHARD).told(size)
        return
    found = units(recipe, weights)
    if recipe.sharding.name == "fsdp":
        size, copies, how = max(found.values()), 2, "a unit, copied into its flat parameter"
    elif load.way == "rank0":
        size, copies, how = largest_bytes(recipe, weights), 1, "a parameter, sent to all ranks"
    else:
        size, copies, how = max(found.values()), 1, "a unit, moved to the card"
    ledger.add(
        "what is divided, whole", "temporaries", copies * size, at=SHARD, high=2 * size if copies == 1 else -1
    ).told(copies, size, of=how)


__all__ = ["INSTANTS", "enter"]
