"""Settings of a training loop of a program's own, as transformers' arguments have them."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from memplan.frameworks.programs.engines import config_of
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Place, Ref, Thing, Unknown, is_plain

DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


def throws_away(scope: ast.AST) -> bool:
    """Whether a function clears its gradients and steps nothing: it looks at them, as an analysis of a model does."""
    calls = {ast.unparse(each.func).rpartition(".")[2] for each in ast.walk(scope) if isinstance(each, ast.Call)}
    return "zero_grad" in calls and not any("step" in name for name in calls)


def loaders_around(run: Run, scope: ast.AST | None, node: ast.AST) -> list[Thing]:
    """The loaders that the loops around a backward go through, the innermost first."""
    loops = [each for each in ast.walk(scope) if isinstance(each, ast.For)] if scope is not None else []
    around = [loop for loop in loops if any(each is node for each in ast.walk(loop))]
    names = [
        each for loop in around[::-1] for each in ast.walk(loop.iter) if isinstance(each, (ast.Name, ast.Attribute))
    ]
    values = [run.evaluate(each, run.frame) for each in names]
    return [each for each in values if isinstance(each, Thing) and each.last == "DataLoader"]


def arguments_of(run: Run, backward: Thing, forward: Thing, config: Thing | None) -> Iterator[tuple[str, Any, Place]]:
    """The Trainer's arguments that say what the loop does."""
    yield from batches_of(run, backward)
    yield from precision_of(run, forward)
    yield from sharding_of(run, config)


def batches_of(run: Run, backward: Thing) -> Iterator[tuple[str, Any, Place]]:
    """The batch of the loader that the loop goes through, else the largest; what the others have is evaluated."""
    loaders = [each for each in run.things if each.last == "DataLoader"]
    mine = backward.values["loaders"][:1] or loaders
    others = [each for each in loaders if each not in mine]
    for key, whose in (("per_device_train_batch_size", mine), ("per_device_eval_batch_size", others)):
        found = [(each.values.get("batch_size", each.values.get("*1", 1)), each.place) for each in whose]
        unknown = next(((size, where) for size, where in found if type(size) is not int), None)
        value, where = unknown or max(found, default=(0, backward.place), key=lambda each: each[0])
        if value != 0:
            yield key, value, where
        elif key.endswith("train_batch_size"):
            yield key, Unknown("not in the text: no DataLoader is made", where), where
    if others:
        yield "eval_strategy", "steps", others[0].place


def precision_of(run: Run, forward: Thing) -> Iterator[tuple[str, Any, Place]]:
    """``Accelerator(mixed_precision="bf16")``, or an autocast around the forward."""
    for each in run.things:
        mixed = each.values.get("mixed_precision") if each.last == "Accelerator" else None
        if mixed in ("bf16", "fp16"):
            yield str(mixed), True, each.place
        elif mixed == "fp8" and float8_of(run) is not None:
            yield "bf16", True, each.place
        elif mixed not in (None, "no"):
            yield "bf16", Unknown(f"mixed_precision, {getattr(mixed, 'text', mixed)}", each.place), each.place
    for each in forward.values["within"]:
        if isinstance(each, Thing) and each.last == "autocast" and each.values.get("enabled") is not False:
            dtype = each.values.get("dtype", each.values.get("*1", Ref("torch.float16")))
            known = DTYPES.get(dtype.last) if isinstance(dtype, Ref) else None
            yield known or "bf16", True if known else Unknown("the dtype of autocast", each.place), each.place
        elif isinstance(each, Unknown) and re.search(r"autocast|amp|ctx", each.text):
            yield "bf16", each, each.place


RECIPES = {"AORecipeKwargs": "tensorwise", "TERecipeKwargs": "te", "FP8RecipeKwargs": "te"}
"""accelerate 1.15 utils/dataclasses.py; MS-AMP's, which FP8RecipeKwargs takes where it is installed, is no recipe."""


def float8_of(run: Run) -> tuple[str, Place] | None:
    """The one recipe of products in FP8 that a program makes for accelerate, as far as its arguments are read."""
    made = [each for each in run.things if each.last.endswith("RecipeKwargs")]
    if len(made) != 1 or {"config", "module_filter_func", "override_linear_precision"} & set(made[0].values):
        return None
    said = made[0].values
    name = RECIPES.get(made[0].last) if str(said.get("backend", "te")).lower() == "te" else None
    blocks = "-mxfp8" if said.get("use_mxfp8_block_scaling") is True else ""
    return (name + blocks, made[0].place) if name else None


def sharding_of(run: Run, config: Thing | None) -> Iterator[tuple[str, Any, Place]]:
    """DeepSpeed's settings, given to it or to accelerate's plugin for it."""
    if config is not None:
        given, place = config_of(config)
        yield "deepspeed", given, place
        if not isinstance(given, (dict, str)):
            yield "engine_dtype", Unknown("what DeepSpeed's config says", place), place
    for each in run.things:
        if each.last == "DeepSpeedPlugin":
            zero: dict[str, Any] = {"stage": each.values.get("zero_stage", 2)}
            for name in ("offload_optimizer", "offload_param"):
                device = each.values.get(f"{name}_device")
                zero |= {name: {"device": device}} if is_plain(device) and device not in (None, "none") else {}
            yield "deepspeed", each.values.get("hf_ds_config", {"zero_optimization": zero}), each.place
