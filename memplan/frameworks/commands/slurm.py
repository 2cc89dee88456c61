"""What the ``#SBATCH`` lines of a script ask for, as the variables that SLURM sets for it (sbatch 25.05, OUTPUT)."""

import re

_LINE = re.compile(r"^#SBATCH[ \t]+(--?[A-Za-z][\w-]*)[= \t]*([^\s#]*)", re.MULTILINE)
_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "a": "array"}
TASK = "SLURM_ARRAY_TASK_ID"
"""Which of a job array's tasks this is: the first is taken."""
_CARDS = re.compile(r"(?:gpu|gres/gpu)?(?::?[A-Za-z][\w.-]*)?:?(\d{1,4})?(?:\(.*)?$")
"""gpu:8, gpu:a100:8, a100:4, 8; one where no number stands."""


def slurm_variables(text: str) -> dict[str, str]:
    """``SLURM_NNODES``, ``SLURM_NTASKS_PER_NODE``, ``SLURM_GPUS_ON_NODE`` and their kin; empty without such lines."""
    asked: dict[str, str] = {}
    for name, value in _LINE.findall(text[:100_000]):
        key = name.lstrip("-")
        asked[_SHORT.get(key, key)] = value
    if not asked:
        return {}
    nodes, tasks, each = (_whole(asked.get(key, "")) for key in ("nodes", "ntasks", "ntasks-per-node"))
    if nodes is None and "nodes" not in asked and (tasks or 1) == 1:
        nodes = 1
    if each is None and tasks and nodes:
        each = max(1, tasks // nodes)
    gpus = _gpus(asked, nodes, each)
    first = re.match(r"\d{1,6}", asked.get("array", ""))
    found = {"NNODES": nodes, "JOB_NUM_NODES": nodes, "NTASKS": tasks or ((each or 1) * nodes if nodes else None),
             "NTASKS_PER_NODE": each, "GPUS_ON_NODE": gpus, "GPUS_PER_NODE": gpus}  # fmt: skip
    told = {f"SLURM_{name}": str(number) for name, number in found.items() if number}
    return {**told, TASK: first.group()} if first else told


def _gpus(asked: dict[str, str], nodes: int | None, tasks: int | None) -> int | None:
    """Cards of a node."""
    for key, times, parts in (("gpus-per-node", 1, 1), ("gres", 1, 1), ("gpus-per-task", tasks or 1, 1),
                              ("gpus", 1, nodes)):  # fmt: skip
        value = next((part for part in asked.get(key, "").split(",") if key != "gres" or part.startswith("gpu")), "")
        match = _CARDS.match(value)
        if value and match and parts:
            return int(match.group(1) or 1) * times // parts or None
    return None


def _whole(text: str) -> int | None:
    """A number of nodes or tasks; None for a range or a variable."""
    return int(text) if text.isdigit() and 0 < len(text) < 6 else None
