"""The choices of a plan: every way to run a job on so many GPUs that keeps the training what it is.

A *layout* divides the GPUs (sharding, degrees of parallelism); the other axes are independent of it. What the user gave
as an option, or with ``--fix``, is not a choice. Nor is what the trainer cannot be told (tables/trainer_switches.txt).
What cannot be is left to ``resolve``, whose reasons are told."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from memplan.planner.degrees import (
    INSTANCES,
    LEAST_TOKENS,
    LONG,
    MOST_CHUNKS,
    MOST_CONTEXT,
    MOST_PIPELINE,
    MOST_SPREAD,
    MOST_TENSOR,
    Keys,
    chunks,
    copied,
    native,
    parts_of_experts,
    twos,
)
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import evenest, layout
from memplan.tables.methods import METHODS
from memplan.tables.trainer import Trainer, names_method
from memplan.tables.trainers import TRAINERS, find_trainer, on_megatron
from memplan.units import ceil_div, words_of

LAYOUT = words_of(
    """sharding zero_stage reshard_after_forward tensor_parallel sequence_parallel pipeline_parallel virtual_pipeline
    context_parallel expert_parallel"""
)
BATCH = ("batch_size", "gradient_accumulation_steps", "global_batch_size")
WHERE_UNSAID = ("kernels", "compile", "offload", "recompute_modules")
"""Axes beside the layout that are chosen where the job says nothing of them; the last stands in ``megatron``."""
OTHERS = (*words_of("gradient_checkpointing loss_head optimizer_impl attention pair_pass reference"), *WHERE_UNSAID)
CHOSEN = (*LAYOUT, *BATCH, *(key for key in OTHERS if key not in WHERE_UNSAID))
"""Keys that a plan chooses; a job file's values of them are where the search starts, not where it ends."""

CHECKPOINTING = ("none", "selective", "every:4", "every:3", "every:2", "full")
HEADS = ("auto", "selective", "chunked", "fused")
PAIR_PASSES = ("concatenated", "two-forward", "split", "gradcache")
REFERENCES = ("auto", "resident", "precomputed", "offloaded")
KERNELS = ("none", "liger")
DOMINATED = {"optimizer_impl": ("fused", "foreach", "loop"), "attention": ("flash", "sdpa", "eager")}
"""Axes of which a later value is never faster than an earlier one, and never holds less (tests/test_plan_order.py), so
that it is tried only where the earlier is refused; of attention from some hundred tokens on: below, a kernel's own
memory in backward is more, by some MiB, than the scores that it saves. Without padding flash is as fast as sdpa, which
then comes first, and flash where it helps it to fit (``pricing``)."""


class Space(NamedTuple):
    """A job's choices."""

    job: Job
    """The job without the keys that are chosen."""
    fixed: Mapping[str, Any]
    """Keys among ``CHOSEN`` that the user gave."""
    spec: ModelSpec
    gpus: int
    global_batch: int
    """Examples of an optimizer step; 0 where micro-batch and accumulation are both fixed."""
    per_node: int
    vendor: str = "nvidia"
    """Of the card."""
    offload: bool = False
    """Something waits on the host: these layouts alone, as those without were searched before."""


def offloading(space: Space) -> list[Keys]:
    """Layouts that keep something on the host: Megatron's optimizer where the job names a trainer on it; by DeepSpeed,
    which does on one GPU too, by FSDP, or saved tensors."""
    if trainer_of(space, {}).megatron:
        return [{**keys, **HOSTED} for keys in megatron(space)] if space.gpus > 1 else [HOSTED]
    found: list[Keys] = [{"sharding": name, "offload": ["optimizer"]} for name in ("zero2", "zero3")]
    found += [{"sharding": "zero3", "offload": away} for away in (["parameters"], ["optimizer", "parameters"])]
    if space.gpus == 1:
        return [*([{"sharding": "none", "offload": ["activations"]}] if offloads_activations(space) else []), *found]
    packs = space.job.quantization != "none" and trainer_of(space, {}).models.transformers_4
    sparing = {"cpu_ram_efficient_loading": True} if packs else {}  # hands each matrix to the host (resolve/phases.py)
    return [*found, {"sharding": "fsdp2", "fsdp": {"cpu_offload": True, **sparing}}]


def offloads_activations(space: Space) -> bool:
    """Whether the trainer has a switch for it, which some have for some methods alone."""
    return trainer_of(space, {}).can_be_told("activation_offloading", space.job.method)


def layouts(space: Space) -> list[Keys]:
    """Every way to divide the GPUs, the plain ones first."""
    found = offloading(space) if space.offload else [Keys(sharding="none")] if space.gpus == 1 else []
    if not space.offload and space.gpus > 1:
        found += [{"sharding": name} for name in ("ddp", "zero0", "zero1", "zero2", "zero3")]
        found += [{"sharding": "fsdp2", "reshard_after_forward": again} for again in (True, False)]
        if space.gpus > space.per_node and space.gpus % space.per_node == 0:
            found.append({"sharding": "fsdp2", "reshard_after_forward": space.per_node})
            parts = twos((space.gpus - 1) // space.per_node)
            copies = [
                space.gpus // (space.per_node * nodes) for nodes in parts if not space.gpus // space.per_node % nodes
            ]
            found += [{"sharding": "fsdp2", "fsdp": {"replicate": count}} for count in copies if count > 1]
        found += _reducing(space, found)
        found += native(space.job, space.spec, space.gpus, space.per_node, space.fixed)
        found += divided_sequences(space)
        found += megatron(space)
    found = [keys for keys in found if can_be_told(space, keys)] or _own_layouts(space)
    wanted = dict(space.fixed)
    stage = wanted.pop("zero_stage", None)
    if stage is not None:
        wanted["sharding"] = f"zero{stage}"
    own: Keys = {key: wanted[key] for key in LAYOUT if key in wanted}
    return [keys for keys in found if _agrees(keys, wanted)] or ([own] if own else [])


def _reducing(space: Space, found: list[Keys]) -> list[Keys]:
    """FSDP2 that divides gradients after every micro-step, where a trainer that generates keeps them whole (verl)."""
    job, trainer = space.job, trainer_of(space, {})
    keeps = METHODS[job.method].online and not trainer.parallelism.syncs_each_batch
    if not keeps or "sync_each_batch" in job.model_fields_set:
        return []
    return [{**keys, "sync_each_batch": True} for keys in found if keys["sharding"] == "fsdp2"]


def divided_sequences(space: Space) -> list[Keys]:
    """Long sequences that accelerate divides: FSDP2 by ring attention, DeepSpeed by heads (Ulysses)."""
    length = space.job.sequence_length
    if space.job.method not in trainer_of(space, {}).switches.get("divided_sequences", ()):
        return []
    parts = [c for c in twos(MOST_CONTEXT) if c > 1 and length // c >= LONG and space.gpus % c == 0]
    parts = _fixed(space, "context_parallel", parts)
    how: list[Keys] = [{"sharding": "fsdp2", "reshard_after_forward": again} for again in (True, False)]
    how += [{"sharding": "zero3"}] if max(space.spec.num_heads, 1) % max(parts, default=1) == 0 else []
    return [{**keys, "context_parallel": c} for c in parts for keys in how]


def trainer_of(space: Space, layout: Mapping[str, Any]) -> Trainer:
    """The trainer of a layout."""
    named = layout.get("trainer")
    return TRAINERS[named][-1] if named else find_trainer(space.job.trainer, space.job.trainer_version or "")


def can_be_told(space: Space, keys: Keys) -> bool:
    """Whether the layout's trainer has switches for it, but for what the user fixed."""
    trainer = trainer_of(space, keys)
    return all(key in space.fixed or trainer.can_be_told(key, value, space.gpus > 1) for key, value in keys.items())


def _own_layouts(space: Space) -> list[Keys]:
    """What a trainer shards by that has none of the others: DeepSpeed on one GPU too, FSDP of its own."""
    if space.offload:
        return []
    plain = ("none", "ddp")
    return [{"sharding": name} for name in trainer_of(space, {}).switches.get("sharding", ()) if name not in plain]


NEUTRAL: Keys = {
    "tensor_parallel": 1,
    "sequence_parallel": None,
    "pipeline_parallel": 1,
    "virtual_pipeline": 1,
    "context_parallel": 1,
    "expert_parallel": 1,
    "reshard_after_forward": None,
}
"""What a layout that does not name a key means."""


def _agrees(keys: Keys, wanted: Mapping[str, Any]) -> bool:
    """Whether a layout has the values that were fixed."""
    for key, value in wanted.items():
        if key not in LAYOUT:
            continue
        own = keys.get(key, NEUTRAL.get(key))
        if key == "sequence_parallel" and not value and own is None:
            continue
        if key == "reshard_after_forward" and keys.get("sharding") != "fsdp2":
            return False
        if own != value:
            return False
    return True


def megatron(space: Space) -> list[Keys]:
    """Degrees of Megatron's parallelism: powers of two of tensor ranks within a node, with their sequence parallelism;
    stages and their chunks (``_falls``); a context split in powers of two; experts in powers of two, each whole or in
    parts (``parts_of_experts``). Gradients and weights are sent beside the computation."""
    spec, found = space.spec, []
    heads, layers = max(spec.num_heads, 1), spec.num_layers
    mixture = next((run.layer.experts for run in spec.runs if run.layer.experts), None)
    experts, width = (mixture.count, mixture.intermediate) if mixture else (1, 0)
    free = "expert_tensor_parallel" not in space.job.model_fields_set
    tensors = [t for t in twos(min(MOST_TENSOR, space.per_node, space.gpus)) if heads % t == 0]
    tensors = _fixed(space, "tensor_parallel", tensors)
    most = min(max(MOST_PIPELINE, space.fixed.get("pipeline_parallel", 1)), layers, space.gpus)
    trainer = megatron_trainer(space)
    if trainer is None:
        return []
    own, of = space.job.megatron.model_fields_set, trainer_of(space, trainer)
    spreads = of.can_be_told("moe_token_dispatcher_type", "flex") and "moe_token_dispatcher_type" not in own
    spreads = spreads and space.vendor == "nvidia"
    copies = of.can_be_told(INSTANCES, True) and not own & {INSTANCES, "reduce_scatter_with_fp32_accumulation"}
    overlaps = {key: value for key, value in OVERLAPS.items() if key not in own}
    contexts = [c for c in twos(MOST_CONTEXT) if c == 1 or space.job.sequence_length // c >= LEAST_TOKENS]
    lacks = of.methods.lacks.get(space.job.method, ())
    contexts = [1] if "context_parallel" in lacks else _fixed(space, "context_parallel", contexts)
    mtp = space.job.megatron.mtp_num_layers if of.can_be_told("pipeline_model_parallel_layout", True) else None
    wanted = 1 if "virtual_pipeline" in lacks else space.fixed.get("virtual_pipeline")
    falls = {p: list(_falls(layers, p, mtp, wanted)) for p in range(1, most + 1)}
    for t, p, c in product(tensors, falls, contexts):
        if space.gpus % (t * p * c):
            continue
        spread = [e for e in twos(min(experts, space.gpus // p)) if experts % e == 0 and (space.gpus // p) % e == 0]
        wide = width if c == 1 else 0
        parts = [(e, n) for e in spread for n in parts_of_experts(wide, e, t, space.gpus // p, space.per_node)]
        for (v, around), (e, n) in product(falls[p], parts if free else [(e, 0) for e in spread]):
            keys: Keys = {"sharding": "distributed-optimizer", "megatron": {**overlaps, **around}, **trainer}
            degrees = {"tensor_parallel": t, "pipeline_parallel": p, "virtual_pipeline": v}
            degrees |= {"context_parallel": c, "expert_parallel": e}
            keys |= {key: degree for key, degree in degrees.items() if degree > 1}
            if t > 1:
                keys["sequence_parallel"] = space.fixed.get("sequence_parallel", True)
            if n:
                keys["expert_tensor_parallel"] = n
            if space.per_node < e <= MOST_SPREAD and spreads:
                keys["megatron"] = {**keys["megatron"], "moe_token_dispatcher_type": "flex"}
            found += [keys, *(copied(keys, space.gpus) if copies else ())]
    return found


def _fixed(space: Space, key: str, degrees: list[int]) -> list[int]:
    """The degrees that are tried; the one that the user gave, however large."""
    return [space.fixed[key]] if key in space.fixed else degrees


def _falls(layers: int, stages: int, mtp: int | None, wanted: int | None) -> Iterator[tuple[int, Keys]]:
    """Chunks of each stage, ``wanted`` where they are fixed, and what says how the layers fall into them: evenly; with
    embedding and loss as a layer each; or, where neither divides, equal stages but for a shorter last, and the most
    even layout of the most chunks, a power of two, as more of them leave less of a bubble and fewer layers in flight.
    ``mtp``: layers of multi-token prediction; None where the trainer takes no layout."""
    split = 0 if layers % stages else layers // stages
    around = AROUND if not split and not (layers + 2) % stages else {}
    split = (layers + 2) // stages if around else split
    if split:
        many = [wanted] if wanted else chunks(split)
        yield from ((v, around) for v in many if v == 1 or (stages > 1 and split % v == 0))
        return
    rest, most = layers - ceil_div(layers, stages) * (stages - 1), layers // stages
    if rest > 0 and wanted in (None, 1):
        yield 1, {"num_layers_in_last_pipeline_stage": rest}
    v = wanted or twos(min(MOST_CHUNKS, most))[-1]
    if 1 < v <= most and mtp is not None:
        yield v, {"pipeline_model_parallel_layout": layout(evenest(layers, stages * v, mtp))}


AROUND: Keys = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
HOSTED: Keys = {"sharding": "distributed-optimizer", "offload": ["optimizer"]}
"""Megatron's optimizer on the host, which steps shares of it alone (resolve/megatron.py: megatron_settings)."""
OVERLAPS: Keys = {"overlap_grad_reduce": True, "overlap_param_gather": True}
OF_VENDORS = {"mindspeed": ("huawei",)}
"""Trainers for the cards of one vendor, which has no other: MindSpeed-LLM runs on Ascend."""


def megatron_trainer(space: Space) -> Keys | None:
    """A trainer on Megatron, kept up, that has the method and runs on the card, where the user named none; or None."""
    job = space.job
    if "trainer" in job.model_fields_set:
        return {} if TRAINERS[job.trainer][-1].megatron else None
    own = next((name for name, vendors in OF_VENDORS.items() if space.vendor in vendors), "")
    name = own or on_megatron(job.trainer, job.method, taken=True)
    return {"trainer": name} if name and names_method(TRAINERS[name][-1].methods.names, job.method) else None


def data_ranks(space: Space, layout: Mapping[str, Any]) -> int:
    """Ranks that see other examples."""
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    model = 1
    for key in degrees:
        model *= int(layout.get(key) or 1)
    return max(1, space.gpus // model)


def batches(space: Space, ranks: int) -> list[tuple[int, int]]:
    """(micro-batch, accumulation) that make the global batch; all of it where undivided, for ``resolve`` to refuse."""
    if not space.global_batch:
        return [(space.fixed["batch_size"], space.fixed["gradient_accumulation_steps"])]
    each, rest = divmod(space.global_batch, ranks)
    if rest or not each:
        return [(space.fixed.get("batch_size", 1), 0)]
    sizes = [size for size in range(1, each + 1) if each % size == 0]
    if "batch_size" in space.fixed:
        sizes = [size for size in sizes if size == space.fixed["batch_size"]] or [space.fixed["batch_size"]]
    found = [(size, each // size if each % size == 0 else 0) for size in sizes]
    steps = space.fixed.get("gradient_accumulation_steps")
    return [pair for pair in found if steps in (None, pair[1])] or [(found[0][0], 0)]
