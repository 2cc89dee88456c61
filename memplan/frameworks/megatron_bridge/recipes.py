"""Megatron-Bridge's recipes for pretraining and full fine-tuning, as far as memory feels them.

Source: NVIDIA-NeMo/Megatron-Bridge 0.6 (067f987) src/megatron/bridge/recipes/*/h100/*.py, recipes/common.py; 0.4 and
0.5 differ in the short names of Qwen3 8B and 30B-A3B alone."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.tables.texts import Lazily, lines_of
from memplan.units import pairs_of

TABLE = tuple(lines_of(__file__))
"""Recipe, model, and where it differs from the common one: sizes by short names, switches by a word.
``@8``: the one for so many GPUs, beside one of the same name for more."""
_COMMON: Mapping[str, dict[str, Any]] = {
    "pretrain": {"micro_batch_size": 2, "global_batch_size": 32, "seq_length": 4096},
    "sft": {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 2048},
}
_SIZES = pairs_of(
    """tp=tensor_model_parallel_size pp=pipeline_model_parallel_size vpp=num_virtual_stages_per_pipeline_rank
    cp=context_parallel_size ep=expert_model_parallel_size etp=expert_tensor_parallel_size seq=seq_length
    mbs=micro_batch_size gbs=global_batch_size mtp=mtp_num_layers first=num_layers_in_first_pipeline_stage
    last=num_layers_in_last_pipeline_stage"""
)
_AWARE = {"use_precision_aware_optimizer": True}
_WORDS: Mapping[str, dict[str, Any]] = {
    "sp": {"sequence_parallel": True},
    "full": {"recompute_granularity": "full"},
    "selective": {"recompute_granularity": "selective"},
    "te": {"cross_entropy_fusion_impl": "te"},
    "unfused": {"cross_entropy_loss_fusion": False},
    "overlap": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    "aware": _AWARE,
    "aware:bf16": _AWARE | {"main_grads_dtype": "bf16", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
    "flex": {"moe_token_dispatcher_type": "flex"},
    "split": {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
    "shared": {"moe_shared_expert_overlap": True},
    "layout": {"pipeline_model_parallel_layout": "its own"},
    "graphs": {"cuda_graph_impl": "transformer_engine"},
    "bf16grads": {"grad_reduce_in_bf16": True},
}
_GPUS = re.compile(r"_(\d+)gpu(?:_h100_bf16)?")
_LONG = re.compile(r"(.+)_(\d+k)_(pretrain|sft|finetune)")


def _read(name: str) -> tuple[str, dict[str, Any]]:
    model, *words = _LINES[name]
    return model.strip("-"), _settings(name, words)


_LINES = {own: words for own, *words in map(str.split, TABLE)}
_ROWS = Lazily(_LINES, _read)


def _settings(name: str, words: list[str]) -> dict[str, Any]:
    values = dict(_COMMON["pretrain" if "_pretrain" in name else "sft"])
    for word in words:
        key, _, value = word.partition("=")
        if value:
            values[_SIZES[key]] = int(value)
        elif word.startswith("selective:"):
            values |= _WORDS["selective"] | {"recompute_modules": word.partition(":")[2].split("+")}
        else:
            values |= _WORDS[word]
    return values


def recipe(name: str) -> tuple[str, dict[str, Any]] | None:
    """(model, settings under Megatron's names) of a recipe by any of its names; adapters' are full fine-tuning's."""
    bare = name.removesuffix("_config")
    gpus = _GPUS.search(bare)
    bare = _GPUS.sub("", bare)
    long = _LONG.fullmatch(bare)
    bare = f"{long.group(1)}_{long.group(3)}_{long.group(2)}" if long else bare
    bare, old = re.sub(r"_(finetune|peft)(?=_|$)", "_sft", bare), "_finetune" in bare
    smaller = _ROWS.get(f"{bare}@{gpus.group(1)}") if gpus else _ROWS.get(f"{bare}@8") if old else None
    return smaller or _ROWS.get(bare)
