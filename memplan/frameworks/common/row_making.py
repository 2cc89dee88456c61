"""How a framework's file makes rows of sequences: what only a job that gives lengths asks of it.

Source: trl 0.18 to 1.16 trainer/sft_config.py (packing_strategy); transformers 5.23 training_args.py
(train_sampling_strategy, before 5 group_by_length); axolotl (067b021c8) utils/schemas/validation.py and
core/builders/causal.py (pad_to_sequence_len); LLaMA-Factory 0.9.5 hparams/data_args.py (neat_packing turns packing on).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from memplan.frameworks.base import Keys
from memplan.frameworks.draft import Draft
from memplan.units import round_up

STRATEGIES = {"bfd": "bfd", "ffd": "bfd", "bfd_split": "bfd-split", "bfd-requeue": "bfd-split", "wrapped": "wrapped"}
"""TRL's words, by version."""
FIRST_WITH_STRATEGIES = (0, 18)
"""Before it TRL's packing cuts one stream of tokens."""
AXOLOTL_MULTIPLE = 64


def read_rows(keys: Keys) -> None:
    """Once the method is known, where an option gives lengths."""
    if "lengths" in keys.draft.given:
        keys.draft.finishers["rows"] = partial(_settle, keys)


def _settle(keys: Keys, draft: Draft) -> None:
    by_length = (keys.text("train_sampling_strategy") or "") == "group_by_length"
    found: dict[str, Any] = {"group_by_length": True} if by_length or keys.flag("group_by_length") else {}
    multiple = keys.whole("pad_to_multiple_of")
    found |= {"pad_to_multiple_of": multiple} if multiple else {}
    packs = _PACKS.get(keys.framework.name)
    if packs is not None and str(draft.now("method")) == "sft":
        found |= packs(keys)
    draft.values["lengths"] = found


def _trl(keys: Keys) -> dict[str, Any]:
    if not keys.flag("packing"):
        return {}
    version = keys.draft.version
    said = keys.text("packing_strategy") or ("bfd" if version >= FIRST_WITH_STRATEGIES else "wrapped")
    if said not in STRATEGIES:
        keys.warn("packing_strategy", "how it fills rows is not known: they are drawn as without packing")
    return {"packing": STRATEGIES[said]} if said in STRATEGIES else {}


def _axolotl(keys: Keys) -> dict[str, Any]:
    """Packed rows are padded to the full length unless the file says that they are not."""
    if not keys.flag("sample_packing"):
        return {}
    multiple = keys.whole("pad_to_multiple_of") or AXOLOTL_MULTIPLE
    length = int(keys.draft.now("sequence_length") or 1)
    full = keys.flag("pad_to_sequence_len") is not False
    return {"packing": "multipack", "pad_to_multiple_of": round_up(length, multiple) if full else 1}


_PACKS: Mapping[str, Callable[[Keys], dict[str, Any]]] = {
    "trl": _trl,
    "axolotl": _axolotl,
    "llamafactory": lambda keys: {"packing": "knapsack"} if keys.flag("packing") or keys.flag("neat_packing") else {},
}
"""By framework: how it packs a supervised job."""
