"""Which whole weights ZeRO-3 holds at each moment: DeepSpeed's coordinator, replayed by size.

A module's parameters are gathered when it runs; while it runs, the next ones of the recorded order are gathered up to
the prefetch bucket; after it, those that are used again within ``max_reuse_distance`` elements stay. Several
parameters in one call are gathered into a flat buffer and copied out, and the buffer lives until the last of them is
used (deepspeed 0.19 runtime/zero/partitioned_param_coordinator.py: fetch_sub_module, __params_to_release;
partition_parameters.py: AllGatherCoalescedHandle, _all_gather_sequential)."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple


class Limits(NamedTuple):
    """What the coordinator keeps to, in elements."""

    prefetch: int
    live: int
    reuse: int
    persistent: int
    """Parameters of so many elements or fewer are there all along."""
    ranks: int
    sequential: bool = False
    """Each parameter is gathered into a buffer of its own."""


class Module(NamedTuple):
    """One module with parameters of its own: (identity, elements) of each. A tied weight has one identity."""

    parameters: tuple[tuple[int, int], ...]


EMPTY = Module(())
"""A module without parameters of its own, which fetches ahead as any does."""


class Stretch(NamedTuple):
    """Modules that run one after another, and the name under which the most that is gathered meanwhile is asked for."""

    name: str
    modules: tuple[Module, ...]


class Gathered(NamedTuple):
    """Elements: the most while a stretch runs, and what is left when it has run."""

    most: int
    left: int


class Call:
    """One gathering of several parameters: the flat buffer, until the last of them has been waited for."""

    __slots__ = ("flat", "members", "pending")

    def __init__(self, flat: int, members: list[tuple[int, int]]) -> None:
        self.flat, self.members, self.pending = flat, members, len(members)


class Coordinator:
    """The state of the coordinator over one recorded order of modules."""

    def __init__(self, order: Sequence[Module], limits: Limits) -> None:
        self.order, self.limits = order, limits
        self.before = list(accumulate((sum(size for _, size in m.parameters) for m in order), initial=0))
        self.uses: dict[int, list[int]] = {}
        self.queue: list[tuple[int, int, int]] = []
        for at, module in enumerate(order):
            for identity, size in module.parameters:
                self.uses.setdefault(identity, []).append(at)
                self.queue.append((identity, size, at))
        self.head = 0
        self.ready: dict[int, int] = {}
        self.flying: dict[int, Call] = {}
        self.fetched: dict[int, int] = {}
        self.cursor: dict[int, int] = {}
        self.size = self.most = self.available = 0

    def run(self, at: int) -> None:
        """Fetch, use and release the module at one position of the order."""
        self.fetch(at)
        self.release(at)

    def fetch(self, at: int) -> None:
        """What the module needs, then what comes behind it (``fetch_sub_module``)."""
        module = self.order[at]
        own = [each for each in module.parameters if each[1] > self.limits.persistent]
        missing = [each for each in own if each[0] not in self.ready and each[0] not in self.flying]
        self._gather(missing)
        for identity, _ in own:
            if identity in self.flying:
                self._wait(identity)
        self._discard(module, at)
        self._prefetch()
        self.most = max(self.most, self.size)

    def release(self, at: int) -> None:
        """What is not used again soon (``release_sub_module``)."""
        for identity, size in self.order[at].parameters:
            if size > self.limits.persistent and not self._needed(identity, at):
                self.freed(identity)
                self.size -= self.ready.pop(identity, 0)
                self.available -= size

    def called(self, call: Call) -> None:
        """A gathering has begun: its flat buffer is there."""

    def copied(self, call: Call) -> None:
        """The first of several that were gathered together is waited for: all are copied out."""

    def ended(self, call: Call) -> None:
        """All of a gathering have been waited for."""

    def freed(self, identity: int) -> None:
        """A parameter is released."""

    def _gather(self, parameters: list[tuple[int, int]]) -> None:
        if not parameters:
            return
        self.available += sum(size for _, size in parameters)
        calls = [[each] for each in parameters] if self.limits.sequential else [parameters]
        for members in calls:
            call = Call(sum(self._padded(size) for _, size in members), members)
            self.called(call)
            self.size += call.flat
            for identity, _ in members:
                self.flying[identity] = call
        self.most = max(self.most, self.size)

    def _wait(self, identity: int) -> None:
        """The first that is waited for copies all of its call out of the flat buffer; one alone is the buffer."""
        call = self.flying.pop(identity)
        if len(call.members) == 1:
            self.ready[identity] = call.flat
            return
        if call.pending == len(call.members):
            self.copied(call)
            for member, size in call.members:
                self.ready[member] = size
                self.size += size
            self.most = max(self.most, self.size)
        call.pending -= 1
        if not call.pending:
            self.ended(call)
            self.size -= call.flat

    def _discard(self, module: Module, at: int) -> None:
        """What runs now is no longer to be fetched ahead."""
        wanted = {identity for identity, _ in module.parameters if self.fetched.get(identity, -1) < at}
        found: set[int] = set()
        while self.head < len(self.queue) and len(found) < len(wanted):
            identity, _, used_at = self.queue[self.head]
            self.fetched[identity] = used_at
            found.add(identity)
            self.head += 1

    def _prefetch(self) -> None:
        room = min(self.limits.live - self.available, self.limits.prefetch)
        ahead: list[tuple[int, int]] = []
        chosen: set[int] = set()
        total = 0
        while self.head < len(self.queue) and total < room:
            identity, size, used_at = self.queue[self.head]
            self.head += 1
            self.fetched[identity] = max(self.fetched.get(identity, -1), used_at)
            there = identity in self.ready or identity in self.flying or identity in chosen
            if not there and size > self.limits.persistent:
                chosen.add(identity)
                ahead.append((identity, size))
                total += size
        self._gather(ahead)

    def _needed(self, identity: int, at: int) -> bool:
        """Whether a prefetch passed over a later use, or the next use is near."""
        if self.fetched.get(identity, -1) > at:
            return True
        uses = self.uses[identity]
        place = self.cursor.get(identity, 0)
        while place < len(uses) and uses[place] <= at:
            place += 1
        self.cursor[identity] = place
        return place < len(uses) and self.before[uses[place]] - self.before[at + 1] < self.limits.reuse

    def _padded(self, size: int) -> int:
        return -(-size // self.limits.ranks) * self.limits.ranks


class Order(tuple[Stretch, ...]):
    """The recorded order. Compared as an object: to hash its hundreds of modules would cost more than what is asked."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @cached_property
    def sizes(self) -> frozenset[int]:
        """Elements of the parameters."""
        return frozenset(size for stretch in self for module in stretch.modules for _, size in module.parameters)


def gathered(order: Order, limits: Limits) -> dict[str, Gathered]:
    """Elements that are gathered, by the stretches' names. Ranks matter by the padding alone: numbers of them that
    divide every parameter are played once."""
    whole = not any(size % limits.ranks for size in order.sizes)
    return _played(order, limits._replace(ranks=1) if whole else limits)


@lru_cache(maxsize=128)
def _played(stretches: Order, limits: Limits) -> dict[str, Gathered]:
    order = [module for stretch in stretches for module in stretch.modules]
    coordinator, at, most = Coordinator(order, limits), 0, {}
    for stretch in stretches:
        coordinator.most = coordinator.size
        for _ in stretch.modules:
            coordinator.run(at)
            at += 1
        most[stretch.name] = Gathered(coordinator.most, coordinator.size)
    return most
