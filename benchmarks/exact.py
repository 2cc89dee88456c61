"""How far the description that ``--exact`` derives from modules is from memplan's own.

One preset of each type that memplan describes and transformers builds is estimated both ways, for some jobs, cut to few
layers where it has many. The estimate of a described model agrees with traces, so the ratio is the error of the derived
one. Compared is what comes and goes within a step: the allocated peak less what lasts. The spreads in
``memplan/trace/exact.py`` hold every one of these jobs, since types that nobody described will be odder: the lowest and
the highest ratio, by what the layers are made of.
"""

from itertools import product

from memplan.arch import parse_config
from memplan.engine.build import ledger
from memplan.errors import MemplanError
from memplan.presets import every_model
from memplan.resolve import resolve
from memplan.spec.model import ModelSpec
from memplan.spec.reading import read_job
from memplan.trace.exact import SPREADS, build
from memplan.trace.modules import describe, kind_of

LAYERS, LONGEST = 8, 8192
JOBS = [
    {"method": method, "gradient_checkpointing": checkpointing, "sequence_length": length, **adapter}
    for method, checkpointing, length, adapter in product(
        ("sft", "dpo"), (True, False), (1024, LONGEST), ({}, {"lora": {"r": 16, "targets": "all-linear"}})
    )
]


def moving(job: dict[str, object], spec: ModelSpec) -> int:
    """Bytes at the peak that do not last from step to step."""
    book = ledger(resolve(read_job({**job, "model": "given"})._replace(spec=spec)), detailed=False)
    return max(book.totals()) - book.lasting()


def cut(config: dict[str, object]) -> dict[str, object]:
    """The config with few layers, where it names their number and nothing for each."""
    if config.get("layer_types") or not isinstance(config.get("num_hidden_layers"), int):
        return config
    return config | {"num_hidden_layers": min(LAYERS, int(str(config["num_hidden_layers"])))}


def ratios(described: ModelSpec, derived: ModelSpec) -> list[float]:
    """Described over derived, for each job that both can have."""
    found = []
    for job in JOBS:
        length = min(int(str(job["sequence_length"])), described.max_positions or LONGEST)
        try:
            wanted = {**job, "sequence_length": length}
            found.append(moving(wanted, described) / moving(wanted, derived))
        except MemplanError:
            continue
    return found


def main() -> None:
    """A line for each family, then the spread."""
    found_by: dict[str, list[list[float]]] = {kind: [] for kind in SPREADS}
    seen: set[str] = set()
    for preset in every_model():
        config = cut(preset["config"])
        family = str(config["model_type"])
        if family in seen:
            continue
        try:
            described = parse_config(config, preset["name"])
            model, parsed = build(config, preset["name"])
            derived = describe(model, parsed, preset["name"])
        except MemplanError as error:
            print(f"{family:20} {preset['name']:26} {error.message[:90]}", flush=True)
            continue
        found = sorted(ratios(described, derived))
        if not found:
            continue
        seen.add(family)
        found_by[kind_of(derived.runs)].append(found)
        apart = derived.params.total - described.params.total
        middle = f"{found[0]:.2f} {found[len(found) // 2]:.2f} {found[-1]:.2f}"
        print(f"{family:20} {preset['name']:26} {middle}" + (f"  {apart:+,} parameters" if apart else ""), flush=True)
    print("described / derived: lowest, 5 %, median, 95 %, highest of all jobs")
    for kind, rows in found_by.items():
        every = [each for row in rows for each in row]
        shares = "  ".join(f"{share(every, each):.2f}" for each in (0, 0.05, 0.5, 0.95, 1))
        print(f"{kind:16} {shares}  of {len(every)} jobs, {len(rows)} families")


def share(values: list[float], each: float) -> float:
    """A percentile."""
    return sorted(values)[round((len(values) - 1) * each)]


if __name__ == "__main__":
    main()
