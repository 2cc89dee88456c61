"""A plain training loop of a program's own: one forward of a model of transformers', with the loss that it makes
itself, ``backward``, a step. It is counted as transformers' Trainer runs it, with the outputs that its names hold.

What makes more of the logits, a second forward or a loss of the program's own is no plain loop, and stays unclear."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.programs import lightning
from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.changes import MARK
from memplan.frameworks.programs.engines import INITIALISED
from memplan.frameworks.programs.loop_settings import arguments_of, float8_of, loaders_around, throws_away
from memplan.frameworks.programs.losses.bound import found_in_loop
from memplan.frameworks.programs.losses.put import UNREAD, ask_loss, put_bound
from memplan.frameworks.programs.models import as_it_is
from memplan.frameworks.programs.operators import written
from memplan.frameworks.programs.others import alive
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.text import Part
from memplan.frameworks.programs.values import Place, Thing, Unknown

FORWARD, BACKWARD, LOOP = "a model's forward", "a backward", "?loop"
OFF = ("no_grad", "inference_mode")
"""Contexts in which a forward trains nothing."""
OPTIMIZERS = re.compile(
    r"^(torch\.optim|bitsandbytes\.optim|transformers|deepspeed\.ops|torchao)\b.*\.\w*(Adam|SGD|Lion|Adafactor)"
)
NUMBERS = ("len", "float", "int", "max", "min")
"""Functions that a loss may be divided by the result of."""
OF_LOSS = ("mean", "float", "sum")
ARGMAX = re.compile(r"\bargmax\b")
HEAVY = re.compile(
    r"softmax|float\(|\.to\(torch|entropy|exp\(|log\(|clone|sort|top_?k|contiguous|\.cpu|model\(|append|gather\("
)
"""What a function does with logits that may make another tensor as large, or keep one."""


def noted(call: Call, callee: Any) -> None:
    """Remember a forward of a model, and where gradients are made."""
    run = call.run
    if run.aside:
        return
    fitted = None
    if isinstance(callee, Thing) and callee.name == "model":
        through = tuple(node for node, _ in run.stack)
        values = {"node": call.node, "model": as_it_is(callee), "within": run.within, "through": through}
        run.things.append(Thing(FORWARD, call.place, values))
    elif call.name == "backward" or (fitted := _fitted(call)) is not None:
        scope = run.stack[-1][0] if run.stack else None
        beside = alive(run, Thing(LOOP, call.place))
        values = {"node": call.node, "scope": scope, "beside": beside, "uncalled": run.uncalled, "frame": run.frame}
        more = fitted.values if fitted is not None else {"loaders": loaders_around(run, scope, call.node)}
        run.things.append(Thing(BACKWARD, fitted.place if fitted is not None else call.place, values | more))
        run.differentiates |= not run.uncalled


def _fitted(call: Call) -> Thing | None:
    """The step of Lightning's ``trainer.fit(module)``."""
    of_trainer = isinstance(call.owner, Thing) and call.owner.name == lightning.TRAINER
    return lightning.fitted(call) if of_trainer and call.name == "fit" else None


def trainers(run: Run, parts: Sequence[Part]) -> list[Thing]:
    """Each plain loop that the program comes to, as a trainer of transformers' with what the loop says."""
    found: dict[ast.AST, Thing] = {}
    unread: dict[ast.AST, tuple[Thing, ast.AST]] = {}
    for each in run.things:
        if each.name != BACKWARD or each.values["uncalled"]:
            continue
        tree = next((part.tree for part in parts if part.path == each.place.path), each.values["scope"])
        scope = each.values["scope"] or tree
        if scope is None or throws_away(scope):
            continue
        inside = set(ast.walk(scope))
        forwards = {thing.values["node"]: thing for thing in run.things if thing.name == FORWARD}
        forwards = {node: thing for node, thing in forwards.items() if node in inside}
        trained = [node for node, thing in forwards.items() if not _is_off(thing)]
        if len(trained) == 1 and len({thing.values["model"].place for thing in forwards.values()}) == 1:
            turn = _Turn(scope, trained[0], set(forwards), tree)
            if turn.is_loss(_lost(each.values["node"])):
                found[trained[0]] = _trainer(run, each, forwards[trained[0]], turn)
                _tell_others(run, trained[0], scope, found[trained[0]])
                continue
        own = _own(run, each, scope, tree)
        if own is not None:
            found[each.values["node"]] = own
        elif not any(thing.place.path == each.place.path for thing in found.values()):
            unread.setdefault(scope, (each, tree))
    asked = (_asked(run, each, scope, tree) for scope, (each, tree) in unread.items())
    return [*found.values()] or [each for each in asked if each is not None]


def _own(run: Run, backward: Thing, scope: ast.AST, tree: ast.AST) -> Thing | None:
    """A loop whose loss is the program's own, where all that it makes is known (``losses/bound.py``)."""
    calls = [each for each in run.things if each.name == FORWARD]
    trained = {each.values["model"].place: each for each in calls if not _is_off(each)}
    if len(trained) != 1 or (found := found_in_loop(run, backward, scope, calls, *trained)) is None:
        return None
    (first,) = trained.values()
    turn = _Turn(scope, first.values["node"], {each.values["node"] for each in calls}, tree)
    trainer = _trainer(run, backward, first, turn, more=False)
    trainer.set("?own", found, backward.place)
    return trainer


def _asked(run: Run, backward: Thing, scope: ast.AST, tree: ast.AST) -> Thing | None:
    """A loop that steps an optimizer over one model, whose loss is not read: what that holds is asked for."""
    calls = [each for each in run.things if each.name == FORWARD and scope in (*each.values["through"], tree)]
    own = [each for each in calls if not _is_off(each)]
    steps = any(OPTIMIZERS.search(each.name) or each.name == INITIALISED for each in run.things)
    if len({each.values["model"].place for each in own}) != 1 or not steps:
        return None
    turn = _Turn(scope, own[-1].values["node"], {each.values["node"] for each in calls}, tree)
    trainer = _trainer(run, backward, own[-1], turn, more=False)
    trainer.set("?unread", (_before(run, backward, own), backward.values.get("why", "")), backward.place)
    return trainer


def _before(run: Run, backward: Thing, own: list[Thing]) -> int:
    """Forwards of the trained model since gradients were made last."""
    most = count = 0
    for each in run.things:
        count += each in own
        if each.name == BACKWARD:
            most, count = max(most, count) if each.values["node"] is backward.values["node"] else most, 0
    return max(most, 1)


def _tell_others(run: Run, forward: ast.AST, scope: ast.AST, trainer: Thing) -> None:
    """Models that the same loop trains before the one that is counted, its function's last."""
    calls = [each for each in run.things if each.name == FORWARD and each.values["node"] is forward]
    if len({each.values["model"].place for each in calls}) > 1:
        what = "it trains several models, one after the other, of which the last is counted"
        trainer.set(f"{MARK}{getattr(scope, 'name', 'backward')}", what, trainer.place)


def _is_off(forward: Thing) -> bool:
    return any(isinstance(each, Thing) and each.last in OFF for each in forward.values["within"])


def _lost(node: ast.Call) -> ast.expr | None:
    """What is differentiated: ``loss.backward()``, ``accelerator.backward(loss)``; None for a graph that is kept."""
    if node.keywords or len(node.args) > 1:
        return None
    return node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None


class _Turn:
    """The function of one loop, and the forward that is trained in it."""

    def __init__(self, scope: ast.AST, forward: ast.AST, forwards: set[ast.AST], tree: ast.AST) -> None:
        self.scope, self.forward, self.forwards, self.tree = scope, forward, forwards, tree
        self.assigned: dict[str, list[ast.expr]] = {}
        for each in ast.walk(scope):
            if isinstance(each, ast.Assign):
                for target in each.targets:
                    several = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
                    for name in several or [target]:  # of several nobody knows which is which
                        self.assigned.setdefault(ast.unparse(name), []).append(ast.Tuple([]) if several else each.value)
            if isinstance(each, ast.AugAssign):
                scaled = ast.BinOp(each.target, each.op, each.value)
                self.assigned.setdefault(ast.unparse(each.target), []).append(scaled)
        self.outputs = {name for name, values in self.assigned.items() if forward in values}

    def is_loss(self, node: ast.expr | None, depth: int = 0) -> bool:
        """Whether an expression is the loss that the model gives, or a share of it."""
        if node is None or depth > 8:
            return False
        if isinstance(node, ast.Attribute) and node.attr == "loss" and self._is_output(node.value):
            return True
        if isinstance(node, ast.Subscript) and self._is_output(node.value):
            return getattr(node.slice, "value", None) in (0, "loss")
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
            return self.is_loss(node.left, depth + 1) and self._is_number(node.right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
            one = node.func.value if node.func.attr in OF_LOSS and not node.args else None
            one = node.args[0] if node.func.attr == "scale" and len(node.args) == 1 else one
            return self.is_loss(one, depth + 1)
        values = self.assigned.get(ast.unparse(node), ())
        rest = [each for each in values if not self._is_share(each, ast.unparse(node))]
        return bool(rest) and all(self.is_loss(each, depth + 1) for each in rest)

    def _is_share(self, node: ast.expr, name: str) -> bool:
        """``loss = loss / steps``, ``loss /= steps``."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult))):
            return False
        return ast.unparse(node.left) == name and self._is_number(node.right)

    def _is_output(self, node: ast.expr) -> bool:
        values = [node] if node in self.forwards else self.assigned.get(ast.unparse(node), ())
        return bool(values) and all(each in self.forwards for each in values)

    def _is_number(self, node: ast.expr) -> bool:
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
        return all(ast.unparse(each.func) in NUMBERS for each in calls) and not any(
            ast.unparse(each) in self.outputs for each in ast.walk(node) if isinstance(each, ast.Name)
        )

    def more(self) -> Iterator[tuple[str, ast.AST]]:
        """What the function makes beside the loss: of the logits, but their argmax, and text."""
        above = {inner: each for each in ast.walk(self.scope) for inner in ast.iter_child_nodes(each)}
        for each in ast.walk(self.scope):
            if isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "generate":
                yield "generate", each
            if not isinstance(each, ast.expr) or isinstance(getattr(each, "ctx", None), ast.Store):
                continue
            part = above.get(each)
            if not (each is self.forward or ast.unparse(each) in self.outputs) or isinstance(part, ast.Assign):
                continue
            name = (
                part.attr if isinstance(part, ast.Attribute) else getattr(getattr(part, "slice", None), "value", each)
            )
            if name not in ("loss", 0) and not (part in above and self._compares(above[part], part)):
                yield name if isinstance(name, str) else "outputs", each

    def _compares(self, call: ast.AST, logits: ast.AST) -> bool:
        """``logits.argmax(-1)``, or logits that are given to what makes their argmax alone: an integer for a token."""
        if isinstance(call, ast.Attribute):
            return call.attr in ("argmax", "shape", "size")
        if not isinstance(call, ast.Call) or logits not in call.args:
            return False
        names = {ast.unparse(call.func)}
        made = [each for name in names for each in self.assigned.get(name, ()) if isinstance(each, ast.Call)]
        names |= {ast.unparse(each.func) for each in made}
        own = [each for each in ast.walk(self.tree) if getattr(each, "name", "") in names]
        bodies = [ast.unparse(each) for each in own] or sorted(names)
        return all(ARGMAX.search(body) and not HEAVY.search(body) for body in bodies)

    def accumulates(self) -> bool:
        """Whether gradients may be there in a forward: they are zeroed under a condition, behind it, or not at all."""
        calls = [each for each in ast.walk(self.scope) if isinstance(each, ast.Call)]
        zeroed = [each for each in calls if getattr(each.func, "attr", "") == "zero_grad"]
        line = getattr(self.forward, "lineno", 0)
        behind = max((each.lineno for each in calls if getattr(each.func, "attr", "") == "backward"), default=line)
        doubted = {each for node in ast.walk(self.scope) if isinstance(node, ast.If) for each in ast.walk(node)}
        return not any(each not in doubted and not line < each.lineno < behind for each in zeroed)


def _trainer(run: Run, backward: Thing, forward: Thing, turn: _Turn, more: bool = True) -> Thing:
    """``more``: what the loop makes beside the model's own loss is said."""
    place = forward.place
    trainer, args = (Thing(f"transformers.{name}", place) for name in ("Trainer", "TrainingArguments"))
    for key, value in (("model", forward.values["model"]), ("args", args), (LOOP, turn), ("?trained", True)):
        trainer.set(key, value, place)
    trainer.set("?beside", backward.values["beside"], place)
    for name, node in turn.more() if more else ():
        where = Place(place.path, getattr(node, "lineno", place.line))
        trainer.set(f"{MARK}{name}", "what the loop makes of it is of the program's own", where)
    made = [each for each in run.things if OPTIMIZERS.search(each.name)]
    config = next((each for each in run.things if each.name == INITIALISED), None)
    if len({each.name for each in made}) == 1:
        trainer.set("optimizer", made[-1], made[-1].place)
    elif made or config is None:
        args.set("optim", Unknown("made where it is not read", place), place)
    for key, value, where in arguments_of(run, backward, forward, config):
        args.set(key, value, where)
    trainer.set("?float8", float8_of(run), place)
    args.set("gradient_accumulation_steps", backward.values.get("steps") or _steps(run, turn), place)
    return trainer


def _steps(run: Run, turn: _Turn) -> Any:
    """Forwards between two steps, as far as memory feels it: whether gradients are there in one."""
    said = [each.values.get("gradient_accumulation_steps", 1) for each in run.things if each.last == "Accelerator"]
    known = [each for each in said if isinstance(each, int)]
    return (
        max(known)
        if said and len(known) == len(said) and not turn.accumulates()
        else 2
        if said or turn.accumulates()
        else 1
    )


def put_loop(trainer: Thing, draft: Draft) -> None:
    """What a loop keeps that the Trainer lets go."""
    turn = trainer.values.get(LOOP)
    if turn is None:
        return
    if (low := trainer.values.get("?float8")) is not None:
        draft.put("float8", low[0], Origin(FILE, f"{low[1]}: a recipe for accelerate"))
    draft.facts["loop"] = True
    draft.remarks.append(f"{trainer.place}: a plain training loop, counted as transformers' Trainer runs it")
    if (unread := trainer.values.get("?unread")) is not None:
        forwards, why = unread
        ask_loss(forwards, forwards, UNREAD + why, str(trainer.places["?unread"]), draft)
    if (found := trainer.values.get("?own")) is not None:
        put_bound(trainer, found, "backward", str(trainer.places["?own"]), draft)
        draft.put("hold_outputs", True, Origin(FILE, f"{trainer.place}: names of the loop live on over its backward"))
        return
    if turn.outputs and draft.values.get("kernels") is None:
        draft.put("hold_outputs", True, Origin(FILE, f"{trainer.place}: {written(turn.forward)[:60]} has a name"))
