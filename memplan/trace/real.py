"""The model of a job on real devices: its weights, and DDP, FSDP2 or DeepSpeed around it."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from memplan.errors import ModelNotFound, UsageError
from memplan.spec.job import Job
from memplan.spec.recipe import Recipe
from memplan.trace import building, parallel
from memplan.trace.devices import CpuDevice
from memplan.trace.optimizers import make_optimizer
from memplan.trace.step import Batch, MicroStep
from memplan.trace.world import World

PATIENCE = timedelta(minutes=10)
"""How long ranks wait for one that has run out of memory or died."""


def random_batch(recipe: Recipe, device: str, seed: int) -> Batch:
    """Random tokens at the job's full length; where it is padded, the last token of a sequence is padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (recipe.rows, recipe.batch.sequence_length)
    ids = torch.randint(1, recipe.model.vocab_size, shape, generator=generator).to(device)
    if not recipe.batch.padded:
        return Batch(ids, None)
    mask = torch.ones(shape, dtype=torch.long, device=device)
    mask[0, -1] = 0
    return Batch(ids, mask)


def make_model(config: Mapping[str, Any], recipe: Recipe, dtype: torch.dtype, place: str, weights: str | None) -> Any:
    """The model with weights that can be computed with: small random ones, or real ones that are on this machine.

    Raises ModelNotFound for weights that are not."""
    if weights is not None:
        return _load(recipe, dtype, place, weights)
    model = building.build_model(config, recipe, dtype, place)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.02)
    return model


def _load(recipe: Recipe, dtype: torch.dtype, place: str, weights: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    maker: Any = AutoModelForSequenceClassification if recipe.method.score_head else AutoModelForCausalLM
    settings: dict[str, Any] = {"num_labels": 1} if recipe.method.score_head else {}
    attention = "eager" if recipe.operators.attention == "eager" else "sdpa"
    try:
        model = maker.from_pretrained(
            weights, local_files_only=True, dtype=dtype, attn_implementation=attention, **settings
        )
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        hint = "name a folder with config.json and safetensors, or a Hub id that is in the cache"
        raise ModelNotFound(f"--weights {weights}: {said}", hint) from None
    model.config.use_cache = False
    if recipe.method.score_head and model.config.pad_token_id is None:
        model.config.pad_token_id = 0
    return model.to(place).train()


class Models:
    """Policy, reference, optimizer, as the job's sharding has them."""

    def __init__(
        self, job: Job, recipe: Recipe, config: Mapping[str, Any], device: CpuDevice, world: World, weights: str | None
    ) -> None:
        self.recipe, self.device, self.world = recipe, device, world
        # FSDP2 moves one layer after another to the card and keeps a shard of it: no card ever holds all.
        place = "cpu" if recipe.sharding.name == "fsdp2" else device.kind
        policy = self._make(config, building.stored_dtype(recipe), place, weights)
        if recipe.adapter is not None:
            policy = building.with_adapters(policy, job, recipe, place)
        building.disable_dropout(policy, recipe)
        building.freeze(policy, tuple(recipe.provenance.job.get("freeze") or ()))
        if recipe.checkpointing.layers:
            building.enable_checkpointing(policy, recipe)
        self.reference = self._reference(config, place, weights)
        self.policy = self._split(policy)
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        self.optimizer: Any = make_optimizer(recipe, trained)
        self.engine: Any = None
        if recipe.zero_stage >= 0:
            self.policy = self.engine = self.optimizer = _deepspeed(policy, recipe, self.optimizer)

    def _make(self, config: Mapping[str, Any], dtype: torch.dtype, place: str, weights: str | None) -> Any:
        """A whole model, whose tensors the device counts."""
        model = make_model(config, self.recipe, dtype, place, weights)
        self.device.account((*model.parameters(), *model.buffers()))
        return model

    def _reference(self, config: Mapping[str, Any], place: str, weights: str | None) -> Any:
        if self.recipe.others.reference != "resident":
            return None
        resident = next(resident for resident in self.recipe.others.residents if resident.role == "reference")
        dtype = torch.float32 if resident.itemsize == 4 else building.NAMED[self.recipe.storage.precision.dtype]
        model = self._make(config, dtype, place, weights).eval()
        model.requires_grad_(not self.recipe.trainer.reference.frozen)
        if resident.sharded and self.recipe.sharding.name == "fsdp2":
            return parallel.fully_sharded(model, self.recipe, self.device.kind, self.world.size)
        return model.to(self.device.kind)

    def _split(self, model: Any) -> Any:
        """The model as each rank holds it."""
        if self.recipe.sharding.name == "fsdp2":
            return parallel.fully_sharded(model, self.recipe, self.device.kind, self.world.size)
        if self.recipe.sharding.name != "ddp":
            return model
        cards = [self.world.local_rank] if self.device.kind == "cuda" else None
        return parallel.replicated(model, self.recipe, device_ids=cards)

    def sync(self, reduces: bool) -> None:
        """Whether the next backward reduces gradients."""
        parallel.set_sync(self.policy, self.recipe, reduces)

    def step(self) -> None:
        """The optimizer's step, and no gradients after it. DeepSpeed's engine is its own optimizer, and frees them."""
        self.optimizer.step()
        if self.engine is None:
            self.optimizer.zero_grad(set_to_none=True)


class RealStep(MicroStep):
    """A micro-step whose model may be wrapped."""

    def __init__(self, models: Models, begin: Any) -> None:
        super().__init__(models.recipe, models.policy, models.reference, models.device.kind, begin, models.sync)
        self.models = models

    def _bare(self) -> Any:
        return self.policy.module if self.models.engine else super()._bare()

    def _backward(self, loss: Tensor) -> None:
        if self.models.engine is None:
            super()._backward(loss)
            return
        self.begin("backward")
        self.models.engine.backward(loss)


def _deepspeed(model: Any, recipe: Recipe, optimizer: Any) -> Any:
    """DeepSpeed's engine around model and optimizer."""
    import deepspeed  # type: ignore[import-not-found,unused-ignore]

    precision = recipe.storage.precision
    stage: dict[str, Any] = {"stage": recipe.zero_stage, **recipe.sharding.deepspeed.as_config()}
    config = {
        "train_micro_batch_size_per_gpu": recipe.batch.size,
        "gradient_accumulation_steps": recipe.batch.accumulation,
        "zero_optimization": stage,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": precision.dtype == "bf16" and bool(precision.master)},
        "fp16": {"enabled": precision.dtype == "fp16" and bool(precision.master)},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def join(device: CpuDevice, world: World) -> None:
    """Find the other processes. Raises UsageError where they do not answer."""
    if world.size == 1 or dist.is_initialized():
        return
    try:
        dist.init_process_group(device.backend, rank=world.rank, world_size=world.size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0][:200]
        hint = "start with: torchrun --nproc-per-node N -m memplan measure …"
        raise UsageError(f"the processes of this run do not find each other: {said}", hint) from None


def leave(world: World) -> None:
    """Part from the other processes."""
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def gathered(readings: dict[str, Any], world: World) -> list[dict[str, Any]]:
    """What every rank has read."""
    if world.size == 1:
        return [readings]
    found: list[dict[str, Any]] = [{} for _ in range(world.size)]
    dist.all_gather_object(found, readings)
    return found
