"""Proves that a term beside its trace is compared in a way that says something."""

import pytest

from memplan.trace.view import TermRow, _difference

MIB = 1 << 20


@pytest.mark.parametrize(
    ("traced", "estimated", "shown"),
    [
        (500 * MIB, 505 * MIB, "+1.000%"),
        (MIB, MIB // 2, "-50.000%"),
        (MIB // 2, 3 * MIB, "+2.50 MiB"),
        (2048, 1024, "-1.00 KiB"),
        (512, 512, "none"),
        (0, 512, "not traced"),
    ],
)
def test_a_share_is_shown_from_a_thousandth_of_the_peak_on(traced: int, estimated: int, shown: str) -> None:
    assert _difference(TermRow("forward", "batch", traced, estimated), 1000 * MIB) == shown
