"""What FSDP gathers and reduces together, in bytes, and how the units of a model are gathered.

Segments that FSDP2's other streams keep to themselves: on the reserved meter alone.

The allocator gives a freed block only to the stream that it came from. FSDP2 makes the outputs of all-gathers and of
reduce-scatters on streams of their own (torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py:
all_gather_copy_in, foreach_reduce): what the largest of them took stays reserved when it is freed, and the compute
stream's peak stands beside it."""

from typing import NamedTuple

from memplan.engine.ledger import Ledger


class Unit(NamedTuple):
    """What is gathered and reduced together, in bytes."""

    gathered: int
    """Weights as modules use them."""
    gradients: int
    """Whole gradients as autograd makes them."""
    reduced: int
    """Input of the reduce-scatter, in the reduction's dtype."""
    scattered: int
    """Its output, and the copy in the weights' dtype where that is another."""
    shard: int
    """Gradients that stay: the rank's part, in the weights' dtype."""
    last: int
    """The gradient of its last tensor: a loop's variable keeps it through the reduction (``foreach_reduce``)."""
    held: int
    """Output of the reduce-scatter that hybrid sharding holds to the end of backward, beside a copy of other dtype."""
    cast: int = 0
    """The all-gather's input in backward: the rank's part in the gathered dtype, where it is stored in another; before
    that, its copy from the host. After resharding to a number, a copy of the part that is there."""
    replicated: int = 0
    """Output of the reduce-scatter under hybrid sharding: what is held, where it is added to gradients."""
    waiting: int = 0
    """Whole gradients that no backward has reduced yet, in the reduction's dtype, without its padding."""
    parting: int = 0
    """The most that resharding to a number adds: a tensor's part is cloned before the whole is freed, one after another
    (``to_sharded_post_forward``)."""
    zeros: int = 0
    """FSDP1: gradients of views that nothing used, which autograd makes when it puts the flat gradient together."""
    widest: int = 0
    """The largest of the copies that the weights of one rank are cast to, one after another, before they are taken."""


NOTHING = Unit(0, 0, 0, 0, 0, 0, 0)


class TowerUnits(NamedTuple):
    """The units of a vision tower: its patch embedding, one block, and the projector, where they are any."""

    front: Unit
    block: Unit
    projector: Unit


class Frame(NamedTuple):
    """The units of a model, and how they are gathered."""

    layers: list[Unit]
    root: Unit
    resharding: bool | int
    """True; False: kept from forward to backward; a number: shared among so many ranks meanwhile."""
    first: Unit = NOTHING
    """The input embedding, where it is a unit of its own."""
    tail: Unit = NOTHING
    """Final norm and head, where they are one; with a tied embedding, which then opens the unit."""
    opens: bool = False
    """The tail is gathered at the embedding, and reduced at the end: its inputs are token ids."""
    place: str = "gpu"
    """Where shards are: on the host under CPU offload."""
    first_left: bool = False
    """The embedding, a unit of its own, has no backward: its part is always there under resharding to a number."""
    blocks: Unit = NOTHING
    """The blocks of a vision tower together: units of their own, reduced as the tower runs back."""
    tower: TowerUnits | None = None
    """The units of a tower that sees images, and whose blocks are traced one by one."""
    left: int = 0
    """Layers from the first on that have no backward, under resharding to a number: their part is always there."""
    alone: bool = False
    """One rank: nothing is gathered, each weight is copied as its unit begins (torch 2.13 ``wait_for_unshard``)."""

    @property
    def before_layers(self) -> Unit:
        """The unit that runs before the first layer: its backward gathers that ahead."""
        ends = (self.tower.projector, self.tower.block) if self.tower else ()
        return next((unit for unit in ends if unit.gathered), self.first)

    @property
    def reshards(self) -> bool:
        """Whether a layer's whole weights are freed after its forward."""
        return self.resharding is not False

    def output(self, unit: Unit) -> int:
        """Bytes beside the weights that are copied out of it."""
        return unit.widest if self.alone else unit.gathered

    def ahead(self, unit: Unit) -> int:
        """Bytes that are gathered before the unit begins."""
        return 0 if self.alone else unit.gathered

    def kept(self, unit: Unit) -> int:
        """Bytes that stay of a layer from its forward to its backward."""
        return 0 if self.resharding is True else unit.gathered // max(1, int(self.resharding))

    def kept_until(self, i: int) -> int:
        """Bytes that stay of the layers below ``i``, but for those that always do."""
        total, size, last = 0, 0, None
        for unit in self.layers[self.left : i] if self.resharding is not True else ():
            if unit is not last:
                last, size = unit, self.kept(unit)
            total += size
        return total

    @property
    def first_kept(self) -> int:
        """Bytes that stay of the embedding, from its forward to its backward."""
        return 0 if self.first_left else self.kept(self.first)

    @property
    def all_layers(self) -> int:
        """Gathered bytes of all layers."""
        return sum(unit.gathered for unit in self.layers)

    @property
    def always(self) -> Unit:
        """Of a model that only runs forward: what no forward reshards, root and tail."""
        return self.root._replace(gathered=self.root.gathered + self.tail.gathered)

    @property
    def ends(self) -> tuple[Unit, Unit, Unit]:
        """The units outside the layers."""
        return self.root, self.first, self.tail


SOURCE = "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py; c10/cuda/CUDACachingAllocator.cpp"


def enter_pools(ledger: Ledger, own: Frame, gather: str, before_layers: str, accumulates: bool) -> None:
    """What waits in both pools while it is not in use: the root's all-gather output after ``gather``, and the shards of
    gradients (outputs of reductions) until backward makes them, or the step where micro-steps leave them for it."""
    ledger.add(
        "segments of all-gathers",
        "stream_segments",
        max((own.ahead(unit) for unit in own.ends), default=0),
        ledger.after(gather),
        "",
        meter="reserved",
    ).formula("largest padded elements × bytes").since(
        "the all-gather's stream keeps the segments of its largest output", SOURCE
    )
    ledger.add(
        "segments of gradient shards",
        "stream_segments",
        sum(unit.shard for unit in (*own.layers, *own.ends)),
        "",
        ledger.before(ledger.schedule[-1]) if accumulates else before_layers,
        meter="reserved",
    ).formula("padded elements / ranks × bytes").since(
        "the reduction's stream keeps the segments of last step's gradients", SOURCE
    )
