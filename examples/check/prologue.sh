#!/usr/bin/env bash
# A Slurm prologue (or the first lines of a job script): ends a job before it waits for an out-of-memory error.
# In slurm.conf: TaskProlog=/etc/slurm/memplan_prologue.sh; the user exports MEMPLAN_FILES with the job's configs.
# A failing TaskProlog ends the task; a file that memplan cannot read (exit code 2 or 3) does not stop the job.
[ -n "${MEMPLAN_FILES:-}" ] || exit 0
gpus="${SLURM_GPUS:-${SLURM_GPUS_ON_NODE:-1}}"
# shellcheck disable=SC2086  # several files
memplan check $MEMPLAN_FILES --gpu "${MEMPLAN_GPU:-h100-80gb}" --num-gpus "$gpus" --margin 0.02 | sed 's/^/print memplan: /'
[ "${PIPESTATUS[0]}" -ne 1 ]
