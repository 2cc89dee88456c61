"""A critic that has a training of its own, and the policy's behind it, on one tape (``critic_engine.py``)."""

from memplan.engine.critic import NAME
from memplan.engine.critic_engine import parted
from memplan.engine.play.step import Player
from memplan.engine.play.tape import PlayTape
from memplan.spec.recipe import Recipe


class Trainings(Player):
    """The policy's training, before each of whose steps the critic's has one."""

    def __init__(self, recipe: Recipe) -> None:
        (critic, policy), tape = parted(recipe), PlayTape()
        self.critic = Player(critic, tape)
        held = self.critic.resident.held  # a process has its workspaces once
        held[:] = [each for each in held if each.storage is None or each.storage.tag.category != "workspaces"]
        super().__init__(policy, tape)

    def step(self) -> None:
        """All micro-steps of the critic and its optimizer's step, then those of the policy."""
        marks, begun = self.tape.marks, len(self.tape.marks)
        self.tape.sharding = self.critic.sharding
        self.critic.step()
        marks[begun:] = [
            (at, f"{NAME}.{name.partition('.')[2]}" if "." in name else name) for at, name in marks[begun:]
        ]
        self.tape.sharding = self.sharding
        super().step()
