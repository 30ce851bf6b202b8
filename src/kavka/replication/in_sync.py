"""[pure] The rules of the in-sync replicas: who belongs to them, and which offsets all of them have.

Times are in seconds of a monotonic clock. A leader knows its followers only by what they fetch: a fetch from offset n
says that everything before n is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

UNKNOWN = -1
NEVER = float("-inf")
# A follower that the controller did not let into the ISR is proposed again after this long, then after twice as long.
FIRST_PROPOSAL_RETRY_S = 0.05
LAST_PROPOSAL_RETRY_S = 1.0


class FollowerState:
    """What the leader knows of one other replica, from its fetches in this epoch."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_at",
        "end_offset",
        "fetched_at",
        "leader_end_at_fetch",
        "propose_at",
        "refusals",
        "refused",
        "start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.forget()

    def forget(self) -> None:
        """Nothing is known of it: a new leader waits for its first fetch."""
        self.end_offset = UNKNOWN
        self.start_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.fetched_at = NEVER
        self.caught_up_at = NEVER
        self.leader_end_at_fetch = UNKNOWN
        self.admit()

    def admit(self) -> None:
        """It may join the ISR as far as is known."""
        # The controller did not let it into the ISR; it is probably about to stop. Its next life may join.
        self.refused = False
        self.refusals = 0
        self.propose_at = NEVER

    def refuse(self, now: float, *, ineligible: bool) -> None:
        """The controller did not let it into the ISR."""
        self.refused = self.refused or ineligible
        self.propose_at = now + min(FIRST_PROPOSAL_RETRY_S * 2 ** min(self.refusals, 10), LAST_PROPOSAL_RETRY_S)
        self.refusals += 1

    def begin_epoch(self, now: float, leader_end: int, in_sync: bool, is_new_leader: bool) -> None:
        """The leader begins an epoch, with or without having led before. Who is in sync is given time to show it."""
        self.admit()
        if is_new_leader:
            self.forget()
        else:
            self.leader_end_at_fetch = leader_end if in_sync else 0
            self.fetched_at = now if in_sync else NEVER
        self.caught_up_at = now if in_sync else NEVER

    def fetched(self, offset: int, start_offset: int, now: float, leader_end: int, broker_epoch: int) -> None:
        """It asks for what comes from `offset` on, while the leader's log ends at `leader_end`.

        It has caught up when it asks from the end; and had, at the time of the fetch before, when it now asks from
        where the log ended then: so a log that always grows does not make all its followers late.
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

    def was_at_end(self, when: float) -> None:
        """At its fetch of that time, which did not name this partition, it had all there was."""
        if when > self.fetched_at:
            self.fetched_at = self.caught_up_at = when
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
    """The first offset that not all of the ISR have. It never goes back while one leader leads.

    `maximal_isr` is every replica that the controller may take for in sync just now: the ISR, and whoever is on the way
    into it. Followers outside of it that have caught up hold it too, as they could not join while it moves ahead of
    them; not those that may not join.
    """
    lowest = leader_end
    for follower in followers:
        end = follower.end_offset
        if end < lowest and (
            follower.broker_id in maximal_isr
            or (now - follower.caught_up_at <= max_lag and not follower.refused and follower.broker_id in alive)
        ):
            lowest = end
    return lowest if lowest > current else current


def may_join(follower: FollowerState, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower belongs into the ISR: it has all that is committed, and all from before this leader's epoch
    (the high watermark of a new leader may be far behind what is committed). It is not proposed again right after the
    controller has refused it."""
    return (
        follower.end_offset >= high_watermark
        and follower.end_offset >= epoch_start
        and follower.fetched_at >= follower.propose_at
    )


def out_of_sync(members: Iterable[FollowerState], leader_end: int, now: float, max_lag: float) -> list[int]:
    """Which of the ISR's followers have not been at the leader's end for too long."""
    return [one.broker_id for one in members if not one.is_caught_up(leader_end, now, max_lag)]
