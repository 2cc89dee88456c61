"""Expressions of a walked loss."""

import ast
import operator
from typing import Any

from memplan.frameworks.programs.losses import operations
from memplan.frameworks.programs.losses.objects import Asked, Batch, Bound, Model, Outputs
from memplan.frameworks.programs.losses.tensors import SMALL, Held, NotBounded
from memplan.frameworks.programs.values import Frame, Function, Ref, Thing, Unknown, is_plain
from memplan.units import words_of

PARAMETERS = "?parameters"
"""A model's, of which one may be asked where it is."""
ROUNDS = 8
"""Things that a loop goes through one by one."""
SAME_MODEL = frozenset(words_of("module model base_model _orig_mod policy student"))
WIDE = ("logit", "prob", "hidden", "embed", "pixel", "image", "teacher", "audio", "feature")
"""In names of what a batch holds: what is wider than a few numbers for each token."""


class Expressions:
    """What expressions come to, of one function's names."""

    def __init__(self, asked: Asked, names: dict[str, Any], frame: Frame, depth: int = 0) -> None:
        self.asked, self.names, self.frame, self.depth = asked, names, frame, depth
        self.maker = asked.maker
        self.batched = asked.maker.number._replace(rows=1)
        """One of several that a batch is taken apart into."""

    def bind(self, target: ast.expr, value: Any) -> None:
        """Give a name, or several, what they are assigned."""
        raise NotImplementedError

    def gone_through(self, node: ast.expr) -> Any:
        """What a loop goes through. Raises NotBounded."""
        value = self.value(node)
        if value == Ref(PARAMETERS):
            raise NotBounded("all parameters of a model")
        return value

    def value(self, node: ast.expr) -> Any:
        """What an expression comes to. Raises NotBounded."""
        found = getattr(self, f"_value_{type(node).__name__.lower()}", None)
        if found is None:
            raise NotBounded(ast.unparse(node)[:60])
        return found(node)

    def truth(self, node: ast.expr) -> bool:
        """Whether a condition holds, or is taken to hold."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.truth(node.operand)
        value = self.value(node)
        return bool(value) if is_plain(value) or type(value) in (list, tuple, dict) else self.asked.either()

    def _value_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _value_joinedstr(self, node: ast.JoinedStr) -> Any:
        return ""

    def _value_starred(self, node: ast.Starred) -> Any:
        return self.value(node.value)

    def _value_name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            return self.names[node.id]
        try:
            found = self.frame.find(node.id)
        except KeyError:
            return Ref(node.id)
        return self._taken(found, node.id)

    def _taken(self, value: Any, name: str) -> Any:
        """A value of the program as the walk has it. Raises NotBounded for what may be a large tensor by its name."""
        if isinstance(value, Unknown) and any(word in name.lower() for word in WIDE):
            raise NotBounded(f"{name}, which is made elsewhere")
        if isinstance(value, Thing):
            return Model(value, value.place == self.asked.trained) if value.name == "model" else Bound(value)
        return self.maker.number if isinstance(value, Unknown) else value

    def _value_tuple(self, node: ast.Tuple | ast.List) -> Any:
        return [self.value(each) for each in node.elts]

    _value_list = _value_tuple

    def _value_dict(self, node: ast.Dict) -> Any:
        made: dict[Any, Any] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each)
            if key is None and isinstance(value, Batch):
                made["**"] = value
            elif key is None and isinstance(value, dict):
                made |= value
            elif key is not None:
                made[self._key(key)] = value
        return made

    def _key(self, node: ast.expr) -> Any:
        found = self.value(node)
        return found if isinstance(found, (str, int)) else ast.unparse(node)

    def _value_ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.truth(node.test) else node.orelse)

    def _value_boolop(self, node: ast.BoolOp) -> Any:
        values = [self.value(each) for each in node.values]
        ends = isinstance(node.op, ast.Or)  # a value as true as this ends it
        if not ends and any(is_plain(each) and not each for each in values):
            return False
        return next((each for each in values if not is_plain(each) or (ends and each)), values[-1])

    def _value_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if is_plain(value) and value is not None and isinstance(value, (int, float)):
            return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value
        if isinstance(node.op, ast.Not):
            return self.maker.number
        return operations.apply(self.maker, "neg", [value], {}) if isinstance(value, Held) else self.maker.number

    def _value_binop(self, node: ast.BinOp) -> Any:
        return self._of_two(node.op, self.value(node.left), self.value(node.right))

    def _of_two(self, op: ast.operator, a: Any, b: Any) -> Any:
        if type(a) is list and type(b) is list and isinstance(op, ast.Add):
            return a + b
        signs = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "&"}
        if isinstance(op, ast.Pow) and isinstance(a, Held) and not isinstance(b, Held):
            return operations.apply(self.maker, "square", [a], {})
        return operations.binary(self.maker, signs.get(type(op), "/"), a, b)

    def _value_compare(self, node: ast.Compare) -> Any:
        values = [self.value(each) for each in (node.left, *node.comparators)]
        a, b = values[0], values[-1]
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and b is None:
            large = isinstance(a, Held) and (a.big or a.tensor.node is not None or a.tensor is self.maker.given.tensor)
            known = is_plain(a) or large or isinstance(a, (Batch, Outputs, Model, Bound))
            return (a is None) == isinstance(node.ops[0], ast.Is) if known else self.maker.number
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            inside = a == "labels" and isinstance(b, Batch) and not b.labels
            return isinstance(node.ops[0], ast.NotIn) if inside else self.maker.number
        if len(values) == 2 and all(is_plain(each) for each in values) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            return (a == b) == isinstance(node.ops[0], ast.Eq)
        order = {ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le}
        if len(values) == 2 and all(isinstance(each, (int, float)) for each in values) and type(node.ops[0]) in order:
            return order[type(node.ops[0])](a, b)
        return (
            operations.binary(self.maker, "<", a, b)
            if any(isinstance(each, Held) for each in values)
            else self.maker.number
        )

    def _value_lambda(self, node: ast.Lambda) -> Any:
        body = ast.Return(value=node.body, lineno=node.lineno, col_offset=0)
        made = ast.FunctionDef(name="lambda", args=node.args, body=[body], decorator_list=[], lineno=node.lineno)
        return Function(made, Frame(self.names, self.frame), "")

    def _value_listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Any:
        through = self.gone_through(node.generators[0].iter)
        several = through if type(through) in (list, tuple) and len(through) <= ROUNDS else None
        found, before = [], (len(self.maker.tape.log), len(self.asked.forwards))
        for each in several if several is not None else [self.maker.number]:
            self.bind(node.generators[0].target, each)
            found.append(self.value(node.elt))
        made = self.maker.tape.log[before[0] :]
        if several is None and (len(self.asked.forwards) > before[1] or any(tag.symbol != SMALL for _, tag in made)):
            raise NotBounded("a loop over large tensors")
        return found if several is not None else self.maker.number

    _value_generatorexp = _value_setcomp = _value_listcomp

    def _value_dictcomp(self, node: ast.DictComp) -> Any:
        """``{k: v for k, v in inputs.items() if k != "labels"}``."""
        within = [each for each in ast.walk(node.generators[0].iter) if isinstance(each, ast.Name)]
        batches = [self.names[each.id] for each in within if isinstance(self.names.get(each.id), Batch)]
        return Batch(batches[0].labels, batches[0].part) if batches else {}

    def _value_subscript(self, node: ast.Subscript) -> Any:
        owner, index = self.value(node.value), node.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        values = [self.value(each) for each in parts if not isinstance(each, ast.Slice)]
        if isinstance(owner, Batch):
            return self._of_batch(values[0] if values else None, owner)
        if isinstance(owner, Outputs):
            return self._of_outputs(owner, values[0] if values else None)
        if isinstance(owner, dict):
            return owner.get(self._key(index), self.maker.number)
        if type(owner) in (list, tuple):
            at = values[0] if values else None
            return owner[at] if isinstance(at, int) and -len(owner) <= at < len(owner) else owner[0] if owner else None
        kept = [each for each in values if each is not None and each is not Ellipsis]
        return operations.indexed(self.maker, owner, index, kept) if isinstance(owner, Held) else self.maker.number

    def _of_batch(self, key: Any, owner: Batch) -> Any:
        if not isinstance(key, str):
            return self.maker.number._replace(rows=0)
        if any(word in key.lower() for word in WIDE):
            raise NotBounded(f"{key} of the batch")
        return self.maker.given if key in ("labels", "input_ids") else self.maker.number._replace(rows=1)

    def _of_outputs(self, owner: Outputs, key: Any) -> Any:
        if key in ("logits", "loss", "hidden_states", "last_hidden_state"):
            return self._output(owner, key)
        if key in (0, 1):
            return (([owner.loss] if owner.loss is not None else [])[key:] and owner.loss) or owner.logits
        raise NotBounded(f"outputs[{key}]" if is_plain(key) else "one of a model's outputs")

    def _output(self, owner: Outputs, name: str) -> Any:
        if name == "hidden_states":
            if not owner.layers:
                raise NotBounded("hidden_states without output_hidden_states")
            return [owner.last] * 2
        found = {"loss": owner.loss, "logits": owner.logits, "last_hidden_state": owner.last}
        if name not in found:
            raise NotBounded(f"{name} of a model's outputs")
        return found[name]

    def _value_attribute(self, node: ast.Attribute) -> Any:
        written = ast.unparse(node)
        if written in self.names:
            return self.names[written]
        owner = self.value(node.value)
        if node.attr == "past_index":  # TrainingArguments: of models with a memory, which their Trainer hands on
            return -1
        if isinstance(owner, Ref):
            return Ref(f"{owner.name}.{node.attr}")
        if isinstance(owner, Outputs):
            return self._output(owner, node.attr)
        if isinstance(owner, Model):
            return owner if node.attr in SAME_MODEL else self.maker.number
        if isinstance(owner, Held):
            return Ref("torch.float32") if node.attr == "dtype" else owner if node.attr in ("T", "mT") else (
                owner.plain() if node.attr == "data" else self.maker.number
            )  # fmt: skip
        if isinstance(owner, Batch):
            return self._of_batch(node.attr, owner)
        if isinstance(owner, Bound):
            return self._of_object(owner, node.attr)
        return self.maker.number

    def _of_object(self, owner: Bound, name: str) -> Any:
        thing = owner.thing
        if name in thing.values:
            value = thing.values[name]
            trained = name in ("model", "model_wrapped")
            return Model(value if isinstance(value, Thing) else None, True) if trained else self._taken(value, name)
        method = thing.own.method(name) if thing.own else None
        if method is not None:
            return method.on(owner)
        if name in ("model", "model_wrapped"):
            return Model(None, True)
        return self._taken(Unknown(name, thing.place), name)

    def _value_call(self, node: ast.Call) -> Any:
        return self.asked.call(self, node)
