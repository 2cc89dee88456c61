"""The words of a report: what a category is called, how a job reads aloud."""

from collections.abc import Mapping
from typing import Any

from memplan.report import PerGpu, Remedy, Report
from memplan.spec.option_words import option_words
from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS
from memplan.tables.precisions import PRECISIONS
from memplan.tables.quantizations import QUANTIZATIONS
from memplan.tables.texts import parts_of, rows_of
from memplan.units import format_bytes, format_count

_PARTS = parts_of(__file__)
SHARDING = rows_of(_PARTS["sharding"])

METERS = {
    "allocated": "torch.cuda.max_memory_allocated",
    "reserved": "torch.cuda.max_memory_reserved",
    "device": "nvidia-smi",
}
"""Where a user reads each meter."""

COSTS = {"speed": "", **rows_of(_PARTS["costs"])}
"""What a remedy costs beside time, in words."""


def remedy_cost(remedy: Remedy, host: int = 0) -> str:
    """'34 % slower', 'another training, 1.8 × as fast', with what it needs of each node's memory where the job as it is
    needs less of it, ``host``."""
    speed, words = remedy.relative_speed, [COSTS.get(remedy.cost, remedy.cost)]
    if speed >= 1.05 and remedy.alters_training:
        words.append(f"{speed:.1f} × as fast")
    elif speed < 0.5:
        words.append(f"{1 / speed:.1f} × the time")
    elif speed < 0.995:
        words.append(f"{100 * (1 - speed):.0f} % slower")
    if remedy.host_bytes_per_node - host >= 1 << 30:
        words.append(f"{format_bytes(remedy.host_bytes_per_node)} of host memory per node")
    return ", ".join(word for word in words if word) or COSTS["nothing"]


def to_type(remedy: Remedy) -> tuple[str, ...]:
    """What to write for a remedy, line by line: in the words of the job's own file, else memplan's options."""
    return remedy.write or (option_words(remedy.changes),)


def category_title(category: str) -> str:
    """'optimizer_states' -> 'optimizer states'."""
    return category.replace("_", " ")


def model_words(report: Report) -> str:
    """'llama-3.1-8b (llama), 8.03 B parameters, all trained'."""
    params = report.model.params
    words = f"{report.model.name} ({report.model.family}), {format_count(params.total)} parameters"
    if params.active < params.total:
        words += f", {format_count(params.active)} active for a token"
    if params.trainable == params.total:
        return f"{words}, all trained"
    return f"{words}, {format_count(params.trainable)} trained{lora_words(report.job)}"


def lora_words(job: Mapping[str, Any]) -> str:
    """' by LoRA r 16 on q_proj, v_proj'; empty without LoRA."""
    lora = job.get("lora")
    if not lora:
        return ""
    targets = lora.get("targets", "all-linear")
    names = targets if isinstance(targets, str) else ", ".join(targets)
    ranks = "".join(f", {rank} on {name}" for name, rank in dict(lora.get("rank_pattern") or ()).items())
    layers = len(lora.get("layers_to_transform") or ())
    within = f" in {layers} layer{'s' if layers > 1 else ''}" if layers else ""
    rows = sum(dict(lora.get("trainable_token_indices") or ()).values())
    tokens = f", and {format_count(rows)} tokens" if rows else ""
    return f" by LoRA r {lora.get('r')} on {names}{ranks}{within}{tokens}"


def is_pairwise(job: Mapping[str, Any]) -> bool:
    """Whether an example is a pair of sequences."""
    return METHODS[job["method"]].pairs


def method_words(job: Mapping[str, Any]) -> str:
    """What is trained for, and what one example is."""
    method = METHODS[job["method"]]
    words = f"{method.name}, {method.title}"
    if method.pairs:
        words += f"; both sequences of a pair {PAIR_PASSES.get(job['pair_pass'], job['pair_pass'])}"
    if job.get("reference", "none") != "none":
        words += f"; reference {job['reference']}"
    if method.critic:
        words += "; a critic is trained beside the policy"
    group = (job.get("rollout") or {}).get("group_size")
    return words + (f"; groups of {group} completions" if group else "")


PAIR_PASSES = {
    "concatenated": "in one forward",
    "two-forward": "in two forwards and one backward",
    "split": "one after the other, one graph at a time",
    "gradcache": "one after the other, after a pass without a graph",
}


def gpu_words(report: Report) -> str:
    """How many GPUs share what."""
    job = report.job
    count, sharding = job["num_gpus"], job.get("sharding")  # an engine alone has none
    if count == 1 or sharding is None:
        return cards_words(report)
    nodes = -(-count // job["gpus_per_node"])
    where = "on one node" if nodes == 1 else f"on {nodes} nodes"
    return f"{cards_words(report)} {where}; {SHARDING.get(sharding, sharding)}"


def cards_words(report: Report) -> str:
    """How many GPUs; the card of this machine by its name."""
    card = report.verdict.gpu if report.verdict and report.job.get("gpu") else report.job.get("gpu")
    return f"{report.job['num_gpus']}" + (f" × {card}" if card else "")


def storage_words(job: Mapping[str, Any]) -> str:
    """In which dtypes things are kept, and who steps on them."""
    title = PRECISIONS[job["precision"]].title
    if not str(job["sharding"]).startswith("zero"):
        title = title.replace("DeepSpeed", "Megatron")
    if PRECISIONS[job["precision"]].master and job["grad_dtype"] == "fp32":
        title = title.replace("weights and gradients, fp32", "weights, fp32 gradients,", 1)
    optimizer = OPTIMIZERS[job["optimizer"]].title
    scheme = QUANTIZATIONS.get(job.get("quantization", "none"))
    base = f"; frozen linears in {scheme.title}" if scheme else ""
    return f"{job['precision']}, {title}{base}; {optimizer}, {job['optimizer_impl']}"


def batch_words(job: Mapping[str, Any]) -> str:
    """What goes through a GPU in a micro-step."""
    pairs, size, length = is_pairwise(job), job["batch_size"], job["sequence_length"]
    steps = job["gradient_accumulation_steps"]
    accumulation = f"gradient accumulation {steps}"
    if job.get("token_budget"):
        return f"{job['token_budget']:,} packed tokens per GPU, up to {length:,} each; {accumulation}"
    unit = ("pair" if pairs else "sequence") + ("" if size == 1 else "s")
    sequences = size * (2 if pairs else 1)
    words = f"{size} {unit} per GPU: {sequences} × {length:,} = {sequences * length:,} tokens"
    return f"{words}; {accumulation}"


def program_words(job: Mapping[str, Any]) -> str:
    """Who trains, and how the model's pass is run."""
    version = f" {job['trainer_version']}" if job.get("trainer_version") else ""
    how = job["gradient_checkpointing"]
    checkpointing = {"full": "activation checkpointing", "none": "no checkpointing"}.get(how, f"{how} checkpointing")
    head = "score head" if job["method"] == "reward" else f"loss head {job['loss_head']}"
    words = f"{job['trainer']}{version}; {job['attention']} attention, {checkpointing}, {head}"
    return words + (", autocast" if job.get("autocast") else "")


def needs_high(of: PerGpu) -> int:
    """What the device must hold at the most: less than it may hold where a cache can be given back."""
    return of.device_bytes.high - max(0, of.reserved_bytes.high - of.reserved_bytes.needs_high)


def signed(size: int) -> str:
    """'+ 3.20 GiB' or '− 0.50 GiB'."""
    return f"{'−' if size < 0 else '+'} {format_bytes(abs(size))}"
