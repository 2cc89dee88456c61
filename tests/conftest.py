"""The same run everywhere: width, colours and drawn examples come from here, not from the terminal or the machine.

Profiles of hypothesis say what share of its examples each property draws (``drawing.examples``): few for people, all
in CI, the same each time; many more, others each time, at night. HYPOTHESIS_PROFILE chooses one; CI's own variable,
CI, chooses "ci".
"""

import gc
import os

from hypothesis import settings

PERCENT = {"people": 10, "ci": 100, "night": 2000}

for name, percent in PERCENT.items():
    settings.register_profile(name, max_examples=percent, derandomize=name != "night", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "people"))

# Processes that tests start compile memplan once, not each of them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["MEMPLAN_LANG"] = "en"
for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "MEMPLAN_DEBUG"):
    os.environ.pop(name, None)


def pytest_collection_finish() -> None:
    """What was collected stays, so garbage is looked for seldom; not frozen, as hypothesis asks who refers to what."""
    gc.set_threshold(200_000, 50, 50)
