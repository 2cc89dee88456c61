"""A framework's code that lies in the project: where it lies, and where in it stands what memory holds."""

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from memplan.frameworks.files.documents import words
from memplan.frameworks.files.following import found_at
from memplan.frameworks.files.sourced import project_of

AMONG_OTHERS = words("external third_party 3rdparty src lib libs packages deps vendor submodules")
"""Folders of a project that have others' code, or all of it."""
MOST_KEPT = 32
"""Files of copies, which one config asks for again and again."""


@lru_cache(maxsize=MOST_KEPT)
def in_copy(path: str, name: str, package: str = "verl") -> str:
    """The text of a file of the framework that lies in the project, its package or its repository, whose folder may
    have a version in its name (``verl-0.4.x``) and lie among others' (``external/verl``); empty where none does."""
    here = Path(path).resolve().parent
    roots = [here, *(each for each in here.parents if each.is_relative_to(project_of(here)))]
    named = "".join(f"[{letter}{letter.upper()}]" for letter in package) + "*"
    found = ((at, each) for root in roots for at in ("", *AMONG_OTHERS) for each in (root / at).glob(named))
    copies = sorted(
        {f"{at}/{each.name}".lstrip("/") for at, each in found if each.is_dir()}, key=lambda each: each.count("/")
    )
    names = (name, *(f"{copy}/{name}" for copy in copies), *(f"{at}/{name}" for at in AMONG_OTHERS))
    place = next(filter(None, (found_at(path, each) for each in names)), None)
    return place.read_text(encoding="utf-8", errors="replace") if place else ""


class Places(NamedTuple):
    """Where a framework makes what memory holds of a policy."""

    actor: str
    """The file with its forward."""
    trainers: tuple[str, ...]
    """Files that may have all its workers."""
    forward: re.Pattern[str]
    """The methods that make log-probabilities of logits."""
    update: tuple[str, ...]
    """Methods that train the policy."""
    score: str
    passes: re.Pattern[str]
    """What is called for a pass of the update."""
    module: str
    workers: re.Pattern[str]
    """What is assigned where a group of workers is made."""
    updates: tuple[str, ...] = ()
    """Files with the update; the actor's own, where none is named."""

    @property
    def package(self) -> str:
        """The folder of its code."""
        return self.actor.partition("/")[0]


VERL = Places(
    "verl/workers/actor/dp_actor.py",
    ("verl/trainer/ppo/ray_trainer.py", "verl/trainer/ray_trainer.py"),
    re.compile("_forward_micro_batch"),
    ("update_policy",),
    "compute_log_prob",
    re.compile(r"self\._forward_micro_batch"),
    "self.actor_module",
    re.compile(r"resource_pool_to_cls\[.* = "),
)
OPENRLHF = Places(
    "openrlhf/models/actor.py",
    ("openrlhf/cli/train_ppo_ray.py",),
    re.compile("forward"),
    ("training_step", "training_step_actor"),
    "generate",
    re.compile(r"self\.actor"),
    "self.actor",
    re.compile(r"ActorGroup\($"),
    ("openrlhf/trainer/ray/ppo_actor.py", "openrlhf/trainer/ppo_trainer.py"),
)
TRL = {
    method: Places(
        f"trl/trainer/{method}_trainer.py",
        (),
        re.compile(r"_get_per_token_logps\w*"),
        ("_compute_loss",),
        "prediction_step",
        re.compile(r"self\._get_per_token_logps\w*"),
        "model",
        re.compile("$^"),
    )
    for method in ("grpo", "rloo")
}
"""By method: GRPO from 0.16 on, RLOO from 0.23 on."""
