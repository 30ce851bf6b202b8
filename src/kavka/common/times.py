"""ISO 8601 times and durations, in milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:\.\d{0,9})?)S)?)?", re.IGNORECASE
)


def milliseconds_of(text: str) -> int:
    """Return the milliseconds since the epoch of a time such as YYYY-MM-DDThh:mm:ss.sss, which is
    in UTC unless it has a time zone. Raises ValueError."""
    if "T" not in text:
        raise ValueError("Error parsing timestamp. It does not contain a 'T' according to ISO8601 format")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a time: YYYY-MM-DDThh:mm:ss.sss is expected") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration PnDTnHnMnS. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.group(2, 4, 5, 6)) or match.group(3) in ("T", "t"):
        raise ValueError(f"'{text}' is not a duration: PnDTnHnMnS is expected, such as P1DT12H or PT30M")
    days, hours, minutes, seconds = (float(number or 0) for number in match.group(2, 4, 5, 6))
    total = round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
    return -total if match.group(1) == "-" else total


def text_of(milliseconds: int) -> str:
    """Return the time in UTC as text, with a Z at the end."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
