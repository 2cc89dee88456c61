"""What is said of a verl that lies in the project and does more than verl does (``own_code.py``)."""

from memplan.frameworks.base import Keys
from memplan.frameworks.verl.forks import in_copy
from memplan.frameworks.verl.keys import ACTOR
from memplan.frameworks.verl.own_code import ACTOR as CODE
from memplan.frameworks.verl.own_code import TRAINERS, WORKERS, code_of, own_entropy, own_head, own_pass, own_role


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
    program = keys.draft.facts.get("verl program", "")
    makes = program + next(filter(None, (in_copy(settings.path, name) for name in TRAINERS)), "")
    actor = code_of(settings.path, CODE)
    role = own_role(code_of(settings.path, *TRAINERS), named, program)
    for found, what, decides in (
        (own_head(actor, named), "makes more of the logits than verl does", "loss"),
        (own_pass(actor, named, makes), "runs the model more often than verl does", "activations"),
        (role and role[1], "has workers of its own whose model is not counted", "model"),
    ):
        if found:
            strange[:] = [key for key in strange if key != named.get(found.asked)]
            key = named.get(found.asked, role[0] if role and decides == "model" else f"{ACTOR}strategy")
            keys.draft.warn(key, settings.where(key), f"{found.where}, {what}", decides)


def own_entropy_of(keys: Keys) -> tuple[bool, str]:
    """What a fork's own code has of an entropy where nothing asks for one: beside its scores, in its update."""
    path = keys.settings.path
    return own_entropy(code_of(path, CODE), code_of(path, WORKERS))
