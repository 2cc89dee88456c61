"""Rows of what older classes keep beside their layers: positions and norms of the embedding, tables, probabilities; and
of what Gemma 4's class with images makes before its tower runs: rows of a table for the inputs of all layers."""

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.sharding import KeptGradients
from memplan.engine.pass_plan import NO_FRONT
from memplan.engine.passes import TracedPass
from memplan.spec.recipe import Recipe


def enter_front_backward(ledger: Ledger, traced: TracedPass, kept: KeptGradients, instant: str) -> None:
    """Backward of what stands between embedding and layers, before the embedding's own, and what it leaves: nothing,
    where it was added to ``.grad`` before that."""
    plan, front = traced.plan, traced.front
    if front is NO_FRONT:
        return
    width = plan.spec.embedding_width or plan.spec.hidden_size
    trained = plan.mode.trained and "embed_tokens" not in plan.spec.frozen
    after = plan.spec.vocab_size * width * plan.mode.numerics.itemsize if trained else 0
    beyond = front.backward - front.gradients - traced.input_gradient - after
    source = "torch 2.13 autograd"
    ledger.add("transients before the embedding's gradient", "temporaries", max(beyond, 0), at=instant).told(
        source=source
    )
    whole = plan.gradients == "keep" and kept.root
    itemsize = plan.mode.adapter.itemsize if plan.mode.adapter else plan.mode.numerics.itemsize
    left = max(front.gradients - after, 0) if plan.gradients == "add" else front.gradients
    ledger.add(
        "gradients of the embedding's adapters or rows"
        if plan.mode.adapts_embedding
        else "gradients of positions and norms after the embedding",
        "gradients",
        left,
        instant,
        kept.last(ledger, plan.name) if whole else instant,
    ).told(left // itemsize, itemsize, of="gradients of the embedding's adapters or rows", source=source)


def enter_front(ledger: Ledger, traced: TracedPass) -> None:
    """What the steps between embedding and layers keep for their backward."""
    name, plan = traced.plan.name, traced.plan
    if not traced.front.saved or plan.style == "no-grad":
        return
    ledger.add(
        "saved between embedding and layers",
        "activations",
        traced.front.saved,
        f"{name}.layer-forward",
        ledger.before(f"{name}.embedding-backward"),
    ).told()


def enter_probabilities(ledger: Ledger, recipe: Recipe, traced: TracedPass, inside: str) -> None:
    """Older models' loops still name what the layer before gave back beside its output: eager's probabilities."""
    plan = traced.plan
    if recipe.operators.attention != "eager" or plan.style == "plain" or not plan.spec.returns_probabilities:
        return
    itemsize = plan.mode.numerics.autocast or plan.mode.numerics.itemsize
    if plan.spec.family == "falcon" and plan.mode.numerics.autocast:
        itemsize = 4  # the softmax gives back what the layer's norm does
    pairs = plan.rows * plan.spec.num_heads * plan.length * plan.length
    ledger.add("attention probabilities of the layer before", "activations", pairs * itemsize, at=inside).told(
        pairs, itemsize, source=f"transformers 5.23 modeling_{plan.spec.family}.py"
    )


def enter_buffers(ledger: Ledger, recipe: Recipe) -> None:
    """Tables and masks that the classes keep beside their parameters, a copy for each model that is there."""
    own = recipe.numerics.itemsize
    _enter_token_rows(ledger, recipe)
    critic = (("critic", recipe.others.critic.spec, own),) if recipe.others.critic else ()
    residents = ((f"{each.role} model", each.spec, each.itemsize) for each in recipe.others.residents)
    for name, spec, itemsize in (("model", recipe.model, own), *critic, *residents):
        size = spec.buffer_bytes + spec.buffer_elements * itemsize
        if size:
            ledger.add(f"buffers of the {name}", "buffers", size).told(
                source=f"transformers 5.23 modeling_{spec.family}.py"
            )


def _enter_token_rows(ledger: Ledger, recipe: Recipe) -> None:
    """The original rows of tokens that are trained; a tied head shares the embedding's."""
    adapter, spec = recipe.adapter, recipe.model
    if adapter is None or not adapter.tokens:
        return
    tables = [name for name, _ in adapter.tokens if name != spec.head.name or not spec.head_is_tied]
    rows, width = sum(map(adapter.tokens_of, tables)), spec.embedding_width or spec.hidden_size
    ledger.add("original rows of trained tokens", "buffers", rows * width * adapter.itemsize).told(
        rows, width, adapter.itemsize
    )


SOURCE = "transformers 5.23 modeling_gemma4.py"


def _looked_up(traced: TracedPass) -> int:
    """Bytes of the table's rows; 0 without images."""
    plan = traced.plan
    own = next((run.layer.own_input for run in plan.spec.runs if run.layer.own_input), None)
    if plan.spec.tower is None or own is None:
        return 0
    return plan.rows * plan.length * own.layers * own.width * plan.mode.numerics.itemsize


def enter_beside_images(ledger: Ledger, traced: TracedPass) -> None:
    """The embedding without images, and the table's rows."""
    name, plan, looked_up = traced.plan.name, traced.plan, _looked_up(traced)
    if not looked_up:
        return
    embedded = plan.rows * plan.length * plan.spec.hidden_size * plan.mode.numerics.itemsize
    ledger.add(
        "embedding without images and rows of the table, held by the model's forward",
        "activations",
        embedded + looked_up,
        f"{name}.vision-forward" if traced.vision.forward else f"{name}.layer-forward",
        f"{name}.layer-forward",
    ).told(embedded, looked_up)


def table_behind_tower(ledger: Ledger, traced: TracedPass) -> int:
    """Elements of the table, whose dense gradient comes when the tower has run back; 0 where no tower runs back."""
    plan, looked_up = traced.plan, _looked_up(traced)
    if not looked_up or not traced.vision.backward or traced.stack is None or not traced.stack.gradients:
        return 0
    bare = next(bare for part in plan.spec.extra for bare in part.tensors)
    if not plan.mode.trained or bare.name in plan.spec.frozen:
        return 0
    instant = f"{plan.name}.vision-backward"
    ledger.add("gradient of the rows of the table", "temporaries", looked_up, at=instant).told(looked_up)
    return bare.parameters
