"""At which moment of a run a traceback ends: the deepest frame that says so, and what stands above it, in whichever
dress a log has frames: plain, of ranks, Rich's boxes, notebooks.

Frames read in public reports, and the names in transformers, TRL, accelerate, peft, bitsandbytes, DeepSpeed, PyTorch,
Megatron-LM, OpenRLHF, verl, ms-swift, LLaMA-Factory and vLLM."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from memplan.tables.texts import parts_of, rows_of

MOST = 400
"""Frames of a traceback that are read: the deepest."""


class Frame(NamedTuple):
    """Where a traceback passes through: file, function, and the line's own text."""

    file: str
    function: str
    code: str = ""

    @property
    def text(self) -> str:
        """All of it, for a pattern."""
        return f"{self.file}:{self.function}: {self.code}"


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"^(?:>\s?|\[?(?:default|rank)\d+\]:?\s?|\(\w+ pid=[^)]*\)\s?|\(\w*[Ww]orker\w* [^)]*\)\s?|[│|]\s?)+", re.MULTILINE
)
_PLAIN = re.compile(r'^\s*File "(?P<file>[^"\n]{1,400})", line \d+, in (?P<function>[^\n]{1,200})$')
_BOX = re.compile(
    r"^\s*(?P<file>(?:/|\w:|~|\.\.?/)[^\s:]{1,400}|<[\w .-]+>):\d+\s+in\s+(?P<function>[\w.<>]+)\s*│?\s*$"
)
_ARROW = re.compile(r"^\s*(?:❱|-+>)\s*\d+\s?[│|]?\s*(?P<code>.*?)\s*│?\s*$")
_NOTEBOOK = re.compile(
    r"^(?P<file>[~/\w.-]+(?:/[\w.-]+)+\.py|<ipython[^>]*>)\s+in\s+(?P<function>[\w.<>]+)\(?"
    r"|^File (?P<newer>[^\s:]+):\d+, in (?P<called>[\w.<>]+)\("
)
_CUT = re.compile(r"(:\d+)\s*│?\s*$")
_REST = re.compile(r"^\s*in\s+[\w.<>]+\s*│?\s*$")


def plain_lines(text: str) -> list[str]:
    """Without colours, and without what ranks, Ray and boxes put before a line."""
    return _PREFIX.sub("", _ANSI.sub("", text).replace("\r", "\n")).split("\n")


def _joined(lines: list[str]) -> list[str]:
    """A box breaks a long path from its function."""
    found: list[str] = []
    for line in lines:
        if found and _REST.match(line) and (cut := _CUT.search(found[-1])):
            found[-1] = f"{found[-1][: cut.end(1)]} {line.strip()}"
        else:
            found.append(line)
    return found


def frames_of(text: str) -> list[Frame]:
    """Every frame, outermost first, up to the end of the text; the last traceback alone is of interest."""
    found: list[Frame] = []
    lines = _joined(plain_lines(text))
    for number, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            found = []
        elif match := _PLAIN.match(line):
            code = lines[number + 1].strip() if number + 1 < len(lines) else ""
            found.append(Frame(match["file"], match["function"].strip(), "" if code.startswith("File ") else code))
        elif match := _BOX.match(line):
            found.append(Frame(match["file"], match["function"]))
        elif match := _NOTEBOOK.match(line):
            found.append(Frame(match["file"] or match["newer"], match["function"] or match["called"]))
        elif found and not found[-1].code and (match := _ARROW.match(line)):
            found[-1] = found[-1]._replace(code=match["code"])
    return found[-MOST:]


PHASES = ("load", "start", "forward", "loss", "backward", "reduce", "optimizer", "evaluate", "save", "resume", "merge",
          "rollout", "sync", "unknown")  # fmt: skip


class Place(NamedTuple):
    """A moment, what in it, and whence that is known."""

    phase: str
    what: str = ""
    """attention, mlp, logits, first step, …"""
    because: str = ""
    """frames, log, words or size."""
    resumed: bool = False
    """The log says before it that a checkpoint was read."""


def any_of(words: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern of several, between which there is white space."""
    return re.compile("|".join(words.split()), flags)


_PARTS = parts_of(__file__)


def _rows(part: str, flags: int = 0) -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    """Phase, what of it, and its patterns, of a part of the text."""
    rows = ((*name.partition(", "), words) for name, words in rows_of(_PARTS[part]).items())
    return tuple((phase, what, any_of(words, flags)) for phase, _, what, words in rows)


RULES, OUTER = _rows("rules"), _rows("outer")
LOG = tuple((phase, pattern) for phase, _, pattern in _rows("log", re.IGNORECASE))
WORDS = tuple((phase, pattern) for phase, _, pattern in _rows("words", re.IGNORECASE))
_AGAIN = any_of(
    r"""unpack_hook CheckpointFunction.*backward checkpoint\.py:(?:backward|unpack_hook|recompute) recompute_fn
    _engine_run_backward run_backward \.backward\( _pre_backward"""
)
_WITHIN = {"forward", "loss", "load", "start", "rollout", "unknown", "optimizer"}
_PRINTING = re.compile(r"_tensor_str|_str_intern|c10d_logger|__repr__|_msg_dict|format_exc")

_WRAPPING = re.compile(
    r"FSDP\.forward|fully_sharded_data_parallel\.py:|FullyShardedDataParallel\.forward|distributed\.py:forward|"
    r"_wrapped_call_impl|_call_impl|engine\.py:forward|operations\.py:(?:forward|__call__)|amp_mode|autocast_mode|"
    r"utils/nvtx|decorate_|_fn\b|wrapper"
)
"""Modules and decorators around others: they say nothing of where."""


def place_of(frames: Sequence[Frame]) -> Place:
    """What frames say; unknown where they say nothing."""
    frames = [frame for frame in frames if not _PRINTING.search(frame.text)]
    inner = [frame for frame in frames if not _WRAPPING.search(frame.text)]
    frames = inner if any(map(_rule, inner)) else frames
    depth, place = len(frames), Place("unknown")
    for position in range(len(frames) - 1, -1, -1):
        if found := _rule(frames[position]):
            depth, place = position, found
            break
    above = frames[:depth]
    if place.phase in ("forward", "loss") and any(_AGAIN.search(frame.text) for frame in above):
        again = "" if place.what == "gathered weights" else ", computed again"
        return Place("backward", f"{place.what or 'a layer'}{again}", "frames")
    if place.phase in _WITHIN and (outer := _outer(frames)):
        return outer if outer.phase != place.phase else place
    return place


def _rule(frame: Frame) -> Place | None:
    """The line's own words before those of its function and file."""
    for text in (frame.code, f"{frame.function}", frame.text):
        for phase, what, pattern in RULES:
            if text and pattern.search(text):
                return Place(phase, what, "frames")
    return None


def _outer(frames: Sequence[Frame]) -> Place | None:
    for phase, what, pattern in OUTER:
        if any(pattern.search(frame.text) for frame in frames):
            return Place(phase, what, "frames")
    return None


_ENGINE = re.compile(
    r"\bEngineCore\b|Vllm\w*Worker|RayWorkerWrapper|\b(?:vllm|sglang)\b|\[gpu_model_runner|\[worker_base"
)
"""What engines put before the lines of their processes."""


_QUOTED = re.compile(r"`([\w.]+)\(|`(_\w+)`")
"""Functions that a report names: called, or private ones; a key of a config is neither."""


_RESUMED, _STEPPED = (next(pattern for phase, pattern in LOG if phase == of) for of in ("resume", "forward"))


def was_resumed(text: str, at: int) -> bool:
    """Whether the log says before the error that a checkpoint was read, and no step since."""
    read = list(_RESUMED.finditer(text, 0, at))
    return bool(read) and not _STEPPED.search(text, read[-1].end(), at)


def place_in_log(text: str, at: int) -> Place:
    """The last line before the error that says what was going on; then the words of whoever reports it."""
    if _ENGINE.search(text, text.rfind("\n", 0, at) + 1, at):
        return Place("rollout", "", "log")
    for start, end in ((0, at), (at, len(text))):  # behind it where the report names the error before its log
        lines = ((match.start(), phase) for phase, pattern in LOG for match in pattern.finditer(text, start, end))
        if last := max(lines, default=None):
            return Place(last[1], "", "log")
    quoted = place_of([Frame("", called or private) for called, private in _QUOTED.findall(text)])
    if quoted.phase != "unknown":
        return quoted._replace(because="words")
    said = next((phase for phase, pattern in WORDS if pattern.search(text)), "")
    return Place(said, "", "words") if said else quoted
