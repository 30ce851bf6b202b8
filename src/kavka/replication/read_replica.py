"""[pure] Which replica a consumer is to read from, by its rack (`replica.selector.class`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A replica that has what the consumer asks for. The order is that of preference, the last one first."""

    end_offset: int
    caught_up_at: float
    broker_id: int
    rack: str | None


def choose(consumer_rack: str, leader: Candidate, followers: Iterable[Candidate]) -> int:
    """The leader, unless only followers are in the consumer's rack: then the one of them that has most."""
    if not consumer_rack or leader.rack == consumer_rack:
        return leader.broker_id
    near = [one for one in followers if one.rack == consumer_rack]
    return max(near).broker_id if near else leader.broker_id
