"""A load in the memory of the host: copies of every process that reads the checkpoint, of one, or pages of files."""

from memplan.engine.ledger import Ledger
from memplan.engine.phases.parts import NODE, POLICY, REFERENCE, SHARD, experts_bytes
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
        read = experts_bytes(recipe, own, load.itemsize)[0]
    ledger.add(
        "weights as they are read",
        "parameters",
        read,
        POLICY,
        SHARD,
        place=place,
        template="elements × bytes",
        numbers=(elements, load.itemsize),
        why="cast or stacked, so copies in host memory until they are on the card"
        + ("" if load.way == "rank0" else ", of every process"),
        source=MODELING,
    )
    ledger.add(
        "pages of the checkpoint's files",
        "file_pages",
        0,
        POLICY,
        SHARD,
        place=NODE,
        template="nothing that counts",
        why="safetensors maps its files: processes share the pages, which the kernel takes back where it must",
        source="safetensors 0.8 safe_open; measured: no anonymous memory",
        high=elements * load.itemsize,
    )
    trained = sum(weight.elements * weight.copies for weight in own if weight.trained)
    ledger.add(
        "fp32 copies of trained weights",
        "parameters",
        trained * (load.upcast - (load.itemsize if read else 0)) if load.upcast else 0,
        at=SHARD,
        place=place,
        template="trained elements × bytes",
        numbers=(trained, load.upcast),
        why="under mixed precision trained weights are cast to fp32 before they are divided",
        source="accelerate 1.15 utils/fsdp_utils.py: fsdp2_prepare_model",
    )
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
            template="elements × bytes",
            numbers=(elements, model.itemsize),
            why="a second from_pretrained, or a copy of the first model",
            source="trl 1.16 trainer/dpo_trainer.py; trl 1.16 experimental/utils.py: create_reference_model",
        )
