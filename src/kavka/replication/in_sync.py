"""[pure] The rules of the high watermark: which offsets every in-sync replica has."""

from __future__ import annotations

from collections.abc import Iterable


def high_watermark(current: int, leader_end: int, in_sync_ends: Iterable[int]) -> int:
    """The first offset that not all of the ISR have. It never goes back while one leader leads.

    `in_sync_ends` are the end offsets of the other members of the ISR, as far as the leader knows them.
    """
    lowest = leader_end
    for end in in_sync_ends:
        if end < lowest:
            lowest = end
    return lowest if lowest > current else current
