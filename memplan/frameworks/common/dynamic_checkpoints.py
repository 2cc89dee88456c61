"""Checkpoints whose 4 bits are not everywhere: Unsloth's "dynamic" ones, by name, and where Unsloth loads them in a
model's place. Which linears they leave in 16 bits, their configs say; how many, here, where the size is published."""

import re
from functools import cache

from memplan.frameworks.draft import ASSUMED, Draft, Origin
from memplan.tables.texts import parts_of, rows_of
from memplan.tables.trainer import version_key

DYNAMIC = re.compile(r"(?i)-unsloth-bnb-4bit$")
SHARE_HINT = "add --unquantized-share 0.05, if so many of them are"
SINCE = "2024.12"
"""Unsloth's first version that loads one in a model's place (models/mapper.py)."""
MOST = {"text": 0.08, "images": 0.25}
"""No less than in any whose size is published (0.074; 0.245 with the vision tower)."""


@cache
def _known() -> tuple[dict[str, float], dict[str, str]]:
    parts = parts_of(__file__)
    sizes = {name: float(text.partition(" of ")[0]) for name, text in rows_of(parts["known"]).items()}
    return sizes, {name: kind for kind in MOST for name in parts[kind].split()}


def put_share_left(draft: Draft) -> None:
    """The share of a 4-bit base that such a checkpoint leaves in 16 bits, into the draft; as a bound where its size is
    not known here."""
    name, given = draft.values.get("model"), draft.said
    in_four = str(given.get("quantization")).startswith("nf4")
    if not isinstance(name, str) or not in_four or "unquantized_share" in given:
        return
    last = name.rstrip("/").rpartition("/")[2].lower()
    plain, is_one = DYNAMIC.sub("", last), DYNAMIC.search(last) is not None
    before = version_key(draft.facts.get("unsloth's version") or SINCE) < version_key(SINCE)
    if not is_one and ("unsloth" not in draft.facts or last.endswith("-bnb-4bit") or before):
        return
    (shares, kinds), where = _known(), draft.origins["model"].text if "model" in draft.origins else "model"
    told = f"{plain}-unsloth-bnb-4bit{'' if is_one else ', which Unsloth loads,'}"
    if plain in shares:
        if shares[plain]:
            why = f"{told} leaves {shares[plain]:.1%} of the linears in 16 bits, by its size"
            draft.put("unquantized_share", shares[plain], Origin(ASSUMED, f"{where}: {why}"))
    elif is_one or plain in kinds:
        most = MOST[kinds.get(plain, "text")]
        why = f"{told} leaves some linears in 16 bits, which its config names: counted as {most:.0%} of them"
        draft.put("unquantized_share", most, Origin(ASSUMED, f"{where}: {why}"))
        draft.bound("load_in_4bit", where, why, "quantisation", hint=SHARE_HINT)
