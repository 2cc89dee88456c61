"""A training of a program: which trainer, of which version, with which arguments; for the readers of these."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from memplan.errors import InvalidJob, NoTraining
from memplan.frameworks import transformers
from memplan.frameworks.asking import OF_SCRIPT, WRITE
from memplan.frameworks.base import DEFAULT, FILE, Draft, Origin
from memplan.frameworks.common.checkpoints import family_of
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import words
from memplan.frameworks.hugging_face.dialect_names import ROWS
from memplan.frameworks.hugging_face.version import BORN, nearest, put_version
from memplan.frameworks.programs.changes import put_changes
from memplan.frameworks.programs.copied import gather_copy
from memplan.frameworks.programs.gathered import ASKS, LIBRARY, Gathered
from memplan.frameworks.programs.model import put_model
from memplan.frameworks.programs.models import TRAINERS, UNSLOTH, things
from memplan.frameworks.programs.others import put_others
from memplan.frameworks.programs.own_losses import SMOOTHS, put_kept_logits, put_losses
from memplan.frameworks.programs.quantised import loaded_by_trainer
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import EVALUATES, Place, Thing, Unknown
from memplan.frameworks.programs.versions import OF_UNSLOTH, before_sdpa, version_of
from memplan.frameworks.project.pinned import pinned
from memplan.frameworks.trl import reader as trl
from memplan.frameworks.trl.keys import METHODS
from memplan.frameworks.trl.methods import by_loss
from memplan.tables.trainer import version_key

OF_TRAINER = words(
    """max_seq_length packing beta max_length max_prompt_length max_completion_length loss_type precompute_ref_log_probs
    dataset_text_field label_smoothing model_init_kwargs neftune_noise_alpha dataset_kwargs num_of_sequences
    precompute_ref_batch_size max_new_tokens response_length rpo_alpha generate_during_eval disable_dropout
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16 fp16 optim padding_free"""
)
"""Arguments of trainers that are settings: TRL had them there until 0.12."""
SETTINGS = re.compile(r"(Config|Arguments|Args|arguments)$")
"""What makes a trainer's arguments is called."""
OF_SCRIPTS = {name for name, _, _ in ROWS}
"""Options of known scripts: where a program is followed, its calls say what they do."""


def has_value_head(trainer: Thing) -> bool:
    """Whether it is TRL's PPO until 0.11."""
    given = [each for value in trainer.values.values() for each in things(value)]
    heads = any(str(each.values["class"]).endswith("WithValueHead") for each in given)
    return heads and TRAINERS[trainer.last] == "ppo"


def read_training(trainer: Thing, run: Run, pins: Mapping[str, str], path: str, draft: Draft) -> None:
    """One trainer into the draft. Raises InvalidJob for a trainer that is not modelled."""
    method = TRAINERS[trainer.last]
    if method not in METHODS and method != "transformers":
        raise InvalidJob(f"{trainer.place}: {trainer.last} is not modelled", f"modelled: {', '.join(METHODS)}")
    if has_value_head(trainer):
        raise NotKnown(f"{trainer.place}: TRL's PPO until 0.11, whose model has its own value head, is not read", WRITE)
    gathered, draft.facts["program"] = Gathered(path), path
    arguments: Any = trainer.values.get("args")
    if isinstance(arguments, Thing) and not (arguments.own or SETTINGS.search(arguments.name)):
        arguments = Unknown(f"what {arguments.last}() gives", arguments.place)
    cpu = next((key for key in ("use_cpu", "no_cuda") if key in getattr(arguments, "values", ())), "")
    if cpu and arguments.values[cpu] is True:
        raise NoTraining(
            f"{arguments.places[cpu]}: {cpu}: it trains on the CPU", "check a program that trains on a GPU"
        )
    _gather(gathered, trainer, arguments, run)
    gather_copy(trainer, gathered)
    model = trainer.values.get("model")
    found = things(model)
    unsloth = bool(found) and found[0].values.get("class") in UNSLOTH
    package = "transformers" if method == "transformers" else "trl"
    draft.facts["unsloth's version"] = pins.get("unsloth") or pinned(path, "unsloth")[0]
    holders = {"trainer": trainer, "args": arguments, "model": found[0] if found else None}
    version, why = ("", "") if unsloth else version_of(package, holders, pins, run, draft)
    if "pins" not in why and version_key(version) < version_key(BORN.get(method, "")):
        version, why = "", ""  # what was gone before there was the method is a name of the program's own
    version = nearest(version, method, str(trainer.place), draft)
    row = trl.FRAMEWORK if package == "trl" else transformers.FRAMEWORK
    version = put_version(row, version, why, "" if unsloth else path, draft)
    since = draft.version
    beneath = pins.get("transformers") or pinned(path, "transformers")[0] if package == "trl" else ""
    old = version_key(beneath) < (5,) if beneath else since < ((5,) if package == "transformers" else (0, 27))
    draft.facts["transformers"] = beneath = beneath or (version if package == "transformers" else "")
    _other_arguments(gathered, arguments, package, trainer, draft)
    model = loaded_by_trainer(model, trainer, arguments, gathered)
    put_model(model, trainer, gathered, run, draft, old=old)
    put_losses(trainer, found, run, draft)
    _beside(gathered, trainer, method, draft)
    draft.finishers["others"] = partial(put_others, trainer, old)
    put_changes(trainer, found, run, draft)
    _put_liger(gathered, found, run, draft)
    gathered.ask(draft, method)
    _read(gathered, method, trainer, draft)
    put_kept_logits(trainer, found, arguments, draft)
    gathered.mark(draft)
    draft.finishers["sdpa"] = partial(before_sdpa, beneath)
    if unsloth and package == "trl" and "trainer_version" not in draft.said:
        version = OF_UNSLOTH
        draft.put("trainer_version", version, Origin(DEFAULT, f"Unsloth takes TRL up to {version}"))
    label = {"trl": f"TRL {version or draft.options.get('trainer_version') or trl.FRAMEWORK.version}"}.get(
        package, f"transformers {version or transformers.FRAMEWORK.version}"
    )
    draft.read[-1] = f"{f'Unsloth, {label}' if unsloth else label} ({path})"


def _read(gathered: Gathered, method: str, trainer: Thing, draft: Draft) -> None:
    settings = gathered.settings()
    if method == "transformers":
        transformers.read_settings(settings, draft)
        return
    origin = Origin(FILE, f"{trainer.place}: {trainer.last}")
    trl.read_settings(settings, draft, (by_loss(settings, method, draft), origin))


def _gather(gathered: Gathered, trainer: Thing, arguments: Any, run: Run) -> None:
    if isinstance(arguments, Thing):
        for key, value in _settings(arguments):
            if key != "predict_with_generate" or trainer.last == "Seq2SeqTrainer":  # no other generates
                gathered.add(key, value, arguments.places.get(key, arguments.place))
    plain = TRAINERS[trainer.last] == "transformers" and trainer.own is not None  # which has none of TRL's arguments
    for key, value in trainer.values.items():
        if key in OF_TRAINER and not plain and not _its_own(trainer, trainer.places[key]):
            gathered.add(key, value, trainer.places[key], over=False)
        if key in ("?evaluate", "?predict") and not gathered.evaluates(""):  # trainer.evaluate(), whatever they say
            gathered.drop("evaluation_strategy")
            gathered.add("eval_strategy", "steps", trainer.places[key])
    collator = trainer.values.get("data_collator")
    if isinstance(collator, Thing) and collator.last.startswith("DPODataCollator"):  # of TRL until 0.7: it cuts
        for key in filter(collator.values.__contains__, ("max_length", "max_prompt_length")):
            gathered.add(key, collator.values[key], collator.places[key])


def _its_own(trainer: Thing, place: Place) -> bool:
    """Whether a subclass gives itself an attribute of this name (``self.loss_type = …``): it is no argument."""
    own = trainer.own
    return own is not None and own.path == place.path and own.node.lineno <= place.line <= (own.node.end_lineno or 0)


def _settings(arguments: Thing) -> Iterator[tuple[str, Any]]:
    added = {SMOOTHS, *(set(arguments.own.all_fields()) - LIBRARY if arguments.own else ())}
    for key, value in arguments.values.items():
        if key[:1] not in "*?" and key not in added and (key in LIBRARY or key not in OF_SCRIPTS):
            yield key, value


def _other_arguments(gathered: Gathered, arguments: Any, package: str, trainer: Thing, draft: Draft) -> None:
    """TrainingArguments in place of the trainer's own config have their own defaults; arguments from elsewhere none."""
    if isinstance(arguments, Thing) and arguments.last.endswith("TrainingArguments"):
        for key in ("gradient_checkpointing", "bf16") if package == "trl" else ():
            gathered.add(key, False, arguments.place, over=False)
    unsaid = "per_device_train_batch_size" not in gathered.places
    where, named = str(trainer.places.get("args", trainer.place)), isinstance(arguments, Thing)
    if unsaid and named and arguments.values.get("?command") is False:
        where, what = str(arguments.place), "the trainer's arguments are options of the program's command"
        draft.ask("batch_size", where, what, OF_SCRIPT)
    elif arguments is None or (named and "**" not in arguments.values):
        return
    else:
        what = f"the trainer's arguments are {arguments.text if isinstance(arguments, Unknown) else 'made elsewhere'}"
        if named:
            where = str(arguments.places.get("**", arguments.place))
            what = f"more arguments than the text holds: {arguments.values['**'].text}"
        _ask_rest(gathered, what, where, package, draft)
    if TRAINERS[trainer.last] in ("grpo", "rloo"):
        if "use_vllm" not in gathered.places:
            draft.ask("rollout.engine", where, what)
    elif trainer.values.get("eval_dataset") is not None and gathered.places.keys().isdisjoint(EVALUATES):
        draft.remarks.append(f"{where}: whether it evaluates is not known: no evaluation is counted")


def _ask_rest(gathered: Gathered, what: str, where: str, package: str, draft: Draft) -> None:
    """Ask for what memory depends on and arguments may say that nobody knows."""
    keys = ["batch_size", "gradient_checkpointing", "optimizer", "precision"]
    said = {ASKS[key] for key in gathered.places if key in ASKS and not key.endswith("dtype")}
    for key in (*keys, *(["sequence_length"] if package == "trl" else [])):
        if key not in said:
            draft.ask(key, where, what)


def _beside(gathered: Gathered, trainer: Thing, method: str, draft: Draft) -> None:
    """Models beside the one that is trained: a reference, rewards, a teacher."""
    found = things(trainer.values.get("model")) if method != "transformers" else []
    adapted = [each for each in found if each.values["class"] not in UNSLOTH]
    if any(each.values.get("peft_config", each.values.get("adapter")) for each in adapted):
        gathered.add("peft_model", not trainer.values.get("peft_config"), adapted[0].place)
    reference = trainer.values.get("ref_model", trainer.values.get("*1") if method in ("dpo", "kto") else None)
    if things(reference) and method in ("dpo", "kto", "ppo", "online-dpo"):
        draft.put("reference", "resident", Origin(FILE, f"{trainer.places.get('ref_model', trainer.place)}: ref_model"))
    for key, setting in (("teacher_model", "teacher_model_name_or_path"), ("reward_model", "reward_model_path")):
        _named(gathered, trainer, key, setting)
    rewards = trainer.values.get("reward_funcs")
    several = rewards if isinstance(rewards, list) else [rewards]
    models = [each for each in several if isinstance(each, str) or things(each)]
    if models:
        gathered.add("reward_model_name_or_path", _name(models[0]), trainer.places.get("reward_funcs", trainer.place))
    if len(models) > 1:
        where = gathered.where("reward_model_name_or_path")
        draft.warn("reward_funcs", where, "one of several reward models is counted", "model")
    if getattr(trainer.values.get("judge"), "last", "") == "PairRMJudge":
        gathered.add("judge", "pair_rm", trainer.places["judge"])


def _put_liger(gathered: Gathered, models: list[Thing], run: Run, draft: Draft) -> None:
    """``apply_liger_kernel_to_llama()`` before a Llama is made, and AutoLigerKernelForCausalLM, with all that they
    put there by default: of a part, or afterwards, nothing. FastChat's ``replace_llama_attn_with_flash_attn()``."""
    auto = [each for each in models if str(each.values["class"]).startswith("AutoLigerKernel")]
    loads = [each.place for each in auto if not LIGERS & each.values.keys()]
    family = family_of({"model": models[0].values.get("model_name_or_path"), **draft.options}) if models else ""
    for each in [each for each in run.things if family and not each.depth]:
        before = all(each.place.path == made.place.path and each.place.line < made.place.line for made in models)
        if before and each.last == f"{LIGER}{family}" and not each.values:
            loads.append(each.place)
        elif each.last == f"replace_{family}_attn_with_flash_attn":
            gathered.add("attn_implementation", "flash_attention_2", each.place, over=False)
    if loads:
        gathered.add("use_liger_kernel", True, loads[0], over=False)


LIGER = "apply_liger_kernel_to_"
LIGERS = {"rope", "cross_entropy", "fused_linear_cross_entropy", "rms_norm", "swiglu", "geglu"}
"""What it replaces, as its arguments are called (liger-kernel 0.6 transformers/monkey_patch.py)."""


def _named(gathered: Gathered, trainer: Thing, key: str, setting: str) -> None:
    value, asked = trainer.values.get(key), trainer.values.get("?asked", ())
    if value is not None and value not in asked:  # by a loss of the program's own, which counts it
        gathered.add(setting, _name(value), trainer.places[key])


def _name(model: Any) -> Any:
    found = things(model)
    return found[0].values.get("model_name_or_path") if found else model
