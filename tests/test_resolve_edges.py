"""Proves that what cannot be is refused with the key and value at fault, and one thing to type instead."""

from typing import Any

import pytest

from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
    "num_key_value_heads": 2, "intermediate_size": 128,
}  # fmt: skip
TIED = {**TINY, "tie_word_embeddings": True}
T5 = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 512}
ZERO2, ZERO3 = ({"sharding": name, "num_gpus": 4} for name in ("zero2", "zero3"))
FSDP2 = {"sharding": "fsdp2", "num_gpus": 8}
MIXTRAL = {
    **TINY, "model_type": "mixtral", "num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
EVERY_SECOND = {
    **TINY, "model_type": "qwen2_moe", "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "decoder_sparse_step": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
"""Two of its layers have experts; the mask of a sequence of 128: 2 layers × 128 × 2 of 4 experts × 8 bytes."""
EXPERTS: dict[str, Any] = {"model": MIXTRAL, "method": "sft", "trainer": "megatron", "tensor_parallel": 2}
RECURRENT = {**TINY, "model_type": "recurrent_gemma", "num_hidden_layers": 3, "num_key_value_heads": 1}
RWKV = {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512, "context_length": 128}
FALCON_H1 = {
    **TINY, "model_type": "falcon_h1", "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1,
    "max_position_embeddings": 128,
}  # fmt: skip
AWAY = {"method": "sft", "offload": ["activations"]}
GROUPS = {"trainer": "trl", "method": "grpo", "batch_size": 2, "num_gpus": 4, "gradient_accumulation_steps": 2}
UNEVEN = {
    "model": {**TINY, "num_hidden_layers": 4}, "trainer": "megatron", "method": "sft", "num_gpus": 3,
    "pipeline_parallel": 3,
    "megatron": {"num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 1},
}  # fmt: skip
TWO_PASSES = {"model": RECURRENT, "method": "simpo", "pair_pass": "two-forward"}


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({"model": TINY, **keys}))


FOAK = {"trainer": "trl", "method": "sft", "kernels": "foak", "quantization": "nf4-double", "autocast": True}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {**FOAK, "lora": {"r": 8, "targets": ["q_proj"]}, "kbit_upcast": False},
        "kernels: foak beside norms in fp32: it multiplies their outputs by bf",
        "use precision: bf16",
    ),
    (
        {"lora": {"r": 8, "layers_to_transform": [0], "targets": ["q_proj"]}, "model": T5, "method": "sft"},
        "lora.layers_to_transform: t5 has two stacks of layers, whose numbers P",
        "leave it out",
    ),
    (
        {"lora": {"r": 8, "trainable_token_indices": {"embed_tokens": 513}}},
        "lora.trainable_token_indices: 513 of 512 tokens",
        "name fewer, or modules_to_save",
    ),
    (
        {"lora": {"r": 8, "trainable_token_indices": {"lm_head": 4}}, "model": TIED},
        "lora.trainable_token_indices: rows of lm_head alone, whose weight is t",
        "name embed_tokens",
    ),
    (
        {"lora": {"r": 8, "targets": ["q_proj", "lm_head"]}, "trainer": "trl", "method": "grpo"},
        "lora.targets: TRL refuses to adapt lm_head: TRL's fused head reads lm_",
        "take lm_head out of lora.targets, or name it in lora.modules",
    ),
    (
        {"deepspeed": {"stage": 2}, "zero_stage": 3, "num_gpus": 4},
        "deepspeed: stage 2 contradicts zero_stage 3",
        "give one of them",
    ),
    (
        {"deepspeed": {"stage": 2}, "sharding": "ddp", "num_gpus": 4},
        "deepspeed: stage 2 contradicts sharding ddp",
        "give one of them",
    ),
    (
        {"deepspeed": {"overlap_comm": True}, "num_gpus": 4},
        "deepspeed: settings without a ZeRO stage",
        "add zero_stage: 0 to 3",
    ),
    (
        {"deepspeed": {"mics_shard_size": 3}, **ZERO3},
        "deepspeed: mics_shard_size: 3 does not divide 4 data-parallel GPUs",
        "use a divisor of them",
    ),
    (
        {"deepspeed": {"mics_shard_size": 2}, **ZERO2},
        "deepspeed: mics_shard_size with zero2: MiCS is a form of ZeRO-3",
        "use zero_stage 3, or leave it out",
    ),
    (
        {"deepspeed": {"zero_quantized_gradients": True, "reduce_scatter": False}, **ZERO3},
        "deepspeed: zero_quantized_gradients needs reduce_scatter",
        "leave reduce_scatter out",
    ),
    (
        {"deepspeed": {"zero_quantized_nontrainable_weights": True}, **ZERO3},
        "deepspeed: zero_quantized_nontrainable_weights: DeepSpeed quantises fp",
        "use dtype fp16, or leave it out",
    ),
    (
        {"offload": ["parameters"], **ZERO2},
        "offload: parameters with zero2: parameters are offloaded in stage 3 al",
        "use zero_stage 3",
    ),
    (
        {"offload": ["optimizer"], "sharding": "zero0", "num_gpus": 4},
        "offload: optimizer with zero0: stage 0 has no partitions to offload",
        "use zero_stage 1 to 3",
    ),
    (
        {"deepspeed": {"offload_optimizer": {"device": "nvme"}}, **ZERO2},
        "deepspeed: offload_optimizer.device nvme with zero2: states go to NVMe",
        "use zero_stage 3, or device cpu",
    ),
    (
        {"deepspeed": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}, **ZERO2},
        "deepspeed: offload_optimizer.ratio 0.5 with zero2: partial offload is ",
        "use zero_stage 3, or leave ratio out",
    ),
    (
        {"deepspeed": {"offload_optimizer": {"device": "cpu", "super_offload": True}}, **ZERO2},
        "deepspeed: offload_optimizer.super_offload with zero2",
        "use zero_stage 3, device cpu and adamw, or leave super_offload out",
    ),
    (
        {"deepspeed": {"offload_optimizer": {"device": "none"}}, "offload": ["optimizer"], **ZERO3},
        "deepspeed: device none contradicts offload: optimizer",
        "give one of them",
    ),
    (
        {"offload": ["optimizer"], "optimizer": "sgd", "trainer": "pytorch", **ZERO3},
        "optimizer: sgd with an offloaded optimizer: DeepSpeed steps on the hos",
        "use adamw or lion, or deepspeed.zero_force_ds_cpu_optimizer=",
    ),
    (
        {"deepspeed": {"communication_data_type": "fp16"}, "reduce_dtype": "fp32", **ZERO3},
        "deepspeed: communication_data_type: fp16 contradicts reduce_dtype fp32",
        "keep one",
    ),
    (
        {"deepspeed": {"zero_allow_untested_optimizer": False}, "optimizer": "sgd", **ZERO3},
        "optimizer: sgd is one that DeepSpeed's ZeRO has not tested (zero_allow",
        "use adamw, or deepspeed.zero_allow_untested_optimizer=true",
    ),
    (
        {"grad_dtype": "fp32", "deepspeed": {"stage": 0}, "num_gpus": 4, "precision": "bf16-master"},
        "grad_dtype: DeepSpeed's stage 0 accumulates in the dtype of the model",
        "use zero_stage 1, or leave out",
    ),
    (
        {"reshard_after_forward": 3, **FSDP2},
        "reshard_after_forward: 3 does not divide the 8 ranks that share the st",
        "use true, false, or 2",
    ),
    (
        {"reshard_after_forward": 5, **FSDP2},
        "reshard_after_forward: 5 does not divide the 8 ranks that share the st",
        "use true, false, or 4",
    ),
    (
        {"reshard_after_forward": 16, **FSDP2},
        "reshard_after_forward: 16 does not divide the 8 ranks that share the s",
        "use true, false, or 8",
    ),
    (
        {"reshard_after_forward": 2, **ZERO3},
        "reshard_after_forward: 2 needs FSDP2",
        "use sharding: fsdp2, or leave it out",
    ),
    ({"fsdp": {"replicate": 3}, **FSDP2}, "fsdp.replicate: 3 does not divide num_gpus 8", "use 2"),
    ({"fsdp": {"replicate": 8}, **FSDP2}, "fsdp.replicate: 8 of 8 GPUs leaves nothing to share", "use sharding: ddp"),
    (
        {"fsdp": {"backward_prefetch": "BACKWARD_PRE"}, **FSDP2},
        "fsdp.backward_prefetch: fsdp2 has no such setting",
        "leave it out, or use sharding: fsdp",
    ),
    (
        {"fsdp": {"pin_memory": False}, "sharding": "fsdp", "num_gpus": 8},
        "fsdp.pin_memory: fsdp has no such setting",
        "leave it out, or use sharding: fsdp2",
    ),
    ({"model": T5, "method": "dpo"}, "method: dpo is not modelled for t5, an encoder-decoder", "use method: sft"),
    (
        {"model": T5, "method": "sft", "trainer": "trl"},
        "trainer: TRL is not modelled for t5, an encoder-decoder",
        "use trainer pytorch or transformers",
    ),
    (
        {"model": T5, "method": "sft", "gradient_checkpointing": "selective"},
        "gradient_checkpointing: selective is not modelled for t5, an encoder-d",
        "use none or full",
    ),
    (
        {"model": T5, "method": "sft", "compile": True},
        "compile: True is not modelled for t5, an encoder-decoder",
        "leave compile out",
    ),
    (
        {"model": T5, "method": "sft", "freeze": ["encoder"]},
        "freeze: ('encoder',) is not modelled for t5, an encoder-decoder",
        "leave freeze out",
    ),
    (
        {"model": T5, "method": "sft", "sharding": "fsdp2", "num_gpus": 2},
        "sharding: fsdp2 is not modelled for t5, an encoder-decoder",
        "use none or ddp",
    ),
    (
        {"model": T5, "method": "sft", "zero_stage": 2, "num_gpus": 2},
        "zero_stage: 2 is not modelled for t5, an encoder-decoder",
        "leave zero_stage out, or use sharding ddp",
    ),
    (
        {"model": T5, "method": "sft", "gradient_checkpointing": "full", "gradient_checkpointing_reentrant": True},
        "gradient_checkpointing_reentrant: true cannot run t5, whose layers sha",
        "leave gradient_checkpointing_reentrant out",
    ),
    (
        {
            "method": "dpo",
            "pair_pass": "two-forward",
            "zero_stage": 2,
            "num_gpus": 2,
            "gradient_checkpointing": "full",
            "gradient_checkpointing_reentrant": True,
        },
        "gradient_checkpointing_reentrant: true cannot run pair_pass: two-forward under ZeRO-2",
        "use gradient_checkpointing_reentrant: false, or pair_pass: concatenated",
    ),
    (
        {
            "method": "dpo",
            "pair_pass": "two-forward",
            "zero_stage": 3,
            "num_gpus": 2,
            "lora": {},
            "gradient_checkpointing": "full",
            "gradient_checkpointing_reentrant": True,
            "deepspeed": {"reduce_bucket_size": 500_000_000},
        },
        "gradient_checkpointing_reentrant: true cannot run pair_pass: two-forward under ZeRO-3",
        "use gradient_checkpointing_reentrant: false, or pair_pass: concatenated",
    ),
    (
        {"sharding": "fsdp", "num_gpus": 2, "precision": "bf16-amp", "fsdp": {"keep_low_precision_grads": True}},
        "fsdp.keep_low_precision_grads: true over fp32 weights",
        "leave it out",
    ),
    (
        {
            "sharding": "fsdp",
            "num_gpus": 2,
            "gradient_accumulation_steps": 2,
            "sync_each_batch": False,
            "precision": "fp32",
            "fsdp": {"keep_low_precision_grads": True, "use_orig_params": True},
        },
        "fsdp.keep_low_precision_grads: true with original parameters under no_sync",
        "leave it out, or use sync_each_batch true",
    ),
    (
        {"trainer": "litgpt", "method": "dpo"},
        "trainer: LitGPT has no dpo: it trains sft",
        "use trainer: trl or llamafactory or openrlhf or mindspeed, or method: sft",
    ),
    ({"method": "sft", "pair_pass": "split"}, "pair_pass: split needs pairs, and sft has none", "leave pair_pass out"),
    ({"method": "sft", "reference": "resident"}, "reference: sft uses none", "leave reference out"),
    (
        {"tensor_parallel": 3, "num_gpus": 3},
        "tensor_parallel: 3 needs a trainer on Megatron that has simpo",
        "add --method, such as --method dpo: simpo is assumed",
    ),
    (
        {"lora": {"r": 8, "modules_to_save": ["embed_tokens"], "trainable_token_indices": {"embed_tokens": 4}}},
        "lora.trainable_token_indices: embed_tokens is adapted or trained whole as well",
        "choose one of them",
    ),
    (
        {
            "lora": {"r": 8, "targets": ["q_proj", "embed_tokens"]},
            "kernels": "unsloth",
            "trainer": "trl",
            "method": "sft",
            "precision": "bf16",
        },
        "lora.targets: Unsloth trains a copy of embed_tokens, not an adapter",
        "name it in lora.modules_to_save: [embed_tokens]",
    ),
    (
        {"reshard_after_forward": 3, "sharding": "fsdp2", "num_gpus": 7},
        "reshard_after_forward: 3 does not divide the 7 ranks that share the states",
        "use true, false, or 1",
    ),
    (
        {"trainer": "llamafactory", "method": "sft", "freeze": ["embed_tokens"]},
        "freeze: LLaMA-Factory keeps frozen weights in the checkpoint's dtype beside fp32 trained ones",
        "give precision, such as precision: bf16",
    ),
    (
        {"trainer": "trl", "method": "ppo", "trainer_version": "1.13"},
        "trainer: TRL has no ppo from 1.13 on",
        "use trainer_version: 1.12, or use trainer: openrlhf or verl",
    ),
    (
        {"trainer": "megatron", "method": "sft", "kernels": "liger"},
        "trainer: Megatron-LM with kernels liger is not modelled",
        "use another trainer, or leave it out",
    ),
    (
        {"trainer": "megatron", "method": "sft", "precision": "bf16"},
        "trainer: Megatron-LM with precision bf16 is not modelled",
        "leave precision out: Megatron's --bf16 is bf16-master",
    ),
    (
        {"trainer": "pytorch", "method": "sft", "tensor_parallel": 2, "sequence_parallel": False, **FSDP2},
        "sequence_parallel: false with torch's own tensor parallelism, which splits the sequence",
        "leave sequence_parallel out",
    ),
    (
        {**EXPERTS, "num_gpus": 4, "expert_parallel": 4},
        "num_gpus: 4 is no multiple of pipeline × expert × expert-tensor parallel = 8",
        "use num_gpus 8, or expert_tensor_parallel 1",
    ),
    (
        {**EXPERTS, "num_gpus": 8, "expert_parallel": 4, "pipeline_parallel": 2},
        "num_gpus: 8 is no multiple of pipeline × expert × expert-tensor parallel = 16",
        "use num_gpus 16, or expert_tensor_parallel 1",
    ),
    (
        {"images": {"width": 10, "height": 20}, **AWAY},
        "offload: activations with images is not modelled yet",
        "leave offload out",
    ),
    ({"trainer": "megatron", **AWAY}, "offload: activations in Megatron is not modelled yet", "leave offload out"),
    ({**AWAY, **ZERO3}, "offload: activations over several GPUs is not modelled yet", "leave offload out"),
    (
        {**TWO_PASSES, "gradient_checkpointing": "full"},
        "pair_pass: two-forward is not modelled with gradient checkpointing for recurrent_gemma, whose layers",
        "use pair_pass: concatenated",
    ),
    (
        {"lora": {"r": 8, "targets": ["q_proj"], "rank_pattern": {"k_proj": 4}}},
        "lora.rank_pattern: 'k_proj' names no adapted module",
        "did you mean q_proj?",
    ),
    (
        {"model": RWKV, "method": "sft", "sequence_length": 129, "mixer_kernels": "cuda"},
        "sequence_length: 129 is over context_length 128, on which RWKV's kernel fails",
        "use a shorter sequence, a larger context_length, or mixer_kernels torch",
    ),
    (
        {"trainer": "trl", "trainer_version": "1.10", "method": "rloo", "loss_head": "fused"},
        "loss_head: Liger's rloo loss is not modelled yet",
        "leave loss_head out",
    ),
    (
        {"trainer": "trl", "trainer_version": "1.12", "method": "ppo", "loss_head": "chunked"},
        "loss_head: TRL's ppo makes its log-probabilities of whole logits, not chunked",
        "use loss_head log-softmax or selective",
    ),
    (
        {"trainer": "pytorch", "method": "sft", "precision": "fp32", "gradient_checkpointing": "selective"},
        "gradient_checkpointing: selective is not modelled with fp32 sdpa and grouped heads",
        "use full",
    ),
    (
        {**GROUPS, "rollout": {"group_size": 3}},
        "rollout.group_size: 3 does not divide the 16 completions of a step",
        "make batch_size × gradient_accumulation_steps × num_gpus a multiple of 3",
    ),
    (
        {**UNEVEN, "virtual_pipeline": 2, "gradient_accumulation_steps": 3},
        "virtual_pipeline: 2 does not divide the 1 layers of a stage",
        "use 1",
    ),
    (
        {"method": "sft", "fsdp": {"auto_wrap_policy": "NO_WRAP"}, **FSDP2},
        "fsdp.auto_wrap_policy: NO_WRAP under FSDP2 is not modelled: the root alone",
        "leave it out, or use sharding: fsdp",
    ),
    (
        {"method": "sft", "model": TIED, "freeze": ["lm_head"]},
        "freeze: 'lm_head' names no weight of llama",
        "the head is the embedding's tensor: freeze embed_tokens",
    ),
    (
        {"method": "sft", "model": TIED, "freeze": ["embed_token"]},
        "freeze: 'embed_token' names no weight of llama",
        "did you mean embed_tokens?",
    ),
    ({"method": "sft", "freeze": ["layers.7"]}, "freeze: 'layers.7' names no weight", "the layers are 0 to 1"),
]


@pytest.mark.parametrize(("keys", "message", "hint"), REFUSED, ids=[message[:60] for _, message, _ in REFUSED])
def test_what_cannot_be_is_refused_in_these_words(keys: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        recipe(**keys)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "keys",
    [
        {"lora": {"r": 8, "trainable_token_indices": {"embed_tokens": 512}}},
        {"trainer": "trl", "method": "orpo"},
        {"reshard_after_forward": 4, **FSDP2},
        {"fsdp": {"replicate": 4}, **FSDP2},
        {"deepspeed": {"stage": 2}, **ZERO2},
        {"deepspeed": {"mics_shard_size": 2}, **ZERO3},
        {"deepspeed": {"offload_optimizer": {"device": "cpu", "ratio": 1.0}}, **ZERO2},
        {"deepspeed": {"offload_param": {"device": "none"}, "zero_hpz_partition_size": 1}, **ZERO2},
        {"deepspeed": {"communication_data_type": "fp16"}, "reduce_dtype": "fp16", **ZERO3},
        {"model": T5, "method": "sft", "trainer": "transformers", "gradient_checkpointing": "full"},
        {"model": T5, "method": "sft", "sharding": "ddp", "num_gpus": 2, "loss_head": "cross-entropy"},
        {"offload": ["optimizer"], "optimizer": "sgd", "deepspeed": {"zero_force_ds_cpu_optimizer": False}, **ZERO3},
        {"trainer": "llamafactory", "method": "sft", "freeze": ["embed_tokens"], "precision": "bf16"},
        {"trainer": "trl", "method": "ppo", "trainer_version": "1.12"},
        {**EXPERTS, "num_gpus": 4, "expert_parallel": 4, "expert_tensor_parallel": 1},
        TWO_PASSES,
        {"lora": {"r": 8, "targets": ["q_proj"], "rank_pattern": {"q_proj": 4}}},
        {"model": RWKV, "method": "sft", "sequence_length": 128, "mixer_kernels": "cuda"},
        {"model": FALCON_H1, "method": "sft", "sequence_length": 129, "mixer_kernels": "cuda"},
        {
            "trainer": "pytorch",
            "method": "sft",
            "precision": "fp32",
            "gradient_checkpointing": "selective",
            "model": {**TINY, "num_key_value_heads": 4},
        },
        {**GROUPS, "rollout": {"group_size": 16}},
        UNEVEN,
        {"method": "sft", "fsdp": {"auto_wrap_policy": "NO_WRAP"}, "sharding": "fsdp", "num_gpus": 8},
    ],
)
def test_what_is_next_to_it_runs(keys: dict[str, Any]) -> None:
    assert recipe(**keys).model.num_layers


def test_deepspeeds_own_defaults() -> None:
    zero = recipe(**ZERO3).sharding.deepspeed
    assert (zero.wrapper, zero.groups, zero.reduce_bucket_size) == ("zero3", 1, 500_000_000)
    assert (zero.prefetch_bucket_size, zero.param_persistence_threshold) == (50_000_000, 100_000)
    assert (zero.max_live_parameters, zero.max_reuse_distance, zero.sub_group_size) == (10**9, 10**9, 10**9)
    assert (zero.overlap_comm, zero.contiguous_gradients, zero.reduce_scatter) == (True, True, True)
    assert not any((zero.allgather_sequential, zero.fetch_by_all_reduce, zero.round_robin_gradients))
    assert not any(
        (zero.quantised_weights, zero.quantised_frozen, zero.quantised_gradients, zero.immediate_grad_update)
    )
    assert (zero.hpz, bool(zero.optimizer), bool(zero.parameters)) == (1, False, False)
    one_by_one = recipe(deepspeed={"stage3_allgather_sequential": True}, **ZERO3).sharding.deepspeed
    assert (one_by_one.allgather_sequential, one_by_one.prefetch_bucket_size) == (True, 1)
    assert not recipe(**ZERO2).sharding.deepspeed.overlap_comm


def test_what_a_trainer_puts_for_auto_follows_the_hidden_size() -> None:
    zero = recipe(trainer="trl", **ZERO3).sharding.deepspeed
    assert (zero.groups, zero.reduce_bucket_size) == (2, 64 * 64)
    assert (zero.prefetch_bucket_size, zero.param_persistence_threshold) == (int(0.9 * 64 * 64), 640)
    given = recipe(trainer="trl", deepspeed={"reduce_bucket_size": 7, "sub_group_size": 0}, **ZERO3)
    assert (given.sharding.deepspeed.reduce_bucket_size, given.sharding.deepspeed.sub_group_size) == (7, 1)
    assert not any("reduce_bucket_size" in said for said in given.provenance.assumptions)
    assert any(
        "reduce_bucket_size: 4096 elements" in said for said in recipe(trainer="trl", **ZERO3).provenance.assumptions
    )


def test_states_that_wait_on_nvme_pass_through_buffers() -> None:
    for key, count in (("offload_optimizer", 4), ("offload_param", 5)):
        zero = recipe(deepspeed={key: {"device": "nvme"}}, **ZERO3).sharding.deepspeed
        found = zero.optimizer if key == "offload_optimizer" else zero.parameters
        assert tuple(found) == ("nvme", found[1], count, 100_000_000, 1_000_000_000, 1.0, False)
    own = {"device": "nvme", "buffer_count": 3, "buffer_size": 8, "max_in_cpu": 9, "pin_memory": True}
    assert tuple(recipe(deepspeed={"offload_param": own}, **ZERO3).sharding.deepspeed.parameters) == (
        "nvme",
        True,
        3,
        8,
        9,
        1.0,
        False,
    )
    assert recipe(offload=["parameters"], **ZERO3).sharding.deepspeed.parameters.device == "cpu"


@pytest.mark.parametrize(("per_node", "replicas"), [(8, 2), (4, 4), (16, 1)])
def test_a_hybrid_shards_within_the_node(per_node: int, replicas: int) -> None:
    hybrid = {"sharding": "fsdp", "num_gpus": 16, "fsdp": {"sharding_strategy": "HYBRID_SHARD"}}
    assert recipe(gpus_per_node=per_node, **hybrid).parallel.replicas == replicas


def test_a_reason_stands_with_what_a_trainer_fills_in() -> None:
    found = recipe(trainer="trl", method="grpo", completion_length=32)
    assert found.provenance.sources["entropy"] == "trainer"
    assert found.provenance.origins["entropy"] == "TRL logs it"
    assert (
        "entropy" not in recipe(trainer="trl", method="grpo", completion_length=32, entropy="none").provenance.origins
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, []),
        (
            {
                "trainer": "trl",
                "method": "sft",
                "quantization": "nf4",
                "lora": {"r": 8},
                "sharding": "fsdp2",
                "num_gpus": 2,
            },
            ["bnb_4bit_quant_storage: bf16", "bnb_4bit_compute_dtype: bf16", "lora.dtype: fp32 (accelerate"],
        ),
        (
            {"trainer": "trl", "method": "grpo"},
            ["rollout: the policy itself (transformers' generate) generates", "reference: none (TRL's default"],
        ),
    ],
    ids=["a text model", "QLoRA under FSDP2", "GRPO"],
)
def test_what_is_assumed_is_said(keys: dict[str, Any], said: list[str]) -> None:
    found = recipe(**keys).provenance.assumptions
    for each in said:
        assert any(text.startswith(each) for text in found), f"{each} in {found}"
    assert not any("vision tower is resident" in text for text in found)


def test_pixels_of_a_text_model_are_three_bytes_each_and_warned_about() -> None:
    found = recipe(images={"width": 10, "height": 20})
    assert any(text.startswith("images: their pixels are in the batch") for text in found.provenance.warnings)
    images = found.batch.images
    assert images is not None
    assert (images.squares, images.rows, images.columns, images.tokens, images.pixels) == (1, 0, 0, 0, 600)


UNSAID: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "sft_term: loss_head fused makes no logits, so it is made of log-probabilities: no memory",
        {"trainer": "trl", "method": "dpo", "sft_term": True},
        {"loss_head": "selective"},
    ),
    (
        "sync_each_batch: False (TRL accumulates under no_sync: whole gradients stay)",
        {"trainer": "trl", "method": "sft", "gradient_accumulation_steps": 2, **FSDP2},
        {"gradient_accumulation_steps": 1},
    ),
    (
        "sync_each_batch: ",
        {"trainer": "trl", "method": "sft", "gradient_accumulation_steps": 2, **FSDP2},
        {"trainer": "pytorch"},
    ),
    (
        "sft_term: LLaMA-Factory makes it of the log-probabilities that are there",
        {"trainer": "llamafactory", "method": "dpo", "sft_term": True},
        {"sft_term": None},
    ),
    (
        "entropy: as eager torch; OpenRLHF compiles it",
        {"trainer": "openrlhf", "method": "grpo", "entropy": "metric"},
        {"entropy": "none"},
    ),
    (
        "kernels: Liger's functions are no operations of torch, so selective checkpointing makes them again",
        {"trainer": "pytorch", "method": "sft", "kernels": "liger", "gradient_checkpointing": "selective"},
        {"gradient_checkpointing": "full"},
    ),
    (
        "kernels: Unsloth's adapters, RMSNorm, rotary embedding, and loss in chunks",
        {"trainer": "trl", "method": "sft", "kernels": "unsloth", "precision": "bf16", "lora": {"r": 8}},
        {"kernels": "none"},
    ),
    (
        'gradient_checkpointing: use_gradient_checkpointing="unsloth", its default: layer inputs wait on the host',
        {
            "trainer": "trl",
            "method": "sft",
            "kernels": "unsloth",
            "precision": "bf16",
            "lora": {"r": 8},
            "gradient_checkpointing": "full",
            "sequence_length": 512,
        },
        {"sequence_length": 511},
    ),
    (
        "loss_head: Liger's preference loss as eager torch",
        {"trainer": "trl", "trainer_version": "1.10", "method": "dpo", "kernels": "liger"},
        {"kernels": "none"},
    ),
    ("compile: an approximation; each layer is one graph", {"method": "sft", "compile": True}, {"compile": False}),
    (
        "megatron.cp_comm_type: p2p, Megatron's default",
        {"trainer": "megatron", "method": "sft", "num_gpus": 2, "context_parallel": 2, "sequence_length": 512},
        {"megatron": {"cp_comm_type": "p2p"}},
    ),
    (
        "megatron.attention_backend: flash, as",
        {"trainer": "megatron", "method": "sft", "gpu": "a100-80gb", "batch_size": 2, "sequence_length": 512},
        {"gpu": "h100-80gb"},
    ),
    ("megatron.moe_expert_imbalance: 1, so each", {**EXPERTS, "num_gpus": 2}, {"model": TINY}),
    (
        "sequence_parallel: True (tensor parallelism without it is rare",
        {"trainer": "megatron", "method": "sft", "num_gpus": 2, "tensor_parallel": 2},
        {"sequence_parallel": False},
    ),
    (
        "trainer: megatron (tensor_parallel: 2 and no trainer named: Megatron-LM)",
        {"method": "sft", "num_gpus": 2, "tensor_parallel": 2},
        {"trainer": "megatron"},
    ),
    (
        "lora.dtype: fp16 in bf16 products: not every copy between both is counted",
        {"method": "sft", "precision": "bf16", "lora": {"r": 8, "dtype": "fp16"}},
        {"lora": {"r": 8, "dtype": "bf16"}},
    ),
    (
        "kbit_upcast: True (prepare_model_for_kbit_training casts embeddings, head and norms",
        {
            "trainer": "trl",
            "trainer_version": "0.24",
            "method": "sft",
            "precision": "bf16",
            "lora": {"r": 8},
            "quantization": "int8",
        },
        {"quantization": "nf4"},
    ),
    (
        "router_aux_loss: as transformers 5.23 makes it, layer by layer; up to 5.12 it has a one-hot mask of 16,384 b",
        {"method": "sft", "model": EVERY_SECOND, "router_aux_loss": True, "sequence_length": 128},
        {"sequence_length": 129},
    ),
]


@pytest.mark.parametrize(("text", "keys", "other"), UNSAID, ids=[text[:40] for text, _, _ in UNSAID])
def test_what_is_assumed_is_said_where_it_is_so_and_nowhere_else(
    text: str, keys: dict[str, Any], other: dict[str, Any]
) -> None:
    for expected, more in ((1, {}), (0, other)):
        said = recipe(**{key: value for key, value in {**keys, **more}.items() if value is not None})
        assert sum(each.startswith(text) for each in said.provenance.assumptions) == expected


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("trainer", ["pytorch", "trl"])
def test_whether_gradients_are_reduced_each_time_is_as_the_job_says(trainer: str, given: bool) -> None:
    keys = {"trainer": trainer, "method": "sft", "gradient_accumulation_steps": 2, **FSDP2}
    assert recipe(**keys, sync_each_batch=given).sharding.sync_each_batch is given
    assert recipe(**keys).sharding.sync_each_batch is (trainer == "pytorch")


def test_litgpts_caller_holds_the_outputs_of_its_own_head_alone() -> None:
    keys = {"trainer": "litgpt", "method": "sft"}
    held = {each.loss.head: each.loss.keeps_outputs for each in (recipe(**keys), recipe(**keys, lora={"r": 8}))}
    assert held == {"chunked-cross-entropy": True, "chunked-lm-head": False}


@pytest.mark.parametrize(
    ("version", "method", "reads"), [("1.10", "dpo", True), ("1.10", "ipo", False), ("1.16", "dpo", False)]
)
def test_ligers_preference_loss_alone_reads_the_reference(version: str, method: str, reads: bool) -> None:
    loss = recipe(trainer="trl", trainer_version=version, method=method, kernels="liger").loss
    assert (loss.head == "liger-preference", loss.code.reads_reference) == (reads, reads)


@pytest.mark.parametrize(
    ("precision", "logits", "gradients"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp16", "auto", "fp16"),
        ("fp32", "fp32", "fp32"),
        ("bf16-amp", "bf16", "fp32"),
        ("fp16-amp", "auto", "fp32"),
    ],
)
def test_a_report_shows_the_dtypes_that_were_auto(precision: str, logits: str, gradients: str) -> None:
    """``auto`` stands for fp16 logits: the job has no word for them."""
    shown = recipe(trainer="pytorch", method="sft", precision=precision).provenance.job
    assert (shown["logits_dtype"], shown["grad_dtype"], shown["reduce_dtype"]) == (logits, gradients, gradients)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_quantised_base_computes_in_the_jobs_dtype(dtype: str) -> None:
    found = recipe(method="sft", quantization="nf4", lora={"r": 8}, dtype=dtype)
    assert found.quantised is not None
    assert (found.quantised.fp16, found.quantised.compute_itemsize) == (dtype == "fp16", 2)
    assert f"bnb_4bit_compute_dtype: {dtype}" in found.provenance.assumptions


@pytest.mark.parametrize(
    ("on", "asked", "made", "why"),
    [
        (True, None, ("read", "unread", "unread"), "the model's output_router_logits"),
        (True, True, ("read", "unread", "unread"), None),
        (True, False, ("", "", ""), None),
        (False, None, ("read", "", ""), "TRL asks for it wherever a class has one"),
        (False, True, ("read", "", ""), None),
        (False, False, ("", "", ""), None),
    ],
)
def test_the_job_then_the_model_then_the_trainer_turn_the_routers_loss_on(
    on: bool, asked: bool | None, made: tuple[str, str, str], why: str | None
) -> None:
    """In the policy's forward, its passes without a graph, and the reference's: where the config asks, all make it."""
    keys = {} if asked is None else {"router_aux_loss": asked}
    found = recipe(model={**MIXTRAL, "output_router_logits": on}, method="dpo", trainer="trl", **keys)
    assert found.loss.router[:3] == made
    assert found.provenance.origins.get("router_aux_loss") == why
    assert found.provenance.job["router_aux_loss"] is (made[0] == "read")


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("qwen2.5-vl-7b", "each 3996 patches and 999 tokens of the sequence, as"),
        ("mistral-small-3.1-24b", "each 4144 patches and 1036 tokens of the sequence beside 28 of text, as"),
        ("llama-4-scout", "each 7488 patches in 13 tiles and 1872 tokens of the sequence beside 15 of text, as"),
    ],
)
def test_tiles_and_marks_of_an_image_are_told_where_there_are_any(preset: str, said: str) -> None:
    found = recipe(model=preset, method="sft", images={"width": 1024, "height": 768}).provenance.assumptions
    assert sum(f"images: 1 an example, {said} the processor" in each for each in found) == 1


def test_patterns_that_take_too_long_to_try_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of seven linears and two norms, embedding, last norm and head: one pattern tries 21 weights."""
    keys: dict[str, Any] = {"method": "sft", "freeze": ["layers.*.mlp"]}
    monkeypatch.setattr("memplan.resolve.freezing.MOST_TRIED", 21)
    assert recipe(**keys).model.runs[0].layer.frozen
    monkeypatch.setattr("memplan.resolve.freezing.MOST_TRIED", 20)
    with pytest.raises(InvalidJob, match=r"freeze: 1 patterns with .* are too many for 21 weights") as caught:
        recipe(**keys)
    assert caught.value.hint == "join them, such as layers.0-15"


@pytest.mark.parametrize(
    ("keys", "warnings"),
    [
        ({"method": "sft", "mixer_kernels": "cuda"}, ["mixer_kernels has no effect: llama has no mixer with kernels"]),
        ({"method": "sft", "mixer_kernels": "torch"}, []),
        (
            {"method": "grpo", "beta": 0.1},
            [
                "beta has no effect on memory",
                "beta: where it is 0 no reference is",
                "rollout: generation is not counted",
            ],
        ),
        ({"method": "dpo", "beta": 0.1}, ["beta has no effect on memory"]),
        ({"method": "sft", "precision": "bf16", **ZERO2}, ["precision: bf16 with zero2: DeepSpeed keeps fp32 master"]),
        ({"method": "sft", "precision": "bf16-master", **ZERO2}, []),
        ({"method": "sft", "precision": "bf16", "sharding": "zero0", "num_gpus": 4}, []),
    ],
)
def test_what_may_surprise_is_remarked(keys: dict[str, Any], warnings: list[str]) -> None:
    found = recipe(**keys).provenance.warnings
    assert len(found) == len(warnings)
    assert all(each.startswith(text) for each, text in zip(found, warnings, strict=True))


@pytest.mark.parametrize(
    ("keys", "shown"), [({}, "torch"), ({"gpu": "h100-80gb"}, "cuda"), ({"gpu": "h100-80gb", "length": 129}, "torch")]
)
def test_kernels_of_mixers_are_taken_to_be_installed_beside_a_named_card(keys: dict[str, Any], shown: str) -> None:
    """RWKV's take no more than its context of 128 tokens."""
    rest = {key: value for key, value in keys.items() if key != "length"}
    found = recipe(model=RWKV, method="sft", sequence_length=keys.get("length", 128), **rest)
    assert (found.provenance.job["mixer_kernels"], found.operators.mixer_kernels) == (shown, shown == "cuda")


@pytest.mark.parametrize(("size", "replicas"), [(1, 4), (2, 2), (4, 1)])
def test_mics_holds_a_copy_in_each_group(size: int, replicas: int) -> None:
    assert recipe(deepspeed={"mics_shard_size": size}, **ZERO3).parallel.replicas == replicas


@pytest.mark.parametrize(("precision", "cast"), [("bf16", True), ("fp32", False)])
def test_logits_are_cast_to_fp32_where_they_are_not_already(precision: str, cast: bool) -> None:
    assert recipe(method="dpo", trainer="pytorch", precision=precision, logits_dtype="fp32").loss.to_fp32 is cast


def test_models_beside_trl_before_0_12_end_in_fp32() -> None:
    found = [recipe(method="dpo", trainer="trl", trainer_version=each, **ZERO3).loss for each in ("0.11.4", "0.12")]
    assert [each.to_fp32 for each in found] == [True, False]


@pytest.mark.parametrize(("precision", "leaves"), [("bf16", False), ("bf16-amp", True)])
def test_openrlhfs_loss_leaves_autocast_where_there_is_one(precision: str, leaves: bool) -> None:
    found = recipe(trainer="openrlhf", method="sft", sharding="none", precision=precision)
    assert found.loss.code.leaves_autocast is leaves


@pytest.mark.parametrize(("on", "made"), [(True, "unread"), (False, "")])
def test_trls_online_dpo_makes_the_routers_loss_of_a_config_and_never_reads_it(on: bool, made: str) -> None:
    found = recipe(model={**MIXTRAL, "output_router_logits": on}, method="online-dpo", trainer="trl")
    assert found.loss.router.policy == made


def test_soap_preconditions_up_to_its_own_limit() -> None:
    """pytorch_optimizer 4.1 optimizer/soap.py: max_precondition_dim."""
    assert recipe(method="sft", optimizer="soap").optimizer.settings.max_precondition_dim == 10_000
