"""Many files, and folders of them, in one call: answers in their order, by a process a core where files are many."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from memplan.engine.allocator.reserved import Play
from memplan.errors import EXIT_USAGE
from memplan.frameworks.checks.checking import NO_CONFIG, Checked, check_all
from memplan.frameworks.checks.folders import files_of, is_training, may_train
from memplan.frameworks.files.sourced import project_of
from memplan.frameworks.programs.follow import forget, leave_programs
from memplan.units import ceil_div

File = tuple[str, bool]
"""A file, and whether it is an error there that it is no training config."""
Tell = Callable[[str, int, int], None]
MOST_NAMED = 3
MOST_ADVISED = 3
"""Files at once for which remedies are looked for, and every step is played: of more, one by itself."""
MOST_PROGRAMS = 300
"""Of a folder without configs and scripts that are looked into."""
MANY = 40
"""Files from which on more than one process pays."""
MOST_PROCESSES = 8
TOGETHER = 24
"""Neighbours that one process answers at once: they read the same modules, and their jobs are often equal."""


def check_many(
    paths: Sequence[str],
    options: Mapping[str, Any],
    beside: Sequence[str] = (),
    framework: str = "",
    others: bool = True,
    advise: bool = True,
    processes: int = 1,
    play: Literal[True] | None = None,
    *,
    tell: Tell = lambda text, done, whole: None,
) -> list[Checked]:
    """The answers of files, and of what lies in folders. ``others``: a file that is no training config is an error, in
    place of being skipped; of a folder it is told with its like. ``processes``: as many at most. ``play``: True
    asks for the least that each job needs; None: steps are played, of many files only of jobs not sure to fit.
    ``tell`` hears how far it is."""
    forget()  # what files share of a project is read once
    folders = {path: files_of(path) for path in paths if os.path.isdir(path)}
    kept = {os.path.normpath(path) for path in beside}
    within = {path: [name for name in names if name not in kept] for path, (names, _) in folders.items()}
    files = [(name, others and path not in folders) for path in paths for name in within.get(path, [path])]
    trainings = (
        files if not folders or len(files) > MANY else [file for file in files if file[1] or is_training(file[0])]
    )
    few = len(trainings) <= MOST_ADVISED
    work = partial(_answers, options, beside, framework, advise and few, play or (None if few else "unsure"))
    answers = iter(_by_several(work, files, processes, tell))
    found: list[Checked] = []
    for path in paths:
        if path not in folders:
            found += next(answers)
            continue
        own, programs = [each for _ in within[path] for each in next(answers)], folders[path][1]
        if all(each.fits == "skipped" for each in own):  # nothing here starts a program: they stand for themselves
            named = [(name, False) for name in programs if may_train(name)][:MOST_PROGRAMS]
            trains = [each for several in _by_several(work, named, processes, tell) for each in several]
            own += [each for each in trains if each.fits != "skipped"]
            programs = programs[len({each.file for each in trains if each.fits != "skipped"}) :]
        found += _of_folder(path, own, len(programs))
    return found


def _of_folder(folder: str, answers: Sequence[Checked], programs: int) -> list[Checked]:
    """The trainings of a folder; what else is in it as one answer. A folder without any is an error."""
    found = [each for each in answers if each.text != NO_CONFIG]
    if all(each.fits == "skipped" for each in found):
        hint = "name the folder of the configs, or a program itself"
        text = "no training config or program in this folder"
        return [*found, Checked(folder, "error", text, hint=hint, exit_code=EXIT_USAGE)]
    left = [os.path.relpath(each.file, folder) for each in answers if each.text == NO_CONFIG]
    named = ", ".join(left[:MOST_NAMED]) + (", …" if len(left) > MOST_NAMED else "")
    words = [f"{len(left)} other file{'' if len(left) == 1 else 's'} ({named})"] if left else []
    words += [f"{programs} program{'' if programs == 1 else 's'}, to be named by file"] if programs else []
    return [*found, *([Checked(folder, "skipped", f"in this folder {'; '.join(words)}")] if words else [])]


def cores() -> int:
    """Processes that may run at once; one where a process cannot be copied as it stands."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES) if sys.platform == "linux" else 1


_PROJECT = [Path()]
"""Whose files were answered last, in this process."""


def _answers(
    options: Mapping[str, Any], beside: Sequence[str], framework: str, advise: bool, play: Play, file: File
) -> list[Checked]:
    project = project_of(Path(os.path.realpath(file[0])).parent)
    if project != _PROJECT[0]:
        leave_programs()
        _PROJECT[0] = project
    return check_all(file[0], options, beside, framework, file[1], advise, play, fresh=False)


def _by_several(
    work: Callable[[File], list[Checked]], files: Sequence[File], processes: int, tell: Tell
) -> list[list[Checked]]:
    """The answers of each file, in order. What a process of several could not give, this one works out itself."""
    found: list[list[Checked]] = []

    def in_turn(share: Sequence[File]) -> None:
        for answers in _in_turn(work, share):
            found.append(answers)
            tell("checking", len(found), len(files))

    if processes < 2 or len(files) < MANY:
        in_turn(files)
        return found
    from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor  # which a few files never load
    from multiprocessing import active_children, get_context

    work(files[0])  # what all need is loaded before it is copied
    each = min(TOGETHER, ceil_div(len(files), 4 * processes))
    shares = [files[at : at + each] for at in range(0, len(files), each)]
    given: list[Future[list[list[Checked]]]] = []
    others = active_children()
    with ProcessPoolExecutor(processes, get_context("fork"), _begin) as pool:
        try:
            with suppress(BrokenExecutor):  # a process was killed before all were given out
                given += (pool.submit(_listed, work, share) for share in shares)
            for share, one in zip(shares, given, strict=False):
                in_turn(share) if one.exception() else found.extend(one.result())
                tell("checking", len(found), len(files))
        except KeyboardInterrupt:
            for child in active_children():
                child.kill() if child not in others else None
            raise
    in_turn(files[len(found) :])
    return found


def _begin() -> None:
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that the user started


def _listed(work: Callable[[File], list[Checked]], files: Sequence[File]) -> list[list[Checked]]:
    return list(_in_turn(work, files))


def _in_turn(work: Callable[[File], list[Checked]], files: Sequence[File]) -> Iterator[list[Checked]]:
    """One after the other, without what each leaves behind: where nothing collects it, a thousand leave gigabytes. It
    takes as long as all that is kept is large, so it waits until there is twice as much."""
    for file in files:
        yield work(file)
        if not gc.isenabled() and sys.getallocatedblocks() > 2 * _KEPT[0]:
            gc.collect()
            _KEPT[0] = max(FEW_BLOCKS, sys.getallocatedblocks())


FEW_BLOCKS = 2_500_000
"""Of memory that Python gives out: some 230 MiB."""
_KEPT = [FEW_BLOCKS]
"""So many were left when they were last collected, in this process."""
