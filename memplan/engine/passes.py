"""One pass of the model through a step: the traces of its layers and tail, and the instants at which it can peak.

Layers of one kind are traced once. Instants of backward are those of the last layer, the first, and the worst of every
other kind."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate

from memplan.engine.parallel.fsdp1.flat_parameters import mode_of_layer
from memplan.engine.pass_plan import NO_FRONT, NO_TOWER, TOWERS, PassPlan
from memplan.engine.tail_trace import TailTrace, trace_tail
from memplan.engine.traces import NOTHING, Alive, LayerTrace, Stack, trace_layer
from memplan.spec.layer import Layer


class TracedPass:
    """A pass with its traces, ready to enter its rows."""

    def __init__(self, plan: PassPlan) -> None:
        self.plan = plan
        tower = plan.tower
        self.vision = TOWERS["crossed" if tower.tower.crossed else "plain"](tower) if tower else NO_TOWER
        self.stack: Stack | None = None
        self.layers, reached = self._traced_layers()
        mode = plan.mode._replace(frozen=plan.spec.frozen) if plan.spec.frozen else plan.mode
        grad = plan.style != "no-grad"
        self.front = NO_FRONT
        if plan.spec.front or mode.adapts_embedding:
            needs_grad = plan.embedding_trained
            from memplan.engine.layers.embedding import trace_front

            self.front = trace_front(plan.spec, mode, plan.rows, plan.memory or plan.length, grad, needs_grad)
        self.tail: TailTrace = trace_tail(
            plan.spec, mode, plan.rows, plan.length, plan.head, grad, plan.gradients, reached or not grad
        )
        kept = (trace.saved.size + trace.casts for trace in self.layers)
        self.saved_before: list[int] = list(accumulate(kept, initial=0))

    def _traced_layers(self) -> tuple[list[LayerTrace], bool]:
        """A trace for each layer, and whether a gradient comes down to the last one's output."""
        plan = self.plan
        if not shares(plan):
            return trace_layers(plan, self.vision.reached)
        from memplan.engine.play.stacks import layers_alone, stack_of

        self.stack = stack_of(*layers_alone(plan, self.vision.reached))
        return self.stack.layers, self.stack.reached

    def beside(self, kind: str, layer: int, point: str = "") -> int:
        """What crosses layers at a moment."""
        return self.stack.beside((kind, layer, point)) if self.stack else 0

    @cached_property
    def forward_layer(self) -> int:
        """The layer whose forward holds the most by itself."""
        saved, layers = self.saved_before, self.layers
        sizes = [saved[i] + layers[i].forward.size + self.beside("forward", i) for i in range(len(layers))]
        return sizes.index(max(sizes))

    @property
    def input_gradient(self) -> int:
        """Bytes of the gradient of the embedding's output."""
        own = self.layers[0].boundary if self.plan.spec.encoder else self.tail.input_gradient
        return own // self.plan.spec.streams

    @cached_property
    def backward_layers(self) -> list[int]:
        """Indices whose backward is an instant, from last to first: the last, the first, the worst of each kind."""
        if self.plan.style == "no-grad":
            return []
        count = len(self.layers)
        chosen = {count - 1, 0}
        if self.plan.in_units:
            chosen |= self._neighbours()
        gradients = 0
        worst: dict[int, tuple[int, int]] = {}
        for i in reversed(range(count)):
            trace = self.layers[i]
            if trace.backward:
                most = max(alive.size + self.beside("backward", i, point) for point, alive in trace.backward.items())
                size = self.saved_before[i] + gradients + most
                if id(trace) not in worst or size > worst[id(trace)][0]:
                    worst[id(trace)] = (size, i)
            gradients += trace.gradients
        chosen |= {i for _, i in worst.values()}
        return sorted(chosen, reverse=True)

    def _neighbours(self) -> set[int]:
        """First and last of layers alike in kind and both neighbours': FSDP's buffers are of three layers at a time."""
        kinds = [0, *map(id, self.layers), 0]
        found: dict[tuple[int, ...], list[int]] = {}
        for i in range(len(self.layers)):
            found.setdefault(tuple(kinds[i : i + 3]), []).append(i)
        return {i for alike in found.values() for i in (alike[0], alike[-1])}

    # -- the schedule -------------------------------------------------------------------------------------------------

    def forward_instants(self) -> list[str]:
        """Within a layer; end of the layers with norm and head; the loss."""
        name = self.plan.name
        front = [f"{name}.vision-forward"] if self.vision.forward else []
        if self.plan.style == "no-grad":
            return [*front, f"{name}.layer-forward", f"{name}.forward"]
        return [*front, f"{name}.layer-forward", f"{name}.forward", f"{name}.loss"]

    def backward_instants(self) -> list[str]:
        """From the loss back to the embedding."""
        name = self.plan.name
        tail = [f"{name}.{point}" for point in ("loss-backward", "head-backward", "final-norm-backward")]
        tail += [f"{name}.tail-reduce"] if self.plan.in_units else []
        layers = [instant for i in self.backward_layers for instant in self.all_instants(i)]
        vision = [f"{name}.vision-backward"] if self.vision.forward else []
        inputs = [f"{name}.inputs-backward"] if self.stack and self.stack.after.size else []
        return [*tail, *layers, *inputs, *vision, f"{name}.embedding-backward"]

    def all_instants(self, i: int) -> list[str]:
        """Instants of one layer's backward, the reduction of its gradients included."""
        found = [instant for instant, _ in self.layer_instants(i)]
        return found if found[-1] == self.end_of(i) else [*found, self.end_of(i)]

    def end_of(self, i: int) -> str:
        """The last instant at which layers below are whole: the reduction of its gradients where there is one."""
        *_, (instant, _) = self.layer_instants(i)
        if not self.plan.in_units:
            return instant
        last = i == len(self.layers) - 1 and i > 0
        return f"{self.plan.name}.{'last-layer' if last else 'first-layer' if i == 0 else f'layer-{i}'}-reduce"

    def layer_instants(self, i: int) -> Iterator[tuple[str, Alive]]:
        """Instants of one layer's backward with what is alive in it: the last layer's attention apart."""
        name, backward = self.plan.name, self.layers[i].backward
        if i == len(self.layers) - 1 and i > 0:
            yield f"{name}.last-layer-backward", backward.get("feed-forward", NOTHING)
            yield f"{name}.attention-backward", backward.get("attention", NOTHING)
            return
        yield f"{name}.{'first-layer' if i == 0 else f'layer-{i}'}-backward", backward.get(self.worst_point(i), NOTHING)

    def worst_point(self, i: int) -> str:
        """Where a layer's backward peaks; nothing without one."""
        sizes = {
            point: alive.size + self.beside("backward", i, point) for point, alive in self.layers[i].backward.items()
        }
        return max(sizes, key=lambda point: sizes[point], default="")


Stage = tuple[TracedPass, str]
"""A pass, and which half of it runs."""
Step = Callable[[], Sequence[Stage]]
"""Passes of a step, for who asks."""


def shares(plan: PassPlan) -> bool:
    """Whether its layers share more than the residual stream. What Gemma 4's hand on though none reads it is there
    until the model's forward returns, and made again by the checkpoint of the layer that makes it, with its graph."""
    spec = plan.spec
    runs, kinds, hands = spec.runs, {mixer.kind for mixer in spec.mixers}, plan.style != "plain"
    forms = {run.layer.form for run in runs}
    return (
        spec.encoder is not None
        or spec.has_layer_inputs
        or not forms.isdisjoint(("shared-block", "streams"))
        or any(run.blocks or getattr(run.layer.mixer, "makes_kv" if hands else "reads", "") for run in runs)
        or not kinds.isdisjoint(("disentangled", "gated-recurrence", "image-cross"))
    )


@lru_cache(maxsize=512)
def traced_pass(plan: PassPlan) -> TracedPass:
    """The pass of a plan: the same object for the same plan."""
    return TracedPass(plan)


def trace_layers(plan: PassPlan, images: bool, to_the_end: bool = True) -> tuple[list[LayerTrace], bool]:
    """A trace for each layer, and whether a gradient comes down to the last one's output; equal layers share one.

    Below the lowest trained weight there is no graph: no layer's input needs a gradient. ``images``: the tower's does.
    ``to_the_end``: their backward is followed, too."""
    traces: list[LayerTrace] = []
    traced = partial(_traced, plan, to_the_end)
    needs = plan.embedding_trained or images or plan.style == "no-grad"
    for run in plan.spec.runs:
        left, mode = run.count, mode_of_layer(plan.mode, run.layer)
        while left and (not needs or (not traces and (mode.widens_stream or plan.reads_leaf))):
            layer = run.layer if traces else _first(run.layer, mode.widens_stream, plan.reads_leaf)
            traces.append(traced(len(traces), layer, run.layer, needs))
            needs, left = needs or bool(traces[-1].backward), left - 1
        if left and not plan.mode.recompute.is_partial:
            traces += [traced(len(traces), run.layer, run.layer)] * left
            continue
        alike: dict[object, LayerTrace] = {}
        for i in range(len(traces), len(traces) + left):
            way = plan.style_of(i), plan.mode.recompute.policy_of(i)
            alike[way] = alike.get(way) or traced(i, run.layer, run.layer)
            traces.append(alike[way])
    return traces, needs


def _traced(plan: PassPlan, to_the_end: bool, i: int, layer: Layer, as_is: Layer, needs: bool = True) -> LayerTrace:
    """The trace of the layer in place i. ``as_is``: what decides its mode."""
    style = plan.style_of(i)
    how = plan.mode_of(i, as_is), plan.rows, plan.length, style, plan.gradients_of(style)
    return trace_layer(layer, *how, needs, to_the_end)


@lru_cache(maxsize=64)
def _first(layer: Layer, narrow: bool, leaf: bool) -> Layer:
    return layer.but(narrow_input=narrow or layer.narrow_input, leaf_input=leaf) if narrow or leaf else layer
