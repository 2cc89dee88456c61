"""verl's settings by dotted name, of nested YAML or of a command's overrides, and whose trainer they are of."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.frameworks.base import Draft
from memplan.frameworks.commands.hydra import of_program
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.files.following import found_at, open_reference, program_at
from memplan.frameworks.shell.reader import Word, scalar
from memplan.frameworks.verl.asking import processes_of
from memplan.frameworks.verl.names import repeated, sense

RL, SFT, ENGINE, EASY, SKY = "rl", "fsdp_sft_trainer", "sft_trainer", "easyr1", "skyrl"
"""Trainers: of reinforcement learning; the older and the newer of supervised fine-tuning; EasyR1's, SkyRL's."""
OF_SKY = re.compile(r"trainer\.(?:policy|placement)\.|generator\.(?:inference_engine|sampling_params|n_samples)")
_SFT_PROGRAM = re.compile(r"\b(fsdp_sft_trainer|(?<=\bverl[./]trainer[./])sft_trainer(?:_ray)?)\b")
_NO_TRAINING = re.compile(r"\bmain_(generation|eval)\w*|model_merger|\bdiagnose\b|preprocess")
"""Programs that train nothing."""
_OTHER_PROGRAM = re.compile(r"\bverl\.trainer\.main_(?:sft|dpo|rm|reward\w*)\b")
_OVERRIDE = re.compile(r"['\"]?(\+{0,2}|~)([A-Za-z_]\w*(?:\.[\w@-]+)*)=(.*)", re.DOTALL)
_MARKS = re.compile(
    r"\bactor_rollout_ref\.(actor|rollout|model)\.|\bworker\.(actor|rollout)\.|model\.partial_pretrain="
    r"|\btrainer\.(?:policy|placement)\.\w|\bverl[./]trainer[./]sft_trainer|\bdata\.max_token_len_per_gpu="
)
WITHOUT_DOT = ("ulysses_sequence_parallel_size", "use_remove_padding", "engine", "model_engine", "config", "max_turns")
"""Names that stand at the top of a config and mean something; others are variables of the shell."""
CONFIGS = re.compile(r"(ppo|dapo|gspo|sppo|entropy|prime|spin|r1|rl|grpo|gen|\w*fully_async\w*|\w*one_step_off\w*)?_?"
                     r"(ppo_|dapo_)?(megatron_|fsdp_)?trainer(_engine)?|sft_trainer(_engine)?|rl")  # fmt: skip
"""Names of verl's own configs and its recipes', whose defaults are verl's for what memory feels."""

SAYS_NOTHING = re.compile(r"data\.(?:image|video)_key=|[^=]*=~")
"""Defaults of verl's that say nothing: the column of images, whether or not there are any; a folder at home."""


class Given(NamedTuple):
    """What a file says of one training."""

    settings: Settings
    kind: str
    """RL, SFT, ENGINE, EASY or SKY."""
    added: frozenset[str] = frozenset()
    """Names with a plus before them: the config of that version has them not."""
    config: str = ""
    """Name of the Hydra config."""


MICRO_BATCHES = {"micro_batch_size_per_gpu", "micro_batch_size", "max_token_len_per_gpu"}
"""Any of which a config of supervised fine-tuning has under ``data``."""


def marks(document: Document) -> tuple[str, ...]:
    """What tells verl's files: names of its settings."""
    if document.form == "shell":
        return ("actor_rollout_ref",) if _MARKS.search(document.text) else ()
    values = document.settings.values
    if document.form != "yaml":
        return ()
    if isinstance(values.get("actor_rollout_ref"), Mapping):
        return ("actor_rollout_ref",) if {"actor", "model", "rollout"} & set(values["actor_rollout_ref"]) else ()
    if str(values.get("_target_")).startswith("verl."):
        return ("_target_",)
    worker, data, trainer = (values.get(key) for key in ("worker", "data", "trainer"))
    if isinstance(trainer, Mapping) and isinstance(trainer.get("policy"), Mapping) and "generator" in values:
        return ("generator",)
    if isinstance(worker, Mapping) and isinstance(worker.get("actor"), Mapping):
        return ("worker",)
    batched = isinstance(data, Mapping) and MICRO_BATCHES & set(data)
    if batched and "trainer" in document.keys:
        return ("data",)
    if _default_config(values) in ("ppo_trainer", "ppo_megatron_trainer"):
        return ("actor_rollout_ref",)
    generates = isinstance(data, Mapping) and "rollout" in document.keys and "model" in document.keys
    return ("rollout",) if generates else ()


def given(document: Document, draft: Draft) -> Given:
    """The training of a file. Raises InvalidJob where there is none."""
    if document.form == "shell":
        return _of_script(document, draft)
    settings, found = document.settings, marks(document)
    if not {"actor_rollout_ref", "worker", "generator", "data"} & set(found):
        part = "a part of verl's configuration" if "_target_" in found else "verl's generation or evaluation"
        raise InvalidJob(f"{settings.path}: {part}, no training", "name the script that starts one")
    own = _plain(settings)
    kind = {"actor_rollout_ref": RL, "worker": EASY, "generator": SKY}.get(found[0], ENGINE)
    model = own.values
    if kind == ENGINE and ("model.partial_pretrain" in model or "engine.strategy" not in model):
        kind = ENGINE if {"data.max_token_len_per_gpu", "model.path"} & set(model) else SFT
    return _settled(_over(draft, Given(own, kind), "", _default_config(settings.values)))


def _default_config(values: Mapping[str, Any]) -> str:
    """The config that a YAML begins with: the first of its ``defaults``."""
    defaults = values.get("defaults")
    named = [each for each in defaults if isinstance(each, str)] if isinstance(defaults, list) else []
    return next((each for each in named if each != "_self_"), "")


def _plain(settings: Settings) -> Settings:
    values = {key: value for key, value in flat(settings.values) if not key.startswith(("defaults", "hydra"))}
    return Settings(settings.path, values, settings.lines)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings under dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*([^${}]*))?\}")
MOST_DEEP = 3


def referred(values: Mapping[str, Any]) -> dict[str, Any]:
    """``${a.b}`` and ``${oc.select:a.b,default}`` put in, where the file has what they name."""
    found = dict(values)
    for _ in range(MOST_DEEP):
        for key, value in found.items():
            match = _reference(value)
            if match is None or (match.group(2) is None and match.group(1) not in found):
                continue
            named = found.get(match.group(1))
            plain = named is not None and (not is_template(named) or _reference(named))
            found[key] = named if plain else scalar(match.group(2) or "null")
    return found


def _reference(value: Any) -> re.Match[str] | None:
    return _REFERENCE.fullmatch(value) if isinstance(value, str) else None


def _settled(found: Given, variables: Collection[str] = ()) -> Given:
    """With what its references name, and without names that are there to be put in: a command's own ``variables``, and
    a file's that verl does not know (``micro_batch_size: 4`` at its top)."""
    values = found.settings.values
    named = {match.group(1) for match in map(_reference, values.values()) if match}
    gone = {*variables, *repeated(values), *(key for key in named if sense(key) == "unknown")}
    values = {key: value for key, value in referred(values).items() if key not in gone}
    return found._replace(settings=replace(found.settings, values=values))


def _of_script(document: Document, draft: Draft) -> Given:
    """The overrides of the first training that a script starts, over the config that it names."""
    for words in (list(command.words) for command in document.commands):
        texts = " ".join(word.text for word in words if "=" not in word.text)
        if _NO_TRAINING.search(texts):
            continue
        other = _OTHER_PROGRAM.search(texts)
        if other:
            why = "no program of verl's: its settings are read as those of PPO's"
            draft.warn(other.group(), f"{document.path}, line {words[0].line}", why, "method")
        values, lines, added = _overrides(words)
        path, name = _config(words, values)
        program = _module(document.path, words)
        kind, base = _kind(values, texts), None
        if not kind and program:  # whose own config has what verl reads, and the command what is changed of it
            base = of_program(document.path, program, path, name)
            kind = RL if base is not None and "actor_rollout_ref" in base.values else ""
        if not kind:
            continue
        handed = next((word for word in words if re.search(r"\.(sh|bash)$", word.text)), None)
        if handed is not None:
            why = "the script that these settings are handed to is not here: what it sets itself is not known"
            draft.warn(handed.text[-60:], f"{document.path}, line {handed.line}", why, "model", "name that script")
        if kind in (SFT, ENGINE):
            counts = processes_of(words)
            values |= counts
            lines |= dict.fromkeys(counts, words[0].line)
        settings = Settings(document.path, values, lines)
        settings = settings if base is None else _plain(base).under(settings)
        place = found_at(document.path, program) if program else None
        draft.facts["verl program"] = place.read_text(encoding="utf-8", errors="replace") if place else ""
        found = _over_code(draft, _over(draft, Given(settings, kind, added, name), path, name, program), program, path)
        return _settled(found, {name for name in values if "." not in name} - {*WITHOUT_DOT, *added})
    raise InvalidJob(f"{document.path}: no training of verl's with options in it", "name the script that starts one")


def _kind(values: Mapping[str, Any], texts: str) -> str:
    """The trainer that a command starts; empty for none."""
    groups = {key.partition(".")[0] for key in values}
    if "actor_rollout_ref" in groups:
        return RL
    if "worker" in groups or any(map(OF_SKY.match, values)):
        return EASY if "worker" in groups else SKY
    program = _SFT_PROGRAM.search(texts)
    if program and ({"data", "model"} & groups or "--config-name" in texts):
        return SFT if program.group(1) == "fsdp_sft_trainer" else ENGINE
    if "data" not in groups or not {"model", "engine"} & groups:
        return ""
    return SFT if "model.partial_pretrain" in values else ENGINE if "engine" in groups else ""


def _overrides(words: list[Word]) -> tuple[dict[str, Any], dict[str, int], frozenset[str]]:
    """``key=value``, ``+key=value``, ``++key=value`` by dotted name, later ones stronger; names that a plus adds."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    added = set()
    for word in words:
        match = _OVERRIDE.fullmatch(word.text)
        name = match.group(2) if match else ""
        if match is None:
            continue
        value = match.group(3).strip("\"'")
        inner = _inner(value) if re.search(r"\boverride_\w+$", name) else {}
        for key, each in flat({name: inner} if inner else {name: scalar(value)}):
            values[key], lines[key] = each, word.line
        if match.group(1) == "+":
            added.add(name)
    return values, lines, frozenset(added)


def _inner(text: str) -> Mapping[str, Any]:
    """Hydra's ``{fused:True,foreach:False}``; nothing for what is no such mapping."""
    if not text.startswith("{") or not text.endswith("}"):
        return {}
    pairs = (each.partition(":") for each in text[1:-1].split(","))
    return {key.strip(" '\""): scalar(value.strip(" '\"")) for key, _, value in pairs if value}


def _config(words: list[Word], values: Mapping[str, Any]) -> tuple[str, str]:
    """Folder and name of the config that a command names: Hydra's options, or EasyR1's ``config=``."""
    found = {"path": "", "name": ""}
    for place, word in enumerate(words):
        match = re.match(r"--config[-_](path|name|dir)(?:=(.*))?$", word.text, re.DOTALL)
        if match:
            text = match.group(2) or (words[place + 1].text if place + 1 < len(words) else "")
            found["name" if match.group(1) == "name" else "path"] = text.strip("\"'")
    return found["path"], str(values.get("config") or found["name"])


def _over(draft: Draft, own: Given, path: str, name: str, program: str = "") -> Given:
    """The settings over their config's, where it is beside the script or in the project; else verl's own stand for it,
    said where its name is not one of verl's, nor of a config of the program's."""
    short = re.sub(r"\.ya?ml$", "", name.rpartition("/")[2])
    if not name:
        return own
    for reference in _places(own.settings.path, path, name if name.endswith(("yaml", "yml")) else f"{name}.yaml"):
        try:
            document = open_reference(own.settings, "config", reference)
        except InvalidJob:
            continue
        draft.followed.append(document.path)
        merged = _plain(document.settings).under(own.settings)
        return own._replace(settings=merged, config=_default_config(document.settings.values) or short)
    if not CONFIGS.fullmatch(short) and not (program and of_program(own.settings.path, program, path, short)):
        where = own.settings.where("config") if "config" in own.settings.values else f"{own.settings.path}, line 1"
        draft.warn(f"config {short[:60]}", where, "the config is not here: verl's own defaults stand for it", "model",
                   "run from the project's folder")  # fmt: skip
    return own._replace(config=short)


def _module(script: str, words: list[Word]) -> str:
    """The program that a command starts, where it lies in the project: ``-m verl.trainer.main_ppo``, or its path."""
    named = (word.text for word in words if "=" not in word.text and (word.text.endswith(".py") or "." in word.text))
    found = (program_at(script, name) for name in named)
    return next((name for name in found if name.endswith(".py") and found_at(script, name) is not None), "")


def _over_code(draft: Draft, own: Given, program: str, folder: str) -> Given:
    """The settings over those that the config of the code in the project has: a fork's defaults are its own. Of these
    the names that are verl's; not what is left to resolvers, nor models in a home."""
    base = (
        of_program(own.settings.path, program, folder, own.config) if program and own.kind not in (EASY, SKY) else None
    )
    if base is None or own.settings.paths.get(next(iter(base.values), ""), "") == base.path:
        return own
    said = own.settings.values
    whole = {**said, **referred({**dict(flat(base.values)), **said})}
    draft.facts["verl fork"] = [key for key, value in whole.items() if sense(key) == "unknown" and value is True]
    usual = {key: value for key, value in whole.items() if key not in said and sense(key) != "unknown"
             and not is_template(value) and not SAYS_NOTHING.match(f"{key}={value}")}  # fmt: skip
    if not usual:
        return own
    draft.followed.append(base.path)
    mine = replace(own.settings, values={key: whole[key] for key in said})
    return own._replace(settings=mine.over(replace(base, values=usual)))


def _places(script: str, path: str, name: str) -> Iterator[str]:
    """Where a config may be, as seen from the script or the project: as it is written, or its end beside the script."""
    parts = [part for part in f"{path}/{name}".split("/") if part not in ("", ".")]
    yield "/".join(parts)
    for start in range(1, len(parts)):
        yield "/".join(parts[start:])
