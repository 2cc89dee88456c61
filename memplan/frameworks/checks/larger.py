"""Answers on other terms than the options': a layout of more GPUs than named, layers spread over a process's cards."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.errors import EXIT_DOES_NOT_FIT, InvalidJob
from memplan.frameworks.commands.processes import SPREAD
from memplan.models import load_model
from memplan.spec.model import ModelSpec
from memplan.spec.reading import JobInput, Unread, with_changes

if TYPE_CHECKING:
    from memplan.frameworks.checks.checking import Checked


def on_its_own(
    error: InvalidJob,
    options: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], JobInput],
    answer: Callable[[JobInput], "Checked"],
) -> "Checked | None":
    """The answer where ``error`` is that one copy of the layout takes more GPUs than the options name; None for others.

    ``read``: the file under other options. It is estimated on as many GPUs as it says itself, else on those that one
    copy takes, in nodes of the file's own size, else of as many GPUs as the options name."""
    said, takes = str(options.get("num_gpus")), error.changes.get("num_gpus")
    if not said.isdecimal() or not isinstance(takes, int) or takes <= int(said):
        return None
    named = int(said)
    given = read({key: value for key, value in options.items() if key != "num_gpus"})
    world = given.job.num_gpus if "num_gpus" in given.job.model_fields_set else 0
    world = world if world and world >= takes and world % takes == 0 else takes
    node = given.job.gpus_per_node if "gpus_per_node" in given.job.model_fields_set else named

    def on(world: int) -> "Checked":
        nodes = {"gpus_per_node": node} if node and world % node == 0 else {}
        return answer(with_changes(given, {"num_gpus": world, **nodes}))

    try:
        found = on(world)
    except InvalidJob as deeper:  # its experts take more of them
        more = deeper.changes.get("num_gpus")
        if not isinstance(more, int) or more <= world:
            raise
        takes, world, found = more, more, on(more)
    cards = found.cards.removeprefix(f"{world} × ")
    text = f"does not fit {named} × {cards}: its layout takes {takes} GPUs; {found.text}"
    return replace(found, fits="no", text=text, hint=f"add --num-gpus {world}", exit_code=EXIT_DOES_NOT_FIT)


def unshared(
    error: InvalidJob, path: str, given: JobInput, answer: Callable[[JobInput], "Checked"]
) -> "Checked | None":
    """The answer where ``error`` is that nobody modelled how GPUs share a sequence: with all of it on each, which takes
    no less, and shards what it did; None for others."""
    if error.changes != {"context_parallel": 1}:
        return None
    why = f"{given.job.context_parallel} GPUs share a sequence, which is counted as whole on each"
    above = Unread("context_parallel", path, why, "parallelism", above=True)
    whole = with_changes(given, error.changes)
    return answer(whole._replace(unread=(*whole.unread, above)))


OF_BF16 = {"nf4": 4, "fp4": 4, "int8": 2}
"""By how much less a quantised layer weighs than the embedding beside it."""


def most_layers(spec: ModelSpec, gpus: int, smaller: int) -> int:
    """How many of a model's equal layers the fullest of ``gpus`` cards holds at most, under accelerate's
    ``device_map="auto"``; all of them where the layers differ.

    ``smaller``: times that a layer's weights are stored smaller than the embedding's. Every card but the last is filled
    to T/N + 1.25 L (``get_balanced_memory``), and holds less than that by one module at most; the first keeps its
    largest module free beside that (``infer_auto_device_map``), so that the last card may have two modules, each no
    larger than max(E, L), more than T/N. bitsandbytes fills the others to nine tenths of that (``adjust_max_memory``),
    and the last one has the rest. T: weights of all, L: of a layer, E: of the embedding or the head; what stands
    outside the layers is not divided here. Source: accelerate 1.15, ``utils/modeling.py``, and transformers 5."""
    weights = {run.layer.parameters for run in spec.runs}
    odd = spec.encoder or spec.tower or spec.resting or any(run.blocks for run in spec.runs)
    if odd or len(weights) > 1 or gpus < 2:
        return spec.num_layers
    layer = weights.pop() / smaller
    outside = spec.params.total - spec.num_layers * layer * smaller
    total, largest = spec.num_layers * layer + outside, max(layer, spec.vocab_size * spec.hidden_size)
    share = total / gpus * (1 + (gpus - 1) / 10 if smaller > 1 else 1)
    return min(spec.num_layers, int((share + 1.25 * layer + 2 * largest) / layer))


def spread(found: "Checked", given: JobInput, answer: Callable[[JobInput], "Checked"]) -> "Checked":
    """The answer of the fullest card, where one process spreads the layers, and all of them on one would not fit, as
    ``found`` says; that itself where nothing is spread, or nobody knows how."""
    job = given.job
    deciding = [each for each in given.unread if each.decides]
    known = all(each.above for each in deciding) and any(each.why == SPREAD for each in deciding)
    partly = (
        job.freeze
        or job.extra_models
        or job.rollout
        or (job.lora and (job.lora.layers_to_transform or job.lora.rank_pattern))
    )
    if not known or partly or job.model is None:
        return found
    spec = given.spec or load_model(job.model, job.revision)
    smaller = next((times for name, times in OF_BF16.items() if str(job.quantization).startswith(name)), 1)
    count = most_layers(spec, job.num_gpus or 1, smaller)
    if count == spec.num_layers:
        return found
    runs, left = [], count
    for run in spec.runs:
        if left > 0:
            runs.append(run.piece(0, min(left, run.count), run.layer))
        left -= run.count
    fullest = answer(given._replace(spec=spec.but(runs=tuple(runs))))
    said = f"layers {count} of {spec.num_layers} on the fullest card (accelerate's device_map divides them evenly)"
    return replace(fullest, assumed=(*fullest.assumed, said)) if fullest.fits in ("yes", "tight") else found
