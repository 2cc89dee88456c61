"""Bodies drawn at random, sent through what the server answers with: python benchmarks/web_fuzz.py 100000 [SEED].

Jobs and files are those of tests/fuzz.py; a third of the bodies is then damaged. A body that makes a bug of memplan
(status 500) is printed and ends the run with 1; what takes longer than SECONDS of the processor is printed and counted
as late: a server would end it. Whole estimates and plans, which search, are left out for their time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fuzz import changed, file_of, job_of  # noqa: E402

from memplan.web.answers import BUG, in_folder  # noqa: E402

OOM = (ROOT / "examples" / "diagnose" / "dpo.log").read_text(encoding="utf-8")
CARDS = ("t4", "h100-80gb", "24GB", "a100", "no-card", 3, None)
EVERY = 1_000
SECONDS = 5
LATE = 0
"""The status that is counted for what takes longer."""


class LateError(BaseException):
    """Not caught by what catches errors."""


def late(*_: object) -> None:
    raise LateError


def body_of(random: Random) -> tuple[str, str]:
    """The question, and a body for it."""
    kind = random.choice(["estimate"] * 5 + ["check"] * 3 + ["diagnose"] * 2)
    body: dict[str, Any] = {"job": job_of(random)} if kind == "estimate" else {"job": {"gpu": random.choice(CARDS)}}
    if random.random() < 0.5:
        body["job"]["gpu"] = random.choice(CARDS)
    if kind == "estimate":
        body |= {"quick": True, "dressed": random.random() < 0.3} | random.choice([{}, {"play": False}])
    if kind == "diagnose":
        body = {"text": changed(random, OOM)[-3000:]}
    if kind == "check" or random.random() < 0.1:
        ending, text = file_of(random)
        body |= {"file": {"name": random.choice(["train", "é ü", "a" * 59, "-x", "../x"]) + ending, "text": text}}
    text = json.dumps(body)
    return kind, changed(random, text) if random.random() < 0.33 else text


def main() -> int:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    statuses: Counter[int] = Counter()
    bugs = 0
    os.environ["HF_HUB_OFFLINE"] = "1"
    signal.signal(signal.SIGVTALRM, late)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            kind, body = body_of(Random(f"{seed}-{number}"))
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                status, text = in_folder(folder, kind, body)
            except LateError:
                status, text = LATE, ""
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            statuses[status] += 1
            bugs += status == BUG
            if status in (BUG, LATE):
                print(f"{seed}-{number}", kind, body[:400], text, flush=True)
            if (number + 1) % EVERY == 0:
                print(f"{number + 1} bodies: {dict(sorted(statuses.items()))}", flush=True)
        os.chdir("/")
    print(f"{count} bodies: {dict(sorted(statuses.items()))}")
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main())
