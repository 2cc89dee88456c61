"""Files to run, of a job: written, read back, and only then handed out.

A writer puts into files what its framework has words for. What it has none for is found by reading the files again:
where the job that they make is not the one that was asked for, the key is named and nothing is written.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplan.errors import InternalError, InvalidJob, MemplanError, ModelError, UsageError
from memplan.files import write_whole
from memplan.frameworks.base import File, Framework, Writing
from memplan.frameworks.documents import FORMS, Document, document_of
from memplan.frameworks.megatron.shape import effective
from memplan.frameworks.parts import parts
from memplan.frameworks.quoting import comment, yaml_lines, yaml_value
from memplan.frameworks.reading import read_documents
from memplan.frameworks.registry import recognise
from memplan.report import Report
from memplan.reporting import build_report
from memplan.resolve import resolve, resolve_training
from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR
from memplan.spec.reading import JobInput, build_job
from memplan.spec.recipe import Recipe
from memplan.tables.trainers import find_trainer
from memplan.units import format_bytes

SERVES = " trl vllm-serve "
"""In a script that starts the engine, too, which no other file says."""
OF_THE_DATA = ("padded", "completion_length", "images", "rollout")
"""What a job says of its data, which no setting says: stated in the comment, given again when the files are read."""
OF_COMPLETIONS = ("group_size", "prompt_length", "completion_length", "engine_version")
"""Of a rollout what no setting of the engine says."""
OF_TOOL = ("gpu", "margin", "calibration", "cluster", "gpus_per_node", "mixer_kernels", "trainer_version", "revision")
"""What is memplan's own, or of the machine."""
QUIET = ("provenance.", "hardware.gpu", "hardware.margin", "hardware.cluster")
"""How fields of a recipe begin that say nothing of what runs."""
OF_STAGE_3 = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "sub_group_size",
)


@dataclass
class Emission:
    """The files of a job for one framework, and what it comes to."""

    framework: Framework
    files: list[File]
    report: Report
    texts: dict[str, str]
    given: JobInput
    """The job, with the trainer that the framework runs."""

    def read_back(self, job: Job) -> JobInput:
        """The job that the texts make."""
        return read_back(job, self.texts, self.framework)


def emit(given: JobInput, row: Framework) -> Emission:
    """Files whose job is the given one. Raises InvalidJob that names what the framework cannot say."""
    if row.write is None:
        raise InvalidJob(f"{row.title}: its files are read, and not written", "emit trl, transformers, …")
    given = _computing_in_half(_with_trainer(_told_from_an_option(given), row))
    recipe = resolve_training(given)
    report = build_report(recipe, None)
    job = build_job({key: value for key, value in recipe.provenance.job.items() if value is not None})
    writing = Writing(expects(report, given.job), hub_id(job, row), recipe)
    files: list[File] = row.write(job, writing)
    texts = {file.name: render(file) for file in files}
    check(given.job, recipe, texts, row)
    return Emission(row, files, report, texts, given)


def _told_from_an_option(given: JobInput) -> JobInput:
    """The job, whose model's folder, where its name begins with a dash, is written as a path."""
    name = given.job.model
    dashed = isinstance(name, str) and name.startswith("-")
    return given._replace(job=given.job.model_copy(update={"model": f"./{name}"})) if dashed else given


def _with_trainer(given: JobInput, row: Framework) -> JobInput:
    """The job under the framework's own trainer, where it names none. Raises InvalidJob for another."""
    own = row.trainer_of(given.job) if row.trainer_of else {"trainer": row.trainer} if row.trainer else {}
    trainer = own.get("trainer")
    missing = {key: value for key, value in own.items() if key not in given.job.model_fields_set}
    if not own or (given.job.trainer == trainer and not missing):
        return given
    if given.job.trainer != trainer and given.sources.get("trainer") in ("option", "file"):
        raise InvalidJob(
            f"trainer: {given.job.trainer} is not what {row.title} runs", f"add --trainer {trainer} to change it"
        )
    job = build_job({**given.job.model_dump(exclude_unset=True), **missing, "trainer": trainer})
    return given._replace(job=job, sources={**given.sources, **dict.fromkeys(own, "option")})


def _computing_in_half(given: JobInput) -> JobInput:
    """The job, with weights in bf16 beside a 4-bit base where nobody says the dtype: bitsandbytes computes in the one
    that the trainer is told (trl 1.16 trainer/utils.py: get_quantization_config), which by itself is fp32."""
    trainer = find_trainer(given.job.trainer, given.job.trainer_version or "")
    said = {"dtype", "precision"} & set(given.sources)
    if said or given.job.quantization not in ("nf4", "nf4-double", "fp4") or not trainer.numerics.loads_dtype:
        return given
    text = (
        f"dtype: bf16 is written: a 4-bit base computes in it, and {trainer.title}'s own is fp32 (--precision bf16-amp)"
    )
    job = build_job({**given.job.model_dump(exclude_unset=True), "dtype": "bf16"})
    return given._replace(job=job, sources={**given.sources, "dtype": "option"}, warnings=(*given.warnings, text))


def hub_id(job: Job, row: Framework) -> str:
    """The name that a framework finds the model by: a preset's Hub id, else as it is given."""
    from memplan.presets import find_preset

    if isinstance(job.model, str):
        preset = find_preset(job.model) if "/" not in job.model else None
        return str(preset["hub_id"]) if preset else job.model
    if row.launches or row.same_model is not None:
        return ""
    what = "an inline config" if job.model is not None else f"total_params {job.total_params}"
    raise InvalidJob(f"model: {what} cannot be trained by {row.title}", "name a preset, a Hub id or a folder")


def expects(report: Report, job: Job) -> tuple[str, ...]:
    """What memplan expects of the job, for the comment at a file's head."""
    gpu, device = report.per_gpu, report.per_gpu.device_bytes
    where = f"each of {job.num_gpus} GPUs" if job.num_gpus > 1 else "the GPU"
    lines = [
        f"memplan expects on {where}{f' ({job.gpu})' if job.gpu else ''}:",
        f"  {format_bytes(gpu.allocated_bytes)} allocated at the peak ({gpu.peak_instant}),",
        f"  {format_bytes(device.expected)} in nvidia-smi, {format_bytes(device.high)} at most.",
    ]
    if report.unclear:
        lines.append(f"  UNCLEAR, whatever these figures are: {report.unclear}.")
    elif report.verdict is not None:
        words = {"yes": "It fits", "tight": "It fits tightly", "no": "It does NOT fit"}
        lines.append(f"  {words[report.verdict.fits]}: {format_bytes(report.verdict.usable_bytes)} are usable.")
    data = [key for key in OF_THE_DATA if key in job.model_fields_set and getattr(job, key) not in (None, False)]
    shown = ", ".join(f"{key} {_plain(getattr(job, key))}" for key in data)
    return (*lines, f"It takes of the data: {shown}.") if shown else tuple(lines)


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True, mode="json") if hasattr(value, "model_dump") else value


def render(file: File) -> str:
    """The text of a file."""
    if file.values is None:
        return file.text
    if file.name.endswith(".json"):
        return json.dumps(file.values, indent=2) + "\n"
    head = "".join(f"{line}\n" for line in comment(file.comment))
    own = "".join(f"{key}: {value}  # FILL IN\n" for key, value in file.placeholders.items())
    return f"{head}\n{own}{''.join(_lines(key, value) for key, value in file.values.items())}"


def _lines(key: str, value: Any) -> str:
    """A setting; mappings in lines of their own, lists in one."""
    return yaml_lines(key, value) if isinstance(value, Mapping) and value else f"{key}: {yaml_value(value)}\n"


def check(job: Job, recipe: Recipe, texts: Mapping[str, str], row: Framework) -> None:
    """Read the files again. Raises InvalidJob where they make another job, naming the keys that differ."""
    if job.lora and isinstance(job.lora.targets, tuple) and ALL_LINEAR in job.lora.targets and row.name != "axolotl":
        raise InvalidJob(
            f"lora.targets: all-linear beside names cannot be said to {row.title}", "name every module in lora.targets"
        )
    try:
        other = resolve(read_back(job, texts, row))
    except (InvalidJob, ModelError) as error:
        raise InvalidJob(f"{row.title} cannot say this job: {error.message}", error.hint) from None
    if different := differences(recipe, other, row):
        key, wanted, got = different[0]
        raise InvalidJob(
            f"{key}: {short(wanted)} cannot be said to {row.title}, whose files make it {short(got)}",
            f"use {', '.join(f'{name}={short(theirs)}' for name, _, theirs in different[:4])}, or another framework",
        )


def short(value: object) -> str:
    """A value in a message; an engine by its name."""
    text = str(_plain(getattr(value, "engine", value)))[:60]
    return text.lower() if isinstance(value, bool) else text


def read_back(job: Job, texts: Mapping[str, str], row: Framework, also: tuple[str, ...] = ()) -> JobInput:
    """The job of texts, with what is no setting of the framework, and ``also``, taken from the job itself."""
    unsaid = set(job.model_fields_set) - set(row.writes) if row.writes else {*OF_THE_DATA, *OF_TOOL}
    outside = unsaid | set(row.beside(job)) | set(also)
    if "PYTORCH_CUDA_ALLOC_CONF" in texts.get("run.sh", ""):  # a script that a framework is not told by is not read
        outside |= {"allocator"}
    outside |= set() if row.generates else {"sync", "trainer_offload"}
    options = {key: value for key, value in job.model_dump(exclude_unset=True).items() if key in outside}
    if row.generates and options.get("rollout"):
        options["rollout"] = {key: value for key, value in options["rollout"].items() if key in OF_COMPLETIONS}
    if "gpus_per_node" in options and job.num_gpus > job.gpus_per_node:
        options.pop("gpus_per_node")
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        for name, text in texts.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        try:
            return read_documents(_documents(texts, folder, row), options)
        except MemplanError as error:  # the files are called what they will be, not where they are read
            said = (text.replace(folder + os.sep, "") for text in (error.message, error.hint))
            raise type(error)(*said) from None


def _documents(texts: Mapping[str, str], folder: str, row: Framework) -> list[tuple[Document, Framework]]:
    """The texts as files of a folder, and whose each is."""
    named = [name for name in texts if not name.endswith((".sh", ".md")) and not _followed(name, texts)]
    named = named or list(texts)  # a framework that is told everything by options
    named = [name for name in texts if name.endswith(".sh") and SERVES in texts[name]] or named
    found = []
    for name in named:
        path = os.path.join(folder, name)
        document = parts(document_of(texts[name], path, FORMS[os.path.splitext(name)[1]]))[0]
        of = recognise(document) or (row if name == named[0] else None)
        if of is None:
            raise InternalError(f"{name}, which memplan wrote for {row.title}, is not known again")
        found.append((document, of))
    return found


def _followed(name: str, texts: Mapping[str, str]) -> bool:
    """Whether another of the files refers to this one: DeepSpeed's JSON is named in accelerate's config."""
    return name.endswith(".json") and any(name in text for other, text in texts.items() if other.endswith(".yaml"))


def differences(one: Recipe, two: Recipe, row: Framework) -> list[tuple[str, Any, Any]]:
    """(key, wanted, got) of what two recipes run differently: by the job's keys, else by the recipe's fields."""
    a, b = ({name: _felt(name, value, each, row) for name, value in each.flat().items()} for each in (one, two))
    fields = [name for name in a if not name.startswith(QUIET) and a[name] != b[name]]
    if not fields:
        return []
    if "model" in fields and row.same_model is not None:
        return _within("model", a["model"]._asdict(), b["model"]._asdict())
    if "generator" in fields and None not in (one.generator, two.generator):
        return _within("rollout", a["generator"]._asdict(), b["generator"]._asdict())
    if one.in_megatron and "megatron" in fields:
        return _within("megatron", dict(a["megatron"]), dict(b["megatron"]))
    own = ("deepspeed", "model", *OF_TOOL, *(("attention",) if one.in_megatron else ()))
    keys = [
        key for key in one.provenance.job if key not in own and one.provenance.job[key] != two.provenance.job.get(key)
    ]
    return [(key, one.provenance.job[key], two.provenance.job.get(key)) for key in keys] or [
        (name, a[name], b[name]) for name in fields
    ]


def _within(outer: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What two descriptions of the same thing differ in."""
    return [(f"{outer}.{name}", one[name], two[name]) for name in one if one[name] != two[name]]


def _felt(name: str, value: Any, recipe: Recipe, row: Framework) -> Any:
    """A field without what has no effect: stage 3's sizes in other stages of ZeRO, a model's name where files describe
    it, PyTorch's attention in Megatron's layers, Megatron's settings of what is off, or elsewhere."""
    if name == "model" and row.same_model is not None:
        return row.same_model(value)
    if recipe.in_megatron and name == "operators.attention":
        return ""
    if name == "megatron":
        return effective(recipe) if recipe.in_megatron else ""
    if name == "moments":
        return value._replace(names=())  # which phases are looked at is memplan's own
    if name == "generator" and value is not None:
        return value._replace(group=1)  # it is the batch's, and of time alone here
    if name != "sharding.deepspeed" or value.wrapper == "zero3":
        return value
    return value._replace(**{key: value._field_defaults[key] for key in OF_STAGE_3})


def write_files(texts: Mapping[str, str], folder: str, force: bool) -> list[str]:
    """Write texts into a folder. Raises UsageError before anything is written where a file is there already."""
    paths = {name: os.path.join(folder, name) for name in texts}
    there = [path for path in paths.values() if os.path.lexists(path)]
    if there and not force:
        raise UsageError(f"{there[0]} exists already", "add --force to overwrite it, or name another folder")
    try:
        os.makedirs(folder, exist_ok=True)
        for name, path in paths.items():
            write_whole(path, texts[name], force)
            if name.endswith(".sh"):
                os.chmod(path, 0o755)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}", "name a folder that can be written") from None
    return list(paths.values())
