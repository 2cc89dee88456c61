"""One row a trainer and era: which engine generates, where, what it is told, and the trainer's memory meanwhile.

Read in trl 0.16 to 1.16 (generation/vllm_generation.py, trainer/grpo_config.py), verl 0.4 to 0.9 and August 2026
(workers/engine_workers.py, workers/rollout/), OpenRLHF 0.11 (trainer/ray/), THUDM/slime@624b824 (ray/, train.py),
NVIDIA-NeMo/RL@7ea279a (algorithms/grpo.py), inclusionAI/AReaL 1.0.4, ms-swift 4.5 (rlhf_trainers/rollout_mixin.py),
unsloth_zoo 2026.10 (vllm_utils.py)."""

from functools import lru_cache
from typing import Literal, NamedTuple

from memplan.tables.rows import rows_in
from memplan.tables.trainer import version_key

Engine = Literal["none", "hf", "vllm", "sglang"]


class Generation(NamedTuple):
    """What a trainer does where the job is silent, ``since`` included."""

    trainer: str
    since: str = ""
    engine: Engine = "none"
    """none: what generates is not known, and nothing is counted."""
    colocated: Engine = "vllm"
    """The engine of a job that says ``vllm`` or ``sglang`` by any other of its keys."""
    separate: bool = False
    """On cards of its own where nobody says."""
    own_process: bool = False
    """Colocated: in a process of its own."""
    engine_first: bool = False
    """Colocated: its engines start, and go to sleep, before the trainer has loaded anything."""
    process_each: bool = False
    """Colocated: each model of the trainer has a process of its own, and so a context."""
    share: float = 0.0
    """vLLM's gpu_memory_utilization; 0: the engine's own default."""
    separate_share: float = 0.0
    """The same on cards of its own."""
    static: float = 0.0
    """SGLang's mem_fraction_static; 0: its own."""
    tensor_parallel: int = 1
    half: bool = False
    """It is told bf16, whatever the checkpoint has."""
    whole_context: bool = False
    """max_model_len is the model's own; elsewhere prompt and completion."""
    four_bits: bool = False
    """Colocated: over a base of bitsandbytes in 4 bits the engine has it so too, and none is there for one in 8."""
    rows: bool = False
    """max_num_seqs is what a process generates at once; elsewhere ``sequences``."""
    sequences: int = 0
    """0: the engine's own."""
    tokens: int = 0
    """max_num_batched_tokens; 0: the engine's own."""
    eager: bool = False
    logprobs: str = "raw_logprobs"
    sleep: int = 0
    """Level where nobody says."""
    always_sleeps: bool = False
    """Colocated: nothing keeps it awake while the trainer trains."""
    asleep: int = 0
    """Level that a job means which says that it sleeps; 0: the level that it says."""
    levels: bool = False
    """The level is its user's to say; elsewhere the trainer's own."""
    adapter_sleep: int = 0
    """Level where LoRA is an adapter of the engine's own; 0: as without."""
    adapters: bool = False
    """LoRA goes to the engine as an adapter; elsewhere it is merged."""
    adapter_gather: Literal["", "tensor", "unit", "model"] = ""
    """What FSDP1 gathers to send adapters; empty: as without."""
    adapters_first: bool = False
    """They are gathered before the engine's weights are woken."""
    adapters_again: bool = False
    """Nobody saying what is gathered, the engine starts without weights; FSDP1's base, within what was gathered, goes
    to the host for its first sync and comes back beside it."""
    adapters_from_host: bool = False
    """They are gathered layer by layer from parameters that are on the host meanwhile."""
    sharded_state: bool = False
    """FSDP1's sharded state dict is sent, a tensor at a time; elsewhere a unit."""
    away: tuple[str, ...] = ()
    """What of the trainer is on the host meanwhile, where nobody says."""
    with_parameters: tuple[str, ...] = ()
    """What goes to the host along with the parameters."""
    page_locked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What of it is copied to page-locked memory, by what lays the tensors out (``Recipe.wrapper``)."""
    pauses: bool = False
    """Colocated: the whole trainer's process goes to the host, cache and all."""
    from_host: bool = False
    """Weights are sent from the host's copy; elsewhere they are on the card for it."""
    expands: bool = False
    """It turns expandable segments on for training itself, and off before the engine wakes."""
    ray: bool = False
    """It runs on Ray, whose object store takes up to ``RAY_STORE`` of a node's memory."""
    emptied: bool = True
    """The trainer empties its cache before the engine has its weights again; before its cache each one does."""
    bucket: int = 0
    """Bytes that are sent at once; 0: a tensor at a time."""
    buckets: int = 1
    free_share: float = 0.0
    """In place of that, buffers of so much of what is free then."""
    sends_half: bool = False
    """Tensors are cast to bf16 before they are gathered; elsewhere they go in the trainer's own dtype."""
    latent: bool = False
    """transformers' generate keeps MLA's latents, as 5.15 on has it; elsewhere keys and values of every head."""
    places: tuple[str, ...] = ("colocate", "separate")
    """Where it may stand with the training as it is."""
    critic_apart: bool = False
    """With the engine on cards of its own a critic stands on others too, which is not modelled."""
    can_offload: bool = False
    """The trainer has switches for ``trainer_offload``."""
    overlaps: bool = False
    """On cards of its own it generates while the trainer trains; elsewhere one waits for the other."""
    behind: bool = False
    """There it trains on the completions of the step before: another training, planned where it is asked for."""
    host_copy: bool = False
    """SGLang keeps its weights on the host while it sleeps (enable_weights_cpu_backup)."""
    source: str = ""


ROWS = rows_in(__file__, Generation)
NOTHING = Generation("", levels=True, latent=True)
RAY_STORE, RAY_MOST, RAY_KILLS = 0.3, 200 * 10**9, 0.95
"""ray 2.48 _private/ray_constants.py: DEFAULT_OBJECT_STORE_MEMORY_PROPORTION, DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES;
the part of a node's memory above which it kills what runs there (common/ray_config_def.h: memory_usage_threshold)."""
PROCESS_MOST = 4 * 10**9
"""Of a node, for one process itself: interpreter, libraries and the driver's side of its context are 1 to 4 GB."""


@lru_cache(maxsize=256)
def generation_of(trainer: str, version: str = "") -> Generation:
    """The row of a trainer's version; the newest without one."""
    eras = [row for row in ROWS if row.trainer == trainer] or [
        row for row in ROWS if row.trainer == trainer.removesuffix("-megatron")
    ]
    fitting = [era for era in eras if not version or version_key(era.since) <= version_key(version)]
    return (fitting or eras[:1] or [NOTHING])[-1]
