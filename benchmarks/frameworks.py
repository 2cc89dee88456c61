"""Reads the training configs of a checked-out repository: how many were read, and which keys were not understood.

python benchmarks/frameworks.py FOLDER … [--commands]: YAML, JSON, TOML and shell files below each folder that a
framework claims by their content. --commands: also the training commands in Markdown and in docstrings of scripts.
--model: what is tried for files that read only once their model is named. Nothing is estimated and nothing is fetched.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memplan.errors import MemplanError
from memplan.frameworks.base import Draft, Framework
from memplan.frameworks.files.documents import FORMS, Document, document_of, open_document
from memplan.frameworks.reading import draft_of, job_input
from memplan.frameworks.registry import recognise

LARGEST = 256 * 1024
COMMAND = re.compile(r"^[ \t]*(?:\$ )?((?:[A-Z_]+=\S+ )*(?:trl|accelerate launch|torchrun|deepspeed|python3?) "
                     r"(?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)  # fmt: skip


def documents(folder: Path, commands: bool) -> Iterator[Document | str]:
    """Every file that is in a known form, or what was wrong with it."""
    for path in sorted(folder.rglob("*")):
        if any(part.startswith(".git") for part in path.parts) or not path.is_file() or path.stat().st_size > LARGEST:
            continue
        if path.suffix.lower() in FORMS and path.suffix != ".txt":
            try:
                yield open_document(str(path))
            except MemplanError as error:
                yield f"{path}: {error.message}"
        elif commands and path.suffix in (".md", ".mdx", ".py"):
            text = path.read_text(encoding="utf-8", errors="replace")
            for match in COMMAND.finditer(text):
                command = match.group(1)
                if "--" in command:
                    yield document_of(command, f"{path}:{text[: match.start()].count(chr(10)) + 1}", "shell")


def main() -> None:
    """Read, count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--method", help="for files of which nothing says it")
    parser.add_argument("--model", help="a second try, with this model, for files that name none or a variable")
    parser.add_argument("--num-gpus", type=int, help="the same, of GPUs")
    chosen = parser.parse_args()
    for folder in chosen.folders:
        os.chdir(folder)
        again = {"model": chosen.model, "num_gpus": chosen.num_gpus}
        report(
            Path("."),
            chosen.commands,
            {"method": chosen.method} if chosen.method else {},
            {key: value for key, value in again.items() if value is not None},
        )


def read(document: Document, row: Framework, options: dict[str, Any]) -> Draft:
    """A document as a job. Raises MemplanError."""
    draft = draft_of([(document, row)], options)
    if not row.launches:
        job_input(draft, options)
    return draft


def report(folder: Path, commands: bool, options: dict[str, Any], again: dict[str, Any]) -> None:
    """The table of one repository."""
    found, failed, helped, unread, slowest = Counter[str](), Counter[str](), Counter[str](), Counter[str](), 0.0
    for document in documents(folder, commands):
        if isinstance(document, str):
            print(f"not opened: {document}")
            continue
        name, row, begun = "?", None, time.perf_counter()
        try:
            row = recognise(document)
            if row is None or row.name == "memplan":
                continue
            name = row.name
            draft = read(document, row, options)
        except MemplanError as error:
            try:
                if row is None or not again:
                    raise
                draft = read(document, row, options | again)
                helped[name] += 1
            except MemplanError:
                failed[name] += 1
                print(f"{name}: {error.message}")
                continue
        slowest = max(slowest, time.perf_counter() - begun)
        found[name] += 1
        unread.update(f"{name}: {item.key} ({item.why})" for item in draft.unread)
    for name in sorted(found | failed):
        more = f", {helped[name]} of them with the model or the GPUs named" if helped[name] else ""
        print(f"{name}: read {found[name]} of {found[name] + failed[name]}{more}")
    print(f"slowest {slowest * 1000:.1f} ms; keys not understood, by files:")
    for key, count in unread.most_common():
        print(f"  {count} {key}")


if __name__ == "__main__":
    main()
