"""Proves what a generation engine takes of a card: cache and budget as vLLM and SGLang said them, a layout or
a refusal for every family, and an answer to whatever cannot start.
"""

from functools import cache
from typing import Any

import pytest
from drawing import over

from memplan.api import estimate
from memplan.cli.app import main
from memplan.engine.allocator.reserved import Band
from memplan.engine.generation.activation import activation_bytes, feature_bytes, graph_bytes, pixel_bytes
from memplan.engine.generation.cells import CELLS
from memplan.engine.generation.figures import budget_bytes, engine_figures, request_rows
from memplan.engine.generation.kv import layout
from memplan.engine.generation.loading import copied_bytes, loaded_bytes
from memplan.errors import InvalidJob
from memplan.generated import Engine
from memplan.gpus import find_gpu
from memplan.models import load_model
from memplan.presets import model_names, model_preset
from memplan.resolve.engines import beside_images
from memplan.spec.generation import Draft, Generator
from memplan.spec.job import Job
from memplan.tables.choices import options_of_hint
from memplan.tables.engine_defaults import TAKEN, Card, defaults_of, taken_by
from memplan.tables.engines import DENSE, ERAS, LATEST, era_of, version_of
from memplan.units import GiB, MiB

CARD = "h100-80gb"


def engine(model: str = "qwen2.5-7b", version: str = "0.11.0", name: Any = "vllm", **given: Any) -> Generator:
    """An engine on cards of its own."""
    sizes = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    return Generator(name, version, load_model(model), **({"separate": True} | sizes | given))


@cache
def said(model: str = "qwen2.5-7b", gpu: str = CARD, tokens: int = 8192, **rollout: Any) -> Engine:
    """What a report says of an engine alone."""
    job = {"model": model, "method": "generate", "gpu": gpu}
    found = estimate({**job, "rollout": {"engine": "vllm", "max_model_len": tokens, **rollout}}).engine
    assert found is not None
    return found


def test_an_engine_alone_takes_no_training_step() -> None:
    found = estimate({"model": "qwen2.5-7b", "method": "generate", "gpu": "rtx-4090-24gb"}, play=True).per_gpu
    assert not found.reserved_bytes.played
    assert found.device_bytes.high < 1.1 * found.device_bytes.expected


# -- the cache ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@over(model_names())
def test_every_family_has_a_layout_or_is_refused(name: str) -> None:
    spec = load_model(name)
    for era in ERAS:
        of = engine(name, ".".join(map(str, era.since)), era.engine)
        kinds = {mixer.kind for mixer in spec.mixers}
        if spec.task != "causal" or not kinds <= CELLS.keys():
            with pytest.raises(InvalidJob, match=spec.family):
                layout(of)
            continue
        found = layout(of)
        assert found.request(100) <= found.request(200)
        assert found.token_bytes > 0 or found.state_bytes > 0
        once = layout(of._replace(kv_itemsize=1)).token_bytes
        assert once <= found.token_bytes
        assert found.longest(found.request(777), 4096) >= 677


SAID = [
    # engine, version, model, rollout, GiB of cache, bytes of a token, tokens, requests of the longest at once
    ("vllm", "0.10.2", "qwen3-8b", {"max_model_len": 1024}, 9232221491 / GiB, 147456, 62608, 0),
    ("vllm", "0.10.2", "qwen3-14b", {"max_model_len": 40960}, 11.57, 163840, 75824, 1.85),
    ("vllm", "0.13.0", "gemma-3-1b", {"max_model_len": 2048}, 25.391, 26624, 950864, 461.21),
    (
        "vllm",
        "0.30.0",
        "qwen3.5-27b",
        {"max_model_len": 131072, "tensor_parallel": 2, "kv_itemsize": 1},
        4.99,
        16384,
        302921,
        2.31,
    ),
    (
        "vllm",
        "0.30.0",
        "gemma-4-e2b",
        {"max_model_len": 16384, "max_num_batched_tokens": 2048},
        4.658,
        18432,
        519681,
        31.72,
    ),
    (
        "vllm",
        "0.25.1",
        "gemma-4-26b-a4b",
        {"max_model_len": 262144, "max_num_batched_tokens": 2496},
        83.89,
        225280,
        3875400,
        14.78,
    ),
    ("vllm", "0.33.0", "llama-3.1-8b", {"max_model_len": 131072}, 56.214, 131072, 460496, 3.51),
    ("sglang", "0.5.5", "kimi-k2.5", {"tensor_parallel": 8}, 160.632, 70272, 2454421, 0),
    ("vllm", "0.9.1", "llama-3.1-8b", {"max_model_len": 131072, "draft": Draft(layers=1)}, 51.63, 135168, 410128, 3.13),
    ("sglang", "0.5.23", "gemma-4-26b-a4b", {}, 36.6945, 225280, 213761, 0),
    ("sglang", "0.5.23", "gemma-4-26b-a4b", {"kv_itemsize": 1}, 3.1827, 112640, 37081, 0),
    ("sglang", "0.5.5", "deepseek-v3", {"kv_itemsize": 1}, 17.156, 35136, 524288, 0),
]


@pytest.mark.parametrize("row", SAID, ids=lambda row: row[2])
def test_tokens_of_a_cache_are_those_of_the_log(row: Any) -> None:
    name, version, model, rollout, size, token, tokens, at_once = row
    of = engine(model, version, name, **rollout)
    found, held = layout(of), int(size * GiB)
    assert found.token_bytes == token
    assert found.tokens(held, of.max_model_len) == pytest.approx(tokens, rel=1e-4)
    if at_once:
        assert found.concurrency(held, of.max_model_len) == pytest.approx(at_once, abs=0.01)


def test_a_page_of_a_state_decides_the_block() -> None:
    groups = {group.cell.kind: group for group in layout(engine("qwen3.5-27b", "0.30.0", kv_itemsize=1)).groups}
    assert groups["full"].block == 1568
    assert groups["state"].alike == 3
    padding = 1568 * groups["full"].cell.token / groups["state"].cell.state - 1
    assert f"{100 * padding:.2f}" == "0.13"


def test_windows_are_kept_whole_before_groups_came() -> None:
    before, after = (layout(engine("gemma-3-1b", version)) for version in ("0.8.5", "0.10.2"))
    assert before.token_bytes == after.token_bytes
    assert before.request(4096) == 4096 * before.token_bytes
    assert after.request(4096) > after.request(512)
    assert [group.alike for group in after.groups] == [6, 1]


def test_heads_of_keys_are_repeated_and_latents_are_whole() -> None:
    tokens = [layout(engine("qwen2.5-7b", tensor_parallel=ranks)).token_bytes for ranks in (1, 2, 4, 7)]
    assert tokens == [57344, 28672, 14336, 14336]
    assert len({layout(engine("deepseek-v3", tensor_parallel=ranks)).token_bytes for ranks in (1, 8)}) == 1


def test_windows_have_a_pool_of_their_own_in_some_families() -> None:
    """SGLang keeps a window's keys for 0.8 of the tokens, for gpt-oss since 0.5 and for Gemma 4 since 0.5.12."""
    sizes = {
        (model, version): layout(engine(model, version, "sglang")).block_bytes
        for model in ("gpt-oss-20b", "gemma-4-31b", "gemma-3-27b")
        for version in ("0.4.9", "0.5.5", "0.5.12")
    }
    tokens = {model: layout(engine(model, "0.5.5", "sglang")).token_bytes for model, _ in sizes}
    apart = [key for key, size in sizes.items() if size < tokens[key[0]]]
    assert apart == [("gpt-oss-20b", "0.5.5"), ("gpt-oss-20b", "0.5.12"), ("gemma-4-31b", "0.5.12")]
    assert sizes["gpt-oss-20b", "0.5.5"] == round(tokens["gpt-oss-20b"] * 0.9)


def test_what_drafts_has_weights_and_a_cache() -> None:
    """EAGLE: a layer of the model's shape behind a projection of two hidden states; another model counts whole."""
    plain, eagle, model = (said("llama-3.1-8b", draft=draft) for draft in (None, "eagle", "llama-3.2-1b"))
    layer = load_model("llama-3.1-8b").runs[0].layer.parameters
    assert eagle.weights_bytes - plain.weights_bytes == 2 * (layer + 2 * 4096 * 4096 + 3 * 4096)
    assert eagle.kv_bytes_per_token == plain.kv_bytes_per_token * 33 // 32
    alone = said("llama-3.2-1b")
    assert model.weights_bytes == plain.weights_bytes + alone.weights_bytes
    assert model.kv_bytes_per_token == plain.kv_bytes_per_token + alone.kv_bytes_per_token
    assert model.kv_tokens < eagle.kv_tokens < plain.kv_tokens


def test_a_drafting_layer_joins_the_groups_of_its_kind() -> None:
    """Qwen3.5 27B: 17 layers of attention, so that 48 states are padded to 51."""
    of = engine("qwen3.5-27b", "0.30.0", draft=Draft(layers=1))
    kinds = {group.cell.kind: group.alike for group in layout(of).groups}
    assert kinds == {"state": 3, "full": 1}
    assert layout(of).block_bytes == layout(of._replace(draft=None)).block_bytes * 17 // 16


def test_drafted_tokens_that_the_profile_run_leaves_out_are_in_the_high_figure() -> None:
    """Of 256 sequences: the profile run has two rows of logits each, three drafted tokens have four, of 10 bytes."""

    def highest(drafted: int, version: str) -> int:
        asked = {"engine": "vllm", "engine_version": version, "draft": "eagle", "draft_tokens": drafted}
        job = {"model": "llama-3.1-8b", "method": "generate", "gpu": "h100-80gb"}
        return estimate({**job, "rollout": {**asked, "max_num_seqs": 256}}).per_gpu.device_bytes.high

    assert highest(3, "0.25.1") - highest(1, "0.25.1") == 2 * 256 * 128_256 * 10
    assert highest(3, "0.27.0") == highest(1, "0.27.0")  # a few at once


def test_each_drafted_token_has_a_state_of_its_own() -> None:
    """A log of three drafted tokens: 47 blocks of attention for 131,072 tokens and 3 groups of 2 + 3 states."""
    of = engine("qwen3.5-27b", "0.30.0", draft=Draft(layers=1, tokens=3))
    plain = layout(of._replace(draft=None))
    assert layout(of).blocks_of(131072) == plain.blocks_of(131072) + 3 * 3
    assert said("qwen3.5-27b", draft="mtp", draft_tokens=3).kv_tokens < said("qwen3.5-27b", draft="mtp").kv_tokens


def test_an_engine_of_text_alone_loads_no_tower() -> None:
    """Qwen3.6-35B-A3B-FP8: 33.38 GiB of two logs, 34.22 with the tower."""
    keys = {"quantization": "fp8", "language_model_only": True, "engine_version": "0.20.1"}
    assert said("qwen3.5-35b-a3b", **keys).weights_bytes / GiB == pytest.approx(33.38, rel=2e-3)
    with pytest.raises(InvalidJob, match=r"language_model_only: vLLM's own"):
        said("qwen3.5-27b", engine="sglang", language_model_only=True)
    keys |= {"quantization": "none", "engine_version": "0.21.0", "max_num_batched_tokens": 2048}
    assert said("gemma-4-e2b", **keys).weights_bytes / GiB == pytest.approx(8.89, rel=1e-3)  # its rows' buffer stays


def test_a_state_space_beside_attention_has_its_state() -> None:
    """Zamba 2: every layer has a state, and some have keys and values too."""
    kinds = {group.cell.kind: group.alike for group in layout(engine("zamba2-7b", "0.12.0")).groups}
    assert kinds == {"state": 7, "full": 1}


# -- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS, ids=lambda era: f"{era.engine}-{'.'.join(map(str, era.since))}")
def test_the_budget_is_the_sum_of_its_terms(era: Any) -> None:
    found = engine_figures(engine(version=".".join(map(str, era.since)), name=era.engine), find_gpu(CARD))
    rest = found.budget - found.weights - found.kv
    if era.share == "free":
        assert rest == 0
        return
    estimate_of_graphs = rest - found.activation - found.non_torch
    assert (estimate_of_graphs > 0) == (era.estimate > 0 and not (era.blind and DENSE in era.second))


PRINTED = [  # version, card and share as printed; weights, activation, outside PyTorch, estimated graphs; the cache
    ("0.10.2", 23.53, 0.8, (8.8, 1.4, 0.02), 8.598),
    ("0.11.0", 44.42, 0.9, (27.72, 1.4, 0.21), 10.65),
    ("0.11.0", 79.19, 0.9, (14.08, 1.97, 0.07), 55.15),
    ("0.22.0", 184.31, 0.92, (106.69, 6.31, 0.95, 4.99), 50.62),
    ("0.26.0", 16.0, 0.95, (0.88, 0.26, 0.16, 0.58), 13.33),
    ("0.26.0", 79.18, 0.825, (0.67, 0.24, 0.14), 64.27),
    ("0.26.0", 267.69, 0.92, (156.32, 2.99, 0.23), 86.74),
    ("0.27.0", 15.51, 0.92, (10.47, 0.79), 3.01),
    ("0.27.0", 23.99, 0.85, (1.49, 0.25), 18.65),
    ("0.27.0", 80.0, 0.92, (55.62, 2.53), 15.46),
    ("0.28.0", 95.01, 0.9, (56.89, 0.76), 27.85),
    ("0.28.0", 191.69, 0.9, (11.88, 5.59), 155.04),
    ("0.30.0", 79.25, 0.92, (15.26, 1.44), 56.21),
    ("0.30.0", 94.97, 0.97, (81.7, 1.78), 8.64),
]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_terms_of_a_log_make_up_the_budget(row: Any) -> None:
    """Of logs that print every term: the share's budget less them is the cache, to the last decimal."""
    version, card, share, terms, cache = row
    of = engine(version=version, share=share)
    gpu = find_gpu(f"{card}GiB")
    budget = budget_bytes(of, era_of("vllm", version), gpu, gpu.usable_bytes) / GiB
    assert budget - sum(terms) == pytest.approx(cache, abs=0.0125)


def test_graphs_that_the_engine_does_not_estimate_lie_beside_its_share() -> None:
    """A log of 0.27.1: 22.07 GiB are 1.23 of weights and outside PyTorch, 0.31 of activation and 20.52 of cache."""
    gpu = find_gpu(CARD)
    seen, blind, routed, hybrid = (
        engine_figures(engine(model, version, kv_cache_memory=0), gpu)
        for model, version in (
            ("qwen2.5-7b", "0.23.0"),
            ("qwen2.5-7b", "0.27.0"),
            ("qwen3-30b-a3b", "0.27.0"),
            ("nemotron-h-8b", "0.27.0"),
        )
    )
    beside = [found.awake.expected - found.budget - found.outside.expected for found in (seen, blind, routed, hybrid)]
    assert beside == [0, blind.graphs, 0, 0]
    families = ("llama-3.1-8b", "qwen2.5-7b")
    listed = [engine_figures(engine(model, "0.24.0"), gpu) for model in families]
    assert [each.awake.expected > each.budget + each.outside.expected for each in listed] == [True, False]


def test_a_share_means_what_its_version_says() -> None:
    gpu, held = find_gpu(CARD), 20 * GiB
    free = Band(*(gpu.usable_bytes - held,) * 3)

    def budgets(name: str, version: str) -> tuple[int, int]:
        of = engine(name=name, version=version, share=0.5)
        return engine_figures(of, gpu).budget, engine_figures(of, gpu, free).budget

    alone, beside = budgets("vllm", "0.8.5")
    assert alone - beside == held
    alone, beside = budgets("vllm", "0.11.0")
    assert alone == beside == gpu.usable_bytes // 2
    alone, beside = budgets("sglang", "0.5.5")
    assert alone - beside == held // 2


def test_what_sglang_leaves_free_is_by_its_version() -> None:
    """Of 16,303 MiB: 2.9 GiB from 0.4.8 to 0.5.2 (a log of RTX 5080 has 0.818), 3.6 GiB later, 12 % before."""
    card = Card(15 * GiB, 16303 * MiB, "12.0")
    versions = ("0.4.6", "0.4.8", "0.5.2", "0.5.3")
    assert [defaults_of("sglang", version, card, 1).share for version in versions] == [0.88, 0.818, 0.818, 0.771]
    hopper = Card(79 * GiB, 81559 * MiB, "9.0")
    assert defaults_of("sglang", "0.4.9", Card(79 * GiB, 80 * GiB, "9.0"), 8).share == 0.831
    assert [defaults_of("sglang", each, hopper, 1).share for each in ("0.5.9", "0.5.19")] == [0.835, 0.83]


@over(
    [
        ("0.5.6", "qwen3-vl-32b", False, 0.9248),  # a B200's 0.857 is 0.793 in a log
        ("0.5.6", "qwen2-vl-7b", False, 0.76),
        ("0.4.10", "gemma-3-4b", False, 0.9097),
        ("0.5.6", "gemma-3-4b", True, 1),
        ("0.4.9", "gemma-3-4b", False, 0.9),
        ("0.4.8", "gemma-3-4b", True, 0.9),
        ("0.4.8", "qwen2.5-7b", True, 1),
    ]
)
def test_a_tower_makes_sglangs_share_smaller(row: Any) -> None:
    version, model, given, left = row
    assert beside_images(1, given, version, load_model(model)) == pytest.approx(left, abs=1e-4)


def test_beside_a_trainer_it_is_one_that_the_trainer_takes() -> None:
    asked = (("trl", "0.24", "vllm"), ("trl", "", "vllm"), ("verl-megatron", "0.6", "vllm"), ("verl", "0.9", "sglang"))
    assert [taken_by(*each) for each in asked] == ["0.10.2", "0.31.0", "0.10.0", "0.5.12"]
    assert taken_by("openrlhf", "", "vllm") == LATEST["vllm"]
    for (_, engine_), rows in TAKEN.items():
        assert [version_of(each) for each in rows.values()] == sorted(map(version_of, rows.values()))
        assert [era_of(engine_, each).engine for each in rows.values()] == [engine_] * len(rows)


def test_sglang_has_rows_for_its_requests_outside_of_the_share() -> None:
    """Llama 3.1 8B on 24 GB: between its cache and the end of its pools 1.25 GiB went, 2,048 requests of 131,072."""
    assert request_rows(38141, 131072) / GiB == pytest.approx(1.0, abs=0.01)
    assert request_rows(10**7, 4096) == 4096 * 4100 * 4
    long, short = (said("llama-3.1-8b", "rtx-4090-24gb", tokens, engine="sglang") for tokens in (131072, 4096))
    assert long.awake_bytes - short.awake_bytes > 0.9 * GiB


@pytest.mark.parametrize(
    ("model", "gpu", "rollout", "fits"),
    [  # 5.8e4 tokens as expected of a first start, which compiles; 3.7e4 in one
        ("qwen2.5-7b", "l4-24gb", {"engine_version": "0.27.1", "max_model_len": 50000}, "tight"),
        ("qwen2.5-7b", "l4-24gb", {"engine_version": "0.27.1", "max_model_len": 30000}, "yes"),
        ("qwen2.5-7b", "l4-24gb", {"engine_version": "0.27.1", "max_model_len": 60000, "enforce_eager": True}, "yes"),
        ("qwen3.5-9b", "l40s-48gb", {"engine_version": "0.20.0", "max_model_len": 131072}, "yes"),
        ("gemma-4-31b", "rtx-5090-32gb", {"quantization": "nvfp4", "max_model_len": 4096}, "tight"),
        ("qwen3-32b", "121.69GiB", {"engine_version": "0.28.0", "max_model_len": 131072}, "tight"),
        ("qwen3-32b", "121.69GiB", {"engine_version": "0.28.0", "max_model_len": 65536}, "yes"),
    ],
)
def test_a_start_that_hangs_on_what_is_uncertain_is_tight(model: str, gpu: str, rollout: Any, fits: str) -> None:
    """A first compilation, kernels that are tuned, what a format that a job names alone leaves in 16 bits, a host's
    memory."""
    share = {"gpu_memory_utilization": 0.85 if gpu == "l4-24gb" else 0.84}
    job = {"model": model, "method": "generate", "gpu": gpu, "rollout": {**share, **rollout}}
    found = estimate(job)
    assert found.verdict is not None
    assert found.engine is not None
    assert (found.verdict.fits, found.engine.starts, found.engine.may_fail) == (fits, True, fits == "tight")


def test_an_engine_alone_that_is_short_by_less_than_is_uncertain_may_start() -> None:
    job: dict[str, Any] = {"model": "qwen2.5-7b", "method": "generate", "gpu": CARD}
    at = {"gpu_memory_utilization": 0.3, "engine_version": "0.11.0"}
    tokens = said(tokens=4096, **at).kv_tokens
    found = [estimate(job | {"rollout": {**at, "max_model_len": tokens + more}}) for more in (-64, 2000, 20000)]
    assert [each.verdict and each.verdict.fits for each in found] == ["yes", "tight", "no"]


def test_what_is_free_is_looked_at_before_it_starts() -> None:
    gpu = find_gpu(CARD)
    free = Band(*(gpu.usable_bytes // 2,) * 3)
    found = engine_figures(engine(share=0.9), gpu, free)
    assert not found.starts
    assert "are free" in found.why
    share = float(found.hint.rpartition(" ")[2])
    assert engine_figures(engine(share=share), gpu, free).starts
    assert engine_figures(engine(version="0.8.5", share=0.9), gpu, free).starts  # which does not look


def test_sglangs_pool_of_states_is_on_the_card_beside_its_cache() -> None:
    """Qwen3.8-27B-FP8 on an H100: 17.9 GiB of 124 states, 8.9 of 79.2 left (public repository text 65830671609)."""
    keys = {"quantization": "fp8", "mem_fraction_static": 0.85, "max_num_seqs": 32, "max_model_len": 262144}
    found = said("qwen3.5-27b", engine="sglang", engine_version="0.5.18", **keys)
    assert found.states_bytes / GiB == pytest.approx(17.92, rel=0.01)
    assert found.awake_bytes / GiB == pytest.approx(70.28, abs=0.5)
    assert said("qwen2.5-7b", engine="sglang", mem_fraction_static=0.85).states_bytes == 0


def test_graphs_of_older_engines_may_take_four_times_as_much() -> None:
    """Qwen3 8B on an A100 of 40 GB: 2.2 GiB under 0.9.2, 2.4 under 0.19.1."""
    for version, most in (("0.19.1", 4), ("0.33.0", 2)):
        of = engine("qwen3-8b", version)
        found = graph_bytes(of, era_of("vllm", version))
        assert found.high == most * found.expected + 256 * MiB


def test_asleep_it_keeps_context_and_graphs() -> None:
    gpu = find_gpu(CARD)
    found = {level: engine_figures(engine(sleep=level), gpu) for level in (0, 1, 2)}
    assert found[0].asleep == found[0].awake
    assert found[1].asleep == found[2].asleep
    assert 0.9 * GiB < found[1].asleep.expected < 1.5 * GiB
    assert found[1].weights < found[1].host_asleep < 2 * found[1].weights
    assert found[2].host_asleep == 0
    recent, tuned = (
        engine_figures(engine(model, version="0.25.0", sleep=2), gpu) for model in ("qwen3-8b", "qwen3.5-9b")
    )
    assert recent.asleep.expected == sum(
        (recent.outside.expected, recent.graphs, recent.non_torch, 32 * MiB)
    )  # what it has outside PyTorch, and cuBLAS's workspace
    assert tuned.asleep.expected - tuned.graphs - recent.asleep.expected + recent.graphs > 300 * MiB  # Triton's kernels


def test_a_first_start_compiles_with_a_table_of_words_and_the_second_runner_counts_words() -> None:
    """14B under 0.29 on an L40S, 256 sequences: 1.45 GiB while it compiles, where an eager one takes 0.3."""
    gpu = find_gpu("l40s-48gb")
    found, calm = (engine_figures(engine("qwen3-14b", "0.29.0", eager=eager), gpu) for eager in (False, True))
    assert found.activation == 151936 * 5120 * 2
    assert calm.activation < found.activation
    assert found.non_torch - 70 * MiB == 256 * (151936 + 2 * 4748) * 4
    assert engine_figures(engine("qwen3-14b", "0.26.0"), gpu).non_torch == 150 * MiB


def test_the_copy_of_a_sleeping_engine_is_page_locked_segment_by_segment() -> None:
    """2 MiB of small tensors, 20 MiB that two middling ones share, one of 259 MiB: 2, 32 and 512 MiB."""
    tensors = (512, 8 * MiB, 8 * MiB, 259 * MiB)
    assert copied_bytes(tensors, "segments") == (2 + 32 + 512) * MiB
    assert loaded_bytes(tensors, "segments") == (2 + 20 + 260) * MiB


def test_quantised_weights_that_loading_replaces_may_be_counted_twice_where_it_sleeps() -> None:
    """vLLM issue 40256: a 70B in AWQ on two cards of 24 GB has 1.99 GiB a card more cache with sleep than without."""
    gpu = find_gpu("rtx-4090-24gb")

    def beyond(version: str, sleep: int, **more: Any) -> float:
        keys = {"tensor_parallel": 2, "share": 0.97, "version": version, "separate": False, **more}
        with_it, without = (engine_figures(engine("llama-3.1-70b", sleep=level, **keys), gpu) for level in (sleep, 0))
        assert with_it.awake[:2] == without.awake[:2]
        return (with_it.awake.high - without.awake.high) / GiB

    awq = {"quantization": "awq"}
    assert 1.99 < beyond("0.19.0", 1, **awq) < 20
    assert beyond("0.10.0", 1, **awq) == beyond("0.19.0", 1) == beyond("0.25.0", 1) == 0
    loading = [beyond("0.25.0", 1, **awq), beyond("0.19.0", 1, kv_cache_memory=GiB, **awq)]
    assert all(0 < each < beyond("0.19.0", 1, **awq) for each in loading)  # of twice its weights, beyond its share


# -- what cannot start -------------------------------------------------------------------------------------------------


REFUSED = [
    ({"model": "qwen2.5-7b", "gpu": "rtx-4090-24gb", "tokens": 131072}, "max_model_len"),
    ({"model": "qwen2.5-7b", "gpu_memory_utilization": 0.15}, "gpu_memory_utilization"),
    ({"model": "qwen2.5-72b"}, "tensor_parallel"),
    ({"model": "qwen2.5-7b", "gpu_memory_utilization": 0.999}, "gpu_memory_utilization"),
    ({"model": "qwen2.5-7b", "kv_cache_memory": 200 * GiB}, "kv_cache_memory"),
    ({"model": "qwen2.5-72b", "tensor_parallel": 2, "kv_cache_memory": GiB}, "max_model_len"),
    ({"model": "qwen2.5-7b", "gpu": "l4-24gb", "engine": "sglang", "mem_fraction_static": 1}, "mem_fraction_static"),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[1])
def test_what_is_said_to_change_makes_it_start(row: Any) -> None:
    given, key = row
    found = said(**given)
    assert not found.starts
    name, _, value = found.hint.partition(",")[0].partition(": ")
    assert name == key
    number = value if key == "kv_cache_memory" else float(value) if "." in value else int(value)
    changed: dict[str, Any] = {"tokens" if key == "max_model_len" else key: number}
    after = said(**(given | changed))
    assert (after.starts, after.may_fail) == (True, False)
    assert after.kv_tokens >= given.get("tokens", 8192) or key == "max_model_len"


def test_a_cache_of_a_given_size_is_not_answered_with_a_share() -> None:
    assert said(kv_cache_memory=GiB, tokens=131072).hint == "max_model_len: 18720, or kv_cache_memory: 7168MiB"


def test_a_video_that_attends_to_itself_is_one_forward() -> None:
    """Of a Gemma 4 26B on an L40S, 321,600 tokens of 12.75 GiB under 0.25.1: windows hold 2,496, and not 2,048."""
    rollout = {"engine": "vllm", "kv_cache_memory": int(12.75 * GiB), "max_model_len": 32768, "quantization": "fp8"}
    job = {"model": "gemma-4-26b-a4b", "method": "generate", "gpu": "l40s-48gb"}
    found = estimate({**job, "rollout": rollout | {"engine_version": "0.25.1"}}).engine
    assert found is not None
    assert found.kv_tokens == pytest.approx(321600, rel=0.001)


def test_an_engine_alone_assumes_nothing_of_training() -> None:
    config = {**model_preset("qwen3.5-4b")["config"], "quantization_config": {"quant_method": "fp8"}}
    found = estimate({"model": config, "method": "generate", "gpu": CARD, "rollout": {"max_model_len": 8192}})
    assert "rollout.quantization: the checkpoint's own, fp8" in found.assumptions
    assert not any(word in each for each in found.assumptions for word in ("transformers", "adapters"))


BAD = [
    ({"gpu_memory_utilization": 0}, "above 0, and at most 1"),
    ({"gpu_memory_utilization": 1.5}, "above 0, and at most 1"),
    ({"engine": "vllm", "mem_fraction_static": 0.5}, "gpu_memory_utilization"),
    ({"engine": "sglang", "gpu_memory_utilization": 0.5}, "mem_fraction_static"),
    ({"tensor_parallel": 3}, "use 1 or 2 or 4"),
    ({"tensor_parallel": 7}, "use 1"),
    ({"tensor_parallel": 28}, "use 1 or 2 or 4"),
    ({"engine_version": 0.2}, "write all of it"),
    ({"tensor_parallel": 4, "num_gpus": 6}, "use 1 or 2"),
    ({"engine_version": "0.99"}, f"to {LATEST['vllm']}"),
    ({"engine_version": "0.5.0"}, "versions 0.6.0"),
    ({"engine": "hf"}, "vllm or sglang"),
    ({"engine": "hf", "draft": "mtp"}, "vllm or sglang"),
    ({"pipeline_parallel": 100, "num_gpus": 100}, "use 1 to 28"),
    ({"expert_parallel": 3, "tensor_parallel": 2, "data_parallel": 2, "num_gpus": 4}, "use 1 or 2 or 4"),
    ({"quantization": "fp8", "gpu": "v100-32gb"}, "newer card"),
]


@pytest.mark.parametrize("row", BAD, ids=lambda row: str(row[0]))
def test_bad_input_names_the_valid_range(row: Any) -> None:
    rollout, hint = {"gpu": CARD} | row[0], row[1]
    with pytest.raises(InvalidJob) as error:
        estimate({"model": "qwen2.5-7b", "method": "generate", "gpu": rollout.pop("gpu"), "rollout": rollout})
    assert error.value.message.startswith("rollout.")
    assert "\n" not in error.value.message
    assert hint in error.value.hint


def test_a_version_of_two_digits_is_one_as_a_number_too() -> None:
    assert said(engine_version=0.11).kv_tokens == said(engine_version="0.11.0").kv_tokens


def test_an_engine_that_is_told_bf16_does_not_start_on_a_card_without_it() -> None:
    job = {"model": "qwen2.5-3b", "method": "grpo", "sharding": "fsdp", "num_gpus": 2, "gpu": "v100-32gb"}
    for trainer, said, starts in (("verl", {}, False), ("verl", {"dtype": "fp16"}, True), ("trl", {}, True)):
        rollout = {"engine": "vllm", "placement": "colocate", "gpu_memory_utilization": 0.5, "max_model_len": 2048}
        found = estimate({**job, "trainer": trainer, "dtype": "fp16", "rollout": rollout | said})
        assert found.engine is not None
        assert found.engine.starts == starts
        assert ("bf16" in found.engine.why) != starts


def test_sleep_fails_under_expandable_segments_in_older_versions() -> None:
    job = {"model": "qwen2.5-7b", "method": "generate", "gpu": CARD, "allocator": {"expandable_segments": True}}
    for version in ("0.11.0", "0.19.0"):
        found = estimate({**job, "rollout": {"engine_version": version, "sleep": 1}})
        assert (found.verdict.fits, found.engine.starts) == ("no", False)  # type: ignore[union-attr]
        assert "expandable_segments" in found.engine.why  # type: ignore[union-attr]
    assert estimate({**job, "rollout": {"engine_version": "0.24.0", "sleep": 1}}).engine is not None
    verl = {**job, "method": "grpo", "sharding": "fsdp", "num_gpus": 4, "rollout": {"engine": "vllm"}}
    engine = estimate({**verl, "trainer": "verl", "trainer_version": "0.1"}).engine  # it moves the weights itself
    assert engine is not None
    assert engine.version == "0.6.3"


@pytest.mark.parametrize("key", ["batch_size", "optimizer", "sharding", "trainer"])
def test_keys_of_training_are_refused(key: str) -> None:
    value = {"batch_size": 4, "optimizer": "adamw", "sharding": "ddp", "trainer": "trl"}[key]
    with pytest.raises(InvalidJob, match=f"{key}: method generate trains nothing"):
        estimate({"model": "qwen2.5-7b", "method": "generate", "gpu": CARD, key: value})


def test_versions_between_two_eras_are_of_the_earlier() -> None:
    assert era_of("vllm", "0.9.1").share == "less-used"
    assert era_of("vllm", "0.9.2.post1").share == "total"
    assert not era_of("vllm", "0.19.1").estimate
    assert era_of("vllm", "0.33.4+cu130").estimate


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_answer_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["estimate", "qwen2.5-7b", "--method", "generate", "--rollout-engine", "vllm", "--gpu", CARD, "--tp", "2"]
    assert main([*given, "--engine-version", "0.11", "--max-model-len", "8192"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"vllm 0.11 starts on {CARD}: ")
    assert "requests of 8,192 tokens at once" in second
    assert main([*given, "--gpu-memory-utilization", "0.05", "--fail-over"]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "does not start" in first
    assert second.strip().startswith("Change: --gpu-memory-utilization 0.")


def test_what_may_not_start_at_worst_is_said_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A cache of one request more or less; what is said to change is enough at the worst."""
    given = ["estimate", "llama-3.1-8b", "--method", "generate", "--rollout-engine", "vllm", "--gpu", "rtx-4090-24gb"]
    barely = said("llama-3.1-8b", "rtx-4090-24gb", 40000)
    assert (barely.starts, barely.may_fail) == (True, True)
    main([*given, "--max-model-len", "40000"])
    first, _, change, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("vllm 0.33.0 may not start on rtx-4090-24gb: a cache of ")
    assert change.strip().startswith("Change: --max-model-len 2")
    length = int(barely.hint.partition(",")[0].partition(": ")[2])
    assert not said("llama-3.1-8b", "rtx-4090-24gb", length).may_fail


def test_where_nothing_else_is_left_it_runs_eagerly() -> None:
    """Without a first compilation and graphs; what is quantised is not told to be."""
    given = {"quantization": "awq", "max_num_seqs": 64, "gpu_memory_utilization": 0.93}
    barely = said("qwen3-8b", "8.6GiB", 3000, **given)
    assert (barely.may_fail, barely.hint) == (True, "enforce_eager: true, or a larger card")
    assert not said("qwen3-8b", "8.6GiB", 3000, **given, enforce_eager=True).may_fail


def test_a_profile_run_takes_the_longest_video_that_a_prompt_holds() -> None:
    """0.23 of a 7B at 128,000 tokens, 17.4 GiB of a card of 80 GB: the cache would have -14.28 GiB."""
    given = (("0.10.2", 128000), ("0.23.0", 32768), ("0.23.0", 128000))
    sizes = [said("qwen2.5-vl-7b", "l4-24gb", length, engine_version=each).activation_bytes for each, length in given]
    assert sizes[0] < sizes[1] < sizes[2] / 3
    assert not said("qwen2.5-vl-7b", CARD, 128000, engine_version="0.23.0", gpu_memory_utilization=0.3).starts


def test_a_profile_run_holds_its_images_and_what_the_tower_made_of_them() -> None:
    assert pixel_bytes(engine("qwen2.5-vl-7b")) == 65536 * 14 * 14 * 3 * 2 * 2
    each, taps = 2048 * 2, 16384 * 2048 * 2 * 3  # three taps
    assert feature_bytes(engine("qwen3-vl-2b", "0.11.1")) == (16384 * each * 4, taps)
    assert feature_bytes(engine("qwen3-vl-2b", "0.11.0")) == (153600 * each * 4, taps)
    assert feature_bytes(engine()) == (pixel_bytes(engine()), 0) == (0, 0)
    keys = {"model": "qwen2.5-vl-7b", "gpu": "a100-80gb"}
    short, whole = (said(**keys, engine_version=version).activation_bytes / GiB for version in ("0.8.2", "0.8.4"))
    assert (short, whole) == pytest.approx((1.76, 5.49), abs=0.01)  # V0, with an image and a video: 5.5 in a log
    assert said(**keys, tokens=40960, engine_version="0.8.2").activation_bytes > 5 * GiB


@pytest.mark.parametrize(
    ("version", "each"),
    [("0.6.6", 2 * 16 * 256 * 2), ("0.7.1", 1152), ("0.7.2", 1280), ("0.8.4", 1280), ("0.8.5", 1152)],
)
def test_the_first_engine_keeps_every_head_then_a_padded_latent(version: str, each: int) -> None:
    """Bytes of a token and layer: 512 + 64 elements of DeepSeek-V2-Lite's, or its 16 heads padded to 256."""
    assert layout(engine("deepseek-v2-lite", version)).token_bytes == 27 * each


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, 2048),
        ({"lora": {"r": 16}}, 65536),
        ({"model": "deepseek-v2-lite"}, 65536),
        ({"model": "mistral-7b-v0.1"}, 65536),
        ({"gpu": "mi300x-192gb"}, 65536),
    ],
)
def test_the_first_engine_divides_no_long_prompt_of_some(keys: dict[str, Any], tokens: int) -> None:
    """One of latents or windows, with an adapter, on AMD's cards; others from 32,768 tokens on."""
    rollout = {"engine": "vllm", "engine_version": "0.8.4", "max_model_len": 65536}
    job = {"model": "llama-3.1-8b", "gpu": CARD, **keys, "method": "generate", "rollout": rollout}
    shown = estimate(job).job["rollout"]
    assert shown["max_num_batched_tokens"] == tokens


def test_a_sampler_without_a_sort_leaves_more_to_the_cache() -> None:
    """Of versions that sort; what is asked for after top-p is sorted whatever samples."""
    plain, flash = said(engine_version="0.10.1"), said(engine_version="0.10.1", sampler="flashinfer")
    assert flash.activation_bytes < plain.activation_bytes
    assert flash.kv_bytes - plain.kv_bytes == plain.activation_bytes - flash.activation_bytes
    newer = said(engine_version="0.28.0"), said(engine_version="0.28.0", sampler="torch")
    assert newer[1].activation_bytes > 3 * newer[0].activation_bytes  # FlashInfer is not there
    after = {"engine_version": "0.10.1", "logprobs_mode": "processed_logprobs"}
    assert said(**after, sampler="flashinfer").activation_bytes == said(**after).activation_bytes


def test_what_to_change_is_typed_as_it_stands() -> None:
    """Every key of an engine's hint is an option, and fewer GPUs than the degrees take are no answer."""
    hint = options_of_hint("max_model_len: 8192, or tensor_parallel: 2, or kv_cache_memory: 9MiB, or a larger card")
    assert hint == (
        "--max-model-len 8192, or --rollout-tensor-parallel 2, or --set rollout.kv_cache_memory=9MiB, or a larger card"
    )
    assert options_of_hint("enforce_eager: true") == "--enforce-eager"
    assert options_of_hint("allocator.x: false, or vllm") == "--set allocator.x=false, or vllm"
    with pytest.raises(InvalidJob, match="does not divide the 2 GPUs"):
        estimate(Job(model="qwen2.5-7b", method="generate", gpu=CARD, num_gpus=2, tensor_parallel=4))


@pytest.mark.parametrize(
    ("model", "gpu", "version", "sleep", "fits"),
    [
        ("gpt-oss-120b", "93.1GiB", "0.16.0", "1", "tight"),  # vllm-project/vllm/issues/34877: it dies while it loads
        ("gpt-oss-120b", "93.1GiB", "0.16.0", "none", "yes"),
        ("gpt-oss-120b", "93.1GiB", "0.30.0", "1", "tight"),  # while it loads alone
        ("qwen3-235b-a22b", "gb200-186gb", "0.21.0", "1", "tight"),  # issues/43951; 0.20 loads it
        ("qwen3-235b-a22b", "gb200-186gb", "0.20.2", "1", "yes"),
    ],
)
def test_what_loading_replaces_in_an_open_pool_is_in_the_high_figure(
    model: str, gpu: str, version: str, sleep: str, fits: str
) -> None:
    ranks = 1 if "oss" in model else 4
    rollout = {"engine_version": version, "tensor_parallel": ranks, "gpu_memory_utilization": 0.85, "sleep": sleep}
    rollout |= {"max_model_len": 8192, "max_num_seqs": 2, "enforce_eager": True}
    job = {"model": model, "method": "generate", "gpu": gpu, "num_gpus": ranks, "rollout": rollout}
    verdict = estimate(job).verdict
    assert verdict is not None
    assert verdict.fits == fits


def test_the_ledger_holds_what_the_engine_says() -> None:
    report = estimate(
        {"model": "qwen2.5-7b", "method": "generate", "gpu": CARD, "rollout": {"engine_version": "0.11.0"}}
    )
    found = report.engine
    assert found is not None
    sizes = {row.name: row.bytes for row in report.per_gpu.ledger}
    assert sizes["KV cache"] == found.kv_bytes
    assert sizes["engine's weights"] == found.weights_bytes
    assert [instant.name for instant in report.per_gpu.instants] == ["start.engine", "rollout.generate"]
    assert report.per_gpu.device_bytes.expected == sum(sizes.values()) == found.awake_bytes


@pytest.mark.parametrize(
    ("job", "kv"),
    [
        (
            ("Qwen/Qwen2.5-72B-Instruct", "l40s-48gb", "0.19.0", {"tensor_parallel": 4, "gpu_memory_utilization": 0.9}),
            5.11,
        ),
        (
            ("gemma-4-31b", "b300-288gb", "0.26.0", {"gpu_memory_utilization": 0.92, "max_num_batched_tokens": 8192}),
            182.37,
        ),
    ],
)
def test_caches_of_ranks_over_pcie_and_of_the_first_runner(job: Any, kv: float) -> None:
    """Over PCIe ranks set up little between them; what reads images runs in the first runner under 0.26."""
    model, gpu, version, given = job
    rollout = {"engine_version": version, "max_model_len": 8192, **given}
    found = estimate({"model": model, "method": "generate", "gpu": gpu, "rollout": rollout}).engine
    assert found is not None
    assert found.kv_bytes / GiB == pytest.approx(kv, rel=0.005)


def test_states_of_all_sequences_at_once_need_a_block_each() -> None:
    """github.com/vllm-project/recipes/pull/551: 856 blocks for 1,024 sequences on an H100."""
    of = engine("qwen3.5-27b", "0.22.0", max_num_seqs=1024, share=0.95, quantization="fp8")
    h100 = find_gpu("h100-80gb")
    died = engine_figures(of, h100)
    blocks = int(died.hint.removeprefix("max_num_seqs: "))
    assert not died.starts
    assert blocks == pytest.approx(856, rel=0.02)
    assert engine_figures(of._replace(max_num_seqs=blocks), h100).starts
    assert engine_figures(of._replace(eager=True), h100).starts
    assert engine_figures(of._replace(version="0.19.1"), h100).starts


def test_later_experts_have_two_buffers_as_wide_as_their_output() -> None:
    """12.78 GiB beside weights, cache and graphs with 65,536 tokens, 4.08 with 8,192 (public repository text
    55471149664)."""
    given = {"quantization": "fp8", "tensor_parallel": 4, "expert_parallel": 4, "max_num_seqs": 128}
    many, before, few = (
        activation_bytes(
            engine("qwen3-235b-a22b", version, max_num_batched_tokens=tokens, **given), era_of("vllm", version)
        )
        for version, tokens in (("0.20.0", 65536), ("0.14.0", 65536), ("0.20.0", 8192))
    )
    assert (many - few) / GiB == pytest.approx(12.78 - 4.08, rel=0.07)
    assert many > 1.4 * before


@pytest.mark.parametrize(
    ("asked", "doubted"),
    [
        ({"version": "0.11.0"}, True),
        ({"version": "0.20.0"}, False),
        ({"name": "sglang", "version": "0.5.18"}, True),
        ({"version": "0.11.0", "quantization": "nf4"}, False),
        ({"version": "0.11.0", "rows": 64}, False),
    ],
)
def test_what_is_not_stored_in_fp8_is_made_of_16_bits_by_older_engines(asked: dict[str, Any], doubted: bool) -> None:
    """A 27B in 16 bits is 51 GiB of a card of 40; layer by layer since vLLM 0.16, and in training it is sent."""
    of = engine("gemma-3-27b", **{"max_model_len": 4096, "quantization": "fp8", **asked})
    found = engine_figures(of, find_gpu("a100-40gb"))
    assert (found.starts, found.why.startswith("what is not stored in fp8")) == (True, doubted)
    assert found.may_fail or not doubted
