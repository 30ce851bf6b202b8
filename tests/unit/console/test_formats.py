"""Numbers, sizes, rates, durations and dates as texts."""

from __future__ import annotations

import pytest

from kavka.console.formats import (
    ago,
    bytes_text,
    compact_text,
    count_text,
    duration_text,
    number_text,
    rate_text,
    share_text,
    when,
)


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (number_text, {
            None: "–", 0: "0", -0.2: "0", 999.5: "1\u202f000", 1_234_567: "1\u202f234\u202f567", -3484: "-3\u202f484",
        }),
        (bytes_text, {
            None: "–", 0: "0 B", 999: "999 B", 1000: "1.0 kB", 12_345: "12.3 kB", 123_456: "123 kB", 999_960: "1.0 MB",
            5 * 10**15: "5.0 PB", -2000: "-2.0 kB", 12.34: "12.3 B",
        }),
        (compact_text, {None: "–", 0: "0", 7: "7", 12_340: "12.3\u202fk", 2_000_000: "2.0\u202fM"}),
        (rate_text, {None: "–", 0: "0", 0.25: "0.3", 9.94: "9.9", 9.96: "10", 12.6: "13", 34_841: "34\u202f841"}),
        (share_text, {None: "–", 0.125: "13%", 1.0: "100%"}),
        (duration_text, {
            None: "–", -5: "0 s", 0.0004: "0 ms", 0.25: "250 ms", 0.9999: "1 s", 1.25: "1.3 s", 59: "59 s", 60: "1 min",
            75: "1 min 15 s", 5760: "1 h 36 min", 7200: "2 h", 200_000: "2 d 7 h", 86_460: "1 d",
        }),
    ],
)  # fmt: skip
def test_values_are_rounded_and_get_units(function, texts):
    assert {value: function(value) for value in texts} == texts


def test_numbers_agree_with_their_nouns():
    assert [count_text(n, "partition") for n in (0, 1, 3484)] == [
        "0 partitions",
        "1 partition",
        "3\u202f484 partitions",
    ]
    assert count_text(2, "leader of it", "leaders of it") == "2 leaders of it"


def test_times_are_utc_and_marked_up():
    assert when(None) == when(-1) == when(1e20) == ago(0) == "–"
    assert str(when(0)) == '<time datetime="1970-01-01T00:00:00.000+00:00">1970-01-01 00:00:00 UTC</time>'
