"""Feed-forwards as programs on the tape: gated products (SwiGLU of Llama, Mistral, Qwen2, Qwen3; GeGLU of Gemma),
plain ones (GPT-2, OPT, BERT); mixtures of experts stand in ``moe/experts.py``."""

from collections.abc import Callable

from memplan.engine.layers.activations import activate
from memplan.engine.layers.modules import Pass, project
from memplan.engine.layers.unsloth import adapted_feed_forward, fuses
from memplan.engine.losses.scored import checkpointed
from memplan.engine.parallel.sequence import gathered, scattered
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Grads, Node, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.spec.parts import FeedForward
from memplan.units import ceil_div


def feed_forward(p: Pass, spec: FeedForward | None, x: Tensor) -> Tensor:
    """``down(act(gate(x)) * up(x))``, inner projections apart or fused; ``down(act(up(x)))``; or the routed experts."""
    assert spec is not None
    x = gathered(p, x)
    return scattered(p, _recomputed(p, spec, x))


def _recomputed(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    if p.mode.operators.tiles and not spec.experts:
        return tiled(p, lambda part, of: _feed_forward(part, spec, of), x)
    if p.mode.recompute.modules and ("moe" if spec.experts else "mlp") in p.mode.recompute.modules:
        return checkpointed(p.tape, lambda inputs: _feed_forward(p, spec, inputs[0]), (x,))
    return _feed_forward(p, spec, x)


def _feed_forward(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    if spec.experts:
        from memplan.engine.layers.moe.experts import mixture

        return mixture(p, spec, x)
    tape, width = p.tape, p.dim("F", spec.intermediate)
    if not spec.gated:
        inner = project(p, x, spec.linears[0], "F", "up")
        frozen = spec.tensors and not p.mode.trained
        inner = activate(tape, spec.activation + ("-frozen" if frozen else ""), inner)
        if spec.dropout:
            inner = ops.dropout(tape, inner, "feed-forward product")
        return project(p, inner, spec.linears[-1], "h", "feed-forward output")
    if spec.scaled:
        return scaled(p, spec, x)
    if len(spec.linears) == 3 and not spec.dropout and fuses(p, spec.linears):
        return adapted_feed_forward(p, spec, x)
    if p.mode.operators.kernels.product and not spec.dropout:
        return _fused(p, spec, x)
    if len(spec.linears) == 2:
        both = project(p, x, spec.linears[0], "2F", "gate and up")
        gate, up = ops.split(tape, both, 2, width)
        product = ops.mul(tape, up, activate(tape, spec.activation, gate), "feed-forward product")
        if not spec.dropout:
            del gate, up  # views: with a graph silu and mul hold the joint output anyway (Phi3MLP.forward)
    else:
        product = ops.mul(
            tape,
            activate(tape, spec.activation, project(p, x, spec.linears[0], "F", "gate")),
            project(p, x, spec.linears[1], "F", "up"),
            "feed-forward product",
        )
    if spec.dropout:
        product = ops.dropout(tape, product, "feed-forward product")
    return project(p, product, spec.linears[-1], "h", "feed-forward output")


def _fused(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """The product of gate and up in one kernel; views of a joint projection live until the output is there."""
    tape, width = p.tape, p.dim("F", spec.intermediate)
    if len(spec.linears) == 2:
        gate, up = ops.split(tape, project(p, x, spec.linears[0], "2F", "gate and up"), 2, width)
        from memplan.engine.layers.fused_kernels import fused_product

        product = fused_product(p, gate, up)
        if p.mode.operators.kernels.compiled:
            del gate, up
    else:
        gate = project(p, x, spec.linears[0], "F", "gate")
        from memplan.engine.layers.fused_kernels import fused_product

        product = fused_product(p, gate, project(p, x, spec.linears[1], "F", "up"))
        del gate
    return project(p, product, spec.linears[-1], "h", "feed-forward output")


def scaled(p: Pass, spec: FeedForward, x: Tensor) -> Tensor:
    """``down(up(x) * act(gate(x) * number)) * number`` (Falcon-H1)."""
    tape, (gate, up, down) = p.tape, spec.linears
    upper = project(p, x, up, "F", "up")
    inner = ops.scale(tape, project(p, x, gate, "F", "gate"), "scaled gate")
    inner = activate(tape, spec.activation, inner)
    product = ops.mul(tape, upper, inner, "feed-forward product")
    del upper, inner  # temporaries of ``y = up_proj(x) * act_fn(gate_proj(x) * …)`` (FalconH1MLP.forward)
    return ops.scale(tape, project(p, product, down, "h", "feed-forward output"), "scaled outputs")


Run = Callable[[Pass, Tensor], Tensor]


def tiled(p: Pass, run: Run, x: Tensor) -> Tensor:
    """Tiles of the sequence (ALST): forward keeps the input alone, backward makes each tile again.

    DeepSpeed 0.19 runtime/sequence_parallel/ulysses_sp.py: TiledMLP. Forward runs the tiles without a graph and joins
    their outputs; backward makes a gradient of the whole input first, then runs each tile forward and back, so that
    what a feed-forward saves is one tile's. A weight's gradient comes once for each tile and is added to the one that
    is there; or, each by itself, to a sum of their own (Axolotl 0.18 monkeypatch/tiled_mlp/base.py: TiledMLP).

    ``run`` over parts of ``x``. Of forward the last one is played, beside the outputs of all before it; of backward
    the first, which leaves the gradients, and one that adds to them."""
    tape, width, sums = p.tape, x.dim.elements // p.tokens, p.mode.operators.tile_sums
    tiles = min(p.mode.operators.tiles, p.length)
    tokens = ceil_div(p.tokens, tiles)
    part = p.part(1, tokens)
    part.params = {}
    kept, dim, itemsize = [x], x.dim, x.itemsize
    tile = Dim("T·h tile", tokens * width)

    def view(of: Tensor) -> Tensor:
        return Tensor(tile, of.itemsize, of.storage)

    enabled, tape.grad_enabled = tape.grad_enabled, False
    rest = max(1, p.tokens - tokens)
    before: Tensor | None = tape.new(Dim("T·h", rest * width), itemsize, "outputs of tiles")
    last: Tensor | None = run(part, view(x))
    out = tape.new(dim, itemsize, "feed-forward output")
    tape.grad_enabled = enabled
    del before, last  # ``output_shards`` is a local of forward
    trained = [(each.dim, each.itemsize) for each in part.params.values() if each.needs_grad] if sums else []
    part.params = None

    def backward(t: Tape, grads: Grads) -> Grads:
        total = t.gradient((dim, itemsize), "gradient of the whole input")
        mode, wants = t.gradient_mode, kept[0].needs_grad
        times = 2 if mode == "add" else 1  # what micro-steps before left waits apart from a tile's, too
        beside = [t.gradient(size, "sums of the tiles' gradients") for size in trained * times]
        for number in range(1 if sums or tiles == 1 else 2):
            leaf = view(kept[0])
            if wants:
                leaf.node, leaf.needs_grad = Node(t, [], (), _added), True
            again = run(part, leaf).node
            del leaf
            if again is not None and grads[0] is not None:
                t.gradient_mode = "add" if number and mode in ("keep", "join") else mode
                t.backward(again, [view(grads[0])])
        t.gradient_mode = mode
        del beside  # one of the two is what is left in ``.grad``
        return (total,)

    node = tape.node((x,), (x,), backward)
    return Tensor(dim, itemsize, out.storage, node)


def _added(tape: Tape, grads: Grads) -> tuple[()]:
    """A tile's gradient is added to its part of the whole one, and freed."""
    return ()
