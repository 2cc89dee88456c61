"""How scripts on transformers' Trainer spell what ``TrainingArguments`` have no word for: one table of synonyms.

A row is a name, what it sets (``MEANINGS``) and where it was seen. Scripts copy each other's dataclasses, so a name
means the same nearly everywhere; the few that do not are told by their script (``hf_dialect_scripts``)."""

from collections.abc import Mapping

from memplan.frameworks.documents import words
from memplan.tables.texts import lines_of

MEANINGS: Mapping[str, tuple[str, str]] = {
    "length": ("lengths", "sequence_length"),
    "part": ("lengths", "sequence_length: the sum of the two"),
    "packed": ("lengths", "sequence_length: tokens of a row that examples are packed into"),
    "lora": ("adapters", "lora, where true"),
    "full": ("adapters", "no lora, where true"),
    "mode": ("adapters", "lora, and quantization, of a word: full, lora, qlora"),
    "kind": ("adapters", "lora, where the word is lora; other adapters are unclear"),
    "rank": ("adapters", "lora.r"),
    "rank-on": ("adapters", "lora with this r, where above 0"),
    "alpha": ("adapters", "lora.alpha"),
    "dropout": ("adapters", "lora.dropout"),
    "targets": ("adapters", "lora.targets"),
    "saved": ("adapters", "lora.modules_to_save"),
    "bias": ("adapters", "lora.bias"),
    "dora": ("adapters", "lora.dora"),
    "rslora": ("adapters", "lora.rslora"),
    "bits": ("quantisation", "quantization, of 4, 8 or 16"),
    "four": ("quantisation", "quantization nf4, where true"),
    "eight": ("quantisation", "quantization int8, where true"),
    "q-lora": ("quantisation", "lora and quantization nf4, where true"),
    "nested": ("quantisation", "quantization nf4-double, where true"),
    "quant-kind": ("quantisation", "quantization nf4 or fp4"),
    "freeze-llm": ("freezing", "freeze: language_model, where true"),
    "freeze-tower": ("freezing", "freeze: vision_tower, where true"),
    "freeze-projector": ("freezing", "freeze: multi_modal_projector, where true"),
    "tune-llm": ("freezing", "freeze: language_model, where false"),
    "tune-tower": ("freezing", "freeze: vision_tower, where false"),
    "tune-projector": ("freezing", "freeze: multi_modal_projector, where false"),
    "tower-lora": ("adapters", "adapters on the tower too, where true"),
    "only-projector": ("freezing", "freeze: vision_tower, language_model, where true"),
    "parts": ("freezing", "freeze: what of mm_vision_tower, mm_mlp_adapter and mm_language_model is not named"),
    "checkpointing": ("checkpointing", "gradient_checkpointing, where true"),
    "flash": ("attention", "attention flash, where true"),
    "no-flash": ("attention", "attention sdpa, where true"),
    "liger": ("attention", "kernels liger, where true"),
    "pixels": ("lengths", "images: one an example, of so many pixels"),
    "square": ("lengths", "images: one an example, of this side"),
    "tiles": ("lengths", "images: one an example, of so many tiles"),
    "thumbnail": ("lengths", "images: one tile more, where true"),
    "images": ("lengths", "images.per_example"),
    "model": ("model", "model"),
    "method": ("method", "method, of a word: sft, dpo, rm"),
}
"""What a name means: what of memory it decides, and the job's key that it sets."""

ROWS = tuple((parts[1], parts[0], parts[2]) for line in lines_of(__file__) if (parts := line.split(None, 2)))
NAMES: Mapping[str, tuple[str, ...]] = {
    meaning: tuple(name for name, of, _ in ROWS if of == meaning) for meaning in MEANINGS
}
"""Names by what they mean."""

HARMLESS = words(
    """add_eos_token add_special_tokens allow_overflow append_concat_token base_interval beta bnb_4bit_compute_dtype
    bnb_4bit_quant_storage bnb_4bit_quant_storage_dtype cache_dir chat_template_format connector_lr conv_style
    conv_version conversation_template data_cache_dir data_dir data_flatten data_folder data_mixture data_packing
    data_path dataset dataset_dir dataset_name_or_path dataset_path dataset_text_field dataset_use datasets_path
    disable_group_texts do_mmlu_eval do_sample down_sample_ratio drop_path_rate dynamic_image_size eval_data_path
    eval_dataset_size eval_file eval_image_folder eval_path fps group_by_length group_by_modality_length
    group_by_varlen head_lr history_column image_aspect_ratio image_folder image_grid_pinpoints image_min_pixels
    image_projector_type
    is_multimodal language_model_lr lazy_preprocess length_column_name llama log_freq lora_namespan_exclude lora_path
    lora_task_type lora_weight_path loss_reduction loss_reduction_all_gather mask_prompt mask_user_tokens
    max_buffer_size max_eval_samples max_mmlu_samples max_new_tokens max_num_frame max_prompt_length max_train_samples
    merger_lr meta_path min_dynamic_patch min_new_tokens min_num_frame min_pixels mm_patch_merge_type mm_projector_lr
    mm_projector_type mm_use_im_patch_token mm_use_im_start_end mm_vision_select_feature mm_vision_select_layer
    mm_vision_tower_lr mmlu_split normalize_type num_beams num_lora_modules orpo_beta pad2square peft_path
    predict_with_generate pretrain_mm_mlp_adapter prompt_column prompt_template_name prompt_type ps_version
    ptuning_checkpoint remove_long_samples repetition_penalty replacement response_column save_aggregated_lora
    sep_style shuffle_dataset source_column split_annotations splits strict_mode target_column temperature
    template_name tokenize_num_workers tokenizer_name_or_path tool_format top_k top_p train_file train_file_dir
    train_on_inputs train_on_source truncate_to_model_max_length trust_remote_code use_auth use_auth_token
    use_custom_trainer use_data_resampling use_fast_tokenizer use_packed_ds use_reentrant val_set_size
    validation_file_dir version video_folder video_fps video_min_pixels vision_lr vision_select_layer vision_tower_lr
    wandb_entity wandb_run_name wandb_watch"""
)
"""Names of the same scripts that say where data lies, how it is worded, or how fast is learnt."""
