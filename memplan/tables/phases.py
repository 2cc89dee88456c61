"""The moments beside the steady step at which jobs die, and which of them a trainer has.

Read in transformers 5.23 (modeling_utils.py, trainer.py), accelerate 1.15 (utils/fsdp_utils.py, accelerator.py),
trl 1.16, llamafactory 0.9.5 (model/patcher.py), verl 0.9 (workers/engine/fsdp, utils/checkpoint), openrlhf 0.11
(utils/deepspeed/deepspeed.py)."""

from typing import Literal, NamedTuple

from memplan.tables.trainer import Trainer
from memplan.units import words_of

PHASES = ("load", "resume", "first-step", "evaluate", "save", "merge", "sync")
"""In the order in which a job meets them."""
Placed = Literal["host", "one process", "card"]


class Habits(NamedTuple):
    """What a trainer does before, between and after its steps."""

    phases: tuple[str, ...] = ("first-step", "evaluate")
    """Those that it has; merge and sync are there where the job asks for them."""
    placed: Placed = "host"
    """Where from_pretrained puts weights: in each process's host memory; on the card where there is one process
    (device_map: auto); or on each process's card (device_map: its own)."""
    rank0: bool = False
    """The first process alone reads the checkpoint, whatever FSDP's settings say."""
    shards: bool = False
    """Sharded checkpoints where nobody says otherwise."""


_SAVING = ("load", "first-step", "evaluate", "save")
_HABITS = {
    "pytorch": Habits(("load", "first-step", "evaluate")),
    "trl": Habits(_SAVING, "one process"),
    "llamafactory": Habits(_SAVING, "card"),
    "verl": Habits(_SAVING, rank0=True, shards=True),
    "openrlhf": Habits(_SAVING),
}
_HUGGING_FACE = Habits(_SAVING)
V5_FILE, V4_FILE = 50 * 10**9, 5 * 10**9
"""``max_shard_size`` of save_pretrained: the largest file of a checkpoint (transformers 5.23 and 4.57)."""


SEPARATE_EXPERTS = frozenset(
    words_of(
        """mixtral minimax minimax_m2 qwen2_moe qwen3_moe qwen3_next afmoe deepseek_v2 deepseek_v3 deepseek_v32
        deepseek_v4 dots1 ernie4_5_moe glm4_moe glm4_moe_lite glm_moe_dsa longcat_flash solar_open mellum
        hunyuan_v1_moe flex_olmo olmoe exaone_moe cohere2_moe phimoe jamba lfm2_moe nemotron_h mimo_v2_flash hy_v3
        laguna kimi_linear bailing_hybrid axk1 axk2"""
    )
)
"""Model types with experts apart in checkpoints, stacked in classes (transformers 5.23 conversion_mapping.py)."""


def habits_of(trainer: Trainer) -> Habits:
    """A trainer's own row, or that of what runs it."""
    by_runner = _HUGGING_FACE if trainer.runs_on == "accelerate" else Habits()
    return by_runner if trainer.megatron else _HABITS.get(trainer.name, by_runner)


def largest_file(trainer: Trainer) -> int:
    """Bytes of the largest file of a checkpoint."""
    return V4_FILE if trainer.models.transformers_4 else V5_FILE
