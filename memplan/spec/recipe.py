"""Recipe: a job in which nothing is left open. The engine takes this and nothing else."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from memplan.spec.generation import Generator
from memplan.spec.gpu import Hardware
from memplan.spec.groups import (
    Batch,
    Checkpointing,
    ImageBatch,
    Loss,
    Numerics,
    Operators,
    OptimizerChoice,
    OtherModels,
    Provenance,
    Quantised,
    Resident,
    Sharding,
    Storage,
)
from memplan.spec.lora import Adapter
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.moments import Moments
from memplan.spec.parallel import Parallel
from memplan.tables.methods import Method
from memplan.tables.styles import Fused
from memplan.tables.trainer import Trainer

PARTED = ("storage", "optimizer", "batch", "checkpointing", "loss", "others", "sharding", "hardware", "provenance")
"""Groups whose fields change one by one in a search: each is watched by itself (``engine/memo``), others whole."""
HOPPER = 9.0
GROUPS = (*PARTED, "numerics", "operators")


@lru_cache(maxsize=256)
def _one_copy(degrees: Parallel) -> Parallel:
    return degrees._replace(world=degrees.model, replicas=1)


@lru_cache(maxsize=4096)
def _sized(batch: Batch, size: int, accumulation: int) -> Batch:
    return batch._replace(size=size, accumulation=accumulation)


class Recipe(NamedTuple):
    """Everything that decides the bytes of one rank. No None, no auto, but for the card."""

    model: ModelSpec
    method: Method
    trainer: Trainer
    numerics: Numerics
    operators: Operators
    storage: Storage
    optimizer: OptimizerChoice
    batch: Batch
    checkpointing: Checkpointing
    loss: Loss
    others: OtherModels
    adapter: Adapter | None
    quantised: Quantised | None
    sharding: Sharding
    parallel: Parallel
    """How the GPUs are divided, and which pipeline stage this rank is of."""
    hardware: Hardware
    provenance: Provenance
    megatron: Megatron = Megatron.model_construct()
    in_megatron: bool = False
    """Megatron's own layers run it."""
    evaluating: bool = False
    """The passes are an evaluation's: forward alone (``engine/step_and_evaluation``)."""
    moments: Moments = Moments()
    """What the job does beside its steady step (``engine/phases``)."""
    generator: Generator | None = None
    """What generates (``engine/generation``); None where nothing does, or where it is not counted."""

    def in_batches(self, size: int, accumulation: int) -> "Recipe":
        """The same job in micro-steps of another size, but for where it comes from: nothing else of a recipe depends on
        them, unless a group of completions is an example. A search asks for a hundred thousand: ``_replace`` is slow.
        """
        values = list(self)
        values[_BATCH] = _sized(self.batch, size, accumulation)
        return Recipe._make(values)

    def varied(self, fields: Mapping[str, Any]) -> "Recipe":
        """The recipe with other values in some groups, by path: ``batch.size``. Nothing is resolved again."""
        found: Any = self
        for path, value in fields.items():
            group, name = path.split(".")
            part = getattr(found, group)
            found = found._replace(
                **{group: part._replace(**{name: value(getattr(part, name)) if callable(value) else value})}
            )
        recipe: Recipe = found
        return recipe

    def flat(self) -> dict[str, Any]:
        """Every field of every group, by its path."""
        whole: dict[str, Any] = self._asdict()
        parts = {f"{group}.{name}": part for group in GROUPS for name, part in whole.pop(group)._asdict().items()}
        return whole | parts

    @property
    def several(self) -> bool:
        """Whether GPUs share model states. Rows that need no more are alike for any number: a search adds them once."""
        return self.sharding.ranks > 1

    @property
    def in_units(self) -> bool:
        """Whether FSDP casts, gathers and reduces the model unit by unit: FSDP2 on one rank too, where FSDP1 leaves the
        model as it is (torch 2.13 _fully_shard/_fsdp_param_group.py: wait_for_unshard)."""
        return self.sharding.name == "fsdp2" or (self.sharding.name == "fsdp" and self.several)

    @property
    def divided(self) -> Parallel:
        """How one copy of the model is divided, whatever the number of copies: what decides the passes of a rank."""
        return _one_copy(self.parallel)

    @property
    def accumulates(self) -> bool:
        """Whether an optimizer step has several micro-steps."""
        return self.batch.accumulation > 1

    @property
    def fused_backward(self) -> Fused | None:
        """How the optimizer takes gradients in backward itself (LOMO, hooks); None elsewhere."""
        return self.optimizer.row.fused_backward

    @property
    def offloaded(self) -> tuple[str, ...]:
        """What the job says to wait on the host."""
        return tuple(self.provenance.job.get("offload") or ())

    @property
    def zero_stage(self) -> int:
        """DeepSpeed's stage, or -1 elsewhere."""
        return int(self.sharding.name[4]) if self.sharding.name.startswith("zero") else -1

    @property
    def wrapper(self) -> str:
        """What lays its tensors out: megatron, deepspeed, fsdp, fsdp2; ddp also of one GPU."""
        if self.in_megatron:
            return "megatron"
        sharded = self.sharding.name in ("fsdp", "fsdp2")
        return "deepspeed" if self.zero_stage >= 0 else self.sharding.name if sharded else "ddp"

    @property
    def image_bytes(self) -> int:
        """Pixels of one example, in the batch: the processor gives fp32, or they are cast beforehand."""
        one, tower = self.batch.images or ImageBatch(0, 0, 0, 0, 0, 0), self.model.tower
        masks = tower.masks(one.pixels, one.squares, self.batch.sequence_length) if tower else 0
        pixels = one.pixels * (self.storage.precision.weights if tower and tower.cast_pixels else 4)
        return one.per_example * (pixels + masks)

    @property
    def rows(self) -> int:
        """Sequences that enter the model in one micro-step."""
        return self.batch.size * (2 if self.method.pairs else self.batch.group)

    @property
    def attention_by_rows(self) -> bool:
        """Whether Transformer Engine runs flash-attn on several rows: by Megatron's own setting, or by itself before
        Hopper (2.11 pytorch/attention/dot_product_attention/utils.py: get_attention_backend; wherever flash-attn is
        installed). Other trainers join their rows to one."""
        backend, gpu = self.megatron.attention_backend, self.hardware.gpu
        before = backend == "auto" and self.trainer.name == "megatron" and gpu is not None and gpu.capability < HOPPER
        return (
            self.in_megatron
            and self.rows > 1
            and self.operators.attention != "eager"
            and (before or backend == "flash")
        )

    @property
    def teacher(self) -> Resident | None:
        """The model that a distillation learns from."""
        teachers = (model for model in self.others.residents if model.role == "teacher" and self.method.teacher)
        return next(teachers, None)


_BATCH = Recipe._fields.index("batch")
