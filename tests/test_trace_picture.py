"""Proves the picture of a trace: sound SVG, areas that add up to what is allocated, the peak named, text escaped."""

import re
from xml.etree import ElementTree

import pytest

from memplan.render.svg import Scale, gib_ticks
from memplan.render.timeline_svg import GAP, HEAD, PANEL
from memplan.tables.categories import stacked
from memplan.trace.result import Phase, Point, Trace, timeline_svg
from memplan.units import GiB

SVG = "{http://www.w3.org/2000/svg}"


def point(event: int, phase: str, **sizes: int) -> Point:
    return Point(event, phase, sum(sizes.values()), sizes)


POINTS = (
    point(0, "forward-1", parameters=2 * GiB),
    point(1, "backward-1", parameters=2 * GiB, activations=GiB),
    point(2, "step-1", parameters=2 * GiB, optimizer_states=GiB),
    point(3, "forward", parameters=2 * GiB, optimizer_states=GiB, unheard_of=GiB),
    point(4, "backward", parameters=2 * GiB, optimizer_states=GiB, activations=4 * GiB),
    point(5, "step", parameters=2 * GiB, optimizer_states=GiB),
)


def made_up(points: tuple[Point, ...] = POINTS) -> Trace:
    peak = Phase("backward", 7 * GiB, "mul <&>", "model.layers.1.mlp", {"activations": 4 * GiB})
    return Trace(
        schema_version=1, job={"method": "sft", "optimizer": "adamw", "num_gpus": 8, "sharding": "fsdp2"},
        device="cuda", versions={"torch": "2.13"}, parameters=10**9, trainable=10**9, allocated_bytes=7 * GiB,
        steady_bytes=3 * GiB, phases=(peak,), timeline=points, seconds=1.0,
    )  # fmt: skip


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_peak_axes_phases_and_categories_are_named() -> None:
    shown = texts(timeline_svg(made_up()))
    assert {"peak 7.00 GiB", "mul <&> in model.layers.1.mlp", "GiB", "first forward"} <= set(shown)
    assert {"forward", "backward", "activations", "optimizer states", "unheard of", "4.00 GiB"} <= set(shown)
    assert "sft with adamw, 1.00 B parameters on 8 GPUs, fsdp2: rank 0" in shown


def test_areas_are_stacked_to_what_is_allocated() -> None:
    areas = list(ElementTree.fromstring(timeline_svg(made_up())).iter(f"{SVG}polygon"))
    assert len(areas) == len(stacked({name for each in POINTS for name in each.by_category})) == 4
    scale = Scale(POINTS[-1].event, gib_ticks(7 * GiB)[-1] * GiB, HEAD + GAP, HEAD + GAP + PANEL)
    upper = areas[-1].attrib["points"].split()[: len(POINTS)]
    assert upper == [f"{scale.x(each.event)},{scale.y(each.allocated_bytes)}" for each in POINTS]


def test_it_stands_by_itself_on_light_and_dark_ground() -> None:
    svg = timeline_svg(made_up())
    assert "prefers-color-scheme: dark" in svg
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("largest", [1, 300 * 2**20, GiB, 7 * GiB, 79 * GiB, 2000 * GiB])
def test_ticks_reach_beyond_the_largest_and_are_few(largest: int) -> None:
    ticks = gib_ticks(largest)
    assert 4 <= len(ticks) <= 10
    assert ticks[0] == 0
    assert ticks[-1] * GiB > largest
    assert 10 < Scale(1, ticks[-1] * GiB, 10, 270).y(largest) < 270


def test_a_long_timeline_is_thinned_and_keeps_its_largest() -> None:
    points = [point(at, "forward", parameters=GiB + (at * 37) % 1001) for at in range(1000)]
    points[501] = point(501, "forward", parameters=7 * GiB)
    areas = ElementTree.fromstring(timeline_svg(made_up(tuple(points)))).iter(f"{SVG}polygon")
    heights = [float(corner.split(",")[1]) for area in areas for corner in area.attrib["points"].split()]
    scale = Scale(999, gib_ticks(7 * GiB)[-1] * GiB, HEAD + GAP, HEAD + GAP + PANEL)
    assert len(heights) <= 2 * 200
    assert min(heights) == scale.y(7 * GiB)
