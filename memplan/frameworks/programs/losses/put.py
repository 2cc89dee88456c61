"""What was found of a loss of a program's own, as the job's keys: a bound, or what of it nobody knows."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial

from memplan.frameworks.asking import WRITE
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.programs.losses.bound import Found, check_rows
from memplan.frameworks.programs.losses.tensors import NotBounded
from memplan.frameworks.programs.models import TRAINERS
from memplan.frameworks.programs.others import models_of
from memplan.frameworks.programs.values import Class, Function, Thing, Unknown
from memplan.frameworks.trl.methods import method_of, method_of_class
from memplan.tables.methods import METHODS
from memplan.units import ceil_div

ROWS = re.compile(r"SequenceClassification")
"""Classes whose head scores a row."""
CLASSES = re.compile(r"(?:Sequence|Token)Classification|MultipleChoice")
RUNS = re.compile(r"(?<![\w.])model\(")
"""Where a trainer's method runs the model that it is handed."""
BESIDE = ("ref_model", "reference_model", "teacher_model", "teacher")
"""Arguments of trainers of a program's own that hold a second model."""
OWN_BATCH = ("", "sft", "distill")
"""Methods that the name of a trainer may speak of whose batch has one row for each example."""
FEW_STATES = 5
"""Bytes for each element of the last hidden states that a head for classes keeps anyway."""


def of_pairs(trainer: Thing, passes: int, draft: Draft) -> None:
    """Counted as TRL's reward trainer: a score is one number, of whatever the loss makes little."""
    where = Origin(FILE, f"{trainer.place}: {trainer.own.node.name if trainer.own else ''} compares scores of pairs")
    if "trainer_version" not in draft.given:
        draft.options = {key: value for key, value in draft.options.items() if key != "trainer_version"}
        draft.values.pop("trainer_version", None)
    for key, value in (
        ("method", "reward"),
        ("trainer", "trl"),
        *([("pair_pass", "two-forward")] if passes > 1 else ()),
    ):
        draft.values[key], draft.origins[key] = value, where
    draft.unread[:] = [each for each in draft.unread if each.decides != "method"]


def of_rows(trainer: Thing, rows: int, forwards: int, draft: Draft) -> None:
    """A head for classes scores each row, as a reward's does two rows of each pair: half as many pairs are counted;
    of a loss whose numbers an option gives, its rows."""
    if "own_loss" in draft.given:
        return
    of_pairs(trainer, forwards, draft)
    _put_rows(rows, draft, 2)
    if rows * forwards == 1:
        draft.remarks.append(f"{trainer.place}: a head for classes is counted as a reward's, of half as many pairs")


def put_walked(
    trainer: Thing, walk: Callable[[], Found], name: str, where: str, rows: bool, classes: bool, draft: Draft
) -> None:
    """A loss that is walked: counted from above, or said with what of it nobody knows."""
    source = [ast.unparse(each.node) for each in (trainer.own, _collator(trainer)) if each is not None]
    try:
        found = walk()
        check_rows(found, "\n".join(source), named_method(trainer) not in OWN_BATCH, classes)
        heavy = bool(found.teachers) or found.layers or found.hidden > FEW_STATES * found.forwards or found.forwards > 2
        if classes and (heavy or (found.rows > 1 and not rows)):
            raise NotBounded("what it makes beside the scores of a head for classes")
    except NotBounded as error:
        put_unread(trainer, name, where, f": {error.what}", draft)
        return
    if rows:
        draft.finishers["pairs"] = partial(of_rows, trainer, found.rows, found.forwards)
    elif not classes:
        put_bound(trainer, found, name, where, draft)


def put_bound(trainer: Thing, found: Found, name: str, where: str, draft: Draft) -> None:
    """The job's keys for what a loss holds at most, when the batch is known."""
    trainer.values["?asked"] = found.teachers
    draft.finishers["own loss"] = partial(_put_bound, found, name, where)


def _put_bound(found: Found, name: str, where: str, draft: Draft) -> None:
    if "own_loss" in draft.given:
        return
    several = found.rows > 1 and bool({"token_budget", "lengths"} & draft.said.keys())
    if several or draft.said.get("method") != "sft":
        draft.warn(name, where, "a loss of the program's own is not read", "loss")
        return
    draft.values["own_loss"], draft.origins["own_loss"] = found.values, Origin(FILE, f"{where}: {name}")
    if found.rows > 1:
        _put_rows(found.rows, draft)
    through = f", {found.rows} sequences of each example" if found.rows > 1 else ""
    why = f"a loss of the program's own is counted as {found.logits} bytes for each logit{through}"
    draft.bound(name, where, why, "loss")


def _put_rows(rows: int, draft: Draft, of: int = 1) -> None:
    """So many sequences of each example, ``of`` to a row of the job's; of a batch that an option gives, too."""
    for key in ("batch_size", "eval_batch_size"):
        if isinstance(size := draft.values.get(key), int):
            draft.values[key] = ceil_div(size * rows, of)
        if str(size := draft.options.get(key) or "").isdigit():
            draft.facts[key] = ceil_div(int(size) * rows, of)


UNREAD = "the loss of a training loop of the program's own, which is not read"


def ask_loss(rows: int, forwards: int, what: str, where: str, draft: Draft) -> None:
    """Ask what a loss holds that nobody reads, over so many sequences of each example."""
    hint = f"add --set own_loss.logits=16{f' --set own_loss.forwards={forwards}' if forwards > 1 else ''}"
    draft.ask("own_loss", where, what, hint)
    draft.finishers["rows"] = partial(_put_told, rows)


def _second(trainer: Thing, key: str) -> Iterator[Thing]:
    """A second model that a trainer is given, or the name of one that it loads as its first."""
    given, place = trainer.values.get(key), trainer.places.get(key, trainer.place)
    yield from models_of(given)
    unset = key in trainer.values and given is None is trainer.values.get("model")  # both by one option, left out
    if isinstance(given, (str, Unknown)) or unset:
        yield Thing("model", place, {"class": "AutoModelForCausalLM", "model_name_or_path": given})


def _put_told(rows: int, draft: Draft) -> None:
    """A loss whose numbers an option gives is one of supervised rows, whatever the settings speak of."""
    _put_rows(rows, draft)
    if "own_loss" in draft.given and draft.values.get("method", "sft") != "sft":
        for key in ("loss_head", "reference", "pair_pass", "sft_term", "trainer_version"):
            draft.values.pop(key, None)
            draft.options = {name: value for name, value in draft.options.items() if name != key or name in draft.given}
        draft.values |= {"method": "sft", "trainer": "transformers"}


def _collator(trainer: Thing) -> Class | Function | None:
    given = trainer.values.get("data_collator")
    return given.own if isinstance(given, Thing) else given if isinstance(given, (Class, Function)) else None


def named_method(trainer: Thing) -> str:
    """The method that the name of a program's own trainer speaks of."""
    return method_of_class(trainer.own.node.name) if trainer.own else ""


def put_unread(trainer: Thing, changed: str, where: str, what: str, draft: Draft) -> None:
    """A loss of the program's own that is not read."""
    name = trainer.own.node.name if trainer.own else trainer.last
    files = (method_of(str(each).partition(", line ")[0]) for each in (where, trainer.place))
    method = named_method(trainer) or next(filter(None, files), "")  # a DPOTrainer of its own, or one in dpo_trainer.py
    if TRAINERS[trainer.last] == "transformers" and method not in ("", "sft"):
        what = f"{name} trains by {method} with code of its own{what}"
        found = METHODS.get(method)
        second = [each for key in BESIDE for each in _second(trainer, key)]
        known = found is not None and found.pairs and not found.online and (second or not found.reference)
        if found is None or not known or found.score_head or trainer.own is None:
            draft.warn(changed, where, what, "method", WRITE)
            return
        forwards = max(len(RUNS.findall(ast.unparse(trainer.own.node))), 1)
        trainer.values["?asked"] = second
        ask_loss(max(forwards, 2), forwards, what, where, draft)
    else:
        draft.warn(changed, where, f"{name} has a {changed} of its own, which is not read{what}", "loss")
