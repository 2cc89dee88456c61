"""The optimizers that torch and transformers have, as a job names them."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch

from memplan.errors import InvalidJob
from memplan.spec.recipe import Recipe


class InBackward:
    """One optimizer for each weight, which steps behind its gradient (torchtune's ``register_optim_in_bwd_hooks``)."""

    def __init__(self, recipe: Recipe, trained: Iterable[torch.nn.Parameter]) -> None:
        self.each = {parameter: make_optimizer(recipe, [parameter]) for parameter in trained}
        for parameter in self.each:
            parameter.register_post_accumulate_grad_hook(self._step)

    def _step(self, parameter: torch.Tensor) -> None:
        for act in (self.each[parameter].step, self.each[parameter].zero_grad):
            act()

    @property
    def state(self) -> dict[Any, Any]:
        """States by parameter."""
        return dict(chain.from_iterable(each.state.items() for each in self.each.values()))

    def step(self) -> None:
        """Nothing is left to do."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing is left to let go of."""


def make_optimizer(recipe: Recipe, parameters: Iterable[torch.nn.Parameter]) -> Any:
    """The optimizer that the job names. Raises InvalidJob for one that neither has."""
    row, impl, trained = recipe.optimizer.row, recipe.optimizer.implementation, list(parameters)
    if recipe.parallel.whole_stream:  # a group of DTensors, and one of the rest (transformers 5.24 trainer.py)
        divided = [each for each in trained if hasattr(each, "placements")]
        ids = {id(each) for each in divided}
        trained = [{"params": divided}, {"params": [each for each in trained if id(each) not in ids]}]
    how: dict[str, Any] = {"fused": True} if impl == "fused" else {"foreach": impl == "foreach"}
    if row.library == "transformers":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-5, scale_parameter=False, relative_step=False)
    if row.name == "adamw":
        return torch.optim.AdamW(trained, lr=1e-5, **how)
    if row.name in ("sgd", "sgd-momentum"):
        return torch.optim.SGD(trained, lr=1e-5, momentum=0.9 if row.name == "sgd-momentum" else 0.0, **how)
    if row.name == "rmsprop":
        return torch.optim.RMSprop(trained, lr=1e-5, **how)
    if row.name == "adafactor" and row.library == "torch":
        return torch.optim.Adafactor(trained, lr=1e-5, **how)
    if row.name == "muon":
        return MuonAndAdamW(trained, recipe.model.vocab_size)
    raise InvalidJob(
        f"optimizer: {row.name} of {row.library} cannot be traced", "adamw, sgd, rmsprop, adafactor and muon can"
    )


class MuonAndAdamW:
    """Muon on the matrices of the layers, then AdamW (foreach) on embedding, head and vectors."""

    def __init__(self, trained: list[torch.nn.Parameter], vocabulary: int) -> None:
        hidden = [p for p in trained if p.dim() == 2 and vocabulary not in p.shape and p.shape[0] > 1]
        if not hidden:
            raise InvalidJob("optimizer: muon finds no matrix that is not as wide as the vocabulary", "use adamw")
        ids = {id(parameter) for parameter in hidden}
        rest = [parameter for parameter in trained if id(parameter) not in ids]
        self.parts: list[torch.optim.Optimizer] = [torch.optim.Muon(hidden, lr=1e-5)]
        self.parts += [torch.optim.AdamW(rest, lr=1e-5, foreach=True)] if rest else []

    @property
    def state(self) -> dict[Any, Any]:
        """States by parameter."""
        return dict(chain.from_iterable(part.state.items() for part in self.parts))

    def step(self) -> None:
        """One after the other."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)
