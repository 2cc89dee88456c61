"""Tensor parallelism by transformers' plans: which models and jobs it runs, and is modelled with; and what of a model
ranks can share at all."""

from math import gcd

from memplan.errors import InvalidJob
from memplan.resolve.storage import Split
from memplan.resolve.trainers import megatron_instead
from memplan.spec.job import Job
from memplan.spec.layer import AnyMixer
from memplan.spec.lora import EMBEDDING, Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.spec.parts import Attention
from memplan.tables.families import PLANNED
from memplan.tables.methods import METHODS
from memplan.tables.trainer import Trainer

LAST_TAKING = {"transformers": "5.14", "trl": "1.6"}
"""Versions whose ``from_pretrained`` takes ``tp_plan`` by itself, and whose ranks have the embedding whole."""


def whole_streams(job: Job, trainer: Trainer) -> bool:
    """Whether ranks share products by transformers' plans, of models that ``from_pretrained`` has divided."""
    return job.tensor_parallel > 1 and trainer.parallelism.sequence == "accelerate"


def check_plan(job: Job, trainer: Trainer, split: Split, spec: ModelSpec) -> None:
    """What such a plan is not modelled with, or does not run with (transformers 5.24 distributed/tensor_parallel.py,
    trainer.py: the batch is the same on its ranks; accelerate 1.15 accelerator.py: _prepare_tp, and DDP of its model
    refused by prepare_model; _prepare_tp of a model of DTensors imports ReplicateParallel). Raises InvalidJob."""
    method, parts, experts = METHODS[job.method], job.tensor_parallel, any(run.layer.experts for run in spec.runs)
    other = megatron_instead(job, trainer.name)
    inner = [run.layer.feed_forward for run in spec.runs if run.layer.feed_forward is not None]
    odd = grouped_heads(spec) % parts or any(part.intermediate % parts for part in inner)
    odd = odd or any(part.experts.intermediate % parts for part in inner if part.experts)
    newer = trainer.parallelism.shares_embedding
    over = "" if newer else "before transformers 5.21"
    resident = method.reference and job.reference in ("auto", "resident") and job.lora is None
    alone = job.num_gpus == parts
    whole = resident or spec.tied or experts or job.lora is not None
    older = f"fsdp2 with trainer_version {LAST_TAKING.get(trainer.name, '')}" if newer else "fsdp2"
    plain = other if whole and not alone else f"use sharding {'none' if alone else older}"
    for bad, what, hint in (
        (split.name not in ("none", "fsdp2"), f"sharding {split.name}, whose engine wraps no divided model", plain),
        (split.name == "none" and not alone, f"{job.num_gpus} GPUs without sharding", plain),
        (newer and split.name == "fsdp2", "sharding fsdp2, at which accelerate stops from transformers 5.21 on", plain),
        (spec.family not in PLANNED, f"the plan of {spec.family}, which leaves products whole or is none", other),
        (over and spec.tied, f"the tied head of {spec.name} {over}", other),
        (over and experts, f"experts {over}", other),
        (
            odd,
            f"{grouped_heads(spec)} key/value heads, or feed-forwards that it does not divide",
            f"use {gcd(grouped_heads(spec), parts)}",
        ),
        (over and job.lora is not None, f"adapters {over}", "leave them out"),
        (job.quantization != "none", "a quantised base", "leave quantization out"),
        (job.freeze, "frozen weights", "leave freeze out"),
        (job.kernels != "none", f"kernels {job.kernels}", "leave kernels out"),
        (job.compile, "compile", "leave compile out"),
        (job.optimizer == "sgd-momentum", "optimizer sgd-momentum", "use optimizer sgd"),
        (job.attention == "eager" or spec.eager_only, "eager attention", "use attention sdpa"),
        (method.online or method.teacher, f"method {job.method}", "leave tensor_parallel out"),
        (over and resident, f"a reference {over}", "use reference precomputed"),
        (unsplit(job, spec), unsplit(job, spec), other),
    ):
        if bad:
            raise InvalidJob(f"tensor_parallel: {parts} with {trainer.title} is not modelled with {what}", hint)


def check_shared_products(adapter: Adapter, degrees: Parallel, spec: ModelSpec) -> Adapter:
    """The adapters, where they run beside products that ranks share: of one that is cut by rows PEFT makes lora_A as
    wide as the rank's part (tuners_utils.py: _get_in_out_features), which transformers from 5.21 on takes for the whole
    (tensor_parallel.py: RowwiseParallel), and it adds those of stacked experts to the weight of all ranks
    (tuners/lora/layer.py: _LoraParameterProxy). Raises InvalidJob."""
    if not degrees.whole_stream:
        return adapter
    layers = [run.layer for run in spec.runs]
    groups = [layer.mixer.linears for layer in layers if layer.mixer]
    groups += [group for layer in layers if (part := layer.feed_forward) for group in (part.linears, part.shared)]
    last = sorted(adapter.targets & {group[-1].name for group in groups if group})
    ends = adapter.targets & {EMBEDDING, spec.head.name} or adapter.saved or adapter.tokens
    cut = {linear.name for group in groups for linear in group[:-1]}
    left = ", ".join(sorted(adapter.targets.difference(last) or cut))
    for bad, what, hint in (
        (adapter.experts or adapter.router, "beside experts", "use lora.targets: [q_proj, k_proj, v_proj]"),
        (last, f"beside {' and '.join(last)}", f"use lora.targets: [{left}]"),
        (adapter.dora or ends, "with DoRA, or beside a trained embedding or head", "leave these out"),
    ):
        if bad:
            why = (
                f"tensor_parallel: {degrees.tensor} with adapters {what}: PEFT 0.21 does not run them on shared weights"
            )
            raise InvalidJob(why, hint)
    return adapter


def grouped_heads(spec: ModelSpec) -> int:
    """The key/value heads, which tensor-parallel ranks share between them."""
    return gcd(*(_groups(mixer) for mixer in spec.mixers))


def _groups(mixer: AnyMixer) -> int:
    if isinstance(mixer, Attention):
        return mixer.num_kv_heads
    return mixer.num_heads if mixer.kind == "latent" else 0


def unsplit(job: Job, spec: ModelSpec) -> str:
    """Why a model's layers cannot be split this way; nothing where they can, or where only stages and experts are."""
    within = job.tensor_parallel * job.context_parallel > 1
    for run in spec.runs if within else ():
        layer, mixer, inner = run.layer, run.layer.mixer, run.layer.feed_forward
        if layer.form not in ("pre", "sandwich") or inner is None or mixer is None:
            return f"layers of form {layer.form!r}"
        if isinstance(mixer, Attention):
            plain = mixer.style == "standard"
            whole = any(norm.width != mixer.head_dim for norm in mixer.norms)
        else:
            plain, whole = mixer.kind == "latent" and not mixer.indexed, False
        if not plain or mixer.tensors or layer.parts[2:]:
            return "their attention"
        if inner.tensors or (inner.experts and inner.linears):
            return "their feed-forwards"
        if whole:
            return "norms over all heads"
    only_experts = job.tensor_parallel * job.context_parallel * job.pipeline_parallel == 1
    if not only_experts and (spec.extra or spec.tower or spec.encoder or spec.front or spec.project_out):
        return "what stands outside their layers"
    return ""
