"""What is said of a framework's copy in the project that does more than the framework (``own_code.py``)."""

from collections.abc import Mapping

from memplan.frameworks.base import Keys
from memplan.frameworks.copies import Places, in_copy
from memplan.frameworks.own_code import code_of, own_head, own_pass, own_role


def warn_own_code(keys: Keys, of: Places, named: Mapping[str, str], bearer: str, program: str) -> set[str]:
    """What the copy's code makes of the logits, runs or has beside the policy. ``named``: settings that nobody else
    knows, by the names that the code may ask for; ``bearer``: the key that is told of what is asked by none;
    ``program``: what a program of the project's own says. Returns the settings that are told."""
    path, title, makes = keys.settings.path, keys.framework.label, program
    if not of.updates:  # what a trainer puts in a batch, the update asks for
        makes += next(filter(None, (in_copy(path, name, of.package) for name in of.trainers)), "")
    actor, trainer = code_of(path, of.actor), code_of(path, *of.trainers)
    updates = {name: code_of(path, name) for name in of.updates} or {of.actor: actor}
    passes = (own_pass(of, code, named, makes, name) for name, code in updates.items())
    role = own_role(of, trainer, named, program)
    told = set()
    for found, what, decides in (
        (own_head(of, actor, named), f"makes more of the logits than {title} does", "loss"),
        (next(filter(None, passes), None), f"runs the model more often than {title} does", "activations"),
        (role and role[1], "has workers of its own whose model is not counted", "model"),
    ):
        if found:
            key = named.get(found.asked, role[0] if role and decides == "model" else bearer)
            told.add(named.get(found.asked, ""))
            keys.draft.warn(key, keys.settings.where(key), f"{found.where}, {what}", decides)
    return told
