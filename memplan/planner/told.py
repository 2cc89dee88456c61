"""A set of moves as it is told: its figures, resolved anew and played, its words, and what is paid for it most."""

from memplan.cost.face import examples_per_step
from memplan.errors import MemplanError
from memplan.lengths.batches import sequences_of
from memplan.lengths.distribution import cut_at
from memplan.meters import needed_of
from memplan.planner import tiers
from memplan.planner.around import SAME, Around, Changed
from memplan.planner.candidates import allowed_of
from memplan.planner.pricing import Priced
from memplan.report import Remedy
from memplan.reporting import Peak, peak
from memplan.resolve import resolve
from memplan.spec.reading import with_changes


def remedy(around: Around, each: Changed, priced: Priced, before: int) -> Remedy | None:
    """A set of moves as it is told: its figures are those of the job with its changes, resolved anew."""
    changes = {**each.keys, **priced.keys}
    figures = anew(around, (each, priced))
    if figures is None or figures.verdict is None or (priced.fits and not fits(figures)):
        return None
    if figures.device.high > allowed_of(each.recipe):  # only whether it fits is known of it
        figures = peak(resolve(with_changes(around.given, changes)), search=True, play=False)
    assert figures.verdict is not None
    device = needed_of(figures.verdict)
    plain = around.priced.get(())
    if not priced.fits and device >= before and (priced.lacks or plain is None or not plain.lacks):
        return None
    return Remedy(
        title=title(around, each, priced),
        changes=changes,
        cost=kind(each),
        frees_bytes=before - device,
        device_bytes=device,
        allocated_bytes=figures.allocated.expected,
        host_bytes_per_node=figures.host.bytes_per_node,
        fits=figures.verdict.fits,
        relative_speed=round(1 / each.slower, 3),
        alters_training=each.alters > 0,
    )


def anew(around: Around, pair: tuple[Changed, Priced]) -> Peak | None:
    """The figures of a set of moves, resolved anew and played; None where it is refused."""
    changes = {**pair[0].keys, **pair[1].keys}
    name = repr(changes)
    if name not in around.anew:
        try:
            around.anew[name] = peak(resolve(with_changes(around.given, changes)), search=True, play="fits")
        except MemplanError:
            around.anew[name] = None
    return around.anew[name]


def fits(figures: Peak | None) -> bool:
    """Whether it does, with the margin."""
    return figures is not None and figures.verdict is not None and figures.verdict.fits == "yes"


def title(around: Around, each: Changed, priced: Priced) -> str:
    """All that is changed, and what follows from it."""
    said = [f"{move.title}{_cut(around, each) if move.axis == 'shorter' else ''}" for move in each.moves]
    if each.recipe.batch.accumulation != around.recipe.batch.accumulation:
        said.append(f"accumulation {each.recipe.batch.accumulation}")
    if examples_per_step(each.recipe) != examples_per_step(around.recipe):
        said.append(f"{examples_per_step(each.recipe)} examples per step")
    stored = each.recipe.storage.precision.name
    words = "" if stored == around.recipe.storage.precision.name else f" (precision {stored})"
    return " + ".join([*said, *priced.free]) + words


def _cut(around: Around, each: Changed) -> str:
    """What of the data shorter sequences cut off, where the job says how long its sequences are."""
    lengths, length = around.given.job.lengths, each.recipe.batch.longest or each.recipe.batch.sequence_length
    if lengths is None or isinstance(lengths, str):
        return ""
    longer, tokens = cut_at(sequences_of(lengths)[0], length)
    return f", which cuts {100 * longer:.3g} % of sequences and {100 * tokens:.3g} % of tokens"


def kind(each: Changed) -> str:
    """What is paid for it most."""
    if each.tier in (tiers.CARDS, tiers.SHORTER):
        return "cards" if each.tier == tiers.CARDS else "data"
    if each.alters:
        return ("numerics", "training")[each.alters - 1]
    if 1 / each.slower < 1 - SAME / 2:
        return "speed"
    return "setup" if any(move.setup for move in each.moves) else "nothing"
