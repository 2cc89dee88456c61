"""Start logs of vLLM and SGLang beside memplan's answers: how many are within what is to be expected of them.

    python benchmarks/starts.py

Tokens of a cache whose size the job gives are arithmetic, and stand on a line of their own. What the device holds once
an engine of one rank has started is in GiB: nvidia-smi's figure, or the card less what SGLang says is free.
"""

from collections.abc import Iterable
from statistics import median

from memplan.accuracy import Figure, errors_of
from memplan.truth import default_folder, read_sets
from memplan.units import GiB

WITHIN = {"weights": 0.2, "bytes of a token": 0.0, "tokens of the cache": 12.0, "fall of free memory": 0.2}
"""In %, by meter; without a line for what only few logs tell."""
DEVICE = 0.5
"""In GiB."""


def main() -> None:
    (rows,) = read_sets([default_folder() / "rollout.json"])
    given = {row.id for row in rows.rows if "kv_cache_memory" in row.job.get("rollout", {})}
    figures = errors_of([rows]).figures
    print(f"{'':36} {'rows':>5} {'within':>7} {'of 100':>11} {'median':>7}")
    for meter, within in WITHIN.items():
        found = [figure for figure in figures if figure.meter == meter]
        if meter != "tokens of the cache":
            _line(meter, within, map(_percent, found))
            continue
        _line(f"{meter}, to be estimated", within, (_percent(each) for each in found if each.id not in given))
        _line(f"{meter}, size given", within, (_percent(each) for each in found if each.id in given))
    alone = {row.id for row in rows.rows if row.job.get("num_gpus", 1) == 1}
    held = [figure for figure in figures if figure.meter == "device" and figure.id in alone]
    off = (abs(each.estimated_bytes - each.measured_bytes) / GiB for each in held)
    _line(f"device of one rank ({sum(each.inside for each in held)} in its range)", DEVICE, off, "GiB")
    ends = [figure for figure in figures if figure.meter == "starts"]
    began = [figure for figure in ends if figure.measured_bytes == 1]
    refused, fits = (sum(figure.error != 0 for figure in each) for each in (began, set(ends) - set(began)))
    died = len(ends) - len(began)
    print(f"{len(began)} started, {refused} of them are refused; {died} died, {fits} of them are said to fit")


def _percent(figure: Figure) -> float:
    return 100 * abs(figure.error)


def _line(name: str, within: float, errors: Iterable[float], unit: str = "%") -> None:
    off = list(errors)
    near = sum(each <= within for each in off)
    print(f"{name:36} {len(off):5} {f'{within:g} {unit}':>7} {100 * near / len(off):11.1f} {median(off):5.2f} {unit}")


if __name__ == "__main__":
    main()
