"""A GRPO trainer of the program's own that is a copy of TRL's, made of transformers' Trainer as that is: what of it is
TRL's is counted as TRL's, by what its code does; what it does beyond is said.

Source: trl 0.14 to 0.24 trainer/grpo_trainer.py. 0.14 makes a prompt's answers within ``compute_loss``
(``num_return_sequences``) and takes the log-softmax of their logits, row by row; copies from before its release keep
every token's. From 0.15 on a row of the batch is an answer; 0.16 divides logits by the temperature."""

import ast
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.hugging_face.version import AT_ONCE
from memplan.frameworks.programs.gathered import Gathered
from memplan.frameworks.programs.models import TRAINERS
from memplan.frameworks.programs.values import Class, Function, Thing, Unknown, truth
from memplan.frameworks.project.copies import Places
from memplan.frameworks.project.own_code import Seen, own_graph, own_head, own_pass, seen_in
from memplan.frameworks.trl.own_groups import every_token

COPY = "?copy"
"""What a trainer that is one has: the version that it is counted as."""
FORWARD = re.compile(r"_?get_per_token_logps\w*")
PASS = re.compile(r"(?:self\._)?get_per_token_logps\w*")
LOSS = ("compute_loss", "_compute_loss")
LOADS = re.compile(r"(?!.*(?:Processor|Tokenizer|Config)\.)[\w.]*\bfrom_pretrained\b")
BESIDE = re.compile(
    r"model|self\.ref_model|reward_funcs?(\[\w+\])?|processing_class|\w*process(or|ing)\w*|\w*tokenizer"
)
"""What TRL's own loads: the policy, its reference, rewards; and what are no models."""
HANDED = ("attn_implementation", "torch_dtype", "dtype", "freeze_vision_modules")
"""How the policy is loaded, where the copy takes it beside its arguments."""


def _methods(own: Class) -> dict[str, Function]:
    """All of its methods that the program has."""
    found: dict[str, Function] = {}
    for base in reversed(own.bases):
        found |= _methods(base) if isinstance(base, Class) else {}
    return found | own.methods


def _forward(methods: Mapping[str, Function]) -> ast.FunctionDef | None:
    """What gives the log-probabilities of tokens: a method, or a function within the loss."""
    within = (each for name in LOSS if name in methods for each in ast.walk(methods[name].node))
    every = (*(each.node for each in methods.values()), *within)
    return next((each for each in every if isinstance(each, ast.FunctionDef) and FORWARD.fullmatch(each.name)), None)


def mark_copy(trainer: Thing) -> None:
    """A trainer of transformers' that is a copy of TRL's GRPO trainer is one of TRL's from here on."""
    methods = _methods(trainer.own) if trainer.own and TRAINERS[trainer.last] == "transformers" else {}
    forward = _forward(methods)
    if forward is None or not any(PASS.search(ast.unparse(methods[name].node)) for name in LOSS if name in methods):
        return
    if not any(re.search(r"self\.num_generations\b", ast.unparse(each.node)) for each in methods.values()):
        return
    entropies, scaled = forward.name.endswith("entropies"), "self.temperature" in ast.unparse(forward)
    trainer.name = "trl.GRPOTrainer"
    trainer.set(COPY, "0.20" if entropies else "0.17" if scaled else "0.15", trainer.place)


def put_copy(trainer: Thing, settings: Any, draft: Draft) -> None:
    """What its code makes beside TRL's own, and what of it is as TRL's first version had it."""
    assert trainer.own is not None
    methods = _methods(trainer.own)
    forward = _forward(methods)
    assert forward is not None
    lines = range(forward.lineno, (forward.end_lineno or 0) + 1)
    seen = [each for method in methods.values() for each in seen_in(method.node) if each.node.lineno not in lines]
    seen += seen_in(forward)
    path = trainer.own.path
    of = Places(path, (), FORWARD, LOSS, "_generate_and_score_completions", PASS, "model", re.compile("$^"))
    said = {key for key, value in getattr(settings, "values", {}).items() if truth(value) is not False}
    rows = [each for each in seen if FORWARD.fullmatch(each.method) and each.calls.endswith(".log_softmax")]
    plain = [each for each in seen if each not in rows[:1]]
    theirs = {key for key, each in methods.items() if "model" in {arg.arg for arg in each.node.args.args}}
    graph = [_followed(each) if each.calls.removeprefix("self.") in theirs else each for each in seen if each.graph]
    loaded = (each for each in seen if isinstance(each.node, ast.Assign) and _loads(each))
    name = trainer.own.node.name
    for found, what, decides in (
        (own_head(of, plain, said), "makes more of the logits than TRL's", "loss"),
        (own_pass(of, graph, said, "", path), "runs the model more often than TRL's", "activations"),
        (own_graph(of, seen), "scores completions without no_grad: its graphs wait", "activations"),
        (own_graph(of._replace(score="_prepare_inputs"), seen), "scores completions without no_grad", "activations"),
    ):
        if found:
            draft.warn("compute_loss", found.where, f"{name} {what}", decides)
    for each in loaded:
        where = f"{path}, line {each.node.lineno}"
        draft.warn("from_pretrained", where, f"{name} loads a model of its own, which is not counted", "model")
    source = "\n".join(ast.unparse(each.node) for each in methods.values())
    if rows:
        draft.put("loss_head", "log-softmax", Origin(FILE, f"{path}, line {rows[0].node.lineno}: log_softmax"))
    where = f"{path}, line {forward.lineno}"
    if not any("to_keep" in each.arg for each in forward.args.args):
        draft.finishers["copy"] = partial(every_token, where)
    if "num_return_sequences=self.num_generations" in source or "Sampler(" not in source:  # which repeats prompts
        draft.facts[AT_ONCE] = where


def gather_copy(trainer: Thing, gathered: Gathered) -> None:
    """How it loads its policy, where it is told beside its arguments; prompts that it does not cut have no bound."""
    if COPY not in trainer.values or trainer.own is None:
        return
    for key in filter(trainer.values.__contains__, HANDED):
        gathered.add(key, trainer.values[key], trainer.places[key], over=False)
    config, place = trainer.values.get("peft_config"), trainer.places.get("peft_config", trainer.place)
    source = "\n".join(ast.unparse(each.node) for each in _methods(trainer.own).values())
    arguments = config.values.get("*0") if isinstance(config, Thing) and config.last == "get_peft_config" else None
    adapted = arguments.values.get("use_peft", False) if isinstance(arguments, Thing) else config
    if adapted not in (None, False) and ".target_modules = " in source:
        gathered.add("lora_target_modules", Unknown("what the trainer chooses", place), place)
    if "-self.max_prompt_length" not in source:
        gathered.drop("max_prompt_length")


def _followed(each: Seen) -> Seen:
    """A call of a method of its own without the model that it hands on: what that does is looked through."""
    assert isinstance(each.node, ast.Call)
    return each._replace(node=ast.copy_location(ast.Call(each.node.func, [], []), each.node))


def _loads(each: Seen) -> bool:
    assert isinstance(each.node, ast.Assign)
    value = each.node.value
    called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    return bool(LOADS.fullmatch(called)) and not all(BESIDE.fullmatch(ast.unparse(to)) for to in each.node.targets)
