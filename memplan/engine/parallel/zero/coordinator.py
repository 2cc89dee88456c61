"""Which whole weights ZeRO-3 holds at each moment: DeepSpeed's coordinator, replayed by size.

A module's parameters are gathered when it runs; while it runs, the next ones of the recorded order are gathered up to
the prefetch bucket; after it, those that are used again within ``max_reuse_distance`` elements stay. Several
parameters in one call are gathered into a flat buffer and copied out, and the buffer lives until the last of them is
used (deepspeed 0.19 runtime/zero/partitioned_param_coordinator.py: fetch_sub_module, __params_to_release;
partition_parameters.py: AllGatherCoalescedHandle, _all_gather_sequential)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from memplan.units import round_up


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


class Visit(NamedTuple):
    """A module runs: so many uses of its parameters, one after another; none where it has no parameters."""

    module: Module = EMPTY
    uses: int = 0
    held: bool = False
    """It is not released yet: it runs back when its checkpoint has been made again."""
    norm: bool = False
    """It stands before a mixer or a feed-forward."""
    of: str = ""
    """The linear whose adapter it is a part of, or that has an adapter."""
    part: str = ""
    """Which of them: that linear has none."""


class Call:
    """One gathering of several parameters: the flat buffer, until the last of them has been waited for."""

    __slots__ = ("copied", "flat", "members", "pending")

    def __init__(self, flat: int, members: list[tuple[int, int]]) -> None:
        self.flat, self.members, self.pending = flat, members, len(members)
        self.copied = len(members) == 1


class Coordinator:
    """One engine's, from pass to pass: it records the order of the modules of one forward with its backward, and
    fetches ahead in the next ones as long as they run in that order. Another forward begins a record anew, and a module
    that is not the recorded one ends it: until the next forward but one nothing is fetched ahead, nothing stays."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.knows, self.records = limits, False, False
        self.trace: list[Module] = []
        self.at = self.head = self.size = self.most = self.available = 0
        self.ready: dict[int, int] = {}
        self.flying: dict[int, Call] = {}
        self.fetched: dict[int, int] = {}
        self.cursor: dict[int, int] = {}
        self.kept: dict[tuple[int, int], bool] = {}
        """What was decided where, once for all passes (``__params_to_release`` is cached)."""
        self.visits: Sequence[Visit] = ()
        self.place, self.reads, self.released = -1, 0, True

    # -- what runs ----------------------------------------------------------------------------------------------------

    def begins(self, visits: Sequence[Visit]) -> None:
        """A forward begins, and these modules run until the next one does."""
        self._leave()
        self.begin()
        self.visits, self.place = visits, -1

    def used(self) -> None:
        """A parameter of a module is about to be read: of the one that runs, or of the next."""
        while self.place < 0 or self.reads == self.visits[self.place].uses:
            self._leave()
            self.place, self.reads, self.released = self.place + 1, 0, False
            self.fetch(self.visits[self.place].module)
        self.reads += 1

    def done(self) -> None:
        """It has been, and the module releases it, if that was the last."""
        if self.place >= 0 and self.reads == self.visits[self.place].uses:
            self._leave()

    def ran_back(self) -> None:
        """``release_backward_leftovers``: what the model's own forward reads, and nothing runs back behind."""
        self._leave()
        for visit in self.visits[:2]:
            for identity, _ in visit.module.parameters:
                self._free(identity)

    def _leave(self) -> None:
        if not self.released:
            self.released = True
            if not self.visits[self.place].held:
                self.release(self.visits[self.place].module)

    # -- the recorded order -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """``reset_step``: a forward begins. What an earlier one has left whole is still there."""
        self._land()
        if self.records:
            self.learn()
        elif not self.knows:
            self.records, self.trace = True, []
        self.at = self.head = self.available = 0
        self.fetched, self.cursor = {}, {}

    def learn(self) -> None:
        """What has been recorded is the order from now on."""
        self.knows, self.records = True, False
        order = self.trace
        self.before = list(accumulate((sum(size for _, size in m.parameters) for m in order), initial=0))
        self.uses: dict[int, list[int]] = {}
        self.queue: list[tuple[int, int, int]] = []
        for at, module in enumerate(order):
            for identity, size in module.parameters:
                self.uses.setdefault(identity, []).append(at)
                self.queue.append((identity, size, at))

    def _follow(self, module: Module) -> None:
        """``trace_prologue``, ``record_module``."""
        if self.records:
            self.trace.append(module)
        elif self.knows and (self.at >= len(self.trace) or self.trace[self.at] != module):
            self.knows = False
            self._land()

    def _land(self) -> None:
        """What is on its way is waited for and let go of."""
        for identity in list(self.flying):
            self._wait(identity)
            self._free(identity)

    def end(self) -> None:
        """``release_and_reset_all``, before the optimizer steps."""
        self._land()
        for identity in list(self.ready):
            self._free(identity)

    # -- modules ------------------------------------------------------------------------------------------------------

    def fetch(self, module: Module) -> None:
        """What the module needs, then what comes behind it (``fetch_sub_module``)."""
        self._follow(module)
        persistent, ready, flying = self.limits.persistent, self.ready, self.flying
        own = [each for each in module.parameters if each[1] > persistent]
        if own:
            self._gather([each for each in own if each[0] not in ready and each[0] not in flying])
            waited = [identity for identity, _ in own if identity in flying]
            for identity in waited:
                self._copy(flying[identity])
            for identity in waited:
                self._wait(identity)
        if self.knows:
            if module.parameters:
                self._discard(module, self.at)
            self._prefetch()
        self.most = max(self.most, self.size)
        self.at += 1

    def release(self, module: Module) -> None:
        """What is not used again soon, if an order is known (``release_sub_module``)."""
        for identity, size in module.parameters:
            if size > self.limits.persistent and not (self.knows and self._needed(identity, self.at - 1)):
                self._free(identity)
                self.available -= size

    def _free(self, identity: int) -> None:
        self.freed(identity)
        self.size -= self.ready.pop(identity, 0)

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
            call = Call(sum(round_up(size, self.limits.ranks) for _, size in members), members)
            self.called(call)
            self.size += call.flat
            for identity, _ in members:
                self.flying[identity] = call
        self.most = max(self.most, self.size)

    def _copy(self, call: Call) -> None:
        """The first that is waited for copies all of its call out of the flat buffer; one alone is the buffer. A module
        waits for its parameters in no order that could be known (a set): each call is copied before one ends."""
        if call.copied:
            return
        call.copied = True
        self.copied(call)
        for member, size in call.members:
            self.ready[member] = size
            self.size += size
        self.most = max(self.most, self.size)

    def _wait(self, identity: int) -> None:
        """All of a call have been waited for: its flat buffer goes."""
        call = self.flying.pop(identity)
        if len(call.members) == 1:
            self.ready[identity] = call.flat
            return
        self._copy(call)
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
        if (identity, at) not in self.kept:
            self.kept[identity, at] = self.fetched.get(identity, -1) > at or self._is_near(identity, at)
        return self.kept[identity, at]

    def _is_near(self, identity: int, at: int) -> bool:
        uses = self.uses[identity]
        place = self.cursor.get(identity, 0)
        while place < len(uses) and uses[place] <= at:
            place += 1
        self.cursor[identity] = place
        return place < len(uses) and self.before[uses[place]] - self.before[at + 1] < self.limits.reuse
