"""Proves the page in real browsers: it draws, answers to pointer and keys, copies, fits a phone, has labels and
contrast in light and dark, and makes no error and no request.

Needs ``pip install -e '.[browser]'``, Chromium and Firefox (``browsers.py``).
"""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browsers import REQUIRED, Driven, each_browser

if find_spec("playwright") is None and not REQUIRED:
    pytest.skip("nothing to drive a browser with", allow_module_level=True)

from playwright.sync_api import Page, expect, sync_playwright

from memplan import compare, estimate
from memplan.page import dressed, framed, page
from memplan.render.instants import moment_words
from memplan.timeline import timeline
from memplan.units import GiB, format_bytes

pytestmark = pytest.mark.slow
NASTY = "</script><img src=x onerror=window.hacked=1><b>bold</b>"


@cache
def answers() -> dict[str, Any]:
    """An answer of each kind."""
    tight = estimate({"model": "smollm2-135m", "method": "dpo", "gpu": "2GB"})
    pipeline = estimate({"model": "llama-3.1-405b", "trainer": "megatron", "num_gpus": 64, "tensor_parallel": 8,
                         "pipeline_parallel": 2, "method": "sft", "gpu": "h100-80gb"})  # fmt: skip
    rows = [{"model": "smollm2-135m", "gpu": "t4", "batch_size": size} for size in (1, 2, 4)]
    several = compare(rows).to_dict()
    plans = [
        {"name": row["name"], "report": row["report"], "speed": {"tokens_per_second": 100.0 + n}}
        for n, row in enumerate(several["rows"])
    ]
    rollout = estimate({"model": "qwen3-0.6b", "method": "grpo", "trainer": "verl", "num_gpus": 8, "gpu": "h100-80gb",
                        "rollout": {"engine": "vllm"}})  # fmt: skip
    return {
        "estimate": tight.to_dict() | {"timeline": timeline(tight).to_dict()},
        "large": pipeline.to_dict(),
        "rollout": rollout.to_dict(),
        "compare": several,
        "plan": {"plans": plans, "rejected": [{"name": "z", "reason": "short by 3 GiB"}], "considered": 9, "priced": 3},
        "diagnose": {"phase": "loss", "requested_bytes": GiB, "capacity_bytes": 24 * GiB, "allocated_bytes": 20 * GiB,
                     "reserved_bytes": 22 * GiB, "causes": ["it was full"], "remedies": [],
                     "matches": [{"name": "logits", "bytes": GiB, "shape": "1", "why": "w"}]},
        "check": [{"file": "a.yaml", "fits": "no", "text": "does not fit", "device_bytes": 3 * GiB, "usable_bytes": GiB,
                   "headroom_bytes": -2 * GiB, "remedy": "less", "write": ["a.yaml, line 2: batch: 1"], "job": {}}],
        "measure": {"id": "a", "meter": "tracked on cpu", "steps": 3, "versions": {"torch": "2.13"},
                    "job": {"method": "sft"}, "hardware": {"device": "cpu"},
                    "measured": {"allocated_bytes": 5 * GiB, "phases": {"forward": 5 * GiB, "step": 4 * GiB}},
                    "estimated": {"allocated_bytes": 6 * GiB, "reserved_bytes": {"low": 1, "expected": 6 * GiB},
                                  "phases": {"forward": 6 * GiB, "step": 4 * GiB}}},
        "trace": {"device": "cuda", "versions": {"torch": "2.13"}, "parameters": 1000, "allocated_bytes": 2 * GiB,
                  "phases": [{"name": "forward", "allocated_bytes": 2 * GiB, "operation": "mm", "module": "lm_head"}],
                  "timeline": [{"phase": phase, "allocated_bytes": n * GiB, "by_category": {"parameters": n * GiB}}
                               for n, phase in ((1, "forward-1"), (2, "forward-1"), (1, "end"))],
                  "compared": [{"phase": "forward", "term": "total", "difference": 0.5,
                                "traced_bytes": 2 * GiB, "estimated_bytes": 3 * GiB}], "job": {"method": "dpo"}},
    }  # fmt: skip


KINDS = {"large": "estimate", "rollout": "estimate"}


def html_of(name: str) -> str:
    return page(KINDS.get(name, name), dressed(answers()[name], moment_words), "in words")


@pytest.fixture(scope="module", params=each_browser())
def browser(request: pytest.FixtureRequest) -> Iterator[Driven]:
    with sync_playwright() as play:
        driven = Driven(play, request.param)
        yield driven
        driven.close()


class Shown:
    """A page in the browser, which must make no error and ask for nothing but its own file."""

    def __init__(self, browser: Driven, html: str, folder: Path, **how: Any) -> None:
        self.wrong: list[str] = []
        path = folder / "page.html"
        path.write_text(html, encoding="utf-8")
        self.context = browser.context(**{"viewport": {"width": 1280, "height": 900}, **how})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self.wrong.append(asked.url) if asked.url != path.as_uri() else None)
        self.page.goto(path.as_uri())
        if how.get("java_script_enabled", True):  # else no frame is ever drawn to wait for
            self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def close(self) -> None:
        """Raises where something was wrong."""
        self.context.close()
        assert self.wrong == []


@pytest.fixture
def shown(browser: Driven, tmp_path: Path) -> Iterator[Any]:
    opened: list[Shown] = []

    def show(html: str, **how: Any) -> Page:
        opened.append(Shown(browser, html, tmp_path, **how))
        return opened[-1].page

    yield show
    for each in opened:
        each.close()


SIZES = [0, 1, 1023, 1024, 1536, 1 << 20, GiB - 1, GiB, 123 * GiB + 7, -3 * GiB]


@pytest.mark.parametrize(
    "name", ["estimate", "large", "rollout", "compare", "plan", "diagnose", "check", "measure", "trace"]
)
@pytest.mark.parametrize(("widths", "scheme"), [((1280, 360), "light"), ((768,), "dark")])
def test_every_answer_is_drawn_labelled_and_readable(
    shown: Any, browser: Driven, name: str, widths: tuple[int, ...], scheme: str
) -> None:
    """Firefox, which has the same elements, is asked for labels and contrast in the dark alone."""
    on = shown(html_of(name), scheme=scheme, bypass_csp=True)
    assert on.locator("main section").count() >= 1
    for width in widths:
        on.set_viewport_size({"width": width, "height": 900})
        over = on.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, "nothing lies beside the screen"
    if browser.name == "chromium" or scheme == "dark":
        on.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
        found = on.evaluate("axe.run()")["violations"]
        assert [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found] == []


def test_axes_have_round_levels(shown: Any) -> None:
    on = shown(html_of("diagnose"))
    levels = on.evaluate(
        "[[0, 1.3 * 2 ** 30, true], [54e9, 84e9, true], [0, 61000, false], [0, 0.9, false]]"
        ".map((of) => memplan.levels(...of).map((each) => each[1]))"
    )
    assert levels == [
        ["0 MiB", "500 MiB", "1000 MiB"],
        ["60 GiB", "70 GiB"],
        ["0", "20 K", "40 K", "60 K"],
        ["0", "0.2", "0.4", "0.6", "0.8"],
    ]


ENGLISH_LEFT = """() => {
  const found = [], texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode;
    if (/[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}/.test(data) && !parentElement.closest("code")) found.push(data);
  }
  return found;
}"""


@pytest.mark.parametrize("name", ["estimate", "large", "rollout", "compare", "plan"])
def test_in_chinese_no_english_sentence_is_left(shown: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.lang._spoken", ["zh"])
    on = shown(html_of(name))
    assert on.evaluate(ENGLISH_LEFT) == []
    assert on.evaluate("document.documentElement.lang") == "zh"
    on.locator("button.open").last.click()
    on.locator(".picture").first.focus()
    on.keyboard.press("ArrowUp")
    assert "字节" in on.locator(".chart .told").first.inner_text()


def test_sizes_are_in_the_words_of_the_command_line(shown: Any) -> None:
    on = shown(html_of("diagnose"))
    assert on.evaluate("(sizes) => sizes.map((n) => memplan.bytes(n))", SIZES) == [format_bytes(n) for n in SIZES]


def test_what_is_packed_is_opened(shown: Any) -> None:
    value = {
        "__proto__": [1, {"a": None}],
        "constructor": "constructor",
        "list": [[], {}, "again and again", "again and again"],
    }
    on = shown(page("measure", value))
    read = "JSON.stringify(memplan.unpack(JSON.parse(document.getElementById('memplan-payload').textContent)))"
    assert json.loads(on.evaluate(read)) == value


def test_the_picture_adds_up_and_a_pointer_names_a_row(shown: Any) -> None:
    on, report = shown(html_of("estimate")), answers()["estimate"]["per_gpu"]
    sums = on.evaluate(
        "(gpu) => gpu.instants.map((each, n) => memplan.layersOf(gpu.ledger, gpu.instants)"
        ".filter((layer) => layer.from <= n && n <= layer.to).reduce((sum, layer) => sum + layer.bytes, 0))",
        report,
    )
    assert sums == [each["allocated_bytes"] for each in report["instants"]]
    picture = on.locator(".picture").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    on.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 230)
    tip = picture.locator(".tip")
    assert tip.is_visible()
    for word in ("bytes", "formula", "alive", "source"):
        assert word in tip.inner_text()
    on.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + 230)
    assert "formula" in on.locator(".told").first.inner_text()
    on.mouse.move(2, 2)
    assert tip.is_hidden()


def test_keys_alone(shown: Any) -> None:
    """Every control is reached by Tab; arrows walk through the picture, Enter opens a row and sorts."""
    on = shown(html_of("estimate"))
    on.locator(".picture").first.focus()
    told = on.locator(".told").first
    on.keyboard.press("Home")
    first = told.inner_text()
    on.keyboard.press("ArrowUp")
    named = told.inner_text()
    on.keyboard.press("ArrowUp")
    assert len({first, named, told.inner_text()}) == 3
    on.keyboard.press("Escape")
    assert on.locator(".picture .tip").first.is_hidden()
    on.reload()
    reached = set()
    for _ in range(120):
        on.keyboard.press("Tab")
        reached.add(on.evaluate("document.activeElement.className || document.activeElement.tagName"))
    assert {"copy", "picture", "sort", "open", "SELECT", "INPUT", "SUMMARY", "scroll"} <= reached
    on = shown(html_of("estimate"))  # so many Tabs may end in the bars of the browser
    opener = on.locator("button.open").first
    opener.focus()
    on.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    assert "formula" in on.locator("tr.inner:not([hidden])").inner_text()


def rows(on: Page) -> list[list[str]]:
    found: list[list[str]] = on.evaluate(
        "[...document.querySelectorAll('table.ledger tbody tr:not(.inner)')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return found


def test_the_ledger_sorts_and_filters(shown: Any) -> None:
    on, ledger = shown(html_of("estimate")), answers()["estimate"]["per_gpu"]["ledger"]
    while on.get_by_role("button", name="Show").count():
        on.get_by_role("button", name="Show").first.click()
    assert len(rows(on)) == len(ledger)
    assert rows(on)[0][0] == max(ledger, key=lambda row: row["bytes"])["name"], "the largest is first"
    on.get_by_role("button", name="row", exact=True).click()
    names = [row[0] for row in rows(on)]
    assert names == on.evaluate("(names) => [...names].sort((a, b) => a.localeCompare(b))", names)
    assert on.locator("th[aria-sort='ascending']").count() == 1
    on.get_by_label("Category").select_option("gradients")
    assert {row[2] for row in rows(on)} == {"gradients"}
    on.get_by_label("Filter").fill("no such row anywhere")
    assert rows(on) == []
    assert f"0 of {len(ledger)} rows" in on.locator("main").inner_text()
    on.get_by_label("Filter").fill("")
    on.get_by_label("Category").select_option("")
    of = answers()["estimate"]["per_gpu"]
    on.get_by_label("Alive at").select_option(of["peak_instant"])
    together = f"together {format_bytes(of['allocated_bytes'])} allocated at {of['peak_instant']}"
    assert together in on.locator(".count").first.inner_text()


def test_a_button_copies_what_is_to_be_written(browser: Driven, tmp_path: Path) -> None:
    """The flag, or the file's line without its place; where the clipboard is refused, the text is marked."""
    of = Shown(browser, html_of("check"), tmp_path)
    on = of.page
    on.get_by_role("button", name="Copy").first.click()
    on.get_by_text("Copied").or_(on.get_by_text("Press Ctrl-C")).first.wait_for()
    on.evaluate("document.body.append(Object.assign(document.createElement('textarea'), { id: 'paste' }))")
    if "Copied" in on.locator(".said").first.inner_text():
        on.locator("#paste").focus()
        on.keyboard.press("Control+v")
        assert on.locator("#paste").input_value() == "batch: 1"
    else:
        assert on.evaluate("getSelection().toString()") == "batch: 1"
    of.close()


def test_phases_are_chosen_and_the_played_step_is_drawn(shown: Any) -> None:
    on = shown(html_of("estimate"))
    titles = on.get_by_label("Phase").locator("option").all_inner_texts()
    assert {"the steady step", "load", "the step as it is played, request by request"} <= set(titles)
    for title in titles:
        on.get_by_label("Phase").select_option(label=title)
        on.locator(".picture svg path.layer").first.wait_for()
    assert on.locator(".curve.reserved").count() == 1


def test_a_point_of_the_front_shows_its_plan(shown: Any) -> None:
    on = shown(html_of("compare"))
    points, names = on.locator("circle.point"), [row["title"] for row in answers()["compare"]["rows"]]
    assert points.count() == len(names)
    points.nth(1).hover()
    assert names[1] in on.locator(".told").first.inner_text()
    points.nth(2).focus()
    on.keyboard.press("Enter")
    assert names[2] in on.locator(".one h2").first.inner_text()
    front = on.evaluate("memplan.front([{memory: 1, speed: 1}, {memory: 2, speed: 1}, {memory: 3, speed: 9}]).length")
    assert front == 2


def test_a_large_job_is_few_elements(shown: Any) -> None:
    on = shown(html_of("large"))
    assert len(answers()["large"]["ranks"]) > 1
    assert on.locator("ul.bars li").count() == len(answers()["large"]["ranks"])
    assert on.evaluate("document.querySelectorAll('*').length") <= 3000


def test_names_from_outside_are_text(shown: Any) -> None:
    report = json.loads(json.dumps(answers()["estimate"]).replace("weights of the policy", NASTY.replace('"', "'")))
    report["model"]["name"] = report["per_gpu"]["rank"] = NASTY
    report["verdict"]["gpu"] = report["assumptions"][0] = report["per_gpu"]["instants"][0]["name"] = NASTY
    report["remedies"] = [
        {"title": NASTY, "changes": {NASTY: NASTY}, "write": [NASTY], "device_bytes": 1, "fits": NASTY}
    ]
    on = shown(page("estimate", dressed(report, moment_words), NASTY))
    assert on.evaluate("window.hacked") is None
    assert on.locator("main img, main b, main script").count() == 0
    assert NASTY in on.locator("main").inner_text()


def test_what_was_measured_stands_beside_the_estimate(shown: Any) -> None:
    """And what was traced is drawn, each event as high as it was."""
    told = shown(html_of("measure")).locator("table").first.inner_text().split("\n")
    assert "peak\tallocated\t5.00 GiB\t6.00 GiB\t+20 %" in told
    assert "step\tallocated\t4.00 GiB\t4.00 GiB\t+0 %" in told
    on = shown(html_of("trace"))
    assert "2.00 GiB at forward-1" in on.locator(".chart .told").inner_text()
    heights = on.evaluate(
        "document.querySelector('path.layer').getBBox().height / document.querySelector('.picture svg').clientHeight"
    )
    assert heights > 0.3
    assert "forward\ttotal\t2.00 GiB\t3.00 GiB\t+50 %" in on.locator("table").nth(1).inner_text()


def test_a_phase_is_as_tall_as_its_instants(shown: Any) -> None:
    """An answer lists of a phase only the rows that the steady step has not; the others are drawn in one."""
    report = {**answers()["estimate"], "timeline": None}
    moments = report["per_gpu"]["moments"]
    on, moment = shown(page("estimate", report)), next(each for each in moments if each["name"] == "first-step")
    on.get_by_label("Phase").select_option(label="first-step")
    on.locator(".picture").first.focus()
    on.keyboard.press("End")
    last = moment["instants"][-1]
    assert f"{format_bytes(last['allocated_bytes'])} at {last['name']}" in on.locator(".told").first.inner_text()


def test_a_page_draws_anew_and_says_an_error(shown: Any) -> None:
    on = shown(html_of("estimate"))
    on.evaluate(
        "memplan.draw(document.getElementById('memplan-answer'), 'estimate', { error: 'no such model', hint: 'x' })"
    )
    assert on.get_by_role("alert").inner_text().startswith("no such model")
    on.evaluate(
        "(found) => memplan.draw(document.getElementById('memplan-answer'), 'diagnose', found)", answers()["diagnose"]
    )
    assert "Out of memory in loss" in on.locator("main").inner_text()


def test_without_javascript_the_answer_is_text(shown: Any, browser: Driven) -> None:
    if browser.name == "firefox":
        pytest.skip("over BiDi its script is not switched off")
    on = shown(html_of("estimate"), java_script_enabled=False)
    assert on.locator("noscript pre").inner_text() == "in words"


def test_a_notebook_shows_a_report_in_a_frame(shown: Any) -> None:
    on = shown(f"<!doctype html><title>n</title><p>{framed('estimate', answers()['estimate'])}</p>")
    inside = on.frame_locator("iframe")
    inside.locator(".verdict svg").wait_for()
    inside.locator("circle.point, path.layer").first.wait_for()
