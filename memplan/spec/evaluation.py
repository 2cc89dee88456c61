"""What an evaluation keeps of each batch beside its loss, under transformers' names."""

from typing import Annotated

from pydantic import Field

from memplan.spec.base import Frozen


class Evaluation(Frozen):
    """Settings of the evaluation between steps."""

    keeps_logits: bool = False
    """Logits of every batch are kept (compute_metrics, without preprocess_logits_for_metrics)."""
    accumulation_steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Batches whose logits wait on the card before they go to the host (eval_accumulation_steps); all of them."""
    examples: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Examples of the evaluation's data."""
