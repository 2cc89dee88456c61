"""Proves what is drawn from lengths: the distributions that are given, rows packed of them, and what a run needs."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import Any

import pytest
from any_jobs import MODELS
from commands import Run, runner_of
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

import memplan
from memplan.api import as_input
from memplan.drawn import Lengths as Drawn
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.replay import StepEvents, repeated
from memplan.errors import InvalidJob
from memplan.frameworks.reading import read_target as read_files
from memplan.lengths import batches as made
from memplan.lengths import runs
from memplan.lengths.distribution import Sample, distribution, longest_of
from memplan.lengths.files import read_lengths
from memplan.lengths.longest import judged
from memplan.lengths.packing import (
    PACKED,
    Rows,
    balanced,
    best_fit,
    knapsack,
    multipack,
    packed,
    split_best_fit,
    token_budget,
    wrapped,
)
from memplan.lengths.runs import between, played, wilson
from memplan.report import Report
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.lengths import Lengths
from memplan.spec.reading import read_job, with_changes
from memplan.spec.recipe import Recipe

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)
BUDGETS = st.integers(20, 200)
PERCENTILES = {"p50": 40, "p90": 90, "p99": 190, "max": 400}
JOB: dict[str, Any] = {
    "model": MODELS["untied"],
    "method": "sft",
    "trainer": "trl",
    "batch_size": 4,
    "sequence_length": 256,
}


def drawn(lengths: Any = None, **keys: Any) -> Drawn:
    """What the report says of lengths."""
    found = memplan.estimate({**JOB, "lengths": {"played_steps": 0, **(lengths or PERCENTILES)}, **keys}).lengths
    assert found is not None
    return found


# -- what a job says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"packing": "bfd"}, "nothing says how long"),
        ({"p50": 4, "max": 9, "file": "x"}, "two ways"),
        ({"p50": 4, "mean": 5, "max": 9}, "two ways"),
        ({"file": "x", "max": 9}, "says itself"),
        ({"p50": 4}, "max is missing"),
        ({"mean": 4, "max": 9}, "sigma is missing"),
        ({"p50": 40, "p90": 30, "max": 50}, "40, 30, 50 do not ascend"),
        ({"mean": 40, "sigma": 4, "max": 30}, "do not ascend"),
        ({"p50": True, "max": 3}, "true is no number"),
        ({"p50": 1, "max": 3, "packing": "tight"}, "lengths.packing"),
        ({"p50": 1, "max": 3, "p98": 2}, "unknown key 'lengths.p98'"),
        ("p50=3,max=two", "lengths.max"),
        (7, "lengths"),
        ("{p50: 4}", "is no JSON"),
        ({"p50": 3, "max": 9, "steps": 100_000, "seeds": 1000}, "more than 1,000,000"),
    ],
)
def test_lengths_that_cannot_be_are_refused(said: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        read_job({"lengths": said})


def test_a_text_is_a_path_or_says_numbers() -> None:
    assert read_job({"lengths": "a/lengths.txt"}).job.lengths == Lengths(file="a/lengths.txt")
    assert read_job({"lengths": "p50=40, max=90"}).job.lengths == Lengths(p50=40, max=90)
    assert read_job({"lengths": '{"p50": 40, "max": 90}'}).job.lengths == Lengths(p50=40, max=90)


def test_an_option_replaces_the_form_of_a_file_and_keeps_how_rows_are_made() -> None:
    said = read_job({"lengths": "other.txt"}, {"lengths": {"p50": 40, "max": 90, "packing": "bfd"}}).job.lengths
    assert said == Lengths(file="other.txt", packing="bfd")


# -- distributions -----------------------------------------------------------------------------------------------------


def test_percentiles_are_met_and_nothing_is_longer_than_the_longest() -> None:
    found = distribution(Lengths(**PERCENTILES))
    assert [found.quantile(share) for share in (0.5, 0.9, 0.99, 1.0)] == [40, 90, 190, 400]
    assert found.at_least(190) == pytest.approx(0.01)
    assert (found.at_least(401), found.at_least(1)) == (0, 1)


def test_a_log_normal_has_the_moments_that_were_given() -> None:
    found, rng = distribution(Lengths(mean=300, sigma=120, max=5000)), Random(1)
    lengths = [found.quantile(rng.random()) for _ in range(20_000)]
    assert mean(lengths) == pytest.approx(300, rel=0.02)
    assert stdev(lengths) == pytest.approx(120, rel=0.04)
    assert max(lengths) <= 5000


@given(st.sampled_from([Lengths(**PERCENTILES), Lengths(mean=60, sigma=50, max=400)]), st.floats(0, 0.9999))
@examples(60)
def test_what_a_quantile_says_a_share_confirms(said: Lengths, share: float) -> None:
    found = distribution(said)
    length = found.quantile(share)
    assert found.at_least(length + 1) - 1e-9 <= 1 - share <= found.at_least(length - 1) + 1e-9


def test_the_longest_of_several_is_drawn_at_once() -> None:
    lengths, rng = Sample(range(1, 1001)), Random(3)
    at_once = mean(longest_of(lengths, 8, rng) for _ in range(4000))
    one_by_one = mean(max(lengths.quantile(rng.random()) for _ in range(8)) for _ in range(4000))
    assert at_once == pytest.approx(one_by_one, rel=0.01)
    assert one_by_one == pytest.approx(8 / 9 * 1000, rel=0.01)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lengths", "paired"),
    [
        ("3\n\n5\n0\n", [3, 5], False),
        (" [3, 5,\n 7]", [3, 5, 7], False),
        ('{"length": 4}\n6\n', [4, 6], False),
        ('{"prompt": 10, "chosen": 5, "rejected": 7}\n{"prompt": 1, "chosen": 9, "rejected": 2}', [17, 10], True),
        ('{"prompt": 10, "completion": 5}\n', [15], False),
        ('{"chosen": 5, "rejected": 7}\n3', [7, 3], False),
        ("\ufeff12\r\n13.0\r\n", [12, 13], False),
    ],
)
def test_files_of_lengths(tmp_path: Path, text: str, lengths: list[int], paired: bool) -> None:
    file = tmp_path / "lengths"
    file.write_bytes(text.encode())
    assert (list(read_lengths(str(file)).sequences), read_lengths(str(file)).paired) == (lengths, paired)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no lengths"),
        ("0\n0", "holds no lengths"),
        ("4\nfour\n", "line 2: 'four' is no length"),
        ("-3", "'-3' is no length"),
        ("3.5", "no whole number"),
        ("NaN", "is no length"),
        ("true", "is no length"),
        ("9" * 5000, "is no length"),
        ("[[3]]", "is no length"),
        ('{"tokens": 3}', "line 1: none of length"),
        ("[" * 9000, "is no length"),
        ("\x00\x01", "is no length"),
    ],
)
def test_a_line_that_is_no_length_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "lengths"
    file.write_text(text)
    with pytest.raises(InvalidJob, match=words):
        read_lengths(str(file))


# -- packing -----------------------------------------------------------------------------------------------------------


def check_rows(rows: Rows, placed: list[int], budget: int) -> None:
    """No row exceeds the budget or is empty, and every sequence is in one row."""
    assert all(0 < sum(row) <= budget for row in rows)
    assert Counter(length for row in rows for length in row) == Counter(placed)


@given(LENGTHS, BUDGETS)
@examples(80)
def test_no_row_exceeds_the_budget_and_every_token_is_placed_once(lengths: list[int], budget: int) -> None:
    cut = [min(each, budget) for each in lengths]
    check_rows(best_fit(lengths, budget), cut, budget)
    check_rows(knapsack(lengths, budget), cut, budget)
    check_rows(multipack(lengths, budget), [each for each in lengths if each <= budget], budget)
    for rows in (split_best_fit(lengths, budget), wrapped(lengths, budget)):
        assert sum(map(sum, rows)) == sum(lengths)
        assert all(0 < sum(row) <= budget for row in rows)


@given(LENGTHS, BUDGETS)
@examples(80)
def test_packing_opens_a_row_only_where_no_other_has_room(lengths: list[int], budget: int) -> None:
    cut = [min(each, budget) for each in lengths]
    for rows in (best_fit(lengths, budget), multipack(lengths, budget), knapsack(lengths, budget)):
        rooms = sorted(budget - sum(row) for row in rows)
        assert rooms[-2:-1] == [] or rooms[-2] < max(cut)
    half_full = [sum(row) for row in best_fit(lengths, budget)]
    assert sum(2 * each <= budget for each in half_full) <= 1


@given(LENGTHS, BUDGETS)
@examples(40)
def test_multipack_takes_the_first_row_with_room(lengths: list[int], budget: int) -> None:
    rows: Rows = []
    for length in (each for each in lengths if each <= budget):
        row = next((row for row in rows if sum(row) + length <= budget and len(row) < 200), None)
        if row is None:
            rows.append(row := [])
        row.append(length)
    assert multipack(lengths, budget) == rows


@pytest.mark.parametrize(
    ("pack", "rows"),
    [
        (best_fit, [[4], [3, 1], [2]]),
        (split_best_fit, [[4], [3, 1], [2, 1]]),
        (wrapped, [[4], [4], [3]]),
        (knapsack, [[4], [3, 1], [2]]),
        (multipack, [[2, 1], [3]]),
    ],
)
def test_packing_of_the_example_in_trl(pack: Any, rows: Rows) -> None:
    assert pack([5, 2, 3, 1], 4) == rows


def test_a_row_of_multipack_has_at_most_so_many_sequences() -> None:
    assert [len(row) for row in multipack([1] * 450, 1000)] == [200, 200, 50]


@given(LENGTHS, st.integers(300, 900))
@examples(60)
def test_a_token_budget_decides_the_number_of_micro_batches(lengths: list[int], budget: int) -> None:
    rows = token_budget(lengths, budget)
    assert Counter(each for row in rows for each in row) == Counter(lengths)
    assert len(rows) == min(len(lengths), -(-sum(lengths) // budget))


@given(LENGTHS, st.integers(1, 6))
@examples(60)
def test_balanced_rows_differ_by_no_more_than_the_longest(lengths: list[int], count: int) -> None:
    sums = [sum(row) for row in balanced(lengths, count, lambda length: length)]
    assert sum(sums) == sum(lengths)
    assert len(sums) == min(count, len(lengths))
    assert max(sums) - (min(sums) if len(sums) == count else 0) <= max(lengths)


def test_examples_are_packed_in_the_groups_that_map_hands_over() -> None:
    lengths = [3] * 1001
    assert packed("bfd", lengths, 4) == [3] * 1001
    assert len(packed("bfd", lengths, 6000)) == 2
    assert len(packed("multipack", lengths, 6000)) == -(-1001 // 200)
    assert set(PACKED) == {"bfd", "bfd-split", "wrapped", "multipack", "knapsack"}


# -- micro-batches -----------------------------------------------------------------------------------------------------


def batches_of(lengths: Any = None, can_mask: bool = True, **keys: Any) -> tuple[Recipe, made.Batches]:
    recipe = resolve(as_input({**JOB, **keys}))
    return recipe, made.batches(recipe, Lengths(**(lengths or PERCENTILES)), can_mask)


@pytest.mark.parametrize(
    ("keys", "draws"),
    [
        ({}, 4),
        ({"batch_size": 1}, 1),
        ({"method": "dpo"}, 8),
        ({"gradient_accumulation_steps": 3}, 12),
        ({"num_gpus": 8, "sharding": "fsdp2"}, 32),
    ],
)
def test_the_longest_of_every_row_of_every_rank_decides_a_step(keys: dict[str, Any], draws: int) -> None:
    assert batches_of(**keys)[1].draws == draws


def test_a_pair_of_a_file_is_one_draw(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": 10, "chosen": 5, "rejected": 7}\n' * 3)
    recipe, found = batches_of({"file": str(file)}, method="dpo")
    assert (recipe.rows, found.draws, found.micro_batches.quantile(0.5)) == (8, 4, 17)
    assert batches_of({"file": str(file)}, method="sft")[1].draws == 4


@pytest.mark.parametrize(
    ("keys", "lengths", "length", "fitted"),
    [
        ({}, {}, 100, 100),
        ({}, {}, 300, 256),
        ({"trainer": "llamafactory"}, {}, 100, 104),
        ({"trainer": "llamafactory"}, {"pad_to_multiple_of": 64}, 100, 128),
        ({"trainer": "pytorch"}, {"pad_to_multiple_of": 100}, 256, 300),
    ],
)
def test_rows_are_cut_and_padded(keys: dict[str, Any], lengths: dict[str, Any], length: int, fitted: int) -> None:
    assert batches_of({**PERCENTILES, **lengths}, **keys)[1].fit(length) == fitted


def test_a_mask_comes_with_several_rows_where_the_trainer_gives_one() -> None:
    assert batches_of()[1].changes(50) == {"sequence_length": 50, "completion_length": 50, "padded": True}
    assert "padded" not in batches_of(batch_size=1)[1].changes(50)
    assert "padded" not in batches_of(trainer="pytorch")[1].changes(50)
    assert "padded" not in batches_of(can_mask=False)[1].changes(50)


def test_who_says_that_nothing_is_padded_is_believed() -> None:
    masked, unmasked = drawn(attention="sdpa"), drawn(attention="sdpa", padded=False)
    assert "mask" in masked.batches
    assert "mask" not in unmasked.batches
    assert masked.worst.allocated_bytes > unmasked.worst.allocated_bytes


def test_grouping_by_length_leaves_the_longest_and_shortens_the_rest() -> None:
    plain, grouped = drawn(), drawn({**PERCENTILES, "group_by_length": True})
    assert grouped.worst.length == plain.worst.length
    assert grouped.p50.length < 0.8 * plain.p50.length


@pytest.mark.slow
def test_a_packed_batch_is_nearly_full_and_one_row() -> None:
    found = batches_of({**PERCENTILES, "packing": "bfd"}, attention="sdpa", padded=True)[1]
    assert 0.9 * 4 * 256 < found.micro_batches.quantile(0.5) <= found.micro_batches.quantile(1) <= 4 * 256
    assert found.changes(1000) | {"completion_length": None} == {
        "batch_size": 1,
        "sequence_length": 1000,
        "completion_length": None,
        "global_batch_size": None,
        "gradient_accumulation_steps": 1,
    }
    assert drawn({**PERCENTILES, "packing": "bfd"}, attention="sdpa", padded=True).worst.rows == 1
    assert drawn({**PERCENTILES, "packing": "bfd"}, attention="flash").worst.rows == 4


@pytest.mark.parametrize("packing", ["wrapped", "knapsack"])
def test_rows_that_are_filled_up_are_what_the_estimate_is_of(packing: str) -> None:
    report = memplan.estimate({**JOB, "lengths": {**PERCENTILES, "packing": packing, "played_steps": 0}})
    assert report.lengths is not None
    assert report.lengths.p50.allocated_bytes == report.lengths.worst.allocated_bytes == report.per_gpu.allocated_bytes


def with_budget(tokens: int, **keys: Any) -> made.Batches:
    """Micro-batches of a job that says a token budget."""
    recipe = resolve(as_input({**JOB, "batch_size": 1, **keys}))
    job = recipe.provenance.job | {"token_budget": tokens, "global_batch_size": keys.get("global_batch_size")}
    recipe = recipe._replace(provenance=recipe.provenance._replace(job=job))
    return made.batches(recipe, Lengths(**PERCENTILES), True)


def test_a_token_budget_of_verl_is_filled_with_the_sequences_of_a_step() -> None:
    few, many = (with_budget(1000, trainer="verl", global_batch_size=size) for size in (4, 64))
    assert few.micro_batches.quantile(0.5) < 0.4 * 1000 < 0.8 * 1000 < many.micro_batches.quantile(0.5)
    assert many.micro_batches.quantile(1) < 1.1 * 1000
    assert many.changes(900) == {"token_budget": 900, "sequence_length": 256}
    assert many.changes(90) == {"token_budget": 90, "sequence_length": 90}


@pytest.mark.parametrize("keys", [{"trainer": "verl"}, {"trainer": "slime", "global_batch_size": 8}])
def test_a_token_budget_of_which_little_is_known_is_full(keys: dict[str, Any]) -> None:
    found = with_budget(256, **keys)
    assert (found.micro_batches.quantile(0), found.changes(256)) == (256, {})
    assert "every one is full" in found.note


@pytest.mark.parametrize(
    "keys",
    [
        {"lengths": {"group_by_length": True}, "gradient_accumulation_steps": 10**9},
        {"lengths": {"group_by_length": True}, "num_gpus": 100_000, "batch_size": 64},
        {"lengths": {"packing": "bfd"}, "batch_size": 10**6},
        {"lengths": {"packing": "bfd-split", "max": 10**8, "p90": 10**7}, "sequence_length": 2},
        {"lengths": {"packing": "multipack", "max": 10**8}, "sequence_length": 10**8},
    ],
)
def test_what_is_drawn_is_bounded(keys: dict[str, Any]) -> None:
    lengths = {**PERCENTILES, "p99": None, **keys["lengths"]}
    found = batches_of(lengths, **{key: value for key, value in keys.items() if key != "lengths"})[1]
    assert found.fit(found.micro_batches.quantile(0.99)) > 0


def test_preference_pairs_are_not_packed() -> None:
    with pytest.raises(InvalidJob, match="dpo packs no sequences"):
        drawn({**PERCENTILES, "packing": "bfd"}, method="dpo")


def test_a_trainer_that_nobody_has_read_is_taken_at_its_longest() -> None:
    found = drawn(trainer="verl", method="sft")
    assert found.p50.length == 256
    assert found.notes == ("how verl makes micro-batches is not drawn: every row is 256 tokens long",)


def test_prompts_and_completions_that_are_padded_apart_are_said_to_be() -> None:
    found = drawn(method="grpo", rollout={"prompt_length": 64, "completion_length": 192})
    assert "each apart" in found.notes[0]
    assert found.p50.length < found.worst.length == 256


# -- files of frameworks ----------------------------------------------------------------------------------------------

TRL = "model_name_or_path: llama-3.2-1b\nmax_length: 1000\nper_device_train_batch_size: 2\nloss_type: nll\n"
AXOLOTL = "base_model: llama-3.2-1b\nsequence_len: 1000\nmicro_batch_size: 2\nsample_packing: true\nadapter: lora\n"
FACTORY = "model_name_or_path: llama-3.2-1b\nstage: sft\ncutoff_len: 1000\nfinetuning_type: lora\n"


@pytest.mark.parametrize(
    ("framework", "text", "found"),
    [
        ("trl", TRL, {}),
        ("trl", TRL + "packing: true\n", {"packing": "bfd"}),
        ("trl", TRL + "packing: true\npacking_strategy: bfd_split\n", {"packing": "bfd-split"}),
        (
            "trl",
            TRL + "group_by_length: true\npad_to_multiple_of: 8\n",
            {"group_by_length": True, "pad_to_multiple_of": 8},
        ),
        ("trl", TRL + "train_sampling_strategy: group_by_length\n", {"group_by_length": True}),
        ("axolotl", AXOLOTL, {"packing": "multipack", "pad_to_multiple_of": 1024}),
        ("axolotl", AXOLOTL + "pad_to_sequence_len: false\n", {"packing": "multipack", "pad_to_multiple_of": 1}),
        ("llamafactory", FACTORY + "neat_packing: true\n", {"packing": "knapsack"}),
        ("llamafactory", FACTORY.replace("sft", "dpo") + "packing: true\n", {}),
    ],
)
def test_a_file_of_a_framework_says_how_rows_are_made(
    tmp_path: Path, framework: str, text: str, found: dict[str, Any]
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(text)
    options = {"lengths": {"p50": 300, "max": 2000}, **({"method": "sft"} if framework == "trl" else {})}
    assert read_files(str(file), options, framework=framework).job.lengths == Lengths(p50=300, max=2000, **found)
    assert read_files(str(file), {"method": "sft"}, framework=framework).job.lengths is None


def test_a_strategy_that_nobody_knows_is_said(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(TRL + "packing: true\npacking_strategy: tetris\n")
    given = read_files(str(file), {"lengths": "p50=9,max=99", "method": "sft"}, framework="trl")
    assert [each.key for each in given.unread] == ["packing_strategy"]


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_without_a_card_has_figures_and_no_verdict() -> None:
    found = drawn()
    assert found.p50.allocated_bytes < found.p99.allocated_bytes <= found.worst.allocated_bytes
    assert (found.p_oom, found.fatal_length, found.played) == (None, None, None)
    assert found.cut_share == pytest.approx(0.006, abs=0.001)


def test_figures_of_a_drawn_step_are_the_estimate_of_its_shape() -> None:
    step = drawn().p50
    same = memplan.estimate({**JOB, "sequence_length": step.length, "padded": True})
    assert (step.rows, step.allocated_bytes) == (4, same.per_gpu.allocated_bytes)
    assert step.device_bytes == same.per_gpu.device_bytes.expected


WIDE: dict[str, Any] = {"model": {**MODELS["untied"], "hidden_size": 1024, "vocab_size": 200_000}}
WIDE |= {"trainer": "transformers", "lora": {"r": 8}}


def report_of(length: int, gpu: str = "80GB", **keys: Any) -> Report:
    """The job with every row so long."""
    return memplan.estimate({**JOB, **WIDE, **keys, "padded": True, "sequence_length": length, "gpu": gpu})


def card_for(length: int, **keys: Any) -> str:
    """A card on which rows of this length fit, and much longer ones do not."""
    per_gpu = memplan.estimate(
        {**JOB, **WIDE, **keys, "padded": True, "sequence_length": length, "gpu": "80GB"}, play=True
    ).per_gpu
    outside = per_gpu.device_bytes.expected - per_gpu.reserved_bytes.expected
    return f"{(per_gpu.reserved_bytes.needs + outside) / 1024:.1f}KiB"


@pytest.mark.slow
@pytest.mark.parametrize("length", [60, 150, 220])
@pytest.mark.parametrize(
    ("keys", "near"),
    [({}, 256 // 128), ({"num_gpus": 2, "sharding": "zero3", "deepspeed": {"zero_quantized_weights": True}}, 1)],
)
def test_the_length_that_kills_a_run_is_found(length: int, keys: dict[str, Any], near: int) -> None:
    card = card_for(length, **keys)
    fatal = drawn(gpu=card, **WIDE, **keys).fatal_length
    assert fatal is not None
    fits = [report.verdict for report in (report_of(each, card, **keys) for each in (fatal - near, fatal))]
    assert [each is not None and each.fits for each in fits] == ["tight", "no"]


@pytest.mark.slow
def test_the_share_of_the_data_that_kills_is_that_of_its_lengths() -> None:
    found = drawn(gpu=card_for(150), **WIDE)
    assert found.fatal_length is not None
    assert found.fatal_share == pytest.approx(distribution(Lengths(**PERCENTILES)).at_least(found.fatal_length))


@pytest.mark.slow
def test_the_share_of_runs_that_die_is_what_the_distribution_says() -> None:
    found = drawn({**PERCENTILES, "seeds": 400, "steps": 3}, gpu=card_for(200), **WIDE)
    assert found.fatal_share is not None
    expected = 1 - (1 - found.fatal_share) ** (3 * 4)
    assert found.p_oom_low is not None
    assert found.p_oom_high is not None
    assert found.p_oom_low <= expected <= found.p_oom_high


@pytest.mark.parametrize(
    ("died", "runs", "low", "high"), [(0, 100, 0, 0.037), (5, 100, 0.0215, 0.1118), (100, 100, 0.963, 1)]
)
def test_wilsons_interval(died: int, runs: int, low: float, high: float) -> None:
    share, *interval = wilson(died, runs)
    assert share == died / runs
    assert interval == pytest.approx([low, high], abs=0.0005)


@pytest.mark.slow
@given(
    st.sampled_from(["pytorch", "transformers", "trl", "llamafactory"]),
    st.sampled_from(["sft", "dpo", "kto"]),
    st.sampled_from(["full", "none"]),
    st.sampled_from(["sdpa", "flash", "eager"]),
    st.booleans(),
    st.integers(16, 2000),
    st.integers(1, 300),
)
@examples(60, deadline=None)
def test_peaks_grow_with_the_length(
    trainer: str, method: str, again: str, attention: str, padded: bool, length: int, more: int
) -> None:
    keys = {"trainer": trainer, "method": method, "gradient_checkpointing": again, "attention": attention}
    job = as_input({**JOB, **keys, "padded": padded})
    try:
        short, long = (peak(resolve(with_changes(job, {"sequence_length": n}))) for n in (length, length + more))
    except InvalidJob:
        return
    assert short.allocated.expected <= long.allocated.expected
    assert short.device.expected <= long.device.expected


# -- the allocator -----------------------------------------------------------------------------------------------------


def at(length: int) -> Recipe:
    return resolve(as_input({**JOB, "trainer": "transformers", "sequence_length": length, "attention": "flash"}))


def test_events_between_two_recorded_steps_are_those_of_the_step_between() -> None:
    low, middle, high = (repeated(found) for found in map(step_events, map(at, (64, 112, 256))) if found)
    assert low is not None
    assert middle is not None
    assert high is not None
    found = between(low, high, (112 - 64) / (256 - 64))
    assert found is not None
    differences = [abs(x) - abs(y) for (_, x), (_, y) in zip(found.events, middle.events, strict=True)]
    assert all(-512 <= each <= 512 for each in differences)
    assert sum(each == 0 for each in differences) > 0.9 * len(differences)


def test_steps_that_make_other_tensors_have_nothing_between_them() -> None:
    one, two = StepEvents(((1, 8), (1, -8)), 0), StepEvents(((1, 9), (2, 9)), 0)
    assert between(one, two, 0.5) is None
    assert between(one, StepEvents(((1, 8), (1, -8), (2, 8), (2, -8)), 0), 0.5) is None


@pytest.mark.parametrize(
    ("events", "step"),
    [
        (((0, 8), (1, 4), (2, 3), (2, -3), (1, -4)), ((2, 3), (2, -3))),
        (((0, 8), (9, 1), (1, 4), (2, 3), (1, -4), (2, -3), (0, -8)), ((1, 4), (2, 3), (1, -4), (2, -3))),
        (((0, 8), (9, 1), (1, 4), (9, -1), (1, -4)), None),
        (((0, 8), (9, 1), (1, 4)), None),
    ],
)
def test_a_step_is_repeated_that_ends_what_it_makes_and_nothing_else(events: Any, step: Any) -> None:
    found = repeated(StepEvents(events, 2))
    assert (found and found.events) == step


def test_equal_steps_hold_no_more_with_time_and_changing_ones_do() -> None:
    equal, _ = played(at, [200] * 12)
    changing, _ = played(at, [200, 40, 170, 90, 250, 30, 220, 130, 60, 240, 110, 255])
    assert equal is not None
    assert changing is not None
    assert len(set(equal.reserved_bytes[1:])) == 1
    assert changing.reserved_bytes[-1] > changing.reserved_bytes[0]
    assert (equal.steps, changing.steps, changing.died) == (12, 12, False)


@pytest.mark.slow
def test_a_step_without_room_ends_the_run() -> None:
    found = drawn({**PERCENTILES, "played_steps": 20}, gpu=card_for(60), **WIDE)
    assert found.played is not None
    assert found.played.died
    assert found.played.steps < 20


def test_what_is_not_played_says_so() -> None:
    found = drawn(
        {**PERCENTILES, "played_steps": 5},
        trainer="transformers",
        num_gpus=2,
        sharding="zero3",
        deepspeed={"zero_quantized_weights": True},
    )
    assert found.played is None
    assert "not played" in found.unplayed


def test_a_play_that_is_of_another_step_than_the_ledger_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(recipe: Recipe) -> StepEvents:
        found = step_events(recipe)
        assert found is not None
        return found._replace(events=tuple((number, 2 * size) for number, size in found.events))

    assert played(at, [200, 100])[0] is not None
    monkeypatch.setattr(runs, "step_events", doubled)
    assert played(at, [200, 100]) == (None, runs.UNPLAYED)


# -- the report --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys, "estimate", "llama-3.2-1b", "--method", "sft", "--gpu", "24GB")


@pytest.mark.slow
def test_the_report_shows_what_the_lengths_make_of_it(run: Run) -> None:
    code, out, err = run("-b", "2", "--lengths", "p50=500,p90=900,max=2000", "--set", "lengths.played_steps=4")
    assert (code, err) == (0, "")
    assert "The lengths that come" in out
    assert "worst" in out
    assert "reserved after the first step" in " ".join(out.split())


@pytest.mark.slow
def test_without_lengths_the_longest_is_assumed_and_said(run: Run) -> None:
    assumed = [each for each in json.loads(run("--json")[1])["assumptions"] if each.startswith("lengths:")]
    said = "every sequence is taken as the longest allowed, 2,048 tokens; --lengths draws real ones"
    assert assumed == [f"lengths: {said}"]
    report = json.loads(run("--json", "--lengths", "p50=500,max=900", "--set", "lengths.played_steps=0")[1])
    assert not [each for each in report["assumptions"] if each.startswith("lengths:")]
    assert report["lengths"]["runs"] == 100


@pytest.mark.parametrize(
    ("keys", "lengths", "longest"),
    [
        ({}, PERCENTILES, 256),
        ({}, PERCENTILES | {"max": 200}, 200),
        ({"trainer": "llamafactory"}, PERCENTILES | {"max": 201}, 208),
        ({}, PERCENTILES | {"max": 200, "packing": "bfd"}, 256),
        ({"trainer": "verl"}, PERCENTILES | {"max": 200}, 256),
    ],
    ids=["cut", "shorter", "padded to 8", "packed", "rows of one length"],
)
def test_the_estimate_is_of_the_longest_row_that_comes(keys: Any, lengths: Any, longest: int) -> None:
    job = {**JOB, **keys}
    found = memplan.estimate({**job, "lengths": {"played_steps": 0, **lengths}})
    alone = memplan.estimate({**job, "sequence_length": longest})
    assert found.to_dict()["per_gpu"] == alone.to_dict()["per_gpu"]


@pytest.mark.slow
def test_jobs_that_are_compared_or_planned_are_drawn_too() -> None:
    job = {**JOB, "gpu": "2GB", "lengths": PERCENTILES}
    rows = memplan.compare(job, vary={"batch_size": [1, 4096]}).rows
    dying = {row.changes["batch_size"]: row.report.lengths and row.report.lengths.p_oom for row in rows}
    assert dying == {1: 0.0, 4096: 1.0}
    best = memplan.plan({**job, "gpu": "24GB"}).plans[0]
    assert best.report.lengths is not None
    assert best.report.lengths.p_oom == 0


@pytest.mark.parametrize(("p_oom", "died", "fits"), [(0.0, False, "yes"), (0.02, False, "no"), (0.0, True, "tight")])
def test_a_run_that_dies_is_no_yes(p_oom: float, died: bool, fits: str) -> None:
    report = memplan.estimate({**JOB, "gpu": "24GB", "lengths": {**PERCENTILES, "played_steps": 2}})
    assert report.lengths is not None
    assert report.lengths.played is not None
    run = replace(report.lengths.played, died=died)
    verdict = judged(report, replace(report.lengths, p_oom=p_oom, played=run))
    assert verdict is not None
    assert (verdict.fits, verdict.missing_bytes > 0) == (fits, fits != "yes")


def test_a_file_that_is_not_there_is_one_line(run: Run) -> None:
    assert run("--lengths", "nowhere.txt") == (
        2,
        "",
        "error: lengths: no such file: nowhere.txt\nhint: name a file of lengths; memplan lengths makes one\n",
    )
