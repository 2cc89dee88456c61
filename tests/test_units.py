"""Proves that sizes and counts are read and written as people spell them: every unit, and the edges between them."""

import pytest

from memplan.errors import UsageError
from memplan.tables.texts import settings_in
from memplan.units import (
    DTYPE_BYTES,
    GPU_ROUNDING,
    GiB,
    KiB,
    MiB,
    ceil_div,
    format_bytes,
    format_count,
    pairs_of,
    parse_count,
    parse_size,
    round_up,
)


def test_binary_units_and_what_hardware_has() -> None:
    assert (KiB, MiB, GiB) == (1024, 1024**2, 1024**3)
    assert GPU_ROUNDING == 512
    assert DTYPE_BYTES == {"fp32": 4, "bf16": 2, "fp16": 2}


@pytest.mark.parametrize(
    ("unit", "size"),
    [
        ("B", 1), ("KB", 1000), ("MB", 1000**2), ("GB", 1000**3), ("TB", 1000**4), ("K", 1000), ("M", 1000**2),
        ("G", 1000**3), ("T", 1000**4), ("KiB", 1024), ("MiB", 1024**2), ("GiB", 1024**3), ("TiB", 1024**4),
    ],
)  # fmt: skip
def test_a_size_has_a_unit(unit: str, size: int) -> None:
    assert parse_size(f"3{unit}") == parse_size(f" 3.0 {unit.lower()} ") == 3 * size
    assert parse_size(f".5{unit}") == round(size / 2)


@pytest.mark.parametrize("text", ["", "80", "GB", "80 QB", "8 0GB", "-1GB", "1e3GB", "80GB!", "٣GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (8, 8 * 10**9), (8.5, 85 * 10**8), ("8", 8 * 10**9), ("8B", 8 * 10**9), ("350m", 350 * 10**6),
        ("2000k", 2 * 10**6), ("1T", 10**12), ("999999", 999_999 * 10**9), ("1000000", 10**6),
        (7_241_732_096, 7_241_732_096), ("1000T", 10**15), ("1M", 10**6),
    ],
)  # fmt: skip
def test_a_count_without_a_unit_is_in_billions_below_a_million(text: str | float, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "said"), [("0.99M", "range"), ("1001T", "range"), ("0", "range"), ("8G", "not a number")]
)
def test_what_is_no_count_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_count(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (MiB - 1, "1024.00 KiB"),
        (MiB, "1.00 MiB"), (GiB - 1, "1024.00 MiB"), (GiB, "1.00 GiB"), (-GiB, "-1.00 GiB"), (-5, "-5 B"), (2.4, "2 B"),
    ],
)  # fmt: skip
def test_bytes_in_the_largest_unit_that_they_fill(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_digits_are_asked_for() -> None:
    assert format_bytes(GiB, 0) == "1 GiB"
    assert format_bytes(GiB + GiB // 8, 3) == "1.125 GiB"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"), (999, "999"), (1000, "1.00 K"), (10**6 - 1, "1000.00 K"), (10**6, "1.00 M"), (10**9, "1.00 B"),
        (8_030_261_248, "8.03 B"), (10**12, "1.00 T"),
    ],
)  # fmt: skip
def test_counts_likewise(count: int, text: str) -> None:
    assert format_count(count) == text


def test_division_rounds_up() -> None:
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [round_up(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 4, 4, 8, 8]


def test_pairs_and_values_of_a_text() -> None:
    assert pairs_of("a=b\n same c=") == {"a": "b", "same": "same", "c": ""}
    read = settings_in("n=8 share=0.05 on=true off=false none=null many=[1,2] word=bf16-true")
    assert read == {"n": 8, "share": 0.05, "on": True, "off": False, "none": None, "many": [1, 2], "word": "bf16-true"}
