"""The job that a log tells of: an engine alone on its cards, with the settings that it was started with.

An engine's own constants on a machine: how far its start logs are from what is expected of its profile run, of what
it holds outside PyTorch, and of its graphs."""

from collections.abc import Mapping, Sequence
from math import prod
from statistics import median
from types import MappingProxyType
from typing import Any

from memplan.errors import UsageError
from memplan.generated import Engine
from memplan.logs.measured import figures
from memplan.logs.reading import Log
from memplan.logs.settings import rollout_keys
from memplan.spec.gpu import LARGEST, SMALLEST, EngineConstants
from memplan.units import GiB


def job_keys(log: Log, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Keys of memplan, those ``given`` by options first. UsageError where neither log nor option says the model."""
    model = log.settings.get("model")
    hint = "name the job: memplan check --log FILE job.yaml, or MODEL with --gpu"
    if not log.engine or not (model or "model" in given):
        raise UsageError(f"{log.path} does not say which model its figures are of", hint)
    found = figures(log)
    said = dict(log.settings)
    for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        if key in found and found[key].value >= 1:
            said[key] = round(found[key].value)
    if "share" in found and log.engine == "vllm":
        said.setdefault("gpu_memory_utilization", f"{found['share'].value:.4g}")
    rollout = rollout_keys(said, log.engine) | (given.get("rollout") or {})
    if log.engine == "vllm" and not rollout.keys() & {"gpu_memory_utilization", "kv_cache_memory"}:
        log.warnings.append(f"{log.path} does not say the engine's share of the card: its default is estimated")
    scheme = str(said.get("quantization", ""))
    if scheme and "quantization" not in rollout:
        log.warnings.append(
            f"{log.path}: quantization {scheme[:40]} does not say how many bits, and the model's own are estimated: "
            "add --set rollout.quantization=nvfp4, or fp8, int8, gptq, awq"
        )
    cards = prod(rollout.get(key, 1) for key in ("tensor_parallel", "pipeline_parallel", "data_parallel"))
    if "asleep" in found or "sleep_pool" in found:
        rollout["sleep"] = "2" if "sleep_host" in found and not found["sleep_host"].value else "1"
    keys: dict[str, Any] = {"model": str(model), "method": "generate", "rollout": rollout}
    keys |= {"num_gpus": cards} if cards > 1 else {}
    keys |= {"gpu": f"{found['total'].value / GiB:.2f}GiB"} if "total" in found else {}
    return {**keys, **given, "rollout": rollout}


FIELDS = {"activation": "activation_bytes", "non_torch": "non_torch_bytes", "graphs": "graph_bytes"}
"""Terms of a log, and what a report says of them."""


def constants(starts: Sequence[tuple[Log, Engine]]) -> EngineConstants:
    """The median over starts of measured to expected, of each term that both tell. Raises UsageError for none."""
    found: dict[str, float] = {}
    for term, field in FIELDS.items():
        said = [(figures(log), getattr(engine, field)) for log, engine in starts]
        ratios = [logged[term].value / size for logged, size in said if term in logged and size]
        if ratios:
            found[term] = min(max(median(ratios), SMALLEST), LARGEST)
    if not found:
        paths = ", ".join(log.path for log, _ in starts)
        raise UsageError(
            f"{paths}: no start says its peak activation, non-torch memory or graphs",
            "vLLM prints them with VLLM_LOGGING_LEVEL=DEBUG",
        )
    return EngineConstants(starts=len(starts), **found)
