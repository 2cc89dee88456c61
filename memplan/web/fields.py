"""What the form asks for: keys of a job, their choices, and under which heading each stands."""

from typing import Any, NamedTuple

from memplan.gpus import gpu_names
from memplan.lang import LANGUAGES
from memplan.page.dressing import own_words
from memplan.presets import model_names
from memplan.spec.job import Job
from memplan.spec.lora import Lora
from memplan.spec.rollout import ENGINES, Rollout
from memplan.tables.choices import CHOICES
from memplan.tables.methods import METHODS


class Field(NamedTuple):
    """One key of a job."""

    key: str
    """As in a job; ``lora.r`` is ``r`` of ``lora``."""
    label: str
    kind: str = "number"
    """text, number, choice or flag."""
    choices: tuple[str, ...] = ()
    first: str = ""
    """What stands in an empty field, where memplan has no default."""


GROUPS: dict[str, tuple[Field, ...]] = {
    "Job": (
        Field("model", "Model", "text", first="preset, such as llama-3.1-8b"),
        Field("method", "Method", "choice"),
        Field("gpu", "Card", "text", first="such as h100-80gb or 24GB"),
        Field("num_gpus", "Cards"),
        Field("trainer", "Trainer", "choice"),
    ),
    "Batch and lengths": (
        Field("batch_size", "Micro-batch"),
        Field("gradient_accumulation_steps", "Accumulation"),
        Field("sequence_length", "Sequence length"),
        Field("images.per_example", "Images an example"),
    ),
    "Memory": (
        Field("gradient_checkpointing", "Gradient checkpointing", "choice"),
        Field("optimizer", "Optimizer", "choice"),
        Field("precision", "Precision", "choice"),
        Field("attention", "Attention", "choice"),
        Field("kernels", "Fused kernels", "choice"),
        Field("loss_head", "Loss head", "choice"),
        Field("margin", "Margin, share of the card"),
    ),
    "Adapters": (
        Field("use_lora", "LoRA", "flag"),
        Field("lora.r", "Rank"),
        Field("lora.targets", "Targets", "text"),
        Field("quantization", "Quantised base", "choice"),
    ),
    "Sharding": (
        Field("sharding", "Data parallel", "choice"),
        Field("tensor_parallel", "Tensor parallel"),
        Field("pipeline_parallel", "Pipeline parallel"),
        Field("context_parallel", "Context parallel"),
        Field("expert_parallel", "Expert parallel"),
        Field("gpus_per_node", "Cards a node"),
    ),
    "Rollout engine": (
        Field("rollout.engine", "Engine", "choice", ENGINES),
        Field("rollout.gpu_memory_utilization", "Share of the card"),
        Field("rollout.tensor_parallel", "Engine's tensor parallel"),
        Field("rollout.prompt_length", "Prompt length"),
        Field("rollout.group_size", "Completions a prompt"),
        Field("rollout.completion_length", "Completion length"),
    ),
}
TITLES = {"method": {name: f"{name}: {method.title}" for name, method in METHODS.items()}}


def form() -> dict[str, Any]:
    """The whole form as JSON."""
    groups = [
        {
            "title": title,
            "fields": [field._asdict() | {"choices": _choices(field), "first": _first(field)} for field in fields],
        }
        for title, fields in GROUPS.items()
    ]
    own = {name: own_words(name) for name in LANGUAGES}
    return {"groups": groups, "listed": {"model": model_names(), "gpu": gpu_names()}, "languages": own}


INNER: dict[str, Any] = {"": Job, "lora": Lora, "rollout": Rollout}


def _first(field: Field) -> str:
    """What stands in an empty field: an example, or the job's default."""
    owner, _, key = field.key.rpartition(".")
    known = INNER[owner].model_fields if owner in INNER else {}
    default = known[key].default if key in known else None
    return field.first or (str(default) if isinstance(default, (int, float, str)) else "")


def _choices(field: Field) -> list[list[str]]:
    """(value, what is shown) of each."""
    names = field.choices or CHOICES.get(field.key, ()) if field.kind == "choice" else ()
    return [[name, TITLES.get(field.key, {}).get(name, name)] for name in names]
