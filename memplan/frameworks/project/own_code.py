"""What the code of a framework that lies in the project does that the framework's does not: more of logits, more passes
through the model, models of its own, an entropy where it has none. Its conditions are followed by the names in them.

Source of what is theirs: verl 0.1 to 0.7 workers/actor/dp_actor.py, workers/fsdp_workers.py,
trainer/ppo/ray_trainer.py; EasyR1 0.1 to 0.3; OpenRLHF 0.3 to 0.11 models/actor.py, trainer/ray/ppo_actor.py,
trainer/ppo_trainer.py, cli/train_ppo_ray.py; TRL 0.16 to 1.16 trainer/grpo_trainer.py, rloo_trainer.py."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from memplan.frameworks.files.documents import words
from memplan.frameworks.project.copies import VERL, Places, in_copy

_MADE = re.compile(
    r"(?:log_?probs|(?:compute_)?entropy|\w*sum_pi_squared)_from_logits"
    r"(?:_v2|_with_chunking|_response|_(?:all|response)_rmpad)?|checkpoint|arg_?max|top_?k|print|len|isinstance|del_?\w*"
    r"|compute_entropy|gather_and_pad_tensor|selective_log_softmax|zip|enumerate"
)
_PLAIN = re.compile(
    r"(?:(?:shift\w*_|response_)?logits(?:_rmpad|_split\w*|_chunk|_batch)?|\w+(?:\.logits|\['logits'\]))(?:\[[^\]]*\])?"
)
_COPIES = words("softmax log_softmax float clone expand exp repeat repeat_interleave")
_THEIRS = words(
    """self config get use_remove_padding padding_free use_fused_kernels calculate_entropy is_mask_all_zero
    entropy_checkpointing calculate_sum_pi_squared use_dynamic_bsz use_kl_loss hybrid_engine use_reference_policy
    use_critic use_rm return_entropy None True False"""
)
"""Names in conditions that say nothing, or hold for what is counted anyway."""
MOST_KEPT = 12
"""Files of copies that neighbours read too."""
MOST_DEEP = 3
"""Assignments behind one another that a condition is followed through."""
_LAYOUT = words("self config use_remove_padding padding_free use_fused_kernels")
"""Names in conditions about rows, not about what is made of them."""
_MAKES_ENTROPY = re.compile(r"entropy_from_logits\w*$")
_LOOKS = words(
    """isinstance hasattr getattr type print len id next clip_grad_norm_ fsdp2_clip_grad_norm_ summon_full_params
    backward optimizer_step moving_average get_grad_norm unwrap_model unwrap_model_for_generation compute_liger_loss"""
)
"""Functions that are handed a module and run it not."""
_ROLES = words(
    """actor rollout actor_rollout actor_rollout_ref ref critic rm reward actor_role role Role str Actor Rollout
    ActorRollout ActorRolloutRef Critic RefPolicy RewardModel Env reward_model actor_model ref_model critic_model"""
)
"""Their own groups of workers."""


class Seen(NamedTuple):
    """A call or an assignment in a method, under conditions."""

    node: ast.Call | ast.Assign
    method: str = ""
    """The outermost function around it."""
    conditions: tuple[ast.expr, ...] = ()
    """Those around it there."""
    branches: frozenset[tuple[int, str]] = frozenset()
    """Lines of those, each with the side."""
    graph: bool = True
    """No ``no_grad`` is around it."""

    @property
    def tests(self) -> frozenset[str]:
        """Names in its conditions."""
        return frozenset().union(*map(_names, self.conditions))

    @property
    def calls(self) -> str:
        """What it calls."""
        return _written(self.node.func) if isinstance(self.node, ast.Call) else ""

    @property
    def given(self) -> list[ast.expr]:
        """What that is given."""
        return (
            [*self.node.args, *(word.value for word in self.node.keywords)] if isinstance(self.node, ast.Call) else []
        )


class Found(NamedTuple):
    """Where it stands, and which setting that is on asks for it, if one does."""

    where: str
    asked: str = ""


def code_of(path: str, *names: str) -> Sequence[Seen]:
    """What a file of the copy calls and assigns, the first of these names that is here; nothing where none is."""
    package = names[0].partition("/")[0]
    return _code(next(filter(None, (in_copy(path, name, package) for name in names)), ""))


def seen_in(node: ast.AST) -> Iterator[Seen]:
    """What a piece of code calls and assigns."""
    return _seen(node)


@lru_cache(maxsize=MOST_KEPT)
def _code(text: str) -> tuple[Seen, ...]:
    try:
        return tuple(_seen(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def own_head(of: Places, actor: Sequence[Seen], said: Collection[str]) -> Found | None:
    """Where the actor makes more of whole logits than the framework's; ``said``: names of settings that are on."""
    for each in actor:
        asked = sorted(each.tests & set(said))
        if _is_dear(each) and (asked or (of.forward.fullmatch(each.method) and each.tests <= _THEIRS)):
            return Found(f"{of.actor}, line {each.node.lineno}", "".join(asked[:1]))
    return None


def own_pass(of: Places, actor: Sequence[Seen], said: Collection[str], program: str, name: str = "") -> Found | None:
    """Where the update runs the model more often than the framework's, once a micro-batch: itself, by a function that
    it hands the model to, or twice before a backward. ``actor``: what the file ``name`` calls."""
    reached: dict[str, tuple[ast.expr, ...]] = dict.fromkeys(of.update, ())  # what the update calls, and under what
    for _ in {each.method for each in actor}:
        for each in (each for each in actor if each.method in reached and each.calls.startswith("self.")):
            reached.setdefault(each.calls.removeprefix("self."), reached[each.method] + each.conditions)
    beside = (each for each in actor if each.method != of.score and not of.forward.fullmatch(each.method))
    update = [each._replace(conditions=each.conditions + reached[each.method]) for each in beside
              if each.method in reached]  # fmt: skip
    passes = [each for each in update if of.passes.fullmatch(each.calls)]
    own = [each for each in update if _runs(of, each)]
    ends = [each.node.lineno for each in update if each.calls.rpartition(".")[2] == "backward"]
    own += [two for one, two in combinations(passes, 2) if one.method == two.method and not _apart(one, two, ends)]
    return next(filter(None, (_asked(each, actor, said, program, name or of.actor) for each in own)), None)


def own_graph(of: Places, actor: Sequence[Seen]) -> Found | None:
    """Where a rollout's scores are made with a graph, which stays over all their micro-batches."""
    found = (each for each in actor if each.method == of.score and each.graph and of.passes.fullmatch(each.calls))
    return next((Found(f"{of.actor}, line {each.node.lineno}") for each in found), None)


def own_role(of: Places, trainer: Sequence[Seen], said: Collection[str], program: str) -> tuple[str, Found] | None:
    """A group of workers that the framework does not have, and where it is made."""
    for each in trainer:
        if not isinstance(each.node, ast.Assign):
            continue
        for target in each.node.targets:
            role = _names(target.slice if isinstance(target, ast.Subscript) else target) - _ROLES
            made = each.node.value.func if isinstance(each.node.value, ast.Call) else ast.Name("")
            if role and of.workers.search(f"{ast.unparse(target)} = {ast.unparse(made)}("):
                found = _asked(each, trainer, said, program, of.trainers[0])
                if found:
                    return min(role), found
    return None


def own_entropy(actor: Sequence[Seen], workers: Sequence[Seen]) -> tuple[bool, str]:
    """Whether there is an entropy beside a rollout's scores, and what one in the update is (``entropy`` of a job; empty
    for none), whatever is set: because a pass has it always, or because it is asked for."""
    always = any(
        VERL.forward.fullmatch(each.method) and _MAKES_ENTROPY.search(each.calls) and each.tests <= _LAYOUT
        for each in actor
    )
    scored = (each for each in workers if each.calls == f"self.actor.{VERL.score}")
    update = (each for each in actor if each.method == VERL.update[0] and VERL.passes.fullmatch(each.calls))
    asked = any(_with_entropy(each) for each in update if each.tests <= _THEIRS)
    return always or any(map(_with_entropy, scored)), "loss" if always else "metric" if asked else ""


@lru_cache(maxsize=1 << 14)
def _written(node: ast.expr) -> str:
    return ast.unparse(node)


def _with_entropy(seen: Seen) -> bool:
    given = seen.node.keywords if isinstance(seen.node, ast.Call) else []
    return any("entropy" in (word.arg or "") and ast.unparse(word.value) == "True" for word in given)


def _asked(seen: Seen, code: Sequence[Seen], said: Collection[str], program: str, name: str) -> Found | None:
    """Whether it may be run: its switches are settings that are on, their values (``=dual``) or the program's words."""
    meant = [(ast.unparse(target), each.node.value) for each in code if isinstance(each.node, ast.Assign)
             for target in each.node.targets]  # fmt: skip
    switches = frozenset().union(*(_switches(each, meant, MOST_DEEP) for each in seen.conditions)) - _THEIRS - _ROLES
    asked = switches & set(said)
    if all(re.search(rf"[\"'.]{re.escape(each)}\b", program) for each in switches - asked):
        return Found(f"{name}, line {seen.node.lineno}", "".join(sorted(asked)[:1]))
    return None


def _switches(test: ast.expr, meant: Sequence[tuple[str, ast.expr]], deep: int) -> frozenset[str]:
    """What a condition asks a config, a batch or the trainer's roles for, by name, through what is set elsewhere."""
    found: set[str] = set()
    for each in ast.walk(test):
        named: list[ast.expr] = []
        if isinstance(each, ast.Compare):
            named = [each.left] if isinstance(each.ops[0], ast.In) else []
            if isinstance(each.ops[0], ast.Eq):
                found |= {f"={value}" for value in map(_word, each.comparators) if value}
        elif isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] in ("get", "getattr", "hasattr"):
            named = each.args[:2]
        elif isinstance(each, ast.Subscript):
            named = [each.slice]
        elif isinstance(each, ast.Attribute) and re.search(r"(?:config|Role|\bargs)$", ast.unparse(each.value)):
            found.add(each.attr)
        elif isinstance(each, ast.Name | ast.Attribute) and deep:
            values = (value for name, value in meant if name == ast.unparse(each))
            found = found.union(*(_switches(value, meant, deep - 1) for value in values))
        found |= {value for value in map(_word, named) if value}
    return frozenset(found)


def _word(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _runs(of: Places, seen: Seen) -> bool:
    """Whether it is a pass through the actor's module, or hands that to a function which may be one."""
    if of.passes.fullmatch(seen.calls):
        return False
    handed = of.module in map(ast.unparse, seen.given) and seen.calls.rpartition(".")[2] not in _LOOKS
    return handed or seen.calls == of.module


def _apart(one: Seen, two: Seen, ends: Collection[int]) -> bool:
    """Whether at most one of two calls is made, on two sides of a condition, or the first's graph is gone before the
    second. ``ends``: lines of backwards."""
    sides = dict(one.branches)
    return any(one.node.lineno < end < two.node.lineno for end in ends) or any(
        sides.get(line, side) != side for line, side in two.branches
    )


def _seen(node: ast.AST, at: Seen | None = None) -> Iterator[Seen]:
    at = at or Seen(ast.Assign([], ast.Name("")))
    if isinstance(node, ast.Call | ast.Assign):
        yield at._replace(node=node)
    if isinstance(node, ast.FunctionDef) and not at.method:
        at = at._replace(method=node.name)
    around = (
        node.decorator_list if isinstance(node, ast.FunctionDef) else node.items if isinstance(node, ast.With) else ()
    )
    if any(re.search(r"no_grad|inference_mode", ast.unparse(each)) for each in around):
        at = at._replace(graph=False)
    for name, value in ast.iter_fields(node):
        inner = at
        if isinstance(node, ast.If | ast.IfExp) and name != "test":
            inner = at._replace(conditions=(*at.conditions, node.test), branches=at.branches | {(node.lineno, name)})
        elif isinstance(node, ast.Try) and name in ("body", "handlers"):
            inner = at._replace(branches=at.branches | {(node.lineno, name)})
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _seen(child, inner)


@lru_cache(maxsize=1 << 14)
def _names(node: ast.AST) -> frozenset[str]:
    """Names, attributes and words of an expression."""
    found = (
        getattr(each, "id", "") or getattr(each, "attr", "") or getattr(each, "value", "") for each in ast.walk(node)
    )
    return frozenset(each for each in found if each and isinstance(each, str))


def _is_dear(seen: Seen) -> bool:
    """Whether it makes another tensor of logits: a copy, a quotient, or a function that is none of verl's."""
    if isinstance(seen.node, ast.Assign):
        value = seen.node.value
        divided = isinstance(value, ast.BinOp) and ast.unparse(value.right) == "self.temperature"  # as a job's is
        return isinstance(value, ast.BinOp) and not divided and bool(_PLAIN.fullmatch(ast.unparse(value.left)))
    of, _, name = seen.calls.rpartition(".")
    plain = (ast.unparse(each) for each in seen.given if isinstance(each, ast.Name | ast.Attribute | ast.Subscript))
    logits = [each for each in plain if re.search(r"\blogits|logits\b", each) and "from_logits" not in each]
    strange = not _MADE.fullmatch(name) or not all(map(_PLAIN.fullmatch, logits))
    return (bool(logits) and strange) or ("logits" in of and of.isidentifier() and name in _COPIES)
