"""transformers' Trainer: TrainingArguments as YAML, JSON or options of a script.

A file of arguments names no model; scripts of transformers' examples take ``--model_name_or_path`` beside them."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate import reader as accelerate
from memplan.frameworks.accelerate.write import CONFIG, LAUNCHING, files_of, run_script
from memplan.frameworks.base import Draft, File, Framework, Keys, Writing
from memplan.frameworks.commands import processes
from memplan.frameworks.commands.hydra import over_others
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.files.documents import Document, Settings, words
from memplan.frameworks.files.following import own_loop, told_of
from memplan.frameworks.hugging_face import dialect_vision as hf_dialect_vision
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.hugging_face import version as hf_version
from memplan.frameworks.hugging_face.arguments import DEFAULTS, HARMLESS, OLD_DEFAULTS, read_arguments, read_attention
from memplan.frameworks.hugging_face.dialect import Dialect
from memplan.frameworks.hugging_face.dialect_names import HARMLESS as DIALECT_HARMLESS
from memplan.frameworks.hugging_face.dialect_scripts import script_of, with_lora_config, with_switches
from memplan.frameworks.hugging_face.methods import put_method
from memplan.frameworks.hugging_face.switches import with_lora_section
from memplan.frameworks.hugging_face.write import arguments, load_dtype
from memplan.spec.job import Job
from memplan.tables.trainer import version_key
from memplan.units import words_of

MARKS = ("per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "output_dir")
SCRIPTS = words(
    """dataset_name dataset_config_name train_file validation_file test_file preprocessing_num_workers tokenizer_name
    cache_dir use_fast_tokenizer model_revision token trust_remote_code max_train_samples
    max_eval_samples max_predict_samples streaming overwrite_cache validation_split_percentage keep_linebreaks
    pad_to_max_length task_name ignore_mismatched_sizes"""
)
"""Arguments of the example scripts that say where data comes from."""


def recognise(document: Document) -> tuple[str, ...]:
    """Its arguments at the top of a file, or of a script that is started."""
    if document.form == "shell":
        return tuple(launch.program for launch in launches(document) if is_training(launch))[:1]
    marks = tuple(key for key in MARKS if key in document.keys)
    sections = (key for key, value in document.settings.values.items() if isinstance(value, Mapping) and value)
    of_a_project = not all(map(_SECTIONS.fullmatch, sections)) and not STRONG & document.keys
    return marks if document.form in ("yaml", "json") and not of_a_project else ()


STRONG = words("per_device_train_batch_size gradient_accumulation_steps num_train_epochs learning_rate max_steps")
"""What stands at the top where TrainingArguments do."""
_SECTIONS = re.compile(
    r"deepspeed|fsdp|accelerator_config|env|lora|peft|quantization\w*|datasets?|\w+_(config|kwargs|args)"
)
"""Others are a project's own: ``training: {…}``."""


def is_training(launch: Launch) -> bool:
    """A script with arguments of TrainingArguments that no other kind of script has, or a file of them."""
    said = set(launch.arguments().values)
    return bool(said & {"per_device_train_batch_size", "num_train_epochs", "train_args_file"})


def read(document: Document, draft: Draft) -> None:
    """Arguments of a file, or of the one training that a script starts."""
    if document.form != "shell":
        read_settings(over_others(document, draft), draft)
        return
    launch = only_launch([found for found in launches(document) if is_training(found)])
    settings = launch.arguments()
    if isinstance(settings.values.get("train_args_file"), str):  # Firefly's
        settings = draft.follow(settings, "train_args_file", settings.values["train_args_file"]).settings
    command = " ".join((launch.program, *(word.text for word in launch.words[:1]))) if not launch.launcher else ""
    read_settings(settings, draft, command or launch.program)
    if script_of(settings, launch.program) is None or own_loop(document.path, launch.program):
        told_of(document.path, launch.program, launch.where, draft)
    read_launcher(launch, draft)


def only_launch(found: list[Launch]) -> Launch:
    """The training of a script, which is one of its commands (``parts``). Raises InvalidJob where there is none."""
    if not found:
        raise InvalidJob("no command of the script starts a training that is known", "name a script that starts one")
    return found[0]


def read_launcher(launch: Launch, draft: Draft) -> None:
    """What starts the script: accelerate with its config, or another launcher (``processes``)."""
    if launch.launcher == "accelerate":
        accelerate.read_launch(launch, draft)
    else:
        processes.put_gpus(launch, draft)


def read_settings(settings: Settings, draft: Draft, program: str = "") -> None:
    """TrainingArguments, with what the script that takes them has beside (``hf_dialect``)."""
    script, settings = script_of(settings, program), with_switches(with_lora_section(with_lora_config(settings, draft)))
    version = hf_version.settle(settings, draft, "transformers", script)
    old = version_key(str(draft.options.get("trainer_version") or "5"))[:1] < (5,)
    draft.facts["transformers"] = 4 if old else 5
    defaults: dict[str, Any] = (OLD_DEFAULTS if old else DEFAULTS) | {"dtype": "float32" if old else "auto"}
    row = hf_version.labelled(FRAMEWORK, version, draft)
    row = row._replace(title=script.title, version="") if script else row
    keys = Keys(draft, settings, row, {**defaults, **(script.defaults if script else {})})
    dialect = Dialect(keys, script, program)
    put_method(dialect, program)
    hf_dialect_vision.read_model(dialect)
    read_arguments(keys)
    read_attention(keys, "attn_implementation")
    hf_precision.read_load_dtype(keys, "dtype", "torch_dtype")
    hf_dialect_vision.read_dialect(dialect)
    if not keys.took("config_name") and keys.get("config_name") != keys.get("model_name_or_path"):
        keys.warn("config_name", "the model is counted by model_name_or_path", "model")
    keys.skip("config_name")
    assume_one_gpu(draft)
    keys.close(HARMLESS | SCRIPTS | DIALECT_HARMLESS)
    draft.finishers["precision"] = hf_precision.settle


SAID = words_of(
    """method trainer batch_size gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_reentrant
    optimizer optimizer_impl optimizer_args compile kernels eval_batch_size sync_each_batch ddp
    empty_cache_steps"""
)
"""Keys that TrainingArguments say; the model, its dtype, adapters and lengths are the script's."""
ARGUMENTS = "training_args.yaml"


def write(job: Job, writing: Writing) -> list[File]:
    """training_args.yaml for HfArgumentParser, accelerate.yaml (and deepspeed.json), run.sh."""
    own = {"output_dir": "OUTPUT"}
    command = f"accelerate launch --config_file {CONFIG} SCRIPT.py {ARGUMENTS}"
    beside = f"The script sets the rest: {writing.model}, {load_dtype(job)} weights, {job.sequence_length} tokens" + (
        ", the LoRA adapters." if job.lora else "."
    )
    head = ("TrainingArguments, as memplan planned them (HfArgumentParser reads this file).", *writing.expects, beside)
    files = [File(ARGUMENTS, arguments(job), comment=head, placeholders=own), *files_of(job, writing)]
    return [*files, run_script(command, job, ("FILL IN the name of your script first.", *writing.expects))]


def assume_one_gpu(draft: Draft) -> None:
    """Where no launcher says how many GPUs there are, and no file how long a sequence is."""

    def finish(draft: Draft) -> None:
        if "sequence_length" not in draft.values:
            where = draft.read[0].partition(" (")[2].rstrip(")") if draft.read else ""
            draft.ask("sequence_length", where, "no file says how long a sequence is")

    processes.expect(draft)
    draft.finishers["lengths"] = finish


FRAMEWORK = Framework(
    "transformers", "transformers", "5.24", recognise, read, write, trainer="transformers", writes=(*SAID, *LAUNCHING)
)
