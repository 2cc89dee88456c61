"""The list of blocks of a traced step, and the views of it: peaks of phases, categories at a peak, the timeline.

Categories are given at the end, when each block's whole life is known: what forward made and backward found alive is a
saved activation, what went before is a temporary."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

PHASES = ("forward", "backward", "step")
FOREVER = 1 << 62


class Block:
    """One storage."""

    __slots__ = ("born", "bytes", "dies", "kind", "last", "module", "op")

    def __init__(self, size: int, op: str, module: str, last: int, kind: str = "") -> None:
        self.bytes, self.op, self.module, self.last, self.kind = size, op, module, last, kind
        self.born, self.dies = 0, FOREVER


class TracedLedger:
    """Births and deaths in order, and where phases begin."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Block]] = []
        self.starts: list[tuple[int, str]] = [(0, "setup")]

    def born(self, block: Block) -> None:
        """A storage is allocated."""
        block.born = len(self.events)
        self.events.append((block.bytes, block))

    def died(self, block: Block) -> None:
        """A storage is freed."""
        block.dies = len(self.events)
        self.events.append((-block.bytes, block))

    def begin(self, phase: str) -> None:
        """From here on, events belong to this phase."""
        self.starts.append((len(self.events), phase))

    def levels(self) -> list[int]:
        """Bytes allocated after each event."""
        return list(accumulate(size for size, _ in self.events))

    def segments(self) -> Iterator[tuple[str, int, int]]:
        """(phase, first event, one past the last)."""
        ends = [start for start, _ in self.starts[1:]] + [len(self.events)]
        for (start, phase), end in zip(self.starts, ends, strict=True):
            yield phase, start, end

    def peak(self, phase: str, levels: list[int]) -> tuple[int, int]:
        """(bytes, event) at which a phase of this name is largest; what it begins with counts too."""
        best = (0, 0)
        for name, start, end in self.segments():
            if name == phase:
                first = max(start - 1, 0)
                at = max(range(first, max(end, first + 1)), key=levels.__getitem__)
                best = max(best, (levels[at], at), key=lambda pair: pair[0])
        return best

    def phase_at(self, event: int) -> str:
        """The phase that an event belongs to."""
        return self.starts[bisect_right(self.starts, event, key=lambda pair: pair[0]) - 1][1]

    def alive_at(self, event: int) -> Iterator[Block]:
        """Blocks that are allocated right after an event."""
        for size, block in self.events[: event + 1]:
            if size > 0 and block.dies > event:
                yield block

    def categories_at(self, event: int, vocabulary: int) -> dict[str, int]:
        """Bytes by category right after an event."""
        found: dict[str, int] = {}
        for block in self.alive_at(event):
            kind = self._category(block, event, vocabulary)
            found[kind] = found.get(kind, 0) + block.bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _category(self, block: Block, event: int, vocabulary: int) -> str:
        if block.kind and not (block.kind == "gradients" and self.phase_at(event) == "forward" and block.born > event):
            return block.kind
        if block.last == vocabulary:
            return "logits"
        born_in = self.phase_at(block.born)
        if born_in in ("step", "step-1"):
            return "optimizer_temporaries"
        if born_in in ("forward", "forward-1") and self._crosses(block):
            return "activations"
        return "temporaries"

    def _crosses(self, block: Block) -> bool:
        """Whether a block lives on when the phase in which it was born is over."""
        index = bisect_right(self.starts, block.born, key=lambda pair: pair[0])
        return index < len(self.starts) and block.dies > self.starts[index][0]

    def timeline(
        self, levels: list[int], first: int, points: int, vocabulary: int
    ) -> list[tuple[int, str, int, dict[str, int]]]:
        """(event, phase, bytes, bytes by category) from an event on, thinned to so many; slices keep their largest."""
        width = max(1, -(-(len(levels) - first) // points))
        slices = (range(start, min(start + width, len(levels))) for start in range(first, len(levels), width))
        picked = [max(each, key=levels.__getitem__) for each in slices]
        return [
            (at - first, self.phase_at(at), levels[at], sums)
            for at, sums in zip(picked, self._sums_at(picked, vocabulary), strict=True)
        ]

    def _sums_at(self, events: list[int], vocabulary: int) -> Iterator[dict[str, int]]:
        """Bytes by category right after each of the events, which ascend."""
        kinds: dict[int, str] = {}
        sums: dict[str, int] = {}
        wanted = iter([*events, -1])
        following = next(wanted)
        for event, (size, block) in enumerate(self.events):
            kind = kinds.get(id(block))
            if kind is None:
                kind = kinds[id(block)] = self._category(block, event, vocabulary)
            sums[kind] = sums.get(kind, 0) + size
            if event == following:
                yield {name: held for name, held in sums.items() if held}
                following = next(wanted)
