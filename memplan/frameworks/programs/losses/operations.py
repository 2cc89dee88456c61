"""Operations of torch on walked tensors: what each makes, what it keeps, and the tensors of its way back."""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from memplan.engine.losses.tail import difference, kl_div
from memplan.engine.tape import loss_ops, ops, routing_ops
from memplan.frameworks.programs.losses.tensors import (
    FP32,
    HIDDEN,
    INT64,
    LOGITS,
    SMALL,
    Held,
    Maker,
    NotBounded,
    dim_of,
    largest,
)
from memplan.frameworks.programs.values import Ref
from memplan.tables.texts import parts_of, words_by_part
from memplan.units import pairs_of

KNOWN = words_by_part(__file__)
MODULES: Mapping[str, str] = pairs_of(parts_of(__file__)["modules"])
"""A module of torch's -> the function that it calls."""
LAST = (-1, None)
KEEPS = ("append", "extend", "update", "setdefault", "record", "put", "add_scalar")
"""Of what makes nothing, what may keep what it is given."""
FEW = 1024
"""Classes of a one-hot tensor that are no vocabulary."""
DTYPES = {"float32": 4, "float": 4, "float64": 8, "double": 8, "bfloat16": 2, "float16": 2, "half": 2, "long": 8}


def apply(maker: Maker, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """What a function or method of torch's comes to. Raises NotBounded for one that is not known."""
    flat = [each for arg in args for each in (arg if type(arg) in (list, tuple) else (arg,))]
    tensors = [each for each in (*flat, *named.values()) if isinstance(each, Held)]
    x = largest(*tensors)
    found = next((part for part, words in KNOWN.items() if name in words), None)
    if name == "one_hot":
        return _one_hot(maker, args, named)
    if found in (None, "modules"):
        raise NotBounded(name)
    if found == "ignored":
        if name in KEEPS and x is not None and x.big:
            raise NotBounded(f"{name} of a large tensor")
        return maker.number
    if found == "new":
        return _new(maker, name, args)
    if x is None:
        return maker.number
    if found == "of numbers":
        if x.big:
            raise NotBounded(f"{name} of a large tensor")
        return maker.small(*tensors)
    if name in ("maximum", "minimum") or (found == "keeps nothing" and len(tensors) > 1):
        return binary(maker, "-" if name.startswith("sub") else "+", tensors[0], tensors[1])
    return HANDLERS[found](maker, name, x, tensors, args, named)


def binary(maker: Maker, sign: str, a: Any, b: Any) -> Held:
    """``a + b``, ``a * b``, a comparison: of tensors, or of one and a number. Raises NotBounded."""
    pair = [each if isinstance(each, Held) else maker.number for each in (a, b)]
    x, y = largest(*pair) or maker.number, pair[1]
    if {pair[0].kind, pair[1].kind} == {LOGITS, HIDDEN} or (sign == "@" and x.big):
        raise NotBounded(f"{sign} of tensors of different kinds" if sign != "@" else "a product of large matrices")
    if sign not in "+-@" and all(each.spread for each in pair):
        raise NotBounded("tensors laid over one another")
    if not x.big:
        return maker.small(*pair, saved=tuple(pair))._replace(rows=max(each.rows for each in pair))
    other = y if x is pair[0] else pair[0]
    wide = max(x.tensor.itemsize, other.tensor.itemsize if other.big else 0)
    if sign in ("<", "&"):
        return maker.new(x.kind, x.rows, 1)
    if sign in "+-":
        made = (ops.add if sign == "+" and other.big else difference)(maker.tape, x.tensor, other.tensor, x.kind)
        return Held(made, x.kind, x.rows)
    keeps = tuple(each for each, by in ((x, other), (other, x)) if by.tensor.needs_grad)
    return maker.made(
        x, other, saved=keeps if sign == "*" else (x, other), itemsize=wide, temporaries=sign != "*" and 3
    )


def _one_hot(maker: Maker, args: list[Any], named: dict[str, Any]) -> Held:
    classes = args[1] if len(args) > 1 else named.get("num_classes")
    x = largest(*args) or maker.number
    few = isinstance(classes, int) and not isinstance(classes, bool) and 0 < classes <= FEW
    return maker.number if few else maker.new(LOGITS, x.rows, INT64)


def _new(maker: Maker, name: str, args: list[Any]) -> Held:
    """A tensor of a size that is written out: of two dimensions at most, or of small numbers."""
    extents = list(args[0]) if len(args) == 1 and type(args[0]) in (list, tuple) else args
    if name in ("tensor", "as_tensor", "arange", "linspace", "scalar_tensor", "new_tensor", "unique", "nonzero"):
        x = largest(*args)
        return maker.new(x.kind, x.rows, INT64) if x and x.big else maker.number
    if name.startswith("new_"):
        extents = extents[1:]
    if (
        name == "eye"
        or sum(not isinstance(each, int) for each in extents) > 2
        or any(isinstance(each, int) and each > FEW for each in extents)
    ):
        raise NotBounded(f"{name} of a size that is not known")
    return maker.number


def _view(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    loose = x.kind == SMALL and name in ("view", "reshape", "flatten", "unflatten")
    if x.big and x.cut and name in ("contiguous", "reshape", "flatten"):
        return Held(ops.copy(maker.tape, x.tensor, x.kind), x.kind, x.rows)
    spread = (name == "unsqueeze" and args[1:] not in ([-1], [])) or x.spread
    return x._replace(rows=0 if loose else x.rows, spread=spread)


def _cast(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    """Also to a device alone, which is no copy on the card."""
    said = [each.last for each in (*args[1:], *named.values()) if isinstance(each, Ref)]
    size = next(
        (DTYPES[each] for each in (name, *said) if each in DTYPES), FP32 if name in ("to", "type", "type_as") else 1
    )
    moves = name == "to" and not said and "dtype" not in named
    if not x.big or moves:
        return x
    return Held(ops.cast(maker.tape, x.tensor, size, x.kind), x.kind, x.rows)


def _same(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    return x.plain() if name in ("detach", "cpu", "item", "tolist", "numpy") else x


def _keeping(saves: str) -> Callable[..., Held]:
    def made(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
        if not x.big:
            return maker.small(*tensors)._replace(rows=x.rows)
        if saves == "result":
            return Held(ops.unary(maker.tape, x.tensor, x.kind, saves="result"), x.kind, x.rows)
        return maker.made(x, saved=(x,) if saves else (), temporaries=2 if saves else 0)

    return made


def _both(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    if len(tensors) < 2:
        return _keeping("input")(maker, name, x, tensors, args, named) if name == "pow" else binary(maker, "*", x, None)
    kinds = {each.kind for each in tensors if each.big}
    if len(kinds) > 1:
        raise NotBounded(f"{name} of tensors of different kinds")
    if len(tensors) == 2:
        return binary(maker, "*" if name.startswith("mul") else "/", *tensors)
    if not x.big:
        return maker.small(*tensors)
    return maker.made(x, *(each for each in tensors if each is not x), saved=tuple(tensors), temporaries=2)


def _softmax(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    """``dtype=torch.float32`` casts first."""
    if not x.big:
        return maker.small(x)
    wide = x.tensor if "dtype" not in named else ops.cast(maker.tape, x.tensor, FP32, x.kind)
    return Held(loss_ops.log_softmax(maker.tape, wide, x.kind), x.kind, x.rows)


def _comparison(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    ends = name in ("argmax", "argmin", "any", "all", "equal", "count_nonzero")
    return maker.new(x.kind, x.rows, 1) if x.big and not ends else maker.number._replace(rows=x.rows)


def _reduction(saves: bool) -> Callable[..., Any]:
    def reduced(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Any:
        """Over the last dimension, or all; over another one the size may stay."""
        dim = named.get("dim", args[1] if len(args) > 1 and name not in ("norm",) else None)
        whole = dim in LAST or not x.big or (type(dim) in (list, tuple) and -1 in dim)
        wide = x
        if x.big and (maker.tape.autocast or named.get("dtype") is not None):
            wide = Held(ops.cast(maker.tape, x.tensor, FP32, x.kind), x.kind, x.rows)
        if name == "cumsum" or not (whole or (x.kind == HIDDEN and dim in (1, -2))):
            return maker.made(wide, saved=(wide,) if saves else (), temporaries=2)
        made = maker.small(wide, saved=(wide,) if saves else (), backward=ops.in_three(wide.tensor) if saves else None)
        several = name in ("max", "min", "median") and dim is not None
        return (made, maker.number) if several else made

    return reduced


def _loss(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    """A loss of torch's: one number, or with ``reduction="none"`` one for each of its inputs'."""
    if not x.big:
        return maker.small(*tensors)
    others = [each for each in tensors if each is not x]
    if any(each.big and each.kind != x.kind for each in others):
        raise NotBounded(f"{name} of tensors of different kinds")
    tape = maker.tape
    if name in ("cross_entropy", "nll_loss"):
        scores = _softmax(maker, name, x, tensors, [], {}) if name == "cross_entropy" else x
        made = maker.small(scores, saved=(scores,))
        if named.get("label_smoothing") or any(each.big for each in others):  # a sum of all beside what is picked
            product = binary(maker, "*", scores, next((each for each in others if each.big), None))
            made = maker.small(made, maker.small(product, saved=(product,)))
        return made
    if name == "kl_div" and len(others) == 1 and others[0].big:
        given, target = tensors[:2]
        each = Held(kl_div(tape, given.tensor, target.tensor), x.kind, x.rows)
        return each if named.get("reduction") == "none" else maker.small(each)
    if name == "normalize":
        return binary(maker, "/", x, maker.small(x, saved=(x,), backward=ops.in_three(x.tensor)))
    each = maker.made(x, *others, saved=tuple(tensors), temporaries=3)
    if name.startswith(("cosine", "pairwise")):
        more = [maker.made(one, saved=(one,), temporaries=2) for one in (x, *others) if one.big]
        return maker.small(each, *more, saved=(each, *more))
    return each if named.get("reduction") == "none" else maker.small(each)


def _like(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    if name == "dropout" and x.big:
        return Held(ops.dropout(maker.tape, x.tensor, x.kind), x.kind, x.rows)
    return maker.new(x.kind, x.rows, max(FP32, x.tensor.itemsize)) if x.big else x.plain()


def _picked(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    """Numbers picked out by a small index; by a mask or a large one as many as there are."""
    if not x.big:
        return maker.small(*tensors)
    if name == "selective_log_softmax":
        x = _softmax(maker, name, x, [x], [], {})
    index = [each for each in tensors if each is not x]
    if name in ("index_select", "masked_select") or any(each.big for each in index):
        made = routing_ops.gather_rows(maker.tape, x.tensor, dim_of(x.kind, x.rows), x.kind)
        return Held(made, x.kind, x.rows)
    return maker.small(x, saved=(x,), backward=routing_ops.into_zeros(x.tensor))


def _joined(maker: Maker, name: str, x: Held, tensors: list[Held], args: list[Any], named: dict[str, Any]) -> Held:
    dim = named.get("dim", args[1] if len(args) > 1 else 0)
    known = all(each.rows for each in tensors) and (x.big or dim == 0)  # longer rows are no more of them
    rows = sum(each.rows for each in tensors if each.kind == x.kind) if known else 0
    if not x.big:
        return maker.small(*tensors)._replace(rows=rows)
    parts = [each.tensor for each in tensors if each.kind == x.kind]
    rows = rows or len(parts) * x.rows
    return Held(ops.concatenate(maker.tape, parts, dim_of(x.kind, rows), x.kind), x.kind, rows)


HANDLERS: Mapping[str, Callable[..., Any]] = {
    "view": _view,
    "cast": _cast,
    "same": _same,
    "keeps nothing": _keeping(""),
    "keeps its result": _keeping("result"),
    "keeps its input": _keeping("input"),
    "keeps both": _both,
    "softmax": _softmax,
    "comparison": _comparison,
    "reduction": _reduction(saves=False),
    "reduction that keeps its input": _reduction(saves=True),
    "loss": _loss,
    "like another": _like,
    "picked": _picked,
    "joined": _joined,
}


def indexed(maker: Maker, x: Held, index: ast.expr, values: list[Any]) -> Held:
    """``x[:, :-1, :]``, ``x[mask]``, ``x[:, -1]``; ``values``: what stands in place of each part that is no slice."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    spread = x.spread or any(isinstance(each, ast.Constant) and each.value is None for each in parts[:-1])
    if not x.big:
        return x._replace(spread=spread)
    chosen = [value for value in values if not isinstance(value, int)]
    if any(isinstance(each, (Held, list)) for each in chosen):
        made = routing_ops.gather_rows(maker.tape, x.tensor, dim_of(x.kind, x.rows), x.kind)
        pooled = x.kind == HIDDEN and len(chosen) > 1
        return maker.small(Held(made, x.kind, x.rows)) if pooled else Held(made, x.kind, x.rows)
    numbers = [at for at, each in enumerate(parts) if isinstance(each, (ast.Constant, ast.UnaryOp, ast.Name)) and not (
        isinstance(each, ast.Constant) and each.value in (None, Ellipsis)
    )]  # fmt: skip
    last = len(parts) - 1
    word = last in numbers and last > 0 and (last == 2 or isinstance(parts[0], ast.Constant))
    if word or (x.kind == HIDDEN and 1 in numbers):
        return maker.small(x)
    tape, dim = maker.tape, x.tensor.dim
    seen = ops.view(tape, ops.view(tape, x.tensor, dim, whole=False), dim, whole=False)
    return Held(seen, x.kind, x.rows, cut=True, spread=spread)
