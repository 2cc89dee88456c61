"""Logits in tiles of the sequence (ALST): each tile runs forward and back at once, within the model's forward.

deepspeed 0.19 runtime/sequence_parallel/ulysses_sp.py: TiledFusedLogitsLoss, around the head and transformers' loss of
a tile; as many tiles as leave at most 1 GiB of fp32 logits in each (as its tutorial counts them)."""

from memplan.engine.layers.modules import Pass
from memplan.engine.losses.scored import Scored, made_in_forward, sizes
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.units import GiB, ceil_div


def tiled_logits(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """The hidden states' gradient is one tensor that tiles fill in; the head's comes once for each tile and is added to
    the one that is there. Two tiles stand for all."""
    tape, itemsize = p.tape, hidden.itemsize
    width, vocabulary = sizes(p, hidden, weight)
    tiles = ceil_div(p.tokens * vocabulary * ops.FP32, GiB)
    tokens = ceil_div(p.tokens, tiles)
    part, rows = Dim("V chunk", tokens * vocabulary), Dim("chunk·h", tokens * width)
    graph = tape.grad_enabled
    of_hidden = tape.new(hidden.dim, itemsize, "hidden gradient made in forward") if graph else None
    of_weight: Tensor | None = None
    for _ in range(min(tiles, 2)):
        logits = tape.new(part, itemsize, "logits of a chunk")
        wide = tape.new(part, ops.FP32, "logits of a chunk in fp32") if itemsize != ops.FP32 else None
        log_probabilities = tape.new(part, ops.FP32, "log-softmax of a chunk")
        del logits, wide  # locals of ``fn`` and of ForCausalLMLoss: its graph holds the log-softmax alone
        if not graph:
            continue
        of_loss = tape.gradient((part, ops.FP32))
        of_logits: Tensor = tape.gradient((part, ops.FP32))
        del of_loss, log_probabilities
        if itemsize != ops.FP32:
            of_logits = tape.gradient((part, itemsize))
        piece = tape.gradient((rows, itemsize))
        if weight.needs_grad:
            made = tape.new(weight.dim, weight.itemsize, "head gradient made in forward", category="gradients")
            of_weight = of_weight or made
            del made  # added to what is there
        del of_logits, piece
    return made_in_forward(tape, (hidden, weight), (of_hidden, of_weight))
