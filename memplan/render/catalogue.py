"""The lists that ``memplan show`` prints: one function for each, from the tables and the presets themselves."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from memplan.lang import Name
from memplan.render.blocks import Column, Heading, Table
from memplan.tables.texts import parts_of, rows_of
from memplan.units import format_bytes, format_count, pairs_of

Rows = list[dict[str, Any]]


def _columns(of: Iterable[Any], columns: str, **made: Callable[[Any], Any]) -> Rows:
    """Of each what stands under these names: its own attribute, the one behind ``=``, or what is ``made`` of it."""
    getters: dict[str, Callable[[Any], Any]] = {name: attrgetter(path) for name, path in pairs_of(columns).items()}
    return [{name: _plain(found(row)) for name, found in (getters | made).items()} for row in of]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def gpus() -> Rows:
    """Cards, smallest first."""
    from memplan.gpus import load_gpus

    cards = sorted(load_gpus().values(), key=lambda gpu: (gpu.usable_bytes, gpu.name))
    return [gpu.model_dump(mode="json") for gpu in cards]


def clusters() -> Rows:
    """Nodes: cards, links, the host's memory."""
    from memplan.clusters import as_rows

    return as_rows()


def models() -> Rows:
    """Model presets, by family and size."""
    from memplan.presets import every_model

    rows = [
        {"name": each["name"], "parameters": each["parameters"], "family": each["config"]["model_type"],
         "hub_id": each["hub_id"], "title": each["title"]}
        for each in every_model()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["family"], row["parameters"], row["name"]))


def jobs() -> Rows:
    """Preset jobs."""
    from memplan.jobs import job_names, read_target

    rows = []
    for name in job_names():
        job = read_target(name, {}).job
        keys = ("model", "method", "trainer", "num_gpus", "gpu", "batch_size", "sequence_length")
        rows.append({"name": name, **{key: getattr(job, key) for key in keys}})
    return rows


def methods() -> Rows:
    """Training methods."""
    from memplan.tables.methods import METHODS

    columns = "name title sequences_per_example reference score_head rollout=online critic teacher source"
    return _columns(METHODS.values(), columns, sequences_per_example=lambda row: 2 if row.pairs else 1)


def optimizers() -> Rows:
    """Optimizers and what they keep."""
    from memplan.tables.optimizers import OPTIMIZERS

    columns = "name title states_like_the_weights=per_element bytes_per_element factored paged implementations source"
    return _columns(OPTIMIZERS.values(), columns)


def trainers() -> Rows:
    """Trainers, one row for each era of their versions."""
    from memplan.tables.trainers import TRAINERS

    columns = """name since title loads_fp32 autocast=numerics.autocast gradient_checkpointing=checkpointing.on
        loss_heads=loss.heads source"""
    every = (era for eras in TRAINERS.values() for era in eras)
    return _columns(every, columns, loads_fp32=lambda era: era.numerics.weights == "fp32")


def precisions() -> Rows:
    """Storage schemes, in bytes per element."""
    from memplan.tables.precisions import PRECISIONS

    return _columns(PRECISIONS.values(), "name title dtype weights gradients master states")


def frameworks() -> Rows:
    """Whose files are read and written, and the version whose defaults are taken."""
    from memplan.frameworks.registry import frameworks as every

    return [
        {"name": row.name, "title": row.title, "version": row.version, "emits": row.write is not None}
        for row in every().values()
        if row.name != "memplan"
    ]


def terms() -> Rows:
    """Words of a report that memplan explains."""
    from memplan.tables.terms import TERMS

    return [{"name": row.key, "title": row.title, "categories": list(row.categories)} for row in TERMS.values()]


LISTS: dict[str, Callable[[], Rows]] = {
    each.__name__: each
    for each in (gpus, clusters, models, jobs, methods, optimizers, trainers, precisions, frameworks, terms)
}

_PARTS = parts_of(__file__)
SHOWN = {what: names.split() for what, names in rows_of(_PARTS["shown"]).items()}
"""The columns of the text, in order; the data forms have all."""
WORDS = {name: words.replace("|", "\n") for name, words in rows_of(_PARTS["words"]).items()}
"""Titles of columns whose names are too long for one."""
_LAST_TO_GO = 3
"""So many columns stay, however narrow the screen."""


def list_table(what: str, rows: Rows, width: int) -> list[Heading | Table]:
    """The rows as a table; where it is too wide, the last columns go."""
    names = SHOWN[what][:]
    table = _table(names, rows)
    while _natural_width(table) > width and len(names) > _LAST_TO_GO:
        names.pop()
        table = _table(names, rows)
    return [Heading(f"{len(rows)} {what}", "strong"), table]


def _table(names: list[str], rows: Rows) -> Table:
    columns = []
    for position, name in enumerate(names):
        numbers = all(isinstance(row[name], (int, float)) or row[name] is None for row in rows)
        numbers = numbers and not any(isinstance(row[name], bool) for row in rows)
        style = "strong" if position == 0 else ""
        columns.append(
            Column(WORDS.get(name, name.replace("_", " ")), right=numbers, wrap=name == "title", style=style)
        )
    return Table(tuple(columns), tuple(tuple(_cell(name, row[name]) for name in names) for row in rows))


def _natural_width(table: Table) -> int:
    from memplan.render.layout import GAP, widths

    sizes = widths(table, 0)
    return table.indent + sum(sizes) + len(GAP) * (len(sizes) - 1)


def _cell(name: str, value: Any) -> str:
    """A value in words."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name == "parameters":
        return format_count(value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    if not isinstance(value, (int, float)):
        return str(value) if name == "title" else Name(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
