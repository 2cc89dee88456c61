"""A sweep's speed: rows a second of ``memplan compare --grid``, whole command, with one process and with several.

Seconds on the clock say something on a quiet machine alone, so the load is printed beside them; CPU seconds, of all
processes together, say what several processes have to do twice.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GRID = """
base: {gpu: h100-80gb, num_gpus: 8}
vary:
  model: [qwen2.5-7b, llama-3.1-8b]
  method: [sft, dpo, simpo, orpo]
  sharding: [ddp, zero2, zero3, fsdp2]
  gradient_checkpointing: [none, full]
  loss_head: [auto, chunked]
  batch_size: [1, 2, 3, 4]
  sequence_length: [512, 1024, 1536, 2048, 2560, 3072, 3584, 4096]
"""
ROWS = 2 * 4 * 4 * 2 * 2 * 4 * 8


def swept(folder: Path, processes: int) -> tuple[float, float]:
    """(seconds on the clock, CPU seconds of all its processes) of one sweep."""
    grid, rows = folder / "grid.yaml", folder / "rows.csv"
    grid.write_text(GRID, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "memplan", "compare", "--grid", str(grid), "--output", str(rows), "--force"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*command, "--processes", str(processes)], check=True, capture_output=True, env=environment)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    written = len(rows.read_text(encoding="utf-8").splitlines()) - 1
    if written != ROWS:
        raise SystemExit(f"{written} rows, not {ROWS}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """A line for each number of processes, medians of runs that take turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=3, help="runs of each")
    parser.add_argument("--processes", default="1,2", help="numbers of processes, with commas between")
    given = parser.parse_args()
    counts = [int(count) for count in given.processes.split(",")]
    print(f"{ROWS:,} rows; load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores before")
    times: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.n):
            for count in counts:
                times[count].append(swept(Path(folder), count))
    for count, found in times.items():
        wall, cpu = (statistics.median(each) for each in zip(*found, strict=True))
        rate = f"{ROWS / wall:7,.0f} rows a second on the clock"
        print(f"{count} process{'es' if count > 1 else '  '}: {wall:6.2f} s, {rate}; {cpu:6.2f} s of CPU")


if __name__ == "__main__":
    main()
