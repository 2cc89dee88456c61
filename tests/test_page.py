"""Proves the page of an answer: what comes from outside is data in it and never markup, it asks nobody for anything, it
stays small, and every command that has one writes it where it is asked to and nowhere else.
"""

import base64
import hashlib
import json
import re
from functools import cache, partial
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from counting import calls
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan import estimate
from memplan.cli.app import main
from memplan.comparison import Comparison
from memplan.lang.catalogue import fields, pieces
from memplan.page import dressed, framed, page
from memplan.page.document import KINDS, SCRIPTS, script, style
from memplan.page.dressing import own_words
from memplan.page.packing import LIST, TEXT, fitted, packed
from memplan.planner import Plans
from memplan.render.instants import moment_words
from memplan.render.svg import OTHER, PALETTE
from memplan.report import Report
from memplan.tables.categories import STACK

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>",
    "<img src=x onerror=alert(1)>",
    "' onload='alert(1)",
    '" autofocus onfocus="alert(1)',
    "</noscript></pre><style>*{display:none}</style>",
    "&lt;b&gt;&amp;",
    "\u2028\u2029\u202e\x00\x1b[31m",
    "\ud800",
    "__proto__",
    "${7*7} {{7*7}} `x`",
)
LARGEST = 1_500_000
"""Characters, which are bytes: the page is ASCII but for its text."""


class Read(HTMLParser):
    """The tags of a page with their attributes, and the text of each script, style and pre."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.within: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and data.strip():
            self.within.append((self.tags[-1][0], data))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", ()))

    def of(self, tag: str) -> str:
        return "".join(text for name, text in self.within if name == tag)


def unpacked(made: dict[str, Any]) -> Any:
    """What static/base.js makes of it."""

    def opened(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        head, *rest = value
        if head == TEXT:
            return made["texts"][rest[0]]
        if head == LIST:
            return [opened(item) for item in rest]
        return {key: opened(item) for key, item in zip(made["shapes"][head], rest, strict=True)}

    return opened(made["root"])


def payload_of(html: str) -> Any:
    """The answer that a page carries."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return unpacked(json.loads(found[1]))


@cache
def report() -> dict[str, Any]:
    """A small report; what would make it fit is made up, since a search takes its time."""
    found = estimate({"model": "smollm2-135m", "method": "dpo", "gpu": "t4", "dtype": "fp16"}).to_dict()
    other = {"title": "shorter", "changes": {}, "write": ["a.yaml, line 3: max_length: 512"]}
    return {**found, "remedies": [{"title": "LoRA", "changes": {"lora": {"r": 16}}, "write": []}, other]}


PLAIN = Read(page("estimate", {"model": {"name": "x"}}, "text")).tags
texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=12),
    st.sampled_from(HOSTILE).flatmap(lambda a: st.text().map(lambda b: b + a)),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@examples(80)
@given(name=texts, text=texts, more=values, kind=texts)
def test_what_comes_from_outside_is_never_markup(name: str, text: str, more: Any, kind: str) -> None:
    html = page(kind, {"model": {"name": name}, "more": more}, text)
    found = Read(html)
    assert found.tags == PLAIN, "its tags are those of any page"
    assert payload_of(html) == {"model": {"name": name}, "more": more}
    assert found.of("script").endswith(script()), "and no script but its own is read"


@examples(150)
@given(value=values)
def test_a_packed_answer_opens_to_itself(value: Any) -> None:
    assert unpacked(json.loads(json.dumps(packed(value)))) == value


def test_what_json_has_no_word_for_is_nothing() -> None:
    assert unpacked(packed({"speed": float("nan"), "most": float("inf")})) == {"speed": None, "most": None}


def test_a_page_may_run_its_own_script_alone() -> None:
    html = page("estimate", report(), "text")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    inside = re.search(r"<script>(.*?)</script>", html, re.DOTALL), re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    for name, found in zip(("script-src", "style-src"), inside, strict=True):
        assert found is not None
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", script() + style()))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name, which nobody asks for"


def test_no_script_makes_markup_of_text() -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert word not in script()


def test_the_script_is_short_files_in_an_order() -> None:
    folder = Path(__file__).resolve().parent.parent / "memplan" / "page" / "static"
    assert {path.stem for path in folder.glob("*.js")} == set(SCRIPTS)
    code = [path for path in folder.iterdir() if path.suffix != ".txt"]
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 300 for path in code)


def test_the_page_has_the_colours_and_the_order_of_every_picture() -> None:
    listed = re.search(r"M\.CATEGORIES = \[(.*?)\];", script(), re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r'"(\w+)"', listed[1])) == STACK
    colours = dict(re.findall(r"\.k-(\w+) \{ fill: (#\w{6});", style()))
    assert colours == {name: ink.colour for name, ink in PALETTE.items()} | {"other": OTHER.colour}


def test_the_same_answer_is_the_same_page() -> None:
    assert page("estimate", report()) == page("estimate", report())
    assert framed("estimate", report()) == framed("estimate", report())


def test_a_frame_holds_the_page_as_one_attribute() -> None:
    html = framed("estimate", {"model": {"name": '"><script>alert(1)</script>'}})
    assert [tag for tag, _ in Read(html).tags] == ["iframe"]
    assert 'sandbox="allow-scripts"' in html


def test_answers_show_themselves_in_a_notebook() -> None:
    found = estimate({"model": "smollm2-135m"})._repr_html_()
    assert [tag for tag, _ in Read(found).tags] == ["iframe"]
    assert "data-kind=&quot;estimate&quot;" in found
    assert all("_repr_html_" in vars(kind) for kind in (Report, Comparison, Plans))


def test_remedies_and_instants_come_in_words() -> None:
    found = dressed(report(), moment_words)["page"]
    assert found["typed"] == [["--lora-r 16"], ["a.yaml, line 3: max_length: 512"]]
    assert found["words"]["policy.loss"] == "the loss"
    assert dressed([{"file": "a.yaml"}]) == [{"file": "a.yaml"}]


def size(value: Any) -> int:
    """Values in a value, itself one of them."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return 1 + sum(map(size, inner))


def test_a_large_job_is_a_small_page() -> None:
    """126 layers in 9 stages. Work is at most 20 calls for a value of the answer, and grows as it does."""
    found = estimate({"model": "llama-3.1-405b", "method": "sft", "trainer": "megatron", "num_gpus": 63 * 8,
                      "tensor_parallel": 8, "pipeline_parallel": 9}).to_dict()  # fmt: skip
    assert len(found["ranks"]) > 1
    html = page("estimate", dressed(found, moment_words))
    assert len(html.encode()) <= LARGEST / 4
    assert calls(lambda: page("estimate", found)) <= 20 * size(found)


@pytest.mark.parametrize("count", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_many_reports_are_thinned_to_what_a_page_may_hold(count: int) -> None:
    one = estimate({"model": "smollm2-135m", "gpu": "4090"}).to_dict()
    rows: list[dict[str, Any]] = [
        {"name": f"row {n}", "report": {**one, "model": {"name": f"model {n}", "text": "z" * n}}} for n in range(count)
    ]
    text = fitted({"rows": rows}, 120_000)
    found = unpacked(json.loads(text))
    assert len(text) <= 120_000
    assert "left out" in found["page"]["left_out"]
    assert found["rows"][0]["report"]["model"] == rows[0]["report"]["model"]
    assert found["rows"] == rows[: len(found["rows"])] or not found["rows"][-1]["report"]["per_gpu"]["moments"]


def test_little_is_left_as_it_is() -> None:
    assert "page" not in payload_of(page("plan", {"plans": [{"name": "a"}], "rejected": []}))


SLOW = partial(pytest.param, marks=pytest.mark.slow)
SMALL = "smollm2-135m --gpu t4"
OOM = "CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 23.52 GiB"


def line(command: str, folder: Path) -> list[str]:
    """A command with something to answer."""
    if command == "check":
        config = folder / "train.yaml"
        config.write_text("# trl sft\nmodel_name_or_path: gpt2\ndataset_name: x\nmax_length: 256\n")
        return ["check", str(config), "--gpu", "4090"]
    if command == "diagnose":
        return ["diagnose", f"{OOM}\n"]
    plan = "--trainer trl --batch-size 1 --sharding none --top 1" if command == "plan" else ""
    return [command, *SMALL.split(), "--method", "sft", *plan.split()]


@pytest.mark.parametrize("command", ["estimate", "check", SLOW("compare"), SLOW("plan"), "diagnose"])
def test_a_command_writes_its_page(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    beside, alone, words = tmp_path / "a.html", tmp_path / "b.html", line(command, tmp_path)
    main(words)
    answer = capsys.readouterr().out
    main([*words, "--html", str(beside)])
    assert capsys.readouterr().out == answer, "the page is beside the answer"
    main([*words, "-o", str(alone)])
    assert capsys.readouterr().out == (answer if command == "check" else "")
    assert beside.read_text(encoding="utf-8") == alone.read_text(encoding="utf-8")
    assert f'data-kind="{command}"' in beside.read_text(encoding="utf-8")
    main([*words, "--json"])
    said = json.loads(capsys.readouterr().out)
    shown = payload_of(beside.read_text(encoding="utf-8"))
    if isinstance(shown, dict):
        shown.pop("page")
        shown.pop("timeline", None)
    assert shown == said, "it shows what --json prints"
    assert answer.strip().splitlines()[0].strip() in Read(beside.read_text(encoding="utf-8")).of("pre")


@pytest.mark.parametrize("option", ["--html", "-o"])
def test_a_page_overwrites_nothing_unasked(capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str) -> None:
    there = tmp_path / "there.html"
    there.write_text("mine")
    assert main(["estimate", *SMALL.split(), option, str(there)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert there.read_text() == "mine"
    assert main(["estimate", *SMALL.split(), option, str(there), "--force"]) == 0
    assert "memplan-payload" in there.read_text(encoding="utf-8")


BAD = [
    ("estimate smollm2-135m --html no/such/folder/x.html", "--html no/such/folder/x.html: there is no folder"),
    ("estimate smollm2-135m --html .", "--html . is a folder"),
    ("estimate smollm2-135m --html same.html -o same.html", "--html and --output are both same.html"),
    ("compare --grid sweep.yaml --html x.html", "--html contradicts --grid"),
    ("check --log vllm.log --html x.html", "--log has no page"),
]


@pytest.mark.parametrize(("words", "error"), BAD)
def test_a_page_that_cannot_be_is_an_error(capsys: pytest.CaptureFixture[str], words: str, error: str) -> None:
    assert main(words.split()) == 2
    assert error in capsys.readouterr().err


def test_ways_and_their_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A model and a card alone: the ways on the screen, they and the job's own report on the page."""
    assert main(["estimate", *SMALL.split(), "--html", str(tmp_path / "ways.html")]) == 0
    assert "LoRA" in capsys.readouterr().out
    assert {"ways", "per_gpu"} <= set(payload_of((tmp_path / "ways.html").read_text(encoding="utf-8")))


def test_every_kind_is_a_command() -> None:
    from memplan.cli.commands import COMMANDS

    assert set(KINDS) <= set(COMMANDS)


def test_the_pages_words_in_chinese_are_still_said_and_have_their_fields() -> None:
    """Each run of words of an entry stands in the page's scripts, its form or its list of fields."""

    folders = (files("memplan.page") / "static", files("memplan.web") / "static")
    scripts = [each for folder in folders for each in folder.iterdir() if each.name.endswith((".js", ".html"))]
    scripts += [
        files("memplan.web") / "fields.txt",
        files("memplan.page") / "packing.py",
        files("memplan") / "report.py",
    ]
    # Names of categories and phases, which an answer says.
    beside = " load first step first-step save context trainer engine other alive unknown none non torch "
    told = (beside + " ".join(each.read_text(encoding="utf-8").replace("_", " ") for each in scripts)).lower()
    for english, chinese in own_words("zh").items():
        assert sorted(fields(english)) == sorted(fields(chinese)), english
        for run in (run for piece in pieces(english) for run in re.findall(r"[A-Za-z][\w'-]*(?: [\w'-]+)*", piece)):
            words = run.lower().split(" ")
            cuts = ((" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(len(words)))
            assert any(first in told and second in told for first, second in cuts), english


def test_an_answer_in_chinese_says_its_texts_and_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.lang._spoken", ["zh"])
    found = dressed({"name": "<b>x</b>", "warnings": ["no GPU"], "job": {"sharding": "none"}, "why": "one GPU"})["page"]
    assert found["lang"] == "zh"
    assert found["said"]["one GPU"] == "单卡"
    assert "<b>x</b>" not in found["said"]
    assert "none" not in found["said"]
