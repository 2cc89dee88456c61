"""Rows made of several sequences, as trainers make them: lengths in, lengths out.

Each function names the code that it does as; what they agree in is held by tests: no row exceeds its budget, and every
token that is kept is placed once."""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from memplan.units import ceil_div

Rows: TypeAlias = list[list[int]]
"""The lengths of the sequences in each row."""
MAP_BATCH = 1000
"""Examples that are packed together where ``Dataset.map(batched=True)`` says nothing (datasets 2 to 4)."""
MULTIPACK_GROUP, MULTIPACK_ROW = 100_000, 200
"""Axolotl's ``sample_packing_group_size`` and ``sample_packing_bin_size`` (utils/schemas/config.py)."""


def best_fit(lengths: Sequence[int], budget: int) -> Rows:
    """The longest first, each into the fullest row that has room; what is too long is cut.

    trl 0.18 to 1.16, data_utils.py: ``_pack_bfd`` that truncates (``packing_strategy: bfd``)."""
    rows: Rows = []
    rooms: list[tuple[int, int]] = []
    for length in sorted((min(each, budget) for each in lengths), reverse=True):
        at = bisect_left(rooms, (length, -1))
        if at == len(rooms):
            rows.append([])
            room, row = budget, len(rows) - 1
        else:
            room, row = rooms.pop(at)
        rows[row].append(length)
        if room > length:
            insort(rooms, (room - length, row))
    return rows


def split_best_fit(lengths: Sequence[int], budget: int) -> Rows:
    """The same, with what is too long split into sequences (``packing_strategy: bfd_split``)."""
    return best_fit(list(chain.from_iterable(_pieces(each, budget) for each in lengths)), budget)


MOST_PIECES = 50
"""Rows that one sequence fills in a pool of drawn ones: more of them are as full."""


def shortened(length: int, budget: int) -> int:
    """A sequence of the same rest that fills no more than so many rows."""
    return length if length <= MOST_PIECES * budget else MOST_PIECES * budget + length % budget


def _pieces(length: int, budget: int) -> Iterator[int]:
    whole, rest = divmod(length, budget)
    yield from [budget] * whole
    if rest:
        yield rest


def wrapped(lengths: Sequence[int], budget: int) -> Rows:
    """One stream of tokens, cut every ``budget`` (trl, data_utils.py: ``_pack_wrapped``)."""
    return [[piece] for piece in _pieces(sum(lengths), budget)]


def multipack(lengths: Sequence[int], budget: int) -> Rows:
    """In the order in which they come, each into the first row that has room; what is too long is left out before.

    axolotl (067b021c8), utils/samplers/multipack.py: ``pack_group``; utils/data/utils.py drops long sequences."""
    rows: Rows = []
    tree = _Rooms(budget)
    for length in lengths:
        if length > budget:
            continue
        row = tree.first(length)
        if row == len(rows):
            rows.append([])
        rows[row].append(length)
        tree.take(row, length, len(rows[row]) >= MULTIPACK_ROW)
    return rows


class _Rooms:
    """The room of each row, and the first row that has enough, in logarithmic time."""

    def __init__(self, budget: int) -> None:
        self.size, self.budget = 1, budget
        self.tree = [0, budget]

    def first(self, length: int) -> int:
        """The first row with so much room, perhaps a new one."""
        if self.tree[1] < length:
            self._grow()
        at = 1
        while at < self.size:
            at = 2 * at if self.tree[2 * at] >= length else 2 * at + 1
        return at - self.size

    def take(self, row: int, length: int, full: bool) -> None:
        """Take room of a row; all of it where it is full."""
        at = self.size + row
        self.tree[at] = 0 if full else self.tree[at] - length
        while at > 1:
            at //= 2
            self.tree[at] = max(self.tree[2 * at], self.tree[2 * at + 1])

    def _grow(self) -> None:
        """Twice the rows, the new ones empty."""
        leaves = [*self.tree[self.size :], *([self.budget] * self.size)]
        self.size *= 2
        self.tree = [0] * self.size + leaves
        for at in range(self.size - 1, 0, -1):
            self.tree[at] = max(self.tree[2 * at], self.tree[2 * at + 1])


def knapsack(lengths: Sequence[int], budget: int) -> Rows:
    """Row after row, each filled with the longest that still fits; sequences were cut before.

    LLaMA-Factory (ff6d4d12e), data/processor/processor_utils.py: ``greedy_knapsack``; supervised.py pads every row to
    ``cutoff_len``."""
    left, rows = sorted(min(each, budget) for each in lengths), Rows()
    while left:
        row, room = list[int](), budget
        while (at := bisect_right(left, room)) > 0:
            row.append(left.pop(at - 1))
            room -= row[-1]
        rows.append(row)
    return rows


def token_budget(lengths: Sequence[int], budget: int) -> Rows:
    """As few micro-batches as hold the tokens, balanced in work; one may exceed the budget.

    verl (1dda039b9), utils/seqlen_balancing.py: ``rearrange_micro_batches`` with ``use_dynamic_bsz``: the budget only
    decides their number, and Karmarkar and Karp's differencing method balances ``calculate_workload``."""
    count = min(len(lengths), ceil_div(sum(lengths), budget))
    return balanced(lengths, count, lambda length: 24576 * length + length**2)


def balanced(lengths: Sequence[int], count: int, work: Callable[[int], int]) -> Rows:
    """So many rows of about the same work (``karmarkar_karp`` with ``equal_size=False``)."""
    states = [_state([(work(length), [length])], count, number) for number, length in enumerate(sorted(lengths))]
    heapq.heapify(states)
    while len(states) > 1:
        (_, number, one), (_, _, other) = heapq.heappop(states), heapq.heappop(states)
        merged = [(a + b, [*x, *y]) for (a, x), (b, y) in zip(one, reversed(other), strict=True)]
        heapq.heappush(states, _state(merged, count, number))
    return [row for _, row in states[0][2] if row]


_Sets: TypeAlias = list[tuple[int, list[int]]]


def _state(sets: _Sets, count: int, number: int) -> tuple[int, int, _Sets]:
    """Sets by descending work, under the difference of the first and the last, the largest in front."""
    full = sorted([*sets, *((0, list[int]()) for _ in range(count - len(sets)))], key=lambda each: -each[0])
    return full[-1][0] - full[0][0], number, full


PACKED: dict[str, tuple[Callable[[Sequence[int], int], Rows], int]] = {
    "bfd": (best_fit, MAP_BATCH),
    "bfd-split": (split_best_fit, MAP_BATCH),
    "wrapped": (wrapped, MAP_BATCH),
    "multipack": (multipack, MULTIPACK_GROUP),
    "knapsack": (knapsack, MAP_BATCH),
}
"""Ways of packing, and how many examples are packed together."""


def packed(how: str, lengths: Sequence[int], budget: int) -> list[int]:
    """Tokens of each row that so many sequences become."""
    pack, together = PACKED[how]
    lengths = [shortened(length, budget) for length in lengths]
    groups = (lengths[start : start + together] for start in range(0, len(lengths), together))
    return [sum(row) for group in groups for row in pack(group, budget)]
