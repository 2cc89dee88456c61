"""How trainers pad the rows of a micro-batch, and what an estimate says that knows nothing of lengths."""

from typing import NamedTuple

from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe


class Collator(NamedTuple):
    """How a trainer pads to the longest row of a micro-batch."""

    masks: bool = False
    """The model is given the mask of what is padded."""
    multiple: int = 1
    source: str = ""


COLLATORS = {
    "pytorch": Collator(source="a loop that pads to the longest row is assumed"),
    "transformers": Collator(True, source="transformers 5.0, data/data_collator.py: padding=True"),
    "trl": Collator(True, source="trl 1.16, DataCollatorForLanguageModeling, DataCollatorForPreference"),
    "simpo-repo": Collator(True, source="trl 0.9, DPODataCollatorWithPadding"),
    "llamafactory": Collator(True, 8, "LLaMA-Factory 0.9.5, train/*/workflow.py: pad_to_multiple_of=8"),
    "swift": Collator(True, source="ms-swift 4, template/base.py: data_collator"),
    "openrlhf": Collator(True, source="OpenRLHF 0.11, datasets/*_dataset.py: zero_pad_sequences"),
    "litgpt": Collator(source="litgpt 0.5, data/base.py: get_sft_collate_fn"),
    "torchtune": Collator(source="torchtune 0.6, data/_collate.py: padded_collate_sft"),
}
"""By trainer; those without a row make rows of one length, or nobody has read how they make them."""


def pads(recipe: Recipe) -> bool:
    """Whether rows are padded to the longest of them."""
    return recipe.trainer.name in COLLATORS and not recipe.in_megatron


def longest_assumed(given: JobInput, recipe: Recipe) -> tuple[str, ...]:
    """What an estimate says that knows nothing of lengths, where the trainer pads no further than it must."""
    if given.job.lengths is not None or not pads(recipe):
        return ()
    said = f"every sequence is taken as the longest allowed, {recipe.batch.sequence_length:,} tokens"
    return (f"lengths: {said}; --lengths draws real ones",)
