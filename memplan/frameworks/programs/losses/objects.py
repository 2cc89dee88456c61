"""What a walked loss has to do with: models and their outputs, the batch, objects of the program's own."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memplan.engine.tape import loss_ops, ops
from memplan.engine.tape.tags import Dim
from memplan.frameworks.programs.losses.tensors import HIDDEN, LOGITS, SMALL, Held, Maker, NotBounded
from memplan.frameworks.programs.values import Frame, Place, Thing


@dataclass(eq=False)
class Model:
    """A model that the loss calls."""

    thing: Thing | None
    trained: bool


@dataclass(eq=False)
class Batch:
    """The batch, or a part of it; ``labels``: whether it has them still."""

    labels: bool = True
    part: bool = False


@dataclass(eq=False)
class Outputs:
    """What a model's forward gives."""

    loss: Any
    logits: Held
    last: Held
    layers: bool = False


@dataclass(eq=False)
class Bound:
    """An object of the program's own, or a module of torch's."""

    thing: Thing


@dataclass
class Asked:
    """What a walk is asked for, and what it found."""

    maker: Maker
    evaluate: Callable[[ast.expr, Frame], Any]
    """What an expression of no tensors comes to."""
    model_of: Callable[[ast.Call], Model | None]
    """The model that a call runs, where it was followed."""
    call: Callable[[Any, ast.Call], Any]
    """What a call comes to, of a walk."""
    inherited: bool = True
    """Whether the trainer's own loss is transformers'."""
    script: list[bool] = field(default_factory=list)
    """Which way each condition goes that nobody can tell."""
    at: int = 0
    steps: int = 0
    trained: Place | None = None
    """Where the model was made that is trained, where names tell it."""
    forwards: list[tuple[Model, int]] = field(default_factory=list)
    layers: bool = False
    whole: bool = False
    """The batch went into a model as it came."""

    def either(self) -> bool:
        """One of two ways."""
        if self.at == len(self.script):
            self.script.append(True)
        self.at += 1
        return self.script[self.at - 1]


class Returned(Exception):
    """A value that a function gives back."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Raised(Exception):
    """This way ends in an error of the program's own."""


def forward(asked: Asked, model: Model, named: dict[str, Any], labels: bool, rows: int) -> Outputs:
    """A model's forward: its outputs, and with labels the cross-entropy that it makes itself."""
    maker = asked.maker
    graph = model.trained and maker.tape.grad_enabled
    if not model.trained and maker.tape.grad_enabled:
        raise NotBounded("a second model that is run with gradients")
    if not rows:
        raise NotBounded("a forward of more rows than are known")
    asked.forwards.append((model, rows))
    layers = named.get("output_hidden_states") is True
    if layers and not model.trained:
        raise NotBounded("the hidden states of a second model")
    asked.layers = asked.layers or layers
    if named.get("output_attentions") not in (None, False):
        raise NotBounded("output_attentions")
    logits, last = maker.output(LOGITS, rows, graph), maker.output(HIDDEN, rows, graph)
    loss = None
    if labels:
        wide = ops.cast(maker.tape, logits.tensor, ops.FP32, LOGITS)
        loss = Held(loss_ops.nll(maker.tape, loss_ops.log_softmax(maker.tape, wide, LOGITS), Dim(SMALL, 1)))
        del wide  # a local of the model's loss function (transformers loss_utils.py: ForCausalLMLoss)
    return Outputs(loss, logits, last, layers)
