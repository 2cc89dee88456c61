"""A command that starts a training: its launcher, the launcher's options, the program and the program's arguments."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from memplan.frameworks.draft import FILE, Draft, Origin
from memplan.frameworks.files.documents import Document, Settings, words
from memplan.frameworks.shell.reader import Command, Word, options_of, scalar
from memplan.spec.allocator import VARIABLES, read_conf
from memplan.units import pairs_of

WRAPPERS = words(
    """srun env nohup time exec sudo uv uvx poetry run bash sh mpirun mpiexec orterun horovodrun ray numactl taskset
    timeout nice stdbuf setsid conda mamba pipenv pdm pixi hatch singularity apptainer docker"""
)
"""What may stand before a launcher."""
OF_PYTHON = words("pdb ipdb pudb debugpy cProfile")
"""Modules that run the program behind them."""
PROGRAMS = ("trl", "axolotl", "llamafactory-cli", "lmf", "litgpt", "swift", "megatron", "xtuner", "tune", "rl", "sft")
"""Programs that start by themselves."""
LAUNCHERS = pairs_of(
    """torchrun torch.distributed.run=torchrun torch.distributed.launch=torchrun accelerate
    accelerate.commands.launch=accelerate deepspeed deepspeed.launcher.runner=deepspeed composer
    composer.cli.launcher=composer python python3=python"""
)


_MODULE = re.compile(r"(?!.*\.(?:ya?ml|json|conf|toml)$)[A-Za-z_]\w*(?:\.\w+)+")
"""A dotted name."""


@dataclass(frozen=True)
class Launch:
    """One start of a training program."""

    launcher: str
    """torchrun, accelerate, deepspeed, python; empty for a program that starts by itself (trl, axolotl)."""
    options: Settings
    """The launcher's own."""
    program: str
    """Path of a script, dotted name of a module, or the name of a command."""
    words: tuple[Word, ...]
    """The program's arguments."""
    command: Command
    path: str
    before: tuple[Word, ...] = ()
    """What stands before the launcher: srun, env and their options."""

    def arguments(self, skip: int = 0) -> Settings:
        """The program's options, without the first ``skip`` words: ``trl dpo --x`` has one."""
        values, lines, _ = options_of(self.words[skip:])
        return Settings(self.path, values, lines)

    def overrides(self, pattern: re.Pattern[str]) -> Settings:
        """``name=value`` among its words, of which the pattern's groups are both."""
        found = [(match, word.line) for word in self.words if (match := pattern.fullmatch(word.text))]
        values = {match.group(1): scalar(match.group(2).strip("\"'")) for match, _ in found}
        return Settings(self.path, values, {match.group(1): line for match, line in found})

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path}, line {self.command.line}"


def launches(document: Document) -> Iterator[Launch]:
    """Every command of a script that may start a training."""
    for command in document.commands:
        found = launch_of(command, document.path)
        if found is not None:
            yield found


def launch_of(command: Command, path: str) -> Launch | None:
    """The parts of a command; None where it starts no program."""
    words = _without_wrappers(_behind_dashes(list(command.words)))
    found = _parts(words, command, path) if words else None
    if found and found.launcher == "python":
        found = _around(found, _without_wrappers(list(command.around)))
    return found and replace(found, before=command.around + command.words[: len(command.words) - len(words)])


def _around(found: Launch, words: list[Word]) -> Launch:
    """A program of a shell that a launcher starts in every process: ``torchrun --no-python bash worker.sh``."""
    launcher = LAUNCHERS.get(words[0].text.rsplit("/", 1)[-1], "") if words else ""
    if launcher in ("", "python") or not any(word.text in ("--no-python", "--no_python") for word in words):
        return found
    values, lines, _ = options_of(words[1:])
    return replace(found, launcher=launcher, options=Settings(found.path, values, lines))


def _parts(words: list[Word], command: Command, path: str) -> Launch | None:
    name = words[0].text.rsplit("/", 1)[-1]
    launcher = LAUNCHERS.get(re.sub(r"^python3?(\.\d+)?$", "python", name), "")
    if not launcher:
        return Launch("", Settings(path, {}), name, tuple(words[1:]), command, path)
    rest = words[1:]
    if launcher == "accelerate":
        if rest[:1] and rest[0].text != "launch":
            return None
        rest = rest[1:]
    while launcher == "python" and len(rest) > 1 and re.fullmatch(r"-[uOBsSEIqv]+", rest[0].text):
        rest = rest[1:]
    if launcher == "python" and len(rest) > 2 and rest[0].text == "-m" and rest[1].text in OF_PYTHON:
        rest = rest[2:]
    if launcher == "python" and len(rest) > 1 and rest[0].text == "-m" and rest[1].text in LAUNCHERS:
        launcher, rest = LAUNCHERS[rest[1].text], rest[2:]
    return _split(launcher, rest, command, path)


def _split(launcher: str, words: list[Word], command: Command, path: str) -> Launch | None:
    """At the script or the module: the first word that ends in .py, or what follows -m or --module."""
    for place, word in enumerate(words):
        if word.text in ("-m", "--module") and place + 1 < len(words):
            # torchrun and accelerate take the module's name as the program, behind other options too; so does python.
            behind = range(place + 1, len(words)) if words[place + 1].text.startswith("-") else ()
            at = next((each for each in behind if _MODULE.fullmatch(words[each].text)), place + 1)
            options, program, rest = words[:place] + words[place + 1 : at], words[at].text, words[at + 1 :]
            break
        if word.text.endswith((".py", ".pyz")):
            options, program, rest = words[:place], word.text, words[place + 1 :]
            break
        if word.text.rsplit("/", 1)[-1] in ("swift", "megatron") and place + 1 < len(words):
            options, program, rest = words[:place], word.text.rsplit("/", 1)[-1], words[place + 1 :]
            break
        if launcher == "accelerate" and place == 0 and not word.text.startswith("-"):  # ``accelerate launch $SCRIPT``
            options, program, rest = words[:place], word.text, words[place + 1 :]
            break
    else:
        return None
    values, lines, _ = options_of(options)
    return Launch(launcher, Settings(path, values, lines), program, tuple(rest), command, path)


def _behind_dashes(words: list[Word]) -> list[Word]:
    """What a program hands to a cluster: ``ray job submit … -- python train.py``; not what a script is handed."""
    script = next((place for place, word in enumerate(words) if word.text.endswith(".py")), len(words))
    for place in range(min(script, len(words) - 1) - 1, 0, -1):
        if words[place].text == "--" and words[place + 1].text.rsplit("/", 1)[-1] in (*LAUNCHERS, *WRAPPERS):
            return words[place + 1 :]
    return words


def _without_wrappers(words: list[Word]) -> list[Word]:
    """The command behind srun, env and their options: from the first word that is a program."""
    if not words or words[0].text.rsplit("/", 1)[-1] not in WRAPPERS:
        return words
    for place, word in enumerate(words[1:], start=1):
        name = word.text.rsplit("/", 1)[-1]
        if name in LAUNCHERS or name in PROGRAMS or re.fullmatch(r"python3?\.\d+", name):
            return words[place:]
        if name.endswith(".py") and any(word.text == "uv" for word in words[:place]):  # uv run train.py
            return [Word("python", word.line), *words[place:]]
    return []


def put_allocator(environment: Mapping[str, str], where: str, draft: Draft) -> None:
    """The job's ``allocator``; what is not modelled is warned of, and decides a little."""
    name = next((name for name in VARIABLES if environment.get(name)), None)
    if name is None:
        return
    found, unread = read_conf(environment[name])
    if found:
        draft.put("allocator", found, Origin(FILE, f"{where}: {name}"))
    for text in unread:
        draft.warn(name, where, f"{text[:60]} is not modelled: the reserved figure does not feel it", decides="")
