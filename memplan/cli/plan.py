"""memplan plan: the fastest ways to run a job that fit, what was rejected and why."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options, output
from memplan.cli.edge import note, warn
from memplan.cli.output import Result
from memplan.errors import EXIT_DOES_NOT_FIT, EXIT_DONE, UsageError, did_you_mean
from memplan.render.progress import Bar

if TYPE_CHECKING:
    from memplan.planner import Plans

HELP = """The fastest ways to run a job that fit its GPUs; what does not, why. What is given stays; all else that keeps
the training is tried. Exits with 1 where nothing fits.

Example: memplan plan llama-3.1-8b --method dpo --gpu h100-80gb --num-gpus 8 --fix zero_stage=3
"""
MOST_PRICE = 1e6
JOB_FORMS = ("yaml", "table")
"""Forms in which a file holds the best plan's job, for estimate to read."""


def plan(values: Mapping[str, Any]) -> int:
    """Search, write the plans, and say by the exit code whether any fits."""
    to = output.read_output(values, draws=True, shows=True)
    found = search(values)
    if to.path is not None and to.form in JOB_FORMS and to.path.lower().endswith((".yaml", ".yml")):
        _write_job(to, found)
    else:
        to.write(result(found))
    for text in found.warnings:
        warn(text)
    return EXIT_DONE if found.fits else EXIT_DOES_NOT_FIT


def result(found: "Plans") -> Result:
    """The plans in the form that is asked for."""
    from memplan.render.plan_view import plan_blocks, plan_rows

    def drawing() -> str:
        from memplan.render.front_svg import plan_svg

        return plan_svg(found)

    return Result(found.to_dict, lambda width: plan_blocks(found, width), lambda: plan_rows(found), drawing, "plan")


def search(values: Mapping[str, Any]) -> "Plans":
    """The plans of what the options describe."""
    from memplan.asked import with_usual_trainer
    from memplan.planner import plan as search_plans
    from memplan.planner.questions import MAXIMIZED

    if values.get("budget") is not None:
        return _within(values)
    wanted = _count(values.get("top"))
    ask = [name for name in ("min_gpus", "smallest_card") if values.get(name)]
    if values.get("maximize") is not None:
        key = values["maximize"].strip().lower().replace("-", "_")
        if key not in MAXIMIZED:
            raise UsageError(f"--maximize: not {values['maximize'][:40]!r}", did_you_mean(key, MAXIMIZED))
        ask.append(key)
    price = _price(values.get("price"))
    allow = [name.strip().lower() for name in (values.get("allow") or "").split(",") if name.strip()]
    with Bar() as bar:
        bar("reading the model's config", 0, 0)
        given = with_usual_trainer(options.read_given(values))
        return search_plans(given, allow, wanted, bool(values.get("pareto")), ask, tell=bar, price=price)


NOT_BESIDE = ("allow", "top", "pareto", "min_gpus", "smallest_card", "maximize")
"""What asks for another layout, where a budget is one job's."""


def _within(values: Mapping[str, Any]) -> "Plans":
    """The job as it is, within a budget. Raises UsageError."""
    from memplan.asked import with_usual_trainer
    from memplan.planner.budget import read_budget, within

    size, meter = read_budget(values["budget"])
    other = next((name for name in NOT_BESIDE if values.get(name)), None)
    if other is not None:
        word = f"--{other.replace('_', '-')}"
        raise UsageError(f"--budget with {word}: a budget is of one job as it is", f"leave {word} or --budget out")
    price = _price(values.get("price"))
    with Bar() as bar:
        bar("reading the model's config", 0, 0)
        return within(with_usual_trainer(options.read_given(values)), size, meter, bar, price)


def _price(text: str | None) -> float | None:
    """Of a GPU hour, in any currency."""
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < MOST_PRICE:
        raise UsageError(f"--price: {text[:40]!r} is no price of a GPU hour", "write a number, such as --price 2.5")
    return found


def _count(text: str | None) -> int:
    from memplan.planner.planning import WANTED

    if text is None:
        return WANTED
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise UsageError(f"--top: {text[:40]!r} is no number of plans", "write a number from 1 to 1000")
    return int(text)


def _write_job(to: output.Output, found: "Plans") -> None:
    """The best plan's job, as a file that estimate reads; the plans themselves go to the screen."""
    if not found.plans:
        raise UsageError("nothing fits, so there is no plan to write", "leave --output out to see why")
    best = found.plans[0]
    output.Output("yaml", to.path, to.force).write(Result(lambda: best.job, lambda width: []))
    output.Output(html=to.html, force=to.force).write(result(found))
    note(f"the best plan's job is in {to.path}: memplan estimate {to.path}")
