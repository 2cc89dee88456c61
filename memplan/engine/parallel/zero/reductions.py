"""Rows of what ZeRO's engines hold of gradients: those of the play (``play/zero/partitions.py``, ``divided.py``), which
are handed one gradient after another as backward makes them; no layer is played around, so that batches are alike.

deepspeed 0.19 runtime/zero/stage_1_and_2.py, stage3.py; runtime/comm/coalesced_collectives.py."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from memplan.engine.allocator.replay import StepEvents
from memplan.engine.critic import NAME as CRITIC
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.held_rows import Said, enter_held, summing_to
from memplan.engine.parallel.sharding import takes_gradients
from memplan.engine.parallel.zero.flat_groups import groups_of
from memplan.engine.passes import TracedPass
from memplan.engine.play.moments import Key, Moment, Things, moments
from memplan.engine.play.zero.divided import Divided
from memplan.engine.play.zero.partitions import Partitions
from memplan.engine.play.zero.places import Place, Places
from memplan.engine.tape.graph import Tensor
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights
from memplan.engine.uncollected import uncollected
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe

PARTITION = "gradients", "gradients in partition"
WAITING = "gradients", "gradients that wait for a bucket"
ZERO = "deepspeed 0.19 runtime/zero/stage_1_and_2.py"
COALESCED = "deepspeed 0.19 runtime/comm/coalesced_collectives.py: reduce_scatter_coalesced"
WHOLE, BUCKET = "elements × bytes", "elements of a full bucket × bytes"
FILLED = "gradients are copied into a bucket and reduced together; overlap_comm fills a second meanwhile"
OWN = "one buffer, allocated whole when the first of the rank's gradients has been reduced"
FLATTENED = "a bucket that holds parts of several ranks is flattened into a copy"
INTERLEAVED = "the reduce-scatter interleaves the ranks' parts in a copy, made when a bucket is full"
SAID: Said = {
    "reduction bucket": ("reduce_bucket_size × bytes × buckets", FILLED, f"{ZERO}: setup_buckets"),
    "flattened": (BUCKET, FLATTENED, f"{ZERO}: average_tensor"),
    "interleaved": (BUCKET, INTERLEAVED, COALESCED),
    PARTITION[1]: ("Σ parameters that touch the rank's part × bytes", OWN, f"{ZERO}: copy_grads_in_partition"),
    WAITING[1]: (WHOLE, "what fits into no bucket stays where it is until it is reduced", f"{ZERO}: reduce_ipg_grads"),
    "": (WHOLE, "cast to be reduced, for norms, and on the way to the host", f"{ZERO}; stage3.py: partition_grads"),
}  # fmt: skip
"""By how its name begins."""
TOWER, EMBEDDING, FIRST_LAYER = range(3)
"""Places of a model's parts; behind its layers come norm and head."""


class Part(NamedTuple):
    """What is there while a part of a model runs back, beside its own gradients."""

    begins: int
    total: int
    """The most."""
    things: Things

    def less(self, size: int) -> Things:
        """When so much less is there, if it was not before."""
        return summing_to(max(self.begins, self.total - size), self.things) if size else self.things


class Held(NamedTuple):
    """By an engine."""

    begins: Things
    """When a micro-step does, from those before."""
    parts: dict[str, list[Part]]
    """By the passes that run back."""
    reduces: dict[str, tuple[Things, Things]]
    """What is most at their ends, beside gradients that rows of the passes count; what is left behind them."""
    ends: Things
    """When the step begins."""
    places: Places
    """Of its parameters, and what is the fullest rank's."""


@lru_cache(maxsize=256)
def trained_of(spec: ModelSpec, adapter: Adapter | None) -> tuple[Weight, ...]:
    """What is trained of a model."""
    return tuple(weight for weight in model_weights(spec, adapter is None, adapter) if weight.trained)


@lru_cache(maxsize=256)
def parts_of(spec: ModelSpec, adapter: Adapter | None) -> tuple[tuple[Weight, ...], ...]:
    """The same, each tensor by itself: of a tower, of the embedding, of each layer, of norm and head."""

    def of(*units: str) -> tuple[Weight, ...]:
        every = (each for each in trained_of(spec, adapter) if each.unit in units)
        return tuple(each._replace(copies=1) for each in every for _ in range(each.copies))

    layers = list[tuple[Weight, ...]]()
    for run in spec.runs:
        own = marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen)
        layers += [tuple(weight for weight in own if weight.trained)] * run.count
    return of("vision"), of("embedding"), *layers, of("norm", "head")


class _Play:
    """Passes ``names`` run back, in the last micro-step: halves of a pair by themselves, a critic with the policy."""

    def __init__(self, recipe: Recipe, names: tuple[str, ...], ranks: int) -> None:
        self.names, self.zero, critic, self.ranks = names, recipe.sharding.deepspeed, recipe.others.critic, ranks
        models = {name: (recipe.model, recipe.adapter) for name in names if name != CRITIC}
        every = list(models.values())[:1]
        if critic is not None and CRITIC in names:
            models[CRITIC] = critic.spec, critic.adapter
            every.append(models[CRITIC])
        self.parts, self.joined = {name: parts_of(*model) for name, model in models.items()}, len(every) > 1
        self.weights = [weight for model in every for part in parts_of(*model) for weight in part]
        self.groups = groups_of(recipe, [weight for model in every for weight in trained_of(*model)], ranks)
        self.takes, self.sees = takes_gradients(recipe), recipe.batch.images is not None
        self.late = recipe.zero_stage == 1 and (recipe.accumulates or not self.zero.overlap_comm)
        self.together = self.joined or self.late or recipe.loss.pair_pass == "two-forward"
        self.notes, self.stored = list[tuple[int, Key]](), list[Place]()
        self.counted = dict.fromkeys(names, 0)

    def played(self, recipe: Recipe) -> Held:
        """What the engine comes to hold."""
        places = Places(self.groups, [(None, weight) for weight in self.weights], self.ranks)
        places.any_rank = True
        engine: Partitions | Divided = Divided(StepEvents((), 0), recipe, {}, [], [], self.ranks)
        if recipe.zero_stage < 3:
            engine = Partitions(StepEvents((), 0), recipe, places)
            places.mixed = self._mixed(places)
        self.engine = engine
        if self.late and recipe.accumulates:
            engine.begin()
        elif recipe.accumulates and not self.zero.optimizer:
            engine.accumulated_before()
        self._note("", "begins")
        start = 0
        for name in self.names:
            self._back(name, places.every[start:])
            start += sum(map(len, self.parts[name])) * self.joined
        self._note("", "optimizer")
        found = {key[1:]: moment for key, moment in moments(engine.tape, self.notes, 0).items()}
        engine.tape.close()
        places.any_rank, reduces = False, {}
        for name in self.names:
            most = found[name, "reduce", 0]
            reduces[name] = (
                summing_to(most.most - self.counted[name], most.most_things),
                found[name, "reduced", 0].things,
            )
        parts = {
            name: [_beside(found[name, "part", number]) for number in range(len(parts))]
            for name, parts in self.parts.items()
        }
        return Held(found["", "begins", 0].things, parts, reduces, found["", "optimizer", 0].things, places)

    def _mixed(self, places: Places) -> frozenset[Place]:
        """Of layers in more than one rank's part: a norm's gradient comes between those of linears that it feeds, and
        lies behind all of them, or in a group of its own."""
        every, found = iter(places.every), set[Place]()
        for part in (part for parts in [*self.parts.values()][: 1 + self.joined] for part in parts):
            own = [next(every) for _ in part]
            if len({rank for place in own for rank, _ in places.slices[place]}) > 1:
                found.update(own)
        return frozenset(found)

    def _note(self, name: str, what: str, place: int = 0) -> None:
        self.notes.append((len(self.engine.tape.events), Key(0, name, what, place)))

    def _back(self, name: str, places: list[Place]) -> None:
        parts, engine = self.parts[name], self.engine
        ends = list(accumulate(map(len, parts), initial=0))
        for number in (*range(len(parts) - 1, EMBEDDING, -1), TOWER, EMBEDDING):
            self._note(name, "part", number)
            if parts[number] and (number != TOWER or self.sees):
                engine.begin()
                come = places[ends[number] : ends[number + 1]]
                for place in reversed(come) if self.takes else ():
                    waits = not self.zero.contiguous_gradients or place.elements > self.zero.reduce_bucket_size
                    engine.put(place, self._gradient(place) if waits else None)
                self.stored += () if self.takes else come
        self._note(name, "reduce")
        if name == self.names[-1] or not self.together:
            self._hand_over(name)
            engine.backward_ended(last=True)
        self._note(name, "reduced")

    def _hand_over(self, name: str) -> None:
        """What has waited, in the order of the model, group by group."""
        before = self.engine.tape.live
        waiting = [(place, self._gradient(place)) for place in sorted(set(self.stored), reverse=True)]
        self.counted[name] = self.engine.tape.live - before
        self.stored.clear()
        while waiting:
            self.engine.put(*waiting.pop())

    def _gradient(self, place: Place) -> Tensor:
        return self.engine.new(place.elements * self.engine.itemsize, WAITING[1], WAITING[0])


def ranks_told_apart(recipe: Recipe) -> int:
    """As many as the recipe's; 1 of stage 3 where they divide every gradient, and nobody takes a part by itself."""
    zero, ranks, critic = recipe.sharding.deepspeed, recipe.sharding.ranks, recipe.others.critic
    if recipe.zero_stage < 3 or zero.optimizer or zero.communication != zero.accumulation:
        return ranks
    models = [(recipe.model, recipe.adapter)] + ([(critic.spec, critic.adapter)] if critic else [])
    return ranks if any(weight.elements % ranks for of in models for weight in trained_of(*of)) else 1


@uncollected()
def reductions(recipe: Recipe, names: tuple[str, ...], ranks: int) -> Held | None:
    """What the engine of these passes holds; None where nothing is trained."""
    play = _Play(recipe, names, ranks)
    return play.played(recipe) if play.groups else None


def _beside(moment: Moment) -> Part:
    """Without the part's own gradients, which rows of its pass count."""
    waiting = min(moment.most_things.get(WAITING, 0), moment.things.get(WAITING, 0))
    things = {label: waiting if label == WAITING else size for label, size in moment.most_things.items()}
    return Part(moment.inside, max(moment.inside, sum(things.values())), things)


def enter_reductions(ledger: Ledger, engine: Held, traced: Sequence[TracedPass], start: str, step: str) -> None:
    """Its rows, at the instants of the passes that run back, from the ``start`` of its micro-steps to the ``step``."""
    held: dict[str, Things] = {ledger.after(step): {}, start: engine.begins}
    for each in traced:
        name = each.plan.name
        held |= _while_it_runs_back(each, engine.parts[name])
        if f"{name}.reduce" in ledger.index:
            held[f"{name}.reduce"], held[ledger.after(f"{name}.reduce")] = engine.reduces[name]
    enter_held(ledger, held | {step: engine.ends}, SAID)


def _while_it_runs_back(traced: TracedPass, parts: list[Part]) -> dict[str, Things]:
    """By instant. A layer that is unlike the one above it that has instants is also met at those of one like it."""
    name, saved, layers = traced.plan.name, traced.saved_before, parts[FIRST_LAYER:]
    held, last = {f"{name}.final-norm-backward": parts[-1].things}, traced.backward_layers
    met: dict[int, list[int]] = {i: list(range(i, below, -1)) for i, below in pairwise((*last, -1))}
    unlike = [(i, layer) for i in last for layer in met[i] if traced.layers[layer] is not traced.layers[i]]
    for above, layer in unlike:
        like = [i for i in last if i > above and traced.layers[i] is traced.layers[layer]]
        met |= {i: [*met[i], layer] for i in like[-1:]}
    for i in last:
        instants = [instant for instant, _ in traced.layer_instants(i)]
        most = max(met[i], key=lambda layer: layers[layer].total + saved[layer])
        held |= dict.fromkeys(instants, layers[most].less(saved[i] - saved[most]))
    tied = traced.tail.head_gradient if traced.plan.ties_head else 0
    held[f"{name}.vision-backward"] = parts[TOWER].things
    return held | {f"{name}.embedding-backward": parts[EMBEDDING].less(tied)}
