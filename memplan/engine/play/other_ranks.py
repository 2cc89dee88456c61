"""A play on another rank: of flat parameters each rank's optimizer steps on other pieces, and all else is the same."""

from operator import itemgetter

from memplan.engine.allocator.replay import ELSEWHERE, StepEvents
from memplan.engine.parallel.fsdp1.flat_parameters import stepped_by
from memplan.engine.play.notes import OPTIMIZER
from memplan.engine.play.optimizer import Optimizer, parts_of
from memplan.engine.play.tape import PlayTape
from memplan.spec.recipe import Recipe


def of_rank(played: StepEvents, recipe: Recipe, rank: int) -> StepEvents:
    """The same steps, but for what the optimizer does: that of this rank, in storages that are numbered behind all."""
    if recipe.sharding.fsdp.cpu_offload:
        return played
    tape, behind = PlayTape(), len(played.tags)
    optimizer = Optimizer(recipe, tape, parts_of(recipe, stepped_by(recipe, rank)))
    events, done, moved = list[tuple[int, int]](), 0, [(0, 0)]
    for start in (at for at, name in played.marks if name == OPTIMIZER):
        events += played.events[done:start]
        first = len(tape.events)
        optimizer.step()
        events += [(number + behind, size) for number, size in tape.events[first:]]
        done = _end(played, start)
        moved.append((done, len(events) - done))
    events += played.events[done:]
    marks = tuple((_moved(at, moved), name) for at, name in played.marks)
    tags = [*played.tags, *tape.tags]
    return played._replace(events=tuple(events), start=_moved(played.start, moved), marks=marks, tags=tags)


def ran_ahead(played: StepEvents) -> StepEvents:
    """The same steps on a rank that was sent its weights, and so did not wait where the first rank of its node did."""
    apart = {name.removeprefix(ELSEWHERE) for _, name in played.marks if name.startswith(ELSEWHERE)}
    waits = {name.rpartition(" ")[0] for name in apart}
    marks = [(at, name.removeprefix(ELSEWHERE)) for at, name in played.marks if name not in waits]
    return played._replace(marks=tuple(marks))


def _end(played: StepEvents, start: int) -> int:
    """Behind the last event of the optimizer that begins here: those of storages that were not there before."""
    before = max(map(itemgetter(0), played.events[:start]))
    at = start
    while at < len(played.events) and played.events[at][0] > before:
        at += 1
    return at


def _moved(at: int, moved: list[tuple[int, int]]) -> int:
    """Where a position is now; one where an optimizer begins is before it."""
    return at + next(by for end, by in reversed(moved) if at >= end)
