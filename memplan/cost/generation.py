"""Seconds of the generation before an update, and of what goes to and fro around it. Arithmetic that ranks.

A decode step reads the weights of a card and the keys and values of every sequence that runs (memory bandwidth), or is
bound by the products of these sequences (compute), whichever takes longer; prompts are a forward. Sequences that the
cache does not hold wait for others to end. Assumed: every completion as long as it may be, a prompt's keys and values
shared by its completions (prefix caching, vLLM V1's and SGLang's default). Ignored: stragglers, speculation, tools."""

from functools import lru_cache
from typing import NamedTuple

from memplan.cost.host import on_host
from memplan.cost.links import NOWHERE, Group, gather, group, links, reduce
from memplan.cost.rates import Device, Rates, flash_seconds, products_rate
from memplan.cost.work import ModelWork, model_work
from memplan.engine.generation.figures import engine_figures
from memplan.engine.generation.kv import layout
from memplan.engine.generation.weights import weights_bytes
from memplan.engine.held_states import held_states
from memplan.errors import InvalidJob
from memplan.spec.generation import Generator
from memplan.spec.gpu import Gpu
from memplan.spec.recipe import Recipe
from memplan.tables.generation import generation_of
from memplan.units import ceil_div

SCHEDULING = 2e-3
"""Seconds of a decode step that scheduling, sampling and the launch of CUDA graphs take. Assumed: the time of
a step of the smallest models on the fastest cards."""
CATENATED = 3
"""transformers' cache is read, and written anew with a token more, at every step (DynamicLayer.update)."""
HALF = 2


class Generating(NamedTuple):
    """Seconds of one step's generation."""

    prefill: float
    decode: float
    moved: float
    """Weights to the engine, what sleeps or waits on the host and comes back."""
    at_once: float
    """Sequences that one engine runs at once."""
    held: float
    """Sequences of prompt and completion that its cache holds."""
    overlapped: bool = False
    """The trainer trains meanwhile."""

    @property
    def seconds(self) -> float:
        """Of the generation alone."""
        return self.prefill + self.decode

    @property
    def preempted(self) -> bool:
        """More run than the cache holds to their end: some are thrown out and computed again."""
        return self.at_once > self.held


NONE = Generating(0.0, 0.0, 0.0, 0.0, 0.0)


def generating(recipe: Recipe, device: Device, rates: Rates) -> Generating:
    """Of one optimizer step of a recipe; nothing where nothing generates, or of an engine that is not modelled."""
    of, gpu = recipe.generator, recipe.hardware.gpu
    if of is None or gpu is None or not of.rows:
        return NONE
    rates = on_host(rates, device.host, device.chip)
    try:
        if of.engine == "hf":
            return _by_policy(recipe, of, device, rates)
        found = _by_engine(of, gpu, recipe.hardware.gpus_per_node, device, rates)
    except InvalidJob:
        return NONE
    overlapped = of.separate and generation_of(recipe.trainer.name).overlaps
    return found._replace(moved=_moved(recipe, of, gpu, device, rates), overlapped=overlapped)


@lru_cache(maxsize=4096)
def _by_engine(of: Generator, gpu: Gpu, near: int, device: Device, rates: Rates) -> Generating:
    """vLLM's and SGLang's."""
    figures, cache, work = engine_figures(of, gpu, None, False), layout(of), model_work(of.model)
    length = of.prompt_length + of.completion_length
    held = cache.concurrency(figures.kv, length)
    most = min(of.rows, of.max_num_seqs or of.rows)
    at_once = max(1.0, min(float(most), held))
    steps = of.completion_length * max(1.0, of.rows / at_once)
    read = figures.weights * _visited(work, at_once) + at_once * cache.request(length - of.completion_length // 2)
    ranks = group(of.tensor_parallel, 1, near)
    step = decode_seconds(work, read, at_once, ranks, of.itemsize, device, rates)
    each = step + (_issued(work, rates) if of.eager else 0.0) + SCHEDULING
    prompts = ceil_div(of.rows, of.group) * of.prompt_length
    return Generating(
        prefill_seconds(work, prompts, of.prompt_length, of.tensor_parallel, device, rates),
        steps * each,
        0.0,
        float(most),
        held,
    )


def decode_seconds(
    work: ModelWork, read: float, sequences: float, ranks: Group, itemsize: int, device: Device, rates: Rates
) -> float:
    """One token of each sequence, on one card of ``ranks``; ``read``: bytes of it that every step reads."""
    memory = read / (device.memory * rates.memory)
    rate = products_rate(device, rates, itemsize)
    compute = 2 * sequences * _elements(work) / ranks.size / rate
    return max(memory, compute) + _reduced(work, sequences, ranks, itemsize, device, rates)


def prefill_seconds(work: ModelWork, tokens: float, length: int, ranks: int, device: Device, rates: Rates) -> float:
    """A forward of so many tokens of prompts, each ``length`` long."""
    products = 2 * tokens * sum(count * each.weights for count, each in work.layers)
    attention = 0.0
    for count, each in work.layers:
        pairs = min(length, each.window or length) / 2 + rates.prologue if each.per_pair else 0.0
        scores = tokens * count * pairs * each.heads
        attention += flash_seconds(tokens * count * pairs * each.per_pair, scores, device.attention, device, rates)
    return (products / products_rate(device, rates, HALF) + attention) / ranks


def _elements(work: ModelWork) -> float:
    """Elements of matrices that a token passes through, the head's among them."""
    return work.head + sum(count * each.weights for count, each in work.layers)


def _visited(work: ModelWork, sequences: float) -> float:
    """Share of the weights that a step reads: of experts those that any of its tokens is sent to."""
    stored = work.head + sum(count * each.stored for count, each in work.layers)
    unread = 0.0
    for count, each in work.layers:
        if each.expert_stored:
            unread += count * each.expert_stored * (1 - each.expert / each.expert_stored) ** sequences
    return 1 - unread / stored if stored else 1.0


def _reduced(work: ModelWork, sequences: float, of: Group, itemsize: int, device: Device, rates: Rates) -> float:
    """Two all-reduces a layer over the tensor-parallel ranks."""
    over = links(device, rates, NOWHERE)
    return sum(2 * count * reduce(sequences * each.width * itemsize, of, over) for count, each in work.layers)


def _issued(work: ModelWork, rates: Rates) -> float:
    """What the host needs to issue a forward's kernels one by one, without CUDA graphs."""
    return sum(count * each.kernels[0] for count, each in work.layers) * rates.launch


def _by_policy(recipe: Recipe, of: Generator, device: Device, rates: Rates) -> Generating:
    """transformers' generate: all sequences at once, eager, and under FSDP every unit gathered for every token."""
    from memplan.engine.generation.cells import cells_of

    work, spec = model_work(of.model), of.model
    length = of.prompt_length + of.completion_length
    token = sum(cell.token * run.count for run in spec.runs for cell in cells_of(run.layer, of))
    cache = of.rows * token * (length - of.completion_length / 2)
    weights = spec.params.total * of.itemsize
    read = weights * _visited(work, of.rows) + CATENATED * cache
    each = max(decode_seconds(work, read, of.rows, Group(1, 1), of.itemsize, device, rates), _issued(work, rates))
    over, data = links(device, rates, recipe.hardware.cluster), recipe.parallel.data
    whole = gather(weights, group(data, 1, recipe.hardware.gpus_per_node), over) if data > 1 else 0.0
    each += whole if recipe.sharding.name in ("fsdp", "fsdp2") else 0.0
    once = whole if recipe.zero_stage == 3 else 0.0
    prefill = prefill_seconds(work, of.rows * of.prompt_length, of.prompt_length, 1, device, rates)
    return Generating(prefill, of.completion_length * each, once, float(of.rows), float(of.rows))


def _moved(recipe: Recipe, of: Generator, gpu: Gpu, device: Device, rates: Rates) -> float:
    """Weights over the links, gathered and sent; an engine's and a trainer's copies to the host and back."""
    if of.shared_weights:
        return 0.0
    over = links(device, rates, recipe.hardware.cluster)
    cards = recipe.parallel.world + (of.gpus if of.separate else 0)
    rate = over.within if cards <= recipe.hardware.gpus_per_node else min(over.within, over.between)
    sent = of.model.params.total * of.syncing.itemsize / rate
    host = 2 * held_states(recipe).policy.gone(of.away) if any(of.away) else 0
    if of.sleep == 1:
        host += 2 * weights_bytes(of, gpu)
    return sent + host / device.bus
