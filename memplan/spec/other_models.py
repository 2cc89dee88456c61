"""The models that stand beside the policy in a job."""

from typing import Any, Literal

from pydantic import model_validator

from memplan.errors import InvalidJob
from memplan.spec.base import Frozen


class ExtraModel(Frozen):
    """A model that stands beside the policy, resident: frozen, but for a critic."""

    role: Literal["reward", "critic", "teacher"]
    """What it is for."""
    model: str | dict[str, Any]
    """Preset, Hub id, path, or inline config."""
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    """Dtype of its weights; where none is given, the half precision that the policy computes in, or bf16. A critic's
    are stored as the policy's."""
    trained: bool | None = None
    """Whether it has gradients and optimizer states: a critic has, the others have not."""
    placement: Literal["resident"] = "resident"

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
