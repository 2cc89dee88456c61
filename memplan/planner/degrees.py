"""Degrees of tensor, pipeline and context parallelism that a plan tries, and those of torch's own beside FSDP2."""

from collections.abc import Mapping
from itertools import product
from math import gcd
from typing import Any

from memplan.resolve.native import unmodelled, unspread
from memplan.resolve.plans import grouped_heads, unsplit
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.units import ceil_div

Keys = dict[str, Any]

MOST_TENSOR, MOST_PIPELINE, MOST_CONTEXT, MOST_CHUNKS = 8, 64, 16, 12
LEAST_TOKENS = 1024
"""Tokens of a sequence that a context-parallel rank has at least."""
LONG = 8192
"""The same beside experts that are spread."""
LEAST_WIDTH = 2048
"""Of an expert on a rank: narrower ones lose more of their products than dividing them saves."""
MOST_SPREAD = 160
"""Ranks of the largest group that DeepEP has settings for (deep_ep/buffers/legacy.py: get_dispatch_config)."""
INSTANCES, MOST_SHARING = "num_distributed_optimizer_instances", 512
"""Ranks that share the states of Megatron's optimizer where more than twice as many could, beside all of those: a ring
of more takes longer than reducing each share across copies. Of 8B on 64, 1,024, 2,048, 4,096 and 16,384 cards, divided
by data alone, a step is 0, 0.7, 1.7, 3.9 and 16 % shorter with the best number of copies, of 256 or 512 ranks each."""
NATIVE = ("tensor_parallel", "pipeline_parallel", "context_parallel")


def twos(most: int) -> list[int]:
    """1, 2, 4, … up to ``most``."""
    return [1 << i for i in range(max(most, 1).bit_length()) if 1 << i <= most] or [1]


def divisors(whole: int, most: int) -> list[int]:
    """Those of ``whole``, up to ``most``."""
    return [size for size in range(1, min(whole, most) + 1) if whole % size == 0]


def chunks(layers: int) -> list[int]:
    """Chunks of a stage of so many layers: one, or of those that divide it the three largest numbers, as more of them
    leave less of a bubble and fewer micro-batches' layers in flight."""
    return [1, *divisors(layers, MOST_CHUNKS)[1:][-3:]]


def parts_of_experts(width: int, spread: int, tensor: int, ranks: int, per_node: int) -> list[int]:
    """Ranks that share each expert (Megatron's expert-tensor): one where experts are spread, else as many as attention
    (0: left unsaid); and 2 or 4 of a node, where they stay as wide as ``LEAST_WIDTH``."""
    wide = [n for n in (2, 4) if width % n == 0 and width // n >= LEAST_WIDTH and spread * n <= per_node]
    return [int(spread > 1), *(n for n in wide if ranks % (spread * n) == 0 and (spread > 1 or n != tensor))]


def copied(layout: Keys, gpus: int) -> list[Keys]:
    """One of Megatron's layouts with the fewest copies of the states that leave each no more than ``MOST_SHARING``."""
    tensor, spread = layout.get("tensor_parallel", 1), layout.get("expert_parallel", 1)
    stage = gpus // layout.get("pipeline_parallel", 1)
    both = gcd(stage // tensor, stage // (spread * (layout.get("expert_tensor_parallel") or tensor)))
    least = ceil_div(stage // tensor, MOST_SHARING)
    copies = next((n for n in range(least, 2 * least) if both % n == 0), 1) if least > 2 else 1
    settings = {**layout["megatron"], INSTANCES: copies}
    return [{**layout, "megatron": settings}] if copies > 1 else []


def is_native(layout: Mapping[str, Any]) -> bool:
    """Whether torch's own parallelism stands beside FSDP2."""
    keys = (*NATIVE, "expert_parallel")
    return layout.get("sharding") == "fsdp2" and any((layout.get(key) or 1) > 1 for key in keys)


def native_obstacle(job: Job, spec: ModelSpec) -> str:
    """Why torch's own parallelism cannot run the job, in words; nothing where it can."""
    if "trainer" in job.model_fields_set and job.trainer != "pytorch":
        return f"not with trainer {job.trainer}"
    what = unmodelled(job, spec)
    if what:
        return f"not modelled with {what}"
    why = unsplit(job.but(tensor_parallel=2), spec)
    return f"not modelled for {spec.name} ({why})" if why else ""


def native(job: Job, spec: ModelSpec, gpus: int, per_node: int, fixed: Mapping[str, Any]) -> list[Keys]:
    """FSDP2 with torch's own degrees, as torchtitan joins them: tensor ranks of a node that divide the key/value heads,
    stages of whole layers, equal parts of the sequence, experts spread over 2, 4, 8, … ranks (beside other degrees over
    as many of a stage as divide them, and only long sequences are divided then). Two or more ranks are left to share
    the states, as torchtitan uses no FSDP without. In a pipeline weights stay gathered: its schedules turn it off."""
    counts = {run.layer.experts.count for run in spec.runs if run.layer.experts}
    most = (min(MOST_TENSOR, per_node), min(MOST_PIPELINE, spec.num_layers), MOST_CONTEXT)
    if native_obstacle(job, spec):
        own = "trainer" not in job.model_fields_set or job.trainer == "pytorch"
        if not counts or not own or unmodelled(job, spec):
            return []
        most = (1, 1, 1)
    axes = [_degrees(gpus, limit, fixed.get(key)) for key, limit in zip(NATIVE, most, strict=True)]
    spread = [fixed["expert_parallel"]] if "expert_parallel" in fixed else twos(gpus) if counts else [1]
    heads, length, found = grouped_heads(spec), job.sequence_length, []
    for t, p, c, e in product(*axes, spread):
        short = c > 1 and length // c < LEAST_TOKENS and "context_parallel" not in fixed
        divides = not (gpus % (t * p * c) or heads % t or length % (t * c) or any(count % e for count in counts))
        if t * p * c * e == 1 or not divides or short or gpus // (t * p) == 1:
            continue
        few = c == 1 or length // c >= LONG or "context_parallel" in fixed
        if len(spread) > 1 and t * p * c > 1 and not (few and e == gcd(gpus // p, *counts)):
            continue
        degrees = {key: n for key, n in zip((*NATIVE, "expert_parallel"), (t, p, c, e), strict=True) if n > 1}
        if counts and unspread(job.model_copy(update={"num_gpus": gpus, **degrees}), spec):
            continue
        found += [
            {"sharding": "fsdp2", "reshard_after_forward": again, **degrees}
            for again in ((True, False) if p == 1 else (False,))
        ]
    return found


def _degrees(gpus: int, most: int, fixed: int | None) -> list[int]:
    """All that divide the GPUs; the one that was fixed."""
    return [fixed] if fixed is not None else divisors(gpus, most)
