"""From a recipe to the heads of its passes: the policy's, the reference's, and those that only score."""

from __future__ import annotations

from memplan.engine.heads import FUSED_PROGRAMS, Head
from memplan.engine.ops import FP32
from memplan.spec.recipe import Recipe

SCORES = {"stacked-log-softmax": "logits", "liger-preference": "hidden"}
"""What the reference runs where the policy's program works on both: logits or hidden states alone."""


def policy_head(recipe: Recipe, rows: int, graph: bool = True) -> Head:
    """The head of a pass of the policy over ``rows`` sequences; without ``graph`` it is scored only."""
    code, fused = recipe.loss_code, recipe.loss_head in FUSED_PROGRAMS
    if recipe.loss_head == "score":
        return Head("score")
    whole = graph and rows == recipe.rows
    last = not has_reference_pass(recipe) or recipe.trainer.reference_first
    return Head(
        recipe.loss_head,
        recipe.logits_to_fp32,
        recipe.keeps_outputs and graph,
        recipe.fp32_outputs,
        recipe.sft_term and rows > recipe.batch_size,
        rows * min(recipe.completion_length, recipe.sequence_length - 1),
        frees_logits=code.frees_logits,
        holds_logits=code.holds_logits and whole,
        metrics=code.metrics if whole and (code.metrics_everywhere or last) else "",
        entropy=code.entropy if graph else "",
        entropy_gradient=code.entropy_gradient,
        tempered=code.tempered,
        recomputed=code.recomputed and graph,
        leaves_autocast=code.leaves_autocast and not fused,
        hidden_states=_hidden_states(recipe, recipe.compute_itemsize, kept=recipe.checkpointing and graph),
        beside_logits=FP32 if code.stacked and graph else 0,
        pairs=recipe.method.pairs,
        reference_itemsize=recipe.compute_itemsize if code.reads_reference and graph else 0,
    )


def reference_head(recipe: Recipe, rows: int, itemsize: int) -> Head:
    """The head of the reference's pass: the policy's program without a graph, and the copies for the log."""
    code, fused = recipe.loss_code, recipe.loss_head in FUSED_PROGRAMS
    program = SCORES.get(recipe.loss_head, recipe.loss_head)
    last = code.metrics_everywhere or not recipe.trainer.reference_first
    return Head(
        program,
        recipe.logits_to_fp32,
        scored_tokens=rows * recipe.completion_length,
        frees_logits=code.frees_logits,
        metrics=code.metrics if last and rows == recipe.rows and program not in SCORES.values() else "",
        tempered=code.tempered,
        leaves_autocast=code.leaves_autocast and not fused,
        hidden_states=_hidden_states(recipe, itemsize, kept=False),
    )


def has_reference_pass(recipe: Recipe) -> bool:
    """Whether a reference scores the batch within the step."""
    return recipe.method.reference and recipe.reference in ("resident", "adapter", "offloaded")


def _hidden_states(recipe: Recipe, itemsize: int, kept: bool) -> int:
    """Bytes per token of all hidden states that the outputs hold beside what is kept anyway: copies in fp32 where
    accelerate converts outputs, the residual stream itself where no checkpoint keeps it."""
    if not recipe.loss_code.hidden_states:
        return 0
    layers, width = recipe.model.num_layers, recipe.model.hidden_size
    copies = (layers + 1) * width * FP32 if recipe.fp32_outputs and itemsize < FP32 else 0
    return copies + (0 if kept else (layers + 1) * width * itemsize)
