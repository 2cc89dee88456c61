"""Proves that what Megatron's ranks hold adds up to the model: parameters, paddings, replicas, states."""

from itertools import product
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.api import estimate
from memplan.engine.megatron.stages import chunks_of
from memplan.engine.megatron.states import padded_elements
from memplan.engine.megatron.weights import Share, padded_vocabulary, rank_shares
from memplan.errors import InvalidJob
from memplan.models import load_model
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 1408, "vocab_size": 1000, "head_dim": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "dense": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True},
    "biased": LLAMA | {"model_type": "qwen2"},
    "experts": LLAMA
    | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
    "sinks": LLAMA
    | {"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 256},
    "delta": LLAMA
    | {
        "model_type": "qwen3_next", "full_attention_interval": 4, "linear_num_key_heads": 8,
        "linear_num_value_heads": 16, "linear_key_head_dim": 32, "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
    },
    "latent": LLAMA
    | {
        "model_type": "deepseek_v2", "num_key_value_heads": 16, "q_lora_rank": 128, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 256, "n_shared_experts": 1, "first_k_dense_replace": 1,
    },
}  # fmt: skip
JOB: dict[str, Any] = {
    "method": "sft", "trainer": "megatron", "sequence_length": 1024, "gradient_accumulation_steps": 8,
}  # fmt: skip
STATES = ("parameters", "gradients", "master_weights", "optimizer_states")


def spec_of(name: str) -> ModelSpec:
    return load_model(MODELS[name])


def shares_of(spec: ModelSpec, degrees: Parallel, given_settings: Megatron) -> list[Share]:
    return rank_shares(spec, degrees, given_settings, chunks_of(spec, degrees, given_settings, 8, False))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("tensor", "stages", "expert"), [*product((1, 2, 8), (1, 2, 8), (1, 4))])
def test_the_ranks_hold_the_model_and_no_more(name: str, tensor: int, stages: int, expert: int) -> None:
    """Divided tensors on all ranks together, replicas once, less the padded rows and the tied copy."""
    spec, given_settings = spec_of(name), Megatron()
    has_experts = any(run.layer.experts for run in spec.runs)
    expert = expert if has_experts else 1
    total = 0
    for stage in range(stages):
        degrees = Parallel(64, tensor, stages, 1, expert, 1, stage=stage)
        for share in shares_of(spec, degrees, given_settings):
            total += share.elements * (expert if share.expert else 1 if share.replicated else tensor)
    degrees = Parallel(64, tensor, stages)
    padding = padded_vocabulary(spec, degrees, given_settings) - spec.vocab_size
    tables = 2 if not spec.head_is_tied or stages > 1 else 1
    copied = spec.vocab_size * spec.hidden_size if spec.head_is_tied and stages > 1 else 0
    assert total == spec.params.total + tables * padding * spec.hidden_size + copied


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_experts_are_divided_again_by_expert_tensor_parallelism(tensor: int) -> None:
    spec = spec_of("experts")
    of_all = sum(layer.experts.parameters for layer in spec.layers() if layer.experts)
    shares = shares_of(spec, Parallel(64, 4, 1, 1, 2, tensor), Megatron())
    assert sum(share.elements for share in shares if share.expert) == of_all / 2 / tensor


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, [[2], [2], [2], [2]]),
        ({"num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 3}, [[1], [2], [2], [3]]),
        ({"pipeline_model_parallel_layout": "Et|t*4||t*3L"}, [[1], [4], [], [3]]),
        (
            {
                "pipeline_model_parallel_layout": [
                    ["embedding", "decoder"],
                    ["decoder"] * 4,
                    [],
                    ["decoder"] * 3 + ["loss"],
                ]
            },
            [[1], [4], [], [3]],
        ),
        ({"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}, None),
    ],
)
def test_stages_get_their_layers(keys: dict[str, int], layers: list[list[int]] | None) -> None:
    count = 8 if layers else 6
    spec = load_model(LLAMA | {"num_hidden_layers": count})
    found = [
        [chunk.layers for chunk in chunks_of(spec, Parallel(4, 1, 4, stage=stage), Megatron(**keys), 8, False)]
        for stage in range(4)
    ]
    assert found == (layers or [[1], [2], [2], [1]])


def test_interleaved_chunks_take_turns() -> None:
    """Of a dense layer and experts after it, the dense one is in the first chunk of the first stage."""
    spec = spec_of("latent")
    stages = [Parallel(2, 1, 2, virtual=2, stage=stage) for stage in range(2)]
    found = [[chunk.layer.experts is None for chunk in chunks_of(spec, each, Megatron(), 8, False)] for each in stages]
    assert found == [[True, False, False], [False, False]]


def test_paddings_of_the_buffer() -> None:
    """Each parameter begins at a multiple of 64 elements; the end is a multiple of lcm(ranks, 128)."""
    shares = [Share("a", 65, 1, 2), Share("b", 64, 2, 1)]
    assert padded_elements(shares, 1, Megatron()) == 384
    assert padded_elements(shares, 3, Megatron()) == 384
    assert padded_elements(shares, 5, Megatron()) == 640
    assert padded_elements(shares, 1, Megatron(pad_buckets_for_high_nccl_busbw=True)) == 2**16


def states(**keys: Any) -> dict[str, int]:
    """What stays from step to step, by category."""
    report = estimate({**JOB, "model": LLAMA, **keys})
    last = report.per_gpu.instants[-1].name
    rows = [row for row in report.per_gpu.ledger if row.dies == last and row.place == "gpu"]
    return {kind: sum(row.bytes for row in rows if row.category == kind) for kind in STATES}


BYTES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "whole": ({"sharding": "ddp"}, (2, 4, 4, 8)),
    "distributed": ({}, (2, 4, 1, 2)),
    "fp32": ({"precision": "fp32", "sharding": "ddp"}, (4, 4, 0, 8)),
    "bf16 gradients": (
        {"megatron": {"use_precision_aware_optimizer": True, "main_grads_dtype": "bf16"}},
        (2, 2, 0.5, 2),
    ),
    "remainders": ({"megatron": {"use_precision_aware_optimizer": True}}, (2, 4, 0.5, 2)),
    "no remainders": (
        {"megatron": {"use_precision_aware_optimizer": True, "store_param_remainders": False}},
        (2, 4, 1, 2),
    ),
    "narrow moments": (
        {"megatron": {"use_precision_aware_optimizer": True, "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "bf16"}},
        (2, 4, 0.5, 0.75),
    ),
    "sgd": ({"optimizer": "sgd"}, (2, 4, 1, 0)),
    "half on the host": (
        {
            "megatron": {
                "use_precision_aware_optimizer": True, "optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5,
            }
        },
        (2, 4, 0.25, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BYTES)
def test_bytes_per_parameter(case: str) -> None:
    """megatron-core's docs/source/api-guide/dist_optimizer.md, over four data-parallel ranks."""
    keys, expected = BYTES[case]
    found = states(num_gpus=4, **keys)
    parameters = load_model(LLAMA).params.total
    assert tuple(found[kind] / parameters for kind in STATES) == pytest.approx(expected, rel=0.003, abs=1e-6)


@given(st.sampled_from(list(MODELS)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 4]))
@examples(40)
def test_more_ranks_never_hold_more_states_each(name: str, tensor: int, stages: int, data: int) -> None:
    """Up to the padded vocabulary, and to the experts, which expert-tensor ranks divide as tensor ranks do."""

    def most(tensor: int, stages: int, data: int) -> int:
        gpus = tensor * stages * data
        keys = {"tensor_parallel": tensor, "pipeline_parallel": stages, "num_gpus": gpus}
        report = estimate({**JOB, "model": MODELS[name], **keys})
        last = report.per_gpu.instants[-1].name
        return sum(row.bytes for row in report.per_gpu.ledger if row.category in STATES and row.dies == last)

    before = most(tensor, stages, data)
    spec = spec_of(name)
    padding = 18 * 2 * 128 * 2 * tensor * spec.hidden_size
    table = 18 * spec.vocab_size * spec.hidden_size if spec.head_is_tied and stages == 1 else 0
    assert most(tensor * 2, stages, data) <= before + padding
    assert most(tensor, stages * 2, data) <= before + table
    assert most(tensor, stages, data * 2) <= before + 18 * 128 * 16


def test_what_is_offloaded_waits_on_the_host_in_fp32() -> None:
    """Main weights, moments and gradients of every rank's shard: 16 bytes a parameter over the node."""
    job = {**JOB, "model": LLAMA, "num_gpus": 4}
    settings_of = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
    named, meant = estimate({**job, "megatron": settings_of}), estimate({**job, "offload": ["optimizer"]})
    parameters = load_model(LLAMA).params.total
    rows = [row for row in named.per_gpu.ledger if row.place == "host"]
    assert sum(row.bytes for row in rows) * 4 == pytest.approx(16 * parameters, rel=0.003)
    assert meant.per_gpu.allocated_bytes == named.per_gpu.allocated_bytes
    assert meant.host.bytes_per_node == named.host.bytes_per_node


def test_copies_of_the_optimizers_states_are_shared_among_fewer_ranks() -> None:
    job = {**JOB, "model": LLAMA, "num_gpus": 16}
    one, four = (
        estimate({**job, "megatron": {"num_distributed_optimizer_instances": copies}}).per_gpu.by_category
        for copies in (1, 4)
    )
    assert four["optimizer_states"] == pytest.approx(4 * one["optimizer_states"], rel=0.01)
    assert four["gradients"] == pytest.approx(one["gradients"], rel=0.01)
    with pytest.raises(InvalidJob, match="3 copies over 16"):
        estimate({**job, "megatron": {"num_distributed_optimizer_instances": 3}})
    settings = {"num_distributed_optimizer_instances": 4, "reduce_scatter_with_fp32_accumulation": True}
    with pytest.raises(InvalidJob, match="refuses it beside copies"):
        estimate({**job, "megatron": settings})
