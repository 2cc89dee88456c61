"""Start logs of vLLM and SGLang beside memplan's answers: how many are within what is to be expected of them.

    python benchmarks/starts.py

Tokens of a cache whose size the job gives are arithmetic, and stand on a line of their own.
"""

from statistics import median

from memplan.accuracy import Figure, errors_of
from memplan.truth import default_folder, read_sets

WITHIN = {"weights": 0.2, "bytes of a token": 0.0, "tokens of the cache": 12.0, "fall of free memory": 0.2}
"""In %, by meter; without a line for what only few logs tell."""


def main() -> None:
    (rows,) = read_sets([default_folder() / "rollout.json"])
    given = {row.id for row in rows.rows if "kv_cache_memory" in row.job.get("rollout", {})}
    figures = errors_of([rows]).figures
    print(f"{'':36} {'rows':>5} {'within':>7} {'of 100':>11} {'median':>7}")
    for meter, within in WITHIN.items():
        found = [figure for figure in figures if figure.meter == meter]
        if meter != "tokens of the cache":
            _line(meter, within, found)
            continue
        _line(f"{meter}, to be estimated", within, [figure for figure in found if figure.id not in given])
        _line(f"{meter}, size given", within, [figure for figure in found if figure.id in given])
    ends = [figure for figure in figures if figure.meter == "starts"]
    began = [figure for figure in ends if figure.measured_bytes == 1]
    refused, fits = (sum(figure.error != 0 for figure in each) for each in (began, set(ends) - set(began)))
    died = len(ends) - len(began)
    print(f"{len(began)} started, {refused} of them are refused; {died} died, {fits} of them are said to fit")


def _line(name: str, within: float, figures: list[Figure]) -> None:
    off = [100 * abs(figure.error) for figure in figures]
    near = sum(each <= within for each in off)
    print(f"{name:36} {len(off):5} {f'{within:g} %':>7} {100 * near / len(off):11.1f} {median(off):5.2f} %")


if __name__ == "__main__":
    main()
