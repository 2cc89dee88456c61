"""What a trainer's loss code works with: models, a batch, and how this trainer calls a model."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from memplan.spec.recipe import Recipe
from memplan.tables.trainer import names_method
from memplan.trace import losses

NOTHING: Mapping[str, Any] = MappingProxyType({})


def router_keys(recipe: Recipe, reference: bool = False) -> dict[str, bool]:
    """What a forward is told of the routers' load-balancing loss; nothing where the class has none."""
    if recipe.model.router_loss == "none":
        return {}
    told = recipe.loss.router
    graph = torch.is_grad_enabled() or recipe.evaluating
    how = told.reference if reference else told.policy if graph else told.scoring
    return {"output_router_logits": how != ""}


def is_read(recipe: Recipe) -> bool:
    """Whether what a forward made of it joins the loss."""
    return recipe.loss.router.policy == "read" and torch.is_grad_enabled()


SECOND = "reference"
"""The name of the adapters that nobody trains (TRL calls them ``ref``)."""


@contextmanager
def as_reference(model: Any) -> Iterator[None]:
    """The model with its adapters off, or the second set of them in place (trl 1.16 trainer/utils.py: use_adapter)."""
    if SECOND not in model.peft_config:
        with model.disable_adapter():
            yield
        return
    model.set_adapter(SECOND)
    try:
        yield
    finally:
        model.set_adapter("default")


class Run:
    """A micro-step's models and data, and how this trainer calls a model."""

    def __init__(
        self,
        recipe: Recipe,
        policy: Any,
        reference: Any,
        ids: Tensor,
        mask: Tensor | None,
        beside: Mapping[str, Any] = NOTHING,
        rollout: Mapping[str, Tensor] = NOTHING,
        images: Mapping[str, Any] = NOTHING,
    ) -> None:
        self.recipe, self.policy, self.reference, self.ids, self.mask = recipe, policy, reference, ids, mask
        self.beside, self.rollout = beside, rollout
        self.images = images if recipe.model.tower is not None else NOTHING
        self.pairs = ids.shape[0] // 2
        self.balance: list[Tensor] = []
        """Load-balancing losses that wait for the loss."""
        count = recipe.rows * min(recipe.batch.completion_length, recipe.batch.sequence_length - 1)
        self.scored = torch.arange(count, device=ids.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast, where the job runs under it."""
        if not self.recipe.numerics.autocast:
            return nullcontext()
        dtype = torch.float16 if self.recipe.numerics.half_to_float else torch.bfloat16
        context: AbstractContextManager[Any] = torch.autocast(self.ids.device.type, dtype=dtype)
        return context

    def call(self, model: Any, **keys: Any) -> Any:
        """The model's outputs; accelerate and Fabric make fp32 copies of all of them when autocast is left."""
        with self.autocast():
            outputs = self.forward(model, **keys)
        if not self.recipe.loss.fp32_outputs:
            return outputs
        return {key: to_fp32(value) for key, value in outputs.items()}

    def forward(self, model: Any, **keys: Any) -> Any:
        """The model's outputs as they are; what its class makes of the routers waits for the loss."""
        keys |= router_keys(self.recipe, model is self.reference)
        outputs = model(input_ids=self.ids, attention_mask=self.mask, **self.images, **keys)
        if is_read(self.recipe) and "labels" not in keys:
            self.balance.append(outputs["aux_loss"])
        trainer, method = self.recipe.trainer, self.recipe.method.name
        if trainer.name == "trl" and names_method(trainer.logits.fp32, method):  # beside transformers before 4.46
            outputs["logits"] = outputs["logits"].float()
        return outputs

    def logits(self, model: Any, **keys: Any) -> Tensor:
        """Logits alone, of outputs that nobody holds."""
        found: Tensor = self.call(model, **keys)["logits"]
        return found

    def score_reference(self, score: Callable[[Any], Any]) -> Any:
        """The reference through a trainer's own forward: a model of its own, or the base without adapters."""
        with torch.no_grad():
            if self.recipe.others.reference == "resident":
                return score(self.reference)
            if self.recipe.others.reference == "adapter":
                bare = self.policy.module if self.recipe.sharding.name == "ddp" else self.policy
                with as_reference(bare):
                    return score(self.policy)
            return torch.zeros(self.ids.shape[0], device=self.ids.device)

    def loss(self, scores: Tensor, reference: Tensor | None) -> Tensor:
        """The method's formula over scores of chosen and rejected rows."""
        method = self.recipe.method.name
        if method == "kto":
            assert reference is not None
            return losses.kto_loss(scores, reference, torch.zeros((), device=scores.device))
        chosen, rejected = scores.chunk(2)
        if reference is None:
            return losses.pair_loss(method, chosen, rejected, None)
        before, after = reference.chunk(2)
        return losses.pair_loss(method, chosen, rejected, (before, after))

    def balanced(self, loss: Tensor) -> Tensor:
        """The loss with the routers' beside it, where it reads theirs."""
        for balance in self.balance:
            loss = loss + balance
        self.balance.clear()
        return loss

    def load_balancing_loss(self, model: Any, router_logits: Any) -> Tensor:
        """The routers' loss as TRL's own forward makes it (trl 1.16, trainer/utils.py: _fused_forward)."""
        own = next(each for each in type(model).__mro__ if each.__module__.startswith("transformers."))  # not FSDP2's
        config, module = model.config.get_text_config(), import_module(own.__module__)
        experts = getattr(model, "num_experts", None) or config.num_experts
        found: Tensor = module.load_balancing_loss_func(router_logits, experts, config.num_experts_per_tok, self.mask)
        return found


def to_fp32(value: Any) -> Any:
    """accelerate's ``convert_to_fp32``."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    return tuple(to_fp32(each) for each in value) if isinstance(value, tuple) else value


def picked(run: Run, logits: Tensor) -> Tensor:
    """The scored logits of half of the rows, as a mask picks them: without a copy of the slice."""
    tokens = run.scored[: run.scored.numel() // 2]
    length = min(run.recipe.batch.completion_length, run.recipe.batch.sequence_length - 1)
    return logits[tokens // length, tokens % length]
