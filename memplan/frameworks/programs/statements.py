"""Statements of a program, gone through without being run: of a doubtful branch both sides, of a loop one turn."""

import ast
import re
from collections.abc import Sequence
from typing import Any

from memplan.frameworks.programs.expressions import Expressions
from memplan.frameworks.programs.operators import joined, written
from memplan.frameworks.programs.tracing import handler_of
from memplan.frameworks.programs.values import Frame, Method, Place, Ref, Unknown, root_of, truth

UNROLLED = (40, 20, 4)
"""Elements of a list of literals that a loop is gone through for; within another such loop; further within."""
GOES_ON, LEAVES_TURN, LEAVES_LOOP, LEAVES = 0, 1, 2, 3
"""How a block ends: not at all, by ``continue``, by ``break``, by what leaves the function."""
_EXITS = re.compile(r"(?:sys\.)?(?:exit|quit)\(\d*\)$")
"""A refusal: ``if not args.harvest: print(…); sys.exit(2)``."""


class Statements(Expressions):
    """Goes through statements; what they change is the interpreter's."""

    doubts: list[str]
    """Conditions that nobody can decide, around the statement."""
    turning: int
    """Loops that are gone through for each element, around it."""
    left: list[tuple[Frame, dict[str, Any]]]
    """Names where a turn of a loop may end before its end."""
    hopeful: bool
    """Whether a condition that ends a function is taken not to be met: data that is not here where it is read."""
    globals: Frame
    steps: int
    within: tuple[Any, ...] = ()
    """Contexts of ``with`` around the statement."""

    def put(self, owner: Any, name: str, value: Any, place: Place) -> None:
        """``owner.name = value``."""
        raise NotImplementedError

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> int:
        """Statements in their order; how they end."""
        for node in body:
            self.step(node)
            handler = getattr(self, handler_of(type(node).__name__), None)
            ended = handler(node, frame) if handler is not None else GOES_ON
            if ended:
                return int(ended)
        return GOES_ON

    def _expr(self, node: ast.Expr, frame: Frame) -> int:
        value = self.evaluate(node.value, frame)
        return LEAVES if isinstance(value, Ref) and value.name == "sys.exit()" else GOES_ON

    def _assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)

    def _delete(self, node: ast.Delete, frame: Frame) -> None:
        for each in node.targets if not self.doubts else ():
            if isinstance(each, ast.Name):
                frame.names.pop(each.id, None)

    def _annassign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, frame), frame)

    def _augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        before = self.evaluate(node.target, frame)
        value = self.combined(node.op, before, self.evaluate(node.value, frame), node)
        self.assign(node.target, self.unknown(node) if self.loops else value, frame)

    def assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Bind a name, an attribute, an element, or several of these."""
        if isinstance(target, ast.Name):
            frame.bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            several = isinstance(value, (list, tuple)) and not isinstance(value, (Ref, Method))
            values = list(value) if several and len(value) == len(target.elts) else None
            for place, each in enumerate(target.elts):
                inner = each.value if isinstance(each, ast.Starred) else each
                unknown = Unknown(written(each), self.place(each), (), root_of(value))
                self.assign(inner, values[place] if values else unknown, frame)
        elif isinstance(target, ast.Attribute):
            self.put(self.evaluate(target.value, frame), target.attr, value, self.place(target))
        elif isinstance(target, ast.Subscript):
            self._element(target, value, frame)

    def _element(self, target: ast.Subscript, value: Any, frame: Frame) -> None:
        owner = self.evaluate(target.value, frame)
        environment = isinstance(owner, Ref) and owner.name == "os.environ"
        if not (environment or isinstance(owner, dict)):
            return  # an element of a tensor: where it lies cuts no row
        key = self.evaluate(target.slice, frame)
        if isinstance(owner, dict):
            name = key if isinstance(key, str) else f"?{written(target.slice)}"
            if self.loops:
                value = self.unknown(target)
            elif self.doubts and owner.get(name) is not None:
                value = joined([owner[name], value], f"depends on {self.doubts[-1]}", self.place(target))
            owner[name] = value
        elif environment and isinstance(key, str):
            self.globals.names[f"os.environ.{key}"] = value

    def _if(self, node: ast.If, frame: Frame) -> int:
        answer = truth(self.evaluate(node.test, frame))
        if answer is not None:
            body = node.body if answer else node.orelse
            refusals = (ast.Raise, *((ast.Return,) if self.hopeful else ()))
            exits = self.hopeful and any(_EXITS.match(ast.unparse(each)) for each in body[-1:])
            refuses = bool(body) and (isinstance(body[-1], refusals) or exits) and not _begins(body[-1])
            return GOES_ON if refuses else self.block(body, frame)
        return self.branches([node.body, node.orelse], frame, node.test)

    def branches(self, bodies: Sequence[Sequence[ast.stmt]], frame: Frame, test: ast.AST) -> int:
        """Several ways from here on, of which one is taken."""
        before, outcomes = frame.names, []
        self.steps += len(before) // 40  # what it takes to keep both ways apart
        self.doubts.append(written(test))
        for body in bodies:
            frame.names = dict(before)
            outcomes.append((self.block(body, frame), frame.names))
        text = self.doubts.pop()
        going = [names for ended, names in outcomes if not ended]
        self.left += [(frame, names) for ended, names in outcomes if going and ended in (LEAVES_TURN, LEAVES_LOOP)]
        frame.names = self._joined(going, f"depends on {text}", self.place(test)) if going else outcomes[0][1]
        return GOES_ON if going else min(ended for ended, _ in outcomes)

    def _joined(self, several: list[dict[str, Any]], text: str, place: Place) -> dict[str, Any]:
        if len(several) == 1:
            return several[0]
        names: dict[str, Any] = {}
        for name in dict.fromkeys(name for each in several for name in each):
            values = [each[name] for each in several if name in each]
            names[name] = values[0] if len(values) == 1 else joined(values, text, place)
        return names

    def _match(self, node: ast.Match, frame: Frame) -> int:
        return self.branches([case.body for case in node.cases], frame, node.subject)

    def _for(self, node: ast.For, frame: Frame) -> int:
        value, mark = self.evaluate(node.iter, frame), len(self.left)
        several = isinstance(value, (list, tuple)) and not isinstance(value, (Ref, Method))
        if several and 0 < len(value) <= UNROLLED[min(self.turning, 2)]:
            self.turning += 1
            ended = self._turns(node, value, frame)
            self.turning -= 1
        else:
            self.loops += 1
            ended = self._body(node, self.calls.element(self, value, node.iter), frame)
            self.loops -= 1
        early = [names for each, names in self.left[mark:] if each is frame]
        del self.left[mark:]
        if early and ended != LEAVES:
            text = f"depends on the turns over {written(node.iter)}"
            frame.names = self._joined([frame.names, *early], text, self.place(node))
        return LEAVES if ended == LEAVES and not early else GOES_ON

    def _turns(self, node: ast.For, values: Sequence[Any], frame: Frame) -> int:
        for each in values:
            ended = self._body(node, each, frame)
            if ended >= LEAVES_LOOP:
                return LEAVES if ended == LEAVES else GOES_ON
        return self.block(node.orelse, frame)

    def _body(self, node: ast.For, value: Any, frame: Frame) -> int:
        self.assign(node.target, value, frame)
        return self.block(node.body, frame)

    _asyncfor = _for

    def _while(self, node: ast.While, frame: Frame) -> None:
        self.evaluate(node.test, frame)
        self.loops += 1
        self.block(node.body, frame)
        self.loops -= 1

    def _with(self, node: ast.With, frame: Frame) -> int:
        around = self.within
        for item in node.items:
            value = self.evaluate(item.context_expr, frame)
            self.within = (*self.within, value)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, frame)
        ended = self.block(node.body, frame)
        self.within = around
        return ended

    _asyncwith = _with

    def _try(self, node: ast.Try, frame: Frame) -> int:
        ended = self.block(node.body, frame) or self.block(node.orelse, frame)
        self._or_else(node, frame)
        return self.block(node.finalbody, frame) or ended

    def _or_else(self, node: ast.Try, frame: Frame) -> None:
        """Words that a name has where the body fails: ``attn = "eager"`` where flash-attn is not installed."""
        for each in (each for handler in node.handlers for each in handler.body if isinstance(each, ast.Assign)):
            name = getattr(each.targets[0], "id", "")
            before, other = frame.names.get(name), getattr(each.value, "value", None)
            if isinstance(before, str) and isinstance(other, str) and before != other:
                text = f"depends on {written(node.body[0])}"
                frame.names[name] = joined([before, other], text, self.place(each))

    _trystar = _try

    def _return(self, node: ast.Return, frame: Frame) -> int:
        frame.returns.append(self.evaluate(node.value, frame))
        return LEAVES

    def _raise(self, node: ast.Raise, frame: Frame) -> int:
        begun = _begins(node)
        if begun is not None:
            self.evaluate(begun, frame)
        return LEAVES

    def _continue(self, node: ast.Continue, frame: Frame) -> int:
        return LEAVES_TURN

    def _break(self, node: ast.Break, frame: Frame) -> int:
        return LEAVES_LOOP

    def _global(self, node: ast.Global, frame: Frame) -> None:
        frame.shared.update(node.names)


def _begins(node: ast.stmt) -> ast.Call | None:
    """The call in ``raise SystemExit(main())``."""
    found = node.exc if isinstance(node, ast.Raise) else None
    ends = isinstance(found, ast.Call) and getattr(found.func, "id", "") == "SystemExit" and bool(found.args)
    first = found.args[0] if ends and isinstance(found, ast.Call) else None
    return first if isinstance(first, ast.Call) else None
