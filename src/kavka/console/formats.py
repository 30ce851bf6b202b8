"""Numbers, sizes, rates, durations and dates as texts. `static/format.js` has the same functions
with the same results. Thousands are separated by a narrow no-break space (U+202F); "–" stands for a
missing value."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

from markupsafe import Markup

MISSING = "–"
SPACE = "\u202f"
LAST_SECOND = 253402300799
"""The last second that a datetime can represent."""


def bytes_text(value: float | None) -> str:
    return MISSING if value is None else _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB"), " ")


def compact_text(value: float | None) -> str:
    """Return a number in few characters, for axes: 12.3 k."""
    return MISSING if value is None else _scaled(value, ("", "k", "M", "G", "T"), SPACE)


def number_text(value: float | None) -> str:
    if value is None:
        return MISSING
    text = _rounded(abs(value), 0)
    sign = "-" if value < 0 and text != "0" else ""
    return f"{sign}{int(text):,}".replace(",", SPACE)


def rate_text(value: float | None) -> str:
    if value is None:
        return MISSING
    return _rounded(value, 1) if 0 < abs(value) < 9.95 else number_text(value)


def share_text(value: float | None) -> str:
    return MISSING if value is None else f"{_rounded(value * 100, 0)}%"


def count_text(value: int | None, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 partition", "3 484 partitions"."""
    return f"{number_text(value)} {noun if value == 1 else plural or noun + 's'}"


def duration_text(seconds: float | None) -> str:
    """Return a duration in its two largest units: "850 ms", "1 h 36 min"."""
    if seconds is None:
        return MISSING
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{_rounded(seconds * 1000, 0)} ms"
    if seconds < 9.95:
        return f"{_rounded(seconds, 1).removesuffix('.0')} s"
    left = math.floor(seconds + 0.5)
    parts: list[tuple[int, str]] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def ago(seconds: float | None) -> str:
    """Return the time that has passed since `seconds`."""
    return duration_text(max(0.0, time.time() - seconds) // 1) if seconds else MISSING


def when(seconds: float | None) -> Markup | str:
    """Return a time in UTC as HTML. The script shows it in the local time zone."""
    if seconds is None or not 0 <= seconds < LAST_SECOND:
        return MISSING
    time_utc = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        time_utc.isoformat(timespec="milliseconds"), date_text(time_utc)
    )


def date_text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _scaled(value: float, units: tuple[str, ...], space: str) -> str:
    size, unit = abs(float(value)), 0

    def digits() -> int:
        return 0 if (unit == 0 and size.is_integer()) or size >= 99.95 else 1

    while unit < len(units) - 1 and float(_rounded(size, digits())) >= 1000:
        size, unit = size / 1000, unit + 1
    suffix = space + units[unit] if units[unit] else ""
    return f"{'-' if value < 0 else ''}{_rounded(size, digits())}{suffix}"


def _rounded(value: float, digits: int) -> str:
    """Round half up, as the script does; `round` and `format` round half to even."""
    scale = 10**digits
    return f"{math.floor(value * scale + 0.5) / scale:.{digits}f}"
