"""What the code of a verl that lies in the project says: where it lies, and whether it has a critic."""

import re
from pathlib import Path

from memplan.frameworks.following import found_at
from memplan.frameworks.sourced import project_of


def in_copy(path: str, name: str) -> str:
    """The text of a file of the verl that lies in the project, its package or its repository, whose folder may have a
    version in its name (``verl-0.4.x``); empty where none does."""
    here = Path(path).resolve().parent
    roots = [here, *(each for each in here.parents if each.is_relative_to(project_of(here)))]
    copies = sorted({each.name for root in roots for each in root.glob("verl*") if each.is_dir()})
    place = next(filter(None, (found_at(path, each) for each in (name, *(f"{copy}/{name}" for copy in copies)))), None)
    return place.read_text(encoding="utf-8", errors="replace") if place else ""


_CRITIC = re.compile(r"self\.use_critic = (True|False)")


def critic_in_code(path: str, estimator: str) -> bool | None:
    """Whether the trainer of the verl that lies in the project has a critic for an estimator, of those that its
    conditions name (trainer/ppo/ray_trainer.py, to 0.5); None where it does not say."""
    parts = _CRITIC.split(in_copy(path, "verl/trainer/ppo/ray_trainer.py"))
    word = "[-_]?".join(map(re.escape, re.split("[-_]", estimator)))
    name = re.compile(rf"(?i)(?:Estimator\.|[\"']){word}\b")
    for before, critic in zip(parts[::2], parts[1::2], strict=False):
        if name.search(before[before.rfind("if ") :]):
            return critic == "True"
    return None
