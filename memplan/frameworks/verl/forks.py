"""What the code of a verl that lies in the project says: whether it has a critic, and what it makes of logits."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from memplan.frameworks.documents import words
from memplan.frameworks.following import found_at
from memplan.frameworks.sourced import project_of


def in_copy(path: str, name: str) -> str:
    """The text of a file of the verl that lies in the project, its package or its repository, whose folder may have a
    version in its name (``verl-0.4.x``); empty where none does."""
    here = Path(path).resolve().parent
    roots = [here, *(each for each in here.parents if each.is_relative_to(project_of(here)))]
    copies = sorted({each.name for root in roots for each in root.glob("verl*") if each.is_dir()})
    place = next(filter(None, (found_at(path, each) for each in (name, *(f"{copy}/{name}" for copy in copies)))), None)
    return place.read_text(encoding="utf-8", errors="replace") if place else ""


_CRITIC = re.compile(r"self\.use_critic = (True|False)")


def critic_in_code(path: str, estimator: str) -> bool | None:
    """Whether the trainer of the verl that lies in the project has a critic for an estimator, of those that its
    conditions name (trainer/ppo/ray_trainer.py, to 0.5); None where it does not say."""
    parts = _CRITIC.split(in_copy(path, "verl/trainer/ppo/ray_trainer.py"))
    word = "[-_]?".join(map(re.escape, re.split("[-_]", estimator)))
    name = re.compile(rf"(?i)(?:Estimator\.|[\"']){word}\b")
    for before, critic in zip(parts[::2], parts[1::2], strict=False):
        if name.search(before[before.rfind("if ") :]):
            return critic == "True"
    return None


_MADE = re.compile(
    r"(?:log_?probs|(?:compute_)?entropy|\w*sum_pi_squared)_from_logits"
    r"(?:_v2|_with_chunking|_response|_(?:all|response)_rmpad)?|checkpoint|arg_?max|top_?k|print|len|isinstance|del_?\w*"
)
_PLAIN = re.compile(r"(?:shift\w*_|response_)?logits(?:_rmpad|_split\w*|_chunk)?")
_COPIES = words("softmax log_softmax float clone expand exp repeat repeat_interleave")
_OF_VERL = words(
    """self config use_remove_padding padding_free use_fused_kernels calculate_entropy is_mask_all_zero
    entropy_checkpointing calculate_sum_pi_squared"""
)


ACTOR = "verl/workers/actor/dp_actor.py"


def own_head(path: str, said: Collection[str]) -> tuple[str, str]:
    """(where, which of ``said`` asks for it, if any does) the actor of the verl that lies in the project makes more of
    whole logits than verl's; ``said``: names of settings that are on. Empty where it does not
    (workers/actor/dp_actor.py: _forward_micro_batch)."""
    try:
        found = list(_calls(ast.parse(in_copy(path, ACTOR)), frozenset(("elsewhere",))))
    except (SyntaxError, ValueError, RecursionError):
        return "", ""
    for call, tests in found:
        asked = sorted(tests & set(said))
        if _is_dear(call) and (asked or tests <= _OF_VERL):
            return f"{ACTOR}, line {call.lineno}", "".join(asked[:1])
    return "", ""


def _calls(node: ast.AST, tests: frozenset[str]) -> Iterator[tuple[ast.Call, frozenset[str]]]:
    """Calls, each with the names that the conditions around it have."""
    if isinstance(node, ast.Call):
        yield node, tests
    inner = tests | _names(node.test) if isinstance(node, ast.If) else tests
    inner = frozenset() if getattr(node, "name", "") == "_forward_micro_batch" else inner
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, inner)


def _names(node: ast.AST) -> frozenset[str]:
    found = (getattr(each, "id", "") or getattr(each, "attr", "") for each in ast.walk(node))
    return frozenset(filter(None, found))


def _is_dear(call: ast.Call) -> bool:
    """Whether it makes another tensor of logits: a copy, or a function that is none of verl's."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    of = getattr(getattr(call.func, "value", None), "id", "")
    given = [each.id for each in (*call.args, *(word.value for word in call.keywords)) if isinstance(each, ast.Name)]
    logits = [each for each in given if "logits" in each and "from_logits" not in each]
    strange = not _MADE.fullmatch(name) or not all(map(_PLAIN.fullmatch, logits))
    return (bool(logits) and strange) or ("logits" in of and name in _COPIES)
