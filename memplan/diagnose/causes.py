"""Why a card or a node was full, from the numbers of a message, and what to change that needs no job to be known."""

from collections.abc import Iterator
from typing import NamedTuple

from memplan.diagnose.messages import Message
from memplan.diagnose.phases import Place
from memplan.tables.texts import parts_of
from memplan.units import GiB, MiB, format_bytes

CONTEXT, OUTSIDE = GiB, 5 * GiB // 2
"""What a process has outside PyTorch: context and libraries; the most, with the communicators of many ranks."""


class Advice(NamedTuple):
    """One change, in words, with the line to write."""

    title: str
    write: str = ""
    why: str = ""

    def to_dict(self) -> dict[str, str]:
        """The JSON."""
        return self._asdict()


def is_fragmented(message: Message) -> bool:
    """What was reserved and unused would have held what was asked for."""
    unused, asked = message.held_unallocated, message.requested
    return unused is not None and asked is not None and unused >= asked.low > 0


def others(message: Message) -> int | None:
    """Bytes of the card that other processes hold; None where the message does not tell."""
    held = (message.allocated.bytes + (message.held_unallocated or 0)) if message.allocated else None
    own = [each.size.bytes for each in message.processes if each.this]
    rest = [each.size.bytes for each in message.processes if not each.this]
    if own:
        left = _left(message, own[0])
        return max(sum(rest), left) if left is not None else sum(rest)
    if held is None:
        return None
    if rest:
        mine = min(rest, key=lambda size: abs(size - held - CONTEXT // 2))
        return sum(rest) - mine
    left = _left(message, held)
    return left if left is None or left > OUTSIDE else 0


def _left(message: Message, own: int) -> int | None:
    """What is neither free nor this process's; what a message leaves to its context is not another's."""
    if message.capacity is None or message.free is None:
        return None
    return max(0, message.capacity.bytes - message.free.bytes - own)


def causes(message: Message, place: Place) -> Iterator[str]:
    """In the order in which they matter."""
    asked, free, elsewhere = message.requested, message.free, others(message)
    if message.place == "host":
        yield message.said or "the node's own memory was full, not a card's"
        return
    if message.said and not message.numbers:
        yield message.said
    beyond = asked is not None and message.capacity is not None and asked.low > message.capacity.high
    if beyond and asked is not None:
        yield (
            f"{asked.text} at once is more than the whole card: a length, a batch or a dtype is not what was meant "
            "(lengths padded to the model's longest, attention that makes its scores whole)"
        )
    elif is_fragmented(message):
        unused = format_bytes(message.held_unallocated or 0)
        yield f"fragmentation: {unused} were reserved but unused, in pieces too small for {_text(message)}"
    elif asked is not None and free is not None and free.low > asked.high + 64 * MiB and message.place == "card":
        yield (
            f"{free.text} were free: the limit is not the card's (a container's, WSL's or the host's, "
            "or a fraction set for the process)"
        )
    elif message.place == "card" and message.allocated is not None:
        whose = "this process's tensors" if (elsewhere or 0) > message.allocated.bytes else "the card was full: tensors"
        yield f"{whose} held {message.allocated.text} when {_text(message)} more were requested"
    if message.allocated is not None and message.capacity and message.allocated.low > message.capacity.high:
        yield (
            "tensors hold more than the card has: an engine in the process is asleep, whose pool PyTorch still counts"
            if message.pools
            else "tensors hold more than the card has: the driver lends it the computer's memory (Windows), which is "
            "slow"
        )
    if _is_copy(message):
        yield "what was requested is as large as all that was held: a copy of the whole model, in fp32 or flattened"
    if message.place == "engine":
        yield message.said
    if elsewhere and elsewhere > 256 * MiB:
        outside = "" if message.processes else ", or this one's memory outside PyTorch,"
        yield f"other processes{outside} hold {format_bytes(elsewhere)} of the card"
    if place.phase == "optimizer":
        yield "the optimizer makes its states at the first step: before it, the job looked smaller than it is"


def _is_copy(message: Message) -> bool:
    """Flattened for ZeRO, or cast: one request of all weights, beside them."""
    asked, held = message.requested, message.allocated
    return asked is not None and held is not None and asked.bytes > GiB and 0.98 < asked.bytes / held.bytes <= 1


def _text(message: Message) -> str:
    return message.requested.text if message.requested else "what was asked for"


ADVICE = {
    place: tuple(Advice(*line.split(" | ")) for line in text.strip("\n").split("\n"))
    for place, text in parts_of(__file__).items()
}
OLD = ("torch-1", "torch-1.0")
"""Forms of PyTorch before 2.1."""


def _expandable(message: Message) -> Iterator[Advice]:
    """Pieces of the cache put to use, where the backend can."""
    if message.variable:
        old = "; from PyTorch 2.1 on, before it max_split_size_mb:128" if message.form in OLD else ""
        write = f"export {message.variable}=expandable_segments:True"
        yield Advice("expandable segments", write, f"pieces of the cache become usable; it costs nothing{old}")


def advice(message: Message, place: Place) -> Iterator[Advice]:
    """What to change first, the job unknown."""
    if message.place == "host":
        yield from ADVICE["host"]
        return
    elsewhere = others(message)
    if elsewhere and elsewhere > 256 * MiB and message.place != "engine":
        yield Advice(
            "end the other processes, or take another card",
            "nvidia-smi; CUDA_VISIBLE_DEVICES",
            "they are not the job's",
        )
    if is_fragmented(message):
        yield from _expandable(message)
    phase = "rollout" if message.place == "engine" else place.phase
    phase = "start" if phase == "unknown" and _is_copy(message) else phase
    of_place = ADVICE.get(f"instead: {place.what}") or ADVICE.get(phase, ADVICE["forward"])
    yield from ADVICE.get(f"at: {place.what}", ())
    if place.resumed:
        yield ADVICE["resume"][1]
    yield from sorted(of_place, key=lambda each: "attention" in place.what and "attention" not in each.title)
    if message.place == "card" and not is_fragmented(message):
        yield from _expandable(message)
