"""The ledger of one rank of a Megatron job: its schedule, then rows of states, activations, head, buffers."""

from collections.abc import Callable
from functools import cached_property
from math import prod

from memplan.engine.ledger import Ledger
from memplan.engine.megatron import head
from memplan.engine.megatron.activations import enter_activations, layer_instants
from memplan.engine.megatron.buffers import enter_buffers, enter_surroundings
from memplan.engine.megatron.scores import enter_scores, instants_of_scores
from memplan.engine.megatron.shape import Shape, shape_of
from memplan.engine.megatron.stages import Chunk, chunks_of
from memplan.engine.megatron.states import enter_states
from memplan.engine.megatron.steps import Held
from memplan.engine.megatron.weights import Share, padded_vocabulary, rank_shares, with_adapters
from memplan.engine.micro_step import layers_plan, scoring_recipe
from memplan.engine.pass_plan import TowerTrace
from memplan.engine.rollouts import enter_rollout
from memplan.spec.lora import EMBEDDING
from memplan.spec.recipe import Recipe
from memplan.tables.styles import PassStyle

STEP = "step.optimizer"
PASS = "policy"


class MegatronParts:
    """What the rows of one rank are made from, each made when it is first asked for."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @cached_property
    def shape(self) -> Shape:
        """Sizes of a micro-batch."""
        return shape_of(self.recipe)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The stage's layers."""
        recipe = self.recipe
        return chunks_of(
            recipe.model, recipe.parallel, recipe.megatron, recipe.batch.accumulation, recipe.checkpointing.layers
        )

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The stage's parameters."""
        recipe = self.recipe
        shares = rank_shares(recipe.model, recipe.parallel, recipe.megatron, self.chunks)
        return with_adapters(shares, recipe.adapter, recipe.trainer.adapters.on_megatron, recipe.parallel)

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the embedding on this rank."""
        degrees = self.recipe.parallel
        return padded_vocabulary(self.recipe.model, degrees, self.recipe.megatron) // degrees.tensor

    @cached_property
    def tail(self) -> head.Tail | None:
        """Instants of the loss, on the last stage."""
        return head.tail(self.recipe, self.shape, self.vocabulary) if self.recipe.parallel.last else None

    @cached_property
    def tower(self) -> TowerTrace | None:
        """The vision tower's pass, on the first stage."""
        return tower_trace(self.recipe)

    @cached_property
    def scored_tower(self) -> TowerTrace | None:
        """The same of a micro-batch that is scored."""
        return tower_trace(scoring_recipe(self.recipe), "no-grad")

    @cached_property
    def trains_embedding(self) -> bool:
        """Whether a gradient of the embedding's table is made here."""
        return self.recipe.parallel.first and head.trains(self.recipe, EMBEDDING)

    @cached_property
    def schedule(self) -> tuple[str, ...]:
        """Scores, forward, loss, backward of the last layer step by step, embedding, optimizer."""
        loss = [f"{PASS}.{point}" for point, _ in self.tail.at] if self.tail else []
        embedding = [f"{PASS}.embedding-backward"] if self.trains_embedding else []
        layers = layer_instants(self.shape, self.chunks)
        before = (TOWER_FORWARD,) if self.tower is not None else ()
        after = (TOWER_BACKWARD,) if self.tower is not None and self.tower.backward else ()
        before = (*instants_of_scores(self.recipe), *before)
        return (*before, f"{PASS}.layer-forward", f"{PASS}.forward", *loss, *layers, *embedding, *after, STEP)


def megatron_ledger(recipe: Recipe, detailed: bool = True) -> Ledger:
    """Every row of one rank, over the instants of one step in steady state."""
    parts = MegatronParts(recipe)
    ledger = Ledger(parts.schedule, detailed)
    for section in SECTIONS:
        section(ledger, parts)
    return ledger


def _enter_states(ledger: Ledger, parts: MegatronParts) -> None:
    enter_states(ledger, parts.recipe, parts.shares, STEP)


def _enter_activations(ledger: Ledger, parts: MegatronParts) -> None:
    enter_activations(ledger, parts.shape, parts.chunks)
    enter_vision(ledger, parts.tower, parts.chunks[0].in_flight)
    enter_resting_blocks(ledger, parts)


def _enter_head(ledger: Ledger, parts: MegatronParts) -> None:
    """Final norm and output matmul with the loss on the last stage, the embedding's gradient on the first."""
    if parts.tail is not None:
        last = f"{PASS}.{parts.tail.at[-1][0]}"
        for held in head.norm_kept(parts.recipe, parts.shape):
            _add(ledger, held, "activations", (f"{PASS}.forward", last), "kept for backward", head.OUTPUT)
        for point, all_held in parts.tail.at:
            at = f"{PASS}.{point}"
            for held in all_held:
                category = "logits" if "V" in held.template or held.template == "bytes" else "activations"
                _add(ledger, held, category, (at, at), "vocabulary-parallel head", parts.tail.source)
    if parts.trains_embedding:
        at = f"{PASS}.embedding-backward"
        for held in head.embedding_backward(parts.shape, parts.vocabulary):
            _add(ledger, held, "gradients", (at, at), "before it is added to the buffer", head.OUTPUT)
        if parts.recipe.parallel.last and parts.recipe.megatron.mtp_num_layers:
            born = ledger.schedule[ledger.schedule.index(f"{PASS}.mtp-projection-backward") + 1]
            waits = "for that of the model's own lookup"
            _add(ledger, head.mtp_table(parts.shape), "gradients", (born, at), waits, head.MTP)


def _enter_buffers(ledger: Ledger, parts: MegatronParts) -> None:
    enter_buffers(ledger, parts.recipe, parts.shape, parts.shares)


def _enter_others(ledger: Ledger, parts: MegatronParts) -> None:
    enter_references(ledger, parts.recipe)
    enter_rollout(ledger, parts.recipe)


def _enter_surroundings(ledger: Ledger, parts: MegatronParts) -> None:
    enter_surroundings(ledger, parts.recipe)


def _enter_alone(ledger: Ledger, parts: MegatronParts) -> None:
    """Of other rows those that no batch decides."""
    enter_references(ledger, parts.recipe)
    enter_surroundings(ledger, parts.recipe)


SECTIONS: tuple[Callable[[Ledger, MegatronParts], None], ...] = (
    _enter_states,
    _enter_activations,
    _enter_head,
    enter_scores,
    _enter_buffers,
    _enter_others,
    _enter_surroundings,
)
"""Every kind of row, in the order of the ledger; ``quick`` remembers the sums of each by what it read."""
CALM = (_enter_states, _enter_alone)
"""What follows no pass, first the states."""


def _add(ledger: Ledger, held: Held, category: str, life: tuple[str, str], why: str, source: str) -> None:
    ledger.add(held.name, category, held.bytes, *life).formula(held.template, *held.factors).since(why, source)


OF_TOWER = "torch 2.13 autograd and transformers 5.23, replayed by size; MEMORY_ESTIMATION.md, images"
TOWER_FORWARD, TOWER_BACKWARD = "policy.vision-forward", "policy.vision-backward"


def tower_trace(recipe: Recipe, style: PassStyle = "plain") -> TowerTrace | None:
    """The tower's pass over a micro-batch's images, before the layers; None on later stages, and without images.

    It is transformers' own module, whole on every rank of the first stage: ms-swift 4 (megatron/model: the Hugging Face
    ``visual``), Megatron-Bridge 0.2 (models/qwen_vl). verl's mbridge has a tower of Megatron's layers, which tensor
    parallelism cuts: no less is counted. Its blocks are taken as not recomputed, so that each micro-batch in flight
    keeps all that they save."""
    if recipe.model.tower is None or recipe.batch.images is None or not recipe.parallel.first:
        return None
    from memplan.engine.layers.vision.tower_trace import trace_tower

    plan = layers_plan(recipe, "policy", recipe.rows, style)
    tower = plan._replace(mode=plan.mode._replace(tensor=1, context=1, expert=1)).tower
    return trace_tower(tower) if tower is not None else None


def enter_vision(ledger: Ledger, trace: TowerTrace | None, in_flight: int) -> None:
    """What the tower holds of the micro-batch that runs, and keeps of each that is in flight."""
    if trace is None:
        return
    kept = trace.saved if trace.backward else 0
    ledger.add(
        "saved in the vision tower",
        "activations",
        kept * in_flight,
        TOWER_FORWARD,
        TOWER_BACKWARD if trace.backward else TOWER_FORWARD,
    ).told(kept, in_flight, of="saved in the vision tower (build)")
    for name, size, at in (
        ("vision tower, forward", max(0, trace.forward - kept), TOWER_FORWARD),
        ("vision tower, backward", max(0, (trace.alone or trace.backward) - kept), TOWER_BACKWARD),
    ):
        if size:
            ledger.add(name, "activations", size, at=at).since("the most within it", OF_TOWER)
    ledger.add(
        "image tokens, held by the model's outputs",
        "activations",
        trace.outputs + trace.locals,
        TOWER_FORWARD,
        "policy.layer-forward",
    ).told(of="image tokens, held by the model's outputs (build)")


def enter_resting_blocks(ledger: Ledger, parts: MegatronParts) -> None:
    """Inputs of a resting tower's blocks, which ms-swift 3 makes to require gradients
    (megatron/trainers/base.py: _prepare_vit_gradient_checkpointing); ms-swift 4 does so where the tower trains."""
    recipe, tower = parts.recipe, parts.recipe.model.tower
    if parts.shape.way != "swift" or recipe.adapter is None or parts.tower is None or tower is None:
        return
    images = recipe.batch.images
    patches = recipe.rows * images.per_example * images.squares * images.rows * images.columns if images else 0
    sizes = parts.chunks[0].in_flight, tower.num_layers, patches, tower.width, parts.shape.itemsize
    life = TOWER_FORWARD, ledger.before(STEP)
    ledger.add("inputs of a resting tower's blocks, if kept", "checkpoints", 0, *life, high=prod(sizes)).told(*sizes)


def enter_references(ledger: Ledger, recipe: Recipe) -> None:
    """Weights of reference, reward and teacher models: this rank's part, without gradients or states; of a reference
    that is swapped in, the host's copy."""
    degrees, settings = recipe.parallel, recipe.megatron
    for model in recipe.others.residents:
        chunks = chunks_of(model.spec, degrees, settings, 1, False)
        elements = sum(share.elements for share in rank_shares(model.spec, degrees, settings, chunks))
        ledger.add(
            f"{model.role} model {model.spec.name}",
            model.role if model.role == "reference" else "extra_models",
            elements * model.itemsize,
        ).told(elements, model.itemsize, of="model")
    if recipe.others.reference == "offloaded":
        chunks = chunks_of(recipe.model, degrees, settings, 1, False)
        elements = sum(share.elements for share in rank_shares(recipe.model, degrees, settings, chunks))
        ledger.add(
            "reference on the host", "reference", elements * recipe.storage.precision.weights, place="host"
        ).told(elements, recipe.storage.precision.weights, source=recipe.trainer.source)
