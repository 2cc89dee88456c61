"""Names of Megatron-LM's arguments, and of those that MindSpeed-LLM adds: what is in no list here is warned about.

Names alone, of Megatron-LM v2.5 to core 0.16 and its main of August 2026 (arguments.py, training/config,
TransformerConfig, OptimizerConfig, DistributedDataParallelConfig) and of MindSpeed-LLM 2.0's arguments."""

import re

from memplan.tables.texts import words_by_part

FAMILIES = re.compile(
    r"""(?:inference|rl|grpo|retro|dino|eval|wandb|tensorboard|log|logging|ckpt|dist_ckpt|nccl|profile|mock|
    tiktoken|tokenizer|save|load|lr|straggler|error_injection|rerun|mup|memory_snapshot|record|
    query_in_block|ict|bert|biencoder|train_data|valid_data|test_data|data|dataset|dataloader|check|
    adam|muon|sgd|rotary|init|mla_down|fim|reset|export|ft|kitchen|one_logger
    )_.*""",
    re.VERBOSE,
)
"""Data, rates, logs, checkpoints, initialisation, inference: no setting of these bears, but for what its name says."""
NAMES = frozenset().union(*words_by_part(__file__).values())


def is_known(name: str) -> bool:
    """Whether Megatron-LM or MindSpeed-LLM has an argument of this name, or one that it switches off."""
    plain = name.removeprefix("no_")
    return name in NAMES or plain in NAMES or FAMILIES.fullmatch(plain) is not None
