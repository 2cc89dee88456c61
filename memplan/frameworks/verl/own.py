"""What is said of a verl that lies in the project and does more than verl does (``own_code.py``)."""

from memplan.frameworks.base import Keys
from memplan.frameworks.project.copies import VERL
from memplan.frameworks.project.own_code import code_of, own_entropy
from memplan.frameworks.project.own_copies import warn_own_code
from memplan.frameworks.verl.keys import ACTOR

WORKERS = "verl/workers/fsdp_workers.py"


def read_own_code(keys: Keys, strange: list[str]) -> None:
    """What a fork's own code makes of the logits, runs or has beside the policy, of a setting that nobody else knows or
    whatever is said."""
    if keys.draft.facts.get("verl trainer") or keys.draft.values.get("method") == "sft":
        return
    settings = keys.settings
    named = {key.rpartition(".")[2]: key for key in (*keys.draft.facts.get("verl fork", ()), *strange)}
    named |= {f"={settings.values[key]}": key for key in strange}
    if "context_parallel" in keys.draft.values:
        named["use_ulysses_sp"] = f"{ACTOR}ulysses_sequence_parallel_size"
    asked = warn_own_code(keys, VERL, named, f"{ACTOR}strategy", keys.draft.facts.get("verl program", ""))
    strange[:] = [key for key in strange if key not in asked]


def own_entropy_of(keys: Keys) -> tuple[bool, str]:
    """What a fork's own code has of an entropy where nothing asks for one: beside its scores, in its update."""
    path = keys.settings.path
    return own_entropy(code_of(path, VERL.actor), code_of(path, WORKERS))
