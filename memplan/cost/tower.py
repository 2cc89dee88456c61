"""Seconds of a vision tower and its projector over the images of a micro-batch, as its blocks' products, scores and
moves take; where nothing of it trains there is no backward. Ignored: what a pipeline's first stage has less for it, the
patch embedding, adapters of the tower itself but for the gradients that pass to them."""

from typing import TYPE_CHECKING

from memplan.cost.passes import Head, layers_pass
from memplan.cost.rates import Device, Rates, products_rate
from memplan.cost.shape import Shape, without_training
from memplan.cost.work import ACTIVATION, ACTIVATION_FUSED, ModelWork, Product, Work, kernels, norm_bytes
from memplan.spec.recipe import Recipe

if TYPE_CHECKING:
    from memplan.spec.vision import Block, Tower

NOTHING = Head(0.0, 0.0)


def tower_pass(recipe: Recipe, shape: Shape, device: Device, rates: Rates) -> Head:
    """Of one micro-batch; nothing without images. ``shape``: of the language model's layers."""
    tower, images = recipe.model.tower, recipe.batch.images
    if tower is None or images is None or not images.rows:
        return NOTHING
    seen = recipe.rows * images.per_example
    trained, reached = _gradients(recipe, tower)
    of = (shape if reached else without_training(shape))._replace(
        context=1,
        ring=1,
        trained=float(trained),
        adapter=0.0,
        adapted=0,
        weighed=0.0,
        stacks=False,
        adapted_moves=0.0,
        padded=False,  # patches take no mask
    )
    forward, backward, patches = 0.0, 0.0, images.rows * images.columns
    for run in tower.runs:
        length = min(patches, run.block.attention.window_patches or patches)  # a window is a row of its own
        of = of._replace(rows=max(1, seen * images.squares * patches // length), length=length)
        one = ModelWork(((run.count, block_work(run.block)),), 0.0, 0, 0.0, 1.0, 0.0)
        made = layers_pass(one, of, device, rates)
        forward += made.forward
        backward += made.backward + made.again
    projected = sum(linear.inputs * linear.outputs for linear in tower.projector.linears)
    ends = 2 * seen * images.tokens * projected / products_rate(device, rates, of.itemsize)
    return Head(forward + ends, backward + 2 * ends if reached else 0.0)


def _gradients(recipe: Recipe, tower: "Tower") -> tuple[bool, bool]:
    """(whether its matrices have gradients of their own, whether gradients pass through it)."""
    if recipe.adapter is None:
        return ("vision" not in recipe.model.frozen,) * 2
    if "vision" in tower.trained:
        return True, True
    names = {linear.name for run in tower.runs for linear in run.block.linears}
    return False, "vision" not in tower.unadapted and bool(names & recipe.adapter.targets)


def block_work(block: "Block") -> Work:
    """The work of one block on one patch."""
    attention = block.attention
    products = tuple(
        Product(linear.inputs, linear.outputs, 0 < place == len(part.linears) - 1, number)
        for number, part in enumerate((attention, block.feed_forward))
        for place, linear in enumerate(part.linears)
    )
    elements = float(sum(each.inputs * each.outputs for each in products))
    width, heads = block.width, attention.num_heads
    inner = sum(linear.outputs for linear in block.feed_forward.linears[:-1])
    return Work(
        products=products,
        weights=elements,
        stored=elements,
        per_pair=4.0 * heads * attention.head_dim,
        between=norm_bytes(block.norms, width),
        activated=(inner * ACTIVATION, inner * ACTIVATION_FUSED),
        flow=float(sum(each.inputs + each.outputs for each in products)),
        kernels=kernels(block.norms, len(products), turned=False),
        width=width,
        keys=2 * heads * attention.head_dim,
        heads=heads,
    )
