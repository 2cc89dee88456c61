"""Proves that jobs side by side say what their own reports say, against the right baseline, and why they differ."""

import json
from itertools import product
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import memplan
from memplan.api import compare, estimate
from memplan.cli.app import main
from memplan.cli.schemas import schema_of
from memplan.comparison.grid import applied, axis, known_key, placed, point_of, size_of
from memplan.comparison.result import Comparison, Move
from memplan.cost import speed
from memplan.errors import InvalidJob, UsageError
from memplan.render.compare_view import compare_blocks, compare_rows
from memplan.render.difference_view import over_layers
from memplan.render.text import plain
from memplan.units import format_bytes

SMALL = {"model": "smollm2-135m", "num_gpus": 4, "zero_stage": 2, "gpu": "t4"}


def found(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["compare", *arguments, "--json"]) == 0
    made: dict[str, object] = json.loads(capsys.readouterr().out)
    return made


@pytest.mark.slow
def test_a_grid_has_every_point_once_with_the_figures_of_its_own_estimate() -> None:
    comparison = compare(SMALL, vary={"batch_size": [1, 2], "method": ["sft", "dpo"]})
    assert comparison.baseline == "batch_size=1 method=sft"
    assert comparison.impossible == ()
    points = {(row.changes["batch_size"], row.changes["method"]): row for row in comparison.rows}
    assert set(points) == set(product((1, 2), ("sft", "dpo")))
    for (batch, method), row in points.items():
        alone = estimate({**SMALL, "batch_size": batch, "method": method})
        assert row.report.per_gpu.allocated_bytes == alone.per_gpu.allocated_bytes
        assert row.fits == (alone.verdict and alone.verdict.fits)
        assert row.saving == 1 - alone.per_gpu.allocated_bytes / comparison.base.report.per_gpu.allocated_bytes
    peaks = [row.report.per_gpu.allocated_bytes for row in comparison.rows]
    assert peaks == sorted(peaks)


def test_speeds_are_the_cost_models_where_every_row_has_a_card_and_passes_elsewhere() -> None:
    by_cost = compare(SMALL, vary={"gradient_checkpointing": ["none", "full"]})
    rates = {row.name: speed(row.report.recipe).tokens_per_second for row in by_cost.rows if row.report.recipe}
    assert by_cost.speed_from == "cost model"
    for row in by_cost.rows:
        assert row.relative_speed == round(rates[row.name] / rates[by_cost.baseline], 3)
    without = {key: value for key, value in SMALL.items() if key != "gpu"}
    by_passes = compare(without, vary={"gradient_checkpointing": ["none", "full"]})
    assert by_passes.speed_from == "passes"
    assert {row.relative_speed for row in by_passes.rows} == {1.0, 0.75}
    assert {row.tokens_per_second for row in by_passes.rows} == {None}


@pytest.mark.slow
def test_the_seven_strategies_are_priced_by_the_cost_model_too() -> None:
    comparison = compare(SMALL)
    assert comparison.speed_from == "cost model"
    twice = next(row for row in comparison.rows if row.name == "zero2-twice-the-gpus")
    assert twice.relative_speed is not None
    assert twice.relative_speed > 1.5
    assert comparison.difference is None


STRATEGY_JOBS = [
    {"model": "llama-3.1-8b", "method": "simpo", "gpu": card, "num_gpus": gpus}
    for card, gpus in (("rtx-4090", 1), ("rtx-4090", 4), ("a100-40gb", 4), ("h100-80gb", 8))
]


@pytest.mark.slow
@pytest.mark.parametrize("add", [(), "all"])
@pytest.mark.parametrize("job", STRATEGY_JOBS, ids=lambda job: f"{job['num_gpus']} {job['gpu']}")
def test_the_recommendation_is_one_of_the_rows_and_never_one_that_the_table_refuses(
    job: dict[str, object], add: str | tuple[()]
) -> None:
    comparison = compare(job, add=add)
    first, *rest = comparison.recommendation.splitlines()
    verdicts = {row.title: row.fits for row in comparison.rows}
    as_given = [row for row in comparison.rows if row.fits == "yes" and same_training(row.report.job, comparison)]
    if as_given:
        best = max(as_given, key=lambda row: (row.relative_speed or 0, -row.report.per_gpu.allocated_bytes))
        assert first.endswith(f": {best.title}.")
        assert rest == []
        return
    assert first.startswith("None of these")
    for line in rest:
        for title in line.partition(": ")[2].rstrip(".").split("; ") if "does: " in line else []:
            assert verdicts[title] == "yes"
    if "yes" not in verdicts.values():
        assert any(line.startswith("To look further") for line in rest)
        assert any("--all" in line for line in rest) == (add == ())


def same_training(job: dict[str, object], comparison: Comparison) -> bool:
    keys = ("num_gpus", "sequence_length", "lora", "quantization", "optimizer")
    return all(job.get(key) == comparison.base.report.job.get(key) for key in keys)


@pytest.mark.slow
def test_without_a_card_each_class_of_cards_is_held_against_the_rows() -> None:
    job = {"model": "llama-3.1-8b", "method": "simpo", "num_gpus": 4}
    lines = compare(job).recommendation.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "80 GB and more",
        "40 to 80 GB",
        "24 to 40 GB",
        "less than 24 GB",
    ]
    for line, card in zip(lines, ("a100-80gb", "a100-40gb", "rtx-4090", "t4"), strict=True):
        fitting = {row.title for row in compare({**job, "gpu": card}).rows if row.fits == "yes"}
        if "fastest of these that fits" in line:
            assert line.rpartition(": ")[2].rstrip(".") in fitting
        assert ("none of these fits" in line) == (not fitting)


def test_strategies_count_the_gpus_that_estimate_counts() -> None:
    job = {"model": "smollm2-135m", "method": "dpo", "trainer": "trl"}
    comparison = compare(job)
    rows = {row.name: row.report.job for row in comparison.rows}
    alone = estimate(job).job
    assert {job["num_gpus"] for name, job in rows.items() if name != "zero2-twice-the-gpus"} == {alone["num_gpus"]}
    assert rows["zero2-twice-the-gpus"]["num_gpus"] == 2 * alone["num_gpus"]
    assert rows["zero2-half-sequence"]["sequence_length"] == alone["sequence_length"] // 2
    assert any(text.startswith("num_gpus: 1 ") for text in comparison.assumptions)
    assert compare({**job, "num_gpus": 4}).assumptions == ()


def test_rows_that_cannot_be_are_told_and_the_others_stay() -> None:
    comparison = compare({"model": "smollm2-135m", "method": "sft"}, add="all")
    assert {row.name for row in comparison.impossible} == {"split-pairs"}
    assert {"lora", "qlora", "fused-loss", "fsdp2", "8bit-states"} < {row.name for row in comparison.rows}


PAIRS = [
    ({}, {"zero_stage": 3}),
    ({}, {"method": "dpo", "lora": {"r": 8}}),
    ({"gradient_checkpointing": "full"}, {"batch_size": 2}),
    ({}, {"model": "smollm2-360m"}),
    ({}, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_moves_between_two_jobs_add_up_to_the_difference_of_their_peaks(
    first: dict[str, object], second: dict[str, object]
) -> None:
    reports = [estimate({**SMALL, **own}) for own in (first, second)]
    difference = compare([{**SMALL, **first}, {**SMALL, **second}]).difference
    assert difference is not None
    peaks = [report.per_gpu.allocated_bytes for report in reports]
    for side, peak in zip(("before", "after"), peaks, strict=True):
        assert sum(getattr(move, side) for move in difference.moves) + difference.unchanged_bytes == peak
    assert all(move.before != move.after for move in difference.moves)
    given = {change.key.split(".")[0] for change in difference.changes if change.given}
    keys = {"sharding" if key == "zero_stage" else key for key in {**first, **second}}
    assert given == keys
    for change in difference.changes:
        outer, *inner = change.key.split(".")
        if not inner:
            assert (change.before, change.after) == tuple(report.job.get(outer) for report in reports)


def test_the_same_kind_of_row_in_several_layers_is_told_as_one() -> None:
    moves = [
        Move("activation, layers 1-30", "activations", 30, 0),
        Move("logits", "logits", 0, 20),
        Move("activation, layer 0", "activations", 1, 0),
        Move("activation, layer 0", "recomputation", 0, 2),
    ]
    assert over_layers(moves) == [
        Move("activation", "activations", 31, 0),
        Move("logits", "logits", 0, 20),
        Move("activation, layer 0", "recomputation", 0, 2),
    ]


def test_a_combination_that_cannot_be_is_listed_with_its_reason_and_the_rest_is_done() -> None:
    vary = {"tensor_parallel": [1, 3]}
    comparison = compare({"model": "smollm2-135m", "num_gpus": 4, "trainer": "megatron", "method": "sft"}, vary=vary)
    assert len(comparison.rows) == 1
    (wrong,) = comparison.impossible
    assert wrong.changes["tensor_parallel"] == 3
    assert "no multiple" in wrong.error
    assert wrong.title in plain(compare_blocks(comparison, 100), 100)
    assert compare_rows(comparison)[-1]["error"] == wrong.error


@pytest.mark.parametrize("width", [60, 100, 140])
@pytest.mark.parametrize("vary", [{"method": ["sft", "dpo"]}, {"batch_size": [1, 2, 4]}])
def test_a_view_has_every_peak_and_is_no_wider_than_the_screen(width: int, vary: dict[str, list[object]]) -> None:
    comparison = compare(SMALL, vary=vary)
    text = plain(compare_blocks(comparison, width), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(format_bytes(row.report.per_gpu.allocated_bytes, 1) in text for row in comparison.rows)
    assert ("What moved at the peak" in text) == (len(comparison.rows) == 2)


@pytest.mark.slow
def test_the_fastest_that_fits_is_named_only_among_ways_to_run_one_job() -> None:
    one_job = compare({**SMALL, "gpu": "rtx-4090-24gb"}, vary={"batch_size": [1, 64]})
    assert one_job.recommendation.endswith("batch_size 1.")
    assert compare(SMALL, vary={"method": ["sft", "dpo"]}).recommendation == ""


def names(comparison: dict[str, object]) -> set[str]:
    rows = comparison["rows"]
    assert isinstance(rows, list)
    return {row["name"] for row in rows}


@pytest.mark.slow
def test_models_methods_and_cards_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["smollm2-135m", "smollm2-360m", "--methods", "sft,dpo", "--gpus", "t4,a100-80gb", "--num-gpus", "2"]
    comparison = found(*arguments, capsys=capsys)
    models, methods, cards = ("smollm2-135m", "smollm2-360m"), ("sft", "dpo"), ("t4", "a100-80gb")
    expected = {f"{model} method={method} gpu={card}" for model, method, card in product(models, methods, cards)}
    assert names(comparison) == expected
    assert comparison["baseline"] == "smollm2-135m method=sft gpu=t4"
    rows = comparison["rows"]
    assert isinstance(rows, list)
    assert all(row["report"]["job"]["num_gpus"] == 2 for row in rows)


def test_nested_keys_and_values_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = found("smollm2-135m", "--vary", 'lora=null,{"r": 8, "dora": true}', capsys=capsys)
    assert names(comparison) == {"lora=null", 'lora={"dora": true, "r": 8}'}
    assert names(found("smollm2-135m", "--vary", "lora-r=4,8", "--gpus", "1,2", capsys=capsys)) == {
        f"lora.r={rank} num_gpus={gpus}" for rank in (4, 8) for gpus in (1, 2)
    }


def test_two_job_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path, stage in zip(paths, (2, 3), strict=True):
        path.write_text(f"model: smollm2-135m\nnum_gpus: 4\nzero_stage: {stage}\n", encoding="utf-8")
    comparison = found(*map(str, paths), capsys=capsys)
    assert comparison["baseline"] == str(paths[0])
    difference = comparison["difference"]
    assert isinstance(difference, dict)
    assert {"key": "sharding", "before": "zero2", "after": "zero3", "given": True} in difference["changes"]


WRONG = [
    (["smollm2-135m", "--vary", "batch_size"], "no key with values"),
    (["smollm2-135m", "--vary", "bathc_size=1,2"], "unknown key 'bathc_size'"),
    (["smollm2-135m", "--vary", "batch_size=1,1"], "twice"),
    (["smollm2-135m", "--vary", "batch_size=1,2", "--vary", "b=4"], "varied twice"),
    (["smollm2-135m", "--vary", "batch_size=1,2", "-b", "4"], "batch_size is given as 4, and varies"),
    (["smollm2-135m", "--vary", "lora.r=8,16", "--lora-r", "4"], "lora.r is given as 4"),
    (["smollm2-135m", "--vary", "lora.r=8,16", "--set", "lora.r=4"], "lora.r is given as 4"),
    (["smollm2-135m", "--vary", "gradient_checkpointing=none,full", "--recompute", "full"], "given as full"),
    (["smollm2-135m", "--vary", "learning_rate=1,2"], "no effect on memory"),
    (["smollm2-135m", "--vary", "zzzzzzzz=1,2"], "unknown key 'zzzzzzzz'"),
    (["smollm2-135m", "--vary", "model=smollm2-135m,smollm2-360m"], "model is given as smollm2-135m"),
    (["--methods", "sft,dpo"], "compare what?"),
    ([], "compare what?"),
    (["smollm2-135m", "--vary", "batch_size=0,1"], "batch_size"),
    (["smollm2-135m", "--vary", f"batch_size={','.join(map(str, range(1, 2100)))}"], "too many"),
    (["smollm2-135m", "--methods", "sft,dpp"], "'dpp'"),
    (["smollm2-135m", "--methods", "sft,"], "names nothing"),
    (["smollm2-135m", "--gpus", "t4,t44"], "no such card"),
    (["smollm2-135m", "--gpus", "t4", "--gpu", "t4"], "contradicts"),
    (["smollm2-135m", "--gpus", "2", "--num-gpus", "4"], "twice"),
    (["smollm2-135m", "smollm2-135m"], "twice"),
    (["smollm2-135m", "smollm2-360m", "--strategies", "mine.yaml"], "contradicts"),
    (["smollm2-135m", "--part", "1/2"], "goes with a sweep"),
    (["smollm2-135m", "--add", "lorra"], "no strategy 'lorra' to add"),
    (["smollm2-135m", "--add", "lora", "--all"], "--add contradicts --all"),
    (["smollm2-135m", "--all", "--methods", "sft,dpo"], "--all contradicts keys that vary"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_what_cannot_be_compared_is_said_in_two_lines(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    error, hint = told.err.splitlines()
    assert error.startswith("error: ")
    assert says in error
    assert hint.startswith("hint: ")


def test_a_model_that_is_not_there_is_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--vary", "model=smollm2-135m,no-such-model"]) == 3
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("vary", [{"tensor_parallel": [1, 3]}, {"lora": [None, {"r": 8}]}, {"batch_size": [1, 2, 3]}])
def test_the_json_is_what_its_schema_says(vary: dict[str, list[object]]) -> None:
    made = compare({"model": "smollm2-135m", "num_gpus": 4, "gpu": "t4", "method": "sft"}, vary=vary).to_dict()
    Draft202012Validator(schema_of("compare")).validate(json.loads(json.dumps(made)))
    assert set(made["rows"][0]) >= {"name", "changes", "report", "saving", "fits", "relative_speed"}


def test_points_of_a_grid_are_counted_with_the_last_axis_fastest() -> None:
    axes = [axis("b", [1, 2]), axis("lora-r", [4, 8, 16])]
    points = [point_of(axes, number) for number in range(size_of(axes))]
    assert points == [{"batch_size": size, "lora.r": rank} for size in (1, 2) for rank in (4, 8, 16)]


def test_a_point_goes_over_a_job_as_an_option_does() -> None:
    assert placed({"lora.r": 8, "lora": {"dropout": 0.1}, "megatron.a.b": 1}) == {
        "lora": {"r": 8, "dropout": 0.1},
        "megatron": {"a": {"b": 1}},
    }
    assert applied({"sharding": "zero2", "lora": {"r": 8}}, {"zero_stage": 3, "lora.alpha": 16}) == {
        "zero_stage": 3,
        "lora": {"r": 8, "alpha": 16},
    }
    assert applied({"lora": {"r": 8}, "batch_size": 1}, {"lora": None}) == {"batch_size": 1}


@pytest.mark.parametrize(
    ("key", "name"), [("max-length", "sequence_length"), ("lora_r", "lora.r"), ("tp", "tensor_parallel")]
)
def test_keys_go_by_their_other_names_too(key: str, name: str) -> None:
    assert known_key(key) == name


def test_the_public_names_stay_functions_once_their_packages_are_imported() -> None:
    for _ in range(2):
        assert isinstance(memplan.compare({"model": "smollm2-135m"}), Comparison)
        assert callable(memplan.plan)


def test_python_refuses_strategies_beside_a_grid() -> None:
    with pytest.raises(UsageError, match="strategies apply to one job"):
        compare(SMALL, strategies="mine.yaml", vary={"batch_size": [1, 2]})
    with pytest.raises(InvalidJob, match="the baseline, tensor_parallel 3"):
        compare({**SMALL, "trainer": "megatron", "method": "sft"}, vary={"tensor_parallel": [3, 1]})
    assert isinstance(compare([SMALL]), Comparison)
