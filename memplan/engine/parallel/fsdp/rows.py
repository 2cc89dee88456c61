"""FSDP's rows: what its hooks hold at each instant of a step, under the names that they give it.

A unit (a layer, the root around them, sometimes embedding or head) is gathered before it runs and freed behind it; its
gradients are reduced to the rank's shard when it has run back. When which of these is there follows from a play of the
hooks (``play/fsdp1.py``, ``play/fsdp2.py``), in which layers are black boxes (``play/boxes.py``)."""

from collections.abc import Iterator

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp.beside import FSDP, SHARDS, enter_beside
from memplan.engine.parallel.fsdp.instants import Halves, Held
from memplan.engine.parallel.fsdp.question import question_of
from memplan.engine.parallel.held_rows import MOMENT, enter_held
from memplan.engine.passes import Stage
from memplan.engine.play.boxes import Question
from memplan.engine.play.folded_boxes import moments_of
from memplan.engine.play.moments import Key, Label, Things
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe
from memplan.tables.texts import texts_by_name

SAID = {
    **{name: text.split(" | ") for name, text in texts_by_name(__file__).items()},
    MOMENT[1]: ["", "a copy-out or a reduction before or behind what runs", ""],
}
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
        ledger.add("embedding output", "activations", size, at=instant).told(size)
    enter_beside(ledger, recipe, question, passes)


def _fullest(question: Question, passes: list[Stage]) -> Iterator[tuple[str, Things, int]]:
    """(instant, what is there, of it the embedding's output) in the micro-step in which that is most."""
    moments, units = moments_of(question), [sizes.unit for sizes in question.policy.layers]
    for traced, point in passes:
        most, back = dict[str, tuple[Held, int]](), point == "backward"
        for number in question.fullest:
            half = Halves(moments, traced, number, units, back, question.rules.head_alone)
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
