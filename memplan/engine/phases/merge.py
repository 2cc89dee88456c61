"""Merge: an adapter is added to its base in the process that trained it (``merge_and_unload``), linear by linear.

peft 0.21 tuners/lora/layer.py (merge, get_delta_weight), tuners/lora/bnb.py (Linear4bit.merge, Linear8bitLt.merge),
tuners/tuners_utils.py (_unload_and_optionally_merge)."""

from typing import Any

from memplan.engine.ledger import Ledger
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

LAYER = "merge.layer"
INSTANTS = (LAYER,)
"""The largest of the merged matrices."""
PRODUCTS = 2
"""lora_B · lora_A, and its product with the scale, which is made while the first is there."""


def enter(ledger: Ledger, parts: Any) -> None:
    """What merging one matrix needs beside what lasts: the update twice, and a quantised matrix's copies."""
    recipe: Recipe = parts.recipe
    adapter, base = recipe.adapter, recipe.quantised
    assert adapter is not None
    largest = max((weight.elements for weight in merged(parts.weights)), default=0)
    dora = PRODUCTS * largest * adapter.itemsize if adapter.dora else 0
    if base is None:
        ledger.add(
            "the update of the largest matrix",
            "temporaries",
            PRODUCTS * largest * adapter.itemsize,
            at=LAYER,
            high=PRODUCTS * largest * adapter.itemsize + dora if dora else -1,
        ).told(largest, adapter.itemsize)
        return
    each = base.original_itemsize + 3 * max(adapter.itemsize, base.original_itemsize)
    ledger.add(
        "the largest matrix, unpacked and packed again",
        "temporaries",
        largest * each,
        at=LAYER,
        high=largest * each + dora if dora else -1,
    ).told(largest, each)


def merged(weights: list[Weight]) -> list[Weight]:
    """The matrices that adapters stand beside."""
    adapted = {weight.name.rsplit(".lora_", 1)[0] for weight in weights if weight.adapter}
    return [weight for weight in weights if weight.name in adapted and not weight.adapter]
