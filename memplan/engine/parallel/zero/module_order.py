"""The order in which a model's modules run, for stage 3's coordinator: what the tapes of layers and tail have noted, as
a play of the whole step has it (``play/zero/visits.py``)."""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import NamedTuple

from memplan.engine.parallel.zero.coordinator import Visit
from memplan.engine.play.notes import AHEAD, DONE, USED, USED_BACK, Note
from memplan.engine.play.zero.places import Key
from memplan.engine.play.zero.visits import USES, Modules, placed, visits_of
from memplan.engine.tape.watched import Itself, Order
from memplan.spec.groups import Quantised
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec

END = Note(DONE)
ADAPTER = ".lora_"
NOBODYS = Note("")
"""Of what is no parameter of the model as it is registered."""


class Model(NamedTuple):
    """Whose modules run: frozen linears of a ``base`` are packed in elements of ``itemsize`` bytes."""

    spec: ModelSpec
    adapter: Adapter | None
    base: Quantised | None = None
    itemsize: int = 2
    reads: str = ""
    """The head whose weight is read and which is never called."""


class Stretch(NamedTuple):
    """Modules that run one after another, and the name under which the most that is gathered meanwhile is asked for."""

    name: str
    notes: tuple[Note, ...]


class Half(Itself[Stretch]):
    """Of a pass."""


class Visits(Itself[Visit]):
    """The modules that run from the begin of a forward to that of the next one."""

    @cached_property
    def sizes(self) -> frozenset[int]:
        """Elements of the parameters."""
        return frozenset(size for visit in self for _, size in visit.module.parameters)


@lru_cache(maxsize=64)
def modules_of(model: Model) -> Modules:
    """All of them."""
    weights = placed(model.spec, model.adapter, frozen=True)
    return Modules(weights, model.spec.hidden_size, model.base, model.itemsize, model.reads)


@lru_cache(maxsize=64)
def largest_module(model: Model) -> int:
    """Elements of the module that has most of them."""
    return max((sum(size for _, size in each.parameters) for each in modules_of(model).modules.values()), default=0)


@lru_cache(maxsize=256)
def half_of(
    model: Model,
    adapts: bool,
    sees: bool,
    tail: Order,
    layers: tuple[Order | None, ...],
    recomputed: tuple[bool, ...],
    back: bool | None,
) -> Half:
    """The forward of a pass (``back``: None), or its backward, and whether that comes to the embedding. ``adapts``:
    adapters run; ``sees``: a tower does. A layer that has noted nothing runs in the order of its weights,
    ``recomputed`` first or not."""
    modules = modules_of(model)
    known, head = modules.owner, model.spec.head.name
    tied = {head: "embed_tokens"} if not any(name == head for _, name, _ in known) else {}
    by_layer: dict[int | None, list[Key]] = {}
    for key in known if adapts else [key for key in known if ADAPTER not in key[1]]:
        by_layer.setdefault(key[0], []).append(key)
    first = [key for key in by_layer.get(None, ()) if key[1] in modules.opening]
    first += [key for layer in by_layer if sees and layer is not None and layer < 0 for key in by_layer[layer]]

    def at(layer: int | None, notes: Order) -> Iterator[Note]:
        for note in notes:
            key = layer, note.name if layer is not None else tied.get(note.name, note.name), note.elements
            yield note if note.what == DONE else Note(note.what, *key) if key in known else NOBODYS

    found = [("embedding", tuple(_in_order(first, back is not None)) if back is not False else ())]
    for i, order in enumerate(layers):
        own = _of_layer(by_layer.get(i, []), recomputed[i], back is not None) if order is None else at(i, order)
        found.append((f"layer {i}", tuple(own)))
    found.append(("tail", tuple(at(None, tail))))
    if back is None:
        return Half(Stretch(name, notes) for name, notes in found)
    return Half(Stretch(f"{name} backward", notes) for name, notes in reversed(found))


def _of_layer(keys: list[Key], again: bool, back: bool) -> Iterator[Note]:
    """Once more first, if it is made again: from its last module on nothing is released until that has run back."""
    if back and again:
        yield from (Note(AHEAD, *keys[-1]), *_in_order(keys, back=False))
    yield from _in_order(keys, back)


def _in_order(keys: list[Key], back: bool) -> Iterator[Note]:
    """Adapters behind what they are beside."""
    linears = [(layer, name.partition(ADAPTER)[0]) for layer, name, _ in keys]
    keys = sorted(keys, key=lambda key: linears.index((key[0], key[1].partition(ADAPTER)[0])))
    for key in reversed(keys) if back else keys:
        yield from (Note(USED_BACK if back else USED, *key), END)


@lru_cache(maxsize=256)
def run_by(model: Model, halves: tuple[Half, ...]) -> Visits:
    """A forward, and what runs back of it."""
    notes = [note for half in halves for stretch in half for note in stretch.notes if note.what in USES]
    return Visits(visits_of(modules_of(model), notes))
