"""Rules of the ISR: high watermark, lag, joining, and truncation."""

from __future__ import annotations

import pytest

from kavka.replication.divergence import truncation_offset
from kavka.replication.in_sync import FollowerState, high_watermark, may_join, out_of_sync

LAG = 10.0
NOW = 1000.0


def follower(broker_id: int, end: int, caught_up_at: float = NOW) -> FollowerState:
    state = FollowerState(broker_id)
    state.end_offset = end
    state.caught_up_at = caught_up_at
    return state


@pytest.mark.parametrize(
    ("current", "leader_end", "followers", "isr", "alive", "expected"),
    [
        (0, 10, [], {0}, {0}, 10),
        (0, 10, [(1, 7), (2, 9)], {0, 1, 2}, {0, 1, 2}, 7),
        (8, 10, [(1, 7)], {0, 1}, {0, 1}, 8),  # the high watermark never moves back
        (0, 10, [(1, -1)], {0, 1}, {0, 1}, 0),  # a member that has not fetched yet
        (0, 10, [(1, 7, NOW)], {0}, {0, 1}, 7),  # a caught-up follower is about to join
        (0, 10, [(1, 7, NOW)], {0}, {0}, 10),  # a dead follower cannot join
        (0, 10, [(1, 7, NOW - LAG - 1)], {0}, {0, 1}, 10),  # a lagging follower does not count
        (0, 10, [(1, 7, NOW - LAG - 1)], {0, 1}, {0}, 7),  # a member counts even if it lags or is dead
    ],
)
def test_the_high_watermark_is_the_lowest_end_offset_of_the_isr(current, leader_end, followers, isr, alive, expected):
    states = [follower(*arguments) for arguments in followers]
    assert high_watermark(current, leader_end, states, isr, NOW, LAG, alive) == expected


@pytest.mark.parametrize(
    ("end", "high", "epoch_start", "joins"),
    [(10, 10, 0, True), (9, 10, 0, False), (10, 5, 12, False), (12, 5, 12, True), (-1, 0, 0, False)],
)
def test_a_follower_joins_with_all_committed_records_and_all_before_the_epoch(end, high, epoch_start, joins):
    assert may_join(follower(1, end), high, epoch_start) is joins


def test_a_follower_that_reaches_the_end_of_its_last_fetch_does_not_lag():
    state = FollowerState(1)
    state.begin_epoch(0.0, 100, is_in_sync=True, is_new_leader=True)
    for n in range(1, 30):
        # The follower always reaches the log end of its previous fetch, but the log grows again.
        state.record_fetch(100 * (n - 1), 0, float(n), 100 * n, 1)
        assert out_of_sync([state], 100 * n, n + 0.5, 2.0) == []
    # Now the follower reads only half of the new records.
    for n in range(30, 33):
        state.record_fetch(2850 + n, 0, float(n), 100 * n, 1)
    assert out_of_sync([state], 3300, 32.5, 2.0) == [1]


def test_a_refused_follower_holds_the_high_watermark_after_its_broker_restarts():
    """Otherwise the follower could not join while other followers are faster, because the high
    watermark would pass its end offset before every fetch."""
    state = FollowerState(1)
    state.record_fetch(10, 0, NOW, 10, 7)
    state.is_ineligible = True
    state.record_fetch(10, 0, NOW, 10, 7)
    assert high_watermark(10, 12, [state], {0}, NOW, LAG, {0, 1}) == 12
    state.record_fetch(10, 0, NOW, 10, 8)
    assert high_watermark(10, 12, [state], {0}, NOW, LAG, {0, 1}) == 10


def test_a_follower_at_the_log_end_is_in_sync_without_recent_fetches():
    assert out_of_sync([follower(1, 10, NOW - 100 * LAG)], 10, NOW, LAG) == []
    assert out_of_sync([follower(1, 9, NOW - 100 * LAG)], 10, NOW, LAG) == [1]


def test_a_reelected_leader_keeps_the_offsets_of_its_followers():
    state = FollowerState(1)
    state.record_fetch(50, 3, 1.0, 60, 7)
    state.begin_epoch(5.0, 60, is_in_sync=True, is_new_leader=False)
    assert (state.end_offset, state.start_offset, state.caught_up_at) == (50, 3, 5.0)
    state.begin_epoch(6.0, 60, is_in_sync=False, is_new_leader=False)
    assert (state.end_offset, state.start_offset, state.broker_epoch) == (50, 3, 7)
    assert out_of_sync([state], 60, 6.0, LAG) == [1]


def epochs(*entries: tuple[int, int], end: int):
    """A fake of `Log.end_offset_for_epoch`."""

    def end_offset_for(epoch: int) -> tuple[int, int]:
        if not entries or epoch > entries[-1][0]:
            return -1, -1
        if epoch == entries[-1][0]:
            return epoch, end
        smaller = [e for e, _ in entries if e <= epoch]
        return (smaller[-1] if smaller else epoch), next(start for e, start in entries if e > epoch)

    return end_offset_for


@pytest.mark.parametrize(
    ("own", "own_end", "leader", "expected"),
    [
        # Both logs have the epoch: the smaller end offset counts.
        (((0, 0), (2, 10)), 20, (2, 15), 15),
        (((0, 0), (1, 10)), 20, (0, 10), 10),
        (((0, 0), (1, 10)), 20, (0, 5), 5),
        (((0, 0), (1, 10)), 20, (0, 12), 10),
        # The follower lacks the leader's epoch: to the end of its largest smaller epoch.
        (((0, 0), (3, 10)), 20, (2, 15), 10),
        # All epochs of the follower are larger.
        (((3, 5), (4, 10)), 20, (2, 7), 5),
        # No epochs, or a response without them.
        ((), 20, (2, 15), 15),
        (((0, 0),), 20, (-1, 12), 12),
        (((0, 0),), 20, (-1, -1), 8),
    ],
)
def test_the_truncation_offset_of_a_follower(own, own_end, leader, expected):
    assert truncation_offset(epochs(*own, end=own_end), own_end, 8, *leader) == expected
