"""Losses and optimizers of a program's own: a trainer's subclass that computes another loss, a function for it."""

import ast
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from memplan.frameworks.asking import KEEPS_LOGITS, SUCH
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.common.optimizer_classes import STEPS, found_class, way_of
from memplan.frameworks.programs.copied import COPY, put_copy
from memplan.frameworks.programs.losses.bound import of_function, of_method, of_smoother
from memplan.frameworks.programs.losses.put import CLASSES, ROWS, RUNS, of_pairs, of_rows, put_unread, put_walked
from memplan.frameworks.programs.model import SMALL
from memplan.frameworks.programs.models import TRAINERS
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Class, Function, Ref, Thing, truth
from memplan.units import words_of

LOSS_PARTS = ("compute_loss", "training_step", "forward", "get_batch_loss_metrics", "concatenated_forward", "dpo_loss")
"""Methods of a trainer that a subclass changes the loss with."""
OTHER_PARTS: Mapping[str, str] = {
    **dict.fromkeys(("create_optimizer", "create_optimizer_and_scheduler"), "optimizer"),
    **dict.fromkeys(("prediction_step", "evaluation_loop", "prediction_loop", "evaluate"), "evaluation"),
    **dict.fromkeys(words_of("_wrap_model _inner_training_loop train _prepare_model create_model"), "parallelism"),
    **dict.fromkeys(
        words_of(
            """_compute_loss compute_liger_loss _get_per_token_logps _get_per_token_logps_and_entropies _generate
            _generate_and_score_completions _generate_single_turn _prepare_inputs compute_ref_log_probs
            compute_reference_log_probs concatenated_inputs get_batch_logps null_ref_context"""
        ),
        "loss",
    ),
    "get_train_dataloader": "batch",
}
"""Other methods of transformers' and TRL's trainers whose place a subclass takes, and what of memory they decide."""
PARTS = frozenset({*LOSS_PARTS, *OTHER_PARTS})
SAME = re.compile(r"get_optimizer_cls_and_kwargs|train_batch_size|None,\s*None|prediction_loss_only=True")
"""What a method of these has that leaves memory as the trainer's own: its optimizer, its batch, no logits kept."""
MAKES = re.compile(
    r"model\(|forward\(|backward\(|logits|hidden_states|attentions|\.clone\(|output_|outputs\[[1-9]|entropy|softmax"
    r"|loss_f|nn\.|F\.|_step\(|teacher"
)
"""What a method does that makes more than the trainer's own does."""
MAKES_IN_LOSS = re.compile(r"generate\(|parameters\(|self\.\w+\(\*\*")
"""The same of a loss: its graph has all that it reads."""
GIVES = re.compile(r"\b(?!isinstance|type\(|hasattr|getattr|\w*unwrap\w*|_?is_)\w+\((?:[^()]*, )?(?:self\.)?model[,)]")
"""Where it gives the model to another function, which may run it."""
LOOKS_ON = ("isinstance", "len", "print", "hasattr")


def _body(own: Class, name: str = "compute_loss") -> str:
    """What a method does; empty for none."""
    found = own.method(name)
    return "\n".join(ast.unparse(each) for each in found.node.body) if found else ""


def _leaves_it(own: Class, name: str, method: str) -> bool:
    """Whether a method only looks on, and lets the trainer's own do the work; or the model, whose loss is the trainer's
    (``model(**inputs).loss``)."""
    found, body = own.method(name), _body(own, name)
    alone = r"|\bmodel\(" if name == "compute_loss" and method == "transformers" else ""
    calls = rf"super\([^()]*\)\.{name}\({alone}"
    rest = re.sub(calls, "", body)
    more = MAKES.search(rest) or GIVES.search(rest) or (name == "compute_loss" and MAKES_IN_LOSS.search(rest))
    once = len(re.findall(calls, body)) == 1 and not more
    return once and found is not None and not _hands_on(found.node, re.compile(calls))


WHOLE = re.compile(r"logits|hidden|model|batch|inputs|labels")
"""What parameters of a loss are called that are as long as a row; ``logps`` are a number for each."""
FORWARDS = re.compile(
    r"\b\w*model\(|\bforward\(|_logps\(.*logits|softmax|kl_div|cross_entropy|hidden_states|generate\(|teacher|backward\("
)
"""What makes more than numbers around TRL's ``concatenated_forward``."""
ONE_FORWARD = {
    **dict.fromkeys(("get_batch_loss_metrics", "compute_loss"), re.compile(r"concatenated_forward\(model\b")),
    "dpo_loss": re.compile(""),
}
OF_TOKENS = re.compile(r"_get_per_token_logps(?:_and_entropies)?\(model\b.*")
"""TRL's own forwards, which give numbers for each row, or, of GRPO's, for each token."""
METHODS = {"dpo": ONE_FORWARD, "grpo": dict.fromkeys(("compute_loss", "_compute_loss"), OF_TOKENS)}
UNTIL = {"dpo": ("concatenated_forward", "0.28"), "grpo": ("_get_per_token_logps", "0.19")}
"""A method that DPO and GRPO had until a version (trl 0.20 trainer/grpo_trainer.py, 1.16 trainer/dpo_trainer.py)."""


def _of_numbers(own: Class, name: str, by: str) -> bool:
    """Whether a method of a trainer's makes another loss of the log-probabilities that TRL's own forward gives."""
    found, body, forward = own.method(name), _body(own, name), METHODS.get(by, {}).get(name)
    if found is None or forward is None:
        return False
    if name == "dpo_loss":
        names = [each.arg for each in (*found.node.args.args, *found.node.args.kwonlyargs)]
        return not any(WHOLE.search(each) for each in names) and not re.search(r"model\(|forward\(|generate\(", body)
    own_calls = {each for each in re.findall(r"self\.(\w+)\(", body) if own.method(each)}
    rest, once = forward.sub("", body), len(forward.findall(body)) == 1
    more = FORWARDS.search(rest) or (by == "grpo" and re.search("entrop", body))
    return once and not more and all(_of_numbers(own, each, by) for each in own_calls)


def until(trainer: Thing) -> str:
    """The last version of TRL that has the methods which a subclass replaces, or calls; empty where it does neither."""
    own, by = trainer.own, TRAINERS[trainer.last]
    if own is None or by not in UNTIL or COPY in trainer.values:
        return str(trainer.values.get(COPY, ""))
    called, version = UNTIL[by]
    names = {"get_batch_loss_metrics", "dpo_loss"} if by == "dpo" else set()
    calls = any(f"self.{called}(" in _body(own, name) for name in METHODS[by])
    return version if calls or any(own.method(name) for name in (*names, called)) else ""


def _hands_on(node: ast.AST, made: re.Pattern[str]) -> bool:
    """Whether what a call makes is given to another function, which may do anything with it."""
    within = list(ast.walk(node))
    bound = {
        ast.unparse(target)
        for each in within
        if isinstance(each, ast.Assign) and made.search(ast.unparse(each.value))
        for target in each.targets
    }
    calls = (each for each in within if isinstance(each, ast.Call) and ast.unparse(each.func) not in LOOKS_ON)
    given = (ast.unparse(arg) for call in calls for arg in (*call.args, *(word.value for word in call.keywords)))
    return not bound.isdisjoint(given)


SMOOTHS = "label_smoothing_factor"
WALKED = ("transformers", "sft")
"""Trainers whose losses are walked."""
FUSED = ("use_liger_loss", "use_liger_kernel")
"""What makes no logits where the loss is TRL's own."""
SCORES = re.compile(r"SequenceClassification")
PAIRS = re.compile(r"logsigmoid\(|log\(torch\.sigmoid\(")
OTHERS = re.compile(r"hidden_states|ref_model|reference|teacher|generate\(|cross_entropy|lm_loss|log_softmax")
"""What a loss of pairs does beside comparing two scores."""


def _scored(own: Class, models: list[Thing]) -> int:
    """Forwards of a loss that compares the scores of pairs, as reward models of InstructGPT's kind are trained: one of
    both, or one for each; 0 for any other loss."""
    body = _body(own)
    one = all(SCORES.search(str(each.values["class"])) and each.values.get("num_labels") == 1 for each in models)
    return min(len(RUNS.findall(body)), 2) if one and models and PAIRS.search(body) and not OTHERS.search(body) else 0


def _other(whose: str, name: str, where: str, draft: Draft) -> None:
    """A method of a subclass that is no loss; what is of an evaluation, where there is one."""
    if OTHER_PARTS[name] != "evaluation" or "eval_batch_size" in draft.values:
        draft.warn(name, where, f"{whose} has a {name} of its own, which is not read", OTHER_PARTS[name])


def put_losses(trainer: Thing, models: list[Thing], run: Run, draft: Draft) -> None:
    """A subclass with a loss of its own, a loss as a function, an optimizer that the program makes."""
    own, by = trainer.own, TRAINERS[trainer.last]
    parts = (name for name in LOSS_PARTS if own and own.method(name) and not _leaves_it(own, name, by))
    args = trainer.values.get("args")
    said = args.values if isinstance(args, Thing) else {}
    fused = any(truth(said.get(key)) for key in FUSED)
    changed = next((name for name in parts if own and (fused or not _of_numbers(own, name, by))), "")
    copied = COPY in trainer.values
    if copied:
        put_copy(trainer, args, draft)
    rows = by == "transformers" and bool(models) and all(ROWS.search(str(each.values["class"])) for each in models)
    classes = bool(models) and all(CLASSES.search(str(each.values["class"])) for each in models)
    if own and changed and not copied:
        method = own.method(changed)
        where = f"{method.path}, line {method.node.lineno}" if method else str(trainer.place)
        passes = _scored(own, models) if by == "transformers" and changed == "compute_loss" else 0
        if passes:
            draft.finishers["pairs"] = partial(of_pairs, trainer, passes)
        elif method and changed == "compute_loss" and by in WALKED:
            walk = partial(of_method, run, trainer, method, models, inherited=True, small=classes)
            put_walked(trainer, walk, changed, where, rows, classes, draft)
        else:
            put_unread(trainer, changed, where, "", draft)
    elif rows:
        draft.finishers["pairs"] = partial(of_rows, trainer, 1, 1)
    seen = ("loss", "evaluation") if copied else ("loss",) if changed else ()
    others = {name: own.method(name) for name in OTHER_PARTS if own and OTHER_PARTS[name] not in seen}
    for name, method in others.items():
        little = own and (SAME.search(_body(own, name)) or (not fused and _of_numbers(own, name, by)))
        if own and method and not little and not _leaves_it(own, name, by):
            work = partial(_other, own.node.name, name, f"{method.path}, line {method.node.lineno}")
            draft.finishers[f"own {name}"] = work
    key = "compute_loss_func"
    if isinstance(given := trainer.values.get(key), Function):
        walk = partial(of_function, run, given, models, small=classes)
        put_walked(trainer, walk, key, str(trainer.places[key]), rows, classes, draft)
    elif not changed and given is None and by in WALKED and truth(said.get(SMOOTHS, False)) is not False:
        walk = partial(of_smoother, run, models, small=classes)
        put_walked(trainer, walk, SMOOTHS, str(trainer.values["args"].places[SMOOTHS]), rows, classes, draft)
    elif given is not None:
        draft.warn(key, str(trainer.places[key]), "a loss of the program's own is not read", "loss")
    _optimizer(trainer, draft)


def _optimizer(trainer: Thing, draft: Draft) -> None:
    """An optimizer that the program makes, whatever its arguments name: by its class, or said."""
    key = next((key for key in ("optimizers", "optimizer", "optimizer_cls_and_kwargs") if trainer.values.get(key)), "")
    made = trainer.values.get(key)
    made = made[0] if isinstance(made, tuple) and not isinstance(made, Ref) and made else made
    name = made.name if isinstance(made, (Thing, Ref)) else ""
    found = found_class(name)
    if found:
        arguments = made.values if isinstance(made, Thing) else {}
        said: dict[str, Any] = {
            "optimizer": "sgd-momentum" if found[0] == "sgd" and arguments.get("momentum") else found[0]
        }
        said |= {"optimizer_args": {"library": found[1]}} if found[1] else {}
        said |= {"optimizer_impl": way_of(name, arguments)} if found[0] in STEPS and not found[1] else {}
        draft.finishers["own optimizer"] = partial(_by_class, said, f"{trainer.places[key]}: {name}")
    elif made is not None:
        why = "an optimizer that the program makes is counted as the trainer's"
        draft.warn(key, str(trainer.places[key]), why, "optimizer")


def _by_class(said: Mapping[str, Any], where: str, draft: Draft) -> None:
    """The optimizer that the program hands its trainer."""
    if "optimizer" not in draft.given:
        draft.unread[:] = [each for each in draft.unread if each.asks != "optimizer"]
        for key in ("optimizer_impl", "optimizer_args"):
            draft.values.pop(key, None)
        draft.values |= said
        draft.origins |= dict.fromkeys(said, Origin(FILE, where))


def put_kept_logits(trainer: Thing, models: list[Thing], arguments: Any, draft: Draft) -> None:
    """``compute_metrics`` of a language model, and ``trainer.predict()``: without preprocess_logits_for_metrics the
    logits of every batch that is evaluated wait on the card (transformers trainer.py: evaluation_loop, predict)."""
    values = arguments.values if isinstance(arguments, Thing) else {}
    small = any(SMALL.search(str(each.values["class"])) for each in models)
    reduced = truth(trainer.values.get("preprocess_logits_for_metrics")) or truth(values.get("predict_with_generate"))
    told = any(truth(values.get(key)) for key in ("prediction_loss_only", "batch_eval_metrics"))
    why = next((key for key in ("compute_metrics", "?predict") if trainer.values.get(key) is not None), "")
    if TRAINERS[trainer.last] not in ("sft", "transformers") or not why or small:
        return
    if reduced or told or "eval_batch_size" not in draft.values or "evaluation" in draft.given:
        return
    where, steps = str(trainer.places[why]), values.get("eval_accumulation_steps")
    if isinstance(steps, int):
        kept = {"keeps_logits": True, "accumulation_steps": steps}
        draft.put("evaluation", kept, Origin(FILE, f"{where}: {why.strip('?')}"))
        return
    what = KEEPS_LOGITS.replace("compute_metrics", why.strip("?"))
    draft.ask("evaluation", where, what, f"add {SUCH['evaluation']}")
