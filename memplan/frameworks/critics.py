"""PPO's critic: a second model, in an engine of its own beside the actor's, counted with the actor's settings; verl's
with a micro-batch and checkpointing of its own.

Source: verl 0.2 to 0.9 workers/fsdp_workers.py: CriticWorker, trainer/config/critic/dp_critic.yaml; NVIDIA-NeMo/RL
(August 2026) nemo_rl/algorithms/ppo.py, models/value/."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from memplan.frameworks.base import Keys
from memplan.frameworks.documents import is_template
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.batch import of_a_rank
from memplan.frameworks.verl.keys import ACTOR, MODEL, ROLLOUT
from memplan.units import ceil_div

OF_VERL = {"critic.strategy": f"{ACTOR}strategy", "critic.model.lora_rank": f"{MODEL}lora_rank"}
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


def read_name(keys: Keys, key: str, policy: str, own: Mapping[str, Any] = MappingProxyType({}), said: str = "") -> None:
    """The critic's model, where it is not the policy's; with what it has of its ``own``, and the key that says it."""
    path = keys.get(key)
    if is_template(path) and path != keys.get(policy):
        keys.warn(key, "the critic is counted as a model of the policy's shape", "model")
    elif path and path != keys.get(policy):
        keys.put("extra_models", [{"role": "critic", "model": str(path), **own}], key)
        return
    if own:
        keys.put("extra_models", [{"role": "critic", **own}], said)


def read_critic(keys: Keys, megatron: bool, ranks: int, tokens_shared: int) -> None:
    """verl's. ``ranks``: data-parallel ones; ``tokens_shared``: GPUs that divide a sequence's tokens."""
    as_the_policy(keys, OF_VERL)
    found, said = _batch(keys, ranks, tokens_shared)
    _values(keys, ranks, tokens_shared, found)
    checks, policy = "critic.model.enable_gradient_checkpointing", f"{MODEL}enable_gradient_checkpointing"
    if not megatron and keys.flag(checks) is not None and keys.flag(checks) != keys.flag(policy):
        found, said = found | {"gradient_checkpointing": "full" if keys.flag(checks) else "none"}, checks
    read_name(keys, "critic.model.path", f"{MODEL}path", found, said)


def _values(keys: Keys, ranks: int, tokens_shared: int, own: Mapping[str, Any]) -> None:
    """The pass that scores values before the update, in micro-batches of its own: it saves nothing and has no head over
    the vocabulary, so it is within the policy's scores of as many tokens (dp_critic.py: compute_values)."""
    values, length = keys.draft.values, int(keys.draft.values["sequence_length"])
    dynamic = keys.flag("critic.use_dynamic_bsz")
    if keys.flag(f"{ACTOR}use_dynamic_bsz") if dynamic is None else dynamic:
        key = "critic.forward_max_token_len_per_gpu"
        tokens = known(keys, key, usual=0) * tokens_shared
    else:
        whole, key = "critic.forward_micro_batch_size", "critic.forward_micro_batch_size_per_gpu"
        key = key if keys.has(key) else whole
        tokens = known(keys, key, usual=0) * length // (ranks if key == whole else 1)
    tokens = min(tokens, of_a_rank(keys, ranks) * length)
    update = int(own.get("token_budget", own.get("batch_size", values.get("batch_size") or 1) * length))
    others = (values.get("token_budget"), values.get("logprob_token_budget"), (values.get("batch_size") or 0) * length)
    if tokens > max(update, *(int(each or 0) for each in others)):
        keys.bound(key, f"the policy is counted as scoring as many tokens at once as its values, {tokens}", "batch")
        values["logprob_token_budget"] = tokens


def _batch(keys: Keys, ranks: int, tokens_shared: int) -> tuple[dict[str, Any], str]:
    """The critic's micro-batch, where not the policy's, and its key; no larger than a rank's part of a mini-batch."""
    dynamic = keys.flag("critic.use_dynamic_bsz")
    dynamic = keys.flag(f"{ACTOR}use_dynamic_bsz") if dynamic is None else dynamic
    each, whole, budget = (f"critic.ppo_{name}" for name in ("micro_batch_size_per_gpu", "micro_batch_size",
                                                            "max_token_len_per_gpu"))  # fmt: skip
    keys.skip(each, whole, budget)
    policy, packed = keys.draft.values.get("batch_size"), keys.draft.values.get("token_budget")
    mini = known(keys, "critic.ppo_mini_batch_size", usual=0) or known(keys, f"{ACTOR}ppo_mini_batch_size")
    mini = ceil_div(mini * known(keys, f"{ROLLOUT}n"), ranks)
    if dynamic:
        size = min(known(keys, budget, usual=0) * tokens_shared, mini * int(keys.draft.values["sequence_length"]))
        return ({"token_budget": size}, budget) if size and size != packed else ({}, "")
    of_all = keys.get(each) is None
    size = min(mini, ceil_div(known(keys, whole, usual=0), ranks) if of_all else known(keys, each, usual=0))
    return ({"batch_size": size}, whole if of_all else each) if size and size != policy else ({}, "")
