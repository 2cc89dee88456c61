"""Fused kernels and torch.compile of a job, resolved: which pieces of the layers they stand in for."""

from __future__ import annotations

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Attention
from memplan.spec.recompute import Recompute
from memplan.tables.kernels import COMPILED, FOAK, LIGER, NO_KERNELS, Kernels


def kernels(job: Job, spec: ModelSpec, again: Recompute, notes: Notes) -> Kernels:
    """What runs fused in each layer. Raises InvalidJob for what cannot be together."""
    if job.compile:
        return _compiled(job, spec, again, notes)
    if job.kernels == "foak":
        return _foak(job, spec, notes)
    if job.kernels != "liger":
        return NO_KERNELS
    if again.policy:
        notes.assume(
            "kernels: Liger's functions are no operations of torch, so selective checkpointing makes them again"
        )
    found = LIGER.get(spec.family, NO_KERNELS) if _plain_layers(spec) else NO_KERNELS
    if found == NO_KERNELS:
        notes.remark(f"kernels: Liger's kernels are modelled for the head of {spec.family} alone, not for its layers")
        return found
    notes.assume(
        "kernels: Liger's RMSNorm, rotary embedding and gated product in every layer, as it patches by default"
    )
    return found


def _foak(job: Job, spec: ModelSpec, notes: Notes) -> Kernels:
    if spec.family not in FOAK or not _plain_layers(spec):
        raise InvalidJob(f"kernels: foak is not modelled for {spec.family}", "modelled: " + ", ".join(FOAK))
    if job.quantization != "none":
        raise InvalidJob(
            "kernels: foak's fused adapters over a quantised base are not modelled yet", "leave kernels out"
        )
    notes.assume(
        "kernels: foak's RMSNorm and rotary embedding in every layer, both in place; the loss is what loss_head says"
    )
    return FOAK[spec.family]


def _plain_layers(spec: ModelSpec) -> bool:
    layers = list(spec.layers())
    dense = all(layer.feed_forward is not None and not layer.feed_forward.experts for layer in layers)
    return dense and all(type(layer.mixer) is Attention for layer in layers)


def _compiled(job: Job, spec: ModelSpec, again: Recompute, notes: Notes) -> Kernels:
    for key, value in (("kernels", job.kernels), ("quantization", job.quantization), ("attention", job.attention)):
        if value not in ("none", "sdpa", "flash"):
            raise InvalidJob(f"compile: not modelled with {key}: {value}", f"leave compile or {key} out")
    if again.modules or job.offload or not _plain_layers(spec):
        what = "Megatron's modules" if again.modules else "offload" if job.offload else f"layers of {spec.family}"
        raise InvalidJob(f"compile: not modelled for {what}", "leave compile out")
    notes.assume(
        "compile: an approximation; each layer is one graph whose pointwise operations are fused, and made again in "
        "backward from what products, attention and reductions left (torch's min-cut partitioner)"
    )
    return COMPILED
