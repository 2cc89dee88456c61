"""Calls within a loss: of models, of functions and modules of the program's own, of torch's operations."""

import ast
import re
from typing import Any

from memplan.frameworks.programs.losses import operations
from memplan.frameworks.programs.losses.expressions import PARAMETERS
from memplan.frameworks.programs.losses.objects import Batch, Bound, Model, Outputs, forward
from memplan.frameworks.programs.losses.tensors import Held, NotBounded, largest
from memplan.frameworks.programs.losses.walk import Walk
from memplan.frameworks.programs.values import Class, Function, Place, Ref, Thing, is_plain
from memplan.units import words_of

TORCH = ("torch", "F", "nn", "functional", "np", "numpy", "math", "trl", "transformers", "tqdm", "wandb", "accelerate")
SUPER = "super"
TOKENIZER = re.compile(r"(Tokenizer|TokenizerFast|Processor)\.from_pretrained$")
HANDS_ON = frozenset(
    words_of("unwrap_model unwrap dict tuple list sorted reversed iter next tqdm _prepare_inputs to scale")
)
BATCH = frozenset(words_of("pop get copy to"))
RUNS = frozenset(words_of("forward __call__"))
OF_MODEL = frozenset(words_of("train eval zero_grad to requires_grad_ get_nb_trainable_parameters num_parameters"))
OF_TRAINER = frozenset(words_of("log log_metrics store_metrics store_flos is_world_process_zero is_local_process_zero"))
NUMBERS = frozenset(
    words_of("float int bool abs round len isinstance hasattr print range min max str repr id type any all")
)


def called(walk: Walk, node: ast.Call) -> Any:
    """What a call comes to. Raises NotBounded for one of nobody."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Attribute) and _is_super(node.func.value):
        return _inherited(walk, name, node)
    if isinstance(node.func, ast.Attribute):
        return _method(walk, walk.value(node.func.value), name, node)
    callee = walk.value(node.func)
    model = walk.asked.model_of(node) if isinstance(callee, (Ref, Held)) else None
    return _of(walk, model or callee, name, node)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == SUPER


def _arguments(walk: Walk, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    for each in node.args:
        value = walk.value(each)
        args += value if isinstance(each, ast.Starred) and type(value) in (list, tuple) else [value]
    named: dict[str, Any] = {}
    for word in node.keywords:
        value = walk.value(word.value)
        named |= {word.arg: value} if word.arg else value if isinstance(value, dict) else {"**": value}
    return args, named


def _of(walk: Walk, callee: Any, name: str, node: ast.Call) -> Any:
    """A name that is called."""
    if isinstance(callee, Model):
        return _run(walk, callee, node)
    args, named = _arguments(walk, node)
    if isinstance(callee, Function):
        return walk.inline(callee, args, named)
    if isinstance(callee, Bound):
        return _module(walk, callee, args, named)
    if isinstance(callee, Class):
        made = walk.asked.evaluate(node, walk.frame)
        if isinstance(made, Thing):
            return Bound(made)
        raise NotBounded(callee.node.name)
    if isinstance(callee, Ref):
        return _of_library(walk, callee, args, named, node)
    raise NotBounded(name or ast.unparse(node.func)[:60])


def _of_library(walk: Walk, callee: Ref, args: list[Any], named: dict[str, Any], node: ast.Call) -> Any:
    first = args[0] if args else None
    if callee.name == "getattr" and len(args) > 1 and isinstance(args[1], str):
        attribute = ast.Attribute(value=node.args[0], attr=args[1], ctx=ast.Load())
        return walk.value(attribute)
    if callee.name == "sum" and type(first) in (list, tuple):
        total: Any = walk.maker.number
        for each in args[0]:
            total = operations.binary(walk.maker, "+", total, each)
        return total
    if callee.name in HANDS_ON or callee.last in ("unwrap_model", "deepcopy"):
        return first
    if callee.name in ("zip", "enumerate") and args and all(type(each) in (list, tuple) for each in args):
        return list(zip(*args, strict=False)) if callee.name == "zip" else list(enumerate(args[0]))
    if callee.name in NUMBERS:
        return first if callee.name in ("float", "int") and is_plain(first) else walk.maker.number
    if callee.last in operations.MODULES and callee.last[:1].isupper():
        return Bound(Thing(f"torch.nn.{callee.last}", Place("", node.lineno), named))
    if callee.name.partition(".")[0] not in TORCH and callee.last not in operations.KNOWN["ignored"]:
        raise NotBounded(callee.name)
    return operations.apply(walk.maker, callee.last, args, named)


def _module(walk: Walk, callee: Bound, args: list[Any], named: dict[str, Any]) -> Any:
    """``self.loss_fn(logits, labels)``: a module of torch's, or the program's own, whose forward is walked."""
    thing = callee.thing
    if thing.own is not None:
        method = thing.own.method("forward") or thing.own.method("__call__")
        if method is None:
            raise NotBounded(thing.own.node.name)
        return walk.inline(method.on(callee), args, named)
    if TOKENIZER.search(thing.name) and args and (isinstance(args[0], Batch) or getattr(args[0], "rows", 0) == 1):
        return Batch(labels=False)  # of texts of the batch
    function = operations.MODULES.get(thing.last)
    if function is None or not thing.name.startswith("torch.nn."):
        raise NotBounded(thing.last)
    kept = {
        key: value for key, value in thing.values.items() if key in ("reduction", "label_smoothing", "dim", "weight")
    }
    return operations.apply(walk.maker, function, args, {**kept, **named})


def _method(walk: Walk, owner: Any, name: str, node: ast.Call) -> Any:
    """``x.float()``, ``inputs.pop("labels")``, ``self.helper(x)``, ``F.softmax(x)``."""
    if isinstance(owner, Model):
        if name in RUNS:
            return _run(walk, owner, node)
        if name in OF_MODEL:
            return owner
        if name == "parameters":
            return Ref(PARAMETERS)
        raise NotBounded(f"{name} of a model")
    if isinstance(owner, Ref):
        args, named = _arguments(walk, node)
        return _of_library(walk, Ref(f"{owner.name}.{name}"), args, named, node)
    if isinstance(owner, Bound):
        return _of_object(walk, owner, name, node)
    args, named = _arguments(walk, node)
    if isinstance(owner, Batch):
        return _of_batch(walk, owner, name, args)
    if isinstance(owner, dict):
        return _of_dict(walk, owner, name, args)
    if type(owner) is list and name in ("append", "extend", "insert"):
        owner += args[-1:] if name != "extend" else args[0] if type(args[0]) is list else args
        return None
    if isinstance(owner, Outputs) and name in ("get", "items", "keys", "values", "to_tuple"):
        return walk._of_outputs(owner, args[0]) if name == "get" and args else [owner.loss, owner.logits]
    if isinstance(owner, Held):
        return operations.apply(walk.maker, name, [owner, *args], named)
    if is_plain(owner) or type(owner) in (list, tuple):
        return walk.maker.number
    raise NotBounded(name)


def _of_object(walk: Walk, owner: Bound, name: str, node: ast.Call) -> Any:
    """A method of an object of the program's own; of its trainer those of a library that make nothing."""
    found = walk._of_object(owner, name)
    if isinstance(found, (Model, Function, Bound)):
        return _of(walk, found, name, node)
    args, _ = _arguments(walk, node)
    if name == "label_smoother":
        return smoothed(walk, args)
    if name in OF_TRAINER or name in operations.KNOWN["ignored"] or name in HANDS_ON:
        return args[0] if args and name in HANDS_ON else walk.maker.number
    raise NotBounded(name)


def _of_batch(walk: Walk, owner: Batch, name: str, args: list[Any]) -> Any:
    if name in ("to", "copy"):
        return owner if name == "to" else Batch(owner.labels, owner.part)
    if name in ("pop", "get") and args:
        owner.labels = owner.labels and not (name == "pop" and args[0] == "labels")
        if len(args) > 1 and args[1] is None and args[0] not in ("labels", "input_ids", "attention_mask"):
            return walk._of_batch(args[0], owner) if walk.asked.either() else None
        return walk._of_batch(args[0], owner)
    return walk.maker.number


def _of_dict(walk: Walk, owner: dict[Any, Any], name: str, args: list[Any]) -> Any:
    if name in ("pop", "get") and args:
        found = owner.pop(args[0], None) if name == "pop" else owner.get(args[0])
        return found if found is not None else args[1] if len(args) > 1 else walk.maker.number
    if name == "items":
        return [list(each) for each in owner.items()]
    if name in ("keys", "values"):
        return list(getattr(owner, name)())
    if name == "update" and args and isinstance(args[0], dict):
        owner.update(args[0])
    return owner if name in BATCH else walk.maker.number


def smoothed(walk: Walk, args: list[Any]) -> Any:
    """transformers' LabelSmoother (trainer_pt_utils.py): a copy of shifted logits, their log-softmax, its negative."""
    first = args[0].logits if args and isinstance(args[0], Outputs) else largest(*args)
    if first is None:
        raise NotBounded("label_smoother")
    copied = operations.apply(walk.maker, "clone", [first], {})
    scores = operations.apply(walk.maker, "neg", [operations.apply(walk.maker, "log_softmax", [copied], {})], {})
    picked = operations.apply(walk.maker, "gather", [scores, -1, walk.maker.number], {})
    return operations.binary(walk.maker, "+", picked, operations.apply(walk.maker, "sum", [scores], {"dtype": True}))


def _inherited(walk: Walk, name: str, node: ast.Call) -> Any:
    """``super().compute_loss(model, inputs, return_outputs=True)``: transformers' own loss of the model."""
    args, named = _arguments(walk, node)
    if name != "compute_loss" or not walk.asked.inherited:
        raise NotBounded(f"super().{name}")
    model = next((each for each in (*args, *named.values()) if isinstance(each, Model)), Model(None, True))
    given = next((each for each in (*args, *named.values()) if isinstance(each, (Batch, dict))), None)
    batch, rows = _batch_of({"**": given} if isinstance(given, Batch) else given or {}, [])
    walk.asked.whole = walk.asked.whole or batch is not None
    outputs = forward(walk.asked, model, {}, labels=True, rows=rows)
    operations.apply(walk.maker, "clone", [outputs.logits.plain()], {})  # TRL's metrics of the shifted logits
    wants = named.get("return_outputs", args[2] if len(args) > 2 else False)
    return [outputs.loss, outputs] if wants is True else outputs.loss


def _batch_of(named: dict[str, Any], args: list[Any]) -> tuple[Batch | None, int]:
    """The batch that is handed on whole, and the sequences of each example that go in."""
    batch = next((each for each in (*args, *named.values()) if isinstance(each, Batch)), None)
    rows = [each.rows for each in (*args, *named.values()) if isinstance(each, Held)]
    said = named.get("input_ids", args[0] if args else None)
    if batch is not None:
        return batch, 1
    return None, said.rows if isinstance(said, Held) else min(rows, default=0)


def _run(walk: Walk, model: Model, node: ast.Call) -> Any:
    """``model(**inputs)``, ``model(input_ids=ids, attention_mask=mask)``."""
    args, named = _arguments(walk, node)
    batch, rows = _batch_of(named, args)
    for key in named:
        if key not in ("**",) and any(word in key for word in ("embeds", "pixel", "image", "past_key")):
            raise NotBounded(f"{key} of a forward")
    walk.asked.whole = walk.asked.whole or batch is not None
    labels = named["labels"] is not None if "labels" in named else bool(batch and batch.labels)
    return forward(walk.asked, model, named, labels, rows)
