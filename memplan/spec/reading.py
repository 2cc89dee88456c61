"""From a mapping that a person wrote to a Job: aliases, unknown keys, keys that only training uses, ranges."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from memplan.errors import KEYS_ARE_LISTED, InvalidJob, did_you_mean
from memplan.spec.deepspeed import lift_shared
from memplan.spec.job import Job
from memplan.spec.lengths import beneath, in_full
from memplan.spec.lora import in_own_words
from memplan.spec.model import ModelSpec
from memplan.spec.plain import check_plain
from memplan.tables.choices import ALIASES, SYNONYMS, TRAINING_ONLY

MAX_KEYS = 500


class Unread(NamedTuple):
    """A key of a framework's file that bears on memory, or may, and is not understood."""

    key: str
    where: str
    """File and line."""
    why: str = "not understood"
    decides: str = ""
    """What of memory it decides; empty where it is little, or nobody knows."""
    hint: str = ""
    """What to type instead."""
    asks: str = ""
    """The job's key that an option must give."""
    above: bool = False
    """No less is counted than it can take: what fits with it fits."""

    @property
    def text(self) -> str:
        """As a warning says it."""
        if self.asks:
            return f"{self.where}: {self.asks} is not known: {self.why}"
        if self.above:
            return f"{self.where}: {self.key}: {self.why}"
        meant = f"; {self.hint}" if self.hint.startswith("did you mean") else ""
        return f"{self.where}: {self.key} is not counted: {self.why}{meant}"


MOST_NAMED = 4
"""Keys that a sentence names."""


def undecided(unread: Sequence[Unread]) -> str:
    """What decides memory and is not understood: 'use_lora (adapters) is not counted', 'num_gpus is not known: $N'."""
    if not unread:
        return ""
    deciding = [each for each in unread if each.decides]
    asked = [f"{each.asks} is not known: {each.why}" for each in deciding if each.asks]
    keys = {each.key: each for each in deciding if not each.asks}
    why = {each.why for each in keys.values()} - {Unread._field_defaults["why"]}
    more = len(keys) - MOST_NAMED
    listed = ", ".join(f"{key} ({each.decides})" for key, each in list(keys.items())[:MOST_NAMED])
    how = "counted from above" if all(each.above for each in keys.values()) else "not counted"
    verb = f"{f' and {more} more' if more > 0 else ''} {'are' if len(keys) > 1 else 'is'} {how}"
    counted = [f"{listed}{verb}{f': {why.pop()}' if len(why) == 1 else ''}"] if keys else []
    return "; ".join([*asked[:MOST_NAMED], *counted])


class JobInput(NamedTuple):
    """A job, with where each given key came from and what was set aside."""

    job: Job
    sources: dict[str, str]
    """By key: option, file."""
    ignored: tuple[str, ...] = ()
    """Keys that only training uses."""
    spec: ModelSpec | None = None
    """The model, where it is described already, in place of what ``job.model`` names."""
    assumptions: tuple[str, ...] = ()
    """What a framework's file leaves out, and what is taken instead."""
    warnings: tuple[str, ...] = ()
    """What a framework's file says and memplan does not count."""
    origins: Mapping[str, str] = MappingProxyType({})
    """By key: file, line and key, or the framework's default, where a framework's file was read."""
    unread: tuple[Unread, ...] = ()
    """What of a framework's file was not understood, options aside."""
    framework: str = ""
    """Whose file was read: 'TRL 1.16'."""
    opened: tuple[str, ...] = ()
    """Paths of the files that were read for it."""
    source: Any = None
    """The frameworks' files it was read from, and the options over them (``memplan.frameworks.own_words.words``)."""


def canonical_key(key: str) -> str:
    """'max-length' -> 'sequence_length'."""
    name = key.strip().replace("-", "_")
    return ALIASES.get(name, name)


def normalise(values: Mapping[str, Any], where: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keys in their own names, and those set aside. Raises InvalidJob for a key nobody knows, or one given twice."""
    if len(values) > MAX_KEYS:
        raise InvalidJob(f"{where or 'job'}: {len(values)} keys are too many", f"a job has at most {MAX_KEYS}")
    check_plain(values, where)
    job: dict[str, Any] = {}
    ignored = []
    shorthands: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise InvalidJob(
                f"{where}key {str(key)[:80]!r} is not a name", "write keys as names, such as batch_size: 1"
            )
        name = canonical_key(key)
        if name in SHORTHANDS:
            shorthands[name] = value
        elif name in Job.model_fields:
            if name in job and job[name] != value:
                raise InvalidJob(
                    f"{where}{name} is given twice: {str(job[name])[:60]} and {str(value)[:60]}",
                    f"keep one ({key[:60]})",
                )
            job[name] = value
        elif name in TRAINING_ONLY:
            ignored.append(name)
        else:
            raise InvalidJob(f"{where}unknown key {key[:80]!r}", meant(name, [*Job.model_fields, *ALIASES]))
    if isinstance(job.get("lora"), dict):
        job["lora"] = in_own_words(job["lora"])
    if "lengths" in job:
        job["lengths"] = in_full(job["lengths"])
    lift_shared(job, where)
    for name, value in shorthands.items():
        SHORTHANDS[name](job, value)
    return job, tuple(ignored)


def _is_off(key: str, value: Any) -> bool:
    """Whether a switch is off. Raises InvalidJob for what is neither on nor off."""
    word = str(value).strip().lower()
    if word not in ("true", "yes", "on", "1", "false", "no", "off", "0", "none", ""):
        raise InvalidJob(f"{key}: {word[:40]!r} is neither true nor false", f"write {key}: true or {key}: false")
    return word in ("false", "no", "off", "0", "none", "")


def _use_lora(job: dict[str, Any], value: Any) -> None:
    """``use_lora: true`` turns LoRA on with the given or default settings; false turns it off."""
    if _is_off("use_lora", value):
        job["lora"] = None
    elif job.get("lora") is None:
        job["lora"] = {}


def _quantise(name: str) -> Any:
    def shorthand(job: dict[str, Any], value: Any) -> None:
        if _is_off("load_in_4bit or load_in_8bit", value):
            return
        before = str(job.get("quantization", name))
        before = SYNONYMS["quantization"].get(before, before)
        if before != name and not (name == "nf4" and before in ("nf4-double", "fp4")):
            raise InvalidJob(
                f"quantization is given twice: {before[:40]} and {name}", "keep one of load_in_4bit and load_in_8bit"
            )
        job["quantization"] = before

    return shorthand


def meant(key: str, known: Iterable[str]) -> str:
    """A hint for an unknown key: the group whose key it is (``rollout.sleep``), else what is near."""
    groups = {
        name: getattr(field.annotation, "__args__", (field.annotation,)) for name, field in Job.model_fields.items()
    }
    homes = [
        f"{name}.{key}" for name, of in groups.items() if any(key in getattr(each, "model_fields", ()) for each in of)
    ]
    return f"did you mean {' or '.join(homes)}?" if homes else did_you_mean(key, known, KEYS_ARE_LISTED)


SHORTHANDS = {"use_lora": _use_lora, "load_in_4bit": _quantise("nf4"), "load_in_8bit": _quantise("int8")}
"""Keys that are short for others: the job's own key is set by each."""


def build_job(values: Mapping[str, Any], where: str = "", options: Collection[str] = ()) -> Job:
    """A Job of canonical keys. InvalidJob names the key and value at fault; ``where`` too, but for ``options``."""
    from pydantic import ValidationError

    try:
        return Job.model_validate(values)
    except ValidationError as error:
        from memplan.spec.complaints import as_invalid_job

        raise as_invalid_job(error, where, options) from None


COUNTED = frozenset({"sequence_length", "completion_length", "batch_size", "gradient_accumulation_steps", "num_gpus"})


def with_numbers(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, of which readers count with some before there is a job. Raises InvalidJob where one is no number."""
    build_job({key: options[key] for key in COUNTED & options.keys()}, options=COUNTED)
    return options


def read_job(options: Mapping[str, Any], file: Mapping[str, Any] | None = None, where: str = "") -> JobInput:
    """Options over file: a Job, where each key came from, and what was set aside."""
    from_file, ignored = normalise(file or {}, where)
    from_options, more = normalise(options)
    values = merged(from_file, from_options)
    sources = dict.fromkeys(from_file, "file") | dict.fromkeys(from_options, "option")
    return JobInput(build_job(values, where, from_options), sources, (*ignored, *more))


def merged(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """High over low; mappings are merged key by key; sharding and zero_stage, two names of one thing, replace each
    other, as do batch_size and token_budget."""
    values = dict(low)
    if "sharding" in high or "zero_stage" in high:
        values.pop("sharding", None)
        values.pop("zero_stage", None)
    if "model" in high and "revision" not in high:  # the revision of another model
        values.pop("revision", None)
    for key, other in (("batch_size", "token_budget"), ("token_budget", "batch_size")):
        if key in high and other not in high:
            values.pop(other, None)
    if "global_batch_size" in high and "gradient_accumulation_steps" not in high:
        values.pop("gradient_accumulation_steps", None)
    if isinstance(values.get("lengths"), dict) and isinstance(high.get("lengths"), dict):
        values["lengths"] = beneath(values["lengths"], high["lengths"])
    for key, value in high.items():
        both = isinstance(value, dict) and isinstance(values.get(key), dict) and key != "model"
        values[key] = {**values[key], **value} if both else value
    return values


def with_changes(given: JobInput, changes: Mapping[str, Any]) -> JobInput:
    """The job with some keys set as options set them; None takes a key out."""
    stay = {
        key: value for key, value in given.job.model_dump(exclude_unset=True).items() if changes.get(key, 0) is not None
    }
    set_ = {key: value for key, value in changes.items() if value is not None}
    sources = given.sources | dict.fromkeys(changes, "option")
    return given._replace(job=build_job(merged(stay, set_)), sources=sources, unread=unanswered(given.unread, changes))


INSTEAD = {"batch_size": "token_budget"}
"""What answers a question for a key as well."""


def unanswered(unread: Iterable[Unread], keys: Iterable[str]) -> tuple[Unread, ...]:
    """What is left that was not understood, once these keys of the job are given; within its mappings too."""
    given = set(keys)
    for key, value in keys.items() if isinstance(keys, Mapping) else ():
        given |= {f"{key}.{inner}" for inner in value} if isinstance(value, Mapping) else set()
    return tuple(each for each in unread if not each.asks or not ({each.asks, INSTEAD.get(each.asks)} & given))


LEFT_OUT = "left out, as --without says"


def without(given: JobInput, keys: Iterable[str]) -> JobInput:
    """The job without the doubt about keys of its file, whose values no option asks for; a key without one is told."""
    keys = tuple(keys)
    left = [
        each._replace(why=LEFT_OUT, decides="") if each.key in keys and not each.asks else each for each in given.unread
    ]
    said = tuple(
        f"without {each.key}, which takes no memory, as --without says" for each in left if each.why == LEFT_OUT
    )
    doubted = {each.key for each in left if each.why == LEFT_OUT}
    idle = tuple(
        f"--without {key}: it is read, asked for, or not in the file: nothing is left out"
        for key in keys
        if key not in doubted
    )
    return given._replace(
        unread=tuple(left), assumptions=(*given.assumptions, *said), warnings=(*given.warnings, *idle)
    )


def understood(given: JobInput, what: str) -> JobInput:
    """The job itself. InvalidJob where what decides memory was not understood: ``what`` would be another job's."""
    doubt = undecided(given.unread)
    if doubt:
        hint = next((each.hint for each in given.unread if each.decides and each.hint), "")
        own = "take that key out of a copy, or write the job in memplan's own keys (memplan estimate --help-all)"
        raise InvalidJob(f"unclear: {doubt}; {what} would be another job's", hint or own)
    return given
