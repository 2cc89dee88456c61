"""prime-rl's head: in chunks of tokens, or whole logits in fp32.

Without a word in the config the code that lies in the project says which: RL has chunks from 0.3 on ("auto", or None in
0.3), whole logits in 0.5 and 0.6 and before 0.3, chunks again from 0.7 on. Source: PrimeIntellect-ai/prime-rl 0.2 to
@559b447 trainer/config.py, later configs/trainer.py; trainer/rl/config.py: auto_setup_fused_lm_head_chunk_size."""

import re

from memplan.frameworks.base import Keys
from memplan.frameworks.files.following import found_at
from memplan.frameworks.prime_rl.adapters import MODEL, TRAINER

CONFIGS = (
    "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
    "src/prime_rl/configs/trainer.py",
    "src/prime_rl/trainer/config.py",
)
_FIELD = re.compile(r"fused_lm_head\w*chunk_size: (?:Annotated\[.*?\n {4}\]|[^\n=]*?) = (\S+)", re.DOTALL)


def _usual(path: str) -> str:
    """The default of the prime-rl that lies in the project; empty where none does."""
    place = next(filter(None, (found_at(path, name) for name in CONFIGS)), None)
    match = _FIELD.search(place.read_text(encoding="utf-8", errors="replace")) if place else None
    word = match[1].strip("\"'") if match else "disabled" if place else ""
    return "auto" if word == "None" else word


def read_head(keys: Keys, method: str, newer: bool) -> None:
    """A head in chunks of tokens, or whole logits in fp32."""
    at = f"{MODEL}fused_lm_head_token_chunk_size"
    older = f"{MODEL}fused_lm_head_chunk_size"
    told = next((name for name in (at, older) if keys.has(name)), "")
    usual = "" if told else _usual(keys.settings.path)
    said = keys.get(told or at) if told or not usual else usual
    keys.skip(at, older)
    chunks = isinstance(said, int) or str(said).isdigit()
    loss = keys.text(f"{TRAINER}loss_impl") or ""
    if method == "sft" and (loss.endswith("_fused") or (newer and not loss and chunks)):
        keys.put("loss_head", "fused", f"{TRAINER}loss_impl" if loss else at)
    elif method == "sft" and loss == "liger":
        keys.bound(f"{TRAINER}loss_impl", "Liger's loss is counted as torch's, which takes more", "loss")
    elif method == "grpo" and not (chunks or (said == "auto" and keys.text(f"{MODEL}impl") != "liger_kernel")):
        keys.put("loss_head", "log-softmax", told or at)
        if not (told or usual or newer):
            keys.bound(at, "nothing tells the version: whole logits, as in 0.6, which take more", "loss", "loss_head")
    elif method == "grpo" and told:
        keys.put("loss_head", "fused", told)
