"""What a loss of a program's own holds, by the numbers that a reader of the program found."""

from typing import Annotated

from pydantic import Field

from memplan.spec.base import Frozen

Count = Annotated[int, Field(ge=0, le=10_000, strict=True)]


class OwnLoss(Frozen):
    """A bound from above of what a loss in place of the model's own has at once, over all sequences of a micro-step."""

    logits: Count
    """Bytes for each logit beside the logits themselves, the gradients on the way to them among these."""
    hidden: Count = 0
    """Bytes for each element of the last hidden states."""
    layers: bool = False
    """The outputs hold the hidden states of all layers."""
    forwards: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Forwards of the model before one backward, among which the batch is divided."""
