"""How fast the page's server answers, and what it holds: python benchmarks/web.py [--seconds 600 --rate 200].

Three loads over kept connections, of a server that this program starts: jobs that nobody asked before (as one types),
whole answers, and jobs that were asked before (what people who look at the same page ask), at a rate or as fast as they
are answered, with new ones among them. Resident memory of the server and of the processes under it is read from /proc
in the tenths of that load.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADERS = {"content-type": "application/json"}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seconds", type=float, default=20.0, help="of the load of jobs that were asked before")
    words.add_argument("--new", type=int, default=100, help="jobs that nobody asked before")
    words.add_argument("--rate", type=float, default=0.0, help="requests a second of that load; 0: as many as can be")
    words.add_argument("--port", type=int, default=8797)
    given = words.parse_args()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "memplan", "web", "--port", str(given.port)]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        client = connected(given.port)
        first = timed(client, body(1))
        print(f"first answer, with the process that gives it: {first:.0f} ms")
        took = [timed(client, body(2 + number)) for number in range(given.new)]
        print(
            f"new jobs, as one types: median {median(took):.0f} ms, 95 % {sorted(took)[int(len(took) * 0.95)]:.0f} ms"
        )
        whole = [timed(client, {"job": job(2000 + number)}) for number in range(5)]
        print(f"whole answers, with remedies and cards: median {median(whole):.0f} ms")
        under_load(given.port, server.pid, given.seconds, given.rate)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(10)


FRESH = 100
"""For so many requests of jobs that were asked before, one of a job that nobody asked, by another client."""


def under_load(port: int, pid: int, seconds: float, rate: float) -> None:
    """Ask for so long, and print how often that was, how slow the slowest were, and what was resident."""
    took: list[float] = []
    new: list[float] = []
    held, began = [resident(pid)], time.monotonic()

    def asking(client: http.client.HTTPConnection, times: list[float], every: float, first: int, many: int) -> None:
        for number in itertools.count():
            now = time.monotonic() - began
            if now > seconds:
                break
            if now < number * every:
                time.sleep(number * every - now)
            times.append(timed(client, body(first + number % many)))

    every = 1 / rate if rate else 0.0
    other = threading.Thread(target=asking, args=(connected(port), new, FRESH * every or 0.5, 5000, 10**9))
    usual = threading.Thread(target=asking, args=(connected(port), took, every, 2, 20))
    for each in (other, usual):
        each.start()
    while usual.is_alive():
        usual.join(seconds / 10)
        held.append(resident(pid))
    other.join()
    slow = sorted(took)
    count = len(took) + len(new)
    print(f"{count} requests in {seconds:.0f} s, {count / seconds:.0f} a second, {len(new)} of them of new jobs")
    print(f"answers to the others: median {median(took):.1f} ms, 99 % within {slow[int(len(slow) * 0.99)]:.1f} ms")
    print("resident, MB, at each tenth:", ", ".join(f"{each / 1e6:.0f}" for each in held))


def job(number: int) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "method": "dpo",
        "gpu": "h100-80gb",
        "num_gpus": 8,
        "sequence_length": 500 + number,
    }


def body(number: int) -> dict[str, Any]:
    return {"job": job(number), "quick": True}


def timed(client: http.client.HTTPConnection, asked: dict[str, Any]) -> float:
    """Milliseconds of one answer."""
    began = time.perf_counter()
    client.request("POST", "/api/estimate", json.dumps(asked), HEADERS)
    found = client.getresponse()
    text = found.read()
    assert found.status == 200, text
    return (time.perf_counter() - began) * 1000


def connected(port: int) -> http.client.HTTPConnection:
    for _ in range(600):
        client = http.client.HTTPConnection("127.0.0.1", port)
        try:
            client.connect()
        except OSError:
            time.sleep(0.1)
        else:
            return client
    raise SystemExit("the server does not answer")


def resident(pid: int) -> int:
    """Bytes of a process and of those under it."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages + sum(resident(int(child)) for child in children)


if __name__ == "__main__":
    main()
