"""Heads that go from hidden states to log-probabilities without all of the logits: by tiles, chunks or kernels.

Each takes the normed hidden states and the head's weight. h hidden, V vocabulary, N tokens scored, e bytes per element.
Loops are played a few rounds long: every round holds the same."""

from collections.abc import Callable, Sequence
from functools import partial

from memplan.engine.layers.modules import Pass, project
from memplan.engine.losses.scored import Scored, checkpointed, sizes
from memplan.engine.tape import loss_ops, ops, routing_ops
from memplan.engine.tape.graph import Grads, Param, Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.units import ceil_div

TILE_ROWS, TILE_COLUMNS = 4096, 32768
"""Tile of TRL's chunked log-probability kernel (trl 1.16, trl/kernels/chunked_logprob.py)."""
NLL_CHUNK = 256
"""Tokens of a chunk of TRL's ``chunked_nll`` (trl 1.9, trainer/sft_trainer.py)."""
LOGPROB_CHUNK = 512
"""Tokens of a chunk of verl's fused linear (verl 0.9, utils/experimental/torch_functional.py)."""
LITGPT_CHUNK = 128
"""Tokens of a chunk of LitGPT's head and loss (litgpt 0.5, finetune/lora.py, utils.py)."""
LossOfChunk = Callable[[Pass, Tensor], Tensor]
TORCHTUNE_CHUNKS = 8
"""Chunks of torchtune's losses (num_output_chunks)."""
ROUNDS = 4
"""Rounds of a loop that are played: from the third on nothing new is alive."""


def trl_tiles(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """TRL's fused LM head (from 1.15): log-probabilities tile by tile, no logits.

    Forward keeps the scored hidden states; backward keeps an fp32 gradient of them and, for a trained head, of the
    weight, which is then cast (trl 1.16, trl/trainer/utils.py and trl/kernels/chunked_logprob.py)."""
    tape, itemsize = p.tape, p.tape.autocast or hidden.itemsize
    width, vocabulary = sizes(p, hidden, weight)
    compact_dim = Dim("N·h", scored.tokens * width)
    compact = routing_ops.gather_rows(tape, hidden, compact_dim, "scored hidden states")
    tile = Dim("V tile", min(scored.tokens, TILE_ROWS) * TILE_COLUMNS)
    columns, rows = _tiles(vocabulary, TILE_COLUMNS), _tiles(scored.tokens, TILE_ROWS)
    want_hidden, want_weight = hidden.needs_grad, weight.needs_grad
    weight_dim, weight_size, hidden_size = weight.dim, weight.itemsize, hidden.itemsize

    def casts(named: bool = True) -> list[Tensor | None]:
        """Casts of the tiles, each named until the next of its kind is there; but in ``forward`` those of the weight
        are an argument of ``torch.mm`` (``weight[start:end].to(compute_dtype).t()``)."""
        part: Tensor | None = None
        chunk: Tensor | None = None
        for row in rows:
            if hidden_size != itemsize:
                chunk = tape.new(Dim("tile·h", row * width), itemsize, "tile of weights and inputs")
            for column in columns if weight_size != itemsize else ():
                part = tape.new(Dim("tile·h", column * width), itemsize, "tile of weights and inputs")
                part = part if named else None
        return [part, chunk]

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
        # ``backward`` returns: its fp32 sums are cast, its tile is gone (chunked_logprob.py)
        del block, parts, wide, wide_weight
        return (narrow, grad_weight)

    statistics = tape.new(Dim("N·7", scored.tokens * 7), ops.FP32, "log-probability statistics")
    block = tape.new(tile, itemsize, "logits tile")
    parts = casts(named=False)
    del block, statistics, parts  # ``tile`` and the running statistics are locals of ``forward`` (chunked_logprob.py)
    node = tape.node((compact, weight), (compact, weight), backward)
    return tape.new(Dim("N", scored.tokens), ops.FP32, "log-probabilities", node)


def _tiles(size: int, largest: int) -> list[int]:
    """The sizes of tiles that a loop goes through: two whole ones stand for many."""
    whole, rest = divmod(size, largest)
    return [largest] * min(whole, 2) + [rest] * (rest > 0)


def cut_cross_entropy(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """Cut cross-entropy: blocks of logits live in the kernel; a log-sum-exp per token and a mean per entry are kept
    (cut-cross-entropy 25.1, cce.py, cce_backward.py)."""
    tape = p.tape
    source = ops.autocast_input(tape, hidden)
    _, vocabulary = sizes(p, hidden, weight)
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
    utils/experimental/torch_functional.py: FusedLinearForPPOFunction). Autocast copies inputs and head for each chunk
    of the forward, where no gradient is recorded and nothing is kept; it is left before backward."""
    tape = p.tape
    width, vocabulary = sizes(p, hidden, weight)
    tokens = min(LOGPROB_CHUNK, p.tokens)
    part, hidden_dim, weight_dim = Dim("V chunk", tokens * vocabulary), hidden.dim, weight.dim
    hidden_size, weight_size = hidden.itemsize, weight.itemsize
    want_hidden, want_weight = hidden.needs_grad, weight.needs_grad

    def fp32_logits(itemsize: int) -> Tensor:
        copies = []
        if itemsize != hidden_size:
            copies.append(tape.new(Dim("chunk·h", tokens * width), itemsize, "autocast copies of inputs"))
        if itemsize != weight_size:
            copies.append(tape.new(weight_dim, itemsize, "autocast copies of weights", category="autocast_weights"))
        product = tape.new(part, itemsize, "logits of a chunk")
        # autocast's copies in ``hidden_states @ vocab_weights.t()``: nothing is recorded, so nothing holds them
        copies.clear()
        low = tape.new(part, itemsize, "logits of a chunk")
        del product  # ``(h @ w.t()) / temperature``: the product is a temporary
        wide = tape.new(part, ops.FP32, "logits of a chunk in fp32") if itemsize != ops.FP32 else low
        del low  # ``logits = logits.to(torch.float32)`` rebinds it (_fused_linear_for_ppo_fwd, …_bwd)
        return wide

    def backward(t: Tape, grads: Grads) -> Grads:
        of_hidden = t.gradient((hidden_dim, hidden_size)) if want_hidden else None
        total = t.new(weight_dim, weight_size, "weight gradients", category="gradients") if want_weight else None
        wide = fp32_logits(hidden_size)
        probabilities = t.gradient((part, ops.FP32), "softmax of a chunk")
        hot = t.gradient((part, ops.FP32), "one-hot labels of a chunk")
        difference = t.gradient((part, ops.FP32))
        product = t.gradient((part, ops.FP32))
        del difference  # temporary of ``dlog_probs * (one_hot_input - probs)`` (_fused_linear_for_ppo_bwd)
        summed = t.gradient((part, ops.FP32))
        del product  # ``dlogits += …`` from the number 0: the sum is a new tensor
        low = t.gradient((part, hidden_size)) if hidden_size != ops.FP32 else summed
        del summed  # ``dlogits = dlogits.to(orig_dtype) / temperature`` rebinds it
        scaled = t.gradient((part, hidden_size))
        del low  # a temporary of the same line
        piece = t.new(weight_dim, hidden_size, "weight gradients of a chunk", category="gradients")
        # locals of _fused_linear_for_ppo_bwd: ``logits``, ``probs``, ``one_hot_input``, ``dlogits``
        del wide, probabilities, hot, scaled, piece
        return (of_hidden, total)

    wide = fp32_logits(tape.autocast or hidden_size)
    probabilities = tape.new(part, ops.FP32, "softmax of a chunk")
    product = tape.new(part, ops.FP32, "softmax × logits of a chunk")
    del wide, probabilities, product  # locals of _fused_linear_for_ppo_fwd: ``logits``, ``probs``
    node = tape.node((hidden, weight), (hidden, weight), backward)
    return tape.new(p.dim("1", 1), ops.FP32, "log-probabilities", node)


def trl_nll_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """TRL's ``chunked_nll``: 256 tokens at a time, checkpointed, with the head cast to fp32 for each chunk (trl 1.7 to
    1.14, trainer/sft_trainer.py: _chunked_cross_entropy_loss)."""
    tape = p.tape
    width, vocabulary = sizes(p, hidden, weight)
    ordered = routing_ops.gather_rows(tape, hidden, hidden.dim, "scored hidden states")
    tokens = min(NLL_CHUNK, p.tokens)
    part, part_hidden = Dim("V chunk", tokens * vocabulary), Dim("chunk·h", tokens * width)

    def chunk(inputs: Sequence[Tensor]) -> Tensor:
        x = ops.cast(tape, inputs[0], ops.FP32, "hidden states of a chunk")
        matrix = ops.cast(tape, inputs[1], ops.FP32, "head in fp32")
        logits = ops.matmul(tape, x, matrix, part, "logits of a chunk")
        del x, matrix  # from here on their product's node alone holds them
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
        del x  # the checkpoint holds it (torch/utils/checkpoint.py: checkpoint)
        total = loss if total is None else ops.add(tape, total, loss, "loss")
    assert total is not None
    return total


def litgpt_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored) -> Tensor:
    """LitGPT's fine-tuning of adapters: head and cross-entropy 128 tokens at a time; every chunk's logits and
    log-softmax stay (litgpt 0.5, model.py: lm_head_chunk_size, utils.py: chunked_cross_entropy)."""
    tape = p.tape
    length = p.tokens // scored.rows
    rounds = min(32, ceil_div(length, LITGPT_CHUNK))
    pieces = ops.split(tape, hidden, rounds, Dim("chunk·h", hidden.dim.elements // rounds))
    one = p.part(1, p.tokens // rounds)
    one.params = {weight.name: weight}  # and its adapters
    assert scored.linear is not None
    logits = [project(one, piece, scored.linear, "V", "logits of a chunk", quantised=False) for piece in pieces]
    del pieces, hidden  # ``lm_head(x_i)`` of a comprehension over ``x.split`` (litgpt/model.py): what nodes saved stays
    p.ended()
    if scored.fp32_outputs:  # Fabric's precision plugin, when autocast has been left
        tape.autocast = 0
        logits = [ops.cast(tape, block, ops.FP32, "logits of a chunk in fp32") for block in logits]
    losses = []
    for block in logits:
        log_probabilities = loss_ops.log_softmax(tape, block, "log-softmax of a chunk")
        losses.append(loss_ops.nll(tape, log_probabilities, Dim("chunk", p.tokens // rounds)))
        # ``cross_entropy`` of a comprehension names nothing (litgpt/utils.py: chunked_cross_entropy)
        del log_probabilities, block
    loss = ops.concatenate(tape, losses, p.dim("1", 1), "loss of each token")
    if scored.caller is not None:
        scored.caller.extend(Tensor(x.dim, x.itemsize, x.storage) for x in logits)
    return loss


def _linear_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored, loss: LossOfChunk) -> Tensor:
    """torchtune's LinearCrossEntropyLoss: the scored tokens' hidden states are copied; head, fp32 and cross-entropy of
    an eighth of them at a time, whose log-softmax stays (torchtune 0.7, modules/loss/cross_entropy_loss.py)."""
    chosen = ops.copy(p.tape, hidden, "hidden states of scored tokens")
    del hidden  # ``outputs`` is rebound by ``mask_inputs``
    pieces = _eighths(p, chosen)
    return _mean(p, [loss(p, chunk_logits(p, piece, weight, scored)) for piece in pieces])


def _output_chunks(p: Pass, hidden: Tensor, weight: Param, scored: Scored, loss: LossOfChunk) -> Tensor:
    """torchtune's CEWithChunkedOutputLoss: the model makes all logits, in eighths; each becomes fp32 and a log-softmax,
    which stays, and the recipe holds the logits until the loss is whole (torchtune 0.3 to 0.6, modules/transformer.py:
    chunked_output; recipes: ``del logits``)."""
    logits = [chunk_logits(p, piece, weight, scored) for piece in _eighths(p, hidden)]
    p.ended()
    return _mean(p, [loss(p, block) for block in logits])


def _eighths(p: Pass, x: Tensor) -> list[Tensor]:
    """``tensor_split(8)``."""
    return ops.split(p.tape, x, TORCHTUNE_CHUNKS, Dim("T/8·h", x.dim.elements // TORCHTUNE_CHUNKS))


def chunk_logits(p: Pass, piece: Tensor, weight: Param, scored: Scored, tokens: int = 0) -> Tensor:
    """The head of a chunk of so many tokens, an eighth of the pass where nothing is said, with its adapters."""
    one = p.part(1, max(1, tokens or p.tokens // TORCHTUNE_CHUNKS))
    one.params = {weight.name: weight}
    assert scored.linear is not None
    return project(one, piece, scored.linear, "V", "logits of a chunk", quantised=False)


def _eager_loss(p: Pass, logits: Tensor) -> Tensor:
    """``F.cross_entropy(logits.float(), …, reduction="sum")``; its caller's names hold the logits meanwhile."""
    wide = ops.cast(p.tape, logits, ops.FP32, "logits of a chunk in fp32")
    log_probabilities = loss_ops.log_softmax(p.tape, wide, "log-softmax of a chunk")
    return loss_ops.nll(p.tape, log_probabilities, Dim("1", 1))


def _compiled_loss(p: Pass, logits: Tensor) -> Tensor:
    """``compute_cross_entropy`` compiled: one kernel reads the logits, which stay as the head made them, and makes sums
    of each row; another makes their gradient."""
    return loss_ops.nll(p.tape, logits, Dim("1", 1))


def _mean(p: Pass, losses: list[Tensor]) -> Tensor:
    return ops.concatenate(p.tape, losses, p.dim("1", 1), "loss")


torchtune_linear_chunks = partial(_linear_chunks, loss=_eager_loss)
torchtune_compiled_linear_chunks = partial(_linear_chunks, loss=_compiled_loss)
torchtune_output_chunks = partial(_output_chunks, loss=_eager_loss)
torchtune_compiled_output_chunks = partial(_output_chunks, loss=_compiled_loss)
