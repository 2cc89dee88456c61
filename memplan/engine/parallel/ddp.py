"""Rows of DDP: what a play of it holds (``play/ddp.py``), all along and while a backward runs.

torch 2.13 nn/parallel/distributed.py, distributed/algorithms/ddp_comm_hooks."""

from functools import lru_cache

from memplan.engine.ledger import Ledger
from memplan.engine.play.ddp import Ddp, InBucket, gradients_of
from memplan.engine.play.moments import Key, Moment, moments
from memplan.engine.play.tape import PlayTape
from memplan.engine.tensors import Weight
from memplan.spec.fsdp import Ddp as Settings
from memplan.spec.recipe import Recipe


@lru_cache(maxsize=256)
def _played(settings: Settings, views: bool, every: tuple[InBucket, ...]) -> Moment:
    """What is there when a backward begins, and while it runs."""
    tape, begins = PlayTape(), Key(0, "", "begins")
    ddp = Ddp(settings, views, tape, every)
    notes = [(len(tape.events), begins)]
    ddp.backward_begins()
    found = moments(tape, notes, 0)[begins]
    tape.close()
    return found


def enter_ddp(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """Buckets are never freed: ``zero_grad`` drops views alone. Weights without a gradient have their place too."""
    every = gradients_of(recipe, weights)
    played = _played(recipe.sharding.ddp, recipe.sharding.gradient_as_bucket_view, every)
    last = next((instant for instant in reversed(ledger.schedule) if instant.endswith(".reduce")), "")
    for label, size in played.most_things.items():
        reduces = () if label in played.things else (last.replace(".reduce", ".loss-backward"), last)
        if last or not reduces:  # an evaluation reduces nothing
            ledger.add(label[1], label[0], size, *reduces).told(size)
