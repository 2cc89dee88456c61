"""Proves what is made of a play: what is held on a card and without end, what is needed, and the verdict."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from commands import runner_of

from memplan.api import estimate
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.capacities import TOLERANCE, alike, beginning, least, runs
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.figures import Room, played
from memplan.engine.allocator.replay import StepEvents, play
from memplan.engine.allocator.reserved import Unplayed
from memplan.engine.allocator.settings import Settings
from memplan.engine.build import build_ledger
from memplan.errors import InvalidJob
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.units import GiB, MiB

TINY: dict[str, Any] = {
    "model": {
        "model_type": "llama", "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
    "method": "sft", "batch_size": 2, "sequence_length": 1024, "gradient_checkpointing": True,
}  # fmt: skip


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({**TINY, **keys}))


def events(*sizes: int, start: int = 0, **more: Any) -> StepEvents:
    """Storages by number: a size where one comes, minus its number plus one where it goes."""
    found = [(at, size * MiB) if size > 0 else (-size - 1, -sizes[-size - 1] * MiB) for at, size in enumerate(sizes)]
    return StepEvents(tuple(found), start, **more)


def held(recorded: StepEvents, **settings: Any) -> int:
    allocator = CachingAllocator(Settings(**settings))
    play(recorded, allocator)
    return allocator.peak_reserved // MiB


def test_a_cache_that_cannot_be_used_is_held_and_not_needed() -> None:
    """30 MiB come and go, then 40: 70 are held, 40 needed."""
    recorded = events(30, -1, 40)
    assert held(recorded) == 70
    assert least(recorded, Settings(), 70 * MiB) == 40 * MiB
    assert least(recorded, Settings(expandable_segments=True), 80 * MiB) == 40 * MiB


def test_what_is_needed_runs_and_little_less_does_not() -> None:
    recorded = step_events(recipe())
    assert recorded is not None
    allocator = CachingAllocator()
    play(recorded, allocator)
    needs = least(recorded, Settings(), allocator.peak_reserved)
    assert recorded.peak <= needs <= allocator.peak_reserved
    begun = beginning(recorded, Settings())
    assert runs(begun, needs)
    assert runs(begun, needs - int(TOLERANCE * recorded.peak) - 2 * MiB) is None


def test_what_held_no_more_on_a_larger_card_is_not_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step holds 50 MiB, the last 20: 40 are too few, though the last step's peak is below."""
    begun = beginning(events(50, -1, 20, -3, start=2, marks=((2, "empty_cache"),)), Settings())
    assert runs(begun, 60 * MiB)
    assert runs(begun, 40 * MiB) is None
    monkeypatch.setattr(CachingAllocator, "extended", None)
    again = runs(begun, 50 * MiB)
    assert again is not None
    assert (again.held, again.allocator.peak_reserved, again.allocator.capacity) == (50 * MiB, 20 * MiB, 50 * MiB)


GRPO: dict[str, Any] = {"method": "grpo", "gradient_checkpointing": False}
LENGTHS = {"prompt_length": 512, "completion_length": 512}


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({}, True),
        ({"sharding": "fsdp2", "num_gpus": 4}, True),
        ({"sharding": "zero-3", "num_gpus": 4, "trainer": "trl"}, True),
        ({"trainer": "megatron", "num_gpus": 4, "tensor_parallel": 2}, True),
        ({"allocator": {"per_process_memory_fraction": 0.9}}, False),
        ({"trainer": "trl", "lora": {"r": 8}, "load_in_4bit": True}, True),
        ({"trainer": "trl", "kernels": "unsloth", "lora": {"r": 8}}, False),
    ],
)
def test_cards_that_differ_in_memory_alone_have_one_play(keys: dict[str, Any], same: bool) -> None:
    one, other = (recipe(**keys, gpu=gpu) for gpu in ("rtx-4060-ti-16gb", "l4-24gb"))
    assert (alike(one) == alike(other)) is same
    if same:
        assert step_events(one) == step_events(other)
    assert alike(one) != alike(recipe(**keys, gpu="rtx-5090-32gb"))


def test_one_play_is_enough_beside_all_engines() -> None:
    one, other = (
        recipe(
            **GRPO, trainer="trl", gpu="l4-24gb", rollout={"engine": "vllm", "gpu_memory_utilization": share, **LENGTHS}
        )
        for share in (0.2, 0.4)
    )
    assert one.generator != other.generator
    assert alike(one) == alike(other)
    assert step_events(one) == step_events(other)


@pytest.mark.parametrize("gpu", ["1.5GiB", "2GiB", "3GiB", "4GiB", "24GiB"])
def test_a_search_asks_for_the_verdict_alone(gpu: str) -> None:
    of = recipe(sharding="fsdp2", num_gpus=4, gpu=gpu)
    one, other = peak(of, search=True, play="yes").verdict, peak(of, search=True, play="fits").verdict
    assert one is not None
    assert other is not None
    assert asdict(one) == asdict(other)


def test_streams_and_marks_are_played() -> None:
    assert held(events(30, -1, 30)) == 30
    assert held(events(30, -1, 30, streams={0: 1})) == 60
    assert held(events(30, -1, 30, recorded={0: (1,)})) == 60
    assert held(events(30, -1, 30, recorded={0: (1,)}, marks=((2, "done 1"),))) == 30
    assert held(events(30, -1, 40, marks=((2, "empty_cache"),))) == 40
    assert held(events(30, -1, 40, marks=((2, "policy.forward"),))) == 70


def test_peaks_are_of_the_last_step() -> None:
    recorded = events(50, -1, 20, -3, start=2, marks=((2, "empty_cache"),))
    assert held(recorded) == 20
    with pytest.raises(OutOfMemory):
        play(recorded, CachingAllocator(capacity=40 * MiB))


def test_on_a_card_it_holds_no_more_than_there_is() -> None:
    job = recipe(gpu="h100-80gb")
    allocated = max(build_ledger(job, detailed=False).totals())
    free = played(job, allocated, seek=True)
    assert not isinstance(free, Unplayed)
    assert free.on_card is None
    assert allocated <= free.needs < free.endless
    between = (free.needs + free.endless) // 2
    tight = played(job, allocated, Room(between, between))
    assert not isinstance(tight, Unplayed)
    assert (tight.needs, tight.sought) == (free.needs, True)
    assert tight.on_card is not None
    assert free.needs - 2 * MiB <= tight.on_card <= between
    assert tight.retries > 0
    roomy = played(job, allocated, Room(free.endless * 2, free.endless * 2))
    assert not isinstance(roomy, Unplayed)
    assert (roomy.on_card, roomy.needs, roomy.sought) == (free.endless, free.endless, False)
    short = played(job, allocated, Room(allocated // 2, allocated // 2))
    assert not isinstance(short, Unplayed)
    assert short.on_card is None


@pytest.mark.slow
def test_a_card_that_is_enough_is_not_refused_for_what_bisection_leaves() -> None:
    """Less than the figure of bisection is free, and the steps run in it."""
    job = recipe(gpu="h100-80gb", batch_size=12)
    allocated = max(build_ledger(job, detailed=False).totals())
    free, recorded = played(job, allocated, seek=True), step_events(job)
    assert not isinstance(free, Unplayed)
    assert recorded is not None
    card = free.needs - 4 * MiB
    assert runs(beginning(recorded, Settings()), card)
    found = played(job, allocated, Room(card, card))
    assert not isinstance(found, Unplayed)
    assert found.on_card is not None
    assert found.on_card <= found.needs == card


def test_a_share_of_the_card_is_all_there_is() -> None:
    job = recipe(gpu="h100-80gb", allocator={"per_process_memory_fraction": 0.01})
    found = played(job, max(build_ledger(job, detailed=False).totals()), Room(1 << 40, 1 << 40))
    assert not isinstance(found, Unplayed)
    assert found.on_card is None


def test_a_job_that_needs_more_than_its_share_does_not_fit() -> None:
    job = {**TINY, "gpu": "4090", "model": "llama-3.2-1b"}
    shares = [estimate(job | {"allocator": {"per_process_memory_fraction": part}}).verdict for part in (1, 0.5)]
    assert [share and share.fits for share in shares] == ["yes", "no"]


@pytest.mark.parametrize(
    "keys",
    [
        {"num_gpus": 2, "sharding": "zero3", "deepspeed": {"zero_quantized_weights": True}},
        {
            "model": "idefics2-8b",
            "images": {"per_example": 1, "width": 224, "height": 224},
            "num_gpus": 2,
            "sharding": "fsdp2",
        },
    ],
)
def test_what_is_not_played_says_so_and_keeps_the_band(keys: dict[str, Any]) -> None:
    found, band = (
        estimate({**TINY, "gpu": "80GiB", **keys}, play=play).per_gpu.reserved_bytes for play in (None, False)
    )
    assert not found.played
    assert found.why_not_played.startswith("its step is not played")
    assert (found.low, found.expected, found.high) == (band.low, band.expected, band.high)
    assert found.endless is None


@pytest.mark.slow
def test_adapters_under_fsdp1_are_played_where_nothing_is_cast() -> None:
    """A published run of PowerLM 3B on two A100s (IBM's fms-acceleration 876e2ed, a100_80gb_granite.csv row 12) held
    21.66 GiB, where a band said 19.43, and the play says 21.35."""
    model = {
        "model_type": "granite", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 40,
        "num_attention_heads": 36, "num_key_value_heads": 36, "vocab_size": 49152, "tie_word_embeddings": True,
        "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "logits_scaling": 9.0,
        "residual_multiplier": 0.22,
    }  # fmt: skip
    lora = {"r": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"], "dropout": 0.1}
    job: dict[str, Any] = {
        "model": model,
        "method": "sft",
        "trainer": "transformers",
        "trainer_version": "4.45",
        "lora": lora,
    }
    job |= {"precision": "bf16", "autocast": False, "gradient_checkpointing": "full", "attention": "flash"}
    job |= {"batch_size": 4, "sequence_length": 4096, "sharding": "fsdp", "num_gpus": 2, "gpu": "a100-80gb"}
    found = estimate(job).per_gpu
    assert found.reserved_bytes.played
    assert found.device_bytes.expected / GiB == pytest.approx(21.66, rel=0.02)


@pytest.mark.parametrize("sharding", ["none", "ddp", "fsdp", "fsdp2", "zero2", "zero3"])
def test_an_evaluation_is_played_behind_the_last_step(sharding: str) -> None:
    """Its batches are as large as its ledger says, and find a cache that the step has cut into pieces."""
    several = {"gpu": "80GiB", "trainer": "transformers", "sharding": sharding, "num_gpus": 1 + (sharding != "none")}
    without, small, large = (
        estimate({**TINY, **several, **keys}).per_gpu for keys in ({}, {"eval_batch_size": 1}, {"eval_batch_size": 32})
    )
    assert large.reserved_bytes.played
    assert large.allocated_bytes > small.allocated_bytes == without.allocated_bytes
    assert large.reserved_bytes.expected > large.allocated_bytes
    recorded = step_events(recipe(**several, eval_batch_size=32))
    assert recorded is not None
    assert recorded.peak == pytest.approx(large.allocated_bytes, rel=3e-3)


def test_bytes_that_a_play_misses_are_needed_too() -> None:
    job = recipe()
    peak = max(build_ledger(job, detailed=False).totals())
    whole, *missing = played(job, peak), played(job, peak + peak // 200), played(job, 2 * peak)
    assert not isinstance(whole, Unplayed)
    for found, beyond in zip(missing, (peak // 200, peak), strict=True):
        assert not isinstance(found, Unplayed)
        assert found.needs - whole.needs == found.endless - whole.endless >= beyond - peak // 1000


def test_a_play_above_the_ledger_is_not_taken() -> None:
    job = recipe()
    peak = max(build_ledger(job, detailed=False).totals())
    above = played(job, peak // 2)
    assert isinstance(above, Unplayed)
    assert above.peak == pytest.approx(peak, rel=0.001)


def test_the_verdict_leaves_room_for_what_a_play_has_more_than_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(above: int) -> Any:
        reached = Unplayed("another peak", above * GiB)
        monkeypatch.setattr("memplan.meters._played", lambda *_: reached)
        report = estimate({**TINY, "gpu": "40GiB"})
        assert report.verdict is not None
        return report.verdict.fits

    assert [verdict(above) for above in (0, 20, 60)] == ["yes", "yes", "tight"]


def test_the_verdict_is_of_what_is_needed() -> None:
    """Held, it would not fit with the margin: the allocator would hold all of the card."""
    free = estimate({**TINY, "gpu": "80GiB"}, play=True).per_gpu
    outside = free.device_bytes.high - free.reserved_bytes.high
    assert free.reserved_bytes.endless is not None
    card = int((free.reserved_bytes.needs_high + outside) / 0.95) + MiB
    assert free.reserved_bytes.endless + outside > 0.95 * card
    for size, fits in ((card, "yes"), (card - 8 * MiB, "tight"), (card // 2, "no")):
        found = estimate({**TINY, "gpu": f"{size / (1 << 30)}GiB"})
        assert found.verdict is not None
        assert found.verdict.fits == fits
        assert found.per_gpu.reserved_bytes.needs_sought


def test_low_expected_and_high_are_in_order() -> None:
    for keys in (
        {},
        {"lora": {"r": 8}},
        {"gradient_checkpointing": False},
        {"allocator": {"expandable_segments": True}},
    ):
        found = estimate({**TINY, **keys, "gpu": "h100-80gb"}, play=True).per_gpu
        reserved, device = found.reserved_bytes, found.device_bytes
        assert found.allocated_bytes <= reserved.needs <= reserved.expected
        assert found.allocated_range.low <= reserved.low <= reserved.expected <= reserved.high
        assert device.low <= device.expected <= device.high
        assert reserved.needs <= reserved.needs_high


def test_play_asks_for_the_least_that_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({**TINY, "gpu": "h100-80gb"}))
    run = runner_of(capsys)
    _, plain, _ = run("estimate", str(job))
    _, sought, _ = run("estimate", str(job), "--play")
    assert "not computed (--play does)" in " ".join(plain.split())
    assert "the job needs at least" in " ".join(sought.split())
    found = json.loads(run("estimate", str(job), "--play", "--json")[1])["per_gpu"]["reserved_bytes"]
    assert found["needs"] <= found["expected"] == found["endless"]
    assert (found["needs_sought"], found["played"], found["why_not_played"]) == (True, True, "")


@pytest.mark.slow
def test_a_quantised_base_under_fsdp1_may_take_its_place_twice() -> None:
    """Published runs hold more than the play, nobody knows of what: neither the verdict nor a search leaves it out."""
    keys = {"lora": {"r": 16}, "quantization": "nf4", "gradient_checkpointing": "full", "gpu": "a100-80gb"}
    job = {"model": "llama-3.1-8b", "method": "sft", "sharding": "fsdp", "num_gpus": 2, **keys}
    report = estimate(job)
    reserved, verdict = report.per_gpu.reserved_bytes, report.verdict
    assert reserved.played
    assert verdict is not None
    assert report.recipe is not None
    assert reserved.needs_high - reserved.needs > 2 * GiB  # half of the base's 4-bit weights, and more
    searched = peak(report.recipe, search=True).verdict
    assert searched is not None
    assert searched.missing_bytes >= verdict.missing_bytes


def test_a_loss_of_too_many_turns_is_not_played() -> None:
    """Log-probabilities are made row by row; a billion of rows fit nowhere, and are not gone through to say so."""
    rows = {"method": "rloo", "sequence_length": 32, "gpu": "t4"}
    assert step_events(recipe(**rows, batch_size=4)) is not None
    report = estimate({**TINY, **rows, "batch_size": 10**9})
    assert report.per_gpu.reserved_bytes.why_not_played == "its step is not played yet"
    assert report.verdict is not None
    assert report.verdict.fits == "no"


@pytest.mark.parametrize("keys", [{"lora": {"r": 16}}, {}, {"method": "dpo"}])
def test_checkpoints_that_wait_on_the_host_are_played_as_the_ledger_has_them(keys: dict[str, Any]) -> None:
    """The input that came back stays until the next one is read, and a leaf throughout."""
    found = recipe(trainer="trl", offload=["activations"], **keys)
    recorded = step_events(found)
    assert recorded is not None
    assert recorded.peak == max(build_ledger(found).totals())
    plain = recipe(trainer="trl", offload=["activations"], gradient_checkpointing="none", **keys)
    assert step_events(plain) is None


def test_a_growing_cache_of_generation_holds_many_times_its_bytes_and_is_given_back() -> None:
    """transformers' generate puts each layer's keys together anew for each token, in ever larger blocks."""
    job = TINY | {
        "method": "grpo", "trainer": "trl", "batch_size": 8, "gradient_accumulation_steps": 32, "gpu": "a100-80gb",
        "completion_length": 512, "rollout": {"engine": "hf"},
    }  # fmt: skip
    roomy, small, smooth = (
        estimate(job | more) for more in ({}, {"gpu": "8GiB"}, {"allocator": {"expandable_segments": True}})
    )
    held, expandable = roomy.per_gpu.reserved_bytes, smooth.per_gpu.reserved_bytes
    assert held.low < expandable.expected < held.expected / 3
    needs = small.per_gpu.reserved_bytes.needs
    assert needs is not None
    assert needs < 4 * GiB
    assert small.per_gpu.device_bytes.expected == pytest.approx(8 * GiB, rel=0.03)


@pytest.mark.parametrize(("gpu", "near"), [("80GB", False), ("3GB", True)])
def test_what_is_comfortable_is_the_same_whatever_is_sought(gpu: str, near: bool) -> None:
    """So it is played once: near the card's limit what fits, and what is needed, are two questions."""
    job = recipe(gpu=gpu, batch_size=4)
    asked = Room(job.hardware.gpu.usable_bytes if job.hardware.gpu else 0, (1 if near else 60) * GiB)
    fits, needs = (played(job, peak(job).allocated.expected, asked, seek) for seek in ("fits", False))
    assert not isinstance(fits, Unplayed)
    assert not isinstance(needs, Unplayed)
    assert (fits.near, needs.near, needs.sought) == (near, near, near)
    assert (fits == needs) is not near


def test_a_cache_that_is_emptied_is_so_behind_all_forwards_of_each_micro_step() -> None:
    """transformers 5.24 trainer.py, training_step: behind ``compute_loss``, before ``backward``."""
    keys: dict[str, Any] = {"method": "dpo", "reference": "resident", "gradient_accumulation_steps": 2}
    found = [step_events(recipe(**keys, empty_cache_steps=steps)) for steps in (None, 4, 1)]
    never, sometimes, always = [each for each in found if each is not None]
    assert sometimes.marks == never.marks
    assert always.events == never.events
    names = [name for at, name in always.marks if at >= always.start and name[:4] not in ("done", "step")]
    assert names == ["reference.forward", "policy.forward", "empty_cache", "policy.backward"] * 2


def test_a_trainer_that_empties_no_cache_is_told_so() -> None:
    assert any("played as never emptied" in each for each in estimate({**TINY, "empty_cache_steps": 4}).warnings)
    with pytest.raises(InvalidJob, match="verl has no such setting"):
        estimate({**TINY, "empty_cache_steps": 1, "trainer": "verl"})
