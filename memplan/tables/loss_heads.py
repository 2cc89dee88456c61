"""Why a head's program costs what it costs, in a line, and where that can be read."""

LOSS_HEADS: dict[str, tuple[str, str]] = {
    "cross-entropy": (
        "the model makes an fp32 copy, then keeps the log-softmax",
        "transformers 5.23 loss/loss_utils.py: ForCausalLMLoss",
    ),
    "shifted-cross-entropy": (
        "the model makes an fp32 copy, and a second one without each row's last position, then keeps the log-softmax",
        "transformers 4.48 loss/loss_utils.py: ForCausalLMLoss",
    ),
    "repeated-cross-entropy": (
        "the model's own log-softmax waits with its outputs while a second one is made of the shifted logits in fp32",
        "LLaMA-Factory, August 2026 v1/core/base_trainer.py: compute_log_probs, whose batch holds labels",
    ),
    "foak-cross-entropy": (
        "an fp32 copy, and a second one without each row's last position, which becomes its own gradient",
        "fms-acceleration-foak 0.7 kernels/unsloth/cross_entropy_loss.py: FastForCausalLMLoss",
    ),
    "chunked-cross-entropy": (
        "cross-entropy of 128 rows at a time, whose log-softmax stays; the logits are held through backward",
        "litgpt 0.5 utils.py: chunked_cross_entropy",
    ),
    "megatron-cross-entropy": (
        "an fp32 copy becomes the softmax, and that the gradient, in place",
        "megatron-core 0.16 tensor_parallel/cross_entropy.py",
    ),
    "log-softmax": (
        "the whole log-softmax is kept, beside the logits in forward and its gradients in backward",
        "torch 2.13 derivatives.yaml: _log_softmax, gather",
    ),
    "stacked-log-softmax": (
        "logits of policy and reference are concatenated, and both scored",
        "MindSpeed-LLM tasks/posttrain/dpo/dpo_model.py",
    ),
    "selective": (
        "row by row in half precision; in fp32 a log-sum-exp whose backward makes three tensors beside the logits",
        "trl 1.9 trainer/utils.py: selective_log_softmax",
    ),
    "selective-kernel": (
        "a Triton kernel keeps the logits and makes one gradient of their size",
        "trl 1.14 kernels/logprob_entropy.py",
    ),
    "flash-cross-entropy": (
        "flash-attention's kernel keeps the logits in fp32 and makes one gradient of their size",
        "openrlhf 0.11 models/utils.py: log_probs_from_logits",
    ),
    "flash-cross-entropy-in-place": (
        "flash-attention's kernel turns the logits into their own gradient",
        "verl 0.9 utils/torch_functional.py: logprobs_from_logits",
    ),
    "one-hot": (
        "backward makes an int64 one-hot of the vocabulary twice, 8 bytes each",
        "NeMo-Aligner utils/distributed.py: DistributedLogprob",
    ),
    "exponentiated": (
        "the log-softmax is made, then its exp, which is kept and negated in backward",
        "NeMo RL 0.6 distributed/model_utils.py: DistributedLogprob",
    ),
    "sliced-log-softmax": (
        "compiled, 1024 rows at a time, of logits that stay; each slice's gradient is one of the whole",
        "AReaL 1.0 areal/utils/functional/vocab_parallel.py: _chunked_apply",
    ),
    "megatron-fused": (
        "a clone of the logits becomes the softmax; the gradient passes through bf16",
        "slime utils/ppo_utils.py; megatron-core 0.16 fusions/fused_cross_entropy.py",
    ),
    "megatron-log-probs": (
        "the logits in fp32 become the softmax, and that the gradient, in place",
        "verl 0.6 workers/actor/megatron_actor.py: logits_processor; megatron-core tensor_parallel/cross_entropy.py",
    ),
    "shared-softmax": (
        "one softmax serves log-probabilities and entropy, and becomes the gradient",
        "slime utils/ppo_utils.py: _VocabParallelLogProbEntropy",
    ),
    "fused": (
        "tiles of 4096 × 32768 logits, made again in backward; gradients are summed in fp32",
        "trl 1.16 kernels/chunked_logprob.py",
    ),
    "liger": (
        "chunks of logits about as large as the hidden states; gradients are made in forward and kept",
        "liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py",
    ),
    "foak-chunks": (
        "Liger's of 2024: gradients of hidden states and head made in forward, chunks in fp32 and back",
        "fms-acceleration-foak 0.7 fused_ops/liger_ce/fused_linear_cross_entropy_loss.py",
    ),
    "liger-preference": (
        "a pair at a time; gradients are made in forward and kept",
        "liger-kernel 0.8.5 chunked_loss/fused_linear_preference.py",
    ),
    "liger-policy": (
        "a sequence at a time, by blocks or (before 0.8) all of its logits; gradients are made in forward and kept",
        "liger-kernel 0.6.2 and 0.8.5 chunked_loss/fused_linear_ppo.py",
    ),
    "liger-policy-blocks": (
        "2048 × 4096 logits at a time; gradients, the head's in fp32 too, are made in forward and kept",
        "liger-kernel 0.8.5 chunked_loss/fused_linear_ppo.py",
    ),
    "tiled": (
        "a tile of at most 1 GiB of fp32 logits at a time, which runs back at once; gradients made in forward stay",
        "deepspeed 0.19 runtime/sequence_parallel/ulysses_sp.py: TiledFusedLogitsLoss",
    ),
    "cut-cross-entropy": ("logits live in the kernel's blocks alone", "cut-cross-entropy 25.1 cce.py"),
    "chunked-log-probs": (
        "512 tokens at a time, made again in backward",
        "verl 0.9 utils/experimental/torch_functional.py: FusedLinearForPPOFunction",
    ),
    "chunked-nll": (
        "256 tokens at a time, checkpointed, with the head cast to fp32 for each chunk",
        "trl 1.9 trainer/sft_trainer.py: _chunked_cross_entropy_loss",
    ),
    "compiled-unsloth-chunks": (
        "chunks of at most 4 GiB of fp32 logits; gradients are made in forward, compiled, and kept",
        "unsloth-zoo 2026.8 fused_losses/cross_entropy_loss.py",
    ),
    "unsloth-chunks": (
        "chunks of at most 4 GiB of fp32 logits; gradients are made in forward and kept",
        "unsloth-zoo 2026.8 fused_losses/cross_entropy_loss.py",
    ),
    "linear-chunks": (
        "head and loss of an eighth of the scored tokens at a time, whose fp32 log-softmax stays",
        "torchtune 0.7 modules/loss/cross_entropy_loss.py: LinearCrossEntropyLoss",
    ),
    "output-chunks": (
        "all logits in eighths, each cast to fp32 for a log-softmax that stays",
        "torchtune 0.6 modules/loss/ce_chunked_output_loss.py: CEWithChunkedOutputLoss",
    ),
    "compiled-linear-chunks": (
        "head and compiled loss of an eighth of the scored tokens at a time, whose logits stay",
        "torchtune 0.7 modules/loss/cross_entropy_loss.py: apply_compile_strategy",
    ),
    "compiled-output-chunks": (
        "all logits in eighths, which stay for a compiled loss",
        "torchtune 0.6 modules/loss/ce_chunked_output_loss.py: apply_compile_strategy",
    ),
    "chunked-lm-head": (
        "head and loss 128 tokens at a time, but every chunk's logits and log-softmax stay",
        "litgpt 0.5 finetune/lora.py: lm_head_chunk_size",
    ),
}
"""By program: the reason, and its source."""
