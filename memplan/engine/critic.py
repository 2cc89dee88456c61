"""PPO's critic: a value model with weights, states and a pass of its own beside the policy's."""

from __future__ import annotations

from memplan.engine.heads import Head
from memplan.engine.modules import Mode
from memplan.engine.passes import PassPlan, TracedPass
from memplan.engine.tensors import Weight, model_weights
from memplan.spec.recipe import Critic, Recipe

NAME = "critic"
STEP = "critic.optimizer"
"""The step of a critic that has an engine of its own."""


def critic_weights(recipe: Recipe) -> list[Weight]:
    """Its parameters; none without a critic."""
    critic = recipe.critic
    return model_weights(critic.spec, critic.adapter is None, critic.adapter) if critic else []


def critic_pass(recipe: Recipe, critic: Critic, gradients: str) -> TracedPass:
    """Forward and backward over all rows: a value for each token."""
    mode = Mode(
        weight_itemsize=recipe.compute_itemsize,
        trained=critic.adapter is None,
        autocast=recipe.autocast,
        attention=recipe.attention,
        padded=recipe.padded,
        adapter=critic.adapter,
        half_to_float=recipe.half_to_float,
        stream_itemsize=4 if recipe.autocast and critic.spec.widens_stream else 0,
    )
    style = ("reentrant" if recipe.reentrant else "checkpoint") if recipe.checkpointing else "plain"
    plan = PassPlan(
        name=NAME,
        spec=critic.spec,
        mode=mode,
        rows=recipe.rows,
        length=recipe.sequence_length,
        style=style,
        head=Head("score"),
        gradients=gradients,
        embedding_trained=recipe.checkpointing or critic.adapter is None,
    )
    return TracedPass(plan)
