"""What FSDP's hooks bring beside what they hold: gradients that go down meanwhile, inputs that closures hold, shards on
the host, segments that other streams keep, tokens that experts on other ranks send."""

from memplan.engine.allocator.settings import pinned
from memplan.engine.ledger import Ledger
from memplan.engine.passes import Stage, TracedPass
from memplan.engine.play.boxes import Question
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

FSDP = "torch 2.13 distributed/fsdp"
SHARDS = "shards of the gradients"


def enter_beside(ledger: Ledger, recipe: Recipe, question: Question, passes: list[Stage]) -> None:
    """All of it."""
    for traced, point in passes:
        if point == "backward":
            _enter_residual(ledger, traced)
            _enter_held_inputs(ledger, question, traced)
        elif point == "forward" and recipe.parallel.expert > 1:
            _enter_uneven(ledger, recipe, traced)
    if recipe.evaluating:
        return
    _enter_on_host(ledger, question, recipe)
    if not question.rules.flat:
        last = next(traced.plan.name for traced, point in passes if point == "backward")
        _enter_pools(ledger, question, f"{last}.final-norm-backward", recipe.accumulates)


def _enter_residual(ledger: Ledger, traced: TracedPass) -> None:
    """The gradient that goes down while units are reduced."""
    found = [(f"{traced.plan.name}.tail-reduce", "last layer", traced.input_gradient)]
    found += [(traced.end_of(i), f"below layer {i}", traced.layers[i].boundary) for i in traced.backward_layers]
    for instant, where, size in found:
        ledger.add(f"gradient of the residual stream, {where}", "temporaries", size, at=instant).told(size)


def _enter_held_inputs(ledger: Ledger, question: Question, traced: TracedPass) -> None:
    """Inputs of the checkpoints of frozen units above, and their gradients.

    The hook that reshards a frozen unit hangs on its inputs (register_multi_grad_hook), and its closure holds their
    AccumulateGrad nodes: where the input is a checkpoint's own leaf, the leaf and its ``.grad`` with it, until the end
    of backward. Within a layer's backward what comes in is such a ``.grad``."""
    if not (question.rules.apart and question.rules.wrapped_within and traced.plan.style == "reentrant"):
        return
    for i in traced.backward_layers:
        above = traced.layers[i + 1 :]
        size = 2 * sum(layer.boundary for layer in above)
        left = above[0].boundary if above else 0  # by the layer above: this layer's own
        instants = dict.fromkeys((instant for instant, _ in traced.layer_instants(i)), size - left)
        instants |= {traced.end_of(i): size} | ({f"{traced.plan.name}.embedding-backward": size} if i == 0 else {})
        for instant, held in instants.items():
            ledger.add(
                f"inputs of checkpoints above layer {i}, and their gradients", "activations", held, at=instant
            ).told(len(above), 2, traced.layers[i].boundary)


def _enter_on_host(ledger: Ledger, question: Question, recipe: Recipe) -> None:
    """Shards under CPU offload; FSDP1's are page-locked (torch 2.13 _flat_param.py: _cpu_grad)."""
    if not question.rules.cpu_offload:
        return
    rules, every = question.rules, question.policy.every
    shards = [sizes.unit.shard for sizes in every]
    shards += [ceil_div(elements, rules.ranks) * rules.adapter for sizes in every for _, elements in sizes.alone]
    size = sum(map(pinned, shards) if rules.flat else shards)
    first = next((each for each in ledger.schedule if each.endswith("reduce")), "")
    ledger.add(SHARDS, "gradients", size, "" if recipe.accumulates else first, place="host").told(size)


def _enter_pools(ledger: Ledger, question: Question, before_layers: str, accumulates: bool) -> None:
    """Segments that FSDP2's other streams keep to themselves: on the reserved meter alone.

    The allocator gives a freed block only to the stream that it came from. What the largest output of an all-gather
    took stays reserved when it is freed, and the shards of gradients (outputs of reductions) until backward makes them,
    or the step where micro-steps leave them for it."""
    ends = [sizes.unit for sizes in question.policy.ends]
    every = [*(sizes.unit.shard for sizes in question.policy.layers), *(unit.shard for unit in ends)]
    shards = max(every) if question.rules.steps else sum(every)
    whole = max(unit.gathered for unit in ends) * (question.rules.ranks > 1)
    gather = next(each for each in ledger.schedule if each.endswith((".gather", ".layer-forward", ".forward")))
    until = ledger.before(ledger.schedule[-1]) if accumulates else before_layers
    ledger.add("segments of all-gathers", "stream_segments", whole, ledger.after(gather), meter="reserved").told(whole)
    ledger.add("segments of gradient shards", "stream_segments", shards, dies=until, meter="reserved").told(shards)


def _enter_uneven(ledger: Ledger, recipe: Recipe, traced: TracedPass) -> None:
    """What a rank holds of rows beyond the mean, where it receives twice as many: inputs, gate, activation, up and
    product of its experts; in every layer, or in the one that is made again."""
    name, routed = traced.plan.name, [layer.experts for layer in recipe.model.layers() if layer.experts]
    layers = routed if traced.plan.style == "plain" else routed[:1]
    hidden, tokens = recipe.model.hidden_size, traced.plan.rows * traced.plan.length
    rows = sum(tokens * each.active * (3 * hidden + 4 * each.intermediate) for each in layers)
    within, last = f"{name}.layer-forward", f"{name}.embedding-backward"
    ledger.add(
        "rows of tokens beyond the mean",
        "activations",
        0,
        within,
        last if last in ledger.index else within,
        high=rows * recipe.numerics.itemsize,
    ).told()
