"""What generates beside NeMo RL's policy: vLLM or SGLang, on the trainer's cards or its own.

Source: NVIDIA-NeMo/RL@7ea279a nemo_rl/models/generation/, algorithms/grpo.py: setup."""

from memplan.frameworks.base import Keys
from memplan.frameworks.common import generating

GENERATION = "policy.generation."
FIELDS = {**generating.VLLM, "precision": "dtype", "expert_parallel_size": "expert_parallel"}
"""Of ``vllm_cfg``."""


def read_engine(keys: Keys) -> None:
    """What generates, on the trainer's cards in actors of its own, or on others."""
    backend, key = (keys.text(f"{GENERATION}backend") or "vllm").lower(), f"{GENERATION}backend"
    apart = keys.flag(f"{GENERATION}colocated.enabled") is False
    if backend not in ("vllm", "sglang"):
        if not apart:
            why = f"the generation engine ({backend[:20]}) beside the trainer is not counted"
            generating.warn_engine(keys, key, why)
        return
    generating.put_engine(keys, backend, key, separate=apart, own=True)
    if apart:
        generating.put(keys, "num_gpus", keys.draft.facts["apart"], f"{GENERATION}colocated.enabled")
    half = str(keys.settings.values.get(f"{GENERATION}vllm_cfg.precision")).lower() != "fp8"
    fields = FIELDS | ({} if half else {"precision": "quantization"}) if backend == "vllm" else generating.SGLANG
    generating.read_fields(keys, fields, f"{GENERATION}{backend}_cfg.")
    generating.read_fields(keys, generating.VLLM, f"{GENERATION}vllm_kwargs.")
    for at in (f"{GENERATION}{backend}_cfg.", f"{GENERATION}{backend}_kwargs."):
        generating.warn_felt(keys, at)
    generating.put_bucket(keys, "policy.refit_buffer_size_gb", 2**30)
