"""A snapshot of torch's CUDA allocator: what it says, and the recording it makes.

``torch.cuda.memory._dump_snapshot`` (torch 2.1 to 2.13) writes the segments as they were at the end, and for each
device the last events before that. So the recording's start is found by undoing the events from the end.
Of its pickle nothing is imported, called or built."""

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from memplan.engine.allocator.recorded import ALLOC, FREE, OOM, RELEASE, SEGMENT, Action, Recording, Segment, Used
from memplan.engine.allocator.settings import SMALL_SEGMENT_BYTES, Settings
from memplan.errors import UsageError, printable
from memplan.units import MiB, format_bytes

LARGEST = 256 * MiB
"""Of a file; a snapshot of 100,000 events with Python's stacks takes some 50 MiB."""
HINT = "name what torch.cuda.memory._dump_snapshot wrote"


class ForeignObject(pickle.UnpicklingError):
    """A pickle asks for more than plain containers."""


class _PlainUnpickler(pickle.Unpickler):
    """dict, list, tuple, str, bytes, numbers, None: the unpickler's own. Whatever has a name is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """No class, function or module is looked up."""
        raise ForeignObject(f"it asks for {printable(f'{module}.{name}'[:60])}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Nor anything outside the file."""
        raise ForeignObject("it refers to objects outside the file")


def read_plain(path: str) -> Any:
    """What a pickle holds. Raises UsageError for a file that is too large, no pickle, or more than plain containers."""
    name = printable(path)
    try:
        file = Path(path)
        size = file.stat().st_size
        if not file.is_file():
            raise UsageError(f"{name}: no file", HINT)
        if size > LARGEST:
            most = format_bytes(LARGEST)
            raise UsageError(
                f"{name}: {format_bytes(size)}, and {most} at most are read", "record with stacks='python'"
            )
        with open(file, "rb") as opened:
            data = opened.read(LARGEST)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no such path"
        raise UsageError(f"{name}: cannot be read: {why}", HINT) from None
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except ForeignObject as error:
        raise UsageError(f"{name}: no plain data: {error}; nothing of it was run", HINT) from None
    except Exception as error:  # a broken pickle raises whatever its last opcode ran into
        raise UsageError(f"{name}: no pickle: {printable(str(error))[:80] or type(error).__name__}", HINT) from None


KINDS = {"alloc": ALLOC, "free_completed": FREE, "segment_alloc": SEGMENT, "segment_map": SEGMENT,
         "segment_free": RELEASE, "segment_unmap": RELEASE, "oom": OOM}  # fmt: skip
"""Actions that change what is held; the others (free_requested, snapshot, user_defined) do not."""
IN_USE = ("active_allocated", "active_pending_free", "active_awaiting_free")
PAGE = SMALL_SEGMENT_BYTES
LARGEST_NUMBER = 1 << 62
MOST_PAGES = 1 << 22
"""8 TiB."""


class Event(NamedTuple):
    """One entry of a device's trace."""

    kind: str
    address: int
    size: int
    stream: int
    free: int
    place: str
    """'modeling_llama.py:123 forward': the deepest frame outside torch."""


class Failure(NamedTuple):
    """A request that the card had no room for."""

    requested_bytes: int
    free_bytes: int
    """Of the card, as CUDA said."""
    place: str


class Snapshot(NamedTuple):
    """One device's."""

    device: int
    recording: Recording
    places: Mapping[int, str]
    """Where a block was asked for, by its number; those that were there at the start have none."""
    whole: bool
    """The recording begins with an empty allocator."""
    foreign: int
    """Frees of blocks that nothing says anything of."""
    failure: Failure | None = None
    """The last request that found no room."""


def read_snapshot(path: str) -> Snapshot:
    """Of the device that has the most events. Raises UsageError that names the file."""
    data = read_plain(path)
    name = printable(path)
    if not isinstance(data, dict) or not isinstance(data.get("device_traces"), list):
        raise UsageError(f"{name}: no memory snapshot: it has no device_traces", HINT)
    traces = data["device_traces"]
    device = max(range(len(traces)), key=lambda each: len(_list(traces[each])), default=0)
    if not 0 <= device < len(traces) or not _list(traces[device]):
        hint = "call torch.cuda.memory._record_memory_history() before the steps"
        raise UsageError(f"{name}: no events of device {device}", hint)
    try:
        return _snapshot(data, device)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{name}: no memory snapshot: {printable(str(error))[:80]}", HINT) from None


def _snapshot(data: dict[str, Any], device: int) -> Snapshot:
    events = list(_events(data["device_traces"][device]))
    segments = [each for each in _list(data.get("segments")) if each.get("device", 0) == device]
    settings = _settings(data.get("allocator_settings"), segments, events)
    start = _Start(segments, settings.expandable_segments)
    for event in reversed(events):
        start.undo(event)
    found = start.segments()
    numbers = {address: number for number, address in enumerate(sorted(start.blocks))}
    actions, places, foreign = _actions(events, dict(numbers))
    failures = [Failure(event.size, event.free, event.place) for event in events if event.kind == OOM]
    last = failures[-1] if failures else None
    return Snapshot(device, Recording(found, actions, settings), places, not found, foreign, last)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError("no memory snapshot: not a list of events or segments", HINT)
    return value


def _whole(value: Any) -> int:
    """A number of bytes, an address."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST_NUMBER:
        raise ValueError(f"{str(value)[:40]!r} is no number of bytes")
    return value


def _events(entries: list[Any]) -> Iterator[Event]:
    for entry in entries:
        kind = KINDS.get(entry["action"])
        if kind is None:
            continue
        place = _place(entry.get("frames")) if kind in (ALLOC, OOM) else ""
        free = _whole(entry.get("device_free", 0))
        address = 0 if kind == OOM else _whole(entry["addr"])
        yield Event(kind, address, _whole(entry["size"]), _whole(entry.get("stream", 0)), free, place)


def _place(frames: Any) -> str:
    """The deepest frame of Python that is not torch's own; where all are, the deepest."""
    listed = frames[:200] if isinstance(frames, list) else []
    files = [(str(frame.get("filename", "")), frame) for frame in listed]
    python = [(file, frame) for file, frame in files if file.endswith(".py")]
    file, frame = next((each for each in python if "/torch/" not in each[0]), python[0] if python else ("", {}))
    return printable(f"{file.rsplit('/', 1)[-1]}:{frame.get('line', 0)} {frame.get('name', '')}")[:80] if file else ""


def _settings(said: Any, segments: list[Any], events: list[Event]) -> Settings:
    """Of ``allocator_settings``; where the file is older, expandable segments are told by their segments."""
    said = said if isinstance(said, dict) else {}
    expandable = bool(said.get("expandable_segments")) or any(each.get("is_expandable") for each in segments)
    split = said.get("max_split_size", -1)
    limit = split if isinstance(split, int) and 20 * MiB <= split < 1 << 50 else None
    return Settings(expandable_segments=expandable, max_split_size=limit)


class _Start:
    """The allocator's state, from that at the end back to that before the first event."""

    def __init__(self, segments: list[Any], growing: bool) -> None:
        self.growing = growing
        """Segments grow and shrink by pages; else they come and go whole."""
        self.pieces: dict[int, tuple[int, int, bool]] = {}
        """Size, stream and whether it is of small blocks, by address."""
        self.blocks: dict[int, tuple[int, int]] = {}
        """Requested and whole size (0: not known), by address."""
        for segment in segments:
            address, size = _whole(segment["address"]), _whole(segment["total_size"])
            self._add(address, size, _whole(segment.get("stream", 0)), segment.get("segment_type") == "small")
            for block in _list(segment["blocks"]):
                at = _whole(block.get("address", address))
                if block["state"] in IN_USE:
                    self.blocks[at] = _whole(block.get("requested_size", block["size"])), _whole(block["size"])
                address = at + _whole(block["size"])

    def _add(self, address: int, size: int, stream: int, small: bool) -> None:
        if size // PAGE + len(self.pieces) > MOST_PAGES:
            raise ValueError("more than 8 TiB of segments")
        for at in self._pieces_of(address, size):
            self.pieces[at] = PAGE if self.growing else size, stream, small

    def _pieces_of(self, address: int, size: int) -> Iterable[int]:
        return range(address, address + size, PAGE) if self.growing else (address,)

    def undo(self, event: Event) -> None:
        """As it was before the event."""
        if event.kind == ALLOC:
            self.blocks.pop(event.address, None)
        elif event.kind == FREE:
            self.blocks[event.address] = event.size, 0
        elif event.kind == SEGMENT and event.size // PAGE <= MOST_PAGES:
            for at in self._pieces_of(event.address, event.size):
                self.pieces.pop(at, None)
        elif event.kind == RELEASE:
            self._add(event.address, event.size, event.stream, event.size == PAGE)

    def segments(self) -> list[Segment]:
        """With the blocks in them."""
        found, blocks = [], sorted(self.blocks)
        position = 0
        for address, end, stream, small in self._runs():
            used = []
            while position < len(blocks) and blocks[position] < end:
                at = blocks[position]
                if at >= address:
                    used.append(Used(at - address, *self.blocks[at], position))
                position += 1
            found.append(Segment(end - address, small, tuple(used), stream))
        return found

    def _runs(self) -> Iterator[tuple[int, int, int, bool]]:
        """Address, end, stream and kind of each segment; pages that touch and are of one kind are one."""
        last: tuple[int, int, int, bool] | None = None
        for address, (size, stream, small) in sorted(self.pieces.items()):
            if last and self.growing and last[1:] == (address, stream, small):
                last = (last[0], address + size, stream, small)
                continue
            if last:
                yield last
            last = (address, address + size, stream, small)
        if last:
            yield last


def _actions(events: list[Event], alive: dict[int, int]) -> tuple[list[Action], dict[int, str], int]:
    """By numbers in place of addresses."""
    actions, places, foreign, number = [], dict[int, str](), 0, len(alive)
    for event in events:
        if event.kind == ALLOC:
            alive[event.address] = number
            places[number] = event.place
            actions.append(Action(ALLOC, event.size, number, event.stream))
            number += 1
        elif event.kind == FREE and event.address not in alive:
            foreign += 1
        elif event.kind == FREE:
            actions.append(Action(FREE, event.size, alive.pop(event.address), event.stream))
        elif event.kind == OOM:
            actions.append(Action(OOM, event.free, event.size, event.stream))
        else:
            actions.append(Action(event.kind, event.size, 0, event.stream))
    return actions, places, foreign
