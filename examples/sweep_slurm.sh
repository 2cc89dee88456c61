#!/usr/bin/env bash
#SBATCH --job-name=sweep --array=1-4 --cpus-per-task=4
# A sweep as an array of Slurm's: sbatch examples/sweep_slurm.sh. Each task prices its part into a file of its own, in the
# same order as the whole; a task that was cut off goes on where it was when it is queued again. The task that ends last
# joins the parts: the header once, then every part's rows. Without Slurm: one part.
set -euo pipefail
here="${SLURM_SUBMIT_DIR:+$SLURM_SUBMIT_DIR/examples}"
here="${here:-$(cd "$(dirname "$0")" && pwd)}"
part="${SLURM_ARRAY_TASK_ID:-1}" parts="${SLURM_ARRAY_TASK_COUNT:-1}"
# One folder for all tasks, which every machine sees.
rows="${ROWS:-${SLURM_ARRAY_JOB_ID:+$SLURM_SUBMIT_DIR/rows-$SLURM_ARRAY_JOB_ID}}"
rows="${rows:-$(mktemp -d)}"
mkdir -p "$rows"
memplan compare --grid "$here/sweep.yaml" --output "$rows/part-$part.csv" --part "$part/$parts" --workers auto
touch "$rows/part-$part.done"
echo "part $part of $parts: $(($(wc -l < "$rows/part-$part.csv") - 1)) rows"
if [[ "$(find "$rows" -name 'part-*.done' | wc -l)" == "$parts" ]]; then
  for ((i = 1; i <= parts; i++)); do
    if ((i == 1)); then cat "$rows/part-$i.csv"; else tail -n +2 "$rows/part-$i.csv"; fi
  done > "$rows/joined-$part"
  mv "$rows/joined-$part" "$rows/rows.csv"
fi
