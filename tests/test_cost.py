"""Proves the arithmetic of step times: FLOP and volumes against closed formulas, and what makes a step longer."""

from typing import Any

import pytest
from drawing import over

from memplan.cost import card, seconds, speed
from memplan.cost.links import Group, Links, exchange, gather, group, links, reduce
from memplan.cost.optimizer import orthogonalising_flop, stepped_elements
from memplan.cost.passes import head_pass, layers_pass
from memplan.cost.peak import slowest
from memplan.cost.rates import EXPECTED, Device, device
from memplan.cost.shape import shape_of
from memplan.cost.step import PARTS, prepared, step
from memplan.cost.tower import tower_pass
from memplan.cost.traffic import data_parallel
from memplan.cost.work import model_work
from memplan.gpus import find_gpu, gpu_names, load_gpus
from memplan.models import load_model
from memplan.presets import model_names
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

IDEAL = Device(1.0, 1.0, 1.0, 1e30, 1.0, 1e30, 1e30, 1e30, direct=True)
"""One FLOP a second, and everything else for nothing."""
PERFECT = EXPECTED._replace(throttle=0.0, attention=1.0, prologue=0.0, memory=1.0, launch=0.0, hook=0.0)


def recipe(**keys: Any) -> Recipe:
    job = {"model": "llama-3.1-8b", "method": "sft", "gpu": "h100-80gb", "batch_size": 2, "sequence_length": 4096}
    return resolve(read_job({**job, **keys}))


def of_layers(found: Recipe) -> Any:
    work = model_work(found.model)
    return layers_pass(work, shape_of(found, work), IDEAL, PERFECT)


@over([(8, 133.5), (16, 276.6), (32, 424.0), (64, 684.6), (128, 1327.6), (1024, 8203.9)])
def test_a_nodes_all_reduce_takes_what_was_measured(row: tuple[int, float]) -> None:
    """Of 8 A100, in microseconds by MiB (ml-engineering@744d01e network/README.md)."""
    size, took = row
    over_links = links(card(find_gpu("a100-80gb")), EXPECTED)
    assert reduce(size * 2**20, Group(8, 8), over_links) * 1e6 == pytest.approx(took, rel=0.27)


def test_products_are_two_flop_for_each_matrix_element_and_token() -> None:
    found, spec = recipe(), load_model("llama-3.1-8b")
    norms = 2 * spec.hidden_size * spec.num_layers
    layers = sum(run.count * run.layer.parameters for run in spec.runs) - norms
    assert of_layers(found).products == pytest.approx(2 * 2 * 4096 * layers)


def test_a_causal_kernel_sees_half_of_the_pairs() -> None:
    found = recipe()
    pairs = 2 * 4096 * 4096 / 2
    assert of_layers(found).attention == pytest.approx(pairs * 4 * 4096 * 32)
    assert of_layers(recipe(attention="eager")).attention == pytest.approx(2 * pairs * 4 * 4096 * 32)


def test_the_sequences_of_a_packed_row_take_as_long_as_rows_of_their_own() -> None:
    keys: dict[str, Any] = {"attention": "flash", "sequence_length": 1024}
    apart, packed = (
        speed(recipe(**keys, **how)) for how in ({"batch_size": 4}, {"batch_size": 1, "token_budget": 4096})
    )
    for part in ("products", "attention", "head"):
        assert packed.parts[part] == pytest.approx(apart.parts[part], rel=1e-3)


def test_experts_count_where_a_token_goes() -> None:
    spec = load_model("mixtral-8x7b")
    work = model_work(spec)
    layer = work.layers[0][1]
    assert layer.expert * 4 == layer.expert_stored
    assert sum(count * each.weights for count, each in work.layers) < spec.params.active


@pytest.mark.parametrize(("how", "forwards"), [("none", 0.0), ("full", 1.0), ("every:2", 0.5), ("selective", 0.5)])
def test_checkpointing_repeats_its_share_of_the_forward(how: str, forwards: float) -> None:
    found = of_layers(recipe(gradient_checkpointing=how, attention="sdpa"))
    whole = found.products if how == "selective" else found.forward
    assert found.again == pytest.approx(forwards * whole, rel=1e-6)


def test_a_backward_is_twice_the_products_and_once_under_lora() -> None:
    full, lora = of_layers(recipe(attention="eager")), of_layers(recipe(attention="eager", lora={"r": 1}))
    assert full.backward == pytest.approx(2 * full.products + 2 * full.attention)
    assert lora.backward == pytest.approx(lora.products + 2 * lora.attention, rel=0.01)


LINKS = Links(100.0, 10.0, 0.0)


@pytest.mark.parametrize(
    ("size", "near", "expected"),
    [
        (8, 8, 700 * 7 / 8 / 100),
        (16, 8, 700 * 7 / 8 / 100),
        (16, 4, 700 * 3 / 4 / 4 / 10),
        (4, 1, 700 * 3 / 4 / 10),
        (1, 1, 0.0),
    ],
)
def test_a_gather_takes_the_slower_of_both_links(size: int, near: int, expected: float) -> None:
    assert gather(700, Group(size, near), LINKS) == pytest.approx(max(expected, 0.0))
    assert reduce(700, Group(size, near), LINKS) == pytest.approx(2 * expected)


def test_an_exchange_sends_all_but_its_own_share() -> None:
    assert exchange(800, Group(8, 8), LINKS) == pytest.approx(700 / 100)
    assert exchange(800, Group(16, 8), LINKS) == pytest.approx(400 / 10)


@pytest.mark.parametrize(("size", "stride", "near"), [(8, 1, 8), (4, 2, 4), (8, 2, 4), (4, 8, 1), (64, 1, 8)])
def test_groups_lie_in_nodes_by_their_stride(size: int, stride: int, near: int) -> None:
    assert group(size, stride, 8).near == near


SPREAD = {"model": "gpt-oss-120b", "trainer": "megatron", "sharding": "distributed-optimizer", "num_gpus": 64}


def experts_of(found: Recipe) -> float:
    return sum(count * each.expert_stored for count, each in model_work(found.model).layers)


def test_gradients_of_spread_experts_cross_the_network_once_for_each_card() -> None:
    found = recipe(**SPREAD, expert_parallel=8)
    one = Links(float("inf"), 1.0, 0.0)
    gradients = found.storage.reduce_itemsize
    experts = experts_of(found)
    rest = found.model.params.total - experts
    expected = (
        gradients * 7 / 8 * (rest / 8 + experts / 8)
    )  # eight nodes; of the rest, a node's eight cards carry one copy
    ready = prepared(found, IDEAL, PERFECT)
    assert data_parallel(found, ready.sizes, one).last == pytest.approx(expected)


OPTIMIZERS = {"trainer": "megatron", "sharding": "distributed-optimizer", "num_gpus": 64}


@over([(1, 1, 7 / 64, 7 / 64), (8, 1, 0, 2 / 8 * 7 / 8), (2, 1, 3 / 4 / 8, 3 / 4 / 8 + 1 / 32), (4, 4, 1 / 4, 5 / 8)])
def test_instances_of_the_optimizer_reduce_across_and_gather_within(row: tuple[int, int, float, float]) -> None:
    """Copies over eight nodes of eight cards: over the network weights go within an instance alone; gradients within it
    and then each rank's share across, both ways (megatron-core 0.16 param_and_grad_buffer.py: start_grad_sync)."""
    copies, tensor, gathered, reduced = row
    settings = {"num_distributed_optimizer_instances": copies, "overlap_param_gather": True}
    found = recipe(**OPTIMIZERS, tensor_parallel=tensor, megatron={**settings, "overlap_grad_reduce": True})
    sizes = prepared(found, IDEAL, PERFECT).sizes._replace(trained=1.0, experts=0.0)
    data = data_parallel(found, sizes, Links(float("inf"), 1.0, 0.0))
    assert data.first == pytest.approx(2 * gathered)
    assert data.last == pytest.approx(found.storage.reduce_itemsize * reduced)
    assert stepped_elements(found, sizes) == pytest.approx(copies / (64 / tensor))


@over([(64, 2, False), (512, 2, False), (4096, 8, True), (16384, 32, True)])
def test_instances_are_faster_where_rings_are_long(row: tuple[int, int, bool]) -> None:
    """No fewer bytes cross the network, and each rank steps more."""
    gpus, copies, faster = row
    settings = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    one, more = (
        recipe(**{**OPTIMIZERS, "num_gpus": gpus}, megatron={**settings, "num_distributed_optimizer_instances": count})
        for count in (1, copies)
    )
    on = card(find_gpu("h100-80gb"))
    assert (seconds(more, on) < seconds(one, on)) is faster


def test_instances_copy_spread_experts_over_the_ranks_that_hold_them() -> None:
    """Eight copies of an expert's part, one a node: of two instances each reduces among four, then across both."""
    one, two = (
        recipe(**SPREAD, expert_parallel=8, megatron={"num_distributed_optimizer_instances": copies})
        for copies in (1, 2)
    )
    sizes = prepared(one, IDEAL, PERFECT).sizes._replace(trained=1.0, experts=1.0)
    whole, halves = (data_parallel(each, sizes, Links(float("inf"), 1.0, 0.0)) for each in (one, two))
    assert (whole.last, whole.after) == pytest.approx((one.storage.reduce_itemsize * 7 / 8, 2 * 7 / 8))
    assert (halves.last, halves.after) == pytest.approx((one.storage.reduce_itemsize * (3 / 4 + 1 / 4), 2 * 3 / 4))
    assert two.parallel.expert_shards == one.parallel.expert_shards / 2


@pytest.mark.parametrize("sharding", ["zero3", "fsdp2", "distributed-optimizer"])
def test_states_are_shared_within_a_node_whose_cards_share_a_sequence(sharding: str) -> None:
    trainer = "megatron" if sharding == "distributed-optimizer" else "transformers"
    shared = {"trainer": trainer, "sharding": sharding, "num_gpus": 8}
    alone, together = (recipe(**shared, context_parallel=degree) for degree in (1, 8))
    sizes = prepared(alone, IDEAL, PERFECT).sizes
    assert data_parallel(alone, sizes, LINKS) == data_parallel(together, sizes, LINKS)


@pytest.mark.parametrize("expert", [1, 8, 64])
def test_a_rank_steps_its_share_of_the_experts_that_it_holds(expert: int) -> None:
    found = recipe(**SPREAD, expert_parallel=expert)
    assert stepped_elements(found, prepared(found, IDEAL, PERFECT).sizes) == pytest.approx(
        (found.model.params.total - experts_of(found)) / 64 + experts_of(found) / expert / found.parallel.expert_shards
    )


@pytest.mark.parametrize(("adapted", "times"), [({}, 3), ({"lora": {"r": 8}}, 2)])
def test_ligers_head_goes_over_its_weights_for_each_chunk(adapted: dict[str, Any], times: int) -> None:
    """256 tokens come in 32 chunks, as the vocabulary is 32 times the width: logits, and both gradients."""
    found = recipe(trainer="transformers", kernels="liger", batch_size=1, sequence_length=256, **adapted)
    work, on = model_work(found.model), card(find_gpu("h100-80gb"))
    head = head_pass(found, work, on, PERFECT)
    assert head.forward + head.backward == pytest.approx(32 * times * 2 * work.head / on.memory, rel=0.3)


def test_norms_of_single_operations_take_longer_under_megatron() -> None:
    job = {"trainer": "megatron", "num_gpus": 4, "tensor_parallel": 4}
    assert seconds(recipe(**job, megatron={"norm_fusion": False}), card(find_gpu("h100-80gb"))) > 1.05 * seconds(
        recipe(**job), card(find_gpu("h100-80gb"))
    )


def test_a_pipeline_adds_its_bubble() -> None:
    plain = recipe(gradient_accumulation_steps=8)
    found = {}
    for virtual in (1, 2):
        degrees = plain.parallel._replace(world=4, pipeline=4, virtual=virtual)
        found[virtual] = step(plain._replace(parallel=degrees), IDEAL, PERFECT)
    assert found[1].bubble == pytest.approx(2 * found[2].bubble)
    assert found[1].bubble == pytest.approx((found[1].seconds - found[1].bubble) * 3 / 8, rel=1e-6)


SLOWER: dict[str, dict[str, Any]] = {
    "checkpointing": {"gradient_checkpointing": "full"},
    "eager": {"attention": "eager"},
    "foreach": {"optimizer_impl": "foreach"},
    "zero3": {"num_gpus": 8, "sharding": "zero3", "gpus_per_node": 1},
    "longer": {"sequence_length": 8192},
    "dpo": {"method": "dpo"},
}


@pytest.mark.parametrize("change", SLOWER)
def test_what_makes_a_step_longer(change: str) -> None:
    on = card(find_gpu("h100-80gb"))
    assert seconds(recipe(**SLOWER[change]), on) > seconds(recipe(optimizer_impl="fused"), on)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"sharding": "zero2", "num_gpus": 16, "gradient_accumulation_steps": 4},
        {"method": "dpo", "lora": {"r": 8}, "quantization": "nf4", "gradient_checkpointing": "full"},
        {"method": "kto", "sharding": "fsdp2", "num_gpus": 8},
        {"method": "grpo", "model": "qwen3-0.6b"},
        {"method": "ppo", "model": "qwen3-0.6b"},
    ],
)
def test_parts_add_up_and_the_band_holds_the_middle(keys: dict[str, Any]) -> None:
    found = speed(recipe(**keys))
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds)
    assert all(found.parts[name] >= -1e-9 for name in PARTS)
    low, high = found.tokens_range
    assert low < found.tokens_per_second < high


@over(model_names())
def test_every_model_has_a_speed(name: str) -> None:
    spec = load_model(name)
    work = model_work(spec)
    own = [each for each, run in zip(work.layers, spec.runs, strict=True) if not run.layer.repeats]
    matrices = sum(count * each.stored for count, each in own) + work.head + work.outside
    outside = spec.params.by_category.get("vision", 0) + spec.params.by_category.get("projector", 0)
    assert matrices < (spec.params.total + work.head) * 1.001
    assert matrices > 0.5 * (spec.params.total - outside - spec.params.by_category["embed"])


@pytest.mark.parametrize("name", gpu_names())
def test_every_card_has_rates(name: str) -> None:
    gpu, catalogue = find_gpu(name), tuple(load_gpus().values())
    found = device(gpu, catalogue)
    assert found.products > found.wide_products > 0
    assert bool(found.assumed) == (gpu.bf16_tflops is None and gpu.fp16_tflops is None)


def test_a_card_known_by_its_size_is_ranked_as_its_nearest() -> None:
    found = device(find_gpu("80GB"), tuple(load_gpus().values()))
    assert "80gb" in found.assumed


def test_experts_that_are_modules_are_fetched_one_by_one_under_zero_3() -> None:
    """Qwen3-30B-A3B under ms-swift on 16 cards: 91.2 s an iteration (its Quick-start), 5.3 without their hooks."""
    keys: dict[str, Any] = {"model": "qwen3-30b-a3b", "sharding": "zero3", "num_gpus": 16, "trainer": "transformers"}
    looped, stacked = (recipe(**keys, trainer_version=version) for version in ("4.51", "5.0"))
    assert seconds(looped, card(find_gpu("h100-80gb"))) > 3 * seconds(stacked, card(find_gpu("h100-80gb")))


def test_what_megatron_steps_on_the_host_takes_its_share_of_the_time() -> None:
    """Qwen3-30B-A3B on 16 H100 takes 1.9 times as long with a quarter of the states on the host, 4.2 with all, whatever
    the micro-batches (Megatron-Bridge@067f987 skills/nemo-mbridge-perf-cpu-offloading: 0.9 and 3.2 of a step)."""
    of = {"model": "qwen3-30b-a3b", "trainer": "megatron", "expert_parallel": 4, "num_gpus": 16, "batch_size": 1}
    away = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}

    def took(share: float, steps: int) -> float:
        settings = {**away, "optimizer_offload_fraction": share}
        return seconds(recipe(**of, gradient_accumulation_steps=steps, megatron=settings), card(find_gpu("h100-80gb")))

    more = [[took(share, steps) - took(0.0, steps) for share in (0.25, 1.0)] for steps in (8, 64)]
    assert more[0] == pytest.approx(more[1])
    assert 3.5 < more[0][1] / more[0][0] < 4.1


def test_images_pass_through_their_tower() -> None:
    """A forward of 12,288 patches through Qwen2.5-VL 7B's tower under ZeRO-3 takes 0.13 s on A100 (ms-swift@3602360
    examples/train/multimodal/vit_gradient_checkpointing.sh: with and without the tower's checkpoints)."""
    keys: dict[str, Any] = {"model": "qwen2.5-vl-7b", "sharding": "zero3", "num_gpus": 4, "gpu": "a100-80gb"}
    keys |= {"batch_size": 4, "kernels": "liger", "attention": "flash", "gradient_checkpointing": "full"}
    seen = {"images": {"per_example": 12, "width": 224, "height": 224}}
    on, (text, whole, beside) = (
        card(find_gpu("a100-80gb")),
        (recipe(**keys, **more) for more in ({}, seen, {**seen, "lora": {"r": 8, "targets": ["gate_proj"]}})),
    )
    of = shape_of(whole, model_work(whole.model))
    passed = tower_pass(whole, of, slowest(on, 4), EXPECTED)
    assert passed.forward == pytest.approx(0.13, rel=0.25)
    assert passed.backward > passed.forward
    assert seconds(whole, on) - seconds(text, on) == pytest.approx(passed.forward + passed.backward)
    assert tower_pass(text, of, on, EXPECTED).forward == 0
    assert 0 < tower_pass(beside, of, on, EXPECTED).backward < passed.backward


def test_muon_makes_products_of_its_matrices() -> None:
    """Five times 4 m² n + 2 m³ FLOP of a matrix [m, n]: 0.7 PFLOP for Llama 3.1 8B."""
    keys: dict[str, Any] = {"precision": "bf16", "gpu": "b300-288gb"}
    adam, muon = (seconds(recipe(**keys, optimizer=name), card(find_gpu("b300-288gb"))) for name in ("adamw", "muon"))
    assert orthogonalising_flop(model_work(load_model("llama-3.1-8b"))) == pytest.approx(6.9e14, rel=0.05)
    assert muon > adam + 0.2


@pytest.mark.parametrize(("length", "longer"), [(16_384, 1.046), (65_536, 1.030)])
def test_activations_on_the_host_cost_what_was_measured(length: int, longer: float) -> None:
    """Qwen3 4B, LoRA, one H100: PrimeIntellect-ai/prime-rl@559b447 benchmarks/baselines, with and without it."""
    keys: dict[str, Any] = {"model": "qwen3-4b", "trainer": "prime-rl", "batch_size": 1, "sequence_length": length}
    keys |= {"attention": "flash", "flash_version": 3, "gradient_checkpointing": "full", "lora": {"r": 16}}
    here, away = (
        seconds(recipe(**keys, **of), card(find_gpu("h100-80gb"))) for of in ({}, {"offload": ["activations"]})
    )
    assert away / here == pytest.approx(longer, abs=0.01)
    assert card(find_gpu("gh200-96gb")).bus > 5 * card(find_gpu("h100-80gb")).bus
