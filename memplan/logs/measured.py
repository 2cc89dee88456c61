"""What a log's processes said, as figures of one card: terms that follow from others are worked out, ranks become one
figure with its range."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from memplan.logs.reading import Log, Process

Terms = dict[str, float]
LEAST = frozenset(
    ("kv", "kv_tokens", "kv_blocks", "concurrency", "free_at_start", "free_at_end", "free_after_pool", "total")
)
"""Of several ranks the smallest counts: an engine takes the fewest blocks of any."""
OF_EVERY_STEP = frozenset(("max_allocated", "max_reserved", "allocated", "reserved", "device", "host", "train_peaked"))
"""Meters that a trainer says again and again: the largest counts."""
BLOCK = 16
"""Tokens of a block of vLLM's V0, which says blocks alone (config.py CacheConfig.block_size)."""
HF_PEAK = ("before_init", "init_alloc", "train_alloc", "train_peaked")
"""transformers' tracker: what was there, and what each stage added."""


class Figure(NamedTuple):
    """A term over the processes that said it."""

    value: float
    low: float
    high: float
    ranks: int


def figures(log: Log) -> dict[str, Figure]:
    """Every term that the log says, or that follows."""
    shared = _shared(log.processes.values())
    found: dict[str, list[float]] = {}
    for process in log.processes.values():
        for term, value in _worked_out(_terms(process), log.engine, shared).items():
            found.setdefault(term, []).append(value)
    made = {term: _figure(term, values) for term, values in found.items()}
    if "kv_blocks" in made and "kv_tokens" not in made and log.engine == "vllm":
        of = made["kv_blocks"]
        made["kv_tokens"] = Figure(BLOCK * of.value, BLOCK * of.low, BLOCK * of.high, of.ranks)
    if "kv" in made and made.get("kv_tokens") and made["kv_tokens"].value > 0:
        each = made["kv"].value / made["kv_tokens"].value
        made["kv_per_token"] = Figure(each, each, each, 1)
    return made


def _figure(term: str, values: list[float]) -> Figure:
    low, high = min(values), max(values)
    return Figure(low if term in LEAST else high, low, high, len(values))


def _terms(process: Process) -> Terms:
    return {term: said.most if term in OF_EVERY_STEP else said.last for term, said in process.terms.items()}


def _shared(processes: Iterable[Process]) -> Terms:
    """What one process says for all: the card's size, the share, the free memory before loading."""
    found: Terms = {}
    for process in processes:
        for term in ("total", "share", "max_model_len"):
            value = process.last(term)
            if value is not None:
                found.setdefault(term, value)
    return found


def _worked_out(said: Terms, engine: str, shared: Mapping[str, float]) -> Terms:
    """With what follows from it."""
    terms = dict(said)
    follow = _VLLM if engine == "vllm" else _SGLANG if engine == "sglang" else ()
    for term, needs, rule in (*follow, *_TRAINER):
        known = {**shared, **terms}
        if term not in terms and all(need in known for need in needs):
            terms[term] = rule(*(known[need] for need in needs))
    if "kv_pools" in terms:
        terms["kv"] = max(terms.get("kv", 0.0), terms["kv_pools"])
    return terms


Rule = tuple[str, tuple[str, ...], Callable[..., float]]
_VLLM: tuple[Rule, ...] = (
    ("activation", ("torch_peak", "weights"), lambda peak, weights: peak - weights),
    ("non_torch", ("consumed", "weights"), lambda consumed, weights: consumed - weights),
    ("graphs", ("graphs_counted",), lambda counted: counted),
    ("budget", ("weights", "total", "share"), lambda _, total, share: total * share),
    ("free_at_start", ("used_at_start", "total"), lambda used, total: total - used),
)
_SGLANG: tuple[Rule, ...] = (
    ("weights", ("free_at_start", "free_after_weights"), lambda before, after: before - after),
)
_TRAINER: tuple[Rule, ...] = (("max_allocated", HF_PEAK, lambda *parts: sum(parts)),)


class Left(NamedTuple):
    """What no term of the log accounts for."""

    bytes: float
    of: str
    """The sum that it is left of, in words."""


def unaccounted(log: Log, found: Mapping[str, Figure]) -> Iterator[Left]:
    """The engine's own sum, from terms of one rank where one says all; and what is on the card beside its budget."""
    for process in log.processes.values():
        left = _own_sum(_worked_out(_terms(process), log.engine, _shared(log.processes.values())), log.engine)
        if left is not None:
            yield left
            break
    if log.engine == "vllm" and "device" in found and "budget" in found:
        beside = found["device"].value - found["budget"].value
        yield Left(beside, "the device at most - the engine's budget: contexts, NCCL, graphs, and all that is not its")


def _own_sum(terms: Terms, engine: str) -> Left | None:
    if engine == "sglang":
        needs = ("free_at_start", "weights", "kv", "free_at_end")
        if any(term not in terms for term in needs):
            return None
        parts = terms["weights"] + terms["kv"] + terms.get("state", 0.0) + terms.get("graphs", 0.0)
        return Left(terms["free_at_start"] - terms["free_at_end"] - parts, "what it took - weights - cache - graphs")
    if any(term not in terms for term in ("budget", "weights", "activation", "non_torch", "kv")):
        return None
    held = terms["weights"] + terms["activation"] + terms["non_torch"] + terms["kv"]
    left = terms["budget"] - held
    estimated = terms.get("graphs_estimated", 0.0)
    if estimated and abs(left - estimated) < abs(left):
        return Left(left - estimated, "budget - weights - activation - non-torch - graphs as estimated - cache")
    return Left(left, "budget - weights - activation - non-torch - cache")
