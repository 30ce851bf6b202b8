"""[pure] The offset at which a follower's log diverges from the leader's log, by leader epochs.

Every fetch has the epoch of the follower's last record. If that epoch is missing in the leader's
log, or ends there before the fetch offset, the response has the leader's largest epoch that is not
greater than the follower's, and the end offset of that epoch.
"""

from __future__ import annotations

from collections.abc import Callable

UNDEFINED = -1

# Returns (the largest epoch that is not greater than the argument, its end offset), or (-1, -1).
EndOffsetForEpoch = Callable[[int], tuple[int, int]]


def truncation_offset(
    end_offset_for_epoch: EndOffsetForEpoch, own_end: int, high_watermark: int, leader_epoch: int, leader_end: int
) -> int:
    """Return the offset to truncate the follower's log to. `leader_epoch` and `leader_end` are the
    epoch and the end offset in the leader's response.

    A follower without that epoch truncates to the end of its largest smaller epoch. Its next fetch
    has that smaller epoch. This repeats until both logs agree.
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
