"""One micro-step of a job as its training loop would run it: forward, loss, backward, in the order of its schedule."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memplan.spec.recipe import Recipe
from memplan.trace import losses
from memplan.trace.images import image_inputs, token_types
from memplan.trace.loops import find_loop
from memplan.trace.online import find_online, plain_value_loss, rollout
from memplan.trace.runs import Run, as_reference, is_read, router_keys, to_fp32

Begin = Callable[[str], None]
Sync = Callable[[bool], None]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Batch(NamedTuple):
    """Token ids, which are the labels too, the mask where the job is padded, and images."""

    ids: Tensor
    mask: Tensor | None
    images: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the model beside them, for all rows."""
    rollout: Mapping[str, Tensor] = MappingProxyType({})
    """What a rollout gave, for the loss."""

    def half(self, which: int) -> "Batch":
        """The chosen (0) or the rejected (1) sequences: views, so they cost nothing."""
        count = self.ids.shape[0] // 2
        rows = slice(which * count, (which + 1) * count)
        mask = None if self.mask is None else self.mask[rows]
        return Batch(self.ids[rows], mask, {name: value.chunk(2)[which] for name, value in self.images.items()})


def make_batch(recipe: Recipe, device: str, image_token: int = 1) -> Batch:
    """A batch at the job's full length, with ``image_token`` where images stand."""
    shape = (recipe.rows, recipe.batch.sequence_length)
    ids = torch.ones(shape, dtype=torch.long, device=device)
    given = recipe.batch.padded or (recipe.batch.masked and recipe.operators.attention != "flash")
    mask = torch.ones(shape, dtype=torch.long, device=device) if given else None
    images = image_inputs(recipe, device, recipe.rows)
    if images:
        one = [image_token if kind else 0 for kind in token_types(recipe)]
        ids = torch.tensor([one] * recipe.rows, device=device)
    if recipe.model.encoder:
        answers = (recipe.rows, recipe.batch.completion_length)
        images = {"labels": torch.ones(answers, dtype=torch.long, device=device)}
    return Batch(ids, mask, images, rollout(recipe, device))


class MicroStep:
    """Forward and backward of one batch. ``begin`` is told when a phase begins, ``sync`` whether the gradients of the
    next backward are reduced over the ranks."""

    def __init__(
        self,
        recipe: Recipe,
        policy: Any,
        reference: Any,
        device: str,
        begin: Begin,
        sync: Sync = lambda reduces: None,
        beside: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.recipe, self.policy, self.reference, self.beside = recipe, policy, reference, beside
        self.device, self.begin, self.sync = device, begin, sync
        self.balance: list[Tensor] = []
        """Load-balancing losses of routers, which join the loss."""
        self.away = ExitStack()
        """Saved tensors go to the host until backward begins."""

    def run(self, batch: Batch, is_last: bool = True) -> None:
        """One pass through the job's schedule; the last of the step reduces gradients, in its last backward."""
        recipe = self.recipe
        self.begin("forward")
        self.last_reduces = is_last or recipe.sharding.sync_each_batch
        self.sync(self.last_reduces)
        if recipe.checkpointing.offload and not recipe.evaluating:  # which saves nothing, and ends in no backward
            self.away.enter_context(torch.autograd.graph.save_on_cpu())
        if recipe.others.critic is not None and not recipe.others.critic.together:
            self._loop(plain_value_loss, batch)
            self.begin("forward")
        loop = find_online(recipe) or find_loop(recipe)
        if loop is not None and recipe.loss.pair_pass == "concatenated":
            self._loop(loop, batch)
        elif recipe.method.name == "sft":
            self._supervised(batch)
        elif recipe.method.name == "kto":
            self._kto(batch)
        elif recipe.loss.pair_pass == "concatenated":
            self._concatenated(batch)
        elif recipe.loss.pair_pass == "two-forward" or recipe.evaluating:
            self._two_forward(batch)
        else:
            self._by_halves(batch)

    # -- passes -------------------------------------------------------------------------------------------------------

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self.recipe.numerics.autocast:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(
            self.device, dtype=AUTOCAST[self.recipe.storage.precision.dtype]
        )
        return context

    def _around(self) -> AbstractContextManager[Any]:
        """Autocast around forward and loss; accelerate leaves it with the model's forward."""
        return nullcontext() if self.recipe.loss.code.leaves_autocast else self._autocast()

    def _scores(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """A score for each sequence (reward, or summed log-probabilities), and the SFT term where the job has one."""
        told = router_keys(self.recipe, model is self.reference)
        with self._autocast():
            out = model(input_ids=batch.ids, attention_mask=batch.mask, **batch.images, **told)
            logits = out.logits
        if is_read(self.recipe):
            self.balance.append(out.aux_loss)
        if self.recipe.method.score_head:
            return logits[:, 0], None
        if self.recipe.loss.code.frees_logits:
            del out
        wide = self.recipe.loss.code.frees_logits and self.recipe.loss.to_fp32
        if wide or self.recipe.loss.fp32_outputs:
            logits = logits.float()
        labels = batch.ids[:, 1:]
        term = None
        if self.recipe.loss.sft_term and torch.is_grad_enabled():
            term = losses.chosen_cross_entropy(logits[:, :-1], labels, self.recipe.batch.size)
        return losses.label_log_probs(logits[:, :-1], labels, self.recipe).sum(-1), term

    def _frozen(self, model: Any, batch: Batch) -> Tensor:
        """Scores without a graph."""
        with torch.no_grad(), self._around():
            return self._scores(model, batch)[0]

    def _reference(self, batch: Batch) -> Tensor:
        """What the reference says: a model of its own, the base without adapters, or numbers made before training."""
        if self.recipe.others.reference == "resident":
            return self._frozen(self.reference, batch)
        if self.recipe.others.reference == "adapter":
            with as_reference(self._bare()):
                return self._frozen(self.policy, batch)
        return torch.zeros(batch.ids.shape[0], device=self.device)

    def _bare(self) -> Any:
        """The model without DDP's wrapper."""
        return self.policy.module if self.recipe.sharding.name == "ddp" else self.policy

    def _references(self, *batches: Batch) -> tuple[Tensor, Tensor] | None:
        """The reference's scores of chosen and rejected: of one batch of both, or of two halves."""
        if not self.recipe.method.reference:
            return None
        parts = [part for batch in batches for part in self._reference(batch).chunk(3 - len(batches))]
        return parts[0], parts[1]

    # -- schedules ----------------------------------------------------------------------------------------------------

    def _backward(self, loss: Tensor) -> None:
        if self.recipe.evaluating:
            return
        for balance in self.balance:
            loss = loss + balance
        self.balance.clear()
        self.begin("backward")
        self.away.close()
        (loss / self.recipe.batch.accumulation if self.recipe.batch.accumulation > 1 else loss).backward()

    def _loop(self, loop: Callable[[Run], Any], batch: Batch) -> None:
        """A trainer's own loss code; what it returns beside the loss is held through backward."""
        models, beside = (self.policy, self.reference), (self.beside, batch.rollout, batch.images)
        run = Run(self.recipe, *models, batch.ids, batch.mask, *beside)
        found = loop(run)
        loss, held = found if isinstance(found, tuple) else (found, None)
        del found
        self._backward(run.balanced(loss))
        del held

    def _supervised(self, batch: Batch) -> None:
        if self.recipe.loss.head not in ("cross-entropy", *losses.MODEL_LOSSES):
            with self._autocast():
                run = Run(self.recipe, self.policy, None, batch.ids, batch.mask, images=batch.images)
                outputs = run.forward(self.policy)
                loss = -losses.label_log_probs(outputs.logits[:, :-1], batch.ids[:, 1:], self.recipe).mean()
                del outputs
            self._backward(run.balanced(loss))
            return
        with self._autocast():
            given = {"labels": batch.ids, **batch.images, **router_keys(self.recipe)}
            out = self.policy(input_ids=batch.ids, attention_mask=batch.mask, **given)
        loss = out.loss
        if self.recipe.numerics.autocast and self.recipe.trainer.numerics.fp32_outputs:
            for name, wide in {name: to_fp32(out[name]) for name in ("logits", "router_logits") if name in out}.items():
                out[name] = wide
                del wide
        if not self.recipe.loss.keeps_outputs:
            del out
        self._backward(loss)

    def _kto(self, batch: Batch) -> None:
        """Mismatched completions are scored first, without a graph, by policy and reference."""
        divergence = self._frozen(self.policy, batch)
        reference = self._reference(batch)
        with self._around():
            scores, _ = self._scores(self.policy, batch)
            loss = losses.kto_loss(scores, reference, (divergence - reference).mean().clamp(min=0))
        self._backward(loss)

    def _concatenated(self, batch: Batch) -> None:
        references = self._references(batch)
        with self._around():
            scores, term = self._scores(self.policy, batch)
            chosen, rejected = scores.chunk(2)
            loss = losses.pair_loss(self.recipe.method.name, chosen, rejected, references)
            if term is not None:
                loss = loss + term
                del term
        self._backward(loss)

    def _two_forward(self, batch: Batch) -> None:
        halves = batch.half(0), batch.half(1)
        references = self._references(*halves)
        with self._around():
            chosen, _ = self._scores(self.policy, halves[0])
            rejected, _ = self._scores(self.policy, halves[1])
            loss = losses.pair_loss(self.recipe.method.name, chosen, rejected, references)
        self._backward(loss)

    def _by_halves(self, batch: Batch) -> None:
        """One half's graph at a time. The loss reaches a half through the gradient of its scores, found without graphs.

        ``gradcache`` scores both halves first; ``split`` the rejected one, as the chosen one runs backward first."""
        halves = batch.half(0), batch.half(1)
        references = self._references(*halves)
        rejected = self._frozen(self.policy, halves[1]).requires_grad_()
        self.sync(self.recipe.sharding.sync_each_batch)
        if self.recipe.loss.pair_pass == "gradcache":
            chosen = self._frozen(self.policy, halves[0]).requires_grad_()
            losses.pair_loss(self.recipe.method.name, chosen, rejected, references).backward()
            self._replay(halves[0], chosen.grad)
        else:
            with self._around():
                scores, _ = self._scores(self.policy, halves[0])
                loss = losses.pair_loss(self.recipe.method.name, scores, rejected, references)
            del scores
            self._backward(loss)
            del loss
        self.begin("forward")
        self.sync(self.last_reduces)
        self._replay(halves[1], rejected.grad)

    def _replay(self, half: Batch, gradient: Tensor | None) -> None:
        """Forward of a half with its graph, and backward from the gradient of its scores."""
        assert gradient is not None
        with self._around():
            scores, _ = self._scores(self.policy, half)
            surrogate = (scores * gradient).sum()
        del scores
        self._backward(surrogate)
