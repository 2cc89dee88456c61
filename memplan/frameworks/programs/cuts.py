"""How long a program's rows are: where its tokenizer, its data sets and its collators cut."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.programs.run import MAX_STEPS, Run
from memplan.frameworks.programs.text import SHORTER
from memplan.frameworks.programs.values import Function, Place, Unknown

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


def put_length(run: Run, method: str, draft: Draft) -> None:
    """The longest that the program cuts at, where no argument of the trainer says it; asked for where none is known."""
    asked = any(each.asks == "sequence_length" for each in draft.unread)
    if asked or "sequence_length" in draft.given or "sequence_length" in draft.values:
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
    what = f"the tokenizer cuts at {unknown[0].text}" if unknown else "nothing in the program says how long its data is"
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
            yield Function(method.node, method.frame, method.path, thing)
