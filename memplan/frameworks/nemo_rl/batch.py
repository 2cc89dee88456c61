"""Micro-batches of NeMo RL: of sequences, or of tokens that are packed or not; those of the scores before an update."""

from memplan.frameworks.base import Keys
from memplan.frameworks.nemo_rl.keys import POLICY
from memplan.units import ceil_div


def read_batch(keys: Keys, method: str, copies: int) -> None:
    """A micro-batch of sequences, or of tokens; micro-batches of a step."""
    length = keys.whole(f"{POLICY}max_total_sequence_length")
    if length is None:
        keys.draft.ask("sequence_length", keys.settings.where("policy"), "max_total_sequence_length is not there")
        length = int(keys.draft.options.get("sequence_length") or 2048)
    else:
        keys.put("sequence_length", length, f"{POLICY}max_total_sequence_length")
    micro = keys.whole(f"{POLICY}train_micro_batch_size", 1)
    said = f"{POLICY}train_micro_batch_size"
    packed = _packed(keys, method, length)
    keys.skip(f"{POLICY}logprob_batch_size")  # of packed rows it is in their budget
    for part in ("sequence_packing", "dynamic_batching"):
        tokens = keys.number(f"{POLICY}{part}.train_mb_tokens") if keys.flag(f"{POLICY}{part}.enabled") else None
        if tokens:
            micro, said = max(1, ceil_div(int(tokens), length)), f"{POLICY}{part}.train_mb_tokens"
            if not packed:
                keys.remark(f"micro-batches of up to {int(tokens)} tokens are "
                                          f"counted as {micro} of {length}")  # fmt: skip
    if not packed:
        keys.put("batch_size", micro, said)
        _validates(keys, micro)
        _scored(keys, method, length, micro)
    total = keys.whole(f"{POLICY}train_global_batch_size") or micro
    keys.put(
        "gradient_accumulation_steps",
        max(1, ceil_div(total, micro * max(1, copies))),
        f"{POLICY}train_global_batch_size",
    )


def _validates(keys: Keys, micro: int) -> None:
    """Micro-batches of a validation, where they are larger than the update's (algorithms/sft.py, dpo.py, rm.py)."""
    for at in ("sft.", "dpo.", "rm.", "distillation."):
        key, on = f"{at}val_micro_batch_size", ("val_period", "val_at_start", "val_at_end")
        if any(keys.is_on(f"{at}{name}", "-1") for name in on) and (keys.whole(key) or 0) > micro:
            keys.put("eval_batch_size", keys.whole(key), key)


def _scored(keys: Keys, method: str, length: int, micro: int) -> None:
    """Log-probabilities before the update, in micro-batches of their own: of sequences, or of tokens."""
    at, whole = f"{POLICY}dynamic_batching.", f"{POLICY}logprob_batch_size"
    tokens = keys.number(f"{at}logprob_mb_tokens") if keys.flag(f"{at}enabled") else None
    size = max(int(tokens), length) if tokens else (keys.whole(whole) or micro) * length
    if method in ("grpo", "ppo") and size != micro * length:
        keys.put("logprob_token_budget", size, f"{at}logprob_mb_tokens" if tokens else whole)


def _packed(keys: Keys, method: str, length: int) -> bool:
    """Whether sequences are packed into one row of so many tokens, by the update and by the scores before it."""
    at = f"{POLICY}sequence_packing."
    tokens = keys.number(f"{at}train_mb_tokens") if keys.flag(f"{at}enabled") else None
    if not tokens or method in ("dpo", "reward") or "batch_size" in keys.draft.given:
        return False
    keys.put("token_budget", max(int(tokens), length), f"{at}train_mb_tokens")
    scored = keys.number(f"{at}logprob_mb_tokens")
    if method not in ("grpo", "ppo") or not scored or scored == tokens:
        return True
    keys.put("logprob_token_budget", max(int(scored), length), f"{at}logprob_mb_tokens")
    return True
