"""The shares of a card that an engine could have: the least that starts, those that hold every sequence, the largest
that the job fits with. Each is judged as the job itself is."""

from typing import NamedTuple

from memplan.cost import card
from memplan.cost.generation import generating
from memplan.cost.rates import EXPECTED
from memplan.engine.generation.figures import Figures, engine_figures
from memplan.engine.generation.kv import layout
from memplan.errors import InvalidJob
from memplan.generated import Share
from memplan.priced import price
from memplan.reporting import Peak, peak
from memplan.spec.generation import Generator
from memplan.spec.recipe import Recipe

HUNDREDTHS = range(1, 100)
BETWEEN = 10
"""Hundredths from one that is shown to the next."""
LEAST, EVERY, LARGEST, OWN = "least", "every-sequence", "largest", "own"


class Judged(NamedTuple):
    """The job with a share."""

    recipe: Recipe
    peak: Peak
    starts: bool
    figures: Figures
    """Beside the trainer where it stands there: SGLang's share is of what is free."""

    @property
    def works(self) -> bool:
        """On the card with its margin, and in the node's memory."""
        return self.starts and self.peak.verdict is not None and self.peak.verdict.fits == "yes"


class Shares:
    """A job under other shares; each is priced once."""

    def __init__(self, recipe: Recipe) -> None:
        assert recipe.generator is not None
        assert recipe.hardware.gpu is not None
        self.recipe, self.of, self.gpu = recipe, recipe.generator, recipe.hardware.gpu
        self.known: dict[int, Judged] = {}

    def engine(self, hundredths: int) -> Generator:
        """With so many hundredths of the card."""
        return self.of._replace(share=hundredths / 100)

    def judged(self, hundredths: int) -> Judged:
        """The verdict of the whole job."""
        if hundredths not in self.known:
            recipe = self.recipe._replace(generator=self.engine(hundredths))
            joint = price(recipe, detailed=False, search=True)[0].joint
            beside = joint.start.figures if joint is not None else None
            found = beside or engine_figures(self.engine(hundredths), self.gpu)
            self.known[hundredths] = Judged(recipe, peak(recipe, search=True), self.starts(hundredths), found)
        return self.known[hundredths]

    def starts(self, hundredths: int) -> bool:
        """Whether one request fits, on a card that is free: what is beside it is in the verdict."""
        return engine_figures(self.engine(hundredths), self.gpu).starts

    def least(self) -> int | None:
        """The smallest that starts, for certain where one does."""
        some = [each for each in HUNDREDTHS if self.starts(each)]
        certain = (each for each in some if not engine_figures(self.engine(each), self.gpu).may_fail)
        return next(certain, next(iter(some), None))

    def every(self) -> int | None:
        """The smallest that starts, as surely, and holds every sequence that could run at once."""
        least = self.least() or HUNDREDTHS.stop
        return next((each for each in HUNDREDTHS[least - HUNDREDTHS.start :] if self.holds(each)), None)

    def holds(self, hundredths: int) -> bool:
        """Whether no sequence waits for room."""
        recipe = self.recipe._replace(generator=self.engine(hundredths))
        return not generating(recipe, card(self.gpu), EXPECTED).preempted

    def largest(self) -> int | None:
        """The largest with which the job fits: what the engine holds grows with its share, so by halving."""
        least = self.least()
        if least is None or not self.judged(least).works:
            return None
        low, high = least, HUNDREDTHS.stop
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.judged(middle).works else (low, middle)
        return low


def has_shares(recipe: Recipe) -> bool:
    """Whether an engine takes a share of a named card."""
    of = recipe.generator
    return of is not None and of.engine != "hf" and recipe.hardware.gpu is not None and not of.kv_cache_memory


def shares(recipe: Recipe) -> tuple[Share, ...]:
    """The table, the smallest first; nothing where no engine takes a share."""
    if not has_shares(recipe) or recipe.provenance.unclear:
        return ()
    try:
        return _table(Shares(recipe))
    except InvalidJob:  # of a model that no engine serves
        return ()


def _table(of: Shares) -> tuple[Share, ...]:
    own, least, every, largest = round(of.of.share * 100), of.least(), of.every(), of.largest()
    why: dict[int, list[str]] = {}
    for hundredths, what in ((least, LEAST), (every, EVERY), (largest, LARGEST), (own, OWN)):
        if hundredths is not None:
            why.setdefault(hundredths, []).append(what)
    first, last = min(why), max(why)
    between = (each for each in range(BETWEEN, 100, BETWEEN) if first < each < last)
    return tuple(_row(of, each, tuple(why.get(each, ()))) for each in sorted({*why, *between}))


def _row(of: Shares, hundredths: int, why: tuple[str, ...]) -> Share:
    judged = of.judged(hundredths)
    figures, verdict = judged.figures, judged.peak.verdict
    made = generating(judged.recipe, card(of.gpu), EXPECTED)
    held = layout(of.of).concurrency(figures.kv, of.of.prompt_length + of.of.completion_length)
    return Share(
        share=hundredths / 100,
        starts=judged.starts,
        fits=verdict.fits if verdict is not None else "",
        kv_bytes=figures.kv,
        kv_tokens=figures.kv_tokens,
        held=round(held, 2),
        wanted=round(made.at_once),
        preempts=made.at_once > held,
        device_bytes=judged.peak.device.high,
        generation_seconds=round(made.seconds, 3) if judged.starts else 0.0,
        why=why,
    )
