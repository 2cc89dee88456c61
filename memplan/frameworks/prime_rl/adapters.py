"""Adapters of prime-rl's trainer: modules by their names or by patterns of them, and what is trained whole beside them.

Source: PrimeIntellect-ai/prime-rl 0.2 to @559b447 trainer/lora.py; configs between 0.1 and 0.2 (``lora.enabled``)."""

import re
from typing import Any

from memplan.frameworks.base import Keys
from memplan.frameworks.files.documents import words

TRAINER, MODEL = "trainer.", "trainer.model."
LINEARS = words("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj")
DEFAULT_TARGETS = LINEARS | words("experts fc1_latent_proj fc2_latent_proj")


def read_adapters(keys: Keys, said: set[str]) -> None:
    """LoRA on every linear, in fp32 as the weights are."""
    at = next((name for name in (f"{MODEL}lora", f"{MODEL}experimental.lora") if name in said), f"{MODEL}lora")
    rank = keys.whole(f"{at}.rank") if keys.has(f"{at}.rank") else 16
    if at not in said or str(keys.settings.values.get(at, "")).lower() in ("none", "null", "false"):
        return
    old = keys.flag(f"{at}.enabled")
    if old is False:
        return
    names, absent = _ends(keys, f"{at}.target_modules") or DEFAULT_TARGETS, DEFAULT_TARGETS - LINEARS
    targets: Any = "all-linear" if names >= LINEARS else sorted(names - absent)
    kept = f"{at}.modules_to_save"
    whole = _ends(keys, kept)
    if old:  # between 0.1 and 0.2, where embedding, head and norms are trained unless it says others
        kept = f"{at}.trainable_modules"
        whole = _ends(keys, kept) if keys.has(kept) else {"embed_tokens", "lm_head"}
    saved = sorted(whole & {"embed_tokens", "lm_head"})
    keys.put("lora", {"r": rank, "targets": targets, "dropout": keys.number(f"{at}.dropout") or 0.0,
                      **({"modules_to_save": saved} if saved else {})}, at)  # fmt: skip
    keys.skip(f"{at}.alpha", f"{at}.merge_on_save")
    if saved:
        keys.bound(kept, f"{' and '.join(saved)}, trained in place, are counted with a copy", "adapters")
    if not all(name in saved or name.endswith("norm") for name in whole):
        keys.warn(kept, "modules trained whole beside adapters are not counted", "adapters")
    for key in keys.settings.values:
        if key.startswith(f"{at}.") and not keys.took(key) and keys.get(key):
            keys.warn(key, "no setting of prime-rl's adapters that is known", "adapters")
    if (keys.whole(f"{TRAINER}max_concurrent_runs") or 1) > 1:
        keys.warn(f"{TRAINER}max_concurrent_runs", "adapters of several runs are counted as one's", "adapters")


def _ends(keys: Keys, key: str) -> set[str]:
    """Names of modules, of patterns such as ``.*\\.q_proj$`` what they end in."""
    found = keys.get(key)
    return {re.sub(r"\$$", "", str(each)).rpartition(".")[2].strip("*\\ ") for each in
            (found if isinstance(found, list) else keys.names(key) or ())}  # fmt: skip
