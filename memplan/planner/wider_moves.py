"""Changes around a job that a plan on the cards at hand has not: weights stored in fewer bits, and more cards."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from memplan.planner import tiers
from memplan.planner.space import Space, can_be_told
from memplan.planner.words import layout_name
from memplan.spec.job import Job
from memplan.spec.recipe import Recipe
from memplan.units import DTYPE_BYTES

Keys = dict[str, Any]
TIMES = (2, 4, 8, 16, 32)
"""Cards over the job's own."""
WHOLE = ("zero3", "fsdp", "fsdp2", "distributed-optimizer")
"""Shardings that share all that they can."""


class Wider(NamedTuple):
    """One of these changes."""

    title: str
    keys: Keys
    tier: int = tiers.FREE
    far: int = 0


def stored(job: Job, recipe: Recipe) -> Iterator[Wider]:
    """Weights that are kept in fp32 kept in 16 bit: of a frozen base nothing is lost, of trained weights their updates
    are rounded; products in 16 bit over fp32 weights, where all of it was fp32."""
    if recipe.storage.precision.weights < DTYPE_BYTES["fp32"] or recipe.in_megatron:
        return
    gpu = recipe.hardware.gpu
    half = "fp16" if gpu is not None and gpu.bf16_tflops is None and gpu.fp16_tflops is not None else "bf16"
    scheme = f"{half}-master" if recipe.sharding.name.startswith("zero") else half
    wanted: Keys = {"precision": scheme}
    if job.dtype == "fp32":
        wanted["dtype"] = half
    if recipe.adapter is not None:
        yield Wider(f"base weights in {half}", wanted)
        return
    if recipe.storage.precision.name == "fp32":
        mixed = scheme if scheme != half else f"{half}-amp"
        yield Wider(f"mixed precision ({half})", wanted | {"precision": mixed}, tiers.LITTLE)
    elif scheme == half == "bf16":
        yield Wider("weights and optimizer states in bf16", wanted, tiers.TRAINING)


def twice_quantised(space: Space) -> Iterator[Wider]:
    """A base in NF4 with its scales quantised, too (bitsandbytes' ``bnb_4bit_use_double_quant``)."""
    keys: Keys = {"quantization": "nf4-double"}
    if space.job.quantization == "nf4" and can_be_told(space, keys):
        yield Wider("double quantization", keys, tiers.LITTLE)


def cards(space: Space, recipe: Recipe) -> Iterator[Wider]:
    """More of the same cards, with all that can be shared over them; the fewest first."""
    own, job = recipe.parallel.world, space.job
    if recipe.in_megatron or recipe.sharding.name in WHOLE:
        sharing: Keys = {}
    else:
        names = [{"sharding": name} for name in ("zero3", "fsdp2", "fsdp")]
        over = space._replace(gpus=own * 2)
        sharing = next((keys for keys in names if can_be_told(over, keys)), {})
        if job.zero_stage is not None and str(sharing.get("sharding", "")).startswith("zero"):
            sharing = {"zero_stage": 3}
    engine = recipe.generator
    if engine is not None and engine.separate:
        return
    name = "zero3" if "zero_stage" in sharing else sharing.get("sharding")
    how = f" with {layout_name({'sharding': name})}" if name else ""
    for far, times in enumerate(TIMES):
        yield Wider(f"{own * times} GPUs{how}", {"num_gpus": own * times, **sharing}, far=far)
