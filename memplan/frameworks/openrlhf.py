"""OpenRLHF: ``openrlhf.cli.train_*`` in a command or a script, with the dotted names of 0.11 or the flat ones before.

Everything trains under DeepSpeed. Defaults are those of the program that is started.
Source: OpenRLHF 0.11 cli/train_sft.py, train_dpo.py, train_rm.py, train_ppo_ray.py.
"""

from __future__ import annotations

import re
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.documents import Document, Settings, words
from memplan.frameworks.fsdp_keys import put_inner
from memplan.frameworks.hf_arguments import ATTENTIONS
from memplan.frameworks.openrlhf_write import write
from memplan.frameworks.own_names import lora_targets
from memplan.frameworks.scripts import read_script
from memplan.frameworks.shell import Word, options_of
from memplan.units import ceil_div

_PROGRAM = re.compile(r"openrlhf\.cli\.train_(sft|dpo|rm|ppo_ray|kto|kd)\b|openrlhf/cli/train_(sft|dpo|rm|ppo_ray)\.py")
SHARED: dict[str, Any] = {
    "train.batch_size": 128,
    "ds.zero_stage": 2,
    "ds.param_dtype": "bf16",
    "ds.attn_implementation": "flash_attention_2",
    "ds.lora.rank": 0,
    "ds.lora.alpha": 16,
    "ds.lora.dropout": 0.0,
    "ds.lora.target_modules": "all-linear",
    "optim": "adam",
}
PROGRAMS: dict[str, dict[str, Any]] = {
    "sft": {"method": "sft", "train.micro_batch_size": 8, "data.max_len": 2048},
    "dpo": {"method": "dpo", "train.micro_batch_size": 8, "data.max_len": 512},
    "rm": {"method": "reward", "train.micro_batch_size": 1, "data.max_len": 512},
    "ppo_ray": {
        "method": "ppo",
        "train.micro_batch_size": 1,
        "data.max_len": 2048,
        "train.max_tokens_per_gpu": 16192,
        "algo.advantage.estimator": "gae",
        "algo.kl.init_coef": 0.01,
        "rollout.n_samples_per_prompt": 1,
        "rollout.temperature": 1.0,
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": 8,
    },
}
ESTIMATORS = {"gae": "ppo", "rloo": "rloo", "group_norm": "grpo", "dr_grpo": "grpo", "reinforce": "grpo",
              "reinforce_baseline": "grpo"}  # fmt: skip
"""REINFORCE's update has no critic and no group, and is GRPO's otherwise."""
OLD_NAMES = {
    "pretrain": "model.model_name_or_path",
    "max_len": "data.max_len",
    "micro_train_batch_size": "train.micro_batch_size",
    "train_batch_size": "train.batch_size",
    "zero_stage": "ds.zero_stage",
    "param_dtype": "ds.param_dtype",
    "attn_implementation": "ds.attn_implementation",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "model.gradient_checkpointing_reentrant",
    "adam_offload": "ds.adam_offload",
    "lora_rank": "ds.lora.rank",
    "lora_alpha": "ds.lora.alpha",
    "lora_dropout": "ds.lora.dropout",
    "target_modules": "ds.lora.target_modules",
    "load_in_4bit": "ds.load_in_4bit",
    "use_liger_kernel": "ds.use_liger_kernel",
    "grad_accum_dtype": "ds.grad_accum_dtype",
    "ref_offload": "ref.offload",
    "ipo": "model.ipo_enable",
    "nll_loss_coef": "model.nll_loss_coef",
    "actor_num_nodes": "actor.num_nodes",
    "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "advantage_estimator": "algo.advantage.estimator",
    "init_kl_coef": "algo.kl.init_coef",
    "temperature": "rollout.temperature",
    "generate_max_len": "rollout.max_new_tokens",
    "critic_pretrain": "critic.model_name_or_path",
    "reward_pretrain": "reward.model_name_or_path",
    "remote_rm_url": "reward.remote_url",
    "ring_attn_size": "ds.ring_attn_size",
    "zpg": "ds.zpg",
    "entropy_loss_coef": "actor.entropy_coef",
    "entropy_coef": "actor.entropy_coef",
    "use_dynamic_batch": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu",
    "optimizer": "optim",
}
"""Flat names, before 0.11."""
OF_THE_ACTOR = ("model.model_name_or_path", "model.gradient_checkpointing_enable", "model.gradient_checkpointing_reentrant")
NOT_MODELLED = {
    "ds.ring_attn_size": "ring attention is not modelled: whole sequences are counted on each GPU",
    "ds.tensor_parallel_size": "DeepSpeed's tensor parallelism is not modelled",
    "ds.zpg": "a second partition within the node (ZeRO++) is not counted",
    "ds.deepcompile": "is not modelled",
    "model.compute_fp32_loss_enable": "scores are counted in the model's dtype",
    "reward.offload": "the reward model is counted as the job places it",
}
HARMLESS = words(
    """prompt_max_len bf16 flash_attn packing_samples save_path ckpt_path save_steps logging_steps eval_steps
    max_epochs learning_rate input_key output_key dataset prompt_data use_wandb apply_chat_template beta colocate_all_models
    rollout_batch_size micro_rollout_batch_size actor_learning_rate critic_learning_rate normalize_reward
    local_rank use_ms chosen_key rejected_key input_template lr_scheduler lr_warmup_ratio min_lr_ratio max_norm seed load_checkpoint"""
)
FAMILIES = ("ckpt.", "logger.", "eval.", "data.", "adam.", "muon.", "vllm.", "algo.", "rollout.", "reward.", "critic.",
            "ref.", "actor.adam.", "actor.muon.", "train.")  # fmt: skip
"""Groups of which only what is read above bears on the update's memory."""
OF_THE_MODEL = words("model.beta model.label_smoothing model.aux_loss_coef model.pretrain_mode_enable model.loss_type "
                     "model.margin_loss_enable ds.packing_samples ds.overlap_comm ds.use_universal_ckpt "
                     "ds.value_head_prefix ds.ring_attn_head_stride ds.enable_sleep actor.num_nodes actor.eps_clip "
                     "actor.eps_clip_low_high actor.dual_clip actor.policy_loss_type actor.aux_loss_coef actor.lr_scheduler "
                     "actor.lr_warmup_ratio actor.min_lr_ratio actor.max_norm actor.freezing_steps actor.optim")  # fmt: skip


def recognise(document: Document) -> tuple[str, ...]:
    """Its programs in a script."""
    return ("openrlhf.cli",) if document.form == "shell" and _PROGRAM.search(document.text) else ()


def read(document: Document, draft: Draft) -> None:
    """The first training that the script starts."""
    found = [(row, *_program(row)) for row in read_script(document.text).commands]
    starts = [(row, name, place) for row, name, place in found if name and len(row) > place + 2]
    if not starts:
        raise InvalidJob(f"{document.path}: no training of OpenRLHF's with options in it", "name a script that starts one")
    row, name, place = starts[0]
    if name not in PROGRAMS:
        raise InvalidJob(f"{document.path}, line {row[0].line}: train_{name} is not modelled",
                         f"modelled: {', '.join(PROGRAMS)}")  # fmt: skip
    values, lines, _ = options_of(row[place + 1 :])
    values = {_new_name(key, name): value for key, value in values.items()}
    lines = {_new_name(key, name): line for key, line in lines.items()}
    settings = Settings(document.path, values, lines)
    keys = Keys(draft, settings, FRAMEWORK, SHARED | PROGRAMS[name])
    read_arguments(keys, name, _launched(row[:place]))


def _new_name(key: str, program: str) -> str:
    """The dotted name of an option; of PPO's programs the model is the actor."""
    key = OLD_NAMES.get(key, key)
    return f"actor.{key.removeprefix('model.')}" if program == "ppo_ray" and key in OF_THE_ACTOR else key


def _program(row: list[Word]) -> tuple[str, int]:
    """(sft, dpo, …, the place of its word), or nothing."""
    for place, word in enumerate(row):
        match = _PROGRAM.search(word.text)
        if match:
            return match.group(1) or match.group(2), place
    return "", 0


def _launched(row: list[Word]) -> int:
    """GPUs that deepspeed or torchrun starts; 0 where nothing says it."""
    options, _, _ = options_of(row)
    each, nodes = options.get("num_gpus") or options.get("nproc_per_node"), options.get("nnodes", 1)
    return each * (nodes if isinstance(nodes, int) else 1) if isinstance(each, int) else 0


def read_arguments(keys: Keys, program: str, launched: int) -> None:
    """The options of one program."""
    draft = keys.draft
    draft.put("trainer", "openrlhf", Origin(FILE, f"{keys.settings.path}: openrlhf.cli.train_{program}"))
    of = "actor." if program == "ppo_ray" else "model."
    keys.copy("model", f"{of}model_name_or_path")
    keys.copy("sequence_length", "data.max_len", "whole")
    gpus = _gpus(keys, program, launched)
    method = _method(keys, program)
    _batch(keys, program, gpus)
    on = bool(keys.flag(f"{of}gradient_checkpointing_enable"))
    keys.put("gradient_checkpointing", "full" if on else "none", f"{of}gradient_checkpointing_enable")
    keys.put("gradient_checkpointing_reentrant", bool(keys.flag(f"{of}gradient_checkpointing_reentrant")),
             f"{of}gradient_checkpointing_reentrant")  # fmt: skip
    _deepspeed(keys)
    _adapter(keys)
    attention = ATTENTIONS.get(str(keys.get("ds.attn_implementation")).lower(), "flash")
    keys.put("attention", attention, "ds.attn_implementation")
    if keys.flag("ds.use_liger_kernel"):
        keys.put("kernels", "liger", "ds.use_liger_kernel")
    name = (keys.text("optim") or "adam").lower()
    keys.put("optimizer", "muon" if name == "muon" else "adamw", "optim")
    _models(keys, method)
    for key, why in NOT_MODELLED.items():
        if keys.get(key) not in (None, False, 1) or keys.get(key) is True:
            keys.warn(key, why)
    others = {key for key in keys.settings.values if key.startswith(FAMILIES)}
    keys.close(HARMLESS | OF_THE_MODEL | others)


def _gpus(keys: Keys, program: str, launched: int) -> int:
    if program == "ppo_ray":
        each, nodes = keys.whole("actor.num_gpus_per_node") or 1, keys.whole("actor.num_nodes") or 1
        keys.put("num_gpus", each * nodes, "actor.num_gpus_per_node")
        return each * nodes
    if launched:
        keys.put("num_gpus", launched)
        return launched
    given = keys.draft.options.get("num_gpus")
    if given is None:
        keys.assume("num_gpus", 1, "no launcher says on how many GPUs it runs: add --num-gpus")
    return int(given or 1)


def _method(keys: Keys, program: str) -> str:
    method = str(PROGRAMS[program]["method"])
    if program == "dpo" and keys.flag("model.ipo_enable"):
        keys.put("method", "ipo", "model.ipo_enable")
        return "ipo"
    if program == "dpo" and keys.number("model.nll_loss_coef"):
        keys.put("sft_term", True, "model.nll_loss_coef")
    keys.skip("model.nll_loss_coef", "model.ipo_enable")
    if program != "ppo_ray":
        keys.put("method", method)
        return method
    word = (keys.text("algo.advantage.estimator") or "gae").lower()
    if word not in ESTIMATORS:
        keys.warn("algo.advantage.estimator", f"{word[:20]} is counted as grpo")
    method = ESTIMATORS.get(word, "grpo")
    keys.put("method", method, "algo.advantage.estimator")
    return method


def _batch(keys: Keys, program: str, gpus: int) -> None:
    """Micro-batch, and accumulation of the global batch over all GPUs."""
    total, micro = keys.whole("train.batch_size") or 1, keys.whole("train.micro_batch_size") or 1
    length = keys.whole("data.max_len") or 1
    if keys.flag("train.dynamic_batch_enable"):
        tokens = keys.whole("train.max_tokens_per_gpu") or length
        micro = max(1, ceil_div(tokens, length))
        keys.put("batch_size", micro, "train.max_tokens_per_gpu")
        keys.draft.remarks.append(f"{keys.settings.path}: a micro-batch of up to {tokens} tokens is counted as {micro} "
                                  f"sequences of {length}")  # fmt: skip
    else:
        keys.put("batch_size", micro, "train.micro_batch_size")
    steps = max(1, ceil_div(total, micro * gpus))
    keys.put("gradient_accumulation_steps", steps, "train.batch_size")
    group = keys.whole("rollout.n_samples_per_prompt") or 1
    if group > 1 and (micro * steps * gpus) % group == 0 and "rollout" not in keys.draft.given:
        keys.put("rollout", {"group_size": group}, "rollout.n_samples_per_prompt")


def _deepspeed(keys: Keys) -> None:
    """ZeRO's stage, the dtype, what is offloaded, the dtype of gradients."""
    keys.put("sharding", f"zero{keys.whole('ds.zero_stage')}", "ds.zero_stage")
    dtype = str(keys.get("ds.param_dtype")).lower()
    keys.put("dtype", {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype), "ds.param_dtype")
    if keys.flag("ds.adam_offload"):
        keys.put("offload", ["optimizer"], "ds.adam_offload")
    if keys.has("ds.grad_accum_dtype"):
        put_inner(keys, "deepspeed", "grad_accum_dtype", keys.text("ds.grad_accum_dtype"), "ds.grad_accum_dtype")


def _adapter(keys: Keys) -> None:
    rank = keys.whole("ds.lora.rank") or 0
    names = keys.names("ds.lora.target_modules") or ("all-linear",)
    alpha, dropout = keys.number("ds.lora.alpha"), keys.number("ds.lora.dropout")
    if rank:
        lora = {"r": rank, "alpha": alpha, "dropout": dropout, "targets": lora_targets(names)}
        keys.put("lora", lora, "ds.lora.rank")
    if keys.flag("ds.load_in_4bit"):
        keys.put("quantization", "nf4-double", "ds.load_in_4bit")


def _models(keys: Keys, method: str) -> None:
    """The reference, a critic of another shape, a reward model on the card, lengths of online methods."""
    offloaded = bool(keys.flag("ref.offload"))
    if method in ("dpo", "ipo"):
        keys.put("reference", "offloaded" if offloaded else "resident", "ref.offload")
    if method not in ("ppo", "grpo", "rloo"):
        return
    kl = keys.number("algo.kl.init_coef")
    keys.put("reference", "none" if not kl else "offloaded" if offloaded else "resident", "algo.kl.init_coef")
    temperature = keys.number("rollout.temperature")
    if temperature and temperature != 1:
        keys.put("temperature", temperature, "rollout.temperature")
    if keys.has("rollout.max_new_tokens"):
        keys.copy("completion_length", "rollout.max_new_tokens", "whole")
    coefficient = keys.number("actor.entropy_coef")
    if coefficient is not None:
        keys.put("entropy", "loss" if coefficient else "metric", "actor.entropy_coef")
    extra = []
    critic, reward = keys.text("critic.model_name_or_path"), keys.text("reward.model_name_or_path")
    if critic and method == "ppo":
        extra.append({"role": "critic", "model": critic})
    if reward:
        keys.draft.remarks.append(f"{keys.settings.path}: the reward model stands on GPUs of its own or sleeps during the "
                                  "update, and is not counted")  # fmt: skip
    if extra:
        keys.put("extra_models", extra, "critic.model_name_or_path")


FRAMEWORK = Framework(
    "openrlhf",
    "OpenRLHF",
    "0.11",
    recognise=recognise,
    read=read,
    write=write,
    extends=("transformers", "trl", "memplan", "accelerate", "deepspeed"),
    trainer="openrlhf",
    beside=lambda job: ("deepspeed",),
)
