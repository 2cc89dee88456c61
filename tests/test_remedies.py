"""Proves that what ``estimate`` advises is true: the job with a remedy's changes has the very figures that it states,
the cheapest comes first, and nothing is advised that does not help or that could be left out."""

import random
from itertools import combinations
from typing import Any

import pytest
from any_jobs import ANY_JOB, TINY, Keys
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.api import estimate
from memplan.errors import InvalidJob
from memplan.meters import needed_of
from memplan.planner.moves import UNORDERED, Move, moves, together, training_moves
from memplan.planner.pricing import FREE, Pricing
from memplan.planner.tiers import SLOWEST
from memplan.remedies import GPU_COUNTS, on_counts
from memplan.report import Report
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, merged, normalise, read_job
from memplan.spec.reading import with_changes as read_with_changes
from memplan.tables.methods import METHODS

WIDE = {**TINY, "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000, "num_hidden_layers": 8}
JOBS = st.fixed_dictionaries(
    {
        "model": st.sampled_from([WIDE, {**WIDE, "tie_word_embeddings": True}, "qwen3-0.6b", "smollm2-135m"]),
        "method": st.sampled_from([name for name in METHODS if name not in ("distill", "generate")]),
        "gpu": st.sampled_from(["2GiB", "3GiB", "4GiB", "6GiB", "10GiB", "16GiB"]),
        "batch_size": st.sampled_from([1, 2, 6]),
        "sequence_length": st.sampled_from([256, 1024, 3000]),
    },
    optional={
        "num_gpus": st.sampled_from([2, 4]),
        "sharding": st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp2"]),
        "zero_stage": st.sampled_from([1, 2]),
        "gradient_accumulation_steps": st.sampled_from([2, 3]),
        "global_batch_size": st.just(24),
        "gradient_checkpointing": st.sampled_from(["none", "selective", "every:2", "full"]),
        "loss_head": st.sampled_from(["auto", "chunked"]),
        "optimizer": st.sampled_from(["adamw", "sgd", "lion", "adafactor"]),
        "optimizer_impl": st.sampled_from(["auto", "foreach"]),
        "attention": st.sampled_from(["sdpa", "eager"]),
        "padded": st.booleans(),
        "completion_length": st.just(200),
        "reference": st.sampled_from(["auto", "resident"]),
        "lora": st.just({"r": 8}),
        "precision": st.sampled_from(["auto", "bf16", "bf16-amp"]),
        "trainer": st.sampled_from(["pytorch", "transformers", "trl"]),
        "allocator": st.just({"expandable_segments": True}),
    },
)


def with_changes(job: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The job as a file, and the changes as options over it."""
    return merged(normalise(job)[0], normalise(changes)[0])


def assert_true(job: dict[str, Any], report: Report) -> None:
    """Every remedy is what ``estimate`` says of the changed job; and what fits by the band fits when played."""
    assert report.verdict is not None or not report.remedies
    for remedy in report.remedies:
        again = estimate(with_changes(job, remedy.changes))
        assert again.verdict is not None
        assert again.verdict.fits == "yes" or remedy.fits != "yes"
        assert again.per_gpu.allocated_bytes == remedy.allocated_bytes
        assert needed_of(again.verdict) == remedy.device_bytes
        assert again.host.bytes_per_node == remedy.host_bytes_per_node
        assert report.verdict is not None
        assert remedy.frees_bytes == needed_of(report.verdict) - remedy.device_bytes
        assert remedy.fits == "yes" or (len(report.remedies) == 1 and remedy.frees_bytes > 0)
        assert not remedy.alters_training or remedy.cost in ("numerics", "training", "cards", "data")
        assert remedy.relative_speed > 0
    slow = [remedy.relative_speed < 1 / SLOWEST for remedy in report.remedies]
    assert not any(slow[:1]) or len(slow) == sum(slow)
    assert slow == sorted(slow)
    order = [remedy.cost == "data" for remedy, late in zip(report.remedies, slow, strict=True) if not late]
    assert order == sorted(order)
    assert len({remedy.title for remedy in report.remedies}) == len(report.remedies) <= 3


@given(job=JOBS)
@examples(15)
@pytest.mark.slow
def test_the_changed_job_has_the_figures_that_are_stated(job: dict[str, Any]) -> None:
    try:
        report = estimate(job)
    except InvalidJob:
        assume(False)
        raise
    assert report.verdict is not None
    assume(report.verdict.fits != "yes")
    assert_true(job, report)


REAL: dict[str, dict[str, Any]] = {
    "a free change does": {"model": "qwen3-0.6b", "method": "sft", "sequence_length": 256, "gpu": "7.2GiB"},
    "too long": {"model": "qwen3-0.6b", "method": "sft", "gpu": "24GiB", "batch_size": 8},
    "a stage named": {"model": "llama-3.1-8b", "method": "sft", "gpu": "rtx-4090", "num_gpus": 8, "zero_stage": 1},
    "two together": {"model": "llama-3.1-8b", "method": "dpo", "gpu": "rtx-4090", "num_gpus": 8},
    "one card": {"model": "llama-3.1-8b", "method": "dpo", "gpu": "rtx-4090"},
    "an update": {"model": "llama-3.1-8b", "method": "ppo", "gpu": "rtx-4090", "batch_size": 2},
    "rollouts": {
        "model": "qwen3-0.6b",
        "method": "grpo",
        "gpu": "24GiB",
        "batch_size": 4,
        "rollout": {"group_size": 8, "prompt_length": 512, "completion_length": 2048},
    },
    "global batch": {
        "model": "qwen3-0.6b",
        "method": "simpo",
        "gpu": "12GiB",
        "batch_size": 4,
        "global_batch_size": 16,
    },
    "megatron": {
        "model": "llama-3.1-8b",
        "method": "sft",
        "gpu": "h100-80gb",
        "num_gpus": 8,
        "trainer": "megatron",
        "tensor_parallel": 2,
        "batch_size": 8,
        "sequence_length": 4096,
    },
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.slow
def test_nothing_of_a_remedy_can_be_left_out(name: str) -> None:
    job, report = REAL[name], estimate(REAL[name])
    assert report.remedies
    assert_true(job, report)
    for remedy in report.remedies:
        assert remedy.fits == "yes"
        for left in remedy.changes:
            if left == "gradient_accumulation_steps":
                continue
            changes = {key: value for key, value in remedy.changes.items() if key != left}
            if left == "batch_size":
                changes.pop("gradient_accumulation_steps", None)
            try:
                verdict = peak(resolve(read_job(with_changes(job, changes))), search=True).verdict
            except InvalidJob:
                continue
            assert verdict is not None
            assert verdict.fits != "yes", (remedy.title, left)


@pytest.mark.slow
def test_what_costs_nothing_comes_first() -> None:
    first = estimate(REAL["a free change does"]).remedies[0]
    assert (first.cost, first.relative_speed) == ("nothing", 1.0)


@pytest.mark.slow
def test_what_changes_the_training_is_marked() -> None:
    marks = {remedy.title: remedy.alters_training for remedy in estimate(REAL["two together"]).remedies}
    assert any(marks.values())
    assert all(
        marked == ("LoRA" in title or "8-bit" in title or "sequences" in title) for title, marked in marks.items()
    )


def test_a_job_that_fits_is_advised_nothing() -> None:
    assert not estimate({"model": "smollm2-135m", "method": "sft", "gpu": "b300"}).remedies


@pytest.mark.slow
def test_where_nothing_does_no_more_than_what_comes_nearest_is_said() -> None:
    nothing = {"model": "llama-3.1-405b", "method": "sft", "gpu": "h100-80gb", "num_gpus": 8, "trainer": "megatron"}
    for job in ({**nothing, "tensor_parallel": 8}, {"model": "qwen3-0.6b", "method": "sft", "gpu": "1GiB"}):
        report = estimate(job)
        assert len(report.remedies) <= 1
        assert all(remedy.fits == "no" and remedy.frees_bytes > 0 for remedy in report.remedies)


@pytest.mark.slow
def test_the_cheapest_single_change_is_that_of_brute_force() -> None:
    job = {"model": "qwen3-0.6b", "method": "sft", "gpu": "24GiB", "batch_size": 8, "gradient_accumulation_steps": 2}
    every: list[dict[str, Any]] = [{"gradient_checkpointing": how} for how in ("selective", "full")]
    every += [{"loss_head": head} for head in ("chunked", "fused")]
    every += [{"batch_size": size, "gradient_accumulation_steps": 16 // size} for size in (1, 2, 4)]
    free: dict[str, Any] = {"optimizer_impl": "fused", "attention": "flash", "allocator": {"expandable_segments": True}}
    from memplan.cost import speed

    fitting = {}
    for changes in every:
        recipe = resolve(read_job({**job, **changes, **free}))
        verdict = peak(recipe, search=True).verdict
        assert verdict is not None
        if verdict.fits == "yes":
            fitting[str(changes)] = speed(recipe).tokens_per_second
    first = estimate(job).remedies[0]
    assert fitting
    base = estimate(job).recipe
    assert base is not None
    best = max(fitting.values()) / speed(base).tokens_per_second
    assert first.relative_speed >= best - 0.015


@given(job=JOBS, seed=st.integers(0, 1000))
@examples(40)
def test_the_last_move_of_an_axis_holds_the_least(job: dict[str, Any], seed: int) -> None:
    """What the search rests on: where the last values of some axes do not make the job fit, no others of them do."""
    read = read_job(job)
    try:
        recipe = resolve(read)
    except InvalidJob:
        assume(False)
        raise
    axes: dict[str, list[Move]] = {}
    for move in moves(read.job, recipe):
        if move.axis not in UNORDERED:
            axes.setdefault(move.axis, []).append(move)
    random_ = random.Random(seed)
    for size in (1, 2, 3):
        for chosen in combinations(axes, size):
            last = [axes[axis][-1] for axis in chosen]
            other = [random_.choice(axes[axis]) for axis in chosen]
            sizes = [least(read, keys) for made in (last, other) if (keys := together(read.job, recipe, made))]
            assert None in sizes or len(sizes) < 2 or sizes[0] <= sizes[1], (last, other)  # type: ignore[operator]


def least(read: JobInput, keys: dict[str, Any]) -> int | None:
    """Device bytes with all that costs nothing; None where it cannot be."""
    try:
        changed = resolve(read_with_changes(read, keys))
    except InvalidJob:
        return None
    return peak(Pricing(FREE).variants(changed)[-1][1]).device.high


@given(
    keys=ANY_JOB,
    more=st.sampled_from(
        [{}, {"cluster": "dgx-h100"}, {"rollout": {"group_size": 12}}, {"deepspeed": {"mics_shard_size": 2}}]
    ),
)
@examples(60)
def test_a_job_on_more_gpus_is_the_recipe_of_that_many(keys: Keys, more: Keys) -> None:
    """Of which only the first is resolved, where the others hang on the number of ranks alone."""
    given_ = read_job({"sequence_length": 64} | keys | more)
    change = {"sharding": "zero3", "zero_stage": None, "precision": None, "global_batch_size": None}
    for count, found in zip(GPU_COUNTS, on_counts(given_, GPU_COUNTS), strict=True):
        try:
            resolved = resolve(read_with_changes(given_, change | {"num_gpus": count}))
        except InvalidJob:
            assert found is None
            continue
        assert found is not None
        assert found.varied({"provenance.job": resolved.provenance.job}) == resolved


@pytest.mark.slow
def test_shorter_sequences_say_what_they_cut() -> None:
    job = {"model": "qwen3-0.6b", "method": "sft", "gpu": "8GiB", "lora": {"r": 8}, "sequence_length": 16384,
           "gradient_checkpointing": "full", "loss_head": "fused", "allocator": {"expandable_segments": True},
           "lengths": {"p50": 2000, "p90": 8000, "max": 16384}}  # fmt: skip
    plain = {key: value for key, value in job.items() if key != "lengths"}
    for gpu in ("2.2GiB", "2.4GiB", "2.6GiB", "2.8GiB", "3GiB"):
        titles = [[each.title for each in estimate({**kind, "gpu": gpu}).remedies] for kind in (job, plain)]
        said = [next((title for title in each if title.startswith("sequences of")), "") for each in titles]
        if all(said):
            assert " % of sequences and " in said[0]
            assert "cuts" not in said[1]
            return
    pytest.fail("no card on which shorter sequences are a remedy")


@pytest.mark.slow
def test_where_only_shorter_sequences_do_the_first_keep_the_most_of_the_data() -> None:
    """One change alone would cut a sequence to a sixteenth; three more keep half of it."""
    job = {"model": "llama-3.1-8b", "method": "dpo", "trainer": "llamafactory", "gpu": "24GB", "lora": {"r": 16},
           "sequence_length": 4096, "batch_size": 2}  # fmt: skip
    longest, fewest = (each.changes for each in estimate(job).remedies[:2])
    assert longest["sequence_length"] == 2048 > fewest["sequence_length"]
    assert longest["quantization"] == "nf4"
    twice = {**job, **longest, "sequence_length": 4096, "completion_length": 4096}
    assert estimate(twice).verdict.fits != "yes"  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_scales_of_a_4_bit_base_are_quantised_before_sequences_are_cut() -> None:
    job = {"model": "llama-3.1-70b", "method": "sft", "trainer": "trl", "lora": {"r": 8}, "quantization": "nf4",
           "dtype": "bf16", "gpu": "46.5GiB", "sequence_length": 2048, "gradient_checkpointing": "full"}  # fmt: skip
    changes = [each.changes for each in estimate(job).remedies]
    assert {"quantization": "nf4-double"}.items() <= changes[0].items()
    assert "sequence_length" not in changes[0]


@pytest.mark.slow
def test_what_is_free_comes_before_what_is_not_and_length_last() -> None:
    remedies = estimate({"model": "llama-3.1-8b", "method": "dpo", "trainer": "trl", "gpu": "h100-80gb", "num_gpus": 4,
                         "sharding": "zero2", "batch_size": 4, "gradient_checkpointing": "none"}).remedies  # fmt: skip
    first, last = remedies[0], remedies[-1]
    assert not first.alters_training
    assert not {"offload", "num_gpus", "sequence_length", "lora"} & set(first.changes)
    assert len({tuple(sorted(each.changes)) for each in remedies}) == 3, last


@pytest.mark.slow
def test_the_base_of_lora_in_16_bit_is_free_and_first() -> None:
    """TRL loads fp32 where nothing is said: one line of a config is more than any offload."""
    job = {"model": "qwen3-8b", "method": "sft", "trainer": "trl", "gpu": "24GiB", "lora": {"r": 8},
           "gradient_checkpointing": "full", "sequence_length": 512}  # fmt: skip
    first = estimate(job).remedies[0]
    assert first.title.startswith("base weights in bf16")
    assert (first.changes["precision"], first.alters_training) == ("bf16", False)


def test_flash_attention_is_not_advised_where_it_does_not_run() -> None:
    """FlashAttention 2 has no kernels for cards before Ampere."""
    found = estimate({"model": "smollm2-135m", "method": "dpo", "batch_size": 2, "gpu": "t4"}).remedies
    assert found
    assert [each for each in found if "attention" in each.changes] == []


def test_8_bit_states_of_sharded_tensors_are_torchaos() -> None:
    """bitsandbytes takes no DTensors: under FSDP2 the change is torchao's optimizer, and it can be made."""
    job = {"model": "qwen3-0.6b", "method": "sft", "trainer": "trl", "num_gpus": 4, "gpu": "24GB"}
    for sharding, args in (("fsdp2", {"library": "torchao"}), ("zero2", None)):
        asked = read_job({**job, "sharding": sharding})
        move = next(each for each in training_moves(asked.job, resolve(asked)) if each.axis == "8bit")
        assert (move.keys["optimizer"], move.keys.get("optimizer_args")) == ("adamw-8bit", args)
        assert resolve(read_with_changes(asked, move.keys)).optimizer.row.name == "adamw-8bit"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full:4", "every:7", "full:2,keep-matmuls:20"])
def test_a_job_that_checkpoints_some_layers_is_advised_to_checkpoint_all(how: str) -> None:
    report = estimate({"model": "qwen3-0.6b", "method": "sft", "gpu": "8GB", "lora": {"r": 8}, "batch_size": 4,
                       "sequence_length": 2048, "gradient_checkpointing": how})  # fmt: skip
    assert report.verdict is not None
    assert report.verdict.fits == "no"
    said = [remedy.changes.get("gradient_checkpointing") for remedy in report.remedies]
    assert said
    assert set(said) <= {None, "full"}
