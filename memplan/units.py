"""Bytes, counts and their spelling. GiB appears here and in render/, nowhere else."""

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from memplan.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])
KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
GPU_ROUNDING = 512
"""The CUDA caching allocator hands out multiples of 512 bytes (kMinBlockSize, c10/cuda/CUDACachingAllocator.cpp)."""

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes per element of the dtypes that matmuls run in."""

_SIZE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE_UNITS |= {"KIB": KiB, "MIB": MiB, "GIB": GiB, "TIB": 1 << 40, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_COUNT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", re.ASCII)


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, in their order: a list of names that reads as one."""
    return tuple(text.split())


def pairs_of(text: str) -> dict[str, str]:
    """``name=meaning`` of each word of a text; a word alone means itself."""
    return {name: meaning if sign else name for name, sign, meaning in (word.partition("=") for word in text.split())}


def attributes_of(of: Any, names: str) -> dict[str, Any]:
    """What stands in an object under each of these names, or under the path behind its ``=``."""
    return {name: attrgetter(path)(of) for name, path in pairs_of(names).items()}


def by_word(table: Mapping[str, str]) -> dict[str, str]:
    """The row of every word in a table's texts: of many names that mean one thing."""
    return {word: meaning for meaning, words in table.items() for word in words.split()}


def by_name(*functions: _Function) -> dict[str, _Function]:
    """Functions by their names, without the first underscore and with dashes for the others."""
    return {each.__name__.lstrip("_").replace("_", "-"): each for each in functions}


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b."""
    return -(-a // b)


def divisor(whole: int, wanted: int) -> int:
    """The largest divisor of ``whole`` that is no larger than what was asked for."""
    return next(candidate for candidate in range(min(wanted, whole), 0, -1) if whole % candidate == 0)


def round_up(n: int, multiple: int) -> int:
    """Smallest multiple not below n."""
    return -(-n // multiple) * multiple


def parse_size(text: str) -> int:
    """Bytes of '80GB' (decimal), '79.1GiB' (binary) or '24G'.

    Raises UsageError when the text is no size."""
    match = _NUMBER.fullmatch(text)
    unit = match.group(2).upper() if match else ""
    if match is None or unit not in _SIZE_UNITS:
        raise UsageError(f"not a size: {text!r}", "write a number and a unit, such as 80GB or 79.1GiB")
    return round(float(match.group(1)) * _SIZE_UNITS[unit])


def parse_count(value: str | float) -> int:
    """Parameters of '8B', '350M', 8 or 8.0 (billions), or a plain count from a million up.

    Raises UsageError when the value is no count of parameters."""
    hint = "write 8, 8B, 350M or a count from a million up"
    match = _NUMBER.fullmatch(str(value))
    unit = match.group(2).upper() if match else "?"
    if match is None or unit not in _COUNT_UNITS:
        raise UsageError(f"not a number of parameters: {value!r}", hint)
    number = float(match.group(1))
    if not unit and number < 10**6:
        unit = "B"
    count = round(number * _COUNT_UNITS[unit])
    if not 10**6 <= count <= 10**15:
        raise UsageError(f"number of parameters out of range: {value!r}", hint)
    return count


def format_bytes(n: int | float, digits: int = 2) -> str:
    """'12.34 GiB', or MiB or KiB when smaller; torch's own out-of-memory message uses the same units."""
    size = abs(n)
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= unit:
            return f"{n / unit:.{digits}f} {name}"
    return f"{n:.0f} B"


def format_count(n: int) -> str:
    """'8.03 B', '494.0 M', '12.3 K'."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= unit:
            return f"{n / unit:.2f} {name}"
    return str(n)
