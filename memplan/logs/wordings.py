"""What engines and trainers say of memory, in their words: a row a wording, with where it was read.

A group of a pattern is a term and its unit: ``weights_GiB``; digits behind it tell two of one line apart, and they are
added up. Engines write GB for 2^30 bytes (vLLM to 0.6 ``/ float(2**30)``, SGLang ``1 << 30``, verl ``1024**3``)."""

import re
from functools import cache
from typing import NamedTuple

from memplan.units import GiB, KiB, MiB

UNITS = {"GiB": GiB, "MiB": MiB, "KiB": KiB, "B": 1, "n": 1}
"""n: a number that is no size."""
_NUMBER = r"-?\d[\d,]{0,24}(?:\.\d{1,24})?(?:e[-+]?\d{1,2})?"
_GIB = r" ?(?:GiB|Gib|GB)"


class Wording(NamedTuple):
    """One sentence."""

    whose: str
    """vllm, sglang or trainer."""
    word: str
    """What is looked for: a piece of it that never changes."""
    pattern: str
    """``<weights_GiB>`` stands for a number; ``{GiB}`` for that unit however it is spelled."""
    adds: bool = False
    """Said once a pool or a model, and all count: SGLang's draft model, its pools for sliding windows."""


VLLM = (
    # model_executor/model_loader and worker/model_runner.py 0.5 to 0.6; v1/worker/gpu_model_runner.py since
    Wording("vllm", "loading model weights took", r"Loading model weights took <weights_GiB>{GiB}"),
    Wording("vllm", "model loading took", r"Model loading took <weights_GiB>{GiB}"),
    # worker/worker.py 0.6.3 to 0.6.6
    Wording(
        "vllm",
        "memory profiling results",
        r"total_gpu_memory=<total_GiB>{GiB},? (?:initial_memory_usage=<used_at_start_GiB>{GiB},? )?"
        r"(?:peak_torch_memory=<torch_peak_GiB>{GiB},? )?(?:memory_usage_post_profile=[\d.]+{GiB},? )?"
        r"(?:non_torch_memory=<non_torch_GiB>{GiB},? )?(?:kv_cache_size=<kv_GiB>{GiB},? )?"
        r"(?:gpu_memory_utilization=<share_n>)?",
    ),
    # worker/worker.py 0.7 to 0.9 (V0)
    Wording(
        "vllm",
        "vllm instance can use",
        r"total_gpu_memory \(<total_GiB>{GiB}\) x gpu_memory_utilization \(<share_n>\) = <budget_GiB>{GiB}",
    ),
    Wording("vllm", "model weights take", r"model weights take <weights_GiB>{GiB}"),
    Wording("vllm", "non_torch_memory takes", r"non_torch_memory takes <non_torch_GiB>{GiB}"),
    Wording("vllm", "activation peak memory takes", r"activation peak memory takes <activation_GiB>{GiB}"),
    Wording("vllm", "reserved for kv cache is", r"reserved for KV Cache is <kv_GiB>{GiB}"),
    # v1/worker/gpu_worker.py 0.9 to 0.33; utils/mem_utils.py (DEBUG) for the parts
    Wording("vllm", "available kv cache memory:", r"Available KV cache memory: <kv_GiB>{GiB}"),
    Wording("vllm", "torch peak memory increase", r"torch peak memory increase: <activation_GiB>{GiB}"),
    Wording("vllm", "non-torch forward increase", r"non-torch forward increase memory: <non_torch_GiB>{GiB}"),
    Wording("vllm", "weights memory:", r"; weights memory: <weights_GiB>{GiB}"),
    Wording("vllm", "total non kv cache memory", r"Total non KV cache memory: <non_kv_GiB>{GiB}"),
    Wording("vllm", "free memory on device", r"\(<free_at_start_GiB>/<total_GiB>{GiB}\) on startup"),
    Wording("vllm", "desired gpu memory utilization", r"utilization(?: is)? \(<share_n>, <budget_GiB>{GiB}\)"),
    Wording("vllm", "actual usage is", r"Actual usage is <weights_GiB>{GiB} for weight,"),
    Wording("vllm", "for consumed memory", r"<consumed_GiB>{GiB} for consumed memory"),
    Wording("vllm", "for peak activation", r"<activation_GiB>{GiB} for peak activation"),
    Wording("vllm", "for non-torch memory", r"<non_torch_GiB>{GiB} for non-torch memory"),
    Wording("vllm", "for cudagraph memory", r"<graphs_counted_GiB>{GiB} for CUDAGraph memory"),
    Wording("vllm", "current kv cache memory in use", r"cache memory in use is <kv_B> bytes"),
    Wording("vllm", "current kv cache memory in use", r"cache memory in use is <kv_GiB>{GiB}"),
    Wording("vllm", "as specified by kv_cache_memory", r"reserved <kv_GiB>{GiB} memory for KV Cache"),
    Wording("vllm", "kv cache memory reduced to", r"KV cache memory reduced to <kv_GiB>{GiB}"),
    Wording("vllm", "gpu kv cache size", r"GPU KV cache size: <kv_tokens_n> tokens"),
    Wording(
        "vllm", "maximum concurrency for", r"concurrency for <max_model_len_n> tokens per request: <concurrency_n>x"
    ),
    Wording("vllm", " blocks: ", r"# (?:GPU|cuda|CUDA) blocks: <kv_blocks_n>"),
    Wording("vllm", "num_gpu_blocks is", r"num_gpu_blocks is:? <kv_blocks_n>"),
    Wording("vllm", "setting attention block size", r"attention block size to <block_size_n> tokens"),
    Wording("vllm", "graph capturing finished", r"Graph capturing finished in [\d.]+ secs?, took <graphs_GiB>{GiB}"),
    Wording("vllm", "estimated cuda graph memory", r"Estimated CUDA graph memory: <graphs_estimated_GiB>{GiB}"),
    Wording(
        "vllm",
        "cuda graph pool memory",
        r"pool memory: <graphs_GiB>{GiB} \(actual\), <graphs_estimated_GiB>{GiB} \(estimated\)",
    ),
    Wording(
        "vllm", "cuda graph pool memory", r"memory: actual <graphs_GiB>{GiB}, estimated <graphs_estimated_GiB>{GiB}"
    ),
    # v1/worker/gpu_worker.py and device_allocator/cumem.py
    Wording(
        "vllm",
        "sleep mode",
        r"Sleep mode (?:physically )?freed <slept_GiB>{GiB} memory, <asleep_GiB>{GiB} memory is still",
    ),
    Wording(
        "vllm",
        "sleep freed",
        r"sleep freed <sleep_pool_GiB>{GiB} memory in total, of which <sleep_host_GiB>{GiB} is backed up",
    ),
    Wording("vllm", "using max model len", r"Using max model len <max_model_len_n>"),
    Wording("vllm", "max_num_batched_tokens=", r"max_num_batched_tokens=<max_num_batched_tokens_n>"),
)
SGLANG = (
    # srt/model_executor/model_runner.py and mem_cache/memory_pool.py, 0.2 to 0.5.23
    Wording("sglang", "load weight begin", r"Load weight begin.{0,40}?avail mem=<free_at_start_GiB>{GiB}"),
    Wording("sglang", "load weight end", r"Load weight end.{0,200}?avail mem=<free_after_weights_GiB>{GiB}"),
    Wording("sglang", "load weight end", r"Load weight end.{0,260}?mem usage=<weights_GiB>{GiB}", adds=True),
    Wording("sglang", "draft model loaded", r"Draft model loaded.{0,120}?mem usage=<weights_GiB>{GiB}", adds=True),
    Wording(
        "sglang",
        "kv cache is allocated",
        r"KV Cache is allocated.{0,120}?K (?:size: )?<kv_GiB1>{GiB}, V (?:size: )?<kv_GiB2>{GiB}",
        adds=True,
    ),
    Wording("sglang", "kv cache is allocated", r"KV Cache is allocated.{0,120}?KV size: <kv_GiB>{GiB}", adds=True),
    Wording("sglang", "kvpool mem usage", r"SWAKVPool mem usage: <kv_pools_GiB>{GiB}"),
    Wording(
        "sglang",
        "mamba cache is allocated",
        r"conv_state size: <state_GiB1>{GiB},? +ssm_state size: <state_GiB2>{GiB}"
        r"(?:,? +intermediate_ssm_state_cache size: <state_GiB3>{GiB},? +intermediate_conv_window_cache size: "
        r"<state_GiB4>{GiB})?",
        adds=True,
    ),
    Wording("sglang", "memory pool end", r"Memory pool end\..{0,40}?avail mem=<free_after_pool_GiB>{GiB}"),
    Wording("sglang", "cuda graph end", r"graph end\..{0,120}?mem usage=<graphs_GiB>{GiB}", adds=True),
    Wording("sglang", "cuda graph end", r"graph end\..{0,120}?avail mem=<free_at_end_GiB>{GiB}"),
    Wording("sglang", "max_total_num_tokens=", r"max_total_num_tokens=<kv_tokens_n>"),
    Wording("sglang", "max_running_requests=", r"max_running_requests=<max_num_seqs_n>"),
    Wording("sglang", "context_len=", r"\bcontext_len=<max_model_len_n>"),
    Wording("sglang", "available_gpu_mem=", r"available_gpu_mem=<free_at_end_GiB>{GiB}"),
)
TRAINER = (
    # verl utils/metric and trainer/ppo/metric_utils.py; EasyR1 the same
    Wording("trainer", "max_memory_allocated_gb", r"max_memory_allocated_gb{is}<max_allocated_GiB>"),
    Wording("trainer", "max_memory_reserved_gb", r"max_memory_reserved_gb{is}<max_reserved_GiB>"),
    Wording("trainer", "cpu_memory_used_gb", r"cpu_memory_used_gb{is}<host_GiB>"),
    # verl utils/profiler/performance.py log_gpu_memory_usage; slime utils/memory_utils.py
    Wording(
        "trainer",
        "memory allocated (gb)",
        r"memory allocated \(GB\): <allocated_GiB>, memory reserved \(GB\): <reserved_GiB>",
    ),
    Wording("trainer", "device memory used/total", r"used/total \(GB\): <device_GiB>/<total_GiB>"),
    Wording("trainer", "'allocated_gb':", r"'allocated_GB': <allocated_GiB>,.{0,10}'reserved_GB': <reserved_GiB>"),
    Wording("trainer", "'used_gb':", r"'used_GB': <device_GiB>"),
    # ms-swift (max_memory_reserved), Axolotl, torchtune, torchtitan, unsloth's notebooks, prime-rl
    Wording("trainer", "memory(gib)", r"memory\(GiB\){is}<max_reserved_GiB>"),
    Wording("trainer", "allocated (gib)", r"max_(?:mem_)?allocated \(GiB\){is}<max_allocated_GiB>"),
    Wording("trainer", "allocated(gib)", r"max_(?:mem_)?allocated\(gib\){is}<max_allocated_GiB>"),
    Wording("trainer", "device_reserved (gib)", r"device_(?:mem_)?reserved \(GiB\){is}<max_reserved_GiB>"),
    Wording("trainer", "device_mem_reserved(gib)", r"device_mem_reserved\(gib\){is}<max_reserved_GiB>"),
    Wording("trainer", "peak_memory_alloc", r"peak_memory_alloc{is}<max_allocated_GiB>"),
    Wording("trainer", "peak_memory_reserved", r"peak_memory_reserved{is}<max_reserved_GiB>"),
    Wording("trainer", "gib(", r"\bmemory: +<max_reserved_GiB>GiB\("),
    Wording("trainer", "peak reserved memory =", r"Peak reserved memory = <max_reserved_GiB>{GiB}"),
    Wording("trainer", "peak mem", r"Peak Mem(?:ory|\.)?: <max_reserved_GiB>{GiB}"),
    Wording("trainer", "perf/peak_memory", r"perf/peak_memory{is}<max_reserved_GiB>"),
    # Megatron report_memory (MiB), DeepSpeed see_memory_usage
    Wording("trainer", "| max allocated:", r"\| max allocated: <max_allocated_MiB>"),
    Wording("trainer", "| max reserved:", r"\| max reserved: <max_reserved_MiB>"),
    Wording("trainer", "max_ma ", r"Max_MA <max_allocated_GiB>{GiB} +CA [\d.]+{GiB} +Max_CA <max_reserved_GiB>{GiB}"),
    # transformers trainer_utils.TrainerMemoryTracker: MiB where printed, bytes in JSON
    Wording("trainer", "train_mem_gpu_peaked_delta", r"train_mem_gpu_peaked_delta\s*= *<train_peaked_MiB>MB"),
    Wording("trainer", "train_mem_gpu_alloc_delta", r"train_mem_gpu_alloc_delta\s*= *<train_alloc_MiB>MB"),
    Wording("trainer", "init_mem_gpu_alloc_delta", r"\binit_mem_gpu_alloc_delta\s*= *<init_alloc_MiB>MB"),
    Wording("trainer", "before_init_mem_gpu", r"before_init_mem_gpu\s*= *<before_init_MiB>MB"),
    Wording("trainer", "train_mem_gpu_peaked_delta", r"train_mem_gpu_peaked_delta['\"]{is}<train_peaked_B>"),
    Wording("trainer", "train_mem_gpu_alloc_delta", r"train_mem_gpu_alloc_delta['\"]{is}<train_alloc_B>"),
    Wording("trainer", "init_mem_gpu_alloc_delta", r"['\"]init_mem_gpu_alloc_delta['\"]{is}<init_alloc_B>"),
    Wording("trainer", "before_init_mem_gpu", r"before_init_mem_gpu['\"]{is}<before_init_B>"),
    # nvidia-smi's table
    Wording("trainer", "mib /", r"\| +<device_MiB>MiB / +<total_MiB>MiB \|"),
)
WORDINGS = (*VLLM, *SGLANG, *TRAINER)
_GROUP = re.compile(r"<(\w+)>")
TRAINER_TERMS = frozenset(
    group.rstrip("0123456789").rpartition("_")[0] for row in TRAINER for group in _GROUP.findall(row.pattern)
) - {"total"}
"""Those that a new start of an engine leaves as they are."""


class Compiled(NamedTuple):
    """A wording that is ready to be looked for."""

    wording: Wording
    pattern: re.Pattern[str]
    terms: tuple[tuple[str, str, int], ...]
    """Group, term, and the bytes of its unit."""


@cache
def compiled() -> tuple[Compiled, ...]:
    """Every wording."""
    return tuple(map(_compiled, WORDINGS))


def _compiled(wording: Wording) -> Compiled:
    text = wording.pattern.replace("{GiB}", _GIB).replace("{is}", r"['\"]?(?: ?[:=] ?| +)(?:np\.float\d+\()?")
    pattern = re.compile(_GROUP.sub(lambda name: f"(?P<{name[1]}>{_NUMBER})", text), re.IGNORECASE)
    return Compiled(wording, pattern, tuple((group, *_term(group)) for group in pattern.groupindex))


def _term(group: str) -> tuple[str, int]:
    term, _, unit = group.rstrip("0123456789").rpartition("_")
    return term, UNITS[unit]
