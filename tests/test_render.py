"""Layout: nothing is cut, numbers keep their units, columns line up; and the forms made of the same blocks."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memplan.render.blocks import Column, Heading, Prose, Span, Table, bar, definitions
from memplan.render.data import to_csv, to_json, to_markdown, to_yaml
from memplan.render.layout import broken, lines, widths
from memplan.render.text import plain

TABLE = Table(
    (Column("name"), Column("bytes", right=True), Column("what", wrap=True)),
    (("one", "1.00 GiB", "a word or two about it"), ("three", "104.71 GiB", Span("more words than fit a line", "dim"))),
)


@given(st.lists(st.text("ab1 ", max_size=12), max_size=12), st.integers(20, 120))
def test_prose_keeps_every_word_and_fits(words: list[str], width: int) -> None:
    text = " ".join(words)
    pieces = broken(text, width)
    assert " ".join(pieces).split() == text.split()
    assert all(len(piece) <= width for piece in pieces)


@pytest.mark.parametrize("text", ["12.34 GiB", "40 GB", "8.03 B parameters", "95 % of it", "2 × 2,048 tokens = 4,096"])
def test_a_number_is_not_parted_from_its_unit(text: str) -> None:
    number = text.split(" ", maxsplit=1)[0] + " " + text.split(" ")[1]
    for filler in range(40):
        assert number in "\n".join(broken("x" * filler + " " + text + " and so on and so forth to the end", 30))


@pytest.mark.parametrize("width", [24, 30, 36, 60, 100])
def test_a_table_cuts_nothing_and_does_not_spill(width: int) -> None:
    text = plain([TABLE], width)
    assert all(cell in text for cell in ("one", "three", "1.00 GiB", "104.71 GiB"))
    assert max(map(len, text.splitlines())) <= width
    kept = [word.strip(";") for word in text.split() if word.isalpha() or word.endswith(";")]
    for words in ("a word or two about it", "more words than fit a line"):
        assert all(word in kept for word in words.split())


def test_where_columns_find_no_room_the_cells_of_a_row_stand_below_each_other_with_their_titles() -> None:
    assert plain([TABLE], 37).splitlines()[0] == "  name        bytes  what"
    assert plain([TABLE], 36).splitlines() == [
        "  one",
        "    bytes 1.00 GiB; what a word or",
        "    two about it",
        "  three",
        "    bytes 104.71 GiB; what more",
        "    words than fit a line",
    ]
    drawn = Table((Column("name"), Column("share", right=True), Column(screen_only=True)), (("a", "50 %", "█" * 30),))
    assert plain([drawn], 40).splitlines()[1] == "  a      50 %", "a bar goes before the columns do"
    assert plain([definitions([("a name", "its meaning, which is longer than a line")])], 24).splitlines() == [
        "  a name",
        "    its meaning, which",
        "    is longer than a",
        "    line",
    ]


def test_prose_is_never_wider_than_a_hundred_columns() -> None:
    assert max(map(len, plain([Heading("x " * 200), Prose("word " * 200)], 160).splitlines())) <= 100
    assert max(map(len, plain([definitions([("name", "word " * 200)])], 160).splitlines())) <= 2 + 4 + 2 + 100


def test_columns_line_up() -> None:
    header, first, *_ = plain([TABLE], 100).splitlines()
    assert header.index("bytes") + len("bytes") == first.index("1.00 GiB") + len("1.00 GiB")
    assert header.index("what") == first.index("a word")


def test_columns_of_words_share_what_is_left() -> None:
    sizes = widths(TABLE, 50)
    assert sizes[:2] == [5, 10]
    assert 2 + sum(sizes) + 4 <= 50


def test_no_line_ends_in_spaces() -> None:
    assert all(line == line.rstrip() for line in plain([Heading("x"), TABLE, Prose("y")], 40).splitlines())


def test_headings_stand_apart_and_styles_stay_out_of_plain_text() -> None:
    assert plain([Heading("a"), Prose("b"), Heading("c", "bad")]) == "a\n  b\n\nc\n"
    spans = [span for line in lines([Heading("c", "bad")], 80) for span in line]
    assert spans == [Span("c", "bad")]


def test_definitions_have_no_header() -> None:
    assert plain([definitions([("a", "x"), ("long", "y")])]) == "  a     x\n  long  y\n"


@pytest.mark.parametrize(
    ("share", "text"), [(0, ""), (0.5, "█████"), (1, "█" * 10), (0.05, "▌"), (2, "█" * 10), (-1, "")]
)
def test_bars(share: float, text: str) -> None:
    assert bar(share, 10) == text


def test_markdown_escapes_what_would_be_markup() -> None:
    text = to_markdown([Heading("a_b"), Table((Column("x|y"), Column(screen_only=True)), (("<1 %", "███"),))])
    assert text == "## a\\_b\n\n| x\\|y |\n| --- |\n| &lt;1 % |\n"


def test_csv_runs_no_formula_and_keeps_structure() -> None:
    text = to_csv([{"name": "=SUM(A1)", "changes": {"a": 1}}, {"name": "b, c", "more": 2}])
    assert text.splitlines() == ["name,changes,more", '\'=SUM(A1),"{""a"": 1}",', '"b, c",,2']


TEXT = st.text("aé×0: #-\n'\"{}[]!&*|>%@`?,=", max_size=8)


@given(st.dictionaries(TEXT, st.integers() | TEXT | st.none() | st.booleans(), max_size=5))
def test_data_reads_back(value: dict[str, object]) -> None:
    assert json.loads(to_json(value)) == value
    assert yaml.safe_load(to_yaml(value)) == value


def test_a_setting_breaks_at_its_sign_before_its_words() -> None:
    setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert broken(setting, 35) == ["PYTORCH_CUDA_ALLOC_CONF=", "expandable_segments:True"]
    assert broken("meta-llama/Llama-3.1-8B-Instruct-and-more", 16) == [
        "meta-llama/",
        "Llama-3.1-8B-",
        "Instruct-and-",
        "more",
    ]
    assert broken("x" * 40, 16) == ["x" * 16, "x" * 16, "x" * 8]
    assert broken(setting, 18) == ["PYTORCH_CUDA_", "ALLOC_CONF=", "expandable_", "segments:True"]
