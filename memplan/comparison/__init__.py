"""Jobs side by side: the strategies of a file, a grid of varied keys, several models or files; and sweeps of thousands.

What a comparison says is in ``result``; how its rows are priced, the strategies of a file, and two jobs row by row, in
``pricing``; varied keys in ``grid``. Sweeps take the engine's totals alone: ``sweep`` for one row, ``workers`` for
all of them."""

from memplan.comparison.grid import Axis, axis, cases_of
from memplan.comparison.pricing import Case, compare_cases, compare_strategies
from memplan.comparison.result import CompareRow, Comparison, Difference

__all__ = [
    "Axis",
    "Case",
    "CompareRow",
    "Comparison",
    "Difference",
    "axis",
    "cases_of",
    "compare_cases",
    "compare_strategies",
]
