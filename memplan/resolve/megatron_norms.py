"""Of which models Megatron's norms are also counted as PyTorch's operations."""

from memplan.spec.job import Job
from memplan.spec.model import ModelSpec


def plain_norms(job: Job, spec: ModelSpec) -> bool:
    """Whether all norms are RMS norms of the residual stream, whose outputs nothing else quantises or joins."""
    layers = [run.layer for run in spec.runs]
    inner = any(part.norms for layer in layers for part in layer.parts)
    rms = all(norm.kind == "rms" for layer in layers for norm in layer.norms)
    return rms and not inner and not job.megatron.fp8_format and not job.megatron.mtp_num_layers
