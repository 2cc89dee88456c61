"""A trace from beginning to end: the model, two steps, the second one measured. The only entry that imports torch."""

import gc
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module, metadata
from time import perf_counter
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from memplan.engine.parallel.fsdp1.flat_parameters import fullest_rank
from memplan.engine.step_and_evaluation import EVALUATE, evaluation_of
from memplan.engine.uncollected import uncollected
from memplan.models import model_config
from memplan.spec.job import Job
from memplan.spec.recipe import Recipe
from memplan.trace import building, liger, parallel, quantised
from memplan.trace.device import fake_device, real_device, repeating_keys, whole_rows
from memplan.trace.fakeworld import fake_world, naming_buffers, pretend_to_reduce
from memplan.trace.flat import flat_sharded
from memplan.trace.ledger import PHASES
from memplan.trace.optimizers import InBackward, make_optimizer
from memplan.trace.result import SCHEMA_VERSION, Phase, Point, Trace
from memplan.trace.runs import SECOND
from memplan.trace.step import MicroStep, make_batch
from memplan.trace.tiled import tile
from memplan.trace.tracker import Tracker

TIMELINE_POINTS = 2000
ROOT = "the loop"
"""What runs outside of every module: loss, optimizer."""
Progress = Callable[[str], None]


def run(
    job: Job, recipe: Recipe, config: Mapping[str, Any], device: str, progress: Progress, fake: bool = True
) -> Trace:
    """Trace a job that ``support`` has let through. With ``fake`` false, real CPU tensors are computed with."""
    begun = perf_counter()
    if recipe.adapter is not None:
        import_module("peft")  # an import may make tensors of its own, which are no part of the job
    tracker = Tracker(device)
    with ExitStack() as stack:
        gc.collect()
        stack.enter_context(uncollected())  # what dies, dies when its last reference goes
        if recipe.sharding.name != "none" or recipe.parallel.whole_stream:
            stack.enter_context(fake_world(recipe.parallel.world, device, fullest_rank(recipe)))
            stack.enter_context(naming_buffers(tracker))
            stack.enter_context(tracker.watching_resizes())
        stack.enter_context(fake_device(device) if fake else real_device())
        flash = recipe.operators.attention == "flash"
        stack.enter_context(whole_rows(recipe.batch.padded, recipe.model.encoder is not None, flash))
        stack.enter_context(repeating_keys(recipe.trainer.models.repeats_sdpa))
        if recipe.quantised is not None:
            stack.enter_context(quantised.dequantising())
        stack.enter_context(tracker)
        state = _State(job, recipe, config, device, tracker, progress)
        stack.callback(state.unpatch)
        with tracker.modules.watching(state.models()):
            state.two_steps()
            state.evaluation()
        counts = state.counts()
    return _result(recipe, tracker, counts, device, perf_counter() - begun)


class _State:
    """What lives through the steps."""

    def __init__(
        self, job: Job, recipe: Recipe, config: Mapping[str, Any], device: str, tracker: Tracker, progress: Progress
    ) -> None:
        self.job, self.recipe, self.tracker, self.progress = job, recipe, tracker, progress
        progress("building the model")
        self.policy: Any = building.build_model(config, recipe, building.stored_dtype(recipe), device)
        if recipe.parallel.whole_stream:  # ``from_pretrained`` divides what it loads
            self.policy = parallel.by_plan(self.policy, recipe, device)
        if recipe.quantised is not None:
            quantised.quantise(self.policy, recipe.quantised, device)
        if recipe.numerics.norm_itemsize:
            quantised.upcast_norms(self.policy)
        if recipe.adapter is not None:
            self.policy = building.with_adapters(self.policy, job, recipe, device)
            if recipe.quantised is not None and recipe.adapter.itemsize < recipe.adapter.magnitude_itemsize:
                quantised.narrow_adapters(self.policy)
        building.disable_dropout(self.policy, recipe)
        building.freeze(self.policy, (*(recipe.provenance.job.get("freeze") or ()), *building.rests_too(recipe)))
        self.unpatch = liger.patch(self.policy, recipe.operators.kernels)
        tile(self.policy, recipe.operators.tiles, recipe.operators.tile_sums)
        quantised.to_float8(self.policy, recipe.operators.kernels.float8)
        if recipe.checkpointing.layers:
            building.enable_checkpointing(self.policy, recipe)
        self.bare = self.policy
        self.policy = self._split(self.policy, device)
        self.reference = self._reference(config, device)
        self.beside = self._beside(config, device)
        trained = [self.policy, *(model for name, model in self.beside.items() if name == "critic")]
        self.trained = [each for model in trained for each in model.parameters() if each.requires_grad]
        make = InBackward if recipe.fused_backward else make_optimizer
        self.optimizer: Any = make(recipe, self.trained)
        self.image_token = getattr(self.bare.config, "image_token_id", 1)
        self.batch = make_batch(recipe, device, self.image_token)
        self.device = device
        self._mark()

    def _reference(self, config: Mapping[str, Any], device: str) -> Any:
        """The frozen copy that scores each batch, where it is resident."""
        if self.recipe.others.reference != "resident":
            return None
        itemsize = next(resident.itemsize for resident in self.recipe.others.residents if resident.role == "reference")
        dtype = torch.float32 if itemsize == 4 else building.NAMED[self.recipe.storage.precision.dtype]
        model = building.build_model(config, self.recipe, dtype, device).eval()
        model.requires_grad_(not self.recipe.trainer.reference.frozen)
        whole = self.recipe.sharding.name not in ("fsdp", "fsdp2") or not any(
            model.sharded for model in self.recipe.others.residents
        )
        return model if whole else self._split(model, device, self.recipe.sharding.fsdp.reference_whole)

    def _beside(self, config: Mapping[str, Any], device: str) -> dict[str, Any]:
        """The critic that is trained too, and the teacher."""
        recipe, named = self.recipe, {extra.role: extra for extra in self.job.extra_models}
        found: dict[str, Any] = {}
        if recipe.others.critic is not None:
            own = model_config(named["critic"].model or config) if "critic" in named else config
            found["critic"] = building.build_model(own, recipe, building.stored_dtype(recipe), device, scores=True)
            if recipe.checkpointing.layers:
                building.enable_checkpointing(found["critic"], recipe)
            found["names"] = {}
        rewards = [model for model in recipe.others.residents if model.role == "reward"]
        theirs = [
            dict(model_config(extra.model or config)) for extra in self.job.extra_models if extra.role == "reward"
        ] or [dict(config)]
        for number, (model, keys) in enumerate(zip(rewards, theirs, strict=True) if rewards else ()):
            dtype = torch.float32 if model.itemsize == 4 else building.NAMED[recipe.storage.precision.dtype]
            reward = building.build_model(keys, recipe, dtype, device, scores=True).eval()
            found[f"reward{number}"] = reward.requires_grad_(False)
        if recipe.teacher is not None:
            half = "fp16" if recipe.storage.precision.dtype == "fp16" else "bf16"
            dtype = building.NAMED[named["teacher"].precision or half]
            found["teacher"] = building.build_model(
                model_config(named["teacher"].model or config), recipe, dtype, device
            ).eval()
            found["teacher"].requires_grad_(not recipe.teacher.frozen)
        return found

    def _split(self, model: Any, device: str, whole: bool = False) -> Any:
        """The model as one rank holds it."""
        recipe = self.recipe
        if recipe.sharding.name == "none":
            return model
        if recipe.sharding.name == "fsdp2":
            return parallel.fully_sharded(model, recipe, device, recipe.parallel.world, whole)
        if recipe.sharding.name == "fsdp":
            return flat_sharded(model, recipe, device)
        with self.tracker.naming("gradients" if recipe.sharding.gradient_as_bucket_view else "buffers"):
            return pretend_to_reduce(parallel.replicated(model, recipe, init_sync=False))

    def models(self) -> dict[str, Any]:
        """Models by the prefix of their modules' names."""
        beside = {f"{name}.": model for name, model in self.beside.items() if name != "names"}
        return {"": self.bare} | ({"reference.": self.reference} if self.reference is not None else {}) | beside

    def _mark(self) -> None:
        """What the blocks made so far are."""
        mark = self.tracker.mark
        mark(self.policy.buffers(), "buffers")
        mark(quantised.states_of(self.policy), "parameters")
        mark((p for n, p in self.policy.named_parameters() if "lora_" not in n), "parameters")
        mark((p for n, p in self.policy.named_parameters() if "lora_" in n), "adapters")
        mark((p for n, p in self.policy.named_parameters() if f".{SECOND}." in n), "reference")
        if self.reference is not None:
            mark(self.reference.parameters(), "reference")
            mark(self.reference.buffers(), "buffers")
        for name, model in ((name, model) for name, model in self.beside.items() if name != "names"):
            mark(model.parameters(), "parameters" if name == "critic" else "extra_models")
            mark(model.buffers(), "buffers")
        mark(self.batch.rollout.values(), "batch")
        mark((tensor for tensor in (*self.batch[:2], *self.batch.images.values()) if tensor is not None), "batch")
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._mark_gradient)

    def _mark_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.tracker.see(parameter.grad, "", "gradients")

    def two_steps(self) -> None:
        """The first makes the optimizer's states, the second is the one that counts.

        Of many micro-steps two are run: from the second on, gradients are resident and all are alike. Three where the
        last is the only one to reduce gradients."""
        recipe = self.recipe
        most = 2 if recipe.sharding.name == "none" or recipe.sharding.sync_each_batch else 3
        for number, suffix, micro_steps in ((1, "-1", 1), (2, "", min(recipe.batch.accumulation, most))):
            begin = self._begin(suffix)
            micro = MicroStep(recipe, self.policy, self.reference, self.device, begin, self._sync, self.beside)
            for index in range(micro_steps):
                self.progress(f"step {number} of 2, micro-step {index + 1} of {micro_steps}")
                self.tracker.modules.new_pass()
                micro.run(self.batch, index == micro_steps - 1)
            self.progress(f"step {number} of 2, optimizer")
            self.tracker.ledger.begin(f"step{suffix}")
            self.optimizer.step()
            self.tracker.ledger.begin(f"end{suffix}")
            self.optimizer.zero_grad(set_to_none=True)
            states = (value for state in self.optimizer.state.values() for value in state.values())
            self.tracker.mark((value for value in states if isinstance(value, torch.Tensor)), "optimizer_states")

    def evaluation(self) -> None:
        """A batch of the evaluation, where the job evaluates, over several ranks two, since the second finds what the
        first has left gathered; the batch of training is gone."""
        after = evaluation_of(self.recipe)
        if after is None:
            return
        if after.loss.head == "liger":  # skips logits while it trains (liger-kernel 0.8.5 transformers/model)
            after = after._replace(loss=after.loss._replace(head="cross-entropy"))
        self.progress("evaluation")
        self.policy.eval()
        del self.batch
        batch = make_batch(after, self.device, self.image_token)
        micro = MicroStep(after, self.policy, self.reference, self.device, lambda phase: None, beside=self.beside)
        self.tracker.modules.new_pass()
        self.tracker.ledger.begin(EVALUATE)
        with torch.no_grad():
            for _ in range(1 if self.recipe.sharding.name == "none" else 2):
                micro.run(batch)
        self.tracker.ledger.begin("end")

    def _sync(self, reduces: bool) -> None:
        if self.recipe.sharding.name != "none":
            parallel.set_sync(self.policy, self.recipe, reduces)

    def _begin(self, suffix: str) -> Callable[[str], None]:
        return lambda phase: self.tracker.ledger.begin(phase + suffix)

    def counts(self) -> tuple[int, int, int]:
        """Parameters without adapters, trained ones, and the vocabulary that logits end in."""
        whole = sum(p.numel() for n, p in self.policy.named_parameters() if "lora_" not in n)
        return whole, sum(parameter.numel() for parameter in self.trained), self.recipe.model.vocab_size


def _result(recipe: Recipe, tracker: Tracker, counts: tuple[int, int, int], device: str, seconds: float) -> Trace:
    ledger = tracker.ledger
    levels = ledger.levels()
    phases = []
    for name in (*PHASES, EVALUATE) if recipe.batch.eval_size else PHASES:
        size, at = ledger.peak(name, levels)
        block = ledger.events[at][1]
        phases.append(Phase(name, size, block.op, block.module or ROOT, ledger.categories_at(at, counts[2])))
    begins = {name: start for name, start, _ in reversed(list(ledger.segments()))}
    return Trace(
        schema_version=SCHEMA_VERSION,
        job=recipe.provenance.job,
        device=device,
        versions={name: metadata.version(name) for name in ("torch", "transformers", "peft")},
        parameters=counts[0],
        trainable=counts[1],
        allocated_bytes=max(phase.allocated_bytes for phase in phases),
        steady_bytes=levels[begins["forward"] - 1],
        phases=tuple(phases),
        timeline=tuple(Point(*at) for at in ledger.timeline(levels, begins["forward-1"], TIMELINE_POINTS, counts[2])),
        seconds=round(seconds, 2),
    )
