"""Passes that score a rollout before the update, where they may hold more than it: in larger micro-batches, with the
entropy, or with a reference beside the policy.

Counted from above: nothing is saved, so each tensor of a layer goes when the next has read it, while here all that a
layer makes up to its fullest moment is counted at once. Other scores are within the update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.engine.ledger import Ledger
from memplan.engine.megatron import head, te
from memplan.engine.megatron.layers import layer_steps
from memplan.engine.megatron.shape import Shape, shape_of
from memplan.engine.megatron.stages import chunks_of
from memplan.engine.megatron.steps import Held, fullest_forward, size
from memplan.engine.megatron.weights import rank_shares
from memplan.engine.micro_step import scoring_recipe
from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.engine.megatron.build import MegatronParts

OLD, REFERENCE = "old", "reference"
WHY = "made by a pass that saves nothing, and counted as if all of it stayed to the fullest moment"


def instants_of_scores(recipe: Recipe) -> tuple[str, ...]:
    """The layers and the loss of each pass; a resident reference, or the policy's own weights, scores as the policy."""
    if not recipe.batch.scoring:
        return ()
    beside = recipe.others.reference == "offloaded" and recipe.trainer.reference.beside
    return tuple(f"{name}.{part}" for name in (OLD, *((REFERENCE,) if beside else ())) for part in ("layer", "loss"))


def enter_scores(ledger: Ledger, parts: MegatronParts) -> None:
    """At each instant the fullest layer of the stage, or its head and loss; what stages hand on."""
    recipe = parts.recipe
    instants = instants_of_scores(recipe)
    if not instants:
        return
    own = scoring_recipe(recipe)
    s, degrees = shape_of(own), recipe.parallel
    waiting = (degrees.pipeline if degrees.virtual > 1 else 2) if degrees.pipeline > 1 else 0
    stream = te.stream(s, "input of a stage")
    layers = [layer_steps(s, chunk.layer) for chunk in parts.chunks]
    forwards = [
        [*(held for step in steps[: fullest + 1] for held in step.kept), *steps[fullest].forward]
        for steps, fullest in ((steps, fullest_forward(steps)) for steps in layers)
    ]
    fullest = max(forwards, key=size, default=[])
    for instant in instants:
        last = not instant.endswith("layer")
        for held in _ends(own, s, parts.vocabulary, instant) if last else fullest:
            _add(ledger, held, instant, s.spread if held.routed else 1 + held.doubt)
        if not last and (tower := parts.scored_tower) is not None:
            seen = tower.forward + tower.outputs + tower.locals
            _add(ledger, Held("vision tower, forward", "tower", (seen,)), instant)
        if waiting:
            _add(ledger, Held(stream.name, f"stages·{stream.template}", (waiting, *stream.factors)), instant)
    if instants[-1].startswith(REFERENCE):
        chunks = chunks_of(recipe.model, degrees, recipe.megatron, 1, False)
        shares = rank_shares(recipe.model, degrees, recipe.megatron, chunks)
        factors = (sum(share.elements for share in shares), recipe.storage.precision.weights)
        ledger.add(
            "reference on the card for its pass", "reference", factors[0] * factors[1], instants[-2], instants[-1]
        ).told(*factors, source=recipe.trainer.source)


def _ends(own: Recipe, s: Shape, vocabulary: int, instant: str) -> list[Held]:
    """The final norm, the head and the loss, on the last stage."""
    if not own.parallel.last:
        return []
    return [*head.norm_kept(own, s), *head.scores(own, s, vocabulary, entropy=instant.startswith(OLD))]


def _add(ledger: Ledger, held: Held, instant: str, more: float = 1) -> None:
    ledger.add(
        held.name,
        "logits" if "V" in held.template or held.template == "bytes" else "activations",
        held.bytes,
        at=instant,
        high=int(held.bytes * more) if more > 1 else -1,
    ).formula(held.template, *held.factors).since(
        WHY, "megatron-core 0.14 pipeline_parallel/schedules.py: forward_only"
    )
