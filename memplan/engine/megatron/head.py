"""Around the layers: embedding, final norm, output matmul and loss, and multi-token prediction (MTP).

megatron-core 0.14 models/gpt/gpt_model.py, tensor_parallel/layers.py, tensor_parallel/cross_entropy.py;
TransformerEngine 2.11 pytorch/triton/cross_entropy.py, which works in the logits themselves.

MTP (megatron-core 0.16 transformer/multi_token_prediction.py): MultiTokenPredictionLayer normalises the embedding of
the next token and the model's output, joins and projects them, and runs a layer like the last; process_mtp_loss makes
logits and loss of each before the model's own. They stand on the last stage, which has a copy of the embedding."""

from collections.abc import Iterator
from typing import NamedTuple

from memplan.engine.losses.head_of_pass import policy_head, rollout_head
from memplan.engine.losses.heads import Head
from memplan.engine.megatron import te
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import Held, Step, Steps, checkpointed
from memplan.engine.micro_step import policy_mode
from memplan.engine.tail_trace import TailTrace, trace_tail
from memplan.engine.traces import Alive
from memplan.spec.recipe import Recipe

OUTPUT = "megatron-core 0.14 tensor_parallel/layers.py: LinearWithGradAccumulationAndAsyncCommunication"
TE_LOSS = "TransformerEngine 2.11 pytorch/triton/cross_entropy.py"
LOSS = "megatron-core 0.14 tensor_parallel/cross_entropy.py: VocabParallelCrossEntropy"
COMPILED_LOSS = "megatron-core 0.12 to 0.16 fusions/fused_cross_entropy.py, compiled by Inductor"
LOG_SOFTMAX = "MindSpeed-LLM mindspeed_llm/tasks/posttrain/utils.py: vocab_parallel_log_softmax"
FRESH = "what the compiled loss makes anew, and copies over its input"
"""Inductor works in place in an input only where pointwise operations alone read what it becomes: forward sums it by
rows, backward subtracts from single elements (Megatron-LM's own note of 2026 on its fused_cross_entropy.py)."""
VOCABULARY_PARALLEL = ("log-softmax", "stacked-log-softmax")
IN_MODEL = "megatron-cross-entropy"
"""The program of pretraining and SFT: the loss inside the model."""


class Tail(NamedTuple):
    """What the head holds at its instants, beside what is kept for the final norm."""

    at: tuple[tuple[str, tuple[Held, ...]], ...]
    source: str


def trains(recipe: Recipe, name: str) -> bool:
    """Whether the embedding or the head is trained: whole, or as the copy that an adapter names."""
    return recipe.adapter is None or name in recipe.adapter.saved


def norm_kept(recipe: Recipe, s: Shape) -> tuple[Held, ...]:
    """Final norm's input and statistics, and its output, which a trained output matmul keeps (a frozen one,
    LinearWithFrozenWeight, keeps its weight alone)."""
    count = recipe.megatron.mtp_num_layers
    normed = (joined_outputs(s) if count else te.stream(s, "normalised input of the output matmul"),)
    return (
        *te.read_by_norm(s, "the final norm"),
        te.statistics(s, "statistics of the final norm"),
        *(normed if count or trains(recipe, recipe.model.head.name) else ()),
    )


def tail(recipe: Recipe, s: Shape, vocabulary: int) -> Tail:
    """The instants of the loss. ``vocabulary``: padded, of this rank."""
    settings = recipe.megatron
    back = list(_product_backward(s))
    if recipe.loss.head == "score":
        return Tail((("loss", ()), ("head-backward", tuple(back))), OUTPUT)
    logits = Held("logits", "T·V·e", (s.tokens, vocabulary, s.itemsize))
    if (
        recipe.loss.head == IN_MODEL
        and settings.cross_entropy_loss_fusion
        and settings.cross_entropy_fusion_impl == "te"
    ):
        itself = logits._replace(name="logits, which become their own gradient")
        more = kept_losses(settings.mtp_num_layers, itself)
        return Tail((("loss", (itself, *more)), ("head-backward", (itself, *back, *more))), TE_LOSS)
    if recipe.loss.head == IN_MODEL:
        wide = Held("softmax, in the fp32 copy of the logits", "T·V·4", (s.tokens, vocabulary, te.FP32))
        narrow = logits._replace(name="gradient of the logits")
        more = kept_losses(settings.mtp_num_layers, wide)
        fresh = (wide._replace(name=FRESH),) if settings.cross_entropy_loss_fusion else ()
        points = (
            ("loss", (logits, wide, *fresh, *more)),
            ("loss-backward", (wide, *fresh, narrow, *more)),
            ("head-backward", (narrow, *back, *more)),
        )
        return Tail(points, COMPILED_LOSS if fresh else LOSS)
    if s.tensor > 1 and recipe.loss.head in VOCABULARY_PARALLEL:
        return Tail(tuple(_vocabulary_parallel(recipe.loss.head, s, vocabulary, back)), LOG_SOFTMAX)
    return Tail(tuple(_of_trainer(recipe, s, vocabulary, back)), recipe.trainer.source)


def _vocabulary_parallel(
    program: str, s: Shape, vocabulary: int, back: list[Held]
) -> Iterator[tuple[str, tuple[Held, ...]]]:
    """MindSpeed-LLM's log-softmax over tensor-parallel ranks, of single operations in fp32: exp(x − z) is saved, x − z
    is made twice. DPO scores policy and reference out of one concatenated tensor, while both stay."""
    wide = Held("logits in fp32", "T·V·4", (s.tokens, vocabulary, te.FP32))
    powers, shifted, result = (
        wide._replace(name=name) for name in ("exponentials of logits", "logits less their maximum", "log-softmax")
    )
    joined = (
        wide._replace(name="reference logits in fp32"),
        Held("logits of policy and reference", "2·T·V·4", (2, s.tokens, vocabulary, te.FP32)),
    )
    yield "loss", (wide, *(joined if program.startswith("stacked") else ()), powers, shifted, result)
    grads = ("gradient of the log-softmax", "gradient through the exponentials", "their sum")
    yield "loss-backward", (powers, *(wide._replace(name=name) for name in grads))
    narrow = Held("gradient of the logits", "T·V·e", (s.tokens, vocabulary, s.itemsize))
    yield "head-backward", (narrow, *back)


def _product_backward(s: Shape) -> Iterator[Held]:
    """The gradient of the product's input, and its scattered part."""
    yield Held("gradient of the output matmul's input", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    if s.gathers:
        yield te.stream(s, "its scattered part")


def _of_trainer(recipe: Recipe, s: Shape, vocabulary: int, back: list[Held]) -> Iterator[tuple[str, tuple[Held, ...]]]:
    """A trainer's own code over its part of the vocabulary: its program on the tape, the logits' part of it."""
    traced = _traced(recipe, s, vocabulary, policy_head(recipe, recipe.rows))
    points = (
        ("loss", traced.forward.get("loss")),
        ("loss-backward", traced.backward.get("loss")),
        ("head-backward", traced.backward.get("head")),
    )
    for point, alive in points:
        yield point, (*_logits(alive), *(back if point == "head-backward" else ()))


def scores(recipe: Recipe, s: Shape, vocabulary: int, entropy: bool) -> tuple[Held, ...]:
    """What the loss holds in a pass that only scores; of the loss inside the model, as in the update. ``entropy``: of
    the policy's pass, whose entropy a trainer may want though the update does not."""
    found = tail(recipe, s, vocabulary)
    if found.source != recipe.trainer.source:
        return found.at[0][1]
    rows = recipe.rows
    program = rollout_head(recipe, rows) if entropy else policy_head(recipe, rows, graph=False)
    return _logits(_traced(recipe, s, vocabulary, program, grad=False).forward.get("loss"))


def _logits(alive: Alive | None) -> tuple[Held, ...]:
    """The logits' part of what is alive."""
    tags = alive.tags if alive is not None else {}
    return tuple(Held(tag.label, "bytes", (n,)) for tag, n in tags.items() if tag.category == "logits" and n)


def _traced(recipe: Recipe, s: Shape, vocabulary: int, program: Head, grad: bool = True) -> TailTrace:
    """The tail of a trainer's own program on the tape, over this rank's rows of the vocabulary."""
    spec = recipe.model.but(vocab_size=vocabulary, head=recipe.model.head.but(outputs=vocabulary))
    rows, length = recipe.rows, max(2, s.tokens // recipe.rows)
    program = program._replace(
        loss=program.loss._replace(head=recipe.loss.head),
        scored_tokens=min(program.scored_tokens, rows * (length - 1)),
        projected=min(program.projected, length),
        sliced=min(program.sliced, length - 1),
    )
    return trace_tail(spec, policy_mode(recipe), rows, length, program, grad)


def gathered_buffer(s: Shape) -> Held:
    """Megatron's global buffer for the gathered input of the output matmul: made once, kept for good."""
    return Held("gathered input of the output matmul", "T·h·e", (s.tokens, s.hidden, s.itemsize))


def embedding_backward(s: Shape, vocabulary: int) -> tuple[Held, ...]:
    """The gradient of the table, dense, before it is added to the buffer; the gradient of the embedding's output."""
    gathered = (Held("gradient gathered along the sequence", "T·h·e", (s.tokens, s.hidden, s.itemsize)),)
    return (
        te.stream(s, te.STREAM_GRADIENT),
        *(gathered if s.gathers else ()),
        Held("gradient of the embedding's table", "V·h·e", (vocabulary, s.hidden, s.itemsize)),
    )


MTP = "megatron-core 0.16 transformer/multi_token_prediction.py: MultiTokenPredictionLayer"
TOKEN, HIDDEN = "embedding of the next token", "output that MTP reads"


def with_projection(s: Shape, layer: Steps) -> Steps:
    """The layer's steps between what joins embedding and output before it, and its norm behind it."""
    token, hidden = te.stream(s, TOKEN), te.stream(s, HIDDEN)
    joined = Held("normalised embedding and output, joined", "t·2·h·e", (s.local, 2, s.hidden, s.itemsize))
    whole = Held("projection gathered over its columns", "T·h·e", (s.tokens, s.hidden, s.itemsize))
    before = Step(
        "mtp-projection",
        kept=(
            token,
            hidden,
            te.statistics(s, "statistics of the embedding's norm"),
            te.statistics(s, "statistics of the output's norm"),
            *((joined,) if s.adapter is None else ()),
        ),
        forward=(whole, whole) if s.tensor > 1 else (joined,),
        backward=(te.stream(s, te.STREAM_GRADIENT), joined._replace(name="gradient of what was joined"), mtp_table(s)),
        source=MTP,
    )
    behind = Step(
        "mtp-norm",
        kept=(te.stream(s, "input of MTP's norm"), te.statistics(s, "statistics of MTP's norm")),
        backward=(te.stream(s, te.STREAM_GRADIENT), te.stream(s, "gradient of the norm's output")),
        source=MTP,
    )
    return (before, *layer, behind)


def mtp_table(s: Shape) -> Held:
    """The dense gradient of MTP's lookup; without a pipeline it waits for that of the model's own."""
    return Held("gradient of the embedding's table, of MTP's tokens", "V·h·e", (s.table, s.hidden, s.itemsize))


def checkpointed_mtp(s: Shape, steps: Steps) -> Steps:
    """Under full recomputation: both inputs are kept, all else is made again."""
    before, *rest = steps
    before = before._replace(kept=tuple(held for held in before.kept if held.name not in (TOKEN, HIDDEN)))
    both = Held("inputs of the MTP layer", "t·2·h·e", (s.local, 2, s.hidden, s.itemsize))
    return checkpointed((before, *rest), both)


def joined_outputs(s: Shape) -> Held:
    """Outputs of the model and of each MTP layer, side by side: what the output matmuls read."""
    of = te.stream(s, "outputs of model and MTP, joined")
    return of._replace(template="n·t·h·e", factors=(1 + s.settings.mtp_num_layers, *of.factors))


def kept_losses(count: int, kept: Held) -> tuple[Held, ...]:
    """What each MTP head's loss keeps until the model's own loss has gone back."""
    if not count:
        return ()
    return (kept._replace(name=f"{kept.name} (MTP)", template=f"n·{kept.template}", factors=(count, *kept.factors)),)
