"""What fused, compiled and hand-written kernels hold beside the layers: of what they leave open a row with a high
figure and nothing expected; Unsloth's buffers for unpacked weights, and of checkpoints that come back from the host.

unsloth 2026.8 kernels/utils.py: WEIGHT_BUFFERS, ABSMAX_BUFFERS; unsloth-zoo 2026.8 gradient_checkpointing.py."""

from memplan.engine.ledger import Ledger
from memplan.engine.pass_plan import PassPlan
from memplan.engine.passes import TracedPass, traced_pass
from memplan.engine.tape.ops import FP32
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe
from memplan.tables.kernels import NO_KERNELS

WHY_COMPILED = "graph breaks and the partitioner's choices decide which intermediates outlive their kernel"
PARTITIONER = "torch 2.13 _functorch/partitioners.py: min_cut_rematerialization_partition"
WHY_PATCHED = "trainers patch all of these kernels, some of them, or none for a class of their own"
PATCHES = "liger-kernel 0.8.5 transformers/monkey_patch.py: switches of each patch; fms-acceleration patches fewer"
WHY_UNSLOTH = "it patches what it knows of a version of transformers and PEFT, and was not measured"
UNSLOTH = "unsloth 2026.8 models/llama.py: patch_peft_model"


def enter_kernels(ledger: Ledger, recipe: Recipe, traced: TracedPass) -> None:
    """What they hold in a pass."""
    enter_compiled(ledger, traced)
    enter_liger_products(ledger, traced)
    enter_checkpoint_buffers(ledger, recipe, traced)


def enter_compiled(ledger: Ledger, traced: TracedPass) -> None:
    """At most the layers and the loss run as they would without kernels or the compiler, where a class is not patched,
    graphs break or nobody compiles the loss: what their nodes save then, and the larger transients."""
    plan, other = traced.plan, unfused(traced.plan)
    if other is None:
        return
    eager = traced_pass(other)
    more = eager.saved_before[-1] - traced.saved_before[-1]
    transients = _largest_layer(eager) - _largest_layer(traced)
    loss = _most(eager) - _most(traced)
    fused = plan.mode.operators.kernels.adapters == "fused"
    why, source = (WHY_UNSLOTH, UNSLOTH) if fused else (WHY_PATCHED, PATCHES)
    if plan.mode.operators.kernels.compiled:
        why, source = WHY_COMPILED, PARTITIONER
    ledger.add(
        "intermediates that are not fused",
        "activations",
        0,
        f"{plan.name}.layer-forward",
        f"{plan.name}.embedding-backward",
        high=max(more, 0) + max(transients, loss, 0),
    ).formula("0 to what eager layers save more").since(why, source)


def unfused(plan: PassPlan) -> PassPlan | None:
    """The same pass without kernels or the compiler; None where there are none, and without a graph."""
    operators = plan.mode.operators
    plain = NO_KERNELS._replace(float8=operators.kernels.float8)
    if operators.kernels == plain or plan.style == "no-grad":
        return None
    loss = plan.head.loss._replace(head=plan.head.program.replace("compiled-", ""))
    mode = plan.mode._replace(operators=operators._replace(kernels=plain))
    return plan._replace(mode=mode, head=plan.head._replace(loss=loss))


def _largest_layer(traced: TracedPass) -> int:
    """The most within a layer, forward or backward."""
    return max(alive.size for layer in traced.layers for alive in (layer.forward, *layer.backward.values()))


def _most(traced: TracedPass) -> int:
    """The most within the tail, forward or backward."""
    tail = traced.tail
    return max(alive.size for alive in (*tail.forward.values(), *tail.backward.values()))


def enter_liger_products(ledger: Ledger, traced: TracedPass) -> None:
    """``grad_weight += torch.mm(grad_logits_chunk.t(), _input_chunk).float()`` of Liger's fused cross-entropy: the
    product of a chunk is as large as the head, and so is its fp32 copy. Nothing is expected, as before 0.6.2 and from
    0.8.3 on (``addmm(out=grad_weight)``); the high figure is that of versions between, and of cards before Ampere."""
    plan, trained = traced.plan, traced.tail.head_gradient
    if plan.head.program != "liger" or not trained or plan.style == "no-grad":
        return
    numerics = plan.mode.numerics
    itemsize, elements = numerics.autocast or numerics.itemsize, trained // numerics.itemsize
    each = FP32 if itemsize == FP32 else itemsize + FP32
    name, at = "head gradient of a chunk", f"{plan.name}.loss"
    ledger.add(name, "gradients", 0, at=at, high=elements * each).told(elements, each, of="products of chunks")


COPIES = 2
"""fp32 copies of a layer's channels that the splits of its gradients may come to."""


def widest(recipe: Recipe) -> int:
    """Channels of the widest mixer that has such kernels; short convolutions have no splits."""
    widths = [0]
    for mixer in recipe.model.mixers:
        of = mixer.state_space if mixer.kind == "both" else mixer
        if of.kind in ("state-space", "state-space-dual"):
            widths.append(of.inner)
        elif of.kind == "gated-delta":
            widths.append(of.values)
    return max(widths)


def enter_mixer_kernels(ledger: Ledger, recipe: Recipe) -> None:
    """Nothing expected, and up to two copies of the widest layer's channels while a pass runs."""
    width = widest(recipe) if recipe.operators.mixer_kernels else 0
    if not width:
        return
    tokens = recipe.rows * recipe.batch.sequence_length
    ledger.add(
        "splits of gradients in the mixers' kernels",
        "temporaries",
        0,
        born=ledger.schedule[0],
        dies=ledger.schedule[-2],
        high=COPIES * FP32 * tokens * width,
    ).told(tokens, width, FP32, COPIES)


ABSMAX_BLOCK = 64


def enter_unpacking(ledger: Ledger, recipe: Recipe, weights: list[Weight]) -> None:
    """One buffer as large as the largest quantised matrix, and one for its scales where they are quantised too."""
    base = recipe.quantised
    if base is None or recipe.operators.kernels.adapters != "fused":
        return
    largest = max((weight.rows * weight.columns for weight in weights if weight.quantised_by(base)), default=0)
    scales = largest // ABSMAX_BLOCK * FP32 if base.scheme.nested else 0
    ledger.add("buffer of unpacked weights", "buffers", largest * base.compute_itemsize + scales).told(
        largest, base.compute_itemsize
    )


TABLE_POSITIONS = 4 * 8192
"""Of a table that is made anew where a sequence is longer (unsloth 2024.7 on models/llama.py: LlamaRotaryEmbedding)."""


def enter_rotary_tables(ledger: Ledger, recipe: Recipe) -> None:
    """cos and sin of Unsloth's own classes, in half precision: one pair of all positions since transformers 4.48; of
    every layer before, until 2024.6 of all positions too. Its loss tells the version: all logits are made until
    2024.11.7, cut cross-entropy until 2025.8.4, beside either transformers."""
    if recipe.operators.kernels.adapters != "fused":
        return
    model, itemsize = recipe.model, recipe.numerics.itemsize
    widths = [getattr(layer.mixer, "rotary_width", 0) for layer in model.layers()]
    whole = max(model.max_positions or 0, recipe.batch.sequence_length)
    pair = 2 * max(widths, default=0) * whole * itemsize
    each = 2 * sum(widths) * min(whole, TABLE_POSITIONS) * itemsize
    size, high = pair, pair
    if recipe.loss.head == "unsloth-cross-entropy":
        size, high = each, pair * len(widths)
    elif recipe.loss.head == "cut-cross-entropy":
        high = max(pair, each)
    ledger.add("tables of cos and sin", "buffers", size, high=high).told(size)


FEW_TOKENS, OF_EACH = 1024, 2 + 4
"""Unsloth makes all logits of so many tokens, and accelerate copies them to fp32."""


def enter_logits_of_few(ledger: Ledger, recipe: Recipe) -> None:
    """Beside cut cross-entropy: a batch of short rows has all of its logits, which longer ones have not."""
    at = "policy.loss"  # an evaluation's instants have names of their own
    fused = recipe.operators.kernels.adapters == "fused" and recipe.loss.head == "cut-cross-entropy"
    if not fused or at not in ledger.schedule:
        return
    size = FEW_TOKENS * recipe.model.vocab_size * OF_EACH
    ledger.add("logits of a batch of few tokens", "logits", size, at=at, low=0).told(
        FEW_TOKENS, recipe.model.vocab_size, OF_EACH
    )


def enter_checkpoint_buffers(ledger: Ledger, recipe: Recipe, traced: TracedPass) -> None:
    """Layer inputs wait on the host, but for the last layer's; the card has a buffer for the one that is back (counted
    in its layer's recomputation), and a second one where memory is free."""
    plan = traced.plan
    if recipe.checkpointing.offload != "unsloth" or plan.style == "no-grad":
        return
    size = traced.layers[-1].boundary
    ledger.add(
        "input of the last layer, which stays",
        "activations",
        size,
        f"{plan.name}.forward",
        f"{plan.name}.final-norm-backward",
    ).told(size)
    ledger.add("buffer of checkpoints that come back", "buffers", size, low=0, high=2 * size).told(size)
