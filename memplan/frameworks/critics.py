"""PPO's critic: a second model, in an engine of its own beside the actor's, counted with the actor's settings.

Source: verl 0.2 to 0.9 workers/fsdp_workers.py: CriticWorker, trainer/config/critic/dp_critic.yaml; NVIDIA-NeMo/RL
(August 2026) nemo_rl/algorithms/ppo.py, models/value/.
"""

from __future__ import annotations

from collections.abc import Mapping

from memplan.frameworks.base import Keys
from memplan.frameworks.documents import is_template
from memplan.frameworks.generating import count_larger
from memplan.frameworks.verl_asking import known
from memplan.frameworks.verl_keys import ACTOR, MODEL

OF_VERL = {
    "critic.strategy": f"{ACTOR}strategy",
    "critic.model.enable_gradient_checkpointing": f"{MODEL}enable_gradient_checkpointing",
    "critic.model.lora_rank": f"{MODEL}lora_rank",
}
"""Settings of the critic -> those of the policy that it is counted with."""


def as_the_policy(keys: Keys, pairs: Mapping[str, str]) -> None:
    """Settings of a critic that say other than the policy's: checkpoints where the policy has none take less, as more
    GPUs do that divide it."""
    for own, of in pairs.items():
        said, policy = keys.settings.values.get(own), keys.get(of)
        if said is None or (said or None) == (policy or None) or (said == 1 and not policy):
            keys.skip(own)
        else:
            size, decides = own.endswith("_size"), "parallelism" if own.endswith("_size") else "checkpointing"
            less = ("checkpointing" in own and not policy) or (size and isinstance(said, int) and said > (policy or 1))
            why = f"the critic is counted as {of} says"
            (keys.bound if less else keys.warn)(own, f"{why}, which takes more" if less else why, decides)


def read_name(keys: Keys, key: str, policy: str) -> None:
    """The critic's model, where it is not the policy's."""
    path = keys.get(key)
    if is_template(path) and path != keys.get(policy):
        keys.warn(key, "the critic is counted as a model of the policy's shape", "model")
    elif path and path != keys.get(policy):
        keys.put("extra_models", [{"role": "critic", "model": str(path)}], key)


def read_critic(keys: Keys, megatron: bool, tokens: int) -> None:
    """verl's. ``tokens``: of the policy's micro-batch."""
    as_the_policy(keys, {own: of for own, of in OF_VERL.items() if not (megatron and "checkpointing" in own)})
    _batch(keys, tokens)
    read_name(keys, "critic.model.path", f"{MODEL}path")


def _batch(keys: Keys, tokens: int) -> None:
    """The critic's micro-batch, where it is larger than the policy's."""
    each = "critic.ppo_micro_batch_size_per_gpu"
    policy = keys.draft.values.get("batch_size") or tokens // keys.draft.values["sequence_length"]
    if keys.flag("critic.use_dynamic_bsz") or (
        not keys.has("critic.use_dynamic_bsz") and keys.flag(f"{ACTOR}use_dynamic_bsz")
    ):
        key, size = "critic.ppo_max_token_len_per_gpu", known(keys, "critic.ppo_max_token_len_per_gpu", usual=0)
        size = size if keys.has(key) else 0
    else:
        key, size = each, known(keys, each, usual=0) * tokens // max(1, policy)
    if size > tokens:
        count_larger(keys, key, size, tokens, "the critic's")
