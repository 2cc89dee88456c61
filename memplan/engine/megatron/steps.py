"""A layer as a list of steps: what each saves for backward, and what it holds for a moment in forward and backward.

LoRA in Megatron's layers: which of its products have an adapter, what that keeps, and what it holds for a moment.

Two ways are written. ms-swift's (mcore-bridge 1.6 tuners/lora.py: LoraParallelLinear): the narrow side is whole on
every tensor-parallel rank and runs on its part of the sequence; each expert has its own adapter. Megatron-Bridge's
(peft/utils.py: ParallelLinearAdapter, of its main of August 2026; verl and NeMo RL take it): both matrices are divided;
what goes into a column-parallel product is kept as it was gathered along the sequence; a rank's experts share one.

A frozen product keeps no input (TransformerEngine 2.11 pytorch/module/linear.py, layernorm_linear.py,
grouped_linear.py: ``if weight.requires_grad``); its adapter does."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from memplan.spec.lora import Adapter
from memplan.units import ceil_div


class Held(NamedTuple):
    """One tensor: its name, its formula in letters, and the factors of its bytes in the same order.

    Letters: T tokens of a micro-batch on this rank, t those between tensor-parallel products, h hidden, e bytes."""

    name: str
    template: str
    factors: tuple[int | float, ...]
    again: str = ""
    """Dropped after forward, and made again when the step of this name runs backward."""
    doubt: float = 0.0
    """How much more it may be, as a share: what nobody has measured."""

    @property
    def bytes(self) -> int:
        """Bytes of one micro-batch and layer."""
        return int(prod(self.factors))

    @property
    def routed(self) -> bool:
        """Whether it grows with the tokens that this rank's experts receive."""
        return self.template.startswith("R·")


class Step(NamedTuple):
    """One part of a layer, in forward order."""

    name: str
    kept: tuple[Held, ...] = ()
    """Saved for backward, from this step on."""
    forward: tuple[Held, ...] = ()
    """Alive at the step's fullest moment of forward, beside what is kept so far."""
    backward: tuple[Held, ...] = ()
    """Alive at its fullest moment of backward, beside what this step and those before it keep."""
    source: str = ""


Steps = tuple[Step, ...]


def size(held: Iterable[Held]) -> int:
    """Bytes of all."""
    return sum(each.bytes for each in held)


def kept_bytes(steps: Steps) -> int:
    """What a layer saves for backward of one micro-batch."""
    return sum(each.bytes for step in steps for each in step.kept if not each.again)


def made_again(steps: Steps, names: Iterable[str], at: str) -> Steps:
    """The same steps, whose tensors of these names are dropped after forward and made again at step ``at``."""
    chosen = frozenset(names)

    def dropped(held: Held) -> Held:
        return held._replace(again=at) if held.name in chosen else held

    return tuple(step._replace(kept=tuple(map(dropped, step.kept))) for step in steps)


def checkpointed(steps: Steps, checkpoint: Held) -> Steps:
    """A layer of which full recomputation keeps its input alone: all else is made again when its backward begins."""
    last = steps[-1].name
    inner = tuple(
        step._replace(kept=tuple(each._replace(again=last) for each in step.kept if each.name != checkpoint.name))
        for step in steps
    )
    return (inner[0]._replace(kept=(checkpoint, *inner[0].kept)), *inner[1:])


def fullest_forward(steps: Steps) -> int:
    """Position of the step at whose forward a layer holds the most."""
    best, most, before = 0, -1, 0
    for position, step in enumerate(steps):
        before += size(step.kept)
        total = before + size(step.forward)
        if total >= most:
            best, most = position, total
    return best


SOURCES = {
    "swift": "mcore-bridge 1.6 tuners/lora.py: LoraParallelLinear",
    "bridge": "Megatron-Bridge peft/utils.py: ParallelLinearAdapter; lora_layers.py: LoRALinear",
}
SUM = "product, the adapter's scaled product and their sum"


class Product(NamedTuple):
    """How one of Megatron's products is trained."""

    whole: bool = True
    """Its own weight is."""
    rank: int = 0
    """Of its adapter; 0: it has none."""
    dropout: bool = False
    gathers: bool = False
    """The adapter keeps its input as it was gathered along the sequence."""
    divided: bool = False
    """Both of its matrices are divided over the tensor-parallel ranks, and its result is gathered."""

    @property
    def reads(self) -> bool:
        """Whether anything keeps its input as it is."""
        return self.whole or (self.rank > 0 and not self.dropout)


WHOLE = Product()


def product(adapter: Adapter | None, linears: Iterable[str], way: str, expert: bool = False) -> Product:
    """Of a product that stands for these linears of the Hub's model."""
    if adapter is None:
        return WHOLE
    adapted = (adapter.experts if expert else adapter.targets) & {name.rpartition(".")[2] for name in linears}
    rank = max((adapter.rank_of(name) for name in adapted), default=0)
    return Product(False, rank, rank > 0 and adapter.dropout, way == "bridge" and not expert, way == "bridge")


def kept(p: Product, source: Held, inner: int) -> tuple[Held, ...]:
    """What an adapter of rank ``r`` keeps, whose input is ``source``, [rows, width, e], and whose narrow side has
    ``inner`` rows: the input, or a mask and what dropout leaves of it; and what lies between its matrices."""
    if not p.rank:
        return ()
    letters, (rows, width, e) = source.template.removesuffix("·e"), source.factors
    dropped = (source._replace(name=f"{source.name}, dropped"), Held(f"mask of {source.name}", letters, (rows, width)))
    narrow = Held(f"narrow side of the adapter on {source.name}", f"{letters[0]}·r·e", (inner, p.rank, e))
    return (*(dropped if p.dropout else (source,)), narrow)


def summed(p: Product, output: Held) -> tuple[Held, ...]:
    """Of forward, beside what is kept: base's product, scaled product and sum, of which the last one stays."""
    return (output._replace(name=SUM, template=f"3·{output.template}", factors=(3, *output.factors)),) if p.rank else ()


def matrices(p: Product, rows: int, columns: int, mode: str, tensor: int) -> tuple[tuple[int, int], ...]:
    """(rows, columns) on this rank of both matrices beside a product of rows × columns on this rank.

    ``mode``: column, row, or whole on every rank. ms-swift leaves the narrow side whole; Megatron-Bridge divides the
    rank of what reads a whole input, and the outputs of the second matrix."""
    if not p.divided:
        return (p.rank, columns), (rows, p.rank)
    first = p.rank if mode == "row" else ceil_div(p.rank, tensor)
    return (first, columns), (rows if mode == "column" else ceil_div(rows, tensor), p.rank)


def with_source(step: Step, p: Product) -> Step:
    """The step, whose source names the adapter's code too."""
    return step._replace(source=f"{step.source}; {SOURCES['bridge' if p.divided else 'swift']}") if p.rank else step
