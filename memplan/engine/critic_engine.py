"""A critic that an engine of its own shards: a training of its own, between which and the policy's the card is shared.

verl 0.2 to 0.9 (workers/fsdp_workers.py: CriticWorker, trainer/ppo/ray_trainer.py): one process holds both models, each
in its own FSDP; ``update_critic`` runs all of its micro-steps and its optimizer's step before ``update_actor`` begins.
While one trains, the other holds its weights and states, and models beside the policy are there. Each is priced as a
job of its own, and the ledgers are read one after the other."""

from memplan.engine.build import build_ledger
from memplan.engine.critic import NAME
from memplan.engine.ledger import ACCUMULATED, OF_A_MODEL, Ledger, Row
from memplan.engine.step_and_evaluation import JoinedTotals
from memplan.engine.sums import Totalled
from memplan.engine.totals import totalled
from memplan.spec.groups import Loss, OtherModels
from memplan.spec.recipe import Recipe
from memplan.tables.methods import METHODS

VALUES = METHODS["reward"]._replace(name="values", title="values of tokens", pairs=False)
"""What a critic trains: a score of each token, one sequence an example."""


def has_critic_engine(recipe: Recipe) -> bool:
    """Whether GPUs train a critic in an engine of its own: FSDP's, DeepSpeed's, DDP's or Megatron's."""
    critic = recipe.others.critic
    return critic is not None and critic.apart and (recipe.in_megatron or recipe.several or critic.own is not None)


def parted(recipe: Recipe) -> tuple[Recipe, Recipe]:
    """The critic's training, and the policy's without it."""
    critic = recipe.others.critic
    assert critic is not None
    batch, checkpointing = critic.own or (recipe.batch, recipe.checkpointing)
    alone = recipe._replace(
        model=critic.spec,
        method=VALUES,
        loss=Loss("score"),
        adapter=critic.adapter,
        others=OtherModels(),
        batch=batch._replace(scoring=0),
        checkpointing=checkpointing,
    )
    return alone, recipe._replace(others=recipe.others._replace(critic=None))


def critic_and_policy(recipe: Recipe) -> Ledger:
    """The rows of both trainings, the critic's first."""
    critic, policy = parted(recipe)
    return Trainings(build_ledger(critic), build_ledger(policy))


def critic_and_policy_totals(recipe: Recipe) -> Totalled:
    """The same without rows."""
    critic, policy = parted(recipe)
    return TrainingsTotals(totalled(critic), totalled(policy))


def _schedule(critic: tuple[str, ...], policy: tuple[str, ...]) -> tuple[str, ...]:
    """The instants of both; the critic's passes and its step under its own name."""
    return (*(f"{NAME}.{instant.partition('.')[2]}" for instant in critic), *policy)


class Trainings(Ledger):
    """Two ledgers, one after the other. What models have lasts through both; what both have alike is one row."""

    def __init__(self, critic: Ledger, policy: Ledger) -> None:
        self._parts = first, second = critic, policy
        super().__init__(_schedule(first.schedule, second.schedule))
        split, end = len(first.schedule), len(self.schedule) - 1
        beside = [row for row in second.rows if _lasts(row, second) and not _is_own(row)]
        for row in first.rows:
            if _lasts(row, first) and _is_own(row):
                self.rows.append(row._replace(name=_of_critic(row.name), dies=end))
            elif _lasts(row, first) and row in _like(beside, row):
                continue  # the same in both: a context, communicators, workspaces
            else:
                self.rows.append(row)
        alike = {row._replace(dies=0) for row in first.rows if _lasts(row, first)}
        for row in second.rows:
            lasting = _lasts(row, second)
            whole = lasting and (_is_own(row) or row._replace(dies=0) in alike)
            self.rows.append(row._replace(born=0 if whole else row.born + split, dies=row.dies + split))

    def lasting(self, meter: str = "allocated", place: str = "gpu") -> int:
        """Bytes that are there at every instant of both: what models have; of other meters what both have."""
        if meter != "allocated" or place != "gpu":
            return min(part.lasting(meter, place) for part in self._parts)
        own = (row for part in self._parts for row in part.rows if _lasts(row, part) and _is_own(row))
        return sum(row.bytes for row in own if row.place == "gpu")


def _is_own(row: Row) -> bool:
    return row.meter == "allocated" and row.category in OF_A_MODEL and not row.name.startswith(ACCUMULATED)


def _of_critic(name: str) -> str:
    return name.replace("policy", NAME) if "policy" in name else f"{name} of the {NAME}"


def _lasts(row: Row, ledger: Ledger) -> bool:
    return not row.born and row.dies == len(ledger.schedule) - 1


def _like(rows: list[Row], row: Row) -> list[Row]:
    """The row, where one of these is as it is but for its lifetime."""
    return [row] if any(other._replace(dies=row.dies) == row for other in rows) else []


class TrainingsTotals(JoinedTotals):
    """The totals of both, one after the other, each beside what the other's models have."""

    def __init__(self, critic: Totalled, policy: Totalled) -> None:
        Totalled.__init__(self, critic.sections, _schedule(critic.schedule, policy.schedule))
        self.step, self.evaluation = critic, policy

    def totals(self, meter: str = "allocated", place: str = "gpu", bound: str = "bytes") -> list[int]:
        """Bytes alive at each instant of the critic's training, then of the policy's."""
        states = meter == "allocated" and place == "gpu"
        parts = (self.step, self.evaluation)
        more = [other.own() if states else 0 for other in parts[::-1]]
        return [
            size + other for part, other in zip(parts, more, strict=True) for size in part.totals(meter, place, bound)
        ]

    def lasting(self, meter: str = "allocated", place: str = "gpu") -> int:
        """Bytes that are there at every instant of both."""
        if meter != "allocated" or place != "gpu":
            return min(self.step.lasting(meter, place), self.evaluation.lasting(meter, place))
        return self.step.own() + self.evaluation.own()
