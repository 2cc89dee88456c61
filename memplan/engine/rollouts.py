"""What an update holds because its batch came out of a rollout, or a teacher scores it: rows beside the passes."""

from memplan.engine.critic import NAME as CRITIC
from memplan.engine.ledger import Ledger
from memplan.engine.losses.head_of_pass import teacher_logits_itemsize
from memplan.engine.losses.heads import INSIDE, Head
from memplan.engine.passes import TracedPass
from memplan.engine.tail_trace import trace_tail
from memplan.engine.tape.ops import FP32
from memplan.spec.groups import Loss, LossCode
from memplan.spec.recipe import Recipe

TRL_PPO = "trl 1.12 experimental/ppo/ppo_trainer.py"


def enter_rollout(ledger: Ledger, recipe: Recipe) -> None:
    """Log-probabilities, advantages, values and returns of every completion until the optimizer's step; where the
    trainer keeps a rollout of several micro-steps, its ids and masks too."""
    if not recipe.method.online or recipe.method.pairs:
        return
    numbers = 2 + (recipe.others.reference != "none") + 2 * recipe.method.critic
    kept = recipe.rows * (1 if recipe.trainer.name == "pytorch" else recipe.batch.accumulation)
    size = kept * recipe.batch.completion_length * numbers * FP32
    ids = 2 * 8 * kept * recipe.batch.sequence_length if recipe.trainer.name != "pytorch" else 0
    ledger.add("rollout: log-probabilities, advantages and their kin", "batch", size).told(
        kept, recipe.batch.completion_length, numbers, FP32, of="log-probabilities of a rollout"
    )
    ledger.add("rollout: token ids and masks of all micro-steps", "batch", ids).told(
        kept, recipe.batch.sequence_length, 16, of="token ids of a rollout"
    )
    if scores := scores_bytes(recipe):
        ledger.add("logits of all completions, from their generation", "logits", scores).told(
            scores, of="locals of the training loop"
        )


def scores_bytes(recipe: Recipe) -> int:
    """fp32 logits that transformers' generation hands out, a local of TRL's PPO until the next rollout; 0 elsewhere."""
    of = recipe.generator
    if of is None or of.engine != "hf" or not recipe.loss.code.step_outputs:
        return 0
    rows = recipe.rows * recipe.batch.accumulation
    return rows * recipe.batch.completion_length * recipe.model.vocab_size * FP32


def enter_teacher(ledger: Ledger, recipe: Recipe, student: TracedPass) -> None:
    """What waits while the other model runs: the teacher's logits over the student's forward, or the student's logits
    and the tail of its graph over the teacher's."""
    teacher, plan = recipe.teacher, student.plan
    if teacher is None:
        return
    logits = plan.rows * plan.length * plan.spec.head.outputs
    if not plan.head.waits:
        size = teacher_logits_itemsize(recipe, teacher)
        ledger.add(
            "teacher's logits", "logits", logits * size, f"{plan.name}.layer-forward", f"{plan.name}.forward"
        ).told(plan.rows * plan.length, plan.spec.head.outputs, size)
        return
    size = FP32 if plan.head.loss.to_fp32 else recipe.numerics.autocast or plan.mode.numerics.itemsize
    head = Head(Loss("held-logits", plan.head.loss.to_fp32, code=LossCode(frees_logits=plan.head.code.frees_logits)))
    tail = trace_tail(plan.spec, plan.mode, plan.rows, plan.length, head)
    ledger.add(
        "student's logits and the tail of its graph",
        "logits",
        logits * size + tail.saved.size,
        "teacher.layer-forward",
        "teacher.forward",
    ).told(plan.rows * plan.length, plan.spec.head.outputs, size)


def enter_step_outputs(ledger: Ledger, recipe: Recipe, policy: TracedPass) -> None:
    """TRL's PPO names the policy's outputs (logits and every hidden state) and the distribution that it logs the
    entropy of until the next micro-step has its own, so over backward and the optimizer's step; with the first of the
    states goes the embedding's output, where that is a leaf, and its gradient. Composer's state holds the logits alone,
    until a forward that makes the loss itself has ended."""
    if not recipe.loss.code.step_outputs or recipe.evaluating:
        return
    plan, name = policy.plan, policy.plan.name
    tokens, vocabulary, wide = plan.rows * plan.length, plan.spec.head.outputs, plan.head.loss.fp32_outputs
    itemsize = FP32 if wide else plan.mode.numerics.autocast or plan.mode.numerics.itemsize
    logits, stream = tokens * vocabulary * itemsize, _stream_bytes(policy)
    if plan.head.program in INSIDE:
        _enter_logits_of_state(ledger, name, logits)
        return
    hidden = stream // plan.mode.residual_itemsize * (FP32 if wide else plan.mode.residual_itemsize)
    copied, kept = hidden > stream, _keeps_streams(policy)
    leaf = stream // (plan.spec.num_layers + 1) * (1 + copied) * (plan.style != "plain" and plan.mode.embedding_rests)
    scored = plan.rows * min(recipe.batch.completion_length, plan.length - 1)
    end, over = f"{name}.forward", f"{name}.loss"

    def enter(label: str, size: int, born: str, dies: str) -> None:
        ledger.add(label, "logits", max(size, 0), born, dies).told(size, of="locals of the training loop")

    enter("outputs of the micro-step before", logits + hidden + leaf, "", end)
    enter("embedding output and its gradient, held over the step", leaf, ledger.after(f"{name}.embedding-backward"), "")
    enter("distribution that the entropy is logged of", scored * vocabulary * itemsize, "", "")
    tail, streams = policy.tail.forward, stream if copied and not kept else 0
    converting = tail["head"].size + leaf + 2 * (logits + hidden) + streams - (0 if copied else stream)
    held_in_loss = tail["loss"].size + (hidden if copied or not kept else 0)
    if wide and plan.mode.numerics.autocast:
        enter("outputs of the micro-step before, while the new are converted", converting - held_in_loss, over, over)
    enter("logits, held over the step", logits, ledger.after(f"{name}.final-norm-backward"), "")
    if not kept:
        enter("hidden states of all layers", stream, f"{name}.layer-forward", end)
    if copied or not kept:
        enter("hidden states, held over the step", hidden, over, "")
        return
    one = hidden // (plan.spec.num_layers + 1)
    for i in policy.backward_layers:  # used already, and there for their names alone
        for instant, _ in policy.layer_instants(i):
            enter(f"hidden states above layer {i}", one * (plan.spec.num_layers - i), instant, instant)
    enter("hidden states, held over the step", hidden, f"{name}.embedding-backward", "")


def _enter_logits_of_state(ledger: Ledger, name: str, logits: int) -> None:
    """Logits of the micro-step before, and those of this one from where its tail's backward has ended."""
    for label, born, dies in (
        ("logits of the micro-step before", "", f"{name}.loss"),
        ("logits, held over the step", ledger.after(f"{name}.final-norm-backward"), ""),
    ):
        ledger.add(label, "logits", logits, born, dies).told(logits, of="state.outputs")


def _stream_bytes(traced: TracedPass) -> int:
    """The hidden states of all layers, and the last."""
    plan = traced.plan
    return plan.rows * plan.length * (plan.spec.num_layers + 1) * plan.spec.hidden_size * plan.mode.residual_itemsize


def _keeps_streams(traced: TracedPass) -> bool:
    """Whether the graph keeps every layer's input anyway: as a checkpoint, or for a norm that reads it in fp32."""
    return traced.plan.style != "plain" or traced.plan.mode.residual_itemsize == FP32


def enter_critic_outputs(ledger: Ledger, recipe: Recipe, critic: TracedPass) -> None:
    """What the wrapper of policy and critic holds of the critic while the policy's forward runs: its hidden states
    (the checkpoints themselves, where layers are checkpointed), and autocast's copies of its weights."""
    if not recipe.loss.code.step_outputs:
        return
    source = f"{TRL_PPO}: PolicyAndValueWrapper"
    if not _keeps_streams(critic):
        ledger.add(
            "hidden states of the critic",
            "activations",
            _stream_bytes(critic),
            f"{CRITIC}.layer-forward",
            "policy.forward",
        ).told(_stream_bytes(critic), source=source)
    casts = sum(trace.casts for trace in critic.layers)
    ledger.add(
        "autocast copies of the critic's weights",
        "autocast_weights",
        casts,
        ledger.after(f"{CRITIC}.loss"),
        "policy.forward",
    ).told(2, casts // 2, source=source)
