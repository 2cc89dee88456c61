"""Rows outside the layers: the embedding's gradient, masks and rotary tables, the batch itself."""

from memplan.engine.ledger import Ledger
from memplan.engine.parallel.sharding import KeptGradients
from memplan.engine.pass_plan import keys_of_images
from memplan.engine.passes import Step, TracedPass
from memplan.engine.rows.embedding import enter_beside_images, enter_front, enter_front_backward, enter_probabilities
from memplan.engine.rows.outputs import scored
from memplan.spec.recipe import Recipe
from memplan.tables.styles import GradientMode


def enter_embedding(ledger: Ledger, traced: TracedPass, kept: KeptGradients, consumer: str) -> None:
    """The embedding's dense gradient at the end of backward, with the tied head's gradient and their sum.

    ``consumer``: see ``PassRows``."""
    plan, spec = traced.plan, traced.plan.spec
    instant = f"{plan.name}.embedding-backward"
    images_last = traced.vision.reached and keys_of_images(plan) > 0  # then the tower runs back after the embedding
    saved = plan.mode.adapter is not None and "embed_tokens" in plan.mode.adapter.saved
    width = spec.embedding_width or spec.hidden_size
    size = spec.vocab_size * width * plan.mode.numerics.itemsize
    rows: list[tuple[str, str, str]] = []
    if (plan.mode.trained and "embed_tokens" not in spec.frozen) or saved:
        until = kept.last(ledger, plan.name) if kept.root else instant
        tied = plan.ties_head
        if consumer:
            until = instant if tied and not plan.mode.shared_casts else f"{consumer}.embedding-backward"
            until = f"{consumer}.loss-backward" if kept.views else until
        rows = _embedding_gradients(tied, plan.gradients, traced, instant, until)
        if images_last:
            before = f"{plan.name}.vision-backward"
            rows.append(("gradient of the embedding, before the images'", before, before))
        rows = added_in_place(ledger, rows) if plan.mode.in_place else rows
    summed = size if any(label.startswith("sum") and born == instant for label, born, _ in rows) else 0
    residual = traced.input_gradient if (plan.embedding_trained or not plan.mode.trained) and not images_last else 0
    ledger.add(
        "gradient of the residual stream, embedding", "temporaries", max(residual - summed, 0), at=instant
    ).formula("T × h × bytes").since(
        "gone when the embedding's gradient is added to another" if summed else "",
        "torch/csrc/autograd/engine.cpp: call_function takes its inputs by move",
    )
    enter_front_backward(ledger, traced, kept, instant)
    if traced.stack is not None:
        from memplan.engine.rows.shared import enter_outside

        enter_outside(ledger, traced, kept)
    keep = plan.gradients in ("keep", "join")
    for label, born, dies in rows:
        own = spec.embedding_parts + (plan.ties_head and spec.embedding_parts > 1)  # of a tied one the rank's part too
        parts = own if label.startswith("gradient of the embedding") or not plan.ties_head else 1
        ledger.add(label, "gradients", size * parts, born, dies).formula(
            "V × h × bytes", spec.vocab_size * parts, width, plan.mode.numerics.itemsize
        ).since(
            "the embedding's gradient is dense"
            if keep or "embedding" in label
            else "held by the engine until the embedding's arrives",
            "torch.autograd: input buffers add out of place",
        )


def added_in_place(ledger: Ledger, rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """On a real device a sum is one of its summands: it is there as itself only after the instant that makes it."""
    sums = [(label, ledger.after(born), dies) for label, born, dies in rows if label.startswith("sum") and born != dies]
    return [row for row in rows if not row[0].startswith("sum")] + sums


def _embedding_gradients(
    tied: bool, mode: GradientMode, traced: TracedPass, instant: str, until: str
) -> list[tuple[str, str, str]]:
    """(label, born, dies) of the vocabulary-sized gradients at the end of backward."""
    own, shared = "gradient of the embedding", traced.plan.mode.shared_casts
    keeps = mode in ("keep", "join")
    last = until if keeps else instant
    if shared == "second" and tied:  # the head's waits for its cast: both come together at the other graph's head
        return [(own, instant, until.replace("embedding", "final-norm"))]
    if not tied:
        total = "sum of the embedding's gradients"
        if mode == "join":
            return [(own, instant, instant), (total, instant, until)]
        met = mode in ("sum", "meet") or shared == "first"
        return [(own, instant, last), *([(total, instant, instant)] if met else [])]
    rows = [(own, instant, instant), ("sum of embedding and head gradients", instant, last)]
    if not keeps and mode != "sum":  # in "sum" the engine's buffer has taken it already
        first = next(traced.layer_instants(traced.backward_layers[0]))[0]
        rows.append(("gradient of the tied head", first, instant))
    if shared == "first":
        there = instant.replace("embedding", "final-norm")
        rows.append(("sum of head's and the other graph's embedding gradients", there, there))
        if not keeps and mode != "sum":
            rows.append(("gradient of the tied head, before it is added", there, there))
    return rows


def mask_bytes(recipe: Recipe, traced: TracedPass) -> tuple[int, int]:
    """(masks, bytes of each)."""
    windows, size = made_masks(recipe, traced)
    return len(windows), size


def made_masks(recipe: Recipe, traced: TracedPass) -> tuple[list[int | None], int]:
    """The windows of the masks that are made, and bytes of each: one for every kind of window of the class
    (transformers 5.23, masking_utils.py).

    Eager adds a 4-D mask of the residual's dtype for every row. SDPA gets a boolean one when there is padding, or when
    the sequence fills a window: the same for all rows, unless the batch has a mask, all of ones though it may be
    (``sdpa_mask``: ``and_masks(mask_function, padding_mask_function(padding_mask))``)."""
    plan = traced.plan
    if any(mixer.kind == "disentangled" for mixer in plan.spec.mixers):  # in the dtype of what comes in, or fp32
        return [None], plan.rows * plan.length * plan.length * (8 if recipe.batch.masked else 4)
    windows = list(plan.spec.windows) if not plan.spec.encoder else []
    square = plan.length * plan.length
    if plan.spec.mask_form == "heads" and recipe.operators.attention != "flash":
        return windows, plan.rows * plan.spec.num_heads * square * plan.mode.numerics.itemsize
    if plan.spec.mask_form == "boolean":
        return windows, plan.rows * square
    if plan.spec.mask_form == "always" and recipe.operators.attention == "sdpa":
        return windows, (plan.rows if recipe.batch.padded else 1) * square
    if plan.spec.bidirectional and not recipe.batch.padded:
        windows = [window for window in windows if window is not None and plan.length >= window]
    if recipe.operators.attention == "eager":
        return windows, plan.rows * square * plan.mode.numerics.itemsize
    if recipe.operators.attention == "flash":
        return [], 0
    if recipe.batch.padded:
        return windows, plan.rows * square
    rows = plan.rows if plan.spec.row_masks or recipe.batch.masked else 1
    return [window for window in windows if window is not None and plan.length >= window], rows * square


def keeps_masks(traced: TracedPass) -> bool:
    """Whether masks outlive the forward: checkpoints keep them, and so do layers that save them."""
    plan, form = traced.plan, traced.plan.spec.mask_form
    copied = plan.mode.numerics.autocast not in (0, plan.mode.numerics.itemsize)  # autocast's copies are kept instead
    saves = form == "boolean" or (form == "heads" and plan.mode.operators.attention != "eager" and not copied)
    saves = saves and plan.style == "plain" and not plan.mode.offload
    return saves or traced.plan.style in ("checkpoint", "reentrant")


def mask_ends(traced: TracedPass, windows: list[int | None], forward: str) -> dict[str, int]:
    """How many masks live until which instant: checkpointing keeps one until the first layer that takes it ran back, a
    reentrant one as long as the graph (``ctx.run_function``)."""
    ends: dict[str, int] = {}
    if not keeps_masks(traced):
        return {forward: len(windows)} if windows else {}
    takes = [layer.mixer.window if layer.mixer and layer.mixer.masked else -1 for layer in traced.plan.spec.layers()]
    for window in windows:
        end = forward
        if window in takes:
            last = min(i for i in traced.backward_layers if i >= takes.index(window))
            *_, (end, _) = traced.layer_instants(last)
            end = f"{traced.plan.name}.embedding-backward" if traced.plan.style == "reentrant" else end
        ends[end] = ends.get(end, 0) + 1
    return ends


def enter_shared(ledger: Ledger, recipe: Recipe, traced: TracedPass, step: Step) -> None:
    """What all layers share: attention masks, the embedding's output (a local of forward), rotary tables. ``step``: as
    ``enter_crossing`` asks for it."""
    plan, name = traced.plan, traced.plan.name
    inside, end = f"{name}.layer-forward", f"{name}.forward"
    windows, size = made_masks(recipe, traced)
    masks, first = len(windows) * size, traced.layers[0]
    enter_probabilities(ledger, recipe, traced, inside)
    leaves = plan.style in ("checkpoint", "reentrant") and plan.mode.embedding_rests
    leaves = leaves and not traced.stack
    leaf = leaves and (plan.mode.recompute.every > 1 or bool(plan.mode.offload)) and not first.keeps_input
    embedded = 0 if traced.stack or first.keeps_input or leaf else first.boundary
    if plan.spec.front and not plan.spec.encoder:
        embedded = traced.front.held + (embedded if plan.spec.front[-1] == "return" else 0)
    enter_front(ledger, traced)
    if traced.stack is not None:
        from memplan.engine.rows.shared import enter_crossing

        enter_crossing(ledger, recipe, traced, step)
    enter_beside_images(ledger, traced)
    kept_masks = keeps_masks(traced)
    source = "transformers 5.23 masking_utils.py; checkpointing keeps masks for its recomputation"
    for dies, count in mask_ends(traced, windows, inside).items():
        ledger.add("attention masks", "batch", count * size, inside, dies).told(count, size, source=source)
    ledger.add("embedding output", "activations", embedded, at=inside).told(embedded, of="embedding output (model)")
    if leaf or (leaves and plan.spec.scaled_outside):
        ledger.add(
            "embedding output, a leaf of the graph" if leaf else "embedding output before it is scaled",
            "activations",
            first.boundary,
            inside,
            f"{name}.embedding-backward",
        ).told(first.boundary, of="embedding output, a leaf of the graph")
    width, table_bytes = plan.spec.rotary_width, plan.spec.rotary_itemsize(plan.mode.numerics.itemsize)
    positions = plan.length * (plan.rows if plan.spec.rotary_by_row else 1)
    tables = 2 * positions * width * table_bytes
    held = plan.style == "plain" and plan.spec.keeps_rotary and not plan.mode.offload
    kept = held or plan.style in ("checkpoint", "reentrant")
    tail = traced.tail.forward
    norm, head = (tail[point].size if point in tail else 0 for point in ("final-norm", "head"))
    outer = embedded + (traced.stack.lasting if traced.stack else 0)
    within = outer + traced.vision.locals + (0 if kept_masks else masks) + (0 if kept else tables)
    beyond = norm + within - max(norm, head, scored(traced))
    ledger.add("masks and embedding output at the final norm", "activations", max(beyond, 0), at=end).told(
        source=source
    )
    last = "embedding-backward" if plan.style == "reentrant" else "first-layer-backward"
    dies = f"{name}.{last if kept else 'layer-forward'}"
    ledger.add("rotary tables", "buffers", tables, f"{name}.layer-forward", dies).formula(
        "2 × s × rotary width × bytes" if positions == plan.length else "2 × T × rotary width × bytes",
        2,
        positions,
        width,
        table_bytes,
    ).since("cos and sin, shared by all layers", "transformers 5.23 LlamaRotaryEmbedding")


def enter_batch(ledger: Ledger, recipe: Recipe) -> None:
    """Token ids, labels and mask, 8 bytes each, for every row; pixels for every row of a pair."""
    answers = recipe.batch.completion_length if recipe.model.encoder else 0
    ledger.add("labels and decoder tokens", "batch", 2 * recipe.rows * answers * 8).told(2, recipe.rows, answers, 8)
    tokens = recipe.rows * recipe.batch.sequence_length
    tensors = 3 if recipe.trainer.name != "pytorch" or recipe.batch.padded else 1
    ledger.add("token ids, labels, mask" if tensors == 3 else "token ids", "batch", tensors * tokens * 8).told(
        tensors, recipe.rows, recipe.batch.sequence_length, 8, of="token ids, labels, mask"
    )
    ledger.add("pixels", "batch", recipe.image_bytes * recipe.rows).told(recipe.rows, recipe.image_bytes)
