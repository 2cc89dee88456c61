"""One pass of a model, whole: embedding, every layer, norm, head and loss on one graph, forward and backward.

The locals of ``forward`` live as in ``LlamaModel.forward`` and its kin (transformers 5.23): the embedding's output,
masks and rotary tables until it returns, and as long as nodes or checkpoints hold them."""

from functools import partial

from memplan.engine.layers.decoder_layer import decoder_layer, start_of
from memplan.engine.layers.moe.load_balancing_loss import handing
from memplan.engine.layers.shared_inputs import ROUTER_LOGITS, keys_of, values_of
from memplan.engine.losses.tail import tail_forward
from memplan.engine.parallel.sequence import of_all_ranks, scattered
from memplan.engine.pass_plan import PassPlan, keys_of_images
from memplan.engine.play.beside_layers import beside_layers
from memplan.engine.play.checkpoints import Again, catching
from memplan.engine.play.sharding import Sharding
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.weights import NO_BLOCK, OUTSIDE, ModelPass, Weights, blocks_of
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Leaf, Node, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.layer import Layer
from memplan.tables.styles import PassStyle

GRAPH = ("plain", "checkpoint")
"""Styles of a layer whose forward makes nodes."""


class PassRun:
    """One pass over one model's weights; ``masks``: how many forward makes, bytes of each, whether layers keep them."""

    def __init__(
        self, weights: Weights, plan: PassPlan, masks: tuple[int, int, bool], sharding: Sharding | None = None
    ) -> None:
        spec, self.sharding = plan.spec, sharding or Sharding()
        self.plan, self.masks, self.tape = plan, masks, weights.tape
        self.outside = plan.mode._replace(frozen=spec.frozen) if spec.frozen else plan.mode
        self.p = ModelPass(weights, self.outside, plan.rows, plan.length)
        self.p.leaving, self.p.ended = self.sharding.logits, self.sharding.returned
        self.p.entering = partial(self.sharding.tail, normed=True)
        self.layers = list(spec.layers())
        self.forward_locals: list[Tensor] = []
        self.shared: list[Tensor] = []
        self.streams: list[Tensor] = []
        """Locals of the model's forward while the layers run."""
        self.collects = False
        """The model's forward names the hidden states of all layers."""
        self.image_locals: list[Tensor] = []
        self.image_outputs: list[Tensor] = []
        """What the model's forward, and what its outputs name of images."""
        self.handed: list[str] = []
        """Of ``p.shared``, what every layer is given as an argument."""
        self.outputs: list[Tensor] = []
        self.whole: list[Tensor] = []
        self.contexts: dict[object, Tensor] = {}
        """Arguments of reentrant checkpoints, and the keys and values that these made again and put there, with their
        graphs: until the loss is let go of (transformers 5.24 modeling_layers.py: partial; ``ctx.run_function``)."""
        self.loss: Node | None = None

    def forward(self, leaves: bool = True) -> None:
        """Embedding, layers, tail; then only what backward needs is left. ``leaves`` autocast with its end."""
        tape, plan = self.tape, self.plan
        tape.phase, tape.autocast = "forward", plan.mode.numerics.autocast
        tape.grad_enabled = plan.style != "no-grad"
        self.sharding.name, tape.base = plan.name, self.sharding.base
        self.sharding.begin()
        hidden = [self._hidden_states()]
        tape.grad_enabled = plan.style != "no-grad"
        hidden.append(self.sharding.tail(hidden.pop()))
        loss, self.outputs, self.whole = tail_forward(
            self.p, plan.spec, plan.head, plan.rows, hidden, self.forward_locals
        )
        self.image_locals.clear()
        (self.outputs if plan.head.loss.keeps_outputs else self.whole).extend(self.image_outputs)
        self.image_outputs = []
        self.sharding.end()
        self.loss = loss.node
        del loss  # ``.backward()`` needs its node alone
        if leaves:
            tape.leave_autocast()
        tape.grad_enabled = True
        if plan.style == "no-grad":
            self.shared.clear()

    def _hidden_states(self) -> Tensor:
        """From the tokens to the last layer's output."""
        plan, p, held = self.plan, self.p, self.forward_locals
        if keys_of_images(plan):
            self._read_images()
        inputs = [beside_layers(self, self._embedded(held))]
        masks, tables = self._masks(), self._rotary_tables()
        held += [*masks, *tables]
        checkpointed = plan.style in ("checkpoint", "reentrant")
        self.shared += tables if plan.spec.keeps_rotary or checkpointed else []
        self.shared += masks if self.masks[2] else []
        arguments = [*masks, *tables, *map(p.shared.__getitem__, self.handed)] if checkpointed else []
        x = self._through(inputs, range(len(self.layers)), arguments)
        self.tape.enter(-1)
        p.scope, p.block, p.mode = OUTSIDE, NO_BLOCK, self.outside
        self.streams.clear()
        held += p.shared.values()
        p.shared = {}
        return x

    def _through(self, inputs: list[Tensor], numbers: range, arguments: list[Tensor], shift: int = 0) -> Tensor:
        """These layers, whose places are so much higher. Takes what goes into the first out of its list.
        ``arguments``: what a checkpoint is given beside the hidden states."""
        plan, p, held, x = self.plan, self.p, self.forward_locals, inputs.pop()
        blocks = blocks_of(plan.spec)
        for number in numbers:
            i, layer = number + shift, self.layers[number]
            self.tape.enter(i)
            p.scope, p.block, p.mode = i, blocks[number], plan.mode_of(i, layer)
            p.returned = []
            inside = plan.style_of(i) == "reentrant" and self.sharding.wrapped_within
            self.tape.grad_enabled = plan.style != "no-grad" and not inside
            x = self.sharding.before(i, x)
            held += [x] if self.collects else []
            y = self._layer(layer, x, plan.style_of(i), arguments)
            self.tape.grad_enabled = plan.style != "no-grad" and not inside
            x = self.sharding.after(i, y)
            self.tape.grad_enabled = plan.style != "no-grad"
            del y
            outputs, p.returned = p.returned, None
            logits = p.shared.pop(ROUTER_LOGITS, None)
            if logits is not None and handing(layer):
                p.routers.append(logits)
        del outputs  # ``outputs = block(…)``: the loop names what the layer before gave back (BloomModel.forward)
        return x

    def _embedded(self, held: list[Tensor]) -> Tensor:
        """The embedding's output, and what stands between it and the first layer."""
        tape, spec, p = self.tape, self.plan.spec, self.p
        width = spec.embedding_width or spec.hidden_size
        table = p.param("embed_tokens", spec.vocab_size * width)
        x = ops.embedding(tape, of_all_ranks(p, table, spec), p.dim("h", width), self.plan.mode.numerics.itemsize)
        x = scattered(p, x)
        if spec.embedding_multiplier and not spec.scaled_outside and not p.mode.adapts_embedding:
            x = ops.scale(tape, x, "embedding output")
        if p.mode.adapts_embedding:
            from memplan.engine.layers.embedding import adapted_output

            x = adapted_output(p, spec, x)
        elif not x.needs_grad and tape.grad_enabled and self.plan.embedding_trained:
            node = Node(tape, [], (x.storage,), lambda t, grads: ())
            x = Tensor(x.dim, x.itemsize, x.storage, node)
            tape.reads(node, (table,))  # the module's hook runs, if nothing of it does
        if self.plan.tower is not None and not keys_of_images(self.plan):
            from memplan.engine.play.images import with_images

            inputs = [x]
            del x
            x = with_images(self, inputs)
        if spec.scaled_outside:
            x = ops.scale(tape, x, "residual stream")
        x = self.sharding.embedded(x)
        x = Leaf(x) if self.plan.reads_leaf else x
        held.append(x)
        if not spec.front:
            return x
        from memplan.engine.layers.embedding import STEPS

        for step in spec.front:
            x = STEPS[step](p, spec, x, held)
        return x

    def _read_images(self) -> None:
        """What layers attend to of images, before anything is embedded."""
        from memplan.engine.play.images import read_images

        read_images(self)

    def _masks(self) -> list[Tensor]:
        count, size, _ = self.masks
        return [self.tape.new(Dim("mask", size), 1, "attention mask", category="batch") for _ in range(count)]

    def _rotary_tables(self) -> list[Tensor]:
        spec, plan = self.plan.spec, self.plan
        positions = plan.length * (plan.rows if spec.rotary_by_row else 1)
        dim, itemsize = Dim("s·d", positions * spec.rotary_width), spec.rotary_itemsize(plan.mode.numerics.itemsize)
        return [self.tape.new(dim, itemsize, "rotary tables", category="buffers") for _ in range(2)]

    def _layer(self, layer: Layer, x: Tensor, style: PassStyle, arguments: list[Tensor]) -> Tensor:
        """A layer, checkpointed or not. ``arguments``: what its checkpoint is given beside the hidden states."""
        p, tape = self.p, self.tape
        tape.grad_enabled = style in GRAPH
        if style == "checkpoint":
            frame = tape.start_hollow(p.mode.recompute.policy)
            frame.held, frame.given = [self._kept(x), *arguments], p.shared
            p.checkpointed = True
            y = decoder_layer(p, layer, x)
            p.checkpointed = False
            tape.end_hollow(p.mode.operators.kernels.compiled)
            frame.run = Again(self, layer)
            return y
        y = decoder_layer(p, layer, x)
        unread = [(each.dim, each.itemsize) for each in p.returned or ()]
        if style != "reentrant" or not x.needs_grad:
            return y
        return Tensor(y.dim, y.itemsize, y.storage, self._reentrant(layer, x, arguments, unread))

    def _reentrant(self, layer: Layer, x: Tensor, arguments: list[Tensor], unread: list[tuple[Dim, int]]) -> Node:
        """``CheckpointFunction`` (torch 2.13 utils/checkpoint.py). Gradients of ``unread`` outputs are zeros."""
        p, shared, dim, itemsize = self.p, self.p.shared, x.dim, x.itemsize
        mode, scope, block = p.mode, p.scope, p.block
        held = [self._kept(x).storage, *(each.storage for each in arguments)]
        given = {name: shared[name] for name in self.handed if shared[name].needs_grad}
        inputs, made = [x, *given.values()], getattr(getattr(layer, "mixer", None), "makes_kv", "")
        names = (keys_of(made), values_of(made)) if made else ()
        self.contexts.update(enumerate(arguments))

        def backward(tape: Tape, grads: list[Tensor | None]) -> list[Tensor | None]:
            found: list[Tensor | None] = [None] * (1 + len(given))
            phase, outer = tape.phase, (p.mode, p.scope, p.block, p.shared, tape.autocast, tape.category)
            kept = len(tape.context)
            assert tape.running is not None
            storage = tape.running.saved[0]
            leaf = self.back(Tensor(dim, itemsize, storage, catching(tape, found, 0, storage)))
            p.shared, p.block = shared, block
            for i, (name, each) in enumerate(given.items(), 1):
                shared[name] = Tensor(each.dim, each.itemsize, each.storage, catching(tape, found, i, each.storage))
            zeros = [tape.gradient(each, "gradients of unread outputs") for each in unread]
            p.mode, p.scope, tape.autocast = mode, scope, self.plan.mode.numerics.autocast
            tape.phase, tape.category, p.returned = "recompute", "recomputation", []
            outputs = [self._within(p, layer, leaf), *p.returned]
            shared.pop(ROUTER_LOGITS, None)
            shared.update(given)
            given.clear()
            tape.leave_autocast()
            tape.category, tape.phase, p.returned = outer[5], phase, None
            start = start_of(tape, outputs)
            if start is not None:
                arrived = [*grads, *zeros[: start.outputs - 1]]
                tape.backward(start, arrived)
                tape.running = None
            tape.closures.clear()
            self.sharding.held(scope, leaf, found)
            self.contexts.update({name: shared[name] for name in names})
            del outputs, leaf  # ``outputs`` and ``detached_inputs`` end with the function
            del tape.context[kept:]  # and so does the graph
            p.mode, p.scope, p.block, p.shared, tape.autocast = outer[:5]
            return found

        tape = self.tape
        tape.grad_enabled = True
        node = tape.node(inputs, (), backward)
        tape.grad_enabled = False
        assert node is not None
        node.saved = held
        return node

    def seen(self, scope: object, shared: dict[str, Tensor]) -> dict[str, Tensor]:
        """What a layer that is made again finds of what layers share."""
        return shared

    def _kept(self, x: Tensor) -> Tensor:
        """What a checkpoint keeps of its input."""
        away = isinstance(self.p.scope, int) and self.plan.sends(self.p.scope)
        return Tensor(x.dim, x.itemsize, None, x.node) if away else x

    def back(self, x: Tensor) -> Tensor:
        """The input of a checkpoint that is made again, back from the host where it was there."""
        storage = x.storage or self.tape.new(x.dim, x.itemsize, "checkpoints").storage
        return Tensor(x.dim, x.itemsize, storage, x.node)

    def _within(self, p: ModelPass, layer: Layer, leaf: Tensor) -> Tensor:
        """A layer in its checkpoint's recomputation, with the wrapper around it where that is inside the checkpoint."""
        place = p.scope
        if not self.sharding.wrapped_within or not isinstance(place, int):
            return decoder_layer(p, layer, leaf)
        y = decoder_layer(p, layer, self.sharding.before(place, leaf))
        return self.sharding.after(place, y, again=True)


def play_back(tape: PlayTape, runs: list[PassRun]) -> None:
    """``loss.backward()`` of a loss that is made of these passes."""
    starts = [run.loss for run in runs if run.loss is not None]
    for run in runs:
        run.loss = None
    if not starts:
        return
    node = starts[0]
    if len(starts) > 1:
        node = Node(tape, [(start, 0) for start in starts], (), lambda t, grads: [grads[0]] * len(starts))
        starts_left, starts = starts, []
        del starts_left
    else:
        starts.clear()
    start = [tape.gradient((Dim("1", 1), ops.FP32)), *[None] * (node.outputs - 1)]
    tape.base = runs[-1].sharding.base
    runs[-1].sharding.backward_begins()
    tape.backward(node, start)
    runs[-1].sharding.backward_ends()
    tape.context.clear()  # attributes of ``ctx`` die with the graph, not with ``release_variables``
    tape.leaf_nodes.clear()
    for run in runs:
        run.outputs.clear()
        run.contexts.clear()
        run.shared.clear()
