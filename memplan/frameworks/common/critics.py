"""PPO's critic: a second model, in an engine of its own beside the actor's, counted with the actor's settings; verl's
with a micro-batch and checkpointing of its own.

Source: verl 0.2 to 0.9 workers/fsdp_workers.py: CriticWorker, trainer/config/critic/dp_critic.yaml; NVIDIA-NeMo/RL
(August 2026) nemo_rl/algorithms/ppo.py, models/value/."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from memplan.frameworks.base import Keys
from memplan.frameworks.deciding import HALVES, subject_of
from memplan.frameworks.files.documents import is_template
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.batch import of_a_rank, of_rows
from memplan.frameworks.verl.fsdp import ulysses
from memplan.frameworks.verl.keys import ACTOR, MODEL, ROLLOUT
from memplan.frameworks.verl.megatron import recompute_of
from memplan.units import ceil_div

OF_VERL = {
    "critic.model.lora_rank": f"{MODEL}lora_rank",
    "critic.model.enable_activation_offload": f"{MODEL}enable_activation_offload",
    "critic.optim.optimizer": f"{ACTOR}optim.optimizer",
}
"""Settings of the critic -> those of the policy that it is counted with; both have one default."""


def as_the_policy(keys: Keys, pairs: Mapping[str, str], default: bool = False, who: str = "critic") -> None:
    """Settings of a critic, or of a reference, that say other than the policy's: checkpoints where the policy has none
    take less, as more GPUs do that divide it, and half the bytes. ``default``: one that says nothing is as the policy's
    default."""
    for own, of in pairs.items():
        said, policy = keys.settings.values.get(own), keys.get(of)
        said = keys.defaults.get(of) if said is None and default else said
        keys.skip(own)
        if (said is None and not default) or (said or None) == (policy or None) or (said == 1 and not policy):
            continue
        size, half = own.endswith("_size"), own.endswith("dtype") and HALVES.fullmatch(str(said)) is not None
        less = (("checkpointing" in own or "offload" in own) and not policy) or half
        less = less or (size and isinstance(said, int) and said > (policy or 1))
        decides = "parallelism" if size else "model" if own.endswith(".path") else subject_of(own) or "checkpointing"
        _tell(keys, own if keys.has(own) else of, f"the {who} is counted as {of} says", less, decides)


def _tell(keys: Keys, key: str, why: str, less: bool, decides: str) -> None:
    """That it differs: unclear, but where what is counted takes more."""
    tell, where = keys.draft.bound if less else keys.draft.warn, keys.settings.where(key)
    tell(key, where, f"{why}, which takes more" if less else why, decides)


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
    as_the_policy(keys, {"critic.strategy": f"{ACTOR}strategy"})
    own = 1
    if megatron:
        kind, key = recompute_of(keys, "critic.model.", "critic.megatron.")
        policy, own = keys.draft.values["gradient_checkpointing"], tokens_shared
        if kind != policy:
            why = f"the critic, which recomputes {kind}, is counted as the policy, {policy}"
            _tell(keys, key, why, policy == "none", "checkpointing")
    else:
        later = any(key.startswith("critic.fsdp.") for key in keys.settings.values)
        at = "critic.fsdp." if later else "critic.model.fsdp_config."
        pairs = (
            OF_VERL if "offload" in keys.draft.values else {k: of for k, of in OF_VERL.items() if "offload" not in k}
        )
        keys.skip("critic.model.enable_activation_offload")  # whose activations, as the policy's, are on the card then
        as_the_policy(keys, pairs | {f"{at}model_dtype": f"{ACTOR}fsdp_config.model_dtype"}, default=True)
        own = ulysses(keys, "critic.", at)
        if ranks * tokens_shared % own:
            key = next(each for each in keys.settings.values if each.endswith("parallel_size") and "critic" in each)
            raise keys.settings.error(key, f"{own} do not divide {ranks * tokens_shared} GPUs", "take a divisor")
        _divided(keys, f"{at}fsdp_size", ranks * tokens_shared)
    pads = not megatron and keys.flag("critic.model.use_remove_padding") is False
    shares = Shares(ranks * tokens_shared // own, own, tokens_shared / own, pads)
    found, said = _batch(keys, shares)
    _values(keys, shares, found)
    checks, policy = "critic.model.enable_gradient_checkpointing", f"{MODEL}enable_gradient_checkpointing"
    if not megatron and keys.flag(checks) is not None and keys.flag(checks) != keys.flag(policy):
        found, said = found | {"gradient_checkpointing": "full" if keys.flag(checks) else "none"}, checks
    read_name(keys, "critic.model.path", f"{MODEL}path", found, said)


class Shares(NamedTuple):
    """How a critic's work is divided: data-parallel ranks, GPUs of each that divide a sequence's tokens, and how many
    times the tokens that the policy's ranks have of as many sequences."""

    ranks: int
    tokens: int
    more: float
    pads: bool
    """Whether its rows keep their padding."""


def _divided(keys: Keys, own: str, world: int) -> None:
    """GPUs that share the critic's states, where they are not as many as the policy's."""
    policy = f"{ACTOR}fsdp_config.fsdp_size"
    mine, its = (size if 0 < size < world else world for size in (known(keys, key, usual=-1) for key in (own, policy)))
    if mine != its:
        key, counted = own if keys.has(own) else policy, f"the critic's states are counted as shared by {its} GPUs"
        _tell(keys, key, f"{counted}, not by {mine}", mine > its, "parallelism")


def _values(keys: Keys, shares: Shares, own: Mapping[str, Any]) -> None:
    """The pass that scores values before the update, in micro-batches of its own: it saves nothing and has no head over
    the vocabulary, so it is within the policy's scores of as many tokens (dp_critic.py: compute_values)."""
    values, length = keys.draft.values, int(keys.draft.values["sequence_length"])
    dynamic = keys.flag("critic.use_dynamic_bsz")
    if keys.flag(f"{ACTOR}use_dynamic_bsz") if dynamic is None else dynamic:
        key = "critic.forward_max_token_len_per_gpu"
        tokens = known(keys, key, usual=0) * shares.tokens
    else:
        whole, key = "critic.forward_micro_batch_size", "critic.forward_micro_batch_size_per_gpu"
        key = key if keys.has(key) else whole
        tokens = known(keys, key, usual=0) * length // (shares.ranks if key == whole else 1)
    tokens = int(min(tokens, of_a_rank(keys, shares.ranks) * length) * shares.more)
    update = int(own.get("token_budget", own.get("batch_size", values.get("batch_size") or 1) * length))
    others = (values.get("token_budget"), values.get("logprob_token_budget"), (values.get("batch_size") or 0) * length)
    if tokens > max(update, *(int(each or 0) for each in others)):
        keys.bound(key, f"the policy is counted as scoring as many tokens at once as its values, {tokens}", "batch")
        values["logprob_token_budget"] = tokens


def _batch(keys: Keys, shares: Shares) -> tuple[dict[str, Any], str]:
    """The critic's micro-batch, where not the policy's, and its key; no larger than a rank's part of a mini-batch. Of a
    critic whose sequences fewer GPUs divide so many more as have its tokens."""
    dynamic = keys.flag("critic.use_dynamic_bsz")
    dynamic = keys.flag(f"{ACTOR}use_dynamic_bsz") if dynamic is None else dynamic
    each, whole, budget = (f"critic.ppo_{name}" for name in ("micro_batch_size_per_gpu", "micro_batch_size",
                                                            "max_token_len_per_gpu"))  # fmt: skip
    keys.skip(each, whole, budget)
    policy, packed = keys.draft.values.get("batch_size"), keys.draft.values.get("token_budget")
    mini = known(keys, "critic.ppo_mini_batch_size", usual=0) or known(keys, f"{ACTOR}ppo_mini_batch_size")
    mini = ceil_div(mini * known(keys, f"{ROLLOUT}n"), shares.ranks)
    if dynamic:
        length = int(keys.draft.values["sequence_length"])
        size = min(known(keys, budget, usual=0) * shares.tokens, mini * length)
        if size and shares.pads:
            size = of_rows(keys, mini, size // length, budget) * length
        size = int(size * shares.more)
        return ({"token_budget": size}, budget) if size and size != packed else ({}, "")
    of_all = keys.get(each) is None
    size = min(mini, ceil_div(known(keys, whole, usual=0), shares.ranks) if of_all else known(keys, each, usual=0))
    size = math.ceil(size * shares.more)
    return ({"batch_size": size}, whole if of_all else each) if size and size != policy else ({}, "")
