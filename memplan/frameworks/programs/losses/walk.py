"""A walk over what computes a loss: statement by statement, on tensors without contents. Nothing of it is executed.

Where nobody can say which way a condition goes, one way is taken, and the walk begins anew for the other
(``bound.bound_of``). What is not known ends the walk: ``NotBounded`` names it."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.frameworks.programs.losses import operations
from memplan.frameworks.programs.losses.expressions import ROUNDS, WIDE, Expressions
from memplan.frameworks.programs.losses.objects import Batch, Outputs, Raised, Returned
from memplan.frameworks.programs.losses.tensors import SMALL, Held, NotBounded
from memplan.frameworks.programs.values import Frame, Function, Ref
from memplan.units import words_of

DEPTH, STEPS = 12, 4000
NO_GRADIENTS = ("no_grad", "inference_mode")
CONTEXTS = frozenset(
    words_of(
        """autocast enable_grad disable_adapter nullcontext compute_loss_context_manager amp record_function accumulate
        no_sync profile device sdpa_kernel null_ref_context"""
    )
)
"""Contexts that make nothing."""
STATEMENTS_OF_NOTHING = (ast.Import, ast.ImportFrom, ast.Pass, ast.Assert, ast.Global, ast.Nonlocal)


class Walk(Expressions):
    """One function's names, and the statements that change them."""

    def block(self, statements: list[ast.stmt]) -> None:
        """One after the other. Raises Returned, Raised, NotBounded."""
        for each in statements:
            self.asked.steps += 1
            if self.asked.steps > STEPS:
                raise NotBounded("more than is followed")
            if not isinstance(each, STATEMENTS_OF_NOTHING):
                found = getattr(self, f"_{type(each).__name__.lower()}", None)
                if found is None:
                    raise NotBounded(f"a {type(each).__name__.lower()} statement")
                found(each)

    def _expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _return(self, node: ast.Return) -> None:
        raise Returned(self.value(node.value) if node.value else None)

    def _raise(self, node: ast.Raise) -> None:
        raise Raised

    def _functiondef(self, node: ast.FunctionDef) -> None:
        self.names[node.name] = Function(node, Frame(self.names, self.frame), "")

    def _delete(self, node: ast.Delete) -> None:
        for each in node.targets:
            if isinstance(each, ast.Name):
                self.names.pop(each.id, None)

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        self.bind(node.target, self._of_two(node.op, self.value(node.target), self.value(node.value)))

    def bind(self, target: ast.expr, value: Any) -> None:
        """Give a name, or several, what they are assigned."""
        if isinstance(target, ast.Name):
            if value is self.batched and any(word in target.id.lower() for word in WIDE):
                raise NotBounded(f"{target.id} of the batch")
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for each, one in zip(target.elts, self._several(value, len(target.elts)), strict=False):
                self.bind(each.value if isinstance(each, ast.Starred) else each, one)
        elif isinstance(target, ast.Subscript):
            owner = self.value(target.value)
            if isinstance(owner, dict):
                owner[self._key(target.slice)] = value
            elif isinstance(owner, Held) and owner.big:
                self.bind(target.value, operations.binary(self.maker, "+", owner, value))  # written into, in place
            elif isinstance(value, Outputs) or (isinstance(value, Held) and value.big):
                raise NotBounded(f"{ast.unparse(target)}, which keeps a large tensor")
        else:
            kept = isinstance(target, ast.Attribute) and ast.unparse(target).startswith("self.")
            if kept and (isinstance(value, Outputs) or (isinstance(value, Held) and value.big)):
                raise NotBounded(f"{ast.unparse(target)}, which keeps a large tensor")
            self.names[ast.unparse(target)] = value

    def _several(self, value: Any, number: int) -> list[Any]:
        if isinstance(value, (list, tuple)) and not isinstance(value, (Held, Ref)):
            return list(value)
        if isinstance(value, Outputs):
            return [value.loss, value.logits] if value.loss is not None else [value.logits]
        if isinstance(value, Held) and value.big:
            return [value] * number  # parts of it: none is larger
        return [self.batched if isinstance(value, Batch) else self.maker.number] * number

    def _if(self, node: ast.If) -> None:
        self.block(node.body if self.truth(node.test) else node.orelse)

    def _try(self, node: ast.Try) -> None:
        self.block(node.body)
        self.block([*node.orelse, *node.finalbody])

    def _with(self, node: ast.With) -> None:
        maker, off = self.maker, False
        for item in node.items:
            call = item.context_expr
            name = ast.unparse(call.func if isinstance(call, ast.Call) else call).rpartition(".")[2]
            if name not in CONTEXTS and name not in NO_GRADIENTS and not name.endswith(("context", "ctx")):
                raise NotBounded(name)
            off = off or name in NO_GRADIENTS
        before, maker.tape.grad_enabled = maker.tape.grad_enabled, maker.tape.grad_enabled and not off
        try:
            self.block(node.body)
        finally:
            maker.tape.grad_enabled = before

    def _for(self, node: ast.For) -> None:
        """Of a few known things each; of anything else once, and only where nothing large is made of it."""
        through = self.gone_through(node.iter)
        if type(through) in (list, tuple) and len(through) <= ROUNDS:
            for each in through:
                self.bind(node.target, each)
                self.block(node.body)
            return
        before = len(self.asked.maker.tape.log), len(self.asked.forwards)
        self.bind(node.target, self.maker.number)
        self.block(node.body)
        made = self.asked.maker.tape.log[before[0] :]
        if len(self.asked.forwards) > before[1] or any(tag.symbol != SMALL and delta > 0 for delta, tag in made):
            raise NotBounded("a loop over large tensors")

    def inline(self, function: Function, args: list[Any], named: Mapping[str, Any]) -> Any:
        """Walk a function of the program's own; what it returns."""
        if self.depth >= DEPTH:
            raise NotBounded(f"{function.node.name}, nested deeper than is followed")
        names = dict(bound_names(self, function, args, named))
        inner, tape = Walk(self.asked, names, function.frame, self.depth + 1), self.maker.tape
        before, off = (
            tape.grad_enabled,
            any(word in ast.unparse(each) for each in function.node.decorator_list for word in NO_GRADIENTS),
        )
        tape.grad_enabled = before and not off
        try:
            inner.block(function.node.body)
        except Returned as found:
            return found.value
        finally:
            tape.grad_enabled = before
        return None


def bound_names(walk: Walk, function: Function, args: list[Any], named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parameters of a function with what they are given, or their defaults."""
    said, given = function.node.args, [*([function.bound] if function.bound is not None else []), *args]
    names = [each.arg for each in (*said.posonlyargs, *said.args)]
    defaults = dict(zip(names[len(names) - len(said.defaults) :], said.defaults, strict=True)) if said.defaults else {}
    defaults |= {each.arg: value for each, value in zip(said.kwonlyargs, said.kw_defaults, strict=True) if value}
    for name in (*names, *(each.arg for each in said.kwonlyargs)):
        default = defaults.get(name)
        yield name, walk.value(default) if default is not None else walk.maker.number
    yield from zip(names, given, strict=False)
    yield from (
        (name, value) for name, value in named.items() if name in {*names, *(each.arg for each in said.kwonlyargs)}
    )
    if said.vararg:
        yield said.vararg.arg, given[len(names) :]
    if said.kwarg:
        yield said.kwarg.arg, {name: value for name, value in named.items() if name not in names}
