"""memplan estimate: one job, its report."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.cli import options, output
from memplan.cli.edge import note, warn
from memplan.cli.output import Result
from memplan.errors import EXIT_DOES_NOT_FIT, EXIT_DONE, EXIT_USAGE, UsageError, printable
from memplan.presets import find_preset, model_names
from memplan.render.progress import spinner
from memplan.spec.reading import JobInput

if TYPE_CHECKING:
    from memplan.render.blocks import Block
    from memplan.report import Report
    from memplan.trust import Trust
    from memplan.ways import Ways

HELP = """What a training job will use on each GPU, where it peaks and why, whether it fits, and what to change.
With a model and a card alone: full fine-tuning, LoRA and QLoRA, and how long a sequence each holds.

Examples: memplan estimate qwen3-8b --gpu 4090; memplan estimate llama-3.1-8b --method dpo --gpu h100-80gb;
memplan estimate job.yaml --json
"""


EVERYTHING = ("explain", "ranks", "how_sure", "timeline")
"""What --verbose adds."""


def estimate(values: Mapping[str, Any]) -> int:
    """Read, compute, write; the exit code says what is unclear, and whether it fits where --fail-over asks."""
    to = output.read_output(values, draws=True, shows=True)
    if values.get("summary"):
        to = to._replace(form="json")
    if values.get("verbose"):
        short = next((f"--{name}" for name in ("quiet", "summary") if values.get(name)), "")
        if short:
            raise UsageError(f"--verbose contradicts {short}", "leave one of them out")
        values = {**values, **dict.fromkeys(EVERYTHING, True)}
    with spinner("reading the model's config"):
        given = given_of(values)
    found = _ways(given, values)
    if found is not None and to.form == "table" and to.path is None:  # a document or data is of one job
        to._replace(html=None).write(_screen(found, values))
        if to.html is not None:
            to.write_page(_result(_estimate(given, values), [], found))
        return EXIT_DONE
    report = _estimate(given, values)
    if values.get("fail_over") and report.verdict is None:
        raise UsageError("--fail-over needs a card to fit", "add --gpu, such as --gpu h100-80gb")
    if values.get("verify"):
        _verify(report)
    names = ("rule_of_thumb", "ranks", "explain", "quiet", "summary", "how_sure", "timeline")
    shown = [name for name in names if values.get(name)]
    to.write(_result(report, shown, found))
    for text in report.warnings:
        warn(text)
    too_large = report.verdict is not None and report.verdict.fits == "no" and values.get("fail_over")
    return EXIT_USAGE if report.unclear else EXIT_DOES_NOT_FIT if too_large else EXIT_DONE


OF_ONE_JOB = ("explain", "ranks", "rule_of_thumb", "fail_over", "verify", "exact", "play", "summary", "timeline")
"""Options that ask for the report of one job."""


def given_of(values: Mapping[str, Any]) -> "JobInput":
    """The job that MODEL and the options describe; without them, the one that lies in this folder."""
    from memplan.asked import with_usual_trainer

    if not any(values.get(key) for key in ("target", "model", "total_params", "with_")):
        from memplan.frameworks.checks.folders import lies_here

        path, what = lies_here()
        note(f"took {path}, {what}")
        values = {**values, "target": path}
    return with_usual_trainer(options.read_given(values))


def report_of(values: Mapping[str, Any]) -> "Report":
    """The report of the job that the options describe."""
    return _estimate(given_of(values), values)


def _estimate(given: "JobInput", values: Mapping[str, Any]) -> "Report":
    """The report of a job."""
    from memplan.asked import report_of as report_of_job

    with spinner("reading the model's config"):
        return report_of_job(_exact(given) if values.get("exact") else given, True if values.get("play") else None)


def _ways(given: "JobInput", values: Mapping[str, Any]) -> "Ways | None":
    """The ways to train a model, where neither method nor trainer is named and nothing asks for one job's report."""
    from memplan.asked import ways_of

    if any(values.get(name) for name in OF_ONE_JOB):
        return None
    with spinner("trying full fine-tuning, LoRA and QLoRA"):
        return ways_of(given)


def _screen(found: "Ways", values: Mapping[str, Any]) -> Result:
    """The ways, the answer first; with -q it alone."""

    def view(width: int) -> "list[Block]":
        from memplan.render.ways_view import typed, ways_blocks

        blocks = ways_blocks(found, typed(values.get("target") or values.get("model"), found), width)
        return [next(blocks)] if values.get("quiet") else list(blocks)

    return Result(dict, view, None)


def _exact(given: "JobInput") -> "JobInput":
    """The job with its model as transformers builds it: described from its modules where memplan does not know its
    type, else counted beside the description."""
    from memplan.trace.exact import exact_model

    if given.job.model is None:
        raise UsageError("--exact needs a model", "name a preset, a Hub id or a config.json")
    found = exact_model(given.job.model, given.job.revision)
    (note if found.agrees else warn)(found.summary)
    return given._replace(spec=found.spec)


def _result(report: "Report", shown: list[str], ways: "Ways | None" = None) -> Result:
    from memplan.timeline import timeline

    thumb = "rule_of_thumb" in shown

    def data() -> dict[str, Any]:
        sure = {"how_sure": _trust(report).to_dict()} if "how_sure" in shown else {}
        if "summary" in shown:
            from memplan.render.summary import summary

            return summary(report) | sure
        more = {"rule_of_thumb": _thumb(report)} if thumb else {}
        more |= {"timeline": timeline(report).to_dict()} if "timeline" in shown else {}
        from memplan.asked import report_data

        return report_data(report, ways) | more | sure

    def view(width: int) -> "list[Block]":
        from memplan.render.estimate_view import answer_blocks, estimate_blocks, ranks_blocks
        from memplan.render.ledger_view import ledger_blocks, origins_blocks
        from memplan.render.thumb_view import thumb_blocks

        if "quiet" in shown:
            return answer_blocks(report, width)
        if thumb:
            return thumb_blocks(report)
        ranks = ranks_blocks(report) if "ranks" in shown else []
        explained = [*ledger_blocks(report), *origins_blocks(report)] if "explain" in shown else []
        under: list[Block] = []
        if "how_sure" in shown:
            from memplan.render.accuracy_view import trust_blocks

            under = list(trust_blocks(_trust(report)))
        if "timeline" in shown:
            from memplan.render.timeline_view import timeline_blocks

            under += timeline_blocks(timeline(report), width)
        return [*estimate_blocks(report, width, under), *ranks, *explained]

    def rows() -> list[dict[str, Any]]:
        if "timeline" in shown:
            return timeline(report).rows()
        terms: list[dict[str, Any]] = _thumb(report)["terms"] if thumb else report.to_dict()["per_gpu"]["ledger"]
        return terms

    def page() -> dict[str, Any]:
        return data() | {"timeline": timeline(report).to_dict()}

    def drawing() -> str:
        from memplan.render.timeline_svg import report_svg

        return report_svg(report, timeline(report))

    return Result(data, view, rows, drawing, "estimate", page)


def _thumb(report: "Report") -> dict[str, Any]:
    """The rule of thumb's figures."""
    from memplan.render.thumb_view import thumb_data

    return thumb_data(report)


def _trust(report: "Report") -> "Trust":
    """How sure the estimate is, by measured runs of its kind."""
    from memplan.trust import trust

    with spinner("estimating measured runs of this kind"):
        return trust(report)


def _verify(report: "Report") -> None:
    """Hold the counted parameters against the checkpoint's safetensors headers."""
    from memplan.hub import verify_parameters
    from memplan.models import load_model

    name, revision = report.job.get("model"), report.job.get("revision")
    preset = find_preset(name) if isinstance(name, str) else None
    repo = str(preset["hub_id"]) if preset else name
    if not isinstance(repo, str) or "/" not in repo:
        raise UsageError("--verify needs a model of the Hub", "name a Hub id or a preset, such as Qwen/Qwen3-8B")
    spec = load_model(name or repo, revision)
    extras = {"the tied head stored once more": spec.vocab_size * spec.hidden_size} if spec.head_is_tied else {}
    with spinner(f"reading the safetensors headers of {printable(repo)}"):
        found = verify_parameters(repo, revision, spec.params.total, extras, model_names())
    (note if found.agrees else warn)(found.summary)
