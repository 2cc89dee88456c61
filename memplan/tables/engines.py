"""One row per generation engine and era of its versions: what its share means, what lies inside, what it checks.

Read in wheels of vLLM 0.8.5 to 0.33.0, SGLang 0.4.6 to 0.5.23; vLLM's V0 by its logs. Between two rows: the earlier."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from memplan.errors import InvalidJob

Version = tuple[int, int, int]
DENSE = "dense"
BEFORE_HOPPER = ("6.0", "7.0", "7.5", "8.0", "8.6", "8.9")
"""Compute capabilities of cards without Hopper's kernels."""
HOPPER = "9.0"
BEFORE_ADA = BEFORE_HOPPER[:-1]
"""Of cards that multiply no fp8."""


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
    blind: tuple[str, ...] = ()
    """Families whose runner (V2) estimates no graphs, outside the share; DENSE: without experts and states."""
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
    second_runner: bool = False
    """Dense models run in the second runner (V2), others in the first: where the sampler takes more."""
    widest_graphs: tuple[int, int] = (512, 8)
    """Largest batch of a graph, and the step from 256 on."""
    full_graphs: bool = False
    """Decoding has graphs of the whole forward beside the piecewise ones."""
    graph_share: float = 1.0
    """What a captured batch takes, against that of 0.10 (``engine/generation/activation.py``)."""
    estimate: float = 0.0
    """The engine's estimate of the graphs, which is taken from the cache, over what they take."""
    whole_prompts: bool = False
    """A prompt up to 32,768 tokens is one forward, whatever else is said (V0 without chunked prefill)."""
    strands: bool = False
    """Where it can sleep, weights that loading replaces (for a kernel's layout, or quantised there) stay in its pool as
    PyTorch's, so that the cache is given their place a second time."""
    expandable_sleeps: bool = False
    """Sleep works under expandable_segments; else an assertion fails. Before 0.7 it is the trainer's own."""
    loads: Literal["blocks", "unsplit", "segments"] = "blocks"
    """What its figure of the weights counts (``engine/generation/loading.py``)."""
    pools: tuple[str, ...] = ()
    """Families whose layers with a window have a pool of their own, with fewer tokens (``engine/generation/kv.py``)."""
    context_inside: bool = False
    """What lies outside PyTorch is counted with the CUDA context."""


LATEST = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""The newest that is modelled, and assumed where no version is given."""
_WORKER, _KV = "v1/worker/gpu_worker.py", "v1/core/kv_cache_utils.py"
_OLD = Era(
    "vllm",
    (0, 6, 0),
    "total",
    "vllm 0.6 worker/worker.py: determine_num_available_blocks, as github.com/vllm-project/vllm/issues/10517 prints it",
    context_inside=True,
    checks=False,
    nccl_inside=True,
    grouped=False,
    sampler=38.5,
    widest_graphs=(256, 8),
    whole_prompts=True,
    expandable_sleeps=True,
)
_V0 = _OLD._replace(
    since=(0, 7, 0),
    source="vllm 0.7 worker/worker.py: determine_num_available_blocks",
    context_inside=False,
    expandable_sleeps=False,
)
_FIRST = _V0._replace(
    since=(0, 8, 5),
    share="less-used",
    source=f"vllm 0.8.5 {_WORKER}:150-215",
    sampler=38.5,
    widest_graphs=(512, 8),
    whole_prompts=False,
)
_TOTAL = _FIRST._replace(
    since=(0, 9, 2), share="total", source=f"vllm 0.9.2 {_WORKER}:135-225", checks=True, grouped=True
)
_APART = _TOTAL._replace(
    since=(0, 11, 0), source=f"vllm 0.11 {_WORKER}:163-285", nccl_inside=False, full_graphs=True, strands=True
)
_COARSE = _APART._replace(
    since=(0, 11, 1), source=f"vllm 0.13 {_KV}:1019, config/compilation.py:550", unequal=1.25, widest_graphs=(512, 16)
)
_MODULAR = _COARSE._replace(
    since=(0, 15, 0), source="vllm 0.16 layers/fused_moe/fused_moe.py: TritonExperts.workspace_shapes", workspaces=True
)
_CHUNKED = _MODULAR._replace(since=(0, 17, 0), source="vllm 0.17.1 envs.py:201", chunked=True, sampler=14.0)
_WIDE = _CHUNKED._replace(since=(0, 19, 0), source=f"vllm 0.19 {_KV}:1046", unequal=1.5)
_ESTIMATED = _WIDE._replace(
    since=(0, 20, 0), source=f"vllm 0.20.0 {_WORKER}:385, envs.py", estimate=1.2, default_share=0.92, counts_states=True
)
_UNSPLIT = _ESTIMATED._replace(
    since=(0, 20, 2),
    source=f"vllm 0.20.2 {_KV}:1706, config/cache.py:66",
    tokens="concurrency",
    expandable_sleeps=True,
    loads="unsplit",
)
_OF_V2 = ("deepseek_v2", "qwen2_moe", "granitemoe")
_BLIND = _UNSPLIT._replace(
    since=(0, 24, 0),
    source="vllm 0.24 config/vllm.py:68, v1/worker/gpu/model_runner.py: profile_cudagraph_memory",
    blind=(*_OF_V2, "qwen3", "llama", "mistral"),
)
_CONSUMED = _BLIND._replace(
    since=(0, 25, 0),
    source=f"vllm 0.33 {_WORKER}:545-820; 0.25 to 0.28 config/vllm.py: _is_default_v2_model_runner_model",
    blind=(*_OF_V2, DENSE),
    states=2,
    non_torch=220,
    sampler=8.0,
    second_runner=True,
    graph_share=0.6,
    strands=False,
)
_FLYING = _CONSUMED._replace(
    since=(0, 26, 0), source="vllm 0.26 v1/kv_cache_interface.py: max_in_flight_tokens; as 0.25 else", in_flight=2
)
_SEEING = _FLYING._replace(
    since=(0, 29, 0), source="vllm 0.29 v1/worker/gpu/model_runner.py: _profile_cudagraph_memory", blind=()
)
_SGLANG = Era(
    "sglang",
    (0, 4, 6),
    "free",
    "sglang 0.5.5 model_executor/model_runner.py:1260-1323",
    checks=False,
    grouped=False,
    loads="segments",
)
_POOLS = _SGLANG._replace(
    since=(0, 5, 0),
    source="sglang 0.5.5 model_executor/model_runner.py: set_num_token_hybrid",
    pools=("gpt_oss", "llama4"),
)
_NEWEST = _POOLS._replace(
    since=(0, 5, 23),
    source="sglang 0.5.23 configs/model_config.py: is_hybrid_swa_model; mem_cache/kv_cache_configurator.py",
    pools=(*_POOLS.pools, "gemma4", "mimo_v2", "step3p5"),
)
ERAS = (
    _OLD,
    _V0,
    _FIRST,
    _TOTAL,
    _APART,
    _COARSE,
    _MODULAR,
    _CHUNKED,
    _WIDE,
    _ESTIMATED,
    _UNSPLIT,
    _BLIND,
    _CONSUMED,
    _FLYING,
    _SEEING,
    _SGLANG,
    _POOLS,
    _NEWEST,
)

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
