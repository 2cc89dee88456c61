"""What a report and a search ask of an RL step: the worst instant of all processes, and whether all of them run.

A policy that generates itself (transformers' generate) adds to its own weights the cache, which grows by a token at a
time, the logits that are sampled, and under sharding what is gathered for it: transformers 5.23 cache_utils.py
(DynamicLayer.update: torch.cat), generation/utils.py (_sample); trl 1.16 models/utils.py
(unwrap_model_for_generation: ds3_gather_for_generation)."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.allocator.reserved import Band
from memplan.engine.ledger import Ledger
from memplan.engine.overhead import context_bytes
from memplan.engine.phases.parts import units
from memplan.engine.sums import Totalled
from memplan.engine.tensors import model_weights
from memplan.errors import InvalidJob
from memplan.generated import Engine, Process, Together, as_engine
from memplan.meters import Totals
from memplan.moments import AsleepIn, Beside, phase_of
from memplan.report import Crossing
from memplan.rollout.instants import NONE, At, Holding, Scene, added, holding, instants
from memplan.spec.generation import Generator
from memplan.spec.gpu import Gpu
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div

if TYPE_CHECKING:
    from memplan.engine.generation.figures import Figures  # of an engine that most jobs never load


@lru_cache(maxsize=4096)
def figures_of(of: Generator, gpu: Gpu, free: Band | None) -> "Figures":
    """Of one card; where the trainer's modules are the engine's tensors, what it adds to them."""
    from memplan.engine.generation.figures import engine_figures

    found = engine_figures(of, gpu, free)
    if not of.shared_weights:
        return found
    own = Band(-found.weights, -found.weights, -found.weights)
    awake = added(found.awake, own)
    return found._replace(awake=awake, asleep=found.asleep if of.sleep else awake, host_asleep=0)


class Start(NamedTuple):
    """The engine as it starts beside one class of ranks."""

    held: Holding
    figures: "Figures | None"
    """None where no card is named, and of transformers' generate."""
    outside: Band
    """Of the trainer's process."""
    contexts: Band = NONE
    """Of the trainer's processes but the first."""
    separate: bool = False
    """It stands on another card."""
    usable: int = 0
    """Of the card."""
    by_policy: int = 0
    """What transformers' generate adds to the trainer."""
    refused: str = ""
    """Why nothing is known of the engine with this model."""
    scorer: "Figures | None" = None
    """Of a reward model's own engine."""

    @property
    def beside_update(self) -> Band:
        """What the engine holds of the trainer's card while it trains."""
        engine = NONE if self.figures is None or self.separate else self.figures.asleep
        return added(engine, self.contexts, self.scorer.asleep if self.scorer else NONE)


def start(recipe: Recipe, ledger: Ledger | Totalled) -> Start | None:
    """None where nothing generates that is counted, or nothing else is done."""
    of, gpu = recipe.generator, recipe.hardware.gpu
    if of is None or of.engine == "none" or recipe.method.generates:
        return None
    held, context = holding(of, recipe, ledger), context_bytes(gpu)
    contexts = Band(*((of.trainers - 1) * each for each in context))
    outside = added(Band(*map(max, ledger.bounds("device"))), contexts)
    try:
        if gpu is None or of.engine == "hf":
            by_policy = generating_bytes(of, recipe) if of.engine == "hf" else 0
            return Start(held, None, outside, contexts, by_policy=by_policy)
        there = held.generating(True) - (held.states.policy.parameters if of.shared_weights else 0)
        alone = of.separate or of.first
        free = None if alone else Band(*(max(0, gpu.usable_bytes - there - each) for each in reversed(outside)))
        figures = figures_of(of, gpu, free)
        found = Start(held, figures, outside, contexts, of.separate, gpu.usable_bytes)
        if of.scorer is None:
            return found
        beside = added(outside, NONE if of.separate else figures.asleep)
        left = Band(*(max(0, gpu.usable_bytes - held.generating(True) - each) for each in reversed(beside)))
        return found._replace(scorer=figures_of(of.scorer, gpu, left))
    except InvalidJob as error:
        return Start(held, None, outside, contexts, refused=error.message)


class Joint(NamedTuple):
    """An RL step on one card."""

    of: Generator
    start: Start
    instants: tuple[At, ...]

    @property
    def asleep(self) -> Band:
        """The engine on the trainer's card, over the passes."""
        return self.start._replace(contexts=NONE).beside_update

    @property
    def worst(self) -> At:
        """The instant with the most, as expected; of equal ones that with the most in use."""
        return max(self.instants, key=lambda at: (at.device.expected, at.allocated))

    @property
    def device(self) -> Band:
        """The most of all processes."""
        return most(at.device for at in self.instants)

    @property
    def to_fit(self) -> Band:
        """What the card must hold of them."""
        return most(at.to_fit for at in self.instants)

    @property
    def why_not(self) -> tuple[str, str]:
        """Why the engine does not start, and what to change; empty where it does."""
        figures, scorer = self.start.figures, self.start.scorer
        if figures is not None and not figures.starts:
            return figures.why, figures.hint
        return ("", "") if scorer is None or scorer.starts else (f"of the reward model: {scorer.why}", "")

    def crossing(self, usable: int) -> Crossing | None:
        """The first instant of the run at which the card is full."""
        for at in self.instants:
            if at.to_fit.expected > usable:
                return Crossing(_phase(at), at.name, at.to_fit.expected)
        return None

    @property
    def engines_on_host(self) -> int:
        """Bytes on the host for one card's engines that sleep."""
        figures, of, engine = self.start.figures, self.of, 0
        if figures is not None and not of.separate:
            copied = figures.weights if of.sleep and of.engine == "sglang" and of.host_copy else 0
            engine = figures.host_asleep or copied
        return engine + (self.start.scorer.host_asleep if self.start.scorer else 0)

    def asleep_in(self, phase: str) -> int:
        """Those in a phase beside the step: from their first sleep on, as torch keeps page-locked blocks."""
        return self.engines_on_host if self.of.first or phase != "load" else 0

    def host(self, processes: int) -> int:
        """Bytes of a node for what waits there: of the trainer, and of engines that sleep."""
        return (self.start.held.on_host + self.engines_on_host) * processes


def _phase(at: At) -> str:
    """start, rollout or sync; of a pass, that of its instant."""
    head = at.name.partition(".")[0]
    return head if head in ("start", "rollout", "sync", "reward") else phase_of(at.of) if "." in at.of else "forward"


def most(bands: Iterable[Band]) -> Band:
    """The most of each figure."""
    return Band(*map(max, zip(*bands, strict=True)))


def joint(
    started: Start | None, recipe: Recipe, ledger: Ledger | Totalled, meters: Totals, beside: Beside
) -> Joint | None:
    """The step of a job that generates; None of another."""
    of = recipe.generator
    if started is None or of is None:
        return None
    sent = next((each.card[1] for each in beside.sums if each.name == "sync"), 0)
    figures = None if of.separate else started.figures
    transfer = max(0, sent - started.held.syncing())
    scene = Scene(
        of, recipe, ledger, started.held, figures, started.outside, meters, transfer, started.by_policy, started.scorer
    )
    return Joint(of, started, tuple(instants(scene, isinstance(ledger, Ledger))))


def asleep_in(found: Joint | None) -> AsleepIn:
    """What sleeps on the host beside each phase."""
    return found.asleep_in if found is not None else lambda phase: 0


def engine_of(found: Joint | None) -> Engine | None:
    """The report's words of the engine."""
    if found is None or found.start.figures is None:
        return None
    return as_engine(found.of, found.start.figures)


def processes_at(at: At) -> tuple[Process, ...]:
    """What each process holds at an instant. The trainer's figures are of what it has itself: its own meters count an
    engine in the same process, asleep or not."""
    trainer = Process("trainer", at.allocated, at.reserved.expected, at.reserved.expected + at.outside.expected)
    if at.engine == NONE:
        return (trainer,)
    return trainer, Process("engine", at.engine.expected, at.engine.expected, at.engine.expected)


def shown(found: Joint | None) -> tuple[Together, ...]:
    """Every instant as the report has it."""
    if found is None:
        return ()
    return tuple(
        Together(at.name, at.of, at.first, at.device.low, at.device.expected, at.device.high, processes_at(at))
        for at in found.instants
    )


SAMPLED = 14
"""Bytes for each logit of the last position: bf16, a copy in fp32, and the processors' and softmax's own."""


def cache_bytes(of: Generator) -> int:
    """Keys and values of all sequences at their end, and one layer's once more while a token is added."""
    from memplan.engine.generation.cells import cells_of

    token = state = 0
    for run in of.model.runs:
        for cell in cells_of(run.layer, of):
            token, state = token + cell.token * run.count, state + cell.state * run.count
    whole = of.rows * (token * (of.prompt_length + of.completion_length) + state)
    return whole + ceil_div(whole, max(1, of.model.num_layers))


def generating_bytes(of: Generator, recipe: Recipe) -> int:
    """Beside what the trainer holds anyway; scores that it keeps are there twice while they are stacked."""
    from memplan.engine.generation.cells import expanded_bytes
    from memplan.engine.rollouts import scores_bytes

    sampled = max(of.rows * of.model.vocab_size * SAMPLED, expanded_bytes(of))
    return cache_bytes(of) + sampled + _gathered(recipe) + scores_bytes(recipe)


def _gathered(recipe: Recipe) -> int:
    """ZeRO-3: the whole model in the dtype of its weights, and the critic's in one engine with it, of which all is
    gathered (trl 1.16 experimental/ppo/ppo_trainer.py: PolicyAndValueWrapper); FSDP: root and a unit, as in any
    forward."""
    itemsize, critic = recipe.numerics.itemsize, recipe.others.critic
    if recipe.zero_stage == 3:
        beside = critic.spec.params.total if critic and critic.together else 0
        return (recipe.model.params.total + beside) * itemsize
    if recipe.several and recipe.sharding.name in ("fsdp", "fsdp2"):
        return sum(units(recipe, model_weights(recipe.model, recipe.adapter is None, recipe.adapter)).values())
    return 0
