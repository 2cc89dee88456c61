"""What the experts of public threads advised a job that died, and whether it is among memplan's first three changes.

``benchmarks/data/advice.json`` has the threads: the job in memplan's keys with what of it is assumed, the numbers of
the error, and the advice as kinds of change. With a job its remedies are asked (``memplan estimate``), or where the
estimate fits those of ``memplan diagnose`` with the error's numbers; without one ``diagnose`` reads the error alone.

    python benchmarks/threads.py [--format markdown] [--all]
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memplan.api import estimate
from memplan.diagnose.diagnosis import diagnose, diagnose_job
from memplan.errors import MemplanError
from memplan.spec.reading import read_job

Row = Mapping[str, Any]
DATA = Path(__file__).parent / "data" / "advice.json"
SHOWN = 3
KINDS = {
    "batch_size": "batch", "token_budget": "batch", "gradient_accumulation_steps": "", "sequence_length": "length",
    "completion_length": "length", "gradient_checkpointing": "checkpointing", "attention": "attention",
    "kernels": "loss", "loss_head": "loss", "sharding": "sharding", "zero_stage": "sharding", "fsdp": "offload",
    "num_gpus": "cards", "offload": "offload", "optimizer": "optimizer", "precision": "precision", "dtype": "precision",
    "lora": "lora", "quantization": "quantisation", "reference": "reference", "pair_pass": "pairs",
    "allocator": "allocator", "tensor_parallel": "parallel", "context_parallel": "parallel",
}  # fmt: skip
"""The kind of a change, by the job's key."""
WORDS = {
    "end the other": "others", "expandable": "allocator", "micro-batch": "batch", "recompute": "checkpointing",
    "efficient attention": "attention", "chunked loss": "loss", "smaller states": "optimizer", "states on the host":
    "offload", "over more ranks": "sharding", "over ranks": "sharding", "in shards": "saving", "first rank": "saving",
    "adapter alone": "saving", "merge": "saving", "checkpoint": "resuming", "in 16 bit": "precision", "quantise":
    "quantisation", "adapters": "lora", "evaluation": "evaluation", "predictions": "evaluation", "keep logits":
    "evaluation", "back on the card": "host", "longest": "length", "limit": "limit", "shorter": "length",
    "fewer pixels": "pixels", "let go": "resuming",
}  # fmt: skip
"""The kind of an advice of ``diagnose``, by its words."""


def text_of(row: Row) -> str:
    """The error as torch prints it, of the numbers that a thread gives, below its frames."""
    error, moment = row.get("error", {}), row.get("moment", "")
    frames = "".join(f'  File "train.py", line 1, in {frame}\n' for frame in row.get("frames", ()))
    frames += f"{moment}\n" if moment else ""
    if not error:
        return frames if moment else f"{frames}torch.cuda.OutOfMemoryError: CUDA out of memory"
    head = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {error['asked']}"
    if "unallocated" not in error:
        words = {"total": "total capacity", "allocated": "already allocated", "free": "free",
                 "reserved": "reserved in total by PyTorch"}  # fmt: skip
        parts = "; ".join(f"{error[key]} {word}" for key, word in words.items() if key in error)
        return f"{frames}{head} (GPU 0; {parts})"
    beside = "".join(f" Process {i} has {size} memory in use." for i, size in enumerate(row.get("others", ()), 7))
    held = f" Process 5 has {error['process']} memory in use." if "process" in error else ""
    return (
        f"{frames}{head}. GPU 0 has a total capacity of {error['total']} of which {error['free']} is free.{held}"
        f"{beside} Of the allocated memory {error['allocated']} is allocated by PyTorch, and {error['unallocated']} is "
        "reserved by PyTorch but unallocated."
    )


def kinds_of(changes: Mapping[str, Any]) -> list[str]:
    """The kinds of a remedy's changes."""
    return [KINDS.get(key, key) for key in changes if KINDS.get(key, key)]


def told(row: Row) -> list[list[str]]:
    """The kinds of each change that memplan tells, the first one first. Raises MemplanError for a job it refuses."""
    if "job" not in row:
        found = diagnose(text_of(row))
        said = [*found.causes, *(advice.title for advice in found.advice)]
        kinds = [[kind for words, kind in WORDS.items() if words in text] for text in said]
        return [each for each in kinds if each]
    report = estimate(row["job"])
    remedies = list(report.remedies)
    if report.verdict is not None and report.verdict.fits == "yes":
        given = read_job(row["job"])
        diagnosis = diagnose_job(text_of(row), given)
        remedies = list(diagnosis.remedies)
    return [kinds_of(remedy.changes) for remedy in remedies]


def measured(rows: Iterable[Row]) -> Iterator[tuple[str, str, str, str, str]]:
    """A line for each thread: with its job or its text, what was advised, what memplan tells, and whether."""
    for row in rows:
        what = "job" if "job" in row else "text"
        if row.get("why") and "error" not in row:
            yield row["id"], "none", ", ".join(row["advice"]), row["why"], ""
            continue
        try:
            found = told(row)
        except MemplanError as error:
            yield row["id"], "refused", ", ".join(row["advice"]), error.message, ""
            continue
        hit = any(kind in row["advice"] for each in found[:SHOWN] for kind in each)
        said = "; ".join("+".join(each) for each in found[:SHOWN])
        yield row["id"], what, ", ".join(row["advice"]), said, "yes" if hit else "no"


def shares(lines: Iterable[tuple[str, str, str, str, str]]) -> dict[str, tuple[int, int]]:
    """Of threads with a job, and of texts alone: (advice among the first three, threads)."""
    lines = list(lines)
    found = {}
    for what in ("job", "text"):
        hits = [line[4] == "yes" for line in lines if line[1] == what]
        found[what] = sum(hits), len(hits)
    return found


def main() -> None:
    """Print the table and the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=("table", "markdown"), default="table")
    given = parser.parse_args()
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    lines = list(measured(rows))
    head = ("thread", "by", "advised", "memplan's first three", "there")
    for line in (head, *([("---",) * 5] if given.format == "markdown" else []), *lines):
        print(f"| {' | '.join(line)} |" if given.format == "markdown" else "  ".join(line))
    print()
    for what, (hits, total) in shares(lines).items():
        print(f"{what}: {hits} of {total}, {hits / max(1, total):.0%}")
    print(f"not expressed: {sum(line[1] in ('none', 'refused') for line in lines)} of {len(lines)}")


if __name__ == "__main__":
    main()
