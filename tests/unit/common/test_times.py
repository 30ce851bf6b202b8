"""ISO 8601 times and durations."""

from __future__ import annotations

import pytest

from kavka.common.times import duration_ms, milliseconds_of, text_of


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P1D", 86_400_000),
        ("PT1H30M", 5_400_000),
        ("P1DT1S", 86_401_000),
        ("PT0.5S", 500),
        ("pt2m", 120_000),
        ("-PT1S", -1000),
        ("PT-1S", -1000),
    ],
)
def test_durations(text, milliseconds):
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1DT", "P1M", "PT1H1D", "P1.5D"])
def test_invalid_duration_raises_error(text):
    with pytest.raises(ValueError, match="PnDTnHnMnS"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_time_without_zone_is_utc(text, milliseconds):
    assert milliseconds_of(text) == milliseconds


@pytest.mark.parametrize("text", ["2020-01-01", "2020-13-01T00:00:00", "yesterday"])
def test_invalid_time_raises_error(text):
    with pytest.raises(ValueError):
        milliseconds_of(text)


def test_time_text_round_trips():
    assert text_of(1500) == "1970-01-01T00:00:01.500Z"
    assert milliseconds_of(text_of(1_700_000_000_123)) == 1_700_000_000_123
