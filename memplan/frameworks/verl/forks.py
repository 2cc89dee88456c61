"""What the code of a verl that lies in the project says: where it lies, and whether it has a critic."""

import re
from pathlib import Path

from memplan.frameworks.documents import words
from memplan.frameworks.following import found_at
from memplan.frameworks.sourced import project_of

AMONG_OTHERS = words("external third_party 3rdparty src lib libs packages deps vendor submodules")
"""Folders of a project that have others' code, or all of it."""


def in_copy(path: str, name: str) -> str:
    """The text of a file of the verl that lies in the project, its package or its repository, whose folder may have a
    version in its name (``verl-0.4.x``) and lie among others' (``external/verl``); empty where none does."""
    here = Path(path).resolve().parent
    roots = [here, *(each for each in here.parents if each.is_relative_to(project_of(here)))]
    found = ((at, each) for root in roots for at in ("", *AMONG_OTHERS) for each in (root / at).glob("verl*"))
    copies = sorted(
        {f"{at}/{each.name}".lstrip("/") for at, each in found if each.is_dir()}, key=lambda each: each.count("/")
    )
    names = (name, *(f"{copy}/{name}" for copy in copies), *(f"{at}/{name}" for at in AMONG_OTHERS))
    place = next(filter(None, (found_at(path, each) for each in names)), None)
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
