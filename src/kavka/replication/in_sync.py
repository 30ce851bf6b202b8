"""[pure] The rules of the ISR: which followers belong to it, and which offsets all members have.

Times are in seconds of a monotonic clock. A leader knows its followers only by their fetches: a
fetch from offset n means that the follower has all records before n.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kavka.common.backoff import Backoff

UNKNOWN = -1
NEVER = float("-inf")
# Delays before a follower that the controller refused is proposed for the ISR again.
PROPOSAL_BACKOFF = Backoff(50, 1_000, jitter=0)


class FollowerState:
    """The leader's state of one other replica, from its fetches in this epoch. `LeaderRole` owns
    it."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_at",
        "end_offset",
        "fetched_at",
        "is_ineligible",
        "leader_end_at_fetch",
        "propose_at",
        "refusals",
        "start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.reset()

    def reset(self) -> None:
        """A new leader knows nothing of the follower before its first fetch."""
        self.end_offset = UNKNOWN
        self.start_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.fetched_at = NEVER
        self.caught_up_at = NEVER
        self.leader_end_at_fetch = UNKNOWN
        self.admit()

    def admit(self) -> None:
        """Forget refusals: the follower may join the ISR."""
        # The controller found the follower ineligible, probably because its broker is about to
        # stop. It may join after a restart.
        self.is_ineligible = False
        self.refusals = 0
        self.propose_at = NEVER

    def refuse(self, now: float, *, ineligible: bool) -> None:
        """The controller did not let the follower into the ISR."""
        self.is_ineligible = self.is_ineligible or ineligible
        self.refusals += 1
        self.propose_at = now + PROPOSAL_BACKOFF.delay(self.refusals)

    def begin_epoch(self, now: float, leader_end: int, in_sync: bool, is_new_leader: bool) -> None:
        """The leader begins an epoch, with or without having led before. A follower in the ISR
        counts as caught up now."""
        self.admit()
        if is_new_leader:
            self.reset()
        else:
            self.leader_end_at_fetch = leader_end if in_sync else 0
            self.fetched_at = now if in_sync else NEVER
        self.caught_up_at = now if in_sync else NEVER

    def record_fetch(self, offset: int, start_offset: int, now: float, leader_end: int, broker_epoch: int) -> None:
        """The follower fetches from `offset`, and the leader's log ends at `leader_end`.

        A fetch from the end means that the follower has caught up now. A fetch from the end that
        the log had at the fetch before means that it had caught up then. So a log that always grows
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
        """The follower had all records at its fetch of that time, which did not name this
        partition."""
        if fetched_at > self.fetched_at:
            self.fetched_at = self.caught_up_at = fetched_at
            self.leader_end_at_fetch = self.end_offset

    def is_caught_up(self, leader_end: int, now: float, max_lag: float) -> bool:
        return self.end_offset == leader_end or now - self.caught_up_at <= max_lag

    def __repr__(self) -> str:
        return "FollowerState(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__) + ")"


def high_watermark(
    current: int,
    leader_end: int,
    followers: Iterable[FollowerState],
    maximal_isr: Collection[int],
    now: float,
    max_lag: float,
    alive: Collection[int],
) -> int:
    """The first offset that not all members of the ISR have. It never moves back under one leader.

    `maximal_isr` has every replica that the controller may consider in sync: the ISR, and the
    members that a pending change adds. A live follower outside of it that has caught up and is
    eligible holds the high watermark back as well: else it could never join, as the high watermark
    would stay ahead of it.
    """
    lowest = leader_end
    for follower in followers:
        end = follower.end_offset
        if end < lowest and (
            follower.broker_id in maximal_isr
            or (now - follower.caught_up_at <= max_lag and not follower.is_ineligible and follower.broker_id in alive)
        ):
            lowest = end
    return lowest if lowest > current else current


def may_join(follower: FollowerState, high_watermark: int, epoch_start: int) -> bool:
    """Whether to propose a follower for the ISR. It has all committed records, and all records from
    before this leader epoch: the high watermark of a new leader may be lower than the committed
    offset. After a refusal it is not proposed before `propose_at`."""
    return (
        follower.end_offset >= high_watermark
        and follower.end_offset >= epoch_start
        and follower.fetched_at >= follower.propose_at
    )


def out_of_sync(members: Iterable[FollowerState], leader_end: int, now: float, max_lag: float) -> list[int]:
    """The members of the ISR that have not caught up with the leader for more than `max_lag`."""
    return [member.broker_id for member in members if not member.is_caught_up(leader_end, now, max_lag)]
