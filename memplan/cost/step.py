"""Seconds of one optimizer step, and what they go to. Arithmetic that ranks ways to run a job; it promises nothing.

The step is ``accumulation`` micro-steps, each a forward and a backward of the slowest pipeline stage (the fullest, or
the last, which has the head) with what no computation hides of communication, then the optimizer. A pipeline of p
stages in v chunks adds (p - 1) / v micro-steps (1F1B and its interleaved form: Narayanan et al., arXiv:2104.04473,
section 2.2). All wait for the slowest card (``peak``). Ignored: data loading, logging, evaluation, hosts that
lag, uneven experts, what DTensor adds to the host's time for each operation."""

from collections.abc import Sequence
from typing import NamedTuple

from memplan.cost import traffic
from memplan.cost.host import EXPERT_LINEARS, on_host
from memplan.cost.links import Links, links
from memplan.cost.optimizer import (
    adding_seconds,
    copying_seconds,
    fetched_seconds,
    host_seconds,
    is_offloaded,
    optimizer_seconds,
    stepped_on_host,
    trained_elements,
)
from memplan.cost.passes import Head, Pass, Passes, head_pass, passes_of
from memplan.cost.peak import slowest
from memplan.cost.rates import Device, Rates
from memplan.cost.shape import Shape, looped, shape_of, without_training
from memplan.cost.stages import Shares, predictors, shares
from memplan.cost.tower import tower_pass
from memplan.cost.work import ModelWork, model_work
from memplan.spec.recipe import Recipe

NO_HEAD = Head(0.0, 0.0)
ITSELF = ("adapter", "precomputed", "offloaded")
"""References whose forward is the policy's own, as it was before it was trained."""
SCORING = {"split": 0.5, "gradcache": 1.0}
"""Forwards without a graph beside the trained one, by pair schedule: of the half that waits, or of both."""
COPIED, UNSPLIT = 0.2, 1 / 16
"""``Rates.contention`` of Transformer Engine's overlapped tensor parallelism, half by the copy engines, half on 16 of
some 132 multiprocessors, all through memory; and what no product hides: a quarter, the last of four parts, of the
forward's two reductions among a layer's eight collectives (2.13 pytorch/module/base.py: initialize_ub)."""


class Step(NamedTuple):
    """Seconds of one optimizer step; the parts add up to ``seconds``."""

    seconds: float
    products: float
    """Matrix products of the layers, forward and backward."""
    attention: float
    moves: float
    """Pointwise chains, and where the host issues kernels more slowly than the card runs them, waiting for it."""
    head: float
    recomputation: float
    other_passes: float
    """Reference, reward models, critic, teacher, forwards that score."""
    communication: float
    """What no computation hides."""
    bubble: float
    optimizer: float
    host: float
    """What waits for the host's memory and processor."""
    generation: float = 0.0
    """Completions of an online method, beyond what a trainer does meanwhile."""
    syncing: float = 0.0
    """Weights to the engine that makes them, and what goes to the host and comes back around it."""


PARTS = Step._fields[1:]


class Prepared(NamedTuple):
    """What does not depend on micro-batch and accumulation: once for all batches of a structure."""

    work: ModelWork
    shape: Shape
    over: Links
    sizes: traffic.Sizes
    data: traffic.Data
    ending: float
    """Seconds of the optimizer."""
    of: Shares
    """Of the layers that stages have."""
    fetched: float
    """Seconds of fetching the weights from the host for one pass."""
    host: bool
    """Something else waits for the host."""
    others: tuple[tuple[ModelWork, Passes], ...]
    """Of forwards without a graph of other models: the residents', then the critic's."""
    rates: Rates
    """Of this host."""
    passes: Passes
    """The trained pass, by its rows."""
    bare: Passes
    """The policy's forward without its adapters, which are off while it is its own reference (TRL 1.16
    trainer/utils.py: use_adapter; peft 0.21 tuners/lora/layer.py: disable_adapters)."""


def prepared(recipe: Recipe, device: Device, rates: Rates) -> Prepared:
    """That of a recipe, whatever its batch."""
    work, device = model_work(recipe.model), slowest(device, recipe.parallel.world)
    rates = on_host(rates, device.host, device.chip)
    over, sizes = links(device, rates, recipe.hardware.cluster), _sizes(recipe, work)
    data, ending = traffic.data_parallel(recipe, sizes, over), optimizer_seconds(recipe, sizes, device, rates)
    waits = stepped_on_host(recipe) > 0 or is_offloaded(recipe, "activations")
    fetched = fetched_seconds(recipe, sizes, device)
    critic = recipe.others.critic
    scoring = [(model_work(model.spec), model.quantised) for model in recipe.others.residents]
    scoring += [(model_work(critic.spec), None)] if critic is not None else []
    scored = ((each, without_training(shape_of(recipe, each), stored)) for each, stored in scoring)
    others = tuple((each, passes_of(each, shape, device, rates)) for each, shape in scored)
    shape, of = shape_of(recipe, work), shares(recipe)
    passes = passes_of(work, shape, device, rates)
    bare = passes_of(work, without_training(shape, recipe.quantised), device, rates) if recipe.adapter else passes
    return Prepared(work, shape, over, sizes, data, ending, of, fetched, waits, others, rates, passes, bare)


def step(recipe: Recipe, device: Device, rates: Rates, ready: Prepared | None = None) -> Step:
    """One optimizer step of the recipe. ``ready``: ``prepared`` of it, or of the same with another batch."""
    ready = ready or prepared(recipe, device, rates)
    given, device = (device, rates), slowest(device, recipe.parallel.world)
    work, shape, over, sizes, data, ending, of, fetched, waits, scoring, rates, passes, bare = ready
    rows = recipe.rows * recipe.batch.sequence_length // shape.length  # of a packed row, its sequences
    trained = passes[rows]
    head, tower = head_pass(recipe, work, device, rates), tower_pass(recipe, shape, device, rates)
    heads = 1 + predictors(recipe)
    head = Head(heads * head.forward + tower.forward, heads * head.backward + tower.backward)
    degrees, micro = recipe.parallel, recipe.batch.accumulation
    layer = trained.forward + trained.backward + trained.again
    share = of.last
    if of.last * layer + head.forward + head.backward < of.fullest * layer:
        share, head = of.fullest, NO_HEAD
    copied, joined = copying_seconds(recipe, sizes, device, rates)
    forward = trained.forward * share + head.forward + copied
    backward = (trained.backward + trained.again) * share + head.backward + joined
    backward += adding_seconds(recipe, sizes, device, rates)
    activations = _activations(recipe, work, trained, over, device, rates) * share
    hidden = rates.overlap if data.hides else 0.0
    scored = [_scored(recipe, *each, rows, (head is not NO_HEAD) / share, device, rates) for each in scoring]
    own = trained.forward, (bare[rows].forward if recipe.others.reference in ITSELF else 0.0)
    others = share * _other_passes(recipe, work, own, head.forward / share, data.forward, scored, device, rates)
    exposed = _waited(max(data.forward, fetched), hidden * forward, rates)
    exposed += _waited(max(data.backward, fetched), hidden * backward, rates)
    once = _waited(data.first, hidden * forward, rates) + _waited(data.last, hidden * backward, rates) + data.after
    sent = traffic.pipeline(recipe, work, over) * (1 - rates.overlap if degrees.virtual > 1 else 1.0)
    each = forward + backward + others + activations + exposed + sent
    bubble = each * (degrees.pipeline - 1) / degrees.virtual
    waiting = host_seconds(recipe, sizes, _saved_bytes(recipe, work, shape), device) if waits else 0.0
    training = micro * each + bubble + once + ending + waiting
    generation, syncing = of_generation(recipe, training, *given) if recipe.generator is not None else (0.0, 0.0)
    seconds = training + generation + syncing
    products = micro * share * trained.products * (2 + (0.0 if recipe.adapter else work.trained_share))
    attention = micro * share * (trained.attention + trained.attended)
    ends = micro * (head.forward + head.backward)
    again = micro * share * trained.again
    moves = micro * (forward + backward) - products - attention - ends - again
    return Step(
        seconds,
        products,
        attention,
        moves,
        ends,
        again,
        micro * others,
        micro * (activations + exposed + sent) + once,
        bubble,
        ending,
        waiting,
        generation,
        syncing,
    )


def of_generation(recipe: Recipe, training: float, device: Device, rates: Rates) -> tuple[float, float]:
    """(beyond a training of so many seconds, with the engine's weights on their way)."""
    from memplan.cost.generation import generating  # an engine's, which most jobs never load

    made = generating(recipe, device, rates)
    return max(0.0, made.seconds - training) if made.overlapped else made.seconds, made.moved


def _waited(sent: float, beside: float, rates: Rates) -> float:
    """Seconds that communication costs beside so much computation: what is longer, and what it slows down."""
    covered = min(sent, beside)
    return sent - covered + rates.contention * covered


def _activations(recipe: Recipe, work: ModelWork, trained: Pass, over: Links, device: Device, rates: Rates) -> float:
    """Exposed seconds of communication that activations cause in one micro-step: tensor and expert parallelism wait in
    forward, backward and where forward is made again; a ring of keys and values runs beside attention."""
    times = 2 + (trained.again / trained.forward if trained.forward else 0)
    tensor, experts = traffic.waited_for(recipe, work, over, device.memory * rates.memory)
    if recipe.trainer.megatron and recipe.megatron.tp_comm_overlap:
        beside = _waited(tensor, rates.overlap * trained.products, rates._replace(contention=COPIED))
        tensor = beside + tensor * UNSPLIT
    waits = (tensor + experts) * times
    if not traffic.rings(recipe):
        return waits + traffic.context_parallel(recipe, work, over) * times
    ring = traffic.context_parallel(recipe, work, over) * (times + 1)
    return waits + _waited(ring, trained.attention * (times + 1), rates)


def _other_passes(
    recipe: Recipe,
    work: ModelWork,
    policy: tuple[float, float],
    ends: float,
    gathered: float,
    scored: Sequence[float],
    device: Device,
    rates: Rates,
) -> float:
    """Seconds of one micro-step's passes beside the trained one, as if the stage with its share of the layers, and its
    head or none, did them all.

    A reference that is precomputed costs the same forward once for each example, charged here as in one epoch; one that
    is offloaded comes to the card, each rank's share of it, for each of its forwards; in NeMo-Aligner weights are
    swapped once for a whole step, and back (utils/utils.py: cpu_weight_swap). ``gathered``: seconds that the
    policy's weights take to gather, for which sharded models wait as it does. ``policy``: of its forward, and of that
    without adapters. ``ends``: of a head's. ``scored``: of the forwards of each resident model, then of the critic."""
    own, bare = (
        each + _waited(gathered * recipe.parallel.pipeline, rates.overlap * each, rates)
        for each in (seconds + ends for seconds in policy)
    )
    total = 0.0
    if recipe.method.pairs:
        total += SCORING.get(recipe.loss.pair_pass, 0.0) * own
    if recipe.method.kl_rows:
        total += own
    if recipe.trainer.rollouts.scored and recipe.method.online:
        total += own
    if recipe.others.reference in ITSELF:
        total += bare
    if recipe.others.reference == "offloaded":
        parts = recipe.parallel.tensor * (max(recipe.sharding.ranks, 1) if gathered else 1)
        times = 2 / recipe.batch.accumulation if recipe.trainer.megatron else 1
        total += times * work.elements * recipe.numerics.itemsize / parts / device.bus
    for model, seconds in zip(recipe.others.residents, scored, strict=False):
        waits = gathered * recipe.parallel.pipeline * model.spec.params.total / max(work.elements, 1)
        total += seconds + (_waited(waits, rates.overlap * seconds, rates) if model.sharded else 0.0)
    if recipe.others.critic is not None:
        total += 4 * scored[-1]
    return total


def _scored(
    recipe: Recipe, work: ModelWork, passes: Passes, rows: int, heads: float, device: Device, rates: Rates
) -> float:
    """A forward without a graph of another model over the same rows; ``heads``: how often its head's."""
    return passes[rows].forward + head_pass(recipe, work, device, rates).forward * heads


def _sizes(recipe: Recipe, work: ModelWork) -> traffic.Sizes:
    """Elements of weights, and of trained ones, that one rank of a (tensor, pipeline, expert) part has."""
    degrees = recipe.parallel
    experts = sum(count * each.expert_stored for count, each in work.layers)
    dense = work.elements - experts
    split = degrees.expert * traffic.expert_parts(recipe)
    held = dense / degrees.tensor + experts / split
    weights = held / degrees.pipeline
    layers = sum(count for count, _ in work.layers) / degrees.pipeline
    alone = EXPERT_LINEARS / degrees.expert if looped(recipe) else 0.0
    modules = sum(count * (len(each.products) + alone * each.experts) for count, each in work.layers) / degrees.pipeline
    trained = trained_elements(recipe) * weights / work.elements if work.elements else 0.0
    packed = sum(count * each.stored for count, each in work.layers) if recipe.quantised else 0.0
    bits = recipe.quantised.scheme.bits if recipe.quantised else 0.0
    itemsize = recipe.numerics.itemsize
    each = itemsize + packed / work.elements * (bits / 8 - itemsize) if work.elements else itemsize
    return traffic.Sizes(weights, each, trained, layers, modules, experts / split / held if held else 0.0)


def _saved_bytes(recipe: Recipe, work: ModelWork, shape: Shape) -> float:
    """Bytes that layers save for backward in one micro-step on one GPU: their inputs where they are checkpointed."""
    degrees = recipe.parallel
    tokens = recipe.rows * recipe.batch.sequence_length / degrees.context
    kept = 0.0
    for kind, (count, each) in enumerate(work.layers):
        again = sum(one.shares[kind] for one in shape.again)
        kept += count * (again * each.width + (1 - again) * 1.5 * each.flow)
    return tokens * kept * recipe.numerics.itemsize / degrees.pipeline / degrees.tensor
