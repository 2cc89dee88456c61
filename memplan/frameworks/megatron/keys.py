"""Megatron-LM's arguments by name: defaults, what MindSpeed-LLM adds, what bears on memory and is not modelled.

Source: Megatron-LM megatron/training/arguments.py (core 0.16), MindSpeed-LLM arguments."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from memplan.frameworks.deciding import LITTLE
from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, rows_of, settings_in
from memplan.units import by_word, pairs_of

_PARTS = parts_of(__file__)

OF_PROCESS = ("world_size", "rank", "local_rank", "dist_url")
"""Options of a process that its launcher gives where that is none of torch's."""
GONE = words(_PARTS["gone"])
"""Arguments that only Megatron-LM until 2023 and forks of it have (bigcode's ``attention_head_type``), whose layers are
its own where nothing says Transformer Engine: attention makes its scores without ``use_flash_attn``
(megatron/arguments.py, model/transformer.py: ParallelAttention)."""
OF_MINDSPEED = words(_PARTS["of-mindspeed"])
"""Arguments that MindSpeed-LLM adds."""
SHAPE = words("num-layers hidden-size num-attention-heads seq-length micro-batch-size")
"""Arguments by which a program of any name is built on Megatron: ``nlp_pretrain.py`` of a project's own."""
DEFAULTS: dict[str, Any] = settings_in(_PARTS["defaults"])
MASK = 2**26
"""Bytes of a data loader's mask from which on it is told: 64 MiB."""
DEFAULTS_OF_EXPERTS: dict[str, Any] = settings_in(
    "moe_token_dispatcher_type=allgather moe_permute_fusion=false moe_grouped_gemm=false"
)
"""The same, of a mixture of experts."""
SIZES = pairs_of(_PARTS["sizes"])
FUSED_LINEARS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""What Megatron's linears are in models of the Hub."""
NEGATIONS = pairs_of(
    """no_gradient_accumulation_fusion=gradient_accumulation_fusion no_bias_swiglu_fusion=bias_swiglu_fusion
    no_rope_fusion=apply_rope_fusion"""
)
OTHER_NAMES = pairs_of(_PARTS["other-names"])
DECIDES = by_word(
    {
        "model": """task spec mamba_state_dim hybrid_override_pattern hybrid_attention_ratio hybrid_layer_pattern
            is_hybrid_model vision_model_type img_h heterogeneous_layers_config_path""",
        "parallelism": "num_layer_list zero_stage deepspeed",
        "method": "grpo_group_size",
    }
)
"""What of memory some of these decide, whose names do not say it."""
USUAL_SPEC = re.compile(r"models\.spec\.(qwen3|qwen2_moe|deepseek|bailing)_spec\b")
"""MindSpeed-LLM's specs of the layers that the other arguments say (tasks/models/spec: norms apart from products)."""
NOT_MODELLED = {name: why for names, why in rows_of(_PARTS["not-modelled"]).items() for name in names.split()}
"""Arguments that bear on memory and are not understood, where they are on; others are taken as harmless when Megatron
has them for data, rates, logging, checkpoints, initialisation or speed."""
BEARING = re.compile(r".*(recompute|offload|fsdp|parallel_size|cuda_graph|lora|shard|quant).*")
"""Names of arguments that may bear, and that nobody took."""
KNOWN = words(_PARTS["known"])


def layout_of(counts: Iterable[str]) -> str:
    """MindSpeed's list of layers by stage as Megatron's layout."""
    layers = [int(count) for count in counts if count.isdecimal() and len(count) < 5]
    return "E" + "|".join("t" * count for count in layers) + "L" if layers else ""


_OTHER = re.compile(
    r"(?:^|_)(vlm|mllm|multimodal|mimo|vision|bert|t5|ict|retro|mamba|hybrid|biencoder|dit|diffusion|audio)(?:_|$)"
)
"""In the name of a program whose model is none that the arguments of layers describe."""
OWN_LOSS = re.compile(r"(?:^|[_./])(dpo|ipo|kto|orpo|simpo|cpo|rm|reward|ppo|grpo|rlhf|distill|kd)(?:_\w*)?(?:\.py)?$")
"""In the name of a program that trains by another loss than pretraining's."""
_IMAGES = ("vlm", "mllm", "multimodal", "mimo", "vision", "audio")


_USUAL = words(_PARTS["usual"])
"""Words in the names of Megatron-LM's programs and of those that train a family as they do."""


def of_unknown(key: str, facts: Mapping[str, Any]) -> str | None:
    """What an argument that nobody knows decides: of experts, and in a program of a project's own, the model."""
    stem = re.split(r"[/.]", str(facts.get("program", "")).lower().removesuffix(".py"))[-1]
    bears = key.startswith("moe_") or not _USUAL.issuperset(re.split(r"[_-]", stem) if stem else ())
    return "model" if bears and not LITTLE.search(key) else None


def other_model(program: str, named: bool) -> str:
    """Why a program's model is not what arguments of layers describe, or was ``named``; nothing where it is."""
    stem = re.split(r"[/.]", program.removesuffix(".py"))[-1]
    found = _OTHER.search(stem)
    if found is None or (named and found[1] not in _IMAGES):
        return ""
    of = "images are not counted" if named else "the model is counted as a GPT with layers of these sizes"
    return f"{stem} trains another: {of}"
