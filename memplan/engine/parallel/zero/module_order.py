"""The order in which a model's modules run, for stage 3's coordinator: stretch by stretch, forward and back."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count

from memplan.engine.parallel.zero.coordinator import EMPTY, Module
from memplan.engine.parallel.zero.prefetch import Order, Read, Stretch
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights
from memplan.spec.groups import Quantised
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec

BackwardOrder = tuple[bool, bool] | None
"""Whether layers are recomputed, and whether it comes to the embedding."""
A = ".lora_A"
NOTHING: Read = (False, ())
CALLERS = 4
"""Those of a layer: itself, its mixer and feed-forward, the activation."""


def module_of(weight: Weight) -> str:
    """The name of the module whose parameter it is: stacked experts are one."""
    return weight.name.rsplit(".", 1)[0] if weight.stacked > 1 else weight.name.removesuffix(".bias")


@lru_cache(maxsize=64)
def forward_of(
    spec: ModelSpec,
    adapter: Adapter | None,
    base: Quantised | None = None,
    itemsize: int = 2,
    *,
    sees: bool = True,
    around: Adapter | None = None,
) -> tuple[Stretch, ...]:
    """A forward as stretches of modules: embedding, each layer, what follows them. ``base``: frozen linears are packed
    in elements of ``itemsize`` bytes. ``sees``: a tower runs too. ``around``: what PEFT wraps the model in, though the
    adapters are switched off.

    Linears, norms and adapters are modules of their own; stacked experts are one. PEFT's wrapper around a linear and
    the dropout of its adapter run before each. Norms stand after the linears of their layer here, and other modules
    without parameters before them, which moves little."""
    outer = model_weights(spec, adapter is None, adapter)
    numbers = {True: count(1, 2), False: count(0, 2)}  # the base's are the same without adapters
    stretches = []

    def stretch(title: str, weights: list[Weight], before: int = 0, after: int = 0) -> Stretch:
        found: dict[str, list[tuple[int, int, str]]] = {}
        names = [{each.name for each in weights if each.trained is trained} for trained in (True, False)]
        copied = names[0] & names[1]  # beside the trained copy nobody runs the weight itself (``modules_to_save``)
        for weight in weights:
            if weight.trained or weight.name not in copied:
                number = next(numbers[".lora_" in weight.name])
                found.setdefault(module_of(weight), []).append(
                    (number, weight.packed(base, itemsize).elements, weight.name)
                )
        wrapped = {name for name in found if name in copied or name + A in found or name.endswith(A)}
        wrapped |= {name for name in found if around is not None and name.rpartition(".")[2] in around.targets}
        modules, reads = [EMPTY] * before, [NOTHING] * before
        for name, parameters in found.items():
            modules += [EMPTY] * (name in wrapped)
            reads += [NOTHING] * (name in wrapped)
            modules.append(Module(tuple((identity, size) for identity, size, _ in parameters)))
            reads.append((False, tuple(own for *_, own in parameters)))
        rest = (EMPTY,) * after
        return Stretch(title, (*modules, *rest), (*reads, *(NOTHING,) * after))

    seen = [w for w in outer if w.unit == "embedding" or (sees and w.unit == "vision") for _ in range(w.copies)]
    callers = 2 + (adapter is not None or around is not None)
    stretches.append(stretch("embedding", seen, callers, 1))
    index = 0
    for run in spec.runs:
        own = list(marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen))
        for _ in range(run.count):
            stretches.append(stretch(f"layer {index}", own, CALLERS))
            index += 1
    stretches.append(stretch("final-norm", [w for w in outer if w.unit == "norm"]))
    head = stretch("head", [w for w in outer if w.unit == "head"])
    if spec.head_is_tied and seen:
        table = Module(stretches[0].modules[callers].parameters[:1])
        head = head._replace(modules=(table, *head.modules), reads=(NOTHING, *head.reads))
    stretches.append(head)
    return tuple(stretches)


@lru_cache(maxsize=64)
def order_of(
    spec: ModelSpec,
    adapter: Adapter | None,
    base: Quantised | None,
    itemsize: int,
    sees: bool,
    around: Adapter | None,
    back: BackwardOrder,
    watched: tuple[tuple[tuple[bool, str], ...], ...],
) -> Order:
    """Half a pass: its forward (``back``: None), or its backward. ``watched``: of each layer, in which order its
    parameters are read then, where that is known."""
    stretches: Iterable[Stretch] = forward_of(spec, adapter, base, itemsize, sees=sees, around=around)
    if back is not None:
        recomputed, reached = back
        stretches = (
            stretch if reached or "embedding" not in stretch.name else stretch._replace(modules=(EMPTY,), reads=())
            for stretch in backward_of(tuple(stretches), recomputed)
        )
    return Order(
        _arranged(stretch, watched[int(stretch.name.split()[1])]) if stretch.name.startswith("layer") else stretch
        for stretch in stretches
    )


def _arranged(stretch: Stretch, order: tuple[tuple[bool, str], ...]) -> Stretch:
    """A layer's modules in the order of their first reading. What is not among them stands before the one behind it, or
    in backward behind the one before it."""
    places = {key: place for place, key in enumerate(order)}
    both = list(zip(stretch.modules, stretch.reads, strict=True))
    found = [[places[back, name] for name in names if (back, name) in places] for _, (back, names) in both[CALLERS:]]
    for i in range(len(found) - 2, -1, -1):
        if not found[i] and not both[CALLERS + i][1][0]:
            found[i] = found[i + 1]
    for i in range(1, len(found)):
        found[i] = found[i] or found[i - 1]
    found = [[-1]] * CALLERS + [each or [-1] for each in found]
    both = [both[i] for i in sorted(range(len(both)), key=lambda i: min(found[i]))]
    return Stretch(stretch.name, *zip(*both, strict=True))


@lru_cache(maxsize=64)
def largest_module(spec: ModelSpec, adapter: Adapter | None, base: Quantised | None = None, itemsize: int = 2) -> int:
    """Elements of the module that has most of them."""
    modules = (module for stretch in forward_of(spec, adapter, base, itemsize) for module in stretch.modules)
    return max((sum(size for _, size in module.parameters) for module in modules), default=0)


def backward_of(stretches: Sequence[Stretch], recomputed: bool) -> Iterator[Stretch]:
    """The stretches of a backward: in reverse, recomputed layers forward once more, but for the layer's own call."""
    for stretch in reversed(stretches):
        layer = stretch.name.startswith("layer")
        both = list(zip(stretch.modules, stretch.reads, strict=True))
        own = both[CALLERS:] if layer else [each for each in both if each[0].parameters]
        again = both[1:] if recomputed and layer else []
        callers = CALLERS if layer else int(stretch.name.endswith(("head", "norm")))
        found = [(EMPTY, NOTHING)] * callers + again + [(module, (True, names)) for module, (_, names) in own[::-1]]
        modules, reads = zip(*found, strict=True) if found else ((), ())
        yield Stretch(f"{stretch.name} backward", modules, reads)
