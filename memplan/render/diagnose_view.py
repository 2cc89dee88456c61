"""A diagnosis for a screen: what happened in a line, what to change, then what the numbers are."""

from collections.abc import Iterator

from memplan.diagnose.causes import others
from memplan.diagnose.diagnosis import Diagnosis, differs
from memplan.render.blocks import Block, Cell, Heading, Prose, Table, columns_of, definitions
from memplan.render.verdict_view import remedies_table
from memplan.units import MiB, format_bytes

MOMENTS = {
    "load": "while loading weights", "start": "while the trainer or its engine starts",
    "forward": "in the forward pass",
    "loss": "in the loss", "backward": "in the backward pass", "reduce": "while reducing gradients",
    "optimizer": "in the optimizer step", "evaluate": "during evaluation", "save": "while saving a checkpoint",
    "resume": "while loading a checkpoint", "merge": "while merging an adapter",
    "rollout": "in the generation engine", "sync": "while sending weights to the engine",
    "unknown": "in a phase that the text does not name",
}  # fmt: skip
MOST = 5
"""Remedies that are shown."""
SOURCES = {"frames": "its frames", "log": "the log before it", "words": "the words around it", "size": "the size",
           "form": "the message itself"}  # fmt: skip


def diagnose_blocks(found: Diagnosis, width: int = 80) -> Iterator[Block]:
    """The answer first."""
    yield Heading(_headline(found), "bad")
    for text in found.causes:
        yield Prose(f"{text[:1].upper()}{text[1:]}.")
    yield from _changes(found, width)
    yield from _tensor(found)
    yield from _numbers(found)
    yield from _estimate(found)


def _headline(found: Diagnosis) -> str:
    message, place = found.message, found.place
    where = {"host": "Out of host memory", "engine": "The generation engine ran out of memory"}.get(
        message.place, "Out of GPU memory"
    )
    asked = f": {message.requested.text} more requested" if message.requested and message.place == "card" else ""
    moment = MOMENTS[place.phase] + (f" ({place.what})" if place.what else "")
    return f"{where} {moment}{asked}"


def _changes(found: Diagnosis, width: int) -> Iterator[Block]:
    if found.remedies:
        yield Heading("Change, so that the job fits")
        host = found.report.host.bytes_per_node if found.report else 0
        yield from remedies_table(found.remedies[:MOST], width, host)
        return
    yield Heading("Change, cheapest first")
    words = ((each, f" ({each.why})" if each.why else "") for each in found.advice)
    yield definitions([(each.title, f"{each.write}{why}") for each, why in words])


def _tensor(found: Diagnosis) -> Iterator[Block]:
    if not found.matches:
        return
    asked = found.message.requested
    yield Heading(f"What {asked.text if asked else 'it'} could be")
    rows: list[tuple[Cell, ...]] = [(match.name, match.shape, match.why) for match in found.matches[:6]]
    yield Table(columns_of("tensor ~ | size ~ | why ~"), tuple(rows))


def _numbers(found: Diagnosis) -> Iterator[Block]:
    message, elsewhere = found.message, others(found.message)
    held, whole = ("used", "of the node") if message.place == "host" else ("allocated (tensors)", "the card's total")
    sizes = (
        ("requested", message.requested), (held, message.allocated),
        ("reserved", message.reserved), ("reserved, unused", message.unallocated), ("free", message.free),
        (whole, message.capacity), ("in private pools", message.pools), ("allowed", message.allowed),
    )  # fmt: skip
    rows: list[tuple[Cell, Cell]] = [(name, size.text) for name, size in sizes if size is not None]
    if elsewhere is not None and elsewhere > MiB:
        rows.append(("of other processes", format_bytes(elsewhere)))
    if found.at_least is not None:
        rows.append(("so needed at least", f"{format_bytes(found.at_least)} of tensors at this moment"))
    if message.rank is not None:
        rows.append(("rank", str(message.rank)))
    if found.errors > 1:
        rows.append(("errors in the text", f"{found.errors}; the first is read"))
    if found.place.because:
        rows.append(("phase read from", SOURCES[found.place.because]))
    if rows:
        yield Heading("The message")
        yield definitions(rows)
    else:
        yield Prose("The text has no numbers: add what comes after 'Tried to allocate'.", "dim")


def _estimate(found: Diagnosis) -> Iterator[Block]:
    report = found.report
    if report is None:
        yield Prose(
            "With the job behind it (memplan diagnose LOG MODEL --method …) the tensor is named exactly.", "dim"
        )
        return
    gpu, verdict = report.per_gpu, report.verdict
    yield Heading("The job's estimate")
    fits = f"; {verdict.gpu}: {verdict.fits}" if verdict else ""
    yield Prose(
        f"{format_bytes(gpu.allocated_bytes)} allocated at {gpu.peak_instant}, "
        f"{format_bytes(gpu.device_bytes.expected)} on the device{fits}."
    )
    if found.instant:
        yield Prose(f"The error is at {found.instant}.")
    if found.solved:
        yield Prose(found.solved)
    if text := differs(found):
        yield Prose(text, "warn")
