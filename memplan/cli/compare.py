"""memplan compare: one job under several strategies, or several jobs; with --grid, thousands."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memplan.cli import options, output
from memplan.cli.edge import warn
from memplan.cli.output import Result
from memplan.errors import EXIT_DONE, EXIT_USAGE, UsageError
from memplan.render.progress import spinner
from memplan.spec.reading import JobInput, canonical_key

if TYPE_CHECKING:
    from memplan.comparison import Axis, Comparison

HELP = """The same job under several strategies, ranked by memory; or several jobs, models, methods, cards side by side.
--gpus a100-80gb,h100-80gb compares cards, --gpus 4,8 numbers of them.

Examples: memplan compare llama-3.1-8b --method simpo --num-gpus 4 --gpu a100-80gb; memplan compare a.yaml b.yaml;
memplan compare llama-3.1-8b qwen2.5-7b --methods dpo,simpo --vary batch_size=1,2,4
"""

NAMES_A_MODEL = {"model", "total_params"}
CONTRADICTED = ("vary", "methods", "strategies", "add", "all_")
"""By ``--grid``, whose file says what varies."""
OF_STRATEGIES = ("strategies", "add", "all_")
"""They say which strategies, of which only one job has any."""


def compare(values: Mapping[str, Any]) -> int:
    """Price every row and write the ranking, or sweep."""
    if values.get("grid") is not None:
        from memplan.cli.sweeping import sweep

        for name in CONTRADICTED:
            if values.get(name):
                raise UsageError(f"--{name.rstrip('_')} contradicts --grid", "put what varies into the grid's file")
        if values.get("html"):
            raise UsageError("--html contradicts --grid", "a sweep's rows go to --output rows.csv")
        return sweep(*axes_of(values))
    for name in ("part", "processes"):
        if values.get(name) is not None:
            raise UsageError(f"--{name} goes with a sweep", "add --grid grid.yaml, or leave it out")
    from memplan.render.compare_view import compare_blocks, compare_rows

    to = output.read_output(values, draws=True, shows=True)
    with spinner("reading the model's config"):
        found = comparison(values)
    rows = lambda: compare_rows(found)  # noqa: E731
    to.write(Result(found.to_dict, lambda width: compare_blocks(found, width), rows, lambda: _drawn(found), "compare"))
    for text in dict.fromkeys(text for row in found.rows for text in row.report.warnings):
        warn(text)
    return EXIT_USAGE if any(row.report.unclear for row in found.rows) else EXIT_DONE


def _drawn(found: "Comparison") -> str:
    from memplan.render.front_svg import compare_svg

    return compare_svg(found)


def comparison(values: Mapping[str, Any]) -> "Comparison":
    """What the options describe: strategies of one job, where nothing else is asked for."""
    from pathlib import Path

    from memplan.comparison import cases_of, compare_cases, compare_strategies

    values, axes = axes_of(values)
    targets, strategies = values.get("targets") or [None], values.get("strategies")
    jobs = [_job(target, values) for target in targets]
    first = jobs[0][1].job
    if jobs[0][1].sources.get("model") == "option" and any(each.key == "model" for each in axes):
        raise UsageError(f"model is given as {first.model!s:.60}, and varies", "leave one of them out")
    if first.model is None and first.total_params is None and not NAMES_A_MODEL & {each.key for each in axes}:
        raise UsageError("compare what?", "name a model or a job: memplan compare llama-3.1-8b --method simpo")
    if len(jobs) == 1 and not axes:
        return compare_strategies(jobs[0][1], Path(strategies) if strategies else None, _added(values))
    for name in OF_STRATEGIES:
        if values.get(name):
            what = "several models or jobs" if len(jobs) > 1 else "keys that vary"
            raise UsageError(f"--{name.rstrip('_')} contradicts {what}", "leave one of them out")
    return compare_cases(cases_of(jobs, axes))


def _added(values: Mapping[str, Any]) -> list[str]:
    """Names of the rows that --add or --all puts beside the strategies."""
    words = [word for text in values.get("add") or () for word in _listed("--add", text)]
    if words and values.get("all_"):
        raise UsageError("--add contradicts --all", "leave one of them out")
    return ["all"] if values.get("all_") else words


def _job(target: str | None, values: Mapping[str, Any]) -> "tuple[str, JobInput]":
    given = options.read_given({**values, "target": target})
    return str(target or given.job.model or "the job"), given


def axes_of(values: Mapping[str, Any]) -> "tuple[dict[str, Any], list[Axis]]":
    """The options without those that vary, and the axes of the grid."""
    from memplan.comparison import axis

    rest = dict(values)
    axes = [axis(*_assignment(text)) for text in rest.pop("vary", None) or ()]
    if rest.get("methods") is not None:
        axes.append(axis("method", _listed("--methods", rest.pop("methods"))))
    gpus = _gpus(rest.pop("num_gpus", None) or ())
    if "gpu" in gpus and rest.get("gpu") is not None:
        raise UsageError(f"--gpus {gpus['gpu'][:40]} contradicts --gpu {rest['gpu'][:40]}", "keep one of them")
    rest |= gpus
    if "," in (rest.get("num_gpus") or ""):
        axes.append(axis("num_gpus", _listed("--num-gpus", rest.pop("num_gpus"))))
    if "," in (rest.get("gpu") or ""):
        axes.append(axis("gpu", _listed("--gpu", rest.pop("gpu"))))
    if axes:
        _, keys = options.collect(rest)
        for each in axes:
            _refuse_given(each.key, {canonical_key(key): value for key, value in keys.items()})
    return rest, axes


def _refuse_given(path: str, keys: Mapping[str, Any]) -> None:
    """A key that varies is not given, too."""
    found: Any = keys
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return
        found = found[name]
    raise UsageError(f"{path} is given as {found!s:.40}, and varies", "leave one of them out")


def _gpus(given: Sequence[str]) -> dict[str, str]:
    """--gpus is another name of --num-gpus; here it may name cards, too."""
    found: dict[str, str] = {}
    for text in given:
        key = "num_gpus" if all(word.strip().isdecimal() for word in text.split(",")) else "gpu"
        if key in found:
            raise UsageError(f"--gpus is given twice: {found[key][:40]} and {text[:40]}", "keep one of them")
        found[key] = text
    return found


def _listed(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{name} {text[:60]!r} names nothing at one place", "write names with commas between them")
    return words


def _assignment(text: str) -> tuple[str, list[Any]]:
    """'batch_size=1,2,4' -> the key and its values; null takes a key away."""
    key, equals, words = text.partition("=")
    if not equals or not key.strip() or not words.strip():
        hint = "write --vary key=a,b,c, such as --vary batch_size=1,2,4"
        raise UsageError(f"--vary {text[:80]!r} is no key with values", hint)
    return key, [options.scalar(word) for word in _split(words)]


def _split(text: str) -> Iterator[str]:
    """The values between commas; a comma within brackets, braces or quotes divides nothing."""
    depth, quoted, start = 0, False, 0
    for at, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif not quoted and char in "[{":
            depth += 1
        elif not quoted and char in "]}":
            depth -= 1
        elif char == "," and depth <= 0 and not quoted:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()
