"""Whether an engine starts, and the one thing to change where it does not."""

from collections.abc import Callable
from math import ceil, floor
from typing import NamedTuple

from memplan.engine.generation.formats import served
from memplan.engine.generation.kv import Layout
from memplan.spec.generation import Generator
from memplan.spec.gpu import Gpu
from memplan.tables.engines import Era
from memplan.units import MiB, format_bytes


class Start(NamedTuple):
    """What decides it."""

    of: Generator
    era: Era
    cache: Layout
    gpu: Gpu
    budget: int
    kept: int
    """Weights, and what else is taken from the budget before the cache."""
    kv: int
    free: int
    """When it starts, its own context taken off."""
    beyond: int = 0
    """What lies outside of its share: graphs, and a full batch of SGLang's."""
    doubt: int = 0
    """What it may take more of its budget at the worst."""
    compiling: int = 0
    """Of that, and of what is kept: compiling its layers for the first time, and graphs."""
    whole: int = 0
    """Weights in 16 bits, if those of its format are made of them."""
    wider: Callable[[], int] = int
    """The fewest tensor parallel ranks with which it starts; 0: none."""

    @property
    def key(self) -> str:
        """The key of its share."""
        return "mem_fraction_static" if self.era.share == "free" else "gpu_memory_utilization"

    @property
    def states(self) -> int:
        """Blocks that sequences at once need for their states, one each, before decoding is captured (vllm 0.20
        config/compilation.py; github.com/vllm-project/vllm/pull/38270); drafts are captured in pieces."""
        counted = self.era.counts_states and self.cache.state_bytes and not self.of.eager and self.of.draft is None
        return self.of.max_num_seqs if counted else 0

    @property
    def needed(self) -> int:
        """Bytes of a cache with which it starts: of one request, and of those states."""
        return max(self.cache.request(self.of.max_model_len), self.states * self.cache.block_bytes)

    @property
    def most(self) -> float:
        """The largest share that what is free allows."""
        whole = self.free if self.era.share == "free" else self.gpu.usable_bytes
        return min(1.0, floor(100 * (self.free - self.beyond + self._others) / whole) / 100) if whole > 0 else 0.0

    @property
    def least(self) -> float:
        """The smallest share with which one request of ``max_model_len`` fits, and all states do."""
        return self._share(self.kept + self.needed)

    @property
    def sure(self) -> float:
        """Such a share at the worst, or the largest."""
        return min(self._share(self.kept + self.needed + self.doubt), self.most)

    @property
    def longest(self) -> int:
        """Tokens of the longest request that its cache holds at the worst, or else as expected; 0: none."""
        sizes = (self.kv - self.doubt, self.kv)
        return next(filter(None, (self.cache.longest(size, self.of.max_model_len) for size in sizes)), 0)

    def _share(self, needed: int) -> float:
        whole = self.free if self.era.share == "free" else self.gpu.usable_bytes
        return ceil(100 * (needed + self._others) / whole) / 100 if whole > 0 else 2.0

    @property
    def _others(self) -> int:
        """What others use, where it is taken off the share (vLLM up to 0.9.1)."""
        return max(0, self.gpu.usable_bytes - self.free) if self.era.share not in ("free", "total") else 0


def reason(start: Start, over: bool) -> tuple[str, str]:
    """Why it does not start, and what to change; empty texts where it does. ``over``: graphs have no room."""
    of, needed = start.of, start.cache.request(start.of.max_model_len)
    blocks = start.cache.blocks(start.kv)
    if of.fails[0]:
        return of.fails
    if start.era.checks and not of.kv_cache_memory and start.budget > start.free:
        told = (
            f"{format_bytes(max(0, start.free))} are free, and a share of {of.share:g} is {format_bytes(start.budget)}"
        )
        return told, f"{start.key}: {start.most:g}" if start.least <= start.most else _smaller(start)
    if start.kept >= start.budget and not of.kv_cache_memory:
        told = f"weights and its profile run take {format_bytes(start.kept)} of {format_bytes(max(0, start.budget))}"
        return told, _larger(start)
    if needed > start.kv and start.era.share != "free":
        told = (
            f"the cache of {format_bytes(start.kv)} does not hold one sequence of {of.max_model_len:,} tokens, "
            f"which takes {format_bytes(needed)}"
        )
        return told, f"max_model_len: {start.longest}, or {_larger(start)}" if start.longest else _larger(start)
    if start.states > blocks:
        told = (
            f"its cache of {format_bytes(start.kv)} has {blocks:,} blocks, and the states of {start.states:,} sequences"
        )
        return f"{told} at once take one each", f"max_num_seqs: {blocks}"
    if over and of.kv_cache_memory:
        room = start.free - start.beyond - start.kept
        told = f"a cache of {format_bytes(of.kv_cache_memory)} beside {format_bytes(start.kept)} does not fit the card"
        return told, f"kv_cache_memory: {room // MiB}MiB" if room >= needed else _smaller(start)
    if over:
        whose = "a full batch and CUDA graphs" if start.era.share == "free" else "CUDA graphs"
        told = f"{whose} of {format_bytes(start.beyond)} do not fit beside its share"
        smaller = start.least <= start.most or _some(start)
        return told, f"{start.key}: {start.most:g}" if smaller else "enforce_eager: true"
    return "", ""


def doubted(start: Start) -> str:
    """Why it may not start, where it does as expected and room for a sequence is not what is in doubt."""
    if start.whole <= start.free:
        return ""
    free = format_bytes(max(0, start.free))
    return f"what is not stored in fp8 it makes of 16 bits, {format_bytes(start.whole)} of {free}"


def surer(start: Start) -> str:
    """What to change where it starts as expected, and may not at the worst."""
    if start.whole > start.free:
        return "a checkpoint that is stored in it"
    if start.longest < start.of.max_model_len:
        return f"max_model_len: {start.longest}, or {_larger(start)}"
    calm = start.kept + start.needed + start.doubt - start.compiling <= start.budget
    return f"enforce_eager: true, or {_larger(start)}" if start.compiling and calm else _larger(start)


def _larger(start: Start) -> str:
    """A larger share where one is enough and is free, else smaller parts; of a cache whose size is given, that. SGLang
    starts with less than a request."""
    if start.of.kv_cache_memory:
        needed = ceil(start.needed / MiB)
        free = start.free - start.beyond - start.kept
        return f"kv_cache_memory: {needed}MiB" if needed * MiB <= free else _smaller(start)
    if start.least <= start.most and start.sure > start.of.share:
        return f"{start.key}: {start.sure:g}"
    return f"{start.key}: {start.most:g}, or {_smaller(start)}" if _some(start) else _smaller(start)


def _some(start: Start) -> bool:
    """Whether the largest share leaves SGLang a cache, be it for less than a request."""
    return start.era.share == "free" and start.kept < start.most * start.free


def _smaller(start: Start) -> str:
    """What is left where no share is enough."""
    ranks = start.wider()
    others = [f"tensor_parallel: {ranks}"] * bool(ranks)
    others += ["a quantised checkpoint"] * (served(start.of).format == "none")
    return ", ".join([*others, "or a larger card" if others else "a larger card"])
