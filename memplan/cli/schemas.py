"""JSON Schemas: of a job from its fields, of what commands find from their dataclasses, with docstrings."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from memplan.cli.helps import attribute_docstrings
from memplan.spec import job
from memplan.spec.base import Frozen
from memplan.tables.choices import ALIASES, CHOICES, TRAINING_ONLY

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS = {NoneType: "null", bool: "boolean", int: "integer", float: "number", str: "string"}
NOT_JSON = {"Report": ("recipe",), "Checked": ("name",)}
"""Fields that JSON leaves out, by their class."""


def schema_of(what: str) -> Schema:
    """The schema of a job, a report, its timeline, a comparison, a plan or the rows of a check."""
    if what == "job":
        return job_schema()
    if what == "report":
        from memplan.report import Report

        return dataclass_schema(Report, "memplan report")
    if what == "timeline":
        from memplan.timeline import Timeline

        return dataclass_schema(Timeline, "memplan timeline")
    if what == "plan":
        from memplan.planner import Plans

        return dataclass_schema(Plans, "memplan plan")
    if what == "check":
        from memplan.frameworks.checks.checking import Checked

        row = dataclass_schema(Checked, "")
        kept = {"$schema": row.pop("$schema"), "title": "memplan check", "$defs": row.pop("$defs")}
        return {**kept, "type": "array", "items": {key: part for key, part in row.items() if key != "title"}}
    from memplan.comparison import Comparison

    return dataclass_schema(Comparison, "memplan comparison")


def dataclass_schema(owner: type, title: str) -> Schema:
    """The schema of what ``to_dict`` gives."""
    definitions: dict[str, Schema] = {}
    root = _object(owner, definitions)
    return {"$schema": DIALECT, "title": title, **root, "$defs": definitions}


def _object(owner: Any, definitions: dict[str, Schema]) -> Schema:
    """A dataclass: every field is there, also one with a default."""
    hints, docs = get_type_hints(owner), attribute_docstrings(owner)
    properties = {}
    left_out = NOT_JSON.get(owner.__name__, ())
    for field in dataclasses.fields(owner):
        if field.name not in left_out:
            described = {"description": docs[field.name]} if field.name in docs else {}
            properties[field.name] = _of(hints[field.name], definitions) | described
    words = " ".join((owner.__doc__ or "").split())
    return {"type": "object", "description": words, "properties": properties, "required": list(properties)}


def _of(hint: Any, definitions: dict[str, Schema]) -> Schema:
    """The schema of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in KINDS:
        return {"type": KINDS[hint]}
    if dataclasses.is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin in (Union, UnionType):
        return {"anyOf": [_of(argument, definitions) for argument in arguments]}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": _of(arguments[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1], definitions)}
    raise TypeError(f"no JSON Schema for {hint}")


def job_schema() -> Schema:
    """The schema of a job file: its keys, other tools' names for them, and keys without effect on memory."""
    from pydantic import TypeAdapter

    defaults = (field.default for model in Frozen.__subclasses__() for field in model.model_fields.values())
    for default in defaults:
        if isinstance(default, Frozen):
            default.model_dump()  # before Pydantic 2.14 a schema takes no default whose serializer is not built
    schema = TypeAdapter(job.Job).json_schema()
    inner = {owner.__name__: owner for owner in _models(job.Job)}
    for name, part in schema.get("$defs", {}).items():
        _describe(part, attribute_docstrings(inner[name]))
    properties = schema["properties"]
    _describe(schema, attribute_docstrings(job.Job))
    for key, part in properties.items():
        properties[key] = _choices(key, part)
    for alias, key in ALIASES.items():
        properties[alias] = properties[key] | {"description": f"The same as {key}."}
    for key in SHORTHANDS:
        properties[key] = {"description": "Sets lora or quantization."}
    for key in sorted(TRAINING_ONLY):
        properties[key] = {"description": "Accepted, and without effect on memory."}
    return {"$schema": DIALECT, **schema, "title": "memplan job"}


def _models(hint: Any) -> Iterator[type]:
    """The models that are named in a type, or in the fields of one, however deep."""
    for argument in get_args(hint):
        yield from _models(argument)
    for field in getattr(hint, "model_fields", {}).values():
        yield from _models(field.annotation)
    if hasattr(hint, "model_fields"):
        yield hint


SHORTHANDS = ("use_lora", "load_in_4bit", "load_in_8bit")


def _describe(schema: Schema, docs: dict[str, str]) -> None:
    for name, part in schema.get("properties", {}).items():
        part.pop("title", None)
        if name in docs:
            part["description"] = docs[name]
        elif part.get("type") == "null":
            part["description"] = "Not modelled yet."


def _choices(key: str, part: Schema) -> Schema:
    """A choice names its values, and takes the spellings of other tools too."""
    if key not in CHOICES:
        return part
    kept: Schema = {name: part[name] for name in ("default", "description") if name in part}
    kinds: list[Schema] = [{"enum": list(CHOICES[key])}, {"type": "string"}]
    if key == "gradient_checkpointing":
        kinds.append({"type": "boolean"})
    if "anyOf" in part:
        kinds.append({"type": "null"})
    return {"anyOf": kinds, **kept}
