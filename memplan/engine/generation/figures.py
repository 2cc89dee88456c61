"""All figures of an engine on one card: its budget, what fills it, what it keeps asleep, whether it starts."""

from functools import lru_cache, partial
from typing import NamedTuple

from memplan.engine.allocator.reserved import Band
from memplan.engine.generation.activation import (
    activation_bytes,
    compiling_bytes,
    counted_bytes,
    graph_bytes,
    in_second_runner,
    unprofiled_bytes,
)
from memplan.engine.generation.formats import served
from memplan.engine.generation.kv import STATE_SHARE, layout
from memplan.engine.generation.starting import Start, doubted, reason, surer
from memplan.engine.generation.weights import copy_bytes, least_bytes, most_bytes, weights_bytes
from memplan.engine.nccl import Communicator, communicator_bytes
from memplan.engine.overhead import context_bytes, workspace_bytes
from memplan.spec.generation import Generator, indivisible
from memplan.spec.gpu import EngineConstants, Gpu
from memplan.tables.engines import BEFORE_HOPPER, HOPPER, Era, era_of, version_of
from memplan.units import GiB, MiB

NON_TORCH = Band(20 * MiB, 70 * MiB, 300 * MiB)
"""Outside PyTorch since the engine's first look at the card: kernels that load, workspaces. It stays asleep."""
TRITON = 400 * MiB
"""Of the kernels of gated delta layers, which vLLM's profile run loads and tunes: 0.15 to 0.7 GiB on most cards, on
some several (3.8 under 0.18, of a Qwen3.5 4B)."""
UNEVEN, TRITON_MOST = ("7.5", "11.0", "12.0", "12.1", "unknown"), 5632 * MiB
"""Where they are several: 1.2 to 5.4 GiB on Turing, on Blackwell's small cards and beside a host's own memory."""
COMPILED = 2048 * MiB
"""At most of a profile run that compiles its layers for the first time: 1.5 to 2 GiB of a 7B on an L4 under 0.27 and of
a 14B on an L40S under 0.29, where an eager one takes 0.3. A 7B in AWQ under 0.28 had 125,952 tokens with its compiled
layers at hand, 119,408 without (public repository text 68608959307)."""
UNNAMED, HOSTS = 96 * GiB, 16 * GiB
"""A card given by so large a size alone may share its host's memory (GB10, Thor): what processes take since the first
look counts as the engine's (vllm 0.28 utils/mem_utils.py: MemorySnapshot.measure), 1 to 15 GiB of eleven starts."""
SHARED = (600 * MiB, 1200 * MiB)
"""Of two ranks, and of more, where communicators come before that look: 1.38 GiB in all on 2 H200, 1.70 on 4 RTX PRO
6000, 1.74 on 8 H200."""
LAZY = 200 * MiB
"""Of ranks over PCIe, between which neither symmetric memory nor vLLM's own reduction is set up (vllm 0.19
device_communicators/symm_mem.py, custom_all_reduce.py): 0.21 GiB on 4 L40S, as much on 2 RTX PRO 6000."""
DOUBT, LEAST = 300 * MiB, 512 * MiB
"""How far a profile run may be off; and the least that communicators of several ranks take."""
LAID_OUT, BY_TRTLLM = ("10.0", "10.3"), (0, 21, 0)
"""Cards, and vLLM's first version, on which experts in 16 bits are laid out anew (vllm-project/vllm/pull/41268)."""
KEEPS_FREED = (0, 11, 0)
"""The oldest version of which it was seen."""
WORKSPACE = 384 * MiB
"""FlashInfer's, before and after Hopper, which has others in SGLang (sglang 0.4.9 flashinfer_backend.py)."""
RUNNING = (2048, 4096)
"""Requests that SGLang has rows for, at least and at most (sglang 0.5.8 model_runner_kv_cache_mixin.py)."""
RANKS = 16
"""Tensor parallel ranks that are advised at most: two nodes."""
WARM_UP = 192 * MiB
"""Up to 0.19 the sampler runs once more when the cache is there: outside the share."""


class Figures(NamedTuple):
    """Bytes of one card."""

    budget: int
    """What the share of the card makes."""
    weights: int
    activation: int
    """The most of its profile run, which it keeps free for good."""
    non_torch: int
    graphs: int
    kv: int
    kv_per_token: int
    kv_tokens: int
    concurrency: float
    """Sequences of the longest length at once."""
    awake: Band
    """On the device: of its own process, context and communicators with it; in the trainer's, what it adds."""
    asleep: Band
    outside: Band
    """Context and communicators, which no sleep gives back."""
    states: int
    """SGLang's pool of states, which is not of its cache."""
    pool: int
    """What sleep gives back: weights, cache and states."""
    beside: int
    """SGLang's rows of requests and workspace, outside of its share."""
    host_asleep: int
    """Pinned on the host for this rank while it sleeps."""
    starts: bool
    why: str
    """Why it does not start, or what is the matter."""
    hint: str
    """The one thing to change."""
    may_fail: bool = False
    """It starts as expected, and where all that is uncertain is at its most one sequence has no place."""
    may_start: bool = False
    """It does not as expected, and does where its profile run and communicators take what they may take at the least:
    the cache is short by no more than that is uncertain, and than its format may leave less in 16 bits."""


@lru_cache(maxsize=4096)
def engine_figures(of: Generator, gpu: Gpu, free_at_start: Band | None = None, advised: bool = True) -> Figures:
    """Of one card. ``free_at_start``: usable less what others hold; None: all. ``advised``: more ranks for too few.

    Raises InvalidJob for a model or a version that is not modelled."""
    era, cache, weights = (era_of(of.engine, of.version), layout(of), weights_bytes(of, gpu))
    context, nccl = _context(of, gpu), communicators(of, gpu)
    own = own_constants(gpu)
    free = free_at_start or Band(*(gpu.usable_bytes,) * 3)
    outside, graphs = _sum(context, nccl), graphs_on(of, era, gpu)
    inside = context.expected * era.context_inside
    tuned = TRITON * (era.share != "free" and any(mixer.kind == "gated-delta" for mixer in of.model.mixers))
    loaded = int((era.non_torch * MiB + tuned) * own.non_torch)
    non_torch = loaded + int((_of_ranks(of, era, nccl, gpu) + inside) * own.non_torch) + counted_bytes(of, era)
    calm = int(activation_bytes(of, era) * own.activation)
    activation = max(calm, compiling_bytes(of, era))
    estimate = int(graphs.expected * _estimate(of, era))
    there = free.expected - (context if era.nccl_inside else outside).expected
    budget = budget_bytes(of, era, gpu, there)
    kept = weights if era.share == "free" else weights + activation + non_torch + estimate
    kv = of.kv_cache_memory or max(0, budget - kept)
    states = int(kv * STATE_SHARE) if era.share == "free" and cache.state_bytes else 0
    kv -= states
    beyond = Band(*(max(0, each - estimate) for each in graphs))
    wider = partial(_wider, of, gpu, free_at_start) if advised else int
    apart = Band(0, 0, 0) if era.context_inside else context if era.nccl_inside else outside
    tokens = cache.tokens(kv, of.max_model_len)
    rows = request_rows(tokens, of.max_model_len) if era.share == "free" else 0
    space = WORKSPACE if era.share == "free" and gpu.vendor == "nvidia" and gpu.architecture != HOPPER else 0
    after = activation + rows + space if era.share == "free" else 0
    kernels = TRITON_MOST if tuned and gpu.architecture in UNEVEN else 0
    hosts = HOSTS if gpu.vendor == "custom" and gpu.usable_bytes >= UNNAMED else 0
    first = max(0, COMPILED - activation) if era.estimate and not of.eager else 0
    cold = activation - calm
    captured = int(graphs.high * _estimate(of, era))
    more = most_bytes(of, gpu) - weights + first + kernels + hosts + captured - estimate
    more *= era.share != "free" and not of.kv_cache_memory
    beside, compiling, whole = beyond.expected + after, first + cold + captured, whole_bytes(of, gpu)
    start = Start(of, era, cache, gpu, budget, kept, kv, there, beside, more, compiling, whole, wider)
    text = of._replace(model=of.model.but(tower=None)) if of.separate else of
    unseen = calm - int(activation_bytes(text, era) * own.activation)
    awake = _awake(of, era, apart, budget, kept + kv + states + rows, activation, unseen, beyond)
    again, counted = stranded(of, gpu, weights), era.strands and not of.kv_cache_memory
    filled = kept + kv if of.kv_cache_memory else budget
    most = (again if counted else max(0, weights + again - filled)) + unprofiled_bytes(of, era)
    awake = _sum(awake, Band(space, space, space + most))
    over = awake.expected > free.expected
    why, hint = reason(start, over)
    may_fail = not why and (whole > there or (bool(more) and kept + more + start.needed > budget))
    stays = Band(
        *(each + workspace_bytes(gpu) for each in (NON_TORCH.low, loaded, max(loaded, NON_TORCH.high) + kernels))
    )
    asleep = _sum(outside, graphs, stays, Band(0, space, space)) if of.sleep else awake
    doubt = DOUBT + max(0, non_torch - LEAST) * (of.tensor_parallel > 1) + hosts + cold
    doubt = min(doubt, activation + non_torch)  # weights and one request are certain
    short = least_bytes(of, gpu) + activation + non_torch + start.needed - budget
    return Figures(
        budget=budget,
        weights=weights,
        activation=activation,
        non_torch=non_torch,
        graphs=graphs.expected,
        kv=kv,
        kv_per_token=cache.token_bytes,
        kv_tokens=tokens,
        concurrency=cache.concurrency(kv, of.max_model_len),
        awake=awake,
        asleep=asleep,
        outside=outside,
        states=states,
        pool=weights + kv + states + rows,
        beside=rows + space,
        host_asleep=copy_bytes(of, gpu) if of.sleep == 1 else 0,
        starts=not why,
        why=doubted(start) if may_fail else why,
        hint=surer(start) if may_fail else hint,
        may_fail=may_fail,
        may_start=bool(why)
        and not of.fails[0]
        and not of.kv_cache_memory
        and budget <= max(there, 0)
        and short <= doubt,
    )


def own_constants(gpu: Gpu) -> EngineConstants:
    """Of the machine, by ``memplan calibrate``; else all as expected."""
    return (gpu.calibration and gpu.calibration.engine) or EngineConstants()


def graphs_on(of: Generator, era: Era, gpu: Gpu) -> Band:
    """CUDA graphs, by the machine's own constant."""
    return Band(*(int(each * own_constants(gpu).graphs) for each in graph_bytes(of, era)))


def _wider(of: Generator, gpu: Gpu, free_at_start: Band | None) -> int:
    """The fewest tensor parallel ranks with which it starts, at the worst too if some do, up to ``RANKS``; 0: none."""
    some = 0
    for ranks in range(of.tensor_parallel + 1, RANKS + 1):
        if not indivisible(of.model, ranks, of.expert_parallel):
            more = of._replace(tensor_parallel=ranks, gpus=max(of.gpus, ranks * of.pipeline_parallel))
            found = engine_figures(more, gpu, free_at_start, False)
            if found.starts and not found.may_fail:
                return ranks
            some = some or ranks * found.starts
    return some


def budget_bytes(of: Generator, era: Era, gpu: Gpu, free: int) -> int:
    """What the share makes of the card: of all of it, less what others use up to 0.9.1; SGLang's of what is free."""
    if era.share == "free":
        return int(of.share * max(0, free))
    whole = int(of.share * gpu.usable_bytes)
    return whole if era.share == "total" else whole - max(0, gpu.usable_bytes - free)


def stranded(of: Generator, gpu: Gpu, weights: int) -> int:
    """At most, beside them: weights that loading replaces while its pool is open, which keeps the freed blocks until it
    is closed (vllm 0.30 device_allocator/cumem.py: use_memory_pool), so that loading may run out of memory: those of
    formats (github.com/vllm-project/vllm/issues/34877, 48680), and experts laid out anew for TRT-LLM's kernels
    (issues/43951: 0.21 on GB200, 71 GiB). Where ``Era.strands``, profiling takes them for PyTorch's own (issues/40256,
    a 70B in AWQ: 1.99 GiB a card more cache than without sleep; pull/49151: all but one whole copy of the weights);
    elsewhere they stand beside the weights while these load alone, before the cache is there."""
    version = version_of(of.version)
    laid = of.model.routed and gpu.architecture in LAID_OUT and version >= BY_TRTLLM
    replaced = laid or (served(of).format != "none" and version >= KEEPS_FREED)
    return weights if of.engine == "vllm" and of.sleep and replaced else 0


def whole_bytes(of: Generator, gpu: Gpu) -> int:
    """Of one rank in 16 bits, which an engine by itself makes first if what it serves in fp8 is not stored so, as a job
    cannot tell (vllm 0.15 layers/quantization/fp8.py, sglang 0.4.6 to 0.5.23: create_weights in params_dtype,
    process_weights_after_loading once all are there); 0 where it does not."""
    if of.quantization != "fp8" or of.rows or of.model.quantization or era_of(of.engine, of.version).streams:
        return 0
    return weights_bytes(of._replace(quantization="none"), gpu)


def request_rows(tokens: int, longest: int) -> int:
    """SGLang's table of where a request's tokens are: int32 [requests, longest + 4], in bytes, of the requests that it
    may run at once, 512 for each that its cache of ``tokens`` holds whole (sglang 0.5.8 mem_cache/memory_pool.py:
    ReqToTokenPool). Alive with the cache, and given back with it."""
    least, most = RUNNING
    return min(max(512 * tokens // longest, least), most) * (longest + 4) * 4


def _estimate(of: Generator, era: Era) -> float:
    """The engine's own of its graphs, over what they take."""
    return 0.0 if era.blind and in_second_runner(of, era) else era.estimate


def _awake(
    of: Generator, era: Era, outside: Band, budget: int, filled: int, activation: int, unseen: int, beyond: Band
) -> Band:
    """Its budget once it has run, with what lies outside of it; less what only the largest images need."""
    inside = filled if of.kv_cache_memory else budget
    if era.share == "free":
        inside = filled + activation
    warm = Band(0, 0, 0 if era.estimate else WARM_UP)
    return _sum(outside, beyond, Band(inside - activation, inside - unseen, inside), warm)


def _of_ranks(of: Generator, era: Era, nccl: Band, gpu: Gpu) -> int:
    """What the profile run finds of exchanging with other ranks: communicators, at their most where NVLink's switches
    reduce (NVLS: more than two ranks, Hopper and later; 1.84 GiB on 4 H100), and few over PCIe (0.21 GiB on 8 L40S);
    later what comes beside them."""
    if of.tensor_parallel == 1 or era.share == "free":
        return 0
    gpu = gpu.among(of.tensor_parallel)
    if not era.nccl_inside:
        return LAZY if gpu.link.startswith("PCIe") else SHARED[of.tensor_parallel > 2]
    if gpu.vendor == "custom":
        return nccl.low
    switched = gpu.link.startswith("NVLink") and of.tensor_parallel > 2 and gpu.architecture not in BEFORE_HOPPER
    return nccl.high if switched else nccl.expected


def _sum(*bands: Band) -> Band:
    return Band(*(sum(each) for each in zip(*bands, strict=True)))


def _context(of: Generator, gpu: Gpu) -> Band:
    """Where the process is its own."""
    return Band(*context_bytes(gpu)) if of.own_process or of.separate else Band(0, 0, 0)


def communicators(of: Generator, gpu: Gpu) -> Band:
    """Of its tensor parallel ranks."""
    if of.tensor_parallel == 1:
        return Band(0, 0, 0)
    group = Communicator("tensor parallel", of.tensor_parallel, "collective", of.tensor_parallel)
    return Band(*communicator_bytes(group, gpu, True))
