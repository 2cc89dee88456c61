"""The cache of keys and values: its blocks, and what one request takes of them.

vLLM has one pool of equal blocks. Layers of one kind share a block; where there are several kinds, they stand in groups
of equally many layers, each of which takes blocks of its own (vllm v1/core/kv_cache_utils.py:
_get_kv_cache_groups_uniform_page_size). A page of a state space is a block too: others are as large."""

from collections import Counter
from typing import NamedTuple

from memplan.engine.generation.cells import Cell, cells_of, draft_cells, refused
from memplan.spec.generation import Generator
from memplan.tables.engines import Era, era_of
from memplan.units import ceil_div

BLOCK = 16
"""Tokens of a block."""
STATE_SHARE = 0.9 / 1.9
"""SGLang's mamba_full_memory_ratio: states to keys and values as 0.9 to 1."""


WINDOW_SHARE = 0.8
"""SGLang's swa_full_tokens_ratio: tokens of the pool for windows to those of the other."""


class Group(NamedTuple):
    """Layers that take the same blocks."""

    cell: Cell
    block: int
    """Tokens of a block; 0: a sequence's state, whatever its length."""
    alike: int = 1
    """Groups like it, itself among them."""


class Layout(NamedTuple):
    """How the cache of one rank is laid out."""

    token_bytes: int
    """Of all layers, for a token that every layer keeps."""
    block_bytes: int
    """A block of the pool, in all layers of a group."""
    groups: tuple[Group, ...]
    era: Era
    batched: int
    """Tokens of one forward."""
    state_bytes: int = 0
    """Of a sequence, in all layers."""
    drafted: int = 0
    """Tokens drafted at once, before each of which a state is kept."""

    def blocks(self, size: int) -> int:
        """Blocks in a cache of ``size`` bytes."""
        return max(0, size) // self.block_bytes if self.block_bytes else 0

    def blocks_of(self, length: int) -> int:
        """Blocks that a request of ``length`` tokens takes."""
        return sum(group.alike * self._of_group(group, length) for group in self.groups)

    def _of_group(self, group: Group, length: int) -> int:
        if group.cell.kind == "state":
            return self.era.states + self.drafted  # vllm v1/kv_cache_interface.py: MambaSpec.max_memory_usage_bytes
        flying = self.era.in_flight * self.batched
        if group.cell.kind == "window":
            return ceil_div(min(group.cell.window - 1 + flying, length), group.block) + 1
        if group.cell.kind == "chunk":
            return ceil_div(min(group.cell.window + flying, length), group.block)
        return ceil_div(length, group.block)

    def request(self, length: int) -> int:
        """Bytes of one request of ``length`` tokens."""
        return self.blocks_of(length) * self.block_bytes

    def concurrency(self, size: int, length: int) -> float:
        """Requests of ``length`` tokens at once."""
        needed = self.blocks_of(length)
        return self.blocks(size) / needed if needed else 0.0

    def tokens(self, size: int, length: int) -> int:
        """As the engine's log says them."""
        if self.era.tokens == "concurrency":
            return int(self.concurrency(size, length) * length)
        blocks = [group.block or length for group in self.groups]
        return self.blocks(size) // max(1, sum(group.alike for group in self.groups)) * min(blocks, default=0)

    def longest(self, size: int, length: int) -> int:
        """Tokens of the longest request, up to ``length``, that a cache of ``size`` bytes holds."""
        low, high = 0, length
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request(middle) <= size else (low, middle - 1)
        return low


def layout(of: Generator) -> Layout:
    """The layout of its model on one rank. Raises InvalidJob for a model that cannot be served."""
    if of.model.task != "causal":
        raise refused(of, f"a {of.model.task} model, which does not generate by a cache of its own tokens,")
    era = era_of(of.engine, of.version)
    held = _cells(of, era)
    token = sum(cell.token * count for cell, count in held.items())
    state = sum(cell.state * count for cell, count in held.items())
    made = _pool if era.share == "free" else _groups
    size, groups = made(held, era, of)
    return Layout(token, size, groups, era, of.max_num_batched_tokens, state, of.draft.tokens if of.draft else 0)


def _cells(of: Generator, era: Era) -> Counter[Cell]:
    """What each layer of the fullest pipeline stage keeps, counted."""
    found: Counter[Cell] = Counter()
    for run in of.model.runs:
        for cell in cells_of(run.layer, of):
            found[cell] += run.count
    found.update(draft_cells(of))
    full, apart = any(cell.kind == "full" for cell in found), of.model.family.startswith(era.pools)
    held: Counter[Cell] = Counter()
    for cell, count in found.items():
        kept = apart or (era.chunked if cell.kind == "chunk" else era.grouped or not full)
        held[cell if kept or cell.kind not in ("window", "chunk") else Cell("full", cell.token)] += count
    return Counter({cell: ceil_div(count, of.pipeline_parallel) for cell, count in held.items()})


def _pool(held: Counter[Cell], era: Era, of: Generator) -> tuple[int, tuple[Group, ...]]:
    """SGLang's: pages of one token, all layers alike; with a pool of their own, those with a window have fewer."""
    parts = [
        cell.token * count * (WINDOW_SHARE if cell.kind in ("window", "chunk") else 1) for cell, count in held.items()
    ]
    alone = any(cell.kind == "full" for cell in held) and of.model.family.startswith(era.pools)
    whole = sum(cell.token * count for cell, count in held.items())
    return round(sum(parts)) if alone else whole, (Group(Cell("full"), 1),)


def _groups(held: Counter[Cell], era: Era, of: Generator) -> tuple[int, tuple[Group, ...]]:
    """Bytes of a block, and the groups that take blocks."""
    states = [cell for cell in held if cell.kind == "state"]
    tokens = [cell for cell in held if cell.kind != "state"]
    if not states and len({(cell.kind, cell.window) for cell in tokens}) <= 1:
        kinds = [Group(cell, BLOCK) for cell in tokens[:1]]
        return sum(BLOCK * cell.token * held[cell] for cell in tokens), tuple(kinds)
    block = BLOCK
    if states and tokens:
        block *= ceil_div(max(cell.state for cell in states), BLOCK * min(cell.token for cell in tokens))
    page = max([block * cell.token for cell in tokens] + [cell.state for cell in states])
    layers = _in_a_group(list(held.values()), era)
    kinds = [
        Group(cell, 0 if cell.state else block * max(1, page // (block * cell.token)), ceil_div(count, layers))
        for cell, count in held.items()
    ]
    return page * layers, tuple(kinds)


def _in_a_group(counts: list[int], era: Era) -> int:
    """Layers of each group: the rarest kind's, or the commonest's where it has little more."""
    return max(counts) if max(counts) < min(counts) * era.unequal else min(counts)
