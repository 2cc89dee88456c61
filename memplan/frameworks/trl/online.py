"""TRL's online trainers: lengths of prompt and completion, groups, the KL term, other models, and vLLM beside them.

Source: trl 1.16 trainer/grpo_config.py, rloo_config.py, experimental/online_dpo, experimental/gkd; 1.12 for PPO."""

import re
from functools import partial

from memplan.frameworks.base import ASSUMED, FILE, Draft, Keys, Origin
from memplan.frameworks.common.generating import bound_server, put, put_engine, put_server, read_fields
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.hugging_face.version import AT_ONCE
from memplan.frameworks.trl.own_groups import every_answer
from memplan.tables.trainer import version_key
from memplan.units import ceil_div, pairs_of

PROMPT = 512
"""Tokens that are assumed of a prompt where nothing bounds it: max_prompt_length's default until TRL 0.28."""
COMPLETIONS = {"grpo": "max_completion_length", "rloo": "max_completion_length", "online-dpo": "max_new_tokens",
               "ppo": "response_length"}  # fmt: skip
SERVER = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port")
OLD = ("vllm_max_model_len", "vllm_dtype")
"""Of versions in which nothing generates on the trainer's cards (0.14 to 0.16)."""
VLLM = pairs_of(
    """vllm_gpu_memory_utilization=gpu_memory_utilization vllm_tensor_parallel_size=tensor_parallel
    vllm_max_model_length=max_model_len vllm_max_model_len=max_model_len vllm_dtype=dtype
    vllm_quantization=quantization"""
)
"""Of the engine, where no server is started with its own."""


def put_evaluation(settings: Settings, rows: int, draft: Draft) -> None:
    """Evaluation generates and scores its batch at once, without gradients (trl 1.16 trainer/grpo_trainer.py:
    _generate_and_score_completions): where that is more than a step's, a step of as many is counted, which holds no
    less."""
    said = draft.said
    batch, group = said.get("batch_size"), (said.get("rollout") or {}).get("group_size") or 1
    if said.get("method") not in ("grpo", "rloo") or not isinstance(batch, int) or rows <= batch:
        draft.remarks.append(f"{settings.path}: what evaluation generates is not counted")
    elif "batch_size" in draft.given:
        draft.remarks.append(f"{settings.path}: an evaluation of more rows than --batch-size is not counted")
    else:
        draft.values["batch_size"] = ceil_div(rows, group) * group
        key = "per_device_eval_batch_size"
        draft.origins["batch_size"] = Origin(ASSUMED, f"{settings.where(key)}: {key}")
        why = f"evaluation scores {rows} completions at once: a step of as many is counted"
        draft.bound(key, settings.where(key), why, "lengths", hint=f"add --batch-size {batch}, if none is evaluated")


def read_online(keys: Keys, method: str) -> None:
    """What generates, and what it is scored by; nothing for methods that read their pairs from data."""
    if method in COMPLETIONS:
        _lengths(keys, method)
        _temperature(keys)
    if method in ("grpo", "rloo"):
        _group(keys)
        _reference(keys)
    if method == "distill":
        _temperature(keys)
    keys.skip("num_generations", "max_prompt_length", "max_completion_length", "max_new_tokens", "response_length",
              "max_length", "temperature", "entropy_coef", "use_adaptive_entropy", "cast_lm_head_to_fp32")  # fmt: skip
    _models(keys, method)
    _vllm(keys, method)


def _lengths(keys: Keys, method: str) -> None:
    name, rollout = COMPLETIONS[method], keys.draft.options.get("rollout") or {}
    completion = rollout.get("completion_length", keys.whole(name))
    if completion is None:
        return
    keys.put("completion_length", completion, name)
    if "sequence_length" in keys.draft.given:
        return
    bound = keys.whole("max_prompt_length") or None  # of 0 ``ids[:, -0:]`` is the whole (trl 0.14 to 0.19)
    prompt = rollout.get("prompt_length", bound)
    if "completion_length" in rollout or "prompt_length" in rollout:  # the options say one, or both
        put(keys, "prompt_length", PROMPT if prompt is None else prompt, "max_prompt_length")
        put(keys, "completion_length", completion, name)
    if method == "online-dpo" and keys.whole("max_length"):
        keys.put("sequence_length", max(keys.whole("max_length") or 0, completion), "max_length")
    elif prompt is not None:
        keys.put("sequence_length", prompt + completion, "max_prompt_length", name)
    elif (longest := keys.whole("vllm_max_model_length")) and keys.flag("use_vllm"):  # which takes none that is longer
        keys.put("sequence_length", max(longest, completion), "vllm_max_model_length")
    else:
        keys.assume("sequence_length", PROMPT + completion,
                    f"nothing bounds a prompt: {PROMPT} tokens are assumed; add --sequence-length")  # fmt: skip


def _temperature(keys: Keys) -> None:
    value = keys.number("temperature")
    if value and value != 1:
        keys.put("temperature", value, "temperature")


def _group(keys: Keys) -> None:
    size = keys.whole("num_generations")
    if size is not None:
        put(keys, "group_size", size, "num_generations")

    def divides(draft: object) -> None:
        """A group may be larger than a step where generation runs ahead: then its size does not matter."""
        values = keys.draft.said
        step = int(values.get("batch_size") or 1) * int(values.get("gradient_accumulation_steps") or 1)
        step *= int(values.get("num_gpus") or 1)
        rollout = keys.draft.values.get("rollout") or {}
        given = keys.draft.options.get("rollout") or {}
        if "group_size" in rollout and "group_size" not in given and size and step % size:
            keys.draft.values["rollout"] = {key: value for key, value in rollout.items() if key != "group_size"}
            if len(rollout) == 1:
                keys.draft.forget("rollout")
            keys.remark(f"num_generations {size} does not divide the {step} completions of a step")

    if where := keys.draft.facts.get(AT_ONCE):
        keys.draft.finishers["answers"] = partial(every_answer, str(where), size or 8)
    keys.draft.finishers["group"] = divides
    coefficient, adaptive = keys.number("entropy_coef"), keys.flag("use_adaptive_entropy")
    if coefficient or adaptive:
        keys.put("entropy", "loss", "entropy_coef" if coefficient else "use_adaptive_entropy")
    if keys.flag("cast_lm_head_to_fp32"):
        keys.warn("cast_lm_head_to_fp32", "is not modelled")


def _reference(keys: Keys) -> None:
    """No KL term, no reference."""
    beta = keys.number("beta")
    if "reference" in keys.draft.values and keys.draft.origins["reference"].kind == FILE:
        return
    if not beta:
        keys.put("reference", "none", "beta")
    else:
        adapted = keys.flag("use_peft") or bool(keys.draft.said.get("lora"))
        keys.put("reference", "adapter" if adapted else "resident", "beta")


def _models(keys: Keys, method: str) -> None:
    """Teachers and reward models that stand beside the policy."""
    extra = []
    teacher = keys.text("teacher_model_name_or_path")
    if teacher and method == "distill":
        extra.append(({"role": "teacher", "model": teacher}, "teacher_model_name_or_path"))
    for name in ("reward_model_name_or_path", "reward_model_path"):
        reward = keys.text(name)
        if reward and method in ("grpo", "rloo", "online-dpo", "ppo"):
            extra.append(({"role": "reward", "model": reward}, name))
    keys.skip("sft_model_path", "value_model_path")
    if extra and "extra_models" not in keys.draft.given:
        keys.put("extra_models", [row for row, _ in extra], extra[0][1])


def _vllm(keys: Keys, method: str) -> None:
    """vLLM in the trainer's processes, on a server, or, until 0.15, on a card that no process trains on."""
    keys.skip("vllm_mode", "vllm_enable_sleep_mode", "vllm_device", "generation_batch_size", "steps_per_generation")
    keys.skip(*SERVER, *VLLM)
    if method == "ppo":
        read_scores(keys)
    if method not in ("grpo", "rloo", "online-dpo", "distill"):
        keys.warn("use_vllm", f"what generates for {method} is not modelled", "engine" if keys.flag("use_vllm") else "")
        return
    if not keys.flag("use_vllm"):
        if keys.has("use_vllm"):
            put_engine(keys, "hf", "use_vllm")
        for key in ("use_transformers_paged", "use_transformers_continuous_batching"):
            if keys.flag(key):
                keys.warn(key, "the cache of continuous batching is not counted", "engine")
        _at_once(keys, ("generation_batch_size", "steps_per_generation"))
        return
    mode = (keys.text("vllm_mode") or "").lower()
    put_engine(keys, "vllm", "use_vllm", separate={"server": True, "colocate": False}.get(mode))
    served = mode != "colocate" and put_server(keys)
    silent = (0, 18) <= keys.draft.version < (1,) and not keys.has("vllm_device")  # then a server, wherever it is
    names = ("vllm_mode",) if mode == "server" else () if mode else (*SERVER, *(["use_vllm"] if silent else []))
    if server := next((key for key in names if keys.has(key) and not served), ""):
        bound_server(keys, server)
    if mode not in ("server", "colocate", ""):  # a fork's own: async_server
        what = f"vllm_mode {mode[:20]} is neither server nor colocate"
        keys.draft.ask("rollout.placement", keys.settings.where("vllm_mode"), what)
    if server in SERVER and not mode:
        put(keys, "placement", "separate", server)
    within = ("use_vllm",) if keys.draft.version < (0, 16) else ()
    olds = ("vllm_device", *((*OLD, *within) if not mode and not served else ()))
    if old := next((key for key in olds if keys.has(key)), ""):
        keys.draft.finishers["vllm device"] = partial(_device, keys, old)
    if mode != "server" and not served:
        read_fields(keys, VLLM)
        if keys.has("vllm_enable_sleep_mode") and not keys.flag("vllm_enable_sleep_mode"):
            put(keys, "sleep", "none", "vllm_enable_sleep_mode")
        elif keys.has("vllm_enable_sleep_mode"):
            version = str(keys.draft.options.get("trainer_version") or "")
            put(keys, "sleep", sleep_level(version), "vllm_enable_sleep_mode")
        _at_once(keys, ("generation_batch_size", "steps_per_generation"))


def read_scores(keys: Keys) -> None:
    """PPO generates by transformers, and scores, 64 sequences of a rank's batch at once where nothing says how many
    (trl 1.12 experimental/ppo/ppo_trainer.py: batch_generation)."""
    name = "local_rollout_forward_batch_size"
    put_engine(keys, "hf", name)
    keys.skip(name)

    def scored(draft: object) -> None:
        said = keys.draft.said
        each = int(said.get("batch_size") or 1)
        rows = min(keys.whole(name, 64) or 64, each * int(said.get("gradient_accumulation_steps") or 1))
        put(keys, "max_num_seqs", rows, name)
        if rows > each and said.get("sequence_length"):
            keys.put("logprob_token_budget", rows * int(said["sequence_length"]), name)

    keys.draft.finishers["scores"] = scored


def sleep_level(version: str) -> str:
    """2 from TRL 0.29 on: weights are sent again before each rollout (generation/vllm_generation.py)."""
    return "1" if (version_key(version) or (99,)) < (0, 29) else "2"


def _at_once(keys: Keys, names: tuple[str, str]) -> None:
    """Sequences that are generated at once where that is not a step's: set when batch and GPUs are known."""
    keys.skip(*names)
    said = next((key for key in names if keys.has(key)), None)
    if said is None:
        return

    def sequences(draft: object) -> None:
        values = keys.draft.said
        rollout = {**(keys.draft.values.get("rollout") or {}), **(keys.draft.options.get("rollout") or {})}
        shared = int(rollout.get("tensor_parallel") or 1) if rollout.get("engine") == "vllm" else 1
        size, batch = keys.whole(said, 1), int(values.get("batch_size") or 1)
        gpus = 1 if "divided" in keys.draft.finishers else int(values.get("num_gpus") or 1)  # one process has them all
        each = size // gpus if said == names[0] else size * batch
        put(keys, "max_num_seqs", max(1, each * shared), said)

    keys.draft.finishers["at once"] = sequences


def _device(keys: Keys, key: str, draft: Draft) -> None:
    """``vllm_device``: of the main process alone; auto is the card behind those that train, or in 0.15 the only one
    (trl 0.15 trainer/grpo_trainer.py: device_count)."""
    word = keys.text("vllm_device") or "auto"
    gpus = int(draft.now("num_gpus") or 1)
    number = re.fullmatch(r"cuda(?::(\d{1,3}))?", word)
    if word != "auto" and number is None:
        keys.warn("vllm_device", f"{word[:20]} is no card", "engine")
    alone = word == "auto" and gpus == 1 and draft.version < (0, 16) and "trains_on" not in draft.facts
    apart = word == "auto" or int(number[1] or 0 if number else 0) >= gpus
    if alone and str(draft.options.get("num_gpus")) != "1":
        keys.remark("vLLM has a card behind the one that trains; with --num-gpus 1 it shares that", key)
    elif alone:
        apart = False
    put(keys, "placement", "separate" if apart else "colocate", key)
    if apart and key == "vllm_device":
        put(keys, "num_gpus", 1, key)
