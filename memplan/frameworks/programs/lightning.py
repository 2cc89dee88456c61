"""Lightning's trainer: ``fit`` runs a module's ``training_step``, and back from the loss that it returns.

Source: lightning 2.5 pytorch/trainer/trainer.py (fit), plugins/precision (autocast by ``precision``),
strategies/strategy.py (the names of strategies), loops/optimization/automatic.py (gradients are zeroed before the
backward)."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.others import models_of
from memplan.frameworks.programs.values import Place, Ref, Thing, Unknown

TRAINER = "lightning.Trainer"
NAMES = re.compile(r"(pytorch_lightning|lightning|lightning\.pytorch)\.Trainer")
BEFORE = ("configure_model", "setup", "configure_optimizers", "train_dataloader", "val_dataloader")
"""What it asks of a module, and of what holds its data, before the first step."""
MIXED: Mapping[str, str] = {"16-mixed": "float16", "16": "float16", "bf16-mixed": "bfloat16", "bf16": "bfloat16"}
TRUE: Mapping[str, str] = {"16-true": "float16", "bf16-true": "bfloat16"}
WHOLE = ("None", "32", "32-true")
ZERO = re.compile(r"deepspeed(?:_stage_([123]))?(_offload)?")


def made(call: Call, callee: Ref) -> Thing | None:
    """``pl.Trainer(precision="bf16-mixed", accumulate_grad_batches=4)``; None for anything else."""
    return call.thing(TRAINER) if NAMES.fullmatch(callee.name) else None


def fitted(call: Call) -> Thing | None:
    """``trainer.fit(module, loader)``: a step of the module, run back; what tells of the loop, if there is one."""
    run, said, module = call.run, call.owner.values, call.get(0, "model")
    step = module.own.method("training_step") if isinstance(module, Thing) and module.own else None
    if step is None:
        return None
    loaders = [each for holder in (module, call.named.get("datamodule")) for each in _asked(call, holder)]
    given = call.get(1, "train_dataloaders", call.named.get("train_dataloader"))
    mine = [each for each in (given, *loaders) if isinstance(each, Thing) and each.last == "DataLoader"]
    precision, before = said.get("precision"), run.within
    for inner in models_of(module):
        run.put(inner, "?device", "cuda", call.place)
        if str(precision) in TRUE:
            run.put(inner, "cast", TRUE[str(precision)], call.place)
    run.within = (*before, *_autocast(precision, call.owner.places.get("precision", call.place)))
    run.invoke(step.on(module), [Unknown("the batch", call.place), 0], {}, call.place)
    run.within = before
    run.things += _sharded(str(said.get("strategy")), call.place)
    if type(devices := said.get("devices")) is int and devices > 0:
        run.globals.names["?num_processes"] = (devices, call.owner.places["devices"])
    scope = _returning(step.node, module)
    returns = [each.value for each in ast.walk(scope) if isinstance(each, ast.Return) and each.value is not None]
    loss = _of_mapping(returns[-1]) if returns else ast.Name("loss", ast.Load())
    node = ast.Call(ast.Attribute(loss, "backward", ast.Load()), [], [])
    steps = said.get("accumulate_grad_batches", 1)
    return Thing(
        "", Place(step.path, scope.lineno), {"node": node, "scope": scope, "loaders": mine[:1], "steps": steps}
    )


def _asked(call: Call, holder: Any) -> Iterator[Any]:
    """What a module's hooks, or a data module's, give."""
    for name in BEFORE if isinstance(holder, Thing) and holder.own else ():
        if (hook := holder.own.method(name)) is not None:
            found = call.run.invoke(hook.on(holder), [], {}, call.place)
            yield found if name == "train_dataloader" else None


def _autocast(precision: Any, place: Place) -> Iterator[Thing | Unknown]:
    if str(precision) in MIXED:
        yield Thing("torch.autocast", place, {"dtype": Ref(f"torch.{MIXED[str(precision)]}")})
    elif str(precision) not in (*TRUE, *WHOLE):
        yield Unknown("the autocast of its precision", place)


def _sharded(strategy: str, place: Place) -> Iterator[Thing]:
    """A strategy as accelerate's plugin has it, or FSDP's wrapper."""
    if found := ZERO.match(strategy):
        values = {"zero_stage": int(found[1] or 2)} | ({"offload_optimizer_device": "cpu"} if found[2] else {})
        yield Thing("accelerate.DeepSpeedPlugin", place, values)
    elif strategy.startswith("fsdp"):
        yield Thing("torch.FullyShardedDataParallel", place)


def _returning(node: ast.AST, module: Thing) -> Any:
    """The method whose loss a step hands on: ``return self.shared_step(batch)``."""
    for _ in range(4):
        last = node.body[-1] if isinstance(node, ast.FunctionDef) else None
        value = last.value if isinstance(last, ast.Return) else None
        name = value.func.attr if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else ""
        further = module.own.method(name) if name and module.own else None
        if further is None:
            break
        node = further.node
    return node


def _of_mapping(value: ast.expr) -> ast.expr:
    """``{"loss": loss}``."""
    keys = value.keys if isinstance(value, ast.Dict) else []
    at = next((at for at, key in enumerate(keys) if isinstance(key, ast.Constant) and key.value == "loss"), None)
    return value.values[at] if isinstance(value, ast.Dict) and at is not None else value
