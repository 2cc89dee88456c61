"""Configs come from the cache first, then from the Hub, and every refusal is two lines that say what to do.

A server on 127.0.0.1 speaks the Hub's protocol; huggingface_hub itself talks to it, through HF_ENDPOINT.
"""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakehub import COMMIT, FakeHub, Repo, running_hub, safetensors_header

from memplan.errors import EXIT_MODEL, ModelNotFound
from memplan.hub import Verification, cached_models, fetch_config, network, verify_parameters, weights
from memplan.hub.config import MAX_CONFIG_BYTES
from memplan.hub.refusal import RefusedError, Wanted, shown_endpoint, without_secrets
from memplan.hub.refusal import refusal as why
from memplan.hub.weights import count_header, explain_difference, header_bytes
from memplan.models import load_model
from memplan.tables.quantizations import Stored

LLAMA = {"model_type": "llama", "hidden_size": 64}
CONFIG = {"config.json": json.dumps(LLAMA).encode()}
OWN = "org/tiny-llama"


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """An empty server and an empty cache."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server.repos = {OWN: Repo(dict(CONFIG))}
    server.requests.clear()
    server.body_bytes = 0
    return server


@pytest.fixture
def impatient(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short deadline, once huggingface_hub is imported and has asked what it asks at first."""
    fetch_config(OWN)
    shutil.rmtree(Path(os.environ["HF_HOME"]) / "hub")
    monkeypatch.setattr(network, "DEADLINE_S", 0.4)


def put_in_cache(home: Path, repo_id: str, text: bytes, revision: str = "main", commit: str = COMMIT) -> Path:
    repository = home / "hub" / ("models--" + repo_id.replace("/", "--"))
    path = repository / "snapshots" / commit / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    ref = repository / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    return path


def refusal(repo_id: str = OWN, revision: str | None = None, presets: tuple[str, ...] = ()) -> str:
    """Message and hint of the refusal, after the checks that hold for every one."""
    with pytest.raises(ModelNotFound) as caught:
        fetch_config(repo_id, revision, presets)
    error = caught.value
    assert error.exit_code == EXIT_MODEL
    assert error.hint
    text = f"{error.message}\n{error.hint}"
    assert text.count("\n") == 1
    assert "{" not in text
    return text


class TestFetch:
    def test_downloads_then_finds_it_in_the_cache(self, hub: FakeHub) -> None:
        first = fetch_config(OWN)
        assert (first.config, first.origin, first.commit, first.revision) == (LLAMA, "hub", COMMIT, None)
        assert {path for _, path, _ in hub.requests} == {f"/{OWN}/resolve/main/config.json"}
        hub.requests.clear()
        again = fetch_config(OWN)
        assert (again.config, again.origin, again.commit) == (LLAMA, "cache", COMMIT)
        assert again.path == first.path
        assert hub.requests == []

    def test_takes_a_revision(self, hub: FakeHub) -> None:
        hub.repos[OWN].revisions = ("refs/pr/1",)
        assert "has no revision 'main'" in refusal()
        hub.repos[OWN].revisions = ("v1",)
        assert fetch_config(OWN, "v1").origin == "hub"
        assert fetch_config(OWN, "v1").origin == "cache"
        assert fetch_config(OWN, COMMIT).origin == "cache"

    def test_the_names_of_a_quantised_checkpoints_tensors_come_with_it(self, hub: FakeHub) -> None:
        """A list that is not understood says nothing; the index does."""
        section = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["re:^(?!x)y"]}
        linears = [f"model.layers.{layer}.mlp.{name}_proj" for layer in range(2) for name in ("gate", "up", "down")]
        names = dict.fromkeys(
            [f"{linear}.qweight" for linear in linears] + ["model.layers.0.self_attn.q_proj.weight"], "a"
        )
        told = {}
        for name, more in (("org/silent", {}), (OWN, {"model.safetensors.index.json": {"weight_map": names}})):
            files = {"config.json": LLAMA | {"num_hidden_layers": 2, "quantization_config": section}, **more}
            hub.repos[name] = Repo({each: json.dumps(text).encode() for each, text in files.items()})
            told[name] = load_model(name).quantization
        assert told["org/silent"] == Stored("awq")
        assert getattr(told[OWN], "plain", None) == {"self_attn", "mtp"}

    def test_accepts_a_name_without_organisation(self, hub: FakeHub) -> None:
        hub.repos["gpt2"] = Repo(dict(CONFIG))
        assert fetch_config("gpt2").config == LLAMA

    def test_sends_the_token(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.repos[OWN] = Repo(dict(CONFIG), gated=True, readers=("hf_reader",))
        monkeypatch.setenv("HF_TOKEN", "hf_reader")
        assert fetch_config(OWN).config == LLAMA
        assert {token for _, _, token in hub.requests} == {"hf_reader"}

    def test_sends_no_token_that_is_not_set(self, hub: FakeHub) -> None:
        fetch_config(OWN)
        assert {token for _, _, token in hub.requests} == {None}

    def test_leaves_huggingface_hub_as_it_was(self, hub: FakeHub) -> None:
        from huggingface_hub.utils import logging as own
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled

        before = own.get_verbosity()
        own.set_verbosity(logging.INFO)
        hooks = self.hooks()
        fetch_config(OWN)
        assert own.get_verbosity() == logging.INFO
        own.set_verbosity(before)
        assert not are_progress_bars_disabled()
        assert self.hooks() == hooks
        with network._quiet():
            assert logging.getLogger("huggingface_hub").level == logging.CRITICAL
            assert are_progress_bars_disabled()
        assert not are_progress_bars_disabled()

    @staticmethod
    def hooks() -> list[Any]:
        """What huggingface_hub's session calls with each response."""
        session, _ = network._session()
        return list((session.event_hooks if network._is_httpx(session) else session.hooks)["response"])

    def test_prints_nothing(self, hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
        hub.repos["org/down"] = Repo(status=503)
        fetch_config(OWN)
        refusal("org/down")
        assert capfd.readouterr() == ("", "")


class TestCache:
    def test_costs_no_import_of_huggingface_hub(self, tmp_path: Path) -> None:
        put_in_cache(tmp_path, OWN, CONFIG["config.json"])
        code = (
            "import sys; from memplan.hub import fetch_config; "
            f"assert fetch_config({OWN!r}).config == {LLAMA!r}; "
            "print({'huggingface_hub', 'httpx', 'requests', 'rich', 'pydantic'} & set(sys.modules))"
        )
        environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        environment.pop("HF_HUB_CACHE", None)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "set()\n"

    @pytest.mark.parametrize("revision", [None, "main", COMMIT, "refs/pr/3"])
    def test_resolves_revisions(self, hub: FakeHub, tmp_path: Path, revision: str | None) -> None:
        put_in_cache(tmp_path, OWN, CONFIG["config.json"])
        put_in_cache(tmp_path, OWN, CONFIG["config.json"], "refs/pr/3")
        found = fetch_config(OWN, revision)
        assert (found.origin, found.commit, found.revision) == ("cache", COMMIT, revision)
        assert hub.requests == []

    def test_only_models_with_a_config_are_there(self, hub: FakeHub, tmp_path: Path) -> None:
        put_in_cache(tmp_path, OWN, CONFIG["config.json"])
        dataset = put_in_cache(tmp_path, "org/words", CONFIG["config.json"]).parents[2]
        dataset.rename(dataset.with_name("datasets--org--words"))
        put_in_cache(tmp_path, "org/weights", b"").unlink()
        assert cached_models() == [OWN]

    @pytest.mark.parametrize(("held", "asked"), [("a/b", "a--b"), ("a" * 97, "a" * 97), ("a/x.git", "a/x.git")])
    def test_what_is_no_id_is_not_looked_for(self, hub: FakeHub, tmp_path: Path, held: str, asked: str) -> None:
        put_in_cache(tmp_path, held, CONFIG["config.json"])
        assert f"not a Hub repository id: {asked!r}" in refusal(asked)

    def test_an_id_may_have_96_letters(self, hub: FakeHub, tmp_path: Path) -> None:
        put_in_cache(tmp_path, "a" * 96, CONFIG["config.json"])
        assert fetch_config("a" * 96).origin == "cache"

    def test_of_what_is_no_config_nothing_is_kept(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.repos[OWN].files["config.json"] = b"[1]"
        refusal()
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"[1]"]

    def test_hf_hub_cache_goes_before_hf_home(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_in_cache(tmp_path / "other", OWN, CONFIG["config.json"])
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other" / "hub"))
        assert fetch_config(OWN).origin == "cache"
        assert cached_models() == [OWN]

    def test_has_the_same_home_as_huggingface_hub(self, tmp_path: Path) -> None:
        code = (
            "from memplan.hub.cache import cache_folder; from huggingface_hub.constants import HF_HUB_CACHE; "
            "assert str(cache_folder()) == HF_HUB_CACHE, (cache_folder(), HF_HUB_CACHE)"
        )
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "XDG_"))}
        environment = {**plain, "XDG_CACHE_HOME": "~/$SUB/cache", "SUB": "sub"}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)

    def test_a_link_to_a_deleted_blob_is_not_cached(self, hub: FakeHub, tmp_path: Path) -> None:
        path = put_in_cache(tmp_path, OWN, b"")
        path.unlink()
        path.symlink_to("../../blobs/gone")
        assert fetch_config(OWN).origin == "hub"

    @pytest.mark.parametrize("commit", ["", "../../..", "main\0", "not a commit"])
    def test_a_broken_ref_is_not_cached(self, hub: FakeHub, tmp_path: Path, commit: str) -> None:
        ref = put_in_cache(tmp_path, OWN, CONFIG["config.json"]).parents[2] / "refs" / "main"
        ref.write_text(commit)
        assert fetch_config(OWN).origin == "hub"

    def test_a_revision_cannot_leave_the_cache(self, hub: FakeHub, tmp_path: Path) -> None:
        (tmp_path / "hub" / "secret").mkdir(parents=True)
        (tmp_path / "hub" / "secret" / "config.json").write_text("{}")
        put_in_cache(tmp_path, OWN, CONFIG["config.json"])
        assert "has no revision '../../secret'" in refusal(revision="../../secret")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (b"", "no valid JSON"),
            (b'{"a": 1', "no valid JSON"),
            (b"\xff\xfe\xfa", "no valid JSON"),
            (b'{"a": ' + b"1" * 5000 + b"}", "no valid JSON"),
            (b"[1]", "a JSON list, not an object"),
            (b"null", "a JSON NoneType, not an object"),
            (b"  <html></html>", "an HTML or XML page"),
            (b'{"a":' * 100 + b"1" + b"}" * 100, "nested too deeply"),
            (b'{"a":' * 200_000, "nested too deeply"),
            (b" " * (MAX_CONFIG_BYTES + 1), "at most 10,000,000 are read"),
        ],
    )
    def test_says_what_is_wrong_with_a_cached_file(
        self, hub: FakeHub, tmp_path: Path, text: bytes, reason: str
    ) -> None:
        path = put_in_cache(tmp_path, OWN, text)
        said = refusal()
        assert reason in said
        assert str(path) in said
        assert "delete that file" in said

    def test_deleting_that_file_mends_it(self, hub: FakeHub, tmp_path: Path) -> None:
        path = fetch_config(OWN).path
        path.resolve().write_text("broken")
        said = refusal()
        assert str(path.resolve()) in said
        path.resolve().unlink()
        assert fetch_config(OWN).config == LLAMA

    def test_takes_infinity_and_a_byte_order_mark(self, hub: FakeHub, tmp_path: Path) -> None:
        put_in_cache(tmp_path, OWN, b'\xef\xbb\xbf{"time_step_limit": [0.0, Infinity]}')
        assert fetch_config(OWN).config == {"time_step_limit": [0.0, float("inf")]}


class TestRefusals:
    @pytest.mark.parametrize(
        "repo_id", ["a/b/c", "", "a b", "/x", "x/", "a--b", "..", "x/..", "x.git", "ä/b", "a" * 97]
    )
    def test_invalid_id_asks_nobody(self, hub: FakeHub, repo_id: str) -> None:
        said = refusal(repo_id)
        assert f"not a Hub repository id: {repo_id!r}\nwrite organisation/name" in said
        assert hub.requests == []

    def test_an_address_of_the_hub_becomes_an_id(self, hub: FakeHub) -> None:
        assert refusal("https://huggingface.co/Qwen/Qwen3-8B/tree/main").endswith("\nwrite Qwen/Qwen3-8B")

    def test_missing(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        assert f"no repository 'org/none' at {hub.url}\n" in refusal("org/none")
        monkeypatch.setenv("HF_TOKEN", "hf_reader")
        assert "if it is private, check your token" in refusal("org/none")

    def test_private(self, hub: FakeHub) -> None:
        hub.repos[OWN].private = True
        assert "if it is private, set HF_TOKEN" in refusal()

    def test_gated(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.repos[OWN].gated = True
        assert refusal() == (
            f"'{OWN}' is gated, and no token is set\naccept its terms at {hub.url}/{OWN} and set HF_TOKEN"
        )
        monkeypatch.setenv("HF_TOKEN", "hf_other")
        assert refusal() == f"'{OWN}' is gated, and your token has no access to it\nask for access at {hub.url}/{OWN}"

    def test_stale_token(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_stale")
        assert "the Hub rejects the token" in refusal()

    def test_token_that_is_no_token(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_“quoted”")
        said = refusal()
        assert "HF_TOKEN" in said
        assert "quoted" not in said

    def test_wrong_revision(self, hub: FakeHub, tmp_path: Path) -> None:
        assert f"'{OWN}' has no revision 'v9'\ngive a branch" in refusal(revision="v9")
        put_in_cache(tmp_path, OWN, CONFIG["config.json"])
        assert refusal(revision="v9").endswith("; cached is revision main")

    def test_no_config(self, hub: FakeHub) -> None:
        hub.repos[OWN].files = {"model.gguf": b""}
        assert f"'{OWN}' has no config.json\n" in refusal()

    @pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
    def test_offline(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        monkeypatch.setenv(variable, "1")
        assert f"'{OWN}' is not cached, and {variable} is set\nunset {variable}" in refusal()
        assert hub.requests == []

    def test_server_down(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:  # bound but not listening: connections are refused
            taken.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
            said = refusal()
        assert "cannot reach the Hub at http://127.0.0.1:" in said
        assert ": connection refused\n" in said

    @pytest.mark.parametrize(
        "endpoint", ["hub.example.com", "ftp://hub", "http//x", "http://[x", "http://x:y", "https:"]
    )
    def test_endpoint_that_is_no_url(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert f"HF_ENDPOINT is not a URL: {endpoint!r}" in refusal()

    @pytest.mark.parametrize(
        ("status", "said"),
        [
            (503, "status 503"),
            (500, "status 500"),
            (429, "limits requests"),
            (403, "forbids access"),
            (418, "status 418"),
        ],
    )
    def test_status(self, hub: FakeHub, status: int, said: str) -> None:
        hub.repos[OWN].status = status
        assert said in refusal()
        assert len(hub.requests) == 1

    @pytest.mark.parametrize("fault", ["silent", "trickle"])
    def test_slow(self, hub: FakeHub, impatient: None, fault: str) -> None:
        hub.repos[OWN].fault = fault
        assert "did not answer in time" in refusal()

    def test_redirects_without_end(self, hub: FakeHub) -> None:
        hub.repos[OWN].fault = "loop"
        assert "redirects without end" in refusal()

    def test_a_page_where_a_hub_should_be(self, hub: FakeHub) -> None:
        hub.repos[OWN].fault = "portal"
        assert "does not answer as a Hub" in refusal()

    @pytest.mark.parametrize(
        "etag", ['"../../../out"', "W/../../../out", '"/tmp/memplan-out"', '".."', '"a/b"', "a\\b"]
    )
    @pytest.mark.parametrize("first", [[], ['"plain-1"']])
    def test_an_etag_that_is_a_path_writes_nothing(
        self, hub: FakeHub, tmp_path: Path, etag: str, first: list[str]
    ) -> None:
        """Neither what is asked here nor what huggingface_hub asks again, which may be answered otherwise."""
        hub.repos[OWN].etags = [*first, etag]
        assert "is no plain name" in refusal(OWN)
        assert not [
            path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == CONFIG["config.json"]
        ]
        assert not Path("/tmp/memplan-out").exists()

    @pytest.mark.parametrize("etag", ['"0a1b-12"', 'W/"abc"', '"a.b+c="'])
    def test_a_plain_etag_is_taken(self, hub: FakeHub, etag: str) -> None:
        hub.repos[OWN].etags = [etag]
        assert fetch_config(OWN).config == LLAMA

    def test_content_length_beyond_the_content(self, hub: FakeHub, impatient: None) -> None:
        hub.repos[OWN].fault = "longer"
        said = refusal()
        assert "did not answer in time" in said or "does not arrive whole" in said

    def test_too_large(self, hub: FakeHub) -> None:
        hub.repos[OWN].fault = "says-huge"
        assert "config.json of 'org/tiny-llama' is too large" in refusal()
        assert hub.body_bytes == 0

    @pytest.mark.parametrize("text", [b"<html>", b"{", b"[]", b'{"a":' * 500 + b"1" + b"}" * 500])
    def test_what_is_no_config_is_not_kept(self, hub: FakeHub, text: bytes) -> None:
        hub.repos[OWN].files = {"config.json": text}
        assert "config.json of 'org/tiny-llama' is not usable" in refusal()
        hub.repos[OWN].files = dict(CONFIG)
        assert fetch_config(OWN).config == LLAMA

    @pytest.mark.parametrize("where", ["snapshots/{commit}/config.json", "refs/main"])
    def test_a_pipe_in_the_cache_is_not_waited_for(self, hub: FakeHub, where: str) -> None:
        found = fetch_config(OWN)
        path = Path(os.environ["HF_HOME"], "hub", "models--org--tiny-llama", where.format(commit=found.commit))
        path.unlink()
        os.mkfifo(path)
        assert "no regular file" in refusal()
        assert str(path.name) in refusal()

    def test_the_deadline_begins_when_the_hub_is_asked(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        """An import that takes longer than the deadline is none of the Hub's."""
        monkeypatch.setattr(network, "DEADLINE_S", 1.0)
        session, slept = network._session, [1.1]

        def slow_to_import() -> Any:
            if slept:
                time.sleep(slept.pop())
            return session()

        monkeypatch.setattr(network, "_session", slow_to_import)
        assert fetch_config(OWN).config == LLAMA

    @pytest.mark.skipif(os.name == "nt", reason="a file in place of a folder is told in other words")
    def test_cache_that_cannot_be_written(self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
        assert "cannot be cached: Not a directory\nset HF_HOME" in refusal()

    @pytest.mark.parametrize(
        ("endpoint", "shown"),
        [
            ("https://user:secret@hub.example.com/x/", "https://hub.example.com/x"),
            ("https://user:secr%2Fet@hub.example.com", "https://hub.example.com"),
            ("https://user:se/cr@et@hub.example.com/x", "https://hub.example.com/x"),
            ("https://hf_abcdef@hub.example.com:8080", "https://hub.example.com:8080"),
            ("user:secret@hub.example.com", "hub.example.com"),
            ("https://hub.example.com/x?token=secret", "https://hub.example.com/x"),
            ("https://hub.example.com/hf_secretsecret/x", "https://hub.example.com/…/x"),
            ("https://hub.example.com/3f9d8c7b6a5e4d3c2b1a/x", "https://hub.example.com/…/x"),
            ("https://hub.example.com/api/models", "https://hub.example.com/api/models"),
        ],
    )
    def test_shows_no_secret_of_the_endpoint(self, monkeypatch: pytest.MonkeyPatch, endpoint: str, shown: str) -> None:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert shown_endpoint() == shown
        assert without_secrets(f"no answer from {endpoint.rstrip('/')}/org") == f"no answer from {shown}/org"

    def test_an_error_shows_no_secret_whatever_was_wrong(
        self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        address = hub.url.removeprefix("http://")
        for secret in ("name:pass-word@", "hf_pass-word@"):
            monkeypatch.setenv("HF_ENDPOINT", f"http://{secret}{address}")
            for status in (200, 401, 404, 429, 500):
                hub.repos[OWN].status, hub.repos[OWN].files = status, {"config.json": b"<html>"}
                assert "pass-word" not in refusal()

    def test_tells_what_only_some_releases_raise(self, hub: FakeHub) -> None:
        from huggingface_hub.errors import LocalEntryNotFoundError

        wrapped = LocalEntryNotFoundError("cannot find the requested files")
        wrapped.__cause__ = ConnectionError("[Errno 111] Connection refused")
        assert ": connection refused" in why(Wanted(OWN), wrapped).message
        incomplete = OSError("Consistency check failed: file should be of size 9 but has size 7. Retry.")
        assert "does not arrive whole: Consistency check failed: file" in why(Wanted(OWN), incomplete).message
        assert (
            "does not answer as a Hub for 'org/tiny-llama': KeyError" in why(Wanted(OWN), KeyError("x" * 200)).message
        )

    def test_a_cause_is_asked_only_of_what_stands_for_it(self, hub: FakeHub) -> None:
        from huggingface_hub.errors import LocalEntryNotFoundError

        broken = ConnectionError("[Errno 111] Connection refused")
        broken.__cause__ = KeyError("x")
        assert ": connection refused" in why(Wanted(OWN), broken).message
        assert why(Wanted(OWN), LocalEntryNotFoundError("none")).message == f"'{OWN}' has no config.json"
        assert why(Wanted(OWN), KeyError()).message.endswith(": KeyError")

    def test_a_secret_is_hidden_where_it_stands_alone_and_a_short_name_is_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "https://names:secret@hub.example.com")
        assert without_secrets("names, secret, secrets") == "names, …, …s"

    def test_redirects_are_followed_within_the_host_alone(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        """What describes a file comes with the redirect to its storage, which is not asked."""
        home, storage = "https://hub.example.com", "https://storage.example.com/blob"
        answers = {
            f"{home}/old": (307, {"Location": "/new"}),
            f"{home}/new": (302, {"Location": storage, "ETag": "of the hub"}),
            f"{home}/plain": (200, {"Location": "/new", "ETag": "plain"}),
            storage: (200, {"ETag": "of the storage"}),
        }
        asked: list[tuple[str, bool]] = []

        class Session:
            def request(self, method: str, url: str, **options: Any) -> Any:
                asked.append((url, options["follow"]))
                status, headers = answers[url]
                return SimpleNamespace(status_code=status, headers=headers, raise_for_status=lambda: None)

        monkeypatch.setattr(network, "_session", lambda: (Session(), "follow"))
        assert network._head(f"{home}/old")["ETag"] == "of the hub"
        assert asked == [(f"{home}/old", False), (f"{home}/new", False)]
        assert network._head(f"{home}/plain")["ETag"] == "plain"

    def test_progress_bars_that_were_off_stay_off(self, hub: FakeHub) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

        for left in (each for each in threading.enumerate() if each.name == "memplan-hub"):
            left.join()  # a call that another test gave up on puts back what it found when it ends
        disable_progress_bars()
        try:
            fetch_config(OWN)
            assert are_progress_bars_disabled()
        finally:
            enable_progress_bars()


class TestAlternatives:
    def test_what_is_of_no_use_is_not_advised(self, hub: FakeHub, tmp_path: Path) -> None:
        put_in_cache(tmp_path, OWN, b"[]", "v2")
        assert "cached" not in refusal(revision="v2").partition("\n")[2].replace("delete that file", "")
        put_in_cache(tmp_path, OWN, b"[]")
        assert f"the cached {OWN}" not in refusal()

    def test_names_the_preset_and_the_cached_model(self, hub: FakeHub, tmp_path: Path) -> None:
        put_in_cache(tmp_path, "meta-llama/Llama-3.1-8B", CONFIG["config.json"])
        said = refusal("meta-llama/Llama-3.1-8B-Instruct", presets=("qwen3-8b", "llama-3.1-8b"))
        assert said.endswith("; or use the preset llama-3.1-8b or the cached meta-llama/Llama-3.1-8B")

    def test_names_the_cached_revision(self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put_in_cache(tmp_path, OWN, CONFIG["config.json"], "v1")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert refusal(revision="v2").endswith("; cached is revision v1")

    def test_points_at_the_presets_when_none_is_near(self, hub: FakeHub) -> None:
        assert refusal("org/zzz", presets=("llama-3.1-8b",)).endswith("; or use a preset (memplan show models)")


Tensor = tuple[str, tuple[str, list[int], int]]
HEAD: Tensor = ("lm_head.weight", ("BF16", [8, 4], 2))
BODY: Tensor = ("model.layers.0.w", ("BF16", [4, 4], 2))
SCALE: Tensor = ("model.layers.0.scale", ("F32", [], 4))


class TestWaiting:
    def test_gathers_more_items_than_threads(self) -> None:
        assert sorted(network.gather(range(50), lambda number: number * 2)) == list(range(0, 100, 2))
        assert network.gather([], str) == []

    def test_hands_over_the_first_error(self) -> None:
        with pytest.raises(IndexError, match="pop from empty list"):
            network.gather([[1], []], list.pop)

    def test_the_time_before_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(network, "DEADLINE_S", 0.1)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
            network.gather([0.05], time.sleep, time.monotonic() - 0.1)


class TestVerification:
    def test_single_file(self, hub: FakeHub) -> None:
        hub.repos[OWN].files["model.safetensors"] = safetensors_header(dict([HEAD, BODY, SCALE])) + bytes(100)
        found = verify_parameters(OWN, None, 49)
        assert (found.total, found.agrees, found.by_dtype) == (49, True, {"BF16": 48, "F32": 1})
        assert found.summary.endswith("hold 49 parameters, as counted (BF16 48, F32 1)")

    def test_shards_and_a_long_header(self, hub: FakeHub) -> None:
        names = {HEAD[0]: "a.safetensors", BODY[0]: "b.safetensors"}
        hub.repos[OWN].files |= {
            "model.safetensors.index.json": json.dumps({"weight_map": names}).encode(),
            "a.safetensors": safetensors_header(dict([HEAD])),
            "b.safetensors": safetensors_header(dict([BODY]), padding=250_000),
        }
        found = verify_parameters(OWN, "main", 40)
        assert (found.total, found.agrees) == (48, False)
        assert found.summary.endswith("hold 48 elements (BF16 48), memplan counts 40: +8")
        assert {f"/{OWN}/resolve/{COMMIT}/{name}" for name in names.values()} < {path for _, path, _ in hub.requests}

    def test_reads_no_weights_even_where_ranges_are_ignored(self, hub: FakeHub) -> None:
        hub.repos[OWN].fault = "ignores-range"
        hub.repos[OWN].files["model.safetensors"] = safetensors_header(dict([HEAD]))
        assert verify_parameters(OWN, None, 32).agrees
        assert hub.body_bytes < 1 << 27

    def test_says_when_there_are_no_safetensors(self, hub: FakeHub) -> None:
        found = verify_parameters(OWN, None, 48)
        assert (found.total, found.agrees) == (None, None)
        assert found.summary == f"{OWN} has no safetensors files: 48 parameters are not verified"

    def test_reads_cached_weights_offline(self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        folder = put_in_cache(tmp_path, OWN, CONFIG["config.json"]).parent
        with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE is set"):
            verify_parameters(OWN, None, 48)
        names = {HEAD[0]: "a.safetensors", BODY[0]: "b.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
        (folder / "a.safetensors").write_bytes(safetensors_header(dict([HEAD])))
        (folder / "b.safetensors").write_bytes(safetensors_header(dict([BODY])))
        assert verify_parameters(OWN, None, 48).agrees
        assert hub.requests == []

    def test_weights_of_which_one_file_is_cached_are_not(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        folder = put_in_cache(tmp_path, OWN, CONFIG["config.json"]).parent
        names = {HEAD[0]: "a.safetensors", BODY[0]: "b.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
        (folder / "a.safetensors").write_bytes(safetensors_header(dict([HEAD])))
        with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE is set"):
            verify_parameters(OWN, None, 48)

    def test_takes_a_revision(self, hub: FakeHub) -> None:
        hub.repos[OWN] = Repo({"model.safetensors": safetensors_header(dict([HEAD]))}, revisions=("v1", COMMIT))
        assert verify_parameters(OWN, "v1", 32).agrees
        with pytest.raises(ModelNotFound, match="has no revision 'main'"):
            verify_parameters(OWN, None, 32)

    def test_a_header_that_the_first_request_holds_is_not_asked_for_again(self, hub: FakeHub) -> None:
        rest = weights._FIRST_READ - len(safetensors_header(dict([HEAD])))
        for more, requests in ((0, 1), (1, 2)):
            hub.requests.clear()
            hub.repos[OWN].files["model.safetensors"] = safetensors_header(dict([HEAD]), padding=rest + more)
            assert verify_parameters(OWN, None, 32).agrees
            assert [method for method, _, _ in hub.requests].count("GET") == requests

    def test_an_index_names_so_many_files_at_most(self, tmp_path: Path) -> None:
        path = tmp_path / "index.json"
        for count in (4096, 4097):
            names = {str(number): f"{number:05}.safetensors" for number in range(count)}
            path.write_text(json.dumps({"weight_map": names}))
            if count > 4096:
                with pytest.raises(RefusedError, match="header"):
                    weights.shard_names(path)
            else:
                assert weights.shard_names(path) == sorted(names.values())

    @pytest.mark.parametrize(
        "tensor", [3, {"shape": [1]}, {"dtype": "F32"}, {"dtype": "F32", "shape": [1], "data_offsets": [0]}]
    )
    def test_a_tensor_that_says_too_little_is_refused(self, tensor: Any) -> None:
        text = json.dumps({"x": tensor}).encode()
        with pytest.raises(RefusedError, match="contradicts itself"):
            count_header(len(text).to_bytes(8, "little") + text)

    def test_missing_and_gated_are_told_as_for_the_config(self, hub: FakeHub) -> None:
        with pytest.raises(ModelNotFound, match="no repository 'org/none'"):
            verify_parameters("org/none", None, 1)
        hub.repos[OWN].gated = True
        with pytest.raises(ModelNotFound, match="is gated"):
            verify_parameters(OWN, None, 1)

    def test_a_header_that_trickles(self, hub: FakeHub, impatient: None) -> None:
        hub.repos[OWN] = Repo({"model.safetensors": safetensors_header(dict([HEAD]))}, fault="trickle")
        with pytest.raises(ModelNotFound, match="did not answer in time"):
            verify_parameters(OWN, None, 1)

    @pytest.mark.parametrize(
        "start",
        [
            b"",
            b"\x01",
            b"\xff" * 100,
            b"<html>not a file of tensors</html>",
            (9).to_bytes(8, "little") + b'{"a": 1}}',
            (2).to_bytes(8, "little") + b"[]",
            safetensors_header({"x": ("BF16", [-4, 4], 2)}),
            safetensors_header({"x": ("BF16", [4, 4], 4)}),
            safetensors_header({"x": ("BF16", [4, 4], 2)})[:40],
        ],
    )
    def test_what_is_no_header_is_refused(self, hub: FakeHub, start: bytes) -> None:
        hub.repos[OWN].files["model.safetensors"] = start
        with pytest.raises(ModelNotFound, match="safetensors headers of 'org/tiny-llama' are not usable") as caught:
            verify_parameters(OWN, None, 1)
        assert "\n" not in caught.value.message

    @pytest.mark.parametrize(
        "index", [{}, {"weight_map": {}}, {"weight_map": {"w": "../../x.safetensors"}}, {"weight_map": {"w": 3}}]
    )
    def test_what_is_no_index_is_refused(self, hub: FakeHub, index: dict[str, Any]) -> None:
        hub.repos[OWN].files["model.safetensors.index.json"] = json.dumps(index).encode()
        with pytest.raises(ModelNotFound, match="does not map tensors"):
            verify_parameters(OWN, None, 1)

    def test_explains_only_what_is_certain(self) -> None:
        known = {"the tied head stored twice": 32, "a multi-token-prediction layer": 16}
        assert explain_difference(32, {"BF16": 1}, known) == "which is the tied head stored twice"
        both = explain_difference(48, {"BF16": 1}, known)
        assert both == "which is a multi-token-prediction layer and the tied head stored twice"
        assert explain_difference(47, {"BF16": 1}, known) == ""
        assert explain_difference(16, {"BF16": 1}, {"one": 16, "other": 16}) == ""
        assert "U8 elements may be packed weights" in explain_difference(-5, {"U8": 1, "BF16": 1}, {})
        assert explain_difference(0, {"U8": 1}, {"nothing": 0}) == ""

    def test_the_explanation_is_part_of_the_line(self) -> None:
        found = Verification(OWN, None, 40, {"BF16": 48}, "which is the tied head stored twice")
        assert found.summary.endswith("memplan counts 40: +8, which is the tied head stored twice")

    @pytest.mark.parametrize(
        ("width", "dtypes"),
        [(8, "F64 I64 U64"), (4, "F32 I32 U32"), (2, "F16 BF16 I16 U16"), (1, "I8 U8 BOOL F8_E4M3 F8_E5M2 F8_E8M0")],
    )
    def test_knows_how_wide_each_dtype_is(self, width: int, dtypes: str) -> None:
        for dtype in dtypes.split():
            assert count_header(safetensors_header({"x": (dtype, [3, 5], width)})) == {dtype: 15}
            for other in (width - 1, width + 1):
                with pytest.raises(RefusedError):
                    count_header(safetensors_header({"x": (dtype, [3, 5], other)}))
        assert count_header(safetensors_header({"x": ("F3_NEW", [3, 5], 7)})) == {"F3_NEW": 15}

    def test_no_extent_is_negative(self) -> None:
        with pytest.raises(RefusedError, match="header"):
            count_header(safetensors_header({"x": ("F3_NEW", [-1, -1], 1)}))

    def test_a_header_may_be_as_long_as_huggingface_hub_reads(self) -> None:
        assert header_bytes((25_000_000).to_bytes(8, "little")) == 25_000_008
        with pytest.raises(RefusedError, match="header"):
            header_bytes((25_000_001).to_bytes(8, "little"))

    def test_a_file_of_the_limit_is_read(self, hub: FakeHub) -> None:
        size = len(CONFIG["config.json"])
        with pytest.raises(RefusedError, match="too-large"):
            network.download(OWN, "config.json", None, size - 1)
        assert network.download(OWN, "config.json", None, size)[0].stat().st_size == size

    def test_counts_scalars_and_empty_tensors(self) -> None:
        assert count_header(safetensors_header({"a": ("F32", [], 4), "b": ("F32", [0, 7], 4)})) == {"F32": 1}
