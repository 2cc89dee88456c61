"""Models that stand beside the policy: the reference, and frozen reward models or teachers."""

from memplan.engine.host_copies import copied, parameter_sizes
from memplan.engine.layers.modules import Mode, RouterLogits, Widths
from memplan.engine.layers.quantised_linear import product_itemsize
from memplan.engine.ledger import Ledger
from memplan.engine.losses.head_of_pass import has_reference_pass, reference_head, teacher_head
from memplan.engine.model_states import enter_quantised, shard_elements
from memplan.engine.parallel.fsdp2.units import casts_inputs, casts_outputs, gathers
from memplan.engine.pass_plan import PassPlan
from memplan.engine.passes import TracedPass, traced_pass
from memplan.engine.tensors import Weight, model_weights
from memplan.spec.groups import Operators, Resident
from memplan.spec.recipe import Recipe
from memplan.tables.styles import KeyRepeats


def repeats_keys(recipe: Recipe) -> KeyRepeats:
    """Who repeats keys and values before the kernel that runs, in the trainer's time: the attention's class, whose
    names for them are then those of the copies (transformers before 4.48), or a function of its own."""
    models, kernel = recipe.trainer.models, recipe.operators.attention
    named = recipe.model.family in models.repeats_flash
    if not (models.repeats or (kernel == "flash" and named) or (kernel == "sdpa" and models.repeats_sdpa)):
        return ""
    return "class" if models.repeats or models.repeats_flash else "function"


def reference_pass(recipe: Recipe, rows: int) -> TracedPass | None:
    """The no-grad forward that scores the batch with the reference; None when nothing is scored in the step."""
    if not has_reference_pass(recipe):
        return None
    return _scoring(recipe, rows or 1)


def _scoring(recipe: Recipe, rows: int) -> TracedPass:
    resident = next((model for model in recipe.others.residents if model.role == "reference"), None)
    unfrozen = resident is not None and not resident.frozen
    itemsize = (
        recipe.numerics.itemsize
        if resident is None
        else min(resident.itemsize, recipe.numerics.itemsize)
        if recipe.sharding.name == "fsdp2"
        else resident.itemsize
    )
    cast = casts_inputs(recipe) and (resident is None or resident.sharded)
    quantised = recipe.quantised if resident is None else resident.quantised
    numerics = recipe.numerics if resident is None else recipe.numerics._replace(norm_itemsize=0, stack_itemsize=0)
    mode = Mode(
        numerics._replace(itemsize=itemsize),
        Operators(recipe.operators.attention),
        trained=unfrozen,
        padded=recipe.batch.padded,
        repeats_keys=repeats_keys(recipe),
        lacks_flash=recipe.hardware.lacks_flash,
        saves_inputs=recipe.zero_stage == 3,
        summed=recipe.divided.summed if resident is None else 1,
        quantised=quantised,
        widths=Widths(
            stream=4 if recipe.numerics.autocast and recipe.model.widens_stream and not cast else 0,
            product=product_itemsize(quantised, recipe.numerics.autocast, recipe.model.layers()),
            input=itemsize if cast else 0,
            output=itemsize if cast and casts_outputs(recipe) else 0,
        ),
        router=RouterLogits(
            recipe.loss.router.reference,
            recipe.loss.router.stacked,
            masked=recipe.batch.padded or (recipe.batch.masked and recipe.operators.attention != "flash"),
        ),
    )
    head = reference_head(recipe, rows, itemsize)
    spec = recipe.model if resident is None else resident.spec  # which tensor-parallel ranks have whole
    plan = PassPlan("reference", spec.thawed, mode, rows, recipe.batch.sequence_length, "no-grad", head)
    images = recipe.batch.images if recipe.model.tower else None
    return traced_pass(
        plan._replace(images=images, in_units=gathers(recipe) and (resident is None or resident.sharded))
    )


def teacher_pass(recipe: Recipe, teacher: Resident) -> TracedPass:
    """The no-grad forward that gives the teacher's logits."""
    spec, numerics = (
        teacher.spec,
        recipe.numerics._replace(itemsize=teacher.itemsize, norm_itemsize=0, stack_itemsize=0),
    )
    widened = spec.residual_fp32 or (numerics.autocast and spec.widens_stream)
    mode = Mode(
        numerics,
        Operators(recipe.operators.attention),
        trained=not teacher.frozen,
        padded=recipe.batch.padded,
        lacks_flash=recipe.hardware.lacks_flash,
        saves_inputs=recipe.zero_stage == 3,
        widths=Widths(stream=4 if widened else 0),
    )
    head = teacher_head(recipe)
    return traced_pass(
        PassPlan("teacher", teacher.spec, mode, recipe.rows, recipe.batch.sequence_length, "no-grad", head)
    )


def enter_residents(ledger: Ledger, recipe: Recipe) -> None:
    """Their weights, for the whole step: sharded as the policy's, or a full replica on each rank."""
    for model in recipe.others.residents:
        weights = model_weights(model.spec)
        category = model.role if model.role == "reference" else "extra_models"
        if model.quantised:
            owner = f"{model.role} model {model.spec.name}"
            base = model.quantised
            enter_quantised(ledger, base, owner, category, [weight for weight in weights if weight.quantised_by(base)])
            weights = [weight for weight in weights if not weight.quantised_by(base)]
        if model.sharded and recipe.zero_stage == 3:
            title = f"{model.role} model {model.spec.name}"
            from memplan.engine.parallel.zero.states import enter_resident_partitions

            enter_resident_partitions(ledger, recipe, title, category, weights, model.itemsize)
            continue
        shards = recipe.sharding.ranks if model.sharded else 1
        for itemsize, same in by_itemsize(recipe, model, weights).items():
            elements = shard_elements(same, shards, recipe.sharding.name == "fsdp2")
            ledger.add(
                f"{model.role} model {model.spec.name}",
                category,
                elements * itemsize,
                place="host" if model.sharded and recipe.sharding.fsdp.cpu_offload else "gpu",
            ).formula(f"elements{f' / {shards} ranks' if shards > 1 else ''} × bytes", elements, itemsize).since(
                _why(shards), "MEMORY_ESTIMATION.md, reference and other models"
            )


def enter_other_forwards(ledger: Ledger, recipe: Recipe) -> None:
    """What further forwards of the policy hold before one backward, from above: a gradient of each trained weight waits
    until every graph has brought its own (torch/csrc/autograd/engine.cpp: dependencies), and each graph keeps casts of
    its own where autocast is left behind every forward (accelerate's wrapper). Counted for the whole step."""
    more, autocast = recipe.loss.code.own_forwards - 1, recipe.numerics.autocast
    weights = model_weights(recipe.model, recipe.adapter is None, recipe.adapter) if more else []
    trained = sum(weight.elements * weight.copies for weight in weights if weight.trained)
    cast = sum(weight.elements * weight.copies for weight in weights) * autocast * more
    itemsize = max(recipe.storage.precision.weights, recipe.storage.gradient_itemsize)
    ledger.add("of further forwards: gradients that wait, casts", "gradients", trained * itemsize + cast).told(
        trained, itemsize, cast, of="gradients of further forwards"
    )


def enter_waiting_reference(ledger: Ledger, recipe: Recipe) -> None:
    """The reference that waits on the host: page-locked, each tensor of a rank in a block of its own; under FSDP1 each
    flat parameter, with a gradient's buffer as large beside it (torch 2.13 _flat_param.py: _cpu_grad)."""
    if recipe.others.reference != "offloaded":
        return
    own = recipe._replace(adapter=None)
    e, sizes = recipe.storage.precision.weights, parameter_sizes(own, model_weights(recipe.model))
    elements, buffers = sum(size * copies for size, copies in sizes), 1 + (recipe.wrapper == "fsdp")
    ledger.add("reference on the host", "reference", copied(elements * e, sizes, e) * buffers, place="host").told(
        elements, e, of="reference on the host (resident models)", source=recipe.trainer.source
    )


def by_itemsize(recipe: Recipe, model: Resident, weights: list[Weight]) -> dict[int, list[Weight]]:
    """Weights by element size: some classes keep a few in fp32 beside half precision."""
    found: dict[int, list[Weight]] = {}
    for weight in weights:
        own = 0 if recipe.storage.precision.master else weight.itemsize
        found.setdefault(own or model.itemsize, []).append(weight)
    return found


def _why(shards: int) -> str:
    if shards > 1:
        return "frozen weights, split over the ranks as the policy's are"
    return "frozen weights, a full replica on every rank"
