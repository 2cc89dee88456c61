"""OpenRLHF's online training beside its update: what generates, and the scores before the update.

Source: OpenRLHF 0.11 cli/train_ppo_ray.py, trainer/ppo_utils/experience_maker.py."""

from memplan.frameworks.base import Keys
from memplan.frameworks.common.generating import VLLM, count_larger, put, put_engine, put_offload, read_fields
from memplan.frameworks.own_words.names import may_see_images
from memplan.units import ceil_div


def read_scoring(keys: Keys, length: int, tokens: int, gpus: int, ring: int) -> None:
    """Log-probabilities before the update, in micro-batches of their own, where they are larger than the update's of so
    many tokens, and no more than what all prompts of a rollout give to each ring of GPUs
    (trainer/ppo_utils/experience_maker.py: split_rollout_samples)."""
    micro, budget = "rollout.micro_batch_size", "rollout.max_tokens_per_gpu"
    key = budget if keys.flag("train.dynamic_batch_enable") else micro
    said, group = keys.whole(key, 1), keys.get("rollout.n_samples_per_prompt") or 1
    prompts = keys.whole("rollout.batch_size") or 0
    each = ceil_div(prompts * group, gpus) if isinstance(group, int) and prompts else said
    size = said * ring if key == budget else min(said, each) * length
    if size <= tokens:
        return
    if may_see_images(keys.draft.values.get("model")):
        count_larger(keys, key, size, tokens)
    else:
        keys.put("logprob_token_budget", size, key)


def critic_apart(keys: Keys) -> None:
    """A critic on GPUs of its own, of which a node has 8 where nothing is said: no more than the policy's update, on as
    many GPUs."""
    keys.remark(
        "without train.colocate_all the critic stands on GPUs of its own: the policy's "
        "update is counted, which is that of grpo"
    )
    critic, policy = (
        keys.whole(f"{role}.num_nodes", 1) * keys.whole(f"{role}.num_gpus_per_node", 8) for role in ("critic", "actor")
    )
    if critic < policy:
        where, why = keys.settings.where("critic.num_gpus_per_node"), "the critic has fewer GPUs than the policy"
        keys.draft.warn("critic.num_gpus_per_node", where, why, "parallelism")


def read_engine(keys: Keys, together: bool) -> None:
    """vLLM in actors of Ray's, on the trainer's cards or its own; without engines the policy generates itself."""
    engines = keys.whole("vllm.num_engines") or 0
    beside = together and not keys.flag("train.async_enable")
    if not engines:
        put_engine(keys, "hf", "vllm.num_engines")
        return
    put_engine(keys, "vllm", "vllm.num_engines", separate=not beside, own=True)
    read_fields(keys, VLLM, "vllm.")
    if not beside:
        put(keys, "num_gpus", engines * keys.whole("vllm.tensor_parallel_size", 1), "vllm.num_engines")
        return
    put(keys, "sleep", "1" if keys.flag("vllm.enable_sleep") else "none", "vllm.enable_sleep")
    put_offload(keys, {"ds.enable_sleep": ("optimizer", "gradients")})
