"""What generates beside NeMo RL's policy: vLLM or SGLang, on the trainer's cards or its own.

Source: NVIDIA-NeMo/RL@7ea279a nemo_rl/models/generation/, algorithms/grpo.py: setup."""

from memplan.frameworks.base import Keys
from memplan.frameworks.common.generating import (
    SGLANG,
    VLLM,
    put,
    put_bucket,
    put_engine,
    read_fields,
    warn_engine,
    warn_felt,
)

GENERATION = "policy.generation."
FIELDS = {**VLLM, "precision": "dtype", "expert_parallel_size": "expert_parallel"}
"""Of ``vllm_cfg``."""


def read_engine(keys: Keys) -> None:
    """What generates, on the trainer's cards in actors of its own, or on others."""
    backend, key = (keys.text(f"{GENERATION}backend") or "vllm").lower(), f"{GENERATION}backend"
    apart = keys.flag(f"{GENERATION}colocated.enabled") is False
    if backend not in ("vllm", "sglang"):
        if not apart:
            warn_engine(keys, key, f"the generation engine ({backend[:20]}) beside the trainer is not counted")
        return
    put_engine(keys, backend, key, separate=apart, own=True)
    if apart:
        put(keys, "num_gpus", keys.draft.facts["apart"], f"{GENERATION}colocated.enabled")
    half = str(keys.settings.values.get(f"{GENERATION}vllm_cfg.precision")).lower() != "fp8"
    fields = FIELDS | ({} if half else {"precision": "quantization"}) if backend == "vllm" else SGLANG
    read_fields(keys, fields, f"{GENERATION}{backend}_cfg.")
    read_fields(keys, VLLM, f"{GENERATION}vllm_kwargs.")
    for at in (f"{GENERATION}{backend}_cfg.", f"{GENERATION}{backend}_kwargs."):
        warn_felt(keys, at)
    put_bucket(keys, "policy.refit_buffer_size_gb", 2**30)
