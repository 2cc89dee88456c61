"""The forms that programs read: JSON, YAML, CSV; and Markdown, made of the same blocks as the text.

Rows as lines of a file that grows: CSV and JSON lines, written one by one, and read again to go on."""

import json
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from memplan.errors import UsageError, printable, printable_json

if TYPE_CHECKING:
    from memplan.render.blocks import Block, Table


def to_json(value: Any) -> str:
    """Indented JSON in UTF-8, rows of a list on a line each; ``json.dumps`` takes as long to indent as an estimate."""
    return _indented(value, "\n") + "\n"


def _indented(value: Any, line: str) -> str:
    """A value whose own line begins with ``line``."""
    if isinstance(value, str):
        return encode_basestring(value)
    inner = line + "  "
    if isinstance(value, dict) and value:
        items = [f"{encode_basestring(str(key))}: {_indented(item, inner)}" for key, item in value.items()]
        return "{" + inner + f",{inner}".join(items) + line + "}"
    if isinstance(value, (list, tuple)) and value:
        return "[" + inner + f",{inner}".join([_row(item) or _indented(item, inner) for item in value]) + line + "]"
    return repr(value) if type(value) is int else json.dumps(value)


def _row(value: Any) -> str:
    """A mapping of plain values on one line; empty where it is none."""
    if not isinstance(value, dict) or any(isinstance(item, (dict, list, tuple)) for item in value.values()):
        return ""
    return json.dumps(value, ensure_ascii=False)


def to_yaml(value: Any) -> str:
    """YAML that keeps the order of keys."""
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line of names, then a line for each row. Lists and mappings are written as JSON."""
    import csv
    import io

    buffer = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: flat(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def flat(value: Any) -> Any:
    """What one cell of CSV holds."""
    if isinstance(value, str) and value[:1] in ("=", "+", "@", "\t", "\r"):
        # A spreadsheet would run such a cell as a formula; an apostrophe makes it text.
        return "'" + printable(value)
    if isinstance(value, (dict, list, tuple)):
        value = json.dumps(value, ensure_ascii=False)
    return printable(value) if isinstance(value, str) else value


def to_markdown(blocks: "Iterable[Block]") -> str:
    """Headings, paragraphs and pipe tables."""
    from memplan.render.blocks import Drawing, Heading, Prose
    from memplan.render.layout import spoken

    parts = []
    for block in spoken(blocks):
        if isinstance(block, Heading):
            parts.append(f"## {escaped(block.text)}\n")
        elif isinstance(block, Prose):
            parts.append(escaped(block.text).replace("\n", "  \n") + "\n")
        elif isinstance(block, Drawing):
            drawn = ("".join(span.text for span in line).rstrip() for line in block.lines)
            parts.append("\n".join(["```text", *drawn, "```"]) + "\n")
        elif block.rows:
            parts.append(_pipe_table(block))
    return "\n".join(parts)


def _pipe_table(table: "Table") -> str:
    from memplan.render.blocks import text_of

    shown = [position for position, column in enumerate(table.columns) if not column.screen_only]
    titles = [table.columns[position].title for position in shown]
    ruler = ["---:" if table.columns[position].right else "---" for position in shown]
    rows = [[text_of(row[position]) for position in shown] for row in table.rows]
    lines = ([" ".join(escaped(cell).splitlines()) for cell in row] for row in [titles, ruler, *rows])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def escaped(text: str) -> str:
    """Without what Markdown would take for markup in a table or a heading."""
    return printable(text).translate(_MARKUP)


_MARKUP = str.maketrans({"\\": "\\\\", "|": "\\|", "*": "\\*", "<": "&lt;", "_": "\\_"})


FORMS = {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl"}
"""Forms of a sweep's rows by the names that they go by; JSON is one object a line."""
HINT = "name another file, or add --force to write it anew"


def first_line(form: str, columns: Sequence[str]) -> str:
    """What a file begins with: the names of the columns in CSV, nothing in JSON lines."""
    return _csv(columns) if form == "csv" else ""


def line_of(form: str, columns: Sequence[str], row: Mapping[str, Any]) -> str:
    """One row; JSON lines leave out what is empty."""
    if form == "csv":
        return _csv(["" if row.get(name) is None else flat(row[name]) for name in columns])
    there = {name: row[name] for name in columns if row.get(name) is not None}
    return printable_json(json.dumps(there, ensure_ascii=False, default=str)) + "\n"


def _csv(cells: Sequence[Any]) -> str:
    import csv
    import io

    buffer = io.StringIO()
    # One row is one line, whatever its cells hold: a file that was cut off is whole up to its last line end.
    csv.writer(buffer, lineterminator="\n").writerow(
        [" ".join(cell.splitlines()) if isinstance(cell, str) else cell for cell in cells]
    )
    return buffer.getvalue()


def ids_in(path: str, form: str, columns: Sequence[str]) -> tuple[set[str], int]:
    """Ids of the rows that are in a file, and where its last whole line ends: a torn one behind that is to be cut off.

    Raises UsageError for a file of another grid, or of something else."""
    ids: set[str] = set()
    end = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                text = line.decode("utf-8")
                if number == 1 and form == "csv":
                    if text != first_line(form, columns):
                        raise UsageError(f"{path} has other columns than these jobs", HINT)
                else:
                    ids.add(_id_of(text, form))
                end += len(line)
    except (ValueError, LookupError, TypeError):
        raise UsageError(f"{path} holds no rows of a sweep", HINT) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a file that can be read and written") from None
    return ids, end


def _id_of(text: str, form: str) -> str:
    found = text.split(",", 1)[0] if form == "csv" else json.loads(text)["id"]
    if len(found) != 16:
        raise ValueError(found)
    return str(found)
