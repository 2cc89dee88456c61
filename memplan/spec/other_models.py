"""The models that stand beside the policy in a job."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from memplan.errors import InvalidJob
from memplan.spec.base import Frozen
from memplan.spec.rollout import Rollout

MODELS = "extra_models"
"""The job's key; a move says of it ``{"critic.batch_size": 4}``, or ``{"critic": None}`` for none."""
OF_CRITICS = ("batch_size", "token_budget", "gradient_checkpointing")
Count = Annotated[int, Field(ge=1, le=10**9, strict=True)]


class ExtraModel(Frozen):
    """A model that stands beside the policy, resident: frozen, but for a critic."""

    role: Literal["reward", "critic", "teacher"]
    """What it is for."""
    model: str | dict[str, Any] | None = None
    """Preset, Hub id, path, or inline config; of a critic not given, it has the policy's shape."""
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    """Dtype of its weights; by default the half precision of the policy, or bf16. A critic's are as the policy's."""
    trained: bool | None = None
    """Whether it has gradients and optimizer states: a critic has, the others have not."""
    placement: Literal["resident"] = "resident"
    rollout: Rollout | None = None
    """Reward: an engine of its own on the trainer's cards that scores completions, with the keys of ``rollout``; it
    sleeps at level 1 but while it scores."""
    batch_size: Count | None = None
    """Critic: sequences of its own micro-batch; the policy's when not given."""
    token_budget: Count | None = None
    """Critic: tokens that its own micro-batch is packed to."""
    gradient_checkpointing: Literal["none", "full"] | None = None
    """Critic: its own; the policy's when not given."""

    @model_validator(mode="after")
    def _own_by_role(self) -> "ExtraModel":
        """Raise InvalidJob for a model that is not named, and for keys of a critic alone."""
        if self.rollout is not None and self.role != "reward":
            raise InvalidJob(f"extra_models: rollout of a {self.role} model", "leave it out: a reward model has one")
        if self.role == "critic":
            if self.batch_size is not None and self.token_budget is not None:
                raise InvalidJob("extra_models: batch_size contradicts token_budget", "leave one of them out")
            return self
        if self.model is None:
            raise InvalidJob(f"extra_models: a {self.role} model without a model", "add model: qwen2.5-7b")
        if own := next((key for key in OF_CRITICS if getattr(self, key) is not None), ""):
            raise InvalidJob(f"extra_models: {own} of a {self.role} model, which trains nothing", f"leave {own} out")
        return self

    @model_validator(mode="after")
    def _trained_by_role(self) -> "ExtraModel":
        critic = self.role == "critic"
        if self.trained not in (None, critic):
            are = "always trained" if critic else "frozen"
            raise InvalidJob(
                f"extra_models: trained: {str(self.trained).lower()} for a {self.role} model, which is {are}",
                "leave trained out",
            )
        return self
