"""Truth files: memory that was measured, for an estimate to be held against.

Three forms of file, told apart by what is in them::

    {"kind": …, "source": …, "common": {…}, "models": {…}, "rows": [row, …]}    a set, as in presets/measurements
    row\\nrow\\n…                                                                 the same rows, a line each (.jsonl)
    {"job": {…}, "measured": {…}, …}                                            one measurement in a file of its own

A row has ``id``, ``job`` (keys of a job; those of ``common`` come first, and ``model`` may name one of ``models``) and
``measured``: bytes by meter (``allocated_bytes``, ``reserved_bytes``, ``device_bytes``) and, of the allocated meter, by
``phases``, read on the first rank of a node where it has ``"rank": 0``; or ``value``, ``unit`` and ``kind``, in the
words of whoever published it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from memplan.errors import UsageError, did_you_mean
from memplan.files import instead_of_missing
from memplan.presets import presets_dir
from memplan.units import GiB, MiB

METERS = ("allocated", "reserved", "device")
ENGINE = {
    "weights": "weights_bytes",
    "fall of free memory": "fallen_bytes",
    "bytes of a token": "kv_bytes_per_token",
    "tokens of the cache": "kv_tokens",
    "cache": "kv_bytes",
    "asleep": "asleep_bytes",
    "device": "device_bytes",
}
"""What a row of a generation engine alone (method generate) tells; and ``starts``, true or false."""
PRINTED = re.compile(r"[\d,]+\.(\d+) (GiB|GB of 2\^30), (model loading|loading model weights|weights|mem usage)$")
"""Weights as a log prints them: its decimals, two at least, say how far they are rounded."""
ROUNDED = ("weights", "fall of free memory")
STARTS = "starts"
PHASES = ("forward", "backward", "step")
KINDS = ("traced", "measured", "published")
UNITS = {"GiB": GiB, "MiB": MiB, "GB (1e9)": 10**9, "MB (MiB)": MiB}
WORDS = {"allocated": "allocated", "reserved": "reserved", "nvidia-smi": "device", "active": ""}
"""Words of a published meter, and memplan's meter; it has none for active bytes."""
LARGEST_FILE = 64 * MiB
LARGEST_NUMBER = 1 << 60
OWN_FILES = "One file for each measurement; every file names its own hardware, versions and job."
"""The source of a set that is a folder of such files."""
LONGEST_NAME, LONGEST_TEXT = 100, 2000
HINT = "memplan/truth.py says how a truth file is written"


@dataclass(frozen=True, slots=True)
class TruthRow:
    """One measured run."""

    id: str
    job: dict[str, Any]
    meters: dict[str, int]
    """Bytes at the peak, by meter."""
    phases: dict[str, int]
    """Allocated bytes by phase, where the row tells them."""
    parameters: dict[str, int]
    """``params`` of the model, and of them and of adapters ``trainable``, where the row tells them."""
    unusable: str = ""
    """Why no estimate can be held against it."""
    quality: str = ""
    """Of a published row: A where every fact that the figure needs is told, B where one is assumed."""
    source: str = ""
    """Who measured it, where the row says so itself."""
    rounding: int = 0
    """Bytes that an engine's weights may be off because their log is rounded: half of its last decimal."""
    first_rank: bool = False
    """Read on the first rank of a node (``"rank": 0``); else on all, or on one of those that are alike."""


@dataclass(frozen=True, slots=True)
class TruthSet:
    """Rows that were made in one way."""

    name: str
    kind: str
    source: str
    rows: tuple[TruthRow, ...]


def default_folder() -> Path:
    """Where memplan's own truth is."""
    return presets_dir() / "measurements"


def read_sets(paths: Sequence[str | Path] = ()) -> list[TruthSet]:
    """The sets of these files and folders, memplan's own where none is named; measurements of one folder are one set.

    Raises UsageError that names the file, and the row, at fault."""
    found: dict[str, TruthSet] = {}
    for path in _files([Path(path) for path in paths] or [default_folder()]):
        part = _read_file(path)
        before = found.get(part.name)
        if before and (before.kind, before.source) != (part.kind, part.source):
            part = TruthSet(f"{path.parent.name}/{part.name}", part.kind, part.source, part.rows)
            before = found.get(part.name)
        rows = (*before.rows, *part.rows) if before else part.rows
        _refuse_twins(rows, path)
        found[part.name] = TruthSet(part.name, part.kind, part.source, rows)
    return list(found.values())


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files themselves, and every .json and .jsonl below a folder."""
    for path in dict.fromkeys(paths):
        try:
            if path.is_dir():
                inner = sorted(file for file in path.rglob("*") if file.suffix in (".json", ".jsonl"))
                if not inner:
                    raise UsageError(f"{path}: no truth file in this folder", "name a .json or .jsonl file")
                yield from inner
                continue
            if not path.is_file():
                raise UsageError(
                    f"{path}: no such file", instead_of_missing(str(path), "name truth files, or folders of them")
                )
        except (OSError, ValueError) as error:
            raise UsageError(f"{str(path)!r}: cannot be read: {error}", "name truth files") from None
        yield path


def _read_file(path: Path) -> TruthSet:
    """One file as a set; a file of one measurement belongs to the set of its folder."""
    data = _parsed(path)
    if isinstance(data, dict) and "rows" not in data and "measured" in data:
        row = _row({"id": path.stem, **data}, {}, {}, f"{path}")
        kind = "measured" if data.get("hardware") else "traced"
        return TruthSet(_text(path.resolve().parent.name, f"{path}: folder"), kind, OWN_FILES, (row,))
    if isinstance(data, list):
        data = {"rows": data, "kind": _kind_of(data)}
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        _fail(f"{path}: neither a set with rows nor one measurement")
    kind = data.get("kind", _kind_of(data["rows"]))
    if kind not in KINDS:
        raise UsageError(f"{path}: kind {str(kind)[:80]!r} is not known", did_you_mean(str(kind)[:80], KINDS))
    common, models = (_mapping(data.get(key, {}), f"{path}: {key}") for key in ("common", "models"))
    rows = tuple(_sourced(row, common, models, f"{path}: row {n}") for n, row in enumerate(data["rows"], 1))
    _refuse_twins(rows, path)
    return TruthSet(_text(path.stem, f"{path}: name"), kind, _text(data.get("source", ""), f"{path}: source"), rows)


def _parsed(path: Path) -> Any:
    """The JSON of a file; the lines of .jsonl as a list."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            _fail(f"{path}: larger than {LARGEST_FILE // MiB} MiB: no truth file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        _fail(f"{path}: not text in UTF-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", "name a file that can be read") from None
    if path.suffix != ".jsonl":
        return _json(text, f"{path}")
    lines = enumerate(text.splitlines(), 1)
    return [_json(line, f"{path}: line {number}") for number, line in lines if line.strip()]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        words = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return _fail(f"{where}: no JSON: {words}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _kind_of(rows: Sequence[Any]) -> str:
    """What rows without a set are: published in somebody's words, measured on hardware, or traced."""
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    measured = first.get("measured")
    if isinstance(measured, dict) and "value" in measured:
        return "published"
    return "measured" if first.get("hardware") else "traced"


def _sourced(row: Any, common: dict[str, Any], models: dict[str, Any], where: str) -> TruthRow:
    """A row with its own source: a text, or a title and where to find it."""
    found = _row(row, common, models, where)
    source = row.get("source", "")
    parts = [source.get("title", ""), source.get("ref", "")] if isinstance(source, dict) else [source]
    return replace(
        found, source=": ".join(_clean(part)[:LONGEST_TEXT] for part in parts if isinstance(part, str) and part)
    )


def _row(row: Any, common: dict[str, Any], models: dict[str, Any], where: str) -> TruthRow:
    row = _mapping(row, where)
    name = _text(row.get("id"), f"{where}: id", LONGEST_NAME)
    if not name:
        _fail(f"{where}: id is empty")
    where = f"{where} ({name})"
    if row.get("job") is None:
        return TruthRow(name, {}, {}, {}, {}, "no job: its settings are not told in full")
    job = {**common, **_mapping(row["job"], f"{where}: job")}
    if "model" in row:
        if not isinstance(row["model"], str) or (row["model"] not in models and "model" not in job):
            _fail(f"{where}: model {str(row['model'])[:80]!r} is not in models")
        job.setdefault("model", models.get(row["model"]))
    measured = _mapping(row.get("measured"), f"{where}: measured")
    quality = _text(row.get("quality", ""), f"{where}: quality", LONGEST_NAME)
    if measured and job.get("method") == "generate":
        return TruthRow(name, job, _of_engine(measured, where), {}, {}, quality=quality, rounding=_rounding(row))
    if not measured:
        why = "out of memory: " if row.get("out_of_memory") else ""
        return TruthRow(name, job, {}, {}, {}, why + "nothing was measured")
    if "value" in measured:
        return replace(_as_published(name, job, measured, where), quality=quality)
    phases = _mapping(measured.get("phases", {}), f"{where}: phases")
    phases = {phase: _whole(phases[phase], f"{where}: {phase}") for phase in PHASES if phase in phases}
    keys = {meter: f"{meter}_bytes" for meter in METERS}
    meters = {meter: _whole(measured[key], f"{where}: {key}") for meter, key in keys.items() if key in measured}
    if phases and "allocated" not in meters:
        meters = {"allocated": max(phases.values()), **meters}
    if not meters:
        _fail(f"{where}: measured names none of {', '.join(keys.values())}, phases")
    parameters = {key: _whole(row[key], f"{where}: {key}") for key in ("params", "trainable") if key in row}
    return TruthRow(name, job, meters, phases, parameters, quality=quality, first_rank=row.get("rank") == 0)


def _of_engine(measured: dict[str, Any], where: str) -> dict[str, int]:
    """What an engine's log said; whether it started as 1 (yes) or 2 (no)."""
    found = {name: _whole(measured[key], f"{where}: {key}") for name, key in ENGINE.items() if key in measured}
    started = measured.get(STARTS)
    if started is not None and not isinstance(started, bool):
        _fail(f"{where}: {STARTS}: {str(started)[:80]!r} is neither true nor false")
    if not found and started is None:
        _fail(f"{where}: measured names none of {', '.join(ENGINE.values())}, {STARTS}")
    return found if started is None else {**found, STARTS: 1 if started else 2}


def _rounding(row: dict[str, Any]) -> int:
    """Half of the last decimal of the weights as they were published; 0 where a row does not quote them."""
    quoted = row.get("published", ())
    found = [PRINTED.match(text) for text in quoted if isinstance(text, str)] if isinstance(quoted, list) else []
    return max((GiB // (2 * 10 ** max(2, len(match.group(1)))) for match in found if match), default=0)


def _as_published(name: str, job: dict[str, Any], measured: dict[str, Any], where: str) -> TruthRow:
    """A figure in the words of its source: usable where they name one of the three meters."""
    value, unit, kind = (measured.get(key) for key in ("value", "unit", "kind"))
    if not isinstance(unit, str) or unit not in UNITS:
        raise UsageError(f"{where}: unit {str(unit)[:80]!r} is not known", "write one of: " + ", ".join(UNITS))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value * UNITS[unit] < LARGEST_NUMBER:
        _fail(f"{where}: value {str(value)[:80]!r} is no size")
    words = {meter for word, meter in WORDS.items() if word in str(kind).lower()}
    if len(words) != 1 or "" in words:
        return TruthRow(name, job, {}, {}, {}, f"meter not known: {_clean(str(kind))[:80]}")
    return TruthRow(name, job, {words.pop(): round(value * UNITS[unit])}, {}, {})


def _whole(value: Any, where: str) -> int:
    """A number of bytes or of parameters."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST_NUMBER:
        _fail(f"{where}: {str(value)[:80]!r} is no whole number above zero")
    return int(value)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _fail(f"{where}: {str(value)[:80]!r} is no mapping")
    return dict(value)


def _text(value: Any, where: str, longest: int = LONGEST_TEXT) -> str:
    """One printable line: names go into tables and file names into messages."""
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        _fail(f"{where}: {str(value)[:80]!r} is no line of text of at most {longest} characters")
    return str(value)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _refuse_twins(rows: Sequence[TruthRow], path: Path) -> None:
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            _fail(f"{path}: id {row.id!r} is there twice")
        seen.add(row.id)


def _fail(message: str) -> NoReturn:
    raise UsageError(message, HINT)
