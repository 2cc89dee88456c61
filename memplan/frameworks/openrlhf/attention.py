"""What OpenRLHF was before: attention eager before 0.9 unless ``--flash_attn`` is there (models/model.py), and whole
log-softmaxes before 0.6."""

import re

from memplan.frameworks.base import Keys
from memplan.frameworks.files.following import found_at
from memplan.frameworks.hugging_face.arguments import ATTENTIONS


def read_attention(keys: Keys) -> None:
    """Of any of its programs."""
    attention = ATTENTIONS.get(str(keys.get("ds.attn_implementation")).lower(), "flash")
    keys.put("attention", attention, "ds.attn_implementation")
    flash = keys.flag("flash_attn") or keys.flag("packing_samples") or keys.has("ds.attn_implementation")
    if keys.flag("bf16") and not flash:
        why = "attention is counted as eager, which OpenRLHF before 0.9 runs without --flash_attn"
        if not old_code(keys.settings.path, 9):
            keys.bound("bf16", why, "attention")
        keys.draft.values["attention"] = "eager"
    keys.skip("bf16", "flash_attn")


def old_code(path: str, minor: int) -> bool:
    """Whether OpenRLHF lies in the project, as it was before 0.``minor``."""
    place = found_at(path, "version.txt") if found_at(path, "openrlhf/__init__.py") else None
    match = re.match(r"0\.(\d+)", place.read_text(errors="replace")[:20].strip()) if place else None
    return match is not None and int(match[1]) < minor


def _scores_whole(path: str) -> bool:
    """Whether it is of before 0.6, by its version or, of a copy without one, by how it makes log-probabilities."""
    place = found_at(path, "openrlhf/models/utils.py")
    code = place.read_text(encoding="utf-8", errors="replace") if place else ""
    return old_code(path, 6) or ("log_softmax(logits" in code and "logsumexp" not in code)


def read_old_head(keys: Keys, method: str) -> None:
    """Whole log-softmaxes before 0.6, of SFT of a copy (models/utils.py, loss.py of 0.4; 0.6 has flash-attn's)."""
    if method != "reward" and "loss_head" not in keys.draft.values and _scores_whole(keys.settings.path):
        keys.remark("OpenRLHF before 0.6 lies beside it: logits are scored whole")
        keys.put("loss_head", "cross-entropy" if method == "sft" else "log-softmax")
