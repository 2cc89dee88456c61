"""The parameter tensors of a model, as the optimizer and the shards see them: how many of which size."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan.spec.groups import Quantised
from memplan.spec.layer import Layer
from memplan.spec.lora import EMBEDDING, Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Bare, Experts, Linear, Norm, Part
from memplan.units import DTYPE_BYTES, ceil_div

if TYPE_CHECKING:
    from memplan.spec.vision import Tower


SECOND = ".reference"
"""Ends the names of a second set of adapters."""


class Weight(NamedTuple):
    """``copies`` tensors of ``rows`` × ``columns`` elements (a vector: one column); ``unit``: their module."""

    name: str
    rows: int
    columns: int
    copies: int
    trained: bool
    unit: str
    """embedding, layer, head or norm: what is gathered and freed together."""
    adapter: bool = False
    stacked: int = 1
    """Matrices stacked in one 3-D tensor (experts)."""
    linear: bool = False
    """The matrix of an nn.Linear in the layers: what a quantised base quantises."""
    norm: bool = False
    itemsize: int = 0
    """Bytes per element where they are its own; 0: those of its kind."""
    first: int = 0
    """Its first extent, where that is neither of rows and stacked: of a parameter such as 1 × positions × width."""
    apart: bool = False
    """In a unit of the vision tower, which FSDP never gathers where no image is seen."""
    idle: bool = False
    """It asks for a gradient and gets none: of what no image reaches."""

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return self.rows * self.columns * self.stacked

    def quantised_by(self, base: Quantised) -> bool:
        """Whether a quantised base holds it packed."""
        return self.linear or (base.experts and self.of_experts)

    @property
    def of_experts(self) -> bool:
        """Whether it is a stack of experts' matrices."""
        return self.stacked > 1 and "experts" in self.name

    def packed(self, base: Quantised | None, itemsize: int) -> "Weight":
        """As a quantised base stores it, in elements of ``itemsize`` bytes (bnb_4bit_quant_storage); else itself."""
        if base is None or self.trained or not self.quantised_by(base):
            return self
        size = next(iter(base.scheme.tensors(self.rows, self.columns).values()))
        return self._replace(rows=ceil_div(size, itemsize), columns=1)


def layer_weights(layer: Layer, count: int, trained: bool, adapter: Adapter | None) -> Iterator[Weight]:
    """Every parameter of a run of equal layers, in registration order."""
    experts = layer.experts
    adapter = adapter.nowhere if adapter and layer.unadapted else adapter
    linears, shared = adaptable(layer), layer.feed_forward.shared if experts and layer.feed_forward else ()
    late = (*(experts.router for _ in range(experts.routing.behind)), *shared) if experts else ()
    behind = sorted((each for each in linears if each[0] in late), key=lambda each: late.index(each[0]))
    for linear, owned in (*(each for each in linears if each not in behind), (None, True), *behind):
        if linear is None:
            yield from (bare_weight(bare, count, trained, "layer") for bare in (experts.stacked if experts else ()))
            if adapter and adapter.experts and experts:
                yield from expert_adapters(adapter, experts, count)
            continue
        matrix = experts is None or experts.plain_router or linear is not experts.router
        rows, columns = (linear.inputs, linear.outputs) if linear.transposed else (linear.outputs, linear.inputs)
        wide = experts is not None and experts.routing.kept_wide and linear is experts.router
        if owned:
            made = Weight(linear.name, rows, columns, count, trained, "layer", linear=matrix)
            made = made._replace(trained=trained and not linear.frozen, idle=trained and linear.frozen)
            yield made._replace(itemsize=DTYPE_BYTES["fp32"] * wide)
        if linear.bias and owned:
            yield Weight(
                linear.name + ".bias", linear.outputs, 1, count, bias_trained(linear, adapter, trained), "layer"
            )
        if adapter and (linear.name in adapter.targets if matrix else adapter.router):
            yield from adapter_weights(adapter, linear, count, dora=matrix)
            for weight in adapter_weights(adapter, linear, count * linear.idle) if linear.idle else ():
                yield weight._replace(trained=False)
    yield from (bare_weight(bare, count, trained, "layer") for part in layer.own_parts for bare in part.tensors)
    norms = () if layer.repeats else layer.norms
    for norm in (*norms, *(norm for part in layer.own_parts for norm in part.norms)):
        yield from norm_weights(norm, count, trained, "layer")


def adaptable(layer: Layer) -> list[tuple[Linear, bool]]:
    """The linears of a layer that adapters come to, and whether their weights are its own."""
    if not layer.repeats:
        return [(linear, True) for linear in layer.linears]
    others = [part for part in (layer.mixer, layer.feed_forward) if part is not None and layer.own_modules]
    found = [(linear, False) for part in others for linear in part.linears]
    return found + [(linear, True) for part in layer.extra for linear in part.linears]


def bias_trained(linear: Linear, adapter: Adapter | None, trained: bool) -> bool:
    """Beside adapters, PEFT trains no bias, all, or those of adapted modules (``bias``)."""
    if adapter is None or trained:
        return trained
    return adapter.bias == "all" or (adapter.bias == "lora_only" and linear.name in adapter.targets)


def adapter_weights(adapter: Adapter, linear: Linear, count: int, dora: bool = True) -> Iterator[Weight]:
    """lora_A, lora_B, and DoRA's magnitude of one linear; no gradient comes to them where the weight is read itself."""
    trained = not (linear.bypassed or linear.frozen)
    rank = adapter.rank_of(linear.name)
    found = [(".lora_A", rank, linear.inputs, 0), (".lora_B", linear.outputs, rank, 0)]
    found += [(".lora_B.bias", linear.outputs, 1, 0)] if adapter.lora_bias else []
    found += [(".magnitude", linear.outputs, 1, adapter.magnitude_itemsize)] if adapter.dora and dora else []
    for name, rows, columns, size in found:
        weight = Weight(linear.name + name, rows, columns, count, trained, "layer", adapter=True, itemsize=size)
        yield from twice(weight, adapter)


def twice(weight: Weight, adapter: Adapter) -> Iterator[Weight]:
    """A weight of the adapters, or a copy that is trained, and its twin where a second set of them is the reference
    (peft 0.21 peft_model.py: add_adapter)."""
    yield weight
    if size := adapter.second_itemsize:
        own = weight.itemsize or size * weight.adapter
        yield weight._replace(name=weight.name + SECOND, trained=False, itemsize=own)


def expert_ranks(adapter: Adapter, experts: Experts) -> list[tuple[Bare, int]]:
    """Each adapted stack with its rank: a stack of fused projections (gate and up) gets twice the rank."""
    stacks = [bare for bare in experts.stacked if bare.name.rsplit(".", 1)[-1] in adapter.experts]
    return [(bare, adapter.rank * (2 if bare.name.endswith("gate_up_proj") else 1)) for bare in stacks]


def expert_adapters(adapter: Adapter, experts: Experts, count: int) -> Iterator[Weight]:
    """``ParamWrapper``: for all experts together, lora_A of rank·E × in and lora_B of out × rank·E."""
    for bare, rank in expert_ranks(adapter, experts):
        *_, outputs, inputs = bare.shape
        wide = rank * experts.count
        for name, rows, columns in (".lora_A", wide, inputs), (".lora_B", outputs, wide):
            yield from twice(Weight(bare.name + name, rows, columns, count, True, "layer", adapter=True), adapter)


def norm_weights(norm: Norm, count: int, trained: bool, unit: str) -> Iterator[Weight]:
    """Weight and bias of a norm, where it has any."""
    if not norm.parameters:
        return
    trained = trained and not norm.frozen
    yield Weight(norm.name, norm.width, 1, count, trained, unit, norm=True, itemsize=norm.itemsize)
    if norm.bias:
        yield Weight(norm.name + ".bias", norm.width, 1, count, trained, unit, norm=True)


def bare_weight(bare: Bare, count: int, trained: bool, unit: str) -> Weight:
    """A parameter of any shape: its last extent are columns, the one before rows, what is left are stacked."""
    *stacked, rows, columns = (1, *bare.shape, 1) if len(bare.shape) == 1 else (1, *bare.shape)
    trained = trained and not bare.frozen
    first = bare.shape[0] if len(bare.shape) > 1 else 0
    return Weight(
        bare.name, rows, columns, count, trained, unit, stacked=prod(stacked), first=first, itemsize=bare.itemsize
    )


def part_weights(part: Part, trained: bool, unit: str) -> Iterator[Weight]:
    """Every parameter of what stands outside the layers."""
    for linear in part.linears:
        yield Weight(linear.name, linear.outputs, linear.inputs, 1, trained, unit, linear=unit == "vision")
        if linear.bias:
            yield Weight(linear.name + ".bias", linear.outputs, 1, 1, trained, unit)
    for bare in part.tensors:
        yield bare_weight(bare, 1, trained, unit)
    for norm in part.norms:
        yield from norm_weights(norm, 1, trained, unit)


def model_weights(spec: ModelSpec, trained: bool = True, adapter: Adapter | None = None) -> list[Weight]:
    """Every parameter tensor; a tied head is not there twice."""
    width = spec.embedding_width or spec.hidden_size
    weights = [Weight("embed_tokens", spec.vocab_size, width, 1, trained, "embedding")]
    for part in spec.extra:
        weights += part_weights(part, trained, "embedding")
    for run in spec.runs:
        weights += marked(layer_weights(run.layer, run.count, trained, adapter), run.layer.frozen)
    if spec.tower:
        weights += tower_weights(spec, spec.tower, trained, adapter)
    if spec.final_norm:
        weights += norm_weights(spec.final_norm, 1, trained, "norm")
    if spec.encoder and spec.encoder.final_norm:
        weights += norm_weights(spec.encoder.final_norm, 1, trained, "norm")
    for part in spec.head_parts:
        weights += part_weights(part, trained, "norm")
    if spec.project_out:
        weights += part_weights(Part(linears=(spec.project_out,)), trained, "norm")
    if adapter and EMBEDDING in adapter.targets:
        table = Linear(name=EMBEDDING, inputs=spec.vocab_size, outputs=width)
        weights += [weight._replace(unit="embedding") for weight in adapter_weights(adapter, table, 1)]
    for name, count in adapter.tokens if adapter else ():
        if adapter and (name == EMBEDDING or not spec.head_is_tied):
            unit = "embedding" if name == EMBEDDING else "head"
            weights += twice(Weight(name + ".tokens", count, width, 1, True, unit, adapter=True), adapter)
    for linear in spec.outer_linears if adapter else ():
        if adapter and linear.name in adapter.targets:
            weights += [weight._replace(unit="embedding") for weight in adapter_weights(adapter, linear, 1)]
    if spec.head_is_tied and spec.head.bias:
        weights.append(Weight(spec.head.name + ".bias", spec.head.outputs, 1, 1, trained, "head"))
    if not spec.head_is_tied:
        weights.append(Weight(spec.head.name, spec.head.outputs, spec.head.inputs, 1, trained, "head"))
        if spec.head.bias:
            weights.append(Weight(spec.head.name + ".bias", spec.head.outputs, 1, 1, trained, "head"))
    if adapter and spec.head.name in adapter.targets:
        weights += [weight._replace(unit="head") for weight in adapter_weights(adapter, spec.head, 1)]
    if adapter and adapter.saved:
        saved = saved_weights(spec, adapter)  # in the order of the modules that hold them
        weights = [*(w for w in saved if w.unit == "embedding"), *weights, *(w for w in saved if w.unit != "embedding")]
    if spec.frozen:
        inside = ("layer", "vision")
        weights = [next(marked([w], spec.frozen)) if w.unit not in inside else w for w in weights]
    # A pipeline stage may hold neither embedding nor head.
    return [weight for weight in weights if weight.elements]


def marked(weights: Iterable[Weight], frozen: frozenset[str]) -> Iterator[Weight]:
    """The same weights, those of these names not trained."""
    return (weight._replace(trained=False) if weight.name in frozen else weight for weight in weights)


def tower_weights(spec: ModelSpec, tower: "Tower", trained: bool, adapter: Adapter | None) -> Iterator[Weight]:
    """Every parameter of the tower and its projector, and of layers that rest with it.

    Without images none of them gets a gradient, so that an optimizer of torch makes no states for them."""
    for run in spec.resting:
        for weight in marked(layer_weights(run.layer, run.count, trained, adapter), run.layer.frozen):
            yield weight._replace(trained=False, idle=weight.trained)
    yield from own_weights(spec, tower, trained, adapter)


def tower_in_order(spec: ModelSpec, trained: bool, adapter: Adapter | None) -> Iterator[tuple[int, Weight]]:
    """The tower's own parameters, each by itself, block after block, and where it is: 0 before the blocks, or the
    number of its block from 1 on, or one more behind them."""
    tower, nothing = spec.tower, Part()
    if tower is None:
        return
    blocks = [run.but(count=1) for run in tower.runs for _ in range(run.count)]
    bare = {"embedding": nothing, "runs": (), "after": nothing, "unused": nothing, "projector": nothing}
    pieces: list[dict[str, object]] = [{"embedding": tower.embedding}]
    pieces += [{"runs": (one,), "used_blocks": int(i < tower.used_blocks)} for i, one in enumerate(blocks)]
    pieces += [{"after": tower.after, "unused": tower.unused, "projector": tower.projector}]
    for number, piece in enumerate(pieces):
        for weight in own_weights(spec, tower.model_copy(update={**bare, **piece}), trained, adapter):
            yield from ((number, weight._replace(copies=1)) for _ in range(weight.copies))


def own_weights(spec: ModelSpec, tower: "Tower", trained: bool, adapter: Adapter | None) -> Iterator[Weight]:
    """Every parameter of the tower and its projector."""
    without_images = spec.tower_idle
    for part, copies, category, is_read, apart in tower.parts:
        asked = category not in spec.frozen
        read, all_of_it = not without_images and is_read and asked, trained or category in tower.trained
        for weight in part_weights(part, all_of_it, "vision"):
            whole = all_of_it or (adapter is not None and adapter.trains_bias(weight.name))
            idle = whole and asked and not read and weight.name not in spec.frozen
            yield weight._replace(copies=copies, trained=whole and read, apart=apart, idle=idle)
        for linear in part.linears if adapter and category not in tower.unadapted else ():
            if adapter and linear.name in adapter.targets:
                for weight in adapter_weights(adapter, linear, copies):
                    own = asked and not weight.name.endswith(SECOND)
                    yield weight._replace(unit="vision", trained=own and read, apart=apart, idle=own and not read)


def saved_weights(spec: ModelSpec, adapter: Adapter) -> list[Weight]:
    """``modules_to_save``: a trained copy beside the frozen original, of a tied head as well."""
    width = spec.embedding_width or spec.hidden_size
    copies = [Weight("embed_tokens", spec.vocab_size, width, 1, True, "embedding"), *part_weights_of_head(spec)]
    copies = [copy for copy in copies if copy.name.removesuffix(".bias") in adapter.saved]
    return [each for copy in copies for each in twice(copy, adapter)]


def part_weights_of_head(spec: ModelSpec) -> list[Weight]:
    """The head's matrix and bias, trained."""
    head = spec.head
    bias = [Weight(head.name + ".bias", head.outputs, 1, 1, True, "head")] if head.bias else []
    return [Weight(head.name, head.outputs, head.inputs, 1, True, "head"), *bias]


def count(weights: list[Weight]) -> int:
    """Elements of all tensors."""
    return sum(weight.elements * weight.copies for weight in weights)
