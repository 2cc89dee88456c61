"""Proves what an engine's weights take of a card, as vLLM and SGLang said it, and what the allocator rounds of them."""

from typing import Any

import pytest

from memplan.api import estimate
from memplan.engine.generation.loading import loaded_bytes
from memplan.engine.generation.rank import stages_of
from memplan.engine.generation.weights import padded_vocabulary, rotary_bytes, weights_bytes
from memplan.gpus import find_gpu
from memplan.models import load_model
from memplan.spec.generation import Draft, Generator
from memplan.tables.quantizations import Stored
from memplan.units import GiB, MiB


def engine(model: str = "qwen2.5-7b", version: str = "0.11.0", name: Any = "vllm", **given: Any) -> Generator:
    """An engine on cards of its own."""
    sizes = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    return Generator(name, version, load_model(model), **({"separate": True} | sizes | given))


SGLANG = {"name": "sglang", "version": "0.4.6"}
WEIGHTS = [
    ("qwen3-14b", {}, 27.52),
    ("llama-3.1-8b", {}, 14.9889),
    ("llava-1.6-mistral-7b", {}, 14.0786),
    ("qwen3-30b-a3b", {"tensor_parallel": 4}, 14.2474),
    ("qwen3-8b", {"quantization": "fp8"}, 8.80),
    ("qwen3-4b", {}, 7.5552),
    ("granite-3.3-2b", {}, 4.7351),
    ("deepseek-r1-distill-qwen-14b", {"tensor_parallel": 2}, 13.9476),
    ("llama-3-70b", {"tensor_parallel": 2, "quantization": "awq", "version": "0.16.0"}, 18.55),
    ("llama-3.3-70b", {"tensor_parallel": 4, "quantization": "fp8"}, 16.9542),  # 16.9619, a scale for each channel
    ("opt-125m", {}, 0.2389),
    ("qwen3-0.6b", {}, 1.1201),
    ("qwen3-8b", {"quantization": "awq"}, 5.71),
    ("Qwen/Qwen2.5-7B-Instruct", {"quantization": "awq", "version": "0.22.0"}, 5.29),
    ("deepseek-r1-distill-qwen-32b", SGLANG | {"tensor_parallel": 4}, 15.54),  # tables of cos and sin in fp32
    ("qwen3-8b", {"quantization": "nvfp4"}, 5.975),
    ("qwen3-30b-a3b", {"quantization": "nvfp4"}, 16.86),
    ("qwen3.5-35b-a3b", {"quantization": "nvfp4", "version": "0.20.0"}, 21.86),  # mixers of linear attention in bf16
    ("qwen3.5-35b-a3b", {"quantization": "nvfp4", "version": "0.20.0", "draft": Draft(layers=1)}, 23.43),  # in bf16
    ("gemma-3-12b", {"tensor_parallel": 2}, 11.9642),  # a table of eight times the positions
    ("tinyllama-1.1b", {"quantization": "nf4", "version": "0.8.3"}, 0.7318),  # scales that are quantised too
    ("qwen3.5-27b", {"tensor_parallel": 4, "version": "0.19.0"}, 13.01),  # queries to values with what gates them
    ("phi-4", {"quantization": "gptq", "version": "0.6.5"}, 8.5107),  # no zeros
    ("gemma-4-31b", {"version": "0.26.0"}, 58.99),  # keys that are values too are loaded twice
    ("qwen3-32b", {"version": "0.26.0", "draft": Draft(layers=1, rows=32_000)}, 63.94),  # an EAGLE-3 head beside it
    ("gemma-4-e4b", {"version": "0.19.2", "max_num_batched_tokens": 2496}, 15.16),  # keys and values that nothing reads
    ("gemma-4-e2b", {"version": "0.30.0", "max_num_batched_tokens": 2496}, 9.75),  # embeddings of each layer
]


@pytest.mark.parametrize("row", WEIGHTS, ids=lambda row: row[0])
def test_weights_are_those_of_the_log(row: Any) -> None:
    model, given, measured = row
    assert weights_bytes(engine(model, **given)) / GiB == pytest.approx(measured, rel=0.0005)


@pytest.mark.parametrize(
    ("size", "before", "since"),
    [(9.5, 9.5, 9.5), (24.5, 24.5, 26), (129.5, 130, 130), (259, 260, 260), (52.5, 52.5, 54), (64, 64, 64)],
)
def test_what_is_left_of_a_segment_counts_with_its_tensor(size: float, before: float, since: float) -> None:
    sizes = (int(size * MiB),)
    assert loaded_bytes(sizes, "blocks") == before * MiB
    assert loaded_bytes(sizes, "unsplit") == since * MiB
    assert loaded_bytes(sizes, "segments") == max(since, 20) * MiB
    assert loaded_bytes(sizes, "grown") == int(size * MiB) <= loaded_bytes(sizes, "blocks")


def test_small_tensors_fill_each_others_segments() -> None:
    """Two of 9.5 MiB leave 1 MiB of the 20 of a segment: no block of its own, so that the second has it."""
    assert loaded_bytes((int(9.5 * MiB),) * 2, "blocks") == 20 * MiB
    assert loaded_bytes((int(9.4 * MiB),) * 2, "blocks") < 19 * MiB


def test_on_rocm_vllm_sets_rows_of_fp8_apart() -> None:
    """Qwen3 8B: 256 bytes for each output, as all its linears have multiples of 512 inputs. Experts' are left."""
    card, other = find_gpu("mi300x-192gb"), find_gpu("h100-80gb")
    of = engine("qwen3-8b", quantization="fp8", version="0.20.0")
    outputs = 36 * (6144 + 4096 + 2 * 12288 + 4096)
    assert weights_bytes(of, card) - weights_bytes(of, other) == pytest.approx(outputs * 256, rel=0.35)
    assert weights_bytes(of, card) - weights_bytes(of, other) > outputs * 256
    routed = engine("qwen3-30b-a3b", quantization="fp8", version="0.20.0")
    assert weights_bytes(routed, card) - weights_bytes(routed, other) < 48 * (5120 + 2048) * 256 * 3


def test_segments_that_grow_leave_nothing() -> None:
    """Qwen2.5 14B of NVIDIA's container, whose logs have the sum of its tensors."""
    job = {"model": "qwen2.5-14b", "gpu": "h100-80gb", "method": "generate", "rollout": {"engine": "vllm"}}
    plain, grown = (estimate({**job, "allocator": {"expandable_segments": each}}).engine for each in (False, True))
    assert plain is not None
    assert grown is not None
    of = load_model("qwen2.5-14b")
    assert grown.weights_bytes < plain.weights_bytes
    assert grown.weights_bytes - 2 * of.params.total == pytest.approx((of.max_positions or 0) * 128 * 2, rel=0.01)


def test_on_rocm_free_memory_is_what_falls() -> None:
    of = engine("qwen2.5-7b")
    assert weights_bytes(of, find_gpu("mi300x-192gb")) > weights_bytes(of, find_gpu("h100-80gb"))


def test_of_several_stages_the_fullest_counts() -> None:
    """DeepSeek-V2.5's second has no dense layer and the head: 28.48 GiB in a log, where the first has 27.63."""
    of = engine("deepseek-v2", "0.8.4", tensor_parallel=8, pipeline_parallel=2)
    assert weights_bytes(of) / GiB == pytest.approx(28.48, rel=0.0015)
    assert [part.stop - part.start for part in stages_of(61, 4)] == [15, 15, 16, 15]
    assert [part.stop - part.start for part in stages_of(7, 3)] == [2, 3, 2]


def test_products_with_the_latents_matrix_stand_beside_it_in_vllm_0_7() -> None:
    """DeepSeek-V2-Lite on eight ranks: 229.5 MiB of W_Q_UK, W_UV_O and W_QR; none of formats without a latent."""
    given = {"tensor_parallel": 8, "itemsize": 2}
    sizes = {version: weights_bytes(engine("deepseek-v2-lite", version, **given)) for version in ("0.7.1", "0.8.0")}
    assert (sizes["0.7.1"] - sizes["0.8.0"]) / MiB == pytest.approx(229.5, abs=1)
    awq = [weights_bytes(engine("deepseek-v2-lite", at, quantization="awq", **given)) for at in ("0.7.1", "0.8.0")]
    assert awq[0] == awq[1]


def test_queries_keys_and_values_are_one_tensor() -> None:
    """Qwen2.5 7B: 31.5 MiB of q, k and v, 259 of gate and up, 129.5 of down, 1,039.5 of embedding and head; o and the
    table of positions fill segments of 20."""
    seven = engine("qwen2.5-7b")
    left = weights_bytes(seven) - 2 * seven.model.params.total - rotary_bytes(seven)
    assert 0 <= left - (28 * 2 + 1) * MiB < 64 * 1024


def test_sglang_makes_gemma_3_s_tables_as_it_goes() -> None:
    """Up to 0.5.9; then two for 131,072 positions, which vLLM scales eight times over."""
    four = engine("gemma-3-4b")
    sizes = [
        rotary_bytes(each) / MiB
        for each in (four, *(four._replace(engine="sglang", version=at) for at in ("0.4.6", "0.5.9", "0.5.10")))
    ]
    assert sizes == [576, 0, 0, 256]


def test_what_an_indexer_chose_is_of_all_layers_together() -> None:
    """int32 [tokens of a forward, chosen]."""
    few, many = (
        weights_bytes(engine("deepseek-v3.2", tensor_parallel=8, max_num_batched_tokens=tokens))
        for tokens in (8192, 16384)
    )
    assert many - few == 8192 * 2048 * 4


def test_ranks_share_what_is_divided() -> None:
    one, two = (weights_bytes(engine("qwen2.5-7b", tensor_parallel=ranks)) for ranks in (1, 2))
    assert one // 2 < two < one * 0.51
    experts = engine("qwen3-30b-a3b", expert_parallel=4)
    assert weights_bytes(experts) < weights_bytes(engine("qwen3-30b-a3b")) / 3
    assert padded_vocabulary(engine("gpt2")) == 50304
    assert weights_bytes(engine("qwen2.5-7b", adapter_rank=16)) > one
    assert weights_bytes(engine("qwen2.5-7b", quantization="nf4")) < one * 0.4


@pytest.mark.parametrize("stages", [2, 4])
def test_the_fullest_stage_has_the_embedding_or_the_head(stages: int) -> None:
    whole = weights_bytes(engine("llama-3.1-8b"))
    end = 128256 * 4096 * 2
    stage = weights_bytes(engine("llama-3.1-8b", pipeline_parallel=stages))
    assert stage == pytest.approx((whole - 2 * end) / stages + end, rel=0.01)


@pytest.mark.parametrize(
    ("own", "bits"),
    [
        ("compressed-tensors int8", 8),
        ("compressed-tensors int4", 4.125),
        ("modelopt nvfp4", 4.5),
        ("bitsandbytes", 4.5),
    ],
)
def test_checkpoints_of_one_scheme_are_served_in_it(own: str, bits: float) -> None:
    """Of a matrix of 4,096 columns: its scales are in 16 bits for 128 weights, or in 8 for 16."""
    spec = load_model("llama-3.1-8b")
    plain, packed = (
        weights_bytes(engine()._replace(model=spec.model_copy(update={"quantization": name})))
        for name in (None, Stored(own))
    )
    linears = 6_979_321_856  # of 32 layers
    assert packed == pytest.approx(plain - linears * (2 - bits / 8), rel=2e-3)


def test_scales_that_are_quantised_too_stay_so_in_older_versions() -> None:
    """Unsloth's file took 5.3541 GiB under 0.7.2."""
    spec = load_model("llama-3.1-8b").model_copy(update={"quantization": Stored("bitsandbytes nested")})
    old, new = (weights_bytes(engine(version=each)._replace(model=spec)) / GiB for each in ("0.9.1", "0.9.2"))
    assert (old, new) == pytest.approx((5.3541, 5.6451), rel=1e-3)


GPT_OSS = [  # 4 A100 pad both sides of an expert, Hopper its scales; one H100 of 0.25.1
    ("gpt-oss-120b", "0.10.1", 4, "a100-80gb", 17.2217),
    ("gpt-oss-20b", "0.19.0", 1, "a100-80gb", 13.72),
    ("gpt-oss-120b", "0.25.1", 1, "h100-80gb", 61.29),
    ("gpt-oss-120b", "0.13.0", 2, "a100-80gb", 34.3774),
    ("gpt-oss-120b", "0.14.0", 1, "h100-80gb", 64.38),  # Triton's of then
    ("gpt-oss-120b", "0.10.1", 1, "h100-80gb", 65.965),  # by Marlin, before Triton's kernels
]


@pytest.mark.parametrize("row", GPT_OSS, ids=lambda row: f"{row[0]}-{row[3]}")
def test_gpt_oss_is_padded_as_its_cards_kernels_have_it(row: Any) -> None:
    model, version, ranks, gpu, measured = row
    of = engine(model, version, tensor_parallel=ranks, quantization="mxfp4")
    assert weights_bytes(of, find_gpu(gpu)) / GiB == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(
    ("said", "measured"), [({}, 53.75), ({"quantization": "fp8"}, 53.75), ({"quantization": "none"}, 106.68)]
)
def test_what_is_published_in_fp8_alone_is_loaded_so(said: Any, measured: float) -> None:
    """MiniMax M2's, whose routers an engine has in fp32."""
    rollout = {"engine": "vllm", "engine_version": "0.19.1", "tensor_parallel": 4} | said
    job = {"model": "minimax-m2.7", "method": "generate", "gpu": "h100-80gb", "num_gpus": 4, "rollout": rollout}
    found = estimate(job).engine
    assert found is not None
    assert found.weights_bytes / GiB == pytest.approx(measured, rel=0.002)


def test_where_a_card_multiplies_no_fp8_a_blocks_scale_is_its_columns() -> None:
    of = engine("qwen3.5-35b-a3b", "0.19.0", quantization="fp8")
    assert weights_bytes(of, find_gpu("a100-80gb")) / GiB == pytest.approx(34.71, rel=0.0005)
    assert weights_bytes(of, find_gpu("l40s-48gb")) / GiB == pytest.approx(34.22, rel=0.0005)


def test_after_hopper_and_its_kin_gpt_oss_is_padded_for_marlin() -> None:
    of = engine("gpt-oss-20b", "0.19.0", quantization="mxfp4")
    least, *others = (weights_bytes(of, find_gpu(gpu)) for gpu in ("a100-80gb", "rtx-5090-32gb", "24GB"))
    assert others == [least] * 2  # a card by its size alone too: GB10's took 13.7193 GiB under 0.13


def test_on_rocm_vllm_pads_both_sides_of_an_expert() -> None:
    """2880 to 3072: of 24 layers with 32 experts, in 4.25 bits."""
    vllm, sglang = (
        weights_bytes(engine("gpt-oss-20b", "0.19.0", name, quantization="mxfp4"), find_gpu("mi300x-192gb"))
        for name in ("vllm", "sglang")
    )
    assert vllm - sglang == pytest.approx(24 * 32 * 3 * (3072**2 - 2880**2) * 4.25 / 8, rel=0.1)


def test_attention_in_16_bits_is_copied_by_sglang_alone() -> None:
    """The latent's matrix of 61 layers, for the halves that attention multiplies by; vLLM's are views."""

    stored = Stored("modelopt nvfp4", plain=frozenset({"self_attn"}))
    model = load_model("deepseek-v3").but(quantization=stored)
    sglang, vllm = (
        weights_bytes(engine(version=version, name=name, tensor_parallel=4)._replace(model=model))
        for name, version in (("sglang", "0.5.5"), ("vllm", "0.11.0"))
    )
    assert 61 * 8 * MiB < sglang - vllm < 61 * 11 * MiB  # 512 × 128 × 256 in 16 bits over 4 ranks, with what is rounded


def test_sparse_attention_has_its_workspace_on_hopper() -> None:
    """Queries of all tokens of a forward, and prompts in 16 bits where the cache is in 8."""

    def found(gpu: str, **given: Any) -> int:
        of = engine("deepseek-v3.2", "0.20.0", tensor_parallel=8, **given)
        return weights_bytes(of, find_gpu(gpu))

    queries = 8192 * 128 // 8 * 576 * 2
    assert found("h200-141gb") - found("b200-180gb") == pytest.approx(queries, abs=8 * MiB)
    grown = found("h200-141gb", kv_itemsize=1) - found("h200-141gb")
    assert grown == pytest.approx(5 * 4096 * 576 * 2, abs=2 * MiB)


def test_experts_without_a_gate_are_padded_where_their_scales_are_swizzled() -> None:
    model = load_model("nemotron-3-nano-30b-a3b").but(quantization=Stored("modelopt nvfp4"))
    of = engine(version="0.20.1")._replace(model=model)
    after, before = (weights_bytes(of, find_gpu(gpu)) for gpu in ("rtx-5090-32gb", "h100-80gb"))
    padded = 23 * 128 * 64 * 2688 * 2 * 9 // 16  # layers, experts, rows of 1920 beyond 1856, both matrices, with scales
    assert after - before == pytest.approx(padded, rel=0.15)
    gated = engine("qwen3-30b-a3b", "0.20.1", quantization="nvfp4")
    assert weights_bytes(gated, find_gpu("rtx-5090-32gb")) == weights_bytes(gated, find_gpu("h100-80gb"))


def test_experts_in_gptq_are_without_the_order_of_their_inputs() -> None:
    """15.6841 GiB on a 3090 (github.com/vllm-project/vllm/issues/17327)."""
    found = weights_bytes(engine("qwen3-30b-a3b", "0.8.5", quantization="gptq"))
    assert found == pytest.approx(15.6841 * 2**30, rel=0.0005)


def test_on_amd_rows_of_experts_are_set_apart() -> None:
    """Of 4,096 and 1,536 bytes each, 256 more, in versions that do not undo it."""
    job: dict[str, Any] = {"model": "qwen3-30b-a3b", "method": "generate", "gpu": "mi300x-192gb"}
    sizes = [
        estimate({**job, "rollout": {"engine": "vllm", "engine_version": version, "max_model_len": 8192}}).engine
        for version in ("0.19.0", "0.22.0", "0.28.0")
    ]
    first, undone, last = (each.weights_bytes for each in sizes if each)
    rows = 48 * 128 * (2 * 768 + 2048)
    assert first - undone == last - undone == rows * 256
