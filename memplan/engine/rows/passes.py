"""The rows of one pass: what is alive at each of its instants, forward and backward.

Between the layers whose backward is an instant lie segments: all of their layers are alive, or none."""

from collections.abc import Iterator

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.sharding import KeptGradients
from memplan.engine.passes import TracedPass
from memplan.engine.rows.outputs import left_at_loss, loss_and_casts
from memplan.engine.traces import NOTHING, Alive, LayerTrace
from memplan.tables.loss_heads import LOSS_HEADS

TORCH = "torch 2.13 autograd and transformers 5.23, replayed by size; MEMORY_ESTIMATION.md, activations"


class PassRows:
    """Enters the rows of a traced pass into a ledger.

    ``consumer`` is the pass, of the same model and backward, whose gradients those of this one wait for in autograd's
    buffers (two forwards, one backward): each is added to ``.grad`` and freed when its own has come."""

    def __init__(self, traced: TracedPass, ledger: Ledger, consumer: str = "") -> None:
        self.traced, self.ledger, self.consumer = traced, ledger, consumer

    def _consumed(self, instant: str, dies: str) -> str:
        """Where a gradient that waits dies; ``dies`` when it waits for nobody."""
        there = self.ledger.turn_of(self.consumer, instant.split(".", 1)[1]) if self.consumer else ""
        return self.ledger.before(there) if there else dies

    def enter_forward(self) -> None:
        """Transients of the forward instants, and the saved bytes of every segment until its own backward."""
        plan, name = self.traced.plan, self.traced.plan.name
        instants = [each for each in self.traced.forward_instants() if not each.endswith("vision-forward")]
        active = self.traced.forward_layer
        self._enter(f"layer {active}", self.traced.layers[active].forward, instants[0], instants[0])
        forward = self.traced.tail.forward
        ends = max(
            (forward[point] for point in ("final-norm", "head") if point in forward),
            key=lambda alive: alive.size,
            default=NOTHING,
        )
        self._enter("head", ends, instants[1], instants[1])
        if plan.style == "no-grad":
            casts = sum(trace.casts for trace in self.traced.layers) if left_at_loss(self.traced) else 0
            if "loss" in forward and forward["loss"].size > ends.size + casts:
                more = forward["loss"].size - ends.size - casts
                self._enter("loss", Alive(more, tags={}), instants[1], instants[1])
            self._enter_casts(instants[1])
            if plan.head.code.metrics.startswith("scored-again"):
                born = f"{name}.gather" if f"{name}.gather" in self.ledger.index else instants[0]
                size = plan.rows * plan.length * plan.spec.head.outputs * 4
                label = "logits, while the mismatched completions run"
                self.ledger.add(label, "logits", size, born, instants[0]).told(size, of="logits of one model")
            later, end = self.ledger.after(instants[1]), self.ledger.schedule[-1]
            if plan.head.code.holds_logits and later != end:  # an evaluation's, in the other passes' forwards
                self._enter("held until the loss", self.traced.tail.saved, later, self.ledger.before(end))
            return
        loss, until = loss_and_casts(self.traced, ends, instants)
        self._enter("loss", loss, instants[2], instants[2])
        self._enter_host(instants[0])
        self._enter_casts("rejected.loss" if plan.mode.shared_casts == "first" else until)
        between = self.ledger.after(instants[2]), self.ledger.before(f"{name}.loss-backward")
        if self.ledger.index[between[0]] <= self.ledger.index[between[1]]:
            self._enter("kept until backward", self.traced.tail.saved, *between)

    def _enter_host(self, born: str) -> None:
        """Saved tensors that wait in the host's memory, counted whole from forward to the end of backward."""
        size = sum(trace.host for trace in self.traced.layers) + self.traced.tail.host
        self.ledger.add(
            "saved tensors on the host",
            "activations",
            size,
            born,
            f"{self.traced.plan.name}.embedding-backward",
            place="host",
        ).told(size)

    def _enter_casts(self, until: str) -> None:
        """Autocast's copies of the weights of layers that save nothing themselves: alive while autocast is open."""
        first, name = self.traced.forward_layer, self.traced.plan.name
        copies = [trace.casts for trace in self.traced.layers]
        for label, casts, born in (
            ("layers before", copies[:first], f"{name}.layer-forward"),
            ("last layers", copies[first:], f"{name}.forward"),
        ):
            size = sum(casts)
            self.ledger.add(f"autocast copies of weights, {label}", "autocast_weights", size, born, until).told(
                2, size // 2
            )

    def enter_backward(self, kept: KeptGradients) -> None:
        """Backward: tail, segments of layers, gradients as far as they are kept."""
        for point in ("loss", "head", "final-norm"):
            instant = f"{self.traced.plan.name}.{point}-backward"
            alive = self.traced.tail.backward.get(point)
            if alive:
                self._enter(f"{point} backward", alive, instant, instant)
        chosen = self.traced.backward_layers
        first_of = {i: next(self.traced.layer_instants(i))[0] for i in chosen}
        last_of = {i: self.traced.end_of(i) for i in chosen}
        for lower, upper, dies in self._segments(first_of, last_of):
            self._enter_saved(lower, upper, dies)
        for i in chosen:
            for instant, alive in self.traced.layer_instants(i):
                self._enter(f"layer {i}", alive, instant, instant)
        self._enter_lingering(last_of)
        self._enter_gradients(first_of, last_of, kept)

    def _segments(self, first_of: dict[int, str], last_of: dict[int, str]) -> Iterator[tuple[int, int, str]]:
        """(lowest layer, highest layer, last instant at which they are whole)."""
        chosen = self.traced.backward_layers
        for position, i in enumerate(chosen):
            yield i, i, self.ledger.before(first_of[i])
            below = chosen[position + 1] if position + 1 < len(chosen) else -1
            if i - below > 1:
                yield below + 1, i - 1, last_of[i]

    def _enter_saved(self, lower: int, upper: int, dies: str) -> None:
        name = self.traced.plan.name
        for layers, born in (
            (range(lower, min(upper + 1, self.traced.forward_layer)), f"{name}.layer-forward"),
            (range(max(lower, self.traced.forward_layer), upper + 1), f"{name}.forward"),
        ):
            for trace, indices in _by_kind(self.traced.layers, layers):
                where = f"layer {indices[0]}" if len(indices) == 1 else f"layers {indices[0]}-{indices[-1]}"
                self._enter(where, trace.saved, born, dies, len(indices))

    def _enter_lingering(self, last_of: dict[int, str]) -> None:
        """What functions keep on their contexts stays after their layer's backward, as long as the loss."""
        end, layers = f"{self.traced.plan.name}.embedding-backward", self.traced.layers
        for i, instant in last_of.items():
            lower = max((j for j in last_of if j < i), default=-1) + 1
            for label, indices, born in (
                (f"layer {i}", range(i, i + 1), self.ledger.after(instant)),
                (f"layers {lower}-{i - 1}", range(lower, i), self._next(last_of, lower - 1, end)),
            ):
                self.ledger.add(
                    f"inputs kept by quantised linears, {label}",
                    "activations",
                    sum(layers[j].lingering for j in indices),
                    born,
                    end,
                ).told()

    def _next(self, last_of: dict[int, str], i: int, end: str) -> str:
        """The first instant of layer ``i``'s backward, or the end of backward below the first layer."""
        return next(self.traced.layer_instants(i))[0] if i in last_of else end

    def _enter_gradients(self, first_of: dict[int, str], last_of: dict[int, str], kept: KeptGradients) -> None:
        """Weight gradients, born as backward passes the layers from last to first."""
        name, chosen = self.traced.plan.name, self.traced.backward_layers
        if self.traced.plan.gradients in ("keep", "join"):
            self._enter_tail_gradients(self.ledger.after(f"{name}.final-norm-backward"), kept)
        if not kept.layers:
            return
        why = "each weight's gradient is kept from its layer's backward to the optimizer's step"
        dies = kept.last(self.ledger, name)

        def enter(label: str, layers: range, born: str, last: str) -> None:
            waits = self._consumed(last.replace("attention", "last-layer") if len(layers) == 1 else last, dies)
            for until, size in (waits, self._left(layers, False)), (dies, self._left(layers, True)):
                self._gradient(f"gradients of {label}", size, born, until, why)

        for position, i in enumerate(chosen):
            *_, (inside, _) = self.traced.layer_instants(i)
            enter(f"layer {i}", range(i, i + 1), self.ledger.after(last_of[i]), inside)
            below = chosen[position + 1] if position + 1 < len(chosen) else -1
            born = first_of[below] if below >= 0 else f"{name}.embedding-backward"
            enter(f"layers {below + 1}-{i - 1}", range(below + 1, i), born, last_of[i])

    def _left(self, layers: range, nested: bool) -> int:
        """New gradients that layers leave: those whose backward is nested, which wait for nobody, or the others."""
        plan, size = self.traced.plan, 0
        for i, style in [(i, plan.style_of(i)) for i in layers]:
            if (plan.nested is not None and style == "reentrant") == nested and plan.gradients_of(style) == "keep":
                size += self.traced.layers[i].gradients
        return size

    def _enter_tail_gradients(self, born: str, kept: KeptGradients) -> None:
        """Gradients of head and final norm; a tied head's waits for the embedding's."""
        plan, tail = self.traced.plan, self.traced.tail
        name, tied = plan.name, plan.ties_head
        waits_cast = plan.mode.shared_casts == "second"
        head = (
            (plan.spec.head.parameters * plan.mode.numerics.autocast if waits_cast else tail.head_gradient)
            if tied
            else 0
        )
        rest, end = tail.gradients - head, f"{name}.embedding-backward"
        label = "gradient of the final norm" if tied and plan.mode.trained else "gradients of head and final norm"
        last = kept.last(self.ledger, name) if not kept.tail else f"{name}.{kept.tail}"
        point = "head-backward" if kept.views else "loss-backward"
        until = self._consumed(f"{name}.{point}", last)
        self._gradient(label, rest if kept.root else 0, born, until, "kept from the head's backward on")
        until = self._consumed(f"{name}.loss-backward", end) if waits_cast else end
        self._gradient("gradient of the tied head", head, born, until, "held until the embedding's gradient arrives")

    def _gradient(self, label: str, size: int, born: str, dies: str, why: str) -> None:
        """A row of gradients that stay."""
        mode = self.traced.plan.mode
        itemsize = mode.adapter.itemsize if mode.adapter else mode.numerics.itemsize
        self.ledger.add(label, "gradients", size, born, dies).formula(
            "elements × gradient bytes", size // itemsize, itemsize
        ).since(why, TORCH)

    def _enter(self, where: str, alive: Alive, born: str, dies: str, count: int = 1) -> None:
        """One row for each tag alive: tensors × bytes × extent, for ``count`` layers."""
        rest, name = alive.size, self.traced.plan.name
        if not self.ledger.detailed:
            self.ledger.add(where, "temporaries", rest * count, born, dies)
            return
        for tag, size in alive.tags.items():
            rest -= size
            tensors = max(1, round(size / (tag.elements * tag.itemsize)))
            self.ledger.add(f"{tag.label}, {where}", tag.category, size * count, born, dies).formula(
                f"layers × tensors × bytes × {tag.symbol}", count, tensors, tag.itemsize, tag.elements
            ).since(
                f"{name} pass: {tag.label}" + (self._per_logit(size, alive) if tag.category == "logits" else ""),
                self._source(tag.category),
            )
        if rest > 0:
            self.ledger.add(f"transients, {where}", "temporaries", rest * count, born, dies).told()

    def _per_logit(self, size: int, alive: Alive) -> str:
        """Its share of the bytes per logit at an instant, and why the head costs that."""
        plan = self.traced.plan
        logits = plan.rows * plan.length * plan.spec.head.outputs
        whole = sum(each for tag, each in alive.tags.items() if tag.category == "logits") / logits
        reason = LOSS_HEADS.get(plan.head.program, ("",))[0]
        return f", {size / logits:.3g} of {whole:.3g} bytes per logit here{f': {reason}' if reason else ''}"

    def _source(self, category: str) -> str:
        if category != "logits":
            return TORCH
        return LOSS_HEADS.get(self.traced.plan.head.program, ("", TORCH))[1]


def _by_kind(layers: list[LayerTrace], indices: range) -> Iterator[tuple[LayerTrace, list[int]]]:
    kinds: dict[int, list[int]] = {}
    for i in indices:
        kinds.setdefault(id(layers[i]), []).append(i)
    for group in kinds.values():
        yield layers[group[0]], group
