"""Scripts on transformers' Trainer that are known: what tells one, and the defaults of its own dataclasses.

A script's defaults hold where a file is silent. Names are the script's own, so that an origin says what stands in it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memplan.errors import InvalidJob
from memplan.frameworks.documents import Settings
from memplan.frameworks.draft import Draft


class Script(NamedTuple):
    """One training script, or a family of copies of it."""

    title: str
    marks: tuple[frozenset[str], ...]
    """Any of these sets of keys tells it."""
    program: str
    """Or this pattern of the program's path; empty where keys alone do."""
    defaults: Mapping[str, Any]
    seen: str
    """Repository and file that these were read in."""
    also: Mapping[str, str] = {}
    """Names whose meaning here is another than in the table."""
    tower_apart: bool = False
    """Its vision tower is another key's than its language model."""
    beside: bool = False
    """Adapters stand on the language model alone; what is not frozen of tower and projector is trained whole."""
    trainer: str = "transformers"
    """Whose Trainer it runs for supervised fine-tuning."""
    model: str = ""
    """Its model's name has this pattern in it, where copies for other models differ."""
    version: str = ""
    """Of transformers, that its own requirements pin."""


def _marks(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(each.split()) for each in sets)


_QLORA = {"lora_r": 64, "lora_alpha": 16, "lora_dropout": 0.05, "lora_bias": "none", "double_quant": True,
          "quant_type": "nf4", "bits": 16}  # fmt: skip
_LINEAR = {"target_modules": "all-linear"}
_LLAVA = _QLORA | _LINEAR | {"model_max_length": 512, "freeze_vision_tower": True}
_BLOCKS = {"target_modules": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"}
"""The linears of a language model beside a tower, whatever the tower's are called."""

SCRIPTS: tuple[Script, ...] = (
    Script(
        "InternVL",
        _marks("vision_select_layer down_sample_ratio", "conv_style force_image_size", "use_llm_lora"),
        r"internvl/train/",
        _BLOCKS | {"max_seq_length": 8192, "grad_checkpoint": True, "lora_dropout": 0.05, "force_image_size": 448,
                   "max_dynamic_patch": 12, "use_flash_attn": True, "dtype": "bfloat16"},
        "OpenGVLab/InternVL internvl_chat/internvl/train/internvl_chat_finetune.py",
        {"freeze_backbone": "freeze-tower"},
        beside=True,
        version="4.37.2",
    ),
    Script(
        "Qwen-VL-Series-Finetune",
        _marks("freeze_merger", "disable_flash_attn2", "num_lora_modules"),
        "",
        _QLORA | _BLOCKS | {"max_seq_length": 32768, "use_liger": True, "disable_flash_attn2": False},
        "2U1/Qwen-VL-Series-Finetune src/params.py, train/train_sft.py",
        beside=True,
    ),
    Script(
        "2U1's scripts for other models",
        _marks("freeze_img_projector", "tune_img_projector", "freeze_connector",
               "freeze_projector freeze_vision_tower"),
        "",
        _QLORA | _BLOCKS | {"max_seq_length": 131072, "disable_flash_attn2": False},
        "2U1/Phi3-Vision-Finetune, Llama3.2-Vision-Finetune, SmolVLM-Finetune src/training/params.py",
        beside=True,
    ),
    Script(
        "qwen-vl-finetune",
        _marks("tune_mm_llm", "tune_mm_vision"),
        r"qwenvl/train/",
        {"model_max_length": 512, "lora_r": 64, "lora_alpha": 128, "lora_dropout": 0.05, "use_flash_attn": True,
         "target_modules": "q_proj,k_proj,v_proj,o_proj", "tune_mm_llm": False, "tune_mm_mlp": False,
         "tune_mm_vision": False, "max_pixels": 28 * 28 * 576},
        "QwenLM/Qwen3-VL qwen-vl-finetune/qwenvl/train/argument.py, train_qwen.py",
    ),
    Script(
        "LLaVA-NeXT",
        _marks("mm_tunable_parts", "unfreeze_mm_vision_tower mm_vision_select_layer", "frames_upbound"),
        "",
        _LLAVA | {"attn_implementation": "flash_attention_2"},
        "LLaVA-VL/LLaVA-NeXT llava/train/train.py",
        {"freeze_backbone": "freeze-llm"},
        tower_apart=True,
        beside=True,
        version="4.40",
    ),
    Script(
        "LLaVA",
        _marks("mm_projector_type", "pretrain_mm_mlp_adapter", "tune_mm_mlp_adapter", "mm_use_im_patch_token",
               "group_by_modality_length", "mm_vision_select_layer"),
        r"llava/train/",
        _LLAVA,
        "haotian-liu/LLaVA llava/train/train.py",
        {"freeze_backbone": "freeze-llm"},
        tower_apart=True,
        beside=True,
        version="4.37.2",
    ),
    Script(
        "FastChat train_lora",
        (),
        r"fastchat/train/train_lora\w*\.py$",
        {"model_max_length": 512, "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "use_lora": True,
         "lora_target_modules": "q_proj,v_proj", "quant_type": "nf4", "double_quant": True},
        "lm-sys/FastChat fastchat/train/train_lora.py",
    ),
    Script(
        "Qwen finetune",
        _marks("use_lora lazy_preprocess"),
        "",
        {"model_max_length": 8192, "lora_r": 64, "lora_alpha": 16, "lora_dropout": 0.05,
         "lora_target_modules": "c_attn,c_proj,w1,w2"},
        "QwenLM/Qwen finetune.py",
        {"q_lora": "gptq"},
        model=r"[Qq]wen-(1_8|7|14|72)[Bb]",
        version="4.32",
    ),
    Script(
        "Firefly",
        _marks("template_name train_mode", "template_name tokenize_num_workers", "template_name train_file lora_rank",
               "train_mode task_type", "template_name max_seq_length use_unsloth"),
        "",
        _LINEAR | {"train_mode": "qlora", "lora_rank": 64, "lora_alpha": 16, "lora_dropout": 0.05, "task_type": "sft",
                   "double_quant": True},
        "yangjianxin1/Firefly component/argument.py, train.py",
        version="4.34",
    ),
    Script(
        "QLoRA",
        _marks("source_max_len target_max_len", "double_quant lora_modules"),
        r"(^|/)qlora\w*\.py$",
        {"source_max_len": 1024, "target_max_len": 256, "bits": 4, "double_quant": True, "quant_type": "nf4",
         "use_lora": True, "lora_r": 64, "lora_alpha": 16, "lora_dropout": 0.0, "lora_modules": "all-linear",
         "optim": "paged_adamw_32bit", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16,
         "gradient_checkpointing": True},
        "artidoro/qlora qlora.py",
        version="4.31",
    ),
    Script(
        "MedicalGPT",
        _marks("train_file_dir"),
        "",
        {"use_peft": True, "target_modules": "all", "lora_rank": 8, "lora_alpha": 32.0, "lora_dropout": 0.05},
        "shibing624/MedicalGPT training/supervised_finetuning.py",
        {"qlora": "nested"},
    ),
    Script(
        "LMFlow",
        _marks("conversation_template disable_group_texts", "dataset_path use_lora", "dataset_path disable_group_texts",
               "dataset_path lisa_activated_layers", "save_aggregated_lora"),
        r"(^|/)examples/(finetune|reward_modeling)\.py$",
        {"quant_bit": 4, "quant_type": "nf4", "double_quant": True, "lora_r": 8, "lora_alpha": 32,
         "lora_dropout": 0.1, "lora_target_modules": "q_proj,v_proj"},
        "OptimalScale/LMFlow src/lmflow/args.py, PEFT's own targets of Llama's kin",
        {"quant_bit": "bits of use_qlora"},
    ),
    Script(
        "Chinese-LLaMA-Alpaca",
        _marks("trainable lora_rank", "load_in_kbits", "trainable modules_to_save"),
        r"run_(clm_sft|clm_pt|pt|sft)\w*_with_peft\.py$",
        {"trainable": "q_proj,v_proj", "lora_rank": 8, "lora_alpha": 32.0, "lora_dropout": 0.1, "use_lora": True,
         "max_seq_length": 1024, "double_quant": True, "quant_type": "nf4", "load_in_kbits": 16},
        "ymcui/Chinese-LLaMA-Alpaca-2 scripts/training/run_clm_sft_with_peft.py",
        version="4.35",
    ),
    Script(
        "peft examples/sft",
        _marks("use_peft_lora", "use_4bit_quantization"),
        "",
        {"lora_r": 64, "lora_alpha": 16, "lora_dropout": 0.1, "dtype": "float32", "bnb_4bit_quant_type": "nf4",
         "lora_target_modules": "q_proj,k_proj,v_proj,o_proj,down_proj,up_proj,gate_proj"},
        "huggingface/peft examples/sft/train.py, utils.py",
        trainer="trl",
    ),
    Script(
        "LongLoRA",
        _marks("low_rank_training", "use_full_attn"),
        "",
        {"model_max_length": 32768, "low_rank_training": True, "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.0,
         "target_modules": "q_proj,k_proj,v_proj,o_proj", "modules_to_save": "embed_tokens", "use_flash_attn": True,
         "dtype": "bfloat16"},
        "dvlab-research/LongLoRA fine-tune.py",
        version="4.34",
    ),
    Script(
        "Baichuan fine-tune",
        (),
        r"(^|/)fine-tune\.py$",
        {"model_max_length": 512, "lora_r": 1, "lora_alpha": 32, "lora_dropout": 0.1, "target_modules": "W_pack"},
        "baichuan-inc/Baichuan2 fine-tune/fine-tune.py",
    ),
    Script(
        "MiniCPM finetune",
        _marks("train_data_path use_lora", "train_data_path eval_data_path"),
        "",
        {"model_max_length": 512, "lora_r": 64, "lora_alpha": 32, "lora_dropout": 0.1,
         "target_modules": "q_proj,v_proj"},
        "OpenBMB/MiniCPM finetune/finetune.py",
    ),
    Script(
        "Liger-Kernel examples",
        _marks("use_liger include_num_input_tokens_seen"),
        "",
        {"model_name": "meta-llama/Meta-Llama-3-8B", "max_seq_length": 512, "dtype": "bfloat16"},
        "linkedin/Liger-Kernel examples/huggingface/training.py",
        trainer="trl",
    ),
    Script(
        "FastChat",
        (),
        r"(^|/)(fastchat|stanford_alpaca|vicuna)/(train/)?train\w*\.py$",
        {"model_max_length": 512, "dtype": "float32"},
        "lm-sys/FastChat fastchat/train/train.py; tatsu-lab/stanford_alpaca train.py",
    ),
)  # fmt: skip
"""The first that a file tells; those with rarer keys before their copies."""


_TUNED = {"tune_type_llm": "freeze_llm", "tune_type_vision_tower": "freeze_vision_tower",
          "tune_type_connector": "freeze_mm_mlp_adapter"}  # fmt: skip
"""TinyLLaVA_Factory's words for a part, frozen or full, and the switch that says the same; adapters' stay."""


def with_switches(settings: Settings) -> Settings:
    """``tune_type_llm: frozen`` is ``freeze_llm: true``; a second tower without a name is none."""
    plain = {key: name for key, name in _TUNED.items() if settings.values.get(key) in ("frozen", "full")}
    if not plain:
        return settings
    none = {key for key in ("vision_tower2",) if not settings.values.get(key)}
    values = {key: value for key, value in settings.values.items() if key not in {*plain, *TINY, *none}}
    values |= {name: settings.values[key] == "frozen" for key, name in plain.items()}
    lines = {**settings.lines} | {name: settings.lines.get(key, 1) for key, name in plain.items()}
    return replace(settings, values=values, lines=lines)


TINY = ("tune_vision_tower_from_layer", "connector_type", "pretrained_model_path", "training_recipe",
        "tokenizer_use_fast", "conv_version", "pretrained_connector_path")  # fmt: skip
"""What else it says: connectors are small, layers from 0 on are all."""


def with_lora_config(settings: Settings, draft: Draft) -> Settings:
    """These settings, and under them those of the file that ``lora_config`` names (BELLE), where it is there."""
    path = settings.values.get("lora_config")
    if not isinstance(path, str):
        return settings
    try:
        inner = draft.follow(settings, "lora_config", path).settings
    except InvalidJob:
        return settings  # the key stays, and is told as not understood
    own = {key: value for key, value in settings.values.items() if key != "lora_config"}
    return inner.under(settings, own)


def script_of(settings: Settings, program: str = "") -> Script | None:
    """The known script that takes these settings: told by its keys, and where they are many scripts' by its path."""
    keys = {key for key, value in settings.values.items() if value is not None}
    model = str(settings.values.get("model_name_or_path") or "")
    for row in SCRIPTS:
        named = bool(row.program and re.search(row.program, program))
        if (named or any(marks <= keys for marks in row.marks)) and re.search(row.model, model):
            return row
    return None
