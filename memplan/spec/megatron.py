"""Megatron's own settings, under their own names."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from memplan.errors import InvalidJob, did_you_mean
from memplan.spec.base import Frozen
from memplan.spec.parallel import layout
from memplan.spec.recompute import listed

RECOMPUTE_MODULES = ("core_attn", "mlp", "moe", "shared_experts", "layernorm", "moe_act", "mla_up_proj")
"""Megatron's (megatron-core 0.16 transformer/transformer_config.py)."""
COMMUNICATIONS = ("p2p", "a2a", "all_gather")
BACKENDS = ("auto", "fused", "flash", "direct")
DISPATCHERS = ("alltoall", "allgather", "flex")
DTYPES = ("fp32", "bf16", "fp16", "fp8")
FORMATS = ("", "e4m3", "hybrid")
RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")
GRAPHS = ("none", "local", "transformer_engine", "full_iteration")
GRAPHED = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration")
"""Scopes of CUDA graphs (megatron-core 0.16 transformer/enums.py: CudaGraphScope)."""
NO_EFFECT = ("bias_dropout_fusion", "masked_softmax_fusion", "attention_softmax_in_fp32")
"""Settings that change speed, not memory, where the rest is as modelled."""
LATER = (
    *("fp8_dot_product_attention", "fp8_multi_head_attention", "first_last_layers_bf16"),
    *("overlap_moe_expert_parallel_comm", "use_megatron_fsdp", "nccl_ub"),
)


def _modules(value: object) -> tuple[str, ...]:
    return listed("megatron.recompute_modules", value, RECOMPUTE_MODULES)


def _graphed(value: object) -> tuple[str, ...]:
    spaced = ",".join(value.split()) if isinstance(value, str) else value
    return () if spaced in ("full", ["full"]) else listed("megatron.cuda_graph_scope", spaced, GRAPHED)


def _named(value: object, info: ValidationInfo) -> str:
    known = {
        "cp_comm_type": COMMUNICATIONS,
        "attention_backend": BACKENDS,
        "moe_token_dispatcher_type": DISPATCHERS,
        "recompute_method": ("uniform", "block"),
        "cross_entropy_fusion_impl": ("native", "te"),
        "fp8_format": FORMATS,
        "fp4_format": ("", "e2m1"),
        "fp4_recipe": ("nvfp4",),
        "cuda_graph_impl": GRAPHS,
        "fp8_recipe": RECIPES,
    }.get(str(info.field_name), DTYPES)
    text = "" if value in (None, False) else str(value).strip().lower()
    if text not in known:
        raise InvalidJob(f"megatron.{info.field_name}: unknown value {text[:60]!r}", did_you_mean(text, known))
    return text


Name = Annotated[str, BeforeValidator(_named)]
Count = Annotated[int, Field(ge=0, le=10**6)]


class Megatron(Frozen):
    """Megatron's own settings."""

    recompute_modules: Annotated[tuple[str, ...], BeforeValidator(_modules)] = ("core_attn",)
    """Modules that selective checkpointing makes again."""
    recompute_method: Name = "uniform"
    """Of full checkpointing: uniform chunks of layers, or the first layers of each stage (block)."""
    recompute_num_layers: Count = 1
    """Layers of a chunk (uniform), or layers of each stage that are made again (block)."""
    distribute_saved_activations: bool = False
    """Checkpoints are split over the tensor-parallel ranks (without sequence parallelism)."""
    make_vocab_size_divisible_by: Annotated[int, Field(ge=1, le=2**20)] = 128
    """The vocabulary is padded to a multiple of this, times tensor_parallel."""
    num_layers_in_first_pipeline_stage: Count = 0
    num_layers_in_last_pipeline_stage: Count = 0
    pipeline_model_parallel_layout: Annotated[str, BeforeValidator(layout)] = ""
    """What each stage and chunk has, in place of the other settings of stages: Ettt|(tt|)*29ttL."""
    account_for_embedding_in_pipeline_split: bool = False
    """The embedding counts as a layer of the first stage."""
    account_for_loss_in_pipeline_split: bool = False
    """The head and the loss count as a layer of the last stage."""
    cp_comm_type: Name = "p2p"
    """How context-parallel ranks exchange: keys and values around a ring, heads for sequence, or gathered."""
    attention_backend: Name = "auto"
    """Of attention: flash. fused: cuDNN's; flash: flash-attn, which works by rows; auto: Transformer Engine's choice,
    flash before Hopper; memplan's own, direct: flash-attn called by a project itself, on views of the fused product."""
    cross_entropy_loss_fusion: bool = True
    """Of pretraining and SFT: the loss in a fused kernel. Off by default in Megatron-LM, on in Megatron-Bridge."""
    cross_entropy_fusion_impl: Name = "te"
    """native: an fp32 copy of the logits; te: Transformer Engine's kernel, which works in the logits themselves."""
    use_precision_aware_optimizer: bool = False
    main_grads_dtype: Name = "fp32"
    main_params_dtype: Name = "fp32"
    exp_avg_dtype: Name = "fp32"
    exp_avg_sq_dtype: Name = "fp32"
    store_param_remainders: bool = True
    """Of fp32 main weights beside bf16 ones, the lower 16 bits are kept (precision-aware optimizer alone)."""
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the optimizer's states on the host, with optimizer_cpu_offload."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    tp_comm_overlap: bool = False
    """Tensor parallelism's gathers and scatters run beside the products that need them; buffers are not counted."""
    cuda_graph_impl: Name = "none"
    """CUDA graphs issue their kernels at once: the host's time alone, not what graphs hold of memory."""
    cuda_graph_scope: Annotated[tuple[str, ...], BeforeValidator(_graphed)] = ()
    """What graphs take of each layer; empty: all of it. full_iteration: the whole step, experts and all."""
    ddp_bucket_size: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Elements of a bucket where communication overlaps; 0: Megatron's own, max(40 M, 1 M × data-parallel ranks)."""
    num_distributed_optimizer_instances: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Copies of the distributed optimizer's states: ranks share them within a group of data-parallel ranks / copies."""
    pad_buckets_for_high_nccl_busbw: bool = False
    reduce_scatter_with_fp32_accumulation: bool = False
    gradient_accumulation_fusion: bool = True
    """Weight gradients are added to their fp32 buffer inside the product."""
    create_attention_mask_in_dataloader: bool = False
    """Each row comes with a mask of all tokens by all tokens, a byte each."""
    fp8_format: Name = ""
    """Products in FP8 by Transformer Engine: hybrid, or e4m3 for gradients too; empty: none."""
    fp8_recipe: Name = "delayed"
    """How they are scaled: by tensor with a history (delayed) or without (tensorwise), by blocks (blockwise, mxfp8)."""
    fp8_param_gather: bool = False
    """The weights of these products are in FP8 alone, beside fp32 main weights."""
    fp4_format: Name = ""
    """Products in FP4 by Transformer Engine, in place of FP8: e2m1; empty: none."""
    fp4_recipe: Name = "nvfp4"
    fp4_param_gather: bool = False
    disable_parameter_transpose_cache: bool = False
    """FP8 copies of weights are made anew in each micro-batch."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of attention that makes its scores (attention: eager): more than 0 keeps a mask and what is left, too."""
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of what each branch of a layer adds to the residual stream: more than 0 keeps a mask."""
    bias_swiglu_fusion: bool = True
    apply_rope_fusion: bool = True
    """Rotations in one kernel; false: PyTorch's operations, which keep as much and take longer."""
    norm_fusion: bool = True
    """memplan's own: RMS norms in one kernel; false: PyTorch's operations in fp32, as Megatron's legacy models have."""
    moe_token_dispatcher_type: Name = "alltoall"
    moe_expert_capacity_factor: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Tokens of each expert are cut at this many times the mean; null drops none."""
    moe_pad_expert_input_to_capacity: bool = False
    moe_expert_imbalance: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """memplan's own: tokens that the fullest rank's experts receive, as a multiple of the mean, where none are cut."""
    moe_shared_expert_overlap: bool = False
    """Shared experts run beside the dispatch, and keep their input as it was gathered along the sequence."""
    moe_permute_fusion: bool = True
    moe_grouped_gemm: bool = True
    mtp_num_layers: Count = 0
    """Layers of multi-token prediction, on the last stage."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """Drop what has no effect; refuse what is not modelled, and what Megatron does not know."""
        if not isinstance(given, dict):
            return given
        kept = {str(key).lstrip("-").replace("-", "_"): value for key, value in given.items()}
        for name in LATER:
            if kept.get(name):
                raise InvalidJob(f"megatron.{name}: not modelled yet", f"leave megatron.{name} out")
        for old, new in (
            ("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage"),
            ("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage"),
            ("fp8", "fp8_format"),
            ("fp8_param", "fp8_param_gather"),
            ("fp4", "fp4_format"),
            ("fp4_param", "fp4_param_gather"),
        ):
            if old in kept:
                kept[new] = kept.pop(old)
        return {key: value for key, value in kept.items() if key not in (*NO_EFFECT, *LATER)}

    @property
    def narrow(self) -> str:
        """The recipe of products in FP8 or FP4; nothing where they run in the weights' dtype."""
        return self.fp4_recipe if self.fp4_format else self.fp8_recipe if self.fp8_format else ""

    @property
    def narrow_kind(self) -> str:
        """What such products are in, as keys have it."""
        return "fp4" if self.fp4_format else "fp8"

    @property
    def narrow_weights(self) -> bool:
        """Whether the weights of such products are in FP8 or FP4 alone."""
        return bool(self.narrow) and (self.fp4_param_gather or self.fp8_param_gather)
