"""[pure] Where a follower's log and its leader's part, by the leader epochs that both remember.

A follower names the epoch of its last record with every fetch. Where the leader's log has no such epoch, or less of
it, the leader answers with the largest epoch it has up to that one, and where that ends: (epoch, end offset).
"""

from __future__ import annotations

from collections.abc import Callable

UNDEFINED = -1

# (largest known epoch up to the one asked for, where it ends); (-1, -1) where that cannot be said.
EndOffsetForEpoch = Callable[[int], tuple[int, int]]


def truncation_offset(
    end_offset_for_epoch: EndOffsetForEpoch, own_end: int, high_watermark: int, leader_epoch: int, leader_end: int
) -> int:
    """What a follower cuts its log to when the leader said (leader_epoch, leader_end).

    Where the follower does not know that epoch it cuts to the end of the largest smaller one that it has; its next
    fetch then names that one, until both agree.
    """
    if leader_end == UNDEFINED:
        return min(high_watermark, own_end)
    if leader_epoch == UNDEFINED:
        return min(leader_end, own_end)
    known_epoch, known_end = end_offset_for_epoch(leader_epoch)
    if known_end == UNDEFINED:
        return min(leader_end, own_end)
    if known_epoch != leader_epoch:
        return min(known_end, own_end)
    return min(known_end, leader_end, own_end)
