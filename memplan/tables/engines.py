"""One row per generation engine and era of its versions: what its share means, what lies inside, what it checks.

Read in wheels of vLLM 0.8.5 to 0.33.0, SGLang 0.4.6 to 0.5.23; vLLM's V0 by its logs. Between two rows: the earlier."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from memplan.errors import InvalidJob
from memplan.tables.rows import rows_in

Version = tuple[int, int, int]
DENSE, ALL = "dense", "all"
BEFORE_HOPPER = ("6.0", "7.0", "7.5", "8.0", "8.6", "8.9")
"""Compute capabilities of cards without Hopper's kernels."""
HOPPER = "9.0"
BEFORE_ADA = BEFORE_HOPPER[:-1]
"""Of cards that multiply no fp8."""
ROCM = ("gfx942", "gfx950")
"""AMD's."""


class Era(NamedTuple):
    """Versions of an engine that divide the card alike."""

    engine: str
    since: Version
    share: Literal["less-used", "total", "free"]
    """vLLM's share is of the whole card, up to 0.9.1 less what anybody else uses; SGLang's of what is free."""
    source: str
    checks: bool = True
    """It dies at its start where less than the share is free."""
    nccl_inside: bool = False
    """Its communicators come after the first look at the card, so that the share holds them."""
    second: tuple[str, ...] = ()
    """Families in the second runner (V2); DENSE: those without experts, states and towers; ALL."""
    blind: bool = False
    """That runner estimates no graphs, outside the share."""
    default_share: float = 0.9
    tokens: Literal["blocks", "concurrency"] = "blocks"
    """What "GPU KV cache size" counts: blocks of a group; or concurrency × max_model_len."""
    grouped: bool = True
    """Layers with a window keep no more than it; else they are kept like the others where any has none."""
    chunked: bool = False
    """So do layers that attend within chunks (Llama 4)."""
    unequal: float = 1.0
    """Kinds of layers are padded to the largest where it has less than so many times the smallest's."""
    states: int = 1
    """Pages of a request in each group of state spaces: 2 where prefixes are cached by default."""
    counts_states: bool = False
    """It dies where sequences at once are more than the cache's blocks, one of which keeps each one's state."""
    in_flight: int = 1
    """Batches whose tokens a window still holds."""
    non_torch: int = 70
    """MiB outside PyTorch since the first look at the card, without communicators."""
    sampler: float = 28.7
    """Bytes for each logit of the profile run's sampler (``engine/generation/activation.py``)."""
    workspaces: bool = False
    """Experts have two buffers as wide as their output (``engine/generation/activation.py``)."""
    counts_all: bool = False
    """Its cache is given what is free: what the second runner holds of each sequence is taken from it."""
    widest_graphs: tuple[int, int] = (512, 8)
    """Largest batch of a graph, and the step from 256 on."""
    full_graphs: bool = False
    """Decoding has graphs of the whole forward beside the piecewise ones."""
    graph_share: float = 1.0
    """What a captured batch takes, against that of 0.10 (``engine/generation/activation.py``)."""
    estimate: float = 0.0
    """The engine's estimate of the graphs, which is taken from the cache, over what they take."""
    compiles: bool = False
    """A first start's profile run holds a table of words more (``engine/generation/activation.py``)."""
    whole_prompts: bool = False
    """A prompt up to 32,768 tokens is one forward, whatever else is said (V0 without chunked prefill), and any beside
    what it does not divide (``resolve/engines.py``: forward_tokens)."""
    strands: bool = False
    """Where it can sleep, weights that loading replaces (for a kernel's layout, or quantised there) stay in its pool as
    PyTorch's, so that the cache is given their place a second time."""
    sets_apart: bool = True
    """On AMD's cards rows of experts in 16 bits are set apart (``formats.py``), which 0.20 to 0.24 undo."""
    expandable_sleeps: bool = False
    """Sleep works under expandable_segments; else an assertion fails. Before 0.7 it is the trainer's own."""
    loads: Literal["blocks", "unsplit", "segments"] = "blocks"
    """What its figure of the weights counts (``engine/generation/loading.py``)."""
    pools: tuple[str, ...] = ()
    """Families whose layers with a window have a pool of their own, with fewer tokens (``engine/generation/kv.py``)."""
    latent: int = 1
    """Bytes that a token's latent (MLA) is padded to a multiple of; 0: every head's keys and values are kept instead,
    padded to 256 (vllm 0.6 config.py: get_head_size)."""
    streams: bool = False
    """What it quantises to fp8 itself is so layer by layer as it loads; else all is there in 16 bits first."""
    absorbs: bool = False
    """Attention's products with the latent's matrix are kept beside it (VLLM_MLA_PERFORM_MATRIX_ABSORPTION)."""
    context_inside: bool = False
    """What lies outside PyTorch is counted with the CUDA context."""


LATEST = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""The newest that is modelled, and assumed where no version is given."""
ERAS = rows_in(__file__, Era)
FIRST = "0.8.4"
"""The newest row of vLLM's first engine (V0), as which one of 0.8.5 to 0.10 counts that still runs it."""
ONLY_FIRST = ("XFORMERS", "TORCH_SDPA", "ROCM_FLASH", "DUAL_CHUNK_FLASH_ATTN")
"""Attentions that the second has not (vllm 0.8.5 to 0.10 engine/arg_utils.py: _is_v1_supported_oracle)."""


def runs_first(version: str, environment: Mapping[str, str]) -> str:
    """The setting of the environment by which vLLM 0.8.5 to 0.10 runs its first engine: its profile run is then of 256
    sequences where nobody says, on any card, and its share is of the whole card. Empty where none does."""
    attention, second = environment.get("VLLM_ATTENTION_BACKEND", ""), environment.get("VLLM_USE_V1", "")
    if not (0, 8, 5) <= version_of(version) < (0, 11, 0) or second == "1":
        return ""
    if second == "0":
        return "VLLM_USE_V1=0"
    return f"VLLM_ATTENTION_BACKEND={attention}" if attention in ONLY_FIRST else ""


LEAST_CAPABILITY = {"fp8": 7.5, "awq": 7.5, "int4": 7.5, "nvfp4": 7.5, "mxfp4": 8.0}
"""Of the card, for formats of weights (vllm 0.20 to 0.26 layers/quantization/: get_min_capability of each, the least of
a format's kernels); older versions ask for more."""


def version_of(text: str) -> Version:
    """0.10.2 of "0.10.2.post1"; what is not there is 0."""
    plain, _, _ = text.partition("+")
    found = [int("".join(filter(str.isdigit, part)) or 0) for part in plain.split(".")[:3]]
    first, second, third = (*found, 0, 0, 0)[:3]
    return first, second, third


@lru_cache(maxsize=256)
def era_of(engine: str, version: str) -> Era:
    """The era of a version. Raises InvalidJob for one that is not modelled, with the range that is."""
    found, rows = version_of(version), [era for era in ERAS if era.engine == engine]
    oldest, newest = rows[0].since, version_of(LATEST[engine])
    if not oldest <= found or found[:2] > newest[:2] or (engine == "sglang" and found > newest):
        first = ".".join(map(str, oldest))
        raise InvalidJob(
            f"rollout.engine_version: {engine} {version[:40]} is not modelled",
            f"versions {first} to {LATEST[engine]} are",
        )
    return [era for era in rows if era.since <= found][-1]
