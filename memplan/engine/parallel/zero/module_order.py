"""The order in which a model's modules run, for stage 3's coordinator: stretch by stretch, forward and back."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from memplan.engine.parallel.zero.prefetch import EMPTY, Module, Order, Stretch
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights
from memplan.spec.groups import Quantised
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec

BackwardOrder = tuple[bool, bool] | None
"""Whether layers are recomputed, and whether it comes to the embedding."""
A = ".lora_A"
CALLERS = (EMPTY,) * 4
"""Those of a layer: itself, its mixer and feed-forward, the activation."""


def module_of(weight: Weight) -> str:
    """The name of the module whose parameter it is: stacked experts are one."""
    return weight.name.rsplit(".", 1)[0] if weight.stacked > 1 else weight.name.removesuffix(".bias")


@lru_cache(maxsize=64)
def forward_of(
    spec: ModelSpec, adapter: Adapter | None, base: Quantised | None = None, itemsize: int = 2, *, sees: bool = True
) -> tuple[Stretch, ...]:
    """A forward as stretches of modules: embedding, each layer, what follows them. ``base``: frozen linears are packed
    in elements of ``itemsize`` bytes. ``sees``: a tower runs too.

    Linears, norms and adapters are modules of their own; stacked experts are one. PEFT's wrapper around a linear and
    the dropout of its adapter run before each. Norms stand after the linears of their layer here, and other modules
    without parameters before them, which moves little."""
    outer = model_weights(spec, adapter is None, adapter)
    taken = 0
    stretches = []

    def modules(weights: list[Weight]) -> tuple[Module, ...]:
        nonlocal taken
        found: dict[str, list[tuple[int, int]]] = {}
        names = [{each.name for each in weights if each.trained is trained} for trained in (True, False)]
        copied = names[0] & names[1]  # beside the trained copy nobody runs the weight itself (``modules_to_save``)
        for weight in weights:
            if weight.trained or weight.name not in copied:
                found.setdefault(module_of(weight), []).append((taken, weight.packed(base, itemsize).elements))
                taken += 1
        wrapped = {name for name in found if name in copied or name + A in found or name.endswith(A)}
        return tuple(
            module
            for name, parameters in found.items()
            for module in (*((EMPTY,) * (name in wrapped)), Module(tuple(parameters)))
        )

    first = modules(
        [w for w in outer if w.unit == "embedding" or (sees and w.unit == "vision") for _ in range(w.copies)]
    )
    stretches.append(Stretch("embedding", (EMPTY, EMPTY, *first, EMPTY)))
    index = 0
    for run in spec.runs:
        own = list(marked(layer_weights(run.layer, 1, adapter is None, adapter), run.layer.frozen))
        for _ in range(run.count):
            stretches.append(Stretch(f"layer {index}", (*CALLERS, *modules(own))))
            index += 1
    stretches.append(Stretch("final-norm", modules([w for w in outer if w.unit == "norm"])))
    head = modules([w for w in outer if w.unit == "head"])
    if spec.head_is_tied and first:
        head = (Module(first[0].parameters[:1]), *head)
    stretches.append(Stretch("head", head))
    return tuple(stretches)


@lru_cache(maxsize=64)
def order_of(
    spec: ModelSpec, adapter: Adapter | None, base: Quantised | None, itemsize: int, sees: bool, back: BackwardOrder
) -> Order:
    """Half a pass: its forward (``back``: None), or its backward."""
    forward = forward_of(spec, adapter, base, itemsize, sees=sees)
    if back is None:
        return Order(forward)
    recomputed, reached = back
    return Order(
        stretch if reached or "embedding" not in stretch.name else stretch._replace(modules=(EMPTY,))
        for stretch in backward_of(forward, recomputed)
    )


@lru_cache(maxsize=64)
def largest_module(spec: ModelSpec, adapter: Adapter | None, base: Quantised | None = None, itemsize: int = 2) -> int:
    """Elements of the module that has most of them."""
    modules = (module for stretch in forward_of(spec, adapter, base, itemsize) for module in stretch.modules)
    return max((sum(size for _, size in module.parameters) for module in modules), default=0)


def backward_of(stretches: Sequence[Stretch], recomputed: bool) -> Iterator[Stretch]:
    """The stretches of a backward: in reverse, recomputed layers forward once more, but for the layer's own call."""
    for stretch in reversed(stretches):
        layer = stretch.name.startswith("layer")
        own = stretch.modules[len(CALLERS) :] if layer else tuple(each for each in stretch.modules if each.parameters)
        again = stretch.modules[1:] if recomputed and layer else ()
        callers = CALLERS if layer else (EMPTY,) * stretch.name.endswith(("head", "norm"))
        yield Stretch(f"{stretch.name} backward", (*callers, *again, *reversed(own)))
