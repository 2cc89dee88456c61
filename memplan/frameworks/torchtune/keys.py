"""torchtune's names: its models, optimizers and losses, and keys that memory does not feel.

Source: torchtune 0.7 (pytorch/torchtune@bd2a0fc) models/*/_model_builders.py, recipes/*.py, recipes/configs; names of
0.1 to 0.6 from its configs of then."""

import re
from typing import Any

from memplan.arch.config import sizes
from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, settings_in
from memplan.units import by_word, pairs_of, words_of

_PARTS = parts_of(__file__)

COMPONENT = "._component_"
"""The key of what a section builds."""
_BY_METHOD = by_word(
    {
        "sft": """full_finetune_single_device full_finetune_distributed lora_finetune_single_device
            lora_finetune_distributed lora_finetune_fsdp2 qat_single_device qat_distributed
            qat_lora_finetune_distributed full_finetune_multinode""",
        "dpo": "lora_dpo_single_device lora_dpo_distributed full_dpo_distributed",
        "distill": "knowledge_distillation_single_device knowledge_distillation_distributed",
        "ppo": "ppo_full_finetune_single_device",
        "grpo": "grpo_full_finetune_distributed",
    }
)
RECIPES = {name: (method, not name.endswith("_single_device")) for name, method in _BY_METHOD.items()}
"""Recipe -> its method, and whether it runs on several GPUs."""
NO_TRAINING = ("generate", "eleuther_eval", "quantize")
"""Recipes that train nothing."""
_LLAMA: dict[str, Any] = {"model_type": "llama", "tie_word_embeddings": False}
PHI3_MINI = _LLAMA | sizes(vocab=32064, hidden=3072, intermediate=8192, layers=32, heads=32, kv_heads=32)
PHI4_14B = _LLAMA | sizes(vocab=100352, hidden=5120, intermediate=17920, layers=40, heads=40, kv_heads=10)
PHI3_MINI["max_position_embeddings"], PHI4_14B["max_position_embeddings"] = 4096, 16384
"""Phi's with query, key, value, gate and up apart, as torchtune builds them: the shape of a Llama."""
MODELS: dict[str, str | dict[str, Any]] = {
    "phi3_mini": PHI3_MINI,
    "phi4_14b": PHI4_14B,
    **pairs_of(
        _PARTS["models"]
    ),
    **{f"qwen2_5_{size}": f"Qwen/Qwen2.5-{size.replace('_', '.').upper()}" for size in
       ("0_5b", "1_5b", "3b", "7b", "14b", "32b", "72b")},
    **{f"qwen3_{size}": f"Qwen/Qwen3-{size.replace('_', '.').upper()}" for size in
       ("0_6b", "1_7b", "4b", "8b", "14b", "32b")},
}  # fmt: skip
"""Builder -> the Hub's model of that shape (Qwen 2's two small ones are Qwen 2.5's)."""
WITH_IMAGES = ("llama3_2_vision_11b", "llama3_2_vision_90b", "llama4_scout_17b_16e", "llama4_maverick_17b_128e")
BUILDER = re.compile(r"(?P<kind>q?lora_)?(?P<name>\w+?)(?:_(?:base|instruct))?")
SHAPED = ("llama2", "llama3", "llama3_1", "mistral", "qwen2")
"""Builders whose sizes stand beside them, of the shape of a Llama (Qwen 2's of its own)."""
SIZES = pairs_of(
    """vocab_size embed_dim=hidden_size intermediate_dim=intermediate_size num_layers=num_hidden_layers
    num_heads=num_attention_heads num_kv_heads=num_key_value_heads"""
)
"""Their sizes -> those of a config.json."""
TARGETS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
LINEAR_LOSS = "torchtune.modules.loss.LinearCrossEntropyLoss"
LOSSES = {LINEAR_LOSS: "0.7", "torchtune.modules.loss.CEWithChunkedOutputLoss": "0.6", "torch.nn.CrossEntropyLoss": ""}
"""Loss of SFT -> the version whose default it was."""
METHOD_OF_LOSS = pairs_of(
    """loss.DPOLoss=dpo loss.RSOLoss=dpo loss.IPOLoss=ipo loss.SimPOLoss=simpo loss.PPOLoss=ppo GRPO=grpo KL=distill"""
)
"""Part of a loss's name -> its method."""
DISTRIBUTED_ONLY = words_of(_PARTS["distributed-only"])
DEFAULTS: dict[str, Any] = settings_in(_PARTS["defaults"])
SECTIONS = words_of(
    """checkpointer. metric_logger. profiler. lr_scheduler. tokenizer. dataset. dataset_val. tensor_parallel_plan.
    inference. generation."""
)
"""Sections whose other keys memory does not feel."""
HARMLESS = words(_PARTS["harmless"])
