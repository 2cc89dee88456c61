"""A critic that has a training of its own, and the policy's behind it, on one tape (``critic_engine.py``).

verl 0.3 to 0.9 workers/fsdp_workers.py, engine/base.py, utils/fsdp_utils.py: roles give nothing back, but where their
parameters go to the host (``offload_fsdp_model_to_cpu``); states, which go behind them, leave their blocks cached."""

from memplan.engine.allocator.replay import EMPTY_CACHE
from memplan.engine.critic import NAME
from memplan.engine.critic_engine import parted
from memplan.engine.held_states import KINDS
from memplan.engine.passes import TracedPass
from memplan.engine.play.model import PassRun
from memplan.engine.play.step import Player
from memplan.engine.play.tape import PlayedStorage, PlayTape
from memplan.spec.generation import Away
from memplan.spec.recipe import Recipe


class Trainings(Player):
    """The policy's training, before each of whose steps the critic's has one."""

    def __init__(self, recipe: Recipe) -> None:
        (critic, policy), tape, of = parted(recipe), PlayTape(), recipe.generator
        self.away, self.empties = of.away if of else Away(), of is not None and not of.separate
        self.on_host: dict[PlayedStorage, int] = {}
        self.critic = Player(critic, tape)
        held = self.critic.resident.held  # a process has its workspaces once
        held[:] = [each for each in held if each.storage is None or each.storage.tag.category != "workspaces"]
        self._send(self.critic, "parameters")
        super().__init__(policy, tape)
        self._send(self, "parameters")

    def step(self) -> None:
        """All micro-steps of the critic and its optimizer's step, then those of the policy. Before it generates, an
        engine on the same card is made room for."""
        marks, begun = self.tape.marks, len(self.tape.marks)
        self.tape.sharding = self.critic.sharding
        self._fetch(self.critic, "parameters", "optimizer")
        self.critic.step()
        marks[begun:] = [
            (at, f"{NAME}.{name.partition('.')[2]}" if "." in name else name) for at, name in marks[begun:]
        ]
        self._send(self.critic, "parameters", "optimizer")
        self.tape.sharding = self.sharding
        self._fetch(self, "parameters")
        super().step()
        self._send(self, "parameters", "optimizer")
        if self.empties:
            self.tape.mark(EMPTY_CACHE)

    def _run(self, recipe: Recipe, traced: TracedPass) -> PassRun:
        """What only scores finds no states on the card (``at_hand.py``)."""
        (self._send if traced.plan.style == "no-grad" else self._fetch)(self, "optimizer")
        return super()._run(recipe, traced)

    def _send(self, player: Player, *kinds: str) -> None:
        """What waits on the host goes there; where parameters do, the cache is given back."""
        for kind in kinds:
            for storage in _states(player, kind) if getattr(self.away, kind) else ():
                if storage.size:
                    storage.__del__()
                    self.on_host[storage], storage.size = storage.size, 0
            if kind == "parameters" and self.away.parameters:
                player.tape.mark(EMPTY_CACHE)

    def _fetch(self, player: Player, *kinds: str) -> None:
        """It comes back, into other blocks."""
        for storage in [each for kind in kinds for each in _states(player, kind) if each in self.on_host]:
            PlayedStorage.__init__(storage, player.tape, self.on_host.pop(storage), storage.tag)


def _states(player: Player, kind: str) -> list[PlayedStorage]:
    """What a model has from one step to the next."""
    every = (tensor.storage for tensor in (*player.resident.held, *player.optimizer.states))
    return [each for each in every if isinstance(each, PlayedStorage) and KINDS.get(each.tag.category) == kind]
