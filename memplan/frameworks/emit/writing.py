"""Files to run, of a job: written, read back, and only then handed out.

A writer puts into files what its framework has words for. What it has none for is found by reading the files again:
where the job that they make is not the one that was asked for, the key is named and nothing is written.
The JSON of ``memplan plan`` has several jobs, the fastest first, of which a framework may have words for some."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memplan.errors import InvalidJob, UsageError
from memplan.files import write_whole
from memplan.frameworks import ownjob
from memplan.frameworks.base import File, Framework, Writing
from memplan.frameworks.emit.read_back import OF_THE_DATA, check, plain, read_back
from memplan.frameworks.files.documents import Document, open_document
from memplan.frameworks.files.quoting import comment, yaml_lines, yaml_value
from memplan.frameworks.reading import read_documents
from memplan.report import Report
from memplan.reporting import build_report
from memplan.resolve import resolve_training
from memplan.spec.job import Job
from memplan.spec.reading import JobInput, build_job
from memplan.tables.trainers import find_trainer
from memplan.units import format_bytes


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
    return given._replace(job=given.job.but(model=f"./{name}")) if dashed else given


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
    shown = ", ".join(f"{key} {plain(getattr(job, key))}" for key in data)
    return (*lines, f"It takes of the data: {shown}.") if shown else tuple(lines)


def not_fitting(report: Report) -> tuple[str, ...]:
    """Said of a job that does not fit, as the framework runs it, or only just does."""
    verdict = report.verdict
    if verdict is None or verdict.fits not in ("no", "tight"):
        return ()
    device, usable = (format_bytes(size) for size in (report.per_gpu.device_bytes.high, verdict.usable_bytes))
    how = "does not fit" if verdict.fits == "no" else "fits tightly"
    return (f"as the framework runs it, the job {how}: up to {device} of {usable} usable",)


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


def plans_of(path: str | None) -> list[Document]:
    """A document for each plan of a file; none where it is no plan."""
    if path is None or not path.lower().endswith(".json") or not os.path.isfile(path):
        return []
    document = open_document(path)
    values = document.settings.values
    plans = values.get("plans")
    if "plans" not in ownjob.marks(document) or not isinstance(plans, list):
        return []
    return [replace(document, settings=replace(document.settings, values={**values, "plans": [p]})) for p in plans]


def emit_plan(plans: Sequence[Document], options: Mapping[str, Any], row: Framework) -> tuple[Emission, JobInput, str]:
    """The files of the first plan that the framework can say, its job, and why those before it are passed over.

    Raises InvalidJob, of the first plan, where it can say none."""
    refused: list[InvalidJob] = []
    for number, document in enumerate(plans, start=1):
        try:
            given = read_documents([(document, ownjob.FRAMEWORK)], options)
            found = emit(given, row)
        except InvalidJob as error:
            refused.append(error)
            continue
        why = f"plan {number} of {len(plans)}: {refused[0].message}" if refused else ""
        return found, given, why
    if not refused:
        raise InvalidJob("there is no plan in the file", "plan for a larger card, or more GPUs")
    hint = refused[0].hint
    fixed = "".join(f" --fix {each}" for each in re.findall(r"[\w.]+=[^\s,]+", hint) if hint.startswith("use "))
    raise InvalidJob(f"none of {len(plans)} plans: {refused[0].message}", f"plan again{fixed or f': {hint}'}")
