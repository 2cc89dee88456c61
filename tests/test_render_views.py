"""Views of real reports: what a person must find in them, at every width."""

import json
import re
from functools import cache
from typing import Any

import pytest

from memplan.api import compare, estimate
from memplan.cli.app import main
from memplan.render import instants, words
from memplan.render.catalogue import LISTS, SHOWN, list_table
from memplan.render.compare_view import GROUPS, compare_blocks, grouped
from memplan.render.estimate_view import defaulted, estimate_blocks, percent
from memplan.render.ledger_view import ledger_blocks, term_blocks
from memplan.render.plan_view import together
from memplan.render.text import plain
from memplan.render.thumb_view import largest_by_category, reason, thumb_blocks
from memplan.report import Report
from memplan.tables.terms import TERMS
from memplan.units import format_bytes

JOBS: dict[str, dict[str, Any]] = {
    "plain": {"model": "smollm2-135m"},
    "too large": {"model": "llama-3.1-8b", "method": "dpo", "num_gpus": 4, "gpu": "rtx-4090"},
    "fits": {"model": "smollm2-135m", "method": "simpo", "gpu": "h100-80gb", "optimizer_impl": "fused"},
    "lora": {"model": "llama-3.1-8b", "method": "orpo", "lora": {"r": 16}, "gradient_checkpointing": True},
    "mixture": {"model": "qwen3-30b-a3b", "method": "sft", "num_gpus": 8, "zero_stage": 3, "trainer": "trl"},
    "split": {"model": "qwen2.5-0.5b", "method": "cpo", "pair_pass": "split", "batch_size": 2},
    "two nodes": {"model": "llama-3.1-70b", "method": "kto", "num_gpus": 16, "sharding": "fsdp2", "gpu": "h100-80gb"},
    "reward": {"model": "mistral-7b-v0.3", "method": "reward", "gpu": "48GB", "sequence_length": 256},
}


@cache
def report_of(name: str) -> Report:
    return estimate(JOBS[name])


def text_of(name: str, width: int = 100) -> str:
    return plain(estimate_blocks(report_of(name), width), width)


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("name", JOBS)
def test_every_view_fits_its_width(name: str, width: int) -> None:
    report = report_of(name)
    for blocks in (estimate_blocks(report, width), thumb_blocks(report), ledger_blocks(report)):
        for line in plain(blocks, width).splitlines():
            assert len(line) <= width or max(map(len, line.split())) > 30, line


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 160])
@pytest.mark.parametrize("name", JOBS)
def test_the_figures_are_there_whole(name: str, width: int) -> None:
    report, text = report_of(name), " ".join(text_of(name, width).split())
    per_gpu = report.per_gpu
    assert f"Peak {format_bytes(per_gpu.allocated_bytes)} allocated" in text
    assert per_gpu.peak_instant in text
    for size in (*per_gpu.by_category.values(), *per_gpu.phases.values()):
        assert format_bytes(size) in text
    for band in (per_gpu.reserved_bytes, per_gpu.device_bytes):
        assert f"{format_bytes(band.low)} {format_bytes(band.expected)} {format_bytes(band.high)}" in text
    assert all(" ".join(assumption.split()) in text for assumption in report.assumptions)


@pytest.mark.parametrize("name", JOBS)
def test_every_instant_of_the_schedule_has_words(name: str) -> None:
    for instant in report_of(name).per_gpu.instants:
        point = instant.name.partition(".")[2]
        assert point in instants.POINTS or re.fullmatch(r"layer-\d+-(backward|reduce)", point), instant.name
        assert instant.name.partition(".")[0] in {"policy", "step", *instants.PASSES}


def test_every_choice_has_words() -> None:
    from memplan.remedies import COSTS
    from memplan.tables.choices import CHOICES

    assert set(CHOICES["sharding"]) == set(words.SHARDING)
    assert set(CHOICES["pair_pass"]) == set(words.PAIR_PASSES)
    assert set(COSTS) == set(words.COSTS)


def test_a_job_that_does_not_fit_is_told_what_to_change() -> None:
    text, report = text_of("too large", 120), report_of("too large")
    assert report.verdict is not None
    assert f"Does not fit rtx-4090-24gb: short by {format_bytes(report.verdict.missing_bytes)}" in text
    assert "Cheapest changes:" in text
    for remedy in report.remedies:
        assert set(remedy.title.split()) <= set(text.split())
        assert format_bytes(remedy.frees_bytes) in text


@pytest.mark.slow
def test_what_to_type_for_a_remedy_can_be_typed() -> None:
    from memplan.cli.commands import make
    from memplan.cli.options import collect

    for remedy in report_of("too large").remedies:
        typed = " ".join(words.to_type(remedy)).split()
        keys = collect(make("estimate", typed).make_context("estimate", typed).params)[1]
        assert estimate({**JOBS["too large"], **keys}).per_gpu.allocated_bytes == remedy.allocated_bytes


def test_a_job_that_fits_says_by_how_much() -> None:
    verdict = report_of("fits").verdict
    assert verdict is not None
    assert f"Fits h100-80gb with {format_bytes(verdict.headroom_bytes)} to spare" in text_of("fits")


def test_without_a_card_those_that_hold_it_are_named() -> None:
    lines = text_of("lora").split("Cards that hold it")[1].split("\n\n")[0].splitlines()
    assert len(lines) <= 15
    assert "fits" not in text_of("lora").split("Assumed")[1]


def test_preference_methods_are_explained_from_sft() -> None:
    text = " ".join(text_of("too large").split())
    assert "Compared with SFT" in text
    assert all(step.title in text for step in report_of("too large").from_sft)
    assert "From SFT" not in text_of("mixture")


def test_defaults_are_told_and_given_values_are_not() -> None:
    left = defaulted(report_of("split"))
    assert "sequence_length 2048" in left
    assert not any(text.startswith(("method", "batch_size", "pair_pass")) for text in left)


def test_largest_by_category_bounds_the_peak() -> None:
    for name in JOBS:
        report = report_of(name)
        largest = largest_by_category(report)
        assert all(size <= largest[category] for category, size in report.per_gpu.by_category.items())


def test_every_category_has_a_reason_and_a_term() -> None:
    categories = {row.category for name in JOBS for row in report_of(name).per_gpu.ledger if row.meter == "allocated"}
    assert not {category for category in categories if reason(category) == "Missing from the rule."}
    explained = {category for term in TERMS.values() for category in term.categories}
    assert categories <= explained


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 100, 160])
@pytest.mark.parametrize("gpu", [None, "a100-80gb"])
def test_compare_names_every_strategy_and_its_peak(width: int, gpu: str | None) -> None:
    comparison = compare({"model": "smollm2-135m", **({"gpu": gpu} if gpu else {})})
    text = plain(compare_blocks(comparison, width), width)
    assert max(map(len, text.splitlines())) <= width
    for row in comparison.rows:
        assert format_bytes(row.report.per_gpu.allocated_bytes, 1) in text
        assert sum(grouped(row.report.per_gpu.by_category).values()) == row.report.per_gpu.allocated_bytes
    assert "Recommendation" in text
    assert all(name.split(",")[0] in text for name in GROUPS)


@pytest.mark.parametrize("term", TERMS)
def test_every_term_can_be_explained(term: str) -> None:
    text = " ".join(plain(term_blocks(TERMS[term], None), 80).split())
    assert all(" ".join(part.split()) in text for part in (TERMS[term].what, TERMS[term].formula, TERMS[term].source))


def test_a_term_with_a_job_has_its_rows() -> None:
    text = plain(term_blocks(TERMS["parameters"], report_of("lora")), 100)
    assert "weights of the policy" in text
    assert "concept" in plain(term_blocks(TERMS["zero"], report_of("lora")), 100)


@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize("width", [50, 100])
def test_lists_lose_columns_rather_than_characters(what: str, width: int) -> None:
    rows = LISTS[what]()
    text = plain(list_table(what, rows, width), width)
    assert all(row["name"] in text for row in rows)
    assert set(SHOWN[what]) <= set(rows[0])


@pytest.mark.parametrize(("part", "whole", "text"), [(0, 10, "0 %"), (1, 1000, "<1 %"), (1, 3, "33 %"), (1, 0, "0 %")])
def test_percent(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


@pytest.mark.slow
def test_the_answer_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    card = ["estimate", "llama-3.1-8b", "--gpu", "a100-80gb", "--method", "dpo"]
    assert main(card) == 0
    whole = capsys.readouterr().out
    assert main([*card, "-q"]) == 0
    quiet = capsys.readouterr().out
    assert quiet.count("\n") == 1
    assert whole.startswith(quiet)
    assert quiet.startswith("Does not fit a100-80gb")
    assert main([*card[:2], *card[-2:], "-q"]) == 0
    assert capsys.readouterr().out.startswith("Peak ")


@pytest.mark.slow
def test_a_summary_is_small_and_agrees_with_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    card = ["estimate", "llama-3.1-8b", "--gpu", "a100-80gb", "--method", "dpo"]
    assert main([*card, "--summary"]) == 0
    text = capsys.readouterr().out
    assert main([*card, "--json"]) == 0
    short, whole = json.loads(text), json.loads(capsys.readouterr().out)
    assert len(text) < 2500
    assert short["verdict"] == whole["verdict"]
    assert short["allocated_bytes"] == whole["per_gpu"]["allocated_bytes"]
    assert [remedy["title"] for remedy in short["remedies"]] == [each["title"] for each in whole["remedies"][:3]]


def test_rejected_plans_that_differ_behind_their_batch_stand_once() -> None:
    names = ["FSDP2, batch 4 × 2, flash attention", "FSDP2, batch 4 × 2, offloaded", "Megatron", "FSDP2, batch 8"]
    assert together(names) == "FSDP2, batch 4 × 2, flash attention (and 1 like it), Megatron, FSDP2, batch 8"
