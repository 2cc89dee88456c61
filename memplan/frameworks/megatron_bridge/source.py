"""Where Megatron-Bridge's settings stand: a recipe under a command's overrides, YAML over one, or a program that makes
its ``ConfigContainer``. All become settings by dotted name: ``model.tensor_model_parallel_size``."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.base import Draft
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.files.following import open_reference
from memplan.frameworks.megatron_bridge.keys import SHORT
from memplan.frameworks.programs.files import might_be
from memplan.frameworks.programs.follow import followed, known_of
from memplan.frameworks.programs.launch import with_options
from memplan.frameworks.programs.run import Known
from memplan.frameworks.programs.values import Place, Thing, Unknown, known, plain
from memplan.frameworks.shell.reader import options_of, scalar
from memplan.frameworks.verl.source import flat, referred

RUNNERS = ("run_recipe.py", "setup_experiment.py", "train.sh", "launch_with_nemo_run.py")
_OVERRIDE = re.compile(
    r"[+~]{0,2}((?:model|train|dataset|ddp|dist|optimizer|peft|mixed_precision|comm_overlap|checkpoint|scheduler"
    r"|validation|logger|tokenizer|rng|profiling)\.[\w.]+|mixed_precision|peft)=(.*)",
    re.DOTALL,
)
_TELLING = (
    "train.global_batch_size",
    "train.micro_batch_size",
    "model.tensor_model_parallel_size",
    "ddp.use_megatron_fsdp",
)
RECIPE, STEM, OVER = "recipe", "recipe_model", "?over"
"""Keys under which the recipe's name stands, or its beginning (``--model qwen3_8b --mode sft``), and the line where a
program puts a file's settings over its config."""
PACKAGE = "megatron.bridge."
ENDS = ("pretrain", "finetune")
"""Functions that train by a config."""
_OVER = ("process_config_with_overrides", "apply_overrides", "parse_hydra_overrides")
"""Functions that put a file's or a command's settings over a config."""
_LOOP = re.compile(r"get_forward_backward_func|optimizer\.step\(|\.backward\(")


def runs(document: Document) -> Iterator[tuple[Launch, dict[str, Any], dict[str, int]]]:
    """The commands of a script that start a training of it, with what they say."""
    for launch in launches(document):
        program = launch.program.rsplit("/", 1)[-1]
        if not program.endswith((".py", ".sh")):
            continue
        values, lines = _said(launch)
        named = {RECIPE, "recipe_name", STEM} & values.keys()
        if (program in RUNNERS and named) or any(key in values for key in _TELLING):
            yield launch, values, lines


def _said(launch: Launch) -> tuple[dict[str, Any], dict[str, int]]:
    given, places, _ = options_of(launch.words)
    words = {key: value[0] if isinstance(value, list) and value else value for key, value in given.items()}
    values: dict[str, Any] = {key: words[key] for key in (RECIPE, "recipe_name", "config_file") if key in words}
    if launch.program.rsplit("/", 1)[-1] in RUNNERS:
        values |= {key: words[key] for key in ("nodes", "gpus_per_node") if key in words}
        values |= {STEM: words["model"]} if "model" in words else {}
        values |= {SHORT[key]: value for key, value in words.items() if key in SHORT}
        lines = {SHORT.get(key, key): line for key, line in places.items()}
    else:
        lines = dict(places)
    for word in launch.words:
        match = _OVERRIDE.fullmatch(word.text)
        if match:
            values[match.group(1)], lines[match.group(1)] = scalar(match.group(2).strip("\"'")), word.line
    return values, {key: lines[key] for key in values if key in lines}


def of_document(document: Document, draft: Draft) -> Settings:
    """Everything by dotted name; the recipe's name under ``recipe``, the model's under ``hf_model_path``."""
    if document.form == "python":
        found = of_program(document, known_of(draft))
        _warn_of_program(document, found, draft)
        return found
    if document.form != "shell":
        return _of_yaml(document.settings)
    launch, values, lines = next(runs(document))
    draft.facts["launch"] = launch
    below = _below(document, launch, values, draft)
    return Settings(launch.path, values, lines).over(below)


def _below(document: Document, launch: Launch, values: dict[str, Any], draft: Draft) -> Settings:
    """What the command's words stand over: its YAML, and the program itself where it lies here."""
    config = str(values.pop("config_file", ""))
    here = Settings(launch.path, {}, {"config_file": launch.command.line})
    over = _of_yaml(draft.follow(here, "config_file", config).settings) if config.endswith((".yaml", ".yml")) else None
    program = launch.program
    base: Settings | None = None
    if program.endswith(".py") and RECIPE not in values and might_be(document.path, program):
        opened = open_reference(Settings(document.path, {}), "program", program)
        draft.followed.append(opened.path)
        base = of_program(opened, with_options(launch, known_of(draft)))
        if over is None:
            _warn_of_program(opened, base, draft)
    if base is None or over is None:
        return base or over or Settings(launch.path, {})
    return base.under(over)


def _of_yaml(settings: Settings) -> Settings:
    """YAML over a recipe; ``recipe: {_target_: …, peft: null}`` names it and gives its parameters."""
    values = dict(flat(settings.values))
    lines = dict(settings.lines)
    target = values.pop("recipe._target_", None) or values.get(RECIPE)
    for key in [key for key in values if key.startswith("recipe.")]:
        name = key.removeprefix("recipe.")
        values.setdefault(SHORT.get(name, name), values.pop(key))
        lines.setdefault(SHORT.get(name, name), lines.get(key, 1))
    if target:
        values[RECIPE], lines[RECIPE] = str(target).rpartition(".")[2], lines.get("recipe", 1)
    made = [key for key in values if key.endswith("._target_")]
    return Settings(settings.path, referred({key: value for key, value in values.items() if key not in made}), lines)


def _warn_of_program(document: Document, found: Settings, draft: Draft) -> None:
    """What a program does to its config when it runs."""
    if OVER in found.values:
        where = f"{document.path}, line {found.values[OVER]}"
        why = "the settings that the program puts over its config when it runs are not counted"
        draft.warn("config_file", where, why, "batch", "check the command that starts it")
    if "modelopt" in document.text:
        draft.warn("modelopt", document.path, "quantised weights are counted as they are without it", "quantisation")


def of_program(document: Document, under: Known) -> Settings:
    """The config that a program trains by, else the last that it makes. Raises NotKnown where it makes none."""
    run = followed(document, under)
    own = [thing for thing in run.things if thing.name.startswith(PACKAGE)]
    if any("distill" in thing.last.lower() for thing in own):
        raise InvalidJob(f"{document.path}: distillation by Megatron-Bridge is not modelled", "name another training")
    trained = [_config_of(thing) for thing in own if thing.last in ENDS]
    if not trained and _LOOP.search(document.text):
        raise NotKnown(f"{document.path}: a training loop of the program's own, which is not read",
                       "write its job in memplan's keys")  # fmt: skip
    made = [thing for thing in own if thing.last == "ConfigContainer" or _is_recipe(thing.last)]
    config = next((each for each in reversed([*made, *trained]) if isinstance(each, Thing)), None)
    if config is None:
        raise NotKnown(f"{document.path}: the config that it trains by is not known", "name the command that starts it")
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    if _is_recipe(config.last):
        values[RECIPE], lines[RECIPE] = config.last, config.place.line
    _put_thing(config, "", values, lines)
    if any("muon" in thing.last for thing in own):
        values["optimizer.optimizer"] = "muon"
    over = next((thing.place.line for thing in own if thing.last in _OVER), 0)
    return Settings(document.path, values | ({OVER: over} if over else {}), lines)


def _config_of(thing: Thing) -> Any:
    """The config that a call was given, through what puts settings over it."""
    found = thing.values.get("config", thing.values.get("cfg", thing.values.get("*0")))
    return _config_of(found) if isinstance(found, Thing) and found.last in _OVER else found


def _is_recipe(name: str) -> bool:
    return (
        re.fullmatch(r"_?\w*(?:pretrain|sft|peft|finetune)(?:_\w+)?_config|_(?:pretrain|sft|peft)_common", name)
        is not None
    )


def _put_thing(thing: Thing, prefix: str, values: dict[str, Any], lines: dict[str, int]) -> None:
    """An object's values by dotted name; what made it under ``made``."""
    for key, value in list(thing.values.items())[:400]:
        name = SHORT.get(key, key) if not prefix and _is_recipe(thing.last) else key
        _put(f"{prefix}{name}", value, thing.places.get(key, thing.place), values, lines)


def _put(name: str, value: Any, place: Place, values: dict[str, Any], lines: dict[str, int]) -> None:
    if len(values) > 2000 or name.count(".") > 6 or "*" in name or name.startswith("?"):
        return
    lines[name] = place.line
    if isinstance(value, Thing) and value.name.startswith(("megatron.", "lambda")):
        values[f"{name}.made"] = value.last
        owner = value.values.get("?self")
        first = value.values.get("*0", value.values.get("path", value.values.get("hf_model_id")))
        if isinstance(owner, Thing):
            first = owner.values.get("*0", owner.values.get("path"))
        if first is not None:
            values[f"{name}.from"] = _shown(first)
            lines[f"{name}.from"] = place.line
        _put_thing(value, f"{name}.", values, lines)
    elif isinstance(value, Mapping):
        for key, each in list(value.items())[:100]:
            _put(f"{name}.{key}", each, place, values, lines)
    else:
        values[name] = _shown(value)


def _shown(value: Any) -> Any:
    """A known value; of another what stands there, as a variable."""
    if known(value):
        return plain(value)
    return f"${{{value.text[:60]}}}" if isinstance(value, Unknown) else "${what the program makes}"


def is_program(document: Document) -> bool:
    """Whether a program makes a config of it, by its text."""
    text = document.text
    makes = "ConfigContainer" in text or re.search(r"_(pretrain|sft|peft|finetune)_config\b|pretrain_config\(", text)
    return "megatron.bridge" in text and bool(makes)


def trains(document: Document) -> bool:
    """Whether a program makes one indeed."""
    try:
        of_program(document, Known())
    except NotKnown:
        return False
    except MemplanError:
        return "distill" in document.text
    return True
