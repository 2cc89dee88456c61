"""open-instruct's programs and arguments by name: defaults, the DeepSpeed settings it ships, what memory does not feel.

Source: allenai/open-instruct@e6c3044 (August 2026) open_instruct/finetune.py, dpo_tune_cache.py, dpo_utils.py,
reward_modeling.py, grpo_fast.py, grpo_utils.py, utils.py, mason.py; @2025-03 and @2024-02 for the names that went."""

from memplan.frameworks.files.documents import words
from memplan.tables.texts import parts_of, settings_by_name
from memplan.units import pairs_of

_PARTS = parts_of(__file__)

METHODS = pairs_of(
    """finetune=sft dpo_tune_cache=dpo dpo_tune=dpo reward_modeling=reward grpo_fast=grpo
    grpo_vllm_thread_ray_gtrl=grpo ppo_vllm_thread_ray_gtrl=ppo"""
)
"""A program -> what it trains."""
ONLINE = ("grpo", "ppo")
ELSEWHERE = words(
    """dpo grpo ppo olmo_core_finetune olmo_core_train_modules ppo2 ppo_vllm_thread ppo_fast online_dpo_vllm_thread
    rejection_sampling"""
)
"""Programs that train on OLMo-core, or in loops that are not modelled."""
OWN_NAMES = words("dpo_tune_cache dpo_tune grpo_fast grpo_vllm_thread_ray_gtrl ppo_vllm_thread_ray_gtrl")
"""Names of programs that nobody else has, whatever folder they are in."""

DEFAULTS = settings_by_name(_PARTS["defaults"])
"""@2025-08 grpo_vllm_thread_ray_gtrl.py, ppo_vllm_thread_ray_gtrl.py."""
TARGETS = ["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]

STAGE_2, STAGE_3 = (f"ds_configs/stage{stage}_no_offloading_accelerate.conf" for stage in (2, 3))
"""configs/ds_configs: what scripts name, and a file of its own seldom stands beside."""

MARKS = words(_PARTS["marks"])
"""With ``model_name_or_path``, a file of open-instruct's."""
OLD_NAMES = pairs_of(
    """dpo_loss_type=loss_type dpo_beta=beta dpo_gamma_beta_ratio=gamma_beta_ratio
    number_samples_per_prompt=num_samples_per_prompt_rollout add_r1_style_format_reward=apply_r1_style_format_reward"""
)
"""Before 2026 -> now."""
OF_GRPO = ("deepspeed_stage", "pack_length", "num_learners_per_node", "num_unique_prompts_rollout", "vllm_num_engines")
"""Arguments of GRPO's programs alone."""
OF_DPO = ("loss_type", "gamma_beta_ratio", "dpo_use_paged_optimizer", "concatenated_forward", "beta", "mixer_list")
"""Arguments of DPO's programs that finetune.py does not have."""
NOT_MODELLED = {
    "sequence_parallel_size": "Ulysses' sequence parallelism is not modelled: whole sequences are counted on each GPU",
    "fsdp_shard_degree": "belongs to the OLMo-core trainers, which are not modelled",
    "additional_model_arguments": "the model is counted without them",
}
HARMLESS = words(_PARTS["harmless"])
