"""What an update holds because its batch came out of a rollout, or because a teacher speaks: rows beside the passes."""

from __future__ import annotations

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.heads import Head
from memplan.engine.ledger import Ledger
from memplan.engine.losses import teacher_logits_itemsize
from memplan.engine.ops import FP32
from memplan.engine.passes import TracedPass
from memplan.engine.traces import trace_tail
from memplan.spec.recipe import Recipe

TRL_PPO = "trl 1.12 experimental/ppo/ppo_trainer.py"


def enter_rollout(book: Ledger, recipe: Recipe) -> None:
    """Log-probabilities, advantages, values and returns of every completion until the optimizer's step; where the
    trainer keeps a rollout of several micro-steps, its ids and masks too."""
    if not recipe.method.online or recipe.method.pairs:
        return
    numbers = 2 + (recipe.reference != "none") + 2 * recipe.method.critic
    kept = recipe.rows * (1 if recipe.trainer.name == "pytorch" else recipe.accumulation)
    size = kept * recipe.completion_length * numbers * FP32
    ids = 2 * 8 * kept * recipe.sequence_length if recipe.trainer.name != "pytorch" else 0
    book.add(
        "rollout: log-probabilities, advantages and their kin",
        "batch",
        size,
        template="completions × length × tensors × 4",
        numbers=(kept, recipe.completion_length, numbers, FP32),
        why="made with the rollout, read by the loss",
        source="trl 1.16 trainer/grpo_trainer.py: _prepare_inputs, steps_per_generation",
    )
    book.add(
        "rollout: token ids and masks of all micro-steps",
        "batch",
        ids,
        template="completions × s × (ids + mask)",
        numbers=(kept, recipe.sequence_length, 16),
        why="a rollout serves all micro-steps of an optimizer step",
        source="trl 1.16 trainer/grpo_trainer.py: _buffered_inputs",
    )


def enter_teacher(book: Ledger, recipe: Recipe, student: TracedPass) -> None:
    """What waits while the other model runs: the teacher's logits over the student's forward, or the student's logits
    and the tail of its graph over the teacher's."""
    teacher, plan = recipe.teacher, student.plan
    if teacher is None:
        return
    logits = plan.rows * plan.length * plan.spec.head.outputs
    if not plan.head.waits:
        size = teacher_logits_itemsize(recipe, teacher)
        book.add(
            "teacher's logits",
            "logits",
            logits * size,
            f"{plan.name}.layer-forward",
            f"{plan.name}.forward",
            template="T × V × bytes",
            numbers=(plan.rows * plan.length, plan.spec.head.outputs, size),
            why="the teacher speaks first, and its logits wait for the loss",
            source="a plain loop",
        )
        return
    size = FP32 if plan.head.to_fp32 else recipe.autocast or plan.mode.weight_itemsize
    head = Head("held-logits", plan.head.to_fp32, frees_logits=plan.head.frees_logits)
    tail = trace_tail(plan.spec, plan.mode, plan.rows, plan.length, head)
    book.add(
        "student's logits and the tail of its graph",
        "logits",
        logits * size + tail.saved.size,
        "teacher.layer-forward",
        "teacher.forward",
        template="T × V × bytes + what norm and head saved",
        numbers=(plan.rows * plan.length, plan.spec.head.outputs, size),
        why="the student's outputs wait for the teacher's",
        source="trl 1.16 experimental/gkd/gkd_trainer.py: compute_loss",
    )


def enter_step_outputs(book: Ledger, recipe: Recipe, policy: TracedPass) -> None:
    """TRL's PPO names the policy's outputs (logits and every hidden state) and the distribution that it logs the
    entropy of until the next micro-step has its own, so over backward and the optimizer's step."""
    if not recipe.loss_code.step_outputs:
        return
    plan = policy.plan
    tokens, wide = plan.rows * plan.length, plan.head.fp32_outputs
    logits = tokens * plan.spec.head.outputs * (FP32 if wide else plan.mode.weight_itemsize)
    hidden = tokens * plan.head.hidden_states
    scored = plan.rows * min(recipe.completion_length, plan.length - 1)
    distribution = scored * plan.spec.head.outputs * (FP32 if wide else plan.mode.weight_itemsize)
    old = "of the micro-step before"
    why = "locals of the training loop, held until the next micro-step gives them new values"
    rows = (
        (f"logits and hidden states {old}", logits + hidden, "", f"{plan.name}.forward"),
        ("logits and hidden states, held over the step", hidden + logits, book.after(f"{plan.name}.head-backward"), ""),
        ("hidden states, held over the loss", hidden, f"{plan.name}.loss-backward", f"{plan.name}.head-backward"),
        (f"distribution {old}", distribution, "", ""),
    )
    for label, size, born, dies in rows:
        book.add(
            label,
            "logits",
            size,
            born,
            dies,
            template="T × (V + (L + 1) × h) × bytes" if label.startswith("logits") else "T × width × bytes",
            numbers=(size,),
            why=why,
            source=TRL_PPO,
        )


def enter_critic_hidden(book: Ledger, recipe: Recipe, critic: TracedPass) -> None:
    """The critic's hidden states of all layers, a local of the wrapper while the policy's forward runs; where layers
    are checkpointed they are the checkpoints themselves."""
    plan = critic.plan
    if not recipe.loss_code.step_outputs or recipe.checkpointing:
        return
    size = (plan.spec.num_layers + 1) * plan.spec.hidden_size * plan.mode.residual_itemsize
    book.add(
        "hidden states of the critic",
        "activations",
        plan.rows * plan.length * size,
        f"{CRITIC}.forward",
        "policy.forward",
        template="T × (L + 1) × h × bytes",
        numbers=(plan.rows * plan.length, plan.spec.num_layers + 1, plan.spec.hidden_size, plan.mode.residual_itemsize),
        why="the wrapper of policy and critic names the critic's outputs",
        source=f"{TRL_PPO}: PolicyAndValueWrapper",
    )
