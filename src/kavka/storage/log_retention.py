"""The segments that retention removes from the front of a log."""

from __future__ import annotations

from collections.abc import Callable

from kavka.storage.log_config import LogConfig
from kavka.storage.log_offsets import LogOffsets
from kavka.storage.segment import LogSegment
from kavka.storage.segments import LogSegments

Rule = Callable[[LogSegment, int | None], bool]
"""Whether a segment has expired. The second argument is the base offset of the next segment, or
None."""


def retention_rules(
    offsets: LogOffsets, segments: LogSegments, config: LogConfig, now_ms: int
) -> list[Callable[[], Rule]]:
    """retention.ms and retention.bytes, both only with cleanup.policy=delete, and the start offset.
    Each rule is made after the segments of the rule before it were removed."""

    def by_size() -> Rule:
        excess = segments.size - config.retention_bytes

        def is_excess(segment: LogSegment, _: int | None) -> bool:
            nonlocal excess
            if excess < segment.size:
                return False
            excess -= segment.size
            return True

        return is_excess

    rules: list[Callable[[], Rule]] = []
    if config.delete and config.retention_ms >= 0:
        rules.append(lambda: lambda segment, _: now_ms - segment.largest_timestamp > config.retention_ms)
    if config.delete and config.retention_bytes >= 0:
        rules.append(by_size)
    rules.append(lambda: lambda _, after: after is not None and after <= offsets.start_offset)
    return rules


def expired_segments(offsets: LogOffsets, segments: LogSegments, is_expired: Rule) -> list[LogSegment]:
    """The expired segments at the front of the log that are wholly below the high watermark."""
    expired: list[LogSegment] = []
    count = len(segments)
    for n, segment in enumerate(segments):
        after = segments[n + 1].base_offset if n + 1 < count else None
        if offsets.high_watermark < (offsets.end_offset if after is None else after):
            break
        if (after is None and not segment.size) or not is_expired(segment, after):
            break
        expired.append(segment)
    return expired
