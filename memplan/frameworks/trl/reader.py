"""TRL: a script's arguments as YAML, as a ``trl dpo --…`` command, or as options of an example's script.

Defaults are TRL's by method (``trl_keys``); what it shares with transformers is in ``hf_arguments``."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from memplan.errors import InvalidJob
from memplan.frameworks.base import ASSUMED, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands.hydra import over_others
from memplan.frameworks.commands.launch import Launch, launches, put_allocator
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import own_loop, starts_another, told_of
from memplan.frameworks.hugging_face import dialect_vision as hf_dialect_vision
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.hugging_face import version as hf_version
from memplan.frameworks.hugging_face.arguments import DEFAULTS as TRAINER_DEFAULTS
from memplan.frameworks.hugging_face.arguments import FIELDS, read_arguments, read_attention
from memplan.frameworks.hugging_face.arguments import HARMLESS as TRAINER_HARMLESS
from memplan.frameworks.hugging_face.dialect import Dialect, read_lengths
from memplan.frameworks.hugging_face.dialect_names import HARMLESS as DIALECT_HARMLESS
from memplan.frameworks.hugging_face.dialect_scripts import script_of
from memplan.frameworks.hugging_face.methods import PAIRS, put_head
from memplan.frameworks.hugging_face.switches import mapping
from memplan.frameworks.transformers import assume_one_gpu, only_launch, read_launcher
from memplan.frameworks.trl.keys import HARMLESS, KNOWN_LOSSES, MARKS, METHODS, NOT_MODELLED
from memplan.frameworks.trl.launch import LAUNCHER, read_trl_file, read_trl_launcher
from memplan.frameworks.trl.methods import by_loss, defaults_of, method_of, method_of_file, of_no_version
from memplan.frameworks.trl.online import COMPLETIONS, put_evaluation, read_online
from memplan.frameworks.trl.own_groups import count_group, of_images
from memplan.frameworks.trl.switches import read_switches
from memplan.frameworks.trl.write import write
from memplan.spec.allocator import VARIABLES

OWN_PROGRAM = re.compile(
    r"(^|/)(run_)?(sft|dpo|simpo|grpo|kto|orpo|cpo|rloo|ppo|gkd|online_dpo|nash_md|xpo|reward_modeling|bco)"
    r"(_(vlm|tldr|agent|visual|video_llm|gpt_oss|gemma3)\w*)?\.py$"
)
"""Programs of TRL, of the alignment handbook and of open-r1, which take TRL's arguments: another word behind the method
(``ppo_train.py``) is a program of a project's own."""


WHOLE = "0.17"
"""A version whose log-probabilities of pairs are made of whole logits: so do trainers of their own, built on TRL's
(2U1/Qwen-VL-Series-Finetune src/trainer/dpo_trainer.py: concatenated_forward)."""


def recognise(document: Document) -> tuple[str, ...]:
    """Its arguments in a file, ``trl …`` or one of its scripts in a command."""
    if document.form == "shell":
        return tuple(launch.program for launch in launches(document) if is_training(launch))[:1]
    if document.form not in ("yaml", "json"):
        return ()
    if "pass_rate_min" in document.keys:  # open-r1's scripts/pass_rate_filtering, which only generates
        return ()
    marks = tuple(key for key in document.settings.values if key in MARKS)
    pair = ("dataset_name", "model_name_or_path")
    return marks or (pair[:1] if set(pair) <= document.keys else ())


def is_training(launch: Launch) -> bool:
    """``trl dpo``, or a script named after a method whose options are TRL's."""
    if launch.program == "trl":
        return bool(launch.words) and bool(method_of(launch.words[0].text))
    arguments, method = launch.arguments(), method_of(launch.program)
    if method == "sft" and script_of(arguments, launch.program):  # on transformers' Trainer
        return False
    others = () if method == "sft" else ("reward_model_path", "model_name_or_path")
    named = set(arguments.values) & {*MARKS, *others, "dataset_name", "config"}
    return bool(method) and bool(named or config_word(launch))


def config_word(launch: Launch) -> str:
    """The YAML file that scripts of the alignment handbook take first: ``run_simpo.py config.yaml --x=1``."""
    first = launch.words[0].text if launch.words else ""
    return first if first.endswith((".yaml", ".yml")) and "=" not in first else ""


def read(document: Document, draft: Draft) -> None:
    """A file of arguments, or the one training that a script starts."""
    if document.form != "shell":
        settings = over_others(document, draft)
        read_settings(settings, draft, method_of_file(settings, draft, document.text))
        read_trl_file(settings, draft)
        return
    launch = only_launch([found for found in launches(document) if is_training(found)])
    arguments = launch.arguments(1 if launch.program == "trl" else 0)
    if config_word(launch) and "config" not in arguments.values:
        values = {**arguments.values, "config": config_word(launch)}
        arguments = replace(arguments, values=values, lines={**arguments.lines, "config": launch.words[0].line})
    arguments = _positive(_with_config(arguments, draft))
    name = launch.words[0].text if launch.program == "trl" else launch.program
    method = by_loss(arguments, method_of(name), draft)
    if method in NOT_MODELLED:
        raise InvalidJob(f"{launch.where}: TRL's {method} is not modelled", f"modelled: {', '.join(METHODS)}")
    origin = Origin(FILE, f"{launch.where}: {launch.program} {name if launch.program == 'trl' else ''}".strip())
    read_settings(arguments, draft, (method, origin), launch.program)
    if launch.program == "trl":
        read_trl_launcher(arguments, launch, draft)
    elif starts_another(document.path, launch.program) or (
        not OWN_PROGRAM.search(launch.program)  # or a copy of its words alone
        and (not script_of(arguments, launch.program) or own_loop(document.path, launch.program))
    ):
        told_of(document.path, launch.program, launch.where, draft)
    read_launcher(launch, draft)


def _with_config(arguments: Settings, draft: Draft) -> Settings:
    """``--config file.yaml`` under the options beside it, as TrlParser reads it."""
    path = arguments.values.get("config")
    path = path[0] if isinstance(path, list) else path  # and words behind it
    if not isinstance(path, str):
        return arguments
    document = draft.follow(arguments, "config", path)
    return document.settings.under(arguments)


def _positive(arguments: Settings) -> Settings:
    """``--no_gradient_checkpointing`` is ``gradient_checkpointing: false`` (HfArgumentParser)."""
    values = dict(arguments.values)
    for key in [key for key in values if key.startswith("no_") and key[3:] in FIELDS | HARMLESS]:
        values[key[3:]] = values.pop(key) is not True
    return replace(arguments, values=values)


def read_settings(settings: Settings, draft: Draft, method: tuple[str, Origin], program: str = "") -> None:
    """The arguments of one trainer."""
    name, origin = method
    simpo = name == "simpo" and settings.values.get("gamma_beta_ratio") is not None
    script = script_of(settings, program)
    images = of_images(settings, draft, program) if name == "grpo" else ""
    told = "" if simpo or script else hf_version.settle(settings, draft, "trl", method=name)
    row = hf_version.labelled(FRAMEWORK, told, draft)
    version = "0.9.6" if simpo else str(draft.options.get("trainer_version") or "")
    if not version and script and name in PAIRS:
        version = WHOLE
        draft.put("trainer_version", WHOLE, Origin(ASSUMED, f"{script.title} scores pairs by whole logits"))
    row = FRAMEWORK._replace(title=script.title, version="") if script else row
    defaults = defaults_of(name, version)
    if script:  # its dataclass is TrainingArguments', and its adapters are its own
        trls = {key: value for key, value in defaults.items() if not key.startswith("lora_")}
        defaults = {**trls, **TRAINER_DEFAULTS, "max_length": None, **script.defaults}
    keys = Keys(draft, settings, row, defaults)
    dialect = Dialect(keys, script, program)
    draft.put("method", name, origin)
    if script and name in PAIRS:
        put_head(dialect, name)
    if simpo:
        keys.put("trainer", "simpo-repo", "gamma_beta_ratio")
    else:
        draft.put("trainer", "trl", Origin(FILE, f"{settings.path}: TRL's arguments"))
    hf_dialect_vision.read_model(dialect)
    if keys.has("model_revision") and keys.text("model_revision") != "main":
        keys.copy("revision", "model_revision")
    read_arguments(keys)
    if name in COMPLETIONS and (rows := draft.values.pop("eval_batch_size", None)):
        draft.origins.pop("eval_batch_size")
        draft.finishers["evaluates"] = partial(put_evaluation, settings, rows)
    _model_arguments(keys)
    _adapter(dialect)
    _lengths(dialect, name)
    _losses_of(keys, name)
    _router_loss(keys)
    if keys.flag("use_liger_loss"):  # GRPO's leaves the layers alone (trl 0.24 trainer/grpo_trainer.py)
        key, value = ("loss_head", "fused") if name == "grpo" else ("kernels", "liger")
        keys.put(key, value, "use_liger_loss")
    keys.put_on("activation_offloading", "offload", ["activations"])
    read_online(keys, name)
    if images:
        count_group(keys, images)
    read_switches(keys, name)
    _environment(keys)
    assume_one_gpu(draft)
    keys.close(HARMLESS | TRAINER_HARMLESS | LAUNCHER | DIALECT_HARMLESS)
    draft.finishers["precision"] = hf_precision.settle
    draft.finishers["eras"] = of_no_version


def _environment(keys: Keys) -> None:
    """``env:`` of TrlParser: variables that are set before training."""
    inner = keys.section("env")
    put_allocator({name: inner.text(name) or "" for name in VARIABLES}, keys.settings.path, keys.draft)


def _model_arguments(keys: Keys) -> None:
    """dtype and attention, of ModelConfig or of ``model_init_kwargs``."""
    inner = mapping(keys, "model_init_kwargs") if keys.has("model_init_kwargs") else None
    keys.skip("model_init_kwargs")
    of_dtype = inner if inner is not None and (inner.has("dtype") or inner.has("torch_dtype")) else keys
    hf_precision.read_load_dtype(of_dtype, "dtype", "torch_dtype")
    keys.skip("dtype", "torch_dtype")
    read_attention(inner if inner is not None and inner.has("attn_implementation") else keys, "attn_implementation")
    keys.skip("attn_implementation")
    if inner is not None:
        inner.put_on("output_router_logits", "router_aux_loss", True)
        inner.close(("revision", "trust_remote_code", "use_cache", "device_map", "low_cpu_mem_usage"))


def _router_loss(keys: Keys) -> None:
    """``router_aux_loss_coef`` of each trainer's config; null is the model's own coefficient."""
    coefficient = keys.number("router_aux_loss_coef")
    if coefficient is not None:
        keys.put("router_aux_loss", coefficient != 0, "router_aux_loss_coef")


def _adapter(dialect: Dialect) -> None:
    """Adapters, quantisation, freezing and images; targets that nobody names are PEFT's by the model's type."""
    keys = dialect.keys
    of_program = "lora" in keys.draft.values
    keys.warn("lora_target_parameters", "adapters of bare parameters (experts) are not read", "adapters")
    hf_dialect_vision.read_beside(dialect)
    keys.skip("bnb_4bit_quant_storage")
    if of_program:
        return
    if "lora" in keys.draft.values and dialect.script is None and not keys.has(dialect.one("targets")):
        keys.remark(
            "lora_target_modules is not set: q_proj and v_proj are counted, as PEFT takes for "
            "Llama, Mistral, Qwen and Gemma"
        )


def _lengths(dialect: Dialect, method: str) -> None:
    """max_length; for online methods a prompt and a completion (``trl_online``)."""
    if method in ("grpo", "rloo", "ppo", "online-dpo"):
        dialect.keys.skip("max_length", "max_seq_length")
        return
    read_lengths(dialect)
    settings = dialect.keys.settings
    if "max_length" in settings.values and not (dialect.keys.has("max_length") or dialect.keys.has("max_seq_length")):
        dialect.keys.draft.ask("sequence_length", settings.where("max_length"), "max_length null: nothing is cut")
    dialect.keys.skip("max_prompt_length", "max_completion_length", "max_new_tokens")


def _losses_of(keys: Keys, method: str) -> None:
    """Terms and heads that a loss chooses; where the reference's log-probabilities come from."""
    value = keys.get("loss_type")
    losses = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    if method in ("cpo", "simpo"):
        alpha = keys.number("cpo_alpha")
        weight = keys.number("sft_weight")  # princeton-nlp/SimPO's own
        term = bool(weight) if keys.has("gamma_beta_ratio") else bool(alpha)
        keys.put("sft_term", term, "sft_weight" if keys.has("gamma_beta_ratio") else "cpo_alpha")
    if method in ("dpo", "ipo") and ("sft" in losses or keys.number("rpo_alpha")):
        keys.put("sft_term", True, "loss_type" if "sft" in losses else "rpo_alpha")
    keys.skip("rpo_alpha", "cpo_alpha", "beta")
    if method == "sft" and keys.has("loss_type"):
        version = keys.draft.version
        if losses[0] == "nll" and (1, 7) <= version < (1, 15):
            keys.put("loss_head", "cross-entropy", "loss_type")
        elif losses[0] not in ("nll", "chunked_nll"):
            keys.warn("loss_type", f"{losses[0][:20]} is counted as nll")
    elif strange := [loss for loss in losses if loss not in KNOWN_LOSSES]:
        keys.warn("loss_type", f"{strange[0][:20]} is a loss of the program's own", "loss")
    if keys.flag("precompute_ref_log_probs") and keys.draft.values.get("reference") == "resident":
        where = keys.settings.where("precompute_ref_log_probs")
        keys.draft.remarks.append(f"{where}: a reference that the program hands over stays on the card all the same")
    elif keys.flag("precompute_ref_log_probs"):
        keys.put("reference", "precomputed", "precompute_ref_log_probs")
    elif keys.flag("sync_ref_model"):
        keys.put("reference", "resident", "sync_ref_model")
    if isinstance(keys.settings.values.get("model_init_kwargs"), Mapping):
        keys.skip("model_init_kwargs")


FRAMEWORK = Framework(
    "trl", "TRL", "1.16", recognise, read, write, generates=True, extends=("transformers",), trainer="trl",
    beside=lambda job: ("sequence_length",) if job.method in ("grpo", "rloo", "ppo") else (),
)  # fmt: skip
