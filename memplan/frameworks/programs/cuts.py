"""How long a program's rows are: where its tokenizer, its data sets and its collators cut."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.operators import written
from memplan.frameworks.programs.run import MAX_STEPS, Run
from memplan.frameworks.programs.text import SHORTER
from memplan.frameworks.programs.values import Function, Place, Thing, Unknown

SOURCE, TARGET = re.compile(r"(?i)source|prompt|question"), re.compile(r"(?i)target|answer|response|completion")
"""What bounds of a row's two halves are called, which a causal model reads as one."""
ENCODERS = re.compile(r"(?i)t5|bart|pegasus|marian|opus-mt")
"""Names of models that read one half and write the other."""
BY_TOKENIZER = "model_max_length"
LOADED_BY = ("__getitem__", "__call__", "__iter__", "collate_fn")
"""Methods by which a data loader asks a data set for a row, and a collator for a batch."""
MOST_OBJECTS = 20
MAX_ASIDE = 20_000
"""Steps in functions that nothing calls."""
TOKENIZES = re.compile(r"(?i)(^|\.)(\w*token(iz|is)\w*|processor)$")
IDS = "input_ids"
CUTS_TOKENS = (0, 15)
"""The last version of TRL that a sign may stand for whose SFTTrainer may leave rows as they are that come as tokens: to
0.14 it neither cuts nor packs them (trainer/sft_trainer.py: _prepare_dataset). Unsloth's never cuts them
(unsloth_zoo 2025.10 dataset_utils.py: sft_prepare_dataset)."""


def put_length(run: Run, method: str, draft: Draft) -> None:
    """The longest that the program cuts at, where no argument of the trainer says it; asked for where none is known."""
    if any(each.asks == "sequence_length" for each in draft.unread) or "sequence_length" in draft.given:
        return
    leaves = method == "sft" and ("unsloth" in draft.facts or draft.version <= CUTS_TOKENS)
    tokens = [str(each.place) for each in run.mapped if leaves and _to_tokens(each)]
    whole = f"TRL to 0.14 and Unsloth leave rows as {tokens[0]} tokenises them" if tokens else ""
    if whole:
        draft.forget("sequence_length")
    elif "sequence_length" in draft.values:
        return
    cuts = _cuts(run)
    cuts = [each for each in cuts if each[2] != BY_TOKENIZER] or cuts  # rows are cut before it, if it cuts any
    found = {value: place for value, place, _ in cuts if isinstance(value, int) and not isinstance(value, bool)}
    if found:
        longest, why = max(found), f"{found[max(found)]}: max_length"
        bounds = [(value, text) for value, _, text in cuts if isinstance(value, int)]
        halves = [max((value for value, text in bounds if part.search(text)), default=0) for part in (SOURCE, TARGET)]
        if all(halves) and not ENCODERS.search(str(draft.now("model"))):
            longest, why = sum(halves), f"{found[longest]}: {halves[0]} and {halves[1]} of one row"
        draft.put("sequence_length", longest, Origin(FILE, why))
        return
    unknown = next(((value, place) for value, place, _ in cuts if isinstance(value, Unknown)), None)
    what = whole or "nothing in the program says how long its data is"
    what = f"the tokenizer cuts at {unknown[0].text}" if unknown else what
    draft.ask("sequence_length", str(unknown[1]) if unknown else run.start, what)


def _cuts(run: Run) -> Sequence[tuple[Any, Place, str]]:
    """Where rows are cut; of a training also in functions that nothing calls, but a library may."""
    most = min(run.steps + MAX_ASIDE, MAX_STEPS - MAX_ASIDE)
    todo = [*_of_loaders(run), *run.functions[:200]] if run.trainers and not run.gone_aside else []
    todo = [each for each in todo if id(each.node) not in run.done]
    run.aside = run.gone_aside = True
    try:
        for found, args, named in _handed_on(run) if todo else ():
            run.invoke(found, args, named, Place(found.path, found.node.lineno))
        for found in todo:
            if run.steps < most and (found.bound or id(found.node) not in run.done):
                run.invoke(found, [], {}, Place(found.path, found.node.lineno))
    except RecursionError:
        raise InvalidJob(f"{run.path}: nested deeper than is followed", SHORTER) from None
    run.aside = False
    return run.lengths


def _handed_on(run: Run) -> Iterator[tuple[Function, list[Any], dict[str, Any]]]:
    """``partial(tokenize, args.max_length)``: functions that a data set maps, with what they are given beforehand."""
    for each in [each for each in run.things if each.last == "partial"][:MOST_OBJECTS]:
        whole = each.values.get("*0")
        if isinstance(whole, Function) and id(whole.node) not in run.done:
            args = [each.values[key] for key in (f"*{at}" for at in range(1, len(each.values))) if key in each.values]
            yield whole, args, {key: value for key, value in each.values.items() if key[:1] != "*"}


def _of_loaders(run: Run) -> Iterator[Function]:
    """What a loader calls of the data sets and collators that the program makes."""
    mine = [each for each in run.things if each.own is not None and each not in run.trainers]
    for thing in mine[:MOST_OBJECTS]:
        for method in filter(None, map(thing.own.method, LOADED_BY) if thing.own else ()):
            yield method.on(thing)


def _to_tokens(call: Call) -> bool:
    """Whether rows leave what a data set maps as tokens: a mapping of their ids, or what a tokenizer gives."""
    whole, said = call.get(0, "function"), getattr(call.node, "args", [])
    if isinstance(whole, Thing) and whole.last == "partial":
        whole = whole.values.get("*0")
    node = whole.node if isinstance(whole, Function) else next(iter(said), None)
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
        return False
    results = [node.body] if isinstance(node, ast.Lambda) else []
    assigned: list[tuple[str, ast.expr]] = []
    for each in ast.walk(node):
        results += [each.value] if isinstance(each, ast.Return) and each.value else []
        assigned += [(written(target), each.value) for target in each.targets] if isinstance(each, ast.Assign) else []
    names = {written(each) for each in results}
    put = any(name == f"{each}['{IDS}']" for each in names for name, _ in assigned)
    return put or any(map(_is_tokens, [*results, *(value for name, value in assigned if name in names)]))


def _is_tokens(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict):
        return any(isinstance(each, ast.Constant) and each.value == IDS for each in value.keys)
    return isinstance(value, ast.Call) and TOKENIZES.search(written(value.func)) is not None
