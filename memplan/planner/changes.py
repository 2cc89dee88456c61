"""What changes the training itself, or needs more of the host: only as the user allows, and the fewest that do."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from memplan.errors import UsageError, did_you_mean
from memplan.planner.candidates import HALF
from memplan.planner.freed import half_base
from memplan.planner.planning import Question, question
from memplan.spec.job import Job
from memplan.spec.reading import build_job
from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS
from memplan.tables.trainers import find_trainer


class Change(NamedTuple):
    """A change by the name that ``--allow`` has for it."""

    name: str
    words: str
    values: tuple[dict[str, Any], ...]
    """Job keys, the mildest first."""


RANK = 16
LEAST_LENGTH = 256
NAMES = ("offload", "8bit", "shorter", "lora", "qlora")
"""The mildest first: the training stays what it is; its numerics change; its data; its weights."""
AS_IT_IS = ("pure",)
"""What needs no leave: the job is so as it stands, by ``estimate``; other plans keep fp32 weights."""


def change(name: str, job: Job) -> Change | None:
    """The change for this job; None where it is there already, cannot be, or the trainer cannot be told."""
    made, trainer = _change(name, job), find_trainer(job.trainer, job.trainer_version or "")
    if made is None:
        return None
    told = tuple(keys for keys in made.values if all(trainer.can_be_told(*pair) for pair in keys.items()))
    return made._replace(values=told[: 1 if name == "qlora" else None]) if told else None


def _adapter(job: Job) -> dict[str, Any]:
    """LoRA of every linear, by name where the trainer asks for that; with AdamW where the optimizer takes none."""
    targets = find_trainer(job.trainer).switches.get("lora_targets")
    stepped = {"optimizer": "adamw", "optimizer_impl": "auto"} if _refuses_adapters(job) else {}
    return {"lora": {"r": RANK, **({"targets": targets} if targets else {})}, **stepped, **half_base(job)}


def _refuses_adapters(job: Job) -> bool:
    return "lora" in OPTIMIZERS[job.optimizer].refusals


def _change(name: str, job: Job) -> Change | None:
    if name == "pure":
        dtype = job.dtype or "bf16"
        bare = job.trainer == "pytorch" and job.precision == "auto" and job.lora is None and dtype in HALF
        return Change(name, f"pure {dtype} (no fp32 weights)", ({"precision": dtype},)) if bare else None
    if name == "offload":
        there = job.offload or job.megatron.optimizer_cpu_offload
        return None if there else Change(name, "states or activations offloaded to CPU", ({},))
    if name == "8bit":
        optimizer = {"adamw": "adamw-8bit", "lion": "lion-8bit"}.get(job.optimizer)
        values = ({"optimizer": optimizer, "optimizer_impl": "auto"},)
        return Change(name, "8-bit optimizer states", values) if optimizer else None
    if name == "shorter":
        lengths = []
        length = (job.token_budget or job.sequence_length) // 2
        while length >= LEAST_LENGTH:
            packed = {"token_budget": length} if job.token_budget else {}
            own = min(job.sequence_length, length)
            lengths.append({"sequence_length": own, "completion_length": _scored(job, own), **packed})
            length //= 2
        return Change(name, "shorter sequences", tuple(lengths)) if lengths else None
    stepped = " and AdamW" if not job.lora and _refuses_adapters(job) else ""
    if name == "lora":
        return None if job.lora else Change(name, f"LoRA of rank {RANK}{stepped}", (_adapter(job),))
    if job.quantization != "none":
        return None
    lora = half_base(job) if job.lora else _adapter(job)  # a 4-bit base computes in what its trainer is told
    kinds = ("nf4", "nf4-double")
    return Change(name, f"QLoRA (4-bit base){stepped}", tuple({**lora, "quantization": kind} for kind in kinds))


def _scored(job: Job, length: int) -> int | None:
    """Tokens that are scored of a row that is cut to ``length``: what the policy generates is asked for in its share;
    what the data says may lie wholly in what is kept."""
    if not job.completion_length or not METHODS[job.method].online:
        return job.completion_length and min(job.completion_length, length)
    return max(1, job.completion_length * length // job.sequence_length)


def checked(names: Sequence[str]) -> tuple[str, ...]:
    """The names that ``--allow`` was given. Raises UsageError for one that is none."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--allow: unknown change {name[:40]!r}", did_you_mean(name, NAMES))
    return tuple(name for name in NAMES if name in names)


def sets(names: Sequence[str], asked: Question) -> Iterator[tuple[Change, ...]]:
    """Every set of changes, the smallest first, the mildest first of equally many."""
    found = [each for name in names if (each := change(name, asked.given.job)) is not None]
    for size in range(1, len(found) + 1):
        for chosen in combinations(found, size):
            if not {"lora", "qlora"} <= {each.name for each in chosen}:
                yield chosen


def changed(asked: Question, chosen: Sequence[Change]) -> Iterator[tuple[Question, tuple[str, ...]]]:
    """The question with a set of changes made, the mildest values first, and what they are in words."""
    lengths = next((each.values for each in chosen if each.name == "shorter"), ({},))
    for length in lengths:
        values = asked.given.job.model_dump(exclude_unset=True)
        sources = dict(asked.given.sources)
        words = [each.words for each in chosen if each.name != "shorter"]
        if length:
            words.append(f"sequences of {length['sequence_length']} tokens")
        for keys in ({} if each.name == "shorter" else each.values[0] for each in chosen):
            _set(values, sources, keys)
        _set(values, sources, length)
        made = question(asked.given._replace(job=build_job(values), sources=sources))
        space = made.space._replace(
            offload=any(each.name == "offload" for each in chosen), global_batch=asked.space.global_batch
        )
        yield made._replace(space=space, fixed=asked.fixed), tuple(words)


def _set(values: dict[str, Any], sources: dict[str, str], keys: dict[str, Any]) -> None:
    for key, value in keys.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if key != "optimizer_impl":
            sources[key] = "option"
