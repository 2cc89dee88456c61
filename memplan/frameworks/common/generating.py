"""What generates beside a trainer: the engine's settings into ``rollout``, ``sync`` and ``trainer_offload``.

Readers put what a file says; what it leaves out is the trainer's own default, by its row. A server that
a script starts beside its training (``trl vllm-serve …``, ``swift rollout …``) is read here too, and on which cards.

Source: trl 1.16 scripts/vllm_serve.py (an engine of ``tensor_parallel_size`` × ``data_parallel_size`` cards, 0.9 of
each); ms-swift 4.5 swift/pipelines/infer/rollout.py, whose arguments begin with ``vllm_``."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from memplan.frameworks.base import FILE, Draft, Keys, Origin
from memplan.frameworks.commands.launch import Launch, launch_of
from memplan.frameworks.commands.processes import VISIBLE
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.project.pinned import pinned
from memplan.tables.engine_defaults import taken_by
from memplan.tables.engines import FIRST, runs_first, version_of
from memplan.units import ceil_div, pairs_of

_HALF = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16"}
DTYPES = {**_HALF, "auto": "auto", "float32": "fp32", "float": "fp32", "fp32": "fp32"}
KV_DTYPES = {**DTYPES, **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), "fp8")}
QUANTISED = {
    "none": "none", "fp8": "fp8", "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq",
    "bitsandbytes": "nf4", "w8a8_int8": "int8",
}  # fmt: skip
"""Words of the engines -> the job's."""
_WORDS = {"dtype": DTYPES, "kv_dtype": KV_DTYPES, "quantization": QUANTISED}
_FLAGS = ("enforce_eager",)
_SHARES = ("gpu_memory_utilization", "mem_fraction_static")
_TEXTS = ("logprobs_mode", "engine_version")

VLLM = pairs_of(
    """tensor_parallel_size=tensor_parallel data_parallel_size=data_parallel pipeline_parallel_size=pipeline_parallel
    gpu_memory_utilization max_model_len max_num_seqs max_num_batched_tokens kv_cache_memory_bytes=kv_cache_memory
    dtype kv_cache_dtype=kv_dtype quantization enforce_eager logprobs_mode"""
)
"""vLLM's own arguments -> keys of ``rollout``."""
SGLANG = pairs_of(
    """tp_size=tensor_parallel dp_size=data_parallel pp_size=pipeline_parallel ep_size=expert_parallel
    mem_fraction_static context_length=max_model_len max_running_requests=max_num_seqs
    chunked_prefill_size=max_num_batched_tokens dtype kv_cache_dtype=kv_dtype quantization
    disable_cuda_graph=enforce_eager"""
)
"""SGLang's."""
FELT = (
    "speculative_config", "speculative_algorithm", "cpu_offload_gb", "hf_overrides", "rope_scaling", "load_in_4bit",
    "num_gpu_blocks_override", "enable_dp_attention", "enable_two_batch_overlap", "max_total_tokens",
    "speculative_num_draft_tokens", "speculative_model", "model", "disaggregation_mode",
)  # fmt: skip
"""Arguments of either whose memory nothing here describes."""

IMAGES_OF_A_PROMPT = re.compile(r"limit_(images|mm_per_prompt)")
ALL_IMAGES = (0, 8, 3)
"""Since which V0's profile run leaves none out (``engine/generation/activation.py``: ITEMS)."""


def put(keys: Keys, name: str, value: Any, key: str) -> None:
    """``rollout.name`` of a key of the file; one that the job does not take is told."""
    put_inner(keys, "rollout", name, value, key)


def read_fields(keys: Keys, fields: Mapping[str, str], at: str = "") -> None:
    """Of each key that the file says, its value as the ``rollout`` key that it is; ``at`` stands before the names."""
    for name, inner in fields.items():
        key = f"{at}{name}"
        if not keys.has(key):
            keys.skip(key)
            continue
        if is_template(keys.get(key)):
            what = f"{key} is {str(keys.get(key))[:40]}"
            keys.draft.ask(f"rollout.{inner}", keys.settings.where(key), what, f"add --set rollout.{inner}=…")
            continue
        value = _value(keys, inner, key)
        if value is not None and value != -1:  # -1: the engine's own choice
            put(keys, inner, value, key)


def _value(keys: Keys, inner: str, key: str) -> Any:
    if inner in _FLAGS:
        return keys.flag(key)
    if inner in _SHARES:
        return keys.number(key)
    if inner in _TEXTS:
        return keys.text(key)
    if inner not in _WORDS:
        return keys.whole(key)
    word = (keys.text(key) or "").lower().removeprefix("torch.")
    if word in ("", "none", "null"):
        return None
    if word not in _WORDS[inner]:
        keys.warn(key, f"{word[:30]!r} of the engine is not modelled", "engine")
    return _WORDS[inner].get(word)


def put_engine(keys: Keys, name: str, key: str, *, separate: bool | None = None, own: bool | None = None) -> None:
    """The engine, and where it stands: on cards of its own or the trainer's, in a process of its own or the trainer's;
    None where the file does not say."""
    put(keys, "engine", name, key)
    if separate is not None:
        put(keys, "placement", "separate" if separate else "colocate", key)
    if own is not None and not separate:
        put(keys, "process", "own" if own else "same", key)
    keys.draft.finishers["engine's lengths"] = partial(_bound_lengths, keys.settings.path)
    if name == "vllm":
        keys.skip(*filter(IMAGES_OF_A_PROMPT.search, keys.settings.values))
        keys.draft.finishers["engine's generation"] = partial(_first_engine, keys.settings)


def _first_engine(settings: Settings, draft: Draft) -> None:
    """vLLM's first engine, where the command's environment asks for it and the project takes no newer one. Its profile
    run takes all images that a prompt may have, one of which is counted."""
    variables, where = draft.environment
    rollout = draft.values.get("rollout") or {}
    given = str((draft.options.get("rollout") or {}).get("engine_version") or "")
    trainer, of = draft.values.get("trainer", ""), str(draft.values.get("trainer_version") or "")
    usual = max(taken_by(trainer, of, "vllm"), pinned(settings.path, "vllm")[0], key=version_of)
    version = given or rollout.get("engine_version") or usual
    setting = "" if given else runs_first(version, variables)
    if setting:
        draft.values["rollout"] = {**rollout, "engine_version": FIRST}
        draft.remarks.append(
            f"{where}: under {setting} vLLM {version} runs its first engine (V0): counted as {FIRST}'s"
        )
    several = [key for key in settings.values if IMAGES_OF_A_PROMPT.search(key) and _most(settings.values[key]) > 1]
    if several and ALL_IMAGES <= version_of(FIRST if setting else version) <= version_of(FIRST):
        why = "vLLM's first engine (V0) profiles all images of a prompt, of which one is counted"
        draft.warn(f"{settings.prefix}{several[0]}", settings.where(several[0]), why, "engine")


def _most(said: object) -> int:
    """The largest number of ``{"image": 7}``."""
    return max((int(each) for each in re.findall(r"\d+", str(said))), default=0)


def _bound_lengths(path: str, draft: Draft) -> None:
    """``max_model_len`` bounds prompt and completion of a sample together, and each of them in a batch, whose longest
    prompt stands beside its longest completion."""
    rollout, given = draft.values.get("rollout") or {}, draft.options.get("rollout") or {}
    longest, total = rollout.get("max_model_len"), int(draft.values.get("sequence_length") or 0)
    if not longest or longest >= total or "max_model_len" in given or "sequence_length" in draft.given:
        return
    completion = int(draft.values.get("completion_length") or total)
    lengths = min(total - completion, longest) + min(completion, longest), min(completion, longest)
    why = f"{path}: prompt and completion, each no longer than the engine's max_model_len {longest}"
    for name, length in zip(("sequence_length", "completion_length"), lengths, strict=True):
        if length < int(draft.values.get(name) or 0):
            draft.values[name], draft.origins[name] = length, Origin(FILE, why)
    draft.values["rollout"] = {**rollout, "max_model_len": max(longest, lengths[0])}


def bound_server(keys: Keys, key: str) -> None:
    """A server whose command is not here runs by settings of its own: that it starts by its defaults stands."""
    if "rollout" not in keys.draft.options:
        why = "the command that starts its server says how it runs, and is not here: the engine's defaults are counted"
        hint = "add --set rollout.engine=none, where its own cards hold it"
        keys.draft.bound(key, keys.settings.where(key), why, "engine", hint=hint)


def read_draft(keys: Keys, at: str) -> None:
    """SGLang's EAGLE without a model of its own: the checkpoint's layer for it drafts, so many tokens at once."""
    key, tokens = f"{at}speculative_algorithm", f"{at}speculative_num_draft_tokens"
    said = keys.settings.values
    if str(said.get(key)).upper() not in ("EAGLE", "NEXTN") or said.get(f"{at}speculative_draft_model_path"):
        return
    put(keys, "draft", "mtp", key)
    if "rollout" in keys.draft.values and (count := keys.whole(tokens)):
        keys.draft.values["rollout"] = {**keys.draft.values["rollout"], "draft_tokens": count}
    keys.skip(key, tokens)


def warn_felt(keys: Keys, at: str, names: Iterable[str] = FELT) -> None:
    """Arguments of the engine whose memory nothing here describes, where they are on; ``at`` stands before them."""
    for key in (f"{at}{name}" for name in names):
        if not keys.took(key) and keys.get(key):
            keys.warn(key, "of the engine is not modelled", "engine")


def warn_engine(keys: Keys, key: str, why: str, hint: str = "") -> None:
    """An engine on the trainer's cards that nothing here describes."""
    keys.skip(key)
    keys.draft.warn(f"{keys.settings.prefix}{key}", keys.settings.where(key), why, "engine", hint)


def put_offload(keys: Keys, parts: Mapping[str, Iterable[str]]) -> None:
    """``trainer_offload`` of switches: key -> what it moves to the host. Said where any of them is."""
    said = [key for key in parts if keys.has(key)]
    on = {part for key in parts if keys.flag(key) for part in parts[key]}
    if said and "trainer_offload" not in keys.draft.given:
        order = [part for part in ("parameters", "optimizer", "gradients") if part in on]
        keys.put("trainer_offload", order, *[key for key in said if keys.flag(key)], said[0])


def count_larger(keys: Keys, key: str, size: int, tokens: int, what: str = "the scores'") -> None:
    """Another pass of the step runs more tokens at once than the update: so many are counted in the update, which
    takes no less. ``tokens``: those of the update's micro-batch; of whole ones groups stay whole."""
    draft, budget = keys.draft, keys.draft.values.get("token_budget")
    keys.skip(key)
    if {"batch_size", "token_budget"} & draft.given:
        draft.warn(key, keys.settings.where(key), f"{what} {size} tokens are counted as the update's {tokens}", "batch")
        return
    batch = draft.values.get("batch_size") or 1
    draft.values["token_budget" if budget else "batch_size"] = size if budget else batch * ceil_div(size, tokens)
    draft.bound(key, keys.settings.where(key), f"the policy is counted with {what} {size} tokens", "batch")


def put_bucket(keys: Keys, key: str, unit: int = 1) -> None:
    """``sync.bucket_bytes``, of a number of ``unit`` bytes."""
    if not keys.has(key):
        keys.skip(key)
        return
    size = keys.number(key)
    if size and size > 0:
        put_inner(keys, "sync", "bucket_bytes", int(size * unit), key)


COMMANDS = (("trl", "vllm-serve"), ("swift", "rollout"))
PROGRAMS = ("vllm_serve", "swift/cli/rollout")


def put_server(keys: Keys) -> bool:
    """The server of the same script into ``rollout``; whether there is one."""
    script = keys.draft.script
    found = next(_servers(script), None) if script is not None else None
    if found is None or script is None:
        return False
    skip = 0 if found.program.endswith((".py", *PROGRAMS)) else 1
    own = Keys(keys.draft, _options(found.arguments(skip)), keys.framework)
    cards = _named(found.command.environment)
    trained = {card for command in script.commands for card in _named(command.environment)}
    beside = bool(trained & set(cards))
    put(own, "placement", "colocate" if beside else "separate", "model")
    if beside:
        put(own, "process", "own", "model")
    read_fields(own, VLLM)
    rollout = keys.draft.values.get("rollout") or {}
    size = 1
    for name in ("tensor_parallel", "data_parallel", "pipeline_parallel"):
        size *= int(rollout.get(name) or 1)
    if not beside:
        put(own, "num_gpus", size, "tensor_parallel_size")
    if cards and len(cards) < size:
        why = f"{size} GPUs of the server, which sees {len(cards)}"
        keys.draft.warn("tensor_parallel_size", found.where, why, "engine")
    return True


def _servers(script: Document) -> Iterator[Launch]:
    """Commands of the script that serve a policy."""
    for command in script.others:
        launch = launch_of(command, script.path)
        if launch is None:
            continue
        named = (launch.program, *(word.text for word in launch.words[:1])) in COMMANDS
        if named or launch.program.removesuffix(".py").endswith(PROGRAMS):
            yield launch


def _options(settings: Settings) -> Settings:
    """Without what stands before vLLM's own names."""
    values = {key.removeprefix("vllm_"): value for key, value in settings.values.items()}
    return Settings(settings.path, values, {key.removeprefix("vllm_"): line for key, line in settings.lines.items()})


def _named(environment: Mapping[str, str]) -> list[str]:
    """Cards that a command's variables name; none where the text does not say."""
    text = next((environment[name] for name in VISIBLE if environment.get(name)), "").strip("\"' ")
    return [] if is_template(text) or "$" in text else [part.strip() for part in text.split(",") if part.strip()]
