"""What the caller holds of a pass's outputs, how long autocast's copies of weights live beside its loss, what layers
hand to each other beside the hidden states (the tokens that an indexer chose, GLM-5), and the logits that an
evaluation keeps of its batches, of all ranks on each, until they go to the host all at once."""

from memplan.engine.ledger import Ledger
from memplan.engine.losses.heads import INSIDE
from memplan.engine.passes import TracedPass
from memplan.engine.traces import NOTHING, Alive
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


def loss_and_casts(traced: TracedPass, ends: Alive, instants: list[str]) -> tuple[Alive, str]:
    """The most within the loss, and the last instant of autocast's copies. A loss that the model's own forward makes
    stands under autocast; fp32 copies of the outputs come after it, as do those for the log. ``ends``: the most of
    norm and head."""
    plan, forward = traced.plan, traced.tail.forward
    loss = forward.get("loss", ends)
    if not plan.head.code.leaves_autocast:
        return loss, instants[2]
    if plan.head.program not in INSIDE:
        return loss, instants[1]
    casts = sum(trace.casts for trace in traced.layers)
    own, later = forward.get("own-loss", loss), (forward.get(point, NOTHING) for point in ("outputs", "log"))
    after = max(later, key=lambda alive: alive.size)
    return (after, instants[1]) if after.size > own.size + casts else (own, instants[2])


def left_at_loss(traced: TracedPass) -> bool:
    """Whether autocast has been left when the loss is made: with the model's forward, and not within it."""
    return traced.plan.head.code.leaves_autocast and traced.plan.head.program not in INSIDE


def scored(traced: TracedPass) -> int:
    """The most within the loss of a pass without a graph, which has no instant of its own: beside autocast's copies of
    weights that are gone by then. 0 with a graph."""
    plan, loss = traced.plan, traced.tail.forward.get("loss", NOTHING)
    gone = sum(trace.casts for trace in traced.layers) if left_at_loss(traced) else 0
    return loss.size - gone if plan.style == "no-grad" else 0


def enter_outputs(ledger: Ledger, traced: TracedPass) -> None:
    """The logits that the caller holds, from where the tail's backward has ended to the end of backward: FSDP's last
    reductions are callbacks within it (torch 2.13 autograd: queue_callback)."""
    name, size = traced.plan.name, traced.tail.outputs
    end = f"{name}.reduce" if f"{name}.reduce" in ledger.index else f"{name}.embedding-backward"
    ledger.add("logits, held by the caller", "logits", size, ledger.after(f"{name}.final-norm-backward"), end).told(
        size
    )
    for instant in (f"{name}.layer-forward", ledger.schedule[-1]) if traced.plan.head.program == "own" and size else ():
        ledger.add("named by the loop until its next turn", "logits", size, at=instant).told(size)


def enter_choices(ledger: Ledger, traced: TracedPass) -> None:
    """Each layer holds the choice that it was given; with checkpointing, all of them wait for the recomputation.

    They go one by one in backward, and are counted whole until the last layer is through."""
    plan = traced.plan
    topk = [mixer.topk for mixer in plan.spec.mixers if mixer.kind == "latent" and mixer.hands_on]
    if not topk:
        return
    waits = plan.style in ("checkpoint", "reentrant")
    makers = [getattr(run.layer.mixer, "indexer", None) is not None for run in plan.spec.runs for _ in range(run.count)]
    chosen = sum(makers[:-1]) if waits else 1
    last = "embedding-backward" if plan.style == "reentrant" else "last-layer-backward"  # ``ctx.run_function``'s keys

    from memplan.engine.layers.attention.mla import INT32

    size = plan.rows * plan.length * min(topk[0], plan.length) * INT32
    ledger.add(
        "chosen tokens of the indexers",
        "activations",
        chosen * size,
        f"{plan.name}.layer-forward",
        f"{plan.name}.{last}" if waits and len(makers) > 1 else f"{plan.name}.layer-forward",
    ).told(chosen, size)


SOURCE = "transformers 5.23 trainer.py: evaluation_loop; trainer_pt_utils.py: EvalLoopContainer"
FP32 = 4


def enter_kept_logits(ledger: Ledger, recipe: Recipe) -> None:
    """Rows of the evaluation's passes: batches that wait on the card, their concatenation, and what the host has."""
    batch, ranks = recipe.batch, recipe.parallel.data
    wide = recipe.loss.fp32_outputs or (recipe.numerics.itemsize == FP32 and not recipe.numerics.autocast)
    itemsize = FP32 if wide else 2
    columns = recipe.model.head.outputs * recipe.divided.summed
    one = batch.size * ranks * batch.sequence_length * columns
    waiting, last = batch.eval_kept, ledger.schedule[-2]
    for name, born, why in (
        ("logits of the batches before", "", "gathered from all ranks, and kept on the card until they go to the host"),
        ("their concatenation", last, "each batch is appended into a new tensor while the old one is there"),
    ):
        ledger.add(name, "logits", waiting * one * itemsize, born, last).formula(
            "batches × (examples · ranks · s · V) × bytes", waiting, one, itemsize
        ).since(why, SOURCE)
    examples = batch.eval_examples
    batches = ceil_div(examples, batch.size * ranks)
    ledger.add("logits of all batches", "logits", batches * one * FP32, place="host").told(batches, one, FP32)
