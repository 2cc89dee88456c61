"""Proves that products are as fast as measured, experts' work is shared, and no job exceeds its cards' peak."""

import json
import random
import statistics
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.clusters import load_clusters
from memplan.cost import card, seconds
from memplan.cost.fitting import PUBLISHED, spread
from memplan.cost.links import links
from memplan.cost.machines import Cache
from memplan.cost.passes import FLASH_BACKWARD, layers_pass
from memplan.cost.peak import slowest
from memplan.cost.products import Layout, extents, product_seconds
from memplan.cost.rates import EXPECTED, Device, flash_seconds, kept
from memplan.cost.shape import shape_of
from memplan.cost.step import step
from memplan.cost.traffic import tensor_parallel
from memplan.cost.work import model_work
from memplan.errors import MemplanError
from memplan.gpus import find_gpu
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ARCHITECTURES = {name: find_gpu(name).architecture for name in ("a100-80gb", "h100-80gb", "h200-141gb", "h800-80gb")}
H100 = card(find_gpu("h100-80gb"))


def benchmark(name: str) -> ModuleType:
    """A file of benchmarks, which is no part of the package."""
    spec = spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PEAKS = benchmark("peaks")


def recipe(**keys: Any) -> Recipe:
    job = {"model": "llama-3.1-8b", "method": "sft", "gpu": "h100-80gb", "batch_size": 2, "sequence_length": 4096}
    return resolve(read_job({**job, **keys}))


@pytest.mark.parametrize("table", [0, 1, 2])
def test_products_are_as_fast_as_measured(table: int) -> None:
    matmuls = benchmark("matmuls")
    measured = json.loads(matmuls.DATA.read_text(encoding="utf-8"))["tables"][table]
    absolute = sorted(abs(error) for error, _ in matmuls.errors(measured))
    assert statistics.median(absolute) < 0.05
    assert absolute[int(0.9 * len(absolute))] < 0.2
    assert absolute[-1] < 0.3


def test_a_tile_more_than_the_card_has_processors_is_a_wave_more() -> None:
    def took(wide: int) -> float:
        return product_seconds(256 * 12, 128 * wide, 4096, 1, 2, H100, EXPECTED)

    assert took(11) < 1.1 * took(9)  # 132 tiles and 108, on 132 multiprocessors
    assert took(12) > 1.15 * took(11)


@pytest.mark.parametrize("each", [256, 1024, 4096])
def test_one_kernel_for_all_experts_is_faster_than_one_for_each(each: int) -> None:
    alone = 16 * product_seconds(each, 1536, 4096, 1, 2, H100, EXPECTED)
    assert product_seconds(each, 1536, 4096, 16, 2, H100, EXPECTED) < alone


def test_larger_micro_batches_gain() -> None:
    """Of 30B on A100 under Megatron: weights read and gradients added once for more tokens."""
    job = {"trainer": "megatron", "sharding": "distributed-optimizer", "attention": "flash", "gpu": "a100-80gb"}
    layout = {"num_gpus": 32, "tensor_parallel": 4, "pipeline_parallel": 4, "sequence_length": 2048}
    on, took = card(find_gpu("a100-80gb")), {}
    for size in (1, 4):
        of = recipe(model="qwen2.5-32b", **job, **layout, batch_size=size, gradient_accumulation_steps=256 // size)
        took[size] = seconds(of, on)
    assert 0.7 < took[4] / took[1] < 0.97


EXPERTS: dict[str, Any] = {
    "model": "mixtral-8x7b",
    "trainer": "megatron",
    "sharding": "distributed-optimizer",
    "attention": "flash",
    "num_gpus": 64,
}


@pytest.mark.parametrize("layout", [(1, 8, 1), (1, 8, 8), (1, 1, 1), (8, 8, 1), (8, 1, 8), (4, 4, 2)], ids=str)
def test_every_rank_of_a_stage_does_its_share_of_the_experts(layout: tuple[int, int, int]) -> None:
    """(tensor, expert, expert-tensor): what one rank multiplies is its tokens' work by tensor parallelism alone."""
    tensor, expert, expert_tensor = layout
    degrees = {"tensor_parallel": tensor, "expert_parallel": expert, "expert_tensor_parallel": expert_tensor}
    found = recipe(**EXPERTS, **degrees, sequence_parallel=tensor > 1)
    work = model_work(found.model)
    shape, layer = shape_of(found, work), work.layers[0][1]
    tokens = found.rows * found.batch.sequence_length
    split = Layout(tokens, shape.tensor, shape.expert, shape.expert_tensor, 2, shape.merged)
    flop = sum(2 * at.rows * at.columns * at.inner * at.batches for at in extents(layer, split))
    assert flop == pytest.approx(2 * tokens * layer.weights / tensor)


def test_experts_that_are_cut_finer_are_slower() -> None:
    def forward(expert_tensor: int) -> float:
        found = recipe(**EXPERTS, expert_parallel=8, expert_tensor_parallel=expert_tensor)
        return layers_pass(model_work(found.model), shape_of(found, model_work(found.model)), H100, EXPECTED).products

    assert forward(8) > forward(1)


HOSTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adapters": ({"lora": {"r": 8}}, {"lora": {"r": 8, "targets": ["q_proj"]}}),
    "stage 3": ({"sharding": "zero3", "num_gpus": 2}, {"sharding": "fsdp2", "num_gpus": 2}),
    "gptq": ({"lora": {"r": 8}, "quantization": "gptq-4bit"}, {"lora": {"r": 8}}),
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_short_step_waits_for_the_host(name: str) -> None:
    """Twice the tokens take hardly longer, and what the host has to issue decides."""
    more, less = HOSTS[name]
    short = {"sequence_length": 128, "batch_size": 1}
    took = seconds(recipe(**short, **more), H100)
    assert seconds(recipe(**{**short, "sequence_length": 256}, **more), H100) < 1.2 * took
    assert took > 1.2 * seconds(recipe(**short, **less), H100)


@examples(300)
@given(seed=st.integers(0, 2**32))
def test_no_job_exceeds_its_cards_peak(seed: int) -> None:
    below_the_peak(seed)


@pytest.mark.slow
def test_none_of_two_thousand_exceeds_it() -> None:
    assert sum(below_the_peak(seed) for seed in range(10_000)) >= 2_000 * 0.9


def below_the_peak(seed: int) -> bool:
    """Whether the seed draws a job at all; fails where that is above its cards' peak."""
    try:
        share = PEAKS.share_of_peak(PEAKS.drawn(random.Random(seed)))
    except MemplanError:
        return False
    assert 0 < share < 1
    return True


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100-80gb", "h200-141gb", "h800-80gb"])
def test_the_link_between_nodes_is_the_median_of_the_catalogues(gpu: str) -> None:
    nodes = [each for each in load_clusters().values() if find_gpu(each.gpu or "").architecture == ARCHITECTURES[gpu]]
    median = statistics.median(each.links.between / each.gpus_per_node for each in nodes if each.links.between)
    assert card(find_gpu(gpu)).between == median * 1e9


DENSE: dict[str, Any] = {**EXPERTS, "model": "llama-3.1-8b", "num_gpus": 8, "sequence_length": 4096}


def test_products_in_fp8_are_faster_by_what_was_measured_and_casts_cost() -> None:
    half, eight = recipe(**DENSE), recipe(**DENSE, megatron={"fp8_format": "hybrid"})
    work = model_work(half.model)
    slow, fast = (layers_pass(work, shape_of(each, work), H100, EXPECTED) for each in (half, eight))
    assert 1.5 < slow.products / fast.products <= H100.narrow[0]
    assert slow.forward - fast.forward < slow.products - fast.products
    assert slow.attention == fast.attention


def test_products_in_fp4_are_faster_still() -> None:
    """Megatron-Bridge's Llama 3.1 405B on GB300 gains 35 to 40 % over FP8 (containers 26.04 to 26.06)."""
    kinds = {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}, {"fp4_format": "e2m1"}
    b200 = card(find_gpu("b200-180gb"))
    took = [seconds(recipe(**{**DENSE, "gpu": "b200-180gb"}, megatron=of), b200) for of in kinds]
    assert 1.2 < took[0] / took[1] < b200.narrow[1] / b200.narrow[0]


def test_casts_of_float8_are_worth_it_where_they_are_fused() -> None:
    """torchtitan's 8B on H100s gains 28 % compiled (its benchmarks of December 2024); here about as much."""
    keys: dict[str, Any] = {"num_gpus": 8, "sharding": "fsdp2", "precision": "bf16-amp", "sequence_length": 8192}
    plain, compiled = ({**keys, "gradient_checkpointing": "selective", "compile": on} for on in (False, True))
    took = [seconds(recipe(**of, float8=kind), H100) for of in (plain, compiled) for kind in ("none", "tensorwise")]
    assert 1.15 < took[2] / took[3] < 1.35
    assert took[0] / took[1] < took[2] / took[3]


@pytest.mark.parametrize(("gpu", "tflops"), [("a100-80gb", 230), ("h100-80gb", 712), ("b200-180gb", 1496)])
def test_narrow_heads_wait_for_their_exponentials(gpu: str, tflops: float) -> None:
    on, alone = card(find_gpu(gpu)), EXPECTED._replace(throttle=0.0, attention=1.0)
    wide, narrow = (4 * width / flash_seconds(4 * width, 1, on.native_attention, on, alone) for width in (128, 64))
    assert wide == pytest.approx(tflops * 1e12, rel=0.02)
    assert 0.6 < narrow / wide < 0.9


@pytest.mark.parametrize(
    ("gpu", "length", "milliseconds"),
    [("h200-141gb", 4096, 1.915), ("gb200-186gb", 4096, 0.7945), ("gb200-186gb", 16384, 10.852),
     ("gb300-288gb", 4096, 0.712), ("gb300-288gb", 16384, 9.593)],
)  # fmt: skip
def test_attention_of_an_architectures_own_kernels_is_as_measured(gpu: str, length: int, milliseconds: float) -> None:
    """Forward and backward of one sequence, 64 heads of 128 (NVIDIA/cudnn-frontend@3929da2)."""
    keys: dict[str, Any] = {"model": "llama-3.1-70b", "trainer": "megatron", "sequence_length": length, "batch_size": 1}
    on, alone = card(find_gpu(gpu)), EXPECTED._replace(throttle=0.0, attention=1.0)
    made = recipe(**keys, gradient_checkpointing="none")
    took = layers_pass(model_work(made.model), shape_of(made, model_work(made.model)), on, alone).attention / 80
    assert (1 + FLASH_BACKWARD) * took * 1000 == pytest.approx(milliseconds, rel=0.09)


def test_later_kernels_of_attention_are_for_later_cards() -> None:
    """FlashAttention 2 is as fast a multiprocessor on a B200 as on an H100, whose clock gives way, and a B300's as
    whitecircle/halo measured it (2.71 ms of two rows of 8,192, 32 heads); version 3 is faster on Hopper alone."""
    keys: dict[str, Any] = {"model": "llama-3.1-8b", "sequence_length": 32768, "attention": "flash", "batch_size": 1}

    def took(gpu: str, version: int) -> float:
        made = recipe(**keys, gpu=gpu, flash_version=version)
        work = model_work(made.model)
        return layers_pass(work, shape_of(made, work), card(find_gpu(gpu)), EXPECTED).attention

    assert took("a100-80gb", 3) == took("a100-80gb", 2)
    assert 1.6 < took("h100-80gb", 2) / took("h100-80gb", 3) < 2.2
    ratio = took("h100-80gb", 2) / took("b200-180gb", 2) * kept(card(find_gpu("h100-80gb")), EXPECTED)
    assert ratio == pytest.approx(148 / 132, rel=0.03)
    keys |= {"sequence_length": 8192, "batch_size": 2}
    assert took("b300-288gb", 2) / 32 == pytest.approx(2.71e-3, rel=0.1)


def test_a_window_is_met_by_whole_tiles() -> None:
    keys: dict[str, Any] = {"model": "gpt-oss-120b", "trainer": "megatron", "batch_size": 1}
    wide, long = (recipe(**keys, sequence_length=length) for length in (8192, 16384))
    work = model_work(wide.model)
    near = work._replace(layers=tuple((count, each) for count, each in work.layers if each.window))
    took = [layers_pass(near, shape_of(of, work), H100, EXPECTED).attention for of in (wide, long)]
    assert took[1] == pytest.approx(2 * took[0])


def test_a_ring_starts_anew_and_adds_up_what_its_steps_make() -> None:
    keys: dict[str, Any] = {"trainer": "megatron", "num_gpus": 8, "context_parallel": 4, "sequence_length": 8192}
    ring, exchanged = (recipe(**keys, megatron={"cp_comm_type": kind}) for kind in ("p2p", "a2a"))
    work = model_work(ring.model)
    dear, cheap = (layers_pass(work, shape_of(of, work), H100, EXPECTED) for of in (ring, exchanged))
    assert dear.attention > 1.2 * cheap.attention
    assert dear.moves > cheap.moves


def test_the_host_issues_a_product_for_each_expert_of_a_rank() -> None:
    keys: dict[str, Any] = {**EXPERTS, "model": "qwen3-30b-a3b", "batch_size": 1, "sequence_length": 64}
    few, many = (recipe(**keys, expert_parallel=ranks) for ranks in (8, 1))
    work = model_work(few.model)
    fast, slow = (layers_pass(work, shape_of(of, work), H100, EXPECTED) for of in (few, many))
    assert slow.forward > 2 * fast.forward > 4 * fast.products


def test_what_transformer_engine_overlaps_costs_some_of_itself() -> None:
    keys: dict[str, Any] = {"trainer": "megatron", "num_gpus": 8, "tensor_parallel": 8, "sequence_parallel": True}
    waits, hides = (
        step(recipe(**keys, model="llama-3.1-70b", megatron={"tp_comm_overlap": on}), H100, EXPECTED).communication
        for on in (False, True)
    )
    assert 0.15 * waits < hides < 0.4 * waits


def test_a_quantised_base_is_gathered_packed() -> None:
    """Where links are slow and little is computed, four bits go faster than sixteen, the host's copy beside them."""
    shared = {"gpu": "rtx-4090-24gb", "num_gpus": 2, "sharding": "fsdp", "sequence_length": 256, "lora": {"r": 8}}
    on = card(find_gpu("rtx-4090-24gb"))
    packed = recipe(**shared, quantization="nf4")
    assert seconds(packed, on) < 0.7 * seconds(recipe(**shared), on)
    waits = seconds(recipe(**shared, quantization="nf4", fsdp={"cpu_offload": True}), on)
    assert seconds(packed, on) <= waits < 1.3 * seconds(packed, on)


def test_a_card_runs_as_it_was_measured_not_as_its_kin() -> None:
    own, kin = find_gpu("rtx-4090-24gb"), find_gpu("l40s-48gb")
    assert own.bf16_tflops
    assert kin.bf16_tflops
    assert card(own).products / own.bf16_tflops > 1.3 * card(kin).products / kin.bf16_tflops


@pytest.mark.parametrize("length", [1024, 2048])
def test_the_host_paces_a_mixture_of_megatron_and_casts_of_each_expert_slow_it(length: int) -> None:
    """Moonlight's steps in Megatron-Bridge (skills/nemo-mbridge-perf-activation-recompute): 17 ms for a layer of 2,048
    tokens, five times what its products, its scores and its moves take."""
    keys: dict[str, Any] = {**EXPERTS, "model": "qwen3-30b-a3b", "num_gpus": 8, "expert_parallel": 8, "batch_size": 1}
    kinds = {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}, {"fp8_format": "hybrid"}
    found = [recipe(**keys, sequence_length=length, megatron=of) for of in ({}, *kinds)]
    work = model_work(found[0].model)
    plain, scaled_now, with_history = (layers_pass(work, shape_of(of, work), H100, EXPECTED) for of in found)
    assert plain.forward > plain.products + plain.attention + plain.moves
    assert scaled_now.forward > with_history.forward > plain.forward


def test_clamps_and_biases_of_experts_are_left_to_single_operations_in_megatron() -> None:
    """GPT-OSS's against the same layers without either."""
    keys: dict[str, Any] = {**EXPERTS, "model": "gpt-oss-20b", "num_gpus": 8, "expert_parallel": 8}
    found = recipe(**keys)
    work = model_work(found.model)
    [(_, layer), *_] = work.layers
    bare = work._replace(layers=tuple((count, each._replace(left=0.0)) for count, each in work.layers))
    slow, fast = (layers_pass(each, shape_of(found, work), H100, EXPECTED) for each in (work, bare))
    assert layer.left == 4 * (2 * 2880 * 8 + 2880 * 12)
    assert slow.moves > 1.5 * fast.moves
    assert all(each.left == 0.0 for _, each in model_work(recipe(**EXPERTS).model).layers)


def test_trl_widened_the_head_for_each_chunk_until_1_15() -> None:
    """Of 256 tokens, where nothing else is in fp32: of 0.5e9 elements 6 bytes are moved in each of two forwards."""
    keys: dict[str, Any] = {"trainer": "trl", "sharding": "zero3", "num_gpus": 8, "gradient_checkpointing": "full"}
    whole, chunked, tiled = (seconds(recipe(**keys, trainer_version=it), H100) for it in ("1.0", "1.9", "1.16"))
    assert chunked > 1.3 * whole > 1.3 / 1.05 * tiled


@pytest.mark.parametrize(("cards", "times"), [(1, 1.0), (8, 1.021), (256, 1.042), (1024, 1.048)])
def test_all_wait_for_the_slowest_card(cards: int, times: float) -> None:
    """Of cards that differ by 1.5 % (arXiv:2208.11035); memory and links are as they were."""
    found = slowest(H100, cards)
    assert H100.products / found.products == pytest.approx(times, abs=0.001)
    assert (found.memory, found.link, found.bus) == (H100.memory, H100.link, H100.bus)


def test_torchs_gathers_along_the_sequence_write_what_came_anew() -> None:
    """Two of a layer's forward, each with its scatter: read and written."""
    of = recipe(trainer="pytorch", num_gpus=8, tensor_parallel=8, sharding="fsdp2")
    known, over = model_work(of.model), links(H100, EXPECTED)
    slow, fast = (tensor_parallel(of, known, over, memory) for memory in (1e12, float("inf")))
    assert slow - fast == pytest.approx(32 * 2 * 4 * (2 * 4096 * 4096 * of.numerics.itemsize) / 1e12)


def test_what_completions_take_is_less_sure_than_what_training_does() -> None:
    """Nobody knows how long they will be, and all wait for the longest."""
    rollout = {"engine": "vllm", "group_size": 8, "prompt_length": 512, "completion_length": 3584}
    plain = recipe(num_gpus=8, sharding="fsdp2")
    online = recipe(num_gpus=8, sharding="fsdp2", method="grpo", trainer="verl", rollout=rollout)
    assert spread(online, H100, PUBLISHED) > spread(plain, H100, PUBLISHED) + 0.1


@pytest.mark.parametrize(
    ("gpu", "array", "copied"),
    [
        ("rtx-4090-24gb", 16e6, 3645), ("rtx-4090-24gb", 32e6, 2318), ("rtx-4090-24gb", 64e6, 820),
        ("a100-80gb", 2e6, 2447), ("a100-80gb", 16e6, 2167), ("a100-80gb", 32e6, 1232),
    ],
)  # fmt: skip
def test_what_fits_the_cache_does_not_wait_for_memory(gpu: str, array: float, copied: float) -> None:
    """Copies of arrays of so many bytes in GB/s (smallscientist1/cuda_microbenchmark; its A100 is of PCIe), which are
    met within 40 %."""
    on = card(find_gpu(gpu))
    memory = on.memory * EXPECTED.memory
    rate = memory / on.cache.moved((1.0, 0.0), False, 2 * array, memory) / 1e9
    assert 0.66 < rate / copied < 1.4


def test_single_operations_of_short_rows_meet_in_the_cache() -> None:
    """Llama 3.2 3B with LoRA on an L40S, 840 tokens: 7,194 tokens a second (huggingface/peft@5d602fd); of long rows
    nothing is met there."""
    keys: dict[str, Any] = {"model": "llama-3.2-3b", "method": "sft", "trainer": "pytorch", "gpu": "l40s-48gb"}
    keys |= {"batch_size": 4, "precision": "bf16", "autocast": False, "gradient_checkpointing": "none", "padded": True}
    keys |= {"lora": {"r": 32, "targets": ["q_proj", "v_proj"], "dropout": 0}, "attention": "sdpa"}
    on = card(find_gpu("l40s-48gb"))
    without = on._replace(cache=Cache())

    def took(there: Device, **more: Any) -> float:
        return seconds(resolve(read_job({**keys, **more})), there)

    assert 840 / took(on, sequence_length=210) == pytest.approx(7194, rel=0.1)
    assert took(without, sequence_length=210) > 1.15 * took(on, sequence_length=210)
    assert took(without, sequence_length=16_384) == took(on, sequence_length=16_384)
