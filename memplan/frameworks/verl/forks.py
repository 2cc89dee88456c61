"""What the code of a verl that lies in the project says: whether it has a critic."""

import re

from memplan.frameworks.project.copies import in_copy

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
