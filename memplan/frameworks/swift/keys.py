"""ms-swift's arguments by name: spellings by version, defaults, bundled settings, and what memory does not feel.

Sources: ms-swift 4.5 swift/arguments/, swift/trainers/arguments.py, swift/config/*.json; 3.12 swift/llm/argument/; 2.6
swift/llm/utils/argument.py, swift/llm/ds_config/*.json; model ids of swift/model/ (ModelScope's and the Hub's)."""

from typing import Any

from memplan.frameworks.files.documents import words
from memplan.frameworks.hugging_face.arguments import DEFAULTS as TRAINER
from memplan.frameworks.hugging_face.arguments import OLD_DEFAULTS as OLD_TRAINER
from memplan.tables.texts import parts_of, settings_in, told_in
from memplan.units import pairs_of

_PARTS = parts_of(__file__)

NEWEST, THIRD, SECOND = "4.5", "3.12", "2.6"
"""Versions whose defaults are taken, by what a command's words are of."""
SPELLINGS = {name: tuple(old.split(",")) for name, old in pairs_of(_PARTS["spellings"]).items()}
"""What ms-swift 4 calls an argument: its names before."""
OF_SECOND = words(_PARTS["of-second"])
"""Arguments that went with ms-swift 3."""
MARKS = words("tuner_type train_type sft_type rlhf_type swift_version")
"""Arguments that tell a file of ms-swift's, beside a model."""
MODELS = words("model model_type model_id_or_path load mcore_model ckpt_dir")

DEFAULTS: dict[str, Any] = TRAINER | settings_in(_PARTS["defaults"])
"""ms-swift 4."""
_OF_THIRD = DEFAULTS | {"optim": OLD_TRAINER["optim"]}
BY_VERSION: dict[str, dict[str, Any]] = {
    NEWEST: DEFAULTS,
    THIRD: _OF_THIRD,
    SECOND: _OF_THIRD
    | settings_in(
        """target_modules=["DEFAULT"] max_length=2048 freeze_vit=false freeze_aligner=false split_dataset_ratio=0.01
        per_device_eval_batch_size=null"""
    ),
}
METHODS = pairs_of("sft pt=sft dpo orpo simpo kto cpo rm=reward ppo grpo gkd=distill")
"""A command's word, or ``rlhf_type``, and the method. ``dpo`` and its like were commands of ms-swift 1 and 2."""
TUNERS = pairs_of(_PARTS["tuners"])
"""How arguments of one way to train begin, and the ``tuner_type``, or the argument, that takes it."""
OF_METHODS = pairs_of(_PARTS["of-methods"])
"""Arguments that one method of ``rlhf`` alone has, for a file that says no ``rlhf_type``."""
PLAIN_SCALES = words("default last_round all ignore_empty_think ignore_think_prefix last_round_with_ignore_empty_think")
"""Values of ``loss_scale`` that weigh each token with 0 or 1, so that the model's own loss serves."""
ATTENTIONS = {
    **dict.fromkeys(("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4"), "flash"),
    "sdpa": "sdpa",
    "eager": "eager",
    "auto": "sdpa",
}

_BUCKETS = settings_in("allgather_partitions=true allgather_bucket_size=2e8 reduce_scatter=true reduce_bucket_size=2e8")
_THIRD_STAGE = settings_in(_PARTS["third-stage"])


def deepspeed_of(name: str, version: str) -> dict[str, Any] | None:
    """The settings that ms-swift bundles under a name, such as zero2, zero3_offload or default-zero3; None for others.

    They overlapped communication until 3.2, and had DeepSpeed's own AdamW until 2.6."""
    word = name.lower().removeprefix("default-").replace("-", "_")
    stage, offload = word[4:5], word[5:]
    if not (word.startswith("zero") and stage in ("0", "1", "2", "3") and offload in ("", "_offload")):
        return None
    device = {"device": "cpu" if offload else "none", "pin_memory": True}
    zero: dict[str, Any] = {"stage": int(stage), "contiguous_gradients": True, "offload_optimizer": device}
    zero |= ({"offload_param": device} | _THIRD_STAGE) if stage == "3" else _BUCKETS
    zero["overlap_comm"] = version == SECOND
    found: dict[str, Any] = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "zero_optimization": zero}
    return found | ({"optimizer": {"type": "AdamW"}} if version == SECOND else {})


FSDP2: dict[str, Any] = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": settings_in(
        """fsdp_version=2 reshard_after_forward=true auto_wrap_policy=TRANSFORMER_BASED_WRAP
        cpu_ram_efficient_loading=true state_dict_type=SHARDED_STATE_DICT activation_checkpointing=true"""
    ),
}
"""swift/config/fsdp2.json."""

OWNERS = pairs_of(
    """01ai=01-ai qwen=Qwen ZhipuAI=zai-org OpenBMB=openbmb Shanghai_AI_Laboratory=internlm TeleAI=Tele-AI
    Tencent-Hunyuan=tencent PaddlePaddle=baidu MiniMax=MiniMaxAI openai-mirror=openai"""
)
"""Organisations of ModelScope whose models have the same names under another organisation on the Hub."""
MIRRORED = pairs_of(
    """llama=meta-llama meta-llama gemma=google phi=microsoft mistral=mistralai mixtral=mistralai ministral=mistralai
    olmo=allenai"""
)
"""Of ModelScope's mirrors (``LLM-Research``, ``AI-ModelScope``): the Hub's organisation by a model's first word."""
MIRRORS = ("LLM-Research", "AI-ModelScope", "modelscope")


def hub_id(name: str) -> str:
    """The Hub's name of a model that ModelScope has under another; any other name as it is."""
    owner, slash, model = name.partition("/")
    if not slash or "/" in model:
        return name
    if owner in MIRRORS:
        first = next((word for word in sorted(MIRRORED, key=len, reverse=True) if model.lower().startswith(word)), "")
        model = f"{model[:-3]}-hf" if owner == "modelscope" and model.endswith("-ms") else model
        return f"{MIRRORED[first]}/{model}" if first else name
    return f"{OWNERS.get(owner, owner)}/{model}"


ENGINE = words(_PARTS["engine"])
"""Of the engine that generates: what it takes is its own, and counted nowhere here."""
HARMLESS = words(_PARTS["harmless"])
"""Arguments of data, templates, rewards, logging and sampling."""
NOT_MODELLED = told_in(_PARTS["not-modelled"])
"""Arguments that bear and are not modelled, where they are on: what of memory they decide, and why."""
