"""Files that were written, read again: the job that they make, and where it is not the one that was asked for."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from memplan.errors import InternalError, InvalidJob, MemplanError, ModelError
from memplan.frameworks.base import Framework
from memplan.frameworks.files.documents import FORMS, Document, document_of
from memplan.frameworks.megatron.shape import effective
from memplan.frameworks.parts import parts
from memplan.frameworks.reading import documents_of, read_documents, read_opened
from memplan.frameworks.registry import recognise
from memplan.lengths.longest import at_longest
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR
from memplan.spec.reading import JobInput
from memplan.spec.recipe import Recipe
from memplan.units import words_of

SERVES = " trl vllm-serve "
"""In a script that starts the engine, too, which no other file says."""
OF_THE_DATA = ("padded", "completion_length", "images", "rollout")
"""What a job says of its data, which no setting says: stated in the comment, given again when the files are read."""
OF_COMPLETIONS = ("group_size", "prompt_length", "completion_length", "engine_version")
"""Of a rollout what no setting of the engine says."""
OF_TOOL = ("gpu", "margin", "calibration", "cluster", "gpus_per_node", "mixer_kernels", "trainer_version", "revision")
"""What is memplan's own, or of the machine."""
QUIET = ("provenance.", "hardware.gpu", "hardware.margin", "hardware.cluster", "sharding.searches")
"""How fields of a recipe begin that say nothing of what runs."""
OF_STAGE_3 = words_of(
    "prefetch_bucket_size param_persistence_threshold max_live_parameters max_reuse_distance sub_group_size"
)


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
            f"{_instead(different[:4])}, or use another framework",
        )


def _instead(different: Sequence[tuple[str, Any, Any]]) -> str:
    """What would be said instead: values, and keys that are left out."""
    said = ", ".join(f"{name}={short(theirs)}" for name, _, theirs in different if theirs is not None)
    gone = ", ".join(name for name, _, theirs in different if theirs is None)
    return " and ".join([*([f"use {said}"] if said else []), *([f"leave {gone} out"] if gone else [])])


def plain(value: Any) -> Any:
    """A value without classes."""
    return value.model_dump(exclude_none=True, mode="json") if hasattr(value, "model_dump") else value


def short(value: object) -> str:
    """A value in a message; an engine by its name, a group by the first of its values that say something."""
    found = plain(getattr(value, "engine", value))
    if isinstance(found, Mapping):
        told = [f"{key}={short(each)}" for key, each in found.items() if each and each != "none"]
        return ", ".join(told[:3]) + (", …" if len(told) > 3 else "")
    text = str(found)[:60]
    return text.lower() if found is None or isinstance(found, bool) else text


def outside(job: Job, texts: Mapping[str, str], row: Framework, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """What of a job is no setting of the framework, and ``also``, as options."""
    unsaid = set(job.model_fields_set) - set(row.writes) if row.writes else {*OF_THE_DATA, *OF_TOOL}
    keys = unsaid | set(row.beside(job)) | set(also)
    if "PYTORCH_CUDA_ALLOC_CONF" in texts.get("run.sh", ""):  # a script that a framework is not told by is not read
        keys |= {"allocator"}
    keys |= set() if row.generates else {"sync", "trainer_offload"}
    options = {key: value for key, value in job.model_dump(exclude_unset=True).items() if key in keys}
    if options.get("lora"):
        options["lora"] = job.lora.model_dump(exclude_defaults=True) if job.lora else None  # as one types it
    options.setdefault("images", None)  # of text alone, whatever a file leaves open
    if row.generates and options.get("rollout"):
        options["rollout"] = {key: value for key, value in options["rollout"].items() if key in OF_COMPLETIONS}
    if "gpus_per_node" in options and job.num_gpus > job.gpus_per_node:
        options.pop("gpus_per_node")
    return options


def read_back(job: Job, texts: Mapping[str, str], row: Framework, also: tuple[str, ...] = ()) -> JobInput:
    """The job of texts, with what is no setting of the framework, and ``also``, taken from the job itself."""
    options = outside(job, texts, row, also)
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        for name, text in texts.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        try:
            return read_documents(_documents(texts, folder, row), options)
        except MemplanError as error:  # the files are called what they will be, not where they are read
            said = (text.replace(folder + os.sep, "") for text in (error.message, error.hint))
            raise type(error)(*said) from None


def asked(given: JobInput, row: Framework, path: str) -> dict[str, Any]:
    """Keys of the job that ``memplan check`` of a written file has to be told, without which it reads another job: the
    card, and what is of the data or of a script."""
    recipe = resolve(given)
    card = {"gpu": given.job.gpu} if given.job.gpu else {}
    length = {"sequence_length": given.job.sequence_length}
    told = length | outside(given.job, {}, row) | card

    def same(options: Mapping[str, Any]) -> bool:
        try:
            other = resolve(at_longest(read_opened(documents_of(path)[0], options)))
        except MemplanError:
            return False
        return not (other.provenance.unclear or differences(recipe, other, row))

    if same(card):
        return card
    for key in [key for key in told if key not in card]:
        less = {name: value for name, value in told.items() if name != key}
        told = less if same(less) else told
    return told


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
    said = [row for key in keys for row in _apart(key, one.provenance.job[key], two.provenance.job.get(key))]
    return said or [(name, a[name], b[name]) for name in fields]


def _apart(name: str, one: Any, two: Any) -> list[tuple[str, Any, Any]]:
    """A difference; of two groups of keys, of those that the job says."""
    if not (isinstance(one, Mapping) and isinstance(two, Mapping)):
        return [(name, one, two)]
    told = {key: value for key, value in one.items() if value is not None}
    return _within(name, told, {**dict.fromkeys(told), **two})


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
