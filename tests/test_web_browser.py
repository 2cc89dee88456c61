"""Proves the page in a real browser: the site without a server answers as the command line does, to the byte, offline
too, asks nobody outside, and shows what is hostile as text; form, address, drop and keyboard work.

Needs browsers (``browsers.py``), node, npm and the registries: left out where one is missing, but where
MEMPLAN_REQUIRE_BROWSER=1 asks for them. MEMPLAN_PYODIDE names Pyodide's npm package where it is not to be fetched.
"""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest
from browsers import REQUIRED, Driven, each_browser

from memplan.asked import given_job, report_data, report_of, with_usual_trainer, without_searches
from memplan.cli.app import main
from memplan.render.data import to_json
from memplan.report import Report

pytestmark = pytest.mark.slow
if not REQUIRED and not (shutil.which("npm") and shutil.which("node") and find_spec("playwright")):
    pytest.skip("playwright, node or npm is not installed", allow_module_level=True)

LATE = 90_000
"""Milliseconds: nothing is measured here, and other tests run beside."""
ASK = """async ([kind, body]) => await window.memplanWeb.backend.ask(kind, body)"""
JOB = "ask=estimate&model=smollm2-135m&method=dpo&gpu=t4"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 23.52 GiB"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from memplan.web.build import build

    found = tmp_path_factory.mktemp("web") / "site"
    given = os.environ.get("MEMPLAN_PYODIDE")
    build(found, Path(given) if given else None)
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module", params=each_browser())
def browser(request: pytest.FixtureRequest) -> Iterator[Driven]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        driven = Driven(play, request.param)
        yield driven
        driven.close()


@pytest.fixture(scope="module")
def context(browser: Driven) -> Any:
    found = browser.context(viewport={"width": 1280, "height": 900})
    found.set_default_timeout(LATE)
    return found


LEFT = "A ServiceWorker intercepted the request and encountered an unexpected error"
"""What Firefox says of files that a page was still loading when it was left."""


@pytest.fixture
def page(site: str, context: Any) -> Iterator[Any]:
    """A page that fails the test where anything goes wrong in it, or outside."""
    found, wrong = context.new_page(), []
    found.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    found.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    found.on("request", lambda request: None if request.url.startswith((site, "data:")) else wrong.append(request.url))
    yield found
    found.close()
    assert not [each for each in wrong if LEFT not in each]


def drawn(page: Any) -> str:
    page.wait_for_selector("#drawn[data-whole=yes]")
    before, now = "", str(page.inner_text("#drawn"))
    while before != now:  # a bar is laid out once its width is known
        page.wait_for_timeout(100)
        before, now = now, str(page.inner_text("#drawn"))
    return now


def jobs(count: int) -> list[tuple[dict[str, Any], Report]]:
    """Jobs of many kinds, the same at each run, and their reports; all of them can be."""
    random = Random(7)
    found: list[tuple[dict[str, Any], Report]] = []
    while len(found) < count:
        job: dict[str, Any] = {
            "model": random.choice(["llama-3.1-8b", "qwen3-8b", "smollm2-135m", "mistral-7b-v0.3", "qwen3-30b-a3b"]),
            "method": random.choice(["sft", "dpo", "simpo", "orpo", "kto", "reward", "grpo"]),
            "batch_size": random.randint(1, 4),
            "sequence_length": random.choice([512, 1000, 2048, 4096]),
            "gradient_checkpointing": random.choice(["none", "full"]),
            "optimizer": random.choice(["adamw", "adamw-8bit", "sgd"]),
        }
        job |= random.choice([{}, {"gpu": "h100-80gb"}, {"gpu": "rtx-4090"}, {"gpu": "24GB", "margin": 0.1}])
        job |= random.choice([{}, {"num_gpus": 8, "sharding": "zero3"}, {"num_gpus": 4, "sharding": "fsdp2"}])
        job |= random.choice([{}, {}, {"lora": {"r": 16}}, {"lora": {}, "quantization": "nf4"}])
        try:
            found.append((job, report_of(with_usual_trainer(given_job(job)))))
        except Exception:
            continue
    return found


def test_forty_jobs_have_the_command_lines_figures_to_the_byte(
    page: Any, site: str, capsys: pytest.CaptureFixture[str], browser: Driven
) -> None:
    """In Firefox, where the same Python runs, ten."""
    page.goto(site)
    for number, (job, report) in enumerate(jobs(40 if browser.name == "chromium" else 10)):
        status, text = page.evaluate(ASK, ["estimate", json.dumps({"job": job, "quick": True})])
        assert (status, text) == (200, to_json(report_data(without_searches(report)))), job
        if number % 5 == 0:
            look = report_of(with_usual_trainer(given_job(job)), play=False)
            asked = json.dumps({"job": job, "quick": True, "play": False})
            assert page.evaluate(ASK, ["estimate", asked]) == [200, to_json(report_data(without_searches(look)))], job
            words = [f"--set={key}={json.dumps(value)}" for key, value in job.items() if key != "model"]
            main(["estimate", job["model"], *words, "--json"])
            told = capsys.readouterr().out
            assert page.evaluate(ASK, ["estimate", json.dumps(job)]) == [200, told], job


def test_the_other_questions_too(page: Any, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.web.answers import in_folder

    monkeypatch.chdir(tmp_path)
    config = {"name": "train.yaml", "text": "# trl sft\nmodel_name_or_path: gpt2\ndataset_name: x\n"}
    job = {"model": "smollm2-135m", "method": "dpo", "gpu": "t4", "trainer": "trl"}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("plan", {"job": job}),
        ("check", {"file": config, "job": {"gpu": "t4"}}),
        ("diagnose", {"text": OOM, "job": job}),
        ("estimate", {"file": config, "job": {"gpu": "t4"}}),
        ("estimate", {"model": "llama-3.1-9b"}),
        ("estimate", {"model": "someone/some-model"}),
    ]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    page.goto(site)
    for kind, body in asked:
        here = in_folder(str(tmp_path / "requests"), kind, json.dumps(body))
        assert page.evaluate(ASK, [kind, json.dumps(body)]) == list(here), kind


def test_what_takes_too_long_is_ended_and_the_next_is_answered(page: Any, site: str) -> None:
    page.goto(site)
    body = json.dumps({"model": "smollm2-135m", "method": "dpo", "gpu": "t4"})
    page.evaluate("window.memplanWeb.backend.limit = 1")
    status, text = page.evaluate(ASK, ["estimate", body])
    assert (status, json.loads(text)["error"]) == (422, "estimate took longer than 0.001 s")
    page.evaluate("window.memplanWeb.backend.limit = 60000")
    assert page.evaluate(ASK, ["estimate", body])[0] == 200


def test_where_the_memory_that_was_kept_is_of_no_use_python_starts_anew(page: Any, site: str) -> None:
    """Elsewhere it is of use: the engine says so as it begins."""
    body = json.dumps({"model": "smollm2-135m", "method": "dpo", "gpu": "t4"})
    page.goto(site)
    assert page.evaluate(ASK, ["start", ""]) == [200, "kept"]
    answer = page.evaluate(ASK, ["estimate", body])
    page.context.route("**/kept.json", lambda route: route.fulfill(json=route.fetch().json() | {"size": 1 << 16}))
    page.evaluate(
        "navigator.serviceWorker.getRegistrations().then((all) => Promise.all(all.map((each) => each.unregister())))"
    )
    page.reload()
    assert page.evaluate(ASK, ["start", ""]) == [200, ""]
    assert page.evaluate(ASK, ["estimate", body]) == answer
    page.context.unroute("**/kept.json")


def test_it_works_offline_once_it_was_there(context: Any, folder: Path) -> None:
    page = context.new_page()
    with served(folder) as there:
        page.goto(f"{there}#{JOB}")
        words = drawn(page)
        page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.reload()  # the server is gone
    assert drawn(page) == words
    page.close()


def test_the_form_the_address_and_the_keyboard(page: Any, site: str) -> None:
    page.goto(site)
    assert page.inner_text("#status") == "Name a model."
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "ask-skip"
    page.focus("#key-model")
    page.keyboard.type("smollm2-135m")
    page.keyboard.press("Tab")
    page.keyboard.type("dpo")
    page.keyboard.press("Tab")
    page.keyboard.type("t4")
    first = drawn(page)
    assert "smollm2-135m" in first
    assert page.evaluate("location.hash") == f"#{JOB}"
    page.reload()
    assert drawn(page) == first
    assert page.input_value("#key-gpu") == "t4"
    page.fill("#key-gpu", "no-such-card")
    page.wait_for_selector("#error:not([hidden])")
    assert "no-such-card" in page.inner_text("#error")
    assert "hint: " in page.inner_text("#error")


def test_a_file_that_is_dropped_and_an_error_that_is_pasted(page: Any, site: str, tmp_path: Path) -> None:
    page.goto(site)
    path = tmp_path / "train.yaml"
    path.write_text("# trl sft\nmodel_name_or_path: gpt2\ndataset_name: x\n")
    page.set_input_files("#file", str(path))
    assert "gpt2" in drawn(page)
    log = tmp_path / "error.log"
    log.write_text(OOM)
    page.set_input_files("#file", str(log))
    page.wait_for_selector("input[value=diagnose]:checked")
    page.locator("#drawn", has_text="3.91 GiB").wait_for()


def test_what_is_hostile_is_text_and_nothing_is_wider_than_the_page(page: Any, site: str) -> None:
    from urllib.parse import quote

    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(f"{site}#ask=estimate&model={quote(HOSTILE)}")
    page.wait_for_selector("#error:not([hidden])")
    assert page.evaluate("document.querySelectorAll('#answer img, #answer script').length") == 0
    text = quote(f"# trl sft\nmodel_name_or_path: gpt2\ndataset_name: x\n{json.dumps(HOSTILE)}: 1\n")
    # As by hand: a `goto` within one page waits for an address that the page may replace.
    for state, where, shown in (
        (f"ask=check&gpu=t4&name={quote('<b>.yaml')}&text={text}", "#error", "<b>.yaml"),
        (f"ask=check&gpu=t4&name=a.yaml&text={text}", "#drawn[data-whole=yes]", "onerror"),
        (f"ask=diagnose&text={quote(OOM + ' ' + HOSTILE)}", "#drawn[data-whole=yes]", "3.91 GiB"),
    ):
        page.evaluate("(state) => { location.hash = state; }", state)
        page.locator(where, has_text=shown).wait_for()
        assert page.evaluate("document.querySelectorAll('#answer img, #answer script, #answer b').length") == 0
    assert page.title() == "memplan"
    page.evaluate("(state) => { location.hash = state; }", JOB)
    page.locator("#drawn", has_text="smollm2").wait_for()
    for width in (375, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    unnamed = """[...document.querySelectorAll('#ask input, #ask select, #ask textarea')].filter(
        (each) => !each.labels.length && !each.getAttribute('aria-label')).map((each) => each.outerHTML)"""
    assert page.evaluate(unnamed) == []


def test_the_form_and_its_answer_speak_chinese(page: Any, site: str) -> None:
    page.goto(f"{site}#{JOB}&lang=zh")
    assert "放不下" in drawn(page) or "放得下" in drawn(page)
    assert page.locator("label[for=key-optimizer]").text_content() == "优化器"
    assert page.evaluate("document.documentElement.lang") == "zh"
    page.click("#languages a[lang=en]")
    page.wait_for_selector("html[lang=en]")
    assert "lang=en" in page.evaluate("location.hash")
    assert "smollm2-135m" in drawn(page)
    assert page.locator("label[for=key-optimizer]").text_content() == "Optimizer"
