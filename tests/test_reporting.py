"""Proves how a report is read off a ledger: meters, phases, verdicts, the node's memory, rows written when read."""

from typing import Any

import pytest
from any_jobs import step_peak

from memplan.api import estimate
from memplan.engine.allocator.reserved import Band
from memplan.engine.ledger import Ledger
from memplan.meters import _beside, judge, measure, of_assumed_layers
from memplan.moments import LedgerRows, phase_of
from memplan.priced import price
from memplan.report import Found, plain
from memplan.reporting import _on_host, build_report, peak, totals_of
from memplan.resolve import resolve
from memplan.spec.gpu import Gpu
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.generation import PROCESS_MOST

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 1024,
    "num_key_value_heads": 2, "intermediate_size": 512,
}  # fmt: skip


def recipe_of(**keys: Any) -> Recipe:
    return resolve(read_job({"model": TINY, "batch_size": 2, "sequence_length": 64, **keys}))


CARD = Gpu(name="card", title="card", vendor="custom", memory_bytes=1100, usable_bytes=1000, architecture="9.0")


@pytest.mark.parametrize(
    ("expected", "high", "fits", "headroom", "missing"),
    [
        (500, 900, "yes", 500, 0),
        (500, 901, "tight", 500, 1),
        (1000, 1200, "tight", 0, 300),
        (1001, 1200, "no", -1, 300),
        (900, 900, "yes", 100, 0),
    ],
)
def test_yes_where_the_high_figure_leaves_the_margin(
    expected: int, high: int, fits: str, headroom: int, missing: int
) -> None:
    found = judge(Band(1, expected, high), CARD, 0.1)
    assert (found.gpu, found.fits, found.usable_bytes) == ("card", fits, 1000)
    assert (found.headroom_bytes, found.missing_bytes) == (headroom, missing)


def test_of_assumed_layers_what_comes_and_goes_is_spread() -> None:
    assert of_assumed_layers(Band(100, 100, 100), 40, (0.5, 2.0)) == Band(70, 100, 160)
    assert of_assumed_layers(Band(60, 100, 170), 40, (0.5, 2.0)) == Band(60, 100, 170)


@pytest.mark.parametrize(
    ("instant", "phase"),
    [
        ("policy.forward", "forward"), ("policy.loss", "forward"), ("reference.layer-forward", "forward"),
        ("policy.loss-backward", "backward"), ("policy.tail-reduce", "backward"), ("step.begin", "step"),
        ("policy.optimizer", "step"), ("evaluation-policy.forward", "evaluate"),
        ("evaluation-policy.loss-backward", "evaluate"),
    ],
)  # fmt: skip
def test_an_instant_belongs_to_a_phase(instant: str, phase: str) -> None:
    assert phase_of(instant) == phase


def small() -> Ledger:
    found = Ledger(("policy.forward", "policy.loss-backward", "step.optimizer"))
    found.add("weights", "weights", 100)
    found.add("activations", "activations", 50, "policy.forward", "policy.forward", low=20, high=80)
    found.add("gradients", "gradients", 30, "policy.loss-backward").formula("4 · N", 4, 7.5)
    return found


def test_segments_of_other_streams_are_beside_the_peak() -> None:
    found = small()
    assert _beside(found, found.totals()) == Band(0, 0, 0)
    found.add("pool", "buffers", 7, "policy.forward", "policy.forward", meter="reserved")
    found.add("pool of the backward", "buffers", 40, "policy.loss-backward", "policy.loss-backward", meter="reserved")
    assert _beside(found, found.totals()) == Band(0, 20, 20)


def test_the_three_meters_are_the_largest_of_their_totals() -> None:
    found = small()
    found.add("context", "overhead", 11, meter="device", high=13)
    meters = measure(found, recipe_of())
    assert meters.totals == (150, 130, 130)
    assert meters.allocated == Band(130, 150, 180)
    assert meters.device == Band(*(a + b for a, b in zip(meters.reserved, (11, 11, 13), strict=True)))


def test_a_rank_holds_the_sum_of_its_host_meters_at_an_instant() -> None:
    found = small()
    assert _on_host(found) == 0
    found.add("pinned", "offload", 5, place="host")
    found.add("states", "offload", 6, "policy.forward", "policy.forward", place="host")
    found.add("seen by another", "offload", 4, "step.optimizer", place="host", meter="reserved")
    assert _on_host(found) == 11


@pytest.mark.parametrize(("gpus", "per_node", "on_node"), [(2, 8, 2), (16, 8, 8)])
def test_the_nodes_memory_must_hold_what_its_gpus_put_there(gpus: int, per_node: int, on_node: int) -> None:
    keys = {"sharding": "zero2", "offload": ["optimizer"], "num_gpus": gpus, "gpus_per_node": per_node, "gpu": "24GB"}
    recipe = recipe_of(**keys, cluster={"host_memory": 1 << 40})
    each = _on_host(price(recipe)[0].ledger)
    report = build_report(recipe)
    assert report.verdict is not None
    assert (report.host.bytes_per_node, report.host.fits, report.verdict.fits) == (each * on_node, True, "yes")
    for memory, fits, verdict in (
        ((each + PROCESS_MOST) * on_node, True, "yes"),
        (each * on_node, True, "tight"),
        (each * on_node - 1, False, "no"),
        (None, None, "yes"),
    ):
        short = recipe.varied({"hardware.cluster": recipe.hardware.cluster.model_copy(update={"host_memory": memory})})
        found = peak(short)
        assert found.verdict is not None
        assert (found.host.memory_bytes, found.host.fits, found.verdict.fits) == (memory, fits, verdict)


def test_rows_are_written_when_they_are_read() -> None:
    rows = LedgerRows(small(), recipe_of())
    assert len(rows) == 3
    assert [row.name for row in rows[1:]] == ["activations", "gradients"]
    assert (rows[-1].born, rows[-1].dies) == ("policy.loss-backward", "step.optimizer")
    assert (rows[-1].formula, rows[-1].low, rows[-1].high) == ("4 · N = 4 × 7.5", 30, 30)
    assert (rows[1].low, rows[1].bytes, rows[1].high) == (20, 50, 80)


@pytest.mark.parametrize(
    "keys",
    [
        {"gpu": "24GB"},
        {"gpu": "2GiB", "batch_size": 64, "sequence_length": 4096},
        {"method": "dpo", "eval_batch_size": 3},
        {"trainer": "megatron", "num_gpus": 4, "pipeline_parallel": 2, "method": "sft", "gpu": "h100-80gb"},
    ],
    ids=["fits", "does not", "evaluation", "stages"],
)
def test_a_peak_is_what_the_report_says(keys: dict[str, Any]) -> None:
    recipe = recipe_of(**keys)
    report, found = build_report(recipe), peak(recipe)
    card = report.per_gpu
    assert found.rank == card.rank == report.ranks[0].name
    assert found.allocated == (card.allocated_range.low, card.allocated_bytes, card.allocated_range.high)
    assert found.reserved == (card.reserved_bytes.low, card.reserved_bytes.expected, card.reserved_bytes.high)
    assert found.device == (card.device_bytes.low, card.device_bytes.expected, card.device_bytes.high)
    assert found.phases == {name: size for name, size in card.phases.items() if name != "first-step"}
    assert step_peak(card) == card.allocated_bytes
    assert plain(found.host) == plain(report.host)
    assert plain(found.verdict) == plain(report.verdict)
    assert totals_of(recipe).totals == tuple(each.allocated_bytes for each in card.instants)
    largest = [each.name for each in card.instants if each.allocated_bytes == card.allocated_bytes]
    assert card.peak_instant == largest[0]
    assert [each.device_bytes.expected for each in report.ranks] == sorted(
        (each.device_bytes.expected for each in report.ranks), reverse=True
    )
    assert sum(each.count for each in report.ranks) == recipe.parallel.world
    assert ("evaluate" in card.phases) == ("eval_batch_size" in keys)
    assert len(price(recipe)) == len(report.ranks)


def test_what_the_trainer_gives_without_a_word_is_its_default() -> None:
    report = build_report(recipe_of(trainer="trl", trainer_version="1.16", gpu="24GB"))
    trainers = {key for key, source in report.sources.items() if source == "trainer"}
    assert trainers
    assert trainers <= set(report.origins)
    assert "TRL 1.16's default" in report.origins.values()
    assert not {"batch_size", "optimizer_args"} & set(report.origins)


def test_the_fullest_card_comes_first() -> None:
    keys = {"trainer": "megatron", "num_gpus": 4, "pipeline_parallel": 4, "method": "sft"}
    figures = [each.meters.device.expected for each in price(recipe_of(**keys), detailed=False)]
    assert len(set(figures)) > 1
    assert figures == sorted(figures, reverse=True)


def test_a_search_is_made_once_and_only_when_its_result_is_read() -> None:
    calls: list[int] = []

    def search() -> tuple[str, ...]:
        calls.append(1)
        return ("a", "b")

    found: Found[str] = Found(search)
    assert calls == []
    assert (len(found), found[1], found[:1], list(found)) == (2, "b", ("a",), ["a", "b"])
    assert calls == [1]


def test_a_report_is_plain_data() -> None:
    assert plain({"a": (1, [2, Found(lambda: ("x",))])}) == {"a": [1, [2, ["x"]]]}
    report = estimate({"model": TINY, "batch_size": 2, "gpu": "24GB"}).to_dict()
    assert "recipe" not in report
    assert report["schema_version"] == 1
    assert set(report["per_gpu"]["device_bytes"]) == {"low", "expected", "high"}
    assert report["sources"]["batch_size"] == "option"
    assert report["sources"]["optimizer"] == "default"
