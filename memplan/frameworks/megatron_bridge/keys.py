"""Megatron-Bridge's fields: what Megatron's arguments call otherwise, its defaults, what memory does not feel.

Source: NVIDIA-NeMo/Megatron-Bridge 0.6 (067f987) training/config.py, models/gpt_provider.py."""

import re
from typing import Any

from memplan.frameworks.files.documents import words
from memplan.frameworks.megatron.keys import DEFAULTS as OF_MEGATRON
from memplan.frameworks.megatron.keys import DEFAULTS_OF_EXPERTS
from memplan.frameworks.megatron.model import SHAPE
from memplan.tables.texts import parts_of, rows_of, settings_in
from memplan.units import by_word, pairs_of, words_of

_PARTS = parts_of(__file__)

SECTIONS = ("train", "dist", "optimizer", "ddp", "model")
"""Sections of the config that bear, later ones stronger where two have a name."""
SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
NAMED = ("hf_model_path", "from", "hf_model_id", "checkpoint.pretrained_checkpoint")
"""What names a model of the Hub, the strongest first: a checkpoint is a folder with the model's name."""
LENGTHS = words_of(
    """dataset.packed_sequence_specs.packed_sequence_size dataset.offline_packing_specs.packed_sequence_size
    dataset.seq_length dataset.sequence_length seq_length model.seq_length"""
)
"""Where a length stands, the strongest first: the data's rules, and the model's follows it."""
DEFAULTS: dict[str, Any] = (
    OF_MEGATRON
    | DEFAULTS_OF_EXPERTS
    | settings_in(
        """use_distributed_optimizer=true cross_entropy_loss_fusion=true moe_token_dispatcher_type=alltoall
        moe_permute_fusion=true moe_grouped_gemm=true make_vocab_size_divisible_by=1"""
    )
)
"""Its providers and its optimizer; the vocabulary is the checkpoint's, without padding (``should_pad_vocab``)."""
RENAMED = pairs_of(
    """virtual_pipeline_model_parallel_size=num_virtual_stages_per_pipeline_rank num_moe_experts=num_experts
    gated_linear_unit=swiglu add_bias_linear=bias_linear bucket_size=ddp_bucket_size"""
)
"""Fields that Megatron's arguments call otherwise."""
SHORT = by_word(rows_of(_PARTS["short"]))
"""Options of the runner, and parameters of recipes (to 0.3), by the setting that they give."""
FROZEN = re.compile(r"freeze_\w+")
SHAPED = frozenset(SHAPE) - words(
    "max_position_embeddings rotary_base rotary_percent norm_epsilon init_method_std normalization"
    " position_embedding_type tokenizer_type vocab_size padded_vocab_size swiglu disable_bias_linear"
)
OWN = words(_PARTS["own"])
"""Fields that are read elsewhere, or that memory does not feel."""
