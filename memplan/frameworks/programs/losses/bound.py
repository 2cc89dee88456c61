"""The bound of a loss of a program's own: every way through its code is walked, forward and back; the most counts."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memplan.frameworks.programs.losses.calls import called, smoothed
from memplan.frameworks.programs.losses.objects import Asked, Batch, Bound, Model, Outputs, Raised, Returned, forward
from memplan.frameworks.programs.losses.tensors import FP32, HIDDEN, LOGITS, SMALL, Held, Maker, NotBounded, dim_of
from memplan.frameworks.programs.losses.walk import Walk
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Frame, Function, Place, Thing

RUNS = ((FP32, 0), (2, 0), (2, 2))
"""(bytes of an element of a model's outputs, autocast's): in fp32, as accelerate hands them out too; in 16 bits; in 16
bits with autocast around the loss. The most of the three is the bound."""
WAYS = 128
SEVERAL = (
    r"(?i)chosen|reject|reward|pair|margin|_[jk]\b|[jk]idx",
    "|negative|positive|anchor|query|passage|triplet|contrast",
)
"""What speaks of several rows for each example, where the batch goes into the model as it came; the second half of
words that heads for classes have too."""


@dataclass(frozen=True)
class Found:
    """What a loss holds at most."""

    logits: int
    hidden: int
    layers: bool
    forwards: int
    rows: int
    """Sequences of each example that go through the model."""
    teachers: tuple[Thing, ...]
    whole: bool

    @property
    def values(self) -> dict[str, Any]:
        """As the job has it."""
        said = {"logits": self.logits, "hidden": self.hidden, "layers": self.layers, "forwards": self.forwards}
        return {key: value for key, value in said.items() if key == "logits" or value not in (0, False, 1)}


Start = Callable[[Asked], tuple[Any, Any]]
"""Walks what makes the loss: the loss, and what names hold over its backward."""


def bound_of(start: Start, evaluate: Any, model_of: Any, inherited: bool, small: bool) -> Found:
    """Raises NotBounded, naming what is not known. ``small``: the model's logits are a few numbers."""
    most, models = dict.fromkeys((LOGITS, HIDDEN, SMALL), 0), dict[int, Model]()
    rows, forwards, layers, whole = 0, 0, False, False
    for itemsize, autocast in RUNS:
        script: list[bool] | None = []
        for _ in range(WAYS):
            maker = (_Few if small else Maker)(itemsize, autocast)
            asked = Asked(maker, evaluate, model_of, called, inherited, script=script or [])
            if _walked(start, asked):
                most = {kind: max(size, asked.maker.peaks()[kind]) for kind, size in most.items()}
                own = [each for model, each in asked.forwards if model.trained]
                rows = max(rows, sum(own), *(each for _, each in asked.forwards), 0)
                forwards = max(forwards, len(own))
                models |= {id(model.thing): model for model, _ in asked.forwards if not model.trained}
                layers, whole = layers or asked.layers, whole or asked.whole
            script = _next(asked.script[: asked.at])
            if script is None:
                break
        else:
            raise NotBounded("more ways through it than are followed")
    if not forwards:
        raise NotBounded("no forward of the model")
    teachers = tuple(model.thing for model in models.values() if model.thing is not None)
    per_row = {kind: -(-size // rows) for kind, size in most.items()}
    hidden = per_row[HIDDEN] + 1  # what is small: a few numbers for each token beside thousands
    return Found(per_row[LOGITS], hidden, layers, forwards, rows, teachers, whole)


class _Few(Maker):
    """The logits are of a few classes."""

    def output(self, kind: str, rows: int, graph: bool) -> Held:
        return super().output(SMALL if kind == LOGITS else kind, rows, graph)


def _walked(start: Start, asked: Asked) -> bool:
    """Whether this way comes to a loss, which is then run back."""
    try:
        loss, held = start(asked)
    except Raised:
        return False
    loss = _node_of(loss)  # the trainer keeps the number alone
    _run_back(asked.maker, loss)
    del held
    return True


def _node_of(loss: Any) -> Any:
    found = loss[0] if type(loss) in (list, tuple) and loss else loss
    if not isinstance(found, Held) or found.tensor.node is None:
        raise NotBounded("a loss that is not followed to the model")
    return found.tensor.node


def _run_back(maker: Maker, node: Any) -> None:
    maker.tape.backward(node, [maker.tape.new(dim_of(SMALL, 1), FP32, SMALL)])


def _next(script: list[bool]) -> list[bool] | None:
    """The next of all ways: the last condition that was taken as true is not."""
    while script and not script[-1]:
        script = script[:-1]
    return [*script[:-1], False] if script else None


def of_method(run: Run, trainer: Thing, function: Function, models: list[Thing], inherited: bool, small: bool) -> Found:
    """Of a trainer's ``compute_loss``. Raises NotBounded."""

    def start(asked: Asked) -> tuple[Any, Any]:
        of_trainer = Bound(trainer)
        walk = Walk(asked, {}, function.frame)
        given = {"return_outputs": False, "num_items_in_batch": asked.maker.number}
        whole = function.on(of_trainer)
        return walk.inline(whole, [Model(models[0] if models else None, True), Batch()], given), None

    return bound_of(start, _quietly(run), lambda node: None, inherited, small)


def of_function(run: Run, function: Function, models: list[Thing], small: bool) -> Found:
    """Of ``compute_loss_func(outputs, labels, num_items_in_batch)``, which transformers gives the outputs of a forward
    without labels (transformers 5.24 trainer.py: compute_loss). Raises NotBounded."""

    def start(asked: Asked) -> tuple[Any, Any]:
        walk = Walk(asked, {}, function.frame)
        outputs = forward(asked, Model(models[0] if models else None, True), {}, labels=False, rows=1)
        return walk.inline(function, [outputs, asked.maker.number, asked.maker.number], {}), outputs

    return bound_of(start, _quietly(run), lambda node: None, True, small)


def of_smoother(run: Run, models: list[Thing], small: bool) -> Found:
    """Of ``label_smoothing_factor``: transformers' LabelSmoother, which is given outputs without a loss (transformers
    5.24 trainer.py: compute_loss)."""

    def start(asked: Asked) -> tuple[Any, Any]:
        outputs = forward(asked, Model(models[0] if models else None, True), {}, labels=False, rows=1)
        return smoothed(Walk(asked, {}, Frame({})), [outputs]), outputs

    return bound_of(start, _quietly(run), lambda node: None, True, small)


def of_loop(run: Run, loop: ast.For, frame: Frame, trained: Place, models: dict[ast.AST, Thing]) -> Found:
    """Of one turn of a loop, up to its ``backward``, whose names live on over it. ``trained``: where the model was made
    that is trained; ``models``: those that its calls run. Raises NotBounded."""

    def model_of(node: ast.Call) -> Model | None:
        thing = models.get(node)
        return Model(thing, thing.place == trained) if thing is not None else None

    def start(asked: Asked) -> tuple[Any, Any]:
        asked.trained, asked.maker.named = trained, True
        walk = _Loop(asked, {}, frame)
        walk.bind(loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target, Batch())
        _run_back(asked.maker, _node_of(walk.turn(loop.body)))
        asked.forwards.clear()
        return walk.turn(loop.body), walk

    return bound_of(start, _quietly(run), model_of, False, small=False)


def found_in_loop(run: Run, backward: Thing, scope: ast.AST, calls: list[Thing], trained: Place) -> Found | None:
    """The bound of the loop around a ``backward`` in a function; None where something of it is not known, which the
    backward keeps. ``calls``: forwards of models, each with its node."""
    node = backward.values["node"]
    loops = [
        loop for loop in ast.walk(scope) if isinstance(loop, ast.For) and any(one is node for one in ast.walk(loop))
    ]
    models: dict[ast.AST, Thing] = {}
    for each in calls:
        models.setdefault(each.values["node"], each.values["model"])
    several = {each.values["node"] for each in calls if models[each.values["node"]].place != each.values["model"].place}
    if not loops or node.keywords:
        return None
    try:
        _check_outside(run, scope, loops[-1], set(models))
        known = {key: value for key, value in models.items() if key not in several}
        found = of_loop(run, loops[-1], backward.values["frame"], trained, known)
        check_rows(found, ast.unparse(scope), pairs=False)
    except NotBounded as error:
        backward.values["why"] = f": {error.what}"
        return None
    return found


def _check_outside(run: Run, scope: ast.AST, loop: ast.For, forwards: set[ast.AST]) -> None:
    """Raise NotBounded where a loop reads what a forward outside of it has made: that is there beside its own."""
    inside = set(ast.walk(loop))
    functions = [each.node for each in run.functions if each.node is not scope]
    runs = {each.name for each in functions if forwards & set(ast.walk(each))}
    outside = [each for each in ast.walk(scope) if isinstance(each, ast.Assign) and each not in inside]
    made: set[str] = set()
    for _ in range(len(outside) + 1):
        before = len(made)
        for each in outside:
            read = set(ast.walk(each.value))
            names = {getattr(one, "id", getattr(one, "attr", "")) for one in read}
            if forwards & read or names & (made | runs):
                made |= {one.id for target in each.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        if len(made) == before:
            break
    own = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    used = sorted({one.id for one in inside if isinstance(one, ast.Name) and one.id in made - own})
    if used:
        raise NotBounded(f"{used[0]}, which a forward outside of the loop makes")


class _Loop(Walk):
    """Ends where the loss is run back, but for what follows in the turn."""

    def turn(self, body: list[ast.stmt]) -> Any:
        """One turn, beside what names hold of the turn before; the loss. Raises Raised where it comes to none."""
        at = next((at for at, each in enumerate(body) if any(map(_is_backward, ast.walk(each)))), len(body))
        try:
            self.block(body[: at + 1])
        except Returned as found:
            for each in body[at + 1 :]:
                if self._rest(each):
                    break
            return found.value
        raise Raised

    def _rest(self, node: ast.stmt) -> bool:
        """One of what follows: of what is not known here only what is given large tensors matters, which may keep them.
        Whether the turn ends with it."""
        large = {name for name, value in self.names.items() if _large(value)}
        try:
            self.block([node])
        except NotBounded:
            if large & {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}:
                raise
        except (Returned, Raised):
            return True
        return False

    def _value_call(self, node: ast.Call) -> Any:
        if _is_backward(node) and isinstance(node.func, ast.Attribute):
            raise Returned(self.value(node.args[0] if node.args else node.func.value))
        return super()._value_call(node)


def _is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"


def _large(value: Any) -> bool:
    """Whether a name holds what is as large as logits or hidden states."""
    if type(value) in (list, tuple, dict):
        return any(map(_large, value.values() if type(value) is dict else value))
    return isinstance(value, Outputs) or (isinstance(value, Held) and value.big)


def _quietly(run: Run) -> Any:
    """Evaluates an expression of the program without leaving a trace of it."""

    def evaluate(node: ast.expr, frame: Any) -> Any:
        before, run.aside = run.aside, True
        try:
            return run.evaluate(node, frame)
        finally:
            run.aside = before

    return evaluate


def check_rows(found: Found, source: str, pairs: bool, few: bool = False) -> None:
    """Raise NotBounded where the batch goes in whole and its code, or the trainer's name (``pairs``), speaks of several
    rows of an example. ``few``: the model has a head for classes."""
    said = re.search(SEVERAL[0] + SEVERAL[1] * (not few), source) if found.whole else None
    if said or (pairs and found.whole):
        raise NotBounded(f"{said.group() if said else 'pairs'}, so an example may have more rows than one")
    if len(found.teachers) > 1:
        raise NotBounded("several models beside the trained one")
