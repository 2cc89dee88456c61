"""FSDP's rows: what its hooks hold at each instant of a step, under the names that they give it.

A unit (a layer, the root around them, sometimes embedding or head) is gathered before it runs and freed behind it; its
gradients are reduced to the rank's shard when it has run back. When which of these is there follows from a play of the
hooks (``play/fsdp1.py``, ``play/fsdp2.py``), in which layers are black boxes (``play/boxes.py``)."""

from collections.abc import Iterator

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp.beside import FSDP, SHARDS, enter_beside
from memplan.engine.parallel.fsdp.instants import Halves, Held
from memplan.engine.parallel.fsdp.question import Stage, question_of
from memplan.engine.parallel.held_rows import MOMENT, enter_held
from memplan.engine.play.boxes import Question
from memplan.engine.play.folded_boxes import moments_of
from memplan.engine.play.moments import Key, Label, Things
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe

PADDED, PART, FLAT = (
    "padded elements × bytes",
    "padded elements / ranks × bytes",
    "elements of the flat parameter × bytes",
)
WHOLE, GROUP, PARAM = "elements × bytes", "_fully_shard/_fsdp_param_group.py", "_fully_shard/_fsdp_param.py"
ONE, RUN = "_flat_param.py", "_runtime_utils.py"
SAID = {
    "gathered weights": (PADDED, "copied out of the all-gather's output for use", f"{GROUP}: wait_for_unshard"),
    "all-gather output": (PADDED, "gathered ahead, or until the next copy-out", f"{GROUP}: AllGatherState"),
    "all-gather input": (PART, "the rank's part in the dtype of its use", f"{PARAM}: all_gather_inputs"),
    "shard from the host": (PART, "the rank's part waits on the host", f"{PARAM}: all_gather_inputs"),
    "parts of gathered": (PADDED, "reshard_after_forward is a number", f"{PARAM}: to_sharded_post_forward"),
    "weights in the dtype": (WHOLE, "one rank gathers nothing, and casts", f"{PARAM}: all_gather_inputs"),
    "reduce-scatter input": ("padded elements × reduce bytes", "kept until the next unit's", f"{GROUP}: post_backward"),
    SHARDS: (PART, "reduced, in the dtype of the stored weights", "_fully_shard/_fsdp_collectives.py: foreach_reduce"),
    "reduced gradients": (PART, "held to the end of backward where they are replicated", f"{GROUP}: AllReduceState"),
    "gradients that wait": (WHOLE, "a later backward reduces them", f"{PARAM}: to_accumulated_grad_if_needed"),
    "whole gradients": (WHOLE, "until they are reduced", f"{GROUP}: post_backward"),
    "weight gradients": (WHOLE, "until they are reduced", f"{GROUP}: post_backward"),
    "gathered flat": (FLAT, "gathered straight into place", f"{ONE}: _alloc_padded_unsharded_flat_param"),
    "shard in low precision": (PART, "there while the gather runs", f"{ONE}: _use_low_precision_shard"),
    "flat gradient": (FLAT, "put together from gradients of views", f"{RUN}: _post_backward_hook"),
    "cast": ("elements × reduce bytes", "the reduction's dtype is another", f"{RUN}: _reduce_grad"),
    "zeros": (WHOLE, "autograd fills the places of what nothing used", f"{ONE}: _use_unsharded_views"),
    "sum": (FLAT, "of two forwards that run back together", f"{ONE}: _use_unsharded_views"),
    MOMENT[1]: ("", "a copy-out or a reduction before or behind what runs", ""),
}  # fmt: skip
"""By how its name begins: its formula, why it is there, and where under ``FSDP`` that is said."""


def enter_units(ledger: Ledger, recipe: Recipe, weights: list[Weight], passes: list[Stage]) -> None:
    """Every row that FSDP adds to the passes of a micro-step."""
    question = question_of(recipe, weights, passes)
    held, embedded = dict[str, Things](), dict[str, int]()
    for instant, things, output in _fullest(question, passes):
        held[instant] = _renamed(things)
        embedded |= {instant: output} if instant.endswith(".gather") else {}
    enter_held(ledger, held, {name: (formula, why, f"{FSDP}/{where}") for name, (formula, why, where) in SAID.items()})
    for instant, size in embedded.items():
        ledger.add("embedding output", "activations", size, at=instant).formula("T × h × bytes", size).since(
            "the first layer is gathered when its input is there", f"{FSDP}/_fully_shard/_fsdp_state.py: _pre_forward"
        )
    enter_beside(ledger, recipe, question, passes)


def _fullest(question: Question, passes: list[Stage]) -> Iterator[tuple[str, Things, int]]:
    """(instant, what is there, of it the embedding's output) in the micro-step in which that is most."""
    moments, units = moments_of(question), [sizes.unit for sizes in question.policy.layers]
    for traced, point in passes:
        most, back = dict[str, tuple[Held, int]](), point == "backward"
        for number in question.fullest:
            half = Halves(moments, traced, number, units, back)
            for each, held in half.backward() if back else half.forward() if point == "forward" else ():
                if each not in most or held.total > most[each][0].total:
                    most[each] = held, half.embedded
        for each, (held, output) in most.items():
            yield f"{traced.plan.name}.{each}", _things(held), output
    last = moments.get(Key(question.micro_steps - 1, "step", "optimizer"))
    yield "step.optimizer", last.things if last else {}, 0


def _things(held: Held) -> Things:
    """What is there by name, but for gradients that the rows of the pass count."""
    things = {label: size - min(size, held.counted.get(label, 0)) for label, size in held.things.items()}
    beyond = held.total - sum(things.values())
    return things | ({MOMENT: beyond} if beyond > 0 else {})


def _renamed(things: Things) -> Things:
    """What a reduction leaves is a shard, cast or not."""
    found = dict[Label, int]()
    for (category, name), size in things.items():
        label = category, name.replace("reduced gradients of", f"{SHARDS} of").replace("shards of gradients", SHARDS)
        found[label] = found.get(label, 0) + size
    return found
