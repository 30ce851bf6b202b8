"""[pure] The choice of the replica that a consumer reads from (`replica.selector.class`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A replica that has the consumer's offset. The greatest candidate is preferred."""

    end_offset: int
    caught_up_at: float
    broker_id: int
    rack: str | None


def choose(consumer_rack: str, leader: Candidate, followers: Iterable[Candidate]) -> int:
    """Return the broker id of the leader or, if only followers are in the consumer's rack, of the
    most caught-up follower there."""
    if not consumer_rack or leader.rack == consumer_rack:
        return leader.broker_id
    in_rack = [follower for follower in followers if follower.rack == consumer_rack]
    return max(in_rack).broker_id if in_rack else leader.broker_id
