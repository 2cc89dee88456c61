"""Rows outside the layers: the embedding's gradient, masks and rotary tables, the batch itself."""

from __future__ import annotations

from memplan.engine.ledger import Ledger
from memplan.engine.pass_rows import KeptGradients
from memplan.engine.passes import TracedPass
from memplan.spec.recipe import Recipe


def enter_embedding(book: Ledger, traced: TracedPass, kept: KeptGradients, consumer: str) -> None:
    """The embedding's dense gradient at the end of backward, with the tied head's gradient and their sum.

    ``consumer``: see ``PassRows``.
    """
    plan, spec = traced.plan, traced.plan.spec
    instant = f"{plan.name}.embedding-backward"
    book.add(
        "gradient of the residual stream, embedding",
        "temporaries",
        traced.tail.input_gradient,
        instant,
        instant,
        template="T × h × bytes",
        source="torch.autograd",
    )
    if not plan.mode.trained:
        return
    size = spec.vocab_size * spec.hidden_size * plan.mode.weight_itemsize
    keep = plan.gradients == "keep"
    until = kept.last(book, plan.name) if kept.layers or kept.root else instant
    until = f"{consumer}.embedding-backward" if consumer else until
    for label, born, dies in _embedding_gradients(spec.head_is_tied, plan.gradients, book, traced, instant, until):
        book.add(
            label,
            "gradients",
            size,
            born,
            dies,
            template="V × h × bytes",
            numbers=(spec.vocab_size, spec.hidden_size, plan.mode.weight_itemsize),
            why="the embedding's gradient is dense"
            if keep or "embedding" in label
            else "held by the engine until the embedding's arrives",
            source="torch.autograd: input buffers add out of place",
        )


def _embedding_gradients(
    tied: bool, mode: str, book: Ledger, traced: TracedPass, instant: str, until: str
) -> list[tuple[str, str, str]]:
    """(label, born, dies) of the vocabulary-sized gradients at the end of backward."""
    own = "gradient of the embedding"
    last = instant if mode != "keep" else until
    if not tied:
        rows = [(own, instant, last)]
        return rows if mode != "sum" else [*rows, ("sum of the embedding's gradients", instant, instant)]
    rows = [(own, instant, instant), ("sum of embedding and head gradients", instant, last)]
    if mode != "keep":
        first = next(traced.layer_instants(traced.backward_layers[0]))[0]
        rows.append(("gradient of the tied head", first, instant))
    return rows


def mask_bytes(recipe: Recipe, traced: TracedPass) -> tuple[int, int]:
    """(masks, bytes of each): one for every kind of window among the layers (transformers 5.23, masking_utils.py).

    Eager adds a 4-D mask of the residual's dtype for every row. SDPA gets a boolean one when there is padding, or, the
    same for all rows, when the sequence fills a window.
    """
    plan = traced.plan
    windows = plan.spec.windows
    square = plan.length * plan.length
    if recipe.attention == "eager":
        return len(windows), plan.rows * square * plan.mode.weight_itemsize
    if recipe.attention == "flash":
        return 0, 0
    if recipe.padded:
        return len(windows), plan.rows * square
    return len([window for window in windows if window is not None and plan.length >= window]), square


def enter_shared(book: Ledger, recipe: Recipe, traced: TracedPass) -> None:
    """What all layers share: attention masks, the embedding's output (a local of the model's forward), rotary
    tables.
    """
    plan, name = traced.plan, traced.plan.name
    inside, end = f"{name}.layer-forward", f"{name}.forward"
    count, size = mask_bytes(recipe, traced)
    masks, first = count * size, traced.layers[0]
    embedded = 0 if first.keeps_input else first.boundary
    keeps_masks = plan.style in ("checkpoint", "reentrant")
    source = "transformers 5.23 masking_utils.py; checkpointing keeps masks for its recomputation"
    book.add(
        "attention masks",
        "batch",
        masks,
        inside,
        f"{name}.first-layer-backward" if keeps_masks else inside,
        template="masks × bytes of a mask",
        numbers=(count, size),
        why="one for every kind of window",
        source=source,
    )
    book.add(
        "embedding output",
        "activations",
        embedded,
        inside,
        inside,
        template="T × h × bytes",
        numbers=(embedded,),
        why="a local of the model's forward until it returns",
        source="transformers 5.23 LlamaModel.forward: inputs_embeds",
    )
    tail = traced.tail.forward
    norm, head = tail["final-norm"].size, tail["head"].size if "head" in tail else 0
    beyond = norm + embedded + (0 if keeps_masks else masks) - max(norm, head)
    book.add(
        "masks and embedding output at the final norm",
        "activations",
        max(beyond, 0),
        end,
        end,
        template="as above",
        why="alive in the model's forward, and gone at the head",
        source=source,
    )
    width = plan.spec.rotary_width
    dies = f"{name}.first-layer-backward" if plan.style != "no-grad" else f"{name}.layer-forward"
    book.add(
        "rotary tables",
        "buffers",
        2 * plan.length * width * plan.mode.weight_itemsize,
        f"{name}.layer-forward",
        dies,
        template="2 × s × rotary width × bytes",
        numbers=(2, plan.length, width, plan.mode.weight_itemsize),
        why="cos and sin, shared by all layers",
        source="transformers 5.23 LlamaRotaryEmbedding",
    )


def enter_batch(book: Ledger, recipe: Recipe) -> None:
    """Token ids, labels and mask, 8 bytes each, for every row; pixels for every row of a pair."""
    tokens = recipe.rows * recipe.sequence_length
    tensors = 3 if recipe.trainer.name != "pytorch" or recipe.padded else 1
    book.add(
        "token ids, labels, mask" if tensors == 3 else "token ids",
        "batch",
        tensors * tokens * 8,
        template="tensors × rows × s × 8",
        numbers=(tensors, recipe.rows, recipe.sequence_length, 8),
        why="int64; a pair is two rows",
        source="trl DataCollatorForPreference",
    )
    book.add(
        "pixels",
        "batch",
        recipe.image_bytes * recipe.rows,
        template="rows × image bytes",
        numbers=(recipe.rows, recipe.image_bytes),
        why="images are repeated for both halves of a pair",
        source="trl dpo_trainer.py: images * 2",
    )
