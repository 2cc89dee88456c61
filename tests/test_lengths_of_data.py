"""Proves what ``memplan lengths`` counts: which columns are sequences, what a template adds, what a file then holds.

The tokenizer is a stand-in of one token a word, so that every length can be counted by eye.
"""

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from commands import Run, runner_of

import memplan
from memplan.lengths.chat import messages_of, text_of
from memplan.lengths.records import CHUNK, rows
from memplan.render.blocks import Table
from memplan.render.lengths_view import histogram_blocks, percentiles

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} \n{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


class Words:
    """A tokenizer of words, which begins a text with one token."""

    @classmethod
    def from_file(cls, file: str) -> "Words":
        if not json.loads(Path(file).read_text()):
            raise ValueError("no model")
        return cls()

    def no_truncation(self) -> None:
        """As the library has it."""

    no_padding = no_truncation

    def encode(self, text: str) -> Any:
        return SimpleNamespace(tokens=["<s>", *text.split()], ids=range(1 + len(text.split())))

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[Any]:
        return [SimpleNamespace(ids=range(len(text.split()) + add_special_tokens)) for text in texts]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where data sets are, beside the folder of a tokenizer."""
    module = ModuleType("tokenizers")
    module.Tokenizer = Words  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", module)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text('{"model": {}}')
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys, "lengths")


def counted(run: Run, rows: list[dict[str, Any]], *arguments: str) -> list[Any]:
    """The file that comes of a data set."""
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = run("data.jsonl", "--tokenizer", "tok", "-o", "lengths.txt", "--force", *arguments)
    assert code == 0, err
    return [json.loads(line) for line in Path("lengths.txt").read_text().splitlines()]


USER, ANSWER = {"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e"}


@pytest.mark.parametrize(
    ("row", "length"),
    [
        ({"text": "a b c"}, 5),
        ({"text": ""}, 2),
        ({"prompt": "a b", "completion": " c d e"}, {"prompt": 3, "completion": 4}),
        ({"prompt": "a b", "chosen": "c", "rejected": "d e"}, {"prompt": 3, "chosen": 2, "rejected": 3}),
        ({"chosen": "a b", "rejected": "c"}, {"chosen": 4, "rejected": 3}),
        ({"messages": [USER, ANSWER]}, 5 + 10),
        ({"conversations": [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}]}, 5 + 10),
        ({"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a b"}]}]}, 2 + 5),
        ({"prompt": [USER], "chosen": [ANSWER], "rejected": [ANSWER]}, {"prompt": 13, "chosen": 2, "rejected": 2}),
        ({"chosen": [USER, ANSWER], "rejected": [USER, USER]}, {"chosen": 15, "rejected": 16}),
        ({"prompt": "a", "completion": [ANSWER]}, {"prompt": 11, "completion": 2}),
        ({"instruction": "a b", "input": "", "output": "c"}, 3 + 10),
        ({"input_ids": [1, 2, 3, 4]}, 4),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_rows_of_every_kind(folder: Path, run: Run, row: dict[str, Any], length: Any) -> None:
    assert counted(run, [row, row]) == [length, length]


def test_columns_by_other_names(folder: Path, run: Run) -> None:
    row = {"question": "a b", "answer": "c d e", "id": 7}
    assert counted(run, [row], "--columns", "prompt=question,completion=answer") == [{"prompt": 3, "completion": 4}]
    assert counted(run, [row], "--columns", "answer") == [5]


def test_conversations_without_a_template_say_what_is_added(folder: Path, run: Run) -> None:
    counted(run, [{"messages": [USER, ANSWER]}])
    _, _, err = run("data.jsonl", "--tokenizer", "tok")
    assert err == (
        "warning: conversations: the tokenizer has no chat template: 5 tokens are added to each message for its marks\n"
    )
    counted(run, [{"text": "a"}])
    assert run("data.jsonl", "--tokenizer", "tok")[2] == ""


@pytest.mark.parametrize("where", ["tokenizer_config.json", "chat_template.jinja", "named"])
def test_a_template_is_rendered_in_a_sandbox(folder: Path, run: Run, where: str) -> None:
    pytest.importorskip("jinja2")
    if where == "chat_template.jinja":
        (folder / "tok" / where).write_text(TEMPLATE)
    else:
        template = [{"name": "default", "template": TEMPLATE}] if where == "named" else TEMPLATE
        (folder / "tok" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert counted(run, [{"messages": [USER, ANSWER]}]) == [2 + 5]
    row = {"prompt": [USER], "chosen": [ANSWER], "rejected": [{"role": "assistant", "content": "x"}]}
    assert counted(run, [row]) == [{"prompt": 5, "chosen": 2, "rejected": 1}]
    assert counted(run, [{"messages": [USER, ANSWER]}], "--no-template") == [15]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for", "cannot be read"),
        ("{{ raise_exception('only users') }}", "only users"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses a row"),
        ("{% for i in range(999999999) %}x{% endfor %}", "refuses a row"),
        ("{{ 'x' * 99999999 }}", "more than 64 MiB"),
    ],
)
def test_a_template_that_fails_is_one_line(folder: Path, run: Run, template: str, words: str) -> None:
    pytest.importorskip("jinja2")
    (folder / "tok" / "chat_template.jinja").write_text(template)
    Path("data.jsonl").write_text(json.dumps({"messages": [USER]}))
    code, out, err = run("data.jsonl", "--tokenizer", "tok")
    assert (code, out, err.count("\n")) == (2, "", 2)
    assert words in err


def test_what_a_tokenizer_ends_by_itself_is_not_ended_again(folder: Path, run: Run) -> None:
    (folder / "tok" / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "a"}}))
    assert counted(run, [{"text": "a b"}]) == [3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows"),
        ("not json", "line 1: 'not json' is no JSON object"),
        ('{"text": "a"}\n[1]', "line 2: '[1]' is no JSON object"),
        ('[{"text": "a"}, 3]', "row 2: '3' is no JSON object"),
        ('[{"text": "a"}, {"te', "row 2"),
        ('{"id": 1}', "columns id say nothing"),
        ('{"text": "a"}\n{"body": "b"}', "line 2: no column 'text'"),
        ('{"messages": 7}', "'7' is no conversation"),
        ('{"input_ids": 7}', "input_ids is no list"),
    ],
)
def test_rows_that_are_none_are_named(folder: Path, run: Run, text: str, words: str) -> None:
    Path("data.jsonl").write_text(text)
    Path("lengths.txt").write_text("kept")
    code, out, err = run("data.jsonl", "--tokenizer", "tok", "-o", "lengths.txt", "--force")
    assert (code, out, err.count("\n")) == (2, "", 2)
    assert words in err
    assert Path("lengths.txt").read_text() == "kept"
    assert sorted(path.name for path in folder.iterdir()) == ["data.jsonl", "lengths.txt", "tok"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "lengths of which data set?"),
        (("nowhere.jsonl",), "no such file: nowhere.jsonl"),
        (("tok",), "tok is a folder"),
        (("data.jsonl",), "add --tokenizer DIR"),
        (("data.jsonl", "--tokenizer", "nowhere"), "no such file: nowhere"),
        (("data.jsonl", "--tokenizer", "empty.json"), "no model"),
        (("data.jsonl", "--tokenizer", "tok", "--columns", "chosn=a"), "did you mean chosen"),
        (("data.jsonl", "--tokenizer", "tok", "--columns", "chosen=a"), "no column 'a'"),
        (("data.jsonl", "--tokenizer", "tok", "-o", "empty.json"), "add --force"),
    ],
)
def test_what_is_missing_is_said_in_one_line(folder: Path, run: Run, arguments: tuple[str, ...], words: str) -> None:
    Path("data.jsonl").write_text('{"text": "a"}')
    Path("empty.json").write_text("{}")
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 2)
    assert words in err


def test_without_the_library_the_extra_is_named(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    Path("data.jsonl").write_text('{"text": "a"}')
    assert "pip install 'memplan[lengths]'" in run("data.jsonl", "--tokenizer", "tok")[2]


def test_parquet_needs_its_library(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    Path("data.parquet").write_text("PAR1")
    assert "pip install pyarrow" in run("data.parquet", "--tokenizer", "tok")[2]


def test_rows_come_one_by_one_from_every_form(folder: Path) -> None:
    long = "x" * (2 * CHUNK)
    data = [{"text": "a"}, {"text": long}, {"text": "[b]"}]
    lines = "\n".join(json.dumps(row) for row in data)
    Path("a.jsonl").write_text("\n" + lines)
    Path("b.json").write_text(json.dumps(data, indent=2))
    Path("d.txt").write_text(f"a\n{long}\n[b]\n")
    with gzip.open("c.jsonl.gz", "wt") as file:
        file.write(lines)
    for name in ("a.jsonl", "b.json", "c.jsonl.gz", "d.txt"):
        assert [row for _, row in rows(name, lambda *_: None)] == data


def test_contents_of_conversations() -> None:
    assert text_of([{"text": "a"}, {"type": "image"}, "b"]) == "ab"
    assert (text_of(None), text_of({"a": 1})) == ("", '{"a": 1}')
    assert messages_of([{"from": "gpt", "value": "a"}], "")[0] == {"role": "assistant", "content": "a"}


def test_percentiles_and_the_histogram_are_of_every_row() -> None:
    lengths = sorted([*range(1, 991), *[5000] * 10])
    assert percentiles(lengths) == {
        "mean": round(sum(lengths) / 1000), "min": 1, "p50": 501, "p90": 901, "p95": 951, "p99": 5000, "max": 5000
    }  # fmt: skip
    for width in (40, 100, 120):
        bars = histogram_blocks(lengths, width)[1]
        assert isinstance(bars, Table)
        assert sum(int(str(row[1]).replace(",", "")) for row in bars.rows) == 1000
    same = histogram_blocks([7] * 9, 80)[1]
    assert isinstance(same, Table)
    assert [row[:3] for row in same.rows] == [("7", "9", "100 %")]


@pytest.mark.parametrize("columns", ["40", "120"])
def test_what_is_shown_fits_the_screen(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    Path("d.txt").write_text("\n".join("a " * n for n in range(1, 3000, 7)))
    _, out, _ = run("d.txt", "--tokenizer", "tok")
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "\x1b" not in out


def test_the_file_that_is_written_is_one_that_a_job_reads(folder: Path, run: Run) -> None:
    counted(run, [{"prompt": "a b", "chosen": "c " * n, "rejected": "d"} for n in range(1, 60)])
    job = {"model": "llama-3.2-1b", "method": "dpo", "lengths": {"file": "lengths.txt", "played_steps": 0}}
    found = memplan.estimate(job).lengths
    assert found is not None
    assert found.drawn == "59 pairs of lengths.txt"
    assert found.worst.length == 3 + 59 + 1


def test_as_json(folder: Path, run: Run) -> None:
    Path("d.txt").write_text("a b\nc")
    assert json.loads(run("d.txt", "--tokenizer", "tok", "--json")[1])["tokens"] == 4 + 3
