"""[pure] Where a follower's log diverges from its leader's, by their leader epochs.

Every fetch has the epoch of the follower's last record. If the leader's log does not have that
epoch, or has less of it, the response has the leader's largest epoch up to that one and its end
offset.
"""

from __future__ import annotations

from collections.abc import Callable

UNDEFINED = -1

# (largest epoch up to the argument, its end offset); (-1, -1) if unknown.
EndOffsetForEpoch = Callable[[int], tuple[int, int]]


def truncation_offset(
    end_offset_for_epoch: EndOffsetForEpoch, own_end: int, high_watermark: int, leader_epoch: int, leader_end: int
) -> int:
    """The offset to truncate the follower's log to, given the leader's epoch and end offset.

    A follower without that epoch truncates to the end of its largest smaller epoch. Its next fetch
    has that epoch, until both logs agree.
    """
    if leader_end == UNDEFINED:
        return min(high_watermark, own_end)
    if leader_epoch == UNDEFINED:
        return min(leader_end, own_end)
    own_epoch, own_epoch_end = end_offset_for_epoch(leader_epoch)
    if own_epoch_end == UNDEFINED:
        return min(leader_end, own_end)
    if own_epoch != leader_epoch:
        return min(own_epoch_end, own_end)
    return min(own_epoch_end, leader_end, own_end)
