"""Proves the table of shares that an engine could have: its ends are ends, each row is what estimate says of the job
with that share, and a job that no engine generates for has none.
"""

from typing import Any

import pytest

from memplan.api import estimate
from memplan.cli.app import main
from memplan.generated import Share

JOB: dict[str, Any] = {
    "model": "qwen2.5-7b",
    "method": "grpo",
    "trainer": "trl",
    "sharding": "zero3",
    "gpu": "h100-80gb",
    "num_gpus": 8,
    "gradient_accumulation_steps": 128,
    "rollout": {
        "engine": "vllm",
        "group_size": 8,
        "prompt_length": 512,
        "completion_length": 1536,
        "max_model_len": 2048,
        "sleep": "2",
    },
}
BETTER = ("no", "tight", "yes")


def job(**rollout: Any) -> dict[str, Any]:
    """The job with other keys in its rollout."""
    return {**JOB, "rollout": {**JOB["rollout"], **rollout}}


def fits(**rollout: Any) -> str:
    """The verdict of the job with these."""
    verdict = estimate(job(**rollout)).verdict
    assert verdict is not None
    return verdict.fits


def named(rows: Any) -> dict[str, Share]:
    """Rows by what they are."""
    return {why: row for row in rows for why in row.why}


@pytest.mark.slow
def test_each_end_of_the_table_is_one() -> None:
    rows = tuple(estimate(job()).shares)
    found = named(rows)
    assert [row.share for row in rows] == sorted(row.share for row in rows)
    least, every, largest = found["least"], found["every-sequence"], found["largest"]
    assert least.share < every.share <= largest.share
    assert fits(gpu_memory_utilization=largest.share) == "yes"
    assert fits(gpu_memory_utilization=round(largest.share + 0.01, 2)) != "yes"
    started = estimate(job(gpu_memory_utilization=least.share)).engine
    assert started is not None
    assert started.starts
    below = estimate(job(gpu_memory_utilization=round(least.share - 0.01, 2)))
    assert below.engine is not None
    assert below.engine.may_fail or not below.engine.starts
    assert fits(gpu_memory_utilization=round(least.share - 0.01, 2)) != "yes", "by less than a profile run may be off"
    assert fits(gpu_memory_utilization=round(least.share - 0.05, 2)) == "no"


@pytest.mark.slow
def test_rows_are_what_estimate_says() -> None:
    for row in estimate(job()).shares:
        report = estimate(job(gpu_memory_utilization=row.share))
        assert report.engine is not None
        assert report.verdict is not None
        assert (row.kv_bytes, row.kv_tokens) == (report.engine.kv_bytes, report.engine.kv_tokens)
        assert row.fits == report.verdict.fits


@pytest.mark.slow
def test_a_row_is_never_kinder_than_estimate() -> None:
    """Of a step that is played estimate knows more than a search."""
    verl = {**JOB, "trainer": "verl", "sharding": "fsdp2"}
    for row in estimate(verl).shares:
        verdict = estimate({**verl, "rollout": {**verl["rollout"], "gpu_memory_utilization": row.share}}).verdict
        assert verdict is not None
        assert BETTER.index(row.fits) <= BETTER.index(verdict.fits)


@pytest.mark.slow
def test_a_cache_that_holds_fewer_than_run_preempts_and_is_slower() -> None:
    rows = tuple(estimate(job()).shares)
    every = named(rows)["every-sequence"]
    for row in rows:
        assert row.wanted == 128
        assert row.preempts == (row.held < 128) == (row.share < every.share)
    times = [row.generation_seconds for row in rows]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]
    assert all(row.generation_seconds == every.generation_seconds for row in rows if row.share >= every.share)


@pytest.mark.slow
def test_the_jobs_own_share_is_there_whatever_it_comes_to() -> None:
    rows = named(estimate(job(gpu_memory_utilization=0.05)).shares)
    assert (rows["own"].share, rows["own"].starts, rows["own"].generation_seconds) == (0.05, False, 0.0)
    assert named(estimate(job(gpu_memory_utilization=0.97)).shares)["own"].fits == "no"


@pytest.mark.slow
@pytest.mark.parametrize(
    "of",
    [
        {"model": "qwen2.5-7b", "gpu": "h100-80gb"},
        {**JOB, "rollout": {}},
        {**JOB, "gpu": None},
        {**JOB, "rollout": {**JOB["rollout"], "kv_cache_memory": "20GiB"}},
    ],
    ids=["sft", "transformers generates", "no card", "a cache of given size"],
)
def test_no_table_where_no_share_is_taken(of: dict[str, Any]) -> None:
    assert tuple(estimate({key: value for key, value in of.items() if value is not None}).shares) == ()


@pytest.mark.slow
def test_sglang_has_its_own_key_and_what_is_free_beside_the_trainer() -> None:
    rows = tuple(estimate(job(engine="sglang", mem_fraction_static=0.4, sleep="none")).shares)
    apart = tuple(
        estimate(job(engine="sglang", mem_fraction_static=0.4, placement="separate", num_gpus=8, sleep="none")).shares
    )
    assert named(rows)["own"].kv_tokens < named(apart)["own"].kv_tokens


def test_the_command_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = [f"--set=rollout.{key}={value}" for key, value in JOB["rollout"].items()]
    main(
        [
            "estimate",
            "qwen2.5-7b",
            "--method",
            "grpo",
            "--trainer",
            "verl",
            "--gpu",
            "h100-80gb",
            "--num-gpus",
            "8",
            *rollout,
        ]
    )
    told = capsys.readouterr().out
    assert "The engine's share of its card, beside the trainer" in told
    assert "the least that starts" in told
    assert "the largest that fits" in told
