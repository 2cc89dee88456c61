"""How long a step takes, by arithmetic: FLOP, bytes through memory, bytes over links. It ranks; it promises nothing.

``speed(recipe)`` gives an expected figure and its band, ``seconds(recipe, device)`` the expected one for searches.
Rates are in ``rates``, what a model does in ``work``, passes in ``passes``, communication in ``links`` and ``traffic``,
the optimizer in ``optimizer``, and all of it is put together in ``step``. Held against published throughputs in
docs/accuracy.md."""

from memplan.cost.face import Speed, card, examples_per_step, prepare, seconds, speed
from memplan.cost.step import Prepared

__all__ = ["Prepared", "Speed", "card", "examples_per_step", "prepare", "seconds", "speed"]
