"""What a log says of the job: the engine and its version, the model, the settings that it was started with."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.tables.texts import texts_by_name
from memplan.units import pairs_of, words_of

WORDS = ("llm engine", "server_args=", "non-default args", "args: namespace(", "api server version", "  version ",
         "starting to load model", "flashinfer for top-p")  # fmt: skip
BROKEN = WORDS[:4]
"""Of these, words of long lines."""
STARTS = ("llm engine", "server_args=serverargs(")
"""Words with which an engine begins anew: what was said before is of another start."""
_VERSIONS = (
    r"LLM engine \(v(\d[\w.+-]{0,40})\)",
    r"API server version (\d[\w.+-]{0,40})",
    r"  version (\d[\w.+-]{0,40})",
)
"""vLLM's engine, server and banner."""
_VALUE = r"""(?:=|: )(?:'([^'\n]{1,400})'|"([^"\n]{1,400})"|([^\s,)}\]]{1,60}))"""
_PATTERNS = {
    key: re.compile(rf"\b(?<!_)(?:{'|'.join(names.split())})['\"]?{_VALUE}")
    for key, names in texts_by_name(__file__).items()
}
"""By memplan's name, whatever the engine calls it."""
_STARTED = re.compile(r"Starting to load model ([^\s]{1,400}?)\.\.\.")
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
QUANTIZATIONS = pairs_of(
    """fp8 awq awq_marlin=awq gptq gptq_marlin=gptq bitsandbytes=nf4 mxfp4 gpt_oss_mxfp4=mxfp4 modelopt_fp4=nvfp4"""
)
_WHOLE = words_of("tensor_parallel pipeline_parallel data_parallel max_model_len max_num_seqs max_num_batched_tokens")
_SHARES = ("gpu_memory_utilization", "mem_fraction_static")


def settings_in(text: str) -> Iterator[tuple[str, Any]]:
    """Settings of a line that says some."""
    folded = text.lower()
    if "starting to load model" in folded:
        found = _STARTED.search(text)
        if found:
            yield "model", found.group(1)
        return
    if "using flashinfer for top-p" in folded:
        yield "sampler", "flashinfer"
        return
    for wording in _VERSIONS:
        version = re.search(wording, text)
        if version:
            yield "engine_version", version.group(1)
    if not any(word in folded for word in ("engine", "server_args=", "args")):
        return
    for key, pattern in _PATTERNS.items():
        given = pattern.search(text)
        value = next((group for group in given.groups() if group), "") if given else ""
        if value and value not in ("None", "null"):
            yield key, value


def rollout_keys(said: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """What was said, as keys of a job's ``rollout``; what memplan has no word for is left out."""
    keys: dict[str, Any] = {"engine": engine}
    for key in _WHOLE:
        number = re.fullmatch(r"\d{1,9}", str(said.get(key, "")))
        if number and int(number.group()) >= 1:
            keys[key] = int(number.group())
    for key in _SHARES:
        number = re.fullmatch(r"[01]?\.\d{1,12}|1", str(said.get(key, "")))
        if number and (key == _SHARES[0]) == (engine == "vllm"):
            keys[key] = float(number.group())
    if "engine_version" in said:
        keys["engine_version"] = str(said["engine_version"])
    dtype = DTYPES.get(str(said.get("dtype", "")).removeprefix("torch."))
    cache = str(said.get("kv_dtype", ""))
    quantization = QUANTIZATIONS.get(str(said.get("quantization", "")))
    keys |= {"dtype": dtype} if dtype else {}
    keys |= {"kv_dtype": "fp8"} if cache.startswith("fp8") else {}
    keys |= {"quantization": quantization} if quantization else {}
    keys |= {"sampler": "flashinfer"} if said.get("sampler") == "flashinfer" and engine == "vllm" else {}
    return keys | {key: True for key in ("enforce_eager", "language_model_only") if said.get(key) == "True"}
