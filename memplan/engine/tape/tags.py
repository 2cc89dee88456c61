"""Extents and tags: what a tensor of the tape is called, and what of each is alive."""

from typing import NamedTuple


class Dim(NamedTuple):
    """An extent: ``elements`` in all, and how a formula writes it, such as T·h."""

    symbol: str
    elements: int


class Tag(NamedTuple):
    """What a storage is: the rows of the ledger are sums over equal tags."""

    category: str
    label: str
    symbol: str
    itemsize: int
    elements: int


class Log(list[tuple[int, Tag]]):
    """What a tape allocates and frees, in its order: bytes, negative where they are freed, and their tag."""

    __slots__ = ("_alive", "_at")

    def __init__(self) -> None:
        super().__init__()
        self._at, self._alive = 0, dict[Tag, int]()

    def live_at(self, index: int) -> dict[Tag, int]:
        """Bytes alive by tag after the first ``index`` events; asked for in their order, each is added once."""
        if index < self._at:
            self._at, self._alive = 0, {}
        alive = self._alive
        for delta, tag in self[self._at : index]:
            alive[tag] = alive.get(tag, 0) + delta
        self._at = index
        return {tag: size for tag, size in alive.items() if size}
