"""Heads that go from hidden states to log-probabilities without all of the logits: by tiles, chunks or kernels.

Each takes the normed hidden states and the head's weight. h hidden, V vocabulary, N tokens scored, e bytes per element.
Loops are played a few rounds long: every round holds the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from memplan.engine import loss_ops, ops, routing_ops
from memplan.engine.modules import Pass
from memplan.engine.tags import Dim
from memplan.engine.tape import Grads, Node, Param, Storage, Tape, Tensor
from memplan.units import ceil_div

TILE_ROWS, TILE_COLUMNS = 4096, 32768
"""Tile of TRL's chunked log-probability kernel (trl 1.16, trl/kernels/chunked_logprob.py)."""
NLL_CHUNK = 256
"""Tokens of a chunk of TRL's ``chunked_nll`` (trl 1.9, trainer/sft_trainer.py)."""
LOGPROB_CHUNK = 512
"""Tokens of a chunk of verl's fused linear (verl 0.9, utils/experimental/torch_functional.py)."""
LITGPT_CHUNK = 128
"""Tokens of a chunk of LitGPT's head and loss (litgpt 0.5, finetune/lora.py, utils.py)."""
ROUNDS = 4
"""Rounds of a loop that are played: from the third on nothing new is alive."""


class Scored(NamedTuple):
    """What a fused head is asked for."""

    tokens: int
    """Scored: completions alone."""
    rows: int
    """Sequences of the pass."""
    reference_itemsize: int = 0
    """Element size of reference hidden states and head that the loss reads too; 0 without."""
    pairs: bool = True
    """Rows are chosen and rejected halves."""
    fp32_outputs: bool = False
    """The model's outputs are converted to fp32 before the loss."""
    caller: list[Tensor] | None = None
    """Where a program leaves what its caller holds until backward is done."""


Program = Callable[[Pass, Tensor, Param, Scored], Tensor]


def _sizes(p: Pass, hidden: Tensor, weight: Param) -> tuple[int, int]:
    """h and V."""
    width = hidden.dim.elements // p.tokens
    return width, weight.dim.elements // width


def trl_tiles(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """TRL's fused LM head (from 1.15): log-probabilities tile by tile, no logits.

    Forward keeps the scored hidden states; backward keeps an fp32 gradient of them and, for a trained head, of the
    weight, which is then cast (trl 1.16, trl/trainer/utils.py and trl/kernels/chunked_logprob.py).
    """
    tape, itemsize = p.tape, p.tape.autocast or hidden.itemsize
    width, vocabulary = _sizes(p, hidden, weight)
    compact_dim = Dim("N·h", scored.tokens * width)
    compact = routing_ops.gather_rows(tape, hidden, compact_dim, "scored hidden states")
    tile = Dim("V tile", min(scored.tokens, TILE_ROWS) * TILE_COLUMNS)
    weight_tile = Dim("tile·h", min(TILE_COLUMNS, vocabulary) * width)
    input_tile = Dim("tile·h", min(scored.tokens, TILE_ROWS) * width)
    want_hidden, want_weight = hidden.needs_grad, weight.needs_grad
    weight_dim, weight_size, hidden_size = weight.dim, weight.itemsize, hidden.itemsize

    def casts() -> list[Tensor]:
        sides = ((weight_tile, weight_size), (input_tile, hidden_size))
        return [tape.new(dim, itemsize, "tile of weights and inputs") for dim, size in sides if size != itemsize]

    def backward(t: Tape, grads: Grads) -> Grads:
        wide = t.gradient((compact_dim, ops.FP32), "hidden gradient in fp32") if want_hidden else None
        wide_weight = t.new(weight_dim, ops.FP32, "head gradient in fp32", category="logits") if want_weight else None
        block = t.new(tile, itemsize, "logits tile")
        parts = casts()
        narrow, grad_weight = wide, wide_weight
        if want_hidden and hidden_size != ops.FP32:
            narrow = t.gradient((compact_dim, hidden_size))
        if want_weight and weight_size != ops.FP32:
            grad_weight = t.new(weight_dim, weight_size, "weight gradients", category="gradients")
        del block, parts, wide, wide_weight
        return (narrow, grad_weight)

    statistics = tape.new(Dim("N·7", scored.tokens * 7), ops.FP32, "log-probability statistics")
    block = tape.new(tile, itemsize, "logits tile")
    parts = casts()
    del block, statistics, parts
    node = tape.node((compact, weight), (compact,), backward)
    return tape.new(Dim("N", scored.tokens), ops.FP32, "log-probabilities", node)


def liger_chunk(tokens: int, width: int, vocabulary: int) -> int:
    """Tokens of a chunk: logits of a chunk about as large as the hidden states."""
    rounds = ceil_div(vocabulary, width)
    return min(tokens, 1 << (ceil_div(tokens, rounds) - 1).bit_length())


def liger(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Liger's fused linear cross-entropy: gradients of hidden states and head are made in forward and kept.

    Chunks hold one buffer of logits in the compute dtype, turned into its own gradient (liger-kernel 0.8.5,
    ops/fused_linear_cross_entropy.py).
    """
    tape, itemsize = p.tape, p.tape.autocast or hidden.itemsize
    width, vocabulary = _sizes(p, hidden, weight)
    chunk = liger_chunk(p.tokens, width, vocabulary)
    part, hidden_dim, weight_dim = Dim("V chunk", chunk * vocabulary), hidden.dim, weight.dim
    grads_on = tape.grad_enabled and (hidden.needs_grad or weight.needs_grad)
    grad_input = tape.new(hidden_dim, hidden.itemsize, "hidden gradient made in forward")
    grad_weight = None
    if grads_on and weight.needs_grad:
        grad_weight = tape.new(weight_dim, weight.itemsize, "head gradient made in forward", category="gradients")
    losses = tape.new(p.dim("1", 1), ops.FP32, "loss of each token")
    logits = tape.new(part, itemsize, "logits of a chunk")
    if weight.itemsize != itemsize:  # autocast keeps the copy of the leaf, not that of its transpose
        casts = [tape.new(weight_dim, itemsize, "head in the compute dtype") for _ in range(2)]
        del casts
    del logits, losses

    def backward(t: Tape, grads: Grads) -> Grads:
        return kept

    kept = (grad_input, grad_weight)
    node = tape.node((hidden, weight), (grad_input, grad_weight), backward)
    return tape.new(Dim("1", 1), ops.FP32, "loss", node)


def liger_preference(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Liger's fused preference losses: a pair at a time (KTO's: a row), with gradients made in forward.

    Within a pair, eager: logits, their fp32 copy and log-softmax, and back: gather's scatter, log-softmax's gradient,
    its cast, the head's gradient. torch.compile, on by default, fuses some of it: an upper figure (liger-kernel
    0.8.5, chunked_loss/fused_linear_preference.py).
    """
    tape, itemsize = p.tape, p.tape.autocast or hidden.itemsize
    width, vocabulary = _sizes(p, hidden, weight)
    count = 2 if scored.pairs else 1
    pair = count * p.tokens // scored.rows
    part, part_hidden = Dim("V pair", pair * vocabulary), Dim("pair·h", pair * width)
    weight_dim, hidden_size = weight.dim, hidden.itemsize
    grads_on = tape.grad_enabled and (hidden.needs_grad or weight.needs_grad)
    wants_weight = grads_on and weight.needs_grad
    shifted = [tape.new(hidden.dim, hidden_size, "hidden states, shifted")]
    if scored.reference_itemsize:
        shifted.append(tape.new(hidden.dim, scored.reference_itemsize, "reference hidden states"))
    total = None
    if wants_weight:
        total = tape.new(weight_dim, weight.itemsize, "head gradient made in forward", category="gradients")
    pieces = [tape.new(part_hidden, hidden_size, "hidden gradient of a pair") for _ in range(scored.rows // count)]
    inputs = tape.new(part_hidden, hidden_size, "hidden states of a pair")
    logits = tape.new(part, itemsize, "logits of a pair")
    wide = tape.new(part, ops.FP32, "logits of a pair in fp32")
    kept = tape.new(part, ops.FP32, "log-softmax of a pair")
    del wide
    theirs = []
    if scored.reference_itemsize:
        theirs.append(tape.new(part, scored.reference_itemsize, "reference logits of a pair"))
        wide = tape.new(part, ops.FP32, "reference logits of a pair in fp32")
        scores = tape.new(part, ops.FP32, "reference log-softmax of a pair")
        del wide, scores
    if grads_on:
        scatter = tape.gradient((part, ops.FP32))
        wide = tape.gradient((part, ops.FP32))
        del scatter, kept
        low = tape.gradient((part, itemsize))
        del wide
        if wants_weight:
            piece = tape.new(weight_dim, weight.itemsize, "head gradient of a pair", category="gradients")
            del piece
        del low
    theirs.clear()
    del logits, inputs
    result = tape.new(hidden.dim, hidden_size, "hidden gradient made in forward") if grads_on else None
    pieces.clear()
    shifted.clear()
    if result is None:
        return tape.new(Dim("1", 1), ops.FP32, "loss")
    grads = (result, total)
    node = tape.node((hidden, weight), grads, lambda t, g: grads)
    return tape.new(Dim("1", 1), ops.FP32, "loss", node)


def cut_cross_entropy(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Cut cross-entropy: blocks of logits live in the kernel; a log-sum-exp per token and a mean per entry are kept
    (cut-cross-entropy 25.1, cce.py, cce_backward.py)."""
    tape = p.tape
    source = ops.autocast_input(tape, hidden)
    _, vocabulary = _sizes(p, hidden, weight)
    matrix = ops.cast(tape, weight, source.itemsize, "head in the compute dtype")
    want_hidden, want_weight = source.needs_grad, matrix.needs_grad
    dims, itemsize = (source.dim, matrix.dim), source.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        of_hidden = t.gradient((dims[0], itemsize)) if want_hidden else None
        of_weight = t.new(dims[1], itemsize, "weight gradients", category="gradients") if want_weight else None
        return (of_hidden, of_weight)

    statistics = tape.new(p.dim("1", 1), ops.FP32, "log-sum-exp of each token")
    means = tape.new(Dim("means", vocabulary), ops.FP32, "mean logit of each entry")
    node = tape.node((source, matrix), (source, matrix, statistics, means), backward)
    return tape.new(p.dim("1", 1), ops.FP32, "loss", node)


def verl_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Log-probabilities of 512 tokens at a time, made again in backward, which sums the head's gradient (verl 0.9,
    utils/experimental/torch_functional.py: FusedLinearForPPOFunction)."""
    tape = p.tape
    itemsize = tape.autocast or hidden.itemsize
    _, vocabulary = _sizes(p, hidden, weight)
    tokens = min(LOGPROB_CHUNK, p.tokens)
    part, hidden_dim, weight_dim = Dim("V chunk", tokens * vocabulary), hidden.dim, weight.dim
    hidden_size, weight_size = hidden.itemsize, weight.itemsize
    want_hidden, want_weight = hidden.needs_grad, weight.needs_grad

    def fp32_logits() -> Tensor:
        product = tape.new(part, itemsize, "logits of a chunk")
        low = tape.new(part, itemsize, "logits of a chunk")
        del product
        wide = tape.new(part, ops.FP32, "logits of a chunk in fp32") if itemsize != ops.FP32 else low
        del low
        return wide

    def backward(t: Tape, grads: Grads) -> Grads:
        of_hidden = t.gradient((hidden_dim, hidden_size)) if want_hidden else None
        total = t.new(weight_dim, weight_size, "weight gradients", category="gradients") if want_weight else None
        wide = fp32_logits()
        probabilities = t.gradient((part, ops.FP32), "softmax of a chunk")
        hot = t.gradient((part, ops.FP32), "one-hot labels of a chunk")
        difference = t.gradient((part, ops.FP32))
        product = t.gradient((part, ops.FP32))
        del difference
        summed = t.gradient((part, ops.FP32))
        del product
        low = t.gradient((part, itemsize)) if itemsize != ops.FP32 else summed
        del summed
        scaled = t.gradient((part, itemsize))
        del low
        piece = t.new(weight_dim, itemsize, "weight gradients of a chunk", category="gradients")
        del wide, probabilities, hot, scaled, piece
        return (of_hidden, total)

    wide = fp32_logits()
    probabilities = tape.new(part, ops.FP32, "softmax of a chunk")
    product = tape.new(part, ops.FP32, "softmax × logits of a chunk")
    del wide, probabilities, product
    node = tape.node((hidden, weight), (hidden,), backward)
    return tape.new(p.dim("1", 1), ops.FP32, "log-probabilities", node)


def _leaf(tape: Tape, x: Tensor, found: list[Tensor | None], slot: int) -> Tensor:
    """x, cut off from its graph; its gradients are summed into ``found``."""

    def catch(t: Tape, grads: list[Tensor | None]) -> tuple[()]:
        found[slot] = grads[0]
        return ()

    if isinstance(x, Param):
        leaf: Tensor = Param(tape, x.name, x.dim.elements, x.itemsize, trained=False)
    else:
        leaf = Tensor(x.dim, x.itemsize, x.storage)
    if x.needs_grad:
        leaf.node, leaf.needs_grad = Node(tape, [], (), catch), True
    return leaf


def _hold(start: Node, storages: Sequence[Storage | None]) -> None:
    """Every node of a graph that saves something holds these too."""
    seen, stack = {start}, [start]
    while stack:
        node = stack.pop()
        if node.saved:
            node.saved, node.packed = [*node.saved, *storages], True
        for edge in node.edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])


def checkpointed(tape: Tape, run: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """``torch.utils.checkpoint`` around a piece of the loss: keeps its inputs, and runs it again in backward.

    The inputs live until the last of the saved tensors made again has been used.
    """
    enabled, tape.grad_enabled = tape.grad_enabled, False
    out = run(inputs)
    tape.grad_enabled = enabled
    kept, dim, itemsize = list(inputs), out.dim, out.itemsize

    def backward(t: Tape, grads: Grads) -> Grads:
        found: list[Tensor | None] = [None] * len(kept)
        again = run([_leaf(t, x, found, slot) for slot, x in enumerate(kept)])
        inner = again.node
        del again
        if inner is not None:
            _hold(inner, [x.storage for x in kept])
            kept.clear()
            if node is not None:
                node.saved = ()
            t.backward(inner, list(grads))
        return found

    node = tape.node(inputs, inputs, backward)
    return Tensor(dim, itemsize, out.storage, node)


def trl_nll_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """TRL's ``chunked_nll``: 256 tokens at a time, checkpointed, with the head cast to fp32 for each chunk (trl 1.7 to
    1.14, trainer/sft_trainer.py: _chunked_cross_entropy_loss)."""
    tape = p.tape
    width, vocabulary = _sizes(p, hidden, weight)
    ordered = routing_ops.gather_rows(tape, hidden, hidden.dim, "scored hidden states")
    tokens = min(NLL_CHUNK, p.tokens)
    part, part_hidden = Dim("V chunk", tokens * vocabulary), Dim("chunk·h", tokens * width)

    def chunk(inputs: Sequence[Tensor]) -> Tensor:
        x = ops.cast(tape, inputs[0], ops.FP32, "hidden states of a chunk")
        matrix = ops.cast(tape, inputs[1], ops.FP32, "head in fp32")
        logits = ops.matmul(tape, x, matrix, part, "logits of a chunk")
        del x, matrix
        log_probabilities = loss_ops.log_softmax(tape, logits, "log-softmax of a chunk")
        loss = loss_ops.nll(tape, log_probabilities, Dim("1", 1))
        powers = tape.new(part, ops.FP32, "entropy of a chunk")
        if tape.phase != "backward":  # made again only up to what is saved last
            product = tape.new(part, ops.FP32, "entropy of a chunk")
            del product
        del powers
        return loss

    total: Tensor | None = None
    for _ in range(min(ROUNDS, ceil_div(scored.tokens, tokens))):
        x = ops.view(tape, ordered, part_hidden, whole=False)
        loss = checkpointed(tape, chunk, (x, weight))
        del x
        total = loss if total is None else ops.add(tape, total, loss, "loss")
    assert total is not None
    return total


def litgpt_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """LitGPT's fine-tuning of adapters: head and cross-entropy 128 tokens at a time; every chunk's logits and
    log-softmax stay (litgpt 0.5, model.py: lm_head_chunk_size, utils.py: chunked_cross_entropy)."""
    tape = p.tape
    _, vocabulary = _sizes(p, hidden, weight)
    length = p.tokens // scored.rows
    rounds = min(32, ceil_div(length, LITGPT_CHUNK))
    part = Dim("V chunk", p.tokens * vocabulary // rounds)
    pieces = ops.split(tape, hidden, rounds, Dim("chunk·h", hidden.dim.elements // rounds))
    logits = [ops.linear(tape, piece, weight, part, "logits of a chunk") for piece in pieces]
    del pieces
    if scored.fp32_outputs:  # Fabric's precision plugin, when autocast has been left
        tape.autocast = 0
        logits = [ops.cast(tape, block, ops.FP32, "logits of a chunk in fp32") for block in logits]
    losses = []
    for block in logits:
        log_probabilities = loss_ops.log_softmax(tape, block, "log-softmax of a chunk")
        losses.append(loss_ops.nll(tape, log_probabilities, Dim("chunk", p.tokens // rounds)))
        del log_probabilities, block
    loss = ops.concatenate(tape, losses, p.dim("1", 1), "loss of each token")
    if scored.caller is not None:
        scored.caller.extend(Tensor(x.dim, x.itemsize, x.storage) for x in logits)
    return loss


PROGRAMS: dict[str, Program] = {
    "fused": trl_tiles,
    "liger": liger,
    "liger-preference": liger_preference,
    "cut-cross-entropy": cut_cross_entropy,
    "chunked-log-probs": verl_chunks,
    "chunked-nll": trl_nll_chunks,
    "chunked-lm-head": litgpt_chunks,
}
