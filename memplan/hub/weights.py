"""Parameter totals of a checkpoint from its safetensors headers: no weight is downloaded.

A safetensors file begins with 8 bytes, the length n of a JSON header (little-endian), then the header: name, dtype,
shape and byte range of each tensor (https://huggingface.co/docs/safetensors/index#format)."""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from memplan.hub import network
from memplan.hub.cache import cached_snapshot
from memplan.hub.config import INDEX, MAX_INDEX_BYTES, check_repo_id, read_json_object
from memplan.hub.refusal import RefusedError, Wanted, refusal

SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 25_000_000
"""As huggingface_hub's SAFETENSORS_MAX_HEADER_LENGTH."""
MAX_FILES = 4096
_FIRST_READ = 100_001
"""Holds the whole header of nearly every file (huggingface_hub, parse_safetensors_file_metadata)."""
_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_DTYPE_BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U64": 8, "U32": 4, "U16": 2}


@dataclass(frozen=True)
class Verification:
    """The elements that a checkpoint stores, against those that memplan counts."""

    repo_id: str
    revision: str | None
    expected: int
    by_dtype: dict[str, int] = field(default_factory=dict)
    """Elements by safetensors dtype; empty when the repository has no safetensors."""
    explanation: str = ""
    """Of the difference, only where it is certain."""

    @property
    def total(self) -> int | None:
        """Elements in the headers; None when the repository has no safetensors."""
        return sum(self.by_dtype.values()) if self.by_dtype else None

    @property
    def agrees(self) -> bool | None:
        """Whether both are equal; None when there is nothing to compare with."""
        return None if self.total is None else self.total == self.expected

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.total is None:
            return f"{self.repo_id} has no safetensors files: {self.expected:,} parameters are not verified"
        dtypes = ", ".join(f"{dtype} {count:,}" for dtype, count in sorted(self.by_dtype.items()))
        if self.agrees:
            return f"the safetensors headers of {self.repo_id} hold {self.total:,} parameters, as counted ({dtypes})"
        text = f"the safetensors headers of {self.repo_id} hold {self.total:,} elements ({dtypes}), memplan counts "
        text += f"{self.expected:,}: {self.total - self.expected:+,}"
        return text + (f", {self.explanation}" if self.explanation else "")


def verify_parameters(
    repo_id: str,
    revision: str | None,
    expected_total: int,
    known: Mapping[str, int] | None = None,
    presets: Iterable[str] = (),
) -> Verification:
    """Compare a total with the headers in the cache, or else on the Hub; give the commit of the config as revision.

    ``known`` names what a checkpoint may hold beyond the model (or lack: negative), such as a tied head stored twice,
    with its elements. A difference is explained only when exactly one choice of these adds up to it."""
    wanted = Wanted(repo_id, revision or None, SINGLE, tuple(presets))
    try:
        check_repo_id(repo_id)
        by_dtype = _cached_counts(wanted)
        if by_dtype is None:
            network.refuse_offline()
            by_dtype = _hub_counts(wanted)
    except Exception as error:  # whatever the Hub and the libraries below come up with is told in two lines
        raise refusal(wanted, error) from error
    difference = sum(by_dtype.values()) - expected_total if by_dtype else 0
    explanation = explain_difference(difference, by_dtype, known or {})
    return Verification(repo_id, wanted.revision, expected_total, dict(by_dtype), explanation)


def explain_difference(difference: int, by_dtype: Mapping[str, int], known: Mapping[str, int]) -> str:
    """Which of the known extras make up a difference, when only one choice of them does."""
    if not difference:
        return ""
    names = sorted(known)
    choices = [choice for n in range(1, len(names) + 1) for choice in combinations(names, n)]
    fitting = [choice for choice in choices if sum(known[name] for name in choice) == difference]
    if len(fitting) == 1:
        return "which is " + " and ".join(fitting[0])
    packed = sorted(dtype for dtype in by_dtype if dtype[0] in "IU")
    return f"where {', '.join(packed)} elements may be packed weights, not parameters" if packed else ""


def count_header(start: bytes) -> Counter[str]:
    """Elements by dtype in the header at the start of a safetensors file."""
    length = int.from_bytes(start[:8], "little")
    try:
        header = json.loads(start[8 : 8 + length])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise RefusedError("header", "no JSON object at the start of the file")
    counts: Counter[str] = Counter()
    for name, tensor in header.items():
        if name != "__metadata__":
            elements = _elements(name, tensor)
            counts[tensor["dtype"]] += elements
    return counts


def _elements(name: str, tensor: Any) -> int:
    """Elements of one tensor; its shape, dtype and byte range must agree."""
    try:
        shape, dtype, (begin, end) = tensor["shape"], tensor["dtype"], tensor["data_offsets"]
        count = math.prod(shape)
        sound = all(type(size) is int and size >= 0 for size in (*shape, begin, end)) and isinstance(dtype, str)
        width = _DTYPE_BYTES.get(dtype)
    except (KeyError, TypeError, ValueError):
        sound, count, width = False, 0, None
    if not sound or (width is not None and count * width != end - begin):
        raise RefusedError("header", f"tensor {name[:80]!r} contradicts itself")
    return int(count)


def header_bytes(start: bytes) -> int:
    """Bytes from the start of the file to the end of its header."""
    length = int.from_bytes(start[:8], "little")
    if len(start) < 8 or length > MAX_HEADER_BYTES:
        raise RefusedError("header", f"a file that is no safetensors file (header of {length:,} bytes)")
    return 8 + length


def shard_names(index: Path) -> list[str]:
    """The files that an index names."""
    names = read_json_object(index, MAX_INDEX_BYTES).get("weight_map")
    files: list[Any] = list(names.values()) if isinstance(names, dict) else [None]
    plain = all(isinstance(name, str) and name.endswith(".safetensors") and ".." not in name for name in files)
    if not files or not plain or len(set(files)) > MAX_FILES:
        raise RefusedError("header", f"{INDEX} does not map tensors to safetensors files")
    return sorted(set(files))


def _cached_counts(wanted: Wanted) -> Counter[str] | None:
    """From weights that are all in the cache; None when they are not."""
    snapshot = cached_snapshot(wanted.repo_id, wanted.revision)
    if snapshot is None:
        return None
    names = [SINGLE]
    if not (snapshot / SINGLE).exists():
        names = shard_names(snapshot / INDEX) if (snapshot / INDEX).exists() else []
    if not names or not all((snapshot / name).exists() for name in names):
        return None
    return sum((_count_local(snapshot / name) for name in names), Counter())


def _count_local(path: Path) -> Counter[str]:
    """Elements by dtype of a file on disk."""
    if not path.is_file():
        raise RefusedError("header", f"{path} is no regular file")
    with path.open("rb") as file:
        start = file.read(8)
        return count_header(start + file.read(header_bytes(start) - 8))


def _hub_counts(wanted: Wanted) -> Counter[str]:
    """From the Hub, by ranged requests; empty when the repository has no safetensors."""
    network.make_ready()
    start = time.monotonic()
    urls = network.within(lambda: _urls(wanted))
    return sum(network.gather(urls, _count_remote, start), Counter())


def _count_remote(url: str) -> Counter[str]:
    """Elements by dtype of a file on the Hub: one request, two when its header is long."""
    start = network.read_start(url, _FIRST_READ)
    needed = header_bytes(start)
    return count_header(start if len(start) >= needed else network.read_start(url, needed))


def _urls(wanted: Wanted) -> list[str]:
    """Where the safetensors files are, all at one commit; none when the repository has no such file."""
    found = network.find_first(wanted.repo_id, (SINGLE, INDEX), wanted.revision)
    if found is None:
        return []
    name, commit = found
    names = [name]
    if name == INDEX:
        index, commit = network.download(wanted.repo_id, INDEX, wanted.revision, MAX_INDEX_BYTES)
        names = shard_names(index)
    return [network.file_url(wanted.repo_id, name, commit) for name in names]
