"""DeepSpeed-Chat: the ``main.py`` of its steps, which train SFT, reward, DPO and PPO models in loops of their own.

Source: microsoft/DeepSpeedExamples@83757d9 applications/DeepSpeed-Chat/training/*/main.py, dschat/utils/ds_utils.py,
dschat/utils/module/lora.py, dschat/utils/model/model_utils.py, dschat/rlhf/ppo_trainer.py, dschat/rlhf/rlhf_engine.py;
of step 3 before that applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from memplan.frameworks import deepspeed
from memplan.frameworks.asking import beside
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.common.generating import put, put_engine
from memplan.frameworks.draft import UNSET
from memplan.frameworks.files.documents import Document, Settings, is_template, words
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.transformers import only_launch, read_launcher
from memplan.tables.texts import settings_in

STEPS = {
    "step1_supervised_finetuning": "sft",
    "step2_reward_model_finetuning": "reward",
    "step2_dpo_finetuning": "dpo",
    "step3_rlhf_finetuning": "ppo",
}
"""A step's folder -> what it trains."""
MARKS = (frozenset({"data_split", "zero_stage", "max_seq_len"}), frozenset({"actor_zero_stage", "critic_zero_stage"}))
"""Options that only its programs have together."""
DEFAULTS: dict[str, Any] = settings_in(
    """per_device_train_batch_size=16 per_device_eval_batch_size=16 gradient_accumulation_steps=1 max_seq_len=512
    gradient_checkpointing=false dtype=fp16 zero_stage=0 lora_dim=0 offload=false"""
)
OF_PPO: dict[str, Any] = settings_in(
    """gradient_accumulation_steps=1 max_prompt_seq_len=256 max_answer_seq_len=256 dtype=fp16 actor_zero_stage=0
    critic_zero_stage=0 actor_lora_dim=0 critic_lora_dim=0 offload=false"""
)
BATCHES = {
    "update": ("per_device_training_batch_size", "per_device_mini_train_batch_size"),
    "generation": ("per_device_generation_batch_size", "per_device_train_batch_size"),
}
"""Step 3's: of August 2023 on, and before; 16 where neither is said."""
HARMLESS = words(
    """data_path data_split sft_only_data_path data_output_path learning_rate weight_decay
    num_train_epochs lr_scheduler_type num_warmup_steps output_dir seed local_rank lora_learning_rate deepspeed
    enable_tensorboard tensorboard_path add_eot_token eot_token print_loss num_padding_at_beginning eval_interval
    eval_iters beta label_smoothing lora_module_name compute_fp32_loss deepscale deepscale_config deepspeed_config
    end_of_conversation_token save_steps generation_batches generation_batch_numbers ppo_epochs actor_learning_rate
    critic_learning_rate actor_weight_decay critic_weight_decay actor_lora_learning_rate critic_lora_learning_rate
    actor_lora_module_name critic_lora_module_name preprocessing_num_workers unsup_coef print_answers
    print_answers_interval align_overflow disable_actor_dropout disable_critic_dropout unpin_actor_parameters
    release_inference_cache inference_tp_size tp_gather_partition_size unsupervised_dataset_config_name"""
)


def recognise(document: Document) -> tuple[str, ...]:
    """Its programs in a script."""
    return tuple(launch.program for launch in trainings(document))[:1] if document.form == "shell" else ()


def trainings(document: Document) -> Iterator[Launch]:
    """Starts of a step's program: by its folder, or by the options that only it has."""
    for launch in launches(document):
        of_path = document.path if launch.program.rpartition("/")[2] == "main.py" else ""
        stepped = any(step in launch.program or step in of_path for step in STEPS)
        own = any(mark <= launch.arguments().values.keys() for mark in MARKS)
        if launch.program.endswith("main.py") and (own or stepped):
            yield launch


def read(document: Document, draft: Draft) -> None:
    """The one training that a script starts."""
    launch = only_launch(list(trainings(document)))
    settings = launch.arguments()
    method = _method(launch, settings, draft)
    keys = Keys(draft, settings, FRAMEWORK, OF_PPO if method == "ppo" else DEFAULTS)
    draft.put("trainer", "pytorch", Origin(FILE, f"{launch.where}: {launch.program}"))
    keys.put("padded", True)  # data_utils.py: padding="max_length"
    (_ppo if method == "ppo" else _alone)(keys, method)
    keys.close(HARMLESS)
    draft.finishers["precision"] = hf_precision.settle
    own = tuple(word for word in launch.words if word.text != "--deepspeed")  # the program's flag, which names no file
    read_launcher(replace(launch, words=own), draft)


def _alone(keys: Keys, method: str) -> None:
    """Steps 1 and 2: one model that is trained."""
    keys.copy("model", "model_name_or_path")
    keys.copy("batch_size", "per_device_train_batch_size", "whole")
    keys.copy("eval_batch_size", "per_device_eval_batch_size", "whole")  # each program evaluates before it trains
    if keys.number("dropout"):
        keys.warn("dropout", "what dropout keeps is counted as the model's own config has it", "activations")
    keys.copy("gradient_accumulation_steps", "gradient_accumulation_steps", "whole")
    keys.copy("sequence_length", "max_seq_len", "whole")
    keys.put("gradient_checkpointing", "full" if keys.flag("gradient_checkpointing") else "none",
             "gradient_checkpointing")  # fmt: skip
    _loss(keys, method)
    _adapters(keys)
    _zero(keys)


def _ppo(keys: Keys, method: str) -> None:
    """Step 3: actor, critic, reference and reward model, each in an engine of its own; the policy itself generates.

    Under a stage of its own each that is not 3 has a reference or a reward model whole. Scores are of a batch of
    generation, the actor's logits beside the reference's (generate_experience)."""
    keys.copy("model", "actor_model_name_or_path")
    update, generation = (
        next((keys.whole(key) for key in names if keys.has(key)), 16) or 16 for names in BATCHES.values()
    )
    prompt, answer = keys.whole("max_prompt_seq_len", 256), keys.whole("max_answer_seq_len", 256)
    keys.put("batch_size", update, *BATCHES["update"])
    keys.copy("gradient_accumulation_steps", "gradient_accumulation_steps", "whole")
    keys.put("sequence_length", prompt + answer, "max_prompt_seq_len")
    keys.put("completion_length", answer, "max_answer_seq_len")
    keys.skip(*BATCHES["generation"])
    if generation > update:
        keys.bound(BATCHES["generation"][keys.has(BATCHES["generation"][1])], "the policy's and the reference's logits "
                   "of a batch of generation are counted as one of twice as many", "batch")  # fmt: skip
        keys.draft.values["logprob_token_budget"] = 2 * generation * (prompt + answer)
    keys.put("loss_head", "log-softmax")
    put_engine(keys, "hf", "max_answer_seq_len")
    put(keys, "max_num_seqs", generation, BATCHES["generation"][keys.has(BATCHES["generation"][1])])
    checks = {who: "full" if keys.flag(f"{who}_gradient_checkpointing") else "none" for who in ("actor", "critic")}
    checks["actor"] = "full" if keys.flag("gradient_checkpointing") else checks["actor"]  # of the first versions
    keys.put("gradient_checkpointing", checks["actor"], "actor_gradient_checkpointing")
    if checks["actor"] != checks["critic"]:
        tell = keys.bound if checks["actor"] == "none" else keys.warn
        said = next(
            key
            for key in ("gradient_checkpointing", *(f"{who}_gradient_checkpointing" for who in checks))
            if keys.has(key)
        )
        tell(said, "the critic is counted with the actor's checkpoints", "checkpointing")
    _others(keys)
    _adapters(keys, "actor_")
    if bool(keys.whole("critic_lora_dim")) != bool(keys.whole("actor_lora_dim")):
        keys.warn("critic_lora_dim", "the critic is counted with adapters where the actor has them", "adapters")
    _zero(keys, "actor_")
    away = keys.flag("offload_reference_model") and _stage(keys, "actor_") == 3
    keys.put("reference", "offloaded" if away else "resident", "offload_reference_model")
    if _stage(keys, "critic_") != _stage(keys, "actor_"):
        keys.warn("critic_zero_stage", "the critic is counted under the actor's stage", "parallelism")
    for key, why in HELD.items():
        if keys.get(key):
            keys.warn(key, why, "engine" if "hybrid" in key else "method" if key in OF_DPO else "model")


OF_DPO = ("beta", "label_smoothing")
HELD = {
    "enable_hybrid_engine": "what DeepSpeed's hybrid engine holds to generate is not counted",
    "enable_ema": "the averaged weights are not counted",
    "unsupervised_dataset_name": "the batch of plain text is not counted",
    "actor_dropout": "what dropout keeps is counted as the model's own config has it",
    "critic_dropout": "what dropout keeps is counted as the model's own config has it",
    **dict.fromkeys(OF_DPO, "DPO's, in a program of another's that is counted as step 3"),
}
"""What step 3 may have beside its models."""


def _others(keys: Keys) -> None:
    """The critic and the reward model, both made of one checkpoint."""
    key = "critic_model_name_or_path"
    path, policy = keys.get(key), keys.draft.said.get("model")
    if not isinstance(path, str) or is_template(path):
        keys.draft.ask("extra_models", keys.settings.where(key), f"{key} {UNSET}", beside("critic", "reward"))
        path = None
    critic = {"role": "critic", **({"model": str(path)} if path else {})}
    reward = [{"role": "reward", "model": path or policy}] if path or policy else []
    keys.put("extra_models", [critic, *reward], key)


def _method(launch: Launch, settings: Settings, draft: Draft) -> str:
    """By the folder of the program or of the script, else by an option; asked for where nothing says it."""
    if "actor_zero_stage" in settings.values:
        draft.put("method", "ppo", Origin(FILE, launch.where))
        return "ppo"
    for text, why in ((launch.program, launch.where), (settings.path, f"the path of {settings.path}")):
        step = next((step for step in STEPS if step in text), "")
        if step:
            draft.put("method", STEPS[step], Origin(FILE, why))
            return STEPS[step]
    method = str(draft.options.get("method") or "")
    method = method or ("reward" if "num_padding_at_beginning" in settings.values else "")
    if not method:
        method = "dpo" if {*OF_DPO} & settings.values.keys() else "sft"
        draft.ask("method", launch.where, f"{launch.program} is SFT's, a reward model's or DPO's")
    draft.put("method", method, Origin(FILE, launch.where))
    return method


def _loss(keys: Keys, method: str) -> None:
    """DPO takes a log-softmax of all logits, beside a reference under DeepSpeed of its own."""
    if method == "dpo":
        keys.put("loss_head", "log-softmax")
        away = keys.flag("offload_reference_model") and _stage(keys) == 3  # offload_param is stage 3's
        keys.put("reference", "offloaded" if away else "resident", "offload_reference_model")
    keys.skip("offload_reference_model")


def _adapters(keys: Keys, who: str = "") -> None:
    """``lora_dim``: matrices in the model's dtype beside each linear of the layers. Without only_optimize_lora all but
    the adapted weights are trained: embeddings and head, counted as PEFT's copies of them, whose frozen originals are
    more than the norms; biases."""
    key = f"{who}lora_dim"
    rank, alone = keys.whole(key) or 0, keys.flag("only_optimize_lora")
    if rank:
        lora = {"r": rank, "alpha": rank, "dropout": 0.0, "targets": "all-linear", "dtype": str(keys.get("dtype"))}
        rest = {} if alone else {"modules_to_save": ["embed_tokens", "lm_head"], "bias": "all"}
        keys.put("lora", lora | rest, key)
        if rest:
            why = "embeddings and head are counted as copies that are trained beside the adapters"
            keys.bound(key, why, "adapters")
    keys.skip(key, "only_optimize_lora")


def _zero(keys: Keys, who: str = "") -> None:
    """get_train_ds_config: FusedAdam, or DeepSpeed's own on the CPU."""
    dtype = (keys.text("dtype") or "fp16").lower()
    if dtype not in ("fp16", "bf16"):
        raise keys.settings.error("dtype", f"{dtype[:20]!r} is no dtype of its", "use fp16 or bf16")
    zero: dict[str, Any] = {"stage": _stage(keys, who), "overlap_comm": True}
    if zero["stage"] == 3:
        zero |= {"stage3_param_persistence_threshold": 1e4, "stage3_max_live_parameters": 3e7}
        zero |= {"stage3_prefetch_bucket_size": 3e7}
    offloads = ("offload_optimizer", "offload_param")[: (0, 1, 1, 2)[zero["stage"] % 4]]  # stage 0 has none
    zero |= {name: {"device": "cpu"} for name in offloads if keys.flag("offload")}
    keys.skip("offload", "dtype")
    settings = {"zero_optimization": zero, dtype: {"enabled": True}, "optimizer": {"type": "Adam"}}
    deepspeed.read_settings(
        Settings(f"{keys.settings.where(f'{who}zero_stage')}: {who}zero_stage", settings), keys.draft
    )


def _stage(keys: Keys, who: str = "") -> int:
    """ZeRO's stage; an option's where the script leaves it to who fills it in."""
    key = f"{who}zero_stage"
    if not is_template(keys.get(key)):
        return keys.whole(key) or 0
    draft, said = (
        keys.draft,
        re.search(r"\d", str(keys.draft.options.get("zero_stage", keys.draft.options.get("sharding")))),
    )
    keys.skip(key)
    if not said:
        draft.ask("sharding", keys.settings.where(key), f"{key} {UNSET}")
    return int(said.group()) if said else 0


FRAMEWORK = Framework("deepspeed-chat", "DeepSpeed-Chat", "2025", recognise, read, extends=("transformers", "trl"))
