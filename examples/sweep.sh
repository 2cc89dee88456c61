#!/usr/bin/env bash
# A sweep: price every job of sweep.yaml into a CSV, take it up again, and ask it for the longest sequence that fits.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
rows="$(mktemp -d)/rows.csv"
memplan compare --grid "$here/sweep.yaml" --output "$rows" --part 1/2
memplan compare --grid "$here/sweep.yaml" --output "$rows"    # the second half: rows that are there are not priced again
echo "longest sequence that fits, by quantization and card:"
python3 - "$rows" <<'PYTHON'
import csv
import sys

longest: dict[tuple[str, str], int] = {}
for row in csv.DictReader(open(sys.argv[1], encoding="utf-8")):
    if row["fits"] == "yes":
        key = row["quantization"], row["gpu"]
        longest[key] = max(longest.get(key, 0), int(row["sequence_length"]))
for (quantization, gpu), length in sorted(longest.items()):
    print(f"{quantization:5} {gpu:10} {length}")
PYTHON
