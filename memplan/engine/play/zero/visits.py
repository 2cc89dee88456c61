"""In which order a model's modules run, as stage 3's coordinator records it: those with parameters, from the notes of a
play, and those without, which fetch ahead as well.

deepspeed 0.19 runtime/zero/parameter_offload.py (``_register_deepspeed_module``: every module has the hooks). Of those
without parameters the ones that every decoder of transformers has are here: the model and what is within its head,
rotary tables, the layer, its mixer and feed-forward, the activation; and PEFT's (0.17 tuners/lora/layer.py: a linear
with an adapter is called around its base, its dropout, A and B; one that is trained whole has a wrapper too). Other
dropouts are not."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from memplan.engine.parallel.zero.coordinator import EMPTY, Module, Visit
from memplan.engine.play.notes import AHEAD, BEGUN, RESUMED, USED, USED_BACK, InTower, Note, UnknownParameter
from memplan.engine.play.resident import in_order, of_tower
from memplan.engine.play.zero.places import Key
from memplan.engine.tensors import Weight, layer_weights, marked, tower_in_order
from memplan.spec.groups import Quantised
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec

USES = (USED, USED_BACK, AHEAD)
A, B = ".lora_A", ".lora_B"


def module_of(weight: Weight) -> str:
    """The name of the module whose parameter it is: stacked experts are one."""
    return weight.name.rsplit(".", 1)[0] if weight.stacked > 1 else weight.name.removesuffix(".bias")


class Modules:
    """The modules of one model, by the parameters that notes name. Those that a ``base`` packs are gathered in elements
    of ``itemsize`` bytes. ``reads``: a head whose weight the model's own forward reads is a parameter of that model, as
    of the second forward: it is whole from where it begins to where it has run back (deepspeed 0.19 runtime/zero/
    parameter_offload.py: ``ZeROOrderedDict.__getitem__``; run on CPU)."""

    def __init__(
        self,
        weights: list[tuple[int | None, Weight]],
        hidden: int,
        base: Quantised | None = None,
        itemsize: int = 2,
        reads: str = "",
    ) -> None:
        found: dict[tuple[int | None, str], list[tuple[int, int]]] = {}
        self.owner: dict[Key, tuple[int | None, str]] = {}
        self.norms: set[tuple[int | None, str]] = set()
        copied = {(layer, weight.name) for layer, weight in weights if weight.trained} & {
            (layer, weight.name) for layer, weight in weights if not weight.trained
        }
        self.adapted = {weight.name.removesuffix(A) for _, weight in weights if weight.name.endswith(A)}
        self.adapted |= {name for _, name in copied}
        for identity, (layer, weight) in enumerate(weights):
            if (layer, weight.name) in copied and not weight.trained:
                continue  # nobody runs it: PEFT's wrapper has a trained copy (``modules_to_save``)
            key = layer, module_of(weight)
            found.setdefault(key, []).append((identity, weight.packed(base, itemsize).elements))
            self.owner[layer, weight.name, weight.elements] = key
            if weight.norm and weight.elements == hidden:
                self.norms.add(key)
        self.opening = {weight.name for _, weight in weights if weight.unit == "embedding"}
        self.modules = {key: Module(tuple(parameters)) for key, parameters in found.items()}
        outside = self.modules.get((None, reads), self.modules.get((None, "embed_tokens"), EMPTY))
        self.outside = outside if reads else EMPTY
        self.visits: dict[tuple[int | None, str, int, bool], Visit] = {}
        self.seen: dict[tuple[Note, ...], list[Visit]] = {}
        """What runs, by the notes of it: steps are alike."""

    def visit(self, note: Note) -> Visit:
        """The module that a noted parameter is of: of the same notes the same object."""
        what = note.layer, note.name, note.elements, note.what == AHEAD
        if what not in self.visits:
            self.visits[what] = self._visit(note)
        return self.visits[what]

    def _visit(self, note: Note) -> Visit:
        key = self.owner.get((note.layer, note.name, note.elements))
        if key is None:
            raise UnknownParameter(note.name)
        linear, part = key[1], ""
        for end in (A, B):
            if linear.endswith(end):
                linear, part = linear.removesuffix(end), end
        of = linear if linear in self.adapted else ""
        held = note.what == AHEAD or self.modules[key] is self.outside
        return Visit(self.modules[key], 1, held, key in self.norms, of, part)


def passes_of(notes: list[Note]) -> Iterator[tuple[str, list[Note]]]:
    """The uses of each forward with its backward, by the model's name, in the order in which forwards begin."""
    begun: list[tuple[str, list[Note]]] = []
    current: dict[str, list[Note]] = {}
    name = ""
    for note in notes:
        if note.what == BEGUN:
            name, current[note.name] = note.name, []
            begun.append((name, current[name]))
        elif note.what == RESUMED:
            name = note.name
        elif note.what in USES:
            current[name].append(note)
    yield from begun


def visits_of(modules: Modules, notes: list[Note]) -> list[Visit]:
    """What runs from the begin of a forward to that of the next one."""
    known = tuple(notes)
    if known not in modules.seen:
        modules.seen[known] = _visits(modules, notes)
    return modules.seen[known]


def _visits(modules: Modules, notes: list[Note]) -> list[Visit]:
    around = [Visit()] * bool(modules.adapted)
    whole = Visit(modules.outside, held=True)
    found = [*around, whole, Visit()]
    turned, layers_back = False, set[int | None]()
    for (layer, back), group in groupby(notes, key=lambda note: (note.layer, note.what != USED)):
        visits = list(_merged(modules, group))
        if back and not turned:
            turned, visits = True, [*around, whole, *visits[:1], Visit(), *visits[1:]]
        elif layer is None:
            visits += [Visit()] * (not turned and len(found) == len(around) + 2)
        elif not back:
            visits = [*[Visit()] * (not turned), *_forward(visits)]
        else:
            visits = [*[Visit()] * (2 * (layer not in layers_back)), *_back(visits)]
        if back:
            layers_back.add(layer)
        found += _wrapped(visits)
    return found


def _wrapped(visits: Sequence[Visit]) -> Iterator[Visit]:
    """What PEFT calls around an adapted linear: wrapper, base, dropout, A, B; back: wrapper, B, A, dropout, base."""
    before = Visit()
    for visit in visits:
        beside = before.part if before.of == visit.of else None
        if visit.of and (not visit.part or beside != {A: B, B: A}[visit.part]):
            yield Visit()
        yield visit
        before = visit


def _merged(modules: Modules, notes: Iterator[Note]) -> Iterator[Visit]:
    """One visit for uses of a module that follow one another."""
    for (visit, _), group in groupby(notes, key=lambda note: (modules.visit(note), note.what)):
        uses = sum(1 for _ in group)
        yield visit if uses == visit.uses else visit._replace(uses=uses)


def _forward(visits: Sequence[Visit]) -> Iterator[Visit]:
    """The mixer and the feed-forward are called behind their norms, the activation behind the first linear."""
    section = 0
    for i, visit in enumerate(visits):
        if i and visits[i - 1].norm and not visit.norm:
            yield Visit()
            section = i
        if section and i == section + 1 and not any(other.norm for other in visits[i:]):
            yield Visit()
        yield visit


def _back(visits: Sequence[Visit]) -> Iterator[Visit]:
    """The activation behind the linears that read its result, the mixer behind the norm of the feed-forward."""
    first = next((i for i, visit in enumerate(visits) if visit.norm), len(visits))
    for i, visit in enumerate(visits):
        if i and (i == first - 1 or (visits[i - 1].norm and not visit.norm)):
            yield Visit()
        yield visit


def placed(spec: ModelSpec, adapter: Adapter | None, *, frozen: bool = False) -> list[tuple[int | None, Weight]]:
    """Every trained parameter, or each, with its layer, in the model's order."""
    places, layer, trained = list[int | None](), 0, adapter is None
    for run in spec.runs:
        count = sum(1 for _ in marked(layer_weights(run.layer, 1, trained, adapter), run.layer.frozen))
        places += [layer + i for i in range(run.count) for _ in range(count)]
        layer += run.count
    weights, beside = in_order(spec, trained, adapter), len(of_tower(spec, trained, adapter))
    tower = [InTower(number).place for number, _ in tower_in_order(spec, trained, adapter)]
    first = next((i for i, weight in enumerate(weights) if i >= beside and weight.unit == "layer"), len(weights))
    ends = (None for _ in range(first - beside)), (None for _ in range(len(weights) - first - len(places)))
    layers = [*(None for _ in range(beside - len(tower))), *tower, *ends[0], *places, *ends[1]]
    return [(layer, weight) for layer, weight in zip(layers, weights, strict=True) if frozen or weight.trained]
