"""Megatron-SWIFT: ``megatron sft | pt | rlhf …``, whose model is the Hub's and whose settings are Megatron's.

Source: ms-swift 4.5 swift/megatron/arguments/megatron_args.py, megatron_base_args.py; 3.3 to 3.12
swift/megatron/argument/megatron_args.py."""

from collections.abc import Mapping
from typing import Any

from memplan.frameworks.base import ASSUMED, FILE, Keys, Origin
from memplan.frameworks.files.documents import words
from memplan.frameworks.hugging_face.arguments import HARMLESS as TRAINER_HARMLESS
from memplan.frameworks.megatron.keys import BEARING, DEFAULTS_OF_EXPERTS, KNOWN, NOT_MODELLED
from memplan.frameworks.megatron.keys import DEFAULTS as OF_MEGATRON
from memplan.frameworks.megatron.model import put_attention
from memplan.frameworks.megatron.names import is_known
from memplan.frameworks.megatron.reader import read_batch, read_knobs, read_parallel, read_recompute
from memplan.frameworks.swift.images import read_images
from memplan.frameworks.swift.keys import HARMLESS, NEWEST
from memplan.frameworks.swift.methods import read_lengths, read_method, read_preference
from memplan.frameworks.swift.tuning import read_quantisation, read_tower, read_tuning
from memplan.tables.texts import parts_of, settings_in

_PARTS = parts_of(__file__)

DEFAULTS: dict[str, Any] = OF_MEGATRON | DEFAULTS_OF_EXPERTS | settings_in(_PARTS["defaults"])
"""ms-swift 4."""
OLD: dict[str, Any] = DEFAULTS | {"cross_entropy_loss_fusion": False}
"""ms-swift 3; its experts were grouped from 3.10 on."""


def read_arguments(keys: Keys, verb: str, environment: Mapping[str, str], version: str) -> None:
    """All arguments of a training."""
    keys.defaults = DEFAULTS if version == NEWEST else OLD
    draft = keys.draft
    draft.put("trainer", "megatron-swift", Origin(FILE, f"{keys.settings.path}: Megatron-SWIFT's arguments"))
    method = read_method(keys, verb)
    read_lengths(keys, method)
    ranks = read_parallel(keys, _launcher(keys, environment))
    _experts_and_chunks(keys)
    for name in (each for each in ("USE_MCORE_GDN", "SWIFT_USE_MCORE_GDN") if environment.get(each) == "0"):
        if any(int(draft.values.get(f"{by}_parallel") or 1) > 1 for by in ("tensor", "context")):
            why = "delta nets, of transformers and whole on each GPU, are counted as divided"
            draft.warn(name, keys.settings.path, why, "parallelism")
    read_batch(keys, ranks)
    _precision(keys)
    read_recompute(keys)
    read_knobs(keys)
    backend = (keys.text("attention_backend") or "flash").lower()
    put_attention(keys, "eager" if backend in ("unfused", "local") else "flash", 0.0, "attention_backend")
    keys.skip("use_flash_attn", "packing", "sequence_parallel", "transformer_impl")
    read_tower(keys)
    lora = read_tuning(keys, version == NEWEST)
    read_quantisation(keys)
    read_images(keys, environment, version)
    read_preference(keys, method, lora)
    if method == "grpo":
        draft.values.pop("temperature", None)
        draft.values.pop("entropy", None)
        why = "log-probabilities of completions are counted as the model's own loss"
        draft.warn("rlhf_type", keys.settings.where("rlhf_type"), why, "loss")
    optimizer = (keys.text("optimizer") or "adam").lower()
    if optimizer not in ("adam", "sgd"):
        keys.warn("optimizer", f"optimizer {optimizer[:20]} is not modelled: adam is counted in its place", "optimizer")
    else:
        keys.put("optimizer", {"adam": "adamw", "sgd": "sgd-momentum"}[optimizer], "optimizer")
    _close(keys)


def _experts_and_chunks(keys: Keys) -> None:
    """Experts that one rank holds whole by default; chunks of a pipeline; GPUs that hold all experts at least."""
    within = keys.whole("expert_tensor_parallel_size", 1)
    keys.put("expert_tensor_parallel", within, "expert_tensor_parallel_size")
    stages, experts = (keys.whole(f"{key}_model_parallel_size", 1) for key in ("pipeline", "expert"))
    chunks = keys.whole("virtual_pipeline_model_parallel_size", 1)
    if chunks > 1 and stages > 1:
        keys.put("virtual_pipeline", chunks, "virtual_pipeline_model_parallel_size")
    keys.warn("num_layers_per_virtual_pipeline_stage", "chunks are counted as one for each stage", "parallelism")
    known = keys.draft.origins.get("num_gpus")
    if known is not None and known.kind == ASSUMED and "num_gpus" not in keys.draft.given:
        least = max(int(keys.draft.values["num_gpus"]), stages * experts * within)
        keys.assume("num_gpus", least, "no launcher says on how many GPUs it runs: those that hold one copy")


def _launcher(keys: Keys, environment: Mapping[str, str]) -> dict[str, Any]:
    """The processes that are known already, as torchrun's options."""
    gpus = keys.draft.values.get("num_gpus")
    keys.skip("nproc_per_node", "device_groups", "colocate_groups", "gpus")
    if not gpus and keys.has("gpus"):
        keys.copy("num_gpus", "gpus", "whole")
        gpus = keys.draft.values.get("num_gpus")
    each = keys.draft.values.get("gpus_per_node") or gpus
    return {"nproc_per_node": each, "nnodes": gpus // each} if gpus and each else {}


def _precision(keys: Keys) -> None:
    """bf16, unless ``torch_dtype`` or ``fp16`` says otherwise."""
    word = (keys.text("torch_dtype") or "bfloat16").removeprefix("torch.").lower()
    half = bool(keys.flag("fp16")) or word in ("float16", "fp16")
    said = next((key for key in ("fp16", "bf16", "torch_dtype") if keys.has(key)), "")
    keys.skip("bf16", "fp16", "torch_dtype")
    if said:
        keys.put("dtype", "fp16" if half else "bf16", said)
    else:
        keys.draft.put("dtype", "bf16", Origin(ASSUMED, "torch_dtype is the checkpoint's own"))


def _close(keys: Keys) -> None:
    """Megatron's arguments that bear and are on; the rest as ms-swift's own."""
    keys.warn_on({key: why for key, why in NOT_MODELLED.items() if key != "fp8"})
    known = {key for key in keys.settings.values if (key in KNOWN or is_known(key)) and not BEARING.fullmatch(key)}
    keys.close(HARMLESS | TRAINER_HARMLESS | known | OWN)


OWN = words(_PARTS["own"])
"""Megatron-SWIFT's own arguments that memory does not feel."""
