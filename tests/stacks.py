"""All layers of a small model, played together."""

from typing import Any

from memplan.arch import parse_config
from memplan.engine.layers.modules import Mode
from memplan.engine.losses.heads import Head
from memplan.engine.pass_plan import PassPlan
from memplan.engine.play.stack import Reached
from memplan.engine.play.stacks import stack_of
from memplan.engine.traces import Moment, Stack
from memplan.spec.groups import Loss
from memplan.tables.styles import PassStyle


def plan_of(
    config: dict[str, Any], mode: Mode, rows: int, length: int, style: PassStyle = "plain", **keys: Any
) -> PassPlan:
    """A pass through the layers of a model."""
    return PassPlan("policy", parse_config(config, "small"), mode, rows, length, style, Head(Loss("hidden")), **keys)


def stack(config: dict[str, Any], mode: Mode, rows: int, length: int, style: PassStyle = "plain", **keys: Any) -> Stack:
    """All of its layers, played; a gradient comes to the embedding's output."""
    return stack_of(plan_of(config, mode, rows, length, style, **keys), Reached(embedding=True))


def shared(found: Stack, moment: Moment, label: str = "", category: str = "") -> int:
    """Bytes of what is shared at a moment; of one label or category, where it is named."""
    place = found.places[moment]
    alive = [each for each in found.shared if each.first <= place <= each.last]
    return sum(each.size for each in alive if label in ("", each.tag.label) and category in ("", each.tag.category))
