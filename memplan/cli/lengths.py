"""memplan lengths: the lengths of a data set in tokens, for a job's --lengths."""

import json
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli.edge import note, warn
from memplan.cli.output import Output, Result, check_place
from memplan.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from memplan.lengths.dataset import Length
    from memplan.render.blocks import Block

HELP = """The lengths of a data set's rows in tokens: percentiles, a histogram, and the file that --lengths takes.

Nothing leaves this machine. Columns: messages, conversations, prompt and completion, prompt, chosen and rejected, text.

Example: memplan lengths train.jsonl --tokenizer models/llama -o lengths.txt
"""


def lengths(values: Mapping[str, Any]) -> int:
    """Read, count, write the file, and show what is in it."""
    path, to = values.get("dataset"), values.get("lengths_to")
    if path is None:
        raise UsageError("lengths of which data set?", "memplan lengths train.jsonl --tokenizer DIR -o lengths.txt")
    if to is not None:
        check_place(to, bool(values.get("force")))
    counted = array("l")
    _count(path, values, counted, to)
    ordered = sorted(counted)
    Output("json" if values.get("json") else "table").write(Result(lambda: _data(path, ordered), _view(path, ordered)))
    if to is not None:
        note(f"written: {to}; now: memplan estimate MODEL --lengths {to}")
    return EXIT_DONE


def _count(path: str, values: Mapping[str, Any], counted: "array[int]", to: str | None) -> None:
    """Count every row, into the file where there is one."""
    from memplan.files import write_whole
    from memplan.lengths.dataset import columns_of, lengths_of
    from memplan.lengths.records import rows
    from memplan.lengths.tokens import Tokens
    from memplan.render.progress import Bar

    columns = columns_of(values.get("columns"))
    tokenizer = values.get("tokenizer")
    tokens = Tokens(tokenizer, not values.get("no_template")) if tokenizer else None
    with Bar() as bar:
        found = lengths_of(rows(path, lambda done, whole: bar("counting tokens", done, whole)), tokens, columns)
        lines = _lines(found, counted, path)
        try:
            deque(lines, 0) if to is None else write_whole(to, lines, bool(values.get("force")))
        except OSError as error:
            raise UsageError(f"cannot write {to}: {error.strerror}", "name a file that can be written") from None
    if tokens is not None and tokens.chatted and tokens.chat.words:
        warn(f"conversations: {tokens.chat.words}")


def _lines(found: "Iterator[Length]", counted: "array[int]", path: str) -> Iterator[str]:
    """Each length as a line of the file; the longer sequence of a pair is what is shown of it."""
    for length in found:
        counted.append(length if isinstance(length, int) else _longer(length))
        yield json.dumps(length) + "\n"
    if not counted:
        raise UsageError(f"{path} has no rows", "name a data set")


def _longer(parts: dict[str, int]) -> int:
    """Tokens of an example's longer sequence."""
    return parts.get("prompt", 0) + max(parts[name] for name in parts if name != "prompt")


def _data(path: str, ordered: list[int]) -> dict[str, Any]:
    from memplan.render.lengths_view import percentiles

    return {"dataset": path, "rows": len(ordered), "tokens": sum(ordered), **percentiles(ordered)}


def _view(path: str, ordered: list[int]) -> Any:
    def view(width: int) -> "list[Block]":
        from memplan.render.blocks import Heading
        from memplan.render.lengths_view import histogram_blocks

        title = f"{path}: {len(ordered):,} rows, {sum(ordered):,} tokens"
        return [Heading(title, "strong"), *histogram_blocks(ordered, width)]

    return view
