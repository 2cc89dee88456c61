"""Ways to train a model for one who has named neither method nor trainer: all weights, LoRA, LoRA over a 4-bit base.

Each is a job of supervised fine-tuning by TRL's trainer, a beginner's most frequent first run, with what the user did
say laid over it; and each is an answer: whether it fits, how long a sequence it holds, what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from memplan.engine.allocator.reserved import Band
from memplan.errors import InvalidJob, MemplanError
from memplan.gpus import find_gpu, listed
from memplan.local_gpu import has_local
from memplan.planner.search import largest
from memplan.reporting import Peak, peak
from memplan.resolve import resolve
from memplan.resolve.clusters import with_cluster
from memplan.resolve.notes import Notes
from memplan.spec.gpu import Gpu
from memplan.spec.model import ModelSpec
from memplan.spec.reading import JobInput, with_changes
from memplan.spec.recipe import Recipe

UNIT, MOST = 64, 1 << 17
"""Lengths are multiples of the first, as trainers pad to, up to the second, or to what the model has positions for."""
PLAYS = 3
"""Steps that are played for the longest sequence of a way."""
HALF = {True: "fp16", False: "bf16"}
"""What half precision is on a card: NVIDIA's of before compute capability 8.0 multiply in fp16 alone."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train, on the card that is meant."""

    name: str
    """full, lora or qlora."""
    title: str
    changes: dict[str, Any]
    """Job keys, set over those that were given."""
    fits: str
    """yes, tight, no; unknown where no card is named; refused where such a job cannot be."""
    longest_sequence: int | None
    """Tokens, in steps of 64; None where not even the shortest fits, or no card is named."""
    device: Band | None
    """What the device holds at the length that was given, or memplan's default."""
    smallest_card: str | None = None
    """Where no card is named: the smallest of the catalogue that holds it."""
    why: str = ""
    """Why it cannot be."""

    def to_dict(self) -> dict[str, Any]:
        """Names and values of JSON."""
        device = self.device._asdict() if self.device else None
        return {
            "name": self.name,
            "title": self.title,
            "changes": self.changes,
            "fits": None if self.fits == "unknown" else self.fits,
            "longest_sequence": self.longest_sequence,
            "device_bytes": device,
            "smallest_card": self.smallest_card,
            "why": self.why or None,
        }


class Ways(NamedTuple):
    """The ways to train a model, and on what."""

    given: JobInput
    """What the user said, and the local card where that was found."""
    spec: ModelSpec
    gpu: Gpu | None
    num_gpus: int
    sequence_length: int
    rows: tuple[Way, ...]
    notes: tuple[str, ...] = ()


def ways(given: JobInput) -> Ways:
    """The ways of a job that names neither method nor trainer. Raises MemplanError where none of them can be."""
    given, notes = _on_this_machine(given)
    rows = [_way(given, name, title, changes) for name, title, changes in _plans(given)]
    if all(row.fits == "refused" for row in rows):
        resolve(with_changes(given, rows[0].changes))
    recipe = next(resolve(with_changes(given, row.changes)) for row in rows if row.fits != "refused")
    batch, gpu = recipe.batch, recipe.hardware.gpu
    return Ways(given, recipe.model, gpu, recipe.parallel.world, batch.sequence_length, tuple(rows), notes)


def _on_this_machine(given: JobInput) -> tuple[JobInput, tuple[str, ...]]:
    """With the card of this machine where none is named and there is one that tells of itself."""
    if given.job.gpu is not None or given.job.cluster is not None or not has_local():
        return given, ()
    try:
        found = find_gpu("local")
    except InvalidJob as error:
        return given, (f"{error.message}; {error.hint}",)
    return with_changes(given, {"gpu": "local"}), (found.source,)


def _plans(given: JobInput) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, title, changes) of the ways that agree with what was said: who says LoRA does not mean all weights."""
    job, said = with_cluster(given.job, Notes(dict(given.sources)))[0], given.sources
    half = _half(job.gpu)
    several = job.num_gpus > 1 and not {"sharding", "zero_stage"} & set(said)
    dtype = {} if "dtype" in said or half == "bf16" else {"dtype": half}
    base = {"method": "sft", "trainer": "trl", **dtype}
    weights = {"precision": job.dtype or half}
    if job.lora is None and job.quantization == "none":
        shared = {"sharding": "zero3"} if several else {}
        yield "full", "full fine-tuning" + (", ZeRO-3" if several else ""), base | shared
    adapters: dict[str, Any] = {} if job.lora is not None else {"lora": {}}
    if job.quantization == "none":
        yield "lora", "LoRA", base | adapters | weights
        yield "qlora", "QLoRA", base | adapters | weights | {"quantization": "nf4"}
    else:
        yield "qlora", f"LoRA over {job.quantization}", base | adapters | weights


def _half(text: str | None) -> str:
    """The dtype of half precision on a card."""
    gpu = find_gpu(text) if text else None
    major = gpu.architecture.partition(".")[0] if gpu else ""
    return HALF[gpu is not None and gpu.vendor == "nvidia" and major.isdecimal() and int(major) < 8]


def _way(given: JobInput, name: str, title: str, changes: dict[str, Any]) -> Way:
    """One way, priced at the job's length, and how long a sequence it holds."""
    try:
        recipe = resolve(with_changes(given, changes))
    except MemplanError as error:
        return Way(name, title, changes, "refused", None, None, None, error.message)
    device = peak(recipe).device
    if recipe.hardware.gpu is None:
        return Way(name, title, changes, "unknown", None, device, _smallest(given, changes))
    verdict = peak(recipe, search=True).verdict
    assert verdict is not None
    if verdict.fits != "yes" and device.low <= recipe.hardware.gpu.usable_bytes:
        verdict = peak(recipe, play="fits").verdict or verdict  # as the report does, near the card's limit

    return Way(name, title, changes, verdict.fits, _longest(given, changes, recipe) or None, device)


def _longest(given: JobInput, changes: dict[str, Any], recipe: Recipe) -> int:
    """The longest sequence that fits, to some per cent, and never one that does not: bounds that need no play enclose
    it, and what lies between them is played at a few lengths."""
    gpu = recipe.hardware.gpu
    assert gpu is not None

    def judged(units: int, **how: Any) -> Peak:
        return peak(
            resolve(with_changes(given, {**changes, "sequence_length": units * UNIT, "completion_length": None})), **how
        )

    def fits(units: int, **how: Any) -> bool:
        verdict = judged(units, **how).verdict
        return verdict is not None and verdict.fits == "yes"

    most = min(MOST, recipe.model.max_positions or MOST) // UNIT
    good = largest(lambda units: fits(units, search=True), 1, most)
    band = largest(fits, max(good, 1), most)
    most = largest(lambda units: judged(units).device.expected <= gpu.usable_bytes, max(band, 1), most)
    tried = band
    for _ in range(PLAYS):
        if not good < tried <= most:
            break
        good, most = (tried, most) if fits(tried, play="fits") else (good, tried - 1)
        tried = (good + most + 1) // 2
    return good * UNIT


def _smallest(given: JobInput, changes: Mapping[str, Any]) -> str | None:
    """The smallest card of the catalogue that holds a way."""
    for gpu in listed():
        verdict = peak(resolve(with_changes(given, {**changes, "gpu": gpu.name})), search=True).verdict
        if verdict is not None and verdict.fits == "yes":
            return gpu.name
    return None
