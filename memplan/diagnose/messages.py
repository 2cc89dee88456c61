"""The text of an out-of-memory error -> its numbers, whatever the generation and the backend that wrote it.

Forms read in public reports and in PyTorch's c10/cuda/CUDACachingAllocator.cpp of 1.0 to 2.14, torch_npu, Intel's and
Apple's ports, vLLM, SGLang, DeepSpeed and Ray. Each number is looked for by itself, since threads cut messages. Sizes
are rounded as they are printed, and those of the allocator's block rather than of the tensor."""

import re
from collections.abc import Iterator
from math import prod
from typing import Any, Literal, NamedTuple, cast

from memplan.tables.texts import parts_of
from memplan.units import MiB, format_bytes

UNITS = {"": 1, "B": 1, "BYTES": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "PIB": 1 << 50,
         "EIB": 1 << 60, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}  # fmt: skip
"""As torch's format_size has them: binary (c10/cuda/CUDACachingAllocator.cpp)."""
TYPES = {"float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int64": 8,
         "int32": 4, "int8": 1, "uint8": 1}  # fmt: skip
"""Bytes of an element, as torch and TensorFlow call its type."""
SIZE = r"\d{1,20}(?:\.\d{1,6})? ?(?:[KMGTPE]i?B|[Bb]ytes|B\b)"
"""A size in a message, as a pattern."""
_SIZE = re.compile(r"(\d+)(?:\.(\d+))? ?([A-Za-z]*)", re.ASCII)
SMALL, LARGE, LARGEST_SMALL = 2 * MiB, 20 * MiB, MiB
"""Blocks that the allocator asks the driver for: 2 MiB for requests up to 1 MiB, 20 MiB below 10 MiB, then multiples of
2 MiB (kSmallBuffer, kLargeBuffer, kRoundLarge)."""
IMPOSSIBLE = 1 << 50
"""A figure of more than a pebibyte is what NVML says for 'not available', or an overflow."""


class Printed(NamedTuple):
    """A size of a message: what was printed, and the bytes that print so."""

    text: str
    low: int
    high: int

    @property
    def bytes(self) -> int:
        """In the middle."""
        return (self.low + self.high) // 2


def printed(text: str) -> Printed | None:
    """'9.47 GiB', '896.00 MiB', '10168041472 bytes'; None for another text, and for what cannot be."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[3].upper() not in UNITS:
        return None
    unit, decimals = UNITS[match[3].upper()], len(match[2] or "")
    value = float(f"{match[1]}.{match[2] or 0}") * unit
    if value >= IMPOSSIBLE:
        return None
    half = unit / 10**decimals / 2 if unit > 1 else 0
    return Printed(text.strip(), max(0, round(value - half)), round(value + half))


def tensor_of(block: Printed) -> tuple[int, int]:
    """The least and the most bytes of a tensor for which a block prints so: what is asked of the driver is a block."""
    if block.low <= SMALL <= block.high:
        return 1, LARGEST_SMALL
    least = LARGEST_SMALL + 1 if block.low <= LARGE <= block.high else max(1, block.low - SMALL + 1)
    return least, block.high


Place = Literal["card", "host", "engine"]
LONGEST = 2500
"""Characters of a message: what comes after belongs to another."""
AROUND = 600
"""Characters before and behind the word itself, where a report tells the numbers in its own words."""
MLX = "MLX asked the system of an Apple GPU, which shares the machine's memory, and was refused"


class Process(NamedTuple):
    """What a process has of the card, as the message says."""

    size: Printed
    this: bool
    """The message says that it is the one that asked."""


class Message(NamedTuple):
    """One out-of-memory error. What the text does not say is None."""

    form: str
    at: int
    """Where it begins in the text."""
    place: Place = "card"
    requested: Printed | None = None
    allocated: Printed | None = None
    reserved: Printed | None = None
    unallocated: Printed | None = None
    capacity: Printed | None = None
    free: Printed | None = None
    pools: Printed | None = None
    """In private pools, such as those of CUDA graphs."""
    allowed: Printed | None = None
    processes: tuple[Process, ...] = ()
    device: int | None = None
    rank: int | None = None
    share: float | None = None
    """vLLM's gpu_memory_utilization."""
    variable: str = "PYTORCH_CUDA_ALLOC_CONF"
    """The environment's, that lets this backend's allocator grow segments; empty where none does."""
    warning: bool = False
    """The allocator tries again after it: no failure by itself."""
    said: str = ""
    """What the form means, where it has no numbers."""

    @property
    def held_unallocated(self) -> int | None:
        """Reserved and not allocated."""
        if self.unallocated is not None:
            return self.unallocated.bytes
        if self.reserved is None or self.allocated is None:
            return None
        return max(0, self.reserved.bytes - self.allocated.bytes)

    @property
    def numbers(self) -> int:
        """How much it says."""
        return sum(isinstance(each, Printed) for each in self)


_TORCH = re.compile(
    r"(?:CUDA|HIP|NPU|XPU|MPS backend|MUSA|MLU|HPU|ROCm)\s+(?:error:\s+)?out of memory"
    r"(?=[\s\S]{0,80}?(?:Tried to allocate|MPS allocated))|out of memory\. Tried to allocate"
    r"|OutOfMemoryError:? Tried to allocate",
    re.IGNORECASE,
)
_PARTS = parts_of(__file__)


def _numbers() -> dict[str, tuple[re.Pattern[str], ...]]:
    """How a text says each number of a message."""
    found: dict[str, tuple[re.Pattern[str], ...]] = {}
    for name, _, pattern in (line.partition(": ") for line in _PARTS["numbers"].split("\n") if line):
        read = re.compile(pattern.replace("SIZE", f"({SIZE})"), re.IGNORECASE)
        found[name] = (*found.get(name, ()), read)
    return found


def _without_numbers() -> Iterator[tuple[str, Place, re.Pattern[str], str]]:
    """Forms that have none: name, place, pattern, what it means."""
    for block in re.split(r"\n(?! )", _PARTS["silent"].strip("\n")):
        head, *patterns = block.split("\n")
        form, _, said = head.partition(": ")
        name, place = form.split()
        yield name, cast("Place", place), re.compile("|".join(map(str.strip, patterns)), re.IGNORECASE), said


_FOUND = _numbers()
_PROCESS = re.compile(rf"(this process|Process \d+) has ({SIZE})", re.IGNORECASE)
_VARIABLE = re.compile(r"PYTORCH_(?:[A-Z]+_)?ALLOC_CONF")
VARIABLES = {"hip": "PYTORCH_HIP_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF", "xpu": "PYTORCH_ALLOC_CONF",
             "mps": "", "musa": "", "mlu": "", "hpu": ""}  # fmt: skip
_DEVICE = re.compile(r"\(?(?:GPU|NPU|device(?:\s+id)?)[ :]+(\d{1,4})\b")
_RANK = re.compile(
    r"\[?(?:default|ranks?)[\s:]*?(\d{1,5})[\]:]|\(.{0,40}?(?:rank|worker)[ =]?(\d{1,5})\b.{0,40}?\)", re.IGNORECASE
)
_BYTES = re.compile(
    r"OOM on device (?P<device>\d+) while trying to allocate (?P<bytes>\d+) bytes"
    r"(?: ?\(free: (?P<free>\d+),? total: (?P<total>\d+))?",
    re.IGNORECASE,
)
_VLLM_FREE = re.compile(
    r"Free memory on device(?: \S{1,12})? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup "
    r"is less than desired GPU memory utilization \((?P<share>[\d.]+), (?P<asked>[\d.]+) GiB\)",
    re.IGNORECASE,
)
_SHAPE = re.compile(r"OOM when allocating tensor with shape\[(?P<shape>[\d,]+)\] and type (?P<type>\w+)")
_MLX = re.compile(
    r"\[(?:metal::)?malloc\w*\] (?:Unable|Attempting) to allocate (?P<bytes>\d+) bytes"
    r"(?: which is greater than the maximum allowed buffer size of (?P<most>\d+))?"
)
_CPU = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (\d+) bytes")
_RAY = re.compile(
    rf"was ({SIZE}|[\d.]+ ?GB) ?/ ?({SIZE}|[\d.]+ ?GB) \([\d.]+\), which exceeds the memory usage threshold",
    re.IGNORECASE,
)

_SILENT = tuple(_without_numbers())


def messages(text: str) -> list[Message]:
    """Every error of a text in its order; where none has numbers, the most telling of those without. Empty where the
    text speaks of no memory at all."""
    found = sorted([*_torch(text), *_counted(text)], key=lambda each: each.at)
    errors = [each for each in found if not each.warning]
    return errors or found or _silent(text)


def _torch(text: str) -> Iterator[Message]:
    starts = [match.start() for match in _TORCH.finditer(text)]
    for position, start in enumerate(starts):
        end = starts[position + 1] if position + 1 < len(starts) else len(text)
        body = re.sub(r"\s+", " ", text[start : min(end, start + LONGEST)])
        yield _read(body, start, text)


def _read(body: str, at: int, text: str) -> Message:
    numbers: dict[str, Any] = {name: _first(body, patterns) for name, patterns in _FOUND.items()}
    processes = ((match[1].lower().startswith("this"), printed(match[2])) for match in _PROCESS.finditer(body))
    device = _DEVICE.search(body)
    return Message(
        form=_form(body),
        at=at,
        processes=tuple(Process(size, this) for this, size in processes if size is not None and size.high > 0),
        device=int(device[1]) if device else None,
        rank=_rank(text, at),
        variable=_variable(body),
    )._replace(**numbers)


def _variable(body: str) -> str:
    """The one that the message names, or its backend's own; PyTorch's from 2.9 on is everyone's."""
    named = _VARIABLE.search(body)
    return named.group() if named else VARIABLES.get(_form(body), "PYTORCH_CUDA_ALLOC_CONF")


def _first(body: str, patterns: tuple[re.Pattern[str], ...]) -> Printed | None:
    for pattern in patterns:
        if match := pattern.search(body):
            return printed(match[1])
    return None


def _form(body: str) -> str:
    """Generation and backend."""
    backend = body.split(" ", 1)[0].upper()
    if backend in ("NPU", "XPU", "MPS", "HIP", "MUSA", "MLU", "HPU"):
        return backend.lower()
    if re.search(r"total capac(?:i)?ty of|is allocated by PyTorch", body):
        return "torch-2"
    if "cached" in body:
        return "torch-1.0"
    return "torch-1" if "total capacity" in body else "torch-cut"


def _rank(text: str, at: int) -> int | None:
    """The number in the prefix of the message's line."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    match = _RANK.search(line)
    return int(next(group for group in match.groups() if group)) if match else None


def _exact(number: str | None) -> Printed | None:
    return Printed(format_bytes(int(number)), int(number), int(number)) if number else None


def _counted(text: str) -> Iterator[Message]:
    """Forms that have a sentence of their own."""
    for match in _BYTES.finditer(text):
        yield Message(
            "torch-2.14", match.start(), requested=_exact(match["bytes"]), free=_exact(match["free"]),
            capacity=_exact(match["total"]), device=int(match["device"]), rank=_rank(text, match.start()), warning=True,
        )  # fmt: skip
    for match in _VLLM_FREE.finditer(text):
        yield Message(
            "vllm-free-less-than-share", match.start(), "engine", share=float(match["share"]),
            requested=printed(f"{match['asked']} GiB"), free=printed(f"{match['free']} GiB"),
            capacity=printed(f"{match['total']} GiB"), said="the engine's share of the card was not free at its start",
        )  # fmt: skip
    for match in _SHAPE.finditer(text):
        if match["type"] in TYPES:
            size = prod(map(int, filter(None, match["shape"].split(",")))) * TYPES[match["type"]]
            yield Message("tensorflow", match.start(), requested=_exact(str(size)), variable="")
    for match in _MLX.finditer(text):
        asked, most = _exact(match["bytes"]), _exact(match["most"])
        yield Message("mlx", match.start(), requested=asked, capacity=most, variable="", said=MLX)
    for match in _CPU.finditer(text):
        yield Message("host-allocator", match.start(), "host", requested=_exact(match[1]))
    for match in _RAY.finditer(text):
        said = "Ray's monitor killed a worker: the node's own memory was nearly full"
        yield Message(
            "ray-monitor", match.start(), "host", allocated=printed(match[1]), capacity=printed(match[2]), said=said
        )


def _silent(text: str) -> list[Message]:
    for name, place, pattern, said in _SILENT:
        if match := pattern.search(text):
            at = match.start()
            told = _read(re.sub(r"\s+", " ", text[max(0, at - AROUND) : at + AROUND]), at, text)
            if name == "named" and told.requested is not None:
                return [told._replace(form="told")]
            return [Message(name, at, place, rank=_rank(text, at), said=said)]
    return []
