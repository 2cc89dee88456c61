"""verl's micro-batches: sequences of each GPU, of all GPUs together (0.1), or so many tokens.

Source: verl 0.1 to 0.9 workers/fsdp_workers.py, workers/megatron_workers.py (normalisation by data-parallel ranks),
utils/seqlen_balancing.py: rearrange_micro_batches."""

import re
from math import prod

from memplan.frameworks.base import Keys
from memplan.frameworks.common.generating import put
from memplan.frameworks.project.copies import in_copy
from memplan.frameworks.verl.asking import known
from memplan.frameworks.verl.keys import ACTOR, MODEL, REF, ROLLOUT
from memplan.units import ceil_div

KL = "algorithm.use_kl_in_reward"
LENGTHS = ("data.max_response_length", "data.max_prompt_length", "data.max_length")
_TURNS = ("in range(self.config.max_turns)", "next_obs_ids = next_obs_ids[:, :self.config.max_obs_length]")
"""How Search-R1 counts its turns, and cuts what each is answered."""


def lengths_of(keys: Keys) -> tuple[int, int]:
    """Tokens of a prompt and of a completion. Search-R1 joins what its turns generate and what they are answered, up to
    ``max_prompt_length`` behind ``max_start_length``, of code that is here no more than its turns and a last answer
    make (search_r1/llm_agent/generation.py: _update_right_side, run_llm_loop); what it answers in one go, as SSRL
    trains, may be longer (TsinghuaC3I/SSRL verl/trainer/ppo/ray_trainer.py)."""
    prompt = known(keys, "data.max_prompt_length", "sequence_length", 0)
    response = known(keys, "data.max_response_length", "sequence_length", 0)
    turns = known(keys, "max_turns", usual=0)
    if not keys.has("data.max_start_length"):
        return prompt, response
    keys.skip("data.max_infer_length")
    told = known(keys, "data.max_obs_length", usual=0)
    loop = in_copy(keys.settings.path, "search_r1/llm_agent/generation.py") if turns and told else ""
    if all(each in loop for each in _TURNS):
        prompt = min(prompt, turns * (response + told) + response)
    start = known(keys, "data.max_start_length", "sequence_length", 0)
    return (start, prompt) if start >= response else (prompt, response)  # one that searches nothing answers at once


def reference_key(keys: Keys) -> str:
    """The setting by which there is a reference; to 0.3 there always is (main_ppo.py: role_worker_mapping)."""
    said = (f"{ACTOR}use_kl_loss", KL)
    always = said[0] if keys.draft.facts["verl"] in ("0.1", "0.2", "0.3") else ""
    return next((key for key in said if keys.flag(key)), always)


def of_tokens(keys: Keys, tokens: int, length: int, completion: int, key: str) -> int:
    """A micro-batch that is packed up to so many tokens; a longer sequence is one by itself. Sequences in it."""
    keys.put("token_budget", max(tokens, length), key)
    keys.put("sequence_length", length, *LENGTHS)
    if completion:
        keys.put("completion_length", completion, LENGTHS[0])
    return max(1, tokens // length)


def within(tokens: int, rows: int, length: int) -> int:
    """A budget of tokens where there are so many rows in all: no micro-batch has more (rearrange_micro_batches)."""
    return rows * length if tokens // length > rows else tokens


def update_batch(
    keys: Keys, lengths: tuple[int, int], gpus: int, shared: int, tokens_shared: int, megatron: bool
) -> int:
    """Completions of a micro-batch, micro-batches of a mini-batch, completions of a prompt. ``shared``: GPUs that hold
    one copy of a sequence's work; ``tokens_shared``: those that divide its tokens. The tokens of a micro-batch."""
    length, completion = lengths
    ranks = max(1, gpus // shared)
    group = known(keys, f"{ROLLOUT}n")
    mini = ceil_div(known(keys, f"{ACTOR}ppo_mini_batch_size") * group, ranks)
    key, batch = _micro(keys, ranks)
    if keys.flag(f"{ACTOR}use_dynamic_bsz"):
        key = f"{ACTOR}ppo_max_token_len_per_gpu"
        tokens = known(keys, key, "batch_size", length) * tokens_shared
        tokens = within(tokens, UNBOUNDED if of_others(keys) else mini, length)
        padded = not megatron and keys.flag(f"{MODEL}use_remove_padding") is False
        least = max(1, tokens // length)
        batch = of_rows(keys, mini, least, key, f"--batch-size {least}") if padded else 0
        batch = batch or of_tokens(keys, tokens, length, completion, key)
        keys.skip(f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ACTOR}ppo_micro_batch_size")
    if "token_budget" not in keys.draft.values:
        keys.put("sequence_length", length, "data.max_response_length", "data.max_prompt_length")
        if completion:
            keys.put("completion_length", completion, "data.max_response_length")
        if keys.flag(f"{ACTOR}use_dynamic_bsz") or key:
            keys.put("batch_size", batch, key)
        else:
            keys.assume("batch_size", 1, f"{ACTOR}ppo_micro_batch_size_per_gpu is not set: one completion is assumed")
    steps = max(1, ceil_div(mini, batch))
    keys.put("gradient_accumulation_steps", steps, f"{ACTOR}ppo_mini_batch_size")
    if group > 1 and (batch * steps * gpus) % group == 0:
        put(keys, "group_size", group, f"{ROLLOUT}n")
    update = keys.draft.values.get("token_budget", batch * length)
    _scoring(keys, update, length, (ranks, tokens_shared), megatron)
    return int(update)


PADDED = "tokens are counted without padding, and rows keep theirs: as many stand in one as there are"


def of_rows(keys: Keys, rows: int, least: int, key: str, hint: str = "") -> int:
    """Sequences of a micro-batch whose budget counts tokens without padding, where padding stays: short ones may all
    stand in one. ``rows``: all there are; ``least``: how many do, were each at its longest; ``hint``: the option that
    says so many."""
    if rows == UNBOUNDED:
        keys.warn(key, "how many short ones stand in one with their padding is not known", "batch")
        return max(1, least)
    if rows > max(1, least):
        asks = hint.removeprefix("--set ").partition("=")[0].partition(" ")[0].lstrip("-").replace("-", "_")
        told = f"add {hint}, if rows are about as long as the longest" if hint else ""
        keys.draft.bound(key, keys.settings.where(key), PADDED, "batch", asks, told)
    return rows


def _micro(keys: Keys, ranks: int) -> tuple[str, int]:
    """The key that says it, and sequences of each GPU; no key where none is set."""
    each, whole = f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ACTOR}ppo_micro_batch_size"
    if keys.get(each) is not None:
        keys.skip(whole)
        return each, known(keys, each, "batch_size")
    if keys.get(whole) is not None:
        return whole, max(1, known(keys, whole, "batch_size", ranks) // ranks)
    return "", 1


def _scoring(keys: Keys, tokens: int, length: int, divided: tuple[int, int], packs: bool) -> None:
    """Log-probabilities before the update, of the policy and of the reference: the larger micro-batch of both, where it
    is not the update's. ``packs``: rows have no padding, whatever is said (Megatron)."""
    ranks, tokens_shared = divided
    sizes, most = {}, of_a_rank(keys, ranks)
    for at in (ROLLOUT, REF) if reference_key(keys) else (ROLLOUT,):
        budget, each, whole = (f"{at}log_prob_{name}" for name in ("max_token_len_per_gpu", "micro_batch_size_per_gpu",
                                                                  "micro_batch_size"))  # fmt: skip
        dynamic = keys.flag(f"{at}log_prob_use_dynamic_bsz")
        dynamic = keys.flag(f"{ACTOR}use_dynamic_bsz") if dynamic is None else dynamic
        if dynamic:
            key, size = budget, within(known(keys, budget, usual=0) * tokens_shared, most, length)
            if size and not packs and keys.flag(f"{MODEL}use_remove_padding") is False:
                hint = f"--set logprob_token_budget={max(size, length)}"
                size = of_rows(keys, most, size // length, budget, hint) * length
        elif keys.get(each) is not None:
            key, size = each, min(known(keys, each, usual=0), most) * length
        else:
            key, size = whole, min(known(keys, whole, usual=0) // ranks, most) * length
        keys.skip(budget, each, whole)
        own = known(keys, f"{REF}ulysses_sequence_parallel_size", usual=tokens_shared) if at == REF else tokens_shared
        sizes[key] = size if dynamic or packs else size * tokens_shared // own  # a reference may divide them by fewer
    key, size = max(sizes.items(), key=lambda pair: pair[1])
    if size and size != tokens:
        keys.put("logprob_token_budget", max(size, length), key)


_OWN = re.compile(r"(?:env|agent|actor_rollout_ref\.(?:agent|env))\.|.*\.rollout\.n_\w+|.*turns?$")
"""Settings of forks that may make other numbers of completions than ``n`` of each prompt."""


UNBOUNDED = 10**6


def of_a_rank(keys: Keys, ranks: int) -> int:
    """Completions that each rank scores in all, which no micro-batch is larger than; without a bound in a fork that
    makes others, or takes its batches from a queue. DAPO may score all that it generates
    (recipe/dapo/dapo_ray_trainer.py: compute_kl_related_metrics). Search-R1's are ``n_agent`` of each prompt, of all
    turns together."""
    said, joined = keys.settings.values, f"{ROLLOUT}n_agent" if keys.has("data.max_start_length") else ""
    train, made = said.get("data.train_batch_size"), said.get("data.gen_batch_size")
    sizes = [keys.get(f"{ROLLOUT}n"), said.get(joined, 1), train, train if made is None else made]
    if of_others(keys) or not all(isinstance(each, int) and each for each in sizes):
        return UNBOUNDED
    return max(1, ceil_div(prod(sizes[:2]) * max(sizes[2:]), ranks))


def of_others(keys: Keys) -> bool:
    """Whether a fork, or SkyRL where each turn is a row, may make other numbers of completions."""
    joined = ("max_turns", f"{ROLLOUT}n_agent") if keys.has("data.max_start_length") else ()
    others = (each for each in keys.settings.values if each not in joined)
    return "a row a turn" in keys.draft.facts or any(map(_OWN.match, others))
