"""The cost model's matrix products against measured ones, by shape: error of the rate, estimate over measured less one.

``benchmarks/data/matmuls.json`` holds the rows with their sources.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from memplan.cost import card
from memplan.cost.products import product_seconds
from memplan.cost.rates import EXPECTED
from memplan.gpus import find_gpu

DATA = Path(__file__).resolve().parent / "data" / "matmuls.json"
ALONE = EXPECTED._replace(throttle=0.0)
"""A product that is measured alone keeps its clock."""


def errors(table: dict[str, Any]) -> list[tuple[float, list[float]]]:
    """(error, row) of each of one card's in one dtype, the smallest first."""
    device, found = card(find_gpu(table["gpu"])), []
    for batches, rows, columns, inner, tflops in table["rows"]:
        seconds = product_seconds(rows, columns, inner, batches, table["itemsize"], device, ALONE)
        rate = 2e-12 * batches * rows * columns * inner / seconds
        found.append((rate / tflops - 1, [batches, rows, columns, inner, tflops]))
    return sorted(found)


def main() -> None:
    """Print the summary and the worst of each table."""
    for table in json.loads(DATA.read_text(encoding="utf-8"))["tables"]:
        found = errors(table)
        absolute = sorted(abs(error) for error, _ in found)
        print(f"{len(found)} products of {8 * table['itemsize']} bits on {table['gpu']}; ", end="")
        print(f"|error| {100 * statistics.median(absolute):.1f} % in the median, ", end="")
        print(f"{100 * absolute[int(0.9 * len(found))]:.1f} % for 9 of 10, {100 * absolute[-1]:.1f} % at worst")
        for error, row in (*found[:3], *found[-3:]):
            print(f"{'x'.join(map(str, row[:4])):>24}{row[4]:>8.0f} TFLOP/s{100 * error:>+8.1f} %")


if __name__ == "__main__":
    main()
