"""[pure] The rules of the ISR: which followers belong to it, and which offsets all members have.

Times are in seconds of a monotonic clock. A leader learns the state of its followers only from
their fetches: a fetch from offset n means that the follower has all records before n.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kavka.common.backoff import Backoff

UNKNOWN = -1
NEVER = float("-inf")
# Delays before a follower that the controller refused is proposed for the ISR again.
PROPOSAL_BACKOFF = Backoff(50, 1_000, jitter=0)


@dataclass(slots=True, eq=False)
class FollowerState:
    """The state of one follower, which the leader learns from the follower's fetches in this leader
    epoch. `LeaderRole` owns it."""

    broker_id: int
    end_offset: int = UNKNOWN
    start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    fetched_at: float = NEVER
    caught_up_at: float = NEVER
    leader_end_at_fetch: int = UNKNOWN
    # The controller refused the follower as ineligible, probably because its broker is about to
    # stop. The follower may join after a restart.
    is_ineligible: bool = False
    refusals: int = 0
    propose_at: float = NEVER

    def admit(self) -> None:
        """Reset the refusals: the follower may join the ISR."""
        self.is_ineligible = False
        self.refusals = 0
        self.propose_at = NEVER

    def refuse(self, now: float, *, ineligible: bool) -> None:
        """Record that the controller refused the follower, and delay the next proposal."""
        self.is_ineligible = self.is_ineligible or ineligible
        self.refusals += 1
        self.propose_at = now + PROPOSAL_BACKOFF.delay(self.refusals)

    def begin_epoch(self, now: float, leader_end: int, is_in_sync: bool, is_new_leader: bool) -> None:
        """Reset the state for a new leader epoch. A follower in the ISR counts as caught up now. A
        new leader has received no fetch from its followers."""
        self.admit()
        if not is_new_leader:
            self.leader_end_at_fetch = leader_end if is_in_sync else 0
            self.fetched_at = now if is_in_sync else NEVER
        self.caught_up_at = now if is_in_sync else NEVER

    def record_fetch(self, offset: int, start_offset: int, now: float, leader_end: int, broker_epoch: int) -> None:
        """Record a fetch from `offset`. The leader's log ends at `leader_end`.

        A follower that fetches from the log's end has caught up now. A follower that fetches from
        the log's end at the previous fetch had caught up at that time. So a log that always grows
        does not make its followers lag.
        """
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self.leader_end_at_fetch and self.fetched_at > self.caught_up_at:
            self.caught_up_at = self.fetched_at
        self.end_offset = offset
        self.start_offset = start_offset
        if broker_epoch != self.broker_epoch:
            self.broker_epoch = broker_epoch
            self.admit()
        self.fetched_at = now
        if leader_end > self.leader_end_at_fetch:
            self.leader_end_at_fetch = leader_end

    def mark_caught_up(self, fetched_at: float) -> None:
        """Record that the follower had all records when it sent the fetch at `fetched_at`, which
        did not include this partition."""
        if fetched_at > self.fetched_at:
            self.fetched_at = self.caught_up_at = fetched_at
            self.leader_end_at_fetch = self.end_offset

    def is_caught_up(self, leader_end: int, now: float, max_lag: float) -> bool:
        return self.end_offset == leader_end or now - self.caught_up_at <= max_lag


def high_watermark(
    current: int,
    leader_end: int,
    followers: Iterable[FollowerState],
    maximal_isr: Collection[int],
    now: float,
    max_lag: float,
    live_brokers: Collection[int],
) -> int:
    """Return the first offset that not all members of the ISR have, but at least `current`: the
    high watermark of a leader never moves back.

    `maximal_isr` has every replica that the controller may consider in sync: the ISR, and the
    members that a pending change adds. A live, eligible follower outside the maximal ISR that has
    caught up also holds the high watermark back. Otherwise the follower could never join, because
    the high watermark would stay ahead of it.
    """
    lowest = leader_end
    for follower in followers:
        end = follower.end_offset
        if end < lowest and (
            follower.broker_id in maximal_isr
            or (
                now - follower.caught_up_at <= max_lag
                and not follower.is_ineligible
                and follower.broker_id in live_brokers
            )
        ):
            lowest = end
    return lowest if lowest > current else current


def may_join(follower: FollowerState, high_watermark: int, epoch_start: int) -> bool:
    """Whether to propose a follower for the ISR. The follower must have all committed records, and
    all records from before this leader epoch: records above the high watermark of a new leader may
    be committed. After a refusal, the follower is not proposed before `propose_at`."""
    return (
        follower.end_offset >= high_watermark
        and follower.end_offset >= epoch_start
        and follower.fetched_at >= follower.propose_at
    )


def out_of_sync(members: Iterable[FollowerState], leader_end: int, now: float, max_lag: float) -> list[int]:
    """Return the ids of the ISR members that have not caught up with the leader for more than
    `max_lag` seconds."""
    return [member.broker_id for member in members if not member.is_caught_up(leader_end, now, max_lag)]
