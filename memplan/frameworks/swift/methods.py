"""Which method of ms-swift a command means, the tokens of its sequences, and the models and the engine beside it.

Source: ms-swift 4.5 swift/arguments/rlhf_args.py, rlhf_trainers/; 3.12 swift/llm/argument/rlhf_args.py."""

import re
from typing import Any

from memplan.frameworks.base import Draft, Keys
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.generating import VLLM as ARGUMENTS
from memplan.frameworks.common.generating import (
    bound_server,
    put,
    put_engine,
    put_offload,
    put_server,
    read_fields,
    warn_engine,
)
from memplan.frameworks.common.references import put_reference
from memplan.frameworks.swift.keys import ENGINE, METHODS, OF_METHODS, hub_id
from memplan.frameworks.trl.keys import KNOWN_LOSSES
from memplan.frameworks.trl.online import read_scores
from memplan.presets import find_preset
from memplan.units import ceil_div

ONLINE = ("grpo", "ppo", "distill")
PAIRS = ("dpo", "ipo", "orpo", "cpo", "simpo", "reward")


def read_method(keys: Keys, verb: str) -> str:
    """The command's word and, of ``rlhf``, ``rlhf_type`` and its loss. Raises InvalidJob for one that is not known."""
    key = "rlhf_type" if verb == "rlhf" or (not verb and keys.has("rlhf_type")) else ""
    own = "" if verb or key else next((each for each in OF_METHODS if keys.has(each) and keys.is_on(each)), "")
    word = (keys.text("rlhf_type") or "").lower() if key else verb or OF_METHODS.get(own, "sft")
    if word not in METHODS:
        raise keys.settings.error("rlhf_type", f"{word[:20]!r} is not modelled", f"modelled: {', '.join(METHODS)}")
    method, losses = METHODS[word], [name.lower() for name in keys.names("loss_type") or ()]
    if method == "dpo" and losses == ["ipo"]:
        method = "ipo"
    if method == "cpo" and losses and losses[0] == "simpo":
        method = "simpo"
    if own:
        keys.assume("method", method, f"{keys.settings.where(own)}: {own} is an argument of swift rlhf, for {word}")
    else:
        keys.put("method", method, *([key] if key else []))
    if keys.has("loss_type") and (not key or {*losses} - KNOWN_LOSSES):
        keys.warn("loss_type", f"a loss of its own is counted as {method}'s usual", "loss")
    keys.skip("loss_type", "rlhf_type")
    task = (keys.text("task_type") or "causal_lm").lower()
    if task == "seq_cls" or (keys.has("num_labels") and task == "causal_lm"):
        key = "task_type" if keys.has("task_type") else "num_labels"
        keys.bound(key, "a head for classes is counted as no less than it takes", "method")
        keys.draft.finishers["classes"] = _of_rows
    elif task != "causal_lm":
        keys.warn("task_type", f"a head for {task[:20]} is not modelled: the language model's is counted", "method")
    return method


def _of_rows(draft: Draft) -> None:
    """A head for classes scores each row, as a reward's does two rows of each pair: half as many pairs are counted;
    beside images the language model's head and its loss, which take more."""
    said = [draft.values.get(key) for key in ("trainer", "method", "images")]
    if said != ["swift", "sft", None] or {"method", "batch_size", "images"} & draft.given:
        return
    draft.values["method"] = "reward"
    for key in {"batch_size", "eval_batch_size"} & draft.values.keys():
        if isinstance(rows := draft.values[key], int):
            draft.values[key] = ceil_div(rows, 2)
    draft.values.pop("loss_head", None)


def read_lengths(keys: Keys, method: str) -> None:
    """``max_length``: of a sample, each of a pair, and of online methods of a prompt. A sample, or a pair, longer
    than a pack is one by itself (swift/dataset/packing.py: to_constant_volume)."""
    packed = bool(keys.flag("packing"))
    length, pack = keys.whole("max_length"), keys.whole("packing_length") if packed else None
    keys.skip("max_length", "packing_length", "padding_free", "max_completion_length")
    longest = max(length or 0, (pack or 0) // 2 if method in PAIRS else pack or 0)
    if method in ONLINE:
        _online(keys, length)
    elif longest <= 0:
        ask_length(keys)
    else:
        keys.put("sequence_length", longest, "max_length" if length == longest else "packing_length")
    if packed and method in PAIRS and length and length > 0:
        why = f"a pair may be two samples of {length} tokens, longer than a pack of {pack or length}"
        keys.remark(why, "packing")


def ask_length(keys: Keys) -> None:
    """Nothing bounds a sample but the model's own longest sequence (template/base.py: max_model_len)."""
    if "sequence_length" in keys.draft.given:
        return
    name = str(keys.draft.now("model") or "").rpartition("/")[2]
    preset = find_preset(name)
    longest = preset["config"].get("max_position_embeddings") if preset else None
    if longest:
        why = f"without max_length samples are as long as the model's longest sequence: {longest} tokens"
        keys.draft.bound("max_length", keys.settings.path, why, "lengths", "sequence_length")
        keys.assume("sequence_length", int(longest), why)
    else:
        keys.draft.ask("sequence_length", keys.settings.path, "without max_length samples are as long as the data's")
        keys.assume("sequence_length", 2048, "samples of at most 2048 tokens")


def _online(keys: Keys, prompt: int | None) -> None:
    completion = keys.whole("max_completion_length", 512)
    if "completion_length" not in keys.draft.given:
        keys.put("completion_length", completion, "max_completion_length")
    if "sequence_length" in keys.draft.given:
        return
    longest = keys.whole("vllm_max_model_len") if keys.flag("use_vllm") else None
    if (prompt is None or prompt <= 0) and longest and longest > completion:
        why = "without max_length prompts are as long as the data's, and no longer than the engine takes"
        keys.bound("vllm_max_model_len", why, asks="sequence_length")
        keys.assume("sequence_length", longest + completion, why)
    elif prompt is None or prompt <= 0:
        keys.draft.ask("sequence_length", keys.settings.path, "without max_length prompts are as long as the data's")
        keys.assume("sequence_length", 512 + completion, "512 tokens of a prompt, which nothing bounds")
    else:
        keys.put("sequence_length", prompt + completion, "max_length", "max_completion_length")


def read_preference(keys: Keys, method: str, lora: bool) -> None:
    """Terms of the loss, the reference, other models, and the engine that generates."""
    keys.skip("cpo_alpha", "rpo_alpha", "beta", "sync_ref_model")
    put_reference(keys, "ref_model")
    if method in ("cpo", "simpo"):
        keys.put("sft_term", bool(keys.number("cpo_alpha")), "cpo_alpha")
    if keys.number("router_aux_loss_coef"):
        keys.put("router_aux_loss", True, "router_aux_loss_coef")
    keys.skip("router_aux_loss_coef")
    keys.put_on("precompute_ref_log_probs", "reference", "precomputed")
    if method == "grpo":
        _grpo(keys, lora)
    if method == "distill" and keys.number("sft_alpha"):
        keys.warn("sft_alpha", "the model's own loss beside the divergence is not counted", "loss")
    _models(keys, method)
    _engine(keys, method)


def _grpo(keys: Keys, lora: bool) -> None:
    """No KL term, no reference; an entropy where it is logged or filters tokens."""
    beta = keys.number("beta") if keys.has("beta") else 0.04
    keys.put(
        "reference", "none" if not beta else "adapter" if lora else "resident", *(["beta"] if keys.has("beta") else [])
    )
    temperature = keys.number("temperature") if keys.has("temperature") else 0.9
    if temperature and temperature != 1:
        keys.put("temperature", temperature, *(["temperature"] if keys.has("temperature") else []))
    for key in ("log_entropy", "top_entropy_quantile"):
        value = keys.number(key) if key == "top_entropy_quantile" else keys.flag(key)
        if value and (value is True or value < 1):
            keys.put("entropy", "metric", key)
    keys.skip("temperature")


def _models(keys: Keys, method: str) -> None:
    """Reward models and teachers that stand on the trainer's cards."""
    extra: list[dict[str, Any]] = []
    if method in ("grpo", "ppo"):
        extra = [{"role": "reward", "model": hub_id(name)} for name in keys.names("reward_model") or ()]
    teacher = keys.text("teacher_model")
    if teacher and method in ("distill", "grpo"):
        extra.append({"role": "teacher", "model": hub_id(teacher)})
        if keys.has("teacher_deepspeed"):
            _teacher_sharding(keys)
    elif method == "distill":  # rlhf_args.py: self-distillation, or a server's log-probabilities
        extra.append({"role": "teacher", "model": keys.draft.now("model")})
        keys.bound("rlhf_type", "no teacher is named: one of the policy's shape is counted beside it", "model")
    keys.skip("reward_model", "teacher_model", "teacher_deepspeed", "offload_teacher_model", "teacher_model_server")
    if extra and "extra_models" not in keys.draft.given:
        keys.put("extra_models", extra, "teacher_model" if teacher else "reward_model", "rlhf_type")


def _teacher_sharding(keys: Keys) -> None:
    """A teacher that is shared among more ranks than the policy takes no more than is counted."""
    said = str(keys.get("teacher_deepspeed")).lower()
    stage = re.search(r"zero[-_]?([0-3])", said)
    why, own = "the teacher is counted as the policy's sharding has it", str(keys.draft.values.get("sharding") or "ddp")
    if "offload" in said and stage and stage[1] == "3":
        keys.bound("teacher_deepspeed", "the teacher, which waits on the host, is counted on the card", "parallelism")
        return
    if stage and own[-1:] == stage[1]:
        return
    if stage and own[-1:] <= stage[1] and own[-1:].isdigit():
        keys.bound("teacher_deepspeed", why, "parallelism")
    else:
        keys.warn("teacher_deepspeed", why, "parallelism")


VLLM = {f"vllm_{name}": inner for name, inner in ARGUMENTS.items()}
BEARING = ("vllm_speculative_config", "vllm_engine_kwargs")
OFFLOADS = {"offload_model": ("parameters",), "offload_optimizer": ("optimizer",)}


def _engine(keys: Keys, method: str) -> None:
    """vLLM in the trainer's processes, on a server, or, before 3.5, on the cards that no process trains on."""
    if method == "ppo":  # trainers/rlhf_trainer/ppo_trainer.py: trl's loop, whatever use_vllm says
        read_scores(keys)
    elif method in ONLINE and keys.flag("use_lmdeploy"):
        warn_engine(keys, "use_lmdeploy", "LMDeploy beside the trainer is not counted")
    elif method in ONLINE and keys.flag("use_vllm"):
        _vllm(keys)
    elif method in ONLINE:
        put_engine(keys, "hf", "use_vllm")
    keys.skip("use_vllm", *ENGINE)


def _vllm(keys: Keys) -> None:
    mode = (keys.text("vllm_mode") or "").lower()
    hosts = next((key for key in ("vllm_server_host", "vllm_server_base_url") if keys.has(key)), "")
    workers = keys.whole("num_infer_workers") or 0
    apart = mode == "server" or bool(hosts) or 0 < workers <= keys.draft.facts.get("spare cards", 0)
    put_engine(keys, "vllm", "use_vllm", separate=apart, own=False)
    if apart and put_server(keys):
        return
    if apart and not workers:
        bound_server(keys, "use_vllm")
    if workers and apart:
        put(keys, "num_gpus", workers, "num_infer_workers")
    read_fields(keys, VLLM)
    for key in BEARING:
        if keys.get(key) not in (None, "{}", {}):
            keys.warn(key, "of the engine is not modelled", "engine")
    if apart:
        return
    if keys.has("sleep_level"):
        put(keys, "sleep", str(keys.whole("sleep_level")), "sleep_level")
    if keys.has("move_model_batches"):
        put_inner(keys, "sync", "gather", "unit", "move_model_batches")
    put_offload(keys, OFFLOADS)
