"""From a recipe to the heads of its passes: the policy's, the reference's, and those that only score."""

from memplan.engine.losses.heads import Head
from memplan.engine.losses.scored import FUSED_PROGRAMS
from memplan.engine.parallel.fsdp2.units import head_gathered_whole
from memplan.engine.tape.ops import FP32
from memplan.engine.tensors import model_weights
from memplan.spec.groups import Loss, LossCode, Resident
from memplan.spec.recipe import Recipe
from memplan.spec.routing import RouterLoss
from memplan.tables.loss_heads import READS_WEIGHT

NO_ROUTERS = RouterLoss()
SCORES = {"stacked-log-softmax": "logits", "liger-preference": "hidden"}
"""What the reference runs where the policy's program works on both: logits or hidden states alone."""
UPDATES_ALONE = ("liger-policy", "liger-policy-blocks")
"""Losses of the update: old and reference log-probabilities come of logits, as without them (trl 1.9 and ms-swift 4.5
grpo_trainer.py: _get_per_token_logps_and_entropies)."""


BY_WHAT_IS_FREE = frozenset({"unsloth-chunks", "compiled-unsloth-chunks"})


def policy_head(recipe: Recipe, rows: int, graph: bool = True, evaluated: bool = False) -> Head:
    """The head of a pass of the policy over ``rows`` sequences; without ``graph`` it is scored only. ``evaluated``: it
    is the pass whose loss an evaluation wants, by the same code as in training."""
    code = recipe.loss.code
    if recipe.loss.head in ("score", "value-head"):
        return Head(Loss(recipe.loss.head))
    if not recipe.divided.last:
        return Head(Loss("hidden"))
    whole = (graph or evaluated) and rows == recipe.rows
    projected, sliced = _completion_lengths(recipe)
    teacher = recipe.teacher
    last = not has_reference_pass(recipe) or recipe.trainer.reference.first
    program = _evaluated(recipe) if evaluated else _program(recipe) if graph else _scoring(recipe)
    loss = _in_pass(recipe, rows, program, logged=whole and (code.metrics_everywhere or last), graph=graph)
    return Head(
        loss._replace(
            to_fp32=recipe.loss.to_fp32 and not recipe.model.encoder,
            keeps_outputs=(recipe.loss.keeps_outputs or code.step_outputs) and graph,
            sft_term=recipe.loss.sft_term and rows > recipe.batch.size,
            code=loss.code._replace(holds_logits=code.holds_logits and whole),
        ),
        rows * min(recipe.batch.completion_length, recipe.batch.sequence_length - 1),
        hidden_bytes=_hidden_states(recipe, recipe.numerics.itemsize, kept=recipe.checkpointing.layers and graph),
        narrow=_converts(recipe, recipe.numerics.itemsize) and not (recipe.checkpointing.layers and graph),
        beside_logits=FP32 if code.stacked and graph else 0,
        pairs=recipe.method.pairs,
        reference_itemsize=recipe.numerics.itemsize if code.reads_reference and graph else 0,
        projected=projected,
        sliced=sliced,
        teacher_itemsize=teacher_logits_itemsize(recipe, teacher) if teacher else 0,
        whole_itemsize=_gathered(recipe),
        free=_free(recipe) if program in BY_WHAT_IS_FREE else 0,
        waits=teacher is not None and not recipe.trainer.reference.first,
    )


def _free(recipe: Recipe) -> int:
    """What weights leave: more than is free where the loss first looks, so chunks are no smaller than they are."""
    from memplan.engine.phases.parts import whole_bytes

    gpu, adapter = recipe.hardware.gpu, recipe.adapter
    weights = whole_bytes(recipe, model_weights(recipe.model, adapter is None, adapter))
    return max(gpu.usable_bytes - weights, 1) if gpu else 0


def _in_pass(recipe: Recipe, rows: int, program: str, *, logged: bool, graph: bool) -> Loss:
    """The loss in a pass over ``rows`` sequences, which runs a program of its own and may be ``logged``."""
    code = recipe.loss.code if graph else recipe.loss.code.scoring
    head = program if recipe.loss.head in UPDATES_ALONE else recipe.loss.head
    own = code._replace(
        late_sft_term=code.late_sft_term if rows > recipe.batch.size else "",
        metrics=code.metrics if logged else "",
        leaves_autocast=code.leaves_autocast and head not in FUSED_PROGRAMS,
    )
    return recipe.loss._replace(head=program, code=own, router=NO_ROUTERS)


def _program(recipe: Recipe) -> str:
    """The program of the loss; of a vocabulary that ranks share, its parallel form."""
    if recipe.divided.tensor > 1 and not recipe.divided.whole_stream:
        return "parallel-cross-entropy"
    return "plain-cross-entropy" if recipe.model.encoder and recipe.loss.head != "own" else recipe.loss.head


def _evaluated(recipe: Recipe) -> str:
    """The program of an evaluation's loss: Liger's model projects onto the vocabulary and calls its own loss where it
    is not in training (liger-kernel 0.8.5 transformers/model/qwen2.py: skip_logits = self.training and labels), unless
    the trainer says otherwise (trl 0.29 trainer/sft_trainer.py, transformers 5.24 trainer.py: skip_logits)."""
    program, plain = _program(recipe), recipe.trainer.loss.heads
    skips = recipe.trainer.loss.skips_logits and not recipe.batch.eval_kept
    return plain.get(recipe.method.name, plain["*"]) if program == "liger" and not skips else program


def _scoring(recipe: Recipe) -> str:
    """The program of a pass that only scores."""
    program, plain = _program(recipe), recipe.trainer.loss.heads
    return plain.get(recipe.method.name, plain["*"]) if program in UPDATES_ALONE else program


def _completion_lengths(recipe: Recipe) -> tuple[int, int]:
    """Positions of each row that the head projects and that the loss reads, where these are the completions alone."""
    code, length = recipe.loss.code, recipe.batch.sequence_length
    read = min(recipe.batch.completion_length, length - 1)
    if code.projects_completions:
        return read + 1, read
    return 0, length - 1 if code.slices_logits == "labels" else read if code.slices_logits else 0


def teacher_logits_itemsize(recipe: Recipe, teacher: Resident) -> int:
    """Element size of a teacher's logits as the loss reads them."""
    return FP32 if recipe.loss.to_fp32 else recipe.numerics.autocast or teacher.itemsize


def teacher_head(recipe: Recipe) -> Head:
    """The teacher's pass gives logits alone."""
    code = recipe.loss.code
    own = LossCode(frees_logits=code.frees_logits, leaves_autocast=code.leaves_autocast)
    return Head(Loss("logits", recipe.loss.to_fp32, code=own))


def rollout_head(recipe: Recipe, rows: int) -> Head:
    """The policy scores its own completions, before the update: old log-probabilities, and with some the entropy."""
    head = policy_head(recipe, rows, graph=False)
    entropy = (
        "" if recipe.loss.head in FUSED_PROGRAMS or not recipe.loss.code.scoring_entropy else recipe.trainer.entropy.by
    )
    return head._replace(loss=head.loss._replace(code=head.code._replace(entropy=entropy, entropy_gradient=False)))


def reference_head(recipe: Recipe, rows: int, itemsize: int) -> Head:
    """The head of the reference's pass: the policy's program without a graph, and the copies for the log."""
    code = recipe.loss.code
    program = SCORES.get(recipe.loss.head, _scoring(recipe))
    projected, sliced = _completion_lengths(recipe)
    last = code.metrics_everywhere or not recipe.trainer.reference.first
    logged = last and rows == recipe.rows and program not in SCORES.values()
    loss = _in_pass(recipe, rows, program, logged=logged, graph=False)
    own = loss.code._replace(holds_logits=False, step_outputs=False)
    return Head(
        loss._replace(keeps_outputs=False, fp32_outputs=False, sft_term=False, code=own),
        rows * min(recipe.batch.completion_length, recipe.batch.sequence_length - 1),
        hidden_bytes=_hidden_states(recipe, itemsize, kept=False),
        narrow=_converts(recipe, itemsize),
        projected=projected,
        sliced=sliced,
        whole_itemsize=_gathered(recipe) if recipe.others.reference == "adapter" else 0,
    )


def _gathered(recipe: Recipe) -> int:
    """Element size of the head that the loss gathers to read: FSDP2's that no hook gathers, or one that ranks share."""
    shared = recipe.divided.whole_stream and recipe.loss.head in READS_WEIGHT
    return recipe.storage.precision.weights if shared or head_gathered_whole(recipe) else 0


def has_reference_pass(recipe: Recipe) -> bool:
    """Whether a reference scores the batch within the step."""
    return recipe.method.reference and recipe.others.reference in ("resident", "adapter", "offloaded")


def _hidden_states(recipe: Recipe, itemsize: int, kept: bool) -> int:
    """Bytes per token of all hidden states that the outputs hold beside what is kept anyway: the residual stream itself
    where no checkpoint keeps it, or copies in fp32 in its place where accelerate converts outputs; and of what a loss
    of the program's own makes of the last."""
    own, states = recipe.loss.code.own_hidden * recipe.model.hidden_size, recipe.model.num_layers + 1
    if not recipe.loss.code.hidden_states or (kept and not _converts(recipe, itemsize)):
        return own
    return own + states * recipe.model.hidden_size * (FP32 if _converts(recipe, itemsize) else itemsize)


def _converts(recipe: Recipe, itemsize: int) -> bool:
    """Whether accelerate copies hidden states to fp32 (utils/operations.py: ``convert_to_fp32``)."""
    return recipe.loss.code.hidden_states and recipe.loss.fp32_outputs and itemsize < FP32
