"""What Megatron's ranks hold, counted by megatron-core itself: parameters and gradient buffers, rank by rank.

    pip install megatron-core==0.16.1 --no-deps    # beside torch; no GPU, no Transformer Engine
    python benchmarks/megatron_ranks.py

Each model is built as one rank of a made-up world (torch's fake process group) builds it, from megatron-core's own
layers, and wrapped in its own DistributedDataParallel. Printed: the elements that it has, and those that memplan
counts; exits with 1 where they differ. Parts that need CUDA and hold no parameters are left out (streams, kernels).
"""

from __future__ import annotations

import sys
import warnings
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer import dot_product_attention, multi_latent_attention
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

from memplan.engine.megatron.stages import chunks_of
from memplan.engine.megatron.states import padded_elements
from memplan.engine.megatron.weights import Share, padded_vocabulary, rank_shares
from memplan.models import load_model
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel

WORLD = 64
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 1408, "vocab_size": 1000, "head_dim": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}
MODELS: dict[str, dict[str, Any]] = {
    "dense": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True},
    "biased": LLAMA | {"model_type": "qwen2"},
    "experts": LLAMA | EXPERTS | {"model_type": "qwen3_moe", "num_experts": 8},
    "latent": LLAMA
    | EXPERTS
    | {
        "model_type": "deepseek_v2", "num_key_value_heads": 16, "q_lora_rank": 128, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 1,
    },
}  # fmt: skip
SAME = {
    "num_layers": 8, "hidden_size": 512, "num_attention_heads": 16, "num_query_groups": 8, "kv_channels": 64,
    "ffn_hidden_size": 1408, "gated_linear_unit": True, "activation_func": torch.nn.functional.silu,
    "add_bias_linear": False, "normalization": "RMSNorm", "bf16": True, "params_dtype": torch.bfloat16,
    "pipeline_dtype": torch.bfloat16, "use_cpu_initialization": True, "perform_initialization": False,
    "gradient_accumulation_fusion": False,
}  # fmt: skip
ROUTED: dict[str, Any] = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 256, "qk_layernorm": True}
ROUTED |= {"moe_router_load_balancing_type": "none", "moe_token_dispatcher_type": "alltoall"}
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {},
    "tied": {},
    "biased": {"add_qkv_bias": True},
    "experts": ROUTED,
    "latent": ROUTED
    | {
        "multi_latent_attention": True, "q_lora_rank": 128, "kv_lora_rank": 64, "qk_head_dim": 32,
        "qk_pos_emb_head_dim": 16, "v_head_dim": 32, "moe_shared_expert_intermediate_size": 256,
        "moe_layer_freq": [0] + [1] * 7, "rope_type": "rope", "num_query_groups": None, "kv_channels": None,
    },
}  # fmt: skip
DEGREES = ((1, 1, 1, 1), (1, 2, 4, 1), (2, 1, 1, 2), (4, 2, 1, 4), (8, 2, 1, 8), (2, 2, 4, 1), (4, 2, 2, 2))
"""Tensor, pipeline, expert, expert-tensor parallel."""


def without_cuda() -> None:
    """Parts that need a GPU and hold no parameters do nothing."""
    cuda: Any = torch.cuda
    cuda.Stream = lambda *args, **keys: None
    cuda.current_device = lambda: torch.device("cpu")
    kernel: Any = dot_product_attention.DotProductAttention
    kernel.__init__ = lambda self, *args, **keys: torch.nn.Module.__init__(self)
    for name in ("TEColumnParallelLinear", "TELinear", "Linear"):
        if not isinstance(getattr(multi_latent_attention, name, None), type):
            setattr(multi_latent_attention, name, type(name, (), {}))


def start(degrees: Parallel) -> None:
    """A world in which this process is the first rank of a stage, and nobody answers."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    rank = degrees.stage * (degrees.world // degrees.pipeline)
    dist.init_process_group("fake", rank=rank, world_size=degrees.world, store=FakeStore())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=degrees.tensor,
        pipeline_model_parallel_size=degrees.pipeline,
        expert_model_parallel_size=degrees.expert,
        expert_tensor_parallel_size=degrees.expert_tensor,
        create_gloo_process_groups=False,
    )


def built(name: str, spec: ModelSpec, degrees: Parallel) -> tuple[TransformerConfig, GPTModel]:
    """megatron-core's model on this rank."""
    keys = {key: value for key, value in (SAME | CONFIGS[name]).items() if value is not None}
    config = (MLATransformerConfig if name == "latent" else TransformerConfig)(
        **keys,
        tensor_model_parallel_size=degrees.tensor,
        pipeline_model_parallel_size=degrees.pipeline,
        expert_model_parallel_size=degrees.expert,
        expert_tensor_parallel_size=degrees.expert_tensor,
    )
    model = GPTModel(
        config,
        get_gpt_decoder_block_spec(config, use_transformer_engine=False),
        vocab_size=padded_vocabulary(spec, degrees, Megatron()),
        max_sequence_length=1024,
        pre_process=degrees.first,
        post_process=degrees.last,
        share_embeddings_and_output_weights=False if degrees.pipeline > 1 else spec.head_is_tied,
        position_embedding_type="rope",
    )
    return config, model.bfloat16()


def buffer_elements(config: TransformerConfig, model: GPTModel) -> list[int]:
    """Elements of the gradient buffers that megatron-core makes for the distributed optimizer."""
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    return [buffer.numel for buffer in (*wrapped.buffers, *wrapped.expert_parallel_buffers)]


def counted(spec: ModelSpec, degrees: Parallel) -> tuple[int, list[int]]:
    """What memplan counts: parameters, and the elements of the buffers."""
    settings = Megatron()
    shares = rank_shares(spec, degrees, settings, chunks_of(spec, degrees, settings, 8, False))
    groups: list[tuple[list[Share], int]] = [
        ([share for share in shares if (share.expert and degrees.expert > 1) is expert], ranks)
        for expert, ranks in ((False, degrees.shards), (True, degrees.expert_shards))
    ]
    buffers = [padded_elements(group, ranks, settings) for group, ranks in groups if group]
    return sum(share.elements for share in shares), buffers


def main() -> int:
    """Print each rank; 1 where a count differs."""
    warnings.filterwarnings("ignore")
    without_cuda()
    wrong = 0
    for name, (tensor, stages, expert, expert_tensor) in product(MODELS, DEGREES):
        spec = load_model(MODELS[name])
        if expert > 1 and name not in ("experts", "latent"):
            continue
        if name == "latent" and tensor > 1:
            continue  # megatron-core's own layers divide the down-projections, Transformer Engine's duplicate them
        for stage in range(stages):
            degrees = Parallel(WORLD, tensor, stages, 1, expert, expert_tensor, stage=stage)
            start(degrees)
            config, model = built(name, spec, degrees)
            real = sum(parameter.numel() for parameter in model.parameters()), buffer_elements(config, model)
            mine = counted(spec, degrees)
            wrong += real != mine
            said = "as counted" if real == mine else f"memplan: {mine}"
            print(f"{name:8} tp {tensor} pp {stages} ep {expert} etp {expert_tensor} stage {stage}: {real}  {said}")
    print(f"{wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
