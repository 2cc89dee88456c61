"""What is said of a framework's copy in the project that does more than the framework (``own_code.py``)."""

from collections.abc import Mapping
from functools import lru_cache

from memplan.frameworks.base import Draft, Keys
from memplan.frameworks.project.copies import TRL, Places, in_copy
from memplan.frameworks.project.own_code import Found, code_of, own_graph, own_head, own_pass, own_role


def warn_own_code(keys: Keys, of: Places, named: Mapping[str, str], bearer: str, program: str) -> set[str]:
    """What the copy's code makes of the logits, runs or has beside the policy. ``named``: settings that nobody else
    knows, by the names that the code may ask for; ``bearer``: the key that is told of what is asked by none;
    ``program``: what a program of the project's own says. Returns the settings that are told."""
    told = set()
    for found, role, what, decides in found_in(of, keys.settings.path, keys.framework.label, tuple(named), program):
        key = named.get(found.asked, role or bearer)
        told.add(named.get(found.asked, ""))
        keys.draft.warn(key, keys.settings.where(key), f"{found.where}, {what}", decides)
    return told


def warn_copy_of_trl(path: str, method: str, draft: Draft) -> None:
    """The same of a TRL that lies beside a program."""
    for found, _, what, decides in found_in(TRL[method], path, "TRL", (), "") if method in TRL else ():
        draft.warn("trl", found.where, f"the project's own copy {what}", decides)


@lru_cache(maxsize=8)
def found_in(
    of: Places, path: str, title: str, named: tuple[str, ...], program: str
) -> tuple[tuple[Found, str, str, str], ...]:
    """(where, whose workers they are, what it does, what that decides)."""
    makes = program
    if not of.updates:  # what a trainer puts in a batch, the update asks for
        makes += next(filter(None, (in_copy(path, name, of.package) for name in of.trainers)), "")
    actor, trainer = code_of(path, of.actor), code_of(path, *of.trainers) if of.trainers else []
    updates = {name: code_of(path, name) for name in of.updates} or {of.actor: actor}
    passes = (own_pass(of, code, named, makes, name) for name, code in updates.items())
    role, found = own_role(of, trainer, named, program) or ("", None)
    every = (
        (own_head(of, actor, named), "", f"makes more of the logits than {title} does", "loss"),
        (next(filter(None, passes), None), "", f"runs the model more often than {title} does", "activations"),
        (own_graph(of, actor), "", "scores a rollout without no_grad: its graphs wait", "activations"),
        (found, role, "has workers of its own whose model is not counted", "model"),
    )
    return tuple((each, whose, what, decides) for each, whose, what, decides in every if each)
