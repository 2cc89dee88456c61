"""Expressions of a program, worked out as far as the text holds their values."""

import ast
from typing import Any

from memplan.frameworks.programs import operators
from memplan.frameworks.programs.tracing import Tracing, handler_of
from memplan.frameworks.programs.values import (
    EVALUATES,
    LEFT_OUT,
    MAX_TEXT,
    Class,
    Frame,
    Method,
    Ref,
    Thing,
    Unknown,
    is_plain,
    known,
    overlay,
    plain,
    truth,
    unknown_option,
    unset,
)


class Expressions(Tracing):
    """Works out expressions; ``call`` is the interpreter's."""

    loops: int
    """Loops that are gone through once, around it."""
    calls: Any

    def evaluate(self, node: ast.AST | None, frame: Frame) -> Any:
        """The value of an expression."""
        if node is None:
            return None
        self.step(node)
        handler = getattr(self, handler_of(type(node).__name__), None)
        self.frame = frame
        value = handler(node, frame) if handler else self.unknown(node)
        self.frame = frame
        return value

    def _await(self, node: ast.Await, frame: Frame) -> Any:
        return self.evaluate(node.value, frame)

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        try:
            return frame.find(node.id)
        except KeyError:
            return Ref(node.id)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        return self.attribute(self.evaluate(node.value, frame), node.attr, node)

    def attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        """``owner.name``."""
        if name == "__name__" and isinstance(owner, (Class, Ref)):
            return owner.node.name if isinstance(owner, Class) else owner.last
        if isinstance(owner, Ref):
            return self.of_library(owner, name)
        if isinstance(owner, Thing):
            return self._of_thing(owner, name, node)
        if isinstance(owner, Class):
            return self._of_class(owner, name, node)
        if isinstance(owner, dict) and name in owner and not hasattr(owner, name):  # OmegaConf's
            return owner[name]
        if isinstance(owner, Unknown) and owner.either:
            values = [self.attribute(each, name, node) for each in owner.either]
            if not any(isinstance(each, (Method, Unknown)) for each in values):
                return operators.joined(values, operators.written(node), self.place(node))
        return Method(owner, name, self.place(node))

    def _of_thing(self, thing: Thing, name: str, node: ast.AST) -> Any:
        if name in thing.values or name == "__dict__":
            return thing.values.get(name, thing.values)
        if (thing.name, name) == ("torch.device", "type") and isinstance(thing.values.get("*0"), str):
            return thing.values["*0"].partition(":")[0]
        if thing.last == "Path" and name in operators.PATHS and isinstance(thing.values.get("*0"), str):
            return operators.PATHS[name](thing)
        method = thing.own.method(name) if thing.own else None
        command = thing.values.get("?command")
        if method is None and command and name in LEFT_OUT and thing.last.endswith("TrainingArguments"):
            return LEFT_OUT[name]
        if method is None and command and name in ("do_eval", *EVALUATES) and (thing.own is None or thing.own.root):
            strategy = next((thing.values[each] for each in EVALUATES if each in thing.values), "no")
            if is_plain(strategy):  # transformers sets do_eval where a strategy is, and none is by itself
                return strategy != "no" if name == "do_eval" else strategy
        if method is None:
            library = (thing.own is None or name in LEFT_OUT) and command is False
            return unknown_option(name, self.place(node)) if library else Method(thing, name, self.place(node))
        bound = method.on(thing)
        if any(isinstance(each, ast.Name) and each.id == "property" for each in method.node.decorator_list):
            return self.invoke(bound, [], {}, self.place(node))
        return bound

    def _of_class(self, owner: Class, name: str, node: ast.AST) -> Any:
        fields = owner.all_fields()
        if name in fields:
            return fields[name][0]
        method = owner.method(name)
        if method is None:
            return Method(owner, name, self.place(node))
        first = [] if any(getattr(each, "id", "") == "staticmethod" for each in method.node.decorator_list) else [owner]
        return method.on(first[0] if first else None)

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        return self.call(node, frame)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Any:
        """What it gives where nothing is known of its parameters."""
        inner = Frame({each.arg: self.unknown(node) for each in node.args.args}, frame)
        return Thing("lambda", self.place(node), {"result": self.evaluate(node.body, inner)})

    def _namedexpr(self, node: ast.NamedExpr, frame: Frame) -> Any:
        value = self.evaluate(node.value, frame)
        frame.bind(node.target.id, value)
        return value

    def _list(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Any:
        if len(node.elts) > operators.MAX_ITEMS:
            return self.unknown(node)
        found: list[Any] = []
        for each in node.elts:
            value = self.evaluate(each.value if isinstance(each, ast.Starred) else each, frame)
            if not isinstance(each, ast.Starred):
                found.append(value)
            elif isinstance(value, (list, tuple)) and not isinstance(value, (Ref, Method)):
                found += value[: operators.MAX_ITEMS]
            else:
                found.append(self.unknown(each))
        return found

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Any:
        found = self._list(node, frame)
        return tuple(found) if isinstance(found, list) else found

    _set = _list

    def _dict(self, node: ast.Dict, frame: Frame) -> Any:
        if len(node.values) > operators.MAX_ITEMS:
            return self.unknown(node)
        found: dict[Any, Any] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.evaluate(each, frame)
            if key is None:
                if isinstance(value, dict):
                    found |= value
                else:
                    overlay(found, self.unknown(each))
                continue
            name = self.evaluate(key, frame)
            found[plain(name) if known(name) and is_plain(plain(name)) else f"?{operators.written(key)}"] = value
        return found

    def _dictcomp(self, node: ast.DictComp, frame: Frame) -> Any:
        """``{key: value for key, value in given.items() if …}``: of each that no filter is known to drop."""
        loop, found = node.generators[0], dict[Any, Any]()
        pairs = self.evaluate(loop.iter, frame)
        if len(node.generators) > 1 or not operators.are_pairs(pairs) or len(pairs) > 10 * operators.MAX_ITEMS:
            return self._once(node, node.value, pairs, frame)
        for pair in pairs:
            inner = Frame({}, frame)
            self.assign(loop.target, pair, inner)
            if not any(truth(self.evaluate(test, inner)) is False for test in loop.ifs):
                key = self.evaluate(node.key, inner)
                found[key if isinstance(key, (str, int)) else "**"] = self.evaluate(node.value, inner)
        return found

    def _listcomp(self, node: ast.ListComp, frame: Frame) -> Any:
        """``[each for each in known if …]``: of a list that the text holds, those that a filter is known to keep."""
        loop = node.generators[0]
        values = self.evaluate(loop.iter, frame)
        one = len(node.generators) == 1 and type(values) in (list, tuple) and len(values) <= operators.MAX_ITEMS
        if not (one and known(values)):
            return self._once(node, node.elt, values, frame)
        found: list[Any] = []
        for each in values:
            inner = Frame({}, frame)
            self.assign(loop.target, each, inner)
            kept = [truth(self.evaluate(test, inner)) for test in loop.ifs]
            if None in kept:
                whole = isinstance(node.elt, ast.Name) and isinstance(loop.target, ast.Name)
                return self.unknown(node, (list(values),) if whole else ())
            found += [self.evaluate(node.elt, inner)] if all(kept) else []
        return found

    def _once(self, node: ast.ListComp | ast.DictComp, one: ast.expr, values: Any, frame: Frame) -> Any:
        """Of a list that data makes one element, for what its calls say: ``[tokenize(each, 512) for each in rows]``."""
        if len(node.generators) == 1 and isinstance(one, (ast.Call, ast.Subscript, ast.ListComp)):
            inner, self.loops = Frame({}, frame), self.loops + 1
            self.assign(node.generators[0].target, self.calls.element(self, values, node.generators[0].iter), inner)
            self.evaluate(one, inner)
            self.loops -= 1
        return self.unknown(node)

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        parts: list[str] = []
        for each in node.values:
            value = self.evaluate(each.value if isinstance(each, ast.FormattedValue) else each, frame)
            if not is_plain(plain(value)) or not known(value):
                return self.unknown(node)
            parts.append(str(plain(value)))
        return "".join(parts)[:MAX_TEXT]

    def _binop(self, node: ast.BinOp, frame: Frame) -> Any:
        return self.combined(node.op, self.evaluate(node.left, frame), self.evaluate(node.right, frame), node)

    def combined(self, op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
        """A sum, a product, a path: of values that are small."""
        path = isinstance(left, Thing) and left.last == "Path" and isinstance(op, ast.Div)
        if path and known(left) and known(right):
            return operators.path_of(left, f"{plain(left)}/{plain(right)}")
        work = operators.OPERATORS.get(type(op))
        if work is None or not (operators.small(left) and operators.small(right)):
            return (operators.under_unknown(right) if isinstance(op, ast.Div) else "") or self.unknown(node)
        if isinstance(op, (ast.Pow, ast.Mult)) and not operators.tame(op, left, right):
            return self.unknown(node)
        try:
            return work(left, right)
        except (ArithmeticError, TypeError, ValueError):
            return self.unknown(node)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.evaluate(node.operand, frame)
        if isinstance(node.op, ast.Not):
            answer = truth(value)
            return self.unknown(node) if answer is None else not answer
        if isinstance(value, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return -value if isinstance(node.op, ast.USub) else value
        return self.unknown(node)

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Any:
        ends = isinstance(node.op, ast.Or)
        doubtful = False
        for each in node.values:
            value = self.evaluate(each, frame)
            answer = truth(value)
            if answer is ends:
                return self.unknown(node) if doubtful and not isinstance(value, bool) else value
            doubtful = doubtful or answer is None
        return self.unknown(node) if doubtful else value

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Any:
        answer = truth(self.evaluate(node.test, frame))
        if answer is not None:
            return self.evaluate(node.body if answer else node.orelse, frame)
        return operators.joined(
            [self.evaluate(each, frame) for each in (node.body, node.orelse)], operators.written(node), self.place(node)
        )

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.comparators[0], frame)
        if len(node.ops) > 1:
            return self.unknown(node)
        if isinstance(op := node.ops[0], (ast.Is, ast.IsNot)):
            return self._is(op, left, right, node)
        if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, dict) and "**" not in right:
            right = [key for key in right if str(key)[:1] != "?"]
        if not (known(left) and known(right)):
            return self.unknown(node)
        try:
            found = bool(operators.COMPARISONS[type(op)](plain(left), plain(right)))
        except (TypeError, KeyError):
            return self.unknown(node)
        within = operators.open_(right) and found == isinstance(op, ast.In)  # "Qwen" in "$MODELS/Qwen2.5-7B"
        return self.unknown(node) if not within and (operators.open_(left) or operators.open_(right)) else found

    def _is(self, op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
        left, right = (None if unset(each) else each for each in (left, right))
        doubtful = any(isinstance(each, (Unknown, Method)) for each in (left, right))
        if doubtful or not (left is None or right is None or (is_plain(left) and is_plain(right))):
            return self.unknown(node)
        return (left is right) == isinstance(op, ast.Is)

    def _slice(self, node: ast.Slice, frame: Frame) -> Any:
        ends = [self.evaluate(each, frame) for each in (node.lower, node.upper, node.step)]
        self.cut(node, ends[1])
        return slice(*ends) if {type(each) for each in ends} <= {int, type(None)} else self.unknown(node)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        owner, key = self.evaluate(node.value, frame), self.evaluate(node.slice, frame)
        if isinstance(owner, Method):
            return Method(owner, "[]", self.place(node))
        if isinstance(owner, Thing) and isinstance(key, str) and key in owner.values:
            return owner.values[key]
        if type(owner) in (dict, list, tuple, str) and (is_plain(key) or isinstance(key, slice)):
            try:
                return owner[key]
            except (LookupError, TypeError, ValueError):
                return self.unknown(node)
        return self.unknown(node)
