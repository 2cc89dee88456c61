"""Generation in a job: what the policy generates, the engine that does it, and how weights come to it."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from memplan.errors import InvalidJob, UsageError
from memplan.spec.base import Frozen
from memplan.units import parse_size

ENGINES = ("none", "hf", "vllm", "sglang")
OFFLOADS = ("parameters", "optimizer", "gradients")
"""What of the trainer can be on the host while the engine generates."""


def _engine(value: object) -> object:
    """Raise InvalidJob for an engine that runs beside trainers, whose cache is not known."""
    if isinstance(value, str) and re.fullmatch(r"(?i)(trt|tensorrt)[-_]?llm", value):
        raise InvalidJob(
            f"rollout.engine: {value} is not modelled: its cache is a share of what its own profile run leaves free",
            "for a bound use vllm with gpu_memory_utilization: the share of the card that it may fill at most",
        )
    return value


def _share(value: object, info: ValidationInfo) -> object:
    """A share of the card: more than 0, and no more than 1."""
    try:
        share = None if value is None or isinstance(value, bool) else float(str(value))
    except ValueError:
        share = None
    if value is not None and (share is None or not 0 < share <= 1):
        raise InvalidJob(
            f"rollout.{info.field_name}: {str(value)[:40]!r} is no share of the card",
            "write a share above 0, and at most 1, such as 0.5",
        )
    return share


def _version(value: object) -> object:
    """A version is text: 0.10 as a number would be 0.1; 0.11 can be nothing else."""
    cut = isinstance(value, float) and len(str(value).partition(".")[2]) < 2
    if cut or (value is not None and not re.fullmatch(r"\d[\w.+!-]{0,40}", str(value), re.ASCII)):
        raise InvalidJob(
            f"rollout.engine_version: {str(value)[:40]!r} is no version", "write all of it, such as 0.11.0"
        )
    return value if value is None else str(value)


def _size(value: object, info: ValidationInfo) -> object:
    """A number of bytes, or a size such as 20GiB."""
    if isinstance(value, str) and not value.strip().isdecimal():
        try:
            return parse_size(value[:40])
        except UsageError as error:
            raise InvalidJob(f"{info.field_name}: {error.message}", "write a size, such as 20GiB") from error
    return value


def _level(value: object) -> object:
    """false and none are none; true is level 1; a number is the engine's level."""
    words = {"false": "none", "off": "none", "0": "none", "true": "1"}
    text = str(value).lower()
    return value if value is None else words.get(text, text)


Count = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Share = Annotated[float, BeforeValidator(_share)]
Size = Annotated[int, Field(ge=1, le=10**15), BeforeValidator(_size)]


class Rollout(Frozen):
    """What online methods generate, and the engine that does it."""

    group_size: Count | None = None
    """Completions for each prompt."""
    prompt_length: Count | None = None
    """Tokens of a prompt, padding included."""
    completion_length: Count | None = None
    """Tokens of a completion: with prompt_length, the sequence_length and completion_length of the update."""
    engine: Annotated[Literal["none", "hf", "vllm", "sglang"] | None, BeforeValidator(_engine)] = None
    """What generates: vllm, sglang, hf (transformers' generate, with the policy's own weights), or none where it is not
    counted; the trainer's own when not given."""
    engine_version: Annotated[str | None, BeforeValidator(_version)] = None
    """Version of the engine; when not given the newest that the trainer takes and that is modelled."""
    placement: Literal["colocate", "separate"] | None = None
    """colocate: on the trainer's cards; separate: on cards of its own."""
    process: Literal["same", "own"] | None = None
    """Colocated: in the trainer's process, or in one of its own on the same card."""
    num_gpus: Count | None = None
    """Separate: GPUs of the engine in all, beside num_gpus of the trainer."""
    tensor_parallel: Count | None = None
    data_parallel: Count | None = None
    pipeline_parallel: Count | None = None
    expert_parallel: Count | None = None
    gpu_memory_utilization: Share | None = None
    """vLLM: share of the card's memory that its budget is."""
    mem_fraction_static: Share | None = None
    """SGLang: share of the memory free at its start for weights and cache."""
    kv_cache_memory: Size | None = None
    """Bytes of the KV cache of a card, in place of what the share leaves."""
    max_model_len: Count | None = None
    """Tokens of the longest sequence that it takes."""
    max_num_seqs: Count | None = None
    """Sequences at once."""
    max_num_batched_tokens: Count | None = None
    """Tokens of one forward."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] | None = None
    """Of its weights; auto is the checkpoint's."""
    kv_dtype: Literal["auto", "bf16", "fp16", "fp32", "fp8"] | None = None
    """Of its cache; auto is that of the weights' computation."""
    quantization: Literal["none", "fp8", "awq", "gptq", "nf4", "int8", "mxfp4", "nvfp4"] | None = None
    """Of its weights; a quantised checkpoint's own when not given."""
    draft: str | dict[str, Any] | None = None
    """What drafts tokens for speculative decoding: mtp (a layer of the model's own for it), eagle (a layer of the same
    shape), eagle3 (one with an embedding and a head of its own), or a model as in ``model``. Its weights and its cache
    count."""
    draft_tokens: Count | None = None
    """Tokens that are drafted at once, each with a state of its own where a model has states; 1 when not given."""
    enforce_eager: bool | None = None
    """No CUDA graphs."""
    language_model_only: bool | None = None
    """vLLM: it serves text alone, and loads no tower."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] | None = None
    """vLLM: which log-probabilities its sampler gives back."""
    sampler: Literal["flashinfer", "torch"] | None = None
    """vLLM: what samples, where it is not what its version does by itself: flashinfer sorts no logits,
    torch does (FlashInfer is not there, or VLLM_USE_FLASHINFER_SAMPLER=0)."""
    sleep: Annotated[Literal["none", "1", "2"] | None, BeforeValidator(_level)] = None
    """What it gives back during the update: none; 1: cache, and weights to the host; 2: both, weights nowhere."""
    shared_weights: bool | None = None
    """The trainer's modules and the engine use one copy of the weights (Unsloth)."""

    @model_validator(mode="after")
    def _keys_of_the_engine(self) -> "Rollout":
        """Raise InvalidJob for a key of another engine."""
        if self.engine == "vllm" and self.mem_fraction_static is not None:
            raise InvalidJob(
                "rollout.mem_fraction_static: SGLang's, and the engine is vllm", "use gpu_memory_utilization"
            )
        if self.engine != "vllm" and self.language_model_only:
            raise InvalidJob("rollout.language_model_only: vLLM's own", "leave it out, or use engine vllm")
        if self.draft_tokens is not None and self.draft is None:
            raise InvalidJob("rollout.draft_tokens: nothing drafts", "add rollout.draft: mtp, or leave it out")
        if self.engine == "hf" and self.draft is not None:
            raise InvalidJob("rollout.draft: transformers' generate is counted without", "use engine vllm or sglang")
        if self.engine == "sglang" and self.gpu_memory_utilization is not None:
            raise InvalidJob(
                "rollout.gpu_memory_utilization: vLLM's share of the whole card, and the engine is sglang",
                "use mem_fraction_static, a share of what is free when it starts",
            )
        return self


class Sync(Frozen):
    """Weights on their way from the trainer to the engine."""

    bucket_bytes: Size | None = None
    """Bytes that are sent at once."""
    dtype: Literal["bf16", "fp16", "fp32"] | None = None
    """Of what is sent; that of the trainer's weights when not given."""
    gather: Literal["tensor", "unit", "model"] | None = None
    """What is gathered whole on a card at once: one tensor, one unit of FSDP, or the model."""


def offloads(value: Any) -> Any:
    """parameters, optimizer, gradients: one word, a list, or words with commas. Raises InvalidJob for another."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)):
        return value
    found = [str(word).strip().lower() for word in words]
    found = [word for word in found if word not in ("", "none")]
    for word in found:
        if word not in OFFLOADS:
            raise InvalidJob(f"trainer_offload: unknown value {word[:40]!r}", "use " + ", ".join(OFFLOADS))
    return tuple(word for word in OFFLOADS if word in found)


def share_key(engine: str) -> str:
    """The key of an engine's share."""
    return "mem_fraction_static" if engine == "sglang" else "gpu_memory_utilization"
