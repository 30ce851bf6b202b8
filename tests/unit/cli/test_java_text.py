"""Numbers and times in Java's formats."""

from __future__ import annotations

import math
import time

import pytest

from kavka.cli.java_text import date_text, double_text, fixed, ratio


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (1.0, "1.0"), (-2.5, "-2.5"), (0.001, "0.001"), (0.0001, "1.0E-4"), (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"), (9999999.0, "9999999.0"), (1e22, "1.0E22"), (math.inf, "Infinity"),
        (-math.inf, "-Infinity"), (math.nan, "NaN"),
    ],
)  # fmt: skip
def test_doubles_have_java_format(value: float, text: str) -> None:
    assert double_text(value) == text


def test_division_by_zero_returns_infinity_or_nan() -> None:
    assert fixed(ratio(1, 0), 2) == "Infinity"
    assert fixed(ratio(0, 0), 2) == "NaN"
    assert fixed(ratio(1, 3), 4) == "0.3333"


def test_dates_follow_java_patterns() -> None:
    moment = int(time.mktime((2026, 3, 7, 4, 5, 6, 0, 0, -1))) * 1000 + 89
    assert date_text("yyyy-MM-dd HH:mm:ss:SSS", moment) == "2026-03-07 04:05:06:089"
    assert date_text("d.M.yy 'at' h''a", moment) == "7.3.26 at 4'AM"
    for wrong in ("yyyy b", "'open"):
        with pytest.raises(ValueError, match=r"pattern character|quote"):
            date_text(wrong, moment)
