"""The instants of an RL step, each with what the trainer and the engine hold of the card, in the order of the step.

What a trainer holds of the card between its passes, by what it has put on the host."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from memplan.engine.allocator.reserved import SEGMENT_BYTES, Band
from memplan.engine.at_hand import PASSES, away_in, gone_in, pass_of
from memplan.engine.critic_engine import parted
from memplan.engine.held_states import Held, away_in_sync, held_states
from memplan.engine.ledger import Ledger
from memplan.engine.phases.registry import between_steps
from memplan.engine.sums import Totalled
from memplan.engine.totals import totalled
from memplan.meters import Totals
from memplan.spec.generation import Away, Generator
from memplan.spec.recipe import Recipe
from memplan.units import round_up

if TYPE_CHECKING:
    from memplan.engine.generation.figures import Figures  # of an engine that most jobs never load


class Holding(NamedTuple):
    """Bytes of one rank's trainer."""

    lasting: int
    """From one step to the next, nothing away."""
    states: Held
    away: Away
    in_sync: Away
    """Of the policy, while weights are sent."""

    def _of(self, policy: Away, critic: Away, first: bool) -> int:
        """What is there with so much of each model away; ``first``: before the first step."""
        gone = self.states.policy.gone(policy) + self.states.critic.gone(critic)
        late = self.states.policy.not_yet(policy) + self.states.critic.not_yet(critic) if first else 0
        return self.lasting - gone - late

    def generating(self, first: bool = False) -> int:
        """While the engine generates."""
        return 0 if self.away.whole else self._of(self.away, self.away, first)

    def syncing(self) -> int:
        """While weights are sent."""
        return 0 if self.away.whole else self._of(self.in_sync, self.away, False)

    def gone_in(self, name: str, first: bool) -> int:
        """What of all that lasts is not on the card in a pass."""
        return gone_in(name, self.states, self.away) + (self.late_in(name) if first else 0)

    def late_in(self, name: str) -> int:
        """Of what is there, what the first step brings. The policy's step comes after the critic's."""
        if name == "step":
            return 0
        policy, critic = away_in(name, self.away)
        late = self.states.policy.not_yet(policy)
        return late + (self.states.critic.not_yet(critic) if name != "policy" else 0)

    @property
    def on_host(self) -> int:
        """What is on the host while the engine generates, as copied; of a paused process the sent weights too."""
        if self.away.whole:
            return self.lasting + self.states.policy.parameters
        return self.lasting - self.generating() + sum(model.beyond(self.away) for model in self.states)


def holding(of: Generator, recipe: Recipe, ledger: Ledger | Totalled) -> Holding:
    """Of one rank."""
    return Holding(between_steps(ledger, recipe), held_states(recipe), of.away, away_in_sync(of))


NONE = Band(0, 0, 0)
START_SCORER = "start.reward"
START, GENERATE, SLEEP, REWARD, VALUE = "start.engine", "rollout.generate", "rollout.sleep", "reward", "value"
WEIGHTS, TRANSFER, CACHE = "sync.resume-weights", "sync.transfer", "sync.resume-kv"
SCORING = {"old": "old-logprob", "reference": "reference"}
"""Passes of the ledger that have a name of their own here."""
HOLES = 20
"""What is still reserved once the cache is given back, beyond what is allocated: a twentieth at most."""


class At(NamedTuple):
    """One instant. ``of``: that of the ledger at which the pass is fullest."""

    name: str
    of: str
    first: bool
    allocated: int
    reserved: Band
    needs: Band
    """Segments without which it does not run."""
    outside: Band
    """Of the trainer's process, beside its segments."""
    engine: Band

    @property
    def device(self) -> Band:
        """All processes together."""
        return added(self.reserved, self.outside, self.engine)

    @property
    def to_fit(self) -> Band:
        """What the card must hold of them."""
        return added(self.needs, self.outside, self.engine)


def added(*bands: Band) -> Band:
    """The sum."""
    return Band(*map(sum, zip(*bands, strict=True)))


class Scene(NamedTuple):
    """What the instants of one class of ranks are made from."""

    of: Generator
    recipe: Recipe
    ledger: Ledger | Totalled
    held: Holding
    figures: "Figures | None"
    """The engine's, where it stands on this card."""
    outside: Band
    meters: Totals
    transfer: int
    """What is gathered and sent at once."""
    by_policy: int = 0
    """What transformers' generate adds."""

    scorer: "Figures | None" = None
    """A reward model's own engine."""

    @property
    def awake(self) -> Band:
        """The engines while completions are generated."""
        return added(self.figures.awake if self.figures else NONE, self.scorer.asleep if self.scorer else NONE)

    @property
    def asleep(self) -> Band:
        """The engines while the trainer trains."""
        return added(*(each.asleep for each in (self.figures, self.scorer) if each), NONE)

    @property
    def scoring(self) -> Band:
        """The engines while completions are scored."""
        return added(self.figures.asleep if self.figures else NONE, self.scorer.awake) if self.scorer else self.asleep


def instants(scene: Scene, detailed: bool = True) -> Iterator[At]:
    """Every instant of a start, then of a step, the first and a later one; without ``detailed`` of a later one alone,
    below which the first one's never are the most."""
    if scene.figures is not None:
        start = _kept(scene, START, 0 if scene.of.first else scene.held.generating(True), scene.awake, True)
        yield start._replace(outside=NONE) if scene.of.first else start
    if scene.scorer is not None:
        yield _kept(scene, START_SCORER, scene.held.generating(True), scene.scoring, True)
    for first in (True, False) if detailed else (False,):
        yield from _rolling(scene, first)
        yield from _passes(scene, first)
        yield from _syncing(scene, first)


def _rolling(scene: Scene, first: bool) -> Iterator[At]:
    """Generation, and the engine's going to sleep."""
    held = scene.held.generating(first)
    if scene.of.engine == "hf":
        yield _kept(scene, GENERATE, held + scene.by_policy, NONE, first)
        return
    yield _kept(scene, GENERATE, held, scene.awake, first)
    if scene.figures is not None and scene.of.sleep:
        yield _kept(scene, SLEEP, held, scene.asleep, first)
    if scene.scorer is not None:
        yield _kept(scene, REWARD, held, scene.scoring, first)
    elif any(model.role == "reward" for model in scene.recipe.others.residents):
        yield _kept(scene, REWARD, scene.held.lasting - scene.held.gone_in("old", first), scene.asleep, first)


def _syncing(scene: Scene, first: bool) -> Iterator[At]:
    """Weights on their way to the engine, after the step."""
    if scene.of.engine == "hf" or scene.of.shared_weights:
        return
    held, figures, sleeps = scene.held.syncing(), scene.figures, bool(scene.of.sleep)
    woken = figures.weights if figures is not None and sleeps else 0
    here = added(scene.asleep, Band(woken, woken, woken))
    during = scene.asleep if scene.of.syncing.before_waking else here
    found = [(TRANSFER, held + scene.transfer + _of_free(scene, held, during), during)]
    if figures is not None and sleeps:
        found.insert(len(found) if during is not here else 0, (WEIGHTS, held, here))
        found.append((CACHE, scene.held.generating(), scene.awake))
    for name, size, engine in found:
        yield _kept(scene, name, size, engine, False)._replace(first=first)


def _of_free(scene: Scene, held: int, here: Band) -> int:
    """Buffers that take a share of what is free."""
    gpu, share = scene.recipe.hardware.gpu, scene.of.syncing.free_share
    return int(share * max(0, gpu.usable_bytes - held - scene.outside.expected - here.expected)) if gpu else 0


def _kept(scene: Scene, name: str, allocated: int, engine: Band, first: bool) -> At:
    """Between passes: what lasts; and all that is reserved, where the trainer does not give its cache back before it.
    ``first``: no pass has filled the cache yet."""
    size = round_up(allocated, SEGMENT_BYTES)
    reserved = needs = Band(size, size, size + size // HOLES)
    if not first and not _gives_back(scene, name):
        reserved = Band(*map(max, zip(reserved, scene.meters.reserved, strict=True)))
        reserved = reserved._replace(high=max(reserved.high, _grown(scene), _held(scene)))
        needs = reserved if engine != NONE and scene.of.sleep else needs
        reserved = reserved if needs is reserved else _within(scene, reserved, needs, engine)
    return At(name, name, first, allocated, reserved, needs, scene.outside, engine)


def _within(scene: Scene, reserved: Band, needs: Band, engine: Band) -> Band:
    """A cache that nothing else waits for, which the allocator gives back where the card has no more."""
    gpu = scene.recipe.hardware.gpu
    room = gpu.usable_bytes - scene.outside.expected - engine.expected if gpu else reserved.high
    return Band(*(max(need, min(held, room)) for held, need in zip(reserved, needs, strict=True)))


def _held(scene: Scene) -> int:
    """What a cache never given back may hold where no play says it: no play held twice of what comes and goes."""
    most = scene.meters.allocated.high
    return 0 if scene.meters.played else most + max(0, most - scene.held.lasting)


def _grown(scene: Scene) -> int:
    """What a cache may grow to over many steps whose packed rows all differ, while the engine sleeps: to all that the
    card has left, since nothing ever makes the allocator give it back."""
    gpu = scene.recipe.hardware.gpu
    if gpu is None or not scene.recipe.batch.longest or not scene.of.sleep or scene.figures is None:
        return 0
    return gpu.usable_bytes - scene.outside.expected - scene.asleep.expected


def _gives_back(scene: Scene, name: str) -> bool:
    """Whether the trainer's cache is empty then: by itself, at the latest before the engine has its own again, or
    because what goes to the host leaves none (verl's offload, slime's pause). One that never sleeps asks nothing."""
    away = scene.of.away
    empties = scene.of.empties or name not in (WEIGHTS, TRANSFER)
    return scene.of.sleep > 0 and (empties or away.parameters or away.optimizer or away.whole)


def _passes(scene: Scene, first: bool) -> Iterator[At]:
    """Passes that score, the critic's training, the policy's, the step: each at its fullest instant."""
    found = _fullest(scene)
    if scene.recipe.others.critic is not None and not scene.recipe.in_megatron:
        found["value"] = VALUE, _values(scene)
    for name in sorted(found, key=PASSES.index):
        of, most = found[name]
        yield _of_pass(scene, SCORING.get(name, of), of, most - (scene.held.late_in(name) if first else 0), first)


def _fullest(scene: Scene) -> dict[str, tuple[str, int]]:
    """By pass, the instant with the most, and that; the optimizer's step by itself."""
    found: dict[str, tuple[str, int]] = {}
    for of, total in zip(scene.ledger.schedule, scene.meters.totals, strict=True):
        name = pass_of(of)
        if name not in found or total > found[name][1]:
            found[name] = of, total
    return found


def _values(scene: Scene) -> int:
    """The critic scores the rollout, without a graph."""
    critic, _ = parted(scene.recipe)
    alone = totalled(critic._replace(evaluating=True, generator=None))
    return scene.held.lasting + max(alone.totals()) - alone.lasting() - scene.held.gone_in("value", False)


def _of_pass(scene: Scene, name: str, of: str, allocated: int, first: bool) -> At:
    """A pass: what is reserved or needed beyond it as at the step's peak."""
    meters = scene.meters
    beyond = allocated - meters.allocated.expected
    reserved, needs = (
        Band(*(max(allocated, each + beyond) for each in band)) for band in (meters.reserved, meters.needs)
    )
    return At(name, of, first, allocated, reserved, needs, scene.outside, scene.asleep)
