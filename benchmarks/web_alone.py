"""How fast the page without a server answers: python benchmarks/web_alone.py [FOLDER].

FOLDER is what ``python -m memplan.web.build`` wrote; without it one is built, which needs node, npm and the registries.
In each browser at hand (tests/browsers.py), several times: a cold load, from an empty profile to the first look at a
job in the address and to its played answer; then other lengths are typed, and the page itself says how long each first
look and each played answer took. The load of the machine stands beside them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browsers import PROGRAMS, Driven, missing  # noqa: E402

JOB = "#ask=estimate&lang=en&model=llama-3.1-8b&method=dpo&gpu=h100-80gb&num_gpus=8&sharding=zero3"
COLD, TYPED = 5, 40
SAID = """addEventListener("DOMContentLoaded", () => {
  const status = document.querySelector("#status"), said = (window.said = []);
  const more = {childList: true, characterData: true, subtree: true};
  new MutationObserver(() => said.push(status.textContent)).observe(status, more);
})"""
TYPE = """(length) => {
  const field = document.querySelector("#key-sequence_length");
  window.said.length = 0;
  field.value = length;
  field.dispatchEvent(new Event("input", {bubbles: true}));
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def heard(page: Any, words: str) -> int:
    """Milliseconds that the page says for an answer of this kind, once it does."""
    says = f"() => ((window.said ?? []).find((text) => text.startsWith('{words}')) || '').match(/(\\d+) ms/)?.[1]"
    return int(page.wait_for_function(says, timeout=60_000, polling=20).json_value())


def measured(driven: Driven, address: str) -> None:
    """Print what one browser takes."""
    looks, answers = [], []
    for number in range(COLD):
        context = driven.context(viewport={"width": 1280, "height": 900})
        context.add_init_script(SAID)
        page = context.new_page()
        began = time.monotonic()
        page.goto(address + JOB)
        heard(page, "A first look")
        looks.append((time.monotonic() - began) * 1000)
        heard(page, "Answered")
        answers.append((time.monotonic() - began) * 1000)
        if number < COLD - 1:
            context.close()
    print(f"{driven.name}: cold load to the first look {spread(looks)}, to the played answer {spread(answers)}")
    page.wait_for_selector("#drawn[data-whole=yes]", timeout=60_000)
    first, played = [], []
    for number in range(TYPED):
        page.evaluate(TYPE, str(600 + 37 * number))
        first.append(heard(page, "A first look"))
        played.append(heard(page, "Answered"))
    print(f"{driven.name}: as one types, first look {spread(first)}, played answer {spread(played)}")
    context.close()


def spread(times: list[float] | list[int]) -> str:
    ordered = sorted(times)
    most = ordered[int(len(ordered) * 0.9) - 1]
    return f"{median(ordered):,.0f} ms (9 of 10 within {most:,.0f}, slowest {ordered[-1]:,.0f})"


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[1] if len(sys.argv) > 1 else f"{scratch}/site"
        if len(sys.argv) == 1:
            from memplan.web.build import build

            build(Path(folder), None)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        with sync_playwright() as play:
            for name in PROGRAMS:
                if why := missing(name):
                    print(f"{name}: left out, {why}")
                    continue
                driven = Driven(play, name)
                measured(driven, f"http://127.0.0.1:{server.server_port}/")
                driven.close()
        server.shutdown()


if __name__ == "__main__":
    main()
