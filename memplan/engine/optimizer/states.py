"""What an optimizer keeps of each tensor between steps: one rule for each kind of state.

A rule takes one tensor as the optimizer sees it on this rank, and gives the bytes of each storage it keeps. Counted on
real ones in tests/test_optimizers.py. Symbols: m rows, n columns, w bytes per element of the stepped tensor."""

from collections.abc import Callable
from typing import NamedTuple

from memplan.engine.tensors import Weight
from memplan.spec.groups import OptimizerSettings
from memplan.spec.recipe import Recipe
from memplan.tables.styles import Blocks, Optimizer
from memplan.units import by_name, ceil_div

FP32 = 4
PAGED_FROM = 100_000
"""Elements from which a paged state goes to managed memory (bitsandbytes ``get_state_buffer``)."""


class Stepped(NamedTuple):
    """One tensor that the optimizer steps on: what a rank holds of it."""

    rows: int
    columns: int
    stacked: int
    itemsize: int
    name: str = ""
    hidden: bool = False
    """A weight of the layers, of a tower too; else of embedding, final norm or head."""
    projected: bool = False
    """Its gradient is projected (GaLore, APOLLO)."""
    wide: bool = False
    """Kept in 32 bits, whatever its size."""

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return self.rows * self.columns * self.stacked

    @property
    def is_vector(self) -> bool:
        """One dimension."""
        return self.columns == 1 and self.stacked == 1

    @property
    def is_matrix(self) -> bool:
        """Two dimensions."""
        return self.columns > 1 and self.stacked == 1


def elementwise(t: Stepped, o: Optimizer, s: OptimizerSettings) -> list[int]:
    """Full states, or codes and scales in blocks: ⌈bits·mn/8⌉ + 4·⌈mn/block⌉ each."""
    blocks, count = o.blocks, t.elements
    if blocks is None:
        return [count * (o.state_itemsize or t.itemsize)] * o.per_element
    if not is_quantised(t, blocks, s):
        return [count * (blocks.wide or t.itemsize)] * o.per_element
    scales = FP32 * ceil_div(count, s.block_size or blocks.size)
    return [ceil_div(count * blocks.bits, 8), scales, blocks.table] * o.per_element


def is_quantised(t: Stepped, blocks: Blocks, s: OptimizerSettings) -> bool:
    """Whether a tensor's states are: it is large enough, of whole blocks where they must be, and no exception."""
    large = t.elements >= (s.min_8bit_size or blocks.least)
    return large and not t.wide and not (blocks.whole and t.elements % (s.block_size or blocks.size))


def factored(t: Stepped, o: Optimizer, s: OptimizerSettings) -> list[int]:
    """A row and a column of statistics for each matrix, (m + n)·w; a vector whole."""
    w = o.state_itemsize or t.itemsize
    return [t.elements * w] if t.is_vector else [t.stacked * t.rows * w, t.stacked * t.columns * w]


def muon(t: Stepped, o: Optimizer, s: OptimizerSettings) -> list[int]:
    """A momentum for each hidden matrix; AdamW's two states for what else there is, stacked experts too."""
    return [t.elements * t.itemsize] * (1 if orthogonalised(t) else o.per_element)


def orthogonalised(t: Stepped) -> bool:
    """Whether Muon takes it: a matrix of the layers."""
    return t.hidden and t.is_matrix


def galore(t: Stepped, o: Optimizer, s: OptimizerSettings) -> list[int]:
    """Two states of rank × the longer side, and the basis: rank × the shorter side.

    In fp32 the basis is a view that keeps the SVD's whole square factor alive; half precision copies what it needs
    (galore_projector.py: ``Vh[:rank, :]``, ``U[:, :rank]``)."""
    if not t.projected:
        return elementwise(t, o, s)
    longer, shorter, w = max(t.rows, t.columns), min(t.rows, t.columns), t.itemsize
    rank = min(s.rank, shorter)
    return [rank * longer * w, rank * longer * w, shorter * (shorter if w == FP32 else rank) * w]


def apollo(t: Stepped, o: Optimizer, s: OptimizerSettings) -> list[int]:
    """As GaLore's, with a random basis that is kept between refreshes, and the norm of the last update."""
    if not t.projected:
        return elementwise(t, o, s)
    longer, shorter, w = max(t.rows, t.columns), min(t.rows, t.columns), t.itemsize
    return [s.rank * longer * w, s.rank * longer * w, s.rank * shorter * w, w]


def adam_mini(t: Stepped, o: Optimizer, s: OptimizerSettings) -> list[int]:
    """A full momentum, a second moment each head of q and k, row of other matrices, else tensor; a bias keeps both."""
    return [t.elements * t.itemsize, mini_blocks(t, s) * t.itemsize]


def mini_blocks(t: Stepped, s: OptimizerSettings) -> int:
    """Second moments of one tensor."""
    if t.name.endswith("bias"):
        return t.elements
    if t.is_vector:
        return 1
    if any(part in t.name for part in ("q_proj", "k_proj", "query", "key")):
        return max(1, t.elements // s.head_elements)
    return t.rows


def soap(t: Stepped, o: Optimizer, s: OptimizerSettings) -> list[int]:
    """AdamW's states, and for each dimension d that is not too large a d × d statistic and its eigenbasis."""
    sides = preconditioned(t, s)
    return [t.elements * t.itemsize] * 2 + [side * side * t.itemsize for side in sides for _ in range(2)]


def preconditioned(t: Stepped, s: OptimizerSettings) -> list[int]:
    """The dimensions that SOAP rotates: none of a vector."""
    if t.is_vector:
        return []
    sides = (t.stacked, t.rows, t.columns) if t.stacked > 1 else (t.rows, t.columns)
    return [side for side in sides if side <= s.max_precondition_dim]


Rule = Callable[[Stepped, Optimizer, OptimizerSettings], list[int]]
RULES: dict[str, Rule] = by_name(elementwise, factored, muon, galore, apollo, adam_mini, soap)
"""Rules by the name that a row of the table gives."""


def state_bytes(recipe: Recipe, tensor: Stepped) -> list[int]:
    """The storages that the job's optimizer keeps of one tensor."""
    return RULES[recipe.optimizer.row.rule](tensor, recipe.optimizer.row, recipe.optimizer.settings)


def paged_bytes(recipe: Recipe, tensor: Stepped) -> int:
    """What of them is in managed memory: the states, not their scales, of large tensors."""
    o = recipe.optimizer.row
    if not o.paged or tensor.elements < PAGED_FROM:
        return 0
    return state_bytes(recipe, tensor)[0] * o.per_element


def stepped(recipe: Recipe, weight: Weight, itemsize: int, shards: int) -> Stepped:
    """A weight as this rank's optimizer sees it: FSDP2 shards the first dimension; all where shapes do not matter."""
    o, s = recipe.optimizer.row, recipe.optimizer.settings
    rows, columns, stacked = weight.rows, weight.columns, weight.stacked
    if shards > 1:
        if o.rule == "elementwise" and o.blocks is None and recipe.sharding.name != "fsdp2":
            rows, columns, stacked = ceil_div(weight.elements, shards), 1, 1
        elif stacked > 1:
            stacked = ceil_div(stacked, shards)
        else:
            rows = ceil_div(rows, shards)
    target = o.rank and weight.linear and not weight.adapter and (s.targets is None or weight.name in s.targets)
    embedding = weight.unit == "embedding" and weight.columns > 1
    return Stepped(
        rows,
        columns,
        stacked,
        itemsize,
        weight.name,
        weight.unit in ("layer", "vision"),
        bool(target),
        s.wide_embeddings and embedding,
    )


def flat(elements: int, itemsize: int) -> Stepped:
    """DeepSpeed's partition: all tensors end to end, in one vector."""
    return Stepped(elements, 1, 1, itemsize)
