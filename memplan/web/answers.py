"""What is asked of the page, and the answer: a JSON body in, a status and a JSON text out, the same as ``--json``.

With ``quick`` an estimate leaves out what takes a search, with ``play`` false also the play of the step through the
allocator; with ``dressed`` an answer has what the page shows beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan.errors import EXIT_BUG, EXIT_USAGE, MemplanError, UsageError, did_you_mean, printable_json
from memplan.lang import ENGLISH, LANGUAGES, said, use

if TYPE_CHECKING:
    from memplan.spec.reading import JobInput

DONE, MALFORMED, REFUSED, BUG = 200, 400, 422, 500
"""Statuses: an answer; no JSON object; what cannot be, with what to send instead; a bug in memplan."""
LARGEST = 4 * 1024 * 1024
"""Bytes of a body."""
DEEPEST = 40
"""Objects and lists in one another."""
MOST_FILES = 8
MOST_PLANS = 20


class Call(NamedTuple):
    """What a body asks for."""

    job: Mapping[str, Any]
    files: tuple[str, ...]
    """Names of the files that were sent, which lie in the working directory."""
    beside: tuple[str, ...]
    body: Mapping[str, Any]

    @property
    def given(self) -> JobInput:
        """The job as it was described."""
        from memplan.asked import given_job

        return given_job(self.job, self.files[0] if self.files else None, self.beside)

    @property
    def usual(self) -> JobInput:
        """The same with the trainer that the command line would take."""
        from memplan.asked import with_usual_trainer

        return with_usual_trainer(self.given)


def _estimate(call: Call) -> Any:
    from memplan.asked import report_data, report_of, ways_of, without_searches

    given = call.usual
    report = report_of(given, call.body.get("play"))
    return report_data(without_searches(report)) if call.body.get("quick") else report_data(report, ways_of(given))


def _plan(call: Call) -> Any:
    from memplan.planner import plan
    from memplan.planner.planning import WANTED

    top = call.body.get("top", WANTED)
    if not 1 <= top <= MOST_PLANS:
        raise UsageError(f"top: {top} is no number of plans", f"write a number from 1 to {MOST_PLANS}")
    ask = [call.body["maximize"]] if call.body.get("maximize") else []
    return plan(call.usual, call.body.get("allow") or (), top, False, ask).to_dict()


def _check(call: Call) -> Any:
    from memplan.frameworks.checks.many import check_many

    if not call.files:
        raise UsageError("check which file?", 'give file, such as {"name": "train.yaml", "text": "…"}')
    return [each.to_dict() for each in check_many(call.files, call.job, call.beside)]


def _diagnose(call: Call) -> Any:
    from memplan.asked import diagnosis_of

    if not call.body.get("text"):
        raise UsageError("diagnose which error?", "give text: the error, the traceback or the log")
    return diagnosis_of(call.body["text"], call.given if call.job or call.files else None).to_dict()


KINDS: dict[str, Callable[[Call], Any]] = {"estimate": _estimate, "plan": _plan, "check": _check, "diagnose": _diagnose}
JOB_AND_FILES: dict[str, type] = {
    "job": dict, "file": dict, "files": list, "beside": list, "dressed": bool, "lang": str,
}  # fmt: skip
KEYS: dict[str, dict[str, type]] = {
    "estimate": JOB_AND_FILES | {"quick": bool, "play": bool},
    "plan": JOB_AND_FILES | {"allow": list, "top": int, "maximize": str},
    "check": JOB_AND_FILES,
    "diagnose": JOB_AND_FILES | {"text": str},
}
"""What a body may hold; one with none of these keys is a job itself."""
TITLES: dict[type, str] = {dict: "object", list: "list", str: "string", int: "number", bool: "true or false"}


def answer(kind: str, body: bytes | str) -> tuple[int, str]:
    """Status and JSON text. The files of the body are written to the working directory, which is the caller's to
    empty. Nothing is raised, whatever the body is."""
    try:
        whole = read_body(body)
        _speak(whole.get("lang"))
        call = _call(kind, whole)
        found = KINDS[kind](call)
        return DONE, _text(_dressed(found) if call.body.get("dressed") else found)
    except MalformedError as error:
        return MALFORMED, error_text(error.message, error.hint)
    except MemplanError as error:
        told = _without_the_hub(error) if any(sign in error.message for sign in NO_HUB) else error
        return BUG if error.exit_code == EXIT_BUG else REFUSED, error_text(told.message, told.hint, error.exit_code)
    except Exception as error:
        return BUG, error_text(f"internal error: {type(error).__name__}", "report it with what you asked", EXIT_BUG)
    finally:
        _speak(None)


def _speak(name: Any) -> None:
    """In this language what is shown beside an answer is said, and an error."""
    use(name if name in LANGUAGES else ENGLISH)


def _dressed(data: Any) -> Any:
    """With what the page is told beside it."""
    from memplan.page import dressed
    from memplan.render.instants import moment_words

    return dressed(data, moment_words)


NO_HUB = ("HF_HUB_OFFLINE", "No module named 'huggingface_hub'")
"""What tells that a model was looked for on the Hub, where that is not asked."""


def _without_the_hub(error: MemplanError) -> MemplanError:
    """In place of what the Hub would have been asked: here no variable is to be unset."""
    name = next(iter(re.findall("'[^']+'", error.message)), "the model")
    hint = "name a preset, or send the model's config.json as the file (memplan web --hub asks the Hub)"
    return UsageError(f"{name} is no preset, and the Hub is not asked", hint)


def _text(data: Any) -> str:
    """As the command line prints it: what is no character is escaped."""
    from memplan.render.data import to_json

    return printable_json(to_json(data)).encode("utf-8", "backslashreplace").decode()


def error_text(message: str, hint: str, code: int = EXIT_USAGE) -> str:
    """An error as the command line's ``--json`` has it."""
    return _text({"error": said(" ".join(message.split())), "hint": said(" ".join(hint.split())), "code": code})


class MalformedError(UsageError):
    """A body that is no JSON object."""


def read_body(body: bytes | str) -> dict[str, Any]:
    """The object of a body. Raises MalformedError for anything else."""
    hint = 'send an object, such as {"job": {"model": "qwen3-8b", "method": "dpo"}}'
    try:
        found = json.loads(body, parse_constant=_no_number)
    except RecursionError:
        raise MalformedError("the body is nested too deeply", hint) from None
    except ValueError as error:
        raise MalformedError(f"the body is no JSON: {str(error)[:80]}", hint) from None
    if not isinstance(found, dict):
        raise MalformedError(f"the body is no object but a {TITLES.get(type(found), 'value')}", hint)
    if _is_deeper(found, DEEPEST):
        raise MalformedError("the body is nested too deeply", hint)
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _call(kind: str, body: dict[str, Any]) -> Call:
    """What a body asks for, with its files written. Raises UsageError for what it may not hold."""
    known = KEYS[kind]
    if not known.keys() & body.keys():
        body = {"job": body}
    for key, value in body.items():
        if key not in known:
            raise UsageError(f"{kind} takes no {key[:80]!r}", did_you_mean(key, known))
        wanted = known[key]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise UsageError(f"{key} is no {TITLES[wanted]}: {str(value)[:80]!r}", f"give {key} as {TITLES[wanted]}")
    if body.get("lang", ENGLISH) not in LANGUAGES:
        raise UsageError(f"lang: {body['lang'][:80]!r} is no language", f"known: {', '.join(LANGUAGES)}")
    if not all(isinstance(name, str) for name in body.get("allow", ())):
        raise UsageError("allow is no list of strings", 'give allow as a list, such as ["lora"]')
    job = body.get("job", {})
    _refuse_paths(job, "")
    files = [body["file"]] if "file" in body else body.get("files", [])
    beside = body.get("beside", [])
    if len(files) + len(beside) > MOST_FILES:
        raise UsageError(f"{len(files) + len(beside)} files are too many", f"send at most {MOST_FILES}")
    names = written([*files, *beside])
    return Call(job, names[: len(files)], names[len(files) :], body)


def _refuse_paths(value: Any, key: str) -> None:
    """A job names no path: what lies on this machine is not for those who ask."""
    if isinstance(value, str) and (value.startswith(("/", "~", "\\")) or re.search(r"(^|[/\\])\.\.?([/\\]|$)", value)):
        raise UsageError(f"{key or 'job'}: {value[:80]!r} is a path", "send the file itself, or name a preset")
    for name, each in value.items() if isinstance(value, dict) else ((key, item) for item in _items(value)):
        _refuse_paths(each, key or name)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


_NAME = re.compile(r"[^\x00-\x1f\x7f/\\:*?\"<>|\ud800-\udfff.~ -][^\x00-\x1f\x7f/\\:*?\"<>|\ud800-\udfff]{0,59}")
"""What a file's name may be: no path, nothing hidden, nothing that reads as an option, at most 255 bytes."""


def written(files: Sequence[Any]) -> tuple[str, ...]:
    """The names of files, which lie in the working directory now. Raises UsageError for what is none."""
    for each in files:
        if not isinstance(each, dict) or each.keys() != {"name", "text"} or not isinstance(each["text"], str):
            raise UsageError(
                "a file is a name and a text", 'give it as {"name": "train.yaml", "text": "method: dpo\\n…"}'
            )
        if not isinstance(each["name"], str) or not _NAME.fullmatch(each["name"]):
            raise UsageError(
                f"{str(each['name'])[:80]!r} is no name of a file", "give a plain name, such as train.yaml"
            )
    names = tuple(each["name"] for each in files)
    if len(set(names)) < len(names):
        raise UsageError("two files have one name", "give each a name of its own")
    for each in files:
        with open(each["name"], "x", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(each["text"])
    return names


def in_folder(folder: str, kind: str, body: bytes | str) -> tuple[int, str]:
    """``answer`` in a folder of its own, which is empty before and after."""
    import shutil
    import tempfile

    os.makedirs(folder, exist_ok=True)
    own = tempfile.mkdtemp(dir=folder)
    os.chdir(own)
    try:
        return answer(kind, body)
    finally:
        os.chdir(folder)
        shutil.rmtree(own, ignore_errors=True)
