"""What an engine does where nobody says: tokens of a forward, sequences at once, SGLang's share of the card.

vLLM 0.8.5 to 0.33 engine/arg_utils.py: _set_default_args; SGLang 0.4.6 to 0.5.23 server_args.py, memory_hook.py."""

from typing import NamedTuple

from memplan.tables.engines import LATEST, version_of
from memplan.units import GiB, pairs_of


class Defaults(NamedTuple):
    """Of one engine on one card."""

    tokens: int
    """max_num_batched_tokens, or chunked_prefill_size."""
    sequences: int
    """max_num_seqs; SGLang: the most that graphs are captured for."""
    share: float = 0.0
    """SGLang's mem_fraction_static; 0: the era's."""


LARGE, HUGE, A100 = 70 * GiB, 160 * GiB, "8.0"
"""From so much memory on, and by its compute capability (vllm engine/arg_utils.py)."""
SGLANG = ((20, 2048, 8), (35, 4096, 48), (60, 4096, 32), (90, 8192, 256), (160, 8192, 256), (10**6, 16384, 512))
"""Below so many GiB: chunked_prefill_size, and the largest captured batch of tensor parallel below 4."""
WIDE = {8: 80, 48: 80, 32: 80, 256: 512}
"""The same from tensor parallel 4 on."""
LONGEST_WHOLE = 32_768
"""Tokens up to which V0 takes a prompt in one forward (vllm 0.7 engine/arg_utils.py: enable_chunked_prefill)."""
BY_RANKS = ((1, 0.88), (2, 0.87), (4, 0.85), (8, 0.81), (16, 0.79))
"""SGLang's share before 0.4.8, by tensor parallel ranks."""
PIECES = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, 16385, 512))
"""Tokens of SGLang's graphs of the prefill (sglang 0.5.19 arg_groups/cuda_graph_hook.py), each with 8 MiB left free."""
LEFT_FREE = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5), (10**6, 32.0, 0.0))
"""0.4.8 to 0.5.2: below so many GiB of the card, GiB left free, and for each rank (sglang 0.4.9: reserved_mem)."""


TAKEN = {
    ("trl", "vllm"): pairs_of(
        """0.16=0.8.2 0.17=0.8.4 0.18=0.9.0 0.19=0.9.1 0.20=0.10.0 0.22=0.10.1 0.24=0.10.2 0.26=0.11.2 0.27=0.12.0
        1.0=0.17.1 1.4=0.18.0 1.8=0.23.0 1.12=0.27.1 1.16=0.31.0"""
    ),
    ("verl", "vllm"): pairs_of("0.1=0.6.3 0.2=0.7.3 0.3=0.8.5 0.6=0.10.0 0.6.1=0.11.0 0.7=0.12.0 0.9=0.24.0"),
    ("skyrl", "vllm"): {"0": "0.13.0"},
    ("verl", "sglang"): pairs_of("0.4=0.4.6 0.5=0.4.8 0.6=0.5.2 0.6.1=0.5.5 0.7=0.5.6 0.8=0.5.8 0.9=0.5.12"),
}
"""The newest engine that a trainer takes from a version of its own on: the extras of trl 0.24 to 1.16 (before, none is
named: the newest that was out), verl's setup.py of 0.1 and 0.2, images up to 0.7 and extras of 0.8 and 0.9,
skyrl_train's of 0.4."""


def taken_by(trainer: str, version: str, engine: str) -> str:
    """The engine's version where nobody says: the newest that the trainer takes, and that is modelled."""
    rows = TAKEN.get((trainer.removesuffix("-megatron"), engine), {})
    fitting = [each for since, each in rows.items() if not version or version_of(since) <= version_of(version)]
    return (fitting or list(rows.values())[:1] or [LATEST[engine]])[-1]


class Card(NamedTuple):
    """What decides them."""

    usable: int
    """Bytes, as torch says them."""
    memory: int
    """As nvidia-smi does."""
    capability: str


def defaults_of(engine: str, version: str, card: Card, ranks: int, server: bool = False) -> Defaults:
    """Where nobody says. ``server``: not by its Python class."""
    found, memory = version_of(version), card.memory
    if engine != "sglang":
        small = found < (0, 8, 5) or (card.capability == A100 and found >= (0, 9, 0))
        if card.usable >= LARGE and not small:
            huge = card.usable >= HUGE and found >= (0, 25, 0)
            return Defaults(8192 if server and not huge else 16384, 1024)
        return Defaults(2048 if server else 8192, 256)
    _, chunk, graphs = next(row for row in SGLANG if memory < row[0] * GiB)
    graphs = WIDE.get(graphs, graphs) if ranks >= 4 else graphs
    if found < (0, 4, 8):
        return Defaults(chunk, graphs, next((share for most, share in BY_RANKS if ranks <= most), 0.79))
    if found < (0, 5, 3):
        free = next(free + each * ranks for below, free, each in LEFT_FREE if memory < below * GiB)
        return Defaults(chunk, graphs, round(1 - free * GiB / memory, 3))
    reserved = 512 + 1.5 * max(chunk, 2048) + 2 * graphs + ranks / 8 * 1024
    if found >= (0, 5, 12):
        reserved += 8 * sum(size <= chunk for piece in PIECES for size in range(*piece))
    if memory > 60 * GiB:
        reserved = max(reserved, 10 * 1024)
    return Defaults(chunk, graphs, round(1 - reserved * 2**20 / memory, 3))


WHOLE_VIDEO = 2496
"""Tokens of Gemma 4's longest video (32 frames), which attend to each other and so are one forward: of 0.25's logs,
which raise 2,048 to them; 0.19's have 2,048."""


UNSLOTH_SHARE, UNSLOTH_SEQUENCES = 0.5, 256
"""unsloth 2026.10 models/loader.py: fast_inference's gpu_memory_utilization, max_num_seqs of vllm_utils.load_vllm."""
STANDBY = ((40, 0.925), (25, 0.9), (20, 0.825), (14, 0.8), (10, 0.775), (0, 0.75))
OLD_STANDBY = ((90, 0.9), (40, 0.875), (25, 0.85), (20, 0.825), (14, 0.8), (10, 0.75), (0, 0.7))
KEPT = 0.95
"""UNSLOTH_VLLM_STANDBY: the share of a card of so many GiB that stands in place of what is asked for; of vLLM before
0.11 (unsloth_zoo 2026.10 vllm_utils.py: load_vllm)."""


def standby_share(memory: int, old: bool) -> float:
    """Of a card of so many bytes."""
    rows = OLD_STANDBY if old else STANDBY
    return round(KEPT * next(share for least, share in rows if memory >= least * GiB), 4)
